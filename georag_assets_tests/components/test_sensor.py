"""The sensor's judgement, tick by tick; what it sees is tested with runs in `end_to_end`."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from georag_assets.components.sensor import FIRST_WAIT_S, LONGEST_WAIT_S, Cursor, Seen, judge


def test_a_difference_is_asked_for_until_it_is_gone() -> None:
    now, cursor = 1000.0, Cursor()
    ask, why, cursor = judge(Seen("a", "sources changed"), cursor, now)
    assert ask
    assert why == "sources changed"

    ask, why, cursor = judge(Seen("a", "sources changed", busy=True), cursor, now + 1e6)
    assert not ask
    assert "running" in why

    ask, _, cursor = judge(Seen("a", "sources changed"), cursor, now + 1e6)
    assert ask, "the run ended and the difference is still there: a level, not an edge"

    ask, why, cursor = judge(Seen("a", ""), cursor, now + 2e6)
    assert not ask
    assert cursor.asked == 0


def test_a_failing_build_is_asked_for_ever_more_rarely() -> None:
    cursor, now, asked = Cursor(), 0.0, []
    while now < 48 * 3600:
        ask, _, cursor = judge(Seen("a", "differs"), cursor, now)
        if ask:
            asked.append(now)
        now += 60
    waits = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert waits[0] == FIRST_WAIT_S
    assert waits == sorted(waits)
    assert max(waits) <= LONGEST_WAIT_S + 60
    assert len(asked) < 20


def test_a_refused_state_waits_for_another() -> None:
    cursor = Cursor("a", asked=1)
    ask, why, cursor = judge(Seen("a", "differs", blocked="chunks"), cursor, 1e9)
    assert not ask
    assert "chunks" in why
    ask, _, _ = judge(Seen("b", "differs"), cursor, 1e9)
    assert ask


def test_another_difference_does_not_wait_for_the_first() -> None:
    _, _, cursor = judge(Seen("a", "differs"), Cursor("a", asked=9), 0.0)
    ask, _, _ = judge(Seen("b", "differs"), cursor, 1.0)
    assert ask


@given(st.text() | st.none())
def test_any_stored_cursor_is_read(text: str | None) -> None:
    assert isinstance(Cursor.read(text), Cursor)


def test_the_cursor_stays_small() -> None:
    import json
    from dataclasses import asdict

    _, _, cursor = judge(Seen("f" * 16, "differs"), Cursor(), 1.7e9)
    assert len(json.dumps(asdict(cursor))) < 120
    assert Cursor.read(json.dumps(asdict(cursor))) == cursor
