"""Regions and distances on a round earth, against brute force by Geod and the public bug reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Geod
from shapely.geometry import LineString, MultiPoint, Point, Polygon, box

from georag_assets.errors import GeometryError, QueryError
from georag_assets.geometry.distance import distances_m, geodesic_m
from georag_assets.geometry.extent import bounds_of, extent_meets, extent_of
from georag_assets.geometry.region import Region
from georag_assets.geometry.shapes import box_shape, normalise

GEOD = Geod(ellps="WGS84")


def stored(geometries):
    array = np.empty(len(geometries), dtype=object)
    array[:] = [None if g is None else normalise(g)[0] for g in geometries]
    return array


def located(points):
    """The cases' points: one place, several, or none."""
    shapes = []
    for point in points:
        loc = point["loc"]
        if loc is None:
            shapes.append(None)
        elif isinstance(loc, list):
            shapes.append(MultiPoint([(x["lon"], x["lat"]) for x in loc]))
        else:
            shapes.append(Point(loc["lon"], loc["lat"]))
    return [p["id"] for p in points], stored(shapes)


def matching(region, ids, geometries):
    found = [i for i, hit in zip(ids, region.covers_any(geometries), strict=True) if hit]
    # Whatever the predicate finds, the boxes must have let through.
    loose = np.zeros(len(ids), dtype=bool)
    for extent in region.boxes():
        loose |= extent_meets(extent, bounds_of(geometries))
    assert set(found) <= {i for i, hit in zip(ids, loose, strict=True) if hit}
    return found


def test_d01_box_across_180_includes_its_edges(case):
    record = case("d01")
    ids, geometries = located(record["input"]["points"])
    b = record["input"]["bbox"]
    region = Region.from_bbox(b["west"], b["south"], b["east"], b["north"])
    assert matching(region, ids, geometries) == record["expected"]["ids"]
    assert region.flags == ("crosses_antimeridian",)


def test_d02_radius_near_180_reaches_the_other_side(case):
    record = case("d02")
    ids, geometries = located(record["input"]["points"])
    c = record["input"]["centre"]
    region = Region.from_point(c["lon"], c["lat"], record["input"]["radius_m"])
    assert matching(region, ids, geometries) == record["expected"]["ids"]
    assert region.distance_m(geometries)[5] == pytest.approx(record["expected"]["distance_m_to_6"], abs=1)


def test_d03_ring_across_180_is_unwrapped(case):
    record = case("d03")
    ids, geometries = located(record["input"]["points"])
    region = Region.from_ring(record["input"]["polygon"])
    found = matching(region, ids, geometries)
    assert set(record["expected"]["ids_min"]) <= set(found)
    assert not set(record["expected"]["ids_never"]) & set(found)
    assert "unwrapped" in region.flags


def test_d04_open_ring_is_closed_and_flagged(case):
    record = case("d04")
    ids, geometries = located(record["input"]["points"])
    region = Region.from_ring(record["input"]["polygon"])
    assert "closed_ring" in region.flags
    # 5 has one of its two places at 50 N and the other across the world: only 3 is inside.
    assert matching(region, ids, geometries) == record["expected"]["if_closed_ids"]


def test_d08_radius_at_the_pole_and_negative(case):
    record = case("d08")
    c, (metres, negative) = record["input"]["centre"], record["input"]["radius_m"]
    lons = np.arange(-180, 180, 30.0)
    at_edge = stored([Point(lon, 89.893) for lon in lons])
    below = stored([Point(lon, 89.892) for lon in lons])
    region = Region.from_point(c["lon"], c["lat"], metres)
    assert region.covers_any(at_edge).all()
    assert not region.covers_any(below).any()
    with pytest.raises(QueryError):
        Region.from_point(c["lon"], c["lat"], negative)


def test_d16_item_across_180_is_not_in_an_unrelated_box(case):
    record = case("d16")
    (west, east), (south, north) = record["input"]["item_ring_lon"], record["input"]["item_lat"]
    item = stored([Polygon([(west, south), (east, south), (east, north), (west, north)])])
    region = Region.from_bbox(*record["input"]["query_bbox"])
    assert bool(region.covers_any(item)[0]) is record["expected"]["match"]
    assert list(extent_of(item[0]).bbox()) == pytest.approx(record["expected"]["stored_bbox"])


