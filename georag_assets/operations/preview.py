"""What the pipeline would make of one text, without a home: for `georag chunk`, `geometries` and `frame`.

What belongs here: running the stages' own functions over a text and giving the result its JSON form. What does not:
any rule of chunking or framing of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shapely

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import Document
from georag_assets.errors import FrameError, GeoragError
from georag_assets.frames.mentions import find_mentions
from georag_assets.frames.models import FrameResolution
from georag_assets.frames.project import to_wgs84
from georag_assets.frames.resolver import FrameResolver
from georag_assets.frames.stage import Framed, frame_chunk
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import scan

if TYPE_CHECKING:
    from georag_assets.home import Home

_MEDIA_TYPES = {".md": "text/markdown", ".markdown": "text/markdown", ".geojson": "application/geo+json"}


def preview_chunks(text: str, name: str, *, unit: str = "section", budget: int = 256) -> Iterator[dict[str, Any]]:
    """Yield a record per chunk of a text, with its frame and its geometries."""
    from georag_assets.corpus.chunking import chunk_document
    from georag_assets.corpus.tokens import ModelTokenizer
    from georag_assets.settings import Settings

    declaration = CorpusDeclaration.model_validate({"name": "preview", "sources": [name], "unit": unit})
    document = Document(
        doc_id=name,
        text=text,
        title=Path(name).stem,
        source=name,
        location=f"{name}:1",
        media_type=_MEDIA_TYPES.get(Path(name).suffix.lower(), "text/plain"),
        content_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    )
    resolver = FrameResolver()
    row = {"text": text, "geometry_wkb": None, "declared_epsg": None}
    framed_by = Framed.of(row, True, declaration, resolver)
    tokenizer = ModelTokenizer.load(Settings().model)
    for chunk in chunk_document(document, corpus="preview", unit=declaration.unit, budget=budget, tokenizer=tokenizer):
        framed = frame_chunk(
            {
                "chunk_id": chunk.chunk_id,
                "doc_id": name,
                "content_sha256": document.content_sha256,
                "start": chunk.start,
                "end": chunk.end,
                "literals_json": json.dumps([literal.as_record() for literal in chunk.literals]),
            },
            framed_by,
            declaration,
            "preview",
            resolver,
        )
        edges = [framed[edge] for edge in ("west", "south", "east", "north")]
        yield {
            "chunk_id": chunk.chunk_id,
            "doc_id": name,
            "start": chunk.start,
            "end": chunk.end,
            "text": chunk.text,
            "unit": chunk.unit,
            "flags": list(chunk.flags),
            "feature_ids": list(chunk.feature_ids),
            "epsg": framed["epsg"],
            "frame": {
                "epsg": framed["epsg"],
                "authority": framed["authority"],
                "assumed_epsg": framed["assumed_epsg"],
                "confidence": framed["confidence"],
                "grade": framed["grade"],
                "accuracy_m": framed["accuracy_m"],
                "evidence": json.loads(framed["evidence_json"]),
                "note": framed["note"],
            },
            "extent": None if None in edges else edges,
            "period": None,
            "geometries": [
                _literal(literal, resolver.frame_of(literal, mentions=framed_by.mentions_in(chunk.start, chunk.end)))
                for literal in chunk.literals
            ],
        }


def preview_geometries(text: str) -> Iterator[dict[str, Any]]:
    """Yield a record per geometry literal, its shape in EPSG:4326 where its frame is known."""
    resolver = FrameResolver()
    literals = scan(text)
    mentions = find_mentions(text) if literals else ()
    for literal in literals:
        yield _literal(literal, resolver.frame_of(literal, mentions=mentions))


def preview_frame(home: Home, text: str, place: str | None = None) -> dict[str, Any]:
    """Return the frame of a text; with a place, whether its coordinates lie there is evidence too.

    Raises
    ------
    PlaceError
        The place is not one shape.
    """
    literals = scan(text)
    resolution = FrameResolver().resolve(text, literals)
    record = asdict(resolution)
    if place is not None:
        record["place"] = _beside(home, place, literals, resolution)
    return record


def _beside(
    home: Home, name: str, literals: tuple[GeometryLiteral, ...], resolution: FrameResolution
) -> dict[str, Any]:
    """Return how far a text's geometries, read in its frame, lie from a named place; and the other axis order's."""
    from georag_assets.geometry.distance import geodesic_m
    from georag_assets.places.resolver import PlaceResolver

    place = PlaceResolver(home, ()).resolve(name)
    code = resolution.epsg or resolution.assumed_epsg

    def nearest(swapped: bool) -> float | None:
        metres = []
        for literal in literals:
            shape = literal.geometry
            if shape is None or shape.is_empty or code is None:
                continue
            try:
                turned = shapely.transform(shape, lambda xy: xy[:, ::-1]) if swapped else shape
                metres.append(geodesic_m(to_wgs84(turned, code)[0], place.geometry))
            except GeoragError:
                continue  # not on the earth that way round
        return round(min(metres), 1) if metres else None

    return {
        "name": place.name,
        "source": place.source,
        "distance_m": nearest(swapped=False),
        "distance_m_axes_swapped": nearest(swapped=True),
    }


def _literal(literal: GeometryLiteral, resolution: FrameResolution) -> dict[str, Any]:
    shape, flags = literal.geometry, list(literal.flags)
    epsg = resolution.epsg or resolution.assumed_epsg
    if shape is not None and epsg is not None and not shape.is_empty:
        try:
            shape, _, more = to_wgs84(shape, epsg)
            flags += more
        except (FrameError, GeoragError) as error:
            shape = None
            flags += ["not_transformed", error.what]
    elif epsg is None and shape is not None:
        flags.append("frame_unknown")
    if resolution.epsg is None and resolution.assumed_epsg is not None:
        flags.append("assumed_wgs84")
    return {
        "start": literal.start,
        "end": literal.end,
        "kind": literal.kind,
        "literal": literal.literal,
        "wkt": None if shape is None else shape.wkt,
        "epsg": resolution.epsg,
        "flags": list(dict.fromkeys(flags)),
    }
