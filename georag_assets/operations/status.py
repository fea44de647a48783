"""Every staleness number of an installation, per corpus: what the operator looks at first.

What belongs here: collecting numbers that others recorded. What does not: computing them again, and judging them
beyond a declared policy (the checks do).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from georag_assets.corpus.models import DOCUMENTS, QUARANTINE
from georag_assets.corpus.period import format_instant
from georag_assets.errors import IndexBuildError
from georag_assets.home import Home
from georag_assets.index import manifest as manifests
from georag_assets.index.folders import build_folder, complete_builds
from georag_assets.index.live import LiveState, live_state
from georag_assets.index.server.records import of_corpus
from georag_assets.retrieval.staleness import version_lag

if TYPE_CHECKING:
    from georag_assets.corpus.declaration import CorpusDeclaration


@dataclass(frozen=True, slots=True)
class CorpusStatus:
    """One corpus's numbers; None where there is nothing to measure yet, never a comforting 0.

    Attributes
    ----------
    state
        `never_built`, `no_live_index`, `live`, `behind` (the live index is of an older version), `held` (rolled
        back, until released or a newer version) or `broken` (the live pointer or the build that it names cannot be
        read: `fault` says why).
    index_age_seconds
        Since the live build was made.
    failed_checks
        Names of checks that the live build or the newest build recorded as failed.
    newest_record
        Latest end of a declared period among the documents.
    within_policy
        Whether the live build is younger than the declared `max_age_hours`; None where none is declared.
    servers
        What each collection on a server was last brought to, from this home's records; nothing is asked.
    """

    corpus: str
    state: str
    fault: str | None
    declared: bool
    documents: int
    newest_version: str | None
    live_build: str | None
    live_version: str | None
    version_lag: int | None
    promoted_at: str | None
    built_at: str | None
    index_age_seconds: float | None
    points: int | None
    allocated_bytes: int | None
    rebuild_seconds: float | None
    builds: int
    newest_build: str | None
    hold: Mapping[str, str] | None
    checks: Mapping[str, bool]
    failed_checks: tuple[str, ...]
    quarantined: int
    quarantine_rate: float | None
    newest_record: str | None
    newest_revision: str | None
    within_policy: bool | None
    servers: tuple[Mapping[str, Any], ...] = ()


def status(home: Home, declarations: Mapping[str, CorpusDeclaration]) -> tuple[CorpusStatus, ...]:
    """Return the status of every corpus that is declared or was ever built, by name."""
    names = {*declarations, *_built(home)}
    return tuple(corpus_status(home, name, declarations.get(name)) for name in sorted(names))


def as_dict(statuses: Iterable[CorpusStatus]) -> dict[str, Any]:
    """Return the JSON form."""
    return {"at": datetime.now(UTC).isoformat(), "corpora": [asdict(one) for one in statuses]}


def corpus_status(home: Home, corpus: str, declaration: CorpusDeclaration | None = None) -> CorpusStatus:
    """Return one corpus's numbers."""
    from georag_assets.corpus.documents import STAGE
    from georag_assets.corpus.versions import newest_version

    newest = newest_version(home, corpus)
    live, fault = _live(home, corpus)
    builds = complete_builds(home, corpus)
    serving = next((build for build in builds if live and build.build == live.build), None)
    documents = home.tables.read(corpus, DOCUMENTS, columns=["period_end", "revision"])
    stages = home.tables.read(corpus, QUARANTINE, columns=["stage"])["stage"].to_pylist()
    quarantined = len(stages)
    # What a later stage quarantines is in the table of documents as well.
    total = documents.num_rows + stages.count(STAGE)
    age = None if serving is None else _age(serving.created_at)
    lag = None if live is None else version_lag(live.corpus_version, newest)
    policy = declaration.freshness.max_age_hours if declaration and declaration.freshness else None
    checks = {check.name: check.passed for build in ([serving] if serving else builds[-1:]) for check in build.checks}
    failed = {check.name for build in builds[-1:] for check in build.checks if not check.passed}
    failed |= {name for name, passed in checks.items() if not passed}
    latest = pc.max(documents["period_end"]).as_py()
    return CorpusStatus(
        corpus=corpus,
        state="broken" if fault else _state(newest, live is not None, bool(live and live.hold), lag),
        fault=fault,
        declared=declaration is not None,
        documents=documents.num_rows,
        newest_version=newest,
        live_build=live.build if live else None,
        live_version=live.corpus_version if live else None,
        version_lag=lag,
        promoted_at=live.promoted_at if live else None,
        built_at=serving.created_at if serving else None,
        index_age_seconds=age,
        points=serving.counts.get("points") if serving else None,
        allocated_bytes=serving.allocated_bytes if serving else None,
        rebuild_seconds=serving.rebuild_seconds if serving else None,
        builds=len(builds),
        newest_build=builds[-1].build if builds else None,
        hold=asdict(live.hold) if live and live.hold else None,
        checks=checks,
        failed_checks=tuple(sorted(failed)),
        quarantined=quarantined,
        quarantine_rate=round(quarantined / total, 6) if total else None,
        newest_record=None if latest is None else format_instant(latest),
        newest_revision=pc.max(documents["revision"]).as_py(),
        within_policy=None if policy is None or age is None else age <= policy * 3600,
        servers=tuple(
            {
                "server": record.server,
                "collection": record.collection,
                "state": record.state,
                "build": record.build,
                "is_live_build": live is not None and record.build == live.build,
                "points": record.points,
                "promoted_at": record.promoted_at,
                "failed_checks": [check.name for check in record.checks if not check.passed],
            }
            for record in of_corpus(home, corpus)
        ),
    )


def live_corpora(home: Home) -> tuple[str, ...]:
    """Return the corpora that have a live index."""
    return tuple(name for name in _indexed(home) if home.live_pointer(name).is_file())


def _built(home: Home) -> list[str]:
    return sorted({*_indexed(home), *home.tables.namespaces()})


def _indexed(home: Home) -> list[str]:
    folder = home.root / "corpora"
    return sorted(path.name for path in folder.iterdir() if (path / "builds").is_dir()) if folder.is_dir() else []


def _live(home: Home, corpus: str) -> tuple[LiveState | None, str | None]:
    """Return what is live and what is wrong with it; one broken corpus must not hide the others from an operator."""
    live = None
    try:
        live = live_state(home, corpus)
        if live is not None:
            manifests.read(build_folder(home, corpus, live.build))
    except IndexBuildError as error:
        return live, str(error)
    return live, None


def _state(newest: str | None, live: bool, held: bool, lag: int | None) -> str:
    if held:
        return "held"
    if live:
        return "behind" if lag else "live"
    return "no_live_index" if newest else "never_built"


def _age(created_at: str) -> float:
    return round((datetime.now(UTC) - datetime.fromisoformat(created_at)).total_seconds(), 1)
