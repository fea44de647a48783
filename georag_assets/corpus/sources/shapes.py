"""Declared geometry of a record or a sidecar's row: read, checked, as WKB.

What belongs here: boxes in the order of RFC 7946, WKT, GeoJSON and WKB values, the CRS that a GeoParquet file states.
What does not: geometry in running text (`geometry.scan`), and transforms (`frames`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyproj
import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.corpus.sources.loader import UnusableError
from georag_assets.geometry.shapes import box_shape

WGS84 = 4326
# A box that goes east over the antimeridian and is still wider than this has its west and east swapped, most likely.
BELT_DEGREES = 180
_GEOJSON = "GeoJSON (RFC 7946)"
LARGEST_CODE = 1_000_000
"""Codes of PROJ's databases end far below; a larger number fits no column."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A geometry with the code that its source states for it, and where that was read, or what was there instead."""

    wkb: bytes
    epsg: int | None
    evidence: str | None
    flags: tuple[str, ...] = ()


def box_of(value: object, declared_epsg: int | None, column: str) -> Shape | None:
    """Return the shape of a box [west, south, east, north]; None where there is none.

    In degrees, west > east crosses the antimeridian (RFC 7946), flagged `wrapped_box`; a wrapped one that is wider than
    180 is a belt round the earth, flagged `belt_box`.
    """
    if isinstance(value, str):
        value = value.strip().strip("[]").replace(",", " ").split() or None
    if value is None or (isinstance(value, list) and (not value or all(item in (None, "") for item in value))):
        return None
    if not isinstance(value, list) or len(value) not in (4, 6):
        raise _bad(column, "four numbers: west, south, east, north", value)
    try:
        numbers = [float(item) for item in value if not isinstance(item, bool)]
    except (TypeError, ValueError, OverflowError):  # an integer of 400 digits is valid JSON and no float
        raise _bad(column, "four numbers: west, south, east, north", value) from None
    if len(numbers) != len(value) or not all(map(math.isfinite, numbers)):
        raise UnusableError("bad_geometry", f"column {column}: a coordinate is not finite")
    half = len(numbers) // 2
    west, south, east, north = numbers[0], numbers[1], numbers[half], numbers[half + 1]
    if south > north:
        raise UnusableError("bad_geometry", f"column {column}: south {south:g} lies north of north {north:g}")
    if declared_epsg not in (None, WGS84):
        if west > east:
            raise UnusableError("bad_geometry", f"column {column}: west {west:g} lies east of east {east:g}")
        return Shape(shapely.to_wkb(box_shape(west, south, east, north)), declared_epsg, "declared frame of the corpus")
    if max(abs(south), abs(north)) > 90 or max(abs(west), abs(east)) > 360:
        raise UnusableError("bad_geometry", f"column {column}: not degrees, and the corpus declares no other frame")
    flags: list[str] = []
    if west > east:
        east += 360
        flags.append("wrapped_box")
        if east - west > BELT_DEGREES:
            flags.append("belt_box")
    turns = math.floor((west + 180) / 360) * 360 if west != 180 or east > west else 0
    shape = box_shape(west - turns, south, east - turns, north)
    evidence = "declared frame of the corpus" if declared_epsg else f"box in degrees (RFC 7946), column {column}"
    return Shape(shapely.to_wkb(shape), WGS84, evidence, tuple(flags))


def shape_of(
    value: object, epsg: int | None, evidence: str | None, column: str, *, file_states: bool = False
) -> Shape | None:
    """Return the shape of a WKT, EWKT, GeoJSON, WKB or EWKB value.

    An SRID of the value's own goes before `epsg`; so does GeoJSON's WGS 84, except before a code that the file states
    (`file_states`: the `crs` member of GeoJSON 2008).
    """
    if value is None or value in ("", b""):
        return None
    geometry, own, where = _parsed(value, column)
    if own is not None and not (file_states and where == _GEOJSON):
        if not 0 <= own <= LARGEST_CODE:
            raise UnusableError("bad_geometry", f"column {column}: {where} is no EPSG code")
        epsg, evidence = own, f"{where}, column {column}"
    return checked(geometry, epsg, evidence, f"column {column}")


