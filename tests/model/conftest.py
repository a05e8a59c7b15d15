"""The tiny checkpoints of the engines' tests."""

from engines.conftest import other_folder, tiny, tiny_folder

__all__ = ["other_folder", "tiny", "tiny_folder"]
