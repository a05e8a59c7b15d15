"""End states of the desktop's own tasks, made without their applications: the right one, and wrong but plausible ones.

    right, wrong = text_file("/home/user/a.txt", "milk")
    right(sandbox)                              the machine is as the task wants it
    ending = wrong["a character more"](sandbox)    nearly; how the agent ends, where it is not by Finish()

The states of each family are in family_states.py, document_states.py and picture_states.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any, TypeAlias

from arpo.agent.actions import Action
from arpo.envs.desktop.sandbox import Sandbox

Params: TypeAlias = dict[str, Any]
Do: TypeAlias = Callable[[Sandbox], Action | None]
States: TypeAlias = tuple[Do, dict[str, Do]]
HOME = "/home/user"
ELSEWHERE = f"{HOME}/Desktop"


def sh(script: str, *arguments: str) -> Do:
    """A script of the shell, in the home folder."""

    def do(sandbox: Sandbox) -> None:
        ran = sandbox.run(["sh", "-c", script, "state", *arguments], cwd=HOME)
        assert ran.status == 0, (script, ran.err)

    return do


def put(path: str, data: str | bytes) -> Do:
    content = data.encode() if isinstance(data, str) else data
    return lambda sandbox: sandbox.write(path, content)


def then(*parts: Do) -> Do:
    def do(sandbox: Sandbox) -> Action | None:
        endings = [part(sandbox) for part in parts]
        return endings[-1]

    return do


def ending(action: Action) -> Do:
    return lambda sandbox: action


def nothing(sandbox: Sandbox) -> None:
    """Leave all as it is."""


def running(*command: str) -> Do:
    """A program that is still open."""

    def do(sandbox: Sandbox) -> None:
        sandbox.launch(list(command))
        ran = sandbox.run(f"for i in $(seq 200); do pgrep -x {command[0]} && exit; sleep 0.05; done; false")
        assert ran.status == 0, command

    return do


def misplaced(path: str, data: str | bytes) -> dict[str, Do]:
    """The right content where it does not belong, and other things where it does."""
    folder, name = posixpath.split(path)
    other = name.upper() if name.upper() != name else name.lower()
    return {
        "in another folder": put(f"{ELSEWHERE}/{name}", data),
        "under the name in capitals": put(f"{folder}/{other}", data),
        "under the name and .txt": put(f"{path}.txt", data),
        "an empty file of the name": put(path, b""),
        "a folder of the name": then(_gone(path), sh('mkdir -p "$1"', path)),
        "a folder of the name with the file in it": then(_gone(path), put(f"{path}/{name}", data)),
        "the name as the text": put(path, name),
    }


def linked(path: str, data: str | bytes) -> dict[str, Do]:
    link = sh('mkdir -p "$(dirname "$1")"; ln -sf /tmp/elsewhere "$1"', path)
    return {"a link to it elsewhere": then(put("/tmp/elsewhere", data), link)}


def text_file(path: str, text: str, before: str = "") -> States:
    """A file with a text; `before`: what was in it."""
    shorter, lines = text.rstrip("\n"), text.rstrip("\n").split("\n")
    texts = {
        "a character more": f"{shorter}.",
        "a character less": shorter[:-1],
        "a blank in front": f" {shorter}",
        "twice": f"{shorter}\n{shorter}\n",
        "all in capitals": shorter.upper(),
        "the words in quotes": f"'{shorter}'",
    }
    if len(lines) > 1:
        texts |= {
            "the last line left out": "\n".join(lines[:-1]),
            "the lines turned round": "\n".join(reversed(lines)),
            "all in one line": " ".join(lines),
            "with other line ends": "\r\n".join(lines),
        }
    if before:
        texts |= {"below the old text": before.rstrip("\n") + "\n" + text, "above the old text": text + "\n" + before}
    wrong = {name: put(path, one) for name, one in texts.items() if one not in (shorter, text)}
    return put(path, text), wrong | misplaced(path, text) | linked(path, text)


def _gone(path: str) -> Do:
    return sh('rm -rf "$1"', path)
