"""`pocket`: a desktop in pure Python, numpy and Pillow. Deterministic, fast, and with a screen parse.

desktop.py   the shell: windows, focus, menus                ui.py, textbox.py, dialogs.py   the widgets
apps/        the applications, on one file system (vfs.py)   canvas.py, text_layout.py       the pixels
families/    tasks, checks and experts                       catalog.py, lists/              ids and splits
env.py       all of it behind the contract of envs/base.py   screen.py, expert.py            the screen parse, its user
events.py    what an action does                             gymnasium_env.py                the Gymnasium adapter
"""

from arpo.envs.pocket.env import PocketEnv
from arpo.envs.pocket.screen import Control

__all__ = ["Control", "PocketEnv"]
