"""A text as the model reads it: geometry described in words, rules and blanks shortened, and its tokens counted.

What belongs here: the map between offsets of the text and of its described form. What does not: where to cut
(`structure`, `chunking`), the words for one shape (`geometry.describe`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from georag_assets.corpus.structure import LONG_RUN, shorter
from georag_assets.corpus.tokens import Tokenizer
from georag_assets.geometry.describe import describe, describe_shape
from georag_assets.geometry.literal import GeometryLiteral

_TABLE = "coordinate_table"
_FILLER = re.compile(r"[\s|:\d.,+=-]{0,4000}")


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of coordinates with nothing but numbers and rules between them: described together, once in each chunk."""

    start: int
    end: int
    members: tuple[GeometryLiteral, ...]


class DescribedText:
    """The described form of one text.

    Descriptions depend on the literal alone, except for runs of coordinate rows: those have no words here and are
    described when a slice is rendered, for the rows in that slice.
    """

    def __init__(self, text: str, literals: Sequence[GeometryLiteral], tokenizer: Tokenizer) -> None:
        self.runs = _runs(text, literals)
        in_run = {literal.start for run in self.runs for literal in run.members}
        changes = [(run.start, run.end, "") for run in self.runs]
        changes += [(one.start, one.end, describe(one)) for one in literals if one.start not in in_run]
        changes.sort()
        changes = _with_shortened(text, changes)
        self._starts = [start for start, _, _ in changes]
        self._ends = [end for _, end, _ in changes]
        self.text, self._shifts = _apply(text, changes)
        self._run_starts = [run.start for run in self.runs]
        self._run_ends = [run.end for run in self.runs]
        # A run costs what its description costs, and those differ by a few digits only.
        self.run_cost = max((tokenizer.count(_words(run.members)) + 6 for run in self.runs), default=0)
        self._token_starts: NDArray[np.int64] = np.array([s for s, _ in tokenizer.offsets(self.text)], dtype=np.int64)

    def place(self, position: int) -> int:
        """Return the offset in the described text of an offset in the text."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position == self._starts[index]:
            index -= 1  # what begins here still lies after
        elif index >= 0 and position < self._ends[index]:
            position = self._ends[index]
        return position + (self._shifts[index] if index >= 0 else 0)

    def tokens_before(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return how many tokens of the described text begin before each offset of the text."""
        places = np.array([self.place(position) for position in positions], dtype=np.int64)
        return np.searchsorted(self._token_starts, places, side="left").astype(np.int64)

    def runs_before(self, positions: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many runs begin before each offset, and how many have ended by it."""
        at = np.array(positions, dtype=np.int64)
        begun = np.searchsorted(np.array(self._run_starts, dtype=np.int64), at, side="left")
        ended = np.searchsorted(np.array(self._run_ends, dtype=np.int64), at, side="right")
        return begun.astype(np.int64), ended.astype(np.int64)

    def render(self, start: int, end: int) -> str:
        """Return the described form of `text[start:end]`."""
        first = bisect_right(self._run_ends, start)
        last = bisect_left(self._run_starts, end)
        pieces, position = [], self.place(start)
        for run in self.runs[first:last]:
            inside = tuple(literal for literal in run.members if start <= literal.start < end)
            at = max(position, self.place(max(run.start, start)))
            pieces += [self.text[position:at], _words(inside)] if inside else [self.text[position:at]]
            position = at
        pieces.append(self.text[position : self.place(end)])
        return "".join(pieces)

    def has_run(self, start: int, end: int) -> bool:
        """Tell whether rows described together lie in `text[start:end]`."""
        return bisect_right(self._run_ends, start) < bisect_left(self._run_starts, end)


def _words(members: Sequence[GeometryLiteral]) -> str:
    shapes = [literal.geometry for literal in members if literal.geometry is not None]
    points = shapely.MultiPoint(shapely.get_coordinates(shapes))
    return f" table of {describe_shape(points, degrees=False)} "


def _runs(text: str, literals: Sequence[GeometryLiteral]) -> list[_Run]:
    runs: list[_Run] = []
    members: list[GeometryLiteral] = []
    for literal in [*literals, None]:
        joined = (
            literal is not None
            and literal.kind == _TABLE
            and bool(members)
            and bool(_FILLER.fullmatch(text, members[-1].end, literal.start))
        )
        if joined and literal is not None:
            members.append(literal)
            continue
        if len(members) > 1:
            runs.append(_Run(members[0].start, members[-1].end, tuple(members)))
        members = [literal] if literal is not None and literal.kind == _TABLE else []
    return runs


def _with_shortened(text: str, changes: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Add what shortens rules and blanks between the changes."""
    found: list[tuple[int, int, str]] = []
    position = 0
    for start, end, words in [*changes, (len(text), len(text), "")]:
        found += [(match.start(), match.end(), shorter(match)) for match in LONG_RUN.finditer(text, position, start)]
        if start < len(text):
            found.append((start, end, words))
        position = end
    return found


def _apply(text: str, changes: list[tuple[int, int, str]]) -> tuple[str, list[int]]:
    """Return the changed text, and by how much an offset after each change has moved."""
    pieces, shifts, position, shift = [], [], 0, 0
    for start, end, words in changes:
        pieces += [text[position:start], words]
        shift += len(words) - (end - start)
        shifts.append(shift)
        position = end
    pieces.append(text[position:])
    return "".join(pieces), shifts
