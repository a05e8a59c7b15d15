"""A screen's bytes are lossless, and its name depends on its pixels and on nothing else."""

import hashlib
import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arpo.images import Pixels, decode, encode_png, observe, pixel_hash


@st.composite
def screens(draw: st.DrawFn) -> Pixels:
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    data = draw(st.binary(min_size=3 * width * height, max_size=3 * width * height))
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


@given(screens())
def test_pixels_survive_encoding(pixels: Pixels) -> None:
    seen = observe(pixels)
    assert np.array_equal(decode(seen.image), pixels)
    assert (seen.height, seen.width) == pixels.shape[:2]
    assert seen.hash == pixel_hash(decode(seen.image))


def test_the_hash_rule_is_fixed_for_ever() -> None:
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    assert pixel_hash(pixels) == hashlib.sha256(b"3x2:" + bytes(range(18))).hexdigest()[:32]


def test_equal_bytes_of_another_shape_have_another_hash() -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert pixel_hash(pixels) != pixel_hash(pixels.reshape(3, 2, 3))


def test_an_array_that_does_not_lie_row_by_row_in_memory_is_the_same_screen() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    mirrored = pixels[:, ::-1]
    assert pixel_hash(mirrored) == pixel_hash(mirrored.copy())
    assert encode_png(mirrored) == encode_png(mirrored.copy())


def test_the_hash_does_not_depend_on_who_encoded_the_screen() -> None:
    pixels = np.tile(np.arange(12, dtype=np.uint8).reshape(2, 2, 3), (8, 8, 1))
    other = io.BytesIO()
    Image.fromarray(pixels).quantize(16).save(other, "PNG", optimize=True)
    assert other.getvalue() != encode_png(pixels)
    assert pixel_hash(decode(other.getvalue())) == pixel_hash(pixels)


def test_pillow_finds_nothing_wrong_with_the_file() -> None:
    with Image.open(io.BytesIO(encode_png(np.zeros((3, 2, 3), np.uint8)))) as opened:
        assert (opened.format, opened.mode, opened.size) == ("PNG", "RGB", (2, 3))
        opened.verify()
