"""The planner answers exactly below its limit, and never with fewer results than there are."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shapely.geometry import Point, Polygon

from georag_assets.errors import QueryError
from georag_assets.geometry.region import Region
from georag_assets.index import recall
from georag_assets.index.filter import Condition
from georag_assets.index.models import DenseQuery, Hit, LexicalQuery, PlanSettings, SearchFilter, SearchReport
from georag_assets.index.planner import PlannedSearch, RecordingStore, filter_faults
from georag_assets.index.store import Effort, Query
from georag_assets_tests.index.small_builds import Small, chunk_id, write_small

Case = Callable[[str], dict[str, Any]]


def clustered(count: int, dimension: int, seed: int) -> tuple[list[Point], NDArray[np.float32]]:
    """Return places and vectors that go together, cluster by cluster, as they do in real corpora."""
    random = np.random.default_rng(seed)
    middles = random.normal(size=(60, dimension))
    places = np.column_stack([random.uniform(-170, 170, 60), random.uniform(-75, 75, 60)])
    cluster = random.integers(0, 60, count)
    vectors = (middles[cluster] + random.normal(size=(count, dimension))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    where = places[cluster] + random.normal(size=(count, 2)) * 4
    return [Point(lon, lat) for lon, lat in where.tolist()], vectors


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, case: Case) -> Iterator[Small]:
    """A build of case d11's size whose engine has a graph, so that a bad plan can lose something."""
    given = case("d11")["input"]
    geometries, vectors = clustered(given["n"], given["dim"], 5)
    periods = {"period_start": [0.0] * len(vectors), "period_end": [float(number) for number in range(len(vectors))]}
    folder = tmp_path_factory.mktemp("graph")
    small = write_small(folder, geometries, vectors, payload=periods, graph_above=0, full_scan_threshold_kb=1)
    yield small
    small.store.close()


def best(small: Small, query: NDArray[np.float32], where: SearchFilter, limit: int) -> list[str]:
    rows = small.columns.survivors(where)
    scores = small.vectors[rows] @ (query / np.linalg.norm(query))
    ids = small.columns.ids_of(rows)
    return [ids[row] for row in sorted(range(len(rows)), key=lambda row: (-round(float(scores[row]), 5), ids[row]))][
        :limit
    ]


def test_d11_one_percent_is_answered_with_every_true_neighbour(graph: Small, case: Case) -> None:
    given, expected = case("d11")["input"], case("d11")["expected"]
    table = recall.measure(
        graph.store, graph.columns, graph.vectors, graph.columns.ids_of(np.arange(given["n"])),
        levels=(given["selectivity"],), k=given["k"],
    )  # fmt: skip
    assert table.lowest >= max(expected["recall_at_10_vs_exact_min"], recall.FLOOR)
    indexed = set(graph.store.index_coverage())
    assert {"location", "west", "south", "east", "north", "epsg", "corpus_version"} <= indexed


def test_d12_a_region_that_means_something_else_is_answered_exactly(graph: Small, case: Case) -> None:
    table = recall.measure(
        graph.store, graph.columns, graph.vectors, graph.columns.ids_of(np.arange(graph.columns.count)),
        levels=(0.003,), correlations=("anti-correlated",),
    )  # fmt: skip
    assert table.lowest >= case("d12")["expected"]["recall_at_10_vs_exact_min"]
    assert table.measured[0].exact == table.measured[0].queries


def test_the_sweep_reaches_the_floor_and_shows_what_the_plan_is_worth(graph: Small) -> None:
    ids = graph.columns.ids_of(np.arange(graph.columns.count))
    table = recall.measure(graph.store, graph.columns, graph.vectors, ids, per_level=10)
    assert table.faults() == []
    assert len(table.measured) == 15
    assert table.lowest_off is not None
    assert table.lowest_off < recall.FLOOR, "with the plan off the graph loses neighbours"


def test_an_exact_threshold_that_is_off_is_a_fault(graph: Small) -> None:
    ids = graph.columns.ids_of(np.arange(graph.columns.count))
    for settings in (PlanSettings(exact_limit=0, ids_limit=0), PlanSettings(enabled=False)):
        table = recall.measure(graph.store, graph.columns, graph.vectors, ids, settings=settings, per_level=5)
        assert any("were not exact" in fault for fault in table.faults())


