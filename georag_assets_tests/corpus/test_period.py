"""Periods: every notation that can only mean one thing, on any year; numbers are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georag_assets.corpus.period import DAY_S, format_instant, parse_period
from georag_assets.errors import PeriodError

DAYS = st.dates(date(1, 1, 1), date(9998, 12, 31))


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_case_o40_every_notation_is_matched_and_numbers_are_refused(
    case: Callable[[str], dict[str, object]],
) -> None:
    o40 = case("o40")
    given_, expected = o40["input"], o40["expected"]
    assert isinstance(given_, dict)
    assert isinstance(expected, dict)
    start, end = parse_period(given_["from"])[0], parse_period(given_["to"])[0]
    matched, refused, before_1900 = [], [], []
    for name, value in given_["points"].items():
        try:
            first, after = parse_period(value)
        except PeriodError:
            refused.append(int(name))
            continue
        if first < end and after > start:
            matched.append(int(name))
        if after <= parse_period("1900")[0]:
            before_1900.append(int(name))
    assert matched == expected["ids"]
    assert refused == expected["refused_or_quarantined_if_not_converted"]
    assert before_1900 == expected["before_1900"]
    first, after = parse_period(given_["points"]["3"])
    assert [format_instant(first), format_instant(after - DAY_S)] == expected["period_of_3"]


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2020", "2020-01-01", "2021-01-01"),
        ("2020-02", "2020-02-01", "2020-03-01"),
        ("2020-12", "2020-12-01", "2021-01-01"),
        ("29.02.2024", "2024-02-29", "2024-03-01"),
        ("5.2020", "2020-05-01", "2020-06-01"),
        ("2020-05-01T12:30Z", "2020-05-01T12:30:00", "2020-05-01T12:31:00"),
        ("2020-05-01T12:30:15", "2020-05-01T12:30:15", "2020-05-01T12:30:16"),
        ("2020-05-01T01:00:00+02:00", "2020-04-30T23:00:00", "2020-04-30T23:00:01"),
        ("2020-05-01 01:00:00-0530", "2020-05-01T06:30:00", "2020-05-01T06:30:01"),
        ("2000-2005", "2000-01-01", "2006-01-01"),
        ("2000 – 2005", "2000-01-01", "2006-01-01"),
        ("2020-05-01/2020-06", "2020-05-01", "2020-07-01"),
    ],
)
def test_a_notation_and_its_start_and_exclusive_end(text: str, start: str, end: str) -> None:
    assert parse_period(text) == (seconds(start), seconds(end))


@pytest.mark.parametrize(
    "value",
    [2020, 1588291200, 2020.5, True, None, "1588291200", "20", "2020-13", "2023-02-29", "31.04.2020",
     "2020-05-01T25:00Z", "01/05/2020", "19th century", "", "2005-2000", "0 BCE", "2020-05-01x"],
)  # fmt: skip
def test_what_could_mean_several_things_or_nothing_is_refused(value: object) -> None:
    with pytest.raises(PeriodError):
        parse_period(value)


def test_years_before_the_first() -> None:
    assert parse_period("44 BCE") == parse_period("-0043")
    assert parse_period("1 BC") == parse_period("0000")
    assert parse_period("-0044-03-15")[1] - parse_period("-0044-03-15")[0] == DAY_S
    assert parse_period("0000")[1] == parse_period("0001")[0]
    assert format_instant(parse_period("-0044-03-15")[0]) == "-0044-03-15"
    assert format_instant(parse_period("+12345-06")[0]) == "+12345-06-01"


@given(DAYS)
def test_days_are_those_of_the_calendar(day: date) -> None:
    start, end = parse_period(day.isoformat())
    assert end - start == DAY_S
    assert timedelta(seconds=start) == day - date(1970, 1, 1)
    assert parse_period(day.strftime("%d.%m.") + f"{day.year:04d}") == (start, end)
    assert format_instant(start) == day.isoformat()


@given(st.datetimes(datetime(1, 1, 2), datetime(9998, 12, 31)))
def test_an_instant_is_written_back_as_it_was_read(moment: datetime) -> None:
    text = moment.replace(microsecond=0).isoformat() + "Z"
    start, _ = parse_period(text)
    assert parse_period(format_instant(start))[0] == start
    assert start == moment.replace(microsecond=0, tzinfo=UTC).timestamp()
