"""The contract that every benchmark shares: rows, context, a table or one JSON object, the exit code.

What belongs here: `Report` and `run`. What does not: any measurement.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def data_folder() -> Path:
    """Return the folder of real data: GEORAG_SHARED, or `shared` beside the checkout."""
    stated = os.environ.get("GEORAG_SHARED")
    folder = Path(stated) if stated else Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        sys.exit(f"the folder of real data is absent: {folder}/data; set GEORAG_SHARED or lay it beside the checkout")
    return folder / "data"


def machine(*packages: str) -> dict[str, object]:
    """Return what a figure depends on: processor, cores, memory, Python, versions of the packages named."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


@dataclass
class Report:
    """Rows of figures under one name; `goal` and `met` are None for a figure shown only for comparison."""

    name: str
    context: dict[str, object] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, what: str, goal: str | None, measured: float | int | str | None, unit: str, met: bool | None) -> None:
        """Append one row; a measured NaN or infinity becomes null and cannot have met its goal."""
        if isinstance(measured, float) and not math.isfinite(measured):
            measured, met = None, (False if goal else None)
        self.rows.append({"what": what, "goal": goal, "measured": measured, "unit": unit, "met": met})

    def at_least(self, what: str, goal: float, measured: float, unit: str) -> None:
        """Append a row that is met when `measured >= goal`."""
        self.add(what, f">= {goal:g}", measured, unit, bool(measured >= goal))

    def at_most(self, what: str, goal: float, measured: float, unit: str) -> None:
        """Append a row that is met when `measured <= goal`."""
        self.add(what, f"<= {goal:g}", measured, unit, bool(measured <= goal))

    def compare(self, what: str, measured: float | int | str, unit: str) -> None:
        """Append a row without a goal: a peer's figure, a size, a count."""
        self.add(what, None, measured, unit, None)

    @property
    def all_met(self) -> bool:
        """True when no row missed its goal."""
        return all(row["met"] is not False for row in self.rows)

    def as_json(self) -> str:
        """Return the whole report as one JSON object."""
        return json.dumps({"name": self.name, "rows": self.rows, "context": self.context}, allow_nan=False)

    def as_table(self) -> str:
        """Return the report as aligned text."""
        head = ("what", "goal", "measured", "unit", "met")
        body = [
            (
                str(row["what"]),
                str(row["goal"] or ""),
                _figure(row["measured"]),
                str(row["unit"]),
                {True: "yes", False: "NO", None: ""}[row["met"]],  # type: ignore[index]
            )
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        notes = [f"{key}: {value}" for key, value in self.context.items()]
        return "\n".join([f"# {self.name}", *(line.rstrip() for line in lines), "", *notes])


def _figure(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def run(
    name: str,
    measure: Callable[[Report, bool], None],
    *,
    packages: tuple[str, ...] = (),
    context: Mapping[str, object] | None = None,
) -> None:
    """Parse the options, fill a report by `measure(report, quick)`, print it, exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="the same work on a sample, within a minute")
    options = parser.parse_args()
    report = Report(name, {"quick": options.quick, **machine(*packages), **(context or {})})
    measure(report, options.quick)
    print(report.as_json() if options.json else report.as_table())
    sys.exit(0 if report.all_met else 1)
