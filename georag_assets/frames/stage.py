"""The stage `frames`: a graded frame, its evidence and an extent in EPSG:4326 for every chunk.

What belongs here: which rows are made anew, what geometry a chunk has, and the stage's checks. What does not: weighing
evidence (`resolver`) and transforming (`project`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyproj
import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.errors import GeoragError
from georag_assets.frames.mentions import Mention, find_mentions
from georag_assets.frames.models import FRAMES, FrameResolution
from georag_assets.frames.project import to_wgs84
from georag_assets.frames.resolver import FrameResolver, confidence_of, governing, grade_of
from georag_assets.geometry.extent import Extent, extent_meets
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.shapes import normalise
from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport
from georag_assets.tables.iceberg import TableSpec
from georag_assets.workers import Workers, portions

ALGORITHM = "frames-1"
_FEW = 500
# What a worker is given at once: so many documents or characters of them, whichever comes first, or so many chunks.
_DOCUMENTS, _CHARACTERS, _CHUNKS = 200, 500_000, 500
_SHOWN = 20
# Flags of what reads like a coordinate and is none: one axis alone, a surveyor's bearing.
_NO_PLACE = frozenset({"single_axis", "bearing"})
_WRITTEN = ("wkt", "geojson")
_NEARBY_DEG = 1.0
_RESOLVER = FrameResolver()

Row = dict[str, Any]


def frame_corpus(home: Home, declaration: CorpusDeclaration, *, shard: Shard = WHOLE) -> StageReport:
    """Frame every chunk (of a shard) whose document or whose rule changed; leave every other row as it is."""
    tables, corpus = home.tables, declaration.name
    version = code_version(declaration)
    started = perf_counter()
    columns = ["doc_id", "chunk_id", "content_sha256"]
    wanted = _keys(shard.of_rows(tables.read(corpus, CHUNKS, columns=columns)), version)
    present = _keys(shard.of_rows(tables.read(corpus, FRAMES, columns=[*columns, "code_version"])), None)
    changed = {doc_id for doc_id, keys in wanted.items() if present.get(doc_id) != keys}
    gone = sorted(doc_id for doc_id in present if doc_id in changed or doc_id not in wanted)
    compared = perf_counter()
    with Workers(home.settings.worker_count) as workers:
        made = _frame(home, declaration, version, changed, len(wanted), workers)
        snapshot = tables.replace_rows(corpus, FRAMES, key="doc_id", removed=gone, added=made)
    framed = perf_counter()
    numbers, checks = check_frames(
        (chunk for keys in wanted.values() for chunk, _, _ in keys),
        (shard.of_rows(batch) for batch in tables.batches(corpus, FRAMES)),
    )
    chunks = sum(len(keys) for keys in wanted.values())
    new = sum(len(wanted[doc_id]) for doc_id in changed)
    return StageReport(
        corpus,
        "frames",
        _data_version(wanted),
        {
            "new": new,
            "reused": chunks - new,
            "removed": sum(len(keys) for doc_id, keys in present.items() if doc_id not in wanted),
            "quarantined": 0,
        },
        {"compare": compared - started, "frame": framed - compared, "check": perf_counter() - framed},
        checks,
        snapshot or None,
        {"chunks": chunks, "code_version": version, **numbers},
        shard.label,
    )


def code_version(declaration: CorpusDeclaration) -> str:
    """Return what a frame row depends on beside its document: the rules, PROJ and its data, the declared hints."""
    hints = json.dumps(declaration.frame.model_dump(mode="json"), sort_keys=True)
    return f"{ALGORITHM}/proj-{pyproj.proj_version_str}/{hashlib.sha256(hints.encode()).hexdigest()[:8]}"


def check_frames(
    chunk_ids: Iterable[str], batches: Iterable[pa.RecordBatch]
) -> tuple[dict[str, float], tuple[CheckResult, ...]]:
    """Return rates and the two blocking checks, from the rows that were written and not from what was meant."""
    missing = set(chunk_ids)
    grades: Counter[str] = Counter()
    faults: dict[str, list[str]] = defaultdict(list)
    rows = located = assumed = 0
    for batch in batches:
        shapes = shapely.from_wkb(batch.column("geometry_wkb").to_numpy(zero_copy_only=False), on_invalid="ignore")
        bounds = shapely.bounds(shapes)
        for row, shape, box in zip(_light(batch).to_pylist(), shapes, bounds, strict=True):
            chunk_id = row["chunk_id"]
            rows += 1
            located += shape is not None
            assumed += row["assumed_epsg"] is not None
            grades[str(row["grade"])] += 1
            if chunk_id not in missing:
                faults["extent"].append(f"{chunk_id}: framed twice, or no chunk of the corpus")
            missing.discard(chunk_id)
            if fault := _extent_fault(row, shape, [float(edge) for edge in box]):
                faults["extent"].append(f"{chunk_id}: {fault}")
            if fault := _evidence_fault(row):
                faults["evidence"].append(f"{chunk_id}: {fault}")
    faults["extent"] += [f"{chunk_id}: no frame" for chunk_id in sorted(missing)]
    share = {grade: grades[grade] / rows if rows else 0.0 for grade in ("measured", "described", "unresolved")}
    numbers = {
        **{f"{grade}_share": round(value, 4) for grade, value in share.items()},
        "located_share": round(located / rows, 4) if rows else 0.0,
        "assumed_wgs84": assumed,
    }
    checks = (
        CheckResult(
            "every_chunk_has_frame_and_extent",
            not faults["extent"],
            True,
            "Every chunk has one frame row, with the extent of its geometry or a note that says why it has none.",
            {"faults": len(faults["extent"]), "chunks": rows, "located": located},
            {"faults": faults["extent"][:_SHOWN]},
        ),
        CheckResult(
            "every_frame_has_evidence",
            not faults["evidence"],
            True,
            "Every frame that is stated has evidence for it, and its confidence is the sum of that evidence.",
            {"faults": len(faults["evidence"]), **{f"{grade}_share": value for grade, value in share.items()}},
            {"faults": faults["evidence"][:_SHOWN]},
        ),
    )
    return numbers, checks


def _light(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != "geometry_wkb"])


def _extent_fault(row: Mapping[str, Any], shape: BaseGeometry | None, bounds: Sequence[float]) -> str | None:
    extent = [row[side] for side in ("west", "south", "east", "north")]
    if shape is None or shape.is_empty:
        if any(side is not None for side in extent):
            return "an extent without geometry"
        return None if row["note"] or row["geometry_flags"] else "neither geometry nor a note that says why"
    if any(side is None or not math.isfinite(side) for side in extent):
        return "geometry without a finite extent"
    if any(abs(side - bound) > 1e-9 for side, bound in zip(extent, bounds, strict=True)):
        return "an extent that is not its geometry's"
    west, south, east, north = extent
    if not (-180 <= west < 180 and west <= east <= west + 360 and -90 <= south <= north <= 90):
        return "an extent that is not on the earth"
    return None


def _evidence_fault(row: Mapping[str, Any]) -> str | None:
    epsg, confidence, grade = row["epsg"], row["confidence"], row["grade"]
    if confidence is None or not 0 <= confidence <= 1 or grade != grade_of(confidence):
        return f"grade {grade} does not follow from confidence {confidence}"
    if epsg is None:
        return None if grade == "unresolved" and row["note"] else "no frame, and no note that says why"
    if grade == "unresolved":
        return "an unresolved frame that is stated"
    weights = _weights(row["evidence_json"]).get(f"{row['authority']}:{epsg}", ())
    if not any(weight > 0 for weight in weights):
        return f"no evidence for EPSG:{epsg}"
    if abs(confidence_of(weights) - confidence) > 1e-3:
        return "a confidence that its evidence does not add up to"
    return None


@lru_cache(maxsize=4096)
def _weights(evidence_json: str | None) -> dict[str, tuple[float, ...]]:
    weights: dict[str, tuple[float, ...]] = {}
    for term in json.loads(evidence_json or "[]"):
        weights[term["candidate"]] = (*weights.get(term["candidate"], ()), term["weight"])
    return weights


def _keys(rows: pa.Table, version: str | None) -> dict[str, set[tuple[str, str, str]]]:
    keys: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    versions = rows["code_version"].to_pylist() if version is None else [version] * rows.num_rows
    columns = (rows[name].to_pylist() for name in ("doc_id", "chunk_id", "content_sha256"))
    for doc_id, chunk_id, content, code in zip(*columns, versions, strict=True):
        keys[doc_id].add((chunk_id, content, code))
    return dict(keys)


def _data_version(wanted: Mapping[str, set[tuple[str, str, str]]]) -> str:
    digest = hashlib.sha256()
    for key in sorted(key for keys in wanted.values() for key in keys):
        digest.update("\0".join(key).encode())
    return digest.hexdigest()[:16]


def _frame(
    home: Home, declaration: CorpusDeclaration, version: str, changed: set[str], total: int, workers: Workers
) -> Iterator[pa.RecordBatch]:
    """Yield new rows, a batch at a time; a few documents are looked up, many are read in one pass.

    Of a document only its mentions and its geometry are held, never its text.
    """
    few = len(changed) <= max(_FEW, total // 10)
    ordered = sorted(changed)
    groups = [ordered[at : at + _FEW] for at in range(0, len(ordered), _FEW)] if few else [ordered] if ordered else []

    def rows(spec: TableSpec, columns: list[str], doc_ids: list[str]) -> Iterator[Row]:
        if few:
            read = home.tables.read(declaration.name, spec, columns=columns, where=("doc_id", doc_ids))
            yield from read.to_pylist()
            return
        for batch in home.tables.batches(declaration.name, spec, columns=columns):
            for begin in range(0, batch.num_rows, _CHUNKS):
                yield from (row for row in batch.slice(begin, _CHUNKS).to_pylist() if row["doc_id"] in changed)

    for group in groups:
        with_literals = {
            row["doc_id"]
            for row in rows(CHUNKS, ["doc_id", "literals_json"], group)
            if len(row["literals_json"] or "") > 2
        }
        documents: dict[str, Framed] = {}
        read = ((row, row["doc_id"] in with_literals) for row in rows(DOCUMENTS, _DOCUMENT, group))
        asked = portions(read, _DOCUMENTS, size=lambda pair: len(pair[0]["text"] or ""), largest=_CHARACTERS)
        for found in workers.in_order(partial(_read_documents, declaration), asked):
            documents |= found
        # One whose document has gone is left out; the check counts it as a chunk without a frame.
        chunks = (row for row in rows(CHUNKS, _CHUNK, group) if row["doc_id"] in documents)
        given = (
            (part, {row["doc_id"]: documents[row["doc_id"]] for row in part}) for part in portions(chunks, _CHUNKS)
        )
        yield from workers.in_order(partial(_frame_chunks, declaration, version), given)


def _read_documents(declaration: CorpusDeclaration, rows: Sequence[tuple[Row, bool]]) -> dict[str, Framed]:
    return {row["doc_id"]: Framed.of(row, literals, declaration, _RESOLVER) for row, literals in rows}


def _frame_chunks(
    declaration: CorpusDeclaration, version: str, given: tuple[Sequence[Row], Mapping[str, Framed]]
) -> pa.RecordBatch:
    chunks, documents = given
    made = [frame_chunk(chunk, documents[chunk["doc_id"]], declaration, version, _RESOLVER) for chunk in chunks]
    return pa.RecordBatch.from_pylist(made, schema=FRAMES.schema)


_DOCUMENT = ["doc_id", "text", "geometry_wkb", "geometry_epsg", "geometry_evidence", "geometry_flags", "declared_epsg"]
_CHUNK = ["chunk_id", "doc_id", "content_sha256", "start", "end", "literals_json"]
Located = tuple[FrameResolution, BaseGeometry | None, list[str]]


@dataclass(frozen=True)
class Framed:
    """What a document gives its chunks: what it says of frames, the declared one, and a geometry to inherit."""

    mentions: tuple[Mention, ...]
    declared: int | None
    geometry: Located | None

    @classmethod
    def of(
        cls, row: Mapping[str, Any], has_literals: bool, declaration: CorpusDeclaration, resolver: FrameResolver
    ) -> Framed:
        """Read a document's row; its text only where a chunk's frame can depend on it."""
        declared = row["declared_epsg"] or declaration.frame.epsg
        wkb = row["geometry_wkb"]
        mentions = find_mentions(row["text"] or "") if has_literals or wkb is None else ()
        return cls(mentions, declared, None if wkb is None else _of_document(row, declared, resolver))

    def mentions_in(self, start: int, end: int) -> tuple[Mention, ...]:
        """Return what a slice says of its frame itself, else what the whole document says."""
        own = tuple(mention for mention in self.mentions if start <= mention.start < end and mention.role == "data")
        return own or self.mentions


def frame_chunk(
    chunk: Mapping[str, Any], document: Framed, declaration: CorpusDeclaration, version: str, resolver: FrameResolver
) -> Row:
    """Return the frame row of one chunk: of its own literals, else of its document's geometry, else of its words."""
    literals = [GeometryLiteral.of_record(item) for item in json.loads(chunk["literals_json"] or "[]")]
    mentions = document.mentions_in(chunk["start"], chunk["end"])
    resolution, shape, origin, flags = _of_literals(literals, mentions, document.declared, declaration, resolver)
    if shape is not None and _contradicts(literals, shape, document.geometry):
        shape, flags = None, ["literal_outside_document"]
    if shape is None and document.geometry is not None:
        resolution, shape, more = document.geometry
        origin, flags = "document" if shape is not None else None, [*flags, *more]
    if resolution is None:
        resolution = resolver.of_mentions(mentions, declared=document.declared, names=declaration.frame.names)
    if shape is None and not flags:
        flags = ["no_geometry"]
    west, south, east, north = shape.bounds if shape is not None else (None, None, None, None)
    return {
        "chunk_id": chunk["chunk_id"],
        "doc_id": chunk["doc_id"],
        "content_sha256": chunk["content_sha256"],
        "code_version": version,
        "epsg": resolution.epsg,
        "authority": resolution.authority,
        "confidence": resolution.confidence,
        "grade": resolution.grade,
        "evidence_json": json.dumps([asdict(term) for term in resolution.evidence], ensure_ascii=False),
        "candidates": list(resolution.candidates),
        "accuracy_m": resolution.accuracy_m,
        "assumed_epsg": resolution.assumed_epsg,
        "note": resolution.note,
        "geometry_wkb": shapely.to_wkb(shape) if shape is not None else None,
        "geometry_origin": origin,
        "geometry_flags": list(dict.fromkeys(flags)),
        "west": west,
        "south": south,
        "east": east,
        "north": north,
    }


