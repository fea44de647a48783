"""Which build answers: the live pointer, promotion, rollback, pruning.

What belongs here: the one small file that names the live build, and every rule about replacing it. What does not:
making builds (`builds`) and their checks (`checks`, and the rooms upstream).

A build goes live only when its manifest verifies and records every required blocking check as passed: Dagster's own
blocking holds within one run, and the next run must not promote what the last one stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from georag_assets.corpus.versions import newest_version
from georag_assets.errors import GeoragError, IndexBuildError, PromotionError
from georag_assets.home import Home
from georag_assets.index import manifest as manifests
from georag_assets.index.files import write_json
from georag_assets.index.folders import build_folder, complete_builds, discard, exclusive
from georag_assets.index.manifest import Manifest
from georag_assets.index.server.records import builds_that_answer
from georag_assets.reports import StageReport

STAGE = "live_index"
REQUIRED = (
    "documents_accounted_for",
    "quarantine_within_threshold",
    "every_geometry_parses",
    "chunks_cover_documents",
    "every_chunk_has_frame_and_extent",
    "every_frame_has_evidence",
    "every_text_has_a_vector",
    "spatial_filter_is_indexed",
    "filtered_recall",
    "every_point_names_its_source",
    "points_equal_chunks",
)
REQUIRED_WITH_QUERIES = ("evidence_is_complete", "recall_not_below_live")
_HISTORY = 20


@dataclass(frozen=True, slots=True)
class Hold:
    """A rollback that holds: no build of `corpus_version` goes live until a newer version comes or it is released."""

    corpus_version: str
    since: str
    rolled_back_from: str


@dataclass(frozen=True, slots=True)
class LiveState:
    """What the live pointer says. `history` are the builds that were live before, the latest first."""

    corpus: str
    build: str
    corpus_version: str
    promoted_at: str
    history: tuple[str, ...] = ()
    hold: Hold | None = None


def live_state(home: Home, corpus: str) -> LiveState | None:
    """Return the live pointer, or None where nothing was promoted yet.

    Raises
    ------
    IndexBuildError
        The pointer is there and cannot be read: never taken for "nothing is live".
    """
    path = home.live_pointer(corpus)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        hold = Hold(**value["hold"]) if value["hold"] else None
        state = LiveState(**{**value, "history": tuple(value["history"]), "hold": hold})
        for name in (state.build, *state.history):
            build_folder(home, corpus, name)  # refuses what is no build's name
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, OSError, IndexBuildError) as error:
        raise IndexBuildError(
            "the live pointer cannot be read",
            where=str(path),
            found=type(error).__name__,
            do=f"delete it and run: georag build {corpus}",
        ) from error


def live_build(home: Home, corpus: str) -> str | None:
    """Return the name of the live build, or None."""
    state = live_state(home, corpus)
    return state.build if state else None


def promote(home: Home, corpus: str, build: str) -> StageReport:
    """Make a build the live one, then prune.

    A held rollback is respected: while the build is of the version that was rolled back from, the pointer stays and the
    report says `held`.

    Raises
    ------
    PromotionError
        A required check is not recorded as passed, any blocking one failed, or the folder does not verify. The live
        pointer is as it was.
    """
    started = perf_counter()
    manifest = _promotable(home, corpus, build)
    verified = perf_counter()
    with exclusive(_lock(home, corpus)):
        before = live_state(home, corpus)
        held = before is not None and before.hold is not None and before.hold.corpus_version == manifest.corpus_version
        changed = not held and (before is None or before.build != build)
        state = before
        if changed or (before is not None and before.hold is not None and not held):
            history = before.history if before else ()
            if before is not None and before.build != build:
                history = (before.build, *(name for name in history if name not in {build, before.build}))
            state = LiveState(corpus, build, manifest.corpus_version, _now(), history[:_HISTORY])
            _replace(home, state)
    pruned = prune(home, corpus)
    assert state is not None
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=state.build,
        counts={
            "promoted": int(changed),
            "held": int(held),
            "removed": len(pruned),
            "points": manifest.counts["points"],
        },
        seconds={"verify": verified - started, "promote": perf_counter() - verified},
        metadata={
            "build": state.build,
            "corpus_version": state.corpus_version,
            "previous": before.build if before and before.build != state.build else None,
            "held": asdict(state.hold) if state.hold else None,
            "promoted_at": state.promoted_at,
            "pruned": list(pruned),
        },
    )


def rollback(home: Home, corpus: str, to: str | None = None, *, release: bool = False) -> LiveState:
    """Make an earlier build live and hold it there, or release the hold.

    Parameters
    ----------
    to
        The build; by default the one that was live before.
    release
        Only end the hold: the live build stays until the next promotion.
    """
    if live_state(home, corpus) is None:  # before the lock, whose file would be the first trace of such a corpus
        raise PromotionError(f"nothing of corpus {corpus} is live", do="build it first")
    with exclusive(_lock(home, corpus)):
        before = live_state(home, corpus)
        if before is None:
            raise PromotionError(f"nothing of corpus {corpus} is live", do="build it first")
        if release:
            state = LiveState(corpus, before.build, before.corpus_version, before.promoted_at, before.history)
            _replace(home, state)
            return state
        target, manifest = _rollback_target(home, corpus, before, to)
        place = before.history.index(target) + 1 if target in before.history else 0
        hold = Hold(newest_version(home, corpus) or before.corpus_version, _now(), before.build)
        state = LiveState(corpus, target, manifest.corpus_version, _now(), before.history[place:], hold)
        _replace(home, state)
        return state


def prune(home: Home, corpus: str) -> tuple[str, ...]:
    """Delete old builds; keep the newest, the live one, a rollback's, a server's, and those somebody reads."""
    with exclusive(_lock(home, corpus)):
        state = live_state(home, corpus)
        if state is None:
            return ()
        complete = [manifest.build for manifest in complete_builds(home, corpus)]
        kept = {state.build, *complete[-home.settings.keep_builds :]}
        kept |= set([name for name in state.history if name in complete][:1])
        if state.hold is not None:
            kept.add(state.hold.rolled_back_from)
        # A server's collection is searched by its build's columns.
        kept |= builds_that_answer(home, corpus)
        doomed = [name for name in complete if name not in kept]
        return tuple(name for name in doomed if discard(build_folder(home, corpus, name)))


def missing_checks(manifest: Manifest) -> list[str]:
    """Return why a build may not go live: a required check without a result, any blocking one that failed."""
    required = REQUIRED + (REQUIRED_WITH_QUERIES if manifest.needs_evaluation else ())
    recorded = {check.name for check in manifest.checks}
    absent = [f"{name} was never recorded" for name in required if name not in recorded]
    failed = [f"{check.name} failed" for check in manifest.checks if check.blocking and not check.passed]
    lax = [
        f"{check.name} is not blocking" for check in manifest.checks if check.name in required and not check.blocking
    ]
    return failed + absent + lax


def _promotable(home: Home, corpus: str, build: str) -> Manifest:
    try:
        manifest = manifests.verify(build_folder(home, corpus, build))
    except IndexBuildError as error:
        raise PromotionError(
            f"build {build} cannot go live: {error.what}", where=error.where, expected=error.expected, found=error.found
        ) from error
    if reasons := missing_checks(manifest):
        raise PromotionError(
            f"build {build} cannot go live",
            where=corpus,
            expected="every blocking check passed",
            found=", ".join(reasons),
        )
    return manifest


def _rollback_target(home: Home, corpus: str, before: LiveState, to: str | None) -> tuple[str, Manifest]:
    if to is not None:
        return to, _promotable(home, corpus, to)
    found: list[str] = []
    for name in before.history:
        if name == before.build:
            continue
        try:
            return name, _promotable(home, corpus, name)
        except GeoragError as error:
            found.append(str(error))
    raise PromotionError(
        f"corpus {corpus} has no earlier build to roll back to",
        found="; ".join(found) or "no build was live before this one",
        do="name one with --to",
    )


def _replace(home: Home, state: LiveState) -> None:
    write_json(home.live_pointer(state.corpus), asdict(state))


def _lock(home: Home, corpus: str) -> Path:
    return home.corpus_folder(corpus) / "live.lock"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
