"""Iceberg tables through pyiceberg: the one place that commits.

What belongs here: catalog, creating tables, the replace-rows transaction with retry, tags, snapshot reads, streaming.
What does not: schemas and meanings of columns (each room declares its own).
"""

from __future__ import annotations

import errno
import itertools
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from georag_assets.errors import DiskSpaceError, GeoragError, TableError
from georag_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

T = TypeVar("T")

# A data file holds at most this much, so that writing, rewriting and streaming are bounded by one file.
FILE_ROWS = 50_000
FILE_BYTES = 128 * 2**20
# pyiceberg offers no compaction: this many files below SMALL_ROWS are merged when a commit rewrites anyway.
SMALL_ROWS = 5_000
SMALL_FILES = 32
# Up to this many values pyiceberg prunes files and row groups by the values themselves.
PRUNED_VALUES = 200
# Enough for every shard of a corpus to commit at the same moment.
ATTEMPTS = 30
LOCK_TIMEOUT_S = 60
# A conflict is met here, where what is to be removed is found anew: the library's own retry appends a row that another
# writer has just put in its place.
_OWN_RETRY = {"commit.retry.num-retries": "0"}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's name inside a corpus's namespace, its Arrow schema, and the columns it is partitioned by (identity)."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()


class Tables:
    """All tables of one installation; `namespace` is the corpus's (or catalog's, graph's) name.

    Parameters
    ----------
    uri
        SQLAlchemy URI of the catalog's database.
    warehouse
        Folder or object-store prefix of the data files.
    catalog_file
        The SQLite file behind `uri`, if it is one: reading before the first write creates nothing.
    """

    def __init__(self, uri: str, warehouse: str, catalog_file: Path | None = None) -> None:
        self._uri = uri
        self._warehouse = warehouse
        self._catalog_file = catalog_file

    @classmethod
    def of(cls, settings: Settings) -> Tables:
        """Return the tables that the settings describe; opens the catalog lazily."""
        root = settings.home.expanduser().absolute()
        warehouse = settings.warehouse or (root / "warehouse").as_uri()
        if settings.catalog_uri:
            return cls(settings.catalog_uri, warehouse)
        file = root / "catalog.db"
        return cls(f"sqlite:///{file}?timeout={LOCK_TIMEOUT_S}", warehouse, file)

    def replace_rows(
        self,
        namespace: str,
        spec: TableSpec,
        *,
        key: str,
        removed: Sequence[str] | Callable[[], Sequence[str]],
        added: Iterable[pa.RecordBatch] | pa.Table,
    ) -> int:
        """Delete the rows whose `key` is in `removed` and append `added`, in one transaction; retried on conflict.

        Returns the new (or unchanged) snapshot id; 0 while the table has no snapshot. Nothing to do commits nothing.
        The added rows are written once, in files of bounded size, and only the commit is repeated on a conflict.
        `removed` may be a function, asked once after `added` has been written: it may know only then, and may refuse
        by raising; what was written is deleted again.
        """
        where = f"{namespace}.{spec.name}"
        table = self._load(namespace, spec)
        files: list[DataFile] = []
        try:
            for rows in _bounded(added, spec.schema):
                if not files:
                    table = _retried(lambda: self._create(namespace, spec), where)
                files += _write(_there(table), rows)
            gone = removed() if callable(removed) else removed
        except BaseException as error:
            with suppress(OSError):
                for file in files:
                    _there(table).io.delete(file.file_path)
            if isinstance(error, OSError):
                raise _unwritable(error, where) from error
            raise
        if table is None or not (files or gone):
            return self.snapshot_id(namespace, spec) or 0
        # From here on nothing is deleted: whoever is interrupted while committing cannot know whether it happened.
        try:
            return _retried(lambda: _replace(_there(table), key, gone, files), where)
        except OSError as error:
            raise _unwritable(error, where) from error

    def read(
        self,
        namespace: str,
        spec: TableSpec,
        *,
        columns: Sequence[str] | None = None,
        where: tuple[str, Sequence[str]] | None = None,
        snapshot_id: int | None = None,
    ) -> pa.Table:
        """Read rows, cast to `spec.schema`; `where` = (column, values) is an IN filter. A missing table reads empty."""
        schema = _projected(spec, columns)
        return pa.Table.from_batches(self._scan(namespace, spec, schema, where, snapshot_id), schema)

    def batches(
        self,
        namespace: str,
        spec: TableSpec,
        *,
        columns: Sequence[str] | None = None,
        where: tuple[str, Sequence[str]] | None = None,
        snapshot_id: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows without holding the table: at most one data file (50,000 rows, 128 MiB) at a time."""
        yield from self._scan(namespace, spec, _projected(spec, columns), where, snapshot_id)

    def snapshot_id(self, namespace: str, spec: TableSpec) -> int | None:
        """Return the current snapshot's id, or None."""
        table = self._load(namespace, spec)
        return None if table is None else _current(table)

    def tag(self, namespace: str, spec: TableSpec, name: str, snapshot_id: int | None = None) -> None:
        """Tag a snapshot (the current one by default).

        A tag that is there on the same snapshot is left; a tag never moves: on another snapshot it is an error.
        """
        where = f"{namespace}.{spec.name}"
        table = self._load(namespace, spec)
        wanted = snapshot_id or (_current(table) if table is not None else None)
        if table is None or wanted is None:
            raise TableError("nothing to tag: the table has no snapshot", where=where)

        def commit() -> None:
            table.refresh()
            there = _tags(table).get(name)
            if there == wanted:
                return
            if there is not None:
                raise TableError(
                    f"tag {name} is taken and tags never move", where=where, expected=str(wanted), found=str(there)
                )
            table.manage_snapshots().create_tag(wanted, name).commit()

        _retried(commit, where)

    def tags(self, namespace: str, spec: TableSpec) -> dict[str, int]:
        """Return tag name -> snapshot id."""
        table = self._load(namespace, spec)
        return {} if table is None else _tags(table)

    def namespaces(self) -> tuple[str, ...]:
        """Return the names of all corpora, catalogs and graphs that have a table."""
        if not self._exists():
            return ()
        return tuple(sorted(".".join(name) for name in self._catalog.list_namespaces()))

    def _exists(self) -> bool:
        return self._catalog_file is None or self._catalog_file.exists()

    @cached_property
    def _catalog(self) -> Catalog:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy.exc import SQLAlchemyError

        if self._catalog_file is not None:
            try:
                self._catalog_file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(error, str(self._catalog_file.parent)) from error
        for attempt in itertools.count(1):
            try:
                return SqlCatalog("georag", uri=self._uri, warehouse=self._warehouse)
            except SQLAlchemyError as error:  # two processes may create the catalog's own tables at once
                if attempt == ATTEMPTS:
                    raise TableError(
                        "the Iceberg catalog cannot be opened",
                        where=str(self._catalog_file or "GEORAG_CATALOG_URI"),
                        found=str(error.__cause__ or error).splitlines()[0],
                        do="check that the home folder is readable and the database answers",
                    ) from error
                time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 -- jitter
        raise AssertionError("unreachable")

    def _load(self, namespace: str, spec: TableSpec) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if not self._exists():
            return None
        try:
            return self._catalog.load_table((namespace, spec.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, namespace: str, spec: TableSpec) -> Table:
        """Return the table, made or given the columns that the code has gained; raises a conflict to be retried."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        table = self._load(namespace, spec)
        if table is None:
            if not _NAME.fullmatch(namespace):
                raise TableError("a namespace is letters, digits, _ and -", found=repr(namespace))
            try:
                self._catalog.create_namespace_if_not_exists(namespace)
                with (
                    self._catalog.create_table_transaction(
                        (namespace, spec.name), schema=spec.schema, properties=_OWN_RETRY
                    ) as creating,
                    creating.update_spec() as update,
                ):
                    for column in spec.partition_by:
                        update.add_identity(column)
            except TableAlreadyExistsError:
                pass
            table = self._catalog.load_table((namespace, spec.name))
        if not _OWN_RETRY.items() <= table.properties.items():
            with table.transaction() as change:
                change.set_properties(_OWN_RETRY)
        if missing := set(spec.schema.names) - {field.name for field in table.schema().fields}:
            # A column that the code has gained: older rows read null.
            with table.update_schema() as evolution:
                evolution.union_by_name(pa.schema([field for field in spec.schema if field.name in missing]))
        return table

    def _scan(
        self,
        namespace: str,
        spec: TableSpec,
        schema: pa.Schema,
        where: tuple[str, Sequence[str]] | None,
        snapshot_id: int | None,
    ) -> Iterator[pa.RecordBatch]:
        table = self._load(namespace, spec)
        if table is None or (where is not None and not where[1]):
            return
        if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is None:
            raise TableError(
                "the snapshot is not in the table", where=f"{namespace}.{spec.name}", found=str(snapshot_id)
            )
        names = list(dict.fromkeys([*schema.names, *([where[0]] if where else [])]))
        stored = table.schema() if snapshot_id is None else table.scan(snapshot_id=snapshot_id).projection()
        names = [name for name in names if name in stored.column_names]
        values = None if where is None else _values(where[1])
        try:
            for task in _plan(table, where, snapshot_id):
                for batch in _task_batches(table, task, names, snapshot_id):
                    if where is not None:
                        batch = batch.filter(_matches(batch.column(where[0]), values))
                    if batch.num_rows:
                        yield _conform(batch, schema)
        except (OSError, pa.ArrowInvalid) as error:
            raise TableError(
                "a file of the table cannot be read",
                where=f"{namespace}.{spec.name}",
                found=str(error).splitlines()[0],
                do="restore the warehouse folder; Iceberg files are never changed in place",
            ) from error


def _projected(spec: TableSpec, columns: Sequence[str] | None) -> pa.Schema:
    return spec.schema if columns is None else pa.schema([spec.schema.field(name) for name in columns])


def _values(values: Iterable[str]) -> pa.Array:
    return pa.array(sorted(set(values)), pa.large_string())


def _matches(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> pa.Array:
    return pc.is_in(column.cast(pa.large_string()), value_set=values)


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the schema's columns and types; a column that is not stored reads null."""
    stored = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in stored else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _bounded(added: Iterable[pa.RecordBatch] | pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """Group rows into tables of at most FILE_ROWS rows and about FILE_BYTES bytes, in the table's own types."""
    source = added.to_batches(max_chunksize=FILE_ROWS) if isinstance(added, pa.Table) else added
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in source:
        for start in range(0, batch.num_rows, FILE_ROWS):
            part = _conform(batch.slice(start, FILE_ROWS), schema)
            if held and (rows + part.num_rows > FILE_ROWS or size + part.get_total_buffer_size() > FILE_BYTES):
                yield pa.Table.from_batches(held, schema)
                held, rows, size = [], 0, 0
            held.append(part)
            rows += part.num_rows
            size += part.nbytes
    if held:
        yield pa.Table.from_batches(held, schema)


def _write(table: Table, rows: pa.Table) -> list[DataFile]:
    # Private in pyiceberg (bounded below 0.13), and the only writer that knows partitions and column statistics;
    # `Table.append` would commit a snapshot for each file and could not be repeated from an iterator.
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io, write_uuid=uuid.uuid4()))


def _plan(table: Table, where: tuple[str, Sequence[str]] | None, snapshot_id: int | None) -> list[FileScanTask]:
    """Return the data files that may hold a wanted row; a row filter with thousands of values is slow in pyiceberg."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, LessThanOrEqual

    keep: BooleanExpression = AlwaysTrue()
    if where is not None:
        column, values = where
        # pydantic's mypy plugin sees the fields of these classes, not their own constructors.
        if len(values) <= PRUNED_VALUES:
            keep = In(column, list(values))  # type: ignore[call-arg]
        else:
            keep = And(GreaterThanOrEqual(column, min(values)), LessThanOrEqual(column, max(values)))  # type: ignore[call-arg]
    return list(table.scan(row_filter=keep, snapshot_id=snapshot_id).plan_files())


def _task_batches(
    table: Table, task: FileScanTask, names: Sequence[str], snapshot_id: int | None = None
) -> Iterator[pa.RecordBatch]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    stored = table.schema() if snapshot_id is None else table.scan(snapshot_id=snapshot_id).projection()
    scan = ArrowScan(table.metadata, table.io, stored.select(*names), AlwaysTrue())
    # One task at a time: given several, pyiceberg reads all of them ahead.
    yield from scan.to_record_batches([task])


def _there(table: Table | None) -> Table:
    assert table is not None
    return table


def _replace(table: Table, key: str, removed: Sequence[str], files: Sequence[DataFile]) -> int:
    """Commit one snapshot without the removed rows and with the files that were written, on the newest state."""
    table.refresh()
    dropped, kept = _rewritten(table, key, removed)
    if files or dropped:
        transaction = table.transaction()
        snapshot = transaction.update_snapshot()
        with snapshot.overwrite() if dropped else snapshot.fast_append() as producer:
            for file in dropped:
                producer.delete_data_file(file)
            for file in itertools.chain(kept, files):
                producer.append_data_file(file)
        transaction.commit_transaction()
    return _current(table) or 0


def _rewritten(table: Table, key: str, removed: Sequence[str]) -> tuple[list[DataFile], list[DataFile]]:
    """Return the data files that hold removed rows, and new ones with the rows of theirs that stay."""
    if not removed:
        return [], []
    values = _values(removed)
    names = [field.name for field in table.schema().fields]
    touched = [
        task
        for task in _plan(table, (key, removed), None)
        if any(pc.any(_matches(batch.column(key), values)).as_py() for batch in _task_batches(table, task, [key]))
    ]
    if not touched:
        return [], []
    known = {task.file.file_path for task in touched}
    small = [task for task in _plan(table, None, None) if task.file.record_count < SMALL_ROWS]
    if len(small) >= SMALL_FILES:
        touched.extend(task for task in small if task.file.file_path not in known)

    def staying() -> Iterator[pa.RecordBatch]:
        for task in touched:
            for batch in _task_batches(table, task, names):
                yield batch.filter(pc.invert(_matches(batch.column(key), values)))

    schema = table.schema().as_arrow()
    kept = [file for rows in _bounded((b for b in staying() if b.num_rows), schema) for file in _write(table, rows)]
    return [task.file for task in touched], kept


def _unwritable(error: OSError, where: str) -> GeoragError:
    found = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskSpaceError("the disk is full", where=where, found=found, do="free space, then run again")
    return TableError(
        "the table cannot be written", where=where, found=found, do="check GEORAG_HOME and its permissions"
    )


def _current(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _tags(table: Table) -> dict[str, int]:
    return {
        name: ref.snapshot_id for name, ref in table.metadata.refs.items() if str(ref.snapshot_ref_type.value) == "tag"
    }


def _retried(commit: Callable[[], T], where: str) -> T:
    """Run a commit that reloads its table, again after a conflict; the pause grows and is jittered."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from sqlalchemy.exc import IntegrityError, OperationalError

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return commit()
        except (CommitFailedException, ValidationException, OperationalError, IntegrityError) as error:
            if isinstance(error, OperationalError) and "locked" not in str(error):
                raise TableError(
                    "the Iceberg catalog refuses to be written", where=where, found=str(error.orig)
                ) from error
            if attempt == ATTEMPTS:
                raise TableError(
                    f"the table was changed by others in each of {ATTEMPTS} attempts to commit",
                    where=where,
                    found=str(error).splitlines()[0],
                    do="run again when the other writers are done",
                ) from error
            time.sleep(random.uniform(0.02, 0.1) * min(attempt, 10))  # noqa: S311 -- jitter
    raise AssertionError("unreachable")
