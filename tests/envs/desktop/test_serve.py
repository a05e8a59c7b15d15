"""OSWorld's server protocol over a real desktop: every call, what it refuses, and that all of it stays inside."""

import base64
import contextlib
import http.client
import io
import json
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from traces import kill

from arpo.envs.desktop import sandbox
from arpo.envs.desktop.calls import CALLS
from arpo.envs.desktop.serve import Server
from arpo.errors import ConfigError

pytestmark = [pytest.mark.desktop("xterm"), pytest.mark.slow]
needs_atspi = pytest.mark.skipif(
    not any(Path("/usr/lib").glob("*/girepository-1.0/Atspi-2.0.typelib")),
    reason="what programs tell is read by: apt-get install gir1.2-atspi-2.0",
)
SIZE = (1280, 720)
WAIT_S = 30.0


class Client:
    def __init__(self, address: str, **headers: str) -> None:
        self.address, self.headers = address, headers

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, bytes]:
        host, port, *_ = self.address.split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=150)) as connection:
            data = json.dumps(body).encode() if kind == "application/json" and body is not None else body
            connection.request(method, path, data, {**({"Content-Type": kind} if data else {}), **self.headers})
            reply = connection.getresponse()
            return reply.status, reply.read()

    def get(self, path: str) -> Any:
        return self._read(*self.ask("GET", path))

    def post(self, path: str, form: dict[str, str] | None = None, /, **body: Any) -> Any:
        if form is not None:
            kind = "application/x-www-form-urlencoded"
            return self._read(*self.ask("POST", path, urllib.parse.urlencode(form).encode(), kind))
        return self._read(*self.ask("POST", path, body))

    def refused(self, path: str, /, **body: Any) -> tuple[int, str]:
        status, data = self.ask("POST", path, body)
        line = json.loads(data)["message"]
        assert status >= 400 and line and "\n" not in line and "Traceback" not in line
        return status, line

    def python(self, source: str) -> str:
        """As OSWorld's client sends an action."""
        prefix = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
        reply = self.post("/execute", command=["python", "-c", prefix + source], shell=False)
        assert reply["returncode"] == 0, reply
        return str(reply["output"])

    def shell(self, line: str) -> str:
        return str(self.post("/execute", command=line, shell=True)["output"])

    def until(self, line: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.post("/execute", command=line, shell=True)["returncode"]:
            assert time.monotonic() < deadline, line
            time.sleep(0.05)

    def _read(self, status: int, data: bytes) -> Any:
        assert status == 200, data
        with contextlib.suppress(ValueError):
            return json.loads(data)
        return data


@contextlib.contextmanager
def serving(token: str | None = None) -> Iterator[Server]:
    with Server(SIZE, 0, token) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    client = Client(server.address)
    client.post("/reset")
    return client


def test_every_call_that_osworlds_client_makes_is_there() -> None:
    get = "/screenshot /terminal /accessibility"
    post = """/execute /setup/execute /setup/execute_with_verification /setup/launch /screen_size
        /window_size /desktop_path /wallpaper /list_directory /file /setup/upload /setup/open_file
        /setup/change_wallpaper /setup/activate_window /setup/close_window /start_recording /end_recording /run_python
        /run_bash_script"""
    assert set(CALLS) == {("GET", path) for path in get.split()} | {("POST", path) for path in post.split()}


def test_commands_run_inside_and_nowhere_else(client: Client) -> None:
    reply = client.post("/execute", command=["sh", "-c", "id -un; hostname; pwd; echo oops >&2; exit 3"], shell=False)
    assert reply == {"status": "success", "output": "user\ndesktop\n/home/user\n", "error": "oops\n", "returncode": 3}
    assert client.shell("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :").strip().endswith("1")  # lo


def test_commands_are_read_as_osworlds_server_reads_them(client: Client) -> None:
    assert client.post("/setup/execute", command="echo 'a  b' ~/x", shell=False)["output"] == "a  b /home/user/x\n"
    assert client.post("/setup/execute", command="echo a | tr a b", shell=True)["output"] == "b\n"
    assert client.post("/setup/execute", command=["echo a | tr a c"], shell=True)["output"] == "c\n"
    for bad in (None, "", [], [1], {"a": 1}):
        assert client.refused("/execute", command=bad)[0] == 400
    assert client.refused("/execute", command=["no-such-program"])[0] == 400


def test_a_command_is_verified_by_a_window_or_by_another_command(client: Client) -> None:
    checks = {"command_success": "test -e /tmp/later"}
    reply = client.post(
        "/setup/execute_with_verification",
        command="(sleep 0.3; touch /tmp/later) & echo begun",
        shell=True,
        verification=checks,
        check_interval=0.05,
    )
    assert reply["verification"] == "passed" and reply["output"] == "begun\n"
    status, data = client.ask(
        "POST",
        "/setup/execute_with_verification",
        {"command": ["true"], "verification": {"window_exists": "None such"}, "max_wait_time": 0},
    )
    assert status == 500 and json.loads(data)["status"] == "verification_failed"


def test_scripts_of_python_and_bash(client: Client) -> None:
    long = "x = '" + "a" * 300_000 + "'\nprint(len(x))"  # longer than an argument of a command can be
    assert client.post("/run_python", code=long)["output"] == "300000\n"
    status, data = client.ask("POST", "/run_python", {"code": "import nothing_such"})
    assert status == 500 and "nothing_such" in json.loads(data)["error"]
    reply = client.post("/run_bash_script", script="echo $((6 * 7)); pwd; exit 4", timeout=10, working_dir="/tmp")
    assert (reply["output"], reply["returncode"]) == ("42\n/tmp\n", 4)
    assert client.post("/run_bash_script", script="sleep 60", timeout=1)["returncode"] == -1
    assert client.shell("ls /tmp/script-* 2>/dev/null") == ""


def test_pyautogui_moves_clicks_and_types_all_of_unicode(client: Client) -> None:
    assert client.python("pyautogui.moveTo(33, 44); print(pyautogui.position().x, pyautogui.size())").startswith("33 ")
    assert client.python("print(*pyautogui.position())") == "33 44\n"
    client.post("/setup/launch", command=["xterm", "-e", "head -n 2 > /tmp/typed; touch /tmp/typed.done"])
    text = "naïve <b> 你好 €"
    client.python(f"pyautogui.click(640, 300); pyautogui.write({text!r}); pyautogui.press('enter')")
    client.python("pyautogui.hotkey('shift', 'a'); pyautogui.press(['b', 'enter'])")
    client.until("test -e /tmp/typed.done")
    assert client.post("/file", {"file_path": "/tmp/typed"}) == f"{text}\nAb\n".encode()


LISTENER = """
from Xlib import X, display
shown = display.Display()
mask = X.ButtonPressMask | X.ButtonReleaseMask
window = shown.screen().root.create_window(400, 200, 500, 400, 0, X.CopyFromParent, event_mask=mask)
window.map()
names = {X.ButtonPress: "press", X.ButtonRelease: "release"}
with open("/tmp/events", "w", buffering=1) as file:
    while True:
        event = shown.next_event()
        print(names[event.type], event.detail, event.root_x, event.root_y, file=file)
"""


def test_pyautogui_drags_and_scrolls(client: Client) -> None:
    client.post("/setup/launch", command=["python", "-c", LISTENER])
    client.python("pyautogui.scroll(-2, 600, 400); pyautogui.moveTo(500, 300); pyautogui.dragTo(700, 400)")
    client.python("pyautogui.doubleClick(600, 300); pyautogui.rightClick()")
    client.until("test $(wc -l < /tmp/events) -ge 12")
    wheel, drag = ["press 5 600 400", "release 5 600 400"], ["press 1 500 300", "release 1 700 400"]
    clicks = [f"{what} {button} 600 300" for button in (1, 1, 3) for what in ("press", "release")]
    assert client.shell("cat /tmp/events").splitlines() == [*wheel, *wheel, *drag, *clicks]
    assert "has no locateOnScreen" in client.post(
        "/execute", command=["python", "-c", "import pyautogui; pyautogui.locateOnScreen('a.png')"]
    )["error"]  # fmt: skip


def test_the_screenshot_shows_the_screen_and_the_pointer(client: Client) -> None:
    def pixels() -> bytes:
        image = Image.open(io.BytesIO(client.get("/screenshot")))
        assert (image.format, image.size) == ("PNG", SIZE)
        return image.crop((90, 90, 140, 140)).tobytes()

    client.python("pyautogui.moveTo(600, 600)")
    without = pixels()
    client.python("pyautogui.moveTo(100, 100)")
    assert pixels() != without


def test_windows_are_listed_activated_and_closed(client: Client) -> None:
    for title in ("first", "second"):
        client.post("/setup/launch", command=["xterm", "-T", title])
    assert set(client.post("/window_size", {"app_class_name": "XTerm"})) == {"width", "height"}
    assert client.ask("POST", "/window_size", b"app_class_name=Nix", "application/x-www-form-urlencoded")[0] == 404
    client.post("/setup/activate_window", window_name="first", strict=True)
    tree = client.get("/accessibility")["AT"]
    assert tree.startswith("<desktop-frame") and 'name="first"' in tree and 'st:active="true"' in tree
    client.post("/setup/close_window", window_name="first")
    assert 'name="first"' not in client.get("/accessibility")["AT"]
    assert client.refused("/setup/close_window", window_name="first")[0] == 400


@pytest.mark.parametrize(
    "program", ["xterm", pytest.param("lxterminal", marks=[needs_atspi, pytest.mark.desktop("lxterminal")])]
)
def test_what_a_terminal_shows_is_read(client: Client, program: str) -> None:
    assert client.get("/terminal") == {"output": None, "status": "success"}
    client.post("/setup/launch", command=[program])
    client.python("pyautogui.write('echo $((40 + 2))'); pyautogui.press('enter')")
    deadline = time.monotonic() + WAIT_S
    while "42" not in str(shown := client.get("/terminal")["output"]):
        assert time.monotonic() < deadline, shown


@needs_atspi
@pytest.mark.desktop("mousepad")
def test_the_tree_has_what_programs_tell(client: Client) -> None:
    client.post("/setup/launch", command=["mousepad"])
    client.python("pyautogui.write('in the window')")
    deadline = time.monotonic() + WAIT_S
    while ">in the window</text>" not in (tree := client.get("/accessibility")["AT"]):
        assert time.monotonic() < deadline, tree
    assert '<menu name="File" ' in tree and 'cp:screencoord="(' in tree


def test_the_machine_describes_itself(client: Client) -> None:
    assert client.post("/screen_size") == {"width": 1280, "height": 720}
    assert client.post("/desktop_path") == {"desktop_path": "/home/user/Desktop"}


def test_files_go_in_and_come_out(client: Client) -> None:
    data = bytes(range(256)) * 3 + b"\r\n--edge\r\n\r\n"
    head = '--line\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n~/Desktop/a b/é.bin\r\n--line\r\n'
    head += 'Content-Disposition: form-data; name="file_data"; filename="x"\r\nContent-Type: x/y\r\n\r\n'
    body = head.encode() + data + b"\r\n--line--\r\n"
    assert client.ask("POST", "/setup/upload", body, "multipart/form-data; boundary=line")[0] == 200
    assert client.post("/file", {"file_path": "~/Desktop/a b/é.bin"}) == data
    assert client.ask("POST", "/file", b"file_path=/nowhere", "application/x-www-form-urlencoded")[0] == 404
    assert client.post("/list_directory", path="/home/user/Desktop")["directory_tree"] == {
        "type": "directory",
        "name": "Desktop",
        "children": [{"type": "directory", "name": "a b", "children": [{"type": "file", "name": "é.bin"}]}],
    }
    assert client.refused("/list_directory", path="/nowhere")[0] == 400
    for kind in ("multipart/form-data", "multipart/form-data; boundary=other"):
        assert client.ask("POST", "/setup/upload", body, kind)[0] == 400


@pytest.mark.desktop("mousepad")
def test_a_file_is_opened_and_a_wallpaper_set(client: Client) -> None:
    client.shell("echo hello > notes.txt")
    client.shell("gio mime text/plain org.xfce.mousepad.desktop")
    client.post("/setup/open_file", path="/home/user/notes.txt")
    assert "notes.txt" in client.get("/accessibility")["AT"]
    assert client.refused("/setup/open_file", path="/home/user/none.txt")[0] == 400
    client.post("/setup/change_wallpaper", path="~/notes.txt")
    assert client.post("/wallpaper") == b"hello\n"
    assert client.refused("/setup/change_wallpaper", path="~/none.png")[0] == 404


@pytest.mark.desktop("ffmpeg")
def test_the_screen_is_recorded(client: Client) -> None:
    client.post("/start_recording")
    assert client.refused("/start_recording")[0] == 400
    client.until("test -s /tmp/recording.mp4")
    time.sleep(0.5)  # a few pictures
    assert client.post("/end_recording")[4:8] == b"ftyp"
    assert client.refused("/end_recording")[0] == 400


PLAIN = "import http.server as h; h.HTTPServer(('127.0.0.1', {0}), h.SimpleHTTPRequestHandler).serve_forever()"


def test_the_ports_of_browser_and_player_lead_inside(client: Client, server: Server) -> None:
    _, _, chromium, vnc, vlc = server.address.split(":")
    assert vnc == "0"
    for inside, port in ((9222, chromium), (8080, vlc)):
        relay = Client(f"127.0.0.1:{port}")
        with pytest.raises(http.client.RemoteDisconnected):  # nothing listens yet
            relay.ask("GET", "/notes.txt")
        client.shell(f"echo port {inside} > notes.txt")
        client.post("/setup/launch", command=["python", "-c", PLAIN.format(inside)])
        client.until(f"grep -qi :{inside:04x} /proc/net/tcp")
        assert relay.ask("GET", "/notes.txt") == (200, f"port {inside}\n".encode())


def test_a_reset_gives_a_fresh_desktop(client: Client) -> None:
    client.shell("touch left")
    client.post("/setup/launch", command=["xterm", "-T", "left"])
    client.post("/reset")
    assert client.shell("ls left") == "" and 'name="left"' not in client.get("/accessibility")["AT"]


def test_a_lost_desktop_is_one_line_and_a_reset_brings_another(client: Client, server: Server) -> None:
    kill(server.sandbox, "Xvfb")
    deadline = time.monotonic() + WAIT_S
    while client.ask("GET", "/accessibility")[0] == 200:
        assert time.monotonic() < deadline
    assert client.refused("/setup/launch", command=["xterm"])[0] == 503
    client.post("/reset")
    assert client.get("/accessibility")


def test_bad_requests_get_one_line(client: Client) -> None:
    assert client.refused("/nothing")[0] == 404
    assert client.ask("GET", "/execute")[0] == 404
    assert client.ask("POST", "/execute", b"{", "text/plain")[0] == 400
    assert client.ask("POST", "/execute", [1])[0] == 400
    assert client.refused("/run_bash_script", script="true", timeout="soon")[0] == 400
    assert client.refused("/setup/upload")[0] == 400
    length = {"Content-Length": str(1 << 40)}
    assert Client(client.address, **length).ask("POST", "/setup/upload")[0] == 413
    assert client.ask("POST", "/execute", b"[" * 100_000, "text/plain")[0] == 400
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("/run_bash_script", {"script": "true", "working_dir": 5}),
        ("/setup/execute_with_verification", {"command": ["true"], "verification": "x"}),
        ("/setup/launch", {"command": "pkill '", "shell": True}),
    ]
    for path, body in wrong:
        assert client.refused(path, **body)[0] == 400


