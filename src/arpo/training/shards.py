"""An optimiser's state in files, also where it was written by another number of processes than the one that reads it.

    optimizer.pt, optimizer*.safetensors       of one process: torch's AdamW, Bf16AdamW
    optimizer-rank0.safetensors, -rank1, …     of several: each has written what it holds

A rank holds of every weight so many rows. Rows follow each other, so what the ranks hold of a weight, one behind the
other, is the whole of it. Only moments in 8 bits are more than that: each rank has blocks of its own, so for another
number of ranks they are read, put together and rounded anew.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arpo.model.checkpoint import FILES
from arpo.model.tensorfiles import read_tensors, write_tensors
from arpo.seeds import derive
from arpo.training.optimizer import BLOCK, Bf16AdamW, named_tensors, read_first, read_second, write_first, write_second

CODED = {"first": (read_first, write_first), "second": (read_second, write_second)}


def write_shard(folder: Path, optimizer: torch.optim.Optimizer, rank: int) -> None:
    write_tensors(folder, f"optimizer-rank{rank}", named_tensors(optimizer.state_dict()["state"]), FILES[1])


def read_shards(
    folder: Path,
    written: int,
    optimizer: torch.optim.AdamW | Bf16AdamW,
    spans: Sequence[tuple[int, int]],
    rank: int,
    ranks: int,
) -> None:
    """Continue with what so many ranks have written. ValueError where that is of other weights.

    `spans`: of each weight, which of its numbers this process has; it is `rank` of `ranks`.
    """
    found = _found(folder, written)
    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    names = ("step", "exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.AdamW) else tuple(state[0])
    expected = {f"{number}.{name}" for number in range(len(spans)) for name in names}
    # torch's AdamW has nothing of a weight that never had a gradient.
    if found.keys() - expected or (isinstance(optimizer, Bf16AdamW) and found.keys() != expected):
        raise ValueError("the optimiser's state is of other weights or other moments")
    new: dict[int, dict[str, Tensor]] = {}
    for number, (start, stop) in enumerate(spans):
        if f"{number}.{names[0]}" not in found:
            continue
        pieces = {name: [part[...] for part in found[f"{number}.{name}"]] for name in names}
        if any(steps.numel() != 1 or not 0 <= float(steps) < 2**40 for steps in pieces.get("step", ())):
            raise ValueError("no number of steps")
        if written == ranks:
            new[number] = {name: parts[rank] for name, parts in pieces.items()}
        else:
            new[number] = _cut(pieces, start, stop, number)
        weight = optimizer.param_groups[0]["params"][number]
        for name, value in new[number].items():
            if name != "step" and not name.endswith("_scale"):
                new[number][name] = value.view(weight.shape)
    if isinstance(optimizer, torch.optim.AdamW):
        groups = optimizer.state_dict()["param_groups"]  # what they say is in the settings
        optimizer.load_state_dict({"state": new, "param_groups": groups})
    else:
        for number, kept in new.items():
            for name, value in kept.items():
                if (mine := state[number][name]).dtype != value.dtype or mine.shape != value.shape:
                    raise ValueError(f"the optimiser's {name} of weight {number} is of other weights or other moments")
                mine.copy_(value)


def _found(folder: Path, written: int) -> dict[str, list[Any]]:
    """By name, what each rank has written of it."""
    if type(written) is not int or written < 1:
        raise ValueError("no number of ranks")
    found: dict[str, list[Any]] = {}
    if written == 1 and (old := folder / "optimizer.pt").is_file():
        return {name: [tensor] for name, tensor in named_tensors(load_tensors(old)["state"])}
    for rank in range(written):
        stem = f"optimizer-rank{rank}" if written > 1 else "optimizer"
        files = [*folder.glob(f"{stem}.safetensors"), *folder.glob(f"{stem}-?????-of-?????.safetensors")]
        for name, part in (one for file in sorted(files) for one in read_tensors(file)):
            found.setdefault(name, []).append(part)
        if not files or any(len(parts) != rank + 1 for parts in found.values()):
            raise ValueError(f"what rank {rank} of {written} has written of the optimiser is not whole")
    return found


def _cut(pieces: dict[str, list[Tensor]], start: int, stop: int, number: int) -> dict[str, Tensor]:
    """The numbers from start to stop of a weight's state, whose pieces lie behind each other."""
    new: dict[str, Tensor] = {}
    for name, parts in pieces.items():
        if name == "step":
            new[name] = parts[0]
        elif f"{name}_scale" in pieces:
            read, write = CODED[name]
            scales = pieces[f"{name}_scale"]
            values = [read(codes.view(-1), scale) for codes, scale in zip(parts, scales, strict=True)]
            mine = torch.cat(values)[start:stop]
            new[name] = torch.empty(len(mine), dtype=parts[0].dtype)
            new[f"{name}_scale"] = torch.empty(-(-len(mine) // BLOCK))
            random = torch.Generator()
            random.manual_seed(derive("shards", number, start))
            write(mine, new[name], new[f"{name}_scale"], random)
        elif not name.endswith("_scale"):
            new[name] = torch.cat([part.view(-1) for part in parts])[start:stop]
    return new


def load_tensors(file: Path) -> Any:
    """What torch.save wrote: tensors, each as large as its part of the file, and nothing else. ValueError otherwise."""
    with zipfile.ZipFile(file) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("it is packed, and may be of any size")
    kept = torch.load(file, "cpu", weights_only=True)
    _refuse_views(kept)
    return kept


def _refuse_views(kept: Any) -> None:
    """ValueError for a tensor that is larger than what is stored of it."""
    if isinstance(kept, Tensor) and not (kept.layout == torch.strided and kept.is_contiguous()):
        raise ValueError("a tensor in it is larger than what is stored of it")
    for part in kept.values() if isinstance(kept, dict) else kept if isinstance(kept, list | tuple) else ():
        _refuse_views(part)
