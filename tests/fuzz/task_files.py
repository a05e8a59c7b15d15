"""Task lists and task files, what they need of a desktop, and the files that they name."""

import contextlib
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.needs import refuse
from arpo.errors import EnvError
from arpo.tasks.load import load_tasks, parse_tasks, plain
from arpo.types import Task
from fuzz import Target
from fuzz.values import anything, as_text, changed, damaged, text

HUB = "https://huggingface.co/datasets/x/resolve/main"
PUBLIC, SECRET = b"open to tasks", b"not open to tasks"
OSWORLD: list[dict[str, Any]] = [
    {
        "id": "one",
        "instruction": "Do it.",
        "config": [
            {"type": "download", "parameters": {"files": [{"url": f"{HUB}/os/a.txt", "path": "/home/user/a.txt"}]}},
            {"type": "launch", "parameters": {"command": ["xterm"], "shell": False}},
            {"type": "sleep", "parameters": {"seconds": 1}},
        ],
        "evaluator": {
            "postconfig": [{"type": "execute", "parameters": {"command": "ls", "shell": True, "stdout": "out.txt"}}],
            "func": ["compare_text_file", "exact_match"],
            "conj": "or",
            "result": [
                {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"},
                {"type": "vm_command_line", "command": ["ls"], "shell": False},
            ],
            "expected": [
                {"type": "cloud_file", "path": f"{HUB}/os/a.txt", "dest": "gold.txt"},
                {"type": "rule", "rules": {"expected": "a"}},
            ],
            "options": [{}, {}],
        },
    },
    {
        "id": "two",
        "instruction": "Sum it up.",
        "config": [],
        "evaluator": {
            "func": "compare_table",
            "result": {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"},
            "expected": {"type": "cloud_file", "path": f"{HUB}/os/a.txt", "dest": "b.xlsx"},
            "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
        },
    },
    {"id": "three", "instruction": "It cannot be done.", "evaluator": {"func": "infeasible"}},
]


def _ours() -> list[Task]:
    return [task for env in ("desktop", "pocket") for task in load_tasks(env, "train")[::8]]


OURS = _ours()


def make_task_file(rng: random.Random) -> tuple[str, str, bytes]:
    """An environment, the id under which it is listed, and the file."""
    if rng.random() < 0.5:
        task = rng.choice(OSWORLD)
        return rng.choice(["desktop", "osworld"]), task["id"], as_text(rng, changed(rng, task))
    ours = rng.choice(OURS)
    return ours.env, ours.id, as_text(rng, changed(rng, plain(ours)))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        files = Path(made, "files")
        (files / "os").mkdir(parents=True)
        (files / "os" / "a.txt").write_bytes(PUBLIC)
        (files / "inside.txt").symlink_to("os/a.txt")
        Path(made, "secret.txt").write_bytes(SECRET)
        (files / "link.txt").symlink_to("../secret.txt")
        (files / "up").symlink_to("..")
        (files / "round").symlink_to("round")
        yield Path(made)


def run_task_file(made: Path, given: tuple[str, str, bytes]) -> None:
    env, task_id, data = given
    domain = "domain" if env == "osworld" or task_id in ("one", "two", "three") else _domain(task_id)
    beside = made / "examples" / domain / f"{task_id}.json"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_bytes(data)
    (made / "list.json").write_text(json.dumps({domain: [task_id]}))
    (task,) = load_tasks(env, str(made / "list.json"), {"files": str(made / "files")})
    assert task.id == task_id and task.env == env and 1 <= task.max_steps <= 10_000
    json.dumps(plain(task), allow_nan=False)


def _domain(task_id: str) -> str:
    return next(task.domain for task in OURS if task.id == task_id)


def make_list(rng: random.Random) -> bytes:
    listed = {"files": [rng.choice(OURS).id for _ in range(3)], rng.choice([text(rng), "mail"]): [text(rng), "one"]}
    return as_text(rng, changed(rng, listed))


def run_list(made: Path, data: bytes) -> None:
    (made / "list.json").write_bytes(data)
    for task in load_tasks("pocket", str(made / "list.json")):
        assert task.id.isprintable() and "/" not in task.id


def make_kept(rng: random.Random) -> str:
    kept = {"train": [plain(task) for task in rng.sample(OURS, 2)]}
    return as_text(rng, changed(rng, kept)).decode(errors="replace")


def run_kept(_: Path, kept: str) -> None:
    parse_tasks(kept, Path("tasks.json"), "pocket")


def make_needs(rng: random.Random) -> Task:
    """A task whose parts are of the right kind on the outside only."""
    task = changed(rng, rng.choice(OSWORLD[:2]), 6)
    parts = task if isinstance(task, dict) else {}
    evaluator, config = parts.get("evaluator"), parts.get("config", [])
    setup = {"config": config} if rng.random() < 0.9 else {text(rng): anything(rng)}
    return Task("t-1", "os", "Do it.", "desktop", setup, evaluator if isinstance(evaluator, dict) else {}, "x")


def run_needs(made: Path, task: Task) -> None:
    refuse(task, {"files": str(made / "files")})


def make_address(rng: random.Random) -> str:
    parts = [
        "os",
        "a.txt",
        "link.txt",
        "up",
        "round",
        "inside.txt",
        "..",
        ".",
        "",
        "secret.txt",
        "%2e%2e",
        "files",
        text(rng),
    ]
    path = "/".join(rng.choice(parts) for _ in range(rng.randrange(1, 6)))
    front = rng.choice([HUB, f"{HUB}/", "file://", "file:", "", "http://..", "https://huggingface.co", "//", text(rng)])
    whole = f"{front}/{path}"
    return damaged(rng, whole.encode(errors="surrogatepass"), 2).decode(errors="surrogateescape")


def run_address(made: Path, url: str) -> None:
    data = FileSource(str(made / "files")).read(url)
    assert data == PUBLIC, "it must be a file of the folder"


TARGETS = [
    Target("task-file", make_task_file, run_task_file, folder),
    Target("task-list", make_list, run_list, folder),
    Target("kept-tasks", make_kept, run_kept, folder),
    Target("needs", make_needs, run_needs, folder),
    Target("addresses", make_address, run_address, folder, (EnvError,)),
]
