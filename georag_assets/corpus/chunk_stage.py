"""The stage `chunks`: chunk what changed, quarantine what is malformed at its source, check what was written.

What belongs here: which documents are chunked anew, the rows, the stage's checks. What does not: where a document is
cut (`chunking`).
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from georag_assets.corpus.chunking import CHUNKING_ALGORITHM, Unit, chunk_document
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import CHUNKS, DOCUMENTS, PAGE_BREAK, PDF, QUARANTINE, Chunk, Document
from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.corpus.tokens import ModelTokenizer, Tokenizer
from georag_assets.corpus.versions import newest_version, read_documents, version_snapshot
from georag_assets.errors import TableError
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import scan
from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport
from georag_assets.workers import Workers, portions

STAGE = "chunks"
MALFORMED = "malformed"
TRUNCATED_LIMIT = 0.05
_FEW = 500  # so many documents are read by their ids, more by a pass over the table
# What a worker is given at once ends at whichever comes first: small enough that the last ones end together.
_DOCUMENTS, _CHARACTERS = 200, 500_000
_ROWS = 1000
_SHOWN = 20
_FAULTY = "+faulty"
_REASONS = {
    "unclosed_ring": "a ring does not end where it begins",
    "unclosed": "it is opened and never closed",
    "non_finite": "a coordinate is NaN or infinite",
}


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the chunks of a document must add up to."""

    length: int
    text: str  # sha256
    literals: int
    shapes: str  # sha256 over the keys of the literals


@dataclass(slots=True)
class _Chunked:
    """What a batch of documents, or a whole run, gave; a run's rows are streamed and never held."""

    expected: dict[str, _Expected] = field(default_factory=dict)
    chunks: int = 0
    quarantined: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    rows: pa.RecordBatch | None = None

    def add(self, other: _Chunked) -> None:
        """Take a batch's sums over; its rows are the caller's."""
        self.expected |= other.expected
        self.chunks += other.chunks
        self.quarantined += other.quarantined
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class _Rules:
    """All that decides how a document is cut; goes to every worker."""

    corpus: str
    unit: Unit
    budget: int
    code: str
    tokenizer: Tokenizer


def chunk_corpus(
    home: Home, declaration: CorpusDeclaration, *, shard: Shard = WHOLE, tokenizer: Tokenizer | None = None
) -> StageReport:
    """Chunk the documents of the newest version that changed, or whose rule changed; leave other rows as they are.

    With a shard, only its documents: their rows, their quarantine, their checks.

    A document with a literal that was clearly meant as a geometry and is none (an unclosed ring, NaN) is left out and
    put in quarantine, with file, offset and reason.

    Raises
    ------
    TableError
        The corpus has no version yet.
    """
    corpus, tables = declaration.name, home.tables
    version = newest_version(home, corpus)
    if version is None:
        raise TableError("the corpus has no version yet", where=f"corpus {corpus}", do="publish its documents first")
    tokenizer = tokenizer or ModelTokenizer.load(home.settings.model)
    code = code_version(declaration, home.settings.model)
    started = perf_counter()
    snapshot = version_snapshot(home, corpus, version)
    documents = tables.read(corpus, DOCUMENTS, columns=["doc_id", "content_sha256"], snapshot_id=snapshot)
    wanted = shard.of_keys(dict(zip(*(documents[name].to_pylist() for name in documents.schema.names), strict=True)))
    before = shard.of_keys(_present(home, corpus))
    changed = {doc_id for doc_id, sha in wanted.items() if before.get(doc_id, ("", "", 0))[:2] != (sha, code)}
    leaving = sorted(doc_id for doc_id in before if doc_id in changed or doc_id not in wanted)
    compared = perf_counter()

    work = _Chunked()
    rules = _Rules(corpus, declaration.unit, declaration.budget, code, tokenizer)
    with Workers(home.settings.worker_count) as workers:
        rows = _rows(rules, _changed_documents(home, corpus, version, changed, len(wanted)), workers, work)
        tables.replace_rows(corpus, CHUNKS, key="doc_id", removed=leaving, added=rows)
        _replace_quarantine(home, corpus, shard, work.quarantined)
        written = perf_counter()
        faults = _verify(home, corpus, work.expected, len(wanted), workers)
    _mark(home, corpus, faults)
    columns = ["doc_id", "start", "end", "token_count", "flags", "content_sha256"]
    light = shard.of_rows(tables.read(corpus, CHUNKS, columns=columns))
    numbers, checks = check_chunks(light, wanted, work.quarantined, faults, tokenizer.max_tokens, declaration)
    checked = perf_counter()
    return StageReport(
        corpus,
        STAGE,
        _data_version(light, code),
        {
            "new": work.chunks,
            "reused": light.num_rows - work.chunks,
            "removed": sum(count for doc_id, (_, _, count) in before.items() if doc_id not in wanted),
            "quarantined": len(work.quarantined),
            "documents": len(work.expected),
        },
        {"compare": compared - started, "chunk": work.seconds, "write": written - compared, "check": checked - written},
        checks,
        tables.snapshot_id(corpus, CHUNKS),
        {"chunks": light.num_rows, "corpus_version": version, "code_version": code, **numbers},
        shard.label,
    )


