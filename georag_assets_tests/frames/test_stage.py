"""The stage: rows for real chunks, incremental, and both checks failed by real faults."""

from __future__ import annotations

import gzip
import json
import time

import pyarrow as pa
import pytest
import shapely

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.frames.models import FRAMES
from georag_assets.frames.stage import check_frames, frame_corpus

DECLARATION = CorpusDeclaration.model_validate({"name": "sample", "sources": [{"path": "x.md"}]})


def literal(text, start, wkt, kind="wkt", epsg=None, geographic=False):
    return {
        "start": start, "end": start + len(text), "kind": kind, "literal": text, "wkt": wkt, "epsg": epsg,
        "geographic": geographic, "flags": [],
    }  # fmt: skip


def document(doc_id, text, geometry=None, epsg=None, evidence=None, declared=None):
    row = dict.fromkeys(DOCUMENTS.schema.names)
    return row | {
        "doc_id": doc_id, "text": text, "content_sha256": f"{doc_id}-{hash((text, epsg, declared))}",
        "geometry_wkb": None if geometry is None else shapely.to_wkb(geometry), "geometry_epsg": epsg,
        "geometry_evidence": evidence, "declared_epsg": declared,
    }  # fmt: skip


def chunk(doc, literals=()):
    row = dict.fromkeys(CHUNKS.schema.names)
    return row | {
        "chunk_id": f"chunk-of-{doc['doc_id']}", "doc_id": doc["doc_id"], "content_sha256": doc["content_sha256"],
        "start": 0, "end": len(doc["text"]), "text": doc["text"], "literals_json": json.dumps(list(literals)),
    }  # fmt: skip


def put(home, pairs):
    for spec, rows in ((DOCUMENTS, [d for d, _ in pairs]), (CHUNKS, [chunk(d, x) for d, x in pairs])):
        table = pa.Table.from_pylist(rows, schema=spec.schema)
        home.tables.replace_rows("sample", spec, key="doc_id", removed=[d["doc_id"] for d, _ in pairs], added=table)


def rows(home):
    return {row["doc_id"]: row for row in home.tables.read("sample", FRAMES).to_pylist()}


SRID = "SRID=2263;POINT(981106 195544)"
FEET = "POINT(981106 195544)"
METRES = "POINT(500000 5250000)"
DMS = "47°30'N 8°30'E"
PAIRS = [
    (document("box", "A record.", shapely.box(7, 46, 8, 47), 4326, "declaration of the corpus"), []),
    (document("srid", f"At {SRID}."), [literal(SRID, 3, "POINT (981106 195544)", epsg=2263)]),
    (document("dms", f"At {DMS}."), [literal(DMS, 3, "POINT (8.5 47.5)", "dms", geographic=True)]),
    (document("feet", f"At {FEET}."), [literal(FEET, 3, "POINT (981106 195544)")]),
    (document("named", f"In EPSG:25832: {METRES}."), [literal(METRES, 15, "POINT (500000 5250000)")]),
    (
        document("elsewhere", f"At {DMS}.", shapely.box(-125, 31, -94, 49), 4326, "GeoParquet metadata"),
        [
            literal(DMS, 3, "POINT (8.5 47.5)", "dms", geographic=True),
            literal("30ºW", 3, None, "dms") | {"flags": ["single_axis"]},
        ],
    ),
    (
        document("own", "At POINT(8.5 47.5).", shapely.box(-125, 31, -94, 49), 4326, "GeoParquet metadata"),
        [
            literal("POINT(8.5 47.5)", 3, "POINT (8.5 47.5)"),
        ],
    ),
    (document("words", "A text about nothing."), []),
    (document("across", "A strait.", shapely.box(179, -1, 181, 1), 4326, "GeoParquet metadata"), []),
]


@pytest.fixture
def framed(home):
    put(home, PAIRS)
    return home, frame_corpus(home, DECLARATION)