def test_a_page_in_a_browser_is_refused_also_under_a_name_of_its_own(client: Client) -> None:
    port = client.address.split(":")[1]
    pages = ({"Origin": "http://example.org"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": f"example.org:{port}"})
    for headers in pages:
        assert Client(client.address, **headers).ask("GET", "/screenshot")[0] == 403
    for host in (f"localhost:{port}", "127.0.0.1", "[::1]:6000", "192.0.2.7:80"):
        assert Client(client.address, Host=host).post("/screen_size")["width"] == SIZE[0]


def test_a_desktop_that_cannot_be_made_is_one_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "missing", lambda: "apt-get install xvfb")
        assert client.refused("/reset") == (500, "programs are missing for desktops; apt-get install xvfb")
    client.post("/reset")


def test_with_a_token_no_request_goes_without_it() -> None:
    with serving("s3cret") as server:
        basic = base64.b64encode(b"anyone:s3cret").decode()
        wrong: list[dict[str, str]] = [{}, *({"Authorization": said} for said in ("Bearer s3cre", "Basic !", "s3cret"))]
        for headers in wrong:
            for method, path in (("GET", "/screenshot"), ("POST", "/execute"), ("POST", "/reset"), ("GET", "/none")):
                assert Client(server.address, **headers).ask(method, path)[0] == 401
        for headers in ({"Authorization": "Bearer s3cret"}, {"Authorization": f"Basic {basic}"}):
            assert Client(server.address, **headers, Host="example.org").post("/screen_size")["width"] == SIZE[0]


def test_it_listens_on_loopback_alone(server: Server) -> None:
    listening = "0A"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    for port in (int(server.address.split(":")[i]) for i in (1, 2, 4)):
        found = [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == listening]
        assert found == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["pocket"], "only desktop"),
        (["desktop", "--port", "99999"], "port=99999"),
        (["desktop", "--size", "huge"], "size=huge"),
        (["desktop", "--size", "10x10"], "size=10x10"),
        (["desktop", "--token", " "], "token"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], word: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "arpo.cli", "envs", "serve", *arguments], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2 and word in ran.stderr and ran.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_refused(server: Server) -> None:
    with pytest.raises(ConfigError, match="port="):
        Server(SIZE, int(server.address.split(":")[1]))
