"""GeoJSON: geometries, features (one feature is one literal), the features of a collection; the old `crs` member.

What belongs here: finding and reading GeoJSON objects and coordinate arrays in text. What does not: files declared as
records (`corpus.sources`) and boxes (`bbox`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import shapely
from shapely.errors import GEOSException
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.kinds.kind import closed, finite, flat
from georag_assets.geometry.literal import GeometryLiteral

_GEOMETRIES = "Point|MultiPoint|LineString|MultiLineString|Polygon|MultiPolygon|GeometryCollection"
_TOKEN = re.compile(
    rf'"type"\s*:\s*"(?P<type>Feature|FeatureCollection|{_GEOMETRIES})"'
    r'|"name"\s*:\s*"(?P<crs>(?:urn:ogc:def:crs:|EPSG:)[^"\n]{1,80})"'
    r'|"(?:[^"\\\n]|\\.)*"|(?P<brace>[{}])'
)
_CUE = re.compile(rf'"type"\s*:\s*"(?:Feature|{_GEOMETRIES})"')
_ARRAY = re.compile(r"\bcoordinates\\?[\"']?\s{0,9}[:=]\s{0,9}(?P<array>\[[\[\]\d\s.,+\-eE…]*)")
_ELIDED = re.compile(r"\.\.|…")
_CODE = re.compile(r"EPSG:(?::|[\d.]+:)?(\d{4,6})$")


@dataclass(slots=True)
class _Open:
    """A brace not yet closed: where it opened and what is known about its object."""

    start: int
    first_inside: int
    type: str | None = None
    crs: str | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class GeoJson:
    """GeoJSON objects; a Feature with its properties is one literal, a collection is cut between its features."""

    name: str = "geojson"

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        position = start
        objects = self._objects(text, start, end) if _CUE.search(text, start, end) else []
        for literal in objects:
            yield from self._arrays(text, position, literal.start)
            yield literal
            position = literal.end
        yield from self._arrays(text, position, end)

    def _objects(self, text: str, start: int, end: int) -> list[GeometryLiteral]:
        """Return the outermost features and geometries; they are read only when it is known which these are."""
        found: list[_Open] = []
        stack: list[_Open] = []
        for token in _TOKEN.finditer(text, start, end):
            if token["brace"] == "{":
                stack.append(_Open(token.start(), len(found)))
            elif token["brace"] == "}" and stack:
                self._close(stack.pop(), token.end(), found)
            elif token["type"] and stack and stack[-1].type is None:
                stack[-1].type = token["type"]
            elif token["crs"] and len(stack) >= 3:  # owner > crs > properties > name
                stack[-3].crs = token["crs"]
        literals = (self._read(text[each.start : each.end], each.start, _epsg(each.crs)) for each in found)
        return [literal for literal in literals if literal is not None]

    def _close(self, closed_object: _Open, end: int, found: list[_Open]) -> None:
        if closed_object.type == "FeatureCollection":
            for member in found[closed_object.first_inside :]:
                member.crs = member.crs or closed_object.crs
        elif closed_object.type is not None:
            closed_object.end = end
            found[closed_object.first_inside :] = [closed_object]

    def _read(self, literal: str, start: int, code: int | None) -> GeometryLiteral | None:
        feature_id: str | None = None
        geometry: BaseGeometry | None = None
        try:
            record = json.loads(literal)
        except (ValueError, RecursionError):
            flags: tuple[str, ...] = ("elided",) if _ELIDED.search(literal) else ("unreadable",)
        else:
            if record.get("type") == "Feature":
                identity = record.get("id", (record.get("properties") or {}).get("id"))
                feature_id = None if identity is None or isinstance(identity, dict | list) else str(identity)
                record = record.get("geometry")
            if not isinstance(record, dict):
                return None
            geometry, flags = _shape(record)
        return GeometryLiteral(
            start, start + len(literal), self.name, literal, geometry, code, code is None, flags, feature_id
        )

    def _arrays(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield coordinate arrays outside a readable object: YAML, code, a file that broke off."""
        for match in _ARRAY.finditer(text, start, end):
            literal = match["array"].rstrip(" \t\r\n,")
            if not any(character.isdigit() for character in literal[:200]):
                continue
            depth = 0
            for position, character in enumerate(literal):
                depth += (character == "[") - (character == "]")
                if depth == 0:
                    literal = literal[: position + 1]
                    break
            yield self._bare(literal, match.start("array"), depth == 0)

    def _bare(self, literal: str, start: int, complete: bool) -> GeometryLiteral:
        geometry: BaseGeometry | None = None
        flags: tuple[str, ...] = ("malformed", "unclosed")
        if _ELIDED.search(literal):
            flags = ("elided",)
        elif complete:
            geometry, flags = _bare_shape(literal)
        return GeometryLiteral(start, start + len(literal), self.name, literal, geometry, None, True, flags)


def _epsg(name: str | None) -> int | None:
    match = _CODE.search(name) if name else None
    return int(match[1]) if match else None


def _shape(record: dict[str, object]) -> tuple[BaseGeometry | None, tuple[str, ...]]:
    try:
        if not all(closed(ring) for ring in _rings(record)):
            return None, ("malformed", "unclosed_ring")
        geometry = shape(record)
    except (GEOSException, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError):
        return None, ("unreadable",)
    if not finite(geometry):
        return None, ("malformed", "non_finite")
    return flat(geometry)


def _rings(record: dict[str, object]) -> Iterator[list[list[float]]]:
    members = record.get("geometries") or ()
    coordinates = record.get("coordinates") or ()
    if record.get("type") == "GeometryCollection" and isinstance(members, list):
        for member in members:
            yield from _rings(member)
    elif record.get("type") == "Polygon" and isinstance(coordinates, list):
        yield from coordinates
    elif record.get("type") == "MultiPolygon" and isinstance(coordinates, list):
        for polygon in coordinates:
            yield from polygon


def _bare_shape(literal: str) -> tuple[BaseGeometry | None, tuple[str, ...]]:
    """Read a coordinate array whose type is not known as the points it holds."""
    try:
        points = _positions(json.loads(literal))
    except (ValueError, TypeError, RecursionError):
        return None, ("unreadable",)
    if not points:
        return None, ("unreadable",)
    geometry = shapely.Point(points[0]) if len(points) == 1 else shapely.MultiPoint(points)
    return (geometry, ("array_only",)) if finite(geometry) else (None, ("malformed", "non_finite"))


def _positions(value: object) -> list[tuple[float, float]]:
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], int | float):
        return [(float(value[0]), float(value[1]))] if len(value) > 1 else []
    return [point for member in value for point in _positions(member)]
