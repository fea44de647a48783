"""The stage `chunks`: chunk what changed, quarantine what is malformed at its source, check what was written.

What belongs here: which documents are chunked anew, the rows, the stage's checks. What does not: where a document is
cut (`chunking`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from georag_assets.corpus.chunking import CHUNKING_ALGORITHM, chunk_document
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import CHUNKS, DOCUMENTS, QUARANTINE, Chunk, Document
from georag_assets.corpus.tokens import ModelTokenizer, Tokenizer
from georag_assets.corpus.versions import newest_version, read_documents, version_snapshot
from georag_assets.errors import TableError
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import scan
from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport

STAGE = "chunks"
MALFORMED = "malformed"
TRUNCATED_LIMIT = 0.05
_FEW = 500  # so many documents are read by their ids, more by a pass over the table
_ROWS, _CHARACTERS = 1000, 8_000_000  # a batch ends at whichever comes first
_SHOWN = 20
_FAULTY = "+faulty"
_REASONS = {
    "unclosed_ring": "a ring does not end where it begins",
    "unclosed": "it is opened and never closed",
    "non_finite": "a coordinate is NaN or infinite",
}


@dataclass(slots=True)
class _Work:
    """What one run found on its way; the rows themselves are streamed."""

    chunked: int = 0
    chunks: int = 0
    quarantined: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0


def chunk_corpus(home: Home, declaration: CorpusDeclaration, *, tokenizer: Tokenizer | None = None) -> StageReport:
    """Chunk the documents of the newest version that changed, or whose rule changed; leave other rows as they are.

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
    wanted = dict(zip(*(documents[name].to_pylist() for name in ("doc_id", "content_sha256")), strict=True))
    before = _present(home, corpus)
    changed = {doc_id for doc_id, sha in wanted.items() if before.get(doc_id, ("", "", 0))[:2] != (sha, code)}
    leaving = sorted(doc_id for doc_id in before if doc_id in changed or doc_id not in wanted)
    compared = perf_counter()

    work = _Work()
    rows = _rows(home, declaration, version, changed, len(wanted), code, tokenizer, work)
    tables.replace_rows(corpus, CHUNKS, key="doc_id", removed=leaving, added=rows)
    _replace_quarantine(home, corpus, work.quarantined)
    written = perf_counter()

    faults = _verify(home, corpus, version, changed, len(wanted), {row["doc_id"] for row in work.quarantined})
    _mark(home, corpus, faults)
    light = tables.read(corpus, CHUNKS, columns=["doc_id", "start", "end", "token_count", "flags", "content_sha256"])
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
            "documents": work.chunked,
        },
        {"compare": compared - started, "chunk": work.seconds, "write": written - compared, "check": checked - written},
        checks,
        tables.snapshot_id(corpus, CHUNKS),
        {"chunks": light.num_rows, "version": version, "code_version": code, **numbers},
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


def _rows(
    home: Home,
    declaration: CorpusDeclaration,
    version: str,
    changed: set[str],
    total: int,
    code: str,
    tokenizer: Tokenizer,
    work: _Work,
) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    characters = 0
    for document in _changed_documents(home, declaration.name, version, changed, total):
        started = perf_counter()
        literals = scan(document.text)
        if bad := malformed(literals):
            work.quarantined.append(_rejection(document, bad))
            continue
        chunks = chunk_document(
            document,
            corpus=declaration.name,
            unit=declaration.unit,
            budget=declaration.budget,
            tokenizer=tokenizer,
            literals=literals,
        )
        rows += [_row(chunk, document, code) for chunk in chunks]
        characters += len(document.text)
        work.chunked += 1
        work.chunks += len(chunks)
        work.seconds += perf_counter() - started
        if len(rows) >= _ROWS or characters >= _CHARACTERS:
            yield pa.RecordBatch.from_pylist(rows, schema=CHUNKS.schema)
            rows, characters = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=CHUNKS.schema)


