"""Question in, evidence out: the place first, then every arm through the same filter, then one order.

What belongs here: opening builds, asking each arm, putting the answer together. What does not: how a score is made
(`ranking`), what a name means (`places`), how an index answers (`index`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import shapely
from numpy.typing import NDArray

from georag_assets.errors import IndexBuildError, PlaceError, QueryError
from georag_assets.geometry.region import Region
from georag_assets.home import Home
from georag_assets.index.builds import OpenBuild, open_build
from georag_assets.index.manifest import Manifest
from georag_assets.index.models import DenseQuery, Hit, LexicalQuery, SearchFilter, SearchReport
from georag_assets.retrieval.evidence import Answer, CorpusUsed, Evidence, RegionUsed
from georag_assets.retrieval.folding import Foldable, fold
from georag_assets.retrieval.question import Question, place_phrase, without_place
from georag_assets.retrieval.ranking import Scored, Spatial, order, rank
from georag_assets.retrieval.settings import RADIUS_M, RankingSettings
from georag_assets.retrieval.staleness import staleness_of

if TYPE_CHECKING:
    from georag_assets.index.embedding import Embedder, Vectors
    from georag_assets.index.server.connection import Connection
    from georag_assets.places.resolver import PlaceResolver

TEXT_ARMS = ("semantic", "topic", "lexical")


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that the arms found, before any weight: from it each ranking is made again."""

    arms: Mapping[str, tuple[Hit, ...]]
    spatial: Mapping[str, Spatial]
    owner: Mapping[str, OpenBuild]
    reports: Mapping[str, Mapping[str, SearchReport]]
    radius: bool

    def ranked(self, settings: RankingSettings) -> list[Scored]:
        """Return the candidates in the order that these settings give."""
        return rank(self.arms, self.spatial, settings, radius=self.radius)

    def ordered(self, settings: RankingSettings) -> list[str]:
        """Return the candidates' ids in that order, without the components."""
        return [chunk_id for chunk_id, _ in order(self.arms, self.spatial, settings, radius=self.radius)]


@dataclass(frozen=True, slots=True)
class Placed:
    """A question's place: its region and the record of it, both None where none was named; `name` as it was written."""

    region: Region | None = None
    used: RegionUsed | None = None
    name: str | None = None


