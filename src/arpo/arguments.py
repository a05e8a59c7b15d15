"""What several commands take, and what they do with it. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from arpo.config import Config

SizeOption = Annotated[str, typer.Option(help="The screen, WIDTHxHEIGHT in pixels.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the settings and what would be done.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunDirOption = Annotated[Path | None, typer.Option(help="Where to keep the episodes; one that was begun is resumed.")]
WeakerOption = Annotated[
    bool, typer.Option("--allow-weaker-sandbox", help="Also where walls of desktops are lacking; see arpo doctor.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(help="[PRESET|FILE] [KEY=VALUE]...: a configuration, and what to change in it.")
]


def configured(
    settings: list[str] | None, options: dict[str, Any], preset: str | None = None, instead: tuple[str, ...] = ()
) -> Config:
    """The configuration that the arguments make: the settings, and on top of them the options that were given.

    `instead`: replaces the preset's own values, unless the arguments say otherwise.
    """
    from arpo.config import load_config, split_settings

    source, overrides = split_settings(settings or [])
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return load_config(source or preset, [*instead, *overrides, *given])


def show(data: dict[str, Any], as_json: bool, print_table: Callable[[dict[str, Any]], None]) -> None:
    """For a program or for people."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        print_table(data)
