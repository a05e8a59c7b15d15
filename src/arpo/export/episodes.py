"""A run's episodes as two tables that `datasets.load_dataset(DIR)` reads without a script:

    README.md        the card, which names both tables
    data/            conversations: `messages` and `images`, as TRL's SFTTrainer and others take them
    trajectories/    one row an episode: outcome, score, reward, and every step with its reply and action

The folder is there whole or not at all. A run that is being written is exported as it stands. Screenshots are those of
the store, byte for byte; their formats are checked, since Pillow starts programs for some others.
"""

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from PIL import Image as Pillow

from arpo.errors import ConfigError
from arpo.export.messages import Conversation, conversations
from arpo.export.parquet import Parts
from arpo.images import FORMATS
from arpo.runs.store import Run, damaged
from arpo.types import PIXELS, Step, Summary, Task, Trajectory, to_json
from arpo.vocabulary import Vocabulary

LARGEST = 2**30  # bytes of the screenshots of one row: Arrow counts them in 32 bits, with a sign

_ABOUT = [
    ("id", pa.string()),
    ("task", pa.string()),
    ("domain", pa.string()),
    ("instruction", pa.string()),
    ("outcome", pa.string()),
    ("score", pa.float64()),
    ("reward", pa.float64()),
    ("solved", pa.bool_()),
    ("source", pa.string()),
    ("update", pa.int64()),
    ("attempt", pa.int64()),
    ("n_steps", pa.int64()),
]
_PART = pa.struct([("type", pa.string()), ("text", pa.string())])
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CONVERSATIONS = pa.schema(
    [
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(_PART))]))),
        ("images", pa.list_(_IMAGE)),
        ("first_step", pa.int64()),
        *_ABOUT,
    ],
    # What makes `datasets` decode them.
    metadata={"huggingface": json.dumps({"info": {"features": {"images": [{"_type": "Image"}]}}})},
)
_STEP = [
    ("screenshot", pa.string()),
    ("reply", pa.string()),
    ("action", pa.string()),
    ("parse_error", pa.string()),
    ("version", pa.int64()),
    ("n_tokens", pa.int64()),
    ("logprob", pa.float64()),
    ("engine_s", pa.float64()),
    ("env_s", pa.float64()),
]
TRAJECTORIES = pa.schema(
    [
        *_ABOUT,
        ("env_seed", pa.int64()),
        ("run", pa.string()),
        ("replayed_from", pa.string()),
        ("steps", pa.list_(pa.struct(_STEP))),
    ]
)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    episodes: int
    solved: int
    conversations: int
    without_score: int


def write_episodes(
    run: Run,
    chosen: list[Summary],
    vocabulary: Vocabulary,
    tasks: Mapping[str, Task],
    threshold: float,
    folder: Path,
    advance: Callable[[str], object],
) -> Exported:
    """Both tables of these episodes. `threshold`: the score from which on a task is solved; `advance`: after each."""
    n_solved = n_broken = 0
    with (
        _plain_errors(run, folder),
        Parts(folder / "data", CONVERSATIONS) as data,
        Parts(folder / "trajectories", TRAJECTORIES) as table,
    ):
        for summary in chosen:
            trajectory = run.trajectory(summary.id)
            about = _about(trajectory, tasks.get(trajectory.task_id), threshold)
            n_solved += about["solved"]
            n_broken += trajectory.score is None
            steps = list(_steps(trajectory))
            more = {"env_seed": trajectory.env_seed, "run": trajectory.provenance.run, "steps": steps}
            more["replayed_from"] = trajectory.provenance.replayed_from
            table.add(about | more, sum(len(step["reply"]) for step in steps))
            if trajectory.outcome.valid:  # one that a machine broke off says nothing of the agent
                for part in conversations(trajectory, vocabulary):
                    images = list(_images(run, trajectory, part))
                    row = {"messages": part.messages, "images": images, "first_step": part.first_step}
                    data.add(row | about, sum(len(image["bytes"]) for image in images))
            advance(f"{data.count:,} conversations")
        return Exported(len(chosen), n_solved, data.count, n_broken)


def _about(trajectory: Trajectory, task: Task | None, threshold: float) -> dict[str, Any]:
    return {
        "id": trajectory.id,
        "task": trajectory.task_id,
        "domain": task and task.domain,
        "instruction": task and task.instruction,
        "outcome": str(trajectory.outcome),
        "score": trajectory.score,
        "reward": trajectory.reward,
        "solved": is_solved(trajectory, threshold),
        "source": trajectory.provenance.source,
        "update": trajectory.provenance.update,
        "attempt": trajectory.attempt,
        "n_steps": len(trajectory.steps),
    }


def is_solved(episode: Trajectory | Summary, threshold: float) -> bool:
    """Whether it has that score."""
    return episode.score is not None and episode.score >= threshold


def _steps(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    screen = trajectory.start
    for step in trajectory.steps:
        completion = step.completion
        yield {
            "screenshot": screen,
            "reply": completion.text,
            "action": _action(step),
            "parse_error": step.parse_error,
            "version": completion.version,
            "n_tokens": len(completion.tokens),
            "logprob": sum(completion.logprobs),
            "engine_s": step.engine_s,
            "env_s": step.env_s,
        }
        screen = step.observation or screen


def _action(step: Step) -> str | None:
    """As JSON: actions have different fields."""
    return None if step.action is None else json.dumps(json.loads(to_json(step))["action"], ensure_ascii=False)


def _images(run: Run, trajectory: Trajectory, part: Conversation) -> Iterator[dict[str, Any]]:
    """The screenshots of a conversation. ConfigError where one is missing, or is no picture."""
    size = 0
    for name in part.images:
        try:
            image = run.image(name).image
            with Pillow.open(io.BytesIO(image), formats=FORMATS) as opened:  # its head: to decode all takes long
                if math.prod(opened.size) > PIXELS:
                    raise ValueError
        except KeyError:
            raise damaged(run.folder, f"it lacks the screenshot {name:.40} of the episode {trajectory.id}") from None
        except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError):
            raise damaged(run.folder, f"the screenshot {name:.40} is none") from None
        if (size := size + len(image)) > LARGEST:
            raise ConfigError(f"the episode {trajectory.id}: its screenshots take more than {LARGEST:,} bytes")
        yield {"bytes": image, "path": None}


@contextlib.contextmanager
def _plain_errors(run: Run, folder: Path) -> Iterator[None]:
    """Numbers and texts that no run of ours holds are a damaged run's. Arrow's errors of files have no file name."""
    try:
        yield
    except (ValueError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise damaged(run.folder, f"an episode in it is none: {error}") from error
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or "cannot be written (a full disk?)", str(folder)) from error
        raise
