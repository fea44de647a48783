"""Coordinate tables: rows of cells between pipes (Markdown, reStructuredText grids, AsciiDoc) with pairs of numbers.

What belongs here: which cells of a row are coordinates, by header or by magnitude. What does not: where tables begin
for chunking (`corpus.structure`), angles in cells (`dms`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import shapely

from georag_assets.geometry.literal import GeometryLiteral

_ROW = re.compile(r"^[^\n|]{0,80}\|[^\n]{0,20000}$", re.MULTILINE)  # longer lines are no rows
_CELL = re.compile(r"[^|]+")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:[ '’\u00a0\u202f]\d{3}){1,2}|\d{1,8})(?:[.,]\d{1,15})?")
_SEPARATOR = re.compile(r"[\s|:+=-]*")
_EAST = re.compile(r"(?i:east|ost|rechts|lon|länge|laenge)|^\W*[EY]\b|^\W*x\b|^\W*y\b(?=.*rechts)")
_NORTH = re.compile(r"(?i:north|nord|hoch|lat|breite)|^\W*N\b")
_DIGIT = re.compile(r"\|\s*[-+]?\d")


@dataclass(frozen=True, slots=True)
class _Cell:
    start: int
    end: int
    value: float
    decimals: int


@dataclass(frozen=True, slots=True)
class CoordinateTable:
    """The coordinate cells of one row are one literal, from the first to the last: a point, or one for each pair.

    Neighbouring cells are a pair where their header names an axis each, where both are numbers of six digits or more
    (metres), or where both have three decimals and can be degrees. In German Gauss-Krueger tables Y is the easting
    (Rechtswert) and stands first.
    """

    name: str = "coordinate_table"

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        if not _DIGIT.search(text, start, end):
            return
        axes: dict[int, str] = {}
        previous_end = -1
        for row in _ROW.finditer(text, start, end):
            if row.start() > previous_end + 1:
                axes = {}
            previous_end = row.end()
            cells = [cell for cell in _CELL.finditer(text, row.start(), row.end()) if cell[0].strip()]
            numbers = {index: number for index, cell in enumerate(cells) if (number := _number(cell)) is not None}
            if not numbers:
                if not _SEPARATOR.fullmatch(row[0]):
                    axes = _axes([cell[0] for cell in cells]) or axes
                continue
            literal = self._literal(text, numbers, axes)
            if literal is not None:
                yield literal

    def _literal(self, text: str, numbers: dict[int, _Cell], axes: dict[int, str]) -> GeometryLiteral | None:
        pairs: list[tuple[float, float]] = []
        used: list[_Cell] = []
        flags: set[str] = set()
        index, last = 0, max(numbers)
        while index <= last:
            first, second = numbers.get(index), numbers.get(index + 1)
            named = {axes.get(index), axes.get(index + 1)} == {"east", "north"}
            index += 1
            if first is None or second is None or not (named or _metres(first, second) or _degrees(first, second)):
                continue
            northing_first = axes.get(index - 1) == "north" if named else not _metres(first, second)
            if not named:
                flags.add("axis_order_assumed")
            pairs.append((second.value, first.value) if northing_first else (first.value, second.value))
            used += [first, second]
            index += 1
        if not pairs:
            return None
        start, end = used[0].start, used[-1].end
        geometry = shapely.Point(pairs[0]) if len(pairs) == 1 else shapely.MultiPoint(pairs)
        return GeometryLiteral(start, end, self.name, text[start:end], geometry, flags=tuple(sorted(flags)))


def _number(cell: re.Match[str]) -> _Cell | None:
    digits = cell[0].strip()
    if not _NUMBER.fullmatch(digits):
        return None
    start = cell.start() + len(cell[0]) - len(cell[0].lstrip())
    plain = re.sub(r"[ '’\u00a0\u202f]", "", digits).replace(",", ".")
    return _Cell(start, start + len(digits), float(plain), len(plain.partition(".")[2]))


def _axes(headers: list[str]) -> dict[int, str]:
    axes = {}
    for index, header in enumerate(headers):
        if _EAST.search(header.strip()):
            axes[index] = "east"
        elif _NORTH.search(header.strip()):
            axes[index] = "north"
    return axes if {"east", "north"} <= set(axes.values()) else {}


def _metres(first: _Cell, second: _Cell) -> bool:
    return all(100_000 <= abs(cell.value) < 100_000_000 for cell in (first, second))


def _degrees(first: _Cell, second: _Cell) -> bool:
    exact = first.decimals >= 3 and second.decimals >= 3
    return exact and max(abs(first.value), abs(second.value)) <= 180 and min(abs(first.value), abs(second.value)) <= 90
