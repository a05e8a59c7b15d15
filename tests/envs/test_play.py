"""Episodes become pictures that open, move and show where the clicks went; a person at the keyboard cannot break it."""

import io
import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.config import Config, load_config
from arpo.envs import pictures, play
from arpo.envs.pictures import Recording, Shot, describe, record, save_animation
from arpo.errors import ConfigError
from arpo.types import Task
from fake_env import BUTTON, TASKS, Expert, FakeEnv, make_task

pytestmark = pytest.mark.usefixtures("fake_backend")

ACTIONS: list[Action] = [
    Click(3, 4),
    Click(3, 4, count=2),
    Click(0, 0, button="right"),
    Drag(1, 2, 90, 60),
    Drag(5, 5, 5, 5),
    Scroll(50, 30, "up"),
    Scroll(95, 63, "right"),
    Type("a\n" * 300),
    Hotkey(("ctrl", "c")),
    Hotkey(("shift",), "down"),
    Wait(),
    Finish("日本 [x] 🙂"),
]


def recording_of(actions: list[Action], size: tuple[int, int] = (96, 64), score: float = 1.0) -> Recording:
    pixels = np.full((size[1], size[0], 3), 90, np.uint8)
    shots = [Shot(pixels, "a thought " * 50, action) for action in actions]
    return Recording(make_task("press-1", instruction="Press [it]. " * 40), (*shots, Shot(pixels, "", None)), score)


def fake_config(*overrides: str) -> Config:
    return load_config(None, ["env.name=fake", "env.size=96x64", *overrides])


def frames_of(path: Path) -> list[Image.Image]:
    with Image.open(path) as opened:
        frames = []
        for number in range(getattr(opened, "n_frames", 1)):
            opened.seek(number)
            frames.append(opened.convert("RGB"))
        return frames


def test_the_experts_episode_is_recorded_whole() -> None:
    recording = record(FakeEnv(), Expert(TASKS["press-1"]), TASKS["press-1"], 0)
    assert [shot.action for shot in recording.shots] == [Click(*BUTTON), Finish(), None]
    assert recording.solved and recording.verdict == "solved in 2 steps"


def test_an_expert_that_never_ends_is_stopped_at_the_step_limit() -> None:
    class Dreamer(Expert):
        def act(self, env: FakeEnv) -> tuple[str, Action]:
            return "", Wait()

    recording = record(FakeEnv(), Dreamer(TASKS["press-1"]), TASKS["press-1"], 0)
    assert recording.steps == TASKS["press-1"].max_steps
    assert recording.verdict == "not solved: score 0 after 5 steps"


def test_half_a_score_is_not_a_solution() -> None:
    recording = recording_of([Click(3, 4)], score=0.5)
    assert not recording.solved
    assert recording.verdict == "not solved: score 0.5 after 1 step"


