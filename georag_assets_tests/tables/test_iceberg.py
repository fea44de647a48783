"""The one place that commits: rows replaced in one snapshot, read back at any of them, by several processes at once."""

from __future__ import annotations

import errno
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georag_assets.errors import DiskSpaceError, TableError
from georag_assets.settings import Settings
from georag_assets.tables import iceberg
from georag_assets.tables.iceberg import Tables, TableSpec
from georag_assets_tests.privileges import unprivileged

ROWS = TableSpec("rows", pa.schema([("id", pa.string()), ("value", pa.int64()), ("words", pa.list_(pa.string()))]))


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables.of(Settings(home=tmp_path / "home"))


def batch(ids: list[str], value: int = 0) -> pa.RecordBatch:
    rows = [{"id": name, "value": value, "words": [name, "é"]} for name in ids]
    return pa.RecordBatch.from_pylist(rows, schema=ROWS.schema)


def content(tables: Tables, snapshot_id: int | None = None) -> dict[str, int]:
    read = tables.read("corpus", ROWS, snapshot_id=snapshot_id)
    assert read.schema == ROWS.schema
    assert len(set(read["id"].to_pylist())) == read.num_rows
    return dict(zip(read["id"].to_pylist(), read["value"].to_pylist(), strict=True))


def put(tables: Tables, ids: list[str], value: int = 0, removed: list[str] | None = None) -> int:
    added = [batch(ids, value)] if ids else []
    return tables.replace_rows("corpus", ROWS, key="id", removed=removed or [], added=added)


def test_reading_before_the_first_write_is_empty_and_creates_nothing(tmp_path: Path) -> None:
    tables = Tables.of(Settings(home=tmp_path / "home"))
    assert tables.read("corpus", ROWS).num_rows == 0
    assert list(tables.batches("corpus", ROWS)) == []
    assert tables.snapshot_id("corpus", ROWS) is None
    assert tables.tags("corpus", ROWS) == {}
    assert tables.namespaces() == ()
    assert not (tmp_path / "home").exists()


def test_replacing_rows_is_one_snapshot_and_earlier_ones_read_back(tables: Tables) -> None:
    first = put(tables, ["a", "b", "c"], 1)
    second = put(tables, ["b", "d"], 2, removed=["b", "c", "not there"])
    assert content(tables) == {"a": 1, "b": 2, "d": 2}
    assert content(tables, first) == {"a": 1, "b": 1, "c": 1}
    assert tables.snapshot_id("corpus", ROWS) == second
    assert tables.namespaces() == ("corpus",)


def test_nothing_to_do_commits_nothing(tables: Tables) -> None:
    assert put(tables, [], removed=["a"]) == 0
    first = put(tables, ["a"])
    assert put(tables, []) == first
    assert put(tables, [], removed=["not there"]) == first


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef"))), max_size=5))
def test_any_history_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[set[str], set[str]]]
) -> None:
    tables = Tables.of(Settings(home=tmp_path_factory.mktemp("home")))
    expected: dict[str, int] = {}
    for number, (added, removed) in enumerate(steps):
        put(tables, sorted(added), number, removed=sorted(added | removed))
        expected = {name: value for name, value in expected.items() if name not in removed}
        expected |= dict.fromkeys(added, number)
        assert content(tables) == expected


def test_thousands_of_ids_are_replaced_at_once(tables: Tables) -> None:
    put(tables, [f"k{number}" for number in range(20_000)], 1)
    changed = [f"k{number}" for number in range(0, 20_000, 4)]
    put(tables, changed, 2, removed=changed)
    assert sorted(content(tables).values()) == [1] * 15_000 + [2] * 5_000
    found = tables.read("corpus", ROWS, columns=["value"], where=("id", changed))
    assert found.num_rows == 5_000
    assert found.column_names == ["value"]


def test_what_is_removed_is_found_anew_after_a_conflict(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tables, ["a"])
    rewritten = iceberg._rewritten

    def overtaken(*given: Any) -> Any:
        """Find what to rewrite, and be overtaken by a writer of the same key before the commit."""
        found = rewritten(*given)
        monkeypatch.setattr(iceberg, "_rewritten", rewritten)
        put(tables, ["key"], 1, removed=["key"])
        return found

    monkeypatch.setattr(iceberg, "_rewritten", overtaken)
    put(tables, ["key"], 2, removed=["key"])
    assert content(tables) == {"a": 0, "key": 2}


def test_a_long_stream_is_written_in_bounded_files(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "FILE_ROWS", 100)

    def stream() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_000, 30):
            yield batch([f"k{number}" for number in range(start, min(start + 30, 1_000))])

    tables.replace_rows("corpus", ROWS, key="id", removed=[], added=stream())
    sizes = [read.num_rows for read in tables.batches("corpus", ROWS)]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 100


def test_small_files_are_merged_on_the_way(tables: Tables) -> None:
    for number in range(iceberg.SMALL_FILES + 2):
        put(tables, [f"k{number}"])
    before = len(list(tables.batches("corpus", ROWS)))
    put(tables, [], removed=["k0"])
    assert len(list(tables.batches("corpus", ROWS))) == 1 < before
    assert len(content(tables)) == iceberg.SMALL_FILES + 1


