"""What a search must satisfy, as conditions that any store can compile: the forms that miss nothing.

What belongs here: the neutral condition tree, size classes, and the forms of a `SearchFilter` (ranges, size classes,
ids). What does not: the exact predicate (`geometry.region`), the choice of a form (`planner`), engine types
(`embedded`).

A filter by centre point loses every extent whose centre lies outside the region. Four ranges on the extent lose none;
size classes are the same answer found through the geo index: a point of class k has its centre inside the region's
box grown by the class's half size. Longitudes compare modulo 360, so each range is or-ed over -360, 0 and +360.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from georag_assets.errors import QueryError
from georag_assets.geometry.extent import Extent
from georag_assets.index.models import SearchFilter
from georag_assets.index.payload import EQUALS_FIELDS

# Upper half sizes in degrees; one class more holds what is larger than the last.
HALF_SIZES: tuple[float, ...] = (0.002, 0.02, 0.1, 0.5, 2.0, 8.0)
SHIFTS = (-360.0, 0.0, 360.0)
# Boxes are loose: the exact predicate decides at edges, so rounding may only ever let in too much.
SLACK = 1e-9
# The engine's geo box is edge-exclusive and refuses latitudes beyond 90: centres are kept off the poles and off the
# antimeridian by CENTRE_INSET, and every box grows by twice that.
CENTRE_INSET = 0.01
GROWTH = 2 * CENTRE_INSET
# Beyond these the engine's indexed geo box silently loses points (seen from about 300 by 170 degrees).
MAX_BOX_WIDTH, MAX_BOX_HEIGHT = 270.0, 120.0


@dataclass(frozen=True, slots=True)
class Between:
    """`field` holds a number from `low` to `high`; a strict end is exclusive, None is open."""

    field: str
    low: float | None = None
    high: float | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CentreIn:
    """The centre `location` lies in a box; `east` < `west` where it crosses the antimeridian."""

    west: float
    south: float
    east: float
    north: float


@dataclass(frozen=True, slots=True)
class Is:
    """`field` equals a value."""

    field: str
    value: str | int


@dataclass(frozen=True, slots=True)
class Ids:
    """The point is one of these."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every condition holds."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one condition holds."""

    conditions: tuple[Condition, ...]


Condition: TypeAlias = Between | CentreIn | Is | Ids | AllOf | AnyOf


def extent_classes(extents: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the size class of each (west, south, east, north) row; rows of NaN get the last class."""
    half = np.maximum(extents[:, 2] - extents[:, 0], extents[:, 3] - extents[:, 1]) / 2
    return np.searchsorted(np.asarray(HALF_SIZES), half, side="left").astype(np.int64)


def centres(extents: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each extent's centre (lon, lat), wrapped, kept `CENTRE_INSET` off the poles and the antimeridian."""
    lon = ((extents[:, 0] + extents[:, 2]) / 2 + 180.0) % 360.0 - 180.0
    lat = (extents[:, 1] + extents[:, 3]) / 2
    lon = np.clip(lon, -180.0 + CENTRE_INSET, 180.0 - CENTRE_INSET)
    return np.column_stack([lon, np.clip(lat, -90.0 + CENTRE_INSET, 90.0 - CENTRE_INSET)])


def shifted_ranges(box: Extent) -> Iterator[tuple[float, float]]:
    """Yield (lowest east, highest west) of the extents that meet the box's longitudes, for each shift that can.

    An extent has west in [-180, 180) and east from west to west + 360.
    """
    for shift in SHIFTS:
        lowest_east, highest_west = box.west + shift - SLACK, box.east + shift + SLACK
        if highest_west >= -180.0 and lowest_east <= 540.0:
            yield lowest_east, highest_west


def _ranges(box: Extent) -> Condition:
    longitudes = tuple(
        AllOf((Between("west", high=highest_west), Between("east", low=lowest_east)))
        for lowest_east, highest_west in shifted_ranges(box)
    )
    latitudes = (Between("south", high=box.north + SLACK), Between("north", low=box.south - SLACK))
    return AllOf((AnyOf(longitudes), *latitudes))


def _wrapped(longitude: float) -> float:
    return (longitude + 180.0) % 360.0 - 180.0


def _class_box(box: Extent, half: float) -> CentreIn | None:
    """Return the box grown by a class's half size; None where the engine's geo box cannot be trusted with it."""
    grow = half + GROWTH
    width, height = box.east - box.west + 2 * grow, box.north - box.south + 2 * grow
    if width > MAX_BOX_WIDTH or height > MAX_BOX_HEIGHT:
        return None
    return CentreIn(
        _wrapped(box.west - grow),
        max(box.south - grow, -90.0),
        _wrapped(box.east + grow),
        min(box.north + grow, 90.0),
    )


def _classes(box: Extent) -> Condition:
    found: list[Condition] = []
    for size_class, half in enumerate((*HALF_SIZES, None)):
        centre = None if half is None else _class_box(box, half)
        of_class = Is("extent_class", size_class)
        found.append(of_class if centre is None else AllOf((of_class, centre)))
    return AllOf((AnyOf(tuple(found)), _ranges(box)))


def is_broad(boxes: Sequence[Extent]) -> bool:
    """Whether a region's boxes are too wide or high for the geo index, so that ranges alone answer."""
    return any(box.east - box.west > MAX_BOX_WIDTH or box.north - box.south > MAX_BOX_HEIGHT for box in boxes)


def check_filter(where: SearchFilter) -> None:
    """Refuse a filter that contradicts itself or names a field that cannot be filtered."""
    if where.region is not None and where.located is False:
        raise QueryError(
            "a region cannot be searched among points without geometry", expected="region or located=False"
        )
    if where.period is not None:
        start, end = where.period
        if not (np.isfinite(start) and np.isfinite(end) and start < end):
            raise QueryError("the period is empty or not finite", expected="start < exclusive end")
    for field in where.equals:
        if field not in EQUALS_FIELDS:
            raise QueryError("a field that cannot be filtered by", found=field, expected=", ".join(EQUALS_FIELDS))


def payload_condition(where: SearchFilter, *, form: str) -> Condition | None:
    """Return the filter over payload fields, `form` being `ranges` or `classes`; None where it lets everything pass.

    Its region part is loose by design (boxes); the exact predicate is applied to the survivors.
    """
    conditions: list[Condition] = []
    if where.region is not None:
        boxes = where.region.boxes()
        of_box = _ranges if form == "ranges" or is_broad(boxes) else _classes
        conditions.append(AnyOf(tuple(of_box(box) for box in boxes)))
    elif where.located is not None:
        conditions.append(Is("has_geometry", int(where.located)))
    if where.period is not None:
        start, end = where.period
        conditions += [
            Between("period_start", high=end, strict=True),
            Between("period_end", low=start, strict=True),
        ]
    for field, value in sorted(where.equals.items()):
        conditions.append(Is(field, EQUALS_FIELDS[field](value)))
    return AllOf(tuple(conditions)) if conditions else None


def fields_of(condition: Condition | None) -> frozenset[str]:
    """Return every payload field that a condition reads (`id` for ids): what a check looks for in a compiled query."""
    match condition:
        case None:
            return frozenset()
        case Between() | Is():
            return frozenset({condition.field})
        case CentreIn():
            return frozenset({"location"})
        case Ids():
            return frozenset({"id"})
        case AllOf() | AnyOf():
            return frozenset().union(*(fields_of(part) for part in condition.conditions))
