"""Chunking beside langchain-text-splitters: literals cut, slices, cover, tokens never embedded, speed on one core.

`python -m benchmarks.chunking [--json] [--quick]`. Every text set of the shared data is chunked by us and by
`RecursiveCharacterTextSplitter` with the same tokenizer and budget, in the same process, timed by processor time.
A literal counts as cut where no chunk holds it whole; literals are found by our own scan, and by detectors written
here from other means (a walk over parentheses read by shapely, `json.raw_decode`, plain patterns).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import shapely
from shapely.errors import GEOSException

from benchmarks.report import Report, data_folder, run

BUDGET = 256
CHARACTERS = 1000  # about 256 tokens of prose
_SUFFIXES = {".md", ".mkd", ".adoc", ".rst", ".txt", ".geojson", ".json", ".yaml", ".tsv"}
_RECORDS = {
    "wiktor/wiktor.jsonl.gz": ("text",),
    "stanford_ogm/docs.jsonl.gz": ("title", "description"),
    "pleiades/pleiades.jsonl.gz": ("title", "description"),
    "crs_mentions/crs_mentions.jsonl.gz": ("text",),
    "geovirus/geovirus.jsonl.gz": ("text",),
    "groundedgeo/groundedgeo.jsonl.gz": ("query_text",),
    "geoquestions1089/geoquestions1089.jsonl.gz": ("Question",),
}

Span = tuple[int, int]


@dataclass
class Tally:
    """Counts over the documents of one set."""

    documents: int = 0
    characters: int = 0
    seconds: float = 0.0
    chunks: int = 0
    literals: int = 0
    cut: int = 0
    others: int = 0
    others_cut: int = 0
    not_slices: int = 0
    not_covered: int = 0
    malformed: int = 0
    tokens: int = 0
    never: int = 0
    peers: dict[str, list[float]] = field(
        default_factory=dict
    )  # seconds, literals cut, found by the other detectors cut


def texts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (set, name, text) of every text in the shared data."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in _SUFFIXES and path.name != "SOURCES.md":
            yield path.relative_to(folder).parts[0], name, path.read_text(encoding="utf-8", errors="replace")
        elif name in _RECORDS:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    record = json.loads(line)
                    parts = [record.get(column) or "" for column in _RECORDS[name]]
                    yield path.relative_to(folder).parts[0], f"{name}#{number}", "\n\n".join(filter(None, parts))


_WKT_HEAD = re.compile(r"\b(?:MULTI)?(?:POINT|LINESTRING|POLYGON)\s*(?:ZM|Z|M)?\s*\(+\s*-?\d|GEOMETRYCOLLECTION\s*\(")
_PLAIN = (
    re.compile(r"\d{1,3} ?[°º] ?\d{1,2}(?:[.,]\d+)? ?['′´’](?: ?\d{1,2}(?:[.,]\d+)? ?(?:''|[\"″”]))? ?[NSEW]\b"),
    re.compile(r"\(-?\d{1,2}\.\d{3,}, ?-?\d{1,3}\.\d{3,}\)"),
    re.compile(r"\b\d{7}\.\d ?\| ?\d{7}\.\d"),
)
_JSON_HEAD = re.compile(r"\{\s*\"(?:type|id|coordinates|geometry)\"")


def other_literals(text: str) -> list[Span]:
    """Find geometries by means that share nothing with the scanner under test."""
    spans = [match.span() for pattern in _PLAIN for match in pattern.finditer(text)]
    spans += [span for head in _WKT_HEAD.finditer(text) if (span := _well_known(text, head.start()))]
    decoder = json.JSONDecoder()
    reach = 0
    for head in _JSON_HEAD.finditer(text):
        if head.start() < reach:
            continue
        try:
            record, reach = decoder.raw_decode(text, head.start())
        except (ValueError, RecursionError):
            continue
        if record.get("type") == "FeatureCollection":
            reach = head.end()  # it is cut between its features, which come next
        elif isinstance(record.get("coordinates"), list) or isinstance(record.get("geometry"), dict):
            spans.append((head.start(), reach))
    return spans


def _well_known(text: str, start: int) -> Span | None:
    depth = 0
    for position in range(text.index("(", start), min(len(text), start + 100_000)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            try:
                shapely.from_wkt(text[start : position + 1])
            except GEOSException:
                return None
            return start, position + 1
    return None


def severed(spans: Sequence[Span], chunks: Sequence[Span]) -> int:
    """Count the spans that no chunk holds whole; chunks are in order of their start."""
    starts = [start for start, _ in chunks]
    cut = 0
    for start, end in spans:
        index = bisect_right(starts, start) - 1
        cut += not (index >= 0 and end <= chunks[index][1])
    return cut


def measure(report: Report, quick: bool) -> None:
    """Chunk every text set and fill the report."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    from georag_assets.corpus.tokens import ModelTokenizer

    tokenizer = ModelTokenizer.load("all-MiniLM-L6-v2")
    peers = {
        "langchain, tokens": RecursiveCharacterTextSplitter(
            chunk_size=BUDGET, chunk_overlap=0, length_function=tokenizer.count, add_start_index=True
        ),
        "langchain, characters": RecursiveCharacterTextSplitter(
            chunk_size=CHARACTERS, chunk_overlap=0, add_start_index=True
        ),
    }
    splitters: dict[str, Callable[[str], list[Span]]] = {
        name: lambda text, peer=peer: [  # type: ignore[misc]
            (part.metadata["start_index"], part.metadata["start_index"] + len(part.page_content))
            for part in peer.create_documents([text])
        ]
        for name, peer in peers.items()
    }
    tallies: dict[str, Tally] = {}
    for position, (name, source, text) in enumerate(texts(data_folder())):
        tally = tallies.setdefault(name, Tally())
        # Records are many and alike; the files are where the geometry is.
        step = (200 if "#" in source else 3) if quick else 1
        if text and position % step == 0:
            _one(tally, source, text, tokenizer, splitters)
    _rows(report, tallies, list(splitters))


