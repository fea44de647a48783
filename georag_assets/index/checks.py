"""The blocking checks of a staged build: computed on the build itself, by other means than made it.

What belongs here: what is compared with what, and what a failure says. What does not: when checks run (`builds`), which
of them a promotion requires (`live`), the recall sweep itself (`recall`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georag_assets.geometry.region import Region
from georag_assets.index.columns import Columns
from georag_assets.index.embedding import Vectors
from georag_assets.index.models import DenseQuery, Hit, LexicalQuery, PlanSettings, SearchFilter
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
# Two engines of one kind differ in the last bits of a float32 score.
SAME_SCORE = 1e-5
# Dense questions put to both stores, and how much lower recall may be on a server.
COMPARED = 8
MOST_UNDER_EMBEDDED = 0.01

OWN = ("points_equal_chunks", "every_point_names_its_source", "spatial_filter_is_indexed", "filtered_recall")
_NAMES_SOURCE = ("source", "doc_id", "corpus", "corpus_version", "content_sha256")


def spatial_filter_is_indexed(store: Store, columns: Columns, settings: PlanSettings) -> CheckResult:
    """Every filtered field has an index of its type over all points that have it, and queries carry their filter.

    The engine prints no plan, so the plan is read from what reaches it: each arm, each form of the filter.
    """
    if not store.capabilities.payload_indexes:
        return _not_applicable("spatial_filter_is_indexed", "this store has no payload indexes")
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
    if not store.capabilities.graph:
        return _not_applicable("filtered_recall", "this store has no graph: it looks at every point")
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
    store: Store,
    columns: Columns,
    expected: Mapping[str, NDArray[np.float32]],
    settings: PlanSettings,
    *,
    read_back: Collection[str] | None = None,
) -> CheckResult:
    """Compare the points that can be found with the chunks: same ids, the vectors that were made, found by search.

    Counts alone are green over vectors of NaN and over folders that lost a file; so every vector is read back and
    compared with the one that was sent, and a sample must find itself. `read_back` bounds which are read back.
    """
    wrong: dict[str, str] = {}
    proved = tuple(expected) if read_back is None else tuple(name for name in expected if name in read_back)
    for ids in _batches(proved):
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
            "read_back": len(proved),
            "retrievable": len(expected) - len(wrong),
            "not_found_by_search": len(lost),
        },
        detail={
            "wrong": dict(islice(wrong.items(), SHOWN)),
            "not_found_by_search": lost[:SHOWN],
            "columns_differ": sorted(columns_ids ^ set(expected))[:SHOWN],
        },
    )


def recall_not_below_embedded(there: CheckResult, embedded: CheckResult | None) -> CheckResult:
    """Compare the filtered recall on a server with the embedded build's of the same points: at most one point under."""
    name = "recall_not_below_embedded"
    if "lowest_recall" not in there.numbers:
        return _not_applicable(name, "no recall was measured here")
    before = 1.0 if embedded is None else float(embedded.numbers["lowest_recall"])
    measured = float(there.numbers["lowest_recall"])
    return CheckResult(
        name,
        passed=measured >= before - MOST_UNDER_EMBEDDED,
        blocking=True,
        description="The lowest filtered recall is at most one point under the embedded build's.",
        numbers={"lowest_recall": measured, "embedded_lowest_recall": before},
    )


def answers_equal_embedded(
    store: Store, embedded: Store, columns: Columns, vectors: Vectors, words: Sequence[str] = ()
) -> CheckResult:
    """Exact searches answer the same candidates with the same scores as the embedded build, under every filter.

    `words` are lexical questions; none where the store counts the rarity of words otherwise (per shard).
    """
    exact = PlanSettings(exact_limit=columns.count)
    chosen = np.unique(np.linspace(0, len(vectors) - 1, COMPARED).astype(int))
    queries = [DenseQuery(vectors[row]) for row in chosen] + [LexicalQuery(text) for text in words]
    faults: list[dict[str, object]] = []
    asked = 0
    for where in (SearchFilter(), SearchFilter(located=False), *_filters(columns)):
        for form in (exact, _payload_only(exact)):
            ours, theirs = PlannedSearch(store, columns, form), PlannedSearch(embedded, columns, form)
            for query in queries:
                asked += 1
                here, there = ours.search(query, where, 10).hits, theirs.search(query, where, 10).hits
                if not _same_hits(here, there):
                    faults.append(
                        {
                            "filter": "by ids" if form is exact else "by payload",
                            "arm": "semantic" if isinstance(query, DenseQuery) else "lexical",
                            "expected": [[hit.chunk_id, hit.score] for hit in there[:5]],
                            "found": [[hit.chunk_id, hit.score] for hit in here[:5]],
                        }
                    )
    return CheckResult(
        "answers_equal_embedded",
        passed=not faults,
        blocking=True,
        description="Exact searches, by meaning and by words, give the candidates and scores of the embedded build.",
        numbers={"compared": asked, "different": len(faults), "lexical_questions": len(words)},
        detail={"faults": faults[:SHOWN]},
    )


def _same_hits(here: Sequence[Hit], there: Sequence[Hit]) -> bool:
    """Whether two answers are the same; candidates of equal score may stand in either order."""
    if len(here) != len(there):
        return False
    close = all(abs(a.score - b.score) <= SAME_SCORE * max(1.0, abs(b.score)) for a, b in zip(here, there, strict=True))
    if not close or not there:
        return close
    last = there[-1].score + SAME_SCORE * max(1.0, abs(there[-1].score))
    # Beyond the cut there may be more of the last score: which of them are shown is no difference.
    return {hit.chunk_id for hit in here if hit.score > last} == {hit.chunk_id for hit in there if hit.score > last}


def _not_applicable(name: str, why: str) -> CheckResult:
    """Return the outcome of a check that cannot be made here: never a pass."""
    return CheckResult(name, passed=False, blocking=True, description=f"not applicable: {why}")


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
