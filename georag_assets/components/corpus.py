"""The Corpus component: one `defs.yaml` in, the assets, job, sensor and schedule of one corpus out.

What belongs here: loading a declaration where Dagster finds it and assembling what follows from it. What does not: the
fields (`corpus.declaration`), the stages (`stages`), the sensor's judgement (`sensor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from georag_assets.components.assets import CorpusJobs, corpus_jobs, partitions_of, stage_asset
from georag_assets.components.resources import HOME
from georag_assets.components.sensor import source_sensor
from georag_assets.components.stages import stages_of
from georag_assets.corpus.declaration import CorpusDeclaration, load_declaration, load_declarations
from georag_assets.errors import DeclarationError
from georag_assets.settings import Settings


class CorpusAttributes(BaseModel):
    """What Dagster's loader passes on: anything. The file is read again, strictly, by `Corpus.load`."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Show the declaration's fields where tools ask for the component's schema."""
        return CorpusDeclaration.model_json_schema(*args, **kwargs)


@dataclass
class Corpus(dg.Component):
    """A corpus of documents that carry geometry, built into a live, checked retrieval index.

    Declares a chain of assets `[<name>, documents]` to `[<name>, live_index]`, a job `build_<name>` (three where the
    corpus is sharded), a sensor that asks for a build as long as sources and live index differ, and a schedule where
    the declaration has a cron.
    """

    declaration: CorpusDeclaration

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Describe the component to Dagster's tools."""
        return dg.ComponentTypeSpec(
            description="A corpus of documents with geometry, built into a live, checked retrieval index.",
            owners=["team:georag"],
            tags=["geospatial", "rag"],
            produces=["asset", "asset_check", "job", "sensor", "schedule", "resource"],
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Accept every attribute: Dagster's parse has lost equal keys and leading zeros by now."""
        return CorpusAttributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Corpus:
        """Read the declaration from its own file, strictly.

        Raises
        ------
        DeclarationError
            Lists every bad declaration under the project's `defs` folder, not only this one.
        """
        found = Path(context.path)
        file = found if found.is_file() else found / "defs.yaml"
        try:
            return cls(declaration=load_declaration(file))
        except DeclarationError:
            load_declarations(Path(context.defs_module_path))
            raise

    def build_defs(self, context: dg.ComponentLoadContext | None = None) -> dg.Definitions:
        """Return the corpus's definitions; safe to merge with other corpora's."""
        settings = Settings()
        declaration = self.declaration
        stages = stages_of(declaration)
        freshness = _freshness(declaration)
        code_versions = {stage.name: stage.code_version(declaration, settings) for stage in stages}
        jobs = corpus_jobs(declaration, stages, settings)
        return dg.Definitions(
            assets=[
                stage_asset(
                    stage,
                    declaration,
                    code_version=code_versions[stage.name],
                    freshness=freshness if stage.name in ("documents", "corpus_version", "live_index") else None,
                    shards=partitions_of(declaration),
                )
                for stage in stages
            ],
            jobs=jobs.all,
            sensors=[source_sensor(declaration, jobs, code=" ".join(code_versions.values()))],
            schedules=_schedules(declaration, jobs),
            resources={"georag_home": HOME},
        )


@contextmanager
def _saying_where(declaration: CorpusDeclaration, key: str) -> Iterator[None]:
    """Name file and key where Dagster refuses a cron or a time zone: it says neither."""
    try:
        yield
    except Exception as error:
        raise DeclarationError(
            "1 problem in declarations",
            problems=(f"{declaration.file or declaration.name}: {key}: {' '.join(str(error).split())}",),
        ) from error


def _freshness(declaration: CorpusDeclaration) -> dg.FreshnessPolicy | None:
    """Return the declared freshness as Dagster's policy: a deadline by cron, or a window in hours."""
    declared = declaration.freshness
    if declared is None:
        return None
    with _saying_where(declaration, "freshness"):
        if declared.cron is not None:
            return dg.FreshnessPolicy.cron(
                deadline_cron=declared.cron, lower_bound_delta=timedelta(hours=1), timezone=declared.timezone
            )
        if declared.max_age_hours is not None:
            return dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=declared.max_age_hours))
    return None


def _schedules(declaration: CorpusDeclaration, jobs: CorpusJobs) -> list[dg.ScheduleDefinition]:
    """Return the declared schedule, running from the start: writing a cron is asking for it.

    Of a sharded corpus it reads the sources; the sensor goes on from there.
    """
    declared = declaration.automation
    if declared.cron is None:
        return []
    with _saying_where(declaration, "automation"):
        return [
            dg.ScheduleDefinition(
                name=f"build_{declaration.name}_schedule",
                job=jobs.sync,
                cron_schedule=declared.cron,
                execution_timezone=declared.timezone,
                default_status=dg.DefaultScheduleStatus.RUNNING,
            )
        ]
