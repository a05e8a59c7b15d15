"""The benchmark times what it says it times, half expert and half random, and names its numbers as promised."""

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from arpo.agent.actions import Action, Click, Drag, Fail, Finish, Scroll, points
from arpo.bench import envs as bench
from arpo.errors import ConfigError
from arpo.images import Pixels
from fake_env import BUTTON, FakeEnv

pytestmark = pytest.mark.usefixtures("fake_backend")

PROMISED = {
    *("steps_per_s", "reset_ms_p50", "reset_ms_p95", "resets_per_min", "encode_ms", "mb_per_env"),
    *("env", "n_envs", "cores", "floor_steps_per_s", "loop_ms_a_step"),
}


def test_the_numbers_have_the_promised_names_and_make_sense() -> None:
    numbers = bench.bench_envs("fake", 3, 50, (96, 64), 0)
    assert set(numbers) >= PROMISED
    assert (numbers["env"], numbers["n_envs"], numbers["cores"], numbers["steps"]) == ("fake", 3, 1, 50)
    assert 0 < numbers["reset_ms_p50"] <= numbers["reset_ms_p95"]
    assert numbers["steps_per_s"] > 0 and numbers["encode_ms"] > 0 and numbers["mb_per_env"] >= 0
    assert numbers["resets_per_min"] > 0
    assert numbers["loop_ms_a_step"] > 0


def test_half_of_the_steps_are_the_experts_and_every_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Action] = []
    drawn = 0

    class Counting(FakeEnv):
        def perform(self, action: Action) -> None:
            done.append(action)
            super().perform(action)

        def pixels(self) -> Pixels:
            nonlocal drawn
            drawn += 1
            return super().pixels()

    monkeypatch.setattr("fake_env.FakeEnv", Counting)
    for other in ("arpo.bench.envs._mb_per_env", "arpo.bench.loop.loop_ms_a_step"):
        monkeypatch.setattr(other, lambda *_: 0.0)  # it plays episodes of its own
    bench.bench_envs("fake", 1, 60, (96, 64), 0)
    by_expert = sum(action in (Click(*BUTTON), Finish(), Fail("nothing to press")) for action in done)
    assert abs(by_expert - len(done) / 2) <= 2
    assert drawn >= len(done)


def test_memory_is_seen_even_where_the_process_has_freed_some_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heavy(FakeEnv):
        def __init__(self, size: tuple[int, int]) -> None:
            super().__init__(size)
            self.ballast = np.ones(2**20, np.uint8)

    monkeypatch.setattr("fake_env.FakeEnv", Heavy)
    freed = [np.ones(2**20, np.uint8) for _ in range(8)]
    del freed
    assert 0.5 < bench.bench_envs("fake", 1, 10, (96, 64), 0)["mb_per_env"] < 1.5  # not 0: freed memory is no discount


def test_a_single_step_goes_on_until_a_reset_was_timed_too() -> None:
    numbers = bench.bench_envs("fake", 1, 1, (96, 64), 0)
    assert numbers["steps"] >= 1 and numbers["reset_ms_p50"] > 0


class Timed:
    """A clock that only moves where work is done, and an environment whose work takes known times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.loads = 0
        monkeypatch.setattr(bench.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(bench, "_mb_per_env", lambda *_: 0.0)  # it plays episodes of its own
        for owner, name in ((FakeEnv, "load"), (FakeEnv, "perform"), (FakeEnv, "pixels")):
            monkeypatch.setattr(owner, name, self.taking(getattr(owner, name)))
        monkeypatch.setattr(bench, "observe", self.taking(bench.observe))
        monkeypatch.setattr(bench.np, "copyto", self.taking(np.copyto))

    def taking(self, work: Callable[..., object]) -> Callable[..., object]:
        def slow(*arguments: object) -> object:
            self.now += self.seconds(work.__name__)
            return work(*arguments)

        return slow

    def seconds(self, work: str) -> float:
        if work != "load":
            return {"perform": 2.0, "pixels": 4.0, "observe": 8.0, "copyto": 0.5}[work]
        self.loads += 1
        return 1000.0 if self.loads <= 2 else 31.0 if self.loads % 10 == 0 else 1.0


def test_each_number_counts_its_own_work_and_nothing_before_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Timed(monkeypatch)
    numbers = bench.bench_envs("fake", 1, 200, (96, 64), 0)
    assert numbers["steps_per_s"] == pytest.approx(1 / (2 + 4))
    assert numbers["encode_ms"] == pytest.approx(8000)
    assert numbers["reset_ms_p50"] == pytest.approx(5000)
    assert numbers["reset_ms_p95"] == pytest.approx(35_000)
    assert 60 / 10 < numbers["resets_per_min"] < 60 / 5
    assert numbers["floor_steps_per_s"] == pytest.approx(2)


def test_random_actions_stay_on_the_screen_never_end_and_are_of_many_kinds() -> None:
    rng = random.Random(1)
    actions = [bench.random_action(rng, (30, 20)) for _ in range(500)]
    assert all(0 <= x < 30 and 0 <= y < 20 for action in actions for x, y in points(action))
    kinds = Counter(action.kind for action in actions)
    assert set(kinds) == {"click", "drag", "scroll", "type", "hotkey", "wait"}
    assert {type(action) for action in actions} >= {Click, Drag, Scroll}


def test_the_same_seed_gives_the_same_random_actions() -> None:
    one, two = random.Random(3), random.Random(3)
    assert [bench.random_action(one, (9, 9)) for _ in range(50)] == [
        bench.random_action(two, (9, 9)) for _ in range(50)
    ]


@pytest.mark.parametrize(
    ("n_envs", "steps", "seed", "reason"),
    [
        (0, 10, 0, "n-envs=0: must be from 1 to 1024"),
        (1025, 10, 0, "n-envs=1025: must be from 1 to 1024"),
        (1, 0, 0, "steps=0: must be at least 1"),
        (1, 10, -1, "seed=-1: must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(n_envs: int, steps: int, seed: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        bench.bench_envs("fake", n_envs, steps, (96, 64), seed)


def test_an_environment_that_only_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlySteps:
        def __init__(self, size: tuple[int, int]) -> None: ...

    monkeypatch.setattr("fake_env.FakeEnv", OnlySteps)
    with pytest.raises(ConfigError, match="env=fake: cannot be timed"):
        bench.bench_envs("fake", 1, 10, (96, 64), 0)


def test_percentiles_are_of_the_numbers_measured() -> None:
    assert bench.percentile([1.0, 2.0, 3.0, 4.0], 50) == 3.0
    assert bench.percentile([1.0, 2.0, 3.0, 4.0], 95) == 4.0
    assert bench.percentile([7.0], 95) == 7.0
