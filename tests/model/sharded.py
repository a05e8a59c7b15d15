"""One of two processes that hold half of the model each. Run by test_sharded.py.

    python sharded.py CHECKPOINT STORE RANK     STORE: a file by which the two find each other

Prints, for each kind of learning, how often the hook of each decoder layer fired and how far the gradients lie from
those of the whole model.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from arpo.model.checkpoint import load_model
from arpo.model.qwen import QwenVL

RANKS = 2
IMAGE = (3, 4)  # rows and columns of its tokens


def shard(model: QwenVL) -> None:
    """One unit a layer, one the tower, and one all the rest."""
    mesh = init_device_mesh("cpu", (RANKS,))
    for unit in (*model.model.language_model.layers, model.model.visual, model):
        fully_shard(unit, mesh=mesh)


def loss_of(model: QwenVL, rank: int, frozen: bool, recompute: bool) -> Tensor:
    """Each process learns another sequence and, where the tower learns too, another screenshot."""
    random = torch.Generator().manual_seed(rank)
    n, pad, text = IMAGE[0] * IMAGE[1], model.config.image_token_id, model.config.text_config
    ids = torch.randint(0, 200, (1, 20), generator=random)
    ids[:, 4 : 4 + n] = pad
    given: dict[str, Any] = {"shown": ["it"]}
    given["images"] = {"it": torch.randint(0, 256, (28 * IMAGE[0], 28 * IMAGE[1], 3), generator=random)}
    if frozen:
        given = {"features": torch.randn(n, text.hidden_size, generator=random)}
    wanted = torch.tensor([[16, 17, 18, -1]])
    scores = model(ids, torch.arange(20).expand(3, 1, 20), wanted=wanted, recompute=recompute, **given)
    loss: Tensor = torch.nn.functional.cross_entropy(scores, ids[0, [17, 18, 19]])
    return loss


def compare(folder: Path, rank: int, frozen: bool, recompute: bool) -> dict[str, Any]:
    whole, half = (load_model(folder, "cpu").requires_grad_(True) for _ in range(2))
    for model in (whole, half):
        model.model.visual.requires_grad_(not frozen)
    sum(loss_of(whole, other, frozen, recompute) / RANKS for other in range(RANKS)).backward()  # type: ignore[union-attr]
    shard(half)
    fired: Counter[int] = Counter()
    for i, layer in enumerate(half.model.language_model.layers):
        layer.register_forward_hook(lambda *_, i=i: fired.update([i]))
    loss = loss_of(half, rank, frozen, recompute)
    count = [fired[i] for i in range(len(half.model.language_model.layers))]
    loss.backward()
    off, split = 0.0, 0
    for (name, one), (_, other) in zip(half.named_parameters(), whole.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) == (frozen and ".visual." in name), name
        if one.grad is not None:
            assert isinstance(one.grad, DTensor) and other.grad is not None
            split += one.grad.to_local().numel() < other.grad.numel()
            off = max(off, float((one.grad.full_tensor() - other.grad).abs().max() / other.grad.abs().max()))
    return {"frozen": frozen, "recompute": recompute, "fired": count, "split": split, "off": off}


if __name__ == "__main__":
    folder, store, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    kinds = [(False, False), (False, True), (True, False)]
    print(json.dumps([compare(folder, rank, frozen, recompute) for frozen, recompute in kinds]))
    dist.destroy_process_group()