def _contradicts(literals: Sequence[GeometryLiteral], shape: BaseGeometry, document: Located | None) -> bool:
    """Return whether prose coordinates lie far from the document's own geometry: swapped, or of another meridian.

    What a program wrote (WKT, GeoJSON) is believed.
    """
    if document is None or document[1] is None or not document[0].epsg:
        return False
    if any(kind in literal.kind for literal in literals for kind in _WRITTEN):
        return False
    west, south, east, north = document[1].bounds
    around = Extent(west - _NEARBY_DEG, south - _NEARBY_DEG, east + _NEARBY_DEG, north + _NEARBY_DEG)
    return not bool(extent_meets(around, np.array([shape.bounds]))[0])


def _of_literals(
    literals: Sequence[GeometryLiteral],
    mentions: Sequence[Mention],
    declared: int | None,
    declaration: CorpusDeclaration,
    resolver: FrameResolver,
) -> tuple[FrameResolution | None, BaseGeometry | None, str | None, list[str]]:
    flags: list[str] = []
    resolutions: list[FrameResolution] = []
    lost: list[FrameResolution] = []
    shapes: list[BaseGeometry] = []
    for literal in literals:
        if literal.geometry is None or literal.geometry.is_empty:
            if not _NO_PLACE.intersection(literal.flags):
                flags.append("empty_literal" if literal.geometry is not None else "malformed_literal")
            continue
        resolution = resolver.frame_of(literal, mentions=mentions, declared=declared, names=declaration.frame.names)
        epsg = resolution.epsg if resolution.epsg is not None else resolution.assumed_epsg
        if epsg is None:
            flags.append("literal_without_frame")
            lost.append(resolution)
            continue
        try:
            shape, _, more = to_wgs84(literal.geometry, epsg)
        except GeoragError as error:
            flags += ["literal_not_transformed", error.what]
            lost.append(resolution)
            continue
        flags += more
        resolutions.append(resolution)
        shapes.append(shape)
    if shapes:
        return governing(resolutions), _together(shapes), "literal", flags
    return (governing(lost) if lost else None), None, None, flags


