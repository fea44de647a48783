"""Sync: the documents of a corpus as its sources have them now, in its `documents` table.

What belongs here: comparing sources with the table, quarantine, the removal threshold, accounting, documents to rows
and back. What does not: formats (`sources`), versions (`versions`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from georag_assets.corpus.declaration import RECORD_FORMATS, CorpusDeclaration, Source, format_of
from georag_assets.corpus.models import DOCUMENTS, QUARANTINE, Document
from georag_assets.corpus.period import parse_period
from georag_assets.corpus.sources import (
    Listed,
    Rejection,
    SourceFile,
    Unpacked,
    arriving,
    list_source,
    loader_for,
)
from georag_assets.corpus.sources.geoparquet import SidecarGeometry
from georag_assets.corpus.sources.loader import UnusableError
from georag_assets.errors import RemovalThresholdError, SourceError
from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport

STAGE = "documents"
SYNC_ALGORITHM = "sync-1"
_BATCH_DOCUMENTS = 500
_BATCH_CHARACTERS = 16 * 2**20
_SHOWN = 20


def sync_documents(home: Home, declaration: CorpusDeclaration, *, allow_removal: bool = False) -> StageReport:
    """Bring the corpus's `documents` table to what its sources hold; one commit, or none where nothing changed.

    New and changed documents (by content) are written, documents that left the sources or became unusable are removed,
    and what cannot be taken goes to the `quarantine` table with its reason.

    Parameters
    ----------
    allow_removal
        Accept that more of the corpus leaves than `removal_threshold`, or that a source is empty.

    Raises
    ------
    SourceError
        A source as a whole cannot be read.
    RemovalThresholdError
        Too much would be removed at once: an unmounted source is an empty folder. Nothing is changed.
    """
    allow_removal = allow_removal or home.settings.allow_removal
    corpus = declaration.name
    started = time.perf_counter()
    stored = content_of(home, corpus)
    sync = _Sync(declaration, stored, _joined_before(home, corpus) if declaration.geometry else 0)
    sync.open(allow_removal=allow_removal)
    seconds = {"plan": time.perf_counter() - started}

    started = time.perf_counter()
    snapshot = home.tables.replace_rows(
        corpus,
        DOCUMENTS,
        key="doc_id",
        removed=lambda: sync.outdated(allow_removal=allow_removal),
        added=sync.changed_rows(),
    )
    seconds["sync"] = time.perf_counter() - started

    started = time.perf_counter()
    _replace_quarantine(home, corpus, sync.rejections)
    indexed = content_of(home, corpus) if sync.changed or sync.leaving else stored
    seconds["verify"] = time.perf_counter() - started
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=content_digest(indexed)[:16],
        counts={
            "documents": len(indexed),
            "new": len(sync.changed - stored.keys()),
            "changed": len(sync.changed & stored.keys()),
            "reused": len(sync.kept) - len(sync.changed),
            "removed": len(sync.leaving),
            "quarantined": len(sync.rejections),
        },
        seconds=seconds,
        checks=(_accounted(sync, indexed), _within_threshold(sync)),
        snapshot_id=snapshot or None,
        metadata=sync.metadata(),
    )


def content_of(home: Home, corpus: str, snapshot_id: int | None = None) -> dict[str, str]:
    """Return doc_id -> content_sha256 as the table has them."""
    read = home.tables.read(corpus, DOCUMENTS, columns=["doc_id", "content_sha256"], snapshot_id=snapshot_id)
    return dict(zip(read["doc_id"].to_pylist(), read["content_sha256"].to_pylist(), strict=True))


def _joined_before(home: Home, corpus: str) -> int:
    """Return how many stored documents have a row in a sidecar."""
    read = home.tables.read(corpus, DOCUMENTS, columns=["feature_ids"])
    return pc.sum(pc.greater(pc.list_value_length(read["feature_ids"]), 0)).as_py() or 0


def content_digest(content: Mapping[str, str]) -> str:
    """Return the sha256 of the sorted (doc_id, content_sha256) list: the identity of a corpus's content."""
    lines = json.dumps(sorted(content.items()), ensure_ascii=False)
    return hashlib.sha256(lines.encode()).hexdigest()


