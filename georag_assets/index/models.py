"""Records that cross the index room's wall.

What belongs here: what a caller asks of an index and what it gets back. What does not: engine types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from georag_assets.geometry.region import Region


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """What a candidate must satisfy, in every arm.

    `region` None means no spatial condition; with a region, only points with geometry pass. `period` is
    (start, exclusive end) in seconds since 1970 UTC and passes what overlaps. `equals` are keyword fields.
    `located` False asks for the lane without geometry (then `region` is None).
    """

    region: Region | None = None
    period: tuple[float, float] | None = None
    equals: Mapping[str, str] = field(default_factory=dict)
    located: bool | None = None


@dataclass(frozen=True, slots=True)
class DenseQuery:
    """A dense query vector, float32, finite, norm > 0; anything else is a `QueryError`."""

    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LexicalQuery:
    """Words to look for by BM25."""

    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A point found: its chunk id and the engine's score (cosine, or BM25)."""

    chunk_id: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Hits, best first, ties by chunk id, and how they were found."""

    hits: tuple[Hit, ...]
    survivors: int
    plan: Literal["exact_ids", "exact_filter", "graph", "empty"]
    asked_again: bool = False
    form: str = ""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How the planner decides; the defaults are the build's manifest's.

    `enabled` False switches the plan off (plain engine search with the payload filter): for measuring only. Handing the
    engine one id costs a microsecond, so ids are the cheapest filter up to some thousand survivors only.
    """

    exact_limit: int = 50_000
    ids_limit: int = 3_000
    ef: int = 1024
    enabled: bool = True
