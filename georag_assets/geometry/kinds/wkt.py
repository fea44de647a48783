"""WKT and EWKT: `POLYGON ((...))`, `SRID=2056;POINT Z (...)`, nested, empty, wrapped over lines.

What belongs here: finding and reading well-known text in prose. What does not: well-known binary, other notations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import shapely
from shapely.errors import GEOSException
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.kinds.kind import finite, flat
from georag_assets.geometry.literal import GeometryLiteral

_TYPES = (
    "GEOMETRYCOLLECTION|MULTIPOLYGON|MULTILINESTRING|MULTIPOINT|POLYGON|LINESTRING|LINEARRING|POINT|TRIANGLE|TIN|"
    "POLYHEDRALSURFACE|CIRCULARSTRING|COMPOUNDCURVE|CURVEPOLYGON|MULTICURVE|MULTISURFACE"
)
_OPEN = r"\s{0,99}\\{0,2}\("  # AsciiDoc escapes the parenthesis
_HEAD = re.compile(
    rf"(?:\bSRID\s{{0,3}}=\s{{0,3}}(?P<authority>EPSG:)?(?P<srid>\d{{1,9}})\s{{0,3}};\s{{0,9}})?"
    rf"(?<![\w.])(?P<type>(?i:{_TYPES}))(?:\s{{0,3}}(?P<dimension>(?i:ZM|Z|M)))?"
    rf"(?:(?={_OPEN})|\s{{1,9}}(?P<empty>EMPTY)\b)"
)
# Numbers and what stands between them; times as measures ("2021-05-22T03:00Z"), line-wrap marks of psql ("+") and
# strings that code joins over lines included.
_RUN = re.compile(
    r"""(?:[-+\d.,\s:…\\]++|[eE](?=[-+\d])|T(?=\d\d:)|(?<=\d)Z(?=[\s,)])|['"]\s{0,9}(?:\|\||\+|\\)?\s{0,9}\n\s{0,99}['"])++"""
)
_WORD = re.compile(
    rf"(?i:(?:{_TYPES})(?:\s{{0,3}}(?:ZM|Z|M))?(?={_OPEN}|\s{{1,9}}EMPTY)|EMPTY\b|[-+]?(?:nan|inf(?:inity)?)\b)"
)
_PARENTHESES = re.compile(r"\(+|\)")
_OPENING = re.compile(r"[\s(\\]{0,99}")
_MEANT = re.compile(r"\s*[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)\s+[-+]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
_ELIDED = re.compile(r"\.\.|…")
_STRING_JOINT = re.compile(r"""['"]\s*(?:\|\||\+|\\)?\s*\n\s*['"]""")
_DEEPEST = 64

_WRAP_MARK = re.compile(r"\s*\+\s*\n\s*")
_GLUED_DIMENSION = re.compile(rf"\b({_TYPES})(ZM|Z|M)\b", re.IGNORECASE)
_MORE_THAN_XY = re.compile(r"([^\s,()]+\s+[^\s,()]+)(?:\s+[^\s,()]+)+(?=\s*[,)])")
_DIMENSION_TAG = re.compile(rf"\b({_TYPES})\s*(?:ZM|Z|M)\b", re.IGNORECASE)
_CURVES = re.compile(
    r"CIRCULARSTRING|COMPOUNDCURVE|CURVEPOLYGON|MULTICURVE|MULTISURFACE|TIN|TRIANGLE|POLYHEDRALSURFACE", re.IGNORECASE
)
_ONE_PAIR = re.compile(r"^(POLYGON(?:\s*(?:ZM|Z|M))?)\s*\(\s*([^()]+?)\s*\)$", re.IGNORECASE | re.DOTALL)
_VERTEX = re.compile(r"(?<![\w.])([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s+([-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_NOT_FINITE = re.compile(r"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WellKnownText:
    """Literals in WKT or EWKT; a stated SRID is their code."""

    name: str = "wkt"

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        position = start
        while (head := _HEAD.search(text, position, end)) is not None:
            position = head.end()
            if head["empty"]:
                stop, complete = head.end(), True
            else:
                if not self._is_meant(text, head, end):
                    continue
                stop, complete = _body_end(text, head.end(), end)
            position = stop
            yield self._literal(text[head.start() : stop], head, complete)

    @staticmethod
    def _is_meant(text: str, head: re.Match[str], end: int) -> bool:
        """Tell coordinates from prose: "point (1)" and "Point(x, y)" are none."""
        opening = _OPENING.match(text, head.end(), end)
        inside = opening.end() if opening else head.end()
        return bool(_MEANT.match(text, inside, end) or _WORD.match(text, inside, end))

    def _literal(self, literal: str, head: re.Match[str], complete: bool) -> GeometryLiteral:
        epsg = int(head["srid"]) if head["srid"] and head["srid"] != "0" else None
        geometry, flags = (None, ("malformed", "unclosed")) if not complete else _read(literal, head)
        if not complete and _ELIDED.search(literal):
            flags = ("elided",)
        if head["authority"]:
            flags += ("srid_with_authority",)
        return GeometryLiteral(
            head.start(), head.start() + len(literal), self.name, literal, geometry, epsg, flags=flags
        )


def _body_end(text: str, opening: int, end: int) -> tuple[int, bool]:
    """Walk from the first parenthesis to its partner; (end of what belongs to it, whether it was closed)."""
    depth, position, solid = 0, opening, opening
    while position < end:
        if token := _PARENTHESES.match(text, position, end):
            depth += 1 - 2 * (text[position] == ")") if len(token[0]) == 1 else len(token[0])
            solid = token.end()
            if depth == 0:
                return solid, True
            if depth > _DEEPEST:
                break
        elif token := _RUN.match(text, position, end):
            if stripped := token[0].rstrip():
                solid = position + len(stripped)
        elif token := _WORD.match(text, position, end):
            solid = token.end()
        else:
            break
        position = token.end()
    return solid, False


def _read(literal: str, head: re.Match[str]) -> tuple[BaseGeometry | None, tuple[str, ...]]:
    body = literal[head.start("type") - head.start() :]
    if _ELIDED.search(body):
        return None, ("elided",)
    if _NOT_FINITE.search(body):
        return None, ("malformed", "non_finite")
    body = _WRAP_MARK.sub(" ", _STRING_JOINT.sub("", body)).replace("\\", "")
    repaired: tuple[str, ...] = ()
    if one_pair := _ONE_PAIR.match(body):
        body, repaired = f"{one_pair[1]} (({one_pair[2]}))", ("repaired_parentheses",)
    try:
        with np.errstate(over="ignore"):  # 1e400 is told as not finite, below
            geometry, flags = _parse(body)
    except GEOSException as error:
        if "closed linestring" in str(error):
            return None, ("malformed", "unclosed_ring")
        return None, ("unreadable",)
    if not finite(geometry):
        return None, ("malformed", "non_finite")
    geometry, dropped = flat(geometry)
    return geometry, dropped + flags + repaired


def _parse(body: str) -> tuple[BaseGeometry, tuple[str, ...]]:
    """Read WKT; what GEOS does not know is read by its vertices' x and y, as the nearest simple type."""
    body = _GLUED_DIMENSION.sub(r"\1 \2", body)
    if not _CURVES.search(body):
        try:
            return shapely.from_wkt(body), ()
        except GEOSException as error:
            if "closed linestring" in str(error):
                raise
            plain = _DIMENSION_TAG.sub(r"\1", _MORE_THAN_XY.sub(r"\1", body))
            return shapely.from_wkt(plain), ("measure_dropped",)
    plain = _DIMENSION_TAG.sub(r"\1", _MORE_THAN_XY.sub(r"\1", body))
    surfaces = re.sub(r"\b(?:TIN|POLYHEDRALSURFACE)\b", "MULTIPOLYGON", plain, flags=re.IGNORECASE)
    surfaces = re.sub(r"\bTRIANGLE\b", "POLYGON", surfaces, flags=re.IGNORECASE)
    if not _CURVES.search(surfaces):
        return shapely.from_wkt(surfaces), ()
    vertices = [(float(x), float(y)) for x, y in _VERTEX.findall(plain)]
    return shapely.MultiPoint(vertices), ("curve_as_control_points",)
