"""The spatial filter misses nothing, in any form, anywhere on the earth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapely.affinity import translate
from shapely.geometry import MultiPoint, Point, Polygon, box

from georag_assets.errors import QueryError
from georag_assets.geometry.region import Region
from georag_assets.index.filter import (
    MAX_BOX_HEIGHT,
    MAX_BOX_WIDTH,
    AllOf,
    AnyOf,
    CentreIn,
    Condition,
    payload_condition,
)
from georag_assets.index.models import SearchFilter
from georag_assets_tests.index.small_builds import Small, write_small

Case = Callable[[str], dict[str, Any]]


def awkward_geometries(count: int, seed: int) -> list[shapely.Geometry | None]:
    """Return points, boxes and triangles of every size, at the poles, over the antimeridian and round the world too."""
    random = np.random.default_rng(seed)
    found: list[shapely.Geometry | None] = []
    for number in range(count):
        place = number % 5
        lon = random.uniform(-180, 180) if place != 1 else 180 + random.normal(0, 3)
        lat = random.uniform(-90, 90) if place != 2 else random.choice([-1, 1]) * (90 - abs(random.normal(0, 3)))
        half = 10 ** random.uniform(-4, 1.2) if place != 3 else random.uniform(20, 179)
        south, north = max(lat - half / 2, -90.0), min(lat + half / 2, 90.0)
        shape = number % 7
        if shape == 0:
            found.append(Point(lon, lat))
        elif shape == 1 and place != 3:
            found.append(Polygon([(lon, south), (lon + half, south), (lon, north)]))
        elif number % 41 == 0:
            found.append(None)
        else:
            found.append(box(lon - half, south, lon + half, north))
    return found


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    small = write_small(tmp_path_factory.mktemp("awkward"), awkward_geometries(3_000, 11))
    yield small
    small.store.close()


def truth(small: Small, region: Region) -> set[str]:
    """Return the ids of what the region covers, by brute force over every geometry: no box, no column, no index."""
    rows = np.flatnonzero(small.columns.located)
    geometries = small.columns.geometries(rows)
    if region.radius_m > 0:
        passed = region.covers_any(geometries)
    else:
        passed = np.zeros(len(rows), dtype=bool)
        for turn in (-720, -360, 0, 360, 720):
            moved = translate(region.shape, turn)
            passed |= shapely.intersects(moved, geometries)
        south, north = small.columns.extents[rows, 1], small.columns.extents[rows, 3]
        # A pole is one point, whatever its longitude.
        passed |= (north >= 90) & (region.shape.bounds[3] >= 90) | (south <= -90) & (region.shape.bounds[1] <= -90)
    return set(small.columns.ids_of(rows[passed]))


def missed(small: Small, region: Region) -> dict[str, int]:
    """Return how many covered points each form does not let through."""
    covered = truth(small, region)
    where = SearchFilter(region=region)
    loose = [small.ids_by(payload_condition(where, form=form)) for form in ("ranges", "classes")]
    counted = set(small.columns.ids_of(small.columns.survivors(where)))
    by_plan = set(small.numbers_of(where))
    assert loose[0] == loose[1], "ranges and size classes differ"
    assert len(loose[0]) == small.columns.select(where).loose_count, "the engine and the columns differ"
    assert counted == covered
    assert len(by_plan) == len(covered)
    return {"ranges": len(covered - loose[0]), "classes": len(covered - loose[1])}


longitudes = st.one_of(st.floats(-180, 180), st.sampled_from([-180.0, 180.0, 179.9999, -179.9999, 0.0]))
latitudes = st.one_of(st.floats(-90, 90), st.sampled_from([-90.0, 90.0, 89.9999, 0.0]))


@st.composite
def regions(draw: st.DrawFn) -> Region:
    kind = draw(st.sampled_from(["box", "tiny", "radius", "polygon", "belt"]))
    lon, lat = draw(longitudes), draw(latitudes)
    if kind == "radius":
        return Region.from_point(lon, lat, draw(st.sampled_from([0.0, 500.0, 30_000.0, 900_000.0, 8e6])))
    if kind == "polygon":
        half = draw(st.floats(0.01, 40))
        top = min(lat + half, 90.0)
        return Region.from_shape(Polygon([(lon, max(lat - half, -90.0)), (lon + half, top), (lon - half, top)]))
    if kind == "belt":
        south, north = sorted((lat, draw(latitudes)))
        return Region.from_bbox(-180, south, 180, north)
    half = draw(st.floats(1e-6, 0.2) if kind == "tiny" else st.floats(0.2, 170))
    wrapped = [(edge + 180) % 360 - 180 for edge in (lon - half, lon + half)]
    return Region.from_bbox(wrapped[0], max(lat - half, -90.0), wrapped[1], min(lat + half, 90.0))


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(region=regions())
def test_no_form_misses_a_point_of_any_region(awkward: Small, region: Region) -> None:
    if region.shape.is_empty or (region.shape.area == 0 and region.radius_m == 0):
        return
    assert missed(awkward, region) == {"ranges": 0, "classes": 0}


def test_nothing_is_missed_over_seeded_regions_of_every_kind(awkward: Small) -> None:
    random = np.random.default_rng(3)
    lost = 0
    for number in range(150):
        lon, lat = random.uniform(-180, 180), random.uniform(-90, 90)
        if number % 3 == 0:
            lon = 180 - random.exponential(2)
        if number % 5 == 0:
            lat = 90 - random.exponential(2)
        half = 10 ** random.uniform(-3, 2.2)
        west, east = (lon - half + 180) % 360 - 180, (lon + half + 180) % 360 - 180
        region = Region.from_bbox(west, max(lat - half / 2, -90), east, min(lat + half / 2, 90))
        lost += sum(missed(awkward, region).values())
    assert lost == 0


def test_the_world_is_everything_with_a_place(awkward: Small) -> None:
    world = SearchFilter(region=Region.from_bbox(-180, -90, 180, 90))
    assert len(awkward.columns.survivors(world)) == np.count_nonzero(awkward.columns.located)


def centre_boxes(condition: Condition | None) -> Iterator[CentreIn]:
    if isinstance(condition, CentreIn):
        yield condition
    elif isinstance(condition, AllOf | AnyOf):
        for part in condition.conditions:
            yield from centre_boxes(part)


@pytest.mark.parametrize("half", [0.01, 1.0, 30.0, 100.0, 130.0, 179.0])
def test_no_geo_box_is_wider_or_higher_than_the_engine_can_be_trusted_with(half: float) -> None:
    region = Region.from_bbox(-half, -min(half, 90), half, min(half, 90))
    for centre in centre_boxes(payload_condition(SearchFilter(region=region), form="classes")):
        assert (centre.east - centre.west) % 360 <= MAX_BOX_WIDTH
        assert centre.north - centre.south <= MAX_BOX_HEIGHT


def test_points_without_geometry_have_a_lane_of_their_own(awkward: Small) -> None:
    absent = {number for number, geometry in enumerate(awkward.geometries) if geometry is None}
    for planned in (awkward.planned(), awkward.planned(ids_limit=0)):
        without = set(awkward.numbers_of(SearchFilter(located=False), search=planned))
        placed = set(awkward.numbers_of(SearchFilter(located=True), search=planned))
        assert without == absent
        assert placed == set(awkward.numbers) - absent


def test_a_filter_that_contradicts_itself_is_refused(awkward: Small) -> None:
    for where in (
        SearchFilter(region=Region.from_bbox(0, 0, 1, 1), located=False),
        SearchFilter(period=(5.0, 5.0)),
        SearchFilter(period=(float("nan"), 5.0)),
        SearchFilter(equals={"subjects": "history"}),
    ):
        with pytest.raises(QueryError):
            awkward.columns.survivors(where)


def test_periods_pass_what_overlaps_and_keywords_what_equals(tmp_path: Path) -> None:
    small = write_small(
        tmp_path,
        [Point(0, 0)] * 5,
        payload={
            "period_start": [0.0, 10.0, 20.0, None, 9.5],
            "period_end": [10.0, 20.0, 30.0, None, 9.75],
            "doc_id": ["a", "a", "b", "b", "c"],
            "epsg": [4326, 2056, 4326, None, 2056],
        },
    )
    assert small.numbers_of(SearchFilter(period=(10.0, 20.0))) == [1]
    assert small.numbers_of(SearchFilter(period=(9.0, 10.5))) == [0, 1, 4]
    assert small.numbers_of(SearchFilter(equals={"doc_id": "a"})) == [0, 1]
    assert small.numbers_of(SearchFilter(equals={"epsg": "2056", "doc_id": "c"})) == [4]
    assert small.numbers_of(SearchFilter(equals={"doc_id": "absent"})) == []
    for form in (0, 10):
        planned = small.planned(ids_limit=form)
        assert small.numbers_of(SearchFilter(period=(9.0, 10.5)), search=planned) == [0, 1, 4]


# Cases from public bug reports -------------------------------------------------------------------------------------


def shape_of(location: Any) -> shapely.Geometry | None:
    if location is None:
        return None
    if isinstance(location, list):
        return MultiPoint([(one["lon"], one["lat"]) for one in location])
    return Point(location["lon"], location["lat"])


@pytest.fixture(scope="module")
def islands(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """The points that cases d01 to d04 share."""
    points = case("d01")["input"]["points"]
    assert all(case(name)["input"]["points"] == points for name in ("d02", "d03", "d04"))
    geometries = [shape_of(one["loc"]) for one in points]
    small = write_small(tmp_path_factory.mktemp("islands"), geometries, numbers=[one["id"] for one in points])
    yield small
    small.store.close()


def both_ways(small: Small, region: Region) -> list[int]:
    """Return what is found by ids, having checked that the payload filter finds the same."""
    where = SearchFilter(region=region)
    by_ids = small.numbers_of(where)
    assert small.numbers_of(where, search=small.planned(ids_limit=0)) == by_ids
    return by_ids


def test_d01_a_box_across_the_antimeridian_includes_its_edges(case: Case, islands: Small) -> None:
    given_, expected = case("d01")["input"], case("d01")["expected"]
    assert both_ways(islands, Region.from_bbox(**given_["bbox"])) == sorted(expected["ids"])


def test_d02_a_radius_sees_the_other_side_of_the_antimeridian(case: Case, islands: Small) -> None:
    given_, expected = case("d02")["input"], case("d02")["expected"]
    region = Region.from_point(given_["centre"]["lon"], given_["centre"]["lat"], given_["radius_m"])
    assert both_ways(islands, region) == expected["ids"]


def test_d03_a_ring_with_wrapped_longitudes_is_not_its_complement(case: Case, islands: Small) -> None:
    given_, expected = case("d03")["input"], case("d03")["expected"]
    found = both_ways(islands, Region.from_ring(given_["polygon"]))
    assert set(expected["ids_min"]) <= set(found)
    assert set(expected["ids_never"]).isdisjoint(found)


def test_d04_an_open_ring_is_closed_before_the_store(case: Case, islands: Small) -> None:
    given_, expected = case("d04")["input"], case("d04")["expected"]
    region = Region.from_ring(given_["polygon"])
    assert both_ways(islands, region) == expected["if_closed_ids"]
    assert "closed_ring" in region.flags


def test_d08_a_radius_at_the_pole_and_a_negative_one(case: Case, tmp_path: Path) -> None:
    given_ = case("d08")["input"]
    lon, lat = given_["centre"]["lon"], given_["centre"]["lat"]
    small = write_small(tmp_path, [Point(170, 89.9), Point(-70, 89.88), Point(12, 90), Point(0, 89.893)])
    assert both_ways(small, Region.from_point(lon, lat, given_["radius_m"][0])) == [0, 2, 3]
    with pytest.raises(QueryError):
        Region.from_point(lon, lat, given_["radius_m"][1])


def test_d16_an_item_across_180_is_not_in_an_unrelated_box(case: Case, tmp_path: Path) -> None:
    given_ = case("d16")["input"]
    (west, east), (south, north) = given_["item_ring_lon"], given_["item_lat"]
    ring = [(west, south), (east, south), (east, north), (west, north), (west, south)]
    small = write_small(tmp_path, [Polygon(ring)])
    assert both_ways(small, Region.from_bbox(*given_["query_bbox"])) == []
    assert both_ways(small, Region.from_bbox(-179, -28.5, -178.5, -28)) == [0]
    np.testing.assert_allclose(small.columns.extents[0], [179.2, -29, 181.7, -27])


def test_d18_an_area_is_found_from_a_point_inside_it_far_from_its_centre(case: Case, tmp_path: Path) -> None:
    given_ = case("d18")["input"]
    small = write_small(tmp_path, [box(*given_["feature_bbox"])])
    lon, lat = given_["query"]["centre"]
    region = Region.from_point(lon, lat, given_["query"]["radius_m"])
    assert both_ways(small, region) == [0]
