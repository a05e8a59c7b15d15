"""Screenshots as bytes: the one rule for hashing pixels and the one way to write them.

Equal screens have equal hashes whatever encoded them, so the hash is taken over decoded RGB pixels and the size.

PNG is written here and not by Pillow: on screens, which are flat areas, rows without a filter compress as well as
Pillow's adaptive filters and take a third of the time. To count the colours for a palette costs more than it saves.
"""

import hashlib
import io
import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo.errors import EnvError
from arpo.types import PIXELS, Observation

Pixels = NDArray[np.uint8]
"""Height x width x 3, red first."""

FORMATS = ("PNG", "WEBP", "JPEG", "BMP", "GIF")  # Pillow knows others too, and for some it starts programs
ZLIB_LEVEL = 2  # on drawn desktops as fast as level 1 and a tenth smaller


def pixel_hash(pixels: Pixels) -> str:
    """The name of a screen: 32 hex digits of the SHA-256 over "<width>x<height>:" and the RGB bytes, row by row."""
    height, width, _ = pixels.shape
    digest = hashlib.sha256(f"{width}x{height}:".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:32]


def encode_png(pixels: Pixels) -> bytes:
    """An 8-bit RGB PNG."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with its filter: 0, none
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, ZLIB_LEVEL)), (b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decode(image: bytes) -> Pixels:
    """The RGB pixels of an encoded image of FORMATS. EnvError where it is none, or larger than any screen."""
    return np.asarray(opened(image))


def opened(image: bytes) -> Image.Image:
    """The same as Pillow's image."""
    try:
        with Image.open(io.BytesIO(image), formats=FORMATS) as encoded:
            if math.prod(encoded.size) > PIXELS:
                raise ValueError(f"it has more than {PIXELS:,} pixels")
            return encoded.convert("RGB")
    except Exception as error:  # bytes that are cut short, or no image: Pillow has many words for it
        raise EnvError(f"a screenshot cannot be read: {error}") from error


def observe(pixels: Pixels) -> Observation:
    """The observation of a drawn screen."""
    height, width, _ = pixels.shape
    return Observation(image=encode_png(pixels), width=width, height=height, hash=pixel_hash(pixels))
