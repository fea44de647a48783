"""An engine is written whole, in a child of its own, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import qdrant_edge as engine
from shapely.geometry import Point

from georag_assets.errors import DiskSpaceError, IndexBuildError
from georag_assets.geometry.region import Region
from georag_assets.index import recall
from georag_assets.index.batch import make_batch, points_schema
from georag_assets.index.columns import Columns, ColumnsWriter
from georag_assets.index.embedded import EmbeddedStore
from georag_assets.index.engine_writer import EngineConfig, write_engine
from georag_assets.index.filter import Between, payload_condition
from georag_assets.index.models import DenseQuery, SearchFilter
from georag_assets.index.points import index_faults
from georag_assets.index.store import Effort
from georag_assets_tests.index.small_builds import batches_of, chunk_id, write_small

Case = Callable[[str], dict[str, Any]]
EARTH = [Point(number % 360 - 180, number % 170 - 85) for number in range(3_000)]


def vectors(count: int, dimension: int = 8) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=(count, dimension)).astype(np.float32)


def reopened(folder: Path, *operations: engine.UpdateOperation) -> EmbeddedStore:
    """Apply operations to a finished engine behind the package's back, and open it again."""
    shard = engine.EdgeShard.load(str(folder))
    for operation in operations:
        shard.update(operation)
    shard.flush()
    shard.close()
    return EmbeddedStore.open(folder)


def test_every_point_is_there_with_payload_vector_and_indexes(tmp_path: Path) -> None:
    small = write_small(tmp_path, [*EARTH[:50], None])
    assert small.summary.points == small.store.count() == small.columns.count == 51
    payload = small.store.retrieve([chunk_id(3)])[chunk_id(3)]
    assert payload["source"] == "a source"
    assert payload["west"] == payload["east"] == EARTH[3].x
    assert "url" not in payload
    unplaced = small.store.retrieve([chunk_id(50)])[chunk_id(50)]
    assert unplaced["has_geometry"] == 0
    assert not {"west", "location", "extent_class"} & set(unplaced)
    found = small.store.vectors([chunk_id(3), chunk_id(999)])
    assert list(found) == [chunk_id(3)]
    np.testing.assert_allclose(found[chunk_id(3)], small.vectors[3] / np.linalg.norm(small.vectors[3]), atol=1e-6)
    assert index_faults(small.store.index_coverage(), small.columns.present) == []


def test_d09_an_index_hides_no_point(case: Case, tmp_path: Path) -> None:
    given = case("d09")["input"]["collection"]
    outside = given["n"] - given["n_in_bbox"]
    small = write_small(tmp_path, [Point(5, 5)] * given["n_in_bbox"] + [Point(50, 5)] * outside)
    where = SearchFilter(region=Region.from_bbox(0, 0, 10, 10))
    for form in ("ranges", "classes"):
        condition = payload_condition(where, form=form)
        assert small.store.count(condition) == len(small.ids_by(condition)) == given["n_in_bbox"]
    assert len(small.columns.survivors(where)) == case("d09")["expected"]["count_after_index"]


def test_a_dropped_an_incomplete_and_a_mistyped_index_are_each_a_fault(tmp_path: Path) -> None:
    small = write_small(tmp_path, EARTH[:60])
    small.store.close()
    update = engine.UpdateOperation
    dropped = reopened(tmp_path / "engine", update.delete_field_index("location"))
    assert [(f["field"], f["fault"]) for f in index_faults(dropped.index_coverage(), small.columns.present)] == [
        ("location", "missing")
    ]
    dropped.close()
    typed = reopened(
        tmp_path / "engine",
        update.create_field_index("location", engine.PayloadSchemaType.Geo),
        update.delete_field_index("west"),
        update.create_field_index("west", engine.PayloadSchemaType.Integer),
    )
    faults = index_faults(typed.index_coverage(), small.columns.present)
    assert [(fault["field"], fault["fault"], fault["found_type"]) for fault in faults] == [("west", "type", "integer")]
    typed.close()
    incomplete = reopened(
        tmp_path / "engine",
        update.delete_field_index("west"),
        update.create_field_index("west", engine.PayloadSchemaType.Float),
        update.delete_payload([chunk_id(1), chunk_id(2)], ["east"]),
    )
    faults = index_faults(incomplete.index_coverage(), small.columns.present)
    assert [(f["field"], f["fault"], f["found_points"]) for f in faults] == [("east", "incomplete", 58)]


