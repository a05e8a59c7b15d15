"""The command line: `arpo --help`. Each command only reads its arguments here and calls into the package.

Everything heavy is imported inside the commands, after the arguments are parsed, so that `--help` answers at once and
a misspelt option does not wait for numpy. What a user did wrong ends in one line and exit status 2; a promise or a
task that failed in status 1.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from arpo.errors import ArpoError

# Plain help texts: a line that holds only \b keeps the paragraph after it as it is written, as in the examples.
app = typer.Typer(
    help="""Train computer-use agents by reinforcement learning with success replay.

    \b
    First steps:
      arpo doctor                      what works on this machine
      arpo envs list                   the environments and their tasks
      arpo envs play --demo 10         watch the scripted expert solve ten tasks
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@envs_app.command("list")
def envs_list(as_json: JsonOption = False) -> None:
    """The environments, their splits and how many tasks are in each.

    \b
    Examples:
      arpo envs list
      arpo envs list --json
    """
    from arpo.envs import listing

    if as_json:
        listing.print_json(listing.describe())
    else:
        listing.print_tables(listing.describe())


@envs_app.command("check")
def envs_check(
    name: Annotated[str, typer.Argument(help="An environment of `arpo envs list`.")],
    size: SizeOption = "448x280",
) -> None:
    """Hold an environment to its contract: a line for each promise, exit status 1 if one is broken.

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
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="[PRESET|FILE] [KEY=VALUE]...: a configuration, and what to change in it."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task's id; else the first of tasks.source.")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for seed=N.")] = None,
    by: Annotated[str, typer.Option(help="expert, or hand: actions from standard input, one a line.")] = "expert",
    demo: Annotated[int | None, typer.Option(help="Solve this many different tasks; --out is then a folder.")] = None,
    out: Annotated[str | None, typer.Option(help="Where to write: a .gif or .png that moves.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the resolved configuration.")] = False,
) -> None:
    """Record a task, solved by the expert or by you, as a moving picture with the clicks marked.

    \b
    Examples:
      arpo envs play                                       the first training task, by the expert
      arpo envs play --demo 10 --out demo                  ten tasks, and one strip of them all
      arpo envs play env.size=640x400 --out rename.gif     on a larger screen
      arpo envs play --by hand                             type the actions yourself
      arpo envs play pocket seed=3 --dry-run               what the settings come to
    """
    from arpo.config import load_config, split_settings, to_yaml
    from arpo.envs import play

    source, overrides = split_settings(settings or [])
    if seed is not None:
        overrides.append(f"seed={seed}")
    config = load_config(source, overrides)
    if dry_run:
        print(to_yaml(config), end="")
    elif demo is not None:
        if not play.play_demo(config, demo, out or "demo"):
            raise typer.Exit(1)
    elif not play.play_task(config, task, by, out):
        raise typer.Exit(1)


@bench_app.command("envs")
def bench_envs(
    env: Annotated[str, typer.Option(help="An environment of `arpo envs list`.")] = "pocket",
    n_envs: Annotated[int, typer.Option(help="Environments that take turns on one thread.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps to time, over all of them.")] = 4000,
    size: SizeOption = "448x280",
    seed: Annotated[int, typer.Option(help="Of the tasks' setups and the random actions.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Time steps, resets and encoding, and weigh each further environment.

    Half of the steps are the expert's and half are random; every screen is drawn.

    \b
    Examples:
      arpo bench envs
      arpo bench envs --n-envs 1 --steps 10000 --json
    """
    from arpo.bench import envs as bench
    from arpo.config import parse_size
    from arpo.envs.listing import print_json

    numbers = bench.bench_envs(env, n_envs, steps, parse_size(size), seed)
    if as_json:
        print_json(numbers)
    else:
        bench.print_table(numbers)


@app.command()
def doctor() -> None:
    """What works on this machine, and the one command that enables each missing part."""
    from arpo.doctor import diagnose, print_findings

    print_findings(diagnose())


def main() -> None:
    """The `arpo` command."""
    try:
        app(prog_name="arpo")
    except ArpoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
