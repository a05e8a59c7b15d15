"""`arpo osworld-eval`: the release's words become arpo's settings, and the same evaluation is run."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from arpo import cli
from arpo.config import Config, load_config
from arpo.evaluation.osworld_command import address
from arpo.runs.settings import stored_settings
from show_result import shown

pytestmark = pytest.mark.usefixtures("fake_backend")
RELEASE = (
    "--headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15 --temperature 0.6 "
    "--model ui-tars-1.5 --action_space pyautogui --num_envs 8 --result_dir results "
    "--test_all_meta_path evaluation_examples/test_all.json --trial-id 3 --server_ip http://10.1.1.3:8000"
).split()
FAKE = ("env.name=fake", "env.size=96x64", "tasks.source=train", "env.workers=0")


class Arpo:
    """Runs the real entry point in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", "osworld-eval", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def settings(self, *arguments: str) -> Config:
        status, out, _ = self(*arguments, "--dry-run")
        assert status == 0
        Path("said.yaml").write_text(out)
        return load_config("said.yaml", [])


@pytest.fixture
def arpo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Arpo:
    monkeypatch.chdir(tmp_path)
    return Arpo(monkeypatch, capsys)


def test_the_releases_command_line_is_understood(arpo: Arpo) -> None:
    config = arpo.settings(*RELEASE)
    assert (config.env.name, config.env.size, config.env.workers) == ("osworld", (1920, 1080), 8)
    assert (config.tasks.source, config.tasks.max_steps) == ("evaluation_examples/test_all.json", 15)
    assert (config.engine.name, config.engine.servers) == ("openai", ["http://10.1.1.3:8000/v1"])
    assert (config.eval.temperature, config.eval.n_envs, config.eval.trials) == (0.6, 8, 1)
    assert (config.eval.protocol, config.seed) == ("standard", 3)
    assert config.agent.dialect == "uitars"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(arpo: Arpo) -> None:
    status, out, err = arpo(*RELEASE, "--dry-run")
    assert (status, err) == (0, "--headless: changes nothing, since arpo's machines have no window\n")
    assert yaml.safe_load(out)["eval"]["protocol"] == "standard"
    assert out.splitlines()[-2:] == [
        "# ui-tars-1.5 at http://10.1.1.3:8000/v1 would try each task of evaluation_examples/test_all.json 1 times;",
        "# episodes in results/arpo-runs/ui-tars-1.5/3, in OSWorld's layout in "
        "results/pyautogui/screenshot/ui-tars-1.5/3",
    ]
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "limit", "protocol"),
    [
        (["--max_steps", "50", "--max_trajectory_length", "15"], 15, "standard"),  # FAIL comes first
        (["--max_steps", "15", "--max_trajectory_length", "50"], 15, "plain"),  # it never comes to FAIL
        (["--max_steps", "30"], 30, "standard"),
        (["--max_steps", "30", "eval.protocol=hard"], 30, "hard"),
    ],
)
def test_the_shorter_of_the_two_limits_ends_an_episode(words: list[str], limit: int, protocol: str, arpo: Arpo) -> None:
    config = arpo.settings("--model", "x", *words)
    assert (config.tasks.max_steps, config.eval.protocol) == (limit, protocol)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000/v1"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000/v1"),
        ("https://example.org/v1/", "https://example.org/v1"),
        ("https://example.org/some/v2", "https://example.org/some/v2"),
    ],
)
def test_an_address_is_completed(said: str, meant: str) -> None:
    assert address(said) == meant


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: --model: name the model, as in --model ui-tars-1.5\n"),
        (["--model", "x", "--action_space", "computer_13"],
         "error: --action_space computer_13: arpo's agents know only pyautogui\n"),
        (["--model", "x", "--observation_type", "som"],
         "error: --observation_type som: arpo's agents know only screenshot\n"),
        (["--model", "x", "--max_steps", "0"], "error: tasks.max_steps=0: must be at least 1\n"),
        (["--model", "x", "--num_envs", "0"], "error: eval.n_envs=0: must be at least 1\n"),
        (["--model", "x", "eval.trials=2"],
         "error: eval.trials=2: --trial-id names a single one; run each with its own\n"),
        (["--model", "x", "--trial-id", "-1"], "error: seed=-1: must be at least 0\n"),
        (["--model", "x", "--server_ip", "a b; c"],
         "error: engine.servers.0=http://a b; c/v1: must be a list of addresses, as in [http://127.0.0.1:8000]\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing_behind(words: list[str], line: str, arpo: Arpo) -> None:
    assert arpo(*words) == (2, "", line)
    assert not list(Path().iterdir())


def test_it_evaluates_into_osworlds_layout_and_resumes(arpo: Arpo) -> None:
    words = ("--model", "fail", "--result_dir", "out", "--trial-id", "2", *FAKE, "--json")
    first = arpo(*words)
    told = json.loads(first[1])
    assert (first[0], told["success"], told["protocol"]) == (0, pytest.approx(1 / 3), "standard")
    found = shown(Path("out"), "fail/2")
    assert found is not None and (found["run"], found["success"]) == (3, told["success"])
    assert told["run_dir"] == "out/arpo-runs/fail/2" and stored_settings(Path(told["run_dir"])).seed == 2
    assert arpo(*words) == first
    assert arpo(*words, "--max_steps", "9")[2].startswith("error: out/arpo-runs/fail/2: was begun with max_steps: 15")


@pytest.fixture
def waiting_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An OpenAI-compatible server whose model only ever waits."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = "Thought: Not yet.\nAction: wait()" if asked["model"] == "waiter" else "?"
            choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1000, "completion_tokens": 10}
            data = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("limit", "solved"), [("3", ["never-1"]), ("4", [])])
def test_a_servers_model_that_never_ends_gets_infeasible_tasks_for_free_only_where_fail_is_said(
    limit: str, solved: list[str], arpo: Arpo, waiting_server: str
) -> None:
    words = ("--model", "waiter", "--server_ip", waiting_server, "--max_steps", "3", "--max_trajectory_length", limit)
    status, out, err = arpo(*words, "--result_dir", "out", *FAKE, "eval.price=[0.5,2]", "--json")
    assert status == 0, err
    told = json.loads(out)
    assert (status, told["outcomes"], told["mean_steps"]) == (0, {"step_limit": 3}, 3.0)
    assert [task for task, numbers in told["tasks"].items() if numbers["success"]] == solved
    turns = 3 * 3  # of all tasks; what they took is the endpoint's own count
    assert (told["tokens"], told["prompt_tokens"]) == (10 * turns, 1000 * turns)
    assert told["cost"] == pytest.approx(turns * (1000 * 0.5 + 10 * 2) / 1e6)
    found = shown(Path("out"), "waiter/0")
    assert found is not None and found["success"] == pytest.approx(told["success"])
    lines = Path("out/pyautogui/screenshot/waiter/0/buttons/never-1/traj.jsonl").read_text().splitlines()
    words_said = [json.loads(line)["action"] for line in lines]
    assert words_said == ["WAIT", "WAIT", "FAIL" if solved else "WAIT"]
