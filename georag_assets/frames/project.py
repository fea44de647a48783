"""Into EPSG:4326 by PROJ's best operation, with the accuracy that it states.

What belongs here: the one transform of the package. What does not: which frame a geometry is in (`resolver`).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import shapely
from numpy.typing import NDArray
from pyproj import CRS, Transformer
from pyproj.aoi import AreaOfInterest
from pyproj.exceptions import CRSError, ProjError
from pyproj.transformer import TransformerGroup
from shapely.geometry.base import BaseGeometry

from georag_assets.errors import FrameError
from georag_assets.geometry.shapes import normalise

_CELL_DEG = 5.0


@dataclass(frozen=True, slots=True)
class Operation:
    """A coordinate operation into EPSG:4326 and what PROJ says of it."""

    transformer: Transformer
    accuracy_m: float | None
    flags: tuple[str, ...]


def frame(code: str) -> CRS:
    """Return the frame of `AUTHORITY:CODE`; a `FrameError` where PROJ does not know it."""
    known = _known(code)
    if known is None:
        raise FrameError(f"PROJ's database has no frame {code}")
    return known


@lru_cache(maxsize=4096)
def _known(code: str) -> CRS | None:
    """Return the frame, None where there is none: a refusal is kept too, because it costs PROJ as much as an answer."""
    try:
        return CRS.from_user_input(code)
    except CRSError:
        return None


def successor(code: str) -> str:
    """Return the code itself, or the one that replaces it where it is deprecated and has exactly one successor."""
    crs = frame(code)
    if not crs.is_deprecated:
        return code
    heirs = [heir.to_authority() for heir in crs.get_non_deprecated()]
    return ":".join(heirs[0]) if len(heirs) == 1 and heirs[0] else code


def to_wgs84(geometry: BaseGeometry, epsg: int) -> tuple[BaseGeometry, float | None, tuple[str, ...]]:
    """Return a geometry in EPSG:4326 lon/lat, normalised, the operation's accuracy in metres, and flags.

    Parameters
    ----------
    geometry
        In the frame's own numbers, x before y (east before north, longitude before latitude).
    epsg
        The frame's EPSG code.

    Returns
    -------
    tuple
        Accuracy is None where PROJ states none; flags are those of `normalise` and `ballpark_operation`,
        `better_operation_unavailable`.
    """
    if epsg == 4326:
        shape, flags = normalise(geometry)
        return shape, 0.0, flags
    operation = _best(epsg, geometry)
    moved = _apply(operation.transformer, geometry)
    if not np.isfinite(shapely.get_coordinates(moved)).all():
        raise FrameError(f"Coordinates lie outside what EPSG:{epsg} can express")
    shape, flags = normalise(moved)
    return shape, operation.accuracy_m, (*operation.flags, *flags)


def fits(geometry: BaseGeometry, epsg: int) -> tuple[bool, bool]:
    """Return whether a geometry lies inside the frame's area of use, and whether it survives a round trip."""
    crs = frame(f"EPSG:{epsg}")
    xy = np.unique(shapely.get_coordinates(geometry)[:64], axis=0)
    transformer = _best(epsg, geometry).transformer
    lon, lat = transformer.transform(xy[:, 0], xy[:, 1])
    lon, lat = np.asarray(lon), np.asarray(lat)
    if not (np.isfinite(lon).all() and np.isfinite(lat).all() and len(lat)) or np.abs(lat).max() > 90:
        return False, False
    x, y = transformer.transform(lon, lat, direction="INVERSE")
    tolerance = 1e-7 if crs.is_geographic else 0.01
    returns = bool(np.allclose([x, y], xy.T, rtol=0, atol=tolerance)) or (
        crs.is_geographic and bool((np.abs(xy[:, 0]) > 180).any())
    )
    area = crs.area_of_use
    if area is None:
        return True, returns
    width = (area.east - area.west) % 360 or 360.0
    margin = 0.5  # Degrees: data run a little over the edge of their zone.
    inside = ((lon - area.west + margin) % 360 <= width + 2 * margin) | (width + 2 * margin >= 360)
    inside &= (lat >= area.south - margin) & (lat <= area.north + margin)
    return bool(inside.all()), returns


def _apply(transformer: Transformer, geometry: BaseGeometry) -> BaseGeometry:
    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack(transformer.transform(xy[:, 0], xy[:, 1]))

    return shapely.transform(shapely.force_2d(geometry), move)


def _best(epsg: int, geometry: BaseGeometry) -> Operation:
    """Return the best operation where the geometry lies, found roughly by any operation."""
    xy = shapely.get_coordinates(geometry)[:1]
    try:
        lon, lat = _operation(epsg, None).transformer.transform(xy[:, 0], xy[:, 1])
    except ProjError as error:
        raise FrameError(f"No operation leads from EPSG:{epsg} to EPSG:4326") from error
    if not (len(xy) and math.isfinite(lon[0]) and math.isfinite(lat[0]) and abs(lat[0]) <= 90 and abs(lon[0]) <= 180):
        return _operation(epsg, None)
    return _operation(epsg, (math.floor(lon[0] / _CELL_DEG), math.floor(lat[0] / _CELL_DEG)))


@lru_cache(maxsize=4096)
def _operation(epsg: int, cell: tuple[int, int] | None) -> Operation:
    area = None
    if cell is not None:
        west, south = cell[0] * _CELL_DEG, cell[1] * _CELL_DEG
        area = AreaOfInterest(west, south, min(180.0, west + _CELL_DEG), min(90.0, south + _CELL_DEG))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "Best transformation is not available": becomes a flag.
        try:
            group = TransformerGroup(f"EPSG:{epsg}", "EPSG:4326", always_xy=True, area_of_interest=area)  # type: ignore[arg-type]
        except (CRSError, ProjError) as error:
            raise FrameError(f"No operation leads from EPSG:{epsg} to EPSG:4326") from error
    if not group.transformers:
        raise FrameError(f"No operation leads from EPSG:{epsg} to EPSG:4326")
    best = group.transformers[0]
    flags = []
    if "ballpark" in best.description.lower():
        flags.append("ballpark_operation")
    if not group.best_available:
        flags.append("better_operation_unavailable")
    accuracy = best.accuracy if best.accuracy is not None and best.accuracy >= 0 else None
    return Operation(best, accuracy, tuple(flags))
