"""Fusion and order: weights, scaling, ties, decay."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georag_assets.errors import QueryError
from georag_assets.index.models import Hit
from georag_assets.retrieval.ranking import Spatial, fuse, proximity, rank
from georag_assets.retrieval.settings import SIGNALS, RankingSettings

SETTINGS = RankingSettings()
IDS = [f"c{number:02d}" for number in range(30)]


def hits(*ids: str) -> tuple[Hit, ...]:
    return tuple(Hit(chunk_id, 1.0 - position / 100) for position, chunk_id in enumerate(ids))


arms = st.dictionaries(
    st.sampled_from(["semantic", "topic", "lexical"]),
    st.lists(st.sampled_from(IDS), unique=True, max_size=20).map(lambda ids: hits(*ids)),
)
places = st.dictionaries(
    st.sampled_from(IDS), st.builds(Spatial, st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1e7)))
)


@given(arms, places, st.booleans())
def test_every_score_is_in_the_unit_interval_and_the_order_is_total(arms, places, radius):
    ranked = rank(arms, places, SETTINGS, radius=radius)
    assert {one.chunk_id for one in ranked} == {hit.chunk_id for found in arms.values() for hit in found}
    assert all(0 <= one.score <= 1 and 0 <= one.fused <= 1 for one in ranked)
    keys = [(-one.score, one.chunk_id) for one in ranked]
    assert keys == sorted(keys)
    for one in ranked:
        assert one.ranks.keys() == one.scores.keys() != set()


@given(arms)
def test_the_first_of_every_arm_has_the_full_text_score(arms):
    both = {arm: hits("best", *(hit.chunk_id for hit in found)) for arm, found in arms.items()}
    if both:
        assert fuse(both, SETTINGS)["best"] == pytest.approx(1.0)


def test_the_heavier_arm_orders_where_the_arms_disagree():
    found = {"semantic": hits("a", "b"), "lexical": hits("b", "a")}
    assert [one.chunk_id for one in rank(found, {}, SETTINGS, radius=False)] == ["a", "b"]
    lexical_heavy = RankingSettings(semantic=0.1, lexical=0.9)
    assert [one.chunk_id for one in rank(found, {}, lexical_heavy, radius=False)] == ["b", "a"]


def test_ties_are_broken_by_chunk_id_whatever_the_order_of_the_arms():
    found = {"semantic": hits("z"), "lexical": hits("m")}
    even = RankingSettings(semantic=0.5, lexical=0.5)
    assert [one.chunk_id for one in rank(found, {}, even, radius=False)] == ["m", "z"]
    turned = {"lexical": hits("m"), "semantic": hits("z")}
    assert rank(turned, {}, even, radius=False) == rank(found, {}, even, radius=False)


def test_an_arm_that_found_nothing_has_no_say():
    assert fuse({"semantic": hits("a"), "lexical": ()}, SETTINGS) == fuse({"semantic": hits("a")}, SETTINGS)


def test_fit_lifts_the_map_of_the_place_over_the_atlas_of_the_world():
    found = {"semantic": hits("atlas", "county")}
    lies = {"atlas": Spatial(fit=1e-6), "county": Spatial(fit=0.9)}
    assert [one.chunk_id for one in rank(found, lies, SETTINGS, radius=False)] == ["county", "atlas"]
    without = SETTINGS.without("fit")
    assert [one.chunk_id for one in rank(found, lies, without, radius=False)] == ["atlas", "county"]


def test_in_a_radius_search_nearness_counts_and_fit_does_not():
    found = {"semantic": hits("far", "near")}
    lies = {"far": Spatial(1.0, 4_000.0), "near": Spatial(0.0, 0.0)}
    first, second = rank(found, lies, SETTINGS, radius=True)
    assert (first.chunk_id, first.proximity) == ("near", 1.0)
    assert second.proximity == pytest.approx(0.5 ** (4_000 / 1_500))
    assert first.score == pytest.approx(0.65 * first.fused + 0.35, abs=1e-6)


@pytest.mark.parametrize("distance", [-1.0, math.nan, math.inf])
def test_a_distance_that_is_none_gives_no_nearness(distance):
    assert proximity(distance, 1_500) == 0


def test_half_a_life_halves():
    assert proximity(1_500, 1_500) == 0.5


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_signal_can_be_switched_off(signal):
    assert getattr(SETTINGS.without(signal), signal) == 0


def test_what_cannot_be_switched_off_is_said():
    with pytest.raises(QueryError, match="semantic, topic"):
        SETTINGS.without("popularity")
    with pytest.raises(QueryError, match="no text signal"):
        SETTINGS.without("semantic", "topic", "lexical")
