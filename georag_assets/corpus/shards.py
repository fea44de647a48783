"""Shards: which documents of a corpus a run is for, where several runs chunk, frame and embed it at once.

What belongs here: the share that a document falls in and how shares are named. What does not: their locks (`writer`),
their partitions in Dagster (`components`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

import pyarrow as pa

from georag_assets.errors import QueryError

Value = TypeVar("Value")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `of` shares of a corpus, by the hash of a document's id; `number` counts from 1.

    The hash is SHA-256's first 64 bits, so that a share is the same on every machine and in every process.
    """

    number: int
    of: int

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the shard of a name such as `2-of-4`.

        Raises
        ------
        QueryError
            It names none.
        """
        number, _, of = name.partition("-of-")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise QueryError("no such shard", expected="a name such as 2-of-4", found=name)
        return cls(int(number), int(of))

    @property
    def name(self) -> str:
        """The partition key, and the name in tables and lock files."""
        return f"{self.number}-of-{self.of}"

    @property
    def label(self) -> str:
        """The name where this is a share, empty for the whole: how reports tell the two."""
        return "" if self.whole else self.name

    @property
    def whole(self) -> bool:
        """Whether this is the whole corpus."""
        return self.of == 1

    def holds(self, doc_id: str) -> bool:
        """Return whether a document falls in this shard."""
        if self.whole:
            return True
        digest = hashlib.sha256(doc_id.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1

    def of_keys(self, by_document: Mapping[str, Value]) -> dict[str, Value]:
        """Return the entries of this shard's documents."""
        return {doc_id: value for doc_id, value in by_document.items() if self.holds(doc_id)}

    def of_rows(self, rows: Rows) -> Rows:
        """Return the rows whose `doc_id` falls in this shard."""
        if self.whole:
            return rows
        return rows.filter(pa.array([self.holds(doc_id) for doc_id in rows["doc_id"].to_pylist()], pa.bool_()))


WHOLE = Shard(1, 1)


def shards_of(count: int) -> tuple[Shard, ...]:
    """Return the shards of a corpus that is cut into `count`."""
    return tuple(Shard(number, count) for number in range(1, count + 1))
