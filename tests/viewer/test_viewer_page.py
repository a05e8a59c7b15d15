"""The page in real Chromium: served, as a bundle and as a report; what it shows, its keys, that nothing else runs."""

import functools
import http.server
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import viewer_runs
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from viewer_runs import ACTIONS, FAILURES, SUCCESS

from arpo.viewer.look import Filter, Look
from arpo.viewer.serve import Server
from arpo.viewer.static import write_bundle, write_report

CHROMIUM = shutil.which("chromium")
WAIT_MS = 60_000
SERIOUS = ("serious", "critical")
VIEWS = ("#overview", "#tasks", "#episodes", "#episode?n=2&step=1", "#group?n=5", "#nonsense")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing; as root: apt-get install chromium")

Serve = Callable[..., Server]
Open = Callable[..., "Opened"]


class Opened:
    """A page, and all that went wrong in it: errors, refused scripts, requests to others."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WAIT_MS)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.ready()

    def ready(self) -> None:
        """Until the view is there; the page says which."""
        self.page.wait_for_selector("main[data-view] h1", timeout=WAIT_MS)

    def go(self, where: str) -> None:
        view = where.lstrip("#").partition("?")[0]
        self.page.evaluate(
            "hash => { delete document.querySelector('main').dataset.view; location.hash = hash }", where
        )
        self.page.wait_for_selector(f"main[data-view={view}] h1", timeout=WAIT_MS)

    def clean(self, address: str) -> None:
        assert self.errors == []
        assert [url for url in self.asked if not url.startswith((address, "data:"))] == []


@pytest.fixture(scope="module")
def browser(runs: Path) -> Iterator[Browser]:
    """After the runs: Playwright's event loop stays in this thread, and then no other can be started."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MS)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    made: list[Opened] = []

    def open_page(address: str, **options: Any) -> Opened:
        made.append(Opened(browser, address, **options))
        return made[-1]

    yield open_page
    for one in made:
        one.context.close()


def number_of(folder: Path, name: str) -> int:
    found = Look(folder).episodes(Filter())["episodes"]
    return next(int(one["number"]) for one in found if one["id"] == name)


