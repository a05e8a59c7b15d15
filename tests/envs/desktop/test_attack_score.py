"""What an agent with a terminal tries against its score: to forge one, or to have none where it would be 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from traces import SIZE, wait_until

from arpo.envs.desktop.checks import score
from arpo.envs.desktop.sandbox import Sandbox
from arpo.types import Task

pytestmark = [pytest.mark.desktop, pytest.mark.attack("agent")]


def task(result: dict[str, Any], **more: Any) -> Task:
    rule = {"type": "rule", "rules": {"expected": "yes\n"}}
    evaluator = {"func": "exact_match", "result": result, "expected": rule, **more}
    return Task("forged", "tests", "Do it.", "desktop", {"config": []}, evaluator, "test")


def command(line: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": line, "shell": True}


@pytest.fixture
def desktop() -> Iterator[Sandbox]:
    with Sandbox(SIZE) as sandbox:
        sandbox.wait()
        yield sandbox


FORGE = """
import glob, os, time
print("ready", flush=True)
while True:
    for place in glob.glob("/proc/[0-9]*"):
        try:
            if b": checked" in open(place + "/cmdline", "rb").read():
                with open(place + "/fd/1", "w") as out:
                    out.write("yes\\n")
        except OSError:
            pass
"""


SLOW = ": checked; sleep 1"
KEEP = {"type": "execute", "parameters": {"command": SLOW, "shell": True, "stdout": "said"}}
KEPT = task(
    {"type": "cache_file", "path": "said"},
    func="file_contains",
    postconfig=[KEEP],
    expected={"type": "rule", "rules": {"expected": ["yes"]}},
)


@pytest.mark.parametrize("kept", [False, True], ids=["a getter's output", "the output that a step keeps"])
def test_nobody_writes_into_the_output_of_a_check(kept: bool, desktop: Sandbox) -> None:
    desktop.write("/tmp/forge.py", FORGE.encode())
    desktop.launch("python3 /tmp/forge.py > /tmp/ready")
    wait_until(lambda: desktop.run(["cat", "/tmp/ready"]).out)
    attacked = desktop.run(["sh", "-c", SLOW])
    assert "yes" in attacked.out, "the attack works where nobody stands still"
    forged = KEPT if kept else task(command(SLOW))
    assert score(desktop, forged, "") == 0.0


@pytest.mark.parametrize("module", ["json", "os", "sitecustomize", "usercustomize", "encodings"])
def test_a_module_of_the_agents_is_not_taken_by_a_checkers_python(module: str, desktop: Sandbox) -> None:
    for folder in ("/home/user", "/home/user/.local/lib/python3.11/site-packages", "/tmp"):
        desktop.write(f"{folder}/{module}.py", b"print('yes'); import os; os._exit(0)")
    assert score(desktop, task(command("python3 -c 'import json; print(\"no\")'")), "") == 0.0
    assert score(desktop, task(command("cd /tmp; python3 -c 'import json; print(\"no\")'")), "") == 0.0


@pytest.mark.parametrize("file", [".bashrc", ".profile", ".bash_profile", ".inputrc", ".gitconfig"])
def test_settings_that_an_agent_leaves_do_not_change_what_a_check_says(file: str, desktop: Sandbox) -> None:
    desktop.write(f"/home/user/{file}", b"[alias]\n\tversion = !echo yes\n" if "git" in file else b"echo yes; exit 0\n")
    assert score(desktop, task(command("sh -c 'echo no'")), "") == 0.0
    assert score(desktop, task(command("bash -c 'echo no'")), "") == 0.0


def test_programs_of_the_agents_do_not_come_before_the_systems(desktop: Sandbox) -> None:
    for folder in ("/home/user", "/home/user/bin", "/home/user/.local/bin", "/tmp"):
        desktop.write(f"{folder}/cat", b"#!/bin/sh\necho yes\n")
        desktop.run(["chmod", "+x", f"{folder}/cat"])
    assert score(desktop, task(command("cat /etc/hostname; cat /dev/null")), "") == 0.0


def test_a_service_of_the_agents_is_not_started_by_a_check(desktop: Sandbox) -> None:
    service = "[D-BUS Service]\nName=ca.desrt.dconf\nExec=/home/user/evil\n"
    desktop.write("/home/user/.local/share/dbus-1/services/ca.desrt.dconf.service", service.encode())
    desktop.write("/home/user/evil", b"#!/bin/sh\ntouch /tmp/started\nsleep 100\n")
    desktop.run(["chmod", "+x", "/home/user/evil"])
    score(desktop, task(command("gsettings get org.gnome.desktop.interface font-name; echo no")), "")
    assert desktop.run(["test", "-e", "/tmp/started"]).status == 1


def test_limits_of_a_check_cannot_be_lowered_while_it_runs(desktop: Sandbox) -> None:
    limit = "while true; do for i in $(pgrep -f checked); do prlimit --pid $i --cpu=0:0 --as=1:1; done; done"
    desktop.launch(f"sh -c '{limit}'")
    assert score(desktop, task(command(": checked; sleep 0.5; echo yes")), "") == 1.0


TABS = '[{"type": "page", "title": "x", "url": "http://site.test/", "id": "1"}]'
FAKE = f"""
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "{len(TABS)}"); self.end_headers()
        self.wfile.write(b'{TABS}')
server = http.server.HTTPServer(("127.0.0.1", 1337), Answer)
print("ready", flush=True)
server.serve_forever()
"""


def tabs() -> Task:
    rules = {"type": "rule", "rules": {"type": "url", "urls": ["http://site.test/"]}}
    evaluator = {"func": "is_expected_tabs", "result": {"type": "open_tabs_info"}, "expected": rules}
    return Task("tabs", "tests", "Open it.", "desktop", {"config": []}, evaluator, "test")


@pytest.mark.parametrize(
    "how",
    [
        "python3 /tmp/fake.py",
        "cp /usr/bin/python3 /tmp/chromium && /tmp/chromium /tmp/fake.py",
        "exec -a /usr/lib/chromium/chromium python3 /tmp/fake.py",
        "cp /usr/bin/python3 /tmp/chrome && /tmp/chrome /tmp/fake.py",
    ],
)
def test_a_program_in_the_browsers_place_is_not_believed(how: str, desktop: Sandbox) -> None:
    desktop.write("/tmp/fake.py", FAKE.encode())
    desktop.launch(["bash", "-c", f"{how} > /tmp/ready"])
    wait_until(lambda: desktop.run(["cat", "/tmp/ready"]).out)
    assert score(desktop, tabs(), "") == 0.0


PASS = """
import os, socket, subprocess, threading
server = socket.create_server(("127.0.0.1", 1337))
os.set_inheritable(server.fileno(), True)
subprocess.Popen(["google-chrome", "about:blank"], close_fds=False)
print("ready", flush=True)
while True:
    with server.accept()[0] as connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + {!r}.encode())
"""


@pytest.mark.desktop("chromium")
def test_a_port_that_is_shared_with_a_real_browser_is_not_believed(desktop: Sandbox) -> None:
    desktop.write("/tmp/pass.py", PASS.format(TABS).encode())
    desktop.launch("python3 /tmp/pass.py > /tmp/ready")
    wait_until(lambda: desktop.run(["cat", "/tmp/ready"]).out)
    assert score(desktop, tabs(), "") == 0.0
