"""Labelled queries: a question, where it is about, and the documents that answer it.

What belongs here: reading a file of them. What does not: asking them (`evaluation`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from georag_assets.errors import SourceError


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """One line of a query file.

    Attributes
    ----------
    relevant
        Ids of the documents that answer it.
    ignored
        Ids that count neither way.
    bbox
        The true region, west, south, east, north; None where the file gives none.
    label
        Its class: the file's `class`, else the size of its box.
    """

    text: str
    relevant: frozenset[str]
    ignored: frozenset[str] = frozenset()
    bbox: tuple[float, float, float, float] | None = None
    label: str = "all"

    @property
    def half(self) -> str:
        """`tuning` or `held_out`, by hash: constants may be chosen by looking at one half only."""
        return "held_out" if int(hashlib.sha256(self.text.encode()).hexdigest(), 16) % 2 else "tuning"


def read_queries(path: Path) -> list[LabelledQuery]:
    """Read JSON Lines (gzip by suffix): `query`, `relevant`, and where known `bbox`, `class`, `tagged_...` (ignored).

    Raises
    ------
    SourceError
        The file or a line cannot be read as that; the error names the line.
    """
    queries = [_query(record, f"{path}:{number}") for number, record in _records(path)]
    if not queries:
        raise SourceError("the file holds no labelled query", where=str(path))
    return queries


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except ValueError as error:
                        raise SourceError(
                            "a line of the query file is not JSON", where=f"{path}:{number}", found=str(error)
                        ) from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SourceError("the query file cannot be read", where=str(path), found=reason) from error


def _query(record: Any, where: str) -> LabelledQuery:
    if not isinstance(record, dict):
        raise SourceError("a line of the query file is no object", where=where, found=type(record).__name__)
    text, relevant = record.get("query"), record.get("relevant")
    if not isinstance(text, str) or not text.strip():
        raise SourceError("a labelled query has no words", where=where, expected="query: text")
    if not isinstance(relevant, list) or not relevant:
        raise SourceError("a labelled query has no answer", where=where, expected="relevant: list of document ids")
    bbox = record.get("bbox")
    if bbox is not None:
        numbers = isinstance(bbox, list) and len(bbox) == 4 and all(isinstance(x, int | float) for x in bbox)
        if not numbers or not all(math.isfinite(x) for x in bbox):
            raise SourceError("a labelled query's box is not four numbers", where=where, expected="[w, s, e, n]")
        bbox = tuple(float(x) for x in bbox)
    ignored = record.get("tagged_but_wider_or_elsewhere") or record.get("ignored") or []
    return LabelledQuery(
        text, frozenset(map(str, relevant)), frozenset(map(str, ignored)), bbox, str(record.get("class") or _size(bbox))
    )


def _size(bbox: tuple[float, float, float, float] | None) -> str:
    if bbox is None:
        return "no box"
    west, south, east, north = bbox
    side = max((east - west) % 360, north - south)
    return "box under 1 degree" if side < 1 else "box of 1 to 10 degrees" if side < 10 else "box over 10 degrees"
