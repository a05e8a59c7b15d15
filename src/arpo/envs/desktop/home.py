"""The home folder that every desktop starts with: programs that have been started before and that stand still.

    Sandbox(size, template(size))

It is made once, in some twenty seconds, by starting the large programs in a sandbox and closing them, and kept as a tar
file in the user's cache folder under a name that changes with the programs' versions and with this file. From it no
program asks first-run questions, shows tips, restores a session, blinks a caret or animates: whatever moves on the
screen would keep it from settling, and takes the agent's attention.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from rich.console import Console

from arpo.envs.desktop.checks.getters import VIDEO
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.private import WRITE, locked, refuse_shared
from arpo.envs.progress import doing
from arpo.errors import ConfigError, EnvError

WINDOW_S = 60.0  # for the first window of a program, on a busy machine
ENDED_S = 10.0  # for its processes, after its last window
MADE_S = 600.0  # for another process that is making the same
STILL_S = 1.0  # nothing drawn for so long: it is up
FIRST = "first desktop of {}x{}, some 20 s: starting {}"

# Started and closed once: they write much on their first start. What is not installed is left out.
PROGRAMS = {
    "libreoffice": (["--calc", "--norestore"], ["--writer", "--norestore"]),
    "chromium": ([],),
    "gimp": ([],),
    "vlc": ([],),
    "mousepad": ([],),
    "galculator": ([],),
}
LIBREOFFICE = {
    "Office.Common/Misc": {"ShowTipOfTheDay": "false", "FirstRun": "false", "CrashReport": "false"},
    "Office.Recovery/RecoveryInfo": {"Enabled": "false"},
    "Setup/Product": {"LastTimeDonateShown": "4102444800", "LastTimeGetInvolvedShown": "4102444800"},  # in 2100
}
OPENBOX_MENU = """<?xml version="1.0"?>
<openbox_menu><menu id="root-menu" label="Desktop">
<item label="Terminal"><action name="Execute"><command>xterm</command></action></item>
</menu></openbox_menu>
"""
RULES = """<application class="Gimp" type="normal"><maximized>yes</maximized></application>
<application class="Chromium"><maximized>yes</maximized></application>"""
# Under the title that GNOME's has.
TERMINAL = '<keybind key="C-A-t"><action name="Execute"><command>xterm -T Terminal</command></action></keybind>'
PLAYERS = "".join(f"video/{kind}=chromium.desktop\n" for kind in VIDEO)
SOUND = """load-module module-null-sink sink_name=speakers
set-sink-volume speakers 0x8000
load-module module-native-protocol-unix
"""
SETTINGS = {
    ".config/gtk-3.0/settings.ini": "[Settings]\ngtk-cursor-blink=false\ngtk-enable-animations=false\n",
    ".gtkrc-2.0": "gtk-cursor-blink = 0\ngtk-enable-animations = 0\n",
    ".config/vlc/vlcrc": "[qt]\nqt-privacy-ask=0\nqt-updates-notif=0\n[core]\nmetadata-network-access=0\n",
    ".config/Trolltech.conf": "[qt]\ncursorFlashTime=0\nGUIEffects=none\n",
    ".config/openbox/menu.xml": OPENBOX_MENU,  # the usual one can end the window manager
    ".config/mimeapps.list": f"[Default Applications]\n{PLAYERS}",
    ".config/pulse/default.pa": SOUND,
    ".config/pulse/client.conf": "autospawn = no\n",  # whoever wants sound says `pulseaudio --start`
}
# Written on every start and of no use to the next: they would only make each desktop larger.
LEFT_OUT = (
    "*/BrowserMetrics*", "*Cache", "*/Crash Reports", "*/Sessions_Encrypted", "*/Sessions", "*/Singleton*",
    "./.cache/dconf", "*.lock", "*/.lock", "./.local/share/recently-used.xbel",
)  # fmt: skip


def template(size: tuple[int, int]) -> Path:
    """The tar file, made now where there is none. Several processes may ask at once: one makes it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo"
    path = folder / "home-{}x{}-{}.tar".format(*size, _key())
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)
        refuse_shared(folder, WRITE, "XDG_CACHE_HOME")  # else another user could put a home of theirs there
        if path.exists():
            return path
        with locked("home", MADE_S):
            if not path.exists():
                with doing(Console(stderr=True, highlight=False)) as now:
                    _write(path, made(size, lambda part: now(FIRST.format(*size, part))))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder") from error
    return path


