"""Folding: the same text of the same place, and nothing else."""

from __future__ import annotations

from shapely.geometry import Point, box

from georag_assets.retrieval.folding import Foldable, fold
from georag_assets.retrieval.settings import RankingSettings

SETTINGS = RankingSettings()
SQUARE = box(7, 46, 8, 47)
TEXT = "This layer shows the boundaries of watersheds, digitised from the national map series."


def groups(*candidates: Foldable) -> list[tuple[int, ...]]:
    return fold(candidates, SETTINGS)


def test_same_text_and_place_fold_into_the_place_of_the_best():
    assert groups(Foldable(TEXT, None, SQUARE), Foldable("other", None, SQUARE), Foldable(TEXT, None, SQUARE)) == [
        (0, 2),
        (1,),
    ]


def test_white_space_and_case_are_no_difference():
    assert groups(Foldable(TEXT, None, SQUARE), Foldable(TEXT.upper() + " \n", None, SQUARE)) == [(0, 1)]


def test_the_newest_revision_stands_for_its_group():
    assert groups(Foldable(TEXT, "2019", SQUARE), Foldable(TEXT, "2024", SQUARE)) == [(1, 0)]


def test_the_same_box_alone_does_not_fold():
    assert groups(Foldable(TEXT, None, SQUARE), Foldable("Roads of the canton, 1:25,000.", None, SQUARE)) == [
        (0,),
        (1,),
    ]


def test_the_same_text_alone_does_not_fold():
    elsewhere = box(17, 46, 18, 47)
    assert groups(Foldable(TEXT, None, SQUARE), Foldable(TEXT, None, elsewhere)) == [(0,), (1,)]
    assert groups(Foldable(TEXT, None, None), Foldable(TEXT, None, None)) == [(0,), (1,)]


def test_another_year_is_another_text():
    assert groups(Foldable(TEXT + " 2019", None, SQUARE), Foldable(TEXT + " 2020", None, SQUARE)) == [(0,), (1,)]


def test_areas_coincide_by_overlap_and_points_by_metres():
    assert groups(Foldable(TEXT, None, SQUARE), Foldable(TEXT, None, box(7, 46, 8, 46.95))) == [(0, 1)]
    assert groups(Foldable(TEXT, None, SQUARE), Foldable(TEXT, None, box(7, 46, 8, 46.5))) == [(0,), (1,)]
    near, far = Point(7.0005, 46.0), Point(7.001, 46.0)
    assert groups(Foldable(TEXT, None, Point(7, 46)), Foldable(TEXT, None, near)) == [(0, 1)]
    assert groups(Foldable(TEXT, None, Point(7, 46)), Foldable(TEXT, None, far)) == [(0,), (1,)]


def test_a_shorter_list_folds_as_the_beginning_of_a_longer_one():
    candidates = [Foldable(TEXT, None, SQUARE), Foldable("other", None, SQUARE), Foldable(TEXT, None, SQUARE)]
    assert [group[0] for group in fold(candidates[:2], SETTINGS)] == [group[0] for group in fold(candidates, SETTINGS)]
