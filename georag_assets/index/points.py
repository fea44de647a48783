"""Points made from the tables, and what makes one unfit.

What belongs here: the join of chunks, frames, documents and vectors into bounded batches, what makes a vector unusable,
what is wrong with a payload index. What does not: the schema (`payload`), writing them (`engine_writer`), the build's
folder (`builds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.errors import IndexBuildError
from georag_assets.frames.models import FRAMES
from georag_assets.index.filter import centres, extent_classes
from georag_assets.index.payload import INDEXED, PAYLOAD
from georag_assets.index.store import IndexCoverage
from georag_assets.tables.iceberg import Tables


def points_schema(dimension: int) -> pa.Schema:
    """Return the Arrow schema of a batch of points: id, payload, the words of the lexical vector, the dense vector."""
    return pa.schema(
        [
            pa.field("chunk_id", pa.string(), nullable=False),
            *(pa.field(field.name, field.type) for field in PAYLOAD),
            pa.field("lexical_text", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), dimension)),
        ]
    )


def vector_faults(vectors: NDArray[np.float32]) -> dict[int, str]:
    """Return row -> kind for vectors that an engine accepts and never finds, or that outrank what they should not."""
    finite = np.isfinite(vectors)
    zero = np.linalg.norm(vectors, axis=1) == 0
    faults: dict[int, str] = {}
    for row in np.flatnonzero(~finite.all(axis=1) | zero).tolist():
        faults[row] = "zero" if zero[row] else ("nan" if np.isnan(vectors[row]).any() else "infinite")
    return faults


def refuse_bad_vectors(batch: pa.RecordBatch) -> None:
    """Raise where a point of the batch has no usable vector: absent, NaN, infinite or all zero."""
    column = batch.column("vector")
    ids = batch.column("chunk_id")
    absent = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
    faults = dict.fromkeys(absent, "absent")
    if not faults:
        faults = vector_faults(vectors_of(batch))
    if faults:
        named = [f"{ids[row].as_py()} ({kind})" for row, kind in list(faults.items())[:20]]
        raise IndexBuildError(
            f"{len(faults)} vectors cannot be stored",
            where=", ".join(named),
            expected="finite vectors of norm > 0",
            do="quarantine their texts at the embedding stage",
        )


def vectors_of(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """Return a batch's dense vectors as an (n, dimension) array without copying."""
    column = batch.column("vector")
    values: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=True)
    return values.reshape(len(column), column.type.list_size)


def spatial_columns(extents: NDArray[np.float64]) -> dict[str, pa.Array]:
    """Return the payload columns that are computed from extents: `location`, `extent_class`, `has_geometry`."""
    located = np.isfinite(extents[:, 0])
    centre = centres(np.where(located[:, None], extents, 0.0))
    location = pa.StructArray.from_arrays(
        [pa.array(centre[:, 0]), pa.array(centre[:, 1])], names=["lon", "lat"], mask=pa.array(~located)
    )
    return {
        "location": location,
        "extent_class": pa.array(extent_classes(extents), mask=~located),
        "has_geometry": pa.array(located),
    }


def make_batch(columns: Mapping[str, pa.Array], vectors: NDArray[np.float32]) -> pa.RecordBatch:
    """Return a batch in `points_schema` from payload columns (absent ones are null) and vectors, in the same order.

    The computed columns come from `west` .. `north`; a value of the wrong type is refused, never converted: a number
    written as text would be hidden from every range.
    """
    rows, dimension = vectors.shape
    schema = points_schema(dimension)
    edges = [columns.get(edge, pa.nulls(rows, pa.float64())) for edge in ("west", "south", "east", "north")]
    for edge in edges:
        if not (pa.types.is_floating(edge.type) or pa.types.is_integer(edge.type)):
            raise IndexBuildError("an extent is not a number", expected="float64", found=str(edge.type))
    extents = np.column_stack(
        [pc.fill_null(pc.cast(edge, pa.float64()), np.nan).to_numpy(zero_copy_only=False) for edge in edges]
    )
    filled = {**columns, **spatial_columns(extents)}
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    filled["vector"] = pa.FixedSizeListArray.from_arrays(flat, dimension)
    arrays = []
    for field in schema:
        array = filled.get(field.name)
        if array is None:
            array = pa.nulls(rows, field.type)
        elif array.type != field.type:
            if pa.types.is_string(array.type) != pa.types.is_string(field.type):
                raise IndexBuildError(
                    "a payload value has the wrong type",
                    where=field.name,
                    expected=str(field.type),
                    found=str(array.type),
                )
            array = array.cast(field.type)
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_from(origin: str) -> dict[str, str]:
    return {field.column or field.name: field.name for field in PAYLOAD if field.origin == origin}


