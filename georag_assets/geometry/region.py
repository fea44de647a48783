"""A region to search in: a shape or a radius, on a round earth.

What belongs here: the region's boxes, its exact predicate and its distances. What does not: how a place name or a
question becomes a region (`places`, `retrieval`) and how a store filters by it (`index.filter`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import Point
from shapely.geometry.base import BaseGeometry

from georag_assets.errors import QueryError
from georag_assets.geometry.distance import distances_m, within_m
from georag_assets.geometry.extent import Extent, bounds_of, extent_meets, extent_overlap
from georag_assets.geometry.shapes import box_shape, normalise, ring_shape, shifted

RADIUS_FLOOR_M = 100.0
_TURNS = (-360.0, 0.0, 360.0)
# Degrees by which boxes are loosened: engines exclude edges, and doubles differ in the last place.
_LOOSE = 1e-7
# The shortest and longest radius of curvature of WGS84 (along the meridian at the equator; at the poles).
_SHORTEST_RADIUS_M = 6_335_439.0
_LONGEST_RADIUS_M = 6_399_594.0
_MOST_BOXES = 8


@dataclass(frozen=True)
class Region:
    """Where to search.

    Attributes
    ----------
    shape
        EPSG:4326, lon/lat, unwrapped (longitudes may exceed 180 where the shape crosses the antimeridian); the centre
        point itself for a radius search.
    radius_m
        Geodesic metres around `shape` (0: the shape itself).
    label
        How it was asked for ("bbox -122,38,-121,39", "Napa Valley (ava)").
    flags
        `radius_raised_to_floor`, `wrapped_box_over_180`, `closed_ring`, `crosses_antimeridian`, `unwrapped`, ...
    """

    shape: BaseGeometry
    radius_m: float = 0.0
    label: str = ""
    flags: tuple[str, ...] = ()

    @classmethod
    def from_bbox(cls, west: float, south: float, east: float, north: float, *, label: str = "") -> Region:
        """Return the box from west eastwards to east; west > east crosses the antimeridian.

        A swapped west and east therefore asks for a belt round the earth: over 180 wide, it is flagged.
        """
        _require_finite("A box", west, south, east, north)
        _require_latitude(south, north)
        if south > north:
            raise QueryError("A box's south is north of its north", found=f"south {south}, north {north}")
        if max(abs(west), abs(east)) > 360:
            raise QueryError("A box's longitude is beyond 360", found=f"west {west}, east {east}")
        flags = []
        label = label or f"bbox {west:g},{south:g},{east:g},{north:g}"
        if east < west:
            east += 360 * math.ceil((west - east) / 360)
            if east - west > 180:
                flags.append("wrapped_box_over_180")
        if east - west >= 360:
            west, east = -180.0, 180.0
        turn = -360.0 * math.floor((west + 180) / 360)
        west, east = west + turn, east + turn
        if east > 180:
            flags.append("crosses_antimeridian")
        return cls(box_shape(west, south, east, north), 0.0, label, tuple(flags))

    @classmethod
    def from_point(cls, lon: float, lat: float, radius_m: float = 0.0, *, label: str = "") -> Region:
        """Return everything within a radius of a point; a radius under 100 m is raised to that, flagged."""
        _require_finite("A point", lon, lat)
        _require_latitude(lat)
        if abs(lon) > 360:
            raise QueryError("A longitude is beyond 360", found=f"{lon}")
        radius, flags = _radius(radius_m)
        radius, flags = (radius, flags) if radius else (RADIUS_FLOOR_M, ("radius_raised_to_floor",))
        label = label or f"{radius:g} m around {lon:g},{lat:g}"
        return cls(Point(lon - 360 * math.floor((lon + 180) / 360), lat), radius, label, flags)

    @classmethod
    def from_shape(cls, shape: BaseGeometry, *, radius_m: float = 0.0, label: str = "") -> Region:
        """Return a shape (and what is within a radius of it); a lone point gets the floor of 100 m."""
        if shape is None or shape.is_empty:
            raise QueryError("A region needs a shape, and this one is empty")
        shape, flags = normalise(shape)
        if isinstance(shape, Point):
            region = cls.from_point(shape.x, shape.y, radius_m, label=label)
            return cls(region.shape, region.radius_m, region.label, (*flags, *region.flags))
        radius, more = _radius(radius_m)
        return cls(shape, radius, label or shape.geom_type, (*flags, *more))

    @classmethod
    def from_ring(cls, coordinates: Iterable[Sequence[float]], *, label: str = "") -> Region:
        """Return the inside of a ring of lon, lat; an open one is closed, one across 180 unwrapped, both flagged."""
        polygon, flags = ring_shape(coordinates)
        region = cls.from_shape(polygon, label=label or "ring")
        return cls(region.shape, 0.0, region.label, (*flags, *region.flags))

    def boxes(self) -> tuple[Extent, ...]:
        """Return loose boxes, unwrapped, that together meet the extent of everything that can match.

        Compare longitudes modulo 360. Whatever reaches a pole has a box of all longitudes there: a pole has none.
        """
        return self._boxes

    @cached_property
    def _boxes(self) -> tuple[Extent, ...]:
        if self.radius_m:
            return (_grown(self.extent, self.radius_m),)
        parts = [part for part in shapely.get_parts(self.shape) if not part.is_empty]
        bounds = [part.bounds for part in parts] if len(parts) <= _MOST_BOXES else [self.shape.bounds]
        boxes = [_loose(*box) for box in bounds]
        for pole in self._poles:
            boxes.append(_loose(-180.0, pole, 180.0, pole))
        return tuple(boxes)

    @property
    def extent(self) -> Extent:
        """The shape's own extent, without the radius."""
        return Extent(*self.shape.bounds)

    def covers_any(self, geometries: NDArray[np.object_]) -> NDArray[np.bool_]:
        """Return which stored geometries meet the region, edges included; None and empty ones never do."""
        geometries = np.asarray(geometries, dtype=object)
        if self.radius_m and isinstance(self.shape, Point):
            return within_m(self.shape.x, self.shape.y, self.radius_m, geometries)
        found = self._meets(geometries)
        if self.radius_m:
            open_rows = np.flatnonzero(extent_meets(self.boxes()[0], bounds_of(geometries)) & ~found)
            sure, excluded = _in_a_plane(self.shape, self.radius_m, geometries[open_rows])
            found[open_rows[sure]] = True
            rows = open_rows[~sure & ~excluded]
            found[rows] = distances_m(self.shape, geometries[rows]) <= self.radius_m
        return found

    def distance_m(self, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
        """Return geodesic metres from the region's shape to each geometry; 0 where they meet, NaN for none."""
        return distances_m(self.shape, np.asarray(geometries, dtype=object))

    def overlap(self, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
        """Return how well each geometry's extent fits the region's: intersection over union on the sphere, 0 to 1."""
        extent = _grown(self.extent, self.radius_m) if self.radius_m else self.extent
        return extent_overlap(extent, bounds_of(np.asarray(geometries, dtype=object)))

    @cached_property
    def _poles(self) -> tuple[float, ...]:
        _, south, _, north = self.shape.bounds
        return tuple(pole for pole, touched in ((-90.0, south <= -90), (90.0, north >= 90)) if touched)

    @cached_property
    def _turned(self) -> tuple[BaseGeometry, ...]:
        turned = tuple(shifted(self.shape, turn) for turn in _TURNS)
        shapely.prepare(np.array(turned, dtype=object))
        return turned

    def _meets(self, geometries: NDArray[np.object_]) -> NDArray[np.bool_]:
        bounds = bounds_of(geometries)
        west, south, east, north = bounds.T
        found = np.zeros(len(geometries), dtype=bool)
        with np.errstate(invalid="ignore"):
            for shape in self._turned:
                w, s, e, n = shape.bounds
                near = (west <= e) & (east >= w) & (south <= n) & (north >= s) & ~found
                if shape.area and shape.area == (e - w) * (n - s):  # A box: what lies in it needs no geometry engine.
                    inside = near & (west >= w) & (east <= e) & (south >= s) & (north <= n)
                    found |= inside
                    near &= ~inside
                rows = np.flatnonzero(near)
                if len(rows):
                    found[rows] = shapely.intersects(shape, geometries[rows])
            for pole in self._poles:
                found |= (south <= -90) if pole < 0 else (north >= 90)
        return found


def _in_a_plane(
    shape: BaseGeometry, radius_m: float, geometries: NDArray[np.object_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return what is surely within the radius of a shape, by a plane that overstates every distance, and what is not.

    A degree is taken as long, or as short, as it ever is between the latitudes in question.
    """
    box = _grown(Extent(*shape.bounds), radius_m)
    highest = max(abs(box.south), abs(box.north))
    if highest >= 89 or not len(geometries):
        return np.zeros(len(geometries), dtype=bool), np.zeros(len(geometries), dtype=bool)
    lowest = 0.0 if box.south <= 0 <= box.north else min(abs(box.south), abs(box.north))
    sure, maybe = (
        _planar_within(shape, geometries, math.cos(math.radians(latitude)), math.degrees(radius_m / curvature))
        for latitude, curvature in ((lowest, _LONGEST_RADIUS_M), (highest, _SHORTEST_RADIUS_M))
    )
    return sure, ~maybe


def _planar_within(
    shape: BaseGeometry, geometries: NDArray[np.object_], scale: float, degrees: float
) -> NDArray[np.bool_]:
    scaling = np.array([scale, 1.0])
    flat = shapely.transform(geometries, lambda xy: xy * scaling)
    near = np.zeros(len(geometries), dtype=bool)
    for turn in _TURNS:
        turned = shapely.transform(shifted(shape, turn), lambda xy: xy * scaling)
        shapely.prepare(turned)
        near |= shapely.dwithin(turned, flat, degrees)
    return near


def _grown(extent: Extent, radius_m: float) -> Extent:
    """Return a box of everything within a radius of an extent: too large rather than too small."""
    angle = radius_m / _SHORTEST_RADIUS_M * 1.001
    degrees = math.degrees(angle)
    south, north = extent.south - degrees, extent.north + degrees
    if south <= -90 or north >= 90:
        return _loose(-180.0, max(south, -90.0), 180.0, min(north, 90.0))
    # Where circles around the highest latitude bulge furthest in longitude.
    highest = math.radians(max(abs(extent.south), abs(extent.north)))
    bulge = math.degrees(math.asin(min(1.0, math.sin(min(angle, math.pi / 2)) / math.cos(highest)))) * 1.01
    if extent.width + 2 * bulge >= 360:
        return _loose(-180.0, south, 180.0, north)
    return _loose(extent.west - bulge, south, extent.east + bulge, north)


def _loose(west: float, south: float, east: float, north: float) -> Extent:
    if east - west >= 360 - 2 * _LOOSE:
        west, east = -180.0, 180.0
    else:
        west, east = west - _LOOSE, east + _LOOSE
        turn = -360.0 * math.floor((west + 180) / 360)
        west, east = west + turn, east + turn
    return Extent(west, max(south - _LOOSE, -90.0), east, min(north + _LOOSE, 90.0))


def _radius(radius_m: float) -> tuple[float, tuple[str, ...]]:
    _require_finite("A radius", radius_m)
    if radius_m < 0:
        raise QueryError("A radius is negative", expected="0 or more metres", found=f"{radius_m:g}")
    if 0 < radius_m < RADIUS_FLOOR_M:
        return RADIUS_FLOOR_M, ("radius_raised_to_floor",)
    return float(radius_m), ()


def _require_finite(what: str, *values: float) -> None:
    if not all(math.isfinite(value) for value in values):
        raise QueryError(f"{what} has a number that is not finite", expected="finite numbers")


def _require_latitude(*latitudes: float) -> None:
    if any(abs(latitude) > 90 for latitude in latitudes):
        raise QueryError("A latitude is beyond 90", expected="-90 to 90", found=", ".join(f"{x:g}" for x in latitudes))
