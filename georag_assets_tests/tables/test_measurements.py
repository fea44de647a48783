"""Reports become rows with a history; checks come back as they were, the latest of each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport
from georag_assets.tables.measurements import MEASUREMENTS, checks_of, record

AT = datetime(2026, 1, 1, tzinfo=UTC)


def report(passed: bool, version: str = "v1") -> StageReport:
    check = CheckResult("sound", passed, True, "It is sound.", {"share": 0.5}, {"first": ["a"]}, "WARN")
    return StageReport("corpus", "stage", version, {"new": 3}, {"work": 0.25}, (check,))


def test_counts_seconds_and_the_numbers_of_checks_are_rows(home: Home) -> None:
    record(home.tables, "corpus", (report(True), AT))
    rows = home.tables.read("corpus", MEASUREMENTS).to_pylist()
    values = {(row["kind"], row["name"]): row["value"] for row in rows if row["value"] is not None}
    assert values == {("count", "new"): 3, ("seconds", "work"): 0.25, ("number", "sound.share"): 0.5}
    assert {row["at"] for row in rows} == {AT.timestamp()}


def test_the_latest_outcome_of_a_check_for_a_version_comes_back_whole(home: Home) -> None:
    record(home.tables, "corpus", (report(True), AT + timedelta(hours=1)))
    record(home.tables, "corpus", (report(False), AT))
    record(home.tables, "corpus", (report(False, "v2"), AT + timedelta(hours=2)))
    assert checks_of(home.tables, "corpus", "stage", "v1") == list(report(True).checks)
    assert checks_of(home.tables, "corpus", "other", "v1") == []
    assert checks_of(home.tables, "elsewhere", "stage", "v1") == []


def test_several_reports_are_one_commit_each_at_its_own_time(home: Home) -> None:
    later = AT + timedelta(minutes=5)
    first = record(home.tables, "corpus", (report(True), AT), (report(False, "v2"), later))
    rows = home.tables.read("corpus", MEASUREMENTS, snapshot_id=first).to_pylist()
    assert {(row["data_version"], row["at"]) for row in rows} == {("v1", AT.timestamp()), ("v2", later.timestamp())}
