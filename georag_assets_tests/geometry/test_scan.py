"""Geometry literals in text: every notation, what is none, what is malformed, and that hostile text costs seconds."""

from __future__ import annotations

import json
import time
import warnings

import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely.geometry import mapping

from georag_assets.geometry.describe import describe
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import scan


def only(text: str) -> GeometryLiteral:
    (literal,) = scan(text)
    assert text[literal.start : literal.end] == literal.literal
    return literal


@pytest.mark.parametrize(
    ("text", "literal", "wkt"),
    [
        ("at POINT (7.5 47.5) now", "POINT (7.5 47.5)", "POINT (7.5 47.5)"),
        ("'LINESTRINGZM(0 0 1 2,3 4 5 6)'", "LINESTRINGZM(0 0 1 2,3 4 5 6)", "LINESTRING (0 0, 3 4)"),
        ("point z (1 2 3).", "point z (1 2 3)", "POINT (1 2)"),
        ("POLYGON((0 0,\n  1 0,\n  1 1,\n  0 0))", None, "POLYGON ((0 0, 1 0, 1 1, 0 0))"),
        ("MULTIPOINT ((7 46), EMPTY, (8 47))", None, "MULTIPOINT ((7 46), EMPTY, (8 47))"),
        ("TIN(((0 0 0,1 0 0,0 1 0,0 0 0)))", None, "MULTIPOLYGON (((0 0, 1 0, 0 1, 0 0)))"),
        ("GEOMETRYCOLLECTION(POINT(2 1),POINT EMPTY)", None, "GEOMETRYCOLLECTION (POINT (2 1), POINT EMPTY)"),
        ("POLYGON\\((0 0, 1 0, 1 1, 0 0))", None, "POLYGON ((0 0, 1 0, 1 1, 0 0))"),
        ("LINESTRINGM(1 2 2021-05-22T03:00Z, 3 4 2021-05-22T04:00Z)", None, "LINESTRING (1 2, 3 4)"),
        ("47.0551, 8.3093", "47.0551, 8.3093", "POINT (8.3093 47.0551)"),
        ("(41.48, -91.57)", "41.48, -91.57", "POINT (-91.57 41.48)"),
        ("[-122.2676, 37.8008]", "-122.2676, 37.8008", "POINT (-122.2676 37.8008)"),
        ("47,0551 8,3093", None, "POINT (8.3093 47.0551)"),
        ("47.1234 8.1234, 47.2345 8.2345", None, "MULTIPOINT ((8.1234 47.1234), (8.2345 47.2345))"),
        ("54° 06' N; 010° 48' E", None, "POINT (10.8 54.1)"),
        ("(54° 06,000´ N; 010° 48,000´ E)", "54° 06,000´ N; 010° 48,000´ E", "POINT (10.8 54.1)"),
        ("58º30.000'N, 27º15.000'E", None, "POINT (27.25 58.5)"),
        ("45° 30,0 N - 02° 15,0 W", None, "POINT (-2.25 45.5)"),
        ("40°30′00″N 74°15′00″W", None, "POINT (-74.25 40.5)"),
        ("S 33° 30' 00\" E 18° 15' 00\"", None, "POINT (18.25 -33.5)"),
        ("30°30'00N 67°15'00E", None, "POINT (67.25 30.5)"),
        ("42°30,00'  3°15,00'", None, "POINT (3.25 42.5)"),
        ("53.55 N, 9.95 E", None, "POINT (9.95 53.55)"),
        ("54-30.0N 010-45.0E", None, "POINT (10.75 54.5)"),
        ('"bbox": [7, 46, 8, 47]', "[7, 46, 8, 47]", "POLYGON ((8 46, 8 47, 7 47, 7 46, 8 46))"),
        ("bbox=170,-20,-170,20&f", "170,-20,-170,20", "POLYGON ((190 -20, 190 20, 170 20, 170 -20, 190 -20))"),
        ('{"type":"Point","coordinates":[7,46]}', None, "POINT (7 46)"),
        ("geometry:\n  coordinates: [[0, 1], [1, 2]]", "[[0, 1], [1, 2]]", "MULTIPOINT ((0 1), (1 2))"),
    ],
)
def test_notations(text: str, literal: str | None, wkt: str) -> None:
    found = only(text)
    assert found.literal == (literal or text)
    assert found.geometry is not None
    expected = shapely.from_wkt(wkt)
    assert shapely.equals_exact(found.geometry, expected, 1e-9, normalize=True) or found.geometry.equals(expected)


