"""The socket of a real desktop's resident process, by a program that runs inside; only where it is asked for:

python -m fuzz --only desktop-requests --seconds 60
"""

import base64
import contextlib
import json
import random
from collections.abc import Iterator

from arpo.envs.desktop.sandbox import Sandbox
from fuzz import Target
from fuzz.resident import make_requests

SIZE = (640, 480)
AT_ONCE = 20  # inputs of one program: to start it takes longer than an input
SEND = """
import base64, json, socket
for data in json.load(open("/tmp/inputs")):
    with socket.socket(socket.AF_UNIX) as resident:
        resident.settimeout(100)
        resident.connect("/run/arpo/requests")
        try:
            resident.sendall(base64.b64decode(data))
            resident.shutdown(socket.SHUT_WR)
            while resident.recv(1 << 16):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
import pyautogui
print(*pyautogui.size())
"""


def make(rng: random.Random) -> list[bytes]:
    return [data for _ in range(AT_ONCE) for data in make_requests(rng)]


@contextlib.contextmanager
def desktop() -> Iterator[Sandbox]:
    with Sandbox(SIZE) as sandbox:
        sandbox.wait()
        yield sandbox


def run(sandbox: Sandbox, requests: list[bytes]) -> None:
    sandbox.write("/tmp/inputs", json.dumps([base64.b64encode(data).decode() for data in requests]).encode())
    ran = sandbox.run(["python3", "-c", SEND])
    assert ran.out.split() == [str(side) for side in SIZE], ran
    x, y = sandbox.ask("pointer")
    assert 0 <= x < SIZE[0] and 0 <= y < SIZE[1] and sandbox.screenshot().shape == (SIZE[1], SIZE[0], 3)
    sandbox.ask("settle", limit_s=0.2, quiet_s=0.01, busy=0.1)


TARGETS = [Target("desktop-requests", make, run, desktop, ())]