def test_d18_area_is_found_by_a_radius_inside_it(case):
    record = case("d18")
    query = record["input"]["query"]
    area = stored([box(*record["input"]["feature_bbox"])])
    region = Region.from_point(*query["centre"], query["radius_m"])
    assert bool(region.covers_any(area)[0]) is record["expected"]["match"]
    assert region.distance_m(area)[0] == 0
    centre = stored([Point(record["input"]["stored_point"])])
    assert not region.covers_any(centre)[0]
    assert region.distance_m(centre)[0] / 1000 == pytest.approx(record["expected"]["distance_to_centroid_km"], abs=0.1)


def test_g09_swapped_axes_are_thousands_of_kilometres_apart(case):
    record = case("g09")
    km = geodesic_m(Point(8.5, 47.5), Point(47.5, 8.5)) / 1000
    assert km == pytest.approx(record["expected"]["distance_km"], abs=1)


lon = st.floats(-180, 180, allow_nan=False)
lat = st.floats(-90, 90, allow_nan=False)


@st.composite
def shapes(draw):
    x, y = draw(lon), draw(st.one_of(lat, st.sampled_from([-90.0, -89.99, 0.0, 89.99, 90.0])))
    w, h = draw(st.sampled_from([0, 1e-4, 0.01, 0.5, 5, 40])), draw(st.sampled_from([0, 1e-4, 0.01, 0.5, 5, 40]))
    return box_shape(x, y, x + w, min(90.0, y + h))


@settings(max_examples=150)
@given(st.lists(shapes(), min_size=1, max_size=12), lon, lat, st.floats(100, 5e6))
def test_radius_predicate_equals_brute_force(found, x, y, radius):
    geometries = stored(found)
    region = Region.from_point(x, y, radius)
    got = region.covers_any(geometries)
    for geometry, hit in zip(geometries, got, strict=True):
        nearest = brute_m(region.shape, geometry)
        if abs(nearest - radius) > 1 + radius * 1e-3 + spacing_m(geometry):
            assert hit == (nearest <= radius), (nearest, radius, geometry.wkt, region.shape.wkt)
    loose = np.zeros(len(geometries), dtype=bool)
    for extent in region.boxes():
        assert -180 <= extent.west < 180
        loose |= extent_meets(extent, bounds_of(geometries))
    assert (loose | ~got).all()


def spacing_m(geometry):
    """How far two neighbours among `brute_m`'s points can be apart."""
    return geometry.length * 111_700 / 4000


def brute_m(point, geometry):
    """Many points along every edge, one by one."""
    for turn in (-360, 0, 360):
        if geometry.intersects(Point(point.x + turn, point.y)):
            return 0.0
    line = geometry.boundary if geometry.geom_type == "Polygon" else geometry
    if line.length:
        xy = shapely.get_coordinates(line.interpolate(np.linspace(0, 1, 4000), normalized=True))
        xy = np.vstack([xy, shapely.get_coordinates(geometry)])
    else:
        xy = shapely.get_coordinates(geometry)
    return float(GEOD.inv(np.full(len(xy), point.x), np.full(len(xy), point.y), xy[:, 0], xy[:, 1])[2].min())


@settings(max_examples=100)
@given(shapes(), lon, lat)
def test_distance_to_a_shape_is_to_its_nearest_point(shape, x, y):
    geometry = normalise(shape)[0]
    point = Point(x, y)
    assert geodesic_m(point, geometry) == pytest.approx(brute_m(point, geometry), rel=1e-5, abs=1 + spacing_m(geometry))
    assert geodesic_m(point, geometry) <= brute_m(point, geometry) + 1e-3


@settings(max_examples=150)
@given(st.lists(shapes(), min_size=1, max_size=12), lon, st.floats(0, 359), lat, st.floats(0, 60))
def test_box_predicate_equals_a_plain_one_on_three_sheets(found, west, width, south, height):
    geometries = stored(found)
    region = Region.from_bbox(
        west, south, west + width if west + width <= 180 else west + width - 360, min(90, south + height)
    )
    got = region.covers_any(geometries)
    plain = [
        any(
            g.intersects(shapely.transform(region.shape, lambda xy, t=t: xy + np.array([t, 0]))) for t in (-360, 0, 360)
        )
        or (g.bounds[3] >= 90 and region.shape.bounds[3] >= 90)
        or (g.bounds[1] <= -90 and region.shape.bounds[1] <= -90)
        for g in geometries
    ]
    assert got.tolist() == plain
    matching(region, list(range(len(found))), geometries)


