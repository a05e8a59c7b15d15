"""What OSWorld's tasks expect of their machine and Debian calls otherwise: first on the PATH of a sandbox.

`google-chrome` is chromium with Chrome's profile folder and process name; `sudo` needs neither password nor privileges,
since all that a task changes is the user's own; `pyautogui` is our own (pyautogui.py), which has nothing to install.

They lie at the root, which is read-only: in a folder that it can write, an agent could put its own `cat` before all.
"""

from importlib import resources
from pathlib import Path

FOLDER, PYTHON = "/arpo/bin", "/arpo/python"

# In a sandbox there is no second one to be had, so the browser has none of its own.
CHROME = """#!/bin/sh
exec /arpo/chrome/chrome --no-sandbox --test-type --start-maximized --no-first-run --no-default-browser-check \\
    --password-store=basic --disable-gpu --disable-background-networking --disable-component-update \\
    --user-data-dir="$HOME/.config/google-chrome" "$@"
"""
SUDO = """#!/bin/sh
while true; do
    case "$1" in
        -u | -g | -p) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
exec "$@"
"""

# Nothing can be installed, but tasks ask for what may be there.
APT = """#!/bin/sh
words=
for word; do
    case "$word" in -*) ;; *) words="$words $word" ;; esac
done
set -- $words
[ "$1" = install ] || exit 0
shift
for package; do
    [ -d "/usr/share/doc/$package" ] || { echo "E: Unable to locate package $package" >&2; exit 100; }
done
"""

# An xterm can print what it shows; so it can be asked what that is (checks/getters.py).
XTERM, SHOWN = "/arpo/xterm", "/run/user/1000/terminal"
PRINTER = f"cat > {SHOWN}.new && mv {SHOWN}.new {SHOWN}"  # it is there as a whole, or not at all
RESOURCES = f"XTerm*printerCommand: {PRINTER}\nXTerm*printAttributes: 0\n"

CHROMIUM, AS = Path("/usr/lib/chromium"), "/arpo/chrome"


def files() -> dict[str, str]:
    """Every shim that is a file, by its path in the sandbox."""
    pyautogui = resources.files(__package__).joinpath("pyautogui.py").read_text()
    return {
        f"{FOLDER}/google-chrome": CHROME,
        f"{FOLDER}/sudo": SUDO,
        f"{FOLDER}/apt": APT,
        f"{FOLDER}/apt-get": APT,
        f"{PYTHON}/pyautogui.py": pyautogui,
        XTERM: RESOURCES,
    }


def mounts() -> list[tuple[str, ...]]:
    """The others, as bubblewrap wants them. Chromium's program is bound under the name of Chrome's, since a process is
    called as its file is, and tasks end the browser by `pkill chrome`; the rest of its folder is linked beside it."""
    links = {f"{AS}/{path.name}": str(path) for path in CHROMIUM.glob("*") if path.name != "chromium"}
    links[f"{FOLDER}/python"] = "/usr/bin/python3"
    return [
        ("--ro-bind-try", str(CHROMIUM / "chromium"), f"{AS}/chrome"),
        *(("--symlink", target, name) for name, target in links.items()),
    ]
