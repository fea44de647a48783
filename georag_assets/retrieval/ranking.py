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


def order(
    arms: Mapping[str, Sequence[Hit]],
    spatial: Mapping[str, Spatial],
    settings: RankingSettings,
    *,
    radius: bool,
) -> list[tuple[str, float]]:
    """Return (chunk id, score) by score, then by chunk id.

    Parameters
    ----------
    arms
        Hits per text arm, best first.
    spatial
        How each candidate lies to the region; empty where the search has none.
    radius
        Whether the region is a radius: then nearness counts, else the fit of the extent.
    """
    scored: list[tuple[str, float]] = []
    for chunk_id, text in fuse(arms, settings).items():
        lies = spatial.get(chunk_id)
        if lies is None:
            score = text
        elif radius and lies.distance_m is not None:
            near = proximity(lies.distance_m, settings.half_life_m)
            score = (1 - settings.proximity) * text + settings.proximity * near
        elif not radius and lies.fit is not None:
            score = (1 - settings.fit) * text + settings.fit * lies.fit
        else:
            score = text
        scored.append((chunk_id, round(score, 6)))
    scored.sort(key=lambda one: (-one[1], one[0]))
    return scored


def rank(
    arms: Mapping[str, Sequence[Hit]],
    spatial: Mapping[str, Spatial],
    settings: RankingSettings,
    *,
    radius: bool,
) -> list[Scored]:
    """Return candidates in `order`, each with every component of its score."""
    scores: dict[str, dict[str, float]] = {}
    ranks: dict[str, dict[str, int]] = {}
    for arm, hits in arms.items():
        for position, hit in enumerate(hits, start=1):
            scores.setdefault(hit.chunk_id, {})[arm] = hit.score
            ranks.setdefault(hit.chunk_id, {})[arm] = position
    fused = fuse(arms, settings)
    ranked = []
    for chunk_id, score in order(arms, spatial, settings, radius=radius):
        lies = spatial.get(chunk_id, Spatial())
        near = None if lies.distance_m is None or not radius else proximity(lies.distance_m, settings.half_life_m)
        text = round(fused[chunk_id], 6)
        ranked.append(Scored(chunk_id, score, text, scores[chunk_id], ranks[chunk_id], lies.fit, lies.distance_m, near))
    return ranked
