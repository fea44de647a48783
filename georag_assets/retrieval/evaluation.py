"""How well an index answers labelled queries, and whether a staged build answers no worse than the live one.

What belongs here: recall, reciprocal rank, gain; the evaluation stage and its checks. What does not: the queries' file
(`queries`), the ranking.

Documents are what the labels name, so a document ranks where its best chunk does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from georag_assets.errors import GeoragError, PlaceError, QueryError
from georag_assets.home import Home
from georag_assets.index.models import SearchFilter
from georag_assets.reports import CheckResult, StageReport
from georag_assets.retrieval.evidence import Answer
from georag_assets.retrieval.queries import LabelledQuery, read_queries
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Found, Placed, Retriever, topic_of
from georag_assets.retrieval.settings import RankingSettings

if TYPE_CHECKING:
    from georag_assets.corpus.declaration import CorpusDeclaration
    from georag_assets.index.embedding import Embedder, Vectors

STAGE = "evaluation"
RECALL_CHECK, EVIDENCE_CHECK = "recall_not_below_live", "evidence_is_complete"
# What is read beside the whole ranking: each signal alone, and the whole without each.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "semantic": ("semantic",),
    "topic": ("topic",),
    "lexical": ("lexical",),
    "semantic+lexical": ("semantic", "lexical"),
    "semantic+topic+lexical": ("semantic", "topic", "lexical"),
    "semantic+fit": ("semantic", "fit"),
    "semantic+lexical+fit": ("semantic", "lexical", "fit"),
}
_EVIDENCE_SAMPLE, _CARRIED_SAMPLE = 10, 40
Measure: TypeAlias = tuple[float, float, float]
"""Recall at k, reciprocal rank and gain of one query."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over queries: recall at k, reciprocal rank (within k), gain at 10."""

    queries: int
    recall_at_k: float
    mrr: float
    ndcg_at_10: float


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What `georag evaluate` prints.

    `unanswered` counts queries that were refused (their place is no one shape, or none was found in the words): they
    count as misses in every figure. `asked` counts those put to this build; `measures` has each query's own.
    """

    corpus: str
    build: str
    corpus_version: str
    k: int
    place: str
    overall: Figures
    by_class: Mapping[str, Figures]
    by_half: Mapping[str, Figures]
    per_signal: Mapping[str, Figures]
    unanswered: int
    queries_sha256: str
    settings: Mapping[str, float | int]
    seconds: float
    asked: int
    refusals: Mapping[str, int] = field(default_factory=dict)
    measures: tuple[Measure, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; the overall figures also stand at the top."""
        record = {**asdict(self.overall), **asdict(self)}
        del record["measures"]
        return record


def evaluate(
    home: Home,
    corpus: str,
    queries: Path,
    k: int = 8,
    place: str = "given",
    *,
    build: str | None = None,
    settings: RankingSettings | None = None,
    embedder: Embedder | None = None,
) -> EvaluationReport:
    """Ask every labelled query of a corpus's live (or given) build.

    Parameters
    ----------
    place
        `given`: each query's true box; `words`: whatever place its words name.
    """
    with Retriever(home, (corpus,), build, settings=settings, embedder=embedder) as retriever:
        return evaluate_with(retriever, read_queries(queries), k, place)


def evaluate_with(
    retriever: Retriever,
    queries: Sequence[LabelledQuery],
    k: int,
    place: str,
    *,
    per_signal: bool = True,
    carried: Mapping[int, Measure] | None = None,
) -> EvaluationReport:
    """Ask labelled queries of an open retriever.

    Parameters
    ----------
    per_signal
        Measure the other combinations of signals as well as the whole ranking.
    carried
        Measures by position of queries that need not be asked; for the whole ranking alone.
    """
    if not 1 <= k <= retriever.settings.depth:
        raise QueryError("k is out of bounds", expected=f"1 to {retriever.settings.depth}", found=str(k))
    if place not in ("given", "words"):
        raise QueryError("the place of a query is either given or in its words", expected="given, words", found=place)
    if place == "given" and not any(query.bbox for query in queries):
        raise QueryError("no query has a box, so no place is given", do="use --place words")
    started = time.perf_counter()
    places, refusals = places_of(retriever, queries, place)
    known = carried or {}
    measures = _measures(retriever, queries, places, k, VARIANTS if per_signal else {}, known)
    manifest = retriever.builds[0].manifest

    def grouped(names: Sequence[str]) -> dict[str, Figures]:
        of = {name: [one for one, own in zip(measures["all"], names, strict=True) if own == name] for name in names}
        return {name: _figures(of[name]) for name in sorted(of)}

    return EvaluationReport(
        corpus=manifest.corpus,
        build=manifest.build,
        corpus_version=manifest.corpus_version,
        k=k,
        place=place,
        overall=_figures(measures["all"]),
        by_class=grouped([query.label for query in queries]),
        by_half=grouped([query.half for query in queries]),
        per_signal={variant: _figures(found) for variant, found in measures.items() if variant != "all"},
        unanswered=sum(refusals.values()),
        asked=len(queries) - len(known),
        queries_sha256=queries_sha256(queries),
        settings=retriever.settings.as_dict(),
        seconds=round(time.perf_counter() - started, 3),
        refusals=refusals,
        measures=tuple(measures["all"]),
    )


