"""The benchmark of a 7B runs the same work with a tiny model, and gives the figures under their names."""

import json

import pytest
import torch
from typer.testing import CliRunner

from arpo.bench import large, sample
from arpo.bench.cli import app
from arpo.errors import ConfigError

NAMES = """
trajectory_s trajectory_lora_s trajectory_floor_s hf_trajectory_s trajectory_peak_gib logprobs_s publish_s
publish_lora_s sample_tokens_per_s decode_floor_share hf_sample_tokens_per_s matmul_tflops update_s screenshot_s
""".split()


def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in {"REPEATS": 1, "FEW": 0, "TRAJECTORY": 3, "TRAJECTORIES": 4, "STEPS": 2}.items():
        monkeypatch.setattr(large, name, fewer)
    options = "--model random-tiny --size 112x84 --episodes 2 --turns 2 --tokens 8 --json"
    done = CliRunner().invoke(app, ["train", *options.split()], catch_exceptions=False)
    numbers = json.loads(done.stdout)
    assert not [name for name in NAMES if name not in numbers]
    # A CPU's memory is not counted; and what a step takes is a difference of times, which noise can turn round.
    assert all(numbers[name] > 0 for name in NAMES if not name.endswith(("_gib", "_floor_share")))
    assert numbers["sampler_gap_p99"] < 1e-4  # what is learned is what was sampled
    assert numbers["trajectory_tokens"] > 3 * 8


def test_the_peer_is_given_what_lies_between_its_own_replies(tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = large.Bench("random-tiny", (112, 84), 2, 2, 8, seed=0)
    place = tmp_path_factory.mktemp("vllm")
    work = bench._turns(place)
    (episode,) = bench.work.episodes(1, 2)
    ids = list(episode.prompt(0, bench.work.dialect.image_pad).ids)
    pads = [turn.count(bench.work.dialect.image_pad) for turn in work["episodes"][0]["ids"]]
    assert len(work["episodes"]) == 2 and pads == [1, 1]  # one for each picture, which it spreads out itself
    assert len(work["episodes"][0]["ids"][0]) == len(ids)
    assert work["episodes"][0]["ids"][1][0] == bench.work.dialect.stop  # the end of a reply is not sampled
    assert all((place / f"{name}.png").exists() for name in work["episodes"][0]["screens"])


@pytest.mark.parametrize(
    ("options", "answer"),
    [("--episodes 0", "episodes=0"), ("--turns 0", "turns=0"), ("--seed -1", "seed=-1"), ("--tokens 0", "tokens=0")],
)
def test_numbers_that_mean_nothing_are_refused(options: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        CliRunner().invoke(app, ["train", "--model", "random-tiny", *options.split()], catch_exceptions=False)


def test_a_model_that_does_not_fit_into_memory_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "free_memory", lambda: 20e9)
    monkeypatch.setattr(sample, "find_device", lambda: torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"model=random-7b: takes 33.2 GB of memory, and 20.0 GB are free"):
        large.bench_large("random-7b", (1920, 1080), 16, 5, 120, 0, peers=False)
