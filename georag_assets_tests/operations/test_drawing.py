"""Drawings: valid SVG, small enough to be shown, and in the right place."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from georag_assets.operations.drawing import INLINE_LIMIT, View, bars, histogram, large_map, line, small_map

SVG = "{http://www.w3.org/2000/svg}"


def image(markdown: str) -> ElementTree.Element:
    found = re.match(r"!\[\]\(data:image/svg\+xml(;base64)?,(\S+)\)\n\n", markdown)
    assert found is not None, markdown[:200]
    content = base64.b64decode(found[2]).decode() if found[1] else unquote(found[2])
    return ElementTree.fromstring(content)


@st.composite
def extents(draw: st.DrawFn) -> np.ndarray:
    count = draw(st.integers(1, 60))
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    west = seed.uniform(-180, 180, count)
    south = seed.uniform(-90, 90, count)
    wide = draw(st.sampled_from([0.0, 0.001, 1.0, 360.0]))
    east = west + seed.uniform(0, 1, count) * wide
    return np.column_stack((west, south, east, np.minimum(90, south + seed.uniform(0, 1, count) * wide)))


@given(extents())
def test_a_small_map_is_always_a_picture_that_is_shown_without_a_click(rows: np.ndarray) -> None:
    markdown = small_map(rows, "some words")
    assert len(markdown) <= INLINE_LIMIT
    assert image(markdown).tag == f"{SVG}svg"
    assert markdown.endswith("some words")


@given(extents())
def test_every_extent_is_in_view(rows: np.ndarray) -> None:
    view = View.around(rows, 1000)
    pixels = view.pixels(np.vstack((rows[:, :2], rows[:, 2:])))
    if np.ptp(rows[:, [0, 2]]) < 300:  # a map is at most one turn of the world wide
        assert pixels.min() >= -1e-6
        assert pixels[:, 0].max() <= 1000 + 1e-6
        assert pixels[:, 1].max() <= 500 + 1e-6


def test_a_large_map_draws_each_extent_where_it_lies() -> None:
    rows = np.array([[7.0, 46.0, 8.0, 47.0], [9.0, 46.5, 9.0, 46.5]])
    view = View.around(rows, 1000)
    path = [element.get("d", "") for element in image(large_map(rows, "x")).iter(f"{SVG}path")][-1]
    drawn = [tuple(map(int, found)) for found in re.findall(r"M(-?\d+),(-?\d+)", path)]
    assert drawn == [tuple(corner) for corner in np.rint(view.pixels(rows[:, :2])).astype(int).tolist()]


def test_many_extents_are_drawn_in_part_and_the_map_says_so() -> None:
    rows = np.repeat(np.random.default_rng(1).uniform(-80, 80, (5000, 2)), 2, axis=0).reshape(-1, 4)
    markdown = large_map(rows, "points")
    assert markdown.endswith("points; 1,500 of 5,000 drawn")
    assert len(markdown) < 100_000


def test_land_is_drawn_on_both_sides_of_the_antimeridian() -> None:
    fiji = image(large_map(np.array([[176.0, -20.0, 183.0, -15.0]]), "x"))
    land = fiji.find(f"{SVG}path")
    assert land is not None
    assert len(re.findall("M", land.get("d", ""))) >= 2  # Vanua Levu reaches over 180, Viti Levu does not


def test_a_histogram_counts_every_value() -> None:
    values = np.random.default_rng(1).normal(150, 40, 1000)
    binned = histogram(values)
    assert sum(count for _, count in binned) == 1000
    drawn = image(bars(binned, "tokens")).find(f"{SVG}path")
    assert drawn is not None and drawn.get("d", "").count("M") == len(binned) == 12
    assert histogram(np.array([])) == []


def test_labels_are_text_and_no_markup() -> None:
    texts = [element.text for element in image(bars([("<b>&'", 1.0)], "x")).iter(f"{SVG}text")]
    assert texts == ["<b>&'"]


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 5.0, 2.5], [float(number) for number in range(40)]])
def test_a_line_goes_from_the_oldest_to_the_newest(values: list[float]) -> None:
    drawn = image(line(values, "x")).find(f"{SVG}polyline")
    assert drawn is not None
    points = [tuple(map(float, point.split(","))) for point in drawn.get("points", "").split()]
    assert len(points) == len(values)
    assert (points[0][0], points[-1][0]) == (0, 240)
    assert (points[0][1] > points[-1][1]) == (values[-1] > values[0])
    assert shapely.LineString(points).is_valid
