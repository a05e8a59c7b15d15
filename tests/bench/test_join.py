"""Comparisons that were made apart, joined by benchmarks/join.py: as if they had been one."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arpo.evaluation.compare import difference

ROOT = Path(__file__).parents[2]
WHOLE = json.loads((ROOT / "docs" / "results" / "compare" / "fixed.json").read_text())


def part(methods: list[str], seeds: list[int]) -> dict[str, Any]:
    """What a comparison of these methods with these seeds would have written; its estimates are not looked at."""
    one = copy.deepcopy(WHOLE)
    at = [WHOLE["seeds"].index(seed) for seed in seeds]
    one["seeds"], one["command"] = seeds, f"arpo compare --algorithms {','.join(methods)}"
    for kind in ("rates", "fresh_rates"):
        one[kind] = {
            task: {method: [rates[method][i] for i in at] for method in ("base", *methods)}
            for task, rates in WHOLE[kind].items()
        }
    one["curves"] = {method: WHOLE["curves"][method] for method in methods}
    one["counts"] = {method: WHOLE["counts"][method] for method in ("base", *methods)}
    runs = WHOLE["runs"].items()
    one["runs"] = {name: run for name, run in runs if run["method"] in methods and run["seed"] in seeds}
    for numbers in one["splits"].values():
        for method in WHOLE["curves"].keys() - set(methods):
            del numbers[method]
    return one


def join(folder: Path, *parts: dict[str, Any]) -> tuple[int, str]:
    files = [folder / f"{i}.json" for i in range(len(parts))]
    for file, one in zip(files, parts, strict=True):
        file.write_text(json.dumps(one))
    command = [sys.executable, str(ROOT / "benchmarks" / "join.py"), *map(str, files), "--out", str(folder / "joined")]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def written(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "joined" / "results.json").read_text())
    return results


def test_two_parts_are_the_whole(tmp_path: Path) -> None:
    status, said = join(tmp_path, part(["grpo"], WHOLE["seeds"]), part(["arpo"], WHOLE["seeds"]))
    assert status == 0, said
    joined = written(tmp_path)
    for what in ("success", "differences"):
        assert list(joined[what]) == [method for method in ("base", "grpo", "arpo") if method in WHOLE[what]]
        for method, of_splits in joined[what].items():
            for split, points in of_splits.items():
                assert points == pytest.approx(WHOLE[what][method][split]), (what, method, split)
    assert joined["runs"] == {name: run for name, run in WHOLE["runs"].items() if run["method"] in ("grpo", "arpo")}
    assert (tmp_path / "joined" / "curves.png").stat().st_size > 1000
    needed = json.loads(said)["steps_to_the_end_of_the_first"]
    assert 0 < needed["arpo"] < needed["grpo"] == WHOLE["curves"]["grpo"]["x"][-1]


def test_a_method_with_fewer_seeds_is_compared_on_these(tmp_path: Path) -> None:
    seeds = [WHOLE["seeds"][i] for i in (3, 5, 6)]
    status, said = join(tmp_path, part(["grpo"], WHOLE["seeds"]), part(["arpo"], seeds))
    assert status == 0, said
    joined = written(tmp_path)
    tasks = list(WHOLE["fresh_rates"])
    one, other = (np.array([[WHOLE["rates"][t][m][i] for t in tasks] for i in (3, 5, 6)]) for m in ("arpo", "grpo"))
    apart = difference(one, other)
    found = joined["differences"]["arpo"]["train"]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx([100 * x for x in (apart.mean, *apart.ci95)])
    assert joined["success"]["grpo"] == WHOLE["success"]["grpo"]
    assert "Means over 10 seeds (arpo 3)" in (tmp_path / "joined" / "table.md").read_text()


def test_what_cannot_be_joined_is_one_line(tmp_path: Path) -> None:
    grpo, arpo = part(["grpo"], WHOLE["seeds"]), part(["arpo"], WHOLE["seeds"])
    few = {kind: dict(list(arpo[kind].items())[::-1]) for kind in ("rates", "fresh_rates")}
    unscored = copy.deepcopy(arpo)
    unscored["splits"]["train"]["left_out"] = [next(iter(WHOLE["fresh_rates"]))]
    unscored["splits"]["train"]["tasks"] -= 1
    for other, why in (
        (grpo, "grpo is in both"),
        (arpo | {"budget": 1}, "has another budget or other tasks"),
        (arpo | few, "has another budget or other tasks"),
        (unscored, "has scores of other tasks"),
        (arpo | {"seeds": [*range(10, 20)]}, "has the seed 10, which the first comparison has not"),
    ):
        status, said = join(tmp_path, grpo, other)
        assert status == 1 and said == f"{tmp_path / '1.json'}: {why}\n"
