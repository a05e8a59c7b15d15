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
    tokens: Annotated[int | None, typer.Option(help="Sampled tokens of each turn: 32; random-7b: 120.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the screenshots and the draws.")] = 0,
    peer: Annotated[
        bool | None, typer.Option("--peer/--no-peer", help="Also time transformers' own: no; random-7b: yes, and vLLM.")
    ] = None,
    trl: Annotated[bool, typer.Option(help="Also time TRL's trainer, where it is installed: minutes.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Time an update: many episodes sampled at once, their screenshots included, and learned.

    \b
    Examples:
      arpo bench train
      arpo bench train --no-trl --json
      arpo bench train --model random-7b --size 1920x1080 --json
    """
    if only not in (None, "sample"):
        raise ConfigError(f"only={only}: the parts are: sample")
    from arpo.bench import large, learn, sample
    from arpo.config import at_least, parse_size

    pixels, whole = parse_size(size), model in sample.RANDOM and only is None
    at_least(1, episodes=episodes, turns=turns)
    at_least(0, seed=seed)
    if tokens is None:
        tokens = 120 if model in sample.RANDOM else 32
    if whole:
        at_least(2, tokens=tokens)
        numbers = large.bench_large(model, pixels, episodes, turns, tokens, seed, peer is not False)
        return show(numbers, as_json, large.print_table)
    numbers = sample.bench_sample(model, pixels, episodes, turns, tokens, seed, peer is True)
    if only is None:
        # Of sampling it is the later figure that counts: taken beside all others, and a median.
        numbers |= learn.bench_learn(model, pixels, episodes, turns, tokens, seed, trl)
    show(numbers, as_json, (sample if only else learn).print_table)


@app.command("rollouts")
def bench_rollouts(
    envs: Annotated[str, typer.Option(help="Numbers of environments, each a multiple of 8.")] = "8,32,128,256,512,1024",
    lag: Annotated[int, typer.Option(help="train.lag of the decoupled way.")] = 3,
    stragglers: Annotated[int, typer.Option(help="Its train.stragglers.")] = 0,
    gpus: Annotated[int | None, typer.Option(help="For all of them: 16, or one for 8 environments if more.")] = None,
    seed: Annotated[int, typer.Option(help="Of all latencies.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="A picture to write: utilisation by environments.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate many slow computers: how busy they are in lock-step, and when nothing waits.

    Machines and engine have the latencies of real ones on a clock that jumps; pool, player and rollouts are the
    project's own. Hours take minutes.

    \b
    Examples:
      arpo bench rollouts
      arpo bench rollouts --envs 256 --gpus 16 --lag 4 --json
    """
    from arpo.bench import rollouts as bench

    if any(not n.isdecimal() for n in envs.split(",")):
        raise ConfigError(f"envs={envs}: must be numbers with commas between them, as in 8,256")
    numbers = bench.bench_rollouts([int(n) for n in envs.split(",")], lag, stragglers, gpus, seed)
    if plot is not None:
        bench.plot(numbers, plot)
    show(numbers, as_json, bench.print_table)


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
      arpo compare pocket-fixed --out runs/fixed             a task always begins with the same screen
      arpo compare pocket-compare --algorithms grpo,dapo --seeds 3 --jobs 2 --out runs/compare
      arpo compare --algorithms arpo+,arpo+:group_most=null train.env_steps=9000 --out runs/ablation
    """
    import shlex

    from arpo.bench.compare import methods_of, run_comparison
    from arpo.config import at_least, split_settings

    at_least(1, seeds=seeds, jobs=jobs)
    source, overrides = split_settings(settings or [])
    methods = methods_of(source or "pocket-compare", overrides, algorithms)
    print(run_comparison(methods, seeds, out, jobs, shlex.join(["arpo", *sys.argv[1:]])))
    print(f"Everything is in {out}; look at {out / 'curves.png'}")
