"""What may be asked, and the words that name a place."""

from __future__ import annotations

import gzip
import json

import pytest

from georag_assets.errors import QueryError
from georag_assets.retrieval.question import Question, place_phrase, without_place


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("Economy in Liberia", "Liberia", "Economy"),
        ("vineyards in Napa Valley, California since 1990", "Napa Valley, California", "vineyards since 1990"),
        ("fog near the Isle of Wight?", "Isle of Wight", "fog"),
        ("Structure in Côte d'Ivoire", "Côte d'Ivoire", "Structure"),
        ("In Zürich wells", "Zürich", "wells"),
        ("rivers within São Tomé and Príncipe", "São Tomé and Príncipe", "rivers"),
        ("wells at 5 m in the ground", None, None),
        ("what is in it?", None, None),
        ("in Bern", "Bern", None),
    ],
)
def test_place_phrases(text, name, rest):
    phrase = place_phrase(text)
    assert (phrase.name if phrase else None) == name
    assert without_place(text) == rest


def test_a_given_name_is_taken_out_wherever_it_stands():
    assert without_place("Napa Valley fog in winter", "Napa Valley") == "fog in winter"
    assert without_place("fog of the napa valley", "Napa Valley") == "fog"
    assert without_place("fog in winter", "Napa Valley") is None
    assert without_place("Napa Valleys", "Napa Valley") is None


def test_every_catalogue_query_names_its_place_in_its_words(shared):
    path = shared / "data" / "stanford_ogm" / "queries_catalogue.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for query in map(json.loads, lines):
            assert place_phrase(query["query"]).name == query["place"]
            assert without_place(query["query"]) == query["subject"]


@pytest.mark.parametrize(
    "question",
    [
        Question(" "),
        Question("x" * 2_001),
        Question("nul \0"),
        Question("x", k=0),
        Question("x", k=201),
        Question("x", place="Bern", near=(7.4, 46.9)),
        Question("x", bbox=(7, 46, 8, 47), radius_m=5),
        Question("x", near=(7.4, 46.9), radius_m=-5),
        Question("x", near=(7.4, 46.9), radius_m=float("nan")),
        Question("x", near=(7.4, 46.9), radius_m=float("inf")),
        Question("x", period=(2.0, 1.0)),
    ],
)
def test_a_question_outside_its_bounds_is_an_error_that_does_not_echo_it(question):
    with pytest.raises(QueryError) as error:
        question.check(200)
    assert question.text.strip() == "" or question.text not in str(error.value) or len(question.text) < 2


def test_a_point_has_a_radius_of_five_kilometres_unless_told():
    assert Question("x", near=(7.4, 46.9)).given_region.radius_m == 5_000
    assert Question("x", near=(7.4, 46.9), radius_m=200).given_region.radius_m == 200
    raised = Question("x", near=(7.4, 46.9), radius_m=3).given_region
    assert raised.radius_m == 100 and "radius_raised_to_floor" in raised.flags
