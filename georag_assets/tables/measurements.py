"""The `measurements` table: every number that has a history, and every check's outcome, one row each.

What belongs here: writing stage reports as rows and reading checks back. What does not: what a number means (its
stage) and Dagster's own metadata, which loses its history when runs are purged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from georag_assets.reports import CheckResult, StageReport
from georag_assets.tables.iceberg import Tables, TableSpec

MEASUREMENTS = TableSpec(
    "measurements",
    pa.schema(
        [
            ("at", pa.float64()),
            ("stage", pa.string()),
            ("data_version", pa.string()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("value", pa.float64()),
            ("passed", pa.bool_()),
            ("blocking", pa.bool_()),
            ("detail_json", pa.string()),
            ("shard", pa.string()),
        ]
    ),
)


def record(tables: Tables, namespace: str, *reports: tuple[StageReport, datetime]) -> int:
    """Append the counts, seconds and checks of reports, each at its time, in one commit; returns the snapshot id.

    `kind` is `count`, `seconds`, `check` or `number` (one that a check gave, named `<check>.<number>`).
    """
    rows = [row for report, at in reports for row in _rows(report, at)]
    added = pa.Table.from_pylist(rows, schema=MEASUREMENTS.schema)
    return tables.replace_rows(namespace, MEASUREMENTS, key="stage", removed=[], added=added)


def _rows(report: StageReport, at: datetime) -> Iterator[dict[str, object]]:
    base = {
        "at": at.timestamp(),
        "stage": report.stage,
        "data_version": report.data_version,
        "shard": report.shard or None,
    }
    for kind, values in (("count", report.counts), ("seconds", report.seconds)):
        for name, value in values.items():
            yield {**base, "kind": kind, "name": name, "value": float(value)}
    for check in report.checks:
        detail = {
            "description": check.description,
            "severity": check.severity,
            "numbers": dict(check.numbers),
            "detail": dict(check.detail),
        }
        yield {
            **base,
            "kind": "check",
            "name": check.name,
            "passed": check.passed,
            "blocking": check.blocking,
            "detail_json": json.dumps(detail, default=str),
        }
        for name, value in check.numbers.items():
            if math.isfinite(value):
                yield {**base, "kind": "number", "name": f"{check.name}.{name}", "value": float(value)}


def checks_of(tables: Tables, namespace: str, stage: str, data_version: str) -> list[CheckResult]:
    """Return the latest outcome of each check that a stage reported for a data version."""
    rows = tables.read(namespace, MEASUREMENTS, where=("data_version", [data_version])).to_pylist()
    latest: dict[str, dict[str, object]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        if row["stage"] == stage and row["kind"] == "check":
            latest[row["name"]] = row
    return [_check(row) for row in latest.values()]


def latest_checks(tables: Tables, namespace: str, stages: Sequence[str]) -> list[CheckResult]:
    """Return the checks of each stage's latest report: what was established about the tables as they are now.

    Where that report was of a shard, those of its sister shards count with it: a check has passed where it passed in
    each, its counts are added, and of its shares the greatest is given.
    """
    rows = tables.read(namespace, MEASUREMENTS, where=("stage", stages)).to_pylist()
    checks: list[CheckResult] = []
    for stage in stages:
        latest: dict[str, float] = {}
        for row in rows:
            if row["stage"] == stage:
                latest[row["shard"] or ""] = max(row["at"], latest.get(row["shard"] or "", 0.0))
        if not latest:
            continue
        _, _, of = max(latest, key=lambda shard: latest[shard]).partition("-of-")
        found: dict[str, list[CheckResult]] = {}
        for row in rows:
            if row["stage"] != stage or row["kind"] != "check":
                continue
            shard = row["shard"] or ""
            if row["at"] == latest[shard] and shard.partition("-of-")[2] == of:
                found.setdefault(row["name"], []).append(_check(row))
        checks += [_together(results) for results in found.values()]
    return checks


def _together(results: Sequence[CheckResult]) -> CheckResult:
    """Return one check's outcomes in several shards as one; the evidence is of those that failed, else of the first."""
    first = next((result for result in results if not result.passed), results[0])
    numbers: dict[str, int | float] = {}
    for result in results:
        for name, value in result.numbers.items():
            before = numbers.get(name, 0)
            numbers[name] = before + value if isinstance(value, int) else max(before, value)
    return replace(first, numbers=numbers)


def _check(row: dict[str, object]) -> CheckResult:
    detail = json.loads(str(row["detail_json"]))
    return CheckResult(
        name=str(row["name"]),
        passed=bool(row["passed"]),
        blocking=bool(row["blocking"]),
        description=detail["description"],
        numbers=detail["numbers"],
        detail=detail["detail"],
        severity=detail["severity"],
    )
