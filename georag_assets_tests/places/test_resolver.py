"""Place names: the corpus's own features, namesakes, qualifiers, refusals, names in questions."""

from __future__ import annotations

import gzip
import json
import stat
import time

import pytest
from shapely.geometry import Point, box

from georag_assets.errors import PlaceError
from georag_assets.geometry.distance import geodesic_m
from georag_assets.home import Home
from georag_assets.places.gazetteer import key_of, of_corpus, world
from georag_assets.places.resolver import PlaceResolver
from georag_assets.settings import Settings
from georag_assets_tests.places.conftest import VALLEY, put


@pytest.fixture(scope="module")
def resolver(places_home):
    return PlaceResolver(places_home)


@pytest.mark.parametrize(
    ("name", "kind", "at"),
    [
        ("Paris", "city", (2.35, 48.86)),
        ("paris", "city", (2.35, 48.86)),
        ("Paris, Texas", "city", (-95.56, 33.66)),
        ("Paris, TX, USA", "city", (-95.56, 33.66)),
        ("Springfield, Illinois", "city", (-89.64, 39.80)),
        ("Cambridge, UK", "city", (0.12, 52.2)),
        ("Cambridge, MA", "city", (-71.11, 42.37)),
        ("Birmingham, Alabama", "city", (-86.8, 33.52)),
        ("München", "city", (11.58, 48.14)),
        ("Munchen", "city", (11.58, 48.14)),
        ("St. Helena, California", "city", (-122.47, 38.5)),
        ("London", "city", (-0.13, 51.5)),
        ("New York", "division", (-75, 43)),
        ("Ontario", "division", (-86, 50)),
        ("Mexico", "country", (-102, 23)),
        ("the Bahamas", "country", (-78, 24.5)),
        ("Luxembourg", "country", (6.1, 49.8)),
        ("Lake Victoria", "lake", (33, -1)),
        ("Gulf of Mexico", "sea", (-90, 25)),
        ("Fiji", "country", (178, -17.8)),
    ],
)
def test_one_place_by_a_stated_rule(resolver, name, kind, at):
    place = resolver.resolve(name)
    assert place.kind == kind
    assert geodesic_m(place.geometry, Point(at)) < 60_000
    assert place.rule
    assert place.credit


@pytest.mark.parametrize(
    "name", ["Springfield", "Georgia", "Washington", "Cambridge", "Portland", "Victoria", "St. Helena"]
)
def test_namesakes_far_apart_are_refused_with_their_readings(resolver, name):
    with pytest.raises(PlaceError) as refusal:
        resolver.resolve(name)
    assert len(refusal.value.readings) >= 2
    assert len(set(refusal.value.readings)) == len(refusal.value.readings)


@pytest.mark.parametrize(
    "name", ["Nowhereville", "", "  ", "!!", "Paris, Nowhereville", "'; DROP TABLE name; --", "\x00"]
)
def test_an_unknown_name_is_refused(resolver, name):
    with pytest.raises(PlaceError) as refusal:
        resolver.resolve(name)
    assert refusal.value.readings == ()


def test_a_corpuss_own_feature_comes_first(places_home):
    own = PlaceResolver(places_home, ["areas"])
    for name in ("Napa Valley", "napa valley", "Napa Valley AVA"):
        place = own.resolve(name)
        assert (place.source, place.kind) == ("areas", "feature")
        assert place.geometry.equals(VALLEY)
    # A name with ten readings in the world has one here.
    assert own.resolve("Springfield").source == "areas"
    assert own.resolve("Springfield, Missouri").source == "geonames"
    # A headline is no place, and neither is a feature without a shape.
    for name in ("Roads of California", "Nowhere in particular"):
        with pytest.raises(PlaceError):
            own.resolve(name)


def test_a_corpuss_features_follow_its_content(places_home, tmp_path):
    home = Home(Settings(home=tmp_path / "home"))
    put(home, "areas", [("Old Hill", box(0, 0, 1, 1), ["a"])])
    assert of_corpus(home, "areas").find("Old Hill")
    put(home, "areas", [("New Hill", box(0, 0, 1, 1), ["b"])])
    assert of_corpus(home, "areas").find("New Hill")
    assert len(list((home.root / "places").glob("areas-*.sqlite"))) == 1


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Soils in Napa Valley", ["Napa Valley"]),
        ("Which areas lie near St. Helena?", ["St. Helena"]),
        ("High schools in Rhode Island", ["Rhode Island"]),
        ("roads in california", ["california"]),
        ("Roads from Paris to New York City", ["Paris", "New York City"]),
        ("Paris restaurants", ["Paris"]),
        ("Show me all roads", []),
        ("What is the rainfall?", []),
        ("Reading and bath houses", []),
        ("", []),
    ],
)
def test_places_in_a_question(places_home, question, names):
    found = PlaceResolver(places_home, ["areas"]).find_in(question)
    assert [place.text for place in found] == names
    assert all(question[place.start : place.end] == place.text for place in found)


def test_real_questions_name_their_place(resolver, shared):
    with gzip.open(shared / "data" / "stanford_ogm" / "queries_catalogue.jsonl.gz", "rt", encoding="utf-8") as lines:
        queries = [json.loads(line) for line in lines]
    right = sum([place.text for place in resolver.find_in(query["query"])] == [query["place"]] for query in queries)
    assert right >= 0.98 * len(queries)


def test_a_look_up_takes_milliseconds(resolver):
    resolver.resolve("Napa")
    start = time.perf_counter()
    for _ in range(20):
        resolver.resolve("Napa")
    assert (time.perf_counter() - start) / 20 < 0.05


def test_a_read_only_home_still_answers(places_home, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the home's folder would be")
    home = Home(Settings(home=blocked))
    monkeypatch.setattr("georag_assets.places.gazetteer._geonames", lambda: ())
    assert world(home).find("Fiji")
    assert blocked.stat().st_mode & stat.S_IRUSR


def test_keys_ignore_case_accents_articles_and_dots():
    assert key_of("The Bahamas") == key_of("bahamas")
    assert key_of("Saint-Étienne") == key_of("St. Etienne")
    assert key_of("Coeur d’Alene") == key_of("COEUR D'ALENE")
    assert key_of("The") == "the"
