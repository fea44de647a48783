"""What a search gives back: candidates with every component of their score, and what is needed to replay the search.

What belongs here: the records and their JSON form. What does not: how they are found (`retriever`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from georag_assets.corpus.period import format_instant
from georag_assets.geometry.region import Region
from georag_assets.retrieval.ranking import Scored

# What an answer may do with a passage, by the grade of its frame.
ALLOWS: Final = {
    "measured": "state distances and areas",
    "described": "describe, hedged; no measurements",
    "unresolved": "say what could not be established about the frame",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One candidate: the passage, its place, frame, source and version, and how it came to its rank.

    `scores` holds the engine's score of each text arm that found it and `fused`, `fit`, `proximity`, `score`; `ranks`
    its rank in each arm and `final`. `pages` are the first and last page of a document that has pages. `folded` are
    chunks that say the same of the same place.
    """

    chunk_id: str
    corpus: str
    corpus_version: str
    build: str
    doc_id: str
    title: str | None
    source: str
    url: str | None
    licence: str | None
    revision: str | None
    content_sha256: str
    feature_ids: tuple[str, ...]
    start: int
    end: int
    text: str
    context: str
    unit: str
    flags: tuple[str, ...]
    frame: Mapping[str, Any]
    extent: tuple[float, float, float, float] | None
    geometry: Mapping[str, Any]
    period: tuple[str, str] | None
    scores: Mapping[str, float | None]
    distance_m: float | None
    ranks: Mapping[str, int]
    pages: tuple[int, int] | None = None
    folded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, scored: Scored, payload: Mapping[str, Any], build: str, final: int, folded: tuple[str, ...]
    ) -> Evidence:
        """Return the evidence of a scored candidate and its payload."""
        edges = [payload.get(edge) for edge in ("west", "south", "east", "north")]
        grade = payload.get("grade")
        return cls(
            chunk_id=scored.chunk_id,
            corpus=payload["corpus"],
            corpus_version=payload["corpus_version"],
            build=build,
            doc_id=payload["doc_id"],
            title=payload.get("title"),
            source=payload["source"],
            url=payload.get("url"),
            licence=payload.get("licence"),
            revision=payload.get("revision"),
            content_sha256=payload["content_sha256"],
            feature_ids=tuple(payload.get("feature_ids") or ()),
            start=payload["start"],
            end=payload["end"],
            text=payload["text"],
            context=payload.get("context") or "",
            unit=payload["unit"],
            flags=tuple(payload.get("flags") or ()),
            frame={
                "epsg": payload.get("epsg"),
                "authority": payload.get("authority"),
                "assumed_epsg": payload.get("assumed_epsg"),
                "confidence": payload.get("frame_confidence"),
                "grade": grade,
                "accuracy_m": payload.get("accuracy_m"),
                "note": payload.get("frame_note"),
                "allows": ALLOWS.get(str(grade)),
            },
            extent=None if None in edges else (edges[0], edges[1], edges[2], edges[3]),  # type: ignore[arg-type]
            geometry={
                "origin": payload.get("geometry_origin"),
                "inherited": payload.get("inherited"),
                "flags": list(payload.get("geometry_flags") or ()),
            },
            period=_period(payload.get("period_start"), payload.get("period_end")),
            scores={
                **scored.scores,
                "fused": scored.fused,
                "fit": _rounded(scored.fit),
                "proximity": _rounded(scored.proximity),
                "score": scored.score,
            },
            distance_m=_rounded(scored.distance_m, 1),
            ranks={**scored.ranks, "final": final},
            pages=_pages(payload),
            folded=folded,
        )


@dataclass(frozen=True, slots=True)
class RegionUsed:
    """Where was searched: how it was asked for, its extent (radius included), and which gazetteer said so.

    `source` is `bbox`, `near`, `shape`, `place` (named by option) or `words` (found in the question).
    """

    source: str
    label: str
    bbox: tuple[float, float, float, float]
    radius_m: float
    flags: tuple[str, ...]
    place: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, region: Region, source: str, place: Mapping[str, Any] | None = None) -> RegionUsed:
        """Return the record of a region."""
        around = region.boxes()[0] if region.radius_m else region.extent
        box = tuple(round(edge, 7) for edge in (around.west, around.south, around.east, around.north))
        return cls(source, region.label, (box[0], box[1], box[2], box[3]), region.radius_m, region.flags, place)


@dataclass(frozen=True, slots=True)
class CorpusUsed:
    """Which build of a corpus answered, and how far it is behind: numbers, so that they can be watched.

    `version_lag` counts the corpus versions published after the build's own; None where that cannot be read.
    `answers_from` is `embedded`, or the server that was asked.
    """

    corpus: str
    build: str
    live: bool
    corpus_version: str
    newest_version: str | None
    version_lag: int | None
    built_at: str
    index_age_seconds: float
    answers_from: str = "embedded"
    survivors: int = 0
    plans: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidates best first, and everything that the ranking depended on.

    `mode` is `region` or `text_only`: the world is never searched by accident. `unlocated` is the lane of candidates
    without geometry, which a region can neither admit nor exclude.
    """

    question: Mapping[str, Any]
    mode: str
    region: RegionUsed | None
    corpora: tuple[CorpusUsed, ...]
    candidates: tuple[Evidence, ...]
    unlocated: tuple[Evidence, ...]
    settings: Mapping[str, float | int]
    notes: tuple[str, ...]
    timings_ms: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: fields as they are named, plus `staleness` and `versions` per corpus."""
        return {
            **asdict(self),
            "staleness": {
                used.corpus: {
                    "index_age_seconds": used.index_age_seconds,
                    "version_lag": used.version_lag,
                    "stale": None if used.newest_version is None else used.newest_version != used.corpus_version,
                }
                for used in self.corpora
            },
            "versions": {
                used.corpus: {"corpus_version": used.corpus_version, "newest": used.newest_version, "build": used.build}
                for used in self.corpora
            },
        }


def _pages(payload: Mapping[str, Any]) -> tuple[int, int] | None:
    first, last = payload.get("page_first"), payload.get("page_last")
    return None if first is None or last is None else (first, last)


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _period(start: float | None, end: float | None) -> tuple[str, str] | None:
    return None if start is None or end is None else (format_instant(start), format_instant(end))
