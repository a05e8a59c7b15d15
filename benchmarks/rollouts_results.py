"""Makes docs/results/rollouts.json, .png and the tables of rollouts.md: every number there comes from here.

python benchmarks/rollouts_results.py
"""

import datetime
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from arpo.bench.rollouts import COLUMNS, bench_rollouts, plot, table_rows

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KEPT = RESULTS / "rollouts.json"
USUAL: dict[str, Any] = {"envs": [8, 32, 128, 256, 512, 1024], "lag": 3, "stragglers": 0, "gpus": None, "seed": 0}
RUNS: dict[str, dict[str, Any]] = {  # what is other than usual
    "Where GPUs are not the limit": {},
    "With the paper's 16 GPUs": {"gpus": 16, "envs": [256]},
    "A lag bound of 1": {"lag": 1, "envs": [256]},
    "A lag bound of 1, going without one straggler a group": {"lag": 1, "stragglers": 1, "envs": [256]},
    "A lag bound of 2": {"lag": 2, "envs": [256]},
    "A lag bound of 2, going without one straggler a group": {"lag": 2, "stragglers": 1, "envs": [256]},
    "A lag bound of 3, going without one straggler a group": {"stragglers": 1, "envs": [256]},
}


def main() -> None:
    """What rollouts.json has is not simulated again: remove it to begin anew."""
    known = {run["command"]: run for run in json.loads(KEPT.read_text())} if KEPT.exists() else {}
    tables = []
    for title, changes in RUNS.items():
        words = [f"--{key}={','.join(map(str, value)) if key == 'envs' else value}" for key, value in changes.items()]
        command = shlex.join(["arpo", "bench", "rollouts", "--json", *words])
        if command not in known:
            today = datetime.date.today().isoformat()
            known[command] = {"command": command, "date": today, **bench_rollouts(**USUAL | changes)}
            KEPT.write_text(json.dumps(list(known.values()), indent=1) + "\n")
        numbers = known[command]
        lines = [f"**{title}**: `{command}`, {numbers['date']}", "", *_table(COLUMNS, table_rows(numbers)), ""]
        tables.append("\n".join(lines))
        if not changes:
            plot(numbers, RESULTS / "rollouts.png")
            cores = f"{numbers['driver_cores']:.3f} cores at {numbers['driver_envs']} environments"
            tables.append(f"The driver, with the simulation of machines and engine in it: {cores}.\n")
    page = RESULTS / "rollouts.md"
    before, begin, rest = page.read_text().partition("<!-- tables -->\n")
    _, end, after = rest.partition("<!-- end of tables -->")
    page.write_text(before + begin + "\n".join(tables) + end + after)


def _table(columns: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


if __name__ == "__main__":
    main()
