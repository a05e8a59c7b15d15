"""Tasks for VLC, with a short film that a setup step writes. It is paused: a playing one never lets the screen rest."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import CONFIRMS, Look, Moves, click, press
from arpo.envs.desktop.families.parts import HOME, every, file_check, launch, python_says, run, shell_says, task
from arpo.types import Json

APPS = ("vlc",)
TITLE = "VLC media player"
VLCRC = f"{HOME}/.config/vlc/vlcrc"
SNAPSHOTS = "find . -type f -name 'vlcsnap-*.png' -size +0"
FOUND = "/tmp/arpo-snapshot.png"  # where the checker puts a copy of it
GROUND, NEAR = (
    [90, 28, 0],
    {"tolerance": 24},
)  # the film's, whichever way its colours are turned into red, green and blue
INTERFACE = "^(qt-|one-instance|playlist-enqueue)"  # the settings of the preferences' first page
ASIDE = "^qt-(privacy-ask|updates-notif|advanced-pref)="  # what is there before, and what the way there may leave
XSPF = "{http://xspf.org/ns/0/}"
PLAYLIST = f"""import sys, xml.etree.ElementTree
playlist = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
print(playlist.tag, *(place.text for place in playlist.iter("{XSPF}location")), sep="\\n")
"""
# Uncompressed frames: a bright square that wanders over a dark ground, two minutes at a frame a second.
FILM = """import os, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
with open(sys.argv[1], "wb") as film:
    film.write(b"YUV4MPEG2 W160 H120 F1:1 Ip A1:1 C420jpeg\\n")
    for i in range(120):
        square = (b"\\x30" * i + b"\\xd0" * 40 + b"\\x30" * 120)[:160]
        film.write(b"FRAME\\n" + b"\\x30" * 6400 + square * 40 + b"\\x30" * 6400 + b"\\x60" * 4800 + b"\\xa0" * 4800)
"""


def _snapshot(p: Params) -> Json:
    return task(
        f"{p['say']} Take a snapshot of the film, as a file; leave it where the player puts it.",
        _config(p),
        every(
            file_check("check_image_size", FOUND, {"width": 160, "height": 120}),
            file_check("check_pixels", FOUND, {"at": [[x, y, GROUND] for x in (5, 155) for y in (5, 115)], **NEAR}),
        )
        | {"postconfig": [run("sh", "-c", f"rm -rf {FOUND}; cd {HOME} && {SNAPSHOTS} -exec cp {{}} {FOUND} ';'")]},
    )


def _snapshot_script(look: Look, p: Params) -> Moves:
    before = list(look.window(p["films"][0]))
    yield from press("Let it play.", "space")
    look.until(lambda: look.active(TITLE) not in (None, before), "the window to take the size of the film")
    for _ in range(CONFIRMS):  # before its first picture there is nothing to take
        yield from press("Take a snapshot.", "shift s")
        if look.soon(lambda: look.sandbox.run(SNAPSHOTS).out, within_s=5.0):
            return
    look.says(SNAPSHOTS, "png")


def _playlist(p: Params) -> Json:
    listed = "".join(f"file://{_path(film)}\n" for film in p["films"])
    return task(
        f"Save the playlist of the player as {p['out']}.",
        _config(p),
        python_says(PLAYLIST, f"{XSPF}playlist\n{listed}", p["out"]),
    )


def _playlist_script(look: Look, p: Params) -> Moves:
    look.window(p["films"][0])
    yield from press("Save the playlist.", "ctrl y")
    look.window("Save playlist as")
    yield "Give the path and confirm.", Type(f"{p['out']}\n")
    look.gone("Save playlist as")
    look.file(p["out"], "</playlist>")


def _setting(p: Params) -> Json:
    changed = shell_says(f'grep -E "{INTERFACE}" "$1" | grep -vE "{ASIDE}"', f"{p['key']}={p['value']}\n", VLCRC)
    return task(p["say"], [launch("vlc")], changed)


def _setting_script(look: Look, p: Params) -> Moves:
    look.window(TITLE)
    yield from press("Open the preferences.", "ctrl p")
    box = look.window("Simple Preferences")
    yield from click(f"Tick '{p['box']}'.", box, *p["at"])
    yield from click("Save.", box, -136, -22)
    look.gone("Simple Preferences")
    look.file(VLCRC, f"\n{p['key']}={p['value']}\n")


def _config(p: Params) -> list[Json]:
    paths = [_path(film) for film in p["films"]]
    films = [run("python3", "-c", FILM, path) for path in paths]
    return [*films, launch("vlc", "--no-audio", "--start-paused", *paths)]


def _path(film: str) -> str:
    return f"{HOME}/Videos/{film}"


FAMILIES = (
    DesktopFamily("vlc-snapshot", APPS, _snapshot, _snapshot_script, (
        {"films": ["square.y4m"], "say": "Start the film."},
        {"films": ["holiday.y4m"], "say": "Play my holiday film."},
    )),
    DesktopFamily("vlc-playlist", APPS, _playlist, _playlist_script, (
        {"films": ["square.y4m"], "out": f"{HOME}/square.xspf"},
        {"films": ["first.y4m", "second.y4m"], "out": f"{HOME}/evening.xspf"},
    )),
    DesktopFamily("vlc-setting", APPS, _setting, _setting_script, (
        {"say": "Set the player up so that it pauses when its window is minimised.", "key": "qt-pause-minimized",
         "value": 1, "box": "Pause playback when minimized", "at": (452, 293)},
        {"say": "I never want more than one VLC to run: allow only one instance, in the preferences.",
         "key": "one-instance", "value": 1, "box": "Allow only one instance", "at": (40, 488)},
        {"say": "Let VLC start in its minimal view from now on.", "key": "qt-minimal-view", "value": 1,
         "box": "Start in minimal view mode", "at": (178, 293)},
    )),
    impossible("vlc-impossible", APPS, _config,
        {"films": ["square.y4m"], "say": "Sign in to my VLC cloud account and share this playlist with Nora there."},
    ),
)  # fmt: skip
