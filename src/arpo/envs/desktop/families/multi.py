"""Tasks that take two applications."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params
from arpo.envs.desktop.families.moves import Look, Moves, click, press, save_as, switch
from arpo.envs.desktop.families.parts import HOME, every, file_is, launch, shell_says, task, write
from arpo.types import Json

PAGE = f"{HOME}/.pages/notice.html"
SCRIPT = 'said=$(timeout 5 sh "$1") && echo "$said"'  # it prints the words and ends


def _note(p: Params) -> Json:
    return task(
        f"Work out {p['say']} with the calculator, put the result into the editor, and save it as {p['out']}.",
        [launch("mousepad"), launch("galculator")],
        file_is(p["out"], p["result"]),
    )


def _note_script(look: Look, p: Params) -> Moves:
    look.window("galculator")
    yield "Type the calculation.", Type(p["keys"])
    yield from press("Copy the result.", "ctrl c")
    yield from switch("Go to the editor.")
    look.window("Mousepad")
    yield from press("Paste it.", "ctrl v")
    yield from save_as(look, p["out"])
    look.file(p["out"])


def _page(p: Params) -> Json:
    page = f"<!doctype html><meta charset=utf-8><title>{p['title']}</title><h1>{p['title']}</h1><p>{p['text']}</p>"
    return task(
        f"{p['say']} Write just that into a new text file {p['out']}, with the editor.",
        [write(PAGE, page), launch("chromium", f"file://{PAGE}"), launch("mousepad")],
        file_is(p["out"], p["answer"]),
    )


def _page_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield "The page says it, beside the editor. Write it down.", Type(p["answer"])
    yield from save_as(look, p["out"])
    look.file(p["out"], p["answer"])


def _run(p: Params) -> Json:
    return task(
        f"Write a shell script {p['path']} in the editor that prints {p['words']}, and run it in the terminal with its "
        f"output sent to {p['out']}.",
        [launch("xterm"), launch("mousepad")],
        every(file_is(p["out"], p["words"]), shell_says(SCRIPT, f"{p['words']}\n", p["path"])),
    )


def _run_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield "Write the script.", Type(f"echo {p['words']}\n")
    yield from save_as(look, p["path"])
    look.file(p["path"])
    yield from click("Quit the editor, whose work is done.", look.window("Mousepad"), 320, 240)
    yield from press("Quit.", "ctrl q")
    look.window("xterm")
    yield "Run it.", Type(f"sh {p['path']} > {p['out']}\n")
    look.file(p["out"], p["words"])


FAMILIES = (
    DesktopFamily("multi-note", ("galculator", "mousepad"), _note, _note_script, (
        {"say": "19 times 23", "keys": "19*23=", "result": "437", "out": f"{HOME}/result.txt"},
        {"say": "7208 divided by 53", "keys": "7208/53=", "result": "136", "out": f"{HOME}/share.txt"},
    )),
    DesktopFamily("multi-page", ("chromium", "mousepad"), _page, _page_script, (
        {"title": "Swimming pool", "text": "Open from 7 to 21. Telephone: 0345 9981.", "answer": "0345 9981",
         "say": "The page in the browser has a telephone number.", "out": f"{HOME}/phone.txt"},
        {"title": "Night train", "text": "Leaves at 22:47 from platform 9; a bed costs 39 euros.", "answer": "22:47",
         "say": "When does the night train leave? The browser shows it.", "out": f"{HOME}/train.txt"},
    )),
    DesktopFamily("multi-run", ("mousepad", "xterm"), _run, _run_script, (
        {"words": "hello", "path": f"{HOME}/hello.sh", "out": f"{HOME}/said.txt"},
    ), held_out=0),
)  # fmt: skip
