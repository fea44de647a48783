"""Into EPSG:4326: best operations, accuracy, flags, what cannot be transformed."""

from __future__ import annotations

import pytest
from shapely.geometry import Point, Polygon, box

from georag_assets.errors import FrameError
from georag_assets.frames import project
from georag_assets.frames.project import fits, frame, successor, to_wgs84


def test_feet_of_new_york():
    shape, accuracy, _ = to_wgs84(Point(981106, 195544), 2263)
    assert (shape.x, shape.y) == pytest.approx((-74.0130, 40.7034), abs=0.01)
    assert accuracy is not None
    assert accuracy > 0


def test_degrees_stay_as_they_are_and_are_normalised():
    shape, accuracy, flags = to_wgs84(Polygon([(177, -19), (-178, -19), (-178, -15), (177, -15)]), 4326)
    assert accuracy == 0
    assert shape.bounds == (177, -19, 182, -15)
    assert "unwrapped" in flags


def test_a_frame_across_180_comes_out_unwrapped():
    shape, _, flags = to_wgs84(box(600_000, 8_000_000, 900_000, 8_100_000), 32760)
    assert shape.bounds[0] == pytest.approx(177.9, abs=0.2)
    assert shape.bounds[2] > 180
    assert "crosses_antimeridian" in flags


def test_the_best_operation_is_that_of_the_place():
    here = to_wgs84(Point(-122, 38), 4267)
    assert here[1] is not None
    assert here[1] < 30
    # NAD27 and WGS 84 differ by some 90 m in California: an identity would have been wrong.
    assert abs(here[0].x - -122) > 0.0005


def test_unavailable_grids_are_flagged():
    assert "better_operation_unavailable" in to_wgs84(Point(-122, 38), 4267)[2]


def test_what_proj_does_not_know():
    with pytest.raises(FrameError):
        to_wgs84(Point(0, 0), 99999)
    with pytest.raises(FrameError):
        frame("EPSG:99999")


def test_a_refusal_is_remembered_as_an_answer_is():
    # A page that names operations by their codes asks for the same unknown frame a thousand times.
    asked = project._known.cache_info().misses
    for _ in range(3):
        with pytest.raises(FrameError):
            frame("EPSG:99998")
    assert project._known.cache_info().misses - asked == 1


def test_coordinates_that_a_frame_cannot_express():
    with pytest.raises(FrameError):
        to_wgs84(Point(1e12, 1e12), 32632)


def test_area_of_use_and_round_trip():
    assert fits(Point(981106, 195544), 2263) == (True, True)
    assert fits(Point(500_000, 5_250_000), 2263)[0] is False
    assert fits(Point(179.9, -17), 4326) == (True, True)
    assert fits(Point(181, -17), 4326) == (True, True)


def test_successor():
    assert successor("EPSG:4326") == "EPSG:4326"
    assert successor("EPSG:2153") == "EPSG:2955"