def queries_sha256(queries: Sequence[LabelledQuery]) -> str:
    """Return the identity of a set of queries."""
    rows = [[q.text, sorted(q.relevant), sorted(q.ignored), q.bbox] for q in queries]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def places_of(
    retriever: Retriever, queries: Sequence[LabelledQuery], place: str
) -> tuple[list[Placed | None], dict[str, int]]:
    """Return where each query is about (None: refused), and how many were refused, by kind."""
    refusals: dict[str, int] = {}
    places: list[Placed | None] = []
    for query in queries:
        question = Question(
            query.text, bbox=query.bbox if place == "given" else None, place_from_words=place == "words"
        )
        try:
            places.append(retriever.place(question))
        except PlaceError as error:
            kind = "ambiguous" if error.readings else "unknown"
            refusals[kind] = refusals.get(kind, 0) + 1
            places.append(None)
    return places, refusals


def _measures(
    retriever: Retriever,
    queries: Sequence[LabelledQuery],
    places: Sequence[Placed | None],
    k: int,
    signals_of: Mapping[str, tuple[str, ...]],
    carried: Mapping[int, Measure],
) -> dict[str, list[Measure]]:
    """Return, per variant, the measure of each query; a refused one is a miss."""
    topics = [None if placed is None else topic_of(q.text, placed) for q, placed in zip(queries, places, strict=True)]
    wanted = sorted({*(query.text for query in queries), *(topic for topic in topics if topic)})
    vectors = dict(zip(wanted, _embedded(retriever, wanted), strict=True))
    variants = {"all": retriever.settings}
    for name, signals in signals_of.items():
        if all(getattr(retriever.settings, signal) > 0 for signal in signals):
            variants[name] = retriever.settings.only(*signals)
    measures: dict[str, list[Measure]] = {name: [] for name in variants}
    for position, (query, topic, placed) in enumerate(zip(queries, topics, places, strict=True)):
        if position in carried:
            measures["all"].append(carried[position])
            continue
        if placed is None:
            for found_before in measures.values():
                found_before.append((0.0, 0.0, 0.0))
            continue
        arms = {"semantic": vectors[query.text], **({"topic": vectors[topic]} if topic else {})}
        found = retriever.find(query.text, arms, SearchFilter(region=placed.region))
        owner = retriever.documents_of(found)
        for name, settings in variants.items():
            measures[name].append(_measured(query, _documents(found, settings, owner), k))
    return measures


def _embedded(retriever: Retriever, texts: Sequence[str]) -> Vectors:
    """Embed the queries, or take their vectors from beside the index: they change less often than documents do."""
    embedder, corpus = retriever.embedder, retriever.corpora[0]
    key = hashlib.sha256(json.dumps([embedder.fingerprint, *texts]).encode()).hexdigest()[:16]
    path = retriever.home.corpus_folder(corpus) / "queries" / f"{key}.npy"
    try:
        vectors: Vectors = np.load(path, allow_pickle=False)
        if vectors.shape == (len(texts), embedder.identity.dimension):
            return vectors
    except (OSError, ValueError, EOFError):
        pass  # never embedded, or a file cut short
    vectors = embedder.encode(texts)
    with contextlib.suppress(OSError):  # a home that cannot be written costs the embedding again, not the answer
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{key}.{os.getpid()}.npy")
        np.save(staging, vectors, allow_pickle=False)
        staging.replace(path)
    return vectors


def _documents(found: Found, settings: RankingSettings, owner: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(owner[chunk_id] for chunk_id in found.ordered(settings)))


def _measured(query: LabelledQuery, order: Sequence[str], k: int) -> Measure:
    counted = [doc_id for doc_id in order if doc_id not in query.ignored]
    found = [position for position, doc_id in enumerate(counted, start=1) if doc_id in query.relevant]
    recall = sum(position <= k for position in found) / len(query.relevant)
    reciprocal = 1 / found[0] if found and found[0] <= k else 0.0
    gain = sum(1 / math.log2(position + 1) for position in found if position <= 10)
    ideal = sum(1 / math.log2(position + 1) for position in range(1, min(len(query.relevant), 10) + 1))
    return recall, reciprocal, gain / ideal


