"""`arpo bench …` and `arpo compare`: measure this machine, compare methods. Heavy imports come inside the commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from arpo.arguments import JsonOption, Settings, SizeOption, show
from arpo.errors import ConfigError

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.command("envs")
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
    show(numbers, as_json, bench.print_table)


@app.command("train")
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
    show(numbers, as_json, (sample if only else learn).print_table)


def compare(
    out: Annotated[Path, typer.Option(help="The folder of all runs, of the table and of the plot.")],
    settings: Settings = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods, with changed settings after colons; differences are to the first.")
    ] = "grpo,arpo,arpo+",
    seeds: Annotated[int, typer.Option(help="Runs of each method, with the seeds from `seed` on.")] = 5,
    jobs: Annotated[int, typer.Option(help="Runs at a time; they share the cores.")] = 1,
) -> None:
    """By how much each method helps: methods x seeds under the same budget, train.env_steps.

    Killed, or to have more seeds or methods? The same command resumes.

    \b
    Examples:
      arpo compare pocket-compare --out runs/compare
      arpo compare pocket-compare --algorithms grpo,dapo --seeds 3 --jobs 2 --out runs/compare
      arpo compare --algorithms arpo+,arpo+:replay_spares=false train.env_steps=9000 --out runs/ablation
    """
    import shlex

    from arpo.bench.compare import methods_of, run_comparison
    from arpo.config import at_least, split_settings

    at_least(1, seeds=seeds, jobs=jobs)
    source, overrides = split_settings(settings or [])
    methods = methods_of(source or "pocket-compare", overrides, algorithms)
    print(run_comparison(methods, seeds, out, jobs, shlex.join(["arpo", *sys.argv[1:]])))
    print(f"Everything is in {out}; look at {out / 'curves.png'}")