def test_shape_to_shape_across_180():
    a, b = box(179, 0, 179.9, 1), box(-179.9, 0, -179, 1)
    assert geodesic_m(a, b) == pytest.approx(GEOD.inv(179.9, 1, -179.9, 1)[2], rel=1e-3)
    assert geodesic_m(a, box(179.5, 0.5, 181, 2)) == 0


def test_radius_around_a_shape():
    region = Region.from_shape(box(7, 46, 8, 47), radius_m=10_000)
    geometries = [Point(7.5, 46.5), Point(8.1, 46.5), Point(8.2, 46.5), box(8.05, 46, 9, 47)]
    geometries += [LineString([(8.3, 46), (8.3, 47)]), Point(-352.5, 46.5)]
    assert region.covers_any(stored(geometries)).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("radius", [math.nan, math.inf, -math.inf, -1e-9])
def test_radii_that_are_no_radii(radius):
    with pytest.raises(QueryError):
        Region.from_point(0, 0, radius)


@pytest.mark.parametrize("radius", [0, 1e-9, 99.9])
def test_a_radius_under_the_floor_is_raised_and_flagged(radius):
    region = Region.from_point(0, 0, radius)
    assert region.radius_m == 100
    assert "radius_raised_to_floor" in region.flags


def test_swapped_west_and_east_is_a_flagged_belt():
    region = Region.from_bbox(10, 40, 6, 50)
    assert "wrapped_box_over_180" in region.flags
    assert region.covers_any(stored([Point(100, 45), Point(8, 45)])).tolist() == [True, False]


@pytest.mark.parametrize(
    "bbox", [(0, 10, 5, 5), (0, -91, 1, 0), (math.nan, 0, 1, 1), (0, 0, math.inf, 1), (0, 0, 999, 1)]
)
def test_boxes_that_are_no_boxes(bbox):
    with pytest.raises(QueryError):
        Region.from_bbox(*bbox)


def test_rings_that_are_no_rings():
    for ring in ([(0, 0), (1, 1)], [(0, 0), (1, math.nan), (2, 2)]):
        with pytest.raises(GeometryError):
            Region.from_ring(ring)


def test_none_and_empty_geometries_never_match():
    nothing = np.array([None, Polygon()], dtype=object)
    for region in (Region.from_bbox(-180, -90, 180, 90), Region.from_point(0, 0, 3e7)):
        assert not region.covers_any(nothing).any()
    assert np.isnan(Region.from_point(0, 0).distance_m(nothing)).all()


def test_overlap_is_one_for_itself_and_small_for_the_world():
    region = Region.from_bbox(170, -20, -170, -10)
    overlap = region.overlap(stored([region.shape, box_shape(-180, -90, 180, 90), Point(0, 0), Point(180, -15)]))
    assert overlap[0] == pytest.approx(1)
    assert 0 < overlap[1] < 0.02
    assert overlap[2] == 0
    assert 0 < overlap[3] < 1e-6


def test_many_survivors_take_little_time(benchmark_seconds):
    rng = np.random.default_rng(7)
    x, y, w = rng.uniform(-179, 179, 100_000), rng.uniform(-80, 80, 100_000), rng.uniform(0, 0.5, 100_000)
    geometries = shapely.box(x, y, x + w, y + w)
    for region in (Region.from_bbox(-100, -60, 100, 60), Region.from_point(5, 45, 2e6)):
        assert benchmark_seconds(lambda region=region: region.covers_any(geometries)) < 1.0


def test_points_to_points_in_one_call():
    geometries = stored([Point(0, 1), box(1, 1, 2, 2), None])
    metres = distances_m(Point(0, 0), geometries)
    assert metres[0] == pytest.approx(110574.4, abs=0.1)
    assert math.isnan(metres[2])


@settings(max_examples=60)
@given(shapes(), st.lists(shapes(), min_size=1, max_size=8), st.floats(100, 2e6))
def test_a_radius_around_a_shape_is_what_its_distance_says(shape, found, radius):
    region = Region.from_shape(shape, radius_m=radius)
    geometries = stored(found)
    metres = region.distance_m(geometries)
    got = region.covers_any(geometries)
    clear = np.abs(metres - radius) > 1
    assert (got == (metres <= radius))[clear].all()
    loose = np.zeros(len(geometries), dtype=bool)
    for extent in region.boxes():
        loose |= extent_meets(extent, bounds_of(geometries))
    assert (loose | ~got).all()
    # Distance is the same from either side.
    back = [geodesic_m(geometry, region.shape) for geometry in geometries]
    assert metres == pytest.approx(back, rel=1e-4, abs=1)