def test_the_plan_settles_on_a_beam_that_reaches_the_floor_or_on_exact(graph: Small) -> None:
    ids = graph.columns.ids_of(np.arange(graph.columns.count))
    given = graph.store, graph.columns, graph.vectors, ids
    assert recall.settle_plan(*given, PlanSettings()) == PlanSettings(), "under the limit there is nothing to settle"
    narrow = PlanSettings(exact_limit=3_000, ids_limit=0, ef=16)
    settled = recall.settle_plan(*given, narrow, per_level=5)
    assert settled.ef > narrow.ef or settled.exact_limit == graph.columns.count
    assert recall.measure(*given, settings=settled, per_level=5).faults() == []
    assert recall.settle_plan(*given, narrow, per_level=3, floor=1.1).exact_limit == graph.columns.count


def test_rows_of_vectors_may_come_in_any_order(graph: Small) -> None:
    order = np.random.default_rng(1).permutation(graph.columns.count)
    ids = [chunk_id(number) for number in order.tolist()]
    table = recall.measure(graph.store, graph.columns, graph.vectors[order], ids, levels=(0.01,), per_level=3)
    assert table.lowest == 1.0


@pytest.mark.parametrize(
    "settings", [PlanSettings(), PlanSettings(ids_limit=0), PlanSettings(exact_limit=0, ids_limit=0)]
)
def test_hits_satisfy_the_filter_and_are_the_best_by_every_plan(graph: Small, settings: PlanSettings) -> None:
    triangle = Region.from_shape(Polygon([(-60, -40), (80, -30), (10, 60)]))
    for where in (SearchFilter(region=triangle), SearchFilter(region=Region.from_bbox(170, -60, -150, 60))):
        query = graph.vectors[17]
        report = PlannedSearch(graph.store, graph.columns, settings).search(DenseQuery(query), where, 10)
        assert report.survivors == len(graph.columns.survivors(where)) > 50
        expected = best(graph, query, where, 10)
        assert len(set(expected) & {hit.chunk_id for hit in report.hits}) >= 9
        if settings.exact_limit:
            assert [hit.chunk_id for hit in report.hits] == expected


def test_a_region_that_is_no_rectangle_never_lets_a_box_corner_in(graph: Small) -> None:
    triangle = SearchFilter(region=Region.from_shape(Polygon([(-170, -75), (170, -75), (-170, 75)])))
    selection = graph.columns.select(triangle)
    assert selection.loose_count > len(selection.rows)
    allowed = set(graph.columns.ids_of(selection.rows))
    for settings in (PlanSettings(), PlanSettings(exact_limit=10, ids_limit=10)):
        report = PlannedSearch(graph.store, graph.columns, settings).search(DenseQuery(graph.vectors[3]), triangle, 200)
        assert len(report.hits) == 200
        assert {hit.chunk_id for hit in report.hits} <= allowed


class Losing(RecordingStore):
    """A store whose graph finds nothing, as a server's did at 1.5 to 6 percent."""

    def search(self, query: Query, where: Condition | None, limit: int, effort: Effort) -> list[Hit]:
        found = super().search(query, where, limit, effort)
        return found if effort.exact else found[:2]


def test_fewer_results_than_there_are_is_never_an_answer(graph: Small) -> None:
    where = SearchFilter(region=Region.from_bbox(-90, -60, 90, 60))
    search = PlannedSearch(Losing(graph.store), graph.columns, PlanSettings(exact_limit=100, ids_limit=10))
    report = search.search(DenseQuery(graph.vectors[3]), where, 10)
    assert report.asked_again
    assert [hit.chunk_id for hit in report.hits] == best(graph, graph.vectors[3], where, 10)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    random = np.random.default_rng(2)
    vectors = np.repeat(random.normal(size=(6, 8)), 50, axis=0).astype(np.float32)
    order = random.permutation(300)
    small = write_small(
        tmp_path_factory.mktemp("tied"),
        [Point(number % 10, number % 7) for number in range(300)],
        vectors[order],
        texts=[f"the same river {'valley' if number % 2 else 'delta'}" for number in range(300)],
    )
    yield small
    small.store.close()