def test_the_seed_of_the_settings_reaches_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    load = FakeEnv.load

    def noting(env: FakeEnv, task: Task, seed: int) -> None:
        seeds.append(seed)
        load(env, task, seed)

    monkeypatch.setattr(FakeEnv, "load", noting)
    config = fake_config("seed=5")
    play.play_task(config, None, "expert", str(tmp_path / "p.gif"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    play.play_task(config, None, "hand", str(tmp_path / "p.gif"))
    assert seeds == [5] * 2


@pytest.mark.parametrize("ending", [".gif", ".png", ".GIF"])
def test_an_animation_shows_each_click_unmarked_and_marked_and_then_the_end(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"play{ending}"
    save_animation(recording_of([Click(3, 4), Click(60, 40)]), path)
    frames = frames_of(path)
    assert len(frames) == 5
    assert frames[0] != frames[1]
    with Image.open(path) as opened:
        assert opened.info["loop"] == 0


@pytest.mark.parametrize("action", ACTIONS, ids=describe)
def test_an_action_with_a_place_is_marked_there_and_others_leave_the_screen_alone(action: Action) -> None:
    screen = Image.new("RGB", (96, 64), (90, 90, 90))
    marked = np.asarray(pictures._marked(screen, action, 1.0)).astype(int)
    changed = np.argwhere((marked != 90).any(axis=2))
    if not isinstance(action, Click | Drag | Scroll):
        assert len(changed) == 0
        return
    nearest = np.abs(changed - (action.y, action.x)).sum(axis=1).min()
    assert nearest <= 12
    redness = marked[..., 0] - marked[..., 2]
    if isinstance(action, Click) and action.button == "right":
        assert redness.min() < -100 and redness.max() < 100
    else:
        assert redness.max() > 100 and redness.min() > -100


def test_every_action_can_be_drawn_and_told(tmp_path: Path) -> None:
    for action in [*ACTIONS, Fail(), Fail("no"), CallUser(), CallUser("?"), Finish()]:
        assert describe(action).isprintable()
    played: tuple[list[Action], ...] = (ACTIONS, [], [Finish()])
    for size in ((96, 64), (448, 280), (1280, 800)):
        for actions in played:
            save_animation(recording_of(actions, size, 0.5), tmp_path / "a.png")
            assert len(frames_of(tmp_path / "a.png")) > len(actions)


def hand(lines: list[str], tmp_path: Path) -> tuple[Recording, str]:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    recording = play.play_by_hand(FakeEnv(), TASKS["press-1"], 0, lines, tmp_path / "play.gif", console)
    assert isinstance(console.file, io.StringIO)
    return recording, console.file.getvalue()


def test_a_person_solves_a_task_line_by_line(tmp_path: Path) -> None:
    recording, said = hand(
        [f"click(start_box='({BUTTON[0]},{BUTTON[1]})')\n", "Action: finished()\n", "wait()\n"], tmp_path
    )
    assert [shot.action for shot in recording.shots] == [Click(*BUTTON), Finish(), None]
    assert recording.solved
    assert "Press the button [once]." in said
    assert f"The screen is in {tmp_path / 'play-screen.png'}" in said
    assert frames_of(tmp_path / "play-screen.png")[0].size == (96, 64)


def test_a_bad_line_is_answered_in_one_line_and_the_episode_goes_on(tmp_path: Path) -> None:
    bad = [
        "jump()",
        "click()",
        "click(start_box='(9000,1)')",
        "hotkey(key='hyperspace')",
        "((((",
        "\x00\x1b[31m",
        "x" * 9999,
    ]
    recording, said = hand([*bad, "\n"], tmp_path)
    assert [shot.action for shot in recording.shots] == [Wait(), None]
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(bad)
    assert "(9000, 1) is off the 96x64 screen" in errors[2]
    assert not recording.solved


def test_random_lines_never_break_the_hand(tmp_path: Path) -> None:
    rng = random.Random(0)
    lines = ["".join(rng.choices("click(start_box='1,2)\\\"\n\x07é", k=rng.randrange(40))) for _ in range(200)]
    recording, _ = hand(lines, tmp_path)
    assert not recording.solved


def test_the_end_of_input_ends_the_episode_with_its_score(tmp_path: Path) -> None:
    recording, _ = hand([f"click(start_box='({BUTTON[0]},{BUTTON[1]})')"], tmp_path)
    assert recording.steps == 1 and recording.solved


def test_a_screen_that_can_be_parsed_is_listed_with_the_points_to_click(tmp_path: Path) -> None:
    class Control:
        kind, label, box, state, value, window = "button", "[Go]", (30, 20, 50, 40), ("focused",), "", "Main"

    class Parsing(FakeEnv):
        def parse(self) -> list[Control]:
            return [Control()]

    console = Console(file=io.StringIO(), width=200)
    play.play_by_hand(Parsing(), TASKS["press-1"], 0, [], tmp_path / "play.gif", console)
    assert isinstance(console.file, io.StringIO)
    row = next(line for line in console.file.getvalue().splitlines() if "(40,30)" in line)
    assert row.split() == ["(40,30)", "button", "[Go]", "focused", "Main"]


def test_a_task_is_played_by_the_expert_into_the_file_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play.play_task(fake_config(), "press-2", "expert", str(tmp_path / "p.png"))
    said = capsys.readouterr().out
    assert "click (40, 30)" in said
    assert f"solved in 2 steps. Look at {tmp_path / 'p.png'}" in said.replace("\n", "")
    assert len(frames_of(tmp_path / "p.png")) == 4


@pytest.mark.parametrize(
    ("task", "by", "out", "reason"),
    [
        ("press-9", "expert", "x.gif", "unknown task 'press-9'"),
        ("press-1", "robot", "x.gif", "by=robot: must be expert or hand"),
        ("press-1", "expert", "x.jpeg", "out=x.jpeg: must end in .gif or .png"),
        ("press-1", "expert", "/dev/null/x.gif", "out=/dev/null/x.gif: /dev/null is a file and not a folder"),
        ("press-1", "expert", f"/tmp/{'x' * 300}.gif", "out=.*: File name too long"),
        ("", "expert", "x.gif", "unknown task ''"),
        ("press-1", "expert", "", "out=: must end in .gif or .png"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_played(task: str, by: str, out: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        play.play_task(fake_config(), task, by, out)


def test_an_episode_that_is_broken_off_leaves_no_empty_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Expert, "act", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        play.play_task(fake_config(), "press-1", "expert", str(tmp_path / "p.gif"))
    assert list(tmp_path.iterdir()) == []
