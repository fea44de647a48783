"""The stages of a corpus as Dagster sees them: order, checks, code version, and which domain function does the work.

What belongs here: one row per stage. What does not: how a row becomes an asset (`assets`) and the work (its room).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

import dagster as dg

from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.chunking import CHUNKING_ALGORITHM
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.documents import SYNC_ALGORITHM, sync_documents
from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.corpus.source_state import source_state
from georag_assets.corpus.versions import VERSION_ALGORITHM, publish_version
from georag_assets.frames import stage as frames
from georag_assets.home import Home
from georag_assets.index.builds import LAYOUT, build_index
from georag_assets.index.embedding_stage import embed_corpus
from georag_assets.operations.pipeline import go_live, serve_live
from georag_assets.reports import StageReport
from georag_assets.retrieval.evaluation import evaluate_build
from georag_assets.retrieval.settings import RankingSettings
from georag_assets.settings import Settings

SOURCE_STATE = "source_state"
"""Metadata of `documents`: what the sources looked like when they were read; the sensor compares it."""

ALLOW_REMOVAL = "allow_removal"


@dataclass(frozen=True, slots=True)
class StageRun:
    """What a stage's function is given: home, declaration, the launchpad's config, the build an upstream staged.

    `shard` is the share of the corpus that a run of a partition is for.
    """

    home: Home
    declaration: CorpusDeclaration
    config: Mapping[str, object]
    staged_build: Callable[[], str]
    shard: Shard = WHOLE


@dataclass(frozen=True, slots=True)
class Check:
    """A check that the stage's report always carries; `blocking` stops everything downstream."""

    name: str
    description: str
    blocking: bool = True


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: what it is, what it follows, what does it.

    `decides` returns every name and parameter that decides the stage's content; its hash is the code version.
    `sharded` stages have a partition for each shard of a corpus that declares several.
    """

    name: str
    description: str
    run: Callable[[StageRun], StageReport]
    decides: Callable[[CorpusDeclaration, Settings], Mapping[str, object]]
    after: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    config: Mapping[str, dg.Field] = field(default_factory=dict)
    sharded: bool = False

    def code_version(self, declaration: CorpusDeclaration, settings: Settings) -> str:
        """Return the stage's algorithm and settings as `<name>-<hash>`: equal code and settings, equal version."""
        decided = json.dumps(self.decides(declaration, settings), sort_keys=True, default=str)
        return f"{self.name}-{hashlib.sha256(decided.encode()).hexdigest()[:10]}"


def _sync(run: StageRun) -> StageReport:
    # Taken before reading: a file that changes meanwhile differs again at the next tick.
    state = source_state(run.declaration)
    report = sync_documents(run.home, run.declaration, allow_removal=bool(run.config.get(ALLOW_REMOVAL)))
    return replace(report, metadata={**report.metadata, SOURCE_STATE: state})


def _reading(declaration: CorpusDeclaration, _: Settings) -> Mapping[str, object]:
    """Return what decides how sources are read; where they lie is input and no code."""
    declared = declaration.model_dump(mode="json", include={"sources", "geometry", "frame", "period", "licence"})
    for place in (*declared["sources"], declared["geometry"] or {}):
        place.pop("path", None)
        place.pop("url", None)
        place.pop("sidecar", None)
    return {"algorithm": SYNC_ALGORITHM, "declared": declared}


