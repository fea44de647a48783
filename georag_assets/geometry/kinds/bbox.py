"""Bounding boxes as four or six numbers under the name bbox or extent: `"bbox": [7, 46, 8, 47]`, `bbox=7,46,8,47`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import shapely

from georag_assets.geometry.kinds.kind import NUMBER
from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.shapes import box_shape

_BOX = re.compile(
    rf"(?<![\w])(?P<label>(?i:bbox|bounding[ _]box|extent)\\?[\"'`]?\s{{0,9}}[:=]\s{{0,9}})"
    rf"(?P<numbers>[\[(\s]{{0,9}}(?:{NUMBER}(?:\s{{0,9}},\s{{0,9}}|\s{{1,9}})){{3,5}}{NUMBER}[\s\])]{{0,9}})"
)
_NUMBER = re.compile(NUMBER)


@dataclass(frozen=True, slots=True)
class BoundingBox:
    """Boxes in GeoJSON order: west, south, (low), east, north, (high); one across the antimeridian is unwrapped."""

    name: str = "bbox"

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        for match in _BOX.finditer(text, start, end):
            literal = match["numbers"].rstrip()
            begin = match.start("numbers") + len(literal) - len(literal.lstrip())
            literal = literal.lstrip()
            numbers = [float(number) for number in _NUMBER.findall(literal)]
            if len(numbers) not in (4, 6):
                continue
            west, south, east, north = (*numbers[:2], *numbers[len(numbers) // 2 :][:2])
            flags: tuple[str, ...] = ("has_z",) if len(numbers) == 6 else ()
            degrees = max(abs(west), abs(east)) <= 180 and max(abs(south), abs(north)) <= 90
            if degrees and west > east:
                east, flags = east + 360, (*flags, "crosses_antimeridian")
            if south > north or west > east:
                geometry, flags = None, (*flags, "unreadable")
            else:
                box = box_shape if degrees else shapely.box
                geometry = box(west, south, east, north)
            yield GeometryLiteral(begin, begin + len(literal), self.name, literal, geometry, flags=flags)
