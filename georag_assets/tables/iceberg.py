"""Iceberg tables through pyiceberg: the one place that commits.

What belongs here: catalog, creating tables, the replace-rows transaction with retry, tags, snapshot reads, streaming.
What does not: schemas and meanings of columns (each room declares its own).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from georag_assets.settings import Settings


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's name inside a corpus's namespace, its Arrow schema, and the columns it is partitioned by (identity)."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()


class Tables:
    """All tables of one installation; `namespace` is the corpus's (or catalog's, graph's) name."""

    @classmethod
    def of(cls, settings: Settings) -> Tables:
        """Return the tables that the settings describe; opens the catalog lazily."""
        raise NotImplementedError

    def replace_rows(
        self,
        namespace: str,
        spec: TableSpec,
        *,
        key: str,
        removed: Sequence[str],
        added: Iterable[pa.RecordBatch] | pa.Table,
    ) -> int:
        """Delete the rows whose `key` is in `removed` and append `added`, in one transaction; retried on conflict.

        Returns the new (or unchanged) snapshot id; 0 while the table has no snapshot. Nothing to do commits nothing.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def batches(
        self,
        namespace: str,
        spec: TableSpec,
        *,
        columns: Sequence[str] | None = None,
        snapshot_id: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows without holding the table."""
        raise NotImplementedError

    def snapshot_id(self, namespace: str, spec: TableSpec) -> int | None:
        """Return the current snapshot's id, or None."""
        raise NotImplementedError

    def tag(self, namespace: str, spec: TableSpec, name: str, snapshot_id: int | None = None) -> None:
        """Tag a snapshot (current by default); a tag that exists on the same snapshot is left, else moved never: error."""
        raise NotImplementedError

    def tags(self, namespace: str, spec: TableSpec) -> dict[str, int]:
        """Return tag name -> snapshot id."""
        raise NotImplementedError
