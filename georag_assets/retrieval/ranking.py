"""The order of candidates: weighted reciprocal ranks of the text arms, then fit or nearness among the survivors.

What belongs here: pure functions from hits to scored candidates. What does not: asking an index (`retriever`), the
numbers (`settings`), folding (`folding`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from georag_assets.index.models import Hit
from georag_assets.retrieval.settings import RankingSettings


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with every component of its score.

    `scores` and `ranks` are per text arm that found it (ranks from 1); `fused` is the text score in [0, 1]; `fit`,
    `distance_m` and `proximity` are None where the search has no region (or no radius) or the candidate no geometry.
    """

    chunk_id: str
    score: float
    fused: float
    scores: Mapping[str, float]
    ranks: Mapping[str, int]
    fit: float | None = None
    distance_m: float | None = None
    proximity: float | None = None


@dataclass(frozen=True, slots=True)
class Spatial:
    """How a candidate lies to the region; computed once per search whatever the weights."""

    fit: float | None = None
    distance_m: float | None = None


def proximity(distance_m: float, half_life_m: float) -> float:
    """Return nearness in [0, 1], halved each `half_life_m`; 0 for a distance that is negative or not finite."""
    if not math.isfinite(distance_m) or distance_m < 0:
        return 0.0
    return float(0.5 ** (distance_m / half_life_m))


def fuse(arms: Mapping[str, Sequence[Hit]], settings: RankingSettings) -> dict[str, float]:
    """Return each chunk's text score in [0, 1] by weighted reciprocal ranks; an arm that found nothing has no say."""
    weights = {arm: getattr(settings, arm) for arm, hits in arms.items() if hits and getattr(settings, arm) > 0}
    most = sum(weights.values()) / (settings.rrf_constant + 1)
    fused: dict[str, float] = {}
    for arm, weight in weights.items():
        for rank, hit in enumerate(arms[arm], start=1):
            fused[hit.chunk_id] = fused.get(hit.chunk_id, 0.0) + weight / (settings.rrf_constant + rank) / most
    return fused


def rank(
    arms: Mapping[str, Sequence[Hit]],
    spatial: Mapping[str, Spatial],
    settings: RankingSettings,
    *,
    radius: bool,
) -> list[Scored]:
    """Order candidates by score, then by chunk id.

    Parameters
    ----------
    arms
        Hits per text arm, best first.
    spatial
        How each candidate lies to the region; empty where the search has none.
    radius
        Whether the region is a radius: then nearness counts, else the fit of the extent.
    """
    scores: dict[str, dict[str, float]] = {}
    ranks: dict[str, dict[str, int]] = {}
    for arm, hits in arms.items():
        for position, hit in enumerate(hits, start=1):
            scores.setdefault(hit.chunk_id, {})[arm] = hit.score
            ranks.setdefault(hit.chunk_id, {})[arm] = position
    scored = []
    for chunk_id, text in fuse(arms, settings).items():
        lies = spatial.get(chunk_id, Spatial())
        near = None if lies.distance_m is None or not radius else proximity(lies.distance_m, settings.half_life_m)
        score = text
        if near is not None:
            score = (1 - settings.proximity) * text + settings.proximity * near
        elif lies.fit is not None and not radius:
            score = (1 - settings.fit) * text + settings.fit * lies.fit
        scored.append(
            Scored(
                chunk_id,
                round(score, 6),
                round(text, 6),
                scores[chunk_id],
                ranks[chunk_id],
                lies.fit,
                lies.distance_m,
                near,
            )
        )
    return sorted(scored, key=lambda candidate: (-candidate.score, candidate.chunk_id))
