"""Tasks for Mousepad, a text editor."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params
from arpo.envs.desktop.families.moves import Look, Moves, click, press, save_as
from arpo.envs.desktop.families.parts import HOME, file_is, folder, launch, run, shell_says, task, write
from arpo.types import Json

APPS = ("mousepad",)
VIEW = "org.xfce.mousepad.preferences.view"
SWITCHES = (  # those that are off at first: one of them is asked for, the others are to stay so
    "show-line-numbers", "word-wrap", "auto-indent", "show-whitespace", "show-line-endings", "show-right-margin",
    "highlight-current-line", "match-braces", "insert-spaces",
)  # fmt: skip
SWITCHED_ON = """view=$1; shift
for key; do test "$(gsettings get "$view" "$key")" = true && echo "$key"; done"""


def _write(p: Params) -> Json:
    text = p["text"].replace("\n", "', '")
    return task(
        f"Write a new text file with the lines '{text}' in the open editor, and save it as {p['path']}.",
        [folder(f"{HOME}/Documents"), launch("mousepad")],
        file_is(p["path"], p["text"]),
    )


def _write_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield "Write the lines.", Type(p["text"])
    yield from save_as(look, p["path"])
    look.file(p["path"])


def _replace(p: Params) -> Json:
    say = f"Replace every '{p['old']}' in the open file by '{p['new']}' and save it."
    return _edit(p, say, p["text"].replace(p["old"], p["new"]))


def _replace_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield from press("Open the dialog to find and replace.", "ctrl r")
    look.window("Find and Replace")
    yield "Fill in what to find and what to put there.", Type(f"{p['old']}\t{p['new']}")
    yield from press("Tick 'Replace all in', for the whole document.", "alt a")
    yield from click("Replace all.", look.window("Find and Replace"), -159, -22)
    yield from press("Close the dialog.", "esc")
    look.window("Mousepad")
    yield from _save(look, p["path"], p["new"])


def _append(p: Params) -> Json:
    say = f"Add the line '{p['line']}' at the end of the open file, below the last one, and save."
    return _edit(p, say, p["text"] + p["line"])


def _append_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield from press("Go to the end of the text.", "ctrl end")
    yield "Write the line.", Type(p["line"])
    yield from _save(look, p["path"], p["line"])


def _delete(p: Params) -> Json:
    lines = p["text"].splitlines(keepends=True)
    say = f"Line {p['line']} of the open file is wrong. Delete that line and save the file."
    return _edit(p, say, "".join(lines[: p["line"] - 1] + lines[p["line"] :]))


def _delete_script(look: Look, p: Params) -> Moves:
    look.window("Mousepad")
    yield from press("Ask to go to a line.", "ctrl l")
    look.window("Go To")
    yield f"Line {p['line']}.", Type(f"{p['line']}\n")
    look.window("Mousepad")
    yield from press("Delete the line.", "ctrl shift delete")
    yield from press("Save.", "ctrl s")
    size = len(p["text"]) - len(p["text"].splitlines(keepends=True)[p["line"] - 1])
    look.says(f"wc -c < {p['path']}", f"{size}\n")


def _view(p: Params) -> Json:
    return task(
        p["say"],
        [run("gsettings", "set", VIEW, p["key"], "false"), write(f"{HOME}/Documents/essay.txt", ESSAY),
         launch("mousepad", f"{HOME}/Documents/essay.txt")],
        shell_says(SWITCHED_ON, f"{p['key']}\n", VIEW, *SWITCHES),
    )  # fmt: skip


def _view_script(look: Look, p: Params) -> Moves:
    box = look.window("Mousepad")
    yield from click(f"Open the menu {p['menu']}.", box, {"View": 164, "Document": 228}[p["menu"]], 12)
    yield from press(f"Choose '{p['item']}' in it.", *["down"] * p["downs"], "enter")
    look.says(f"gsettings get {VIEW} {p['key']}", "true")


def _edit(p: Params, say: str, text: str) -> Json:
    return task(say, [write(p["path"], p["text"]), launch("mousepad", p["path"])], file_is(p["path"], text))


def _save(look: Look, path: str, words: str) -> Moves:
    yield from press("Save.", "ctrl s")
    look.file(path, words)


ESSAY = (
    6 * "Small gardens feed more birds than large parks, since every hedge, pond and feeder lies close to the next.\n"
)

FAMILIES = (
    DesktopFamily("editor-write", APPS, _write, _write_script, (
        {"path": f"{HOME}/Documents/shopping.txt", "text": "milk\neggs\nbread"},
        {"path": f"{HOME}/Documents/hello.py", "text": "name = 'World'\nprint(f'Hello, {name}!')"},
        {"path": f"{HOME}/Documents/besuch.txt", "text": "Mia Müller\nÄußere Straße 7\n12 € am Tag"},
        {"path": f"{HOME}/Documents/todo.txt", "text": "call the bank\nwater the plants"},
    )),
    DesktopFamily("editor-replace", APPS, _replace, _replace_script, (
        {"path": f"{HOME}/menu.txt", "old": "tea", "new": "coffee", "text": "tea with milk\ncake\ncold tea\nscones\n"},
        {"path": f"{HOME}/config.ini", "old": "8080", "new": "9000", "text": "[web]\nport=8080\n[proxy]\nport=8080\n"},
        {"path": f"{HOME}/letter.txt", "old": "Monday", "new": "Thursday",
         "text": "We meet on Monday at nine.\nPlease bring the plans.\nMonday suits Ann as well.\n"},
    )),
    DesktopFamily("editor-append", APPS, _append, _append_script, (
        {"path": f"{HOME}/guests.txt", "line": "Farid", "text": "Anna\nBoris\nChen\n"},
        {"path": f"{HOME}/diary.md", "line": "- Sunday: rain, read all day", "text": "# Diary\n- Saturday: sun\n"},
    )),
    DesktopFamily("editor-delete", APPS, _delete, _delete_script, (
        {"path": f"{HOME}/prices.csv", "line": 3, "text": "item,price\napple,1\nbananna,9999\ncherry,4\n"},
        {"path": f"{HOME}/steps.txt", "line": 2, "text": "boil water\nfry water\nadd pasta\nwait nine minutes\n"},
    )),
    DesktopFamily("editor-view", APPS, _view, _view_script, (
        {"key": "show-line-numbers", "menu": "View", "item": "Line Numbers", "downs": 3,
         "say": "Make the editor show line numbers beside the text."},
        {"key": "word-wrap", "menu": "Document", "item": "Word Wrap", "downs": 1,
         "say": "The lines of this essay run out of the window. Switch on word wrap in the editor."},
        {"key": "auto-indent", "menu": "Document", "item": "Auto Indent", "downs": 2,
         "say": "Turn on automatic indentation in the editor."},
    )),
)  # fmt: skip
