"""Degrees, minutes and seconds, decimal minutes, degrees with hemispheres: `54° 06,133´ N; 010° ...`.

What belongs here: angles and pairs of angles in prose and in table cells. What does not: decimal degrees without a
letter (`decimal`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.literal import GeometryLiteral

_LETTER = r"(?:(?:Norden|Nord|North|Süden|Süd|South|Osten|Ost|East|Westen|West)(?![A-Za-zäöü])|[NSEWO](?![A-Za-z]))"
_DECIMALS = r"(?:[.,]\d{1,15})?"
_PRIME = r"['′’‘´`ʹ]"
_SECOND = r"(?:''|′′|’’|´´|[\"″”“„ʺ])"
_WITH_SIGN = re.compile(
    rf"(?<![\w.])(?<!\d,)(?P<lead>{_LETTER}\s{{0,2}})?(?P<sign>[-+−])?(?P<degrees>\d{{1,3}}{_DECIMALS})\s{{0,2}}[°º˚]"
    rf"(?:(?P<gap>\s{{0,2}})(?P<minutes>\d{{1,2}}(?!\d){_DECIMALS})(?:\s{{0,2}}(?P<prime>{_PRIME}(?!{_PRIME})))?"
    rf"(?:\s{{0,2}}(?P<seconds>\d{{1,2}}(?![\d°º˚]){_DECIMALS})\s{{0,2}}(?:{_SECOND}|(?={_LETTER})))?)?"
    rf"(?P<close>\s{{0,2}}(?P<tail>{_LETTER}))?"
)
_LETTER_ONLY = re.compile(
    rf"(?<![\w.°'′])(?<!\d,)(?P<lead>{_LETTER}\s{{0,2}})?(?P<sign>[-+−])?(?P<degrees>\d{{1,3}}(?!\d){_DECIMALS})"
    rf"(?:(?P<gap>[ \-])(?P<minutes>\d{{1,2}}(?!\d){_DECIMALS})(?P<prime>)"
    rf"(?:[ \-](?P<seconds>\d{{1,2}}(?!\d){_DECIMALS}))?)?(?P<close>\s{{0,2}}(?P<tail>{_LETTER}))?"
)
_BETWEEN = re.compile(r"[\s,;/|]{0,40}(?:(?:and|und|ja|ning|et|by|[–—-])[\s|]{1,9})?", re.IGNORECASE)
_TEMPERATURE = re.compile(r"\s?[CFK](?![a-z])")


@dataclass(frozen=True, slots=True)
class _Angle:
    start: int
    end: int
    value: float
    axis: str | None  # "lat", "lon", or None where no letter says
    rich: bool  # has minutes or decimals
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DegreesMinutesSeconds:
    """Angles with a degree sign; two neighbours that are latitude and longitude make a point.

    An angle alone ("34°15 latitude parallel") stays uncut, without a shape; so does a bearing ("N 40°43 E").
    """

    name: str = "dms"
    pattern: ClassVar[re.Pattern[str]] = _WITH_SIGN
    alone: ClassVar[bool] = True

    def find(self, text: str, start: int, end: int) -> Iterator[GeometryLiteral]:
        """Yield the literals of this kind in `text[start:end]`."""
        previous: _Angle | None = None
        for angle in self._angles(text, start, end):
            if previous is not None:
                point = _point(text, previous, angle)
                if point is not None:
                    yield self._literal(text, previous.start, angle.end, *point)
                    previous = None
                    continue
                yield from self._single(text, previous)
            previous = angle
        if previous is not None:
            yield from self._single(text, previous)

    def _angles(self, text: str, start: int, end: int) -> Iterator[_Angle]:
        position = start
        while (match := self.pattern.search(text, position, end)) is not None:
            angle = _angle(match, with_sign=self.alone)
            position = angle.end if angle is not None else match.end()
            if angle is not None and (self.alone or angle.axis):
                yield angle

    def _single(self, text: str, angle: _Angle) -> Iterator[GeometryLiteral]:
        if self.alone:
            yield self._literal(text, angle.start, angle.end, None, (*angle.flags, "single_axis"))

    def _literal(
        self, text: str, start: int, end: int, geometry: BaseGeometry | None, flags: tuple[str, ...]
    ) -> GeometryLiteral:
        return GeometryLiteral(start, end, self.name, text[start:end], geometry, None, True, flags)


@dataclass(frozen=True, slots=True)
class LetteredDegrees(DegreesMinutesSeconds):
    """Degrees with a hemisphere letter and no degree sign, in pairs only: `53.55 N, 9.97 E`, `54-07.8N 010-51.6E`."""

    name: str = "lettered_degrees"
    pattern: ClassVar[re.Pattern[str]] = _LETTER_ONLY
    alone: ClassVar[bool] = False


def _angle(match: re.Match[str], *, with_sign: bool) -> _Angle | None:
    lead, tail = (match["lead"] or "").strip(), match["tail"]
    minutes, seconds = match["minutes"], match["seconds"]
    text, end = match.string, match.end()
    if lead and tail and text[end : end + 3].strip()[:1].isdigit():
        tail, end = None, match.start("close")  # in "S 33° 55' E 18° 25'" the E belongs to what follows
    if with_sign:
        if minutes and match["gap"] and not (match["prime"] or seconds or tail):
            minutes, end = None, match.start("gap")  # in "20° 12 items" the 12 is another number
        if not (minutes or lead or tail) and (match["degrees"].isdigit() or _TEMPERATURE.match(text, end)):
            return None  # a corner of 90°, a temperature of 20.5 °C
    value = _number(match["degrees"]) + _number(minutes) / 60 + _number(seconds) / 3600
    flags = ("minutes_over_59",) if _number(minutes) >= 60 or _number(seconds) >= 60 else ()
    rich = bool(minutes) or not match["degrees"].isdigit()
    if lead and tail:
        if _axis(lead) != _axis(tail):
            return _Angle(match.start(), end, value, None, rich, (*flags, "bearing"))
        lead = ""
    letter = tail or lead
    if match["sign"] in ("-", "−") or (letter and letter[0] in "SW"):
        value = -value
    return _Angle(match.start(), end, value, _axis(letter) if letter else None, rich, flags)


def _number(digits: str | None) -> float:
    return float(digits.replace(",", ".")) if digits else 0.0


def _axis(letter: str) -> str:
    return "lat" if letter[0] in "NS" else "lon"


def _point(text: str, first: _Angle, second: _Angle) -> tuple[BaseGeometry | None, tuple[str, ...]] | None:
    """Return the point that two neighbouring angles make, or None where they do not belong together."""
    flags = first.flags + second.flags
    if "bearing" in flags or not (first.rich or second.rich) or second.start - first.end > 60:
        return None
    between = _BETWEEN.fullmatch(text, first.end, second.start)
    if between is None:
        return None
    if first.axis and second.axis:
        if first.axis == second.axis:
            return None
    elif first.axis or second.axis or any(dash in between[0] for dash in "–—-"):
        return None  # "23° 10'–24° 50' N" is a range
    else:
        flags += ("axis_order_assumed",)
    latitude, longitude = (second, first) if first.axis == "lon" else (first, second)
    if abs(latitude.value) > 90 or abs(longitude.value) > 180:
        return None, (*flags, "out_of_range")
    return shapely.Point(longitude.value, latitude.value), flags
