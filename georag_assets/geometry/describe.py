"""A short description of a geometry literal, for text that a language model reads in its place.

What belongs here: prose about shapes in their own coordinates. What does not: place names and frames.
"""

from __future__ import annotations

import json

import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.literal import GeometryLiteral
from georag_assets.geometry.shapes import normalise

_NAMES = {
    "MultiPoint": "points",
    "LineString": "line",
    "LinearRing": "ring",
    "MultiLineString": "lines",
    "MultiPolygon": "polygons",
    "GeometryCollection": "geometry collection",
}
_LONGEST_PROPERTIES = 600


def describe(literal: GeometryLiteral) -> str:
    """Return a few words: "polygon of 25 vertices around 47.1 N, 8.2 E"; of a feature its properties too.

    An angle alone ("34°15 latitude") is its own best description.
    """
    if "single_axis" in literal.flags:
        return literal.literal
    if literal.geometry is None:
        return f"{literal.kind.replace('_', ' ')} geometry"
    words = describe_shape(literal.geometry, degrees=literal.geographic or literal.epsg == 4326)
    properties = _properties(literal)
    return f"{properties}; {words}" if properties else words


def describe_shape(geometry: BaseGeometry, *, degrees: bool) -> str:
    """Return a few words about a shape in its own coordinates; `degrees` writes them with hemispheres."""
    name = _NAMES.get(geometry.geom_type, geometry.geom_type.lower())
    if geometry.is_empty:
        return f"empty {name}"
    west, south, east, north = geometry.bounds
    if degrees and 180 < east - west <= 360 and -90 <= south <= north <= 90:
        west, _, east, _ = normalise(geometry)[0].bounds  # across the antimeridian the middle lies there
    x, y = (west + east) / 2, (south + north) / 2
    where = _degrees(x, y) if degrees and abs(y) <= 90 else f"{x:.6g} {y:.6g}" if abs(x) < 1000 else f"{x:.0f} {y:.0f}"
    if geometry.geom_type == "Point":
        return f"point at {where}"
    count = shapely.get_num_coordinates(geometry)
    return f"{count} {name} around {where}" if name == "points" else f"{name} of {count} vertices around {where}"


def _degrees(x: float, y: float) -> str:
    x = (x + 180) % 360 - 180
    return f"{abs(y):.4g} {'N' if y >= 0 else 'S'}, {abs(x):.4g} {'E' if x >= 0 else 'W'}"


def _properties(literal: GeometryLiteral) -> str:
    if literal.kind != "geojson" or '"Feature"' not in literal.literal:
        return ""
    record = json.loads(literal.literal)
    properties = {
        key: value for key, value in (record.get("properties") or {}).items() if value not in (None, "", [], {})
    }
    words = "; ".join(f"{key}: {value}" for key, value in properties.items())[:_LONGEST_PROPERTIES]
    return f"feature {literal.feature_id}: {words}" if literal.feature_id else words
