"""Shapes on a round earth, held in a plane: longitudes unwrapped, dimensions dropped, rings repaired.

What belongs here: turning any EPSG:4326 geometry into the one form that is stored and compared (2D, valid, west in
[-180, 180), east beyond 180 where it crosses the antimeridian). What does not: extents (`extent`), distances
(`distance`), and anything in another frame (`frames.project`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import GeometryCollection, LineString, MultiPolygon, Point, Polygon
from shapely.geometry.base import BaseGeometry

from georag_assets.errors import GeometryError

_EPSILON = 1e-9
_MULTI = {0: shapely.multipoints, 1: shapely.multilinestrings, 3: shapely.multipolygons}


def normalise(geometry: BaseGeometry) -> tuple[BaseGeometry, tuple[str, ...]]:
    """Return a lon/lat geometry in the form that is stored, and what had to be done to it.

    An edge longer than 180 degrees goes the other way round the earth (RFC 7946 asks for a cut there, and most writers
    forget it), except between -180 and 180 exactly, where a box or a polar cap was meant. A ring that runs round a pole
    is closed over it. The parts of a collection are laid side by side on the shortest arc that holds them.

    Parameters
    ----------
    geometry
        EPSG:4326 in lon/lat order; longitudes may already be unwrapped.

    Returns
    -------
    tuple
        The geometry, and flags among `empty`, `has_z`, `has_m`, `unwrapped`, `crosses_antimeridian`, `encloses_pole`,
        `made_valid`.

    Raises
    ------
    GeometryError
        A coordinate is not finite, or cannot be degrees.
    """
    if geometry.is_empty:
        return geometry, ("empty",)
    flags: list[str] = []
    if geometry.has_z or shapely.has_m(geometry):
        flags.append("has_z" if geometry.has_z else "has_m")
        geometry = shapely.force_2d(geometry)
    _require_degrees(geometry)
    west, _, east, _ = geometry.bounds
    if east - west > 180:
        geometry = _arranged([_unwrapped_part(part, flags) for part in _parts(geometry)])
        west, _, east, _ = geometry.bounds
    if not -180 <= west < 180:
        geometry = shifted(geometry, -360 * float(np.floor((west + 180) / 360)))
    if not geometry.is_valid:
        geometry = shapely.make_valid(geometry)
        flags.append("made_valid")
    if geometry.bounds[2] > 180:
        flags.append("crosses_antimeridian")
    return geometry, tuple(dict.fromkeys(flags))


def shifted(geometry: BaseGeometry, degrees: float) -> BaseGeometry:
    """Return the geometry moved east by `degrees`."""
    return shapely.transform(geometry, lambda xy: xy + np.array([degrees, 0.0])) if degrees else geometry


def box_shape(west: float, south: float, east: float, north: float) -> BaseGeometry:
    """Return the box from `west` eastwards to `east` as a shape; west > east crosses the antimeridian.

    A box wider than 180 gets vertices in between, so that `normalise` cannot read it as its own complement. A box
    without width or height is a line or a point.
    """
    if east < west:
        east += 360
    if west == east and south == north:
        return Point(west, south)
    if west == east or south == north:
        shape: BaseGeometry = LineString([(west, south), (east, north)])
    else:
        shape = shapely.box(west, south, east, north)
    return shapely.segmentize(shape, 90.0) if east - west > 180 else shape


def ring_shape(coordinates: Iterable[Sequence[float]]) -> tuple[Polygon, tuple[str, ...]]:
    """Return the polygon of one ring, closed where it was left open (flag `closed_ring`)."""
    points = [(float(point[0]), float(point[1])) for point in coordinates]
    if not np.isfinite(np.asarray(points, dtype=float)).all():
        raise GeometryError("A ring has a coordinate that is not finite", expected="finite longitudes and latitudes")
    if len(set(points)) < 3:
        raise GeometryError("A ring needs three distinct points", found=f"{len(set(points))}")
    if points[0] != points[-1]:
        return Polygon([*points, points[0]]), ("closed_ring",)
    return Polygon(points), ()


def _require_degrees(geometry: BaseGeometry) -> None:
    xy = shapely.get_coordinates(geometry)
    if not np.isfinite(xy).all():
        raise GeometryError("A geometry has a coordinate that is not finite")
    if np.abs(xy[:, 1]).max() > 90 + _EPSILON or np.abs(xy[:, 0]).max() > 540:
        raise GeometryError(
            "A geometry's coordinates cannot be degrees of longitude and latitude",
            expected="longitude within 540, latitude within 90",
            found="x {:.6g} to {:.6g}, y {:.6g} to {:.6g}".format(*np.ravel(np.column_stack([xy.min(0), xy.max(0)]))),
        )


def _parts(geometry: BaseGeometry) -> list[BaseGeometry]:
    """Return the single-part geometries of any collection, however deep."""
    if geometry.geom_type in ("Point", "LineString", "LinearRing", "Polygon"):
        return [] if geometry.is_empty else [geometry]
    return [leaf for part in geometry.geoms for leaf in _parts(part)]


def _unwrapped_part(part: BaseGeometry, flags: list[str]) -> BaseGeometry:
    if isinstance(part, Polygon):
        shell = _unwrapped_ring(np.asarray(part.exterior.coords), flags)
        west, east = shell[:, 0].min(), shell[:, 0].max()
        holes = []
        for interior in part.interiors:
            hole = _unwrapped_ring(np.asarray(interior.coords), flags)
            middle = (hole[:, 0].min() + hole[:, 0].max()) / 2
            hole[:, 0] += 360 * np.round(((west + east) / 2 - middle) / 360)
            holes.append(hole)
        return Polygon(shell, holes)
    if part.geom_type in ("LineString", "LinearRing"):
        xy = np.asarray(part.coords)
        unwrapped = _unwrapped(xy)
        if not np.array_equal(xy, unwrapped):
            flags.append("unwrapped")
        return LineString(unwrapped)
    return part


def _unwrapped(xy: NDArray[np.float64]) -> NDArray[np.float64]:
    steps = np.diff(xy[:, 0])
    turns = np.where(np.abs(steps) > 180, -360 * np.round(steps / 360), 0.0)
    result = xy.astype(float, copy=True)
    result[1:, 0] += np.cumsum(turns)
    return result


def _unwrapped_ring(xy: NDArray[np.float64], flags: list[str]) -> NDArray[np.float64]:
    steps = np.abs(np.diff(xy[:, 0]))
    jumps = steps[steps > 180]
    if not len(jumps):
        return xy.copy()
    result = _unwrapped(xy)
    closes = abs(result[-1, 0] - result[0, 0]) < _EPSILON
    along_the_seam = bool((np.abs(jumps - 360) < _EPSILON).all())
    if closes and Polygon(result).area > 0:
        flags.append("unwrapped")
        return result
    if closes or along_the_seam:
        return xy.copy()  # A box of the whole width, or a cap already closed over its pole: as written.
    pole = 90.0 if xy[:, 1].mean() >= 0 else -90.0
    flags += ["unwrapped", "encloses_pole"]
    return np.vstack([result, [result[-1, 0], pole], [result[0, 0], pole], result[0]])


def _arranged(parts: list[BaseGeometry]) -> BaseGeometry:
    """Lay parts on the shortest arc of longitudes that holds them all, and put them together again."""
    if len(parts) == 1:
        return parts[0]
    moved = []
    for part in parts:
        west = part.bounds[0]
        moved.append(shifted(part, -360 * float(np.floor((west + 180) / 360))))
    moved.sort(key=lambda part: part.bounds[0])
    ends = np.maximum.accumulate([part.bounds[2] for part in moved])
    starts = np.array([part.bounds[0] for part in moved])
    gaps = np.append(starts[1:], starts[0] + 360) - ends
    # What reaches beyond 180 from the first parts also covers the start of the circle.
    gaps[:-1] = np.minimum(gaps[:-1], starts[1:] + 360 - ends[-1])
    widest = int(np.argmax(gaps))
    if widest < len(moved) - 1 and gaps[widest] > gaps[-1] + _EPSILON:
        moved = moved[widest + 1 :] + [shifted(part, 360) for part in moved[: widest + 1]]
    kinds = {shapely.get_type_id(part) for part in moved}
    if len(kinds) > 1 or not kinds <= _MULTI.keys():
        return GeometryCollection(moved)
    joined: BaseGeometry = _MULTI[kinds.pop()](moved)
    if isinstance(joined, MultiPolygon) and not joined.is_valid:
        return shapely.union_all(moved) if all(part.is_valid for part in moved) else joined
    return joined