class Retriever:
    """Searches the live builds of some corpora, or one staged build.

    Parameters
    ----------
    corpora
        Which corpora to search.
    build
        Search this build of the (only) corpus instead of the live one.
    settings
        Weights of the ranking.
    embedder
        By default the model that the settings name; it must be the one that the builds were made with.
    """

    def __init__(
        self,
        home: Home,
        corpora: Sequence[str],
        build: str | None = None,
        *,
        settings: RankingSettings | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        if not corpora:
            raise IndexBuildError("no corpus has a live index", do="build one: georag build CORPUS")
        if build is not None and len(corpora) != 1:
            raise QueryError("a build belongs to one corpus", found=", ".join(corpora))
        self.home = home
        self.corpora = tuple(dict.fromkeys(corpora))
        self.settings = settings or RankingSettings()
        self._staged = build
        self._given_embedder = embedder

    @cached_property
    def builds(self) -> tuple[OpenBuild, ...]:
        """The builds searched, opened at first use and kept open: opening one writes to it."""
        opened: list[OpenBuild] = []
        try:
            opened.extend(map(self._open, self.corpora))
        except BaseException:
            for build in opened:
                build.close()
            raise
        return tuple(opened)

    def _open(self, corpus: str) -> OpenBuild:
        """Open what answers for a corpus: a server where one is set and holds it, else the embedded build."""
        if self._server is not None:
            from georag_assets.index.server.deploy import open_served

            served = open_served(self.home, corpus, self._server)
            if served is not None:
                return served
        return open_build(self.home, corpus, self._staged)

    @cached_property
    def _server(self) -> Connection | None:
        """The server that the settings name; a staged build is always asked where it lies."""
        if self._staged is not None or self.home.settings.qdrant_url is None:
            return None
        from georag_assets.index.server.connection import Connection

        return Connection.of(self.home.settings)

    @cached_property
    def embedder(self) -> Embedder:
        """The model that questions are embedded with."""
        from georag_assets.index.embedding import Embedder

        embedder = self._given_embedder or Embedder.load(self.home.settings)
        for build in self.builds:
            made_with = model_fingerprint(build.manifest)
            if made_with != embedder.fingerprint:
                raise QueryError(
                    "the index was made with another model than the settings name",
                    where=build.manifest.build,
                    expected=made_with,
                    found=embedder.fingerprint,
                    do="set GEORAG_MODEL and GEORAG_EMBEDDING_BACKEND as they were, or build the corpus again",
                )
        return embedder

    def close(self) -> None:
        """Let the builds go."""
        if "builds" in self.__dict__:
            for build in self.builds:
                build.close()
            del self.__dict__["builds"]
        server = self.__dict__.pop("_server", None)
        if server is not None:
            server.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, question: Question) -> Answer:
        """Answer a question.

        Raises
        ------
        QueryError
            The question is outside its bounds.
        PlaceError
            It names a place that is not one shape; the error lists the readings there are.
        """
        question.check(self.settings.depth)
        timings: dict[str, float] = {}
        notes: list[str] = []
        with _timed(timings, "place"):
            placed = self.place(question)
        region = placed.region
        if region is None:
            if question.radius_m is not None:  # somebody meant a place: the whole corpus is no answer to that
                raise QueryError("a radius needs a point or a place", do="give --near or --place")
            notes.append("no place was named: text-only search over the whole corpus")
        topic = topic_of(question.text, placed)
        with _timed(timings, "open"):
            builds = self.builds
        with _timed(timings, "embed"):
            vectors = self._embed(question.text, topic)
        where = SearchFilter(region=region, period=question.period, equals=question.equals)
        with _timed(timings, "search"):
            found = self.find(question.text, vectors, where)
        with _timed(timings, "rank"):
            candidates = self._evidence(found, self.settings, question.k)
        unlocated: tuple[Evidence, ...] = ()
        if region is not None and self.settings.unlocated:
            with _timed(timings, "unlocated"):
                lane = SearchFilter(period=question.period, equals=question.equals, located=False)
                without = self.find(question.text, vectors, lane)
                unlocated = self._evidence(without, self.settings, self.settings.unlocated)
        with _timed(timings, "staleness"):
            corpora = tuple(self._used(build, found) for build in builds)
        notes += [build.note for build in builds if build.note is not None]
        if any(report.asked_again for reports in found.reports.values() for report in reports.values()):
            notes.append("the graph gave fewer results than there are: asked again exactly")
        timings["total"] = round(sum(timings.values()), 1)
        return Answer(
            question={
                "text": question.text,
                "topic": topic,
                "k": question.k,
                "period": question.period,
                "equals": dict(question.equals),
            },
            mode="text_only" if region is None else "region",
            region=placed.used,
            corpora=corpora,
            candidates=candidates,
            unlocated=unlocated,
            settings=self.settings.as_dict(),
            notes=tuple(notes),
            timings_ms=timings,
        )

    def find(self, text: str, vectors: Mapping[str, Vectors], where: SearchFilter) -> Found:
        """Ask each arm through the same filter; `vectors` are the question's, per dense arm."""
        depth = self.settings.depth
        queries: dict[str, DenseQuery | LexicalQuery] = {arm: DenseQuery(vector) for arm, vector in vectors.items()}
        queries["lexical"] = LexicalQuery(text)
        reports: dict[str, dict[str, SearchReport]] = {}
        owner: dict[str, OpenBuild] = {}
        arms: dict[str, tuple[Hit, ...]] = {}
        for arm, query in queries.items():
            if getattr(self.settings, arm) <= 0:
                continue
            hits: list[Hit] = []
            for build in self.builds:
                report = build.search(query, where, depth)
                reports.setdefault(build.manifest.corpus, {})[arm] = report
                hits += report.hits
                owner.update((hit.chunk_id, build) for hit in report.hits)
            arms[arm] = tuple(sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))[:depth])
        region = where.region
        spatial = {} if region is None else self._spatial(region, owner)
        return Found(arms, spatial, owner, reports, radius=region is not None and region.radius_m > 0)

    def place(self, question: Question) -> Placed:
        """Return where a question is about, before any index is touched.

        Raises
        ------
        PlaceError
            A place is named that is not one shape.
        """
        region = question.given_region
        if region is not None:
            source = "shape" if question.shape_region else "bbox" if question.bbox else "near"
            return Placed(region, RegionUsed.of(region, source))
        if question.place is not None:
            return self._named(question.place, question.radius_m, "place")
        return self._in_words(question) if question.place_from_words else Placed()

    def changed_since(self, base: str) -> NDArray[np.object_]:
        """Return the geometries of chunks that the one build searched and an earlier one of its corpus do not share."""
        build = self.builds[0]
        with open_build(self.home, build.manifest.corpus, base) as earlier:
            new = np.setdiff1d(build.columns.ids, earlier.columns.ids)
            old = np.setdiff1d(earlier.columns.ids, build.columns.ids)
            found = [
                side.geometries(ids.astype(str).tolist()) for side, ids in ((build, new), (earlier, old)) if len(ids)
            ]
        geometries = np.concatenate(found) if found else np.empty(0, dtype=object)
        return np.array([geometry for geometry in geometries if geometry is not None], dtype=object)

    def _in_words(self, question: Question) -> Placed:
        """Return the place that the words name: the phrase after a preposition first, else a name that is known."""
        phrase = place_phrase(question.text)
        named = list(dict.fromkeys(found.text for found in self.places.find_in(question.text)))
        if phrase is None:
            if len(named) > 1:
                raise PlaceError(
                    "several places are named", readings=tuple(named), do="ask of one, or name it by --place"
                )
            return self._named(named[0], question.radius_m, "words") if named else Placed()
        radius = question.radius_m
        if radius is None and phrase.preposition.lower() in ("near", "around"):
            radius = RADIUS_M
        try:
            return self._named(phrase.name, radius, "words")
        except PlaceError as error:
            inside = [name for name in named if name in phrase.name]
            if error.readings or len(inside) != 1:
                raise
            return self._named(inside[0], radius, "words")

    def _named(self, name: str, radius: float | None, source: str) -> Placed:
        place = self.places.resolve(name)
        if radius is None and place.geometry.area == 0:
            radius = RADIUS_M
        region = Region.from_shape(place.geometry, radius_m=radius or 0.0, label=f"{place.name} ({place.source})")
        record = {"name": place.name, "kind": place.kind, "source": place.source, "credit": place.credit}
        return Placed(region, RegionUsed.of(region, source, record), name)

    @cached_property
    def places(self) -> PlaceResolver:
        """What names mean: the corpora's own features first."""
        from georag_assets.places.resolver import PlaceResolver

        return PlaceResolver(self.home, self.corpora)

    def documents_of(self, found: Found) -> dict[str, str]:
        """Return chunk id -> document id of everything found."""
        owner: dict[str, str] = {}
        for build in self.builds:
            ids = [chunk_id for chunk_id, of in found.owner.items() if of is build]
            words = build.columns.words("doc_id", build.columns.rows_of(ids))
            owner.update((chunk_id, str(doc_id)) for chunk_id, doc_id in zip(ids, words, strict=True))
        return owner

    def _embed(self, text: str, topic: str | None) -> dict[str, Vectors]:
        wanted = {}
        if self.settings.semantic > 0:
            wanted["semantic"] = text
        if self.settings.topic > 0 and topic is not None:
            wanted["topic"] = topic
        if not wanted:
            return {}
        return dict(zip(wanted, self.embedder.encode(list(wanted.values())), strict=True))

    def _spatial(self, region: Region, owner: Mapping[str, OpenBuild]) -> dict[str, Spatial]:
        """Return fit and (in a radius search) distance of each candidate."""
        ids = sorted(owner)
        if not ids:
            return {}
        geometries = self._geometries(ids, owner)
        fits = region.overlap(geometries)
        distances = region.distance_m(geometries) if region.radius_m > 0 else np.full(len(ids), np.nan)
        return {
            chunk_id: Spatial(_finite(fit), _finite(distance))
            for chunk_id, fit, distance in zip(ids, fits.tolist(), distances.tolist(), strict=True)
        }

    def _geometries(self, ids: Sequence[str], owner: Mapping[str, OpenBuild]) -> Any:
        geometries = np.full(len(ids), None, dtype=object)
        for build in self.builds:
            mine = [position for position, chunk_id in enumerate(ids) if owner[chunk_id] is build]
            geometries[mine] = build.geometries([ids[position] for position in mine])
        return geometries

    def _evidence(self, found: Found, settings: RankingSettings, k: int) -> tuple[Evidence, ...]:
        """Fold the ranked candidates and describe the first k groups."""
        ranked = found.ranked(settings)
        ids = [candidate.chunk_id for candidate in ranked]
        payloads: dict[str, Mapping[str, Any]] = {}
        for build in self.builds:
            payloads.update(build.payloads([chunk_id for chunk_id in ids if found.owner[chunk_id] is build]))
        geometries: Sequence[shapely.Geometry | None] = self._geometries(ids, found.owner)
        groups = fold(
            [
                Foldable(payloads[chunk_id]["text"], payloads[chunk_id].get("revision"), geometry)
                for chunk_id, geometry in zip(ids, geometries, strict=True)
            ],
            settings,
        )
        return tuple(
            Evidence.of(
                ranked[group[0]],
                payloads[ids[group[0]]],
                found.owner[ids[group[0]]].manifest.build,
                position,
                tuple(ids[other] for other in group[1:]),
            )
            for position, group in enumerate(groups[:k], start=1)
        )

    def _used(self, build: OpenBuild, found: Found) -> CorpusUsed:
        manifest = build.manifest
        behind = staleness_of(self.home, manifest.corpus, manifest.corpus_version, manifest.created_at)
        reports = found.reports.get(manifest.corpus, {})
        return CorpusUsed(
            corpus=manifest.corpus,
            build=manifest.build,
            live=self._staged is None,
            corpus_version=manifest.corpus_version,
            newest_version=behind.newest_version,
            version_lag=behind.version_lag,
            built_at=manifest.created_at,
            index_age_seconds=behind.index_age_seconds,
            answers_from=build.answers_from,
            survivors=max((report.survivors for report in reports.values()), default=0),
            plans={arm: f"{report.plan} ({report.form})" for arm, report in reports.items()},
        )


@contextmanager
def _timed(timings: dict[str, float], step: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timings[step] = round((time.perf_counter() - started) * 1000, 1)


def model_fingerprint(manifest: Manifest) -> str:
    """Return the fingerprint of the model that a build's vectors were made with."""
    from georag_assets.index.embedding import ModelIdentity

    stated = dict(manifest.settings["model"])
    return ModelIdentity(**{**stated, "modules": tuple(stated["modules"])}).fingerprint


def topic_of(text: str, placed: Placed) -> str | None:
    """Return what a question is about beside its place, which the region answers; None without a region."""
    return None if placed.region is None else without_place(text, placed.name)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
