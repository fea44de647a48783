"""What a kind of literal is, and the numbers and checks that several kinds share.

What belongs here: the `LiteralKind` protocol, `finish` and the finiteness and closure rules. What does not: notations
(one module each).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.literal import GeometryLiteral

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


class LiteralKind(Protocol):
    """A notation of geometry in text.

    `find` reads `text[start:end]` and yields disjoint literals in order; it sees nothing that an earlier kind of the
    registry took. It must run in time linear in its part of the text, whatever is in it.
    """

    @property
    def name(self) -> str:
        """The kind's name, as literals carry it."""
        ...

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`, with offsets into `text`."""
        ...


def flat(geometry: BaseGeometry) -> tuple[BaseGeometry, tuple[str, ...]]:
    """Return the shape in two dimensions and flags for what was dropped or is missing."""
    flags: tuple[str, ...] = ()
    if geometry.has_z:
        flags += ("has_z",)
    if getattr(geometry, "has_m", False):
        flags += ("has_m",)
    if geometry.is_empty:
        flags += ("empty",)
    return shapely.force_2d(geometry), flags


def finite(geometry: BaseGeometry) -> bool:
    """Tell whether every coordinate is a finite number."""
    coordinates = shapely.get_coordinates(geometry)
    return bool(math.isfinite(float(coordinates.sum()))) if coordinates.size else True


def closed(ring: Sequence[Sequence[float]]) -> bool:
    """Tell whether a ring ends where it begins."""
    return not ring or list(ring[0][:2]) == list(ring[-1][:2])
