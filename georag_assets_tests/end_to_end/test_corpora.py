"""A sample of each corpus over the folder of real data: from its documents to a live index, and one search of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from georag_assets.corpus.models import DOCUMENTS, QUARANTINE
from georag_assets.corpus.versions import newest_version
from georag_assets.home import Home
from georag_assets.index.embedding import Embedder
from georag_assets.operations.pipeline import build_corpus
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets_tests.corpora import DECLARATIONS, declared, sampled


@dataclass(frozen=True)
class Sample:
    """Which part of a corpus is built, what is asked of it, and the evidence that must come first.

    `frame` is (epsg, assumed_epsg, grade); `extent` None where the passage has no place of its own.
    """

    corpus: str
    part: dict[str, Any]
    documents: int
    question: Question
    doc_id: str
    words: str
    frame: tuple[int | None, int | None, str]
    extent: tuple[float, float, float, float] | None
    licence: str
    quarantined: dict[str, str] = field(default_factory=dict)


def asked(text: str, **place: Any) -> Question:
    return Question(text, place_from_words=False, **place)


SAMPLES = [
    Sample(
        "geojson_draft", {}, 15, asked("a line across the antimeridian", bbox=(179, 9, -179, 12)),
        "geojson_draft/js__example_02_c.geojson", "LineString", (4326, None, "measured"), (170, 10, 190, 11),
        "CC-BY-3.0-US", {"geojson_draft/js__example_02_a.geojson": "a ring does not end where it begins"},
    ),
    Sample(
        "geovirus", {"every": 12}, 13, asked("soldier who died in Texas tested negative for Ebola"),
        "geovirus-3", "remains of a US soldier", (None, None, "unresolved"), None, "CC-BY-2.5",
    ),
    Sample(
        "groundedgeo", {"every": 10}, 20, asked("the county at this point", near=(-94.0377, 33.4418)),
        "tiger_48037", "Bowie County, Texas", (None, 4326, "unresolved"),
        (-94.0377, 33.4418, -94.0377, 33.4418), "CC-BY-4.0",
    ),
    Sample(
        "laws", {"names": {"NSGPBRV-BJNR341500017.md", "5._WindSeeV-BJNR0150A0025.md", "decret-2004-33-art-1.md"}}, 3,
        asked("Koordinaten des Naturschutzgebietes", bbox=(13.8, 54, 14.5, 55)), "de/NSGPBRV-BJNR341500017.md",
        "Anlage 1", (4326, None, "measured"), (13.90103, 54.12614, 14.41306, 54.81194),
        "official work, free of copyright (Section 5 UrhG)",
    ),
    Sample(
        "nyc_metadata", {"names": {"Metadata__Metadata_SubwayLines.md", "Metadata__Metadata_Contours.md"}}, 2,
        asked("horizontal coordinate system of the subway lines"), "nyc_metadata/Metadata__Metadata_SubwayLines.md",
        "Long Island East Zone", (2263, None, "measured"), None, "Apache-2.0",
    ),
    Sample(
        "ogc_docs",
        {"names": {"edr__implementations__servers__whu-edr-server.md", "features__extensions__crs__README.md",
                   "features__cql2__standard__schema__examples__text__example24.txt",
                   "features__extensions__schemas__standard__clause_14_profile_references.adoc"}},
        4, asked("population of Hainan by area", bbox=(109, 19, 111, 20)),
        "ogc_docs/edr__implementations__servers__whu-edr-server.md", "hainan_pop", (None, 4326, "unresolved"),
        (109.298, 19.139979, 110.198879, 19.761534), "OGC Document License",
    ),
    Sample(
        "pleiades", {"every": 130}, 31,
        asked("diocese of the later Roman Empire established in 314", bbox=(29, 39, 36, 46)), "pleiades-1001135",
        "Diocese of Pontus", (4326, None, "measured"), (30, 40, 35, 45), "CC-BY-3.0",
    ),
    Sample(
        "postgis_docs", {"names": {"ST_Transform.md", "ST_HasZ.md", "ST_GeogFromText.md", "Box2D.md"}}, 4,
        asked("from Massachusetts state plane to longitude and latitude", bbox=(-74, 41, -69, 43)),
        "postgis_docs/ST_Transform.md", "Massachusetts state plane US feet", (2249, None, "measured"),
        (-71.1777, 42.3903, -71.1776, 42.3904), "CC-BY-SA-3.0",
    ),
    Sample(
        "proj_docs",
        {"names": {"operations__time_dependent_transformations.rst", "operations__projections__nzmg.rst"}}, 2,
        asked("time-dependent transformations", near=(151.2, -33.86)),
        "proj_docs/operations__time_dependent_transformations.rst", "Helmert", (4326, None, "measured"),
        (151.2077, -33.8623, 151.2077, -33.8623), "MIT",
    ),
    Sample(
        "wiktor", {"every": 120}, 30, asked("wine industry and barbecue", near=(-120.43, 34.95)), "wiktor-0",
        "Santa Barbara County", (4326, None, "measured"), (-120.4333, 34.9514, -120.4333, 34.9514), "CC-BY-SA-3.0",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, fresh_home: Callable[[Path], Home]) -> tuple[Home, Embedder]:
    """Return one home for all samples, and the model, loaded once."""
    home = fresh_home(tmp_path_factory.mktemp("corpora") / "home")
    return home, Embedder.load(home.settings)


@pytest.mark.shared
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.corpus)
def test_a_sample_goes_live_and_is_found(
    shared: Path, workshop: tuple[Home, Embedder], tmp_path: Path, sample: Sample
) -> None:
    home, embedder = workshop
    declaration = sampled(declared()[sample.corpus], tmp_path, **sample.part)
    reports = build_corpus(home, declaration, embedder=embedder)
    failed = [check.name for report in reports for check in report.checks if not check.passed and check.blocking]
    assert (reports[-1].stage, failed) == ("live_index", [])
    assert reports[0].counts["documents"] == sample.documents
    held = {row["doc_id"]: row["reason"] for row in home.tables.read(sample.corpus, QUARANTINE).to_pylist()}
    assert held.keys() == sample.quarantined.keys()
    assert all(words in held[doc_id] for doc_id, words in sample.quarantined.items())

    with Retriever(home, (sample.corpus,), embedder=embedder) as retriever:
        answer = retriever.search(sample.question)
    first = answer.candidates[0]
    assert (first.doc_id, first.licence) == (sample.doc_id, sample.licence)
    assert sample.words in first.text
    assert (first.frame["epsg"], first.frame["assumed_epsg"], first.frame["grade"]) == sample.frame
    assert first.extent == (None if sample.extent is None else pytest.approx(sample.extent, abs=1e-4))
    assert first.corpus_version == newest_version(home, sample.corpus)
    (document,) = home.tables.read(sample.corpus, DOCUMENTS, where=("doc_id", [first.doc_id])).to_pylist()
    assert document["text"][first.start : first.end] == first.text
    assert (document["content_sha256"], document["source"]) == (first.content_sha256, first.source)


def test_every_declared_corpus_has_a_sample_and_reads_only_what_its_declaration_points_to(shared: Path) -> None:
    corpora = declared()
    assert {sample.corpus for sample in SAMPLES} | {"stanford_ogm"} == corpora.keys()
    for declaration in corpora.values():
        assert declaration.licence or all(source.licence for source in declaration.sources)
        assert declaration.credit
        assert all(source.path.is_relative_to(shared / "data" / declaration.name) for source in declaration.sources)
    # Texts under a licence of their own stay outside the project.
    assert {path.suffix for path in DECLARATIONS.rglob("*") if path.is_file()} <= {".yaml", ".py", ".pyc"}