def _row(chunk: Chunk, document: Document, code: str) -> dict[str, Any]:
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
        "embedded_sha256": hashlib.sha256(chunk.embedded_text.encode("utf-8", "surrogatepass")).hexdigest(),
        "token_count": chunk.token_count,
        "flags": list(chunk.flags),
        "feature_ids": list(chunk.feature_ids),
        "literals_json": json.dumps([_stored(literal) for literal in chunk.literals], ensure_ascii=False),
        "inherited": chunk.inherited,
    }


def _stored(literal: GeometryLiteral) -> dict[str, object]:
    return {
        "start": literal.start,
        "end": literal.end,
        "kind": literal.kind,
        "literal": literal.literal,
        "wkt": None if literal.geometry is None else literal.geometry.wkt,
        "epsg": literal.epsg,
        "geographic": literal.geographic,
        "flags": list(literal.flags),
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


def _replace_quarantine(home: Home, corpus: str, rows: list[dict[str, str]]) -> None:
    """Make this stage's rows of the quarantine those of this run; a document without chunks is looked at each time."""
    before = home.tables.read(corpus, QUARANTINE, where=("stage", [STAGE])).to_pylist()
    if sorted(map(str, before)) != sorted(map(str, rows)):
        added = pa.Table.from_pylist(rows, schema=QUARANTINE.schema)
        home.tables.replace_rows(corpus, QUARANTINE, key="stage", removed=[STAGE] if before else [], added=added)


def _verify(
    home: Home, corpus: str, version: str, changed: set[str], total: int, quarantined: set[str]
) -> dict[str, dict[str, str]]:
    """Compare what was written with the documents it came from; faults by check and document.

    Rows of documents that did not change were verified when they were written; a fault is kept with them (`_mark`).
    """
    faults: dict[str, dict[str, str]] = {"geometry": {}, "cover": {}}
    looked_at = changed - quarantined
    if not looked_at:
        return faults
    columns = ["doc_id", "start", "end", "text", "literals_json"]
    written: dict[str, list[dict[str, Any]]] = {}
    few = len(looked_at) <= min(_FEW, max(1, total // 4))
    where = ("doc_id", sorted(looked_at)) if few else None
    for row in home.tables.read(corpus, CHUNKS, columns=columns, where=where).to_pylist():
        if row["doc_id"] in looked_at:
            written.setdefault(row["doc_id"], []).append(row)
    for document in _changed_documents(home, corpus, version, looked_at, total):
        rows = sorted(written.pop(document.doc_id, []), key=lambda row: int(row["start"]))
        if fault := cover_fault(document.text, rows):
            faults["cover"][document.doc_id] = fault
        if fault := geometry_fault(document.text, rows):
            faults["geometry"][document.doc_id] = fault
    return faults


def cover_fault(text: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how the chunks of a document fail to follow each other and cover it, or None."""
    position = 0
    for row in rows:
        if row["start"] != position:
            return f"a chunk begins at {row['start']} where {position} was next"
        if row["text"] != text[row["start"] : row["end"]]:
            return f"the chunk at {row['start']} is not its slice of the document"
        position = row["end"]
    return None if position == len(text) else f"the chunks end at {position} of {len(text)}"


def geometry_fault(text: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how the geometries in the chunks' own texts differ from those of the document, or None."""
    expected = [_shape_key(literal, 0) for literal in scan(text)]
    alone = len(rows) == 1 and rows[0]["text"] == text
    found = expected if alone else [_shape_key(literal, row["start"]) for row in rows for literal in scan(row["text"])]
    stored = [
        (item["start"], item["end"], item["kind"], item["wkt"])
        for row in rows
        for item in json.loads(row["literals_json"])
    ]
    for name, others in (("the chunks' own texts", found), ("the chunks' records", stored)):
        if others != expected:
            at = next((one[0] for one, other in zip(expected, others, strict=False) if one != other), None)
            where = f", first at {at}" if at is not None else ""
            return f"the document has {len(expected)} geometries and {name} have {len(others)}{where}"
    return None


def _shape_key(literal: GeometryLiteral, offset: int) -> tuple[int, int, str, str | None]:
    wkt = None if literal.geometry is None else literal.geometry.wkt
    return (literal.start + offset, literal.end + offset, literal.kind, wkt)


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
