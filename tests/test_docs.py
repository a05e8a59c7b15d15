"""What the README says is so: its example runs, its numbers are the catalog's, its files are there."""

import contextlib
import io
import json
import re
from pathlib import Path

from arpo.algorithms.base import METHODS
from arpo.config import AlgorithmConfig
from arpo.envs import listing

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_solves_its_task() -> None:
    example = re.search(r"```python\n(from arpo\.agent.*?)```", README, re.DOTALL)
    assert example is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example[1], {})
    assert printed.getvalue() == "1.0\n"


def test_the_table_of_splits_is_what_envs_list_says() -> None:
    pocket = next(env for env in listing.describe()["environments"] if env["name"] == "pocket")
    told = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", README, re.MULTILINE)
    assert told == [(row["split"], str(row["tasks"]), str(row["families"])) for row in pocket["splits"]]
    tasks = {task_id for row in pocket["splits"] for ids in row["ids"].values() for task_id in ids}
    families = {task_id.rpartition("-")[0] for task_id in tasks}
    assert f"{len(tasks)} tasks in {len(families)} families" in " ".join(README.split())


def test_the_tree_of_the_code_names_files_that_are_there() -> None:
    named = set(re.findall(r"\w+\.py", README.partition("## The code")[2]))
    assert len(named) > 20
    assert named <= {path.name for path in (ROOT / "src").rglob("*.py")}


def test_the_picture_of_the_architecture_names_files_that_are_there() -> None:
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+\.py", picture))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "arpo" / name).is_file()] == []


def test_every_link_leads_to_a_file() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_table_of_methods_is_what_the_settings_come_to() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    header, *rows = re.findall(r"^\| `(?:algorithm\.)?(\w*)` \| (.*) \|$", page, re.MULTILINE)
    methods = header[1].split(" | ")
    assert methods == list(METHODS)
    settings = {name: AlgorithmConfig.model_validate({"name": name}).model_dump(mode="json") for name in methods}
    for field, values in rows:
        assert values.split(" | ") == [json.dumps(settings[name][field]) for name in methods], field
    assert {field for field, _ in rows} == {field for method in METHODS.values() for field in method.settings}
