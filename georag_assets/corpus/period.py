"""Periods: dates and years in text as seconds since 1970, start and exclusive end.

What belongs here: the notations that can only mean one thing, and their inverse. What does not: which column holds a
period (`declaration`) and filtering by one (`index`). Years are those of the proleptic Gregorian calendar, counted as
ISO 8601 does: 0000 is 1 BCE, -0044 is 45 BCE; Python's `datetime` stops at year 1, so the days are counted here.
"""

from __future__ import annotations

import re
from calendar import monthrange

from georag_assets.errors import PeriodError

Period = tuple[float, float]

DAY_S = 86_400
_YEAR = r"(?P<year>[+-]\d{4,6}|\d{4})"
_DATE = re.compile(rf"{_YEAR}(?:-(?P<month>\d\d)(?:-(?P<day>\d\d))?)?")
_INSTANT = re.compile(
    rf"{_YEAR}-(?P<month>\d\d)-(?P<day>\d\d)[Tt ](?P<hour>\d\d):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,6})\d*)?)?"
    r"\s?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?"
)
_GERMAN = re.compile(r"(?:(?P<day>\d{1,2})\.)?(?P<month>\d{1,2})\.(?P<year>\d{4})")
_ERA = re.compile(r"(?P<year>\d{1,6})\s?(?P<era>BCE|BC|CE|AD|v\. ?Chr\.|n\. ?Chr\.)", re.IGNORECASE)
_RANGE = re.compile(r"(.+?)(?:/|\s+[-–—]\s+|(?<=\d{4})[-–—](?=\d{4}$)|–)(.+)")
_NOTATIONS = "2020, 2020-05, 2020-05-01, 2020-05-01T12:00:00Z, 01.05.2020, -0044-03-15, 44 BCE, or two of them as a/b"


def parse_period(value: object) -> Period:
    """Return (start, exclusive end) of a year, month, day, instant or range of them.

    A day is a whole day and a year a whole year, so that partial dates match; an instant lasts as long as its last
    digit; without an offset it is UTC.

    Raises
    ------
    PeriodError
        The notation is not known, the date does not exist, or the value is a number: 1588291200 could be seconds,
        milliseconds or a mistake, and a bare 2020 in YAML or JSON is a number as well.
    """
    if not isinstance(value, str):
        found = f"{type(value).__name__} {value!r}"
        raise PeriodError("a period is text, not a number", expected=_NOTATIONS, found=found, do="put it in quotes")
    text = value.strip()
    single = _single(text)
    if single is not None:
        return single
    if pair := _RANGE.fullmatch(text):
        first, last = _single(pair[1].strip()), _single(pair[2].strip())
        if first is not None and last is not None:
            if last[1] <= first[0]:
                raise PeriodError("a period ends before it starts", found=repr(text[:80]))
            return first[0], last[1]
    raise PeriodError("the period cannot be read", expected=_NOTATIONS, found=repr(text[:80]))


def format_instant(seconds: float) -> str:
    """Return an instant as ISO 8601 in UTC, the inverse of `parse_period`; a whole day without its time."""
    days, rest = divmod(round(seconds), DAY_S)
    year, month, day = _civil(days)
    sign, width = ("-", 4) if year < 0 else ("+", 5) if year > 9999 else ("", 4)
    date = f"{sign}{abs(year):0{width}d}-{month:02d}-{day:02d}"
    return date if rest == 0 else f"{date}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


def _single(text: str) -> Period | None:
    if match := _DATE.fullmatch(text):
        return _calendar(int(match["year"]), match["month"], match["day"], text)
    if match := _INSTANT.fullmatch(text):
        return _instant(match, text)
    if match := _GERMAN.fullmatch(text):
        return _calendar(int(match["year"]), match["month"], match["day"], text)
    if match := _ERA.fullmatch(text):
        year = int(match["year"])
        if year == 0:
            raise PeriodError("there is no year 0 before or after Christ", found=repr(text[:80]))
        return _calendar(1 - year if match["era"][0] in "bBvV" else year, None, None, text)
    return None


def _calendar(year: int, month: str | None, day: str | None, text: str) -> Period:
    if month is None:
        return float(_days(year, 1, 1) * DAY_S), float(_days(year + 1, 1, 1) * DAY_S)
    number = int(month)
    if not 1 <= number <= 12:
        raise PeriodError("there is no such month", found=repr(text[:80]))
    length = _month_length(year, number)
    if day is None:
        start = _days(year, number, 1)
        return float(start * DAY_S), float((start + length) * DAY_S)
    if not 1 <= int(day) <= length:
        raise PeriodError("there is no such day", found=repr(text[:80]))
    start = _days(year, number, int(day))
    return float(start * DAY_S), float((start + 1) * DAY_S)


def _instant(match: re.Match[str], text: str) -> Period:
    start, _ = _calendar(int(match["year"]), match["month"], match["day"], text)
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 60:  # 60: a leap second
        raise PeriodError("there is no such time of day", found=repr(text[:80]))
    start += hour * 3600 + minute * 60 + second
    lasts = 60.0 if match["second"] is None else 1.0
    if part := match["part"]:
        start += int(part) / 10 ** len(part)
        lasts = 1 / 10 ** len(part)
    zone = match["zone"]
    if zone and zone not in "Zz":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        start -= offset if zone[0] == "+" else -offset
    return start, start + lasts


def _month_length(year: int, month: int) -> int:
    # Any year of the 400-year cycle has the same calendar.
    return monthrange(2000 + year % 400, month)[1]


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date of the proleptic Gregorian calendar (Hinnant's `days_from_civil`)."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * 400 + (month <= 2), month, day