def _aligned(table: pa.Table, key: str, wanted: pa.Array) -> pa.Table:
    """Return the rows of `table` in the order of `wanted` keys, nulls where a key is absent."""
    return table.take(pc.index_in(wanted, value_set=table.column(key).combine_chunks()))


def point_batches(
    tables: Tables,
    corpus: str,
    corpus_version: str,
    vectors: Callable[[Sequence[str]], NDArray[np.float32]],
    *,
    snapshots: Mapping[str, int] | None = None,
    rows: int = 1_000,
    only: Callable[[str], bool] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the corpus's points in bounded batches.

    Parameters
    ----------
    vectors
        From the `embedded_sha256` of a batch's chunks to their vectors, in order.
    snapshots
        Table name -> snapshot id to read; the current one where absent.
    only
        Keeps a chunk by id; for chunks that were quarantined after chunking.

    Notes
    -----
    Texts and vectors stream; scalar columns of frames and documents are held (some hundred bytes a chunk). Geometry
    is not part of a point: see `geometry_batches`.
    """
    at = snapshots or {}
    of_frames, of_documents, of_chunks = (_columns_from(origin) for origin in ("frames", "documents", "chunks"))
    frames = tables.read(corpus, FRAMES, columns=["chunk_id", *of_frames], snapshot_id=at.get(FRAMES.name))
    documents = tables.read(corpus, DOCUMENTS, columns=["doc_id", *of_documents], snapshot_id=at.get(DOCUMENTS.name))
    wanted = ["chunk_id", "embedded_text", "embedded_sha256", *of_chunks]
    for read in tables.batches(corpus, CHUNKS, columns=wanted, snapshot_id=at.get(CHUNKS.name)):
        for start in range(0, read.num_rows, rows):
            chunks = pa.Table.from_batches([read.slice(start, rows)])
            if only is not None:
                chunks = chunks.filter(
                    pa.array([only(chunk_id) for chunk_id in chunks["chunk_id"].to_pylist()], pa.bool_())
                )
            if not chunks.num_rows:
                continue
            frame = _aligned(frames, "chunk_id", chunks["chunk_id"].combine_chunks())
            document = _aligned(documents, "doc_id", chunks["doc_id"].combine_chunks())
            columns: dict[str, Any] = {
                "chunk_id": chunks["chunk_id"],
                "lexical_text": chunks["embedded_text"],
                "corpus": pa.array([corpus] * chunks.num_rows),
                "corpus_version": pa.array([corpus_version] * chunks.num_rows),
            }
            for table, names in ((chunks, of_chunks), (frame, of_frames), (document, of_documents)):
                columns.update({name: table[column] for column, name in names.items()})
            yield make_batch(columns, vectors(chunks["embedded_sha256"].to_pylist()))


def geometry_batches(
    tables: Tables, corpus: str, *, snapshots: Mapping[str, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield (chunk_id, geometry_wkb) of the chunks that have a geometry, streamed."""
    at = (snapshots or {}).get(FRAMES.name)
    for batch in tables.batches(corpus, FRAMES, columns=["chunk_id", "geometry_wkb"], snapshot_id=at):
        found = batch.filter(batch.column("geometry_wkb").is_valid())
        if found.num_rows:
            yield found


def index_faults(coverage: Mapping[str, IndexCoverage], present: Callable[[str], int]) -> list[dict[str, object]]:
    """Return what is wrong with payload indexes: absent, of another type, or not covering every point with the field.

    `present(field)` is the number of points that have the field, from the build's own columns.
    """
    faults: list[dict[str, object]] = []
    for field, index_type in INDEXED.items():
        found = coverage.get(field)
        expected = {"field": field, "expected_type": index_type, "expected_points": present(field)}
        if found is None:
            faults.append({**expected, "fault": "missing"})
        elif found.index_type != index_type:
            faults.append({**expected, "fault": "type", "found_type": found.index_type})
        elif found.points != expected["expected_points"]:
            faults.append({**expected, "fault": "incomplete", "found_points": found.points})
    return faults
