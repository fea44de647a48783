"""Geodesic distance on the WGS84 ellipsoid, from shape to shape and not from centre to centre.

What belongs here: metres between lon/lat geometries. What does not: a distance in a projected frame, and areas.

Edges are straight in longitude and latitude, as everywhere in EPSG:4326 here. Nothing is scaled by "111 km a degree":
numbers that decide or leave this module come from pyproj's Geod; the sphere only sorts out the clear cases first.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import shapely
from numpy.typing import NDArray
from pyproj import Geod
from shapely.geometry import Point
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.shapes import shifted

_RADIUS_M = 6371008.8
# Between any two points the sphere's distance is within this share of the ellipsoid's (0.56 % at worst).
SPHERE_ERROR = 0.006
_STEP_DEG = 0.5
_TORN_M = 1e7
_TURNS = (-360.0, 0.0, 360.0)


@cache
def geod() -> Geod:
    """Return the WGS84 ellipsoid."""
    return Geod(ellps="WGS84")


def geodesic_m(a: BaseGeometry, b: BaseGeometry) -> float:
    """Return metres between the nearest points of two lon/lat shapes; 0 where they meet, NaN where one is empty."""
    if a is None or b is None or a.is_empty or b.is_empty:
        return float("nan")
    if isinstance(a, Point) and isinstance(b, Point):
        return float(geod().inv(a.x, a.y, b.x, b.y)[2])
    if any(shapely.intersects(a, shifted(b, turn)) for turn in _TURNS):
        return 0.0
    if isinstance(a, Point):
        return _nearest(a.x, a.y, b)[0]
    if isinstance(b, Point):
        return _nearest(b.x, b.y, a)[0]
    return _between(a, b)


def distances_m(shape: BaseGeometry, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return `geodesic_m` of one shape to each geometry; points to points in one call."""
    result = np.full(len(geometries), np.nan)
    if isinstance(shape, Point) and not shape.is_empty:
        points = np.flatnonzero((shapely.get_type_id(geometries) == 0) & ~shapely.is_empty(geometries))
        if len(points):
            xy = shapely.get_coordinates(geometries[points])
            result[points] = geod().inv(np.full(len(xy), shape.x), np.full(len(xy), shape.y), xy[:, 0], xy[:, 1])[2]
        others = np.setdiff1d(np.arange(len(geometries)), points)
    else:
        others = np.arange(len(geometries))
    for row in others:
        result[row] = geodesic_m(shape, geometries[row])
    return result


def within_m(lon: float, lat: float, radius_m: float, geometries: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Return which geometries come within `radius_m` of a point, by geodesic distance, edge inclusive.

    The sphere accepts and rejects the clear cases for all at once; Geod is asked for the rest.
    """
    result = np.zeros(len(geometries), dtype=bool)
    present = np.flatnonzero(~(shapely.is_missing(geometries) | shapely.is_empty(geometries)))
    bounds = shapely.bounds(geometries[present])
    west, south, east, north = bounds.T
    middle = sphere_m(lon, lat, (west + east) / 2, (south + north) / 2)
    # No point of the geometry is further from the middle of its bounds than half a way along both sides of them.
    flattest = np.where((south <= 0) & (north >= 0), 1.0, np.cos(np.radians(np.minimum(np.abs(south), np.abs(north)))))
    reach = np.radians((east - west) / 2 * flattest + (north - south) / 2) * _RADIUS_M * (1 + SPHERE_ERROR)
    inside = middle * (1 + SPHERE_ERROR) + reach <= radius_m
    result[present[inside]] = True
    open_rows = present[~inside & (middle * (1 - SPHERE_ERROR) - reach <= radius_m)]
    points = open_rows[shapely.get_type_id(geometries[open_rows]) == 0]
    if len(points):
        result[points] = distances_m(Point(lon, lat), geometries[points]) <= radius_m
    shapes = np.setdiff1d(open_rows, points, assume_unique=True)
    for turn in _TURNS:
        if len(shapes):
            hit = shapely.intersects_xy(geometries[shapes], lon + turn, lat)
            result[shapes[hit]] = True
            shapes = shapes[~hit]
    if len(shapes):
        near = _sphere_to_edges(lon, lat, geometries[shapes])
        margin = 2 * SPHERE_ERROR * np.maximum(near, radius_m) + 100
        result[shapes[near + margin <= radius_m]] = True
        for row in shapes[np.abs(near - radius_m) < margin]:
            result[row] = _nearest(lon, lat, geometries[row])[0] <= radius_m
    return result


def sphere_m(lon: float, lat: float, lons: NDArray[np.float64], lats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return great-circle metres on the mean sphere; for sorting out, never for an answer."""
    a, b = np.radians(lat), np.radians(lats)
    h = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(lons - lon) / 2) ** 2
    return np.asarray(2 * _RADIUS_M * np.arcsin(np.sqrt(np.clip(h, 0, 1))))