def made(size: tuple[int, int], now: Callable[[str], object]) -> bytes:
    """A new home folder as a tar file. `now` hears which part of the work begins."""
    starts = [[program, *more] for program, every in PROGRAMS.items() if shutil.which(program) for more in every]
    now("an X server")
    with Sandbox(size, weaker=True) as sandbox:  # no agent is in it
        sandbox.wait()
        sandbox.run("mkdir -p .config/google-chrome && ln -s google-chrome .config/chromium")  # the shim's profile, too
        for name, text in {**SETTINGS, **_libreoffice(), **_openbox(sandbox)}.items():
            sandbox.write(f"/home/user/{name}", text.encode())
        for number, command in enumerate(starts, 1):
            now(f"{' '.join(command[:2])}, {number} of {len(starts)}")
            _start_once(sandbox, command)
        # It puts its window back where it was, whatever the window manager thinks, and that was larger than the screen.
        sandbox.run('sed -i \'s/(maximized "no")/(maximized "yes")/\' .config/GIMP/2.10/sessionrc')
        without = " ".join(f"--exclude='{pattern}'" for pattern in LEFT_OUT)
        packed = sandbox.run(f"tar -C /home/user {without} -cf /tmp/home.tar .")
        if packed.status:
            raise EnvError(f"the home folder cannot be packed: {packed.err.strip()[:200]}")
        return sandbox.read("/tmp/home.tar")


def _start_once(sandbox: Sandbox, command: list[str]) -> None:
    sandbox.launch(command)
    _until(sandbox, shown=True, what=f"{command[0]} showed no window")
    sandbox.ask("settle", within_s=2 * WINDOW_S, limit_s=WINDOW_S, quiet_s=STILL_S, busy=0.1)
    for window in reversed(sandbox.ask("windows")):
        sandbox.ask("close_window", window=window["id"])
    _until(sandbox, shown=False, what=f"{command[0]} did not close")
    itself = f"[{command[0][0]}]{command[0][1:]}"  # a pattern that its own command line does not match
    sandbox.run(f"while pgrep -f '{itself}' | grep -qvx 1; do sleep 0.05; done", limit_s=ENDED_S)  # 1: bwrap itself


def _until(sandbox: Sandbox, shown: bool, what: str) -> None:
    deadline = time.monotonic() + WINDOW_S
    while bool(sandbox.ask("windows")) != shown:
        if time.monotonic() > deadline:
            raise EnvError(f"{what} within {WINDOW_S:g} s")
        time.sleep(0.05)


def _libreoffice() -> dict[str, str]:
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}">'
        f'<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
        for path, values in LIBREOFFICE.items()
        for name, value in values.items()
    )
    text = f'<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">{items}</oor:items>'
    return {".config/libreoffice/4/user/registrymodifications.xcu": text}


def _openbox(sandbox: Sandbox) -> dict[str, str]:
    usual = sandbox.read("/etc/xdg/openbox/rc.xml").decode()
    still = usual.replace("<animateIconify>yes<", "<animateIconify>no<")
    still = still.replace("<number>4<", "<number>1<")  # of desktops: else the wheel over the background goes to another
    still = still.replace("</keyboard>", f"{TERMINAL}\n</keyboard>")
    return {".config/openbox/rc.xml": still.replace("</applications>", f"{RULES}\n</applications>")}


@cache
def _key() -> str:
    """Changes with the programs' versions, as far as their files tell, and with what is done here.

    A process keeps its first one: what it makes later, with the code that it runs, is not to be taken for the work of a
    newer file.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for program in PROGRAMS:
        if place := shutil.which(program):
            state = Path(place).resolve().stat()
            digest.update(f"{program}:{state.st_size}:{state.st_mtime_ns}".encode())
    return digest.hexdigest()[:12]


def _write(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).rename(path)
