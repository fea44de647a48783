"""Records that leave the frames room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from georag_assets.tables.iceberg import TableSpec

Grade = Literal["measured", "described", "unresolved"]


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    """One term of a frame's score: where it was read and which candidate it speaks for.

    `source` is one of `literal`, `sidecar`, `declaration`, `stated_code`, `name_in_prose` (which name a candidate),
    `magnitude` (what the coordinates say of it), `operation`, `rival` (what takes a share away), `place`;
    `start`, `end` are document offsets (-1 where it is not in the text); `candidate` is `AUTHORITY:CODE`.
    """

    source: str
    text: str
    start: int
    end: int
    candidate: str
    weight: float


@dataclass(frozen=True, slots=True)
class FrameResolution:
    """A graded frame. `epsg` is None unless it was established; `assumed_epsg` is 4326 or None."""

    epsg: int | None
    authority: str | None
    confidence: float
    grade: Grade
    evidence: tuple[FrameEvidence, ...] = ()
    candidates: tuple[str, ...] = ()
    accuracy_m: float | None = None
    assumed_epsg: int | None = None
    note: str = ""


# One row per chunk. geometry_wkb is EPSG:4326 lon/lat (may be unwrapped east of 180), null where the chunk has none.
FRAMES = TableSpec(
    "frames",
    pa.schema(
        [
            ("chunk_id", pa.string()),
            ("doc_id", pa.string()),
            ("content_sha256", pa.string()),
            ("code_version", pa.string()),
            ("epsg", pa.int64()),
            ("authority", pa.string()),
            ("confidence", pa.float64()),
            ("grade", pa.string()),
            ("evidence_json", pa.string()),
            ("candidates", pa.list_(pa.string())),
            ("accuracy_m", pa.float64()),
            ("assumed_epsg", pa.int64()),
            ("note", pa.string()),
            ("geometry_wkb", pa.binary()),
            ("geometry_origin", pa.string()),
            ("geometry_flags", pa.list_(pa.string())),
            ("west", pa.float64()),
            ("south", pa.float64()),
            ("east", pa.float64()),
            ("north", pa.float64()),
        ]
    ),
)
