"""Filtered recall of one build: the same searches answered by the store and by NumPy.

What belongs here: the sweep over shares of points and over how place and meaning go together, the truth, the table.
What does not: the floor that a build must reach to go live (`checks`), the benchmark's data (`benchmarks.recall`).

Regions grow around a centre until they hold the level's share of points: around the query's best match (correlated),
around a random point (uncorrelated), around the point that means the least (anti-correlated). Every level is searched
through the planner and with it switched off, so that the worth of the plan is a number.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georag_assets.geometry.region import Region
from georag_assets.index.columns import Columns
from georag_assets.index.models import DenseQuery, PlanSettings, SearchFilter
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.store import Store

LEVELS = (0.5, 0.2, 0.1, 0.01, 0.001)
CORRELATIONS = ("correlated", "uncorrelated", "anti-correlated")
FLOOR = 0.99
MOST_UNDER_BASELINE = 0.05
# Filters that pass up to this many points must be answered exactly: an exact threshold that is off shows here even
# where a small corpus has no graph that could lose anything.
ALWAYS_EXACT = 1_000
# Scores are float32 sums in different orders; a hit counts as right within this of the k-th true score.
SCORE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One level of the sweep.

    `level` None is the unfiltered baseline. `passing` is the mean number of points that passed; `exact` how many of
    the queries were answered exactly; `recall_off` and `ms_off` are without the plan, None where that was not asked.
    `skipped` says why nothing was measured.
    """

    correlation: str
    level: float | None
    queries: int = 0
    passing: float = 0.0
    recall: float | None = None
    recall_off: float | None = None
    exact: int = 0
    small_not_exact: int = 0
    asked_again: int = 0
    plans: str = ""
    ms: float = 0.0
    ms_off: float | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class RecallTable:
    """The sweep's rows, the unfiltered baseline first."""

    k: int
    points: int
    rows: tuple[RecallRow, ...]

    @property
    def baseline(self) -> float:
        """Recall of the same build without a filter."""
        return next((row.recall for row in self.rows if row.level is None and row.recall is not None), 1.0)

    @property
    def measured(self) -> tuple[RecallRow, ...]:
        """The filtered rows that were measured."""
        return tuple(row for row in self.rows if row.level is not None and row.recall is not None)

    @property
    def lowest(self) -> float:
        """Lowest filtered recall; 1 where nothing could be measured."""
        return min((row.recall for row in self.measured if row.recall is not None), default=1.0)

    @property
    def lowest_off(self) -> float | None:
        """Lowest filtered recall with the plan switched off; None where that was not measured."""
        return min((row.recall_off for row in self.measured if row.recall_off is not None), default=None)

    def faults(self, floor: float = FLOOR, most_under_baseline: float = MOST_UNDER_BASELINE) -> list[str]:
        """Return why this table does not let a build go live; empty where it does."""
        found = []
        for row in self.rows:
            if row.recall is None:
                continue
            name = f"{row.correlation} {row.level:.1%}" if row.level is not None else "unfiltered"
            if row.recall < floor:
                found.append(f"{name}: recall@{self.k} {row.recall:.3f} is under the floor of {floor}")
            if row.small_not_exact:
                found.append(f"{name}: {row.small_not_exact} filters of at most {ALWAYS_EXACT} points were not exact")
        rows = self.measured
        if rows and self.lowest < self.baseline - most_under_baseline:
            found.append(f"lowest recall {self.lowest:.3f} is over {most_under_baseline} under {self.baseline:.3f}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the table as JSON-able values."""
        rows = [asdict(row) for row in self.rows]
        return {"k": self.k, "points": self.points, "baseline": self.baseline, "lowest": self.lowest, "rows": rows}


def measure(
    store: Store,
    columns: Columns,
    vectors: NDArray[np.float32],
    ids: Sequence[str],
    *,
    settings: PlanSettings | None = None,
    queries: NDArray[np.float32] | None = None,
    k: int = 10,
    levels: Sequence[float] = LEVELS,
    correlations: Sequence[str] = CORRELATIONS,
    per_level: int = 20,
    seed: int = 0,
    without_plan: bool = True,
) -> RecallTable:
    """Measure recall@k of a build over the sweep.

    Parameters
    ----------
    vectors, ids
        The vectors as they were before the store got them, and their chunk ids, in any order.
    queries
        Query vectors; without them, points of the build moved a little, so that their best match is not themselves.
    without_plan
        Search once more with the plan switched off, to tell what the plan is worth.
    """
    plan = PlannedSearch(store, columns, settings)
    searches = {"on": plan}
    if without_plan:
        searches["off"] = PlannedSearch(store, columns, replace(plan.settings, enabled=False))
    truth = _Truth(columns, vectors, ids)
    random = np.random.default_rng(seed)
    asked = _queries(truth.matrix, per_level, random) if queries is None else queries[:per_level]
    rows = [_measured(searches, truth, [(query, SearchFilter()) for query in asked], "unfiltered", None, k)]
    for correlation in correlations:
        for level in levels:
            # A level's regions do not depend on which other levels are measured.
            random = np.random.default_rng([seed, CORRELATIONS.index(correlation), round(level * 1e6)])
            wanted = round(level * columns.count)
            skipped = _why_skipped(truth, wanted, k)
            if skipped:
                rows.append(RecallRow(correlation, level, skipped=skipped))
                continue
            cases = list(_cases(truth, asked, correlation, wanted, random))
            rows.append(_measured(searches, truth, cases, correlation, level, k))
    return RecallTable(k, columns.count, tuple(rows))


def settle_plan(
    store: Store,
    columns: Columns,
    vectors: NDArray[np.float32],
    ids: Sequence[str],
    settings: PlanSettings,
    *,
    per_level: int = 10,
    floor: float = FLOOR,
) -> PlanSettings:
    """Return the plan with the beam that this build's own sweep finds sufficient; exact everywhere where none is.

    Only what the graph would answer is measured. Vectors without structure (random ones at 100 k: recall 0.67 at a
    beam of 1,024) are beyond any graph; an exact search of them costs milliseconds more and loses nothing.
    """
    if columns.count <= settings.exact_limit or not settings.enabled:
        return settings
    levels = [level for level in LEVELS if round(level * columns.count) > settings.exact_limit]
    for wider in (1, 2, 4):
        plan = replace(settings, ef=settings.ef * wider)
        table = measure(store, columns, vectors, ids, settings=plan, levels=levels, per_level=per_level)
        if min(table.baseline, table.lowest) >= floor:
            return plan
    return replace(settings, exact_limit=columns.count)


class _Truth:
    """Similarities and exact predicates over the whole build, by NumPy and shapely."""

    def __init__(self, columns: Columns, vectors: NDArray[np.float32], ids: Sequence[str]) -> None:
        self.columns = columns
        rows = columns.rows_of(ids)
        if len(rows) == columns.count and np.array_equal(rows, np.arange(columns.count)):
            self.matrix = vectors
        else:
            self.matrix = np.zeros((columns.count, vectors.shape[1]), dtype=np.float32)
            self.matrix[rows[rows >= 0]] = vectors[rows >= 0]
        lengths = np.sqrt(np.einsum("ij,ij->i", self.matrix, self.matrix))[:, None]  # norm() would copy the matrix
        if not np.allclose(lengths, 1.0, atol=1e-4):
            self.matrix = (self.matrix / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        self._scores: dict[bytes, NDArray[np.float32]] = {}
        self.located = np.flatnonzero(columns.located)
        self.geometries = columns.geometries(self.located)
        self.extents = columns.extents[self.located]

    def scores(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        # The sweep puts the same few queries to every region: four bytes a point each are held.
        key = query.tobytes()
        if key not in self._scores:
            unit = query / np.linalg.norm(query)
            self._scores[key] = np.asarray(np.matmul(self.matrix, unit), dtype=np.float32)
        return self._scores[key]

    def passing(self, where: SearchFilter) -> NDArray[np.int64]:
        if where.region is None:
            return np.arange(self.columns.count)
        return self.located[where.region.covers_any(self.geometries)]


def _why_skipped(truth: _Truth, wanted: int, k: int) -> str:
    if wanted < k:
        return f"only {wanted} points would pass, fewer than k = {k}"
    if wanted > len(truth.located):
        return f"only {len(truth.located)} points have a place"
    return ""


def _queries(matrix: NDArray[np.float32], count: int, random: np.random.Generator) -> NDArray[np.float32]:
    if not len(matrix):
        return np.empty((0, matrix.shape[1]), dtype=np.float32)
    chosen = matrix[random.integers(0, len(matrix), count)]
    noise = random.normal(size=chosen.shape)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    moved = chosen + 0.5 * np.linalg.norm(chosen, axis=1, keepdims=True) * noise
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return np.asarray(moved, dtype=np.float32)


def _cases(
    truth: _Truth, queries: NDArray[np.float32], correlation: str, wanted: int, random: np.random.Generator
) -> Iterator[tuple[NDArray[np.float32], SearchFilter]]:
    for query in queries:
        scores = truth.scores(query)[truth.located]
        if correlation == "correlated":
            centre = int(np.argmax(scores))
        elif correlation == "anti-correlated":
            centre = int(np.argmin(scores))
        else:
            centre = int(random.integers(0, len(truth.located)))
        yield query, SearchFilter(region=region_holding(truth.extents, centre, wanted))


def region_holding(extents: NDArray[np.float64], centre: int, wanted: int) -> Region:
    """Return the box around a centre, twice as wide as high, that meets `wanted` extents (more where equal)."""
    lon = (extents[centre, 0] + extents[centre, 2]) / 2
    lat = (extents[centre, 1] + extents[centre, 3]) / 2
    east = np.full(len(extents), np.inf)
    for shift in (-360.0, 0.0, 360.0):
        away = np.maximum(extents[:, 0] + shift - lon, lon - extents[:, 2] - shift)
        east = np.minimum(east, np.maximum(away, 0.0))
    north = np.maximum(np.maximum(extents[:, 1] - lat, lat - extents[:, 3]), 0.0)
    reach = float(np.partition(np.maximum(east / 2, north), wanted - 1)[wanted - 1]) + 1e-6
    south, top = max(lat - reach, -90.0), min(lat + reach, 90.0)
    if reach >= 90.0:
        return Region.from_bbox(-180.0, south, 180.0, top)
    return Region.from_bbox(_wrap(lon - 2 * reach), south, _wrap(lon + 2 * reach), top)


def _wrap(longitude: float) -> float:
    return (longitude + 180.0) % 360.0 - 180.0


def _measured(
    searches: Mapping[str, PlannedSearch],
    truth: _Truth,
    cases: Sequence[tuple[NDArray[np.float32], SearchFilter]],
    correlation: str,
    level: float | None,
    k: int,
) -> RecallRow:
    recalls: dict[str, list[float]] = {name: [] for name in searches}
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    plans: Counter[str] = Counter()
    passing, again, small_not_exact = [], 0, 0
    for query, where in cases:
        rows = truth.passing(where)
        if len(rows) < k:
            continue
        scores = truth.scores(query)
        cut = np.partition(scores[rows], len(rows) - k)[len(rows) - k] - SCORE_TOLERANCE
        passed = np.zeros(truth.columns.count, dtype=bool)
        passed[rows] = True
        passing.append(len(rows))
        for name, search in searches.items():
            started = time.perf_counter()
            report = search.search(DenseQuery(query), where, k)
            seconds[name].append(time.perf_counter() - started)
            found = truth.columns.rows_of([hit.chunk_id for hit in report.hits])
            found = found[found >= 0]
            recalls[name].append(float(np.count_nonzero(passed[found] & (scores[found] >= cut))) / k)
            if name == "on":
                plans[report.plan] += 1
                again += report.asked_again
                small_not_exact += len(rows) <= ALWAYS_EXACT and level is not None and report.plan == "graph"
    if not passing:
        return RecallRow(correlation, level, skipped=f"no query had {k} points that pass")
    return RecallRow(
        correlation,
        level,
        queries=len(passing),
        passing=float(np.mean(passing)),
        recall=float(np.mean(recalls["on"])),
        recall_off=float(np.mean(recalls["off"])) if "off" in searches else None,
        exact=_exact(plans),
        small_not_exact=small_not_exact,
        asked_again=again,
        plans=", ".join(f"{name} {count}" for name, count in sorted(plans.items())),
        ms=float(np.median(seconds["on"])) * 1e3,
        ms_off=float(np.median(seconds["off"])) * 1e3 if "off" in searches else None,
    )


def _exact(plans: Mapping[str, int]) -> int:
    return sum(count for name, count in plans.items() if name.startswith("exact"))
