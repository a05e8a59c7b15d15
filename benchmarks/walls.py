"""What the second wall of a desktop costs: the same things behind bubblewrap and behind gVisor, in turns.

    python benchmarks/walls.py --rounds 5

Each round starts a desktop of each kind and in it an editor and a calculator. It prints medians over the
rounds and their ratio, as JSON. Times are of the clock, so the machine should have nothing else to do. `start` is until
the resident process answers, `idle` the memory of the desktop's control group then (nothing where none can be made),
`step` a click in the editor until the screen has settled and its pixels are taken.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

from arpo.envs.desktop.gvisor import Wall
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.memory import taken_mb

SIZE = (1280, 720)
WALLS: tuple[Wall, ...] = ("bubblewrap", "gvisor")
APPLICATIONS = {"mousepad": "Mousepad", "galculator": "galculator"}  # no xterm: behind gVisor some end at once
LARGE = {"libreoffice --calc --norestore": "Calc", "chromium about:blank": "Chromium"}
CALLS = 20  # of each kind, in a round
WINDOW_S = 120.0  # for a window to come


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--large", action="store_true", help="LibreOffice and Chromium too")
    asked = words.parse_args()
    applications = {**APPLICATIONS, **LARGE} if asked.large else APPLICATIONS
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(asked.rounds):
        for wall in WALLS:
            for name, value in measured(wall, applications):
                found[name][wall].append(value)
    print(json.dumps({name: row(values) for name, values in found.items()}, indent=1))


def row(values: dict[str, list[float]]) -> dict[str, float]:
    one, other = (statistics.median(values[wall]) for wall in WALLS)
    return {"bubblewrap": round(one, 2), "gvisor": round(other, 2), "ratio": round(other / one, 1)}


def measured(wall: Wall, applications: dict[str, str]) -> list[tuple[str, float]]:
    began = time.monotonic()
    sandbox = Sandbox(SIZE, weaker=True, wall=wall)
    with sandbox:
        sandbox.wait()
        values = [("start, ms", 1e3 * (time.monotonic() - began))]
        if sandbox.group is not None:
            values.append(("idle, MB", taken_mb(sandbox.group)))
        values.append(("pointer asked, ms", median_ms(lambda: sandbox.ask("pointer"))))
        values.append(("click on nothing, ms", median_ms(lambda: click(sandbox, *SIZE))))
        values.append(("screenshot, ms", median_ms(sandbox.screenshot)))
        values.append(("command `true`, ms", median_ms(lambda: sandbox.run(["true"]))))
        values += [(f"{app} until settled, ms", opened_ms(sandbox, app, title)) for app, title in applications.items()]
        box = next(one["box"] for one in sandbox.ask("windows") if "Mousepad" in one["title"])
        values.append(("step, ms", median_ms(lambda: step(sandbox, box[0] + box[2] // 2, box[1] + box[3] // 2))))
        if sandbox.group is not None:
            values.append(("with these applications, MB", taken_mb(sandbox.group)))
        began = time.monotonic()
    return [*values, ("end, ms", 1e3 * (time.monotonic() - began))]


def median_ms(do: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        began = time.monotonic()
        do()
        times.append(time.monotonic() - began)
    return 1e3 * statistics.median(times)


def click(sandbox: Sandbox, x: int, y: int) -> None:
    sandbox.ask("click", x=x - 1, y=y - 1, button=1, count=1)


def step(sandbox: Sandbox, x: int, y: int) -> None:
    click(sandbox, x, y)
    sandbox.ask("settle", limit_s=2.0, quiet_s=0.06, busy=0.1)
    sandbox.screenshot()


def opened_ms(sandbox: Sandbox, command: str, title: str) -> float:
    began = time.monotonic()
    sandbox.launch(command)
    while not any(title in one["title"] for one in sandbox.ask("windows")):
        if time.monotonic() - began > WINDOW_S:
            raise SystemExit(f"{command}: no window within {WINDOW_S:g} s")
        time.sleep(0.01)
    sandbox.ask("settle", 30.0, limit_s=20.0, quiet_s=0.06, busy=0.1)
    return 1e3 * (time.monotonic() - began)


if __name__ == "__main__":
    main()
