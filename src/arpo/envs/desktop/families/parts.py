"""What the files of desktop tasks are made of: setup steps, and evaluators of OSWorld's own getters and metrics.

task("Write it down.", [folder(f"{HOME}/Documents"), launch("mousepad")], file_is(path, "milk"))
"""

from arpo.types import Json

HOME = "/home/user"


def task(instruction: str, config: list[Json], evaluator: Json) -> Json:
    return {"instruction": instruction, "config": config, "evaluator": evaluator}


# Setup steps.


def write(path: str, text: str) -> Json:
    """A text file, with the folders that lead to it."""
    return run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "write", path, text)


def folder(*paths: str) -> Json:
    return run("mkdir", "-p", *paths)


def run(*command: str) -> Json:
    return {"type": "execute", "parameters": {"command": list(command)}}


def launch(*command: str) -> Json:
    return {"type": "launch", "parameters": {"command": list(command)}}


# Evaluators.


def check(func: str, result: Json, rules: Json) -> Json:
    return {"func": func, "result": result, "expected": {"type": "rule", "rules": rules}}


def file_check(func: str, path: str, rules: Json) -> Json:
    return check(func, {"type": "vm_file", "path": path}, rules)


def says(command: list[str], expected: str) -> Json:
    """A command prints exactly this."""
    return check("exact_match", {"type": "vm_command_line", "command": command}, {"expected": expected})


def shell_says(script: str, expected: str, *arguments: str) -> Json:
    return says(["sh", "-c", script, "check", *arguments], expected)


def file_is(path: str, text: str) -> Json:
    """A file, not a link to one, has this text, whatever line ends follow it."""
    return shell_says('test ! -L "$1" && printf %s "$(cat "$1")"', text.rstrip("\n"), path)


def folder_is(path: str, files: dict[str, str], *folders: str) -> Json:
    """A folder has just these files, with these texts, and these folders. A link is neither."""
    entries = [*((f"f {name}", f"{text}\n") for name, text in files.items()), *((f"d {name}", "") for name in folders)]
    return shell_says(_LIST, "".join(f"{entry}\n{text}" for entry, text in sorted(entries)), path)


_LIST = """cd "$1" && find . -mindepth 1 -printf '%y %P\\n' | LC_ALL=C sort | while IFS= read -r entry; do
echo "$entry"; case "$entry" in "f "*) cat "${entry#f }"; echo;; esac; done"""


def python_says(program: str, expected: str, *arguments: str) -> Json:
    """A program that reads what a shell cannot. It is isolated: nothing in the home folder is run with it."""
    return says(["python3", "-I", "-c", program, *arguments], expected)


def every(*evaluators: Json) -> Json:
    """All of them."""
    return {key: [one.get(key) for one in evaluators] for key in ("func", "result", "expected", "options")}
