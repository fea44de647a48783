"""Citations: a chunk id, however old, back to the passage it named.

What belongs here: which version an id is read from and whether that passage still answers. What does not: how ids are
made (`corpus.chunking`) and how evidence is ranked (`retriever`).

Ids come from content, so an id never names another text; an id whose passage has left the live index is read from the
newest build's tag that still has it, and marked superseded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from georag_assets.corpus.models import CHUNKS
from georag_assets.errors import QueryError
from georag_assets.home import Home
from georag_assets.index.live import live_state

_BUILD_TAG = re.compile(r"build-(?P<version>v(?P<number>\d+)-[0-9a-f]{8})-[0-9a-f]{8}-(?P<attempt>\d+)")
_COLUMNS = ("chunk_id", "doc_id", "start", "end", "text", "feature_ids")


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage named by its chunk id.

    `superseded` is True where the live index does not hold the passage any more; then `corpus_version` is the newest
    indexed version that did. `start` and `end` are code-point offsets in that version's document.
    """

    chunk_id: str
    corpus: str
    corpus_version: str
    superseded: bool
    doc_id: str
    start: int
    end: int
    text: str
    feature_ids: tuple[str, ...]


def resolve_citation(home: Home, corpus: str, chunk_id: str) -> Citation:
    """Return the passage that `chunk_id` named, from the live build's chunks or the newest tag that has it.

    Raises
    ------
    QueryError
        No indexed version of the corpus ever held the id.
    """
    state = live_state(home, corpus)
    live = None if state is None else f"build-{state.build}"
    for tag, version, snapshot in _snapshots(home, corpus, first=live):
        found = home.tables.read(
            corpus, CHUNKS, columns=_COLUMNS, where=("chunk_id", [chunk_id]), snapshot_id=snapshot
        ).to_pylist()
        if found:
            row = found[0]
            return Citation(
                chunk_id=chunk_id,
                corpus=corpus,
                corpus_version=version,
                superseded=tag != live,
                doc_id=row["doc_id"],
                start=row["start"],
                end=row["end"],
                text=row["text"],
                feature_ids=tuple(row["feature_ids"] or ()),
            )
    raise QueryError(
        "no indexed version has a chunk of this id",
        where=f"corpus {corpus}",
        expected="a chunk_id as evidence prints it",
        do="name its corpus with --corpus",
    )


def _snapshots(home: Home, corpus: str, *, first: str | None) -> Iterator[tuple[str, str, int]]:
    """Yield (tag, corpus version, snapshot of chunks): the live build's, then the others from the newest version."""
    tags = [
        (match, tag, snapshot)
        for tag, snapshot in home.tables.tags(corpus, CHUNKS).items()
        if (match := _BUILD_TAG.fullmatch(tag))
    ]
    tags.sort(key=lambda each: (each[1] == first, int(each[0]["number"]), int(each[0]["attempt"])), reverse=True)
    seen: set[int] = set()
    for match, tag, snapshot in tags:
        if snapshot not in seen:
            seen.add(snapshot)
            yield tag, match["version"], snapshot