@pytest.mark.parametrize("query", [LexicalQuery("river valley"), None])
@pytest.mark.parametrize("region", [None, Region.from_bbox(0, 0, 6, 6)])
def test_ties_go_by_id_and_the_top_k_begins_the_top_of_more(
    tied: Small, query: LexicalQuery | None, region: Region | None
) -> None:
    asked = query or DenseQuery(tied.vectors[0])
    where = SearchFilter(region=region)
    longest = tied.search.search(asked, where, 120).hits
    assert [(-hit.score, hit.chunk_id) for hit in longest] == sorted((-hit.score, hit.chunk_id) for hit in longest)
    for limit in (1, 3, 49, 50, 51, 80):
        assert tied.search.search(asked, where, limit).hits == longest[:limit]


def test_words_are_found_only_inside_the_region(tied: Small) -> None:
    where = SearchFilter(region=Region.from_bbox(2.5, 2.5, 4.5, 4.5))
    report = tied.search.search(LexicalQuery("valley"), where, 300)
    inside = [n for n in range(300) if 3 <= n % 10 <= 4 and 3 <= n % 7 <= 4 and n % 2]
    assert sorted(uuid.UUID(hit.chunk_id).int for hit in report.hits) == inside
    assert tied.search.search(LexicalQuery("the of and"), where, 5).hits == ()


@pytest.mark.parametrize(
    "vector",
    [np.full(8, np.nan), np.r_[np.inf, np.zeros(7)], np.zeros(8), np.ones(7), np.r_[np.nan, np.ones(7)]],
    ids=["nan", "infinite", "zero", "short", "one nan"],
)
def test_r32_a_query_that_cannot_be_answered_is_an_error_not_nothing(tied: Small, vector: NDArray[np.float64]) -> None:
    for where in (SearchFilter(), SearchFilter(region=Region.from_bbox(50, 50, 51, 51))):
        with pytest.raises(QueryError):
            tied.search.search(DenseQuery(vector.astype(np.float32)), where, 10)
    with pytest.raises(QueryError):
        tied.search.search(DenseQuery(tied.vectors[0]), SearchFilter(), 0)


class FilteringAfterwards(PlannedSearch):
    """The planted fault: searches everything, then throws away what is outside the region."""

    def search(self, query: Query, where: SearchFilter, limit: int) -> SearchReport:
        found = self.store.search(query, None, limit, Effort(exact=False))
        rows = self.columns.survivors(where)
        allowed = set(self.columns.ids_of(rows))
        return SearchReport(tuple(hit for hit in found if hit.chunk_id in allowed), len(rows), "graph")


@pytest.mark.parametrize(
    "where",
    [
        SearchFilter(region=Region.from_bbox(-20, -20, 20, 20)),
        SearchFilter(region=Region.from_point(0, 0, 900_000), equals={"corpus_version": "v1-00000000"}),
        SearchFilter(located=True, equals={"corpus_version": "v1-00000000"}),
        SearchFilter(period=(5_000.0, 1e9)),
    ],
)
def test_the_compiled_query_carries_the_filter_and_one_moved_after_the_search_shows(
    graph: Small, where: SearchFilter
) -> None:
    for settings in (PlanSettings(), PlanSettings(ids_limit=0), PlanSettings(enabled=False)):
        recording = RecordingStore(graph.store)
        PlannedSearch(recording, graph.columns, settings).search(DenseQuery(graph.vectors[0]), where, 10)
        assert recording.asked
        assert filter_faults(recording.asked, where) == []
    moved = RecordingStore(graph.store)
    FilteringAfterwards(moved, graph.columns).search(DenseQuery(graph.vectors[0]), where, 10)
    assert filter_faults(moved.asked, where)


def test_an_empty_build_answers_with_nothing(tmp_path: Path) -> None:
    small = write_small(tmp_path, [], np.empty((0, 8), np.float32))
    for where in (SearchFilter(), SearchFilter(region=Region.from_bbox(0, 0, 1, 1))):
        report = small.search.search(DenseQuery(np.ones(8, np.float32)), where, 5)
        assert (report.hits, report.plan) == ((), "empty")