def _one(
    tally: Tally, source: str, text: str, tokenizer: object, splitters: dict[str, Callable[[str], list[Span]]]
) -> None:
    from georag_assets.corpus.chunking import chunk_document
    from georag_assets.corpus.models import Document
    from georag_assets.corpus.tokens import ModelTokenizer
    from georag_assets.geometry.scan import scan

    assert isinstance(tokenizer, ModelTokenizer)
    unit = "document" if "#" in source else "section"
    document = Document(source, text, "", source, source, "text/plain", "")
    started = time.process_time()
    chunks = chunk_document(document, corpus="benchmark", unit=unit, budget=BUDGET, tokenizer=tokenizer)  # type: ignore[arg-type]
    tally.seconds += time.process_time() - started
    literals = scan(text)
    spans = [(chunk.start, chunk.end) for chunk in chunks]
    own, others = [(literal.start, literal.end) for literal in literals], other_literals(text)
    tally.documents += 1
    tally.characters += len(text)
    tally.chunks += len(chunks)
    tally.literals += len(own)
    tally.others += len(others)
    tally.cut += severed(own, spans)
    tally.others_cut += severed(others, spans)
    tally.malformed += any("malformed" in literal.flags for literal in literals)
    tally.not_slices += sum(chunk.text != text[chunk.start : chunk.end] for chunk in chunks)
    tally.not_covered += "".join(chunk.text for chunk in chunks) != text
    tally.tokens += sum(chunk.token_count for chunk in chunks)
    tally.never += sum(max(0, chunk.token_count - tokenizer.max_tokens) for chunk in chunks)
    for name, split in splitters.items():
        started = time.process_time()
        parts = split(text)
        figures = tally.peers.setdefault(name, [0.0, 0, 0])
        figures[0] += time.process_time() - started
        figures[1] += severed(own, parts)
        figures[2] += severed(others, parts)


def _rows(report: Report, tallies: dict[str, Tally], peers: list[str]) -> None:
    every = list(tallies.values())
    report.context["sets"] = {
        name: f"{tally.documents} documents, {tally.characters / 1e6:.2f} M characters, {tally.literals} literals"
        for name, tally in tallies.items()
    }
    report.at_most("literals cut, found by our scan", 0, sum(tally.cut for tally in every), "literals")
    report.at_most("literals cut, found by other means", 0, sum(tally.others_cut for tally in every), "literals")
    report.compare("literals found by our scan", sum(tally.literals for tally in every), "literals")
    report.compare("literals found by other means", sum(tally.others for tally in every), "literals")
    chunks = sum(tally.chunks for tally in every)
    documents = sum(tally.documents for tally in every)
    slices = 100 * (1 - sum(tally.not_slices for tally in every) / chunks)
    covered = 100 * (1 - sum(tally.not_covered for tally in every) / documents)
    report.at_least("chunks that equal their slice", 100, slices, "%")
    report.at_least("documents covered whole", 100, covered, "%")
    for name in ("ava", "laws"):
        share = 100 * tallies[name].never / tallies[name].tokens
        report.at_most(f"tokens never embedded, {name}", 5, share, "%")
    total = 100 * sum(tally.never for tally in every) / sum(tally.tokens for tally in every)
    report.compare("tokens never embedded, all sets", total, "%")
    characters = sum(tally.characters for tally in every) / 1e6
    ours = characters / sum(tally.seconds for tally in every)
    theirs = {name: characters / sum(tally.peers[name][0] for tally in every if tally.peers) for name in peers}
    report.at_least("speed, scan and chunk, beside langchain by tokens", 1, ours / theirs[peers[0]], "ratio")
    report.compare("speed, ours", ours, "M characters/s")
    for name in peers:
        report.compare(f"speed, {name}", theirs[name], "M characters/s")
    for name in peers:
        cut = sum(int(tally.peers[name][1]) for tally in every if tally.peers)
        others = sum(int(tally.peers[name][2]) for tally in every if tally.peers)
        report.compare(f"literals cut by {name}", cut, "literals")
        report.compare(f"literals cut by {name}, found by other means", others, "literals")
    report.compare("documents with a malformed literal", sum(tally.malformed for tally in every), "documents")


if __name__ == "__main__":
    run("chunking", measure, packages=("langchain-text-splitters", "tokenizers", "shapely"))
