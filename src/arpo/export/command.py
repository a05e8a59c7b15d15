"""What `arpo export` does: finds what is meant, writes a folder beside the wanted one, and renames it at the end."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from arpo.engines.scripted import POLICIES, byte_vocabulary
from arpo.errors import ConfigError
from arpo.evaluation.agents import find_model
from arpo.export import cards
from arpo.runs.checkpoints import checkpoints_in
from arpo.runs.progress import counted
from arpo.runs.settings import stored_settings
from arpo.runs.store import Run
from arpo.tasks.kept import kept_tasks
from arpo.types import Summary, Trajectory
from arpo.vocabulary import Vocabulary


def export_episodes(folder: Path, out: Path, solved: bool = False, model: str | None = None) -> None:
    """Write the episodes of a run as a dataset. `solved`: the successes alone; `model`: who played, where it is hidden.

    The folder is new, or empty.
    """
    from arpo.export import parquet  # noqa: F401  here: what is not installed is said before the work
    from arpo.export.episodes import is_solved, write_episodes

    with Run.read(folder) as run, new_folder(out) as part:
        config = stored_settings(folder)
        threshold = config.algorithm.solved
        tasks = {task.id: task for split in (kept_tasks(folder, config) or {}).values() for task in split}
        chosen = [one for one in run.summaries() if not solved or is_solved(one, threshold)]
        if not chosen:
            raise ConfigError(f"{folder}: has no {'solved ' if solved else ''}episode to export")
        vocabulary = _find_vocabulary(run, chosen, model)
        console = Console(stderr=True, highlight=False)
        with counted(console, "exporting", len(chosen)) as advance:
            done = write_episodes(run, chosen, vocabulary, tasks, threshold, part, advance)
        text = cards.of_episodes(folder, config, run.fact("model"), done, solved)
        (part / "README.md").write_text(text, encoding="utf-8")
    table = f"{done.episodes} episodes, {done.solved} solved; {done.conversations} conversations with screenshots"
    Console(highlight=False).print(f"{out}: {table}. Its README.md says how to load it.", markup=False, soft_wrap=True)


def export_checkpoint(place: Path, out: Path, share: float = 1.0, begun: str = "base") -> None:
    """Write a checkpoint as a model's folder: of a run its best one, or one of its checkpoints by its own folder.

    `share`: so much of the way to it from the model `begun`, which training began with.
    """
    from arpo.export.model import Mix, write_model

    if not 0 < share <= 1:
        raise ConfigError(f"--share {share:g}: must be more than 0 and at most 1")
    mix = Mix(begun, share) if share < 1 else None

    chosen = Path(find_model(str(place)))
    folder = chosen.parent.parent  # of the run
    if chosen not in checkpoints_in(chosen.parent) or not (folder / "config.yaml").is_file():
        raise ConfigError(f"{place}: is no run, and no checkpoint of one (RUN/checkpoints/update-00012)")
    config = stored_settings(folder)
    if mix is not None:
        with Run.read(folder) as run:
            if not (known := run.fact("model") or "").startswith(f"{Path(begun).resolve().name} with "):
                raise ConfigError(f"--model {begun}: {folder} began with {known or 'another'}; name that one")
    with new_folder(out) as part:
        write_model(chosen, config, part, mix)
        (part / "README.md").write_text(cards.of_model(chosen, config, share), encoding="utf-8")
    Console(highlight=False).print(
        f"{out}: the checkpoint {chosen.name}. Its README.md says how to load it.", markup=False, soft_wrap=True
    )


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, that becomes `out` at the end; nothing of it stays where something goes wrong."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ConfigError(f"{out}: is there already; choose a new folder, or an empty one")
    part = out.absolute().with_name(f"{out.absolute().name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    except FileExistsError:
        raise ConfigError(f"{part}: is there already, from an export that runs or was killed; remove it") from None
    try:
        yield part
        if out.exists():
            out.rmdir()  # it is empty; not everywhere does a folder take the place of another
        part.rename(out)
    except BaseException:
        shutil.rmtree(part)
        raise


def _find_vocabulary(run: Run, chosen: list[Summary], model: str | None) -> Vocabulary:
    """The one that these episodes were played with, which the first of them shows. ConfigError where none is."""
    first = next((one.id for one in chosen if one.n_steps and one.outcome.valid), None)
    for vocabulary in _vocabularies(run, model):
        if first is None or _spoken(run.trajectory(first), vocabulary):
            return vocabulary
    who = f"--model {model}: did not play its episodes" if model else "does not tell which agent played its episodes"
    raise ConfigError(f"{run.folder}: {who}; name that one with --model (its folder or hub name)")


def _spoken(trajectory: Trajectory, vocabulary: Vocabulary) -> bool:
    replies = [step.completion for step in trajectory.steps]
    try:
        return all(vocabulary.decode(reply.tokens) == reply.text for reply in replies)
    except OverflowError:  # numbers that are no tokens
        return False


def _vocabularies(run: Run, model: str | None) -> Iterator[Vocabulary]:
    """Of whoever may have played: the agent that is named; else what the folder itself holds, `base`, and scripts.

    Never of a model that the folder only names: it may be somebody else's.
    """
    from arpo.model.checkpoint import BASE, empty_model, load_vocabulary

    if model in POLICIES:
        yield byte_vocabulary()
        return
    places = [find_model(model)] if model is not None else [BASE]
    if model is None and (newest := checkpoints_in(run.folder / "checkpoints")[-1:]):
        places = [str(newest[0]), BASE]
    for place in places:
        yield load_vocabulary(place, empty_model(place).config)
    if model is None:
        yield byte_vocabulary()
