"""The benchmark of an update learns what was sampled, and TRL gets the same work."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arpo.bench import learn, sample
from arpo.bench.learn import Bench
from arpo.bench.peer import Peer
from arpo.bench.sample import Episode
from arpo.errors import ConfigError
from arpo.model.layout import lay_out
from arpo.resize import QWEN2_5

SIZE = (112, 84)
EPISODES, TURNS, TOKENS = 4, 3, 5


@pytest.fixture
def bench(tiny_folder: Path, tmp_path: Path) -> Bench:
    return Bench(str(tiny_folder), SIZE, EPISODES, TURNS, TOKENS, seed=0, trl=False, folder=tmp_path)


@pytest.fixture
def played(bench: Bench) -> list[Episode]:
    episodes = bench.work.episodes(EPISODES, TURNS)
    asyncio.run(bench.work.play(episodes))
    return episodes


@pytest.fixture
def peer(bench: Bench, tiny_folder: Path, tmp_path: Path) -> Peer:
    train = bench.learner.config.train
    return Peer(str(tiny_folder), bench.work, EPISODES, TURNS, steps=2, train=train, folder=tmp_path)


def test_what_is_learned_is_what_was_sampled(bench: Bench, played: list[Episode]) -> None:
    samples = bench._samples(played)
    assert [sum(one.sampled) for one in samples] == [TURNS * TOKENS] * EPISODES
    screens = {screen.hash: screen for episode in played for screen in episode.screens}
    for one, values in zip(samples, bench.learner.logprobs(samples, screens), strict=True):
        torch.testing.assert_close(values, torch.tensor(one.logprobs), atol=1e-4, rtol=0.0)


def test_an_update_changes_what_the_engine_samples_from(bench: Bench) -> None:
    before = bench.work.engine.checkpoint.model.lm_head.weight.clone()
    version = bench.work.engine.version
    bench.round()
    assert bench.work.engine.version == version + 1
    assert not torch.equal(bench.work.engine.checkpoint.model.lm_head.weight, before)


def test_the_floor_counts_less_than_is_computed_but_not_much_less(bench: Bench, played: list[Episode]) -> None:
    # The counter knows attention by its parts alone.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        bench._learn(played, bench.steps)
    assert 0.5 < 2 * bench.multiplications() / counter.get_total_flops() <= 1


def test_trl_reads_the_contexts_that_the_engine_reads(bench: Bench, peer: Peer) -> None:
    episodes = bench.work.episodes(EPISODES, TURNS)
    pad, words = bench.work.dialect.image_pad, bench.work.engine.vocabulary.encode("some words click (3)")
    ours = []
    for episode in episodes:
        for turn in range(TURNS):
            grids = [QWEN2_5.grid(*SIZE)] * (turn + 1)
            ours.append((turn, lay_out(episode.prompt(turn, pad).ids, grids, pad).ids.tolist()))
            episode.reply(words, bench.work.dialect.stop)
    theirs, images, _ = peer.trainer._tokenize_prompts(_with_images(list(peer.examples(episodes))))
    assert theirs == [ids for _, ids in sorted(ours, key=lambda one: one[0])]
    assert [len(mine) for mine in images] == [turn + 1 for turn in range(TURNS) for _ in range(EPISODES)]


def test_trl_samples_and_learns_every_token_once(
    peer: Peer, played: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    loss: Any = type(peer.trainer)._compute_loss

    def spy(self: Any, model: Any, inputs: dict[str, torch.Tensor]) -> Any:
        learned.append(int(inputs["completion_mask"].sum()))
        return loss(self, model, inputs)

    monkeypatch.setattr(type(peer.trainer), "_compute_loss", spy)
    model: Any = peer.trainer.model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    sample_s, learn_s = peer.update(played)
    assert sample_s > 0 and learn_s > 0
    assert sum(learned) == EPISODES * TURNS * TOKENS
    assert peer.trainer.state.global_step == 2
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed and not any(".visual." in name for name in changed)


def test_the_numbers_have_the_promised_names(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sample, "REPEATS", 1)
    monkeypatch.setattr(learn, "REPEATS", 1)
    work = (str(tiny_folder), SIZE, 2, 1, 3, 0)
    numbers = sample.bench_sample(*work, peer=False) | learn.bench_learn(*work, trl=True)
    for name in ("sample_tokens_per_s", "learn_tokens_per_s", "learn_floor_tokens_per_s", "speedup_vs_trl"):
        assert numbers[name] > 0
    assert numbers["speedup_vs_trl"] == numbers["speedup_vs_trl_least"]  # there is one repeat
    learn.print_table(numbers)
    assert "times faster" in capsys.readouterr().out


def test_without_trl_nothing_is_said_of_it(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "REPEATS", 1)
    numbers = learn.bench_learn(str(tiny_folder), SIZE, 2, 1, 3, 0, trl=False)
    assert not [name for name in numbers if "trl" in name]


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(ConfigError, match="episodes=1: must be at least 2"):
        learn.bench_learn("base", SIZE, 1, TURNS, TOKENS, 0, trl=False)


def _with_images(rows: list[dict[str, Any]]) -> list[Any]:
    """The messages with their images in them, as TRL puts them there."""

    def message(one: dict[str, Any], images: Iterator[Any]) -> dict[str, Any]:
        content = [part | {"image": next(images)} if part["type"] == "image" else part for part in one["content"]]
        return one | {"content": content}

    found = []
    for row in rows:
        images = iter(row["images"])
        found.append([message(one, images) for one in row["prompt"]])
    return found
