"""The Python API: train, evaluate, play, look back, and add environments, dialects and algorithms of your own.

    import arpo

    summary = arpo.train("pocket", "train.updates=4", run_dir="runs/first")
    evaluation = arpo.evaluate("runs/first", "tasks.source=heldout")

Settings are given as on the command line: a preset or a YAML file first, then `key=value`; `arpo train --dry-run` lists
all keys. What is wrong is an `ArpoError` of one line. Scripts, threads and notebooks can call all of it. Whole examples
are in docs/extending.md.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.agent.dialects.base import DIALECTS, Dialect, DialectEntry
from arpo.agent.episode import Agent, run_episode
from arpo.agent.player import Reward
from arpo.algorithms.base import METHODS, Algorithm, Method
from arpo.config import AlgorithmConfig, Config, load_config, split_settings
from arpo.envs.base import BACKENDS, Backend, Env, Expert, TaskList
from arpo.envs.base import make as make_env
from arpo.envs.pool import LocalPool
from arpo.errors import ArpoError
from arpo.evaluation import agents
from arpo.evaluation.command import default_folder, run_evaluation
from arpo.evaluation.run import Evaluation, judged_agent
from arpo.event_loops import callable_anywhere, run_async
from arpo.runs.store import Run
from arpo.tasks.load import STORED, load_tasks
from arpo.types import Attempt, Group, Observation, Outcome, Provenance, Step, Task, Trajectory

# fmt: off
__all__ = [
    "Action", "Agent", "Algorithm", "ArpoError", "CallUser", "Click", "Dialect", "Drag", "Env", "Evaluation", "Expert",
    "Fail", "Finish", "Group", "Hotkey", "Observation", "Outcome", "Reward", "Run", "Scroll", "Step", "Task",
    "Trajectory", "Type", "Wait", "evaluate", "load_agent", "load_tasks", "make_env", "play", "read_run",
    "register_algorithm", "register_dialect", "register_environment", "train",
]
# fmt: on


def train(
    *settings: str,
    run_dir: str | Path | None = None,
    reward: Reward | None = None,
    from_runs: str | Path | Iterable[str | Path] = (),
) -> dict[str, Any]:
    """Train an agent, with the preset `pocket` where none is named; returns what summary.json holds.

    `run_dir`: where everything goes, by default a new folder under runs/; the same call again resumes a stopped run.
    `reward`: a function of the task and the trajectory that gives what is trained on, instead of the checker's score.
    `from_runs`: folders of runs, or one, whose stored episodes are learned, instead of playing; the tasks are those of
    the episodes, or of them those that `tasks.source=…` names.
    """
    from arpo.training.command import run_training  # not at the top: torch takes seconds

    runs = [Path(run) for run in ([from_runs] if isinstance(from_runs, str | Path) else from_runs)]
    config = _configured(settings, "pocket", run_dir, [f"tasks.source={STORED}"] if runs else [])
    return run_training(config, reward=reward, from_runs=runs)


def evaluate(model: str | Path, *settings: str, run_dir: str | Path | None = None) -> Evaluation:
    """How often an agent gets its tasks done: `.success()` is the rate with its 95 % interval, `.trials` has each try.

    `model`: base, the folder of a run (its best checkpoint) or of a checkpoint, a hub name; expert, random or fail.
    """
    config = _configured(settings)
    folder = Path(run_dir) if run_dir is not None else default_folder(str(model), config.tasks.source)
    return run_evaluation(config, agents.find_model(str(model)), folder)


def load_agent(model: str | Path = "base", *settings: str) -> Agent:
    """An agent that can play: a model as in `evaluate`, but no script. Its sampling is that of the section `eval`."""
    config = _configured(settings)
    loaded = agents.load_agent(config, agents.find_model(str(model)), config.eval.n_envs)
    return judged_agent(loaded.engine, loaded.dialect, config.eval)


@callable_anywhere
def play(
    agent: Agent, env: Env, task: Task, seed: int = 0, on_screen: Callable[[Observation], object] = lambda screen: None
) -> Trajectory:
    """One episode; screens and replies follow from the seed. The trajectory names screens, `on_screen` sees them."""
    provenance = Provenance(source="evaluation", run="", update=0)
    attempt = Attempt(task, 0, f"{task.id}-{seed}", 0, env_seed=seed, sample_seed=seed, provenance=provenance)

    async def keep(screen: Observation) -> None:
        on_screen(screen)

    async def episode() -> Trajectory:
        async with LocalPool(lambda: env, 1).lease() as lease:
            return await run_episode(attempt, lease, agent, keep)

    return run_async(episode())


def read_run(folder: str | Path) -> Run:
    """A run's folder: `.metrics()`, `.trajectories()`, `.image(hash)`, `.record(update)`; also while it is written."""
    return Run.read(Path(folder))


def register_environment(
    name: str,
    factory: str | Callable[..., Env],
    tasks: Iterable[Task],
    *,
    expert: str | Callable[[Task], Expert] | None = None,
    deterministic: bool = False,
    settings: tuple[str, ...] = ("size",),
    options: Mapping[str, Any] | None = None,
    description: str = "",
    replace: bool = False,
) -> Backend:
    """Make `env.name=NAME` known; returns what an entry point of the group `arpo.environments` names.

    `settings`: keys of the section `env` that the factory is called with. `options`: what else, with defaults, which
    `env.options.KEY=…` changes. `deterministic`: equal seeds and actions give equal pixels. `replace`: where another
    has the name, take its place, as a cell of a notebook that is run again has to.
    """
    catalog = TaskList(tasks, name)
    BACKENDS.register(
        backend := Backend(name, description, factory, deterministic, catalog, expert, settings, options or {}), replace
    )
    return backend


def register_dialect(name: str, factory: str | Callable[..., Dialect], replace: bool = False) -> DialectEntry:
    """Make `agent.dialect=NAME` known. The factory takes a vocabulary, `prompt_file`, `screenshots` and `block`."""
    DIALECTS.register(entry := DialectEntry(name, factory), replace)
    return entry


def register_algorithm(
    name: str,
    factory: str | Callable[[AlgorithmConfig, int], Algorithm],
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    replace: bool = False,
    reference: bool = False,
    critic: bool = False,
) -> Method:
    """Make `algorithm.name=NAME` known. The factory takes the section `algorithm` of the settings, and a seed.

    `settings`: keys of that section which the name sets. `options`: `algorithm.options`, its own, with their defaults.
    `reference`, `critic`: it looks at the policy that training began with, or at a value head: see `Weighs`.
    """
    method = Method(name, factory, settings or {}, options or {}, reference=reference, critic=critic)
    METHODS.register(method, replace)
    return method


def _configured(
    settings: Iterable[str],
    preset: str | None = None,
    run_dir: str | Path | None = None,
    instead: Iterable[str] = (),
) -> Config:
    """`instead`: replaces the preset's own values, unless the settings say otherwise."""
    source, overrides = split_settings([str(setting) for setting in settings])  # also a Path
    config = load_config(source or preset, [*instead, *overrides])
    return config if run_dir is None else config.with_values({"run_dir": Path(run_dir)})
