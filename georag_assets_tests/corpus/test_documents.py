"""Sync: incremental by content, everything accounted for, and never a large loss without being asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import shapely

from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.documents import _accounted, _Sync, document_sha256, sync_documents
from georag_assets.corpus.models import DOCUMENTS, QUARANTINE
from georag_assets.errors import RemovalThresholdError, SourceError
from georag_assets.home import Home
from georag_assets.settings import Settings
from georag_assets_tests.conftest import REPOSITORY
from georag_assets_tests.corpus.sources import (
    declared,
    documents,
    quarantined,
    synced,
    write_geoparquet,
    write_records,
    write_texts,
)
from georag_assets_tests.privileges import unprivileged


def snapshots(home: Home) -> tuple[int | None, int | None]:
    return home.tables.snapshot_id("corpus", DOCUMENTS), home.tables.snapshot_id("corpus", QUARANTINE)


def test_only_what_changed_is_written(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {f"{name}.md": f"# {name}" for name in "abcdefghij"} | {"bad.md": "\0"})
    declaration = declared(tmp_path, ["*.md"])
    first = synced(home, declaration)
    assert (first.counts["new"], first.counts["documents"], first.counts["quarantined"]) == (10, 10, 1)
    at_first = snapshots(home)

    again = synced(home, declaration)
    assert (again.counts["new"], again.counts["reused"], again.data_version) == (0, 10, first.data_version)
    assert snapshots(home) == at_first

    write_texts(tmp_path, {"a.md": "# changed", "new.md": "# new", "bad.md": "# mended"})
    (tmp_path / "b.md").unlink()
    changed = synced(home, declaration)
    counts = changed.counts
    assert (counts["new"], counts["changed"], counts["removed"], counts["reused"]) == (2, 1, 1, 8)
    assert changed.data_version != first.data_version
    assert documents(home)["a.md"].text == "# changed"
    assert "b.md" not in documents(home)
    assert quarantined(home) == {}

    write_texts(tmp_path, {"a.md": "# a", "b.md": "# b", "bad.md": "\0"})
    (tmp_path / "new.md").unlink()
    assert synced(home, declaration).data_version == first.data_version


def test_a_sidecar_polygon_and_every_declared_field_are_content(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"a.md": "# A", "b.md": "# B"})
    sidecar = {"geometry": {"sidecar": "s.parquet"}}
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a", "b"]}, [shapely.Point(1, 1), shapely.Point(2, 2)], 4326)
    synced(home, declared(tmp_path, ["*.md"], **sidecar))
    before = documents(home)
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a", "b"]}, [shapely.Point(1, 1), shapely.Point(2, 2.1)], 4326)
    assert synced(home, declared(tmp_path, ["*.md"], **sidecar)).counts["changed"] == 1
    assert documents(home)["a.md"] == before["a.md"]
    for more in ({"licence": "CC0-1.0"}, {"period": "2020"}, {"frame": {"epsg": 4326}}):
        assert synced(home, declared(tmp_path, ["*.md"], **sidecar, **more)).counts["changed"] == 2


def test_where_a_document_came_from_is_no_content(home: Home, tmp_path: Path) -> None:
    rows = [{"id": name, "body": name} for name in "abc"]
    source = [{"path": "r.jsonl", "columns": {"id": "id", "text": "body"}}]
    write_records(tmp_path / "r.jsonl", rows)
    synced(home, declared(tmp_path, source))
    write_records(tmp_path / "r.jsonl", rows[::-1])
    assert synced(home, declared(tmp_path, source)).counts["changed"] == 0
    document = documents(home)["a"]
    assert document_sha256(document) == document.content_sha256
    assert document_sha256(replace(document, location="elsewhere")) == document.content_sha256
    for change in ({"text": "b"}, {"title": "b"}, {"geometry_wkb": b"1"}, {"fields": {"b": "c"}}, {"declared_epsg": 1}):
        assert document_sha256(replace(document, **change)) != document.content_sha256


@pytest.mark.parametrize("how", ["emptied", "missing", "mode 000", "files mode 000", "3 of 120"])
def test_case_o11_a_source_that_is_gone_stops_the_sync(reachable: Path, case: Callable[[str], dict], how: str) -> None:
    expected = case("o11")["expected"]
    total = case("o11")["input"]["previous_version_documents"]
    home = Home(Settings(home=reachable / "home"))
    root = reachable / "source"
    write_texts(root, {f"{number}.md": f"# {number}" for number in range(total)})
    declaration = declared(reachable, ["source/*.md"])
    synced(home, declaration)
    before = snapshots(home)
    left = 0
    if how == "3 of 120":
        declaration, left = declared(reachable, ["source/11[789].md"]), 3
    elif how == "mode 000":
        root.chmod(0)
    elif how == "files mode 000":
        for path in root.iterdir():
            path.chmod(0)
    else:
        shutil.rmtree(root)
        if how == "emptied":
            root.mkdir()
    with unprivileged(), pytest.raises(RemovalThresholdError) as caught:
        sync_documents(home, declaration)
    message = str(caught.value)
    assert str(root) in message
    assert f"would remove {total - left} of {total} documents" in message
    assert f"found: {left} usable documents" in message
    assert len(documents(home)) == expected["live_documents_after"]
    assert snapshots(home) == before
    if how in {"emptied", "3 of 120"}:
        assert synced(home, declaration, allow_removal=True).counts["removed"] == total - left
        assert len(documents(home)) == left


def test_the_override_is_a_setting_too(tmp_path: Path) -> None:
    write_texts(tmp_path, {f"{number}.md": "# x" for number in range(10)})
    home = Home(Settings(home=tmp_path / "home", allow_removal=True))
    synced(home, declared(tmp_path, ["*.md"]))
    synced(home, declared(tmp_path, ["1.md"]))
    assert list(documents(home)) == ["1.md"]


@pytest.mark.parametrize(
    ("total", "gone", "stops"), [(10, 2, False), (10, 3, True), (3, 1, False), (3, 2, True), (1, 1, True)]
)
def test_the_removal_threshold(home: Home, tmp_path: Path, total: int, gone: int, stops: bool) -> None:
    write_texts(tmp_path, {f"{number}.md": f"# {number}" for number in range(total)})
    synced(home, declared(tmp_path, ["*.md"]))
    write_texts(tmp_path, {f"{number}.md": "\0" for number in range(gone)})
    if stops:
        with pytest.raises(RemovalThresholdError, match=f"would remove {gone} of {total}"):
            synced(home, declared(tmp_path, ["*.md"]))
    else:
        assert synced(home, declared(tmp_path, ["*.md"])).counts["removed"] == gone


def test_a_first_sync_without_a_source_is_an_error(home: Home, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"root is not there.*nowhere"):
        synced(home, declared(tmp_path, ["nowhere/*.md"]))
    with pytest.raises(SourceError, match=r"the source is not there.*one\.md"):
        synced(home, declared(tmp_path, ["one.md"]))
    with pytest.raises(SourceError, match="matches no file"):
        synced(home, declared(tmp_path, ["*.md"]))
    (tmp_path / "link.md").symlink_to(tmp_path / "gone.md")
    with pytest.raises(SourceError, match="a link to nothing"):
        synced(home, declared(tmp_path, ["link.md"]))
    assert snapshots(home) == (None, None)


def test_a_folder_that_cannot_be_listed_is_no_empty_folder(reachable: Path) -> None:
    home = Home(Settings(home=reachable / "home"))
    write_texts(reachable / "source", {"a.md": "# A", "closed/b.md": "# B"})
    (reachable / "source" / "closed").chmod(0)
    with unprivileged(), pytest.raises(SourceError, match=r"cannot be listed.*closed.*Permission denied"):
        sync_documents(home, declared(reachable, ["source/**/*.md"]))


def test_a_sidecar_that_lost_its_rows_stops_the_sync(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {f"{name}.md": f"# {name}" for name in "abcde"})
    declaration = declared(tmp_path, ["*.md"], geometry={"sidecar": "s.parquet"})
    write_geoparquet(tmp_path / "s.parquet", {"id": list("abcde")}, [shapely.Point(1, 1)] * 5, 4326)
    synced(home, declaration)
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a"]}, [shapely.Point(1, 1)], 4326)
    with pytest.raises(RemovalThresholdError, match="the geometry of 4 of 5 documents"):
        synced(home, declaration)
    assert documents(home)["e.md"].geometry_wkb is not None
    assert synced(home, declaration, allow_removal=True).counts["changed"] == 4


def test_too_much_quarantine_fails_its_blocking_check(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {f"{number}.md": f"# {number}" for number in range(9)} | {"bad.md": "\0"})
    report = synced(home, declared(tmp_path, ["*.md"], quarantine_threshold=0.05))
    assert report.blocked
    check = next(check for check in report.checks if check.name == "quarantine_within_threshold")
    assert check.numbers["quarantined_share"] == 0.1
    assert "bad.md" in str(check.detail["first"])
    assert not synced(home, declared(tmp_path, ["*.md"], quarantine_threshold=0.1)).blocked


def test_a_document_lost_on_the_way_fails_the_accounting(tmp_path: Path) -> None:
    sync = _Sync(declared(tmp_path, ["*.md"]), {}, kept={"a": "a:1", "b": "b:1"}, found=2)
    assert _accounted(sync, {"a": "1", "b": "2"}).passed
    for indexed in ({"a": "1"}, {"a": "1", "c": "3"}, {"a": "1", "b": "2", "c": "3"}):
        check = _accounted(sync, indexed)
        assert check.blocking
        assert not check.passed


def test_files_of_no_known_format_and_unreadable_names(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"a.md": "# A", "b.docx": "zip", "c.md.gz": "zip", ".hidden.md": "# no"})
    (tmp_path / os.fsdecode(b"bad\xff.md")).write_text("# name")
    report = synced(home, declared(tmp_path, ["*"]))
    assert list(documents(home)) == ["a.md"]
    assert {kind for kind, _ in quarantined(home).values()} == {"damaged", "bad_name"}
    # Nobody meant it: it is counted and named, and quarantined only where a pattern names its suffix.
    assert (report.metadata["files_of_unknown_format"], report.metadata["unknown_files"]) == (1, ["b.docx"])
    synced(home, declared(tmp_path, ["*.md", "*.docx"]))
    assert quarantined(home)["b.docx"][0] == "unknown_format"


def test_files_outside_the_declarations_folder_are_named_from_their_root(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"one/x.md": "# 1", "two/x.md": "# 2"})
    (tmp_path / "defs").mkdir()
    synced(home, declared(tmp_path / "defs", ["../one/*.md", "../two/*.md"]))
    assert sorted(documents(home)) == ["one/x.md", "two/x.md"]


def test_the_whole_catalogue_syncs_without_its_labels(home: Home, shared: Path) -> None:
    declaration = load_declaration(REPOSITORY / "georag_assets_tests" / "corpora" / "stanford_ogm" / "defs.yaml")
    report = sync_documents(home, declaration)
    assert report.counts["documents"] == report.counts["new"] == 7_448
    assert not report.blocked
    assert report.metadata["documents_with_geometry"] == 7_448
    again = sync_documents(home, declaration)
    assert (again.counts["reused"], again.data_version) == (7_448, report.data_version)
    assert sum(again.seconds.values()) < 10
    columns = home.tables.read("stanford_ogm", DOCUMENTS, columns=["fields_json"])["fields_json"]
    assert set(columns.to_pylist()) == {"{}"}


def test_the_bundled_corpus_joins_every_polygon(home: Home) -> None:
    report = sync_documents(home, load_declaration(REPOSITORY / "georag_assets" / "defs" / "ava" / "defs.yaml"))
    assert report.counts["documents"] == report.metadata["documents_with_geometry"] == 184
    assert report.metadata["sidecar_rows_without_document"] == 0
    assert not report.blocked
