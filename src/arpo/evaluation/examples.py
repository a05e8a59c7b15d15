"""Two episodes of an evaluation to look at: one that succeeded and one that did not."""

from collections.abc import Sequence
from pathlib import Path

from arpo.envs.pictures import from_trajectory, save_animation
from arpo.runs.store import Run
from arpo.types import Task


def save_examples(run: Run, tasks: Sequence[Task], folder: Path) -> list[Path]:
    """Write success.gif and failure.gif, the longest of each kind, as far as there is one; returns what was written."""
    by_id = {task.id: task for task in tasks}
    written = []
    for name, solved in (("success", True), ("failure", False)):
        kind = [s for s in run.summaries(source="evaluation") if s.score is not None and (s.score == 1.0) == solved]
        if kind:
            longest = run.trajectory(max(kind, key=lambda summary: summary.n_steps).id)
            path = folder / f"{name}.gif"
            save_animation(from_trajectory(by_id[longest.task_id], longest, run.image), path)
            written.append(path)
    return written