def _edges(geometries: NDArray[np.object_]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    """Return starts, ends and owners of all edges, none longer than half a degree; a point is an edge of no length."""
    parts, owner = np.asarray(geometries, dtype=object), np.arange(len(geometries))
    while (shapely.get_type_id(parts) > 3).any():
        parts, of = shapely.get_parts(parts, return_index=True)
        owner = owner[of]
    polygons = shapely.get_type_id(parts) == 3
    rings, of = shapely.get_rings(parts[polygons], return_index=True)
    owner = np.concatenate([owner[polygons][of], owner[~polygons]])
    lines = np.concatenate([rings, parts[~polygons]])
    xy, line = shapely.get_coordinates(shapely.segmentize(lines, _STEP_DEG), return_index=True)
    joined = np.flatnonzero(line[1:] == line[:-1])
    alone = np.flatnonzero(np.bincount(line, minlength=len(lines))[line] == 1)
    first = np.concatenate([joined, alone])
    return xy[first], xy[np.concatenate([joined + 1, alone])], owner[line[first]]


def _plane(lon: float, lat: float, xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Project azimuthally and equidistantly around a point of the sphere: distances from the point are kept."""
    lam, phi, phi0 = np.radians(xy[:, 0] - lon), np.radians(xy[:, 1]), np.radians(lat)
    distance = sphere_m(lon, lat, xy[:, 0], xy[:, 1])
    east = np.cos(phi) * np.sin(lam)
    north = np.cos(phi0) * np.sin(phi) - np.sin(phi0) * np.cos(phi) * np.cos(lam)
    angle = np.arctan2(east, north)
    return np.column_stack([distance * np.sin(angle), distance * np.cos(angle)])


def _to_edges(lon: float, lat: float, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return roughly (to 1 % and 100 m) how far a point is from each edge."""
    a, b = _plane(lon, lat, start), _plane(lon, lat, end)
    along = b - a
    length = (along**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.clip(np.nan_to_num(-(a * along).sum(1) / length), 0, 1)
    ends = np.minimum(np.hypot(*a.T), np.hypot(*b.T))
    # Around the antipode the plane is torn: an edge across it would seem to pass the origin. There its ends do.
    return np.asarray(np.where(ends > _TORN_M, ends, np.hypot(*(a + t[:, None] * along).T)))


def _sphere_to_edges(lon: float, lat: float, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return roughly (to 1 % and 100 m) how far a point is from the edges of each geometry."""
    start, end, owner = _edges(geometries)
    result = np.full(len(geometries), np.inf)
    np.minimum.at(result, owner, _to_edges(lon, lat, start, end))
    return result


def _nearest(lon: float, lat: float, geometry: BaseGeometry) -> tuple[float, float, float]:
    """Return geodesic metres to the nearest point of a geometry's edges, and that point."""
    start, end, _ = _edges(np.array([geometry], dtype=object))
    rough = _to_edges(lon, lat, start, end)
    near = np.flatnonzero(rough <= rough.min() * (1 + 3 * SPHERE_ERROR) + 200)
    near = near[np.argsort(rough[near])][:64]
    start, along = start[near], end[near] - start[near]
    low, high = np.zeros(len(near)), np.ones(len(near))

    def metres(t: NDArray[np.float64]) -> NDArray[np.float64]:
        xy = start + t[:, None] * along
        return np.asarray(geod().inv(np.full(len(t), lon), np.full(len(t), lat), xy[:, 0], xy[:, 1])[2])

    for _ in range(36):  # Thirds of half a degree: below a millimetre.
        left, right = low + (high - low) / 3, high - (high - low) / 3
        nearer = metres(left) <= metres(right)
        high = np.where(nearer, right, high)
        low = np.where(nearer, low, left)
    candidates = np.concatenate([np.zeros(len(near)), np.ones(len(near)), (low + high) / 2])
    start, along = np.tile(start, (3, 1)), np.tile(along, (3, 1))
    distance = metres(candidates)
    best = int(np.argmin(distance))
    x, y = start[best] + candidates[best] * along[best]
    return float(distance[best]), float(x), float(y)


def _between(a: BaseGeometry, b: BaseGeometry) -> float:
    """Return geodesic metres between two shapes that do not meet: nearest vertices, then each side slides in turn."""
    one, other = (np.unique(_edges(np.array([shape], dtype=object))[0], axis=0) for shape in (a, b))
    nearest = np.array([sphere_m(x, y, one[:, 0], one[:, 1]).min() for x, y in other])
    start = other[int(np.argmin(nearest))]
    x, y = float(start[0]), float(start[1])
    metres, shapes = np.inf, (a, b)
    for turn in range(12):
        found, x, y = _nearest(x, y, shapes[turn % 2])
        if found > metres - 0.01:
            return min(found, metres)
        metres = found
    return metres