def test_every_kind_of_chunk_gets_its_frame_and_extent(framed):
    home, report = framed
    assert report.counts["new"] == len(PAIRS)
    assert not report.blocked
    row = rows(home)
    assert (row["box"]["epsg"], row["box"]["grade"], row["box"]["geometry_origin"]) == (4326, "measured", "document")
    assert [row["box"][side] for side in ("west", "south", "east", "north")] == [7, 46, 8, 47]
    assert row["srid"]["epsg"] == 2263
    assert row["srid"]["grade"] == "measured"
    assert row["srid"]["west"] == pytest.approx(-74.01, abs=0.02)
    assert (row["dms"]["epsg"], row["dms"]["assumed_epsg"], row["dms"]["confidence"]) == (None, 4326, 0)
    assert row["dms"]["west"] == 8.5
    assert row["feet"]["west"] is None
    assert row["feet"]["geometry_flags"] == ["literal_without_frame"]
    assert row["named"]["epsg"] == 25832
    assert row["named"]["east"] == pytest.approx(9.0, abs=1e-6)
    # Prose coordinates a continent away from the record's own geometry are not its place; a literal in WKT is.
    assert (row["elsewhere"]["geometry_origin"], row["elsewhere"]["west"]) == ("document", -125)
    assert row["elsewhere"]["geometry_flags"] == ["literal_outside_document"]
    assert (row["own"]["geometry_origin"], row["own"]["west"]) == ("literal", 8.5)
    assert row["words"]["geometry_flags"] == ["no_geometry"]
    assert row["across"]["east"] == 181


def test_only_what_changed_is_framed_again(framed):
    home, first = framed
    again = frame_corpus(home, DECLARATION)
    assert again.counts["new"] == 0
    assert again.data_version == first.data_version
    put(home, [(document("feet", "At POINT(981106 195544).", declared=2263), PAIRS[3][1])])
    home.tables.replace_rows("sample", CHUNKS, key="doc_id", removed=["words"], added=CHUNKS.schema.empty_table())
    changed = frame_corpus(home, DECLARATION)
    assert (changed.counts["new"], changed.counts["removed"]) == (1, 1)
    assert changed.data_version != first.data_version
    assert rows(home)["feet"]["epsg"] == 2263
    assert "words" not in rows(home)


def faulty(home, **changes):
    """Check the written rows with one of them spoilt."""
    table = home.tables.read("sample", FRAMES).to_pylist()
    spoilt = [row | changes if row["doc_id"] == "srid" else row for row in table]
    batch = pa.RecordBatch.from_pylist(spoilt, schema=FRAMES.schema)
    return [check.passed for check in check_frames([row["chunk_id"] for row in table], [batch])[1]]


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, [True, True]),
        ({"west": None}, [False, True]),
        ({"west": float("nan")}, [False, True]),
        ({"east": 10.0}, [False, True]),
        ({"geometry_wkb": None}, [False, True]),
        ({"geometry_wkb": None, "west": None, "south": None, "east": None, "north": None, "note": ""}, [False, True]),
        ({"chunk_id": "another"}, [False, True]),
        ({"evidence_json": "[]"}, [True, False]),
        ({"evidence_json": None}, [True, False]),
        ({"epsg": 25832}, [True, False]),
        ({"epsg": None, "note": ""}, [True, False]),
        ({"grade": "described"}, [True, False]),
        ({"confidence": 0.85}, [True, False]),
        ({"confidence": None}, [True, False]),
    ],
)
def test_a_spoilt_row_fails_its_check(framed, changes, passed):
    assert faulty(framed[0], **changes) == passed


def test_a_chunk_without_a_frame_row_blocks_the_stage(framed):
    home, _ = framed
    batches = list(home.tables.batches("sample", FRAMES))
    _, checks = check_frames(["chunk-of-box", "a chunk that nobody framed"], batches[:1])
    assert not checks[0].passed
    assert checks[0].blocking
    assert "a chunk that nobody framed: no frame" in checks[0].detail["faults"]


def test_a_catalogue_of_thousands_takes_seconds(shared, home):
    path = shared / "data" / "stanford_ogm" / "docs.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    put(home, [
        (document(r["id"], f"{r['title']}\n\n{r['description']}", shapely.box(*r["bbox"]), 4326, "declaration"), [])
        for r in records
    ])  # fmt: skip
    start = time.perf_counter()
    report = frame_corpus(home, DECLARATION)
    seconds = time.perf_counter() - start
    assert not report.blocked
    assert report.counts["new"] == len(records)
    # "Presented in the WGS84 coordinate system for web display" is no evidence: the declared box is.
    assert report.metadata["measured_share"] == 1
    assert seconds < 15