def test_d13_a_document_with_fewer_chunks_leaves_none_behind(case: Case, tmp_path: Path) -> None:
    given, expected = case("d13")["input"], case("d13")["expected"]
    for build, count in (("first", given["first_chunks"]), ("second", given["second_chunks"])):
        small = write_small(tmp_path / build, [None] * count, payload={"doc_id": [given["doc"]] * count})
        found = small.numbers_of(SearchFilter(equals={"doc_id": given["doc"]}))
        assert len(found) == count
    assert len(found) == expected["points_for_A_after"]


def test_an_engine_is_never_written_over_another(tmp_path: Path) -> None:
    small = write_small(tmp_path, EARTH[:5])
    with pytest.raises(IndexBuildError, match="not empty"):
        write_engine(tmp_path / "engine", EngineConfig(8), batches_of(EARTH[:3], vectors(3)))
    assert small.store.count() == 5


def test_d15_an_all_zero_vector_is_refused(case: Case, tmp_path: Path) -> None:
    given, expected = case("d15")["input"], case("d15")["expected"]
    numbers = [int(name) for name in given["vectors"]]
    raw = np.array(list(given["vectors"].values()), np.float32)
    with pytest.raises(IndexBuildError, match=rf"{chunk_id(20)} \(zero\)"):
        write_small(tmp_path / "all", [None] * 3, raw, numbers=numbers)
    kept = [row for row, number in enumerate(numbers) if number != 20]
    small = write_small(tmp_path / "kept", [None] * 2, raw[kept], numbers=[numbers[row] for row in kept])
    hits = small.search.search(DenseQuery(np.array(given["query"], np.float32)), SearchFilter(), 10).hits
    assert [hit.chunk_id for hit in hits] == [chunk_id(number) for number in expected["order"]]


def test_o21_a_retried_step_writes_the_same_ids(case: Case, tmp_path: Path) -> None:
    given, expected = case("o21")["input"], case("o21")["expected"]
    count, attempts = given["points"], 0

    def losing() -> Iterator[pa.RecordBatch]:
        yield from batches_of(EARTH[:count], vectors(count))
        if attempts < expected["attempts"]:
            raise TimeoutError("the acknowledgement is lost")

    while attempts < given["max_retries"]:
        attempts += 1
        try:
            summary = write_engine(tmp_path / f"attempt-{attempts}", EngineConfig(8), losing())
        except TimeoutError:
            continue
        break
    assert (attempts, summary.points) == (expected["attempts"], expected["points_after"])
    store = EmbeddedStore.open(tmp_path / f"attempt-{attempts}")
    assert len(store.retrieve([chunk_id(number) for number in range(count)])) == expected["distinct_chunk_ids"]


def test_an_id_written_twice_is_refused(tmp_path: Path) -> None:
    writer = ColumnsWriter(tmp_path / "columns")
    for _ in range(2):
        for batch in batches_of(EARTH[:4], vectors(4)):
            writer.add(batch)
    with pytest.raises(IndexBuildError, match="4 chunk ids were written twice"):
        writer.finish()


def test_o31_decimals_are_found_and_a_number_as_text_is_refused(case: Case, tmp_path: Path) -> None:
    given, expected = case("o31")["input"], case("o31")["expected"]
    numbers = {one["id"]: one["west"] for one in given["points"] if isinstance(one.get("west"), int | float)}
    geometries = [Point(west, 0) for west in numbers.values()]
    small = write_small(tmp_path, [*geometries, None], numbers=[*numbers, 5])
    low, high = given["range"]
    found = small.ids_by(Between("west", low=low, high=high))
    assert found == {chunk_id(number) for number in expected["ids"]}
    refused = next(one for one in given["points"] if one["id"] in expected["payload_with_string_number_refused"])
    columns = {"chunk_id": pa.array([chunk_id(4)]), "west": pa.array([refused["west"]])}
    with pytest.raises(IndexBuildError, match="not a number"):
        make_batch(columns, vectors(1))
    with pytest.raises(IndexBuildError, match="period_start"):
        make_batch({"chunk_id": pa.array([chunk_id(4)]), "period_start": pa.array(["7.25"])}, vectors(1))


