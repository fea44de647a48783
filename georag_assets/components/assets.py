"""One asset per stage of a corpus.

What belongs here: keys, dependencies, checks, policies, and the body that every stage shares. What does not: which
stages there are (`stages`), what they do (their rooms), how a result reads (`results`).
"""

# No postponed annotations here: Dagster reads `context` and resources off the signature.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from georag_assets.components.resources import HomeResource
from georag_assets.components.results import failure, materialize_result, one_line
from georag_assets.components.stages import Stage, StageRun
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.shards import WHOLE, Shard, shards_of
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
    shards: dg.StaticPartitionsDefinition | None = None,
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
    shards
        A partition for each shard, where the corpus has several; for the stages that are done shard by shard.
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
        partitions_def=shards if stage.sharded else None,
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
            shard = Shard.named(context.partition_key) if context.has_partition_key else WHOLE
            georag_home.hold(home, corpus, shard)
            report = stage.run(
                StageRun(home, declaration, config, lambda: _staged_build(context.instance, corpus), shard)
            )
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


@dataclass(frozen=True, slots=True)
class CorpusJobs:
    """The jobs of a corpus: one for the whole chain; where it is sharded, for what comes before, in and after shards.

    Attributes
    ----------
    sync
        Builds the corpus whole (`build_<name>`); of a sharded corpus reads its sources only (`sync_<name>`).
    shard, join
        Of a sharded corpus: chunks to embeddings of one shard, a partition (`shard_<name>`); and what joins the shards
        into an index (`join_<name>`).
    """

    sync: "UnresolvedAssetJobDefinition"
    shard: "UnresolvedAssetJobDefinition | None" = None
    join: "UnresolvedAssetJobDefinition | None" = None

    @property
    def all(self) -> "list[UnresolvedAssetJobDefinition]":
        """Return those there are."""
        return [job for job in (self.sync, self.shard, self.join) if job is not None]


def corpus_jobs(declaration: CorpusDeclaration, stages: Sequence[Stage], settings: Settings) -> CorpusJobs:
    """Return the jobs of a corpus; each in one process, which saves 2 s of start-up a stage."""
    corpus = declaration.name

    def job(verb: str, names: Sequence[str], told: str) -> "UnresolvedAssetJobDefinition":
        return dg.define_asset_job(
            f"{verb}_{corpus}",
            selection=dg.AssetSelection.assets(*(dg.AssetKey([corpus, name]) for name in names)),
            executor_def=dg.in_process_executor if settings.executor == "in_process" else dg.multiprocess_executor,
            tags={CORPUS_TAG: corpus},
            description=told,
        )

    names = [stage.name for stage in stages]
    if declaration.shards == 1:
        return CorpusJobs(
            job("build", names, f"Documents to live index of '{corpus}'; what did not change is not done again.")
        )
    sharded = [stage.name for stage in stages if stage.sharded]
    first, last = names.index(sharded[0]), names.index(sharded[-1])
    return CorpusJobs(
        job("sync", names[:first], f"The documents of '{corpus}' as its sources have them now, as a version."),
        job("shard", sharded, f"One shard of '{corpus}', from documents to vectors."),
        job("join", names[last + 1 :], f"The shards of '{corpus}' joined into an index that goes live."),
    )


def partitions_of(declaration: CorpusDeclaration) -> dg.StaticPartitionsDefinition | None:
    """Return a partition for each shard of a corpus, None where it is not sharded."""
    if declaration.shards == 1:
        return None
    return dg.StaticPartitionsDefinition([shard.name for shard in shards_of(declaration.shards)])
