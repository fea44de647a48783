"""From a stage's report, or its error, to what Dagster shows an operator.

What belongs here: which numbers are plotted, the readable table, how a check's evidence is laid out, how an error
reads. What does not: computing any of it (the domain's `StageReport`, `CheckResult`, `GeoragError`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import dagster as dg

from georag_assets.errors import GeoragError
from georag_assets.reports import CheckResult, StageReport


def materialize_result(
    report: StageReport, pictures: Mapping[str, str] = MappingProxyType({})
) -> dg.MaterializeResult[None]:
    """Return the report as a materialisation: content version, numbers as numbers, a table, pictures, checks."""
    return dg.MaterializeResult(
        data_version=dg.DataVersion(report.data_version),
        metadata={
            "version": report.data_version,
            "summary": dg.MetadataValue.md(_table(report)),
            **{name: dg.MetadataValue.md(markdown) for name, markdown in pictures.items()},
            **{name: _value(value) for name, value in report.counts.items()},
            "seconds": dg.MetadataValue.float(round(sum(report.seconds.values()), 3)),
            **({} if report.snapshot_id is None else {"snapshot_id": str(report.snapshot_id)}),
            # A count keeps its name, so that its history stays one plot; what else bears it shows which rows.
            **{
                f"{name}_shown" if name in report.counts else name: _value(value)
                for name, value in report.metadata.items()
                if value is not None
            },
        },
        check_results=[check_result(check) for check in report.checks],
    )


def one_line(report: StageReport) -> str:
    """Return what the stage did in one line of a log."""
    counts = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in report.counts.items())
    return f"{report.corpus}/{report.stage} {report.data_version}: {counts}; {sum(report.seconds.values()):.1f} s"


def check_result(check: CheckResult) -> dg.AssetCheckResult:
    """Return a check's outcome with its numbers plotted and its evidence as JSON."""
    return dg.AssetCheckResult(
        check_name=check.name,
        passed=check.passed,
        severity=dg.AssetCheckSeverity[check.severity],
        description=check.description,
        metadata={
            **{name: _value(value) for name, value in check.numbers.items()},
            **({"detail": dg.MetadataValue.json(dict(check.detail))} if check.detail else {}),
        },
    )


def failure(error: GeoragError) -> dg.Failure:
    """Return an error as a failure that is not retried: the message says what to do, trying again does not."""
    parts = {name: getattr(error, name) for name in ("where", "expected", "found", "do")}
    return dg.Failure(
        description=str(error),
        metadata={
            "kind": type(error).__name__,
            "what": error.what,
            **{name: part for name, part in parts.items() if part},
        },
        allow_retries=False,
    )


def _value(value: object) -> dg.MetadataValue[Any]:
    """Return a metadata value whose type Dagster plots or lays out: numbers as numbers, the rest as text or JSON."""
    match value:
        case bool():
            return dg.MetadataValue.bool(value)
        case int():
            return dg.MetadataValue.int(value)
        case float():
            return dg.MetadataValue.float(value)
        case Mapping():
            return dg.MetadataValue.json(dict(value))
        case list() | tuple():
            return dg.MetadataValue.json(list(value))
        case _:
            return dg.MetadataValue.text(str(value))


def _table(report: StageReport) -> str:
    """Return counts and step times side by side, as Markdown short enough to be shown without a click."""
    counts = [(name.replace("_", " "), f"{value:,}") for name, value in report.counts.items()]
    seconds = [(name.replace("_", " "), f"{value:.2f} s") for name, value in report.seconds.items()]
    failed = [check.name for check in report.checks if not check.passed]
    rows = "\n".join(f"| {name} | {value} |" for name, value in counts + seconds)
    verdict = f"**failed: {', '.join(failed)}**" if failed else f"{len(report.checks)} checks passed"
    return f"{report.corpus} / {report.stage}: {verdict}\n\n| what | figure |\n|---|---:|\n{rows}"