def _figures(measured: Sequence[Measure]) -> Figures:
    if not measured:
        return Figures(0, 0.0, 0.0, 0.0)
    recall, reciprocal, gain = np.mean(np.array(measured), axis=0).round(4).tolist()
    return Figures(len(measured), recall, reciprocal, gain)


# --- the stage ------------------------------------------------------------------------------------------------------


def evaluate_build(
    home: Home, declaration: CorpusDeclaration, build: str, *, embedder: Embedder | None = None
) -> StageReport:
    """Ask a staged build the corpus's labelled queries and record two blocking checks in its manifest.

    `evidence_is_complete`: real answers carry every component of their scores, their region, source and version.
    `recall_not_below_live`: recall@k is at most the declared margin under the live build's, on the same queries.
    """
    from georag_assets.index.builds import record_check

    declared = declaration.evaluation
    if declared is None:
        raise QueryError("the corpus declares no labelled queries", where=declaration.name)
    corpus = declaration.name
    queries = read_queries(declared.queries)
    started = time.perf_counter()
    with Retriever(home, (corpus,), build, embedder=embedder) as retriever:
        report = _evaluated(retriever, queries, declared.k, declared.place)
        evidence = evidence_check(retriever, queries[:_EVIDENCE_SAMPLE])
        embedder = retriever.embedder
    before = _live_recall(home, corpus, build, report, queries, embedder)
    recall = _recall_check(report, before, declared.margin)
    for check in (evidence, recall):
        record_check(home, corpus, build, check)
    overall = report.overall
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=hashlib.sha256(f"{build} {report.queries_sha256} {report.settings}".encode()).hexdigest()[:16],
        counts={"queries": len(queries), "asked": report.asked, "unanswered": report.unanswered},
        seconds={"total": round(time.perf_counter() - started, 3)},
        checks=(evidence, recall),
        metadata={
            "build": build,
            "k": declared.k,
            "place": declared.place,
            "recall_at_k": overall.recall_at_k,
            "mrr": overall.mrr,
            "ndcg_at_10": overall.ndcg_at_10,
            "by_class": {name: asdict(figures) for name, figures in report.by_class.items()},
        },
    )


def _evaluated(retriever: Retriever, queries: Sequence[LabelledQuery], k: int, place: str) -> EvaluationReport:
    """Evaluate a build; of one that continues another, ask only what the difference between them can have changed."""
    carried = _carried(retriever, queries, k, place)
    report = evaluate_with(retriever, queries, k, place, per_signal=False, carried=carried)
    if carried and not _holds(retriever, queries, report, carried):
        report = evaluate_with(retriever, queries, k, place, per_signal=False)
    path = _measures_file(retriever, report.build)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_suffix(f".{os.getpid()}")
        staging.write_text(json.dumps({"terms": _terms(report), "measures": report.measures}), encoding="utf-8")
        staging.replace(path)
    return report


def _carried(retriever: Retriever, queries: Sequence[LabelledQuery], k: int, place: str) -> dict[int, Measure]:
    """Return measures that stand: this build's own of an earlier run, or its base's where a region meets no change."""
    terms = {
        "k": k,
        "place": place,
        "queries_sha256": queries_sha256(queries),
        "settings": retriever.settings.as_dict(),
    }
    manifest = retriever.builds[0].manifest
    own = _known(retriever, manifest.build, terms)
    if own is not None:
        return dict(enumerate(own))
    known = None if manifest.base is None else _known(retriever, manifest.base, terms)
    if manifest.base is None or known is None:
        return {}
    try:
        changed = retriever.changed_since(manifest.base)
    except GeoragError:  # pruned
        return {}
    places, _ = places_of(retriever, queries, place)
    return {
        position: measure
        for position, (measure, placed) in enumerate(zip(known, places, strict=True))
        if placed is not None and placed.region is not None and not placed.region.covers_any(changed).any()
    }


def _known(retriever: Retriever, build: str, terms: Mapping[str, object]) -> list[Measure] | None:
    try:
        record = json.loads(_measures_file(retriever, build).read_text(encoding="utf-8"))
        return [(one[0], one[1], one[2]) for one in record["measures"]] if record["terms"] == terms else None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None  # never measured, or a file that was damaged: it is measured again


def _holds(
    retriever: Retriever, queries: Sequence[LabelledQuery], report: EvaluationReport, carried: Mapping[int, Measure]
) -> bool:
    """Ask a sample of the carried queries after all: word frequencies of the whole index weigh in the lexical arm."""
    seed = report.build.encode()
    order = sorted(carried, key=lambda position: hashlib.sha256(seed + queries[position].text.encode()).digest())
    sample = order[:_CARRIED_SAMPLE]
    again = evaluate_with(retriever, [queries[at] for at in sample], report.k, report.place, per_signal=False)
    return again.measures == tuple(carried[at] for at in sample)


