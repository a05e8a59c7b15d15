"""Tasks for LibreOffice Writer."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params
from arpo.envs.desktop.families.moves import Look, Moves, click, press
from arpo.envs.desktop.families.office import document, save, save_copy
from arpo.envs.desktop.families.parts import HOME, every, file_check, launch, task
from arpo.types import Json

APPS = ("libreoffice",)
TITLE = "LibreOffice Writer"
TRIP = ["My trip to Rome", "We went to Rome by train.", "The weather was good.", "I liked Rome a lot."]
LETTER = ["Dear Ms Park,", "your parcel has come on Tuesday.", "You can fetch it here until Friday."]
RULES = ["House rules", "No shoes in the gym.", "Be quiet after ten.", "Pets stay outside."]


def _replace(p: Params) -> Json:
    return task(
        f"Replace all occurrences of '{p['old']}' in this document by '{p['new']}' and save it.",
        _config(p),
        _text_is(p, [text.replace(p["old"], p["new"]) for text in p["text"]]),
    )


def _replace_script(look: Look, p: Params) -> Moves:
    look.window(TITLE)
    yield from press("Find and replace.", "ctrl h")
    box = look.window("Find and Replace")
    yield "What to find.", Type(p["old"])
    yield from click("The field below.", box, 368, 121)
    yield "What to put there.", Type(p["new"])
    yield from click("Replace all.", box, 609, 176)
    yield from press("Close the dialog.", "esc")
    look.window(TITLE)
    yield from save(look, _path(p))


def _append(p: Params) -> Json:
    return task(
        f"Add a new paragraph '{p['new']}' at the end of the document and save it.",
        _config(p),
        _text_is(p, [*p["text"], p["new"]]),
    )


def _append_script(look: Look, p: Params) -> Moves:
    look.window(TITLE)
    yield from press("Go to the end.", "ctrl end")
    yield "Write it in a new paragraph.", Type(f"\n{p['new']}")
    yield from save(look, _path(p))


def _style(p: Params) -> Json:
    rules = {"text": p["text"][p["line"]], "property": p["property"], "expected": p["value"], "only": True}
    return task(p["say"], _config(p), every(file_check("check_style", _path(p), rules), _text_is(p, p["text"])))


def _style_script(look: Look, p: Params) -> Moves:
    look.window(TITLE)
    yield from press("Go to the line.", "ctrl home", *["down"] * p["line"])
    yield from press("Select it.", "home", "shift end")
    yield from press(p["thought"], p["key"])
    yield from save(look, _path(p))


def _pdf(p: Params) -> Json:
    return task(
        f"Export this document as a PDF file to {p['pdf']}.",
        _config(p),
        file_check("check_pdf", p["pdf"], {"expected": p["text"]}),
    )


def _pdf_script(look: Look, p: Params) -> Moves:
    yield from click("Export directly as PDF.", look.window(TITLE), 163, 43)
    yield from save_copy(look, p["pdf"], "Export")
    look.file(p["pdf"], "%%EOF")


def _text_is(p: Params, paragraphs: list[str]) -> Json:
    return file_check("check_paragraphs", _path(p), {"expected": paragraphs})


def _config(p: Params) -> list[Json]:
    return [document(_path(p), p["text"]), launch("libreoffice", "--norestore", _path(p))]


def _path(p: Params) -> str:
    return f"{HOME}/{p['file']}"


FAMILIES = (
    DesktopFamily("writer-replace", APPS, _replace, _replace_script, (
        {"file": "trip.odt", "text": TRIP, "old": "Rome", "new": "Naples"},
        {"file": "letter.odt", "text": LETTER, "old": "Tuesday", "new": "Wednesday"},
    )),
    DesktopFamily("writer-append", APPS, _append, _append_script, (
        {"file": "letter.odt", "text": LETTER, "new": "Kind regards, Post Office 7"},
        {"file": "rules.odt", "text": RULES, "new": "Have fun!"},
    )),
    DesktopFamily("writer-style", APPS, _style, _style_script, (
        {"file": "trip.odt", "text": TRIP, "line": 0, "property": "text-align", "value": "center", "key": "ctrl e",
         "thought": "Centre it.", "say": "Centre the title, 'My trip to Rome', and save the document."},
        {"file": "rules.odt", "text": RULES, "line": 2, "property": "font-weight", "value": "bold", "key": "ctrl b",
         "thought": "Bold.", "say": "Make the rule 'Be quiet after ten.' bold and save the document."},
        {"file": "letter.odt", "text": LETTER, "line": 1, "property": "font-style", "value": "italic", "key": "ctrl i",
         "thought": "Italic.", "say": "Put the second line of this letter, and only that, in italics. Then save."},
        {"file": "rules.odt", "text": RULES, "line": 0, "property": "outline-level", "value": "1", "key": "ctrl 1",
         "thought": "Heading 1.", "say": "Give the line 'House rules' the style Heading 1 and save the file."},
    )),
    DesktopFamily("writer-pdf", APPS, _pdf, _pdf_script, (
        {"file": "trip.odt", "text": TRIP, "pdf": f"{HOME}/trip-final.pdf"},
        {"file": "rules.odt", "text": RULES, "pdf": f"{HOME}/house-rules.pdf"},
    )),
)  # fmt: skip
