"""What every stage of a corpus reports: counts, timings, identity, check results.

What belongs here: the frozen records that flow from the domain to Dagster, the CLI and the measurements table.
What does not: how a check is computed (its room) or shown (`components`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One asset check's outcome.

    `blocking` failures keep a build from going live; `numbers` are plotted over time; `detail` is JSON-able
    structured evidence (expected, actual, the failing rows' ids, capped at 20).
    """

    name: str
    passed: bool
    blocking: bool
    description: str
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    detail: Mapping[str, object] = field(default_factory=dict)
    severity: Literal["WARN", "ERROR"] = "ERROR"


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage did for one corpus.

    `data_version` is content-based: equal inputs give an equal string. `counts` holds at least new, reused, removed,
    quarantined where they make sense; `seconds` is wall time by step; `metadata` is JSON-able and small; `shard` names
    the share of the corpus that the stage ran for, and is empty for the whole.
    """

    corpus: str
    stage: str
    data_version: str
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    checks: tuple[CheckResult, ...] = ()
    snapshot_id: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    shard: str = ""

    @property
    def blocked(self) -> bool:
        """True when a blocking check failed."""
        return any(check.blocking and not check.passed for check in self.checks)
