"""Versions: a name for a content; the same content has the same name, and any of them reads back exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from georag_assets.corpus.models import DOCUMENTS
from georag_assets.corpus.versions import VERSIONS, newest_version, publish_version, read_documents, version_snapshot
from georag_assets.errors import TableError
from georag_assets.home import Home
from georag_assets_tests.corpus.sources import declared, synced, write_texts


def texts(home: Home, version: str | None = None) -> dict[str, str]:
    return {document.doc_id: document.text for document in read_documents(home, "corpus", version)}


def test_a_version_names_its_content_and_a_reverted_corpus_points_back(home: Home, tmp_path: Path) -> None:
    declaration = declared(tmp_path, ["*.md"])
    first_texts = {f"{name}.md": f"# {name}" for name in "abcde"}

    def publish(changes: dict[str, str | bytes]) -> str:
        write_texts(tmp_path, changes)
        synced(home, declaration)
        return publish_version(home, declaration).data_version

    first = publish(dict(first_texts))
    assert first.startswith("v1-")
    assert publish({}) == first
    assert home.tables.read("corpus", VERSIONS).num_rows == 1
    second = publish({"a.md": "# changed"})
    assert second.startswith("v2-")
    assert newest_version(home, "corpus") == second
    back = publish({"a.md": "# a"})
    assert back == first == newest_version(home, "corpus")
    third = publish({"a.md": "# third"})
    assert third.startswith("v3-")
    assert publish({"a.md": "# changed"}) == second

    assert texts(home) == texts(home, second) == first_texts | {"a.md": "# changed"}
    assert texts(home, first) == first_texts
    assert texts(home, third) == first_texts | {"a.md": "# third"}
    assert set(home.tables.tags("corpus", DOCUMENTS)) == {first, second, third}


def test_a_run_that_died_between_tag_and_log_is_finished_by_the_next(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"a.md": "# a"})
    declaration = declared(tmp_path, ["*.md"])
    report = synced(home, declaration)
    home.tables.tag("corpus", DOCUMENTS, f"v1-{report.data_version[:8]}")
    assert newest_version(home, "corpus") is None
    published = publish_version(home, declaration)
    assert newest_version(home, "corpus") == published.data_version == f"v1-{report.data_version[:8]}"


def test_what_does_not_exist_is_an_error(home: Home, tmp_path: Path) -> None:
    declaration = declared(tmp_path, ["*.md"])
    with pytest.raises(TableError, match="no documents to publish"):
        publish_version(home, declaration)
    with pytest.raises(TableError, match="no version yet"):
        list(read_documents(home, "corpus"))
    write_texts(tmp_path, {"a.md": "# a", "b.md": "# b"})
    synced(home, declaration)
    version = publish_version(home, declaration).data_version
    with pytest.raises(TableError, match=f"expected: {version}; found: v9-00000000"):
        version_snapshot(home, "corpus", "v9-00000000")
    assert [document.doc_id for document in read_documents(home, "corpus", doc_ids=["b.md", "none"])] == ["b.md"]
    assert list(read_documents(home, "corpus", doc_ids=[])) == []
