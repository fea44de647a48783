"""The server store: filled, proved and promoted there; what a broken, busy or foreign server may never cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as engine
import shapely

from georag_assets import cli
from georag_assets.corpus.declaration import ServerLayout, load_declaration
from georag_assets.errors import ServerError, SettingError
from georag_assets.geometry.region import Region
from georag_assets.home import Home
from georag_assets.index import live
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.filter import AllOf, AnyOf, Between, CentreIn, Condition, Ids, Is
from georag_assets.index.models import DenseQuery, LexicalQuery, SearchFilter
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.server import collections, deploy, records
from georag_assets.index.server.connection import Address, Connection
from georag_assets.index.server.store import ServerStore
from georag_assets.index.store import Effort, StoredPoint
from georag_assets.operations.pipeline import build_corpus
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets.settings import Settings, unknown_names
from georag_assets_tests.index.rest_server import KEY, RestServer, serving
from georag_assets_tests.index.small_builds import chunk_id as numbered
from georag_assets_tests.index.small_builds import write_small
from georag_assets_tests.index.small_corpus import documents_of, embedder, remove_documents
from georag_assets_tests.index.test_builds import POINTS, build, name_of
from georag_assets_tests.small_corpora import declare

LAYOUT = ServerLayout()
CHECKS = {
    "points_equal_chunks",
    "every_point_names_its_source",
    "spatial_filter_is_indexed",
    "filtered_recall",
    "recall_not_below_embedded",
    "answers_equal_embedded",
}


@dataclass(frozen=True)
class Prepared:
    """A home with two builds of one corpus: the later lacks some of the earlier's documents and has others."""

    home: Home
    first: str
    second: str
    gone: frozenset[str]
    new: frozenset[str]


def ids_of(home: Home, build_name: str) -> set[str]:
    from georag_assets.index.builds import open_build

    with open_build(home, "small", build_name) as opened:
        return set(opened.columns.ids_of(np.arange(opened.columns.count)))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    home = Home(Settings(home=tmp_path_factory.mktemp("server") / "home"))
    first = name_of(build(home, seed=1))
    live.promote(home, "small", first)
    remove_documents(home, documents_of(1, POINTS)[3:7])
    second = name_of(build(home, seed=2, count=5))
    before, after = ids_of(home, first), ids_of(home, second)
    return Prepared(home, first, second, frozenset(before - after), frozenset(after - before))


@pytest.fixture
def home(prepared: Prepared) -> Iterator[Home]:
    """The prepared home with its first build live; what it knew of servers is forgotten afterwards."""
    live.promote(prepared.home, "small", prepared.first)
    yield prepared.home
    shutil.rmtree(prepared.home.servers_folder, ignore_errors=True)


@pytest.fixture
def server() -> Iterator[RestServer]:
    with serving() as running:
        yield running


@pytest.fixture
def connection(server: RestServer) -> Iterator[Connection]:
    with Connection(Address.parse(server.url), patience_s=5, timeout_s=10) as opened:
        yield opened


def impatient(server: RestServer) -> Connection:
    return Connection(Address.parse(server.url), patience_s=0.5, timeout_s=10)


def served(home: Home, server: RestServer, **settings: Any) -> Home:
    return Home(home.settings.model_copy(update={"qdrant_url": server.url, "qdrant_patience_s": 0.5, **settings}))


def outcomes(report: Any) -> dict[str, bool]:
    return {check.name: check.passed for check in report.checks}


# --- copying ------------------------------------------------------------------------------------------------------


