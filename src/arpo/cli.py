"""The command line: `arpo --help`. Each command only reads its arguments here and calls into the package.

Everything heavy is imported inside the commands, after the arguments are parsed, so that `--help` answers at once and
a misspelt option does not wait for numpy. What a user did wrong ends in one line and exit status 2; a promise or a
task that failed in status 1.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arpo import __version__
from arpo.errors import ArpoError, ConfigError

if TYPE_CHECKING:
    from arpo.config import Config

# Plain help texts: a line that holds only \b keeps the paragraph after it as it is written, as in the examples.
app = typer.Typer(
    help="""Train computer-use agents by reinforcement learning with success replay.

    \b
    First steps:
      arpo doctor                      what works on this machine
      arpo envs list                   the environments and their tasks
      arpo eval base --tasks subset32  how often the agent that comes with arpo gets its tasks done
      arpo envs play                   watch the scripted expert solve a task
    """,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
envs_app = typer.Typer(help="The computers that an agent works on.", no_args_is_help=True, rich_markup_mode=None)
bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(envs_app, name="envs")
app.add_typer(bench_app, name="bench")

SizeOption = Annotated[str, typer.Option(help="The screen, WIDTHxHEIGHT in pixels.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the settings and what each means.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunDirOption = Annotated[str | None, typer.Option(help="Where to keep the episodes; a begun one goes on.")]
Settings = Annotated[
    list[str] | None, typer.Argument(help="[PRESET|FILE] [KEY=VALUE]...: a configuration, and what to change in it.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"arpo {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


def _configured(
    settings: list[str] | None, options: dict[str, Any], preset: str | None = None, instead: tuple[str, ...] = ()
) -> Config:
    """What the arguments come to: on top of the settings, the options that were given.

    `instead`: what holds in place of the preset's own values, unless the arguments say otherwise.
    """
    from arpo.config import load_config, split_settings

    source, overrides = split_settings(settings or [])
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return load_config(source or preset, [*instead, *overrides, *given])


def _show(data: dict[str, Any], as_json: bool, print_table: Callable[[dict[str, Any]], None]) -> None:
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        print_table(data)


@envs_app.command("list")
def envs_list(as_json: JsonOption = False) -> None:
    """The environments, their splits and how many tasks are in each.

    \b
    Examples:
      arpo envs list
      arpo envs list --json
    """
    from arpo.envs import listing

    _show(listing.describe(), as_json, listing.print_tables)


@envs_app.command("check")
def envs_check(
    name: Annotated[str, typer.Argument(help="An environment of `arpo envs list`.")],
    size: SizeOption = "448x280",
) -> None:
    """Hold an environment to its contract.

    A line for each promise; exit status 1 if one is broken.

    \b
    Examples:
      arpo envs check pocket
      arpo envs check pocket --size 1280x800
    """
    from arpo.config import parse_size
    from arpo.envs.listing import check_and_print

    if not check_and_print(name, parse_size(size)):
        raise typer.Exit(1)


@envs_app.command("play")
def envs_play(
    settings: Settings = None,
    task: Annotated[str | None, typer.Option(help="The task's id; else the first of tasks.source.")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for seed=N.")] = None,
    by: Annotated[str, typer.Option(help="expert, or hand: actions from standard input, one a line.")] = "expert",
    out: Annotated[str | None, typer.Option(help="Where to write: a .gif or .png that moves.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Record a task as a moving picture with the clicks marked.

    It is solved by the scripted expert, or by you.

    \b
    Examples:
      arpo envs play                                       the first training task, by the expert
      arpo envs play env.size=640x400 --out rename.gif     on a larger screen
      arpo envs play --by hand                             type the actions yourself
      arpo envs play pocket seed=3 --dry-run               what the settings come to
    """
    from arpo.config import to_yaml
    from arpo.envs import play

    config = _configured(settings, {"seed": seed})
    if dry_run:
        print(to_yaml(config), end="")
    elif not play.play_task(config, task, by, out):
        raise typer.Exit(1)


