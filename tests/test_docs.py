"""What README and docs/ say is so: examples run, numbers are the catalog's, files, errors and settings are there."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arpo import api, cli
from arpo.agent.dialects.base import DIALECTS
from arpo.algorithms.base import METHODS
from arpo.config import AlgorithmConfig, known_keys
from arpo.engines.base import ENGINES
from arpo.envs import listing
from arpo.envs.base import BACKENDS

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_example_solves_its_task() -> None:
    example = re.search(r"```python\n(from arpo\.agent.*?)```", page("docs/pocket.md"), re.DOTALL)
    assert example is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example[1], {})
    assert printed.getvalue() == "1.0\n"


def test_the_table_of_splits_is_what_envs_list_says() -> None:
    pocket = next(env for env in listing.describe()["environments"] if env["name"] == "pocket")
    text = page("docs/pocket.md")
    told = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    assert told == [(row["split"], str(row["tasks"]), str(row["families"])) for row in pocket["splits"]]
    tasks = {task_id for row in pocket["splits"] for ids in row["ids"].values() for task_id in ids}
    families = {task_id.rpartition("-")[0] for task_id in tasks}
    assert f"{len(tasks)} tasks in {len(families)} families" in " ".join(text.split())


def test_the_tree_of_the_code_names_files_that_are_there() -> None:
    named = set(re.findall(r"\w+\.py", page("docs/code.md")))
    assert len(named) > 20
    assert named <= {path.name for path in (ROOT / "src").rglob("*.py")}


def test_the_picture_of_the_architecture_names_files_that_are_there() -> None:
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+\.py", picture))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "arpo" / name).is_file()] == []
    told = set(re.findall(r"[\w+]+", " ".join(re.findall(r">([^<]+)<", picture))))
    assert {*BACKENDS, *DIALECTS, *ENGINES, *METHODS} <= told, "what stands behind the doors"


@pytest.mark.parametrize(
    ("method", "split"), [("arpo+", "train"), ("arpo+", "fresh"), ("rft", "train"), ("kto", "train"), ("dapo", "train")]
)
def test_what_is_claimed_of_other_methods_is_what_was_measured(method: str, split: str) -> None:
    results = json.loads((ROOT / "docs" / "results" / "compare" / "fixed.json").read_text(encoding="utf-8"))
    assert set(results["success"]) == {"base", *METHODS}
    over = results["differences"][method][split]
    interval = f"({over['low']:+.1f} to {over['high']:+.1f})"
    assert f"{over['mean']:+.1f} {interval}" in page("docs/results/compare.md")
    own = " ".join(page(f"docs/methods/{method.replace('+', '-plus')}.md").split())
    assert re.search(rf"\b{abs(over['mean']):.1f}\b[^.]*{re.escape(interval)}", own)


@pytest.mark.parametrize("name", ["fixed", "fixed-long", "fresh"])
def test_what_is_claimed_of_arpo_against_grpo_is_what_was_measured(name: str) -> None:
    results = json.loads((ROOT / "docs" / "results" / "compare" / f"{name}.json").read_text(encoding="utf-8"))
    over = results["differences"]["arpo"]["train"]
    assert next(iter(results["curves"])) == "grpo"
    mean, interval = f"{over['mean']:.1f}", f"{over['low']:+.1f} to {over['high']:+.1f}"
    assert f"+{mean} ({interval})" in page("docs/results/compare.md")
    for text in (page("README.md"), page("docs/methods/arpo.md")):
        flat = " ".join(text.split())
        assert re.search(rf"\b{re.escape(mean)}\b[^.]*\({re.escape(interval)}", flat), name


def test_every_link_leads_to_a_file() -> None:
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / link).exists(), f"{file.name}: {link}"


def test_the_readme_is_short() -> None:
    text = page("README.md")
    assert len(text.splitlines()) <= 100
    assert 1 <= len(re.findall(r"^!\[", text, re.MULTILINE)) <= 3


def test_the_table_of_methods_is_what_the_settings_come_to() -> None:
    header, *rows = re.findall(r"^\| `(?:algorithm\.)?(\w*)` \| (.*) \|$", page("docs/algorithms.md"), re.MULTILINE)
    methods = header[1].split(" | ")
    assert methods == list(METHODS)
    settings = {name: AlgorithmConfig.model_validate({"name": name}).model_dump(mode="json") for name in methods}
    for field, values in rows:
        assert values.split(" | ") == [json.dumps(settings[name][field]) for name in methods], field
    assert {field for field, _ in rows} == {field for method in METHODS.values() for field in method.settings}


@pytest.mark.parametrize("name", ["configuration.md", "cli.md", "api.md"])
def test_the_reference_is_what_the_code_says(name: str, checked_reference: str) -> None:
    assert name not in checked_reference


@pytest.fixture(scope="module")
def checked_reference() -> str:
    """What the script has to say of its pages; in a process of its own, since other tests add to the registries."""
    done = subprocess.run(
        [sys.executable, "docs/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert (done.returncode == 0) == (done.stdout == "")
    return done.stdout


def test_every_setting_command_and_name_of_the_api_is_in_the_reference() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", page("docs/reference/configuration.md"), re.MULTILINE))
    assert rows == set(known_keys())
    named = set(re.findall(r"^### (\w+)$", page("docs/reference/api.md"), re.MULTILINE))
    assert named == set(api.__all__)
    commands = re.findall(r"^## (arpo.*)$", page("docs/reference/cli.md"), re.MULTILINE)
    assert {"arpo", "arpo train", "arpo eval", "arpo envs check", "arpo bench rollouts"} <= set(commands)


def texts(file: Path) -> list[str]:
    """What a module may say: its strings, but for docstrings, which only talk about it."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_every_error_of_the_troubleshooting_page_is_one_of_ours() -> None:
    said = "\n".join([*(text for file in (ROOT / "src").rglob("*.py") for text in texts(file)), page("Makefile")])
    entries = re.findall(r"^### `(.+)`$", page("docs/troubleshooting.md"), re.MULTILINE)
    assert len(entries) > 40
    assert page("docs/troubleshooting.md").count("\n### ") == len(entries)
    for entry in entries:
        fixed = [part.strip(" :;,.()") for part in entry.split("…")]
        assert sum(len(part.split()) for part in fixed) >= 2, f"{entry}: too little to find it by"
        assert [part for part in fixed if part not in said] == [], entry


