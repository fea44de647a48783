"""The sensor of a corpus: asks for a build as long as sources and live index differ.

What belongs here: the judgement, as a function of what was seen, and the sensor that looks. What does not: what a
source's state is (`corpus.sources`), what is live (`index.live`).

It is triggered by level and not by edge: a condition that fires on a change loses every change that lands while a build
runs, and every run that was refused or failed. Here the next tick sees the difference again. The cursor is one hash, a
count and a time, because Dagster copies it into every tick's row.
"""

# No postponed annotations here: Dagster reads `context` and resources off the signature.
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

import dagster as dg

from georag_assets.components.assets import ASKED_TAG, BLOCKED_TAG, CORPUS_TAG, CorpusJobs, corpus_jobs
from georag_assets.components.resources import HomeResource
from georag_assets.components.stages import SOURCE_STATE, stages_of
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.shards import WHOLE, Shard, shards_of
from georag_assets.corpus.source_state import source_state
from georag_assets.corpus.versions import newest_version
from georag_assets.corpus.writer import is_busy
from georag_assets.errors import SourceError
from georag_assets.home import Home
from georag_assets.index.live import live_state
from georag_assets.index.server.deploy import served_build

if TYPE_CHECKING:
    # Dagster returns this type and does not export it.
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 6 * 3600.0
STARTING_S = 600.0
PARTITION_TAG = "dagster/partition"


@dataclass(frozen=True, slots=True)
class Cursor:
    """What the sensor remembers: for which difference it asked, how often, and when it may ask again."""

    wanted: str = ""
    asked: int = 0
    not_before: float = 0.0

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Return the stored cursor; one that cannot be read starts afresh."""
        try:
            return cls(**json.loads(text)) if text else cls()
        except (TypeError, ValueError):
            return cls()


@dataclass(frozen=True, slots=True)
class Ask:
    """A run that a tick may ask for: its job, its shard's partition, and the state that it is asked for."""

    job: str
    state: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tick saw.

    `wanted` identifies sources, newest version, code and the runs needed together; `differs` says why they are, or is
    empty and then `quiet` says why none is; `blocked` names the stage that refused exactly this state before; `asks`
    are the runs that would bring the corpus on.
    """

    wanted: str
    differs: str
    quiet: str = "sources and live index agree"
    busy: bool = False
    blocked: str | None = None
    asks: tuple[Ask, ...] = ()


def judge(seen: Seen, cursor: Cursor, now: float) -> tuple[bool, str, Cursor]:
    """Return whether to ask for a build, the reason in words, and the cursor to keep.

    A state that a blocking check refused is not asked for again until sources, settings or code change; one whose run
    failed otherwise is, with a wait that doubles.
    """
    if seen.wanted != cursor.wanted:
        cursor = Cursor(wanted=seen.wanted)
    if not seen.differs:
        return False, seen.quiet, replace(cursor, asked=0, not_before=0.0)
    if seen.busy:
        return False, "a build is running or starting", cursor
    if seen.blocked:
        return False, f"{seen.blocked} refused exactly this state; it waits for another", cursor
    if now < cursor.not_before:
        return False, f"asked {cursor.asked} times; the next is in {cursor.not_before - now:.0f} s", cursor
    wait = min(FIRST_WAIT_S * 2**cursor.asked, LONGEST_WAIT_S)
    return True, seen.differs, replace(cursor, asked=cursor.asked + 1, not_before=now + wait)


def source_sensor(declaration: CorpusDeclaration, jobs: CorpusJobs, code: str) -> dg.SensorDefinition:
    """Return the sensor of a corpus; it runs where the declaration says `automation: {watch: true}`.

    Of a sharded corpus it asks first for a sync, then for each shard that is not of the newest version, then for the
    join.

    Parameters
    ----------
    code
        The code versions of all stages: part of what a refused state is made of.
    """
    corpus = declaration.name
    status = dg.DefaultSensorStatus
    watched = status.RUNNING if declaration.automation.watch else status.STOPPED

    @dg.sensor(
        name=f"watch_{corpus}",
        jobs=jobs.all,
        minimum_interval_seconds=60,
        default_status=watched,
        description=f"Asks for a build of '{corpus}' as long as its sources and its live index differ.",
    )
    def watch(context: dg.SensorEvaluationContext, georag_home: HomeResource) -> dg.SensorResult:
        seen = look(context.instance, georag_home.home(), declaration, code)
        ask, why, cursor = judge(seen, Cursor.read(context.cursor), time.time())
        kept = json.dumps(asdict(cursor))
        if not ask:
            return dg.SensorResult(skip_reason=why, cursor=kept)
        context.log.info(f"{corpus}: {why}")
        # No run key: Dagster never runs a key again, not even one whose run failed.
        requests = [
            dg.RunRequest(job_name=one.job, partition_key=one.partition, tags={ASKED_TAG: one.state})
            for one in seen.asks
        ]
        return dg.SensorResult(run_requests=requests, cursor=kept)

    return watch


def look(instance: dg.DagsterInstance, home: Home, declaration: CorpusDeclaration, code: str) -> Seen:
    """Compare the corpus's sources with what was last synced, and its newest version with the live one."""
    jobs = corpus_jobs(declaration, stages_of(declaration), home.settings)
    corpus = declaration.name
    newest, live = newest_version(home, corpus), live_state(home, corpus)
    try:
        sources = source_state(declaration)
    except SourceError as error:
        return Seen(wanted="", differs="", quiet=str(error))
    differs, quiet, job, shards = "", "sources and live index agree", jobs.sync, [WHOLE]
    if sources != _last_synced(instance, corpus):
        differs = "the sources changed since they were last read"
    elif live is not None and live.hold is not None:
        quiet = f"a rollback holds until the sources change or `georag rollback {corpus} --release`"
    elif live is None or live.corpus_version != newest:
        differs = f"newest version {newest}, live {live.corpus_version if live else 'none'}"
        job, shards = _next_job(instance, declaration, jobs, newest)
        if not shards[0].whole:
            differs += f"; shards to be made: {', '.join(shard.name for shard in shards)}"
    elif declaration.server is not None and (url := home.settings.qdrant_url) is not None:
        served = served_build(home, corpus, url)
        if served != live.build:
            differs = f"live build {live.build}, on the server {served or 'none'}"
            job = jobs.join or jobs.sync
    asks = tuple(
        Ask(job.name, _hashed(sources, newest, code, job.name, shard.name), None if shard.whole else shard.name)
        for shard in shards
    )
    recent = instance.get_run_records(dg.RunsFilter(tags={CORPUS_TAG: corpus}), limit=4 + len(shards))
    free = [ask for ask, shard in zip(asks, shards, strict=True) if not _is_being_made(home, corpus, shard, recent)]
    blocked = {ask.state: stage for ask in asks if (stage := _refused(recent, ask.state)) is not None}
    return Seen(
        _hashed(*(ask.state for ask in asks)),
        differs,
        quiet,
        busy=not free,
        blocked=next(iter(blocked.values())) if len(blocked) == len(asks) else None,
        asks=tuple(ask for ask in free if ask.state not in blocked),
    )


