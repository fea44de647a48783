"""Archives: every member read as if it lay in a folder; what could do harm is never unpacked."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyogrio
import pytest
import shapely
from geopandas import GeoDataFrame

from georag_assets.errors import SourceError
from georag_assets.home import Home
from georag_assets_tests.conftest import REPOSITORY
from georag_assets_tests.corpus.sources import declared, documents, quarantined, synced, write_texts

AVA = REPOSITORY / "georag_assets" / "defs" / "ava" / "docs"
FILES = {"docs/a.md": b"# A\n\nThe weir.\n", "docs/deep/b.txt": b"The gauge.\n", "c.html": b"<p>The quarry.</p>"}


def zipped(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def tarred(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.zip", zipped(FILES)),
        ("set.tar", tarred(FILES, "w:")),
        ("set.tar.gz", tarred(FILES, "w:gz")),
        ("set.tgz", tarred(FILES, "w:gz")),
        ("set.tar.bz2", tarred(FILES, "w:bz2")),
        ("set.tar.xz", tarred(FILES, "w:xz")),
    ],
)
@pytest.mark.parametrize("pattern", ["{}", "*"])
def test_members_are_documents_with_the_archive_in_their_names(
    home: Home, tmp_path: Path, name: str, content: bytes, pattern: str
) -> None:
    (tmp_path / name).write_bytes(content)
    synced(home, declared(tmp_path, [pattern.format(name)]))
    found = documents(home)
    assert sorted(found) == [f"{name}!/c.html", f"{name}!/docs/a.md", f"{name}!/docs/deep/b.txt"]
    assert found[f"{name}!/docs/a.md"].text == "# A\n\nThe weir.\n"
    assert found[f"{name}!/docs/a.md"].title == "A"
    assert found[f"{name}!/docs/deep/b.txt"].location == f"{name}!/docs/deep/b.txt:1"
    assert found[f"{name}!/c.html"].text == "The quarry.\n"


def test_a_real_set_in_an_archive_is_the_set_in_its_folder(home: Home, tmp_path: Path) -> None:
    """All 184 viticultural areas: the same contents, but for where they lie."""
    (tmp_path / "ava.zip").write_bytes(zipped({f"docs/{path.name}": path.read_bytes() for path in AVA.glob("*.md")}))
    synced(home, declared(tmp_path, ["ava.zip"]))
    packed = {name.rsplit("/", 1)[1]: document.content_sha256 for name, document in documents(home).items()}
    synced(home, declared(tmp_path, [str(AVA / "*.md")]), allow_removal=True)
    plain = {name.rsplit("/", 1)[1]: document.content_sha256 for name, document in documents(home).items()}
    assert len(plain) == 184
    assert packed == plain


def test_records_and_map_layers_are_read_out_of_archives(home: Home, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": f"r{number}", "body": "weir"}) + "\n" for number in range(3))
    columns = {"id": "id", "text": ["body"]}
    frame = GeoDataFrame({"id": ["w1"], "body": ["well"]}, geometry=[shapely.Point(7.5, 47.5)], crs=4326)
    folder = tmp_path / "layer"
    folder.mkdir()
    pyogrio.write_dataframe(frame, folder / "wells.shp")
    (tmp_path / "records.zip").write_bytes(zipped({"in/records.jsonl": lines.encode()}))
    (tmp_path / "wells.zip").write_bytes(zipped({f"gis/{path.name}": path.read_bytes() for path in folder.iterdir()}))
    synced(home, declared(tmp_path, [{"path": name, "columns": columns} for name in ("records.zip", "wells.zip")]))
    found = documents(home)
    assert sorted(found) == ["r0", "r1", "r2", "w1"]
    assert found["r1"].source == "records.zip!/in/records.jsonl#r1"
    assert (found["w1"].geometry_epsg, shapely.from_wkb(found["w1"].geometry_wkb)) == (4326, shapely.Point(7.5, 47.5))
    assert found["w1"].geometry_evidence == "wells.prj: EPSG:4326 WGS 84"


def test_a_single_packed_file_keeps_its_name(home: Home, tmp_path: Path) -> None:
    (tmp_path / "notes.md.gz").write_bytes(gzip.compress(b"# Notes\n\nThe weir.\n"))
    (tmp_path / "page.html.gz").write_bytes(gzip.compress(b"<title>T</title><p>The gauge.</p>"))
    synced(home, declared(tmp_path, ["*"]))
    found = documents(home)
    assert (found["notes.md.gz"].text, found["notes.md.gz"].title) == ("# Notes\n\nThe weir.\n", "Notes")
    assert found["page.html.gz"].title == "T"


def test_what_an_archive_holds_beside_is_counted_and_named(home: Home, tmp_path: Path) -> None:
    files = {**FILES, "photo.jpg": b"x", "__MACOSX/._a.md": b"x", ".DS_Store": b"x", "notes/": b"", "skip/x.md": b"# X"}
    (tmp_path / "set.zip").write_bytes(zipped(files))
    report = synced(home, declared(tmp_path, [{"path": "set.zip", "exclude": ["skip/*", "*.html"]}]))
    assert sorted(documents(home)) == ["set.zip!/docs/a.md", "set.zip!/docs/deep/b.txt"]
    assert report.metadata["unknown_files"] == ["set.zip!/photo.jpg"]
    assert quarantined(home) == {}


def test_a_declared_format_reads_members_of_no_known_one(home: Home, tmp_path: Path) -> None:
    (tmp_path / "logs.zip").write_bytes(zipped({"a.log": b"The weir.\n", "b.csv": b"id,x\n"}))
    report = synced(home, declared(tmp_path, [{"path": "logs.zip", "format": "text"}]))
    assert list(documents(home)) == ["logs.zip!/a.log"]
    assert report.metadata["unknown_files"] == ["logs.zip!/b.csv"]


HOSTILE = ["../evil.md", "/etc/evil.md", "docs/../../evil.md", "C:/evil.md", "..\\evil.md"]


@pytest.mark.parametrize("pack", [zipped, tarred], ids=["zip", "tar"])
def test_a_name_that_leads_out_is_never_unpacked(home: Home, tmp_path: Path, pack: object) -> None:
    files = dict.fromkeys(HOSTILE, b"# Evil\n") | FILES
    suffix = "zip" if pack is zipped else "tar.gz"
    inner = tmp_path / "in"
    inner.mkdir()
    (inner / f"set.{suffix}").write_bytes(pack(files))  # type: ignore[operator]
    before = set(tmp_path.rglob("*"))
    synced(home, declared(inner, ["*"]))
    assert len(documents(home)) == 3
    assert {kind for kind, _ in quarantined(home).values()} == {"unsafe_name"}
    assert len(quarantined(home)) == len(HOSTILE)
    assert {path for path in tmp_path.rglob("*") if home.root not in (path, *path.parents)} == {
        path for path in before if home.root not in (path, *path.parents)
    }


def test_links_and_devices_are_not_followed(home: Home, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind in (("s.md", tarfile.SYMTYPE), ("h.md", tarfile.LNKTYPE), ("d.md", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    (tmp_path / "links.tar").write_bytes(made.getvalue())
    linked = zipfile.ZipInfo("z.md")
    linked.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "links.zip", "w") as archive_:
        archive_.writestr(linked, "/etc/passwd")
        archive_.writestr("ok.md", "# fine\n")
    synced(home, declared(tmp_path, ["*"]))
    assert list(documents(home)) == ["links.zip!/ok.md"]
    assert {name.split("!/")[1]: kind for name, (kind, _) in quarantined(home).items()} == dict.fromkeys(
        ("s.md", "h.md", "d.md", "z.md"), "not_a_file"
    )


def test_nested_and_encrypted_members_are_told(home: Home, tmp_path: Path) -> None:
    data = bytearray(zipped({"locked.md": b"# L\n", "inner.zip": zipped(FILES), "ok.md": b"# fine\n"}))
    # The bit that says "encrypted", in the member's own header and in the directory.
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    (tmp_path / "set.zip").write_bytes(data)
    synced(home, declared(tmp_path, ["set.zip"]))
    assert list(documents(home)) == ["set.zip!/ok.md"]
    kinds = {name: kind for name, (kind, _) in quarantined(home).items()}
    assert kinds == {"set.zip!/locked.md": "encrypted", "set.zip!/inner.zip": "nested_archive"}


def test_bombs_end_before_the_disk_does(home: Home, tmp_path: Path) -> None:
    # 100 MB of zeros in 100 KB: as a text it is too large to be one.
    (tmp_path / "text.zip").write_bytes(zipped({"a.md": bytes(100 * 2**20), "ok.md": b"# fine\n"}))
    synced(home, declared(tmp_path, ["text.zip"]))
    assert quarantined(home)["text.zip!/a.md"][0] == "too_large"
    # As records it might be meant, but not at a thousand times its size.
    columns = {"id": "id", "text": ["body"]}
    (tmp_path / "rows.zip").write_bytes(zipped({"a.jsonl": bytes(100 * 2**20), "b.jsonl": b'{"id": "b", "body": "x"}'}))
    synced(home, declared(tmp_path, [{"path": "rows.zip", "columns": columns}]), allow_removal=True)
    assert quarantined(home)["rows.zip!/a.jsonl"][0] == "suspicious"
    assert list(documents(home)) == ["b"]


def test_a_bound_holds_for_what_really_comes_and_changes_nothing(home: Home, tmp_path: Path) -> None:
    """A gzip states no size that could be believed; and were it cut off, what follows would look removed."""
    write_texts(tmp_path, {"a.md": "# A\n"})
    synced(home, declared(tmp_path, ["*"]))
    files = {f"{number}.md": bytes([65 + number]) * 400_000 for number in range(4)}
    (tmp_path / "large.tar.gz").write_bytes(tarred(files))
    with pytest.raises(SourceError, match="max_archive_mb"):
        synced(home, declared(tmp_path, ["*"], max_archive_mb=1))
    assert list(documents(home)) == ["a.md"]
    (tmp_path / "large.tar.gz").unlink()
    (tmp_path / "b.md.gz").write_bytes(gzip.compress(b"x" * 3_000_000))
    synced(home, declared(tmp_path, ["*"], max_document_mb=1))
    assert quarantined(home)["b.md.gz"][0] == "too_large"


@pytest.mark.parametrize("name", ["set.zip", "set.tar.gz", "set.tar.xz"])
def test_a_damaged_archive_changes_nothing_and_is_named(home: Home, tmp_path: Path, name: str) -> None:
    whole = {"set.zip": zipped(FILES), "set.tar.gz": tarred(FILES), "set.tar.xz": tarred(FILES, "w:xz")}[name]
    (tmp_path / name).write_bytes(whole)
    synced(home, declared(tmp_path, [name]))
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="damaged or cut off") as caught:
        synced(home, declared(tmp_path, [name]))
    assert name in str(caught.value)
    assert len(documents(home)) == 3


def test_one_damaged_document_in_an_archive_is_quarantined(home: Home, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.md", "# The weir\n")
        archive.writestr("b.md", "# The gauge\n")
    data = (tmp_path / "set.zip").read_bytes()
    (tmp_path / "set.zip").write_bytes(data.replace(b"# The weir", b"# The wier", 1))
    synced(home, declared(tmp_path, ["set.zip"]))
    assert list(documents(home)) == ["set.zip!/b.md"]
    assert quarantined(home)["set.zip!/a.md"][0] == "damaged"


def test_an_error_in_a_member_names_the_member_and_no_passing_copy(home: Home, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(zipped({"rows/a.csv": b"id,other\n1,2\n"}))
    with pytest.raises(SourceError) as caught:
        synced(home, declared(tmp_path, [{"path": "set.zip", "columns": {"id": "id", "text": ["body"]}}]))
    assert "set.zip!/rows/a.csv" in str(caught.value)
    assert "georag-member" not in str(caught.value)


def test_a_mixed_folder_is_read_by_suffix_and_told_of_the_rest(home: Home, tmp_path: Path) -> None:
    files = {
        **{f"mixed/{name}": data for name, data in FILES.items()},
        "mixed/rows.jsonl": b'{"id": "r", "body": "ridge"}\n',
        "mixed/more/set.zip": zipped({"z.md": b"# Z\n"}),
        "mixed/photo.png": b"x",
        "mixed/Makefile": b"x",
        "mixed/drafts/d.md": b"# draft\n",
        "mixed/.git/config.md": b"x",
    }
    write_texts(tmp_path, files)
    source = {"columns": {"id": "id", "text": ["body"]}, "exclude": ["drafts/*"]}
    for path in ("mixed", "mixed/**/*"):
        report = synced(home, declared(tmp_path, [{"path": path, **source}]))
        assert sorted(documents(home)) == [
            *("mixed/c.html", "mixed/docs/a.md", "mixed/docs/deep/b.txt", "mixed/more/set.zip!/z.md", "r")
        ]
        assert report.metadata["unknown_files"] == ["mixed/Makefile", "mixed/photo.png"]
        assert quarantined(home) == {}
