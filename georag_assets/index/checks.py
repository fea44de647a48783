"""The blocking checks of a staged build: computed on the build itself, by other means than made it.

What belongs here: what is compared with what, and what a failure says. What does not: when checks run (`builds`), which
of them a promotion requires (`live`), the recall sweep itself (`recall`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georag_assets.geometry.region import Region
from georag_assets.index.columns import Columns
from georag_assets.index.embedding import Vectors
from georag_assets.index.models import DenseQuery, LexicalQuery, PlanSettings, SearchFilter
from georag_assets.index.planner import PlannedSearch, RecordingStore, filter_faults
from georag_assets.index.points import index_faults, vector_faults
from georag_assets.index.recall import FLOOR, MOST_UNDER_BASELINE, measure
from georag_assets.index.store import Store
from georag_assets.reports import CheckResult

SHOWN = 20
# Points read back at once, and points that must find themselves.
BATCH = 2_000
SAMPLE = 64
# The engine normalises and stores float32; anything beyond is another vector.
SAME_VECTOR = 0.9999

OWN = ("points_equal_chunks", "every_point_names_its_source", "spatial_filter_is_indexed", "filtered_recall")
_NAMES_SOURCE = ("source", "doc_id", "corpus", "corpus_version", "content_sha256")


def spatial_filter_is_indexed(store: Store, columns: Columns, settings: PlanSettings) -> CheckResult:
    """Every filtered field has an index of its type over all points that have it, and queries carry their filter.

    The engine prints no plan, so the plan is read from what reaches it: each arm, each form of the filter.
    """
    faults: list[Any] = list(index_faults(store.index_coverage(), columns.present))
    asked = 0
    for where in _filters(columns):
        for form in (settings, _payload_only(settings)):
            watched = RecordingStore(store)
            search = PlannedSearch(watched, columns, form)
            for query in (DenseQuery(_some_vector(store.dimension)), LexicalQuery("the")):
                search.search(query, where, 5)
            asked += len(watched.asked)
            faults += filter_faults(watched.asked, where)
    coverage = {field: [index.index_type, index.points] for field, index in store.index_coverage().items()}
    return CheckResult(
        "spatial_filter_is_indexed",
        passed=not faults,
        blocking=True,
        description="The payload indexes cover every point, by type, and the filter travels inside the vector query.",
        numbers={"faults": len(faults), "indexes": len(coverage), "queries_watched": asked},
        detail={"faults": faults[:SHOWN], "indexes": coverage},
    )


def filtered_recall(
    store: Store,
    columns: Columns,
    vectors: Vectors,
    ids: Sequence[str],
    settings: PlanSettings,
    *,
    per_level: int = 10,
    without_plan: bool = True,
) -> CheckResult:
    """Recall of filtered searches against NumPy, the tightest case beside the unfiltered baseline and the floor."""
    table = measure(store, columns, vectors, ids, settings=settings, per_level=per_level, without_plan=without_plan)
    faults = table.faults()
    off = {} if table.lowest_off is None else {"lowest_recall_without_plan": table.lowest_off}
    return CheckResult(
        "filtered_recall",
        passed=not faults,
        blocking=True,
        description=(
            f"recall@{table.k} at every share of points is at least {FLOOR} and at most "
            f"{100 * MOST_UNDER_BASELINE:.0f} points under the unfiltered baseline."
        ),
        numbers={
            "lowest_recall": table.lowest,
            "baseline_recall": table.baseline,
            **off,
            "levels_measured": len(table.measured),
        },
        detail={"faults": faults[:SHOWN], "table": table.as_json()},
    )


def every_point_names_its_source(store: Store, columns: Columns, corpus_version: str) -> CheckResult:
    """Each point, read back from the store, says which document of which version it is from."""
    unnamed: list[dict[str, object]] = []
    read = 0
    for ids in _batches(columns.ids_of(np.arange(columns.count))):
        payloads = store.retrieve(ids, _NAMES_SOURCE)
        read += len(payloads)
        for chunk_id in ids:
            payload: Mapping[str, Any] = payloads.get(chunk_id, {})
            lacking = [name for name in _NAMES_SOURCE if not payload.get(name)]
            if not lacking and payload["corpus_version"] != corpus_version:
                lacking = ["corpus_version"]
            if lacking:
                unnamed.append({"chunk_id": chunk_id, "lacks": lacking})
    return CheckResult(
        "every_point_names_its_source",
        passed=not unnamed and read == store.count(),
        blocking=True,
        description="Every point carries its source, document, content hash and the corpus version of this build.",
        numbers={"points_read": read, "points_without_source": len(unnamed)},
        detail={"expected_version": corpus_version, "points": unnamed[:SHOWN]},
    )


def points_equal_chunks(
    store: Store, columns: Columns, expected: Mapping[str, NDArray[np.float32]], settings: PlanSettings
) -> CheckResult:
    """Compare the points that can be found with the chunks: same ids, the vectors that were made, found by search.

    Counts alone are green over vectors of NaN and over folders that lost a file; so every vector is read back and
    compared with the one that was sent, and a sample must find itself.
    """
    wrong: dict[str, str] = {}
    for ids in _batches(tuple(expected)):
        found = store.vectors(ids)
        held = [chunk_id for chunk_id in ids if chunk_id in found]
        wrong |= {chunk_id: "missing" for chunk_id in ids if chunk_id not in found}
        if not held:
            continue
        stored = np.stack([found[chunk_id] for chunk_id in held])
        sent = np.stack([expected[chunk_id] for chunk_id in held])
        faults = vector_faults(stored)
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.linalg.norm(stored, axis=1) * np.linalg.norm(sent, axis=1)
            cosines = np.einsum("ij,ij->i", stored, sent) / np.where(norms > 0, norms, 1)
        for row, chunk_id in enumerate(held):
            if row in faults:
                wrong[chunk_id] = f"{faults[row]} vector"
            elif cosines[row] < SAME_VECTOR:
                wrong[chunk_id] = "another vector"
    columns_ids = set(columns.ids_of(np.arange(columns.count)))
    points = store.count()
    lost = _lost(store, columns, {key: value for key, value in expected.items() if key not in wrong}, settings)
    same_ids = columns_ids == set(expected)
    return CheckResult(
        "points_equal_chunks",
        passed=not wrong and not lost and same_ids and points == len(expected),
        blocking=True,
        description="Every chunk is a point whose vector is the one that was made, and a sample finds itself.",
        numbers={
            "chunks": len(expected),
            "points": points,
            "retrievable": len(expected) - len(wrong),
            "not_found_by_search": len(lost),
        },
        detail={
            "wrong": dict(islice(wrong.items(), SHOWN)),
            "not_found_by_search": lost[:SHOWN],
            "columns_differ": sorted(columns_ids ^ set(expected))[:SHOWN],
        },
    )


def _lost(
    store: Store, columns: Columns, expected: Mapping[str, NDArray[np.float32]], settings: PlanSettings
) -> list[str]:
    """Return the ids of a sample that a search for their own vector does not find at its head."""
    search = PlannedSearch(store, columns, settings)
    ids = list(expected)
    chosen = [ids[row] for row in np.unique(np.linspace(0, len(ids) - 1, min(SAMPLE, len(ids))).astype(int))]
    lost = []
    for chunk_id in chosen:
        hits = search.search(DenseQuery(expected[chunk_id]), SearchFilter(), 10).hits
        # Equal texts have equal vectors: then ten of them may come before this one.
        own = any(hit.chunk_id == chunk_id for hit in hits)
        crowded = len(hits) == 10 and hits[-1].score >= SAME_VECTOR
        if not hits or hits[0].score < SAME_VECTOR or not (own or crowded):
            lost.append(chunk_id)
    return lost


def _filters(columns: Columns) -> Iterator[SearchFilter]:
    located = np.flatnonzero(columns.located)
    yield SearchFilter(period=(0.0, 4e9))
    if not len(located):
        return
    west, south, east, north = columns.extents[located[0]]
    lon, lat = (west + east) / 2, (south + north) / 2
    around = Region.from_point(float((lon + 180) % 360 - 180), float(np.clip(lat, -90, 90)), 50_000.0)
    yield SearchFilter(region=around)
    yield SearchFilter(region=around, period=(-1e11, 1e11))
    yield SearchFilter(region=Region.from_bbox(-179.0, -80.0, 179.0, 80.0))


def _payload_only(settings: PlanSettings) -> PlanSettings:
    return PlanSettings(exact_limit=settings.exact_limit, ids_limit=0, ef=settings.ef)


def _some_vector(dimension: int) -> NDArray[np.float32]:
    return np.full(dimension, dimension**-0.5, np.float32)


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]
