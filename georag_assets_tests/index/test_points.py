"""Points are joined from the tables by id, and carry nothing that nobody reads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import shapely

import georag_assets
from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.errors import IndexBuildError
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.index.batch import make_batch, vector_faults, vectors_of
from georag_assets.index.payload import INDEXED, PAYLOAD, PayloadField
from georag_assets.index.points import geometry_batches, point_batches
from georag_assets.tables.iceberg import TableSpec

PACKAGE = Path(georag_assets.__file__).parent


@pytest.mark.parametrize("field", PAYLOAD, ids=lambda field: field.name)
def test_every_payload_field_is_read_by_whom_it_names(field: PayloadField) -> None:
    room = PACKAGE.joinpath(*field.reader.split("."))
    sources = sorted(room.glob("*.py")) if room.is_dir() else [room.with_suffix(".py")]
    assert any(re.search(rf'"{field.name}"', source.read_text(encoding="utf-8")) for source in sources)


@pytest.mark.parametrize("label", ["subjects", "places", "themes"])
def test_no_label_of_an_evaluation_is_in_the_payload(label: str) -> None:
    assert label not in {field.name for field in PAYLOAD}


def test_index_types_follow_the_values() -> None:
    allowed = {"float": pa.float64(), "integer": pa.int64(), "keyword": pa.string()}
    for field in PAYLOAD:
        if field.index == "geo":
            assert pa.types.is_struct(field.type)
        elif field.index is not None:
            assert field.type == allowed[field.index]
    assert set(INDEXED) >= {"west", "south", "east", "north", "location", "extent_class", "period_start", "period_end"}


def table(spec: TableSpec, rows: list[dict[str, object]]) -> pa.Table:
    filled = [{name: row.get(name) for name in spec.schema.names} for row in rows]
    return pa.Table.from_pylist(filled, schema=spec.schema)


def test_chunks_meet_their_frame_and_document_and_vector_whatever_the_order(home: Home) -> None:
    ids = [f"00000000-0000-0000-0000-{number:012d}" for number in range(25)]
    wkb = shapely.to_wkb(shapely.Point(7, 46))
    chunks = [
        {
            "chunk_id": name,
            "doc_id": f"d{number % 4}",
            "text": f"text {number}",
            "embedded_text": f"words {number}",
            "embedded_sha256": f"{number}",
            "start": number,
            "end": number + 1,
            "unit": "section",
        }
        for number, name in enumerate(ids)
    ]
    frames = [
        {"chunk_id": name, "doc_id": f"d{number % 4}", "grade": "measured", "epsg": 4326, "confidence": 0.9}
        | ({"west": 7.0, "south": 46.0, "east": 7.0, "north": 46.0, "geometry_wkb": wkb} if number % 2 else {})
        for number, name in reversed(list(enumerate(ids)))
    ]
    documents = [
        {"doc_id": f"d{number}", "title": f"Title {number}", "source": f"docs/{number}.md", "period_start": 1.5}
        for number in (2, 0, 3, 1)
    ]
    for spec, rows, key in (
        (CHUNKS, chunks, "doc_id"),
        (FRAMES, frames, "doc_id"),
        (DOCUMENTS, documents, "doc_id"),
    ):
        home.tables.replace_rows("c", spec, key=key, removed=[], added=table(spec, rows))

    def vectors(hashes: object) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        return np.array([[float(value) + 1, 0.0] for value in hashes], np.float32)  # type: ignore[attr-defined]

    batches = list(point_batches(home.tables, "c", "v1-abc", vectors, rows=10, only=lambda name: name != ids[3]))
    assert max(batch.num_rows for batch in batches) <= 10
    points = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["chunk_id"] for row in points) == [name for name in ids if name != ids[3]]
    for row in points:
        number = row["start"]
        assert (row["chunk_id"], row["text"], row["lexical_text"]) == (
            ids[number],
            f"text {number}",
            f"words {number}",
        )
        assert (row["title"], row["source"]) == (f"Title {number % 4}", f"docs/{number % 4}.md")
        assert (row["period_start"], row["period_end"], row["frame_confidence"]) == (1.5, None, 0.9)
        assert row["vector"] == [number + 1.0, 0.0]
        assert row["has_geometry"] == number % 2
        assert (row["location"] is None) == (row["west"] is None) == (number % 2 == 0)
        assert row["corpus_version"] == "v1-abc"
    shapes = [row for batch in geometry_batches(home.tables, "c") for row in batch.to_pylist()]
    assert {row["chunk_id"] for row in shapes} == set(ids[1::2])


def test_vectors_that_cannot_be_found_are_named_by_kind() -> None:
    vectors = np.ones((6, 3), np.float32)
    vectors[1, 0], vectors[2], vectors[3, 2], vectors[4] = np.nan, 0, -np.inf, 1e-30
    assert vector_faults(vectors) == {1: "nan", 2: "zero", 3: "infinite", 4: "zero"}


def test_a_batch_keeps_its_vectors_as_they_are() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    batch = make_batch({"chunk_id": pa.array(list("abcd"))}, vectors)
    np.testing.assert_array_equal(vectors_of(batch), vectors)
    np.testing.assert_array_equal(vectors_of(batch.slice(1, 2)), vectors[1:3])


@pytest.mark.parametrize("column", ["west", "north"])
def test_an_extent_that_is_text_is_refused(column: str) -> None:
    with pytest.raises(IndexBuildError):
        make_batch({"chunk_id": pa.array(["a"]), column: pa.array(["7.25"])}, np.ones((1, 2), np.float32))
