"""Corpus versions: a name for a content, a tag on the snapshot that holds it, and which one is newest.

What belongs here: publishing, and reading documents of a version. What does not: derived tables of a version.

The `versions` table is a log: a row each time another version becomes the newest. The same content always has the same
name, so that a corpus put back as it was points back to its earlier version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.documents import content_digest, content_of, row_document
from georag_assets.corpus.models import DOCUMENTS, Document
from georag_assets.errors import TableError
from georag_assets.home import Home
from georag_assets.reports import StageReport
from georag_assets.tables.iceberg import TableSpec

STAGE = "corpus_version"
VERSION_ALGORITHM = "version-1"

VERSIONS = TableSpec(
    "versions",
    pa.schema(
        [
            ("sequence", pa.int64()),
            ("version", pa.string()),
            ("number", pa.int64()),
            ("digest", pa.string()),
            ("snapshot_id", pa.int64()),
            ("documents", pa.int64()),
            ("published_at", pa.float64()),
        ]
    ),
)


def publish_version(home: Home, declaration: CorpusDeclaration) -> StageReport:
    """Name the present content of the `documents` table and make it the newest version.

    Raises
    ------
    TableError
        The corpus has no documents yet.
    """
    corpus = declaration.name
    started = time.perf_counter()
    snapshot = home.tables.snapshot_id(corpus, DOCUMENTS)
    if snapshot is None:
        raise TableError("there are no documents to publish", where=f"corpus {corpus}", do="sync its documents first")
    content = content_of(home, corpus, snapshot)
    digest = content_digest(content)
    log = _log(home, corpus)
    known = next((row for row in log if row["digest"] == digest), None)
    newest = log[-1] if log else None
    if known is not None:
        version, number, tagged = known["version"], known["number"], known["snapshot_id"]
    else:
        number = max((row["number"] for row in log), default=0) + 1
        version, tagged = f"v{number}-{digest[:8]}", _tag(home, corpus, f"v{number}-{digest[:8]}", snapshot)
    moved = newest is None or newest["digest"] != digest
    if moved:
        row = {
            "sequence": len(log) + 1,
            "version": version,
            "number": number,
            "digest": digest,
            "snapshot_id": tagged,
            "documents": len(content),
            "published_at": datetime.now(UTC).timestamp(),
        }
        added = pa.Table.from_pylist([row], schema=VERSIONS.schema)
        home.tables.replace_rows(corpus, VERSIONS, key="version", removed=[], added=added)
    _point(home, corpus, version)
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=version,
        counts={"documents": len(content), "new": int(known is None), "reused": int(known is not None)},
        seconds={"publish": time.perf_counter() - started},
        snapshot_id=tagged,
        metadata={
            "version": version,
            "digest": digest,
            "previous": None if newest is None else newest["version"],
            "returned_to_earlier": known is not None and moved,
            "versions": len({row["version"] for row in log} | {version}),
        },
    )


def newest_version(home: Home, corpus: str) -> str | None:
    """Return the name of the version that is current, which is not always the highest number."""
    log = _log(home, corpus)
    return str(log[-1]["version"]) if log else None


def newest_published(home: Home, corpus: str) -> str | None:
    """Return what `newest_version` does, from a pointer file beside the index: for readers who must not wait.

    Opening the Iceberg catalog takes over a second, a search a few hundredths. The table is the truth: the pointer is
    replaced after its commit, and again by the next run where a kill came between.
    """
    try:
        return str(json.loads(_pointer(home, corpus).read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError):
        return newest_version(home, corpus)


def _pointer(home: Home, corpus: str) -> Path:
    return home.corpus_folder(corpus) / "newest.json"


def _point(home: Home, corpus: str, version: str) -> None:
    path = _pointer(home, corpus)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(json.dumps({"version": version}), encoding="utf-8")
    staging.replace(path)


def version_snapshot(home: Home, corpus: str, version: str) -> int:
    """Return the id of the `documents` snapshot that holds a version's content."""
    snapshot = home.tables.tags(corpus, DOCUMENTS).get(version)
    if snapshot is None:
        known = ", ".join(dict.fromkeys(row["version"] for row in _log(home, corpus)))
        raise TableError("no such version", where=f"corpus {corpus}", expected=known or "none yet", found=version)
    return snapshot


def read_documents(
    home: Home, corpus: str, version: str | None = None, doc_ids: Sequence[str] | None = None
) -> Iterator[Document]:
    """Yield the documents of a version (the newest by default), all of them or those asked for, in no set order."""
    version = version or newest_version(home, corpus)
    if version is None:
        raise TableError("the corpus has no version yet", where=f"corpus {corpus}", do="build it first")
    where = None if doc_ids is None else ("doc_id", doc_ids)
    snapshot = version_snapshot(home, corpus, version)
    for batch in home.tables.batches(corpus, DOCUMENTS, where=where, snapshot_id=snapshot):
        for start in range(0, batch.num_rows, 500):
            for row in batch.slice(start, 500).to_pylist():
                yield row_document(row)


def _tag(home: Home, corpus: str, version: str, snapshot: int) -> int:
    """Tag the snapshot, unless a run that died before its log row did; returns the snapshot that has the tag."""
    there = home.tables.tags(corpus, DOCUMENTS).get(version)
    if there is None:
        home.tables.tag(corpus, DOCUMENTS, version, snapshot)
    return there or snapshot


def _log(home: Home, corpus: str) -> list[dict[str, Any]]:
    return sorted(home.tables.read(corpus, VERSIONS).to_pylist(), key=lambda row: row["sequence"])