GUIDES = ["README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("name", [name for name in GUIDES if name != "docs/log.md"])  # that tells of old ones, too
def test_a_page_names_settings_and_commands_that_there_are(name: str) -> None:
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    said = re.findall(r"(?<![\w./])([a-z]+)\.([a-z_]+)(?==[^=\s])", page(name))
    named = {f"{section}.{key}" for section, key in said if section in sections}
    assert named - set(known_keys()) == set()
    commands = set(re.findall(r"^## arpo (\w+)", page("docs/reference/cli.md"), re.MULTILINE))
    told = set(re.findall(r"^ {4}arpo (\w+)|^[^#\n].*`arpo (\w+)", page(name), re.MULTILINE))
    assert {one or other for one, other in told} - commands == set()


MISTAKES = [
    "train pocket trian.updates=3",
    "train pocket train.updates=4.5",
    "train nowhere",
    "train env.name=nothing",
    "train pocket algorithm.name=grpo algorithm.replay=true",
    "train pocket train.rollout_tasks=100 --dry-run",
    "train pocket train.optimizer_tasks=9 --dry-run",
    "train pocket algorithm.name=rft algorithm.kl=1 --dry-run",
    "train pocket engine.name=openai --dry-run",
    "train pocket tasks.source=tran --dry-run",
    "train osworld-1gpu --dry-run",
    "train --resume nothing",
    "eval nobody",
    "eval . --run-dir run",
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_mistake_prints_is_on_the_troubleshooting_page(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["arpo", *mistake.split()])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err.strip().removeprefix("error: ")
    entries = re.findall(r"^### `(.+)`$", page("docs/troubleshooting.md"), re.MULTILINE)
    patterns = [".*".join(re.escape(part) for part in entry.split("…")) for entry in entries]
    assert [entry for entry, pattern in zip(entries, patterns, strict=True) if re.fullmatch(pattern, said)], said
