"""Points keep their place on the way to the model and back."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.agent.coordinates import Scaling
from arpo.errors import EnvError, ParseError
from arpo.resize import QWEN2_5, QWEN3, Sight

SCREENS = st.builds(Scaling.of, st.integers(200, 3840), st.integers(120, 2160))


@pytest.mark.parametrize(
    ("height", "width", "resized"),
    [
        (1080, 1920, (1092, 1932)),  # 39 x 69 = 2,691 image tokens
        (280, 448, (280, 448)),
        (2160, 3840, (2156, 3836)),
        (120, 200, (112, 196)),
        (1, 1, (56, 56)),  # grown to the least area
        (14, 42, (56, 112)),  # a half of 28 rounds to even: 0 and 56, too small an area
        (5000, 5000, (3556, 3556)),  # shrunk: 3584 would just fit, but the reference loses it to rounding as well
    ],
)
def test_images_are_resized_as_qwen_does(height: int, width: int, resized: tuple[int, int]) -> None:
    assert QWEN2_5.size(height, width) == resized


@pytest.mark.parametrize(
    ("height", "width", "resized"),
    [(1080, 1920, (1088, 1920)), (280, 448, (288, 448)), (84, 112, (224, 320)), (5000, 5000, (4096, 4096))],
)
def test_a_qwen3_has_larger_patches_and_other_bounds(height: int, width: int, resized: tuple[int, int]) -> None:
    assert QWEN3.size(height, width) == resized
    assert QWEN3.grid(width, height) == (resized[0] // 32, resized[1] // 32)
    assert QWEN3.tokens(width, height) == resized[0] * resized[1] // 1024


def test_the_bounds_of_the_area_can_be_set() -> None:
    few = dataclasses.replace(QWEN2_5, max_pixels=1280 * 28 * 28)
    many = dataclasses.replace(QWEN2_5, min_pixels=4096 * 28 * 28, max_pixels=9000 * 28 * 28)
    assert few.size(1080, 1920) == (728, 1316)
    assert many.size(1080, 1920) == (1344, 2408)


@given(st.integers(1, 6000), st.integers(1, 6000), st.sampled_from([QWEN2_5, QWEN3]))
@settings(max_examples=200, deadline=None)
def test_a_resized_image_is_made_of_whole_patches_and_of_an_allowed_area(height: int, width: int, sight: Sight) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(EnvError, match="cannot be shown"):
            sight.size(height, width)
        return
    new_height, new_width = sight.size(height, width)
    assert new_height % sight.factor == new_width % sight.factor == 0
    assert sight.min_pixels <= new_height * new_width <= sight.max_pixels


@given(SCREENS, st.data())
@settings(max_examples=300, deadline=None)
def test_a_point_comes_back_exactly_or_within_one_pixel(scaling: Scaling, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, scaling.width - 1))
    y = data.draw(st.integers(0, scaling.height - 1))
    model_x, model_y = scaling.to_model(x, y)
    assert 0 <= model_x < scaling.model_width and 0 <= model_y < scaling.model_height
    back_x, back_y = scaling.to_screen(model_x, model_y)
    assert abs(back_x - x) <= (0 if scaling.model_width >= scaling.width else 1)
    assert abs(back_y - y) <= (0 if scaling.model_height >= scaling.height else 1)


def test_the_borders_of_every_screen_stay_on_it() -> None:
    for width in range(200, 3841):
        scaling = Scaling.of(width, 120 + (width - 200) * 2040 // 3640)
        slack = 0 if scaling.model_width >= width else 1
        for x in (0, 1, width // 2, width - 2, width - 1):
            back, _ = scaling.to_screen(*scaling.to_model(x, 0))
            assert abs(back - x) <= slack and 0 <= back < width


@given(SCREENS, st.floats(0, 0.0199), st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_a_point_slightly_off_the_image_is_its_border(scaling: Scaling, off: float, axis: int) -> None:
    side = (scaling.model_width, scaling.model_height)[axis]
    last = (scaling.width, scaling.height)[axis] - 1
    for value, border in ((-off * side, 0), (side - 1 + off * side, last)):
        point = [5.0, 5.0]
        point[axis] = value
        assert scaling.to_screen(*point)[axis] == border


@pytest.mark.parametrize("far", [-0.0201, 1.0201, 3.0, math.inf, -math.inf, math.nan])
def test_a_point_far_off_the_image_is_an_error(far: float) -> None:
    scaling = Scaling.of(1920, 1080)
    with pytest.raises(ParseError, match="off the 1932x1092 image"):
        scaling.to_screen(far * 1932, 5)
    with pytest.raises(ParseError, match="off the 1932x1092 image"):
        scaling.to_screen(5, far * 1092)


def test_only_points_on_the_screen_are_shown_to_the_model() -> None:
    scaling = Scaling.of(448, 280)
    for x, y in ((-1, 0), (448, 0), (0, 280), (0, -1)):
        with pytest.raises(ValueError, match="not on a screen"):
            scaling.to_model(x, y)
