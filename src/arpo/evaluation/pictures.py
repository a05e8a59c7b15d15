"""Two episodes of an evaluation to look at: one that succeeded and one that did not."""

from collections.abc import Sequence
from pathlib import Path

from arpo.envs.images import decode
from arpo.envs.pictures import Recording, Shot, save_animation
from arpo.runs.store import Run
from arpo.types import Step, Task, Trajectory


def save_examples(run: Run, tasks: Sequence[Task], folder: Path) -> list[Path]:
    """Write success.gif and failure.gif, the longest of each kind, as far as there is one; returns what was written."""
    by_id = {task.id: task for task in tasks}
    written = []
    for name, solved in (("success", True), ("failure", False)):
        kind = [s for s in run.summaries(source="evaluation") if s.score is not None and (s.score == 1.0) == solved]
        if kind:
            longest = run.trajectory(max(kind, key=lambda summary: summary.n_steps).id)
            path = folder / f"{name}.gif"
            save_animation(recording(run, by_id[longest.task_id], longest), path)
            written.append(path)
    return written


def recording(run: Run, task: Task, trajectory: Trajectory) -> Recording:
    """A stored episode with its screenshots."""
    assert trajectory.score is not None, "an episode that a machine broke off has no score"
    shots = []
    screen = trajectory.start
    for step in trajectory.steps:
        shots.append(Shot(decode(run.image(screen).image), _thought(step), step.action))
        screen = step.observation or screen
    if not shots or shots[-1].action is not None:  # else its last reply stands on the last screen
        shots.append(Shot(decode(run.image(screen).image), "", None))
    return Recording(task, tuple(shots), trajectory.score)


def _thought(step: Step) -> str:
    """What the agent said before its action, or why that was none."""
    if step.parse_error is not None:
        return f"No action: {step.parse_error}"
    return step.completion.text.partition("Action:")[0].strip().removeprefix("Thought:").strip()
