"""Filtered searches with their true answers, for any engine: what `bakeoff` and its peers are measured with.

What belongs here: the cases, NumPy's truth of them, recall and latency of a searcher over them. What does not: engines
(`bakeoff`, `peers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.sentences import Sentences
from georag_assets.geometry.extent import Extent
from georag_assets.index.filter import shifted_ranges
from georag_assets.index.models import SearchFilter
from georag_assets.index.recall import SCORE_TOLERANCE, region_holding

K = 10
LEVELS = (0.5, 0.2, 0.1, 0.01, 0.001)
CORRELATIONS = ("correlated", "uncorrelated", "anti-correlated")
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One filtered search: what is asked, which rows pass, and the k-th true score among them."""

    query: Vectors
    where: SearchFilter
    boxes: tuple[Extent, ...]
    passing: NDArray[np.int64]
    cut: float


@dataclass(frozen=True)
class Figures:
    """Recall@10 and latency of a searcher over some cases."""

    recall: float
    p50_ms: float
    p95_ms: float
    passing: float


# A searcher gives rows, best first.
Searcher = Callable[[Case], Sequence[int]]


def perturbed(points: Sentences, count: int, seed: int = 0) -> Sentences:
    """Return `count` points: the given ones, then seeded perturbations of them (cosine about 0.85, places shifted)."""
    if count <= len(points):
        return Sentences(points.texts[:count], points.vectors[:count], points.given[:count])
    random = np.random.default_rng(seed)
    rows = np.arange(count) % len(points)
    vectors = points.vectors[rows].copy()
    given = points.given[rows].copy()
    copies = slice(len(points), count)
    noise = random.standard_normal((count - len(points), vectors.shape[1])).astype(np.float32)
    vectors[copies] += 0.6 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    vectors[copies] /= np.linalg.norm(vectors[copies], axis=1, keepdims=True)
    shift = random.normal(0, 1, (count - len(points), 2))
    given[copies] += np.column_stack([shift, shift])
    given[copies, 1::2] = np.clip(given[copies, 1::2], -90, 90)
    wrapped = (given[copies, 0] + 180) % 360 - 180
    given[copies, 2] += wrapped - given[copies, 0]
    given[copies, 0] = wrapped
    texts = [points.texts[row] for row in rows.tolist()]
    return Sentences(texts, vectors, given)


def queries(points: Sentences, count: int, seed: int = 1) -> Vectors:
    """Return unit query vectors near points of the set and equal to none."""
    random = np.random.default_rng(seed)
    chosen = points.vectors[random.integers(0, len(points), count)]
    noise = random.standard_normal(chosen.shape)
    moved = chosen + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)


def cases(
    points: Sentences, extents: NDArray[np.float64], correlation: str, level: float, asked: Vectors, seed: int = 0
) -> list[Case]:
    """Return a case per query: the region around a centre that holds the level's share of the points."""
    random = np.random.default_rng([seed, CORRELATIONS.index(correlation), round(level * 1e6)])
    found = []
    for query in asked:
        scores = points.vectors @ query
        centre = {
            "correlated": int(np.argmax(scores)),
            "anti-correlated": int(np.argmin(scores)),
            "uncorrelated": int(random.integers(0, len(points))),
        }[correlation]
        where = SearchFilter(region=region_holding(extents, centre, max(K, round(level * len(points)))))
        assert where.region is not None
        boxes = tuple(where.region.boxes())
        found.append(_case(query, scores, where, boxes, np.flatnonzero(meets(extents, boxes))))
    return found


def period_cases(points: Sentences, starts: NDArray[np.float64], level: float, asked: Vectors) -> list[Case]:
    """Return a case per query: a period that the level's share of the points begins in, a filter by number alone."""
    random = np.random.default_rng(round(level * 1e6))
    ordered = np.sort(starts)
    wanted = max(K, round(level * len(points)))
    found = []
    for query in asked:
        first = int(random.integers(0, len(points) - wanted + 1))
        low, high = float(ordered[first]), float(ordered[first + wanted - 1]) + 0.5
        passing = np.flatnonzero((starts < high) & (starts + 1 > low + 0.5))
        found.append(_case(query, points.vectors @ query, SearchFilter(period=(low + 0.5, high)), (), passing))
    return found


def _case(
    query: Vectors,
    scores: Vectors,
    where: SearchFilter,
    boxes: tuple[Extent, ...],
    passing: NDArray[np.int64],
) -> Case:
    best = np.sort(scores[passing])[-K]
    return Case(query, where, boxes, passing, float(best) - SCORE_TOLERANCE)


def meets(extents: NDArray[np.float64], boxes: Sequence[Extent]) -> NDArray[np.bool_]:
    """Return which extents meet any of the boxes, longitudes modulo 360."""
    found = np.zeros(len(extents), dtype=bool)
    for box in boxes:
        east = np.zeros(len(extents), dtype=bool)
        for lowest_east, highest_west in shifted_ranges(box):
            east |= (extents[:, 2] >= lowest_east) & (extents[:, 0] <= highest_west)
        found |= east & (extents[:, 1] <= box.north) & (extents[:, 3] >= box.south)
    return found


def measured(search: Searcher, points: Sentences, asked: Sequence[Case]) -> Figures:
    """Return recall and latency; a row that does not pass counts as wrong, whatever its score."""
    recalls, seconds = [], []
    search(asked[0])  # the first touches files
    for case in asked:
        started = time.perf_counter()
        rows = search(case)
        seconds.append(time.perf_counter() - started)
        found = np.asarray(list(rows)[:K], dtype=np.int64)
        passed = np.isin(found, case.passing)
        right = passed & (points.vectors[found] @ case.query >= case.cut) if len(found) else passed
        recalls.append(float(np.count_nonzero(right)) / K)
    return Figures(
        float(np.mean(recalls)),
        float(np.percentile(seconds, 50)) * 1e3,
        float(np.percentile(seconds, 95)) * 1e3,
        float(np.mean([len(case.passing) for case in asked])),
    )
