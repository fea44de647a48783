"""Extents: the box of a geometry, on a circle of longitudes.

What belongs here: the record, and its computation from geometry (an extent is never copied from a source). What does
not: search boxes (`region`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.shapes import box_shape, normalise

_TURNS = (-360.0, 0.0, 360.0)


@dataclass(frozen=True, slots=True)
class Extent:
    """Degrees; `west` in [-180, 180), `east` not below it, and beyond 180 across the antimeridian."""

    west: float
    south: float
    east: float
    north: float

    @property
    def width(self) -> float:
        """Degrees from west eastwards to east."""
        return self.east - self.west

    @property
    def height(self) -> float:
        """Degrees from south to north."""
        return self.north - self.south

    @property
    def crosses_antimeridian(self) -> bool:
        """True where the extent goes on beyond 180."""
        return self.east > 180

    @property
    def shape(self) -> BaseGeometry:
        """The extent as a shape, unwrapped."""
        return box_shape(self.west, self.south, self.east, self.north)

    def bbox(self) -> tuple[float, float, float, float]:
        """Return west, south, east, north by RFC 7946: across the antimeridian east is smaller than west."""
        if self.width >= 360:
            return (-180.0, self.south, 180.0, self.north)
        return (self.west, self.south, self.east - 360 if self.east > 180 else self.east, self.north)


def extent_of(geometry: BaseGeometry | None) -> Extent | None:
    """Return the extent of an EPSG:4326 geometry; None for none or an empty one."""
    if geometry is None or geometry.is_empty:
        return None
    west, south, east, north = normalise(geometry)[0].bounds
    return Extent(west, south, east, north)


def extent_overlap(extent: Extent, bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return intersection over union, by area on the sphere, of one extent with each row of west, south, east, north.

    Rows are unwrapped like the extent; longitudes compare modulo 360. A side below 0.0001 degrees (about 10 m) counts
    as that long, so that a point has an area. Rows that are NaN give 0.
    """
    least = 1e-4
    a_west, a_south, a_east, a_north = _padded(
        np.array([[extent.west, extent.south, extent.east, extent.north]]), least
    )
    b_west, b_south, b_east, b_north = _padded(np.asarray(bounds, dtype=float), least)
    lon = np.zeros(len(b_west))
    for turn in _TURNS:
        lon += np.clip(np.minimum(a_east, b_east + turn) - np.maximum(a_west, b_west + turn), 0, None)
    lat = np.clip(_band(np.maximum(a_south, b_south), np.minimum(a_north, b_north)), 0, None)
    lon = np.minimum(lon, np.minimum(a_east - a_west, b_east - b_west))
    shared = lon * lat
    union = (a_east - a_west) * _band(a_south, a_north) + (b_east - b_west) * _band(b_south, b_north) - shared
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = shared / union
    return np.clip(np.nan_to_num(ratio, nan=0.0, posinf=0.0), 0.0, 1.0)


def extent_meets(extent: Extent, bounds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows of west, south, east, north meet an extent, edges included, modulo 360; NaN never."""
    west, south, east, north = bounds.T
    found = np.zeros(len(bounds), dtype=bool)
    with np.errstate(invalid="ignore"):
        for turn in _TURNS:
            found |= (west <= extent.east + turn) & (east >= extent.west + turn)
        return np.asarray(found & (south <= extent.north) & (north >= extent.south))


def bounds_of(geometries: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return west, south, east, north of stored (normalised) geometries, one row each; NaN for none or empty."""
    return np.asarray(shapely.bounds(geometries), dtype=float).reshape(-1, 4)


def _padded(bounds: NDArray[np.float64], least: float) -> tuple[NDArray[np.float64], ...]:
    west, south, east, north = bounds.T
    lon = np.clip(least - (east - west), 0, None) / 2
    lat = np.clip(least - (north - south), 0, None) / 2
    return west - lon, south - lat, east + lon, north + lat


def _band(south: NDArray[np.float64], north: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sin(np.radians(np.minimum(north, 90))) - np.sin(np.radians(np.maximum(south, -90)))
