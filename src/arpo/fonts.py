"""The one font of drawn screens and pictures: the one that Pillow carries inside itself, the same on every machine."""

from functools import lru_cache

from PIL import ImageFont

from arpo.errors import EnvError


@lru_cache(maxsize=16)
def font(size: int) -> ImageFont.FreeTypeFont:
    """The font in a given pixel size."""
    loaded = ImageFont.load_default(size=size)
    if not isinstance(loaded, ImageFont.FreeTypeFont):  # a Pillow built without FreeType has a bitmap font only
        raise EnvError("this Pillow has no FreeType: install the wheel from PyPI")
    return loaded
