"""The tiny checkpoints of each family, made once."""

from tiny_model import family, other_folder, tiny, tiny_folder

__all__ = ["family", "other_folder", "tiny", "tiny_folder"]
