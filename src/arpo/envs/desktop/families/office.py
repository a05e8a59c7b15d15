"""What tasks for LibreOffice share: documents written by a setup step, and its dialogs."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from arpo.agent.actions import Type
from arpo.envs.desktop.families.moves import Look, Moves, press
from arpo.envs.desktop.families.parts import run
from arpo.types import Json

MIME = "application/vnd.oasis.opendocument"
NAMES = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("office", "table", "text"))
ZIP = """import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as file:
    for part in sys.argv[2:]:
        file.writestr(*part.split(None, 1))
"""


def spreadsheet(path: str, sheet: str, rows: Sequence[Sequence[str | float]]) -> Json:
    """The setup step that writes an .ods file with one sheet."""
    lines = "".join(f"<table:table-row>{''.join(map(_cell, row))}</table:table-row>" for row in rows)
    return _document(path, "spreadsheet", f'<table:table table:name="{escape(sheet)}">{lines}</table:table>')


def document(path: str, paragraphs: Sequence[str]) -> Json:
    """The setup step that writes an .odt file."""
    return _document(path, "text", "".join(f"<text:p>{escape(text)}</text:p>" for text in paragraphs))


def save(look: Look, path: str) -> Moves:
    """Save over the file, and see that it was."""
    before = look.sandbox.run(["stat", "-c", "%i %y", path]).out
    yield from press("Save.", "ctrl s")
    look.until(lambda: look.sandbox.run(["stat", "-c", "%i %y", path]).out != before, f"{path} to be saved")
    folder, _, name = path.rpartition("/")
    look.says(f"test -s {path} && ls -A {folder}", name)


def save_copy(look: Look, path: str, dialog: str) -> Moves:
    """Its file dialog has opened: give it a whole path."""
    look.window(dialog)
    yield from press("Take the suggested name away.", "ctrl a")
    yield "Give the path and confirm.", Type(f"{path}\n")


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
    return f'<table:table-cell office:value-type="float" office:value="{value}"/>'


def _document(path: str, kind: str, body: str) -> Json:
    """ODF is a zip file; these three parts are enough."""
    content = (
        f'<office:document-content {NAMES} office:version="1.2"><office:body><office:{kind}>{body}</office:{kind}>'
        "</office:body></office:document-content>"
    )
    entries = (("/", f"{MIME}.{kind}"), ("content.xml", "text/xml"))
    manifest = "".join(f'<m:file-entry m:full-path="{name}" m:media-type="{mime}"/>' for name, mime in entries)
    root = f'<m:manifest xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">{manifest}</m:manifest>'
    parts = (f"mimetype {MIME}.{kind}", f"content.xml {content}", f"META-INF/manifest.xml {root}")
    return run("python3", "-c", ZIP, path, *parts)