def test_o32_the_lane_without_geometry_is_the_same_with_and_without_its_index(case: Case, tmp_path: Path) -> None:
    small = write_small(tmp_path / "ours", [None, *EARTH[:3], None])
    condition = payload_condition(SearchFilter(located=False), form="ranges")
    indexed = small.ids_by(condition)
    small.store.close()
    bare = reopened(tmp_path / "ours" / "engine", engine.UpdateOperation.delete_field_index("has_geometry"))
    hits = bare.search(DenseQuery(small.vectors[0]), condition, 9, Effort())
    assert indexed == {hit.chunk_id for hit in hits} == {chunk_id(0), chunk_id(4)}
    # We ask a number, never for emptiness; the case itself still holds, and so does the form that is safe.
    given, expected = case("o32")["input"], case("o32")["expected"]
    shard = engine.EdgeShard.create(
        str(tmp_path / "bare"),
        engine.EdgeConfig(vectors={"text": engine.EdgeVectorParams(2, engine.Distance.Cosine)}, wal_enabled=False),
    )
    points = [
        engine.Point(one["id"], {"text": [1.0, 0.0]}, {"frames": one["frames"]} if "frames" in one else {})
        for one in given["points"]
    ]
    shard.update(engine.UpdateOperation.upsert_points(points))
    empty = engine.Filter(must=[engine.IsEmptyCondition("frames[].epsg")])
    for expected_ids in (expected["ids_without_index"], expected["ids_with_index"]):
        records, _ = shard.scroll(engine.ScrollRequest(limit=10, filter=empty))
        assert sorted(int(str(record.id)) for record in records) == expected_ids
        shard.update(engine.UpdateOperation.create_field_index("frames[].epsg", engine.PayloadSchemaType.Integer))
    shard.close()


BAD = {
    "NaN first component": ("nan", np.r_[np.nan, np.ones(15)]),
    "all NaN": ("nan", np.full(16, np.nan)),
    "inf first component": ("infinite", np.r_[np.inf, np.ones(15)]),
    "all zero": ("zero", np.zeros(16)),
}


def test_o33_every_bad_vector_is_refused_by_name_and_kind_before_the_engine(case: Case, tmp_path: Path) -> None:
    given = case("o33")["input"]
    for number, bad in enumerate(name for names in given["bad"] for name in names):
        folder = tmp_path / str(number)
        if bad == "no vector":
            schema = points_schema(given["dim"])
            row = {"chunk_id": [chunk_id(1)], "vector": [None]}
            absent = pa.RecordBatch.from_arrays(
                [pa.array(row.get(field.name, [None]), field.type) for field in schema], schema=schema
            )
            with pytest.raises(IndexBuildError, match=rf"{chunk_id(1)} \(absent\)"):
                write_engine(folder, EngineConfig(given["dim"]), [absent])
            continue
        kind, vector = BAD[bad]
        raw = vectors(given["good"] + 1, given["dim"])
        raw[given["good"]] = vector
        with pytest.raises(IndexBuildError, match=rf"{chunk_id(given['good'])} \({kind}\)"):
            write_engine(folder, EngineConfig(given["dim"]), batches_of([None] * len(raw), raw))


def test_r32_the_good_vectors_of_the_case_are_all_found(case: Case, tmp_path: Path) -> None:
    given, expected = case("r32")["input"], case("r32")["expected"]
    raw = {int(name): np.array([float(x) for x in vector], np.float32) for name, vector in given["vectors"].items()}
    good = [int(name) for name in expected["retrievable"]]
    for number in set(raw) - set(good):
        with pytest.raises(IndexBuildError):
            write_small(tmp_path / str(number), [None], raw[number][None, :], numbers=[number])
    small = write_small(tmp_path / "good", [None] * len(good), np.array([raw[n] for n in good]), numbers=good)
    assert small.numbers_of(SearchFilter()) == good


