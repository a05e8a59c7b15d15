"""`arpo envs …`: list, check, play and serve the environments. Heavy imports come inside the commands."""

from typing import Annotated

import typer

from arpo.arguments import DryRunOption, JsonOption, Settings, SizeOption, WeakerOption, configured, show

app = typer.Typer(help="The computers that an agent works on.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def envs_list(as_json: JsonOption = False) -> None:
    """The environments, their splits and how many tasks are in each.

    \b
    Examples:
      arpo envs list
      arpo envs list --json
    """
    from arpo.envs import listing

    show(listing.describe(), as_json, listing.print_tables)


@app.command("check")
def envs_check(
    name: Annotated[str, typer.Argument(help="An environment of `arpo envs list`.")],
    size: SizeOption = "448x280",
    allow_weaker_sandbox: WeakerOption = False,
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

    if not check_and_print(name, parse_size(size), allow_weaker_sandbox):
        raise typer.Exit(1)


@app.command("play")
def envs_play(
    settings: Settings = None,
    task: Annotated[str | None, typer.Option(help="The task's id; else the first of tasks.source.")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for seed=N.")] = None,
    by: Annotated[str, typer.Option(help="expert, or hand: actions from standard input, one a line.")] = "expert",
    out: Annotated[str | None, typer.Option(help="Where to write: a .gif or .png that moves.")] = None,
    dry_run: DryRunOption = False,
    allow_weaker_sandbox: WeakerOption = False,
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

    config = configured(settings, {"seed": seed, "env.allow_weaker_sandbox": allow_weaker_sandbox or None})
    if dry_run:
        print(to_yaml(config), end="")
    elif not play.play_task(config, task, by, out):
        raise typer.Exit(1)


@app.command("serve")
def envs_serve(
    name: Annotated[str, typer.Argument(help="desktop: the one that can be served.")],
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 is any that is free.")] = 5000,
    size: SizeOption = "1920x1080",
    token: Annotated[
        str | None, typer.Option(envvar="ARPO_TOKEN", help="What every request has to bring; best set as ARPO_TOKEN.")
    ] = None,
    allow_weaker_sandbox: WeakerOption = False,
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

    serve(name, parse_size(size), port, token, allow_weaker_sandbox)