@pytest.mark.parametrize(
    "text",
    [
        "The beginning point (1) is at the point (see map) of the polygon (red).",
        "Point(x, y) and Point(1, 2) in code; POLYGON((x y, ...))",
        "a corner of 90°, 20 °C, 20.5 °C, version 1.2.3, page 12, 5",
        "T26S/R12E, section 5 N of Highway 101, in 1948, 1952",
        "| a | 12 | 34 |\n| b | 56 | 78 |",
        "3.14, 2.71 and 1,234.56",
        "echo 300000 6100000 0 0 | cct\n    683687.8667   6099299.6624    0.0000    0.0000\n",
    ],
)
def test_prose_is_no_geometry(text: str) -> None:
    assert scan(text) == ()


def test_stated_codes_stay_with_their_literal() -> None:
    assert only("SRID=4267;POINT(-98 39)").epsg == 4267
    assert only("SRID=EPSG:2056;POINT(2600000 1200000)").epsg == 2056
    collection = {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::2056"}},
        "features": [
            {"type": "Feature", "id": n, "properties": {}, "geometry": {"type": "Point", "coordinates": [2600000, n]}}
            for n in range(3)
        ],
    }
    found = scan(json.dumps(collection))
    assert [(each.epsg, each.geographic, each.feature_id) for each in found] == [
        (2056, False, "0"),
        (2056, False, "1"),
        (2056, False, "2"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("POLYGON((0 0, 1 0, 1 1, 0 1))", "unclosed_ring"),
        ("POLYGON((0 0, 1 0, 1 1, 0 0) and then prose", "unclosed"),
        ("POINT(NaN 47.1)", "non_finite"),
        ('{"type":"Point","coordinates":[NaN,47.1]}', "non_finite"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,1]]]}', "unclosed_ring"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1', "unclosed"),
    ],
)
def test_malformed_is_kept_whole_and_says_why(text: str, reason: str) -> None:
    found = only(text)
    assert found.geometry is None
    assert set(found.flags) == {"malformed", reason}


@pytest.mark.parametrize(
    "text", ["POLYGON((0 0, 1 0, ...))", "LINESTRING(1 1)", '{"type":"Polygon","coordinates":[...]}']
)
def test_an_example_in_documentation_is_not_malformed(text: str) -> None:
    found = only(text)
    assert found.geometry is None
    assert "malformed" not in found.flags


def test_angles_that_are_no_points_stay_uncut_without_a_shape() -> None:
    for text in ("34°15 latitude", "N 40°43 E", "63° Nord", "117°00′ West"):
        found = scan(text)[0]
        assert found.geometry is None
        assert "single_axis" in found.flags
    assert all(each.geometry is None for each in scan("spans 23° 10'–24° 50' N"))


def test_one_pair_of_parentheses_is_repaired_with_a_flag() -> None:
    found = only("POLYGON (7 47, 8 47, 8 48, 7 48, 7 47)")
    assert found.geometry is not None
    assert found.geometry.area == 1.0
    assert "repaired_parentheses" in found.flags


TABLE = """
| Nr. |     Y     |     X     | Nr. |     Y     |     X     |
|:---:|:---------:|:---------:|:---:|:---------:|:---------:|
|  1  | 3535093.4 | 6020462.4 | 41  | 3536005,0 | 6020408,0 |
|  2  | 3535132.7 | 6020469.9 | 42  |           |           |
"""


def test_coordinate_tables_by_row() -> None:
    first, second = scan(TABLE)
    assert first.geometry is not None
    assert second.geometry is not None
    assert first.geometry.wkt == "MULTIPOINT ((3535093.4 6020462.4), (3536005 6020408))"
    assert second.geometry.wkt == "POINT (3535132.7 6020469.9)"
    named = only("| Well | Northing | Easting |\n|---|---|---|\n| W1 | 1200091 | 2600137 |")
    assert named.geometry is not None
    assert named.geometry.wkt == "POINT (2600137 1200091)"


