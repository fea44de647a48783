"""How far a build is behind its corpus, in numbers.

What belongs here: lag and age of one build. What does not: every number of an installation (`operations.status`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from georag_assets.home import Home


@dataclass(frozen=True, slots=True)
class Staleness:
    """A build beside its corpus; `newest_version` and `version_lag` are None where no version was published."""

    newest_version: str | None
    version_lag: int | None
    index_age_seconds: float


def staleness_of(home: Home, corpus: str, corpus_version: str, created_at: str) -> Staleness:
    """Return how far a build made from `corpus_version` at `created_at` is behind."""
    from georag_assets.corpus.versions import newest_published

    newest = newest_published(home, corpus)
    age = (datetime.now(UTC) - datetime.fromisoformat(created_at)).total_seconds()
    return Staleness(newest, version_lag(corpus_version, newest), round(age, 1))


def version_lag(own: str, newest: str | None) -> int | None:
    """Return by how many versions `own` is behind; at least 1 where it is another, as after content was put back."""
    if newest is None:
        return None
    return 0 if own == newest else max(1, _number(newest) - _number(own))


def _number(version: str) -> int:
    return int(version.removeprefix("v").partition("-")[0])