def document_sha256(document: Document) -> str:
    """Return the identity of a document's content: its text, its geometry and every declared field.

    Where it came from (`source`, `location`, `media_type`) is no content: a record that only moved is unchanged.
    """
    digest = hashlib.sha256()
    fields = [
        document.title,
        list(document.feature_ids),
        document.geometry_epsg,
        document.geometry_evidence,
        list(document.geometry_flags),
        document.period,
        document.licence,
        document.url,
        document.revision,
        document.declared_epsg,
        sorted(document.fields.items()),
    ]
    for part in (document.text.encode(), document.geometry_wkb or b"", json.dumps(fields).encode()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def document_row(document: Document) -> dict[str, object]:
    """Return the document as a row of `DOCUMENTS`."""
    start, end = document.period or (None, None)
    return {
        "doc_id": document.doc_id,
        "text": document.text,
        "title": document.title,
        "source": document.source,
        "location": document.location,
        "media_type": document.media_type,
        "content_sha256": document.content_sha256,
        "feature_ids": list(document.feature_ids),
        "geometry_wkb": document.geometry_wkb,
        "geometry_epsg": document.geometry_epsg,
        "geometry_evidence": document.geometry_evidence,
        "geometry_flags": list(document.geometry_flags),
        "period_start": start,
        "period_end": end,
        "licence": document.licence,
        "url": document.url,
        "revision": document.revision,
        "declared_epsg": document.declared_epsg,
        "fields_json": json.dumps(dict(document.fields), ensure_ascii=False, sort_keys=True),
    }


def row_document(row: Mapping[str, Any]) -> Document:
    """Return the document that a row of `DOCUMENTS` holds."""
    values = dict(row)
    start, end = values.pop("period_start"), values.pop("period_end")
    fields = json.loads(values.pop("fields_json") or "{}")
    for name in ("feature_ids", "geometry_flags"):
        values[name] = tuple(values[name] or ())
    return Document(**values, period=None if start is None else (start, end), fields=fields)


@dataclass
class _Sync:
    """One pass over the sources: what was found, kept, changed and rejected."""

    declaration: CorpusDeclaration
    stored: Mapping[str, str]
    joined_before: int = 0
    kept: dict[str, str] = field(default_factory=dict)  # doc_id -> location, to tell where a repeated id was first
    changed: set[str] = field(default_factory=set)
    rejections: list[Rejection] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    found: int = 0
    unjoined: list[str] = field(default_factory=list)
    characters: int = 0
    located: int = 0
    geometry_flags: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    by_source: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    _files: list[tuple[int, Listed]] = field(default_factory=list)
    _unpacked: Unpacked = field(default_factory=Unpacked)
    _sidecar: SidecarGeometry | None = None

    def open(self, *, allow_removal: bool) -> None:
        """List every file and open the sidecar before anything is read, so that an absent source changes nothing."""
        for number, source in enumerate(self.declaration.sources):
            try:
                listing = list_source(source, self.declaration)
                if not listing.files and not allow_removal:
                    raise SourceError(
                        "the source matches no file",
                        where=source.shown,
                        found=f"{len(listing.unknown)} files of no known format" if listing.unknown else None,
                        do="check the pattern, or that the source is mounted",
                    )
            except SourceError as error:
                if self.stored:
                    raise self._too_much(len(self.stored), error) from error
                raise
            self._files += [(number, file) for file in listing.files]
            self.unknown += listing.unknown
        if self.declaration.geometry is not None:
            self._sidecar = SidecarGeometry(self.declaration.geometry)

    def changed_rows(self) -> Iterator[pa.RecordBatch]:
        """Read every source and yield the rows of new and changed documents, a bounded batch at a time."""
        rows: list[dict[str, object]] = []
        held = 0
        for document in self._documents():
            if self.stored.get(document.doc_id) == document.content_sha256:
                continue
            self.changed.add(document.doc_id)
            rows.append(document_row(document))
            held += len(document.text) + len(document.geometry_wkb or b"")
            if len(rows) >= _BATCH_DOCUMENTS or held >= _BATCH_CHARACTERS:
                yield pa.RecordBatch.from_pylist(rows, schema=DOCUMENTS.schema)
                rows, held = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=DOCUMENTS.schema)

    def outdated(self, *, allow_removal: bool) -> list[str]:
        """Return the ids whose stored rows go: changed and leaving ones; refuses to lose too many."""
        self.leaving = sorted(self.stored.keys() - self.kept.keys())
        count, total = len(self.leaving), len(self.stored)
        # One document may always go, or a corpus of four could never lose one; but never the last.
        many = count > self.declaration.removal_threshold * total and (count > 1 or total == 1)
        if many and not allow_removal:
            raise self._too_much(count)
        joined = len(self.kept) - len(self.unjoined)
        lost = self.joined_before - joined
        if lost > self.declaration.removal_threshold * self.joined_before and not allow_removal:
            raise RemovalThresholdError(
                f"the sync would take the geometry of {lost} of {self.joined_before} documents of corpus "
                f"{self.declaration.name}",
                where=str(self.declaration.geometry.sidecar if self.declaration.geometry else ""),
                found=f"{joined} documents with a row in the sidecar; {self.joined_before} before",
                do="check the sidecar; to accept it, run once with allow_removal (GEORAG_ALLOW_REMOVAL=1)",
            )
        return sorted(self.leaving + list(self.changed & self.stored.keys()))

    def _too_much(self, count: int, cause: SourceError | None = None) -> RemovalThresholdError:
        total = len(self.stored)
        share = self.declaration.removal_threshold
        roots = ", ".join(source.shown for source in self.declaration.sources)
        found = f"{len(self.kept)} usable documents, {len(self.rejections)} quarantined; {total} before"
        return RemovalThresholdError(
            f"{cause.what + ': ' if cause else ''}the sync would remove {count} of {total} documents of corpus "
            f"{self.declaration.name}, more than {share:.0%} at once",
            where=(cause.where if cause else None) or roots,
            found=found,
            do="check that the source is mounted and readable; to accept the removal, run once with allow_removal "
            "(GEORAG_ALLOW_REMOVAL=1)",
        )

    def _documents(self) -> Iterator[Document]:
        for number, listed in self._files:
            source = self.declaration.sources[number]
            try:
                listed.name.encode()
            except UnicodeEncodeError:
                reason = "the file's name is not UTF-8"
                self._reject(Rejection(listed.name, listed.name, listed.name, "bad_name", reason))
                continue
            for file in arriving(listed, source, self.declaration, self._unpacked):
                if isinstance(file, Rejection):
                    self._reject(file)
                    continue
                try:
                    yield from self._documents_of(file, source)
                except SourceError as error:
                    raise _where_it_came_from(error, file, listed) from error

    def _documents_of(self, file: SourceFile, source: Source) -> Iterator[Document]:
        loader = loader_for(form := source.format or format_of(file.path))
        if source.columns is None and form in RECORD_FORMATS.values():  # met in a folder, or by a pattern
            raise SourceError(
                f"{form} holds records, and the source declares no columns",
                where=str(file.path),
                do="declare the file as a source of its own, with columns, or name the others by a pattern",
            )
        if loader is None:
            self._reject(
                Rejection(file.name, file.name, file.name, "unknown_format", f"no loader for {file.path.suffix!r}")
            )
            return
        for item in loader.load(file, source, self.declaration):
            if isinstance(item, Rejection):
                self._reject(item)
            elif (document := self._finished(item, file, source)) is not None:
                self.by_source[source.shown] += 1
                yield document

    def _reject(self, rejection: Rejection) -> None:
        # What made a document unusable may be in its id or its reason: a table takes no half of a surrogate pair.
        told = {name: text.encode("utf-8", "backslashreplace").decode() for name, text in asdict(rejection).items()}
        self.found += 1
        self.rejections.append(Rejection(**told))

    def _finished(self, document: Document, file: SourceFile, source: Source) -> Document | None:
        """Return the document with its sidecar's geometry, the corpus's defaults and its identity; None if rejected."""
        if (first := self.kept.get(document.doc_id)) is not None:
            reason = f"id {document.doc_id!r} is taken by {first}"
            self._reject(Rejection(document.doc_id, document.source, document.location, "duplicate_id", reason))
            return None
        try:
            document = self._joined(document, file)
        except UnusableError as error:
            self._reject(Rejection(document.doc_id, document.source, document.location, error.kind, error.reason))
            return None
        declared = self.declaration
        document = replace(
            document,
            licence=document.licence or source.licence or declared.licence,
            period=document.period or (parse_period(declared.period) if declared.period else None),
            declared_epsg=declared.frame.epsg,
        )
        document = replace(document, content_sha256=document_sha256(document))
        self.found += 1
        self.kept[document.doc_id] = document.location
        self.characters += len(document.text)
        self.located += document.geometry_wkb is not None
        self.geometry_flags.update(document.geometry_flags)
        self.licences[document.licence or "not stated"] += 1
        return document

    def _joined(self, document: Document, file: SourceFile) -> Document:
        declared = self.declaration.geometry
        if self._sidecar is None or declared is None:
            return document
        key = {"stem": file.path.stem, "doc_id": document.doc_id, "title": document.title}[declared.key]
        if not self._sidecar.has(key):
            self.unjoined.append(document.doc_id)
            return document
        shape = self._sidecar.of(key)
        document = replace(document, feature_ids=(key,))
        if shape is None:
            return document
        return replace(
            document,
            geometry_wkb=shape.wkb,
            geometry_epsg=shape.epsg,
            geometry_evidence=shape.evidence,
            geometry_flags=shape.flags,
        )

    def _of_unknown_format(self) -> dict[str, object]:
        unknown = [*self.unknown, *self._unpacked.unknown]
        if not unknown:
            return {}
        return {"files_of_unknown_format": len(unknown), "unknown_files": unknown[:_SHOWN]}

    def metadata(self) -> dict[str, object]:
        """Return what an operator wants to see."""
        shown: dict[str, object] = {
            "files": len(self._files),
            "characters": self.characters,
            "documents_with_geometry": self.located,
            "geometry_flags": dict(self.geometry_flags.most_common(_SHOWN)),
            "documents_by_source": dict(self.by_source),
            "documents_by_licence": dict(self.licences.most_common(_SHOWN)),
            **self._of_unknown_format(),
            "quarantined_by_kind": dict(Counter(rejection.kind for rejection in self.rejections)),
            "quarantined": [f"{rejection.location}: {rejection.reason}" for rejection in self.rejections[:_SHOWN]],
        }
        if self._sidecar is not None:
            unused = self._sidecar.unused
            shown |= {
                "documents_without_sidecar_row": len(self.unjoined),
                "sidecar_rows_without_document": len(unused),
                "unjoined": {"documents": self.unjoined[:_SHOWN], "rows": unused[:_SHOWN]},
            }
        return shown