STAGES: tuple[Stage, ...] = (
    Stage(
        "documents",
        "Texts and geometry as the sources have them now; what cannot be used is quarantined with its reason.",
        run=_sync,
        decides=_reading,
        kinds=("iceberg", "file"),
        checks=(
            Check(
                "documents_accounted_for", "Documents found in the sources are indexed or quarantined; none is lost."
            ),
            Check("quarantine_within_threshold", "At most the declared share of the documents is quarantined."),
        ),
        config={
            ALLOW_REMOVAL: dg.Field(
                bool, default_value=False, description="Accept that this sync removes more than the declared share."
            )
        },
    ),
    Stage(
        "corpus_version",
        "A name for this content, a tag on its snapshot: equal content, equal version; each reads back exactly.",
        run=lambda run: publish_version(run.home, run.declaration),
        decides=lambda declaration, settings: {"algorithm": VERSION_ALGORITHM},
        after=("documents",),
        kinds=("iceberg",),
    ),
    Stage(
        "chunks",
        "Slices that cut no geometry, cover their document and fit the model's limit.",
        run=lambda run: chunk_corpus(run.home, run.declaration, shard=run.shard),
        decides=lambda declaration, settings: {
            "algorithm": CHUNKING_ALGORITHM,
            "unit": declaration.unit,
            "budget": declaration.budget,
            "model": settings.model,
        },
        after=("corpus_version",),
        kinds=("iceberg",),
        sharded=True,
        checks=(
            Check("every_geometry_parses", "Each chunk's text, scanned again, holds its geometries whole."),
            Check("chunks_cover_documents", "The chunks of each document follow each other and cover it."),
            Check("truncated_share", "At most 5 % of the tokens are beyond the model's limit.", blocking=False),
        ),
    ),
    Stage(
        "frames",
        "The reference frame of each chunk, graded, with its evidence; extents computed from geometry in WGS 84.",
        run=lambda run: frames.frame_corpus(run.home, run.declaration, shard=run.shard),
        decides=lambda declaration, settings: {"algorithm": frames.code_version(declaration)},
        after=("chunks",),
        kinds=("iceberg",),
        sharded=True,
        checks=(
            Check(
                "every_chunk_has_frame_and_extent", "Each chunk has a frame row, and an extent where it has geometry."
            ),
            Check("every_frame_has_evidence", "Each frame that was established says where it was read."),
        ),
    ),
    Stage(
        "embeddings",
        "A vector for each text, by content of text and identity of model; none is computed twice.",
        run=lambda run: embed_corpus(run.home, run.declaration, shard=run.shard),
        decides=lambda declaration, settings: {"model": settings.model, "backend": settings.embedding_backend},
        after=("frames",),
        kinds=("iceberg", "python"),
        sharded=True,
        checks=(Check("every_text_has_a_vector", "Each chunk's text has a finite vector of norm > 0."),),
    ),
    Stage(
        "index_build",
        "A staged Qdrant build of the newest version with its manifest; it answers nobody until it is promoted.",
        run=lambda run: build_index(run.home, run.declaration),
        decides=lambda declaration, settings: {"layout": LAYOUT, "exact_limit": settings.exact_limit},
        after=("corpus_version", "chunks", "frames", "embeddings"),
        kinds=("qdrant",),
        checks=(
            Check(
                "spatial_filter_is_indexed", "Payload indexes cover every point and the filter travels with the query."
            ),
            Check("filtered_recall", "Recall of filtered searches against NumPy, at every share of points."),
            Check("every_point_names_its_source", "Each point carries its source, document, corpus and version."),
            Check("points_equal_chunks", "Points and chunks are the same set; a sample of vectors finds itself."),
        ),
    ),
    Stage(
        "evaluation",
        "Recall and MRR of the staged build on the corpus's labelled queries, beside the live build's.",
        run=lambda run: evaluate_build(run.home, run.declaration, run.staged_build()),
        decides=lambda declaration, settings: {
            "ranking": asdict(RankingSettings()),
            "declared": declaration.evaluation and declaration.evaluation.model_dump(mode="json", exclude={"queries"}),
        },
        after=("index_build",),
        kinds=("qdrant",),
        checks=(
            Check("evidence_is_complete", "Answers carry every component of their scores, region, source and version."),
            Check("recall_not_below_live", "Recall is at most the declared margin under the live build's."),
        ),
    ),
    Stage(
        "live_index",
        "The build that queries are answered from; moves only to one whose manifest records every check as passed.",
        run=lambda run: go_live(run.home, run.declaration.name, run.staged_build()),
        decides=lambda declaration, settings: {"algorithm": "promotion-1"},
        after=("index_build", "evaluation"),
        kinds=("qdrant",),
    ),
    Stage(
        "server_index",
        "The live build on a Qdrant server, checked there; the alias moves only to what passed every check.",
        run=lambda run: serve_live(run.home, run.declaration),
        decides=lambda declaration, settings: {
            "algorithm": "server-1",
            "declared": declaration.server and declaration.server.model_dump(mode="json"),
        },
        after=("live_index",),
        kinds=("qdrant",),
        checks=(
            Check("points_equal_chunks", "The server's points and the build's are the same; a sample finds itself."),
            Check("every_point_names_its_source", "Each point carries its source, document, corpus and version."),
            Check(
                "spatial_filter_is_indexed", "Payload indexes cover every point and the filter travels with the query."
            ),
            Check("filtered_recall", "Recall of filtered searches on the server against NumPy."),
            Check("recall_not_below_embedded", "Recall is at most one point under the embedded build's."),
            Check("answers_equal_embedded", "Exact searches give the candidates and scores of the embedded build."),
        ),
    ),
)


def stages_of(declaration: CorpusDeclaration) -> tuple[Stage, ...]:
    """Return the stages of a corpus in order: no evaluation without queries, no server where none is declared."""
    left_out = {
        name
        for name, declared in (("evaluation", declaration.evaluation), ("server_index", declaration.server))
        if declared is None
    }
    kept = [stage for stage in STAGES if stage.name not in left_out]
    return tuple(replace(stage, after=tuple(name for name in stage.after if name not in left_out)) for stage in kept)
