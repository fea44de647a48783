"""Points made from the tables, and whether their payload indexes cover them.

What belongs here: the join of chunks, frames, documents and vectors into bounded batches, what is wrong with a payload
index. What does not: the schema (`payload`), a batch's own form (`batch`), writing them (`engine_writer`), the build's
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
from georag_assets.frames.models import FRAMES
from georag_assets.index.batch import make_batch, vector_faults
from georag_assets.index.payload import INDEXED, PAYLOAD
from georag_assets.index.store import IndexCoverage
from georag_assets.tables.iceberg import Tables

__all__ = ["geometry_batches", "index_faults", "make_batch", "point_batches", "vector_faults"]


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
    chunk_ids: Sequence[str] | None = None,
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
    chunk_ids
        Read these chunks alone; all where None.

    Notes
    -----
    Texts and vectors stream; scalar columns of frames and documents are held (some hundred bytes a chunk). Geometry
    is not part of a point: see `geometry_batches`.
    """
    if chunk_ids is not None and not chunk_ids:
        return
    at = snapshots or {}
    where = None if chunk_ids is None else ("chunk_id", chunk_ids)
    of_frames, of_documents, of_chunks = (_columns_from(origin) for origin in ("frames", "documents", "chunks"))
    at_frames = at.get(FRAMES.name)
    frames = tables.read(corpus, FRAMES, columns=["chunk_id", *of_frames], where=where, snapshot_id=at_frames)
    documents = tables.read(corpus, DOCUMENTS, columns=["doc_id", *of_documents], snapshot_id=at.get(DOCUMENTS.name))
    wanted = ["chunk_id", "embedded_text", "embedded_sha256", *of_chunks]
    for read in tables.batches(corpus, CHUNKS, columns=wanted, where=where, snapshot_id=at.get(CHUNKS.name)):
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
