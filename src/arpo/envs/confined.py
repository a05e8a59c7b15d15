"""The sandbox of checkers, OSWorld's and ours: what they unpack and parse was made by an agent.

    confined("client/bin/python", {"/arpo/worker.py": fd}, network=False)      what goes before the program's own words

The program sees its interpreter with its packages and the system's programs, all read-only. It writes to one folder, in
memory and of a limited size. It has no network unless it is given the host's, sees no process but its own, and is
nobody to the host where this process is root. The same bubblewrap makes desktops (desktop/sandbox.py).
"""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from arpo.envs.bubblewrap import nobody, system
from arpo.errors import ConfigError, EnvError

SCRATCH, SCRATCH_MB = "/arpo/tmp", 512  # where it may write, and how much
MEMORY_MB = 4096  # of all its processes and these files, where control groups can be made
ASK_S = 60.0
# -P: what lies beside the program, and some files of ours have names of packages, is not the client's
PYTHON = ("-P",)
WHERE = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, *sys.path]))"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
ETC_OF_NETWORKS = ("ca-certificates", "gai.conf", "host.conf", "hosts", "nsswitch.conf", "resolv.conf", "ssl")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
SURROUNDINGS = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",  # a process with threads cannot be forked safely
    "OPENBLAS_NUM_THREADS": "1",
}
# Nobody may not enter root's own folders. What is to be seen of them is mounted elsewhere first, for this one alone.
STAGE = """
mount -t tmpfs -o mode=755,size=1m arpo "$0" || exit
n=0
until [ "$1" = -- ]; do
  if [ -d "$1" ]; then mkdir "$0/$n"; else : >"$0/$n"; fi
  mount --bind "$1" "$0/$n" || exit
  n=$((n + 1))
  shift
done
shift
exec "$@"
"""
STAGES = ("/mnt", "/media", "/srv", "/opt")


def confined(python: str, files: dict[str, int], network: bool, packages: Sequence[Path] = ()) -> list[str]:
    """`python`: a whole path. `files`: open ones by their names inside. `packages`: more folders that it may read.

    OSError or EnvError where it cannot be run.
    """
    shown, links = _interpreter(python, packages)
    if shutil.which("bwrap") is None:
        raise ConfigError(
            "checkers run in a sandbox, and bubblewrap is missing; "
            "apt-get install -y --no-install-recommends bubblewrap"
        )
    stage, sources = _staged(shown) if os.geteuid() == 0 else ([], [str(path) for path in shown])
    parts: list[tuple[str, ...]] = [
        ("bwrap", "--die-with-parent", "--new-session", "--unshare-all", *(["--share-net"] if network else [])),
        ("--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
        ("--as-pid-1",),  # what it starts can neither signal nor outlive it
        *system(),
        *(("--ro-bind-try", f"/etc/{name}", f"/etc/{name}") for name in (*ETC, *(ETC_OF_NETWORKS if network else ()))),
        *(("--ro-bind", source, str(path)) for source, path in zip(sources, shown, strict=True)),
        *(("--symlink", os.readlink(link), str(link)) for link in links),
        *(("--perms", "0644", "--ro-bind-data", str(fd), name) for name, fd in files.items()),
        ("--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_MB << 20), "--tmpfs", SCRATCH, "--chdir", SCRATCH),
        ("--remount-ro", "/", "--remount-ro", "/dev"),
    ]
    return [*stage, *nobody(), *(word for part in parts for word in part)]


def surroundings(network: bool) -> dict[str, str]:
    """The variables that it sees: none of ours, but how a network is reached."""
    names = [name for each in PROXIES for name in (each, each.upper()) if name in os.environ] if network else []
    return {**SURROUNDINGS, **{name: os.environ[name] for name in names}}


def _interpreter(python: str, packages: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What it must see of itself: folders and files, none in another, and links that lead to them."""
    try:
        ran = subprocess.run(
            [python, *PYTHON, "-c", WHERE], capture_output=True, text=True, env=SURROUNDINGS, cwd="/", timeout=ASK_S
        )
        executable, *places = json.loads(ran.stdout)
    except subprocess.TimeoutExpired:
        raise EnvError(f"did not answer within {ASK_S:g} s") from None
    except ValueError:
        said = ran.stderr.strip().splitlines() or ["it says nothing"]
        raise EnvError(f"is no Python 3.11 or newer: {said[0]}") from None
    shown: list[Path] = []
    for place in sorted({*map(Path, places), *packages}):
        if place.exists() and not _within(place, [*map(Path, SYSTEM), *shown]):
            shown.append(place)
    links: list[Path] = []
    for path in {Path(python), Path(executable)}:
        for hop in _hops(path):
            if not _within(hop, [*map(Path, SYSTEM), *shown, *links]):
                (links if hop.is_symlink() else shown).append(hop)
    return shown, links


def _hops(path: Path) -> Iterator[Path]:
    yield path
    while path.is_symlink():
        path = Path(os.path.abspath(path.parent / os.readlink(path)))
        yield path


def _within(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _staged(shown: list[Path]) -> tuple[list[str], list[str]]:
    """The words that mount elsewhere what is closed to nobody, and where each then is."""
    for path in shown:
        if not path.stat().st_mode & stat.S_IROTH:
            raise EnvError(f"runs as nobody, who may not read {path}: chmod -R o+rX {path}")
    closed = [path for path in shown if _closed(path)]
    if not closed:
        return [], [str(path) for path in shown]
    place = next(place for place in STAGES if Path(place).is_dir() and not _any_below(place, shown))
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", STAGE, place, *map(str, closed), "--"]
    return words, [f"{place}/{closed.index(path)}" if path in closed else str(path) for path in shown]


def _any_below(place: str, paths: list[Path]) -> bool:
    return any(path.resolve().is_relative_to(place) or path.is_relative_to(place) for path in paths)


def _closed(path: Path) -> bool:
    """Whether a folder on the way to it may not be entered by everybody."""
    parents = [*path.parents, *path.resolve().parents]
    return any(not parent.stat().st_mode & stat.S_IXOTH for parent in parents)