@envs_app.command("serve")
def envs_serve(
    name: Annotated[str, typer.Argument(help="desktop: the one that can be served.")],
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 is any that is free.")] = 5000,
    size: SizeOption = "1920x1080",
    token: Annotated[
        str | None, typer.Option(envvar="ARPO_TOKEN", help="What every request has to bring; best set as ARPO_TOKEN.")
    ] = None,
) -> None:
    """Serve a desktop to OSWorld's own client, until Ctrl-C.

    It speaks the protocol of the server in OSWorld's virtual machines, on loopback only.

    \b
    Examples:
      arpo envs serve desktop                              prints the address for the client
      ARPO_TOKEN=secret arpo envs serve desktop --port 0 --size 1280x720
    """
    from arpo.config import parse_size
    from arpo.envs.desktop.serve import serve

    serve(name, parse_size(size), port, token)


@bench_app.command("envs")
def bench_envs(
    env: Annotated[str, typer.Option(help="An environment of `arpo envs list`.")] = "pocket",
    n_envs: Annotated[int | None, typer.Option(help="4 that take turns on one thread; desktop: 16 at once.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to time, over all of them: 4000; desktop: 1600.")] = None,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT in pixels: 448x280; desktop: 1280x720.")] = None,
    seed: Annotated[int, typer.Option(help="Of the tasks' setups and the random actions.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Time steps, resets and encoding, and weigh each further environment.

    Half of the steps are the expert's and half are random; every screen is drawn. Real desktops are timed with random
    actions, and beside them OSWorld's own pacing, in some five minutes.

    \b
    Examples:
      arpo bench envs
      arpo bench envs --n-envs 1 --steps 10000 --json
      arpo bench envs --env desktop
    """
    from arpo.bench import envs as bench
    from arpo.config import parse_size

    numbers = bench.bench_envs(env, n_envs, steps, None if size is None else parse_size(size), seed)
    _show(numbers, as_json, bench.print_table)


@app.command("eval")
def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="base, a run's folder (its best), a checkpoint's, a hub name; or expert, random, fail."),
    ],
    settings: Settings = None,
    tasks: Annotated[str | None, typer.Option(help="A split, a task list file or one id: tasks.source.")] = None,
    trials: Annotated[int | None, typer.Option(help="How often each task is tried: eval.trials.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling: eval.temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of sampling: eval.top_p.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one reply: eval.max_tokens.")] = None,
    n_envs: Annotated[int | None, typer.Option(help="Episodes at once: eval.n_envs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the screens and of sampling.")] = None,
    run_dir: RunDirOption = None,
    pictures: Annotated[
        str | None, typer.Option(help="A folder for moving pictures of a success and of a failure.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How often an agent gets its tasks done, with a 95 % interval.

    Exit status 1 where no trial could be scored.

    \b
    Examples:
      arpo eval expert --tasks subset32                      the scripted expert: all of them
      arpo eval base --tasks subset32 --pictures demo        the agent that comes with arpo
      arpo eval runs/first --tasks heldout --trials 4        a training run's best checkpoint
      arpo eval runs/first/checkpoints/update-00012          one of its others
      arpo eval MODEL env.size=1280x800 --temperature 1.0 --json
      arpo eval MODEL --run-dir runs/mine                    killed? the same line again goes on
    """
    from arpo.engines.scripted import LOOK_BEHIND
    from arpo.evaluation import command
    from arpo.evaluation.agents import find_agent

    options = {"tasks.source": tasks, "eval.trials": trials, "eval.temperature": temperature, "eval.top_p": top_p}
    options |= {"eval.max_tokens": max_tokens, "eval.n_envs": n_envs, "seed": seed}
    config = _configured(settings, options, instead=("env.workers=0",) if model in LOOK_BEHIND else ())
    folder = command.default_folder(model, config.tasks.source) if run_dir is None else Path(run_dir)
    model = find_agent(model)
    evaluation = command.run_evaluation(config, model, folder, Path(pictures) if pictures else None)
    numbers = command.as_json(evaluation, model, folder)
    _show(numbers, as_json, lambda _: command.print_table(evaluation, model, folder))
    if evaluation.errors == len(evaluation.trials):
        raise typer.Exit(1)


@app.command()
def select(
    model: Annotated[str, typer.Argument(help="The agent: base, a run's or a checkpoint's folder, or a hub name.")],
    out: Annotated[str, typer.Argument(help="The task list to write, a .json file.")],
    settings: Settings = None,
    trials: Annotated[int, typer.Option(help="How often each task is tried.")] = 16,
    min_success: Annotated[int, typer.Option(help="Successes that a task needs to be kept.")] = 1,
    drop_solved: Annotated[bool, typer.Option("--drop-solved", help="Leave out tasks solved every time.")] = False,
    run_dir: RunDirOption = None,
) -> None:
    """Find the tasks that an agent sometimes solves: those it can learn from.

    \b
    Examples:
      arpo select base runs/selected.json                    of the tasks of `train`
      arpo select base mine.json tasks.source=subset32 --trials 8 --drop-solved
      arpo train pocket tasks.source=runs/selected.json      then train on them
    """
    from arpo.evaluation import command
    from arpo.evaluation.agents import find_agent
    from arpo.tasks import select as tasks

    if not out.endswith(".json"):
        raise ConfigError(f"out={out}: must end in .json")
    config = _configured(settings, {"eval.trials": trials})
    # At the temperature of training: there the successes are needed.
    config = config.model_copy(
        update={"eval": config.eval.model_copy(update={"temperature": config.train.temperature})}
    )
    tasks.refuse_place(Path(out))
    folder = command.default_folder(model, config.tasks.source) if run_dir is None else Path(run_dir)
    evaluation = command.run_evaluation(config, find_agent(model), folder)
    solved = config.algorithm.solved
    kept = tasks.select(evaluation, min_success, drop_solved, solved)
    tasks.write_list(kept, Path(out))
    tasks.print_counts(evaluation, kept, Path(out), solved)


@app.command()
def train(
    settings: Settings = None,
    resume: Annotated[
        str | None, typer.Option(help="The folder of a run to go on with; limits such as train.updates may be changed.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and print the settings and what would be done.")
    ] = False,
) -> None:
    """Make an agent better at its tasks by reinforcement learning.

    The base agent is judged, then trained, then judged again on screens that it was not trained on.

    \b
    Examples:
      arpo train                                             the agent that comes with arpo, on the embedded desktop
      arpo train pocket algorithm.name=grpo run_dir=runs/g   another method, another folder
      arpo train --resume runs/g                             killed? go on
      arpo train --resume runs/g train.updates=40            make it longer
      arpo train --dry-run                                   every setting, what it means, what would be done
    """
    from arpo.config import to_yaml

    own = None
    if resume is not None:
        from arpo.runs.settings import resumed
        from arpo.runs.tasks import own_tasks

        config = resumed(Path(resume), settings or [])
        own = own_tasks(config)
    else:
        config = _configured(settings, {}, preset="pocket")
    if dry_run:
        from arpo.training.plan import plan

        print(to_yaml(config), end="")
        print(plan(config, own))
        return
    from arpo.training.command import run_training

    run_training(config, own)


@app.command()
def compare(
    out: Annotated[str, typer.Option(help="The folder of all runs, of the table and of the plot.")],
    settings: Settings = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods, with changed settings after colons; differences are to the first.")
    ] = "grpo,arpo,arpo+",
    seeds: Annotated[int, typer.Option(help="Runs of each method, with the seeds from `seed` on.")] = 5,
    jobs: Annotated[int, typer.Option(help="Runs at a time; they share the cores.")] = 1,
) -> None:
    """By how much each method helps: methods x seeds under the same budget, train.env_steps.

    Killed, or to have more seeds or methods? The same command goes on with what is there.

    \b
    Examples:
      arpo compare pocket-compare --out runs/compare
      arpo compare pocket-compare --algorithms grpo,dapo --seeds 3 --jobs 2 --out runs/compare
      arpo compare --algorithms arpo+,arpo+:replay_spares=false train.env_steps=9000 --out runs/ablation
    """
    import shlex

    from arpo.config import at_least, split_settings
    from arpo.training.compare import methods_of, run_comparison

    at_least(1, seeds=seeds, jobs=jobs)
    source, overrides = split_settings(settings or [])
    methods = methods_of(source or "pocket-compare", overrides, algorithms)
    print(run_comparison(methods, seeds, Path(out), jobs, shlex.join(["arpo", *sys.argv[1:]])))
    print(f"Everything is in {out}; look at {Path(out) / 'curves.png'}")


@bench_app.command("train")
def bench_train(
    only: Annotated[str | None, typer.Option(help="Only this part: sample.")] = None,
    model: Annotated[str, typer.Option(help="base, a folder, a hub name or random-7b.")] = "base",
    size: SizeOption = "448x280",
    episodes: Annotated[int, typer.Option(help="Episodes that are sampled at the same time.")] = 16,
    turns: Annotated[int, typer.Option(help="Turns of each episode.")] = 5,
    tokens: Annotated[int, typer.Option(help="Sampled tokens of each turn.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the weights, the screenshots and the draws.")] = 0,
    peer: Annotated[bool, typer.Option("--peer", help="Also time transformers' own generate.")] = False,
    trl: Annotated[bool, typer.Option(help="Also time TRL's trainer, where it is installed: minutes.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Time an update: many episodes sampled at once, their screenshots included, and learned.

    \b
    Examples:
      arpo bench train
      arpo bench train --no-trl --json
      arpo bench train --only sample --model random-7b --size 1920x1080 --peer --json
    """
    if only not in (None, "sample"):
        raise ConfigError(f"only={only}: the parts are: sample")
    from arpo.bench import learn, sample
    from arpo.config import parse_size

    pixels = parse_size(size)
    numbers = sample.bench_sample(model, pixels, episodes, turns, tokens, seed, peer)
    if only is None:
        # Of sampling it is the later figure that counts: taken beside all others, and a median.
        numbers |= learn.bench_learn(model, pixels, episodes, turns, tokens, seed, trl)
    _show(numbers, as_json, (sample if only else learn).print_table)


@app.command()
def pretrain(
    out: Annotated[str, typer.Argument(help="The folder of the checkpoint.")],
    seconds: Annotated[float, typer.Option(help="How long to train.")] = 600.0,
    start: Annotated[str | None, typer.Option(help="A checkpoint of an earlier run to go on from.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that make lessons.")] = 1,
    screens: Annotated[int, typer.Option(help="Screenshots of one batch.")] = 24,
    lr: Annotated[float, typer.Option(help="The learning rate after the warm-up …")] = 1e-3,
    end_lr: Annotated[float, typer.Option(help="… and at the end.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the weights and the lessons.")] = 0,
) -> None:
    """Make a small agent that reads the pocket desktop and imitates its experts.

    Every half minute a line: the shares of words that visual tokens read, of places that it points to and of whole
    replies that are right, on instances that are never taught; every two minutes the success of whole episodes. All of
    it and more goes to metrics.jsonl.

    \b
    Examples:
      arpo pretrain runs/base --seconds 600                          on a laptop, a taste
      arpo pretrain runs/base --workers 15 --screens 192 --lr 1.5e-3      on a GPU
      arpo pretrain runs/more --start runs/base --seconds 300        goes on
    """
    from arpo.teaching.pretrain import Pretraining
    from arpo.teaching.pretrain import pretrain as run

    if seconds <= 0:
        raise ConfigError(f"seconds={seconds:g}: must be more than 0")
    begin = Path(start) if start else None
    run(Pretraining(Path(out), seconds, begin, workers=workers, screens=screens, lr=lr, end_lr=end_lr, seed=seed))


@app.command()
def doctor(settings: Settings = None) -> None:
    """What works on this machine.

    And for each part that is missing the one command that enables it.
    """
    from arpo.doctor import diagnose, print_findings

    print_findings(diagnose(_configured(settings, {}).env))


def main() -> None:
    """The `arpo` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # also a terminal that knows only ASCII gets an answer
    # PyTorch's threads wait for each other by spinning. Where something else runs too, they mostly spin for one that
    # does not run: ten times slower and worse (docs/profile.md). So they spin for a moment only, then sleep.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    try:
        app(prog_name="arpo")
        return
    except ArpoError as error:
        line = str(error)
    except OSError as error:  # what no command foresees: a disk that is full, a file that goes away
        line = f"{error.filename or 'cannot write'}: {error.strerror}"
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
