"""A model of 7B on one GPU, learner and engine: `arpo bench train --model random-7b --size 1920x1080 --json`.

The sizes are UI-TARS-1.5-7B's and the weights random: time and memory do not depend on what they say. What is timed is
the code that `arpo train` runs, on episodes that its engine has played; a trajectory is TRAJECTORY turns, each with a
screenshot of its own. Every time stands beside its floor: the multiplications that cannot be left out at the rate of
large matrices on this machine, or the bytes that must be read at the rate of a large copy, measured in the same run.

    trajectory_s, trajectory_peak_gib   forward and backward pass of a trajectory, every weight trained, the tower too
    trajectory_least_s, …_least_gib     the same with as much computed again as can be: the least memory
    trajectory_lora_s                   the same with adapters (LoRA) and a tower that is left as it is
    logprobs_s                          a forward pass alone
    update_s                            TRAJECTORIES trajectories in STEPS steps, every weight trained; not the first
    publish_s, publish_lora_s           from the learner's new weights to an engine that samples with them
    sample_tokens_per_s                 `episodes` at once, `turns` turns, a new screenshot each turn
    decode_floor_share                  bytes of weights, keys and values at the copy's rate over a decode step
    screenshot_s                        a new screenshot, from its bytes to the first token of the reply
    sampler_gap_mean, sampler_gap_p99   log-probabilities of sampler and learner, how far apart
    hf_…                                plain transformers: sdpa, gradient checkpointing; samples the first turn alone
    vllm_sample_tokens_per_s            where vLLM is installed: the same episodes, in a process of its own
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from arpo.algorithms.base import make_algorithm
from arpo.bench import sample
from arpo.bench.learn import to_sample
from arpo.bench.sample import Episode, Work, plain_generate, plain_inputs, plain_model, random_model
from arpo.config import load_config
from arpo.engines.base import Sampling
from arpo.model.checkpoint import Checkpoint
from arpo.model.layout import lay_out
from arpo.teaching.tiny import save_tokenizer
from arpo.training.base import Batch
from arpo.training.learner import LocalLearner
from arpo.training.memory import one_model
from arpo.types import Sample

TRAJECTORY = 15  # turns
TRAJECTORIES, STEPS = 8, 4  # of an update
PLAYED = 2  # of these trajectories; each is learned several times in an update
REPEATS, FEW = 3, 2
RANK = 16
GIB = 2**30


def bench_large(
    model: str, size: tuple[int, int], episodes: int, turns: int, tokens: int, seed: int, peers: bool
) -> dict[str, Any]:
    """The numbers, under the names that `--json` prints."""
    bench = Bench(model, size, episodes, turns, tokens, seed)
    bench.machine()
    bench.sampling()
    bench.play()
    bench.lora()
    bench.everything()
    if peers:
        bench.transformers()
        bench.vllm()
    return bench.numbers


@dataclass
class Bench:
    model: str
    size: tuple[int, int]
    episodes: int
    turns: int
    tokens: int
    seed: int
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work = Work(self.model, self.size, max(self.episodes, TRAJECTORIES), TRAJECTORY, self.tokens, self.seed)
        self.device = self.work.engine.checkpoint.model.lm_head.weight.device
        self.sight = self.work.engine.checkpoint.model.sight
        self.gpu = self.device.type == "cuda"
        self.samples: list[Sample] = []
        self.screens: dict[str, Any] = {}
        self.say(
            model=self.model,
            parameters=sum(weight.numel() for weight in self.work.engine.checkpoint.model.parameters()),
            device=torch.cuda.get_device_name() if self.gpu else "cpu",
            size="{}x{}".format(*self.size),
            episodes=self.episodes,
            turns=self.turns,
            tokens_per_turn=self.tokens,
            trajectory_turns=TRAJECTORY,
            torch=torch.__version__,
        )

    def say(self, **numbers: Any) -> None:
        """Kept, and shown at once: a run that is cut off has shown what it measured."""
        self.numbers |= numbers
        print(json.dumps(numbers), file=sys.stderr, flush=True)

    def timed(self, work: Callable[[], object], repeats: int = REPEATS) -> float:
        """Seconds, the median; once before that is not counted, unless it is all there is."""
        taken = []
        for _ in range(repeats + 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:] or taken)

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def free(self) -> None:
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / GIB if self.gpu else 0.0

    # ---- the machine

    def machine(self) -> None:
        n = 8192 if self.gpu else 512
        dtype = self.work.engine.checkpoint.model.lm_head.weight.dtype
        a, b = torch.randn(2, n, n, device=self.device, dtype=dtype)
        self.rate = 2 * n**3 / self.timed(lambda: a @ b, 20)
        source = torch.empty(2**32 if self.gpu else 2**24, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.bandwidth = 2 * source.numel() / self.timed(lambda: target.copy_(source), 5)
        self.say(matmul_tflops=self.rate / 1e12, copy_tb_per_s=self.bandwidth / 1e12)

    # ---- the engine

    def sampling(self) -> None:
        work, n = self.work, self.episodes
        asyncio.run(work.play(work.episodes(n, 2)))  # warm up
        seconds, _ = asyncio.run(work.play(work.episodes(n, self.turns)))
        decode_s, length = self._decode_s()
        floor_s = self._decode_bytes(n, length) / self.bandwidth
        prefill_s = self._prefill_multiplications() / self.rate
        steps = self.turns * self.tokens
        self.say(
            sample_tokens_per_s=n * steps / seconds,
            sample_floor_tokens_per_s=n * steps / (prefill_s + steps * floor_s),
            decode_s=decode_s,
            decode_floor_s=floor_s,
            decode_floor_share=floor_s / decode_s,
            screenshot_s=self._screenshot_s(),
            sample_peak_gib=self.peak_gib(),
        )

    def _decode_s(self) -> tuple[float, int]:
        """A step of all episodes: what more tokens cost beside the same prompts; and the tokens of a context then."""
        work, taken, length = self.work, {}, 0
        few, many = max(1, self.tokens // 8), self.tokens
        for tokens in (few, many, few, many):
            work.sampling = Sampling(temperature=1.0, max_tokens=tokens)
            episodes = work.episodes(self.episodes, 2)
            taken[tokens], _ = asyncio.run(work.play(episodes))
            length = self._length(episodes[0])
        return (taken[many] - taken[few]) / (2 * (many - few)), length - length // 4  # of two turns, on average

    def _screenshot_s(self) -> float:
        work, taken = self.work, []
        work.sampling, kept = Sampling(temperature=1.0, max_tokens=1), work.sampling
        for _ in range(REPEATS):
            taken += asyncio.run(work.run(work.episodes(1, 4)[0]))[1:]
        work.sampling = kept
        return statistics.median(taken)

    def _length(self, episode: Episode) -> int:
        """Of a context, the tokens of its images spread out."""
        prompt = episode.conversation.segments
        pads = len(episode.screens) * (self._image_tokens() - 1)
        return sum(len(getattr(one, "ids", ())) for one in prompt) + sum(map(len, episode.replies)) + pads

    def _image_tokens(self) -> int:
        return self.sight.tokens(*self.size)

    def _decode_bytes(self, n: int, length: int) -> float:
        model = self.work.engine.checkpoint.model
        text, head = model.config.text_config, model.lm_head.weight
        layers = sum(weight.nbytes for weight in model.model.language_model.layers.parameters())
        heads = 2 * text.num_key_value_heads * (text.hidden_size // text.num_attention_heads)
        return float(layers + head.nbytes + n * length * text.num_hidden_layers * heads * head.itemsize)

    def _prefill_multiplications(self) -> float:
        """Twice those of all new tokens of all turns, screenshots through the tower and the layers."""
        new = self._image_tokens() + self.tokens
        total = 0.0
        for turn in range(self.turns):
            total += self._layers_flop(new, start=turn * new) + self._tower_flop()
        return total * self.episodes

    def _layers_flop(self, tokens: int, start: int = 0) -> float:
        """A forward pass over so many tokens after `start` others, the head left out."""
        model = self.work.engine.checkpoint.model
        matrices = sum(w.numel() for w in model.model.language_model.layers.parameters() if w.ndim == 2)
        text = model.config.text_config
        looked_at = tokens * start + tokens * tokens / 2
        return float(2 * matrices * tokens + 4 * text.hidden_size * text.num_hidden_layers * looked_at)

    def _tower_flop(self) -> float:
        """A forward pass of one screenshot."""
        model = self.work.engine.checkpoint.model
        vision, patches = model.config.vision_config, 4 * self._image_tokens()
        matrices = sum(w.numel() for w in model.model.visual.blocks.parameters() if w.ndim == 2)
        merger = sum(w.numel() for w in model.model.visual.merger.parameters() if w.ndim == 2)
        whole = len(vision.fullatt_block_indexes)
        window = (vision.window_size // vision.patch_size) ** 2
        attention = 4 * vision.hidden_size * patches * (whole * patches + (vision.depth - whole) * window)
        return float(2 * matrices * patches + 2 * merger * patches / 4 + attention)

    # ---- the learner

    def play(self) -> None:
        """The trajectories that are learned."""
        episodes = self.work.episodes(PLAYED, TRAJECTORY)
        asyncio.run(self.work.play(episodes))
        for i in range(TRAJECTORIES):
            one = to_sample(self.work, episodes[i % PLAYED], 1.0 if i % 2 else -1.0)
            self.samples.append(replace(one, trajectory_id=str(i)))
        self.screens = {screen.hash: screen for episode in episodes for screen in episode.screens}
        grids = [self.sight.grid(*self.size)] * TRAJECTORY
        self.length = len(lay_out(self.samples[0].ids, grids, self.work.dialect.image_pad).ids)
        self.say(trajectory_tokens=self.length)

    def learner(self, *settings: str) -> LocalLearner:
        """As `arpo train` makes it: of the engine's model, or, where that cannot be, of a copy."""
        asyncio.run(self.work.engine.rest())
        self.free()
        config = load_config(None, ["algorithm.name=grpo", f"seed={self.seed}", *settings])
        source = self.work.engine.checkpoint
        if not one_model(config):
            own = random_model(self.model, self.seed, fill=False)
            own.load_state_dict(source.model.state_dict())
            source = Checkpoint(source.name, own, source.vocabulary)
        return LocalLearner(source, config, make_algorithm(config.algorithm, config.seed), None)

    def lora(self) -> None:
        learner = self.learner(f"train.lora_rank={RANK}", "train.freeze_vision=true")
        with torch.no_grad():
            learner.logprobs(self.samples[:1], self.screens)  # the visual tokens are known from here on
        gap = learner.logprobs(self.samples[:1], self.screens)[0].float().cpu()
        gap = (gap - torch.tensor(self.samples[0].logprobs)).abs()
        logprobs_s = self.timed(lambda: learner.logprobs(self.samples[:1], self.screens))
        self.free()
        seconds = self.timed(lambda: self._learn(learner), FEW)
        forward, attention = self._layers_flop(self.length), self._attention_flop()
        self.say(
            sampler_gap_mean=float(gap.mean()),
            sampler_gap_p99=float(gap.quantile(0.99)),
            logprobs_s=logprobs_s,
            logprobs_floor_s=forward / self.rate,
            trajectory_lora_s=seconds,
            trajectory_lora_floor_s=(2 * forward + attention) / self.rate,  # no gradient of the large weights
            trajectory_lora_peak_gib=self.peak_gib(),
        )
        self.say(publish_lora_s=self._publish_s(learner))

    def everything(self) -> None:
        learner = self.learner("train.freeze_vision=false", "train.moments=8bit")
        seconds = self.timed(lambda: self._learn(learner), FEW)
        tower = TRAJECTORY * self._tower_flop()
        self.say(
            trajectory_s=seconds,
            trajectory_floor_s=3 * (self._layers_flop(self.length) + tower) / self.rate,
            trajectory_peak_gib=self.peak_gib(),
        )
        chosen, learner.config = learner.config, learner.config.with_values({"train.checkpointing": True})
        self.free()
        self.say(trajectory_least_s=self.timed(lambda: self._learn(learner), 1), trajectory_least_gib=self.peak_gib())
        learner.config = chosen
        learner.optimizer.zero_grad(set_to_none=True)
        self.update(learner)

    def update(self, learner: LocalLearner) -> None:
        """One as in the middle of a run: what is made and tested once was made in another before it, of one sample."""
        learner.update([Batch((self.samples[0],), 1)], self.screens)
        self.free()
        n = TRAJECTORIES // STEPS
        batches = [Batch(tuple(self.samples[i : i + n]), n) for i in range(0, TRAJECTORIES, n)]
        self.wait()
        began = time.perf_counter()
        learner.update(batches, self.screens)
        self.wait()
        self.say(update_s=time.perf_counter() - began, update_peak_gib=self.peak_gib())
        self.say(publish_s=self._publish_s(learner))

    def _attention_flop(self) -> float:
        text = self.work.engine.checkpoint.model.config.text_config
        return 2.0 * text.hidden_size * text.num_hidden_layers * self.length**2

    def _learn(self, learner: LocalLearner) -> None:
        """The gradient of one trajectory."""
        learner.gradient(Batch(tuple(self.samples[:1]), 1), self.screens)

    def _publish_s(self, learner: LocalLearner) -> float:
        def publish() -> None:
            asyncio.run(self.work.engine.load(learner.version, learner.publish(Path("unused"))))

        return self.timed(publish)

    # ---- peers

    def transformers(self) -> None:
        """Plain transformers, with the weights that the engine has."""
        asyncio.run(self.work.engine.rest())
        self.free()
        plain = plain_model(self.work.engine.checkpoint.model)
        episodes = self.work.episodes(self.episodes, 1, alike=True)
        prompts = [episode.prompt(0, self.work.dialect.image_pad) for episode in episodes]
        self.wait()
        began = time.perf_counter()
        plain_generate(plain, self.sight, prompts, self.tokens)
        self.wait()
        self.say(hf_sample_tokens_per_s=self.episodes * self.tokens / (time.perf_counter() - began))
        self.free()
        plain.requires_grad_(True).train()
        plain.gradient_checkpointing_enable()
        sample_ = self.samples[0]
        images = tuple(self.screens[name] for name in sample_.images)
        inputs = plain_inputs(plain, self.sight, [(sample_.ids, images)])
        layout = lay_out(sample_.ids, [self.sight.grid(*self.size)] * len(images), self.work.dialect.image_pad)
        before = torch.from_numpy(layout.starts[:-1])[torch.tensor(sample_.sampled)].to(self.device) - 1
        targets = inputs["input_ids"][0, before + 1]

        def learn() -> None:
            plain.zero_grad(set_to_none=True)
            scores = plain(**inputs, logits_to_keep=before, use_cache=False).logits[0].float()
            F.cross_entropy(scores, targets).backward()  # type: ignore[no-untyped-call]

        self.say(hf_trajectory_s=self.timed(learn, 0), hf_trajectory_peak_gib=self.peak_gib())

    def vllm(self) -> None:
        """In a process of its own, once the weights of this one are gone."""
        if importlib.util.find_spec("vllm") is None or not self.gpu:
            return
        checkpoint = self.work.engine.checkpoint
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            checkpoint.config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
            checkpoint.config.save_pretrained(place)
            save_tokenizer(sample.random_tokenizer(), place)
            (place / "work.json").write_text(json.dumps(self._turns(place)))
            del self.work, checkpoint
            self.free()
            script = Path(__file__).with_name("vllm_peer.py")
            done = subprocess.run([sys.executable, script, place], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                self.say(vllm_failed=done.returncode)
            else:
                lines = done.stdout.splitlines()  # vLLM has others, also after ours
                self.say(**json.loads(next(line for line in lines if line.startswith('{"vllm_'))))

    def _turns(self, place: Path) -> dict[str, Any]:
        """What the peer needs of the episodes: the ids between replies, and pictures as files."""
        pad = self.work.dialect.image_pad
        turns = []
        for episode in self.work.episodes(self.episodes, self.turns):
            ids: list[list[int]] = []
            before = 0
            for turn, screen in enumerate(episode.screens):
                (place / f"{screen.hash}.png").write_bytes(screen.image)
                prompt = episode.prompt(turn, pad).ids
                ids.append(list(prompt[before:]))
                before = len(prompt) + self.tokens  # the end of the reply is given, not sampled
                episode.reply((0,) * self.tokens, self.work.dialect.stop)
            turns.append({"ids": ids, "screens": [screen.hash for screen in episode.screens]})
        return {"tokens": self.tokens, "banned": sample.random_tokenizer().get_vocab_size(), "episodes": turns}


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people."""
    table = Table("{model} on {device}".format(**numbers), "measured", "floor", "peer", box=None)
    rows = [
        ("trajectory, everything trained, s", "trajectory_s", "trajectory_floor_s", "hf_trajectory_s"),
        ("the same, its peak, GiB", "trajectory_peak_gib", "", "hf_trajectory_peak_gib"),
        ("trajectory, LoRA, s", "trajectory_lora_s", "trajectory_lora_floor_s", ""),
        ("its log-probabilities, s", "logprobs_s", "logprobs_floor_s", ""),
        (f"an update of {TRAJECTORIES} in {STEPS} steps, s", "update_s", "", ""),
        ("weights to the engine: all, s", "publish_s", "", ""),
        ("weights to the engine: LoRA, s", "publish_lora_s", "", ""),
        ("sampled tokens a second", "sample_tokens_per_s", "sample_floor_tokens_per_s", "vllm_sample_tokens_per_s"),
        ("a decode step, s", "decode_s", "decode_floor_s", ""),
        ("a new screenshot to its first token, s", "screenshot_s", "", ""),
    ]
    for what, *names in rows:
        table.add_row(what, *(f"{numbers[name]:,.3g}" if name in numbers else "" for name in names))
    Console(highlight=False).print(table)
