"""What `arpo eval` does: from names on the command line to a run folder, a progress bar and a table."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.agent.dialects import UITars, make_dialect
from arpo.config import AgentConfig, Config, to_yaml
from arpo.engines.scripted import LOOK_BEHIND, POLICIES, byte_vocabulary, scripted
from arpo.envs.base import make, settings_of
from arpo.envs.pool import make_pool
from arpo.errors import ConfigError
from arpo.evaluation.pictures import save_examples
from arpo.evaluation.run import EngineFor, Evaluation, Trial, evaluate
from arpo.event_loops import callable_anywhere, run_async
from arpo.runs.progress import counted
from arpo.runs.settings import same_settings
from arpo.runs.store import Run
from arpo.runs.tasks import same_tasks
from arpo.tasks.load import load_tasks
from arpo.types import Task

if TYPE_CHECKING:
    from arpo.engines.local import LocalEngine


@callable_anywhere
def run_evaluation(config: Config, model: str, folder: Path, pictures: Path | None = None) -> Evaluation:
    """Evaluate a model or a script in a run folder, new or begun; a progress bar says how it stands.

    `pictures`: a folder for moving pictures of a success and of a failure.
    """
    if model in LOOK_BEHIND and config.env.workers:
        raise ConfigError(
            f"env.workers={config.env.workers}: the script {model} looks behind the screen, for which it needs "
            "env.workers=0"
        )
    config = config.model_copy(update={"run_dir": None})  # only a training's settings name its folder
    tasks = load_tasks(config.env.name, config.tasks.source, settings_of(config.env), config.tasks.max_steps)
    make(config.env.name, **settings_of(config.env)).close()  # a size that cannot be is said before a model is loaded
    engine_for, dialect, identity = _load(config, model)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)  # a place where they cannot be is said before the work
    with Run.write(folder, to_yaml(config)) as run:
        same_settings(run, config)
        same_tasks(run, {"tasks": tasks}, config)
        run.pin("model", identity)
        evaluation = _evaluate(config, engine_for, dialect, tasks, run)
        if pictures is not None:
            save_examples(run, tasks, pictures)
        return evaluation


def _evaluate(config: Config, engine_for: EngineFor, dialect: UITars, tasks: list[Task], run: Run) -> Evaluation:
    console = Console(stderr=True, highlight=False)
    with counted_trials(console, "evaluating", config.eval.trials * len(tasks)) as advance:

        async def work() -> Evaluation:
            async with make_pool(config.env, config.eval.n_envs) as pool:
                return await evaluate(
                    engine_for, dialect, tasks, config.eval, pool=pool, run=run, seed=config.seed, on_trial=advance
                )

        try:
            return run_async(work())
        except KeyboardInterrupt:
            console.print(f"stopped; the same command with --run-dir {run.folder} goes on", markup=False)
            raise


@contextlib.contextmanager
def counted_trials(console: Console, what: str, total: int) -> Iterator[Callable[[Trial], None]]:
    """Shows how far an evaluation is. Gives what is to be called with each trial."""
    scores: list[float] = []
    with counted(console, what, total) as advance:

        def on_trial(trial: Trial) -> None:
            if trial.score is not None:
                scores.append(trial.score)
            advance(f"success so far {sum(scores) / len(scores):.0%}" if scores else "no score yet")

        yield on_trial


def default_folder(model: str, tasks: str) -> Path:
    """A new folder every second: what was evaluated under the same name yesterday may be another model by now."""
    name, source = (re.sub(r"[^\w.-]+", "-", Path(part).stem or "model") for part in (model, tasks))
    return Path("runs") / f"eval-{name}-{source}-{time.strftime('%Y%m%d-%H%M%S')}"


def as_json(evaluation: Evaluation, model: str, folder: Path) -> dict[str, Any]:
    """Everything that a script may want to know."""
    return {
        "model": model,
        **_numbers(evaluation),
        "n_tasks": evaluation.n_tasks,
        "crashed_tasks": evaluation.crashed,
        "outcomes": evaluation.outcomes,
        "mean_steps": evaluation.mean_steps,
        "domains": {name: _numbers(part) for name, part in evaluation.by_domain().items()},
        "tasks": {name: _numbers(part) for name, part in evaluation.by_task().items()},
        "run_dir": str(folder),
    }


def print_table(evaluation: Evaluation, model: str, folder: Path) -> None:
    """The same for people."""
    console = Console(highlight=False)
    table = Table("domain", box=None, pad_edge=False)
    for column in ("tasks", "trials", "success", "95 % interval", "errors"):
        table.add_column(column, justify="right")
    for name, part in evaluation.by_domain().items():
        table.add_row(escape(name), *_cells(part))
    table.add_section()
    table.add_row("all", *_cells(evaluation), style="bold")
    console.print(f"{model}; trials of each task: {len(evaluation.trials) // max(1, evaluation.n_tasks)}", markup=False)
    console.print(table)
    outcomes = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in evaluation.outcomes.items())
    steps = "" if evaluation.mean_steps is None else f"; {evaluation.mean_steps:.1f} steps on average"
    console.print(f"how the episodes ended: {outcomes}{steps}", soft_wrap=True)
    if evaluation.errors:
        console.print(f"[red]{evaluation.errors} trials have no score: a machine failed; they are in no rate[/]")
    if evaluation.crashed:
        console.print(f"[red]{escape(never_scored(evaluation.crashed))}[/]", soft_wrap=True)
    console.print(f"Every episode is in {folder}", markup=False, soft_wrap=True)


def never_scored(tasks: Sequence[str]) -> str:
    """Says so of tasks whose every trial a machine broke off, with the first few names."""
    names = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
    return f"tasks without any score, since a machine failed in all of their trials: {len(tasks)} ({names})"


def _numbers(part: Evaluation) -> dict[str, Any]:
    rate, interval = part.success()
    return {"success": rate, "ci95": interval, "n_trials": len(part.trials), "errors": part.errors}


def _cells(part: Evaluation) -> tuple[str, ...]:
    rate, interval = part.success()
    shown = ("-", "-") if rate is None or interval is None else (f"{rate:.1%}", "{:.0%} to {:.0%}".format(*interval))
    return (str(part.n_tasks), str(len(part.trials)), *shown, str(part.errors))


def _load(config: Config, model: str) -> tuple[EngineFor, UITars, str]:
    """The engine and the dialect of a script or a checkpoint, and what tells it from any other."""
    if model in POLICIES:
        vocabulary = byte_vocabulary()
        dialect = make_dialect(config.agent, vocabulary)
        return scripted(model, dialect, vocabulary), dialect, model
    engine, dialect, identity = load_agent(config, model, config.eval.n_envs)
    return lambda task, lease: engine, dialect, identity


def find_agent(model: str) -> str:
    """The checkpoint that is meant: of a training run's folder its best one, which is said."""
    folder = Path(model)
    if not (folder / "config.yaml").is_file() or (folder / "config.json").exists():  # the latter is a checkpoint's
        return model
    from arpo.training.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    if not checkpoints.all():
        raise ConfigError(f"model={model}: a run without a checkpoint; only a training that made an update has one")
    best = checkpoints.best
    Console(stderr=True, highlight=False).print(f"{model}: its best checkpoint is {best}", markup=False, soft_wrap=True)
    return str(best)