def _where_it_came_from(error: SourceError, file: SourceFile, listed: Listed) -> SourceError:
    """Return an error that names the source's file, not the passing copy that was read."""
    if listed.path == file.path:
        return error
    name = file.name if "!/" in file.name else listed.where
    return SourceError(
        error.what,
        where=(error.where or name).replace(str(file.path), name),
        expected=error.expected,
        found=error.found,
        do=error.do,
    )


def _accounted(sync: _Sync, indexed: Mapping[str, str]) -> CheckResult:
    quarantined = len(sync.rejections)
    lost = sorted(sync.kept.keys() - indexed.keys())
    surplus = sorted(indexed.keys() - sync.kept.keys())
    passed = not lost and not surplus and sync.found == len(indexed) + quarantined
    return CheckResult(
        name="documents_accounted_for",
        passed=passed,
        blocking=True,
        description="Documents found in the sources are indexed or quarantined; those gone from them are removed.",
        numbers={
            "found": sync.found,
            "indexed": len(indexed),
            "quarantined": quarantined,
            "removed": len(sync.leaving),
        },
        detail={"lost": lost[:_SHOWN], "not_in_the_sources": surplus[:_SHOWN]},
    )


def _within_threshold(sync: _Sync) -> CheckResult:
    limit = sync.declaration.quarantine_threshold
    share = len(sync.rejections) / sync.found if sync.found else 0.0
    first = [f"{rejection.location}: {rejection.reason}" for rejection in sync.rejections[:_SHOWN]]
    return CheckResult(
        name="quarantine_within_threshold",
        passed=share <= limit,
        blocking=True,
        description="At most the declared share of the documents is quarantined.",
        numbers={"quarantined_share": share, "threshold": limit},
        detail={"first": first},
    )


def _replace_quarantine(home: Home, corpus: str, rejections: Iterable[Rejection]) -> None:
    """Make this stage's rows of the quarantine table those of this sync; commits only a difference."""
    rows = [
        {
            "doc_id": rejection.doc_id,
            "source": rejection.source,
            "location": rejection.location,
            "kind": rejection.kind,
            "reason": rejection.reason,
            "stage": STAGE,
        }
        for rejection in rejections
    ]
    before = home.tables.read(corpus, QUARANTINE, where=("stage", [STAGE])).to_pylist()
    if sorted(map(str, before)) != sorted(map(str, rows)):
        added = pa.Table.from_pylist(rows, schema=QUARANTINE.schema)
        home.tables.replace_rows(corpus, QUARANTINE, key="stage", removed=[STAGE] if before else [], added=added)
