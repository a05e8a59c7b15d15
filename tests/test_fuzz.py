"""What is made at random and given to readers of other people's files and connections never breaks them.

`make test-heavy` does so for ARPO_FUZZ_S seconds (600 unless that is set). Its inputs are the same every time, so that
a failure is of the change that is tested. For new ones: `cd tests && python -m fuzz`. A failure names its seed, and
`python -m fuzz --again SEED` makes the same input again.
"""

import os
import random
import time
from typing import Any

import pytest

import fuzz
from fuzz import Done, Target

SECONDS = float(os.environ.get("ARPO_FUZZ_S", "600"))  # of all together, a real desktop's among them
TARGETS = fuzz.targets()
each = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def no_failures(done: Done) -> None:
    for failure in done.failures[:1]:
        pytest.fail(f"python -m fuzz --again {failure['seed']}\n{failure['reason']}\n{failure['input']}", pytrace=False)
    assert done.inputs


@each
def test_a_few_inputs_that_are_always_the_same(target: Target) -> None:
    no_failures(fuzz.fuzz(target, 30.0, "always", most=50))


@pytest.mark.parametrize("seed", ["databases:5bb35926:6302", "resident:d8d77abd:431"])
def test_inputs_that_once_failed(seed: str) -> None:
    no_failures(fuzz.once(seed))


@pytest.mark.heavy
@each
def test_inputs_for_some_time(target: Target) -> None:
    no_failures(fuzz.fuzz(target, SECONDS / (len(TARGETS) + 1), "heavy"))


def target_that(runs: Any) -> Target:
    return Target("test", lambda rng: rng.randrange(1000), runs)


def test_a_failure_names_the_seed_that_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: None, number: int) -> None:
        assert number < 900

    target = target_that(run)
    failure = fuzz.fuzz(target, 30.0, "s").failures[0]
    assert random.Random(failure["seed"]).randrange(1000) == int(failure["input"]) >= 900
    monkeypatch.setattr(fuzz, "targets", lambda only: [target])
    assert fuzz.once(failure["seed"]).failures[0]["input"] == failure["input"]


def test_an_input_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANGS_S", 1)
    (failure,) = fuzz.fuzz(target_that(lambda *_: time.sleep(1000)), 30.0, "s", most=1).failures
    assert "Hangs" in failure["reason"]