def test_descriptions() -> None:
    assert describe(only("SRID=4326;POLYGON((7 47,8 47,8 48,7 47))")) == "polygon of 4 vertices around 47.5 N, 7.5 E"
    assert describe(only("POINT(2600000 1200000)")) == "point at 2600000 1200000"
    across = '{"type":"LineString","coordinates":[[-170,10],[170,11]]}'
    assert describe(only(across)) == "line of 2 vertices around 10.5 N, 180 W"
    assert describe(only("POINT EMPTY")) == "empty point"
    assert describe(only("N 40°43 E")) == "N 40°43 E"
    feature = (
        '{"type":"Feature","id":"w-17","properties":{"name":"Weir"},"geometry":{"type":"Point","coordinates":[7,46]}}'
    )
    assert describe(only(feature)) == "feature w-17: name: Weir; point at 46 N, 7 E"


@pytest.mark.parametrize(
    "unit",
    ["(", "1", "POINT(", "POLYGON((1 1,", "GEOMETRYCOLLECTION(", "{", '"', '{"type":"Point",', "1.1111 ", "1°", "|1"],
)
def test_hostile_text_costs_time_in_proportion(unit: str) -> None:
    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        started = time.process_time()
        scan(text)
        return time.process_time() - started

    seconds(50_000)
    assert seconds(800_000) < 40 * seconds(100_000) + 0.5  # quadratic would be 64 times


def test_deep_nesting_is_read_or_refused() -> None:
    deep = '{"type":"GeometryCollection","geometries":[' * 5000 + "]}" * 5000
    assert only(deep).geometry is None
    assert scan("GEOMETRYCOLLECTION(" * 5000 + "POINT(1 1)" + ")" * 5000) is not None


def test_a_polygon_of_two_megabytes() -> None:
    ring = [(7 + n * 1e-7, 47 + n * 1e-6) for n in range(80_000)]
    text = f"Boundary: {shapely.Polygon(ring).wkt}. End."
    started = time.process_time()
    found = only(text)
    assert time.process_time() - started < 5
    assert shapely.get_num_coordinates(found.geometry) == 80_001


coordinate = st.floats(-180, 180, allow_nan=False).map(lambda number: round(number, 6))
pair = st.tuples(coordinate, coordinate)
ring = st.lists(pair, min_size=3, max_size=12, unique=True)
polygon = ring.map(shapely.Polygon)
shape = st.one_of(
    pair.map(shapely.Point),
    st.lists(pair, min_size=2, max_size=12).map(shapely.LineString),
    polygon,
    st.lists(pair, min_size=1, max_size=5).map(shapely.MultiPoint),
    st.lists(polygon, min_size=1, max_size=3).map(shapely.MultiPolygon),
    st.lists(st.one_of(pair.map(shapely.Point), polygon), min_size=1, max_size=3).map(shapely.GeometryCollection),
)
prose = st.sampled_from(["", "See ", "The plot, ", "(", "geometry: ", "“", "in 1948. ", "| "])
tail = st.sampled_from(["", ".", ", then north.", ")", " in EPSG:4326.", "\nNext", " |"])


@given(shape, prose, tail, st.sampled_from(["wkt", "ewkt", "geojson"]))
@settings(max_examples=300)
def test_shapes_written_into_prose_come_back(
    geometry: shapely.Geometry, before: str, after: str, notation: str
) -> None:
    literal = json.dumps(mapping(geometry)) if notation == "geojson" else geometry.wkt
    if notation == "ewkt":
        literal = f"SRID=4326;{literal}"
    text = f"{before}{literal}{after}"
    found = only(text)
    assert found.literal == literal
    assert found.geometry is not None
    assert shapely.equals_exact(found.geometry, geometry, 1e-9)


@given(st.text(alphabet="POINTLYGS(),.°'0123456789 -N{}[]\"|\n:E", max_size=300))
@settings(max_examples=300)
def test_any_text_gives_sorted_disjoint_slices(text: str) -> None:
    end = 0
    for literal in scan(text):
        assert end <= literal.start < literal.end <= len(text)
        assert text[literal.start : literal.end] == literal.literal
        end = literal.end


def test_a_literal_returns_from_its_record():
    found = scan("SRID=2056;POINT (2600000 1200000), POINT (nan 1), 46\u00b057'N 7\u00b026'E")
    assert len(found) == 3
    assert tuple(GeometryLiteral.of_record(json.loads(json.dumps(each.as_record()))) for each in found) == found


def test_a_coordinate_too_large_for_a_number_is_not_finite_and_prints_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = scan("POINT (1e400 2)")
    assert found.flags == ("malformed", "non_finite")