def _next_job(
    instance: dg.DagsterInstance, declaration: CorpusDeclaration, jobs: CorpusJobs, newest: str | None
) -> tuple["UnresolvedAssetJobDefinition", list[Shard]]:
    """Return the job that brings a version on to the live index, and the shards that it is to run for."""
    if jobs.shard is None or jobs.join is None:
        return jobs.sync, [WHOLE]
    lacking = [
        shard
        for shard in shards_of(declaration.shards)
        if newest is None or not _has_version(instance, declaration.name, shard, newest)
    ]
    return (jobs.shard, lacking) if lacking else (jobs.join, [WHOLE])


def _has_version(instance: dg.DagsterInstance, corpus: str, shard: Shard, version: str) -> bool:
    """Return whether one run took a shard's chunks of this version on to their vectors."""
    last: dict[str, dg.EventLogRecord] = {}
    for stage in ("chunks", "embeddings"):
        wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey([corpus, stage]), asset_partitions=[shard.name])
        found = instance.fetch_materializations(wanted, limit=1).records
        if not found:
            return False
        last[stage] = found[0]
    made = last["chunks"].asset_materialization
    told = made.metadata.get("corpus_version") if made else None
    return told is not None and told.value == version and last["chunks"].run_id == last["embeddings"].run_id


def _is_being_made(home: Home, corpus: str, shard: Shard, recent: Sequence[dg.RunRecord]) -> bool:
    """Return whether a run that would exclude this one lives or is starting.

    The lock tells a run that lives; Dagster's status of one that was killed stays STARTED.
    """
    for record in recent:
        run = record.dagster_run
        if run.is_finished or time.time() - record.create_timestamp.timestamp() >= STARTING_S:
            continue
        partition = run.tags.get(PARTITION_TAG)
        if shard.whole or partition is None or partition == shard.name:
            return True
    return is_busy(home, corpus, shard)


def _refused(recent: Sequence[dg.RunRecord], state: str) -> str | None:
    """Return the stage whose check blocked a run that was asked for this state."""
    for record in recent:
        tags = record.dagster_run.tags
        if tags.get(ASKED_TAG) == state and BLOCKED_TAG in tags:
            return tags[BLOCKED_TAG]
    return None


def _hashed(*parts: str | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _last_synced(instance: dg.DagsterInstance, corpus: str) -> str | None:
    """Return the source state that the last materialisation of `documents` read."""
    event = instance.get_latest_materialization_event(dg.AssetKey([corpus, "documents"]))
    materialization = event.asset_materialization if event else None
    value = materialization.metadata.get(SOURCE_STATE) if materialization else None
    return str(value.value) if value is not None else None