def load_agent(config: Config, model: str, slots: int) -> tuple[LocalEngine, UITars, str]:
    """The engine and the dialect of a checkpoint, and what tells it from any other."""
    # Not at the top: torch takes seconds, and a script needs none.
    from arpo.engines.local import LocalEngine
    from arpo.model.checkpoint import BASE, load_configured, own_prompt

    if "/" not in model and model != BASE and not Path(model).exists():
        raise ConfigError(f"{model}: neither a checkpoint nor one of {', '.join((BASE, *POLICIES))}")
    checkpoint = load_configured(model, config.agent)
    longest = checkpoint.config.text_config.max_position_embeddings
    longest = min(longest, config.agent.context or longest)
    engine = LocalEngine(checkpoint, max_context=longest, slots=slots)
    identity = f"{Path(model).resolve().name} with weights {_checksum(checkpoint.model)}"
    agent = config.agent
    if agent.prompt_file is None:
        agent = agent.model_copy(update={"prompt_file": own_prompt(model)})
    return engine, make_dialect(agent, checkpoint.vocabulary), identity


def with_precision(agent: AgentConfig, model: Any) -> AgentConfig:
    """With the precision that `auto` came to on this machine: a run goes on in it elsewhere too."""
    return agent.model_copy(update={"dtype": str(model.lm_head.weight.dtype).removeprefix("torch.")})


def _checksum(model: Any) -> str:
    """The sum of all weights, read as integers: exact, in one pass, and another after any update."""
    import torch

    whole = {2: torch.int16, 4: torch.int32}
    total = sum(int(part.view(whole[part.itemsize]).sum(dtype=torch.int64)) for part in model.parameters())
    return f"{total % 2**64:016x}"
