"""The release's evaluation command, from its words to OSWorld's folders: all of it is real but the virtual machine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_osworld_docker import CLICKED, CLIENT, PREPARED, STANDIN, gone

from arpo import cli
from arpo.envs.osworld import env as osworld_env
from show_result import shown

pytestmark = pytest.mark.heavy
TASKS: dict[str, dict[str, Any]] = {  # in OSWorld's own form; the agent below clicks, then says that it is done
    "clicked": {"config": PREPARED, "evaluator": CLICKED},
    "unprepared": {"config": [], "evaluator": CLICKED},
    "impossible": {"config": [], "evaluator": {"func": "infeasible"}},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """An OpenAI-compatible server, whose questions are kept; the first of them is its address."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(question := json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            spoken = any(message["role"] == "assistant" for message in question["messages"])
            action = "finished(content='')" if spoken else "click(start_box='<|box_start|>(30,40)<|box_end|>')"
            message = {"role": "assistant", "content": f"Thought: Go on.\nAction: {action}"}
            data = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked.append({"address": f"127.0.0.1:{listening.server_port}"})
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield asked
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_the_releases_command_plays_scores_and_writes_as_osworld_does_and_resumes(
    engine: None,
    server: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not CLIENT.exists():
        pytest.skip("OSWorld's client is not installed: make osworld-client")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(osworld_env, "Docker", lambda image, disk: STANDIN)  # the one part that cannot be had here
    examples = Path("evaluation_examples/examples/os")
    examples.mkdir(parents=True)
    for name, task in TASKS.items():
        text = {"id": name, "snapshot": "os", "instruction": "Click.", "source": "", "proxy": False, **task}
        (examples / f"{name}.json").write_text(json.dumps(text))
    Path("evaluation_examples/test_all.json").write_text(json.dumps({"os": list(TASKS)}))
    words = (
        "arpo osworld-eval --headless --observation_type screenshot --action_space pyautogui --max_steps 3 "
        "--max_trajectory_length 3 --temperature 0.6 --model clicker --num_envs 2 --result_dir results --trial-id 1 "
        f"--test_all_meta_path evaluation_examples/test_all.json --server_ip {server[0]['address']} "
        f"env.size=320x200 env.workers=0 env.osworld_python={CLIENT} --json"
    ).split()

    def run() -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        told: dict[str, Any] = json.loads(said.out)
        return told

    told = run()
    assert {name: part["success"] for name, part in told["tasks"].items()} == {
        "clicked": 1.0, "unprepared": 0.0, "impossible": 0.0,
    }  # fmt: skip
    assert (told["outcomes"], told["errors"]) == ({"finished": 3}, 0)
    assert all(question["temperature"] == 0.6 for question in server[1:]) and len(server) == 1 + 2 * len(TASKS)
    found = shown(Path("results"), "clicker/1")
    assert found is not None and (found["run"], found["success"]) == (3, pytest.approx(told["success"]))
    solved = Path("results/pyautogui/screenshot/clicker/1/os/clicked")
    assert {file.name for file in solved.iterdir()} >= {"traj.jsonl", "step_0.png", "step_1.png", "result.txt"}
    assert [json.loads(line)["action"] for line in (solved / "traj.jsonl").read_text().splitlines()][-1] == "DONE"
    assert run() == told, "nothing is played again"
    assert len(server) == 1 + 2 * len(TASKS) and gone()
