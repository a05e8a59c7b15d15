"""The tiny checkpoints, made once."""

from tiny_model import other_folder, tiny, tiny_folder

__all__ = ["other_folder", "tiny", "tiny_folder"]
