"""Text documents (.docx, .odt), read with the standard library.

paragraphs("letter.odt")                    ["Dear Anna,", "", "come on Sunday!"]
check_paragraphs(path, {"expected": […]})   are they so? empty ones do not count
"""

import re
from collections.abc import Callable
from typing import Any

from arpo.envs.desktop.checks.pdf import check_pdf
from arpo.envs.desktop.checks.reading import archive, reader, xml_of
from arpo.envs.evaluators import Unreadable

WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
MOST_BLANKS = 1_000_000


@reader
def paragraphs(path: str) -> list[str]:
    parts = archive(path)
    if "word/document.xml" in parts and not path.lower().endswith(".odt"):
        elements = xml_of(parts["word/document.xml"]()).iter(f"{WORD}p")
        return ["".join(_word_text(part) for part in paragraph.iter()) for paragraph in elements]
    if "content.xml" in parts and not path.lower().endswith(".docx"):
        content = xml_of(parts["content.xml"]())
        if sum(abs(int(blank.get(f"{TEXT}c", "1"))) for blank in content.iter(f"{TEXT}s")) > MOST_BLANKS:
            raise Unreadable(f"{path}: has too many blanks")
        return [_open_text(part) for part in content.iter() if part.tag in (f"{TEXT}p", f"{TEXT}h")]
    raise Unreadable(f"{path}: not a text document")


def _word_text(part: Any) -> str:
    if part.tag == f"{WORD}t":
        return part.text or ""
    return {f"{WORD}tab": "\t", f"{WORD}br": "\n"}.get(part.tag, "")


def _open_text(part: Any) -> str:
    """With blanks, which are elements of their own there."""
    content = part.text or ""
    for child in part:
        if child.tag == f"{TEXT}s":
            content += " " * int(child.get(f"{TEXT}c", "1"))
        elif child.tag == f"{TEXT}tab":
            content += "\t"
        else:
            content += _open_text(child)
        content += child.tail or ""
    return content


def check_paragraphs(path: str, rules: dict[str, Any]) -> float:
    texts = [paragraph.strip() for paragraph in paragraphs(path)]
    return float([one for one in texts if one] == [one.strip() for one in rules["expected"] if one.strip()])


def compare_docx_files(path: str, wanted: str, ignore_blanks: bool = True, ignore_case: bool = False) -> float:
    """Whether the text of two documents is the same; each file's kind is its own."""

    def plain(name: str) -> Any:
        lines = paragraphs(name)
        lines = [line.lower() for line in lines] if ignore_case else lines
        return re.sub(r"\s+", " ", "\n".join(lines)).strip() if ignore_blanks else lines

    return float(plain(path) == plain(wanted))


def check_style(path: str, rules: dict[str, Any]) -> float:
    """A piece of an .odt or .ods whose whole text is `text` has a property by itself or by its own style.

    {"text": "Total", "property": "font-weight", "expected": "bold"}; a list of texts: each of them
    "only": True    and nothing else has it
    """
    parts = archive(path)
    if "content.xml" not in parts:
        raise Unreadable(f"{path}: not an OpenDocument file")
    pieces = list(xml_of(parts["content.xml"]()).iter())
    styles = {_named(piece).get("name"): piece for piece in pieces if piece.tag.endswith("}style")}

    def has(piece: Any) -> bool:
        style = styles.get(_named(piece).get("style-name", ""), ())
        return any(_named(one).get(rules["property"]) == rules["expected"] for one in (piece, *style))

    wanted = [rules["text"]] if isinstance(rules["text"], str) else rules["text"]
    found = [(piece, text) for piece in pieces if has(piece) and (text := "".join(piece.itertext()))]
    right = [piece for piece, text in found if text in wanted]
    below = {id(part) for piece in right for part in piece.iter()}  # a word of it may have the property once more
    others = any(id(piece) not in below for piece, _ in found)
    return float({text for _, text in found} >= set(wanted) and not (rules.get("only") and others))


def _named(part: Any) -> dict[str, str]:
    """Attributes without the long names of what they belong to."""
    return {name.rpartition("}")[2]: value for name, value in part.attrib.items()}


DOCUMENT_METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric for metric in (check_paragraphs, compare_docx_files, check_style, check_pdf)
}