def code_version(declaration: CorpusDeclaration, model: str) -> str:
    """Return what a chunk row depends on beside its document: the rules, unit, budget, and the model's tokenizer."""
    algorithm = hashlib.sha256(CHUNKING_ALGORITHM.encode()).hexdigest()[:8]
    return f"{CHUNKING_ALGORITHM.partition('/')[0]}-{algorithm}/{declaration.unit}/{declaration.budget}/{model}"


def malformed(literals: Sequence[GeometryLiteral]) -> tuple[GeometryLiteral, ...]:
    """Return the literals that were meant as geometries and cannot be read as one."""
    return tuple(literal for literal in literals if MALFORMED in literal.flags)


def _present(home: Home, corpus: str) -> dict[str, tuple[str, str, int]]:
    """Return content, code version and number of chunks by document, as the table has them now."""
    table = home.tables.read(corpus, CHUNKS, columns=["doc_id", "content_sha256", "code_version"])
    grouped = table.group_by(["doc_id", "content_sha256", "code_version"]).aggregate([([], "count_all")])
    return {
        row["doc_id"]: (row["content_sha256"], row["code_version"], row["count_all"]) for row in grouped.to_pylist()
    }


def _changed_documents(home: Home, corpus: str, version: str, changed: set[str], total: int) -> Iterator[Document]:
    if not changed:
        return
    few = len(changed) <= min(_FEW, max(1, total // 4))
    for document in read_documents(home, corpus, version, sorted(changed) if few else None):
        if document.doc_id in changed:
            yield document


def _rows(rules: _Rules, documents: Iterable[Document], workers: Workers, work: _Chunked) -> Iterator[pa.RecordBatch]:
    parts = portions(documents, _DOCUMENTS, size=lambda document: len(document.text), largest=_CHARACTERS)
    for chunked in workers.in_order(partial(_chunk, rules), parts):
        work.add(chunked)
        if chunked.rows is not None:
            yield chunked.rows


def _chunk(rules: _Rules, documents: Sequence[Document]) -> _Chunked:
    """Return the rows of a batch of documents, what they must add up to, and what is malformed."""
    done = _Chunked()
    rows: list[dict[str, Any]] = []
    started = perf_counter()
    for document in documents:
        literals = scan(document.text)
        if bad := malformed(literals):
            done.quarantined.append(_rejection(document, bad))
            continue
        chunks = chunk_document(
            document,
            corpus=rules.corpus,
            unit=rules.unit,
            budget=rules.budget,
            tokenizer=rules.tokenizer,
            literals=literals,
        )
        done.expected[document.doc_id] = _expected(document.text, literals)
        breaks = _page_breaks(document)
        rows += [_row(chunk, document, rules.code, breaks) for chunk in chunks]
    if rows:
        done.rows = pa.RecordBatch.from_pylist(rows, schema=CHUNKS.schema)
    done.chunks = len(rows)
    done.seconds = perf_counter() - started
    return done


def _page_breaks(document: Document) -> list[int] | None:
    """Return the offsets of the breaks between pages; None for a document that has no pages."""
    if document.media_type != PDF:
        return None
    return [found.start() for found in re.finditer(PAGE_BREAK, document.text)]


def _row(chunk: Chunk, document: Document, code: str, breaks: Sequence[int] | None) -> dict[str, Any]:
    page_first = page_last = None
    if breaks is not None:
        # A page is where words stand: white space at a chunk's ends may lie on the pages beside.
        first = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
        last = chunk.start + len(chunk.text.rstrip())
        page_first, page_last = 1 + bisect_left(breaks, first), 1 + bisect_left(breaks, last)
    return {
        "chunk_id": chunk.chunk_id,
        "doc_id": chunk.doc_id,
        "content_sha256": document.content_sha256,
        "code_version": code,
        "start": chunk.start,
        "end": chunk.end,
        "text": chunk.text,
        "unit": chunk.unit,
        "context": chunk.context,
        "embedded_text": chunk.embedded_text,
        "embedded_sha256": _sha256(chunk.embedded_text),
        "token_count": chunk.token_count,
        "flags": list(chunk.flags),
        "feature_ids": list(chunk.feature_ids),
        "literals_json": json.dumps([literal.as_record() for literal in chunk.literals], ensure_ascii=False),
        "inherited": chunk.inherited,
        "page_first": page_first,
        "page_last": page_last,
    }


def _rejection(document: Document, bad: Sequence[GeometryLiteral]) -> dict[str, str]:
    first = bad[0]
    line = document.text.count("\n", 0, first.start) + 1
    why = next((words for flag, words in _REASONS.items() if flag in first.flags), "it cannot be read")
    more = f"; {len(bad) - 1} more like it" if len(bad) > 1 else ""
    return {
        "doc_id": document.doc_id,
        "source": document.source,
        "location": f"{document.source}@{first.start}",
        "kind": "malformed_geometry",
        "reason": f"the {first.kind} at line {line}, offset {first.start} is malformed: {why}{more}",
        "stage": STAGE,
    }


def _replace_quarantine(home: Home, corpus: str, shard: Shard, rows: list[dict[str, str]]) -> None:
    """Make this stage's rows of the quarantine those of this run; a document without chunks is looked at each time."""
    before = shard.of_rows(home.tables.read(corpus, QUARANTINE, where=("stage", [STAGE]))).to_pylist()
    if sorted(map(str, before)) != sorted(map(str, rows)):
        added = pa.Table.from_pylist(rows, schema=QUARANTINE.schema)
        # A place in a document is this stage's: other stages name files, records and chunks.
        removed = sorted({row["location"] for row in before})
        home.tables.replace_rows(corpus, QUARANTINE, key="location", removed=removed, added=added)


def _expected(text: str, literals: Sequence[GeometryLiteral]) -> _Expected:
    shapes = hashlib.sha256()
    for literal in literals:
        shapes.update(_key(literal.start, literal.end, literal.kind, _wkt(literal)))
    return _Expected(len(text), _sha256(text), len(literals), shapes.hexdigest())


@dataclass(frozen=True, slots=True)
class _Written:
    """A chunk as it was read back; `whole_sha256` is its document's text where it might be all of it."""

    doc_id: str
    start: int
    end: int
    text: str
    literals_json: str
    whole_sha256: str | None


@dataclass(frozen=True, slots=True)
class _Read:
    """What a chunk holds: a key for each literal, as recorded and as found in its own text.

    `found` is None where the chunk is its whole document, which was scanned when it was cut.
    """

    stored: tuple[bytes, ...]
    found: tuple[bytes, ...] | None


def _read_back(written: Sequence[_Written]) -> list[_Read]:
    read = []
    for chunk in written:
        recorded = json.loads(chunk.literals_json)
        stored = tuple(_key(item["start"], item["end"], item["kind"], item["wkt"]) for item in recorded)
        found = None
        if chunk.start != 0 or _sha256(chunk.text) != chunk.whole_sha256:
            found = tuple(
                _key(literal.start + chunk.start, literal.end + chunk.start, literal.kind, _wkt(literal))
                for literal in scan(chunk.text)
            )
        read.append(_Read(stored, found))
    return read


@dataclass(slots=True)
class _Seen:
    """What the chunks of a document have added up to so far, taken in the order of their places."""

    expected: _Expected
    position: int = 0
    text: Any = field(default_factory=hashlib.sha256)
    found: int = 0
    found_shapes: Any = field(default_factory=hashlib.sha256)
    stored: int = 0
    stored_shapes: Any = field(default_factory=hashlib.sha256)
    waiting: dict[int, tuple[_Written, _Read]] = field(default_factory=dict)
    whole: bool = False

    def take(self, chunk: _Written, read: _Read) -> None:
        """Add a chunk, and those that waited for it; files of a table may be read in any order."""
        self.waiting[chunk.start] = chunk, read
        while (following := self.waiting.pop(self.position, None)) is not None:
            self._add(*following)

    def _add(self, chunk: _Written, read: _Read) -> None:
        self.text.update(chunk.text.encode("utf-8", "surrogatepass"))
        self.position = chunk.end
        self.stored += len(read.stored)
        for key in read.stored:
            self.stored_shapes.update(key)
        self.whole = read.found is None
        self.found += len(read.found or ())
        for key in read.found or ():
            self.found_shapes.update(key)

    def cover_fault(self) -> str | None:
        """Return how the chunks fail to follow each other and cover their document, or None."""
        if self.waiting:
            return f"no chunk begins at {self.position}, where one was next"
        if self.position != self.expected.length:
            return f"the chunks end at {self.position} of {self.expected.length}"
        return None if self.text.hexdigest() == self.expected.text else "a chunk is not its slice of the document"

    def geometry_fault(self) -> str | None:
        """Return how the geometries in the chunks differ from those of their document, or None."""
        expected = self.expected
        counts = [("records", self.stored, self.stored_shapes.hexdigest())]
        if not self.whole:
            counts.append(("own texts", self.found, self.found_shapes.hexdigest()))
        for name, count, shapes in counts:
            if count != expected.literals:
                return f"the document has {expected.literals} geometries and the chunks' {name} have {count}"
            if shapes != expected.shapes:
                return f"the geometries in the chunks' {name} are not those of the document"
        return None


def _verify(
    home: Home, corpus: str, expected: Mapping[str, _Expected], total: int, workers: Workers
) -> dict[str, dict[str, str]]:
    """Compare what was written, read back as a stream, with the documents it came from; faults by check and document.

    Rows of documents that did not change were verified when they were written; a fault is kept with them (`_mark`).
    """
    faults: dict[str, dict[str, str]] = {"geometry": {}, "cover": {}}
    if not expected:
        return faults
    seen = {doc_id: _Seen(sums) for doc_id, sums in expected.items()}
    few = len(expected) <= min(_FEW, max(1, total // 4))
    given: deque[list[_Written]] = deque()

    def remembered() -> Iterator[list[_Written]]:
        for part in _parts(home, corpus, expected, few=few):
            given.append(part)
            yield part

    for read in workers.in_order(_read_back, remembered()):
        for chunk, one in zip(given.popleft(), read, strict=True):
            seen[chunk.doc_id].take(chunk, one)
    for doc_id, sums in seen.items():
        if fault := sums.cover_fault():
            faults["cover"][doc_id] = fault
        if fault := sums.geometry_fault():
            faults["geometry"][doc_id] = fault
    return faults


def _parts(home: Home, corpus: str, expected: Mapping[str, _Expected], *, few: bool) -> Iterator[list[_Written]]:
    """Yield the chunks of the documents expected, as the table has them, so many at a time as a worker is given."""
    columns = ["doc_id", "start", "end", "text", "literals_json"]
    where = ("doc_id", sorted(expected)) if few else None
    for batch in home.tables.batches(corpus, CHUNKS, columns=columns, where=where):
        for begin in range(0, batch.num_rows, _ROWS):
            part = [
                _Written(**row, whole_sha256=expected[row["doc_id"]].text if row["start"] == 0 else None)
                for row in batch.slice(begin, _ROWS).to_pylist()
                if row["doc_id"] in expected
            ]
            if part:
                yield part


def _key(start: int, end: int, kind: str, wkt: str | None) -> bytes:
    """Return the identity of a literal: its place in the document, its kind and its shape."""
    return hashlib.sha256(f"{start}\x1f{end}\x1f{kind}\x1f{wkt}".encode()).digest()


def _wkt(literal: GeometryLiteral) -> str | None:
    return None if literal.geometry is None else str(literal.geometry.wkt)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _mark(home: Home, corpus: str, faults: Mapping[str, Mapping[str, str]]) -> None:
    """Make rows with a fault count as not chunked, so that the next run does not take them for good."""
    doc_ids = sorted({doc_id for found in faults.values() for doc_id in found})
    if not doc_ids:
        return
    rows = home.tables.read(corpus, CHUNKS, where=("doc_id", doc_ids))
    marked = pc.binary_join_element_wise(rows["code_version"].cast(pa.string()), _FAULTY, "")
    rows = rows.set_column(rows.schema.get_field_index("code_version"), "code_version", marked)
    home.tables.replace_rows(corpus, CHUNKS, key="doc_id", removed=doc_ids, added=rows)


def check_chunks(
    light: pa.Table,
    wanted: Mapping[str, str],
    quarantined: Sequence[Mapping[str, str]],
    faults: Mapping[str, Mapping[str, str]],
    max_tokens: int,
    declaration: CorpusDeclaration,
) -> tuple[dict[str, float], tuple[CheckResult, ...]]:
    """Return rates and the stage's checks, over all rows of the corpus."""
    tokens = light["token_count"].to_numpy()
    total = int(tokens.sum())
    never = int((tokens - max_tokens).clip(0).sum()) if light.num_rows else 0
    share = never / total if total else 0.0
    flags = Counter(flag for row in light["flags"].to_pylist() for flag in row)
    rates = {f"{flag}_share": round(flags[flag] / max(light.num_rows, 1), 5) for flag in _FLAGS}
    left_out = {row["doc_id"] for row in quarantined}
    missing = sorted(set(wanted) - set(light["doc_id"].to_pylist()) - left_out)
    surplus = sorted(set(light["doc_id"].to_pylist()) - set(wanted))
    quarantined_share = len(left_out) / len(wanted) if wanted else 0.0
    cover = {**faults["cover"], **dict.fromkeys(missing, "no chunks"), **dict.fromkeys(surplus, "not in the version")}
    numbers = {"never_embedded_share": round(share, 5), **rates}
    checks = (
        CheckResult(
            "every_geometry_parses",
            not faults["geometry"],
            True,
            "Each chunk's own text, scanned again, holds the document's geometries, as many and of the same shapes.",
            {"faults": len(faults["geometry"])},
            {"faults": [f"{doc_id}: {fault}" for doc_id, fault in list(faults["geometry"].items())[:_SHOWN]]},
        ),
        CheckResult(
            "chunks_cover_documents",
            not cover and quarantined_share <= declaration.quarantine_threshold,
            True,
            "The chunks of each document follow each other and cover it; those left out are in quarantine, and few.",
            {
                "faults": len(cover),
                "quarantined_share": quarantined_share,
                "threshold": declaration.quarantine_threshold,
            },
            {
                "faults": [f"{doc_id}: {fault}" for doc_id, fault in list(cover.items())[:_SHOWN]],
                "quarantined": [f"{row['location']}: {row['reason']}" for row in quarantined[:_SHOWN]],
            },
        ),
        CheckResult(
            "truncated_share",
            share <= TRUNCATED_LIMIT,
            False,
            "At most 5 % of the tokens lie beyond what the model reads.",
            {"never_embedded_share": share, "tokens": total, "never_embedded": never, **rates},
            severity="WARN",
        ),
    )
    return numbers, checks


_FLAGS = ("whole_document", "oversize", "truncated")


def _data_version(light: pa.Table, code: str) -> str:
    digest = hashlib.sha256(code.encode())
    for pair in sorted(set(zip(*(light[name].to_pylist() for name in ("doc_id", "content_sha256")), strict=True))):
        digest.update("\x1f".join(pair).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
