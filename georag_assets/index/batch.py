"""A batch of points on its way to the engine: its Arrow schema, its computed columns, what makes a vector unusable.

What belongs here: everything that the writer's child shares with the process that feeds it; nothing that reads tables.
What does not: the join that fills a batch (`points`), the payload's fields (`payload`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from georag_assets.errors import IndexBuildError
from georag_assets.index.filter import centres, extent_classes
from georag_assets.index.payload import PAYLOAD


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
    flat = column.flatten()
    # Not `to_numpy`: that imports pandas, which costs the writer's child more than a small build does.
    values: NDArray[np.float32] = np.frombuffer(flat.buffers()[1], np.float32, len(flat), 4 * flat.offset)
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
        "has_geometry": pa.array(located.astype(np.int64)),
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
