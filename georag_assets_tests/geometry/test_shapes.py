"""Shapes and extents: the antimeridian, poles, dimensions, what is empty or invalid."""

from __future__ import annotations

import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely.geometry import GeometryCollection, LineString, MultiPoint, MultiPolygon, Point, Polygon, box

from georag_assets.errors import GeometryError
from georag_assets.geometry.extent import Extent, extent_of
from georag_assets.geometry.shapes import box_shape, normalise

WRAPPED = [(177, -19), (-178, -19), (-178, -15), (177, -15)]


def bounds(geometry):
    extent = extent_of(geometry)
    return (extent.west, extent.south, extent.east, extent.north)


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        (Point(180, 5), (-180, 5, -180, 5)),
        (Point(-180, 5), (-180, 5, -180, 5)),
        (Point(190, 5), (-170, 5, -170, 5)),
        (Polygon(WRAPPED), (177, -19, 182, -15)),
        (Polygon(WRAPPED[::-1]), (177, -19, 182, -15)),
        (Polygon([(177, -19), (180, -19), (-180, -19), (-178, -19), (-178, -15), (177, -15)]), (177, -19, 182, -15)),
        (LineString([(179, 0), (-179, 1)]), (179, 0, 181, 1)),
        (MultiPoint([(179, 0), (-179, 1)]), (179, 0, 181, 1)),
        (MultiPolygon([box(177, -19, 180, -15), box(-180, -19, -178, -15)]), (177, -19, 182, -15)),
        (GeometryCollection([Point(179, 0), box(-179, 0, -178, 1)]), (179, 0, 182, 1)),
        (box(-180, -90, 180, 90), (-180, -90, 180, 90)),
        (box_shape(-179.9, -80, 179.9, 80), (-179.9, -80, 179.9, 80)),
        (box_shape(170, -20, -170, -10), (170, -20, 190, -10)),
        (MultiPoint([(-60, 0), (60, 0), (179, 0)]), (-60, 0, 179, 0)),
        (Polygon([(0, 70), (90, 70), (180, 70), (-90, 70)]), (0, 70, 360, 90)),
        (Polygon([(0, -70), (-90, -70), (180, -70), (90, -70)]), (-180, -90, 180, -70)),
    ],
)
def test_extent_is_the_shortest_box_that_holds_the_geometry(geometry, expected):
    got = bounds(geometry)
    if got[2] - got[0] >= 360:  # The whole circle may begin anywhere.
        assert got[2] - got[0] == 360
        assert (got[1], got[3]) == (expected[1], expected[3])
    else:
        assert got == pytest.approx(expected)


def test_a_split_polygon_is_one_again():
    joined, flags = normalise(MultiPolygon([box(177, -19, 180, -15), box(-180, -19, -178, -15)]))
    assert joined.equals(box(177, -19, 182, -15))
    assert "crosses_antimeridian" in flags


def test_a_hole_follows_its_shell_across_180():
    shell = Polygon(WRAPPED, [[(-179.5, -18), (-179, -18), (-179, -17), (-179.5, -17)]])
    shape, _ = normalise(shell)
    assert shape.area == pytest.approx(5 * 4 - 0.5)
    assert not shape.intersects(Point(180.75, -17.5))
    assert shape.intersects(Point(179.5, -17.5))


def test_a_ring_round_the_pole_holds_the_pole():
    shape, flags = normalise(Polygon([(0, 70), (90, 70), (180, 70), (-90, 70)]))
    assert "encloses_pole" in flags
    assert shape.bounds[3] == 90
    assert any(shape.intersects(Point(45 + turn, 89)) for turn in (-360, 0, 360))


def test_natural_earth_keeps_its_areas(shared):
    import pyarrow.parquet as pq

    for layer in ("ne_110m_admin0", "ne_50m_marine", "ne_50m_lakes", "ne_50m_admin1"):
        table = pq.read_table(shared / "data" / "gazetteer" / f"{layer}.parquet")
        for geometry in shapely.from_wkb(table["geometry"].to_numpy()):
            shape, _ = normalise(geometry)
            assert shape.is_valid
            assert shape.area == pytest.approx(shapely.make_valid(geometry).area, rel=1e-6)
            assert -180 <= shape.bounds[0] < 180
            assert shape.bounds[2] - shape.bounds[0] <= 360


def test_antarctica_spans_all_longitudes_and_russia_does_not(shared):
    import pyarrow.parquet as pq

    table = pq.read_table(shared / "data" / "gazetteer" / "ne_110m_admin0.parquet", columns=["NAME", "geometry"])
    named = dict(zip(table["NAME"].to_pylist(), shapely.from_wkb(table["geometry"].to_numpy()), strict=True))
    assert bounds(named["Antarctica"]) == pytest.approx((-180, -90, 180, -63.3), abs=0.1)
    russia = bounds(named["Russia"])
    assert 19 < russia[0] < 28
    assert 190 < russia[2] < 191
    assert extent_of(named["Fiji"]).width < 5
    usa = bounds(named["United States of America"])
    assert usa[2] - usa[0] < 130


def test_dimensions_are_dropped_and_flagged():
    shape, flags = normalise(shapely.from_wkt("POLYGON Z ((0 0 5, 1 0 5, 1 1 5, 0 0 5))"))
    assert not shape.has_z
    assert flags == ("has_z",)
    assert normalise(shapely.from_wkt("POINT M (1 2 3)")) == (Point(1, 2), ("has_m",))


def test_an_invalid_ring_is_repaired_and_flagged():
    shape, flags = normalise(Polygon([(0, 0), (2, 2), (2, 0), (0, 2)]))
    assert flags == ("made_valid",)
    assert shape.area == pytest.approx(2)


@pytest.mark.parametrize("empty", [Polygon(), Point(), GeometryCollection(), MultiPolygon(), None])
def test_nothing_has_no_extent(empty):
    assert extent_of(empty) is None


@pytest.mark.parametrize(
    "wkt", ["POINT (981106 195544)", "POINT (0 91)", "LINESTRING (0 0, 1 NaN)", "LINESTRING (0 0, Infinity 1)"]
)
def test_what_cannot_be_degrees_is_refused(wkt):
    with pytest.raises(GeometryError):
        normalise(shapely.from_wkt(wkt))


def test_bbox_follows_rfc_7946():
    assert Extent(170, -20, 190, -10).bbox() == (170, -20, -170, -10)
    assert Extent(-180, -90, 180, 90).bbox() == (-180, -90, 180, 90)
    assert Extent(-180, 5, -180, 5).bbox() == (-180, 5, -180, 5)


@given(st.floats(-180, 179.99), st.floats(-89, 88), st.floats(0.01, 170), st.floats(0.01, 1))
def test_wrapping_a_ring_changes_nothing(west, south, width, height):
    plain = box(west, south, west + width, south + height)
    ring = [((x + 180) % 360 - 180, y) for x, y in plain.exterior.coords]
    shape, _ = normalise(Polygon(ring))
    again, _ = normalise(plain)
    assert shape.bounds == pytest.approx(again.bounds, abs=1e-9)
    assert normalise(again)[0].equals(again)