def _measures_file(retriever: Retriever, build: str) -> Path:
    return retriever.home.corpus_folder(retriever.corpora[0]) / "queries" / f"{build}.json"


@dataclass(frozen=True, slots=True)
class _Live:
    """The live build's recall on the same queries; None where it cannot be asked any more, with the reason."""

    build: str
    recall_at_k: float | None
    reason: str = ""


def _live_recall(
    home: Home,
    corpus: str,
    staged: str,
    report: EvaluationReport,
    queries: Sequence[LabelledQuery],
    embedder: Embedder,
) -> _Live | None:
    from georag_assets.index import manifest as manifests
    from georag_assets.index.folders import build_folder
    from georag_assets.index.live import live_build

    live = live_build(home, corpus)
    if live is None or live == staged:
        return None
    try:
        recorded = manifests.read(build_folder(home, corpus, live)).check(RECALL_CHECK)
        if recorded is not None and _same_terms(recorded.detail, report):
            return _Live(live, float(recorded.numbers["recall_at_k"]))
        with Retriever(home, (corpus,), live, embedder=embedder) as retriever:
            return _Live(
                live, evaluate_with(retriever, queries, report.k, report.place, per_signal=False).overall.recall_at_k
            )
    except GeoragError as error:  # it was made with another model, or does not verify: no measure for the new one
        return _Live(live, None, error.what)


def _terms(report: EvaluationReport) -> dict[str, object]:
    settings = dict(report.settings)
    return {"k": report.k, "place": report.place, "queries_sha256": report.queries_sha256, "settings": settings}


def _same_terms(detail: Mapping[str, object], report: EvaluationReport) -> bool:
    return all(detail.get(name) == value for name, value in _terms(report).items())


def _recall_check(report: EvaluationReport, live: _Live | None, margin: float) -> CheckResult:
    now = report.overall
    numbers: dict[str, int | float] = {"recall_at_k": now.recall_at_k, "mrr": now.mrr, "ndcg_at_10": now.ndcg_at_10}
    detail: dict[str, object] = {**_terms(report), "margin": margin}
    compared = "no other live build to compare with"
    passed = True
    if live is not None:
        detail["live_build"] = live.build
        if live.recall_at_k is None:
            compared = f"the live build cannot be asked ({live.reason})"
        else:
            numbers["recall_at_k_live"] = live.recall_at_k
            passed = now.recall_at_k >= live.recall_at_k - margin - 1e-9
            compared = f"live {live.recall_at_k:.3f}, margin {margin:g}"
    description = f"recall@{report.k} {now.recall_at_k:.3f}; {compared}"
    return CheckResult(RECALL_CHECK, passed, True, description, numbers, detail)


def evidence_check(retriever: Retriever, queries: Sequence[LabelledQuery]) -> CheckResult:
    """Ask some queries as a user would and list what is missing in the answers."""
    faults: list[str] = []
    candidates = 0
    for query in queries:
        question = Question(query.text, bbox=query.bbox, place_from_words=False)
        answer = retriever.search(question)
        candidates += len(answer.candidates)
        faults += evidence_faults(answer)
    return CheckResult(
        EVIDENCE_CHECK,
        passed=bool(queries) and not faults,
        blocking=True,
        description=f"{candidates} candidates of {len(queries)} answers carry scores, ranks, source, version",
        numbers={"candidates": candidates, "faults": len(faults)},
        detail={"faults": faults[:20]},
    )


def evidence_faults(answer: Answer) -> list[str]:
    """Return what an answer does not say that it must: an empty list is a complete answer."""
    faults = []
    if answer.mode == "region" and answer.region is None:
        faults.append("an answer in a region does not carry it")
    for used in answer.corpora:
        if not (used.build and used.corpus_version):
            faults.append(f"{used.corpus}: no build or version")
    for evidence in answer.candidates:
        missing = [
            name
            for name in ("corpus", "corpus_version", "build", "doc_id", "source", "content_sha256", "text")
            if not getattr(evidence, name)
        ]
        if not evidence.ranks.get("final"):
            missing.append("ranks.final")
        arms = [name for name in ("semantic", "topic", "lexical") if name in evidence.scores]
        if not arms or any(name not in evidence.ranks for name in arms):
            missing.append("scores and ranks of an arm")
        numbers = {name: evidence.scores.get(name) for name in (*arms, "fused", "score")}
        missing += [f"scores.{name}" for name, value in numbers.items() if value is None or not math.isfinite(value)]
        if answer.region is not None and evidence.scores.get("fit") is None:
            missing.append("scores.fit")
        if answer.region is not None and answer.region.radius_m > 0 and evidence.distance_m is None:
            missing.append("distance_m")
        if evidence.frame.get("grade") is None:
            missing.append("frame.grade")
        if missing:
            faults.append(f"{evidence.chunk_id}: no {', '.join(missing)}")
    return faults