def test_a_copy_is_proved_on_the_server_and_promoted_there(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    report = deploy.copy(home, "small", LAYOUT, connection)
    assert outcomes(report) == dict.fromkeys(CHECKS, True)
    assert report.counts["points"] == report.counts["new"] == POINTS
    assert report.counts["promoted"] == 1
    name = f"georag__small__{prepared.first}"
    assert server.aliases == {"georag__small": name}
    record = records.read(home, connection.address, "small", name)
    assert record is not None
    assert (record.state, record.build, record.points) == ("ready", prepared.first, POINTS)
    numbers = {check.name: check.numbers for check in report.checks}
    assert numbers["points_equal_chunks"]["retrievable"] == POINTS
    assert numbers["answers_equal_embedded"]["lexical_questions"] > 0
    # The recall that guards the promotion was measured by requests to this server.
    assert server.paths("POST").count(f"/collections/{name}/points/query") > 100


def test_indexes_come_before_points_and_strict_mode_and_idf_are_on(
    home: Home, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    puts = server.paths("PUT")
    indexes = [place for place, path in enumerate(puts) if path.endswith("/index")]
    points = [place for place, path in enumerate(puts) if path.endswith("/points")]
    assert len(indexes) == 14
    assert max(indexes) < min(points)
    config = server.of("small").config
    assert config["sparse_vectors"]["lexical"]["modifier"] == "idf"
    assert config["strict_mode_config"]["unindexed_filtering_retrieve"] is False
    assert config["optimizers_config"]["indexing_threshold"] == 0
    store = ServerStore(connection, "georag__small", 32)
    with pytest.raises(ServerError, match="Index required"):
        store.count(Is("title", "Passage 1"))


def test_the_layout_of_the_declaration_reaches_the_server(
    home: Home, server: RestServer, connection: Connection
) -> None:
    layout = ServerLayout(shards=3, replicas=2, write_consistency=2, on_disk=True, quantised=True)
    report = deploy.copy(home, "small", layout, connection)
    config = server.of("small").config
    assert (config["shard_number"], config["replication_factor"], config["write_consistency_factor"]) == (3, 2, 2)
    assert config["on_disk_payload"] is config["vectors"]["text"]["on_disk"] is True
    assert config["hnsw_config"]["on_disk"] is config["sparse_vectors"]["lexical"]["index"]["on_disk"] is True
    assert config["quantization_config"]["scalar"]["type"] == "int8"
    # The rarity of words is counted per shard: the lexical arm of several is not compared.
    (compared,) = [check for check in report.checks if check.name == "answers_equal_embedded"]
    assert compared.numbers["lexical_questions"] == 0


def test_a_second_copy_writes_nothing_and_is_proved_again(
    home: Home, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    server.asked.clear()
    again = deploy.copy(home, "small", LAYOUT, connection)
    assert (again.counts["new"], again.counts["reused"], again.counts["promoted"]) == (0, POINTS, 0)
    assert not [path for path in server.paths("PUT") if path.endswith("/points")]
    assert "/collections/aliases" not in server.paths("POST")


def test_an_interrupted_copy_goes_on_where_it_was(
    home: Home, server: RestServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "POINTS_AT_ONCE", 50)
    server.fail("PUT", "/points$", times=0)
    seen = []

    def stop_at_the_third(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/points"):
            seen.append(path)
            if len(seen) == 3:
                server.fail("PUT", "/points$", times=1_000, status=400)

    server.before = stop_at_the_third
    with pytest.raises(ServerError, match="did not store"):
        deploy.copy(home, "small", LAYOUT, connection)
    assert server.aliases == {}
    assert deploy.open_served(home, "small", connection) is None
    server.faults.clear()
    server.before = lambda method, path: None
    report = deploy.copy(home, "small", LAYOUT, connection)
    assert not report.blocked
    assert (report.counts["new"], report.counts["reused"]) == (POINTS - 100, 100)


def test_a_new_build_gets_a_collection_of_its_own_and_old_ones_go(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    live.promote(home, "small", prepared.second)
    report = deploy.copy(home, "small", ServerLayout(keep=0), connection)
    assert report.metadata["previous"] == f"georag__small__{prepared.first}"
    assert list(server.collections) == [f"georag__small__{prepared.second}"]
    assert [record.build for record in records.of_corpus(home, "small")] == [prepared.second]


def test_the_builds_that_a_server_answers_by_are_not_pruned(
    tmp_path: Path, server: RestServer, connection: Connection
) -> None:
    home = Home(Settings(home=tmp_path / "home", keep_builds=1))
    names = []
    for seed in (1, 2, 3, 4):
        names.append(name_of(build(home, seed=seed, count=12)))
        live.promote(home, "small", names[-1])
        if seed == 1:
            deploy.copy(home, "small", LAYOUT, connection)
    kept = {path.name for path in home.builds_folder("small").iterdir() if path.name.startswith("v")}
    assert names[0] in kept
    assert names[1] not in kept


@pytest.mark.parametrize("fault", ["lost points", "dropped index", "another vector", "another version"])
def test_what_the_server_does_not_hold_as_sent_never_goes_live(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection, fault: str
) -> None:
    name = f"georag__small__{prepared.first}"
    some = sorted(ids_of(home, prepared.first))[:3]

    def plant(method: str, path: str) -> None:
        if method != "PATCH":
            return
        shard = server.collections[name].shard
        operations = {
            "lost points": lambda: engine.UpdateOperation.delete_points(some),
            "dropped index": lambda: engine.UpdateOperation.delete_field_index("west"),
            "another vector": lambda: engine.UpdateOperation.update_vectors(
                [engine.PointVectors(some[0], {"text": [1.0, *[0.0] * 31]})]
            ),
            "another version": lambda: engine.UpdateOperation.set_payload(some, {"corpus_version": "v9-00000000"}),
        }
        shard.update(operations[fault]())

    server.before = plant
    if fault == "dropped index":
        # Strict mode refuses the first filtered search already.
        with pytest.raises(ServerError, match="Index required"):
            deploy.copy(home, "small", LAYOUT, connection)
    else:
        report = deploy.copy(home, "small", LAYOUT, connection)
        assert report.blocked
        failed = {"another version": "every_point_names_its_source"}.get(fault, "points_equal_chunks")
        assert not outcomes(report)[failed]
    assert server.aliases == {}
    assert deploy.open_served(home, "small", connection) is None


def test_the_clients_local_mode_measures_nothing_and_is_never_promoted(home: Home) -> None:
    from qdrant_client import QdrantClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each request tells that local mode has no indexes, which is the point
        client = QdrantClient(":memory:")
        connection = Connection(Address.parse("http://local.invalid:6333"), client=client)
        report = deploy.copy(home, "small", LAYOUT, connection)
    assert report.blocked
    found = outcomes(report)
    assert not found["spatial_filter_is_indexed"]
    assert not found["filtered_recall"]
    assert not found["recall_not_below_embedded"]
    told = [check.description for check in report.checks if not check.passed]
    assert all(text.startswith("not applicable") for text in told)
    # What can be compared there was: it holds the same points and gives the same exact answers.
    assert found["points_equal_chunks"]
    assert found["every_point_names_its_source"]
    assert client.get_aliases().aliases == []


# --- both stores, one answer --------------------------------------------------------------------------------------


def copied(folder: Path, connection: Connection, name: str = "georag__random__v1") -> tuple[Any, ServerStore]:
    """Return a small embedded engine over awkward places, and a server's collection of the same points."""
    random = np.random.default_rng(3)
    shapes: list[Any] = []
    for row in range(300):
        lon, lat = random.uniform(-180, 180), random.uniform(-90, 90)
        size = float(random.choice([0.0, 0.001, 0.05, 1.0, 20.0, 120.0]))
        west, south, north = lon - size / 2, max(lat - size / 4, -90), min(lat + size / 4, 90)
        shapes.append(None if row % 17 == 0 else shapely.box(west, south, west + size, max(north, south)))
    small = write_small(
        folder,
        shapes,
        texts=[f"weir {'harbour ' * (row % 3)} number {row}" for row in range(300)],
        payload={
            "period_start": [float(row) for row in range(300)],
            "period_end": [float(row + 40) for row in range(300)],
            "licence": [("CC0-1.0", "CC-BY-4.0")[row % 2] for row in range(300)],
            "content_sha256": [f"{row:064x}" for row in range(300)],
        },
    )
    collections.create(connection, name, EngineConfig(8), LAYOUT)
    collections.upsert(connection, name, small.store.points([numbered(row) for row in range(300)]))
    collections.settle(connection, name, EngineConfig(8), 300)
    return small, ServerStore(connection, name, 8)


def random_condition(random: np.random.Generator, depth: int = 0) -> Condition:
    kind = random.integers(0, 6 if depth < 2 else 4)
    low = float(random.uniform(-180, 180))
    if kind == 0:
        field = str(random.choice(["west", "south", "east", "north"]))
        return Between(field, low if random.random() < 0.7 else None, low + 90, strict=bool(random.random() < 0.3))
    if kind == 1:
        south = float(random.uniform(-89, 60))
        return CentreIn(low, south, min(low + float(random.uniform(1, 200)), 180.0), south + 29)
    if kind == 2:
        return Is(*[("extent_class", int(random.integers(0, 7))), ("licence", "CC0-1.0")][int(random.integers(0, 2))])
    if kind == 3:
        return Ids(tuple(numbered(int(row)) for row in random.integers(0, 320, 40)))
    parts = tuple(random_condition(random, depth + 1) for _ in range(random.integers(1, 4)))
    return (AllOf if kind == 4 else AnyOf)(parts)


def test_both_stores_answer_random_conditions_alike(tmp_path: Path, connection: Connection) -> None:
    small, store = copied(tmp_path / "small", connection)
    random = np.random.default_rng(11)
    nonempty = 0
    for _ in range(120):
        condition = random_condition(random)
        query = DenseQuery(random.normal(size=8).astype(np.float32))
        here = store.search(query, condition, 300, Effort())
        there = small.store.search(query, condition, 300, Effort())
        assert [hit.chunk_id for hit in here] == [hit.chunk_id for hit in there], condition
        assert np.allclose([hit.score for hit in here], [hit.score for hit in there], atol=1e-6)
        assert store.count(condition) == small.store.count(condition) == len(here), condition
        nonempty += bool(here)
    assert nonempty > 60


def test_both_stores_answer_regions_periods_and_words_alike(tmp_path: Path, connection: Connection) -> None:
    small, store = copied(tmp_path / "small", connection)
    ours, theirs = PlannedSearch(store, small.columns), small.search
    regions = [
        Region.from_bbox(170, -10, -170, 20),
        Region.from_bbox(-180, 60, 180, 90),
        Region.from_bbox(-179, -80, 179, 80),
        Region.from_point(8.5, 47.4, 500_000.0),
        Region.from_shape(shapely.Polygon([(0, 0), (30, 0), (0, 30)])),
    ]
    for region in [*regions, None]:
        for period in ((100.0, 120.0), None):
            where = SearchFilter(region=region, period=period, equals={"licence": "CC0-1.0"} if period else {})
            for query in (DenseQuery(small.vectors[5]), LexicalQuery("harbour number 7")):
                here, there = ours.search(query, where, 20), theirs.search(query, where, 20)
                assert [hit.chunk_id for hit in here.hits] == [hit.chunk_id for hit in there.hits]
                # Lexical scores: the store counts IDF over its own points, as the embedded one does.
                assert np.allclose([hit.score for hit in here.hits], [hit.score for hit in there.hits], rtol=1e-5)


def test_both_stores_read_points_back_alike(tmp_path: Path, connection: Connection) -> None:
    small, store = copied(tmp_path / "small", connection)
    ids = [*(numbered(row) for row in range(300)), str(uuid.uuid4())]
    assert store.retrieve(ids) == small.store.retrieve(ids)
    assert store.retrieve(ids[:3], ["licence"]) == small.store.retrieve(ids[:3], ["licence"])
    here, there = store.vectors(ids), small.store.vectors(ids)
    assert here.keys() == there.keys()
    assert all(np.allclose(here[key], there[key], atol=1e-6) for key in here)
    assert store.index_coverage() == small.store.index_coverage()
    assert store.info().points == small.store.info().points == 300


@pytest.mark.parametrize("vector", [[np.nan] + [0.0] * 7, [np.inf] + [0.0] * 7, [0.0] * 8, [1.0] * 7])
def test_d15_a_query_that_means_nothing_is_refused_before_it_is_sent(
    server: RestServer, connection: Connection, vector: list[float]
) -> None:
    from georag_assets.errors import QueryError

    with pytest.raises(QueryError):
        ServerStore(connection, "georag__x", 8).search(DenseQuery(np.array(vector, np.float32)), None, 5, Effort())
    assert server.asked == []


def test_case_d09_counts_do_not_change_when_an_index_is_built_later(
    tmp_path: Path, server: RestServer, connection: Connection
) -> None:
    small, store = copied(tmp_path / "small", connection)
    condition = AllOf((Is("licence", "CC0-1.0"), CentreIn(-90.0, -60.0, 90.0, 60.0)))
    before = store.count(condition)
    shard = server.collections[store.collection].shard
    for field in ("location", "licence"):
        shard.update(engine.UpdateOperation.delete_field_index(field))
    assert {"location", "licence"} & set(store.index_coverage()) == set()
    collections.create(connection, store.collection, EngineConfig(8), LAYOUT)
    assert store.index_coverage()["location"].points == small.columns.present("location")
    assert store.count(condition) == before > 0
    assert len(store.search(DenseQuery(small.vectors[0]), condition, 300, Effort())) == before


def test_case_o31_an_index_of_the_wrong_type_is_a_fault(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    """An integer index on decimals hides points; the server's own index types are compared with the schema."""
    name = f"georag__small__{prepared.first}"
    original = server.answer

    def with_integer_west(method: str, path: str, body: Any) -> Any:
        if method == "PUT" and path.endswith("/index") and body["field_name"] == "west":
            body = {**body, "field_schema": "integer"}
        return original(method, path, body)

    server.answer = with_integer_west  # type: ignore[method-assign]
    report = deploy.copy(home, "small", LAYOUT, connection)
    (check,) = [check for check in report.checks if check.name == "spatial_filter_is_indexed"]
    assert not check.passed
    assert {"field": "west", "fault": "type", "found_type": "integer"}.items() <= check.detail["faults"][0].items()  # type: ignore[index]
    assert server.aliases == {}
    assert name in server.collections


# --- a server that is away, busy, slow or wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [{"status": 429, "headers": {"Retry-After": "0"}}, {"hang_up": "before"}, {"status": 503}],
        [{"hang_up": "after"}, {"status": 429}, {"status": 502}],
    ],
    ids=["refused", "done and not told"],
)
def test_a_passing_fault_changes_nothing(
    home: Home, server: RestServer, connection: Connection, faults: list[dict[str, Any]]
) -> None:
    """Also where the work was done and the answer lost: collections, upserts and aliases can be sent twice."""
    for fault in faults:
        for method, path in (
            ("PUT", "^/collections/[^/]+$"),
            ("PUT", "/points$"),
            ("POST", "/points/query$"),
            ("POST", "/aliases$"),
        ):
            server.fail(method, path, **fault)
    report = deploy.copy(home, "small", LAYOUT, connection)
    assert not report.blocked
    assert server.of("small").shard.info().points_count == POINTS
    # An alias that was moved is not moved again: the last two faults wait for a request that never comes.
    assert sum(one.times for one in server.faults) <= 2


def test_patience_ends_with_what_was_tried(home: Home, server: RestServer) -> None:
    server.fail("PUT", "/points$", times=10_000, status=503)
    with pytest.raises(ServerError, match="did not store 120 points") as caught:
        deploy.copy(home, "small", LAYOUT, impatient(server))
    assert "status 503" in str(caught.value)
    assert server.url in str(caught.value)
    assert server.aliases == {}


def test_a_refusal_is_not_tried_again(home: Home, server: RestServer, connection: Connection) -> None:
    server.fail("PUT", "/points$", times=10_000, status=422)
    with pytest.raises(ServerError, match="status 422"):
        deploy.copy(home, "small", LAYOUT, connection)
    assert sum(path.endswith("/points") for path in server.paths("PUT")) == 1


def test_a_request_that_is_too_large_is_halved(home: Home, server: RestServer, connection: Connection) -> None:
    original = server.answer

    def at_most_forty(method: str, path: str, body: Any) -> Any:
        from georag_assets_tests.index.rest_server import RefusedError

        if method == "PUT" and path.endswith("/points") and len(body["points"]) > 40:
            raise RefusedError(413, "Payload too large")
        return original(method, path, body)

    server.answer = at_most_forty  # type: ignore[method-assign]
    assert not deploy.copy(home, "small", LAYOUT, connection).blocked


def test_batches_are_bounded_by_points_and_by_bytes(
    server: RestServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections.create(connection, "georag__x__v1", EngineConfig(4), LAYOUT)
    points = [StoredPoint(numbered(row), [1.0, 0, 0, 0], None, {"text": "x" * 1_000}) for row in range(30)]
    monkeypatch.setattr(collections, "POINTS_AT_ONCE", 8)
    assert collections.upsert(connection, "georag__x__v1", points) == 30
    monkeypatch.setattr(collections, "BYTES_AT_ONCE", 5_000)
    assert collections.upsert(connection, "georag__x__v1", points) == 30
    sizes = [len(body["points"]) for method, path, body in server.asked if method == "PUT" and path.endswith("points")]
    assert sizes == [8, 8, 8, 6] + [2] * 15


def test_waiting_says_what_it_waits_for_and_ends_without_progress(home: Home, server: RestServer) -> None:
    server.statuses = ["yellow"] * 100_000
    with pytest.raises(ServerError, match="did not become ready: no progress") as caught:
        deploy.copy(home, "small", LAYOUT, impatient(server))
    assert "status yellow" in str(caught.value)
    assert server.aliases == {}


def test_waiting_goes_on_while_there_is_progress_and_needs_green_twice(
    server: RestServer, connection: Connection
) -> None:
    collections.create(connection, "georag__x__v1", EngineConfig(4), LAYOUT)
    server.statuses = ["green", "yellow", "grey", "green", "green"]
    settling = collections.settle(connection, "georag__x__v1", EngineConfig(4), 0)
    assert settling.looks == 5
    # Grey: optimisations are due and not begun; an update begins them.
    assert server.paths("PATCH").count("/collections/georag__x__v1") == 2


def test_a_failed_optimiser_ends_the_wait_at_once(home: Home, server: RestServer, connection: Connection) -> None:
    def break_it(method: str, path: str) -> None:
        if method == "PATCH":
            for collection in server.collections.values():
                collection.optimizer = {"error": "no space left on device"}

    server.before = break_it
    with pytest.raises(ServerError, match="optimiser failed") as caught:
        deploy.copy(home, "small", LAYOUT, connection)
    assert "no space left" in str(caught.value)


def test_graphs_are_built_after_the_points_and_only_where_there_are_many(
    server: RestServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "INDEXING_THRESHOLD_KB", 1)
    random = np.random.default_rng(0)
    points = [StoredPoint(numbered(row), random.normal(size=4).tolist(), None, {}) for row in range(300)]
    config = EngineConfig(4, graph_above=100)
    for name, many in (("georag__x__v1", points), ("georag__x__v2", points[:90])):
        collections.create(connection, name, config, LAYOUT)
        collections.upsert(connection, name, many)
    before = server.collections["georag__x__v1"].shard.info().indexed_vectors_count
    settled = collections.settle(connection, "georag__x__v1", config, 300)
    assert before == 0
    assert settled.indexed_vectors >= 300
    collections.settle(connection, "georag__x__v2", config, 90)
    thresholds = [
        body["optimizers_config"]["indexing_threshold"] for method, _, body in server.asked if method == "PATCH"
    ]
    assert thresholds == [collections.INDEXING_THRESHOLD_KB, 0]


def test_an_older_server_is_refused(home: Home, server: RestServer, connection: Connection) -> None:
    server.version = "1.15.4"
    with pytest.raises(ServerError, match="too old"):
        deploy.copy(home, "small", LAYOUT, connection)
    assert server.collections == {}


# --- keys, certificates, addresses --------------------------------------------------------------------------------


def test_case_o26_a_key_with_dollar_signs_arrives_as_it_is_and_is_never_written(
    prepared: Prepared, home: Home, server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    monkeypatch.setenv("GEORAG_HOME", str(home.root))
    monkeypatch.setenv("GEORAG_QDRANT_URL", server.url)
    monkeypatch.setenv("GEORAG_QDRANT_API_KEY", KEY)
    settings = Settings()
    assert settings.qdrant_api_key is not None
    assert settings.qdrant_api_key.get_secret_value() == KEY
    assert KEY not in repr(settings)
    with Connection.of(settings) as connection:
        report = deploy.copy(home, "small", LAYOUT, connection)
    assert not report.blocked
    assert KEY not in repr(report)
    written = [path for path in home.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert written == []


def test_another_key_is_refused_at_once_and_not_told(home: Home, server: RestServer) -> None:
    server.key = "right"
    with (
        Connection(Address.parse(server.url), api_key="wrong-key", patience_s=30) as connection,
        pytest.raises(ServerError, match="no or another key") as caught,
    ):
        deploy.copy(home, "small", LAYOUT, connection)
    assert "wrong-key" not in str(caught.value)
    assert len(server.asked) == 1


def test_case_o26_a_misspelt_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GEORAG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GEORAG_QDRANT_APIKEY", "x")
    monkeypatch.setenv("GEORAG_QDRANT_URL", "http://localhost")
    assert unknown_names() == {"GEORAG_QDRANT_APIKEY": "GEORAG_QDRANT_API_KEY"}


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        ("http://localhost", "http://localhost:6333"),
        ("https://Qdrant.Example:443/", "https://qdrant.example:443"),
        ("http://[::1]:6333/base/", "http://[::1]:6333/base"),
    ],
)
def test_an_address_has_one_spelling(url: str, spelt: str) -> None:
    assert Address.parse(url).url == spelt


@pytest.mark.parametrize(
    "url",
    ["localhost:6333", "ftp://host", "http://", "http://u:secret@host", "http://host?api-key=secret", "http://h:99999"],
)
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    if shutil.which("openssl") is None:
        message = "openssl is absent: TLS cannot be tested"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
    ]
    command += ["subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_tls_with_a_certificate_that_is_trusted_and_one_that_is_not(
    home: Home, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    with serving(certificate) as server:
        address = Address.parse(server.url)
        with Connection(address, certificates=str(certificate[0]), patience_s=5) as trusting:
            assert trusting.version == "1.18.3"
        with (
            Connection(address, patience_s=60) as strange,
            pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            _ = strange.version
        (tmp_path / "no.pem").write_text("nothing")
        with (
            Connection(address, certificates=str(tmp_path / "no.pem")) as wrong,
            pytest.raises(SettingError, match="GEORAG_QDRANT_CA"),
        ):
            _ = wrong.version


# --- in place -----------------------------------------------------------------------------------------------------


def test_a_sync_writes_the_difference_in_the_collection_that_answers(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    collection = server.of("small")
    live.promote(home, "small", prepared.second)
    server.asked.clear()
    report = deploy.sync(home, "small", LAYOUT, connection)
    assert outcomes(report) == dict.fromkeys(CHECKS, True)
    assert report.metadata["in_place"] is True
    assert (report.counts["new"], report.counts["removed"]) == (len(prepared.new), len(prepared.gone))
    written = [
        point["id"]
        for method, path, body in server.asked
        if method == "PUT" and path.endswith("/points")
        for point in body["points"]
    ]
    assert set(written) == prepared.new
    assert server.of("small") is collection
    answering = deploy.open_served(home, "small", connection)
    assert answering is not None
    assert answering.manifest.build == prepared.second
    assert answering.note is None
    answering.close()
    (record,) = records.of_corpus(home, "small")
    assert record.collection == f"georag__small__{prepared.first}"
    # And back again: what was deleted is written, what was written is deleted.
    live.promote(home, "small", prepared.first)
    back = deploy.sync(home, "small", LAYOUT, connection)
    assert (back.counts["new"], back.counts["removed"]) == (len(prepared.gone), len(prepared.new))
    assert not back.blocked


def test_case_d13_a_document_with_fewer_chunks_leaves_no_point_behind(
    tmp_path: Path, fresh_home: Callable[[Path], Home], server: RestServer, connection: Connection
) -> None:
    """From the sources to the server, by the declaration: `server: {update: in_place}`."""

    def sections(count: int) -> str:
        said = "The weir was raised after the floods of that winter and the gauge moved upstream."
        return "\n".join(f"# Survey {number}\n\n{said} SRID=4326;POINT (7.{number} 46)\n" for number in range(count))

    folder = declare(
        tmp_path / "corpora",
        "small",
        documents={"A.md": sections(5), "B.md": sections(1)},
        extra="  budget: 32\n  server: {update: in_place}\n",
    )
    home = served(fresh_home(tmp_path / "home"), server)
    made, _ = embedder()
    of_a = Is("doc_id", "docs/A.md")
    counted = []
    for count in (5, 3):
        (folder / "docs" / "A.md").write_text(sections(count), encoding="utf-8")
        reports = build_corpus(home, load_declaration(folder / "defs.yaml"), embedder=made, allow_removal=True)
        assert reports[-1].stage == "server_index"
        assert not reports[-1].blocked, outcomes(reports[-1])
        counted.append(ServerStore(connection, "georag__small", 32).count(of_a))
    assert counted == [5, 3]
    assert reports[-1].metadata["in_place"] is True
    with Retriever(home, ["small"], embedder=made) as retriever:
        answer = retriever.search(Question(text="weir raised after floods", k=10, equals={"doc_id": "docs/A.md"}))
    assert len(answer.candidates) + sum(len(one.folded) for one in answer.candidates) == counted[1]


def test_the_first_sync_of_a_corpus_is_a_copy(home: Home, server: RestServer, connection: Connection) -> None:
    report = deploy.sync(home, "small", LAYOUT, connection)
    assert report.metadata["in_place"] is False
    assert report.counts["promoted"] == 1


def test_a_build_of_other_settings_is_copied_and_not_mixed_in(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    (record,) = records.of_corpus(home, "small")
    version, number, identity, attempt = prepared.first.split("-")
    other = f"{version}-{number}-{identity[::-1]}-{attempt}"
    records.write(home, replace(record, build=other))
    live.promote(home, "small", prepared.second)
    report = deploy.sync(home, "small", LAYOUT, connection)
    assert report.metadata["in_place"] is False
    assert report.metadata["collection"] == f"georag__small__{prepared.second}"


def stopped_sync(home: Home, prepared: Prepared, server: RestServer, connection: Connection) -> None:
    """Copy the first build, and let a sync to the second end between writing and deleting."""
    deploy.copy(home, "small", LAYOUT, connection)
    live.promote(home, "small", prepared.second)
    server.fail("POST", "/points/payload$", times=1, status=400)
    with pytest.raises(ServerError, match="corpus version"):
        deploy.sync(home, "small", LAYOUT, connection)


def test_while_a_sync_is_under_way_answers_say_so(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    stopped_sync(home, prepared, server, connection)
    with Retriever(served(home, server), ["small"], embedder=embedder()[0]) as retriever:
        answer = retriever.search(Question(text="weir harbour number", k=20))
    assert any("is being brought to" in note for note in answer.notes)
    assert answer.corpora[0].build == prepared.first
    assert not {one.chunk_id for one in answer.candidates} & prepared.new
    assert len(answer.candidates) > 5


def test_a_sync_that_was_stopped_is_finished_by_the_next(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    stopped_sync(home, prepared, server, connection)
    report = deploy.sync(home, "small", LAYOUT, connection)
    assert not report.blocked
    assert set(collections.contents(connection, "georag__small")) == ids_of(home, prepared.second)
    # Also towards a third state of things.
    live.promote(home, "small", prepared.first)
    assert not deploy.sync(home, "small", LAYOUT, connection).blocked
    assert set(collections.contents(connection, "georag__small")) == ids_of(home, prepared.first)


def test_a_sync_that_fails_its_checks_answers_nobody_until_one_passes(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    live.promote(home, "small", prepared.second)
    some = sorted(prepared.new)[:1]

    def lose_a_point(method: str, path: str) -> None:
        if method == "PATCH":
            server.of("small").shard.update(engine.UpdateOperation.delete_points(some))

    server.before = lose_a_point
    report = deploy.sync(home, "small", LAYOUT, connection)
    assert report.blocked
    with pytest.raises(ServerError, match="may not answer") as caught:
        deploy.open_served(home, "small", connection)
    assert "points_equal_chunks" in str(caught.value)
    server.before = lambda method, path: None
    mended = deploy.sync(home, "small", LAYOUT, connection)
    assert not mended.blocked
    assert mended.counts["new"] == 1
    opened = deploy.open_served(home, "small", connection)
    assert opened is not None
    opened.close()


def test_a_collection_that_was_synced_is_not_taken_for_the_build_it_is_named_after(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    live.promote(home, "small", prepared.second)
    deploy.sync(home, "small", LAYOUT, connection)
    live.promote(home, "small", prepared.first)
    with pytest.raises(ServerError, match="another build in place"):
        deploy.copy(home, "small", LAYOUT, connection)


def test_serve_follows_the_declared_way(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    for update, in_place in (("copy", False), ("in_place", True)):
        layout = ServerLayout(update=update)  # type: ignore[arg-type]
        deploy.serve(home, "small", layout, connection)
        live.promote(home, "small", prepared.second)
        assert deploy.serve(home, "small", layout, connection).metadata["in_place"] is in_place
        live.promote(home, "small", prepared.first)


# --- answering ----------------------------------------------------------------------------------------------------


def answer_of(home: Home, question: Question) -> Any:
    with Retriever(home, ["small"], embedder=embedder()[0]) as retriever:
        return retriever.search(question)


def test_the_server_gives_the_evidence_that_the_embedded_build_gives(
    home: Home, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    for question in (
        Question(text="weir harbour survey", k=15),
        Question(text="moraine vineyard", bbox=(-115.0, 32.0, -103.0, 42.0), k=15),
        Question(text="ridge", near=(-110.0, 38.0), radius_m=90_000, k=15),
    ):
        here, there = answer_of(served(home, server), question), answer_of(home, question)
        assert here.corpora[0].answers_from == f"{server.url} (Qdrant 1.18.3)"
        assert there.corpora[0].answers_from == "embedded"
        assert [one.chunk_id for one in here.candidates] == [one.chunk_id for one in there.candidates]
        assert [one.text for one in here.candidates] == [one.text for one in there.candidates]
        assert [one.chunk_id for one in here.unlocated] == [one.chunk_id for one in there.unlocated]
        for ours, theirs in zip(here.candidates, there.candidates, strict=True):
            assert ours.scores.keys() == theirs.scores.keys()
            assert ours.scores["score"] == pytest.approx(theirs.scores["score"], abs=1e-5)


def test_a_corpus_that_was_never_brought_to_the_server_is_answered_embedded(home: Home, server: RestServer) -> None:
    answer = answer_of(served(home, server), Question(text="weir"))
    assert answer.corpora[0].answers_from == "embedded"
    assert server.asked == []


def test_a_staged_build_is_never_asked_of_the_server(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    with Retriever(served(home, server), ["small"], prepared.second, embedder=embedder()[0]) as retriever:
        assert retriever.search(Question(text="weir")).corpora[0].answers_from == "embedded"


def test_a_server_that_is_away_is_an_error_and_not_another_index(
    home: Home, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    server.fail("GET", "^/$", times=10_000, status=503)
    with pytest.raises(ServerError, match="status 503"):
        answer_of(served(home, server), Question(text="weir"))


def test_a_foreign_alias_and_a_changed_collection_are_refused(
    home: Home, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    name = server.aliases["georag__small"]
    server.of("small").shard.update(
        engine.UpdateOperation.delete_points([sorted(collections.contents(connection, name))[0]])
    )
    with pytest.raises(ServerError, match="does not hold what it was filled with"):
        deploy.open_served(home, "small", connection)
    collections.create(connection, "georag__small__other", EngineConfig(32), LAYOUT)
    server.aliases["georag__small"] = "georag__small__other"
    with pytest.raises(ServerError, match="did not fill"):
        deploy.open_served(home, "small", connection)


def test_a_damaged_record_is_an_error_that_names_it(home: Home, server: RestServer, connection: Connection) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    (file,) = home.servers_folder.rglob("*.json")
    for damage in ("{", "{}", json.dumps({**json.loads(file.read_text()), "strange": 1})):
        file.write_text(damage)
        with pytest.raises(ServerError, match="cannot be read") as caught:
            deploy.open_served(home, "small", connection)
        assert str(file) in str(caught.value)


def test_status_shows_what_the_server_holds_beside_what_is_known(
    home: Home, prepared: Prepared, server: RestServer, connection: Connection
) -> None:
    deploy.copy(home, "small", LAYOUT, connection)
    collections.create(connection, "georag__small__stray", EngineConfig(32), LAYOUT)
    collections.create(connection, "georag__smaller__v1", EngineConfig(32), LAYOUT)
    stray, known = deploy.status(home, "small", connection)
    assert (known.answers, known.points, known.status) == (True, POINTS, "green")
    assert known.record is not None
    assert known.record.build == known.live_build == prepared.first
    assert (stray.collection, stray.answers, stray.record) == ("georag__small__stray", False, None)
    assert deploy.served_build(home, "small", server.url) == prepared.first
    assert deploy.served_build(home, "small", "http://elsewhere") is None


def test_the_command_line_copies_syncs_and_tells(
    home: Home,
    prepared: Prepared,
    server: RestServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def georag(*arguments: str, **settings: str) -> tuple[int, str, str]:
        for name, value in {"GEORAG_HOME": str(home.root), "GEORAG_QDRANT_PATIENCE_S": "1", **settings}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["georag", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    code, out, err = georag("index", "copy", "--to", server.url, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["stage"], report["blocked"], report["counts"]["points"]) == ("server_index", False, POINTS)
    assert georag("index", "copy")[0] == 1  # which server?
    told = json.loads(georag("index", "status", "--json", GEORAG_QDRANT_URL=server.url)[1])
    assert [one["answers"] for one in told["collections"]] == [True]
    assert "a server answers from another build" in georag("rollback", "small", "--to", prepared.second)[2]
    code, out, err = georag("index", "sync")
    assert code == 0, err
    assert "passed filtered_recall" in out
    live.rollback(home, "small", release=True)
    status = json.loads(georag("status", "--json")[1])
    (corpus,) = [one for one in status["corpora"] if one["corpus"] == "small"]
    assert corpus["servers"][0]["is_live_build"] is True
    assert "answers" in georag("index", "status")[1] or server.url in georag("index", "status")[1]
    server.fail("GET", "/collections/[^/]+$", times=1_000, status=507)
    code, _, err = georag("index", "sync")
    assert code == 1
    assert "status 507" in err
    assert "Traceback" not in err


def test_a_corpus_is_written_by_one_process_at_a_time(home: Home, server: RestServer) -> None:
    from georag_assets.corpus.writer import writing

    with writing(home, "small"):
        environment = {**os.environ, "GEORAG_HOME": str(home.root)}
        command = [sys.executable, "-m", "georag_assets.cli", "index", "copy", "--to", server.url]
        refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    assert "is being written by pid" in refused.stderr
    assert server.asked == []
