"""Shards: every document in exactly one, the same one everywhere."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georag_assets.corpus.shards import WHOLE, Shard, shards_of
from georag_assets.errors import QueryError


@given(st.text(), st.integers(1, 40))
def test_a_document_is_in_exactly_one_shard(doc_id: str, count: int) -> None:
    assert [shard.holds(doc_id) for shard in shards_of(count)].count(True) == 1
    assert WHOLE.holds(doc_id)


@given(st.integers(1, 256), st.data())
def test_a_name_is_read_back(count: int, data: st.DataObject) -> None:
    shard = Shard(data.draw(st.integers(1, count)), count)
    assert Shard.named(shard.name) == shard


@pytest.mark.parametrize(("doc_id", "number"), [("docs/weir.md", 2), ("Ω/é", 2), ("x", 1)])
def test_the_share_is_the_same_on_every_machine(doc_id: str, number: int) -> None:
    assert Shard(number, 4).holds(doc_id)


@pytest.mark.parametrize("name", ["", "1", "0-of-4", "5-of-4", "-1-of-4", "a-of-b", "1-of-4-of-4", "²-of-4"])
def test_what_names_no_shard_is_refused(name: str) -> None:
    with pytest.raises(QueryError, match=r"no such shard; expected: a name such as 2-of-4"):
        Shard.named(name)


def test_rows_and_entries_fall_where_their_documents_do() -> None:
    doc_ids = [f"docs/{number}.md" for number in range(4_000)]
    rows = pa.table({"doc_id": doc_ids, "row": range(4_000)})
    shares = [shard.of_rows(rows) for shard in shards_of(4)]
    assert sorted(row for share in shares for row in share["row"].to_pylist()) == list(range(4_000))
    assert all(900 < share.num_rows < 1_100 for share in shares), "the shares are of one size"
    by_document = dict.fromkeys(doc_ids, 0)
    assert [list(shard.of_keys(by_document)) for shard in shards_of(4)] == [
        share["doc_id"].to_pylist() for share in shares
    ]
    assert WHOLE.of_rows(rows) is rows
