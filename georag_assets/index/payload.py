"""The payload's schema: what a point carries beside its vectors, how each field is indexed and who reads it.

What belongs here: the fields. What does not: making points of rows (`points`), conditions over fields (`filter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

FILTER, EVIDENCE = "index.filter", "retrieval"


@dataclass(frozen=True, slots=True)
class PayloadField:
    """A payload field: where its value comes from, its Arrow type, its index (None: not indexed) and who reads it.

    `origin` is `chunks`, `frames`, `documents` or `build`; `column` its name there; an index type follows the values
    (an integer index hides decimals).
    """

    name: str
    type: pa.DataType
    origin: str
    reader: str = EVIDENCE
    index: str | None = None
    column: str | None = None
    equals: bool = False


_STRINGS = pa.list_(pa.string())
PAYLOAD: tuple[PayloadField, ...] = (
    PayloadField("corpus", pa.string(), "build"),
    PayloadField("corpus_version", pa.string(), "build", index="keyword", equals=True),
    PayloadField("doc_id", pa.string(), "chunks", index="keyword", equals=True),
    PayloadField("content_sha256", pa.string(), "chunks"),
    PayloadField("start", pa.int64(), "chunks"),
    PayloadField("end", pa.int64(), "chunks"),
    PayloadField("text", pa.string(), "chunks"),
    PayloadField("context", pa.string(), "chunks"),
    PayloadField("unit", pa.string(), "chunks"),
    PayloadField("flags", _STRINGS, "chunks"),
    PayloadField("feature_ids", _STRINGS, "chunks"),
    PayloadField("inherited", pa.bool_(), "chunks"),
    PayloadField("page_first", pa.int64(), "chunks"),
    PayloadField("page_last", pa.int64(), "chunks"),
    PayloadField("title", pa.string(), "documents"),
    PayloadField("source", pa.string(), "documents"),
    PayloadField("url", pa.string(), "documents"),
    PayloadField("licence", pa.string(), "documents", index="keyword", equals=True),
    PayloadField("revision", pa.string(), "documents"),
    PayloadField("period_start", pa.float64(), "documents", FILTER, index="float"),
    PayloadField("period_end", pa.float64(), "documents", FILTER, index="float"),
    PayloadField("epsg", pa.int64(), "frames", index="integer", equals=True),
    PayloadField("assumed_epsg", pa.int64(), "frames"),
    PayloadField("authority", pa.string(), "frames"),
    PayloadField("grade", pa.string(), "frames", index="keyword", equals=True),
    PayloadField("frame_confidence", pa.float64(), "frames", column="confidence"),
    PayloadField("frame_note", pa.string(), "frames", column="note"),
    PayloadField("accuracy_m", pa.float64(), "frames"),
    PayloadField("geometry_origin", pa.string(), "frames"),
    PayloadField("geometry_flags", _STRINGS, "frames"),
    PayloadField("west", pa.float64(), "frames", FILTER, index="float"),
    PayloadField("south", pa.float64(), "frames", FILTER, index="float"),
    PayloadField("east", pa.float64(), "frames", FILTER, index="float"),
    PayloadField("north", pa.float64(), "frames", FILTER, index="float"),
    PayloadField("location", pa.struct([("lon", pa.float64()), ("lat", pa.float64())]), "build", FILTER, index="geo"),
    PayloadField("extent_class", pa.int64(), "build", FILTER, index="integer"),
    # 0 or 1: the embedded engine's binding turns a boolean to match into an integer, which matches no boolean.
    PayloadField("has_geometry", pa.int64(), "build", FILTER, index="integer"),
)
INDEXED: Mapping[str, str] = {field.name: field.index for field in PAYLOAD if field.index is not None}
_PARSERS: Mapping[str, Callable[[str], str | int]] = {"keyword": str, "integer": int}
EQUALS_FIELDS: Mapping[str, Callable[[str], str | int]] = {
    field.name: _PARSERS[field.index] for field in PAYLOAD if field.equals and field.index is not None
}
