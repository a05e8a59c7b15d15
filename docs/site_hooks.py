"""What mkdocs is told about files outside docs/, so that one relative link works on a code host and on the site.

    README.md                         the front page
    other Markdown outside docs/      a page of the same text: repository/CHANGELOG.md
    a source file or a folder         a page that shows it: repository/src/arpo/training/loop.py.md
    docs/notebook.ipynb               a page with its cells: notebook.md

Pages are made of README.md, of what the nav names, and of whatever a page links to. A link to nothing is left as it is,
and mkdocs, being strict, ends there.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")
ALWAYS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/notebook.ipynb")
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of what lies outside docs/."""
    known, waiting = set[str](), [*ALWAYS, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        if (uri := site_uri(path)) != path.removeprefix("docs/"):
            files.append(File.generated(config, uri, content=content(path)))
        if path.endswith(".md"):
            waiting += [link for link in targets(path) if site_uri(link) != link.removeprefix("docs/")]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their files are on the site."""
    uri = page.file.src_uri
    origin = (
        "README.md" if uri == "index.md" else uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"
    )
    if not (ROOT / origin).is_file():  # a source file, whose text may look like a link
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = resolved(origin, link[1])
        return link[1] if target is None else posixpath.relpath(site_uri(target), posixpath.dirname(uri))

    return LINK.sub(moved, markdown)


def site_uri(path: str) -> str:
    """The page, or the plain file, that a path of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return path.removeprefix("docs/").removesuffix(".ipynb") + ".md"
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return OUTSIDE + (path if path.endswith(".md") else f"{path}.md")


def targets(path: str) -> Iterator[str]:
    """The files and folders of the repository that a Markdown file links to."""
    for link in LINK.findall((ROOT / path).read_text(encoding="utf-8")):
        if (target := resolved(path, link)) is not None:
            yield target


def resolved(origin: str, link: str) -> str | None:
    """What a link leads to, as a path of the repository; None: nothing that is in it."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return None if target.startswith(("..", "/")) or not (ROOT / target).exists() else target


def content(path: str) -> str:
    """The Markdown of a page."""
    file = ROOT / path
    if path.endswith(".md"):
        return file.read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        cells = [_cell(cell) for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]
        return "\n\n".join([*cells, f"The file: [{file.name}]({file.name})."])
    head = f"---\ntitle: {file.name}\nsearch:\n  exclude: true\n---\n\n# {file.name}\n\n`{path}`\n\n"
    if file.is_dir():
        return head + "\n".join(f"- `{inner.name}`" for inner in sorted(file.iterdir()) if inner.is_file())
    return head + _fenced(file.read_text(encoding="utf-8"), LANGUAGES.get(file.suffix, "text"))


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else _fenced(text, "python")


def _fenced(text: str, language: str) -> str:
    return f"~~~~~~~~ {language}\n{text.rstrip()}\n~~~~~~~~\n"
