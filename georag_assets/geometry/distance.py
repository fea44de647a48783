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
_FINALISTS = 6
_THIRDS = 32  # Of half a degree: decimetres along the edge, which is nothing across it.
_TURNS = (-360.0, 0.0, 360.0)


@cache
def geod() -> Geod:
    """Return the WGS84 ellipsoid."""
    return Geod(ellps="WGS84")


def geodesic_m(a: BaseGeometry, b: BaseGeometry) -> float:
    """Return metres between the nearest points of two lon/lat shapes; 0 where they meet, NaN where one is empty."""
    return float(distances_m(a, np.array([b], dtype=object))[0])


def distances_m(shape: BaseGeometry, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return `geodesic_m` of one shape to each geometry; what is done once for the shape is done once."""
    result = np.full(len(geometries), np.nan)
    if shape is None or shape.is_empty:
        return result
    rows = np.flatnonzero(~(shapely.is_missing(geometries) | shapely.is_empty(geometries)))
    if isinstance(shape, Point):
        points = rows[shapely.get_type_id(geometries[rows]) == 0]
        if len(points):
            xy = shapely.get_coordinates(geometries[points])
            result[points] = geod().inv(np.full(len(xy), shape.x), np.full(len(xy), shape.y), xy[:, 0], xy[:, 1])[2]
        rows = np.setdiff1d(rows, points, assume_unique=True)
    for turn in _TURNS:
        turned = shifted(shape, turn)
        shapely.prepare(turned)
        met = shapely.intersects(turned, geometries[rows])
        result[rows[met]] = 0.0
        rows = rows[~met]
    if len(rows):
        own = _edges(np.array([shape], dtype=object))[:2]
        for row in rows:
            result[row] = _between(own, _edges(geometries[row : row + 1])[:2])
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
        near = _sphere_to_edges(lon, lat, radius_m, geometries[shapes])
        margin = 2 * SPHERE_ERROR * radius_m + 100
        result[shapes[near <= radius_m - margin]] = True
        for row in shapes[np.abs(near - radius_m) < margin]:
            result[row] = _nearest(lon, lat, *_edges(geometries[row : row + 1])[:2])[0] <= radius_m
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


def _to_edges(
    lon: float, lat: float, start: NDArray[np.float64], end: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return roughly (to 1 % and 100 m) how far a point is from each edge, and where along it that is (0 to 1)."""
    a, b = _plane(lon, lat, start), _plane(lon, lat, end)
    along = b - a
    length = (along**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.clip(np.nan_to_num(-(a * along).sum(1) / length), 0, 1)
    to_start, to_end = np.hypot(*a.T), np.hypot(*b.T)
    # Around the antipode the plane is torn: an edge across it would seem to pass the origin. There its ends do.
    torn = np.minimum(to_start, to_end) > _TORN_M
    t = np.where(torn, (to_end < to_start) * 1.0, t)
    return np.asarray(np.hypot(*(a + t[:, None] * along).T)), t


def _sphere_to_edges(lon: float, lat: float, radius_m: float, geometries: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return roughly (to 1 % and 100 m) how far a point is from each geometry's edges; inf well beyond the radius."""
    start, end, owner = _edges(geometries)
    # Edges that no circle of this radius reaches are left out: of a large shape that is nearly all of them.
    reach = np.degrees(radius_m / _RADIUS_M) * 1.05 + 2 * _STEP_DEG
    close = np.abs(start[:, 1] - lat) <= reach
    if abs(lat) + reach < 89:
        widest = np.sin(np.radians(min(reach, 90))) / np.cos(np.radians(lat))
        if widest < 1:
            off = np.abs((start[:, 0] - lon + 180) % 360 - 180)
            close &= off <= np.degrees(np.arcsin(widest)) + 2 * _STEP_DEG
    result = np.full(len(geometries), np.inf)
    np.minimum.at(result, owner[close], _to_edges(lon, lat, start[close], end[close])[0])
    return result


def _nearest(
    lon: float, lat: float, start: NDArray[np.float64], end: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Return geodesic metres to the nearest point of edges, and that point."""
    rough, where = _to_edges(lon, lat, start, end)
    near = np.flatnonzero(rough <= rough.min() * (1 + 3 * SPHERE_ERROR) + 200)

    def metres(rows: NDArray[np.intp], t: NDArray[np.float64]) -> NDArray[np.float64]:
        xy = start[rows] + t[:, None] * (end[rows] - start[rows])
        return np.asarray(geod().inv(np.full(len(t), lon), np.full(len(t), lat), xy[:, 0], xy[:, 1])[2])

    # The sphere chose the edges; the ellipsoid says which of them are nearest, and then where on them.
    near = near[np.argsort(metres(near, where[near]), kind="stable")[:_FINALISTS]]
    low, high, twice = np.zeros(len(near)), np.ones(len(near)), np.tile(near, 2)
    for _ in range(_THIRDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        both = metres(twice, np.concatenate([left, right]))
        nearer = both[: len(near)] <= both[len(near) :]
        high = np.where(nearer, right, high)
        low = np.where(nearer, low, left)
    rows = np.tile(near, 3)
    t = np.concatenate([np.zeros(len(near)), np.ones(len(near)), (low + high) / 2])
    distance = metres(rows, t)
    best = int(np.argmin(distance))
    x, y = start[rows[best]] + t[best] * (end[rows[best]] - start[rows[best]])
    return float(distance[best]), float(x), float(y)


Edges = tuple[NDArray[np.float64], NDArray[np.float64]]


def _between(a: Edges, b: Edges) -> float:
    """Return geodesic metres between two shapes that do not meet: nearest vertices, then each side slides in turn."""
    if len(a[0]) == 1 and (a[0] == a[1]).all():
        return _nearest(float(a[0][0, 0]), float(a[0][0, 1]), *b)[0]
    one, other = _on_sphere(a[0]), _on_sphere(b[0])
    most, start = -np.inf, 0
    step = max(1, 4_000_000 // len(one))
    for at in range(0, len(other), step):  # In blocks: a coastline by a coastline is a large table.
        cosine = (other[at : at + step] @ one.T).max(1)
        if cosine.max() > most:
            most, start = float(cosine.max()), at + int(cosine.argmax())
    x, y = (float(value) for value in b[0][start])
    metres = np.inf
    for turn in range(12):
        found, x, y = _nearest(x, y, *(a, b)[turn % 2])
        if found > metres - 0.01:
            return min(found, metres)
        metres = found
    return metres


def _on_sphere(xy: NDArray[np.float64]) -> NDArray[np.float64]:
    lon, lat = np.radians(xy.T)
    return np.column_stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