def test_every_view_loads_without_an_error_or_a_request_to_others(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training", runs / "long")
    one = opened(server.address)
    expect(one.page.get_by_role("heading", name="2 runs")).to_be_visible()
    for title in ("Success", "Reward", "All failed", "Replayed", "Lag", "Mismatch", "Throughput"):
        expect(one.page.get_by_role("img", name=re.compile(f"^{title}, at the end"))).to_be_visible()
    for view in VIEWS:
        one.go(view)
    one.page.get_by_role("link", name="Tasks", exact=True).first.click()
    expect(one.page.get_by_role("heading", name="Tasks")).to_be_visible()
    expect(one.page.get_by_text("Press button 1.")).to_be_visible()
    one.clean(server.address)


def test_filters_narrow_the_list_and_stand_in_the_address(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    page = opened(f"{server.address}#episodes").page
    total = page.locator("#total")
    expect(total).to_have_text("7 episodes")
    page.get_by_label("Result").select_option("solved")
    expect(total).to_have_text("2 episodes")
    page.get_by_label("Played for").select_option("rollout")
    expect(total).to_have_text("1 episode")
    assert "score=solved" in page.url and "source=rollout" in page.url
    page.reload()
    expect(total).to_have_text("1 episode")
    page.get_by_role("link", name="Clear").click()
    expect(total).to_have_text("7 episodes")
    page.get_by_label("Replay").select_option("replaced")
    expect(total).to_have_text("1 episode")
    expect(page.get_by_text("gave way to a replay", exact=True).last).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    expect(total).to_have_text("7 episodes")
    page.get_by_label("Task").fill("press-2")
    page.get_by_label("Task").press("Enter")
    expect(total).to_have_text("1 episode")
    page.get_by_role("link", name="Clear").click()
    expect(total).to_have_text("7 episodes")
    page.get_by_label("Stored from").fill("2001-02-03T04:05")  # before any of them
    expect(page).to_have_url(re.compile("least_time=98"))
    expect(total).to_have_text("7 episodes")
    expect(page.get_by_label("Stored from")).to_have_value("2001-02-03T04:05")
    page.get_by_label("to", exact=True).last.fill("2001-02-03T04:06")
    expect(total).to_have_text("0 episodes")


def test_keys_step_through_an_episode(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    one = opened(f"{server.address}#episode?n={number_of(runs / 'training', SUCCESS)}")
    page, step = one.page, one.page.locator("#step")
    expect(step).to_have_text("Step 1 of 8")
    for i in range(2, 9):
        page.keyboard.press("ArrowRight")
        expect(step).to_have_text(f"Step {i} of 8")
    page.keyboard.press("ArrowRight")
    expect(step).to_have_text("Step 8 of 8")
    page.keyboard.press("Home")
    expect(step).to_have_text("Step 1 of 8")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(step).to_have_text("Step 7 of 8")
    expect(page.locator(".did")).to_have_text("press ctrl+s")
    expect(page.locator("#thought")).to_be_visible()
    page.keyboard.press("t")
    expect(page.locator("#thought")).to_have_count(0)
    page.keyboard.press("m")
    expect(page.locator("#metadata")).to_contain_text("Temperature")
    page.keyboard.press("g")
    expect(page.get_by_text("2 attempts at press-1")).to_be_visible()
    one.clean(server.address)


def test_a_link_to_a_step_can_be_shared(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    page = opened(f"{server.address}#episode?n={number_of(runs / 'training', SUCCESS)}").page
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step")).to_have_text("Step 3 of 8")
    other = opened(page.url).page
    expect(other.locator("#step")).to_have_text("Step 3 of 8")
    expect(other.locator(".did")).to_have_text("right click (30, 30)")


def test_actions_are_drawn_where_they_were_made(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    one = opened(f"{server.address}#episode?n={number_of(runs / 'training', SUCCESS)}")
    page = one.page
    seen: list[tuple[str, ...]] = []
    for i in range(len(ACTIONS)):
        expect(page.locator("#step")).to_have_text(f"Step {i + 1} of 8")
        expect(page.locator(".picture img")).to_have_js_property("naturalWidth", 96)
        marks = page.locator(".picture .marks > *")
        seen.append(tuple(marks.evaluate_all("all => all.map(one => one.tagName)")))
        if i == 0:
            ring = page.locator(".picture .marks .left").first
            assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == ("20", "10")
        page.keyboard.press("ArrowRight")
    clicks, drag = ("circle",) * 3, ("circle", "circle", "line", "line", "polygon")
    assert seen == [clicks, ("circle",) * 5, clicks, drag, drag, *[("rect", "text")] * 3]
    expect(page.locator(".picture .marks text")).to_have_text("✓ finish")
    one.clean(server.address)


def test_tokens_are_coloured_by_what_was_learned(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    page = opened(f"{server.address}#episode?n={number_of(runs / 'training', SUCCESS)}").page
    page.get_by_role("button", name="advantage").click()
    expect(page.locator(".reply .up3").first).to_have_attribute("title", re.compile("advantage 1"))
    page.get_by_role("button", name="ratio").click()
    expect(page.locator(".reply .down4").first).to_be_visible()
    page.get_by_role("button", name="plain").click()
    expect(page.locator(".reply [class]")).to_have_count(0)
    expect(page.get_by_text("advantage 1, mean ratio")).to_be_visible()


def test_a_replayed_success_stands_beside_the_failures_that_it_joined(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "training")
    one = opened(f"{server.address}#episode?n={number_of(runs / 'training', SUCCESS)}")
    one.page.get_by_role("link", name="update 1", exact=True).click()
    expect(one.page.locator(".guest")).to_contain_text(f"took the place of {FAILURES[1]}")
    expect(one.page.locator(".card:not(.guest)")).to_have_count(2)
    expect(one.page.locator(".guest")).to_contain_text("advantage 2.5")
    one.page.go_back()
    one.page.get_by_role("link", name="Its tokens as learned in update 1").click()
    expect(one.page.get_by_text("update 1: advantage 2.5")).to_be_visible()
    one.page.keyboard.press("ArrowRight")
    expect(one.page.locator("#step")).to_have_text("Step 2 of 8")
    one.page.get_by_role("button", name="advantage").click()
    expect(one.page.locator(".reply [title*='advantage 2.5']").first).to_be_visible()
    one.clean(server.address)


def test_a_long_episode_shows_a_window_of_its_steps(runs: Path, serve: Serve, opened: Open) -> None:
    server = serve(runs / "long")
    one = opened(f"{server.address}#episode?n=1&step=49")
    expect(one.page.locator(".strip li")).to_have_count(50)
    one.page.keyboard.press("ArrowRight")
    expect(one.page.locator("#step")).to_have_text("Step 51 of 120")
    expect(one.page.get_by_text("steps 51 to 100 of 120")).to_be_visible()
    one.page.keyboard.press("End")
    expect(one.page.locator(".strip li")).to_have_count(20)
    assert len([url for url in one.asked if "/api/0/episode/" in url]) == 3
    one.clean(server.address)


def test_the_page_follows_a_run_that_another_process_writes(
    runs: Path, serve: Serve, opened: Open, tmp_path: Path
) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    server = serve(folder)
    listed, curves = opened(f"{server.address}#episodes"), opened(server.address)
    expect(listed.page.locator("#total")).to_have_text("7 episodes")
    expect(listed.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
    for more in (8, 9):
        subprocess.run([sys.executable, viewer_runs.__file__, str(folder)], check=True)
        expect(listed.page.locator("#total")).to_have_text(f"{more} episodes", timeout=WAIT_MS)
    expect(curves.page.get_by_role("img", name="Success, at the end training: 1")).to_be_visible(timeout=WAIT_MS)
    listed.clean(server.address)


@pytest.mark.slow
def test_the_page_follows_a_real_training(serve: Serve, opened: Open, tmp_path: Path) -> None:
    few = (
        "train.updates=2 train.rollout_tasks=1 train.optimizer_tasks=1 algorithm.group=2 eval.trials=1 eval.held_out=0"
    )
    settings = (*few.split(), "tasks.source=shell-open-000", f"run_dir={tmp_path / 'run'}")
    command = (sys.executable, "-m", "arpo.cli", "train", "pocket", *settings)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "run" / "run.sqlite").exists() and process.poll() is None:
            time.sleep(0.1)
        server = serve(tmp_path / "run")
        page = opened(server.address).page  # without a reload until the end
        _, said = process.communicate()
        assert process.returncode == 0, said
    expect(page.get_by_role("img", name=re.compile("^Success, at the end run"))).to_be_visible()
    expect(page.locator(".facts div", has_text="Updates").locator("dd")).to_have_text("2")
    page.get_by_role("link", name="Episodes", exact=True).first.click()
    expect(page.locator("#total")).to_have_text("6 episodes")  # two updates of two, judged before and after
    page.locator("td a").first.click()
    expect(page.locator(".picture img")).to_have_js_property("naturalWidth", 448)


@pytest.mark.attack("run folder")
def test_hostile_text_is_shown_and_never_runs(runs: Path, serve: Serve, opened: Open, tmp_path: Path) -> None:
    server = serve(runs / "hostile")
    write_report([runs / "hostile"], tmp_path / "report.html")
    report = (tmp_path / "report.html").as_uri()
    for address in (server.address, report):
        one = opened(address)
        for view in ("#overview", "#tasks", "#episodes", "#episode?n=1", "#episode?n=1&step=1", "#episode?n=1&step=2"):
            one.go(view)
            if "step=2" in view:
                one.page.keyboard.press("m")
        expect(one.page.get_by_text("<script>window.hacked").first).to_be_visible()
        assert one.page.evaluate("window.hacked") is None
        assert one.page.locator("main script, main img[src=x]").count() == 0
        one.clean(address)


@pytest.mark.attack("web page")
@pytest.mark.parametrize(
    "where", ["#constructor", "#__proto__?n=1", "#episode?n=<b>&step=x", "#episodes?page=-3", "#tasks?run=77", "#group"]
)
def test_a_forged_link_shows_a_line_and_no_more(runs: Path, serve: Serve, opened: Open, where: str) -> None:
    one = opened(f"{serve(runs / 'training').address}{where}")
    expect(one.page.locator("h1")).to_have_text("This cannot be shown")
    expect(one.page.locator(".problem")).to_be_visible()
    assert all("status of 4" in error for error in one.errors)  # the browser says so of each such answer


def test_a_missing_screenshot_and_a_damaged_run_are_said_in_place(
    runs: Path, serve: Serve, opened: Open, tmp_path: Path
) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "holes")
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("DELETE FROM images")
    db.close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"nothing")
    server = serve(folder, tmp_path / "broken")
    one = opened(server.address)
    expect(one.page.locator(".problem", has_text="run.sqlite")).to_be_visible()
    expect(one.page.get_by_role("img", name=re.compile("^Success, at the end holes"))).to_be_visible()
    one.go(f"#episode?n={number_of(folder, SUCCESS)}")
    expect(one.page.locator(".picture")).to_contain_text("The screenshot is missing in this run.")
    expect(one.page.locator(".did")).to_have_text("click (20, 10)")
    one.clean(server.address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_it_is_accessible_and_fits_its_width(
    runs: Path, serve: Serve, opened: Open, scheme: Literal["light", "dark"], width: int
) -> None:
    server = serve(runs / "training", runs / "long")
    one = opened(server.address, color_scheme=scheme, viewport={"width": width, "height": 800})
    for view in VIEWS:
        one.go(view)
        found = Axe().run(one.page).response["violations"]
        wrong = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS]
        assert wrong == [], view
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_a_report_opens_from_disk_without_a_server(runs: Path, opened: Open, tmp_path: Path) -> None:
    write_report([runs / "training", runs / "long"], tmp_path / "report.html")
    address = (tmp_path / "report.html").as_uri()
    one = opened(address)
    expect(one.page.get_by_role("img", name=re.compile("^Success, at the end"))).to_be_visible()
    expect(one.page.get_by_role("heading", name="Best and worst episodes")).to_be_visible()
    one.page.get_by_role("link", name=str(number_of(runs / "training", "eval2-press-1-0-0")), exact=True).click()
    expect(one.page.locator(".picture img")).to_have_js_property("naturalWidth", 96)
    one.page.keyboard.press("ArrowRight")
    expect(one.page.locator("#step")).to_have_text("Step 2 of 2")
    one.go("#episodes")
    expect(one.page.get_by_text("others were left out")).to_be_visible()
    assert one.errors == [] and [url for url in one.asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in one.asked if url.startswith("file:")]) == 1


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def static(tmp_path: Path) -> Iterator[str]:
    """Python's own server, of the folder `site`."""
    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_a_bundle_works_on_any_web_server(runs: Path, opened: Open, tmp_path: Path, static: str) -> None:
    write_bundle([runs / "training", runs / "long"], tmp_path / "site")
    one = opened(f"{static}#episodes")
    expect(one.page.locator("#total")).to_have_text("7 episodes")
    for label, choice, total in (("Result", "failed", 4), ("Replay", "replaced", 1)):
        one.page.get_by_label(label).select_option(choice)
        expect(one.page.locator("#total")).to_have_text(re.compile(f"^{total} episode"))
    one.page.get_by_role("link", name="6", exact=True).click()
    expect(one.page.locator("#step")).to_have_text("Step 1 of 3")
    one.page.keyboard.press("g")
    expect(one.page.locator(".guest img").first).to_have_js_property("naturalWidth", 96)
    one.go("#episode?run=1&n=1&step=119")
    expect(one.page.locator("#step")).to_have_text("Step 120 of 120")
    one.clean(static)
