"""Records that leave the corpus room: documents and chunks.

What belongs here: frozen records and their Arrow schemas. What does not: how they are read or cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.tables.iceberg import TableSpec

# Between two pages of a document that has pages; its text holds none elsewhere.
PAGE_BREAK = "\f"
PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class Document:
    """One document as loaded.

    Attributes
    ----------
    doc_id
        Stable source key inside the corpus: relative path, or the record's id.
    text
        Exactly the decoded source (`newline=''`); for a record, rendered from its declared columns.
    source
        URI-like name of where it came from: `docs/napa_valley.md`, `docs.jsonl.gz#stanford-fb084dj2816`.
    location
        `file:line` or `file@offset` for messages.
    feature_ids
        Ids of the source features it speaks of (a sidecar's id), possibly empty.
    geometry_wkb
        Declared geometry from a sidecar or the record, in `geometry_epsg`; None where there is none.
    geometry_epsg
        Code that the sidecar or declaration states for `geometry_wkb`.
    geometry_evidence
        Where that code was read ("GeoParquet metadata of ava_polygons.parquet").
    geometry_flags
        E.g. `made_valid`, `wrapped_box`.
    period
        (start, exclusive end), seconds since 1970-01-01 UTC; None where none is declared.
    content_sha256
        Over text, geometry and every declared field.
    """

    doc_id: str
    text: str
    title: str
    source: str
    location: str
    media_type: str
    content_sha256: str
    feature_ids: tuple[str, ...] = ()
    geometry_wkb: bytes | None = None
    geometry_epsg: int | None = None
    geometry_evidence: str | None = None
    geometry_flags: tuple[str, ...] = ()
    period: tuple[float, float] | None = None
    licence: str | None = None
    url: str | None = None
    revision: str | None = None
    declared_epsg: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


DOCUMENTS = TableSpec(
    "documents",
    pa.schema(
        [
            ("doc_id", pa.string()),
            ("text", pa.string()),
            ("title", pa.string()),
            ("source", pa.string()),
            ("location", pa.string()),
            ("media_type", pa.string()),
            ("content_sha256", pa.string()),
            ("feature_ids", pa.list_(pa.string())),
            ("geometry_wkb", pa.binary()),
            ("geometry_epsg", pa.int64()),
            ("geometry_evidence", pa.string()),
            ("geometry_flags", pa.list_(pa.string())),
            ("period_start", pa.float64()),
            ("period_end", pa.float64()),
            ("licence", pa.string()),
            ("url", pa.string()),
            ("revision", pa.string()),
            ("declared_epsg", pa.int64()),
            ("fields_json", pa.string()),
        ]
    ),
)

QUARANTINE = TableSpec(
    "quarantine",
    pa.schema(
        [
            ("doc_id", pa.string()),
            ("source", pa.string()),
            ("location", pa.string()),
            ("kind", pa.string()),
            ("reason", pa.string()),
            ("stage", pa.string()),
        ]
    ),
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a document that cuts no geometry.

    `document.text[start:end] == text`. `literals` carry document offsets. `context` is what it needs from outside its
    slice; `embedded_text` is context + text with each literal replaced by a description; `token_count` is that of
    `embedded_text`, specials included. `feature_ids` are the source features it speaks of. `inherited` is True where
    its geometry is the document's (then `geometry_wkb` is the document's, in `geometry_epsg`).
    """

    chunk_id: str
    doc_id: str
    start: int
    end: int
    text: str
    unit: str
    context: str
    embedded_text: str
    token_count: int
    flags: tuple[str, ...] = ()
    feature_ids: tuple[str, ...] = ()
    literals: tuple[GeometryLiteral, ...] = ()
    inherited: bool = False


# literals_json: list of {start,end,kind,literal,wkt,epsg,geographic,flags}; wkt null where malformed.
CHUNKS = TableSpec(
    "chunks",
    pa.schema(
        [
            ("chunk_id", pa.string()),
            ("doc_id", pa.string()),
            ("content_sha256", pa.string()),
            ("code_version", pa.string()),
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("text", pa.string()),
            ("unit", pa.string()),
            ("context", pa.string()),
            ("embedded_text", pa.string()),
            ("embedded_sha256", pa.string()),
            ("token_count", pa.int64()),
            ("flags", pa.list_(pa.string())),
            ("feature_ids", pa.list_(pa.string())),
            ("literals_json", pa.string()),
            ("inherited", pa.bool_()),
            ("page_first", pa.int64()),
            ("page_last", pa.int64()),
        ]
    ),
)
