"""What OSWorld's tasks expect of their machine and Debian calls otherwise: first on the PATH of a sandbox.

`google-chrome` is chromium with Chrome's profile folder and process name; `sudo` needs neither password nor privileges,
since all that a task changes is the user's own; `pyautogui` is our own, which has nothing to install. Their texts are
in the folder `guest`.

They lie at the root, which is read-only: in a folder that it can write, an agent could put its own `cat` before all.
"""

from functools import cache
from pathlib import Path

FOLDER, PYTHON = "/arpo/bin", "/arpo/python"

# An xterm can print what it shows; so it can be asked what that is (checks/getters.py).
XTERM, SHOWN = "/arpo/xterm", "/run/user/1000/terminal"
PRINTER = f"cat > {SHOWN}.new && mv {SHOWN}.new {SHOWN}"  # it is there as a whole, or not at all
# Behind gVisor, an xterm whose child tries terminals out (ptyHandshake) finds none that it can open.
RESOURCES = f"XTerm*printerCommand: {PRINTER}\nXTerm*printAttributes: 0\nXTerm*ptyHandshake: false\n"

CHROMIUM, AS = Path("/usr/lib/chromium"), "/arpo/chrome"


def files() -> dict[str, str]:
    """Every shim that is a file, by its path in the sandbox."""
    texts = {name: guest(f"bin/{name}") for name in ("google-chrome", "sudo", "apt")}
    return {
        **{f"{FOLDER}/{name}": text for name, text in texts.items()},
        f"{FOLDER}/apt-get": texts["apt"],
        f"{PYTHON}/pyautogui.py": guest("pyautogui_calls.py"),
        XTERM: RESOURCES,
    }


@cache
def guest(name: str) -> str:
    """The text of a file of the folder `guest`."""
    return (Path(__file__).parent / "guest" / name).read_text("utf-8")


def mounts() -> list[tuple[str, ...]]:
    """The others, as bubblewrap wants them. Chromium's program is bound under the name of Chrome's, since a process is
    called as its file is, and tasks end the browser by `pkill chrome`; the rest of its folder is linked beside it."""
    links = {f"{AS}/{path.name}": str(path) for path in CHROMIUM.glob("*") if path.name != "chromium"}
    links[f"{FOLDER}/python"] = "/usr/bin/python3"
    return [
        ("--ro-bind-try", str(CHROMIUM / "chromium"), f"{AS}/chrome"),
        *(("--symlink", target, name) for name, target in links.items()),
    ]