def test_a_refusal_after_writing_leaves_no_snapshot_and_no_file(tables: Tables, tmp_path: Path) -> None:
    first = put(tables, ["a"])
    files = set(tmp_path.rglob("*.parquet"))

    def refuse() -> list[str]:
        raise TableError("too much")

    with pytest.raises(TableError, match="too much"):
        tables.replace_rows("corpus", ROWS, key="id", removed=refuse, added=[batch(["b"])])
    assert tables.snapshot_id("corpus", ROWS) == first
    assert set(tmp_path.rglob("*.parquet")) == files


def test_a_tag_stays_where_it_was_put(tables: Tables) -> None:
    with pytest.raises(TableError, match="no snapshot"):
        tables.tag("corpus", ROWS, "v1")
    first = put(tables, ["a"])
    tables.tag("corpus", ROWS, "v1")
    tables.tag("corpus", ROWS, "v1", first)
    second = put(tables, ["b"])
    with pytest.raises(TableError, match="tags never move"):
        tables.tag("corpus", ROWS, "v1")
    tables.tag("corpus", ROWS, "v2")
    assert tables.tags("corpus", ROWS) == {"v1": first, "v2": second}


def test_an_unknown_snapshot_is_an_error(tables: Tables) -> None:
    put(tables, ["a"])
    with pytest.raises(TableError, match="not in the table"):
        tables.read("corpus", ROWS, snapshot_id=7)


def test_a_column_that_the_code_gained_reads_null_in_older_rows(tables: Tables) -> None:
    first = put(tables, ["a"])
    wider = TableSpec("rows", ROWS.schema.append(pa.field("note", pa.string())))
    assert tables.read("corpus", wider)["note"].to_pylist() == [None]
    added = pa.Table.from_pylist([{"id": "b", "note": "new"}], schema=wider.schema)
    tables.replace_rows("corpus", wider, key="id", removed=[], added=added)
    read = tables.read("corpus", wider)
    assert dict(zip(read["id"].to_pylist(), read["note"].to_pylist(), strict=True)) == {"a": None, "b": "new"}
    assert tables.read("corpus", wider, snapshot_id=first)["note"].to_pylist() == [None]


def test_large_strings_are_taken_and_the_declared_types_come_back(tables: Tables) -> None:
    added = pa.table({"id": pa.array(["a"], pa.large_string()), "value": pa.array([1], pa.int32()), "words": [["x"]]})
    tables.replace_rows("corpus", ROWS, key="id", removed=[], added=added)
    assert content(tables) == {"a": 1}


def test_a_partitioned_table(tables: Tables) -> None:
    spec = TableSpec("parts", ROWS.schema, partition_by=("value",))
    added = pa.Table.from_batches([batch(["a", "b"], 1), batch(["c"], 2)])
    tables.replace_rows("corpus", spec, key="id", removed=[], added=added)
    tables.replace_rows("corpus", spec, key="id", removed=["a"], added=[batch(["d"], 2)])
    assert sorted(tables.read("corpus", spec)["id"].to_pylist()) == ["b", "c", "d"]
    assert len(list(tables.batches("corpus", spec))) == 3


def test_a_full_disk_and_a_lost_file_are_clear_errors_and_change_nothing(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(tables, ["a"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DiskSpaceError, match="the disk is full"):
        patch.setattr(iceberg, "_write", full)
        put(tables, ["b"])
    assert tables.snapshot_id("corpus", ROWS) == first
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TableError, match="a file of the table cannot be read"):
        tables.read("corpus", ROWS)


def test_a_read_only_home_is_read_and_refuses_to_be_written(reachable: Path) -> None:
    tables = Tables.of(Settings(home=reachable / "home"))
    put(tables, ["a"])
    for path in (reachable / "home").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with unprivileged():
        again = Tables.of(Settings(home=reachable / "home"))
        assert content(again) == {"a": 0}
        with pytest.raises(TableError, match=r"cannot be written|refuses to be written"):
            put(again, ["b"])
        with pytest.raises(TableError, match="cannot be written"):
            put(Tables.of(Settings(home=reachable / "other")), ["b"])


def _commits(home: Path, worker: str) -> None:
    tables = Tables.of(Settings(home=home))
    for number in range(8):
        put(tables, [f"{worker}{number}", f"{worker}-kept-{number}"], number, removed=[f"{worker}{number - 1}"])


def test_processes_that_commit_to_one_table_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_commits, args=(tmp_path / "home", name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    expected = {f"{name}-kept-{number}" for name in "ab" for number in range(8)} | {"a7", "b7"}
    assert content(Tables.of(Settings(home=tmp_path / "home"))).keys() == expected


def test_a_catalog_that_cannot_be_opened_says_where(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database, but long enough to be refused as one" * 50)
    with pytest.raises(TableError, match=r"catalog cannot be opened.*catalog\.db"):
        Tables.of(Settings(home=tmp_path)).read("corpus", ROWS)
