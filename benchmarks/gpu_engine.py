"""What the local engine does with a GPU: a 7B with random weights at full HD, and `base` with many sessions.

python benchmarks/gpu_engine.py            # all of it, a JSON line each
python benchmarks/gpu_engine.py --tiny     # a rehearsal of the code with a tiny model, on a CPU too

play      sampled tokens a second of 16 episodes, 5 turns of 120 tokens, a screenshot of its own each turn
decode    milliseconds of a step against what reading weights, keys and values takes at COPY bytes a second
screen    a new screenshot from its bytes to the first token of the reply, alone; and what the tower takes of it
kernels   where the GPU's time goes in decoding and in prefill, the largest first
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from arpo.bench.sample import Work
from arpo.engines.local import LocalEngine
from arpo.engines.local.blocks import Blocks
from arpo.engines.local.cache import shape_of
from arpo.images import decode
from arpo.model.checkpoint import Checkpoint, find_device, load_checkpoint
from arpo.model.images import resized

COPY = 4.0e12  # bytes a second that one pass over memory reaches on an H200
GPU = torch.cuda.is_available()


def say(what: str, **numbers: Any) -> None:
    print(json.dumps({"what": what} | numbers), flush=True)


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def peak_gib() -> float:
    return round(torch.cuda.max_memory_allocated() / 2**30, 1) if GPU else 0.0


def play(work: Work, name: str, episodes: int, turns: int) -> None:
    tokens = work.sampling.max_tokens
    asyncio.run(work.play(work.episodes(episodes, 2)))  # warm up
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    seconds, _ = asyncio.run(work.play(work.episodes(episodes, turns)))
    rate = episodes * turns * tokens / seconds
    say("play", model=name, seconds=round(seconds, 2), tokens_per_s=round(rate), peak_gib=peak_gib())


def decoding(work: Work, name: str, episodes: int, before: int, tokens: int) -> None:
    """Steps of a whole batch, after so many turns of context; the floor from what a step has to read."""
    engine = work.engine
    played = work.episodes(episodes, before + 1)

    async def steps() -> tuple[float, int, list[tuple[str, float]]]:
        for episode in played:
            for turn in range(before):
                prompt = episode.prompt(turn, work.dialect.image_pad)
                done = await engine.generate(episode.name, prompt, replace(work.sampling, max_tokens=4), 0)
                episode.reply(done.tokens, work.dialect.stop)
        prompts = [episode.prompt(before, work.dialect.image_pad) for episode in played]
        taken = []
        for n in (2, tokens, tokens):  # the first puts the prompts into the cache
            wait()
            began = time.perf_counter()
            sampling = replace(work.sampling, max_tokens=n)
            asked = (engine.generate(e.name, p, sampling, 0) for e, p in zip(played, prompts, strict=True))
            await asyncio.gather(*asked)
            taken.append(time.perf_counter() - began)
        sampling = replace(work.sampling, max_tokens=20)
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]) as found:
            asked = (engine.generate(e.name, p, sampling, 0) for e, p in zip(played, prompts, strict=True))
            await asyncio.gather(*asked)
            wait()
        held = sum(len(work_layout(work, prompt)) + tokens // 2 for prompt in prompts)
        for episode in played:
            await engine.release(episode.name)
        return (taken[2] / (tokens - 1)) * 1e3, held, top(found)

    ms, held, kernels = asyncio.run(steps())
    model = engine.checkpoint.model
    layers, (heads, dim) = shape_of(model)
    item = model.lm_head.weight.itemsize
    weights = sum(w.numel() for w in model.model.language_model.layers.parameters()) + model.lm_head.weight.numel()
    cached = held * layers * 2 * heads * dim
    floor = 1e3 * (weights + cached) * item / COPY
    say(
        "decode",
        model=name,
        rows=episodes,
        tokens_in_cache=held,
        step_ms=round(ms, 3),
        floor_ms=round(floor, 3),
        times_floor=round(ms / floor, 2),
        tokens_per_s=round(1e3 * episodes / ms),
        recorded=getattr(engine._steps, "_record", False),
    )
    say("kernels of decoding", model=name, top=kernels)


def work_layout(work: Work, prompt: Any) -> torch.Tensor:
    from arpo.model.layout import lay_out

    sight = work.engine.checkpoint.model.sight
    grids = [sight.grid(image.width, image.height) for image in prompt.images]
    return lay_out(prompt.ids, grids, work.engine.checkpoint.config.image_token_id).ids


def top(found: Any, n: int = 14) -> list[tuple[str, float, int]]:
    """Kernels by their share of the time, and how often each ran."""
    times = [
        (event.key, getattr(event, "self_device_time_total" if GPU else "self_cpu_time_total"), event.count)
        for event in found.key_averages()
    ]
    whole = sum(time for _, time, _ in times) or 1
    times.sort(key=lambda one: -one[1])
    return [(key[:70], round(100 * time / whole, 1), count) for key, time, count in times[:n]]


def screen(work: Work, name: str) -> None:
    """A turn of one token: that is all of a prompt and nothing of a reply."""
    one = replace(work.sampling, max_tokens=1)

    async def turns() -> tuple[list[float], Any]:
        episode = work.episodes(1, 6)[0]
        seconds = []
        for turn in range(6):
            prompt = episode.prompt(turn, work.dialect.image_pad)
            wait()
            began = time.perf_counter()
            if turn == 5:
                with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]) as found:
                    done = await work.engine.generate("alone", prompt, one, 0)
                    wait()
            else:
                done = await work.engine.generate("alone", prompt, one, 0)
            seconds.append(time.perf_counter() - began)
            episode.reply(done.tokens, work.dialect.stop)
        await work.engine.release("alone")
        return seconds, found

    asyncio.run(turns())
    seconds, found = asyncio.run(turns())
    image = work.episodes(1, 1)[0].screens[0]
    began = time.perf_counter()
    pixels = decode(image.image)
    decoded = time.perf_counter() - began
    began = time.perf_counter()
    pixels = resized(pixels.copy())
    fitted = time.perf_counter() - began
    tower, device = work.engine.checkpoint.model.model.visual, work.engine.checkpoint.model.lm_head.weight.device
    images = torch.from_numpy(pixels)[None].to(device)
    taken = []
    for _ in range(5):
        wait()
        began = time.perf_counter()
        with torch.no_grad():
            tower(images)
        wait()
        taken.append(time.perf_counter() - began)
    say(
        "screen",
        model=name,
        ms=[round(1e3 * one, 1) for one in seconds[:5]],
        decode_ms=round(1e3 * decoded, 1),
        resize_ms=round(1e3 * fitted, 1),
        tower_ms=round(1e3 * statistics.median(taken), 1),
    )
    say("kernels of a screenshot", model=name, top=top(found))


def same(work: Work, name: str) -> None:
    """The same reply with a cache full of others and alone: log-probabilities agree up to rounding."""
    engine = work.engine
    episodes = work.episodes(5, 1)
    prompts = [episode.prompt(0, work.dialect.image_pad) for episode in episodes]

    async def ask(chosen: list[int]) -> list[Any]:
        asked = (engine.generate(f"same {i}", prompts[i], work.sampling, 0) for i in chosen)
        found = await asyncio.gather(*asked)
        for i in chosen:
            await engine.release(f"same {i}")
        return found

    together, alone = asyncio.run(ask([0, 1, 2, 3, 4]))[0], asyncio.run(ask([0]))[0]
    agree = next(
        (i for i, (a, b) in enumerate(zip(together.tokens, alone.tokens, strict=True)) if a != b), len(alone.tokens)
    )
    most = (
        max(abs(a - b) for a, b in zip(together.logprobs[:agree], alone.logprobs[:agree], strict=True))
        if agree
        else None
    )
    say("same", model=name, tokens=len(alone.tokens), agree=agree, largest_difference=most)


def base(dtype: torch.dtype, sessions: int, turns: int, tokens: int) -> None:
    work = Work("base", (448, 280), sessions, turns, tokens, 0)
    if dtype is not torch.float32:
        checkpoint = load_checkpoint("base", find_device(), dtype)
        work.engine = LocalEngine(
            Checkpoint("base", checkpoint.model, checkpoint.vocabulary), work.engine.max_context, sessions
        )
    name = f"base {str(dtype).removeprefix('torch.')}"
    play(work, name, sessions, turns)
    decoding(work, name, sessions, 1, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model in blocks, short replies")
    parser.add_argument("--only", choices=["7b", "base"], help="one of the two models")
    parser.add_argument("--episodes", type=int, default=16)
    options = parser.parse_args()
    if options.tiny:
        work = Work("base", (280, 168), 4, 2, 8, 0)
        model = work.engine.checkpoint.model
        if not GPU:
            cache = Blocks(model, 4, work.engine.max_context)
            work.engine = LocalEngine(work.engine.checkpoint, work.engine.max_context, 4, cache=cache)
        same(work, "tiny")
        play(work, "tiny", 4, 2)
        decoding(work, "tiny", 4, 1, 8)
        screen(work, "tiny")
        return
    if options.only != "base":
        work = Work("random-7b", (1920, 1080), options.episodes, 6, 120, 0)
        same(work, "random-7b")
        screen(work, "random-7b")
        decoding(work, "random-7b", options.episodes, 2, 120)
        play(work, "random-7b", options.episodes, 5)
        began = time.perf_counter()
        asyncio.run(work.engine.rest())
        if GPU:
            torch.cuda.empty_cache()
            say(
                "rest",
                seconds=round(time.perf_counter() - began, 2),
                gib=round(torch.cuda.memory_allocated() / 2**30, 1),
            )
        del work
    if options.only != "7b":
        for dtype in (torch.float32, torch.bfloat16) if GPU else (torch.float32,):
            base(dtype, 64, 5, 120)


if __name__ == "__main__":
    main()
