"""What learning one long trajectory with a 7B takes on a GPU: seconds and memory, of the whole and of its parts.

    PYTHONPATH=src python benchmarks/gpu_learn.py              # needs about 80 GiB
    PYTHONPATH=src python benchmarks/gpu_learn.py --tiny       # the same lines, in fp32, on a CPU, in seconds
    … --only all,lora --profile                                # some measurements; the most expensive kernels of each

The weights are random, of the sizes of Qwen2.5-VL-7B, in bf16. The trajectory is 15 full-HD screenshots with 120
sampled tokens after each: 42,195 tokens. Every line is a JSON object: the name of a measurement, seconds (the best of
several), what the memory rose to, and where it makes sense the rate at which the needed multiplications were done.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arpo.model.attention import each, packed
from arpo.model.images import resized
from arpo.model.layout import lay_out
from arpo.model.qwen import QwenVL
from arpo.model.recompute import Recompute, choose, kept_bytes, tower_bytes
from arpo.model.shapes import config_of
from arpo.resize import QWEN2_5
from arpo.training import lora

PAD = 5
TEXT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT |= {"intermediate_size": 160, "vocab_size": 500}
VISION = {"hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 36, "out_hidden_size": 64}


def sizes(tiny: bool) -> Any:
    config = config_of("qwen2.5-vl-7b")
    if tiny:
        config.text_config.update(TEXT)
        config.vision_config.update(VISION | {"fullatt_block_indexes": [1]})
        config.text_config.rope_parameters["mrope_section"] = [2, 3, 3]
    for i, name in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")):
        setattr(config, name, PAD + i)
    return config


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cpu" if args.tiny else "cuda")
        self.dtype = torch.float32 if args.tiny else torch.bfloat16
        self.config = sizes(args.tiny)
        width, height, replies = (112, 84, 6) if args.tiny else (1920, 1080, 120)
        screens = args.screens
        ids: list[int] = []
        wanted: list[bool] = []
        total = 32 if args.tiny else 42_195
        tokens = QWEN2_5.grid(width, height)
        other = max(2, (total - screens * (tokens[0] * tokens[1] + replies)) // screens) if not args.tiny else 4
        for _ in range(screens):
            ids += [9] * (other - 1) + [PAD] + [9] + [10 + i % 400 for i in range(replies)]
            wanted += [False] * (other + 1) + [True] * replies
        layout = lay_out(ids, [tokens] * screens, PAD)
        self.ids, self.positions = layout.ids.to(self.device), layout.positions.to(self.device)
        self.before = torch.from_numpy(layout.starts[:-1])[torch.tensor(wanted)] - 1
        rng = np.random.default_rng(0)
        shots = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(screens)]
        seen = [torch.from_numpy(resized(one, QWEN2_5).copy()).to(self.device) for one in shots]
        self.images = {str(i): one for i, one in enumerate(seen)}
        self.patches = 4 * screens * tokens[0] * tokens[1]
        self.n = len(self.ids)

    def model(self) -> QwenVL:
        with torch.device("meta"):
            model = QwenVL(self.config)
        model = model.to(self.dtype).to_empty(device=self.device)
        torch.manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.fill_(1.0) if "norm" in name or "ln_q" in name else weight.normal_(std=0.02)
        return model

    def flop(self) -> dict[str, float]:
        """Multiplications and additions of one forward pass."""
        text, vision = self.config.text_config, self.config.vision_config
        h, keys = text.hidden_size, text.hidden_size * text.num_key_value_heads // text.num_attention_heads
        linear = 2 * h * (h + keys) + 3 * h * text.intermediate_size
        attention = self.n * h  # queries times keys, and weights times values, each over half of the tokens
        w = vision.hidden_size
        blocks = 4 * w * w + 3 * w * vision.intermediate_size
        one = self.patches // len(self.images)
        full = 2 * one * w
        return {
            "text": 2 * self.n * text.num_hidden_layers * (linear + attention),
            "attention": 2 * self.n * attention,
            "tower": 2 * self.patches * (vision.depth * blocks + len(vision.fullatt_block_indexes) * full),
        }

    def say(self, **what: Any) -> None:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in what.items()}), flush=True)

    def time(self, name: str, work: Callable[[], Any], flop: float = 0.0, repeats: int = 2, **more: Any) -> float:
        """Say how long it takes; an error is said too, and is the end of this measurement only."""
        try:
            taken = []
            for i in range(repeats + 1):
                self.wait()
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                work()
                self.wait()
                taken.append(time.perf_counter() - began)
                if i == 0 and taken[0] > 60:
                    break
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.say(name=name, error=str(error).splitlines()[0][:300], **more)
            torch.cuda.empty_cache() if self.device.type == "cuda" else None
            return 0.0
        best = min(taken[1:] or taken)
        if flop:
            more["tflops"] = flop / best / 1e12
        if self.device.type == "cuda":
            more["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self.say(name=name, seconds=best, first_s=taken[0], **more)
        if self.args.profile and self.device.type == "cuda":
            self.profile(name, work)
        return best

    def profile(self, name: str, work: Callable[[], Any]) -> None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            self.wait()
        rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[: self.args.rows]
        for row in rows:
            if row.self_device_time_total > 500:
                ms = row.self_device_time_total / 1e3
                self.say(name=f"{name} kernel", ms=ms, calls=row.count, kernel=row.key[:110])

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # What is measured

    def parts(self) -> None:
        """One layer's, and the tower's."""
        model, flop = self.model().requires_grad_(True), self.flop()
        text = model.model.language_model
        layer, tower = text.layers[0], model.model.visual
        x = torch.randn(self.n, self.config.text_config.hidden_size, device=self.device, dtype=self.dtype)
        rope, attend = text.rope(self.positions, self.dtype), packed([self.n])
        heads, keys = self.config.text_config.num_attention_heads, self.config.text_config.num_key_value_heads
        q, k, v = (
            torch.randn(self.n, n, text.layers[0].self_attn.dim, device=self.device, dtype=self.dtype).requires_grad_()
            for n in (heads, keys, keys)
        )

        def forward(work: Callable[[], Tensor]) -> Callable[[], None]:
            def once() -> None:
                with torch.no_grad():
                    work()

            return once

        def both(work: Callable[[], Tensor]) -> Callable[[], None]:
            def once() -> None:
                result = work()
                result.backward(torch.ones_like(result))
                model.zero_grad()

            return once

        one = x.detach().requires_grad_()
        mlp = 2.0 * self.n * 3 * x.shape[1] * self.config.text_config.intermediate_size
        works: dict[str, tuple[Callable[[], Tensor], float]] = {
            "attention": (lambda: attend(0, q, k, v), flop["attention"]),
            "norm and mlp": (lambda: layer._within(one), mlp),
            "layer": (lambda: layer(one, rope, attend), flop["text"] / len(text.layers)),
            "layer, mlp again": (lambda: layer(one, rope, attend, keep_mlp=False), flop["text"] / len(text.layers)),
            "layer again": (lambda: layer(one, rope, attend, keep=False), flop["text"] / len(text.layers)),
        }
        for name, (work, needed) in works.items():
            self.time(f"{name} forward", forward(work), needed)
            self.time(f"{name} forward and backward", both(work), 3 * needed)
        shots = torch.stack(list(self.images.values()))
        per = flop["tower"] / len(shots)
        for count in sorted({1, 4, len(shots)}):
            self.time(f"tower forward, {count} at once", forward(lambda n=count: tower(shots[:n])), per * count)
        for count in (1, 2):
            self.time(f"tower both, {count} at once", both(lambda n=count: tower(shots[:n])), 3 * per * count)
        width, vision_heads = self.config.vision_config.hidden_size, self.config.vision_config.num_heads
        patches = self.patches // len(shots)
        q, k, v = (
            torch.randn(1, patches, vision_heads, width // vision_heads, device=self.device, dtype=self.dtype)
            for _ in range(3)
        )
        size = 64 if patches >= 64 else 4
        windows = ((patches // size, size), (1, patches % size)) if patches % size else ((patches // size, size),)
        self.time("tower's windows", forward(lambda: each(q, k, v, windows, causal=False)))
        self.time("tower's whole", forward(lambda: each(q, k, v, ((1, patches),), causal=False)))

    def trajectory(self, adapters: bool) -> None:
        """All weights and the tower; or adapters, with the tower's tokens given."""
        kind = "lora" if adapters else "all"
        model, flop = self.model(), self.flop()
        count = self.config.text_config.num_hidden_layers
        # As much as the learner would have beside masters and moments in 8 bit.
        free = 1e12 if self.device.type == "cpu" else 0.9 * (self.args.gib * 2**30 - torch.cuda.memory_allocated())
        if adapters:
            with torch.no_grad():
                features = torch.cat([model.model.visual(one[None])[0] for one in self.images.values()])
            lora.add_adapters(model, 16, vision=False, seed=0)
            shown: dict[str, Any] = {"features": features}
            needed = 2 * flop["text"] + flop["attention"] * count  # no gradient of weights, but of both of attention's
        else:
            model.requires_grad_(True)
            shown = {"images": self.images, "shown": list(self.images)}
            needed = 3 * (flop["text"] + flop["tower"])
            free -= sum(weight.nbytes for weight in model.parameters())  # of the gradients
        chosen = choose(self.config, self.n, 0 if adapters else self.patches, self.dtype.itemsize, free)
        plans = {
            "most": Recompute(count, count, tower=True),
            "mlps": Recompute(count, 0, tower=True),
            "half": Recompute(count, count // 2, tower=True),
            "chosen": chosen,
        }
        self.say(
            name=f"{kind}: chosen", free_gib=free / 2**30, mlps=chosen.mlps, layers=chosen.layers, tower=chosen.tower
        )

        def logprobs(plan: Recompute) -> Tensor:
            result: Tensor = model(
                self.ids, self.positions, wanted=self.before, temperature=1.0, recompute=plan, **shown
            )
            return result

        def old() -> None:
            with torch.no_grad():
                logprobs(chosen)

        def learn(plan: Recompute) -> None:
            logprobs(plan).mean().backward()

        self.time(f"{kind}: log-probabilities", old, needed / 3)
        for name, plan in plans.items():
            kept = kept_bytes(self.config, plan, self.n, self.dtype.itemsize, len(self.before))
            kept += 0 if adapters else tower_bytes(self.config, plan, self.patches, self.dtype.itemsize)
            more = {"kept_gib": kept / 2**30, "plan": name}
            self.time(f"{kind}: forward and backward", lambda plan=plan: learn(plan), needed, **more)
        model.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    parser.add_argument("--only", default="parts,all,lora")
    parser.add_argument("--screens", type=int, default=15)
    parser.add_argument("--gib", type=float, default=100, help="of memory for weights, gradients and activations")
    parser.add_argument("--profile", action="store_true", help="the most expensive kernels of each measurement")
    parser.add_argument("--rows", type=int, default=20, help="of them")
    args = parser.parse_args()
    bench = Bench(args)
    bench.say(name="trajectory", tokens=bench.n, sampled=len(bench.before), patches=bench.patches, **bench.flop())
    for part in args.only.split(","):
        {"parts": bench.parts, "all": lambda: bench.trajectory(False), "lora": lambda: bench.trajectory(True)}[part]()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
