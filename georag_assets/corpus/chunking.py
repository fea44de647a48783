"""Cutting documents into chunks that sever no geometry and fit what the model reads.

What belongs here: where to cut under a budget, what a chunk needs from outside its slice, its identity. What does not:
markup (`structure`), the described form (`described`), tables of chunks (`chunk_stage`).
"""

from __future__ import annotations

import hashlib
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from georag_assets.corpus.described import DescribedText
from georag_assets.corpus.models import Chunk, Document
from georag_assets.corpus.structure import ITEM, PARAGRAPH, SECTION, Structure, fine_breaks, read_structure
from georag_assets.corpus.tokens import Tokenizer
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.scan import SCAN_ALGORITHM, scan

CHUNKING_ALGORITHM = f"chunking-2/{SCAN_ALGORITHM}"

Unit = Literal["feature", "section", "document"]

_NAMESPACE = uuid.UUID("6f1d2f0e-3c55-5e0b-9d0c-7a9c9c1d5b11")
_FULL_ENOUGH = 0.4  # a stronger break is taken only where the chunk fills this share of its room
_LONGEST_SLICE = 24_000  # code points: a table of coordinates has few words and no end
_TOKENS_PER_CHARACTER = 8  # no literal of more than 8 characters a token of the budget can fit it


def chunk_document(
    document: Document,
    *,
    corpus: str,
    unit: Unit,
    budget: int,
    tokenizer: Tokenizer,
    literals: Sequence[GeometryLiteral] | None = None,
) -> list[Chunk]:
    """Return the chunks of a document, in order; they cover it whole and cut no geometry literal.

    Parameters
    ----------
    corpus
        Name of the corpus, part of each chunk's identity.
    unit
        `document` cuts only over the budget; `section` at every heading too; `feature` before each feature with a
        geometry of its own as well.
    budget
        Tokens of context and described text, specials included; never more than the model reads.
    literals
        The document's literals where they are known already.
    """
    text = document.text
    if not text:
        return []
    literals = scan(text) if literals is None else literals
    budget = min(budget, tokenizer.max_tokens)
    cutter = _Cutter(document, literals, unit, budget, tokenizer)
    spans = cutter.spans()
    occurrences: Counter[str] = Counter()
    chunks = []
    first = 0
    starts = [literal.start for literal in literals]
    for start, end, context in spans:
        last = bisect_left(starts, end, first)
        inside = tuple(literals[first:last])
        first = last
        chunks.append(_chunk(cutter, corpus, start, end, context, inside, occurrences, whole=len(spans) == 1))
    return chunks


def chunk_text(text: str, *, unit: Unit = "document", budget: int = 256, tokenizer: Tokenizer) -> list[Chunk]:
    """Return the chunks of a bare text."""
    document = Document("", text, "", "", "", "text/plain", hashlib.sha256(_bytes(text)).hexdigest())
    return chunk_document(document, corpus="", unit=unit, budget=budget, tokenizer=tokenizer)


