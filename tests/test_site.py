"""The documentation builds as a site that asks no other host for anything; its notebook runs as it is written."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
QUIET = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, env=QUIET, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser fetches for a page, without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href", ""))
        if tag != "a":
            self.addresses += [given[name] for name in ("src", "poster", "data") if name in given]
            self.addresses += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        self.addresses += re.findall(r"url\(([^)]+)\)", given.get("style", ""))


def fetched(text: str) -> list[str]:
    reader = Fetched()
    reader.feed(text)
    styles = " ".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL))
    return [*reader.addresses, *of_style(styles)]


def of_style(text: str) -> list[str]:
    return re.findall(r"""(?:@import\s+(?:url\()?|url\()\s*["']?([^"');\s]+)""", text)


def elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<link rel="preconnect" href="https://example.org">',
        '<img srcset="a.png 1x, https://example.org/a.png 2x">',
        "<style>@import url('https://example.org/font.css');</style>",
        '<iframe src="https://example.org/"></iframe>',
    ],
)
def test_what_a_page_would_fetch_elsewhere_is_seen(html: str) -> None:
    assert any(elsewhere(address) for address in fetched(html))


def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for file in pages:
        outside = [address for address in fetched(file.read_text(encoding="utf-8")) if elsewhere(address)]
        assert outside == [], f"{file.relative_to(site)}: {outside}"
    for file in site.rglob("*.css"):
        outside = [address for address in of_style(file.read_text(encoding="utf-8")) if elsewhere(address)]
        assert outside == [], f"{file.relative_to(site)}: {outside}"


def test_what_a_page_fetches_and_links_is_there(site: Path) -> None:
    for file in site.rglob("*.html"):
        if file.name == "404.html":  # its links begin at the root, wherever it is shown
            continue
        text = file.read_text(encoding="utf-8")
        for address in [*fetched(text), *re.findall(r'<a[^>]* href="([^"]+)"', text)]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            assert (file.parent / unquote(parts.path)).is_file(), f"{file.relative_to(site)}: {address}"


def test_the_readme_is_the_front_page_and_files_outside_docs_are_pages(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    assert "make demo" in front and 'href="quickstart.html"' in front and 'src="pictures/multi-mailnote.gif"' in front
    loop = (site / "repository" / "src" / "arpo" / "training" / "loop.py.html").read_text(encoding="utf-8")
    assert "The training loop" in loop
    assert "runs/notebook" in (site / "notebook.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[gone](docs/gone.md)", "gone.md"),
        ("[gone](src/arpo/gone.py)", "gone.py"),
        ("[gone](docs/install.md#no-such-part)", "no-such-part"),
        ("![gone](docs/pictures/gone.png)", "gone.png"),
    ],
)
def test_a_link_to_nothing_fails_the_build(line: str, complaint: str, tmp_path: Path) -> None:
    """In a copy with few pages, for it takes a moment."""
    (tmp_path / "docs").mkdir()
    for name in ("mkdocs.yml", "docs/site_hooks.py", "docs/site.css", "docs/install.md", "docs/notebook.ipynb"):
        shutil.copy(ROOT / name, tmp_path / name)
    settings = (tmp_path / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    nav = "\nnav: [index.md, install.md, notebook.md, repository/CHANGELOG.md]\n"
    (tmp_path / "mkdocs.yml").write_text(settings + nav, encoding="utf-8")
    (tmp_path / "docs" / "install.md").write_text("# Install\n\n[up](../README.md)\n", encoding="utf-8")
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# Notebook"]}]}
    (tmp_path / "docs" / "notebook.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text("# Text\n\n[install](docs/install.md)\n", encoding="utf-8")
    whole = build(tmp_path, tmp_path / "site")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (tmp_path / "README.md").write_text(f"# Text\n\n{line}\n", encoding="utf-8")
    broken = build(tmp_path, tmp_path / "site")
    assert broken.returncode == 1 and complaint in broken.stdout + broken.stderr


NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
# In a process of its own: what kernels and their sockets leave behind is no business of the other tests.
RUN = """if True:
    import sys
    import nbclient, nbformat
    notebook = nbformat.read(sys.argv[1], as_version=4)
    folder = {"metadata": {"path": sys.argv[2]}}
    nbclient.NotebookClient(notebook, timeout=1800, startup_timeout=600, resources=folder).execute()
    nbformat.write(notebook, sys.argv[3])"""


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.slow
def test_the_notebook_trains_and_shows_curves_and_screenshots(tmp_path: Path) -> None:
    out = tmp_path / "run.ipynb"
    own = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")  # not the user's kernels
    here = os.environ | {name: str(tmp_path / name.lower()) for name in own}
    done = subprocess.run(
        [sys.executable, "-c", RUN, NOTEBOOK, tmp_path, out], env=here, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outputs = [
        output for cell in json.loads(out.read_text(encoding="utf-8"))["cells"] for output in cell.get("outputs", [])
    ]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert (tmp_path / "runs" / "notebook" / "summary.json").exists()
