"""Find every geometry literal in a text: the map of what must not be cut.

What belongs here: running the registry of kinds over a text. What does not: notations (`geometry.kinds`).
"""

from __future__ import annotations

from georag_assets.geometry.kinds import KINDS
from georag_assets.geometry.literal import GeometryLiteral

SCAN_ALGORITHM = "scan-1:" + ",".join(kind.name for kind in KINDS)


def scan(text: str) -> tuple[GeometryLiteral, ...]:
    """Return the literals of `text`, sorted and disjoint.

    Kinds run in order of precedence; each reads only the gaps that the ones before it left, so that a list of vertices
    inside a polygon is not found a second time, and the whole stays linear in the text.
    """
    found: list[GeometryLiteral] = []
    gaps = [(0, len(text))]
    for kind in KINDS:
        new = [literal for start, end in gaps for literal in kind.find(text, start, end)]
        if new:
            found = sorted([*found, *new], key=lambda literal: literal.start)
            gaps = _gaps(found, len(text))
    return tuple(found)


def _gaps(found: list[GeometryLiteral], length: int) -> list[tuple[int, int]]:
    starts = [0, *(literal.end for literal in found)]
    ends = [*(literal.start for literal in found), length]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
