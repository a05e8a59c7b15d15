"""Tensors in files of safetensors' form, one by one: a model that fills half of the memory can be written and read.

    files = write_tensors(folder, "model", model.named_parameters(), most=2**30)
    for name, part in read_tensors(file): weight.copy_(part[...])

safetensors' own writer wants all tensors of a file at once, copies them, and lets no other thread run meanwhile.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

HEADER = 2**24  # bytes that precede the tensors, at most
KINDS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
}


def write_tensors(
    folder: Path, stem: str, tensors: Iterable[tuple[str, Tensor]], most: int, rank: int = 0, ranks: int = 1
) -> dict[str, str]:
    """As stem.safetensors, or in several files of up to `most` bytes; returns in which file each is.

    They are taken from `tensors` as they are written; those of one file are in memory together. `ranks`: so many
    processes are given the same tensors, and each writes every so manyth file.
    """
    files: list[list[str]] = [[]]
    batch: dict[str, Tensor] = {}
    size = 0

    def mine(number: int) -> bool:
        return number % ranks == rank

    def finish() -> None:
        if mine(len(files) - 1):
            _write(folder / f"{stem}-{len(files) - 1}.part", batch)
        batch.clear()

    for name, tensor in tensors:
        if files[-1] and size + tensor.nbytes > most:
            finish()
            files.append([])
            size = 0
        size += tensor.nbytes
        files[-1].append(name)
        if mine(len(files) - 1):
            batch[name] = tensor.detach().cpu().contiguous()
    finish()
    places: dict[str, str] = {}
    for number, names in enumerate(files):
        file = f"{stem}-{number + 1:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else f"{stem}.safetensors"
        if mine(number):
            (folder / f"{stem}-{number}.part").rename(folder / file)
        places |= dict.fromkeys(names, file)
    return places


def read_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """What a file holds, each with its name and not read yet. SafetensorError or OSError where it is damaged."""
    with file.open("rb") as begun:
        if int.from_bytes(begun.read(8), "little") > HEADER:
            raise SafetensorError(f"{file.name} begins with more than {HEADER:,} bytes that are no weights")
    with safe_open(file, "pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118
            yield key, tensors.get_slice(key)


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    """One file: the length of its header, the header, the tensors, wide numbers first: so all are aligned."""
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with file.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                out.write(tensors[name].view(-1).view(torch.uint8).numpy().data)
    except OSError as error:  # a full disk does not say of which file
        raise OSError(error.errno, error.strerror, str(file)) from error
