"""What `arpo eval` does: from names on the command line to a run folder, a progress bar and a table."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.agent.player import AgentFor, Player
from arpo.config import Config, to_yaml
from arpo.engines.base import ENGINES
from arpo.engines.scripted import LOOK_BEHIND, POLICIES
from arpo.envs.base import settings_of
from arpo.envs.pictures import from_trajectory, save_animation
from arpo.envs.pool import make_pool, try_settings
from arpo.errors import ConfigError
from arpo.evaluation.agents import find_agent, find_model
from arpo.evaluation.osworld_results import Results
from arpo.evaluation.run import Evaluation, Trial, doubt, evaluate, in_rates, of_episodes
from arpo.evaluation.spent import WHOLE, spent, whole_s
from arpo.event_loops import callable_anywhere, run_async
from arpo.runs.progress import counted
from arpo.runs.settings import same_settings
from arpo.runs.store import Run, new_folder
from arpo.tasks.kept import same_tasks
from arpo.tasks.load import load_tasks
from arpo.types import Task


@callable_anywhere
def run_evaluation(
    config: Config, model: str, folder: Path, pictures: Path | None = None, results: Results | None = None
) -> Evaluation:
    """Evaluate a model or a script in a run folder, new or begun; a progress bar says how it stands.

    `pictures`: a folder for moving pictures of a success and of a failure. `results`: also in OSWorld's layout.
    """
    if model in LOOK_BEHIND and config.env.workers:
        why = f"the script {model} looks behind the screen, for which it needs env.workers=0"
        raise ConfigError(f"env.workers={config.env.workers}: {why}")
    config = config.model_copy(update={"run_dir": None})  # only a training's settings name its folder
    tasks = load_tasks(config.env.name, config.tasks.source, settings_of(config.env), config.tasks.max_steps)
    try_settings(config.env)  # a size that cannot be is said before a model is loaded
    agent_for, identity, close = find_agent(config, model)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)  # a place where they cannot be is said before the work
    if results is not None:
        results.prepare()
    with Run.write(folder, to_yaml(config)) as run:
        same_settings(run, config)
        same_tasks(run, {"tasks": tasks}, config)
        run.pin("model", identity)

        async def work() -> Evaluation:
            try:
                async with make_pool(config.env, config.eval.n_envs) as pool:
                    player, starts, noted = Player(pool, run), config.env.fixed_starts, _clock(run)
                    return await evaluate_shown(
                        "evaluating", agent_for, tasks, config, player, run, starts=starts, on_trial=noted
                    )
            finally:
                await close()

        try:
            evaluation = run_async(work())
        except KeyboardInterrupt:
            print(f"stopped; to resume: the same command with --run-dir {folder}", file=sys.stderr)
            raise
        if pictures is not None:
            _save_examples(run, tasks, pictures)
        if results is not None:
            results.write(run, evaluation)
        played = (trial.trajectory for trial in (*evaluation.trials, *evaluation.infeasible))
        tokens = model not in POLICIES and ENGINES.find(config.engine.name).trains  # else they are bytes of text
        return dataclasses.replace(evaluation, spent=spent(run, filter(None, played), tokens))


def judge(
    config: Config, model: str, folder: Path, pictures: Path | None, results: Results | None, as_json: bool
) -> bool:
    """Evaluate and show what was found, for a program or for people. Whether any trial could be scored."""
    model = find_model(model)
    evaluation = run_evaluation(config, model, folder, pictures, results)
    if as_json:
        print(json.dumps(to_json(evaluation, model, folder, config, results), indent=2))
    else:
        print_table(evaluation, model, folder, config)
        if results is not None:
            Console(highlight=False).print(f"In OSWorld's layout: {results.of_model}", markup=False, soft_wrap=True)
    return any(trial.score is not None for trial in (*evaluation.trials, *evaluation.infeasible))


def _clock(run: Run) -> Callable[[Trial], None]:
    """To be called after each trial: notes the time that was passed with those that were not in the store before."""
    stored = {episode.id for episode in run.summaries(source="evaluation")}
    before, began = whole_s(run), time.monotonic()

    def note(trial: Trial) -> None:
        if trial.trajectory not in stored:
            run.note(WHOLE, str(before + time.monotonic() - began))

    return note


def _save_examples(run: Run, tasks: Sequence[Task], folder: Path) -> None:
    """Write success.gif and failure.gif, the longest of each kind, as far as there is one."""
    by_id = {task.id: task for task in tasks}
    for name, solved in (("success", True), ("failure", False)):
        played = (s for s in run.summaries(source="evaluation") if s.score is not None and s.task_id in by_id)
        kind = [summary for summary in played if (summary.score == 1.0) == solved]
        if kind:
            longest = run.trajectory(max(kind, key=lambda summary: summary.n_steps).id)
            save_animation(from_trajectory(by_id[longest.task_id], longest, run.image), folder / f"{name}.gif")


async def evaluate_shown(
    what: str,
    agent_for: AgentFor,
    tasks: Sequence[Task],
    config: Config,
    player: Player,
    run: Run,
    *,
    starts: int,
    update: int = 0,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Evaluation:
    """As `evaluate`; shows how far it is."""
    scores: list[float] = []
    tried = 0
    with counted(Console(stderr=True, highlight=False), what, config.eval.trials * len(tasks)) as advance:

        def show(trial: Trial) -> None:
            nonlocal tried
            on_trial(trial)
            if in_rates(trial.task, config.eval):
                tried += 1
                scores.extend([] if trial.score is None else [trial.score])
            rate = f"success so far {sum(scores) / len(scores):.0%}" if scores else "no score yet"
            advance(f"{rate} ({of_episodes(tried, tried - len(scores))})")

        return await evaluate(
            agent_for,
            tasks,
            config.eval,
            player,
            run,
            seed=config.seed,
            update=update,
            starts=starts,
            on_trial=show,
        )


def default_folder(model: str, tasks: str) -> Path:
    """A new one: what was evaluated under the same name yesterday may be another model by now."""
    return new_folder("eval", *(Path(part).stem or "model" for part in (model, tasks)))


def to_json(
    evaluation: Evaluation, model: str, folder: Path, config: Config, results: Results | None = None
) -> dict[str, Any]:
    """Everything that a script may want to know. All but `time` is the same whenever the same is played again."""
    solved, took = config.algorithm.solved, evaluation.spent

    def numbers(part: Evaluation) -> dict[str, Any]:
        rate, interval = part.success()
        n, errors = part.counts
        told = {"success": rate, "ci95": interval, "n_trials": n, "errors": errors, "unscored": errors / max(1, n)}
        return {**told, "mean_steps": part.mean_steps, "pass_at": _pass_at(part, config.eval.trials, solved)}

    told = {
        "model": model,
        "protocol": config.eval.protocol,
        **numbers(evaluation),
        "n_tasks": evaluation.n_tasks,
        "crashed_tasks": evaluation.crashed,
        "outcomes": evaluation.outcomes,
        "domains": {name: numbers(part) for name, part in evaluation.by_domain().items()},
        "tasks": {name: numbers(part) for name, part in evaluation.by_task().items()},
        "trials": {index: numbers(part) for index, part in evaluation.by_trial().items()},
        "run_dir": str(folder),
    }
    if evaluation.infeasible:
        apart = Evaluation(evaluation.infeasible)
        told["infeasible"] = {**numbers(apart), "n_tasks": apart.n_tasks, "tasks": list(apart.by_task())}
    if results is not None:
        told["osworld_results"] = str(results.of_model)
    if took is not None:
        told |= {"tokens": took.tokens, "prompt_tokens": took.prompt_tokens, "cost": took.cost(config.eval.price)}
        told["time"] = {"engine_s": took.engine_s, "env_s": took.env_s, "whole_s": took.whole_s}
    return told


def print_table(evaluation: Evaluation, model: str, folder: Path, config: Config) -> None:
    """The same for people."""
    console = Console(highlight=False)
    table = Table("domain", box=None, pad_edge=False)
    for column in ("tasks", "trials", "success", "95 % interval", "no score"):
        table.add_column(column, justify="right")
    for name, part in evaluation.by_domain().items():
        table.add_row(escape(name), *_cells(part))
    table.add_section()
    table.add_row("all", *_cells(evaluation), style="bold")
    if evaluation.infeasible:
        table.add_row("infeasible, apart", *_cells(Evaluation(evaluation.infeasible)))
    protocol = "" if config.eval.protocol == "plain" else f"; protocol {config.eval.protocol}"
    console.print(f"{model}; trials of each task: {config.eval.trials}{protocol}", markup=False)
    console.print(table)
    rate, _ = evaluation.success()
    shown = "no score at all" if rate is None else f"success {rate:.1%}"
    console.print(f"{shown} ({of_episodes(*evaluation.counts)})")
    outcomes = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in evaluation.outcomes.items())
    steps = "" if evaluation.mean_steps is None else f"; {evaluation.mean_steps:.1f} steps on average"
    console.print(f"how the episodes ended: {outcomes}{steps}", soft_wrap=True)
    for k, told in _pass_at(evaluation, config.eval.trials, config.algorithm.solved).items():
        if k > 1 and told is not None:
            low, high = told["ci95"]
            console.print(f"solved by one of {k} tries (pass@{k}): {told['rate']:.1%} ({low:.0%} to {high:.0%})")
    if (took := evaluation.spent) is not None:
        tokens = "" if took.tokens is None else f"{took.tokens:,} tokens sampled; "
        if took.prompt_tokens is not None:
            tokens += f"{took.prompt_tokens:,} in prompts; "
        if (cost := took.cost(config.eval.price)) is not None:
            tokens += f"cost {cost:,.4g} by eval.price; "
        waited = f"{took.engine_s:,.0f} s for the engine, {took.env_s:,.0f} s for the computer"
        whole = f"{took.whole_s:,.0f} s in all" if took.whole_s else "the time in all is not known"  # an older arpo's
        console.print(f"{tokens}{whole}")
        console.print(f"waiting in all episodes: {waited}")
    if warning := doubt(*evaluation.counts):
        console.print(f"[red]{warning}[/]", soft_wrap=True)
    if evaluation.crashed:
        console.print(f"[red]{escape(never_scored(evaluation.crashed))}[/]", soft_wrap=True)
    console.print(f"Every episode is in {folder}", markup=False, soft_wrap=True)


def never_scored(tasks: Sequence[str]) -> str:
    """Says so of tasks whose every trial a machine broke off, with the first few names."""
    names = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
    return f"tasks without any score, since a machine failed in all of their trials: {len(tasks)} ({names})"


def _pass_at(part: Evaluation, trials: int, solved: float) -> dict[int, dict[str, Any] | None]:
    """For k = 1, 2, 4, … up to the number of trials."""
    found = {k: part.pass_at(k, solved) for k in (2**n for n in range(trials.bit_length()))}
    names = ("rate", "ci95", "n_tasks")
    return {k: None if told is None else dict(zip(names, told, strict=True)) for k, told in found.items()}


def _cells(part: Evaluation) -> tuple[str, ...]:
    rate, interval = part.success()
    shown = ("-", "-") if rate is None or interval is None else (f"{rate:.1%}", "{:.0%} to {:.0%}".format(*interval))
    return (str(part.n_tasks), str(len(part.trials)), *shown, str(part.errors))
