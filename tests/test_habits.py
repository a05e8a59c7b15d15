"""What is checked before a commit and on GitHub is what stands here; the version is said once."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

import arpo

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def recipe(target: str) -> list[str]:
    """The commands of one of the Makefile's targets."""
    lines = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lines is not None
    return [line.strip().removeprefix("$(BIN)/") for line in lines[1].splitlines()]


def test_before_a_commit_runs_what_make_lint_runs() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}  # nothing is downloaded
    commands = [hook["entry"].replace(" --force-exclude", "") for hook in hooks]
    assert commands == [f".venv/bin/{command.removesuffix(' .')}" for command in recipe("lint")]
    for command in commands:
        program = Path(command.split()[0]).name
        assert shutil.which(program, path=str(Path(sys.executable).parent)), program


ROLES = {"agent", "local user", "web page", "task file", "run folder", "checkpoint", "model output"}


def test_every_role_of_the_threat_model_attacks() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert {role for text in texts for role in re.findall(r'mark\.attack\("([^"]+)"\)', text)} == ROLES
    page = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
    assert all(f"**{role}**" in page for role in ROLES)


def test_pre_commit_takes_its_file() -> None:
    check = [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_github_runs_what_ci_runs_and_not_for_ever() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    assert job["steps"][-1] == {"run": "${{ matrix.command }}"}
    command, coverage = job["strategy"]["matrix"]["command"]
    assert command == ".ci/run" and (ROOT / command).stat().st_mode & 0o111
    assert coverage == "make coverage" and "--cov" in recipe("coverage")[0]
    assert job["timeout-minutes"] == 90


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == arpo.__version__
    assert citation["license"] == "Apache-2.0"
    assert {"message", "title", "authors", "abstract"} <= set(citation)  # what the format wants, and what is read
    assert citation["references"][0]["identifiers"][0]["value"] == "arXiv:2505.16282"


def test_the_links_of_the_security_page_lead_to_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert links and all((ROOT / link).exists() for link in links)
