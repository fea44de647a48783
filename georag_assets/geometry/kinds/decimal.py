"""Decimal degrees without letters: pairs in prose (`47.0551, 8.3093`) and lists of pairs.

What belongs here: numbers that only their form and company show to be degrees. What does not: numbers with a
hemisphere (`dms`), in table cells (`table`) or in a structured notation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.literal import GeometryLiteral

_PAIR = re.compile(
    r"(?<![\w.,/\-+−])(?P<first>[-+−]?\d{1,3}\.\d{2,15}(?!\d))(?!\.\d)(?:\s{0,3}[,;/]\s{0,9}|\s{1,9})"
    r"(?P<second>[-+−]?\d{1,3}\.\d{2,15}(?!\d))(?P<height>,-?\d{1,5}(?:\.\d{1,9})?(?![\d,.]\d))?(?![\w%]|\.\d)"
)
_COMMA_PAIR = re.compile(
    r"(?<![\w.,])(?P<first>[-+−]?\d{1,3},\d{4,15}(?!\d))(?:\s{0,3}[;/]\s{0,9}|\s{1,9})(?P<second>[-+−]?\d{1,3},\d{4,15})(?![\w.,])"
)
_JOINT = re.compile(r"[\s,;()\[\]]{1,40}")
_MORE_NUMBERS = re.compile(r"\d\.\d{1,15}[ \t]{1,20}$")
_LON_FIRST = re.compile(r"(?:lon(?:gitude|g)?|x|easting)\b[^\n]{0,12}$", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:lat(?:itude)?|lon(?:g|gitude)?|coordinates?|located at|location|position|point|centred? (?:at|on)|near"
    r"|at)\W{0,4}$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Pair:
    start: int
    end: int
    first: float
    second: float
    height: bool
    digits: int  # decimals of the less exact number


@dataclass(frozen=True, slots=True)
class DecimalDegrees:
    """Pairs, and lists of two or more pairs that only brackets, commas and blanks part.

    A pair counts as degrees where both numbers have four decimals, or two and a bracket or a label such as "located
    at" stands before it. The order is latitude first unless a number or a label says otherwise, and is flagged as
    assumed; tuples with a height (KML) are longitude first.
    """

    name: str = "decimal_pair"

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        run: list[_Pair] = []
        for pair in self._pairs(text, start, end):
            if run and not (pair.start - run[-1].end <= 40 and _JOINT.fullmatch(text, run[-1].end, pair.start)):
                yield self._literal(text, run)
                run = []
            run.append(pair)
        if run:
            yield self._literal(text, run)

    def _pairs(self, text: str, start: int, end: int) -> Iterator[_Pair]:
        previous_end = -1
        for pattern in (_PAIR, _COMMA_PAIR):
            for match in pattern.finditer(text, start, end):
                pair = _pair(match)
                if pair is None:
                    continue
                joined = 0 <= pair.start - previous_end <= 40 and bool(_JOINT.fullmatch(text, previous_end, pair.start))
                # The end of a row of numbers is no pair: `683687.8667  6099299.6624  0.0000  0.0000`.
                row = bool(_MORE_NUMBERS.search(text, max(start, pair.start - 40), pair.start))
                alone = not row and (pair.digits >= 4 or _introduced(text, pair.start, pair.end))
                if joined or alone:
                    previous_end = pair.end
                    yield pair
            if previous_end >= 0:
                return  # a text keeps to one decimal mark

    def _literal(self, text: str, run: list[_Pair]) -> GeometryLiteral:
        start, end = run[0].start, run[-1].end
        pairs = [(pair.first, pair.second) for pair in run]
        lon_first = (
            any(abs(first) > 90 for first, _ in pairs)
            or all(pair.height for pair in run)
            or text[start - 1 : start] == "["  # arrays in JSON and YAML follow GeoJSON's order
            or bool(_LON_FIRST.search(text, max(0, start - 40), start))
        )
        flags: tuple[str, ...] = () if any(max(map(abs, pair)) > 90 for pair in pairs) else ("axis_order_assumed",)
        if not lon_first:
            pairs = [(second, first) for first, second in pairs]
            flags += ("axis_order_lat_lon",)
        if any(abs(latitude) > 90 or abs(longitude) > 180 for longitude, latitude in pairs):
            return GeometryLiteral(
                start, end, self._name(run), text[start:end], None, None, True, (*flags, "out_of_range")
            )
        return GeometryLiteral(start, end, self._name(run), text[start:end], _shape(pairs), None, True, flags)

    def _name(self, run: list[_Pair]) -> str:
        return self.name if len(run) == 1 else "decimal_list"


def _pair(match: re.Match[str]) -> _Pair | None:
    numbers = [match[name].replace(",", ".").replace("−", "-") for name in ("first", "second")]
    first, second = (float(number) for number in numbers)
    if max(abs(first), abs(second)) > 180 or min(abs(first), abs(second)) > 90:
        return None
    digits = min(len(number.partition(".")[2]) for number in numbers)
    height = bool(match.groupdict().get("height"))
    return _Pair(match.start(), match.end(), first, second, height, digits)


def _introduced(text: str, start: int, end: int) -> bool:
    bracketed = text[start - 1 : start] in ("(", "[") and text[end : end + 1] in (")", "]")
    return bracketed or bool(_LABEL.search(text, max(0, start - 20), start))


def _shape(pairs: list[tuple[float, float]]) -> BaseGeometry:
    if len(pairs) == 1:
        return shapely.Point(pairs[0])
    if len(pairs) >= 4 and pairs[0] == pairs[-1]:
        return shapely.Polygon(pairs)
    return shapely.MultiPoint(pairs)