def test_o34_a_small_corpus_waits_for_no_index(case: Case, tmp_path: Path) -> None:
    given, expected = case("o34")["input"], case("o34")["expected"]
    started = time.monotonic()
    raw = vectors(given["points"], given["dim"])
    small = write_small(tmp_path, EARTH[: given["points"]], raw)
    assert time.monotonic() - started < expected["wait_seconds_max"]
    assert small.store.info().points == expected["points_count"]
    ids = small.columns.ids_of(np.arange(len(raw)))
    table = recall.measure(small.store, small.columns, raw, ids, per_level=5)
    assert table.faults() == []
    assert all(row.exact == row.queries for row in table.rows if not row.skipped)
    assert [row.skipped for row in table.rows if row.level == 0.001] == [
        "only 1 points would pass, fewer than k = 10"
    ] * 3


def test_free_space_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DiskSpaceError, match="MiB"):
        write_engine(tmp_path / "engine", EngineConfig(384), [], expected_points=10**11)
    assert not (tmp_path / "engine").exists()


def child_of(process: psutil.Process) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in process.children(recursive=True):
            if "georag_assets.index.engine_writer" in child.cmdline():
                return child
        time.sleep(0.02)
    raise AssertionError("the writer's child never appeared")


@pytest.mark.parametrize("death", [signal.SIGBUS, signal.SIGKILL])
def test_a_writer_killed_by_a_signal_is_an_error_that_names_it(tmp_path: Path, death: signal.Signals) -> None:
    def killing() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of(EARTH, vectors(3_000))):
            if number == 2:
                os.kill(child_of(psutil.Process()).pid, death)
                time.sleep(0.2)
            yield batch

    with pytest.raises(IndexBuildError, match=death.name) as raised:
        write_engine(tmp_path / "engine", EngineConfig(8), killing())
    assert "MiB free" in str(raised.value)


def test_a_failure_inside_the_writer_is_told(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir(mode=0o500)
    if os.access(tmp_path / "engine", os.W_OK):
        shutil.rmtree(tmp_path / "engine")
        (tmp_path / "file").write_text("not a folder", encoding="utf-8")
        with pytest.raises((IndexBuildError, OSError)):
            write_engine(tmp_path / "file" / "engine", EngineConfig(8), batches_of(EARTH[:5], vectors(5)))
        return
    with pytest.raises(IndexBuildError, match="status"):
        write_engine(tmp_path / "engine", EngineConfig(8), batches_of(EARTH[:5], vectors(5)))


PARENT = """
import sys, time
from pathlib import Path
from georag_assets.index.engine_writer import EngineConfig, write_engine
from georag_assets_tests.index.test_engine_writer import EARTH, batches_of, vectors

def slow():
    for batch in batches_of(EARTH, vectors(3000)):
        yield batch
        time.sleep(1 if len(sys.argv) < 3 else 0)
    time.sleep(60)

write_engine(Path(sys.argv[1]), EngineConfig(8), slow())
"""


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "engine")], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    child = child_of(psutil.Process(parent.pid))
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    child.wait(timeout=5)
    assert not child.is_running()


def test_a_stream_without_its_end_is_not_finished(tmp_path: Path) -> None:
    # The same bytes that the parent sends, cut before the end mark: what a dying parent leaves in the pipe.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, points_schema(8)) as stream:
        for batch in batches_of(EARTH[:5], vectors(5)):
            stream.write_batch(batch)
    stream_bytes = sink.getvalue().to_pybytes()
    for cut, complaint in ((len(stream_bytes), b"without its end mark"), (len(stream_bytes) - 400, b"")):
        folder = tmp_path / str(cut)
        folder.mkdir()
        order = {"folder": str(folder), "config": asdict(EngineConfig(8)), "change": None}
        ran = subprocess.run(
            [sys.executable, "-m", "georag_assets.index.engine_writer", str(os.getpid())],
            input=json.dumps(order).encode() + b"\n" + stream_bytes[:cut],
            capture_output=True,
            cwd=Path(__file__).parents[2],
        )
        assert ran.returncode != 0
        assert ran.stdout == b""
        assert complaint in ran.stderr


def test_columns_that_were_cut_short_do_not_open(tmp_path: Path) -> None:
    write_small(tmp_path, EARTH[:20]).columns.close()
    path = tmp_path / "columns" / "west.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(IndexBuildError, match="columns"):
        Columns.open(tmp_path / "columns")


def test_a_folder_without_an_engine_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(IndexBuildError, match="no engine"):
        EmbeddedStore.open(tmp_path)