def checked(geometry: BaseGeometry, epsg: int | None, evidence: str | None, where: str) -> Shape | None:
    """Return a geometry as a shape: finite, repaired and flagged where it is invalid; None where it is empty."""
    if geometry.is_empty:
        return None
    if not np.isfinite(shapely.get_coordinates(geometry)).all():
        raise UnusableError("bad_geometry", f"{where}: a coordinate is not finite")
    flags: tuple[str, ...] = ()
    west, _, east, _ = geometry.bounds
    # A ring that jumps across 180 is repaired once it is unwrapped (`frames`): as written it means something else.
    if not geometry.is_valid and not 180 < east - west <= 360:
        geometry, flags = shapely.make_valid(geometry), ("made_valid",)
    return Shape(shapely.to_wkb(geometry), epsg, evidence, flags)


def epsg_of(crs: pyproj.CRS) -> int | None:
    """Return the EPSG code that a definition equals, in PROJ's judgement (70 and over of 100), or None.

    OGC:CRS84 is EPSG:4326 for us, whose coordinates are longitude and latitude wherever they are kept.
    """
    if crs.to_authority() == ("OGC", "CRS84"):
        return WGS84
    code: int | None = crs.to_epsg(min_confidence=70)
    return code


def stated_crs(metadata: Mapping[bytes, bytes] | None, column: str | None) -> tuple[str, int | None, str]:
    """Return the geometry column of a GeoParquet file, the code its metadata state, and what they say in words.

    A column without `crs` is in longitude and latitude (OGC:CRS84) by the GeoParquet specification; `crs: null` says
    that it is unknown.
    """
    try:
        geo = json.loads((metadata or {}).get(b"geo", b"{}"))
        name = column or geo.get("primary_column") or "geometry"
        described = geo.get("columns", {}).get(name, {})
    except (ValueError, AttributeError):
        return column or "geometry", None, "the file's GeoParquet metadata cannot be read"
    if not described:
        return name, None, "no GeoParquet metadata"
    if "crs" not in described:
        return name, WGS84, "GeoParquet default OGC:CRS84"
    crs = described["crs"]
    if not isinstance(crs, dict):
        return name, None, "GeoParquet metadata state no CRS"
    identity = crs.get("id") or {}
    label = f"{identity.get('authority', '')}:{identity.get('code', '')} {crs.get('name', '')}".strip(": ")
    if identity.get("authority") == "EPSG" and str(identity.get("code")).isdigit():
        return name, int(identity["code"]), label
    if identity.get("authority") == "OGC" and identity.get("code") == "CRS84":
        return name, WGS84, label
    return name, None, f"{label} (no EPSG code)"


def _parsed(value: object, column: str) -> tuple[BaseGeometry, int | None, str]:
    try:
        if isinstance(value, bytes):
            geometry = shapely.from_wkb(value)
            return geometry, shapely.get_srid(geometry) or None, "SRID of the EWKB"
        if isinstance(value, dict):
            return shapely.from_geojson(json.dumps(value)), WGS84, _GEOJSON
        if isinstance(value, str):
            text = value.strip()
            if text.startswith("{"):
                return shapely.from_geojson(text), WGS84, _GEOJSON
            if text[:5].upper() == "SRID=":
                code, _, text = text[5:].partition(";")
                return shapely.from_wkt(text), int(code), "SRID of the EWKT"
            if len(text) % 2 == 0 and text[:2] in ("00", "01"):
                geometry = shapely.from_wkb(text)
                return geometry, shapely.get_srid(geometry) or None, "SRID of the EWKB"
            return shapely.from_wkt(text), None, "WKT"
    except (ValueError, TypeError, shapely.errors.ShapelyError) as error:
        raise UnusableError("bad_geometry", f"column {column}: {str(error).splitlines()[0][:200]}") from error
    raise _bad(column, "WKT, GeoJSON or WKB", value)


def _bad(column: str, expected: str, value: object) -> UnusableError:
    return UnusableError("bad_geometry", f"column {column}: expected {expected}; found {str(value)[:80]}")
