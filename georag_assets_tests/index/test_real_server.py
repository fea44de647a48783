"""What only a real Qdrant server can show; runs where GEORAG_QDRANT_URL names one: `make test-server`.

Every collection that is made here begins with `georag__realtest` and is deleted again; others are not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely

from georag_assets.corpus.declaration import ServerLayout
from georag_assets.errors import ServerError
from georag_assets.geometry.region import Region
from georag_assets.home import Home
from georag_assets.index import live
from georag_assets.index.builds import build_index
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.filter import AllOf, Between, CentreIn, Is
from georag_assets.index.models import DenseQuery, LexicalQuery, PlanSettings, SearchFilter
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.recall import measure
from georag_assets.index.server import collections, deploy
from georag_assets.index.server.connection import Connection
from georag_assets.index.server.store import ServerStore
from georag_assets.index.store import Effort, StoredPoint
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets.settings import Settings
from georag_assets_tests.conftest import REAL_SERVER
from georag_assets_tests.index.small_builds import chunk_id, write_small
from georag_assets_tests.index.small_corpus import declaration, embedder, run_upstream, write_corpus
from georag_assets_tests.index.test_server import LAYOUT, copied, random_condition

CORPUS = "realtest"
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    if REAL_SERVER.url is None:
        pytest.skip("no Qdrant server: set GEORAG_QDRANT_URL and run `make test-server`")
    return Settings(
        home=tmp_path_factory.mktemp("real") / "home",
        qdrant_url=REAL_SERVER.url,
        qdrant_api_key=REAL_SERVER.key,  # type: ignore[arg-type]
        qdrant_ca=REAL_SERVER.certificates,  # type: ignore[arg-type]
        qdrant_patience_s=60,
    )


@pytest.fixture(scope="module")
def connection(settings: Settings) -> Iterator[Connection]:
    with Connection.of(settings) as opened:
        _clean(opened)
        yield opened
        _clean(opened)


def _clean(connection: Connection) -> None:
    for name in collections.names(connection, CORPUS):
        collections.drop(connection, name)


@pytest.fixture
def fresh(connection: Connection, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"georag__{CORPUS}__{abs(hash(request.node.name)):x}"
    collections.drop(connection, name)
    yield name
    collections.drop(connection, name)


def test_the_server_is_one_that_was_meant(connection: Connection) -> None:
    print(f"\nQdrant {connection.version} at {connection.address.url}")
    assert connection.version
    assert not connection.is_local_mode


def test_a_copy_is_proved_promoted_searched_and_synced(settings: Settings, connection: Connection) -> None:
    home = Home(settings)
    made, _ = embedder()
    write_corpus(home, 400, corpus=CORPUS, seed=1, unlocated=12)
    run_upstream(home, made, corpus=CORPUS)
    first = str(build_index(home, declaration(CORPUS), embedder=made).metadata["build"])
    live.promote(home, CORPUS, first)
    report = deploy.copy(home, CORPUS, LAYOUT, connection)
    assert not report.blocked, [check for check in report.checks if not check.passed]
    assert report.counts["points"] == 400
    embedded = Home(settings.model_copy(update={"qdrant_url": None}))
    for question in (Question(text="weir harbour"), Question(text="ridge", bbox=(-115.0, 32.0, -105.0, 42.0), k=20)):
        found = []
        for asked in (home, embedded):
            with Retriever(asked, [CORPUS], embedder=made) as retriever:
                found.append(retriever.search(question))
        assert [one.chunk_id for one in found[0].candidates] == [one.chunk_id for one in found[1].candidates]
        assert found[0].corpora[0].answers_from.startswith(connection.address.url)
    write_corpus(home, 20, corpus=CORPUS, seed=2)
    run_upstream(home, made, corpus=CORPUS)
    second = str(build_index(home, declaration(CORPUS), embedder=made).metadata["build"])
    live.promote(home, CORPUS, second)
    synced = deploy.sync(home, CORPUS, LAYOUT, connection)
    assert not synced.blocked, [check for check in synced.checks if not check.passed]
    assert (synced.counts["new"], synced.metadata["in_place"]) == (20, True)
    live.promote(home, CORPUS, first)
    # The collection is named after the first build, and holds the second now.
    with pytest.raises(ServerError, match="another build in place"):
        deploy.copy(home, CORPUS, LAYOUT, connection)


def test_strict_mode_refuses_a_field_without_index_and_one_whose_index_was_dropped(
    connection: Connection, fresh: str
) -> None:
    collections.create(connection, fresh, EngineConfig(4), LAYOUT)
    store = ServerStore(connection, fresh, 4)
    query = DenseQuery(np.ones(4, np.float32))
    assert store.search(query, Between("west", 0.0, 1.0), 5, Effort()) == []
    with pytest.raises(ServerError, match="Index required"):
        store.search(query, Is("title", "x"), 5, Effort())
    connection.client.delete_payload_index(fresh, "west")
    with pytest.raises(ServerError, match="Index required"):
        store.search(query, Between("west", 0.0, 1.0), 5, Effort())


def test_the_server_states_types_and_coverage_of_its_indexes(
    tmp_path: Path, connection: Connection, fresh: str
) -> None:
    small, store = copied(tmp_path / "small", connection, fresh)
    assert store.index_coverage() == small.store.index_coverage()


def test_case_d09_counts_before_and_after_an_index_is_built(tmp_path: Path, connection: Connection, fresh: str) -> None:
    _, store = copied(tmp_path / "small", connection, fresh)
    condition = AllOf((Is("licence", "CC0-1.0"), CentreIn(-90.0, -60.0, 90.0, 60.0)))
    before = store.count(condition)
    for field in ("location", "licence"):
        connection.client.delete_payload_index(fresh, field)
    collections.create(connection, fresh, EngineConfig(8), LAYOUT)
    collections.settle(connection, fresh, EngineConfig(8), 300)
    assert store.count(condition) == before > 0


def test_both_stores_answer_random_conditions_alike(tmp_path: Path, connection: Connection, fresh: str) -> None:
    small, store = copied(tmp_path / "small", connection, fresh)
    random = np.random.default_rng(11)
    for _ in range(100):
        condition = random_condition(random)
        query = DenseQuery(random.normal(size=8).astype(np.float32))
        here = store.search(query, condition, 300, Effort())
        there = small.store.search(query, condition, 300, Effort())
        assert {hit.chunk_id for hit in here} == {hit.chunk_id for hit in there}, condition
        assert np.allclose([hit.score for hit in here], [hit.score for hit in there], atol=1e-5)


def test_lexical_scores_equal_the_embedded_stores(tmp_path: Path, connection: Connection, fresh: str) -> None:
    small, store = copied(tmp_path / "small", connection, fresh)
    ours, theirs = PlannedSearch(store, small.columns), small.search
    for words in ("harbour", "number 7", "weir harbour number 12"):
        here, there = (search.search(LexicalQuery(words), SearchFilter(), 20) for search in (ours, theirs))
        assert np.allclose([hit.score for hit in here.hits], [hit.score for hit in there.hits], rtol=1e-5)


@pytest.mark.timeout(600)
def test_the_planner_reaches_the_floor_over_a_graph(
    tmp_path: Path, connection: Connection, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clustered vectors, and places that go together with them: what plain search loses, the plan finds."""
    monkeypatch.setattr(collections, "INDEXING_THRESHOLD_KB", 100)
    count, dimension = 20_000, 64
    random = np.random.default_rng(5)
    centres = random.normal(size=(60, dimension))
    cluster = random.integers(0, 60, count)
    vectors = (centres[cluster] + 0.7 * random.normal(size=(count, dimension))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lon = -170 + 5.5 * cluster + random.normal(size=count)
    lat = np.clip(random.normal(0, 20, count), -80, 80)
    shapes = [shapely.Point(x, y) for x, y in zip(np.clip(lon, -179, 179), lat, strict=True)]
    small = write_small(tmp_path / "small", shapes, vectors, graph_above=30_000)
    config = EngineConfig(dimension, graph_above=1_000)
    collections.create(connection, fresh, config, LAYOUT)
    ids = [chunk_id(row) for row in range(count)]
    points = (StoredPoint(ids[row], vectors[row].tolist(), None, payload) for row, payload in _payloads(small, ids))
    collections.upsert(connection, fresh, points)
    settled = collections.settle(connection, fresh, config, count)
    assert settled.indexed_vectors > 0
    store = ServerStore(connection, fresh, dimension)
    assert store.count() == count
    table = measure(store, small.columns, vectors, ids, settings=PlanSettings(exact_limit=3_000), per_level=8)
    print(f"\nlowest recall with the plan {table.lowest:.3f}, without {table.lowest_off:.3f}")
    assert table.lowest >= 0.99
    assert any("graph" in row.plans for row in table.measured)


def _payloads(small: Any, ids: list[str]) -> Iterator[tuple[int, Any]]:
    for start in range(0, len(ids), 1_000):
        part = ids[start : start + 1_000]
        found = small.store.retrieve(part)
        yield from ((start + row, found[name]) for row, name in enumerate(part))


def test_case_o31_wide_boxes_and_decimals_lose_nothing(tmp_path: Path, connection: Connection, fresh: str) -> None:
    small, store = copied(tmp_path / "small", connection, fresh)
    ours = PlannedSearch(store, small.columns, PlanSettings(ids_limit=0))
    for box in ((-179.9, -89.0, 179.9, 89.0), (-150.0, -70.0, 150.0, 70.0), (7.25, -90.0, 8.5, 90.0)):
        where = SearchFilter(region=Region.from_bbox(*box))
        expected = set(small.columns.ids_of(small.columns.survivors(where)))
        found = ours.search(DenseQuery(small.vectors[0]), where, 300)
        assert {hit.chunk_id for hit in found.hits} == expected


def test_the_alias_moves_under_readers_without_an_error(connection: Connection) -> None:
    names = [f"georag__{CORPUS}__alias{number}" for number in (1, 2)]
    try:
        for number, name in enumerate(names):
            collections.create(connection, name, EngineConfig(4), LAYOUT)
            collections.upsert(connection, name, [StoredPoint(chunk_id(number), [1.0, 0, 0, 0], None, {})])
        collections.swap_alias(connection, CORPUS, names[0])
        stop, faults, asked = threading.Event(), [], [0]

        def read() -> None:
            store = ServerStore(connection, collections.alias_name(CORPUS), 4)
            while not stop.is_set():
                try:
                    assert len(store.search(DenseQuery(np.ones(4, np.float32)), None, 5, Effort())) == 1
                    asked[0] += 1
                except Exception as error:
                    faults.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for turn in range(20):
            collections.swap_alias(connection, CORPUS, names[turn % 2])
        stop.set()
        for reader in readers:
            reader.join()
        assert faults == []
        assert asked[0] > 20
    finally:
        for name in names:
            collections.drop(connection, name)


def test_a_snapshot_restores_what_was_copied(tmp_path: Path, connection: Connection, fresh: str) -> None:
    """What the runbook says: a snapshot of a collection is whole, and its restoration has its points and indexes."""
    _, store = copied(tmp_path / "small", connection, fresh)
    client = connection.client
    snapshot = client.create_snapshot(fresh)
    assert snapshot is not None
    assert snapshot.size > 0
    assert snapshot.name in [found.name for found in client.list_snapshots(fresh)]
    restored = f"{fresh}r"
    try:
        client.recover_snapshot(restored, f"file:///qdrant/snapshots/{fresh}/{snapshot.name}", wait=True)
    except Exception as error:
        pytest.skip(f"the server's snapshots lie elsewhere: {type(error).__name__}")
    try:
        again = ServerStore(connection, restored, 8)
        assert again.count() == store.count() == 300
        assert again.index_coverage() == store.index_coverage()
    finally:
        collections.drop(connection, restored)


def test_a_layout_of_several_shards_holds_all(tmp_path: Path, connection: Connection, fresh: str) -> None:
    collections.create(connection, fresh, EngineConfig(8), ServerLayout(shards=3, on_disk=True, quantised=True))
    small = write_small(tmp_path / "small", [shapely.Point(row / 10, 1) for row in range(200)])
    collections.upsert(connection, fresh, small.store.points([chunk_id(row) for row in range(200)]))
    collections.settle(connection, fresh, EngineConfig(8), 200)
    ours = PlannedSearch(ServerStore(connection, fresh, 8), small.columns)
    where = SearchFilter(region=Region.from_bbox(0, 0, 10, 2))
    here = ours.search(DenseQuery(small.vectors[3]), where, 50)
    there = small.search.search(DenseQuery(small.vectors[3]), where, 50)
    assert [hit.chunk_id for hit in here.hits] == [hit.chunk_id for hit in there.hits]


def test_a_key_is_demanded_where_the_server_has_one(settings: Settings) -> None:
    if REAL_SERVER.key is None:
        pytest.skip("the server was given no key: start it with one and set GEORAG_QDRANT_API_KEY to see it refuse")
    with (
        Connection.of(settings.model_copy(update={"qdrant_api_key": None})) as without,
        pytest.raises(ServerError, match="no or another key"),
    ):
        collections.names(without, CORPUS)