def chunk_id(
    corpus: str, doc_id: str, feature_ids: Sequence[str], text: str, geometry_wkb: bytes | None, occurrence: int
) -> str:
    """Return the identity of a chunk: its content and source, never its position; blanks at its ends do not count."""
    digest = hashlib.sha256(_bytes(text.strip()) + b"\0" + (geometry_wkb or b"")).hexdigest()
    name = "\x1f".join((corpus, doc_id, *feature_ids, digest, str(occurrence)))
    return str(uuid.uuid5(_NAMESPACE, name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _chunk(
    cutter: _Cutter,
    corpus: str,
    start: int,
    end: int,
    context: str,
    literals: tuple[GeometryLiteral, ...],
    occurrences: Counter[str],
    *,
    whole: bool,
) -> Chunk:
    document, tokenizer = cutter.document, cutter.tokenizer
    text = document.text[start:end]
    described = cutter.described.render(start, end).strip()
    embedded = f"{context}\n{described}" if context else described
    tokens = cutter.count(start, end, context, embedded)
    own = any(literal.geometry is not None and not literal.geometry.is_empty for literal in literals)
    inherited = document.geometry_wkb is not None and not own
    of_literals = tuple(dict.fromkeys(one.feature_id for one in literals if one.feature_id is not None))
    feature_ids = of_literals or document.feature_ids
    geometry = document.geometry_wkb if inherited else None
    key = chunk_id(corpus, document.doc_id, feature_ids, text, geometry, 0)
    occurrence = occurrences[key]
    occurrences[key] += 1
    flags = []
    over = tokens > cutter.budget
    if over or any(cutter.is_oversize(literal) for literal in literals):
        flags.append("oversize")
    if whole and over:
        flags.append("whole_document")
    if tokens > tokenizer.max_tokens:
        flags.append("truncated")
    return Chunk(
        chunk_id(corpus, document.doc_id, feature_ids, text, geometry, occurrence) if occurrence else key,
        document.doc_id,
        start,
        end,
        text,
        cutter.unit,
        context,
        embedded,
        tokens,
        tuple(flags),
        feature_ids,
        literals,
        inherited,
    )


@dataclass(slots=True)
class _Places:
    """Offsets where a piece may begin, the end of the text last; how strong each is and what stands before it."""

    positions: list[int]
    strengths: list[int]
    reached: NDArray[np.int64]  # cost of all up to here, runs begun before here counted
    passed: NDArray[np.int64]  # the same with only those runs counted that have ended


class _Cutter:
    """One document's pass: places first, then spans under the budget."""

    def __init__(
        self, document: Document, literals: Sequence[GeometryLiteral], unit: Unit, budget: int, tokenizer: Tokenizer
    ) -> None:
        self.document, self.literals, self.unit = document, literals, unit
        self.budget, self.tokenizer = budget, tokenizer
        self.structure: Structure = read_structure(document.text)
        self.described = DescribedText(document.text, literals, tokenizer)
        self._ends = [literal.end for literal in literals]
        self._contexts: dict[str, int] = {"": tokenizer.specials}

    def is_oversize(self, literal: GeometryLiteral) -> bool:
        """Tell whether a literal alone, as it stands in the text, has more tokens than the budget."""
        length = len(literal.literal)
        if length <= self.budget or "single_axis" in literal.flags:
            return False
        return length > self.budget * _TOKENS_PER_CHARACTER or self.tokenizer.count(literal.literal) > self.budget

    def count(self, start: int, end: int, context: str, embedded: str) -> int:
        """Return the tokens of a chunk's embedded text, from the document's where those tell."""
        if not self.tokenizer.additive or self.described.has_run(start, end):
            return self.tokenizer.count(embedded)
        first, last = self.described.tokens_before((start, end)).tolist()
        return int(self._contexts[context] + last - first)

    def spans(self) -> list[tuple[int, int, str]]:
        """Return (start, end, context) of every chunk."""
        places = self._places()
        hard = self._hard(places)
        spans = []
        index, begin = -1, 0  # index of the place where the piece begins; -1 is the text's beginning
        while begin < len(self.document.text):
            context, room = self._context(begin)
            stop = self._stop(places, index, begin, room, hard)
            spans.append((begin, places.positions[stop], context))
            index, begin = stop, places.positions[stop]
        return spans

    def _stop(self, places: _Places, index: int, begin: int, room: int, hard: list[int]) -> int:
        """Return the index of the place where the piece that begins at `index` ends."""
        base = int(places.passed[index]) if index >= 0 else 0
        limit = hard[bisect_right(hard, index)]
        furthest = int(np.searchsorted(places.reached, base + room, side="right")) - 1
        furthest = min(furthest, bisect_right(places.positions, begin + _LONGEST_SLICE) - 1)
        if furthest >= limit:
            return limit
        if furthest <= index:
            return index + 1
        enough = int(np.searchsorted(places.reached, base + room * _FULL_ENOUGH, side="left"))
        window = range(max(index + 1, min(enough, furthest)), furthest + 1)
        return max(window, key=lambda place: (places.strengths[place], place))

    def _places(self) -> _Places:
        breaks = self.structure.breaks
        for literal in self.literals:
            if literal.feature_id is not None or literal.literal.startswith("{"):
                breaks.setdefault(literal.start, ITEM)  # collections on one line are cut between their features
        breaks.pop(0, None)
        places = self._measured(breaks)
        costs = np.diff(places.reached, prepend=0)
        crowded = np.flatnonzero(costs > self.budget * 0.45)
        if crowded.size == 0:
            return places
        fine = dict(breaks)
        for place in crowded.tolist():
            start = places.positions[place - 1] if place else 0
            for position, strength in fine_breaks(self.document.text, start, places.positions[place], self.structure):
                fine.setdefault(position, strength)
        return self._measured(fine)

    def _measured(self, breaks: dict[int, int]) -> _Places:
        length = len(self.document.text)
        # Blanks before the first word are no piece of their own: nothing could ever find one.
        blank = length - len(self.document.text.lstrip())
        positions = sorted(place for place in breaks if blank < place < length and not self._severs(place))
        strengths = [breaks[place] for place in positions] + [SECTION]
        positions.append(length)
        tokens = self.described.tokens_before(positions)
        begun, ended = self.described.runs_before(positions)
        cost = self.described.run_cost
        return _Places(positions, strengths, tokens + cost * begun, tokens + cost * ended)

    def _severs(self, position: int) -> bool:
        index = bisect_right(self._ends, position)
        return index < len(self.literals) and self.literals[index].start < position

    def _hard(self, places: _Places) -> list[int]:
        """Return the places that every chunk must end at, the end of the text among them."""
        last = len(places.positions) - 1
        if self.unit == "document":
            return [last]
        hard = {place for place in range(last) if places.strengths[place] == SECTION}
        if self.unit == "feature":
            hard |= self._features(places)
        return [*sorted(hard), last]

    def _features(self, places: _Places) -> set[int]:
        """Return the places where a block with a geometry of its own begins."""
        blocks = [place for place in range(len(places.positions) - 1) if places.strengths[place] in (ITEM, PARAGRAPH)]
        positions = [places.positions[place] for place in blocks]
        found = set()
        for literal in self.literals:
            if literal.geometry is None or self.described.has_run(literal.start, literal.end):
                continue
            block = bisect_right(positions, literal.start) - 1
            if block >= 0:
                found.add(blocks[block])
        return found

    def _context(self, begin: int) -> tuple[str, int]:
        """Return what a piece that begins here needs from outside, and the tokens that are left for the piece."""
        lines = self._lines_above(begin)
        while lines:
            context = "\n".join(lines)
            cost = self._contexts.get(context)
            if cost is None:
                cost = self._contexts[context] = self.tokenizer.count(context + "\n")
            if cost <= self.budget // 2:
                return context, self.budget - cost
            shortest = max(range(len(lines)), key=lambda line: len(lines[line]))
            half = lines[shortest][: len(lines[shortest]) // 2].rstrip()
            lines = [*lines[:shortest], *([half] if len(half) > 20 else []), *lines[shortest + 1 :]]
        return "", self.budget - self.tokenizer.specials

    def _lines_above(self, begin: int) -> list[str]:
        structure, title = self.structure, self.document.title.strip()
        path = list(structure.path(begin))
        # A record without a title has its id in that place, which says nothing of the text.
        if title and title != self.document.doc_id and begin > 0 and title not in path:
            path.insert(0, title)
        header = structure.table_header(begin)
        lead_in = structure.lead_in(begin)
        return [*([" > ".join(path)] if path else []), *header.splitlines(), *([lead_in] if lead_in else [])]
