"""Lets every test import `fake_env` from this folder, and offers it as a backend of the name `fake`."""

import os
import signal

import hypothesis
import pytest

import fake_env
from arpo.envs.base import BACKENDS

# Some virtual processors offer matrix instructions (AMX) that they have not got: with them bf16 would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):  # tests read what is printed
    os.environ.pop(name, None)

hypothesis.settings.register_profile("arpo", deadline=None)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("arpo")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "fake", fake_env.BACKEND)
