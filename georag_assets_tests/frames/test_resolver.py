"""Frames from evidence: what is stated, named, declared; what is only for display; what PROJ refuses."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter

import pytest
import shapely
from shapely.geometry import Point, box

from georag_assets.frames.mentions import find_mentions
from georag_assets.frames.resolver import FrameResolver, confidence_of, grade_of
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import scan

RESOLVER = FrameResolver()
DISPLAY = (
    "This layer is presented in the WGS84 coordinate system for web display purposes. Downloadable data are provided "
    "in native coordinate system or projection."
)


def literal(text, inside, wkt, kind="wkt", epsg=None, geographic=False):
    start = inside.index(text)
    shape = shapely.from_wkt(wkt)
    return GeometryLiteral(start, start + len(text), kind, text, shape, epsg, geographic)


@pytest.mark.parametrize(
    ("text", "epsg"),
    [
        ("Coordinates are in EPSG:25832.", 25832),
        ("CRS: urn:ogc:def:crs:EPSG::2263", 2263),
        ("srsName http://www.opengis.net/def/crs/EPSG/0/3857", 3857),
        ("The data use EPSG code 2263", 2263),
        ("(EPSG 31466)", 31466),
        ("epsg_32632", 32632),
        ("SRID=4326", 4326),
        ("WGS 84 / UTM zone 32N", 32632),
        ("projected to UTM zone 32N, WGS84", 32632),
        ("UTM NAD83 Zone 10 North", 26910),
        ("New York State Plane Coordinates, Long Island East Zone, NAD83, US foot", 2263),
        ("NAD_1983_StatePlane_New_York_Long_Island_FIPS_3104_Feet", 2263),
        ("converted to California Teale Albers NAD83", 3310),
        ("North American Datum of 1927", 4267),
        ("World Geodetic System 1984", 4326),
        ("The datum is MGI.", 4312),
    ],
)
def test_a_frame_stated_or_named_in_prose(text, epsg):
    resolution = RESOLVER.resolve(text)
    assert resolution.epsg == epsg
    assert resolution.grade in ("measured", "described")
    assert any(term.weight > 0 and text[term.start : term.end] == term.text for term in resolution.evidence)


@pytest.mark.parametrize(
    "text",
    [
        DISPLAY,
        "A text about nothing.",
        "The Lake district, and the Puerto Rico office.",
        "an Albers Equal-Area Conic projection",
        "a custom World Polyconic projection",
        "Projection: Teale Albers of nowhere, NAD83",
        "see urn:ogc:def:coordinateOperation:EPSG::9276",
        "EPSG:99999",
        "These data are available in WGS84 and UTM Zone 10 (NAD83) projections.",
    ],
)
def test_what_names_no_frame_or_several_is_unresolved(text):
    resolution = RESOLVER.resolve(text)
    assert resolution.epsg is None
    assert resolution.grade == "unresolved"
    assert resolution.note


def test_a_display_frame_is_kept_as_evidence_of_no_weight():
    (mention,) = find_mentions(DISPLAY)
    assert mention.role == "display"
    resolution = RESOLVER.resolve(DISPLAY)
    assert [term.weight for term in resolution.evidence] == [0]
    assert "EPSG:4326" in resolution.candidates
    # The declared frame of the record's box is evidence all the same.
    assert RESOLVER.resolve(DISPLAY, sidecar=(4326, "declared frame of the corpus")).grade == "measured"


def test_a_literals_own_code_goes_before_the_prose_around_it():
    text = "The survey used EPSG:25832. SRID=2263;POINT(981106 195544)"
    own = literal("SRID=2263;POINT(981106 195544)", text, "POINT (981106 195544)", epsg=2263)
    resolution = RESOLVER.resolve(text, [own])
    assert (resolution.epsg, resolution.grade) == (2263, "measured")
    assert resolution.accuracy_m is not None
    assert "EPSG:25832" in resolution.note


def test_a_name_and_coordinates_inside_its_area_make_a_measured_frame():
    text = "In ETRS89 / UTM zone 32N: POINT(500000 5250000)"
    alone = RESOLVER.resolve(text)
    both = RESOLVER.resolve(text, [literal("POINT(500000 5250000)", text, "POINT (500000 5250000)")])
    assert (alone.grade, both.grade) == ("described", "measured")
    assert (alone.epsg, both.epsg) == (25832, 25832)


def test_coordinates_outside_the_area_of_use_take_confidence_away():
    text = "In EPSG:2263: POINT(500000 5250000)"
    resolution = RESOLVER.resolve(text, [literal("POINT(500000 5250000)", text, "POINT (500000 5250000)")])
    assert resolution.epsg is None
    assert resolution.candidates[0] == "EPSG:2263"
    assert any("outside" in term.text for term in resolution.evidence)


def test_a_literal_that_cannot_be_read_is_in_no_frame_of_its_own():
    text = "POINT (nan 3) and POINT (7 46)"
    resolution = RESOLVER.resolve(text, scan(text))
    assert resolution.assumed_epsg == 4326
    assert "frames" not in resolution.note


def test_degrees_without_a_datum_are_assumed_and_say_so():
    text = "At 47.5 N 8.5 E"
    resolution = RESOLVER.resolve(text, [literal("47.5 N 8.5 E", text, "POINT (8.5 47.5)", "dms", geographic=True)])
    assert (resolution.epsg, resolution.assumed_epsg, resolution.confidence) == (None, 4326, 0)
    assert "settle" in resolution.note


def test_degrees_take_a_named_datum_and_the_datum_of_a_named_projection():
    text = "NAD83. At 38.5 N 122.3 W"
    degrees = literal("38.5 N 122.3 W", text, "POINT (-122.3 38.5)", "dms", geographic=True)
    assert RESOLVER.resolve(text, [degrees]).epsg == 4269
    text = "NAD83 / UTM zone 10N. At 38.5 N 122.3 W"
    degrees = literal("38.5 N 122.3 W", text, "POINT (-122.3 38.5)", "dms", geographic=True)
    assert RESOLVER.resolve(text, [degrees]).epsg == 4269


def test_geojson_without_crs_is_wgs84_by_its_standard():
    text = '{"type": "Point", "coordinates": [8.5, 47.5]}'
    resolution = RESOLVER.resolve(text, [literal(text, text, "POINT (8.5 47.5)", "geojson", geographic=True)])
    assert (resolution.epsg, resolution.grade) == (4326, "measured")
    assert "RFC 7946" in resolution.evidence[0].text


def test_a_deprecated_code_is_mapped_to_its_successor():
    resolution = RESOLVER.resolve("EPSG:2153")  # NAD83(CSRS98) / UTM zone 11N, replaced by 2955.
    assert resolution.epsg == 2955
    assert "2153" in resolution.note


def test_three_dimensional_and_vertical_codes():
    assert RESOLVER.resolve("Horizontal CRS: EPSG:4937 (ETRS89); heights in EPSG:5710").epsg == 4937
    vertical = RESOLVER.resolve("heights in EPSG:5710")
    assert vertical.epsg is None
    assert vertical.candidates == ("EPSG:5710",)


def test_an_unknown_code_is_said_and_not_used():
    resolution = RESOLVER.of_geometry(Point(1, 1), sidecar=(99999, "file.prj"))
    assert resolution.epsg is None
    assert resolution.assumed_epsg == 4326


def test_a_sidecar_frame_is_measured_and_out_of_area_is_not():
    assert RESOLVER.of_geometry(box(7, 46, 8, 47), sidecar=(4326, "GeoParquet metadata")).grade == "measured"
    assert RESOLVER.of_geometry(Point(7, 46), sidecar=(2263, "GeoParquet metadata")).epsg is None


def test_a_ballpark_operation_lowers_the_grade():
    # NAD27 far outside every grid and Helmert area: only an identity is left.
    text = "EPSG:4267 POINT(8 47)"
    resolution = RESOLVER.resolve(text, [literal("POINT(8 47)", text, "POINT (8 47)", epsg=4267)])
    assert resolution.grade != "measured"


def test_confidence_is_the_sum_that_its_evidence_shows():
    text = "In ETRS89 / UTM zone 32N (EPSG:25832) and WGS84: POINT(500000 5250000)"
    resolution = RESOLVER.resolve(text, [literal("POINT(500000 5250000)", text, "POINT (500000 5250000)")])
    weights = [term.weight for term in resolution.evidence if term.candidate == f"EPSG:{resolution.epsg}"]
    assert resolution.confidence == pytest.approx(confidence_of(weights), abs=1e-4)
    assert [grade_of(x) for x in (0.8, 0.7999, 0.55, 0.5499)] == ["measured", "described", "described", "unresolved"]


def test_real_mentions(shared):
    with gzip.open(shared / "data" / "crs_mentions" / "crs_mentions.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    counts: Counter[tuple[str, str]] = Counter()
    start = time.perf_counter()
    for record in records:
        resolution = RESOLVER.resolve(record["text"])
        known = {int(code.split(":")[1]) for code in resolution.candidates}
        epsg = resolution.epsg
        status = record["status"]
        counts[status, "asked"] += 1
        counts[status, "none" if epsg is None else "right" if epsg in record["epsg"] else "wrong"] += 1
        counts[status, "named"] += bool(known & set(record["epsg"]))
    seconds = time.perf_counter() - start
    # Where no code can be given, none is; where one is stated, it is among the candidates.
    for status in ("not_data_crs", "custom", "underspecified", "multi", "no_mention"):
        assert counts[status, "wrong"] == counts[status, "right"] == 0
    assert counts["explicit_code", "named"] >= 0.95 * counts["explicit_code", "asked"]
    assert counts["explicit_code", "wrong"] <= 3
    assert counts["name_only", "wrong"] <= 4
    assert counts["name_only", "right"] >= 40
    assert seconds < 10


def test_what_a_file_has_in_a_codes_place_is_in_the_note():
    assert RESOLVER.of_geometry(Point(7, 46), unstated="wells.prj is not there").note.startswith(
        "wells.prj is not there; taken as WGS 84"
    )
    far = RESOLVER.of_geometry(Point(2600000, 1200000), unstated="wells.prj is not there")
    assert (far.epsg, far.assumed_epsg) == (None, None)
    assert far.note.startswith("wells.prj is not there; ")
    assert "wells" not in RESOLVER.of_geometry(Point(7, 46), declared=4326, unstated="wells.prj is not there").note