def _of_document(document: Mapping[str, Any], declared: int | None, resolver: FrameResolver) -> Located:
    geometry = shapely.from_wkb(document["geometry_wkb"])
    flags = list(document["geometry_flags"] or ())
    code, where = document["geometry_epsg"], document["geometry_evidence"]
    resolution = resolver.of_geometry(
        geometry,
        sidecar=(code, where or "sidecar") if code else None,
        declared=declared,
        unstated=None if code else where,
    )
    epsg = resolution.epsg if resolution.epsg is not None else resolution.assumed_epsg
    if epsg is None:
        return resolution, None, [*flags, "geometry_without_frame"]
    try:
        shape, _, more = to_wgs84(geometry, epsg)
    except GeoragError as error:
        return resolution, None, [*flags, "geometry_not_transformed", error.what]
    return resolution, None if shape.is_empty else shape, [*flags, *more]


def _together(shapes: Sequence[BaseGeometry]) -> BaseGeometry:
    """Return several normalised shapes as one, on the shortest arc that holds them."""
    if len(shapes) == 1:
        return shapes[0]
    if all(shape.geom_type == "Point" for shape in shapes):
        return normalise(shapely.multipoints(list(shapes)))[0]
    return normalise(shapely.geometrycollections(list(shapes)))[0]
