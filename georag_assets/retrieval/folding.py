"""Folding candidates that say the same of the same place, so that one passage does not fill the answer.

What belongs here: when two candidates are one. What does not: their order (`ranking`).

By geometry alone it would be wrong: 2,931 of 7,448 catalogue records share their exact box with another. By text alone
too: the sheets of a map series differ in nothing else. And texts that differ in a number (a year, a sheet) differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import Point

from georag_assets.geometry.distance import geodesic_m
from georag_assets.geometry.extent import bounds_of
from georag_assets.retrieval.settings import RankingSettings

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Foldable:
    """What folding compares: the passage, its revision, its geometry (None where it has none)."""

    text: str
    revision: str | None
    geometry: shapely.Geometry | None


def fold(candidates: Sequence[Foldable], settings: RankingSettings) -> list[tuple[int, ...]]:
    """Group candidates, given best first; each group in the place of its best member.

    Returns
    -------
    list
        Groups of positions in `candidates`; the first of a group stands for it: its newest revision, else its best.
        A candidate without geometry folds with none.
    """
    normal = [_SPACE.sub(" ", candidate.text).strip().casefold() for candidate in candidates]
    numbers = [tuple(_NUMBER.findall(text)) for text in normal]
    bounds = bounds_of(np.array([candidate.geometry for candidate in candidates], dtype=object))
    groups: list[list[int]] = []
    by_numbers: dict[tuple[str, ...], list[list[int]]] = {}
    for position in range(len(candidates)):
        like = by_numbers.setdefault(numbers[position], [])
        for group in like:
            first = group[0]
            if (
                _boxes_touch(bounds[first], bounds[position])
                and _same_text(normal[first], normal[position], settings.fold_text)
                and coincide(candidates[first].geometry, candidates[position].geometry, settings)
            ):
                group.append(position)
                break
        else:
            groups.append([position])
            like.append(groups[-1])
    return [_newest_first(group, candidates) for group in groups]


def coincide(a: shapely.Geometry | None, b: shapely.Geometry | None, settings: RankingSettings) -> bool:
    """Return whether two geometries are one place: areas that overlap nearly whole, anything else that is near."""
    if a is None or b is None or a.is_empty or b.is_empty:
        return False
    if a.equals_exact(b):
        return True
    if a.area > 0 and b.area > 0:
        union = shapely.union(a, b).area
        return bool(shapely.intersection(a, b).area / union >= settings.fold_overlap)
    if isinstance(a, Point) and isinstance(b, Point):
        return geodesic_m(a, b) <= settings.fold_distance_m
    return False


def _newest_first(group: list[int], candidates: Sequence[Foldable]) -> tuple[int, ...]:
    newest = max(group, key=lambda position: (candidates[position].revision or "", -position))
    return (newest, *(position for position in group if position != newest))


def _boxes_touch(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    # Points 50 m apart do not touch; a thousandth of a degree is more than that at any latitude that has land.
    margin = 1e-3 / max(0.05, float(np.cos(np.radians(np.nanmax(np.abs([a[1], b[1], 0.0]))))))
    return bool(a[0] <= b[2] + margin and b[0] <= a[2] + margin and a[1] <= b[3] + margin and b[1] <= a[3] + margin)


def _same_text(a: str, b: str, least: float) -> bool:
    if a == b:
        return True
    if min(len(a), len(b)) < least * max(len(a), len(b)):
        return False
    from rapidfuzz import fuzz

    return fuzz.ratio(a, b, score_cutoff=100 * least) > 0
