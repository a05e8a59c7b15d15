"""The program of the stand-in machine: a container that speaks OSWorld's server protocol, without a virtual machine.

What it is told to run it runs, in Python with a `pyautogui` of its own that only notes what was called; what was noted
is its screen's picture: each call is a stripe. It stands where no VM image can be had, and says nothing about OSWorld.
"""

import hashlib
import http.server
import json
import os
import struct
import subprocess
import time
import zlib

IMAGE = "arpo-standin"  # what a Docker engine calls it
WIDTH, HEIGHT = 320, 200
NOTES = "/tmp/notes"
PYAUTOGUI = f"""
import json
def __getattr__(name):
    def call(*arguments, **more):
        with open({NOTES!r}, "a") as notes:
            notes.write(json.dumps([name, arguments, more]) + chr(10))
    return call
"""


def notes():
    return open(NOTES).read().splitlines() if os.path.exists(NOTES) else []


def picture():
    rows = [b"\xff" * 3 * WIDTH] * HEIGHT
    for i, note in enumerate(notes()[-HEIGHT:]):
        rows[i] = hashlib.sha256(note.encode()).digest()[:3] * WIDTH

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(picture() if self.path == "/screenshot" else json.dumps(notes()).encode())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        command = ["python3" if word == "python" else word for word in asked["command"]]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "/tmp/lib"})
        self.answer(json.dumps({"output": ran.stdout, "error": ran.stderr, "returncode": ran.returncode}).encode())

    def answer(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    os.makedirs("/tmp/lib")
    with open("/tmp/lib/pyautogui.py", "w") as module:
        module.write(PYAUTOGUI)
    time.sleep(float(os.environ.get("BOOT_S", "0.5")))  # a machine is not there at once
    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["SERVER_PORT"])), Server).serve_forever()
