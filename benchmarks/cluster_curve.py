"""A training on a cluster beside the same one in a single process: docs/results/cluster-curve.json and .png.

    python benchmarks/cluster_curve.py [--seeds 0 1] [--runs FOLDER]      about half an hour a seed on two cores

Both train the agent that comes with arpo on the demo's tasks: the preset `pocket` with 20 updates. One is `arpo train`
as it is. The other has its environments on two Ray nodes, vLLM as its engine, an FSDP2 learner of two ranks, and
samples while it learns (train.lag=1). After half of the updates one of its nodes is killed, and another joins.

The numbers of episodes and updates are the same, the samples are not: so success is compared by its 95 % intervals
over tasks (arpo.evaluation.statistics), of each update and of the last third of them together. A run that lies in
FOLDER and is finished is not made again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "envs")]

from ray_nodes import SETTINGS, Nodes, below  # noqa: E402

from arpo.evaluation.statistics import success  # noqa: E402
from arpo.runs.plot import Series, save_plot  # noqa: E402
from arpo.runs.store import Run  # noqa: E402
from audit import audit  # noqa: E402

RESULTS = ROOT / "docs" / "results"
UPDATES, TASKS, GROUP = 20, 8, 8
COMMON = f"train.updates={UPDATES} eval.trials=4 eval.held_out=0"
ENVS = 4  # a node
CLUSTER = f"env.workers={2 * ENVS} env.resource=desktop train.n_envs={2 * ENVS} eval.n_envs={2 * ENVS}"
CLUSTER += " engine.name=vllm train.ranks=2 train.lag=1"
NAMES = {"single": "one process", "cluster": "two nodes, vLLM, two ranks"}


def train(folder: Path, seed: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "arpo.cli", "train", "pocket", *COMMON.split(), *words]
    with (folder.with_suffix(".log")).open("ab") as log:
        return subprocess.Popen(
            [*command, f"seed={seed}", f"run_dir={folder}"],
            env=os.environ | SETTINGS | {"OMP_NUM_THREADS": "1"},  # several processes share two cores
            stdout=log,
            stderr=log,
        )


def on_one(folder: Path, seed: int) -> None:
    _refuse(train(folder, seed, []).wait(), folder)


def on_cluster(folder: Path, seed: int) -> None:
    nodes = Nodes()
    run = None
    try:
        nodes.start(desktop=ENVS)
        second = nodes.start(desktop=ENVS)
        run = train(folder, seed, [*CLUSTER.split(), f"env.ray={nodes.address}"])
        while run.poll() is None and _updates(folder) < UPDATES // 2:
            time.sleep(1)
        lost = [pid for pid, args in below(second.pid).items() if args.startswith("ray::Place")]
        nodes.lose(second)
        told = {"after_updates": _updates(folder), "environments_lost": len(lost)}
        folder.with_suffix(".node.json").write_text(json.dumps(told))
        nodes.start(desktop=ENVS)
        _refuse(run.wait(), folder)
    finally:
        if run is not None and run.poll() is None:
            run.terminate()
            run.wait()
        nodes.close()


def _updates(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _refuse(status: int, folder: Path) -> None:
    if status:
        raise SystemExit(f"{folder.with_suffix('.log').read_text()}\n{folder}: ended with status {status}")


def seen(folder: Path) -> dict[str, Any]:
    """Of a finished run: its success by update, over its last third, before and after, and what became of it."""
    with Run.read(folder) as run:
        counts = audit(run, UPDATES, TASKS, GROUP)
        scores: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(UPDATES)]
        for one in run.summaries(source="rollout"):
            if one.score is not None:
                scores[one.update][one.task_id].append(one.score)
        metrics = list(run.metrics())
    summary = json.loads((folder / "summary.json").read_text())
    gaps = [one["sampler_gap"] for one in metrics if one.get("lag") == 0]
    return {
        "by_update": [_rate(of_update) for of_update in scores],
        "first_half": _rate(_together(scores[: UPDATES // 2])),
        "last_third": _rate(_together(scores[-(UPDATES // 3) :])),
        "env_steps": summary["env_steps"],
        "minutes": summary["wall_s"] / 60,
        "judged": {when: _judged(summary, when) for when in ("base", "final")},
        "mean_lag": sum(one["lag"] for one in metrics) / len(metrics),
        "sampler_gap_at_lag_0": max(gaps, default=None),
        **counts,
    }


def _together(updates: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = defaultdict(list)
    for of_update in updates:
        for task, values in of_update.items():
            scores[task] += values
    return scores


def _rate(by_task: dict[str, list[float]]) -> dict[str, float]:
    rate, (low, high) = success(list(by_task.values()))
    return {"success": rate, "low": low, "high": high, "episodes": sum(map(len, by_task.values()))}


def _judged(summary: dict[str, Any], when: str) -> dict[str, float]:
    low, high = summary[f"{when}_train_ci95"]
    return {"success": summary[f"{when}_train"], "low": low, "high": high}


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return one["low"] <= other["high"] and other["low"] <= one["high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/cluster-curve"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for seed in given.seeds:
        runs = {kind: given.runs.resolve() / f"{kind}-{seed}" for kind in ("cluster", "single")}
        for kind, folder in runs.items():
            if not (folder / "summary.json").exists():
                (on_cluster if kind == "cluster" else on_one)(folder, seed)
        pair: dict[str, Any] = {kind: seen(folder) for kind, folder in runs.items()}
        pair["node_killed"] = json.loads(runs["cluster"].with_suffix(".node.json").read_text())
        pair["last_third_overlaps"] = overlap(pair["cluster"]["last_third"], pair["single"]["last_third"])
        pairs = zip(pair["cluster"]["by_update"], pair["single"]["by_update"], strict=True)
        pair["updates_that_overlap"] = sum(overlap(*both) for both in pairs)
        found[str(seed)] = pair
    report = {
        "command": "python benchmarks/cluster_curve.py --seeds " + " ".join(map(str, given.seeds)),
        "date": datetime.date.today().isoformat(),
        "settings": {"both": f"pocket {COMMON}", "cluster": CLUSTER},
        "updates": UPDATES,
        "seeds": found,
    }
    (RESULTS / "cluster-curve.json").write_text(json.dumps(report, indent=1) + "\n")
    write_table(report)
    lines = []
    for seed, pair in found.items():
        for kind, name in NAMES.items():
            of = pair[kind]["by_update"]
            y, low, high = ([one[key] for one in of] for key in ("success", "low", "high"))
            name = f"{name}, seed {seed}" if len(found) > 1 else name
            bands = {"low": low, "high": high} if len(found) == 1 else {}
            lines.append(Series(name, range(1, UPDATES + 1), y, **bands))
    save_plot(RESULTS / "cluster-curve.png", lines, "update", "success of its episodes", share=True)


def write_table(report: dict[str, Any]) -> None:
    """What docs/scaling.md shows of it."""

    def shown(rate: dict[str, float]) -> str:
        return "{success:.1%} ({low:.0%} to {high:.0%})".format(**rate)

    lines = [f"`{report['command']}`, {report['date']}:", ""]
    lines += ["| seed | | judged before | after | first half | last third | episodes, attempts that failed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for seed, pair in report["seeds"].items():
        for kind, name in NAMES.items():
            one = pair[kind]
            rates = [shown(rate) for rate in (*one["judged"].values(), one["first_half"], one["last_third"])]
            row = [seed, name, *rates, f"{one['episodes']:,}, {one['failed_attempts']}"]
            lines.append(f"| {' | '.join(row)} |")
        do = "overlap" if pair["last_third_overlaps"] else "do not overlap"
        gap = pair["cluster"]["sampler_gap_at_lag_0"]
        lines += [
            "",
            f"Intervals of the last third {do}; by update, those of {pair['updates_that_overlap']} of {UPDATES}.",
        ]
        lines += [f"Where its samples were of the present policy, vLLM and ranks differed by {gap:.0e} nat on average."]
        lines += [
            "Killed after {after_updates} updates: a node with {environments_lost} environments.".format(
                **pair["node_killed"]
            )
        ]
    page = RESULTS.parent / "scaling.md"
    before, begin, rest = page.read_text().partition("<!-- curve -->\n")
    _, end, after = rest.partition("<!-- end of curve -->")
    page.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


if __name__ == "__main__":
    main()
