"""Lets every test import `fake_env` from this folder, and offers it as a backend of the name `fake`."""

import hypothesis
import pytest

from arpo.envs.base import BACKENDS, Backend

hypothesis.settings.register_profile("arpo", deadline=None)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("arpo")


@pytest.fixture
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(
        name="fake",
        about="one button, for tests",
        factory="fake_env:FakeEnv",
        deterministic=True,
        catalog="fake_env",
        expert="fake_env:Expert",
    )
    monkeypatch.setitem(BACKENDS, "fake", backend)
