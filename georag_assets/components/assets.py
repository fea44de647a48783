"""One asset per stage of a corpus.

What belongs here: keys, dependencies, checks, policies, and the body that every stage shares. What does not: which
stages there are (`stages`), what they do (their rooms), how a result reads (`results`).
"""

# No postponed annotations here: Dagster reads `context` and resources off the signature.
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from georag_assets.components.resources import HomeResource
from georag_assets.components.results import failure, materialize_result, one_line
from georag_assets.components.stages import Stage, StageRun
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.errors import GeoragError, IndexBuildError
from georag_assets.home import Home
from georag_assets.operations.pictures import pictures
from georag_assets.reports import StageReport
from georag_assets.settings import Settings
from georag_assets.tables import measurements

if TYPE_CHECKING:
    # Dagster returns this type and does not export it.
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

CORPUS_TAG, ASKED_TAG, BLOCKED_TAG = "georag/corpus", "georag/asked_for", "georag/blocked"
"""Run tags that the sensor reads: whose run it is, which state it was asked for, which stage's check blocked it."""


def stage_asset(
    stage: Stage,
    declaration: CorpusDeclaration,
    *,
    code_version: str,
    freshness: dg.FreshnessPolicy | None,
) -> dg.AssetsDefinition:
    """Return the asset of one stage of one corpus.

    Parameters
    ----------
    stage
        What the stage is and which function does it.
    declaration
        The corpus.
    code_version
        Algorithm and settings that decide the stage's content.
    freshness
        Policy that Dagster's freshness daemon evaluates; None where staleness of this stage means nothing.
    """
    corpus = declaration.name
    key = dg.AssetKey([corpus, stage.name])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([corpus, upstream]) for upstream in stage.after],
        description=stage.description,
        group_name=corpus,
        owners=["team:georag"],
        kinds=set(stage.kinds),
        tags={CORPUS_TAG: corpus, "georag/stage": stage.name},
        code_version=code_version,
        freshness_policy=freshness,
        config_schema=dict(stage.config),
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=key, blocking=check.blocking, description=check.description)
            for check in stage.checks
        ],
    )
    def run_stage(context: dg.AssetExecutionContext, georag_home: HomeResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        home = georag_home.home()
        config = context.op_execution_context.op_config or {}
        try:
            georag_home.hold(home, corpus)
            report = stage.run(StageRun(home, declaration, config, lambda: _staged_build(context.instance, corpus)))
            measurements.record(home.tables, corpus, (report, datetime.now(UTC)))
        except GeoragError as error:
            raise failure(error) from None
        context.log.info(one_line(report))
        if report.blocked:
            context.instance.add_run_tags(context.run.run_id, {BLOCKED_TAG: stage.name})
        return materialize_result(report, _pictures(context, home, report))

    return run_stage


def _pictures(context: dg.AssetExecutionContext, home: Home, report: StageReport) -> Mapping[str, str]:
    """Return the stage's pictures; what is only to look at never fails a build that is whole."""
    try:
        return pictures(home, report)
    except Exception:
        context.log.warning("no pictures of this stage", exc_info=True)
        return {}


def _staged_build(instance: dg.DagsterInstance, corpus: str) -> str:
    """Return the name of the build that `index_build` made last, also in an earlier run."""
    event = instance.get_latest_materialization_event(dg.AssetKey([corpus, "index_build"]))
    if event is None or event.asset_materialization is None:
        raise IndexBuildError(f"corpus {corpus} has no index build yet", do="materialise index_build first")
    return str(event.asset_materialization.metadata["build"].value)


def corpus_job(declaration: CorpusDeclaration, settings: Settings) -> "UnresolvedAssetJobDefinition":
    """Return the job that builds a corpus whole; in one process, which saves 2 s of start-up a stage."""
    executor = dg.in_process_executor if settings.executor == "in_process" else dg.multiprocess_executor
    return dg.define_asset_job(
        f"build_{declaration.name}",
        selection=dg.AssetSelection.key_prefixes([declaration.name]),
        executor_def=executor,
        tags={CORPUS_TAG: declaration.name},
        description=f"Documents to live index of '{declaration.name}'; what did not change is not done again.",
    )
