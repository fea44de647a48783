"""Sources: each format read exactly; each bad file or record is a clear error or a quarantined row, never a loss."""

from __future__ import annotations

import gzip
import json
import resource
import time
from pathlib import Path

import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from georag_assets.corpus.sources.loader import UnusableError
from georag_assets.corpus.sources.shapes import box_of, shape_of
from georag_assets.errors import SourceError
from georag_assets.home import Home
from georag_assets_tests.corpus.sources import (
    declared,
    documents,
    quarantined,
    synced,
    write_geoparquet,
    write_records,
    write_texts,
)

COLUMNS = {"id": "id", "text": ["body"]}


def records(path: str, **columns: object) -> list[dict[str, object]]:
    return [{"path": path, "columns": COLUMNS | columns}]


def test_markdown_and_text_are_kept_to_the_character(home: Home, tmp_path: Path) -> None:
    texts = {
        "docs/crlf.md": "intro\r\n## The title ##\r\n\r\nBody\rmore\r\n",
        "docs/deep/no heading.txt": "plain\n",
        "docs/bom.md": "\ufeff# Start\n",
    }
    write_texts(tmp_path, texts)
    synced(home, declared(tmp_path, ["docs"]))
    found = documents(home)
    assert {name: document.text for name, document in found.items()} == texts | {"docs/bom.md": "# Start\n"}
    assert [found[name].title for name in texts] == ["The title", "no heading", "Start"]
    assert found["docs/crlf.md"].source == "docs/crlf.md"


def test_a_declared_encoding_is_used_and_a_wrong_one_is_told_by_byte_and_line(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"a.txt": "Zürich\n".encode("cp1252"), "b.txt": "one\ntwo Zürich\n".encode("cp1252")})
    synced(home, declared(tmp_path, [{"path": "a.txt", "encoding": "cp1252"}, {"path": "b.txt"}]))
    assert documents(home)["a.txt"].text == "Zürich\n"
    kind, reason = quarantined(home)["b.txt"]
    assert kind == "wrong_encoding"
    assert "byte 0xfc at offset 9 (line 2) is not utf-8" in reason


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty", "no text"),
        (b" \r\n\t", "empty", "white space"),
        (b"one\ntw\0o", "nul_bytes", "offset 6 (line 2)"),
        (b"\xff\xfeo\0n\0e\0", "wrong_encoding", "0xff"),
    ],
)
def test_a_text_that_is_none(home: Home, tmp_path: Path, content: bytes, kind: str, words: str) -> None:
    write_texts(tmp_path, {"good.md": "# Good", "bad.md": content})
    report = synced(home, declared(tmp_path, ["*.md"]))
    assert report.counts["quarantined"] == 1
    assert list(documents(home)) == ["good.md"]
    assert quarantined(home)["bad.md"][0] == kind
    assert words in quarantined(home)["bad.md"][1]


def test_a_folder_where_a_file_is_meant(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"good.md": "# Good", "folder.md/inside.md": "inside"})
    synced(home, declared(tmp_path, ["*.md"]))
    assert quarantined(home)["folder.md"] == ("not_a_file", "expected a file, found a folder")
    with pytest.raises(SourceError, match=r"folder where a file is meant.*folder\.md"):
        synced(home, declared(tmp_path, ["folder.md"], name="other"))
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(SourceError, match="folder where a file is meant"):
        synced(home, declared(tmp_path, records("records.jsonl"), name="other"))


def test_a_200_mb_file_is_refused_unread(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"good.md": "# Good"})
    with (tmp_path / "huge.md").open("wb") as huge:
        huge.truncate(200 * 2**20)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    synced(home, declared(tmp_path, ["*.md"]))
    assert quarantined(home)["huge.md"] == ("too_large", "209,715,200 bytes; max_document_mb allows 52,428,800")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert time.perf_counter() - started < 10


def test_a_record_of_200_mb_is_refused_and_the_next_ones_are_read(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b'{"id": "a", "body": "first"}\n{"id": "b", "body": "')
        for _ in range(200):
            stream.write(b"x" * 2**20)
        stream.write(b'"}\n{"id": "c", "body": "last"}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    synced(home, declared(tmp_path, records("records.jsonl.gz"), max_document_mb=5))
    assert sorted(documents(home)) == ["a", "c"]
    assert quarantined(home)["records.jsonl.gz:2"][0] == "too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_document_that_is_one_2_mb_polygon_is_a_document(home: Home, tmp_path: Path) -> None:
    ring = ", ".join(f"{number * 1e-5:.6f} {number % 7}" for number in range(170_000))
    text = f"POLYGON (({ring}, 0.000000 0))"
    assert len(text) > 2_000_000
    write_texts(tmp_path, {"polygon.txt": text})
    synced(home, declared(tmp_path, ["polygon.txt"]))
    assert documents(home)["polygon.txt"].text == text


def test_equal_texts_are_different_documents_and_equal_ids_are_not(home: Home, tmp_path: Path) -> None:
    rows = [{"id": "a", "body": "same " * 3}, {"id": "b", "body": "same " * 3}, {"id": "a", "body": "another"}]
    write_records(tmp_path / "r.jsonl", rows)
    report = synced(home, declared(tmp_path, records("r.jsonl")))
    assert report.counts["documents"] == 2
    assert documents(home)["a"].text == "same " * 3
    assert quarantined(home)["r.jsonl:3"] == ("duplicate_id", "id 'a' is taken by r.jsonl:1")


def test_a_record_becomes_a_document_by_its_declared_columns_alone(home: Home, tmp_path: Path) -> None:
    row = {
        "id": 7,
        "title": "A  map\n",
        "body": "Text.",
        "more": None,
        "when": ["2001", "2000-05"],
        "url": "https://example.org/7",
        "rights": "CC-BY-4.0",
        "rev": 3,
        "box": [1, 2, 3, 4],
        "shelf": "B2",
        "secret": "LABEL",
    }
    write_records(tmp_path / "r.jsonl", [row, {**dict.fromkeys(row), "id": "8", "body": "Only text."}])
    columns = {
        "title": "title",
        "text": ["title", "body", "more"],
        "period": "when",
        "url": "url",
        "licence": "rights",
        "revision": "rev",
        "bbox": "box",
        "fields": ["shelf"],
    }
    synced(home, declared(tmp_path, records("r.jsonl", **columns), licence="CC0-1.0", period="1999"))
    found = documents(home)
    full, bare = found["7"], found["8"]
    assert full.text == "A  map\n\n\nText."
    assert (full.title, full.source, full.location) == ("A map", "r.jsonl#7", "r.jsonl:1")
    assert full.period == (957139200.0, 1009843200.0)
    assert (full.licence, full.url, full.revision) == ("CC-BY-4.0", "https://example.org/7", "3")
    assert full.fields == {"shelf": "B2"}
    assert "LABEL" not in repr(full)
    assert full.geometry_wkb is not None
    assert shapely.from_wkb(full.geometry_wkb).bounds == (1, 2, 3, 4)
    assert full.geometry_epsg == 4326
    assert (bare.title, bare.licence, bare.geometry_wkb) == ("8", "CC0-1.0", None)
    assert bare.period == (915148800.0, 946684800.0)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"id": null, "body": "x"}', "missing_id"),
        ('{"id": true, "body": "x"}', "missing_id"),
        ('{"id": 1.5, "body": "x"}', "missing_id"),
        ('{"body": "x"}', "missing_id"),
        ('{"id": "x", "body": ""}', "empty"),
        ('{"id": "x", "body": null}', "empty"),
        ('{"id": "x", "body": {"a": 1}}', "bad_column"),
        ('{"id": "x", "body": "a\\u0000b"}', "nul_bytes"),
        ('{"id": "x", "body": "a\\ud800"}', "wrong_encoding"),
        ('{"id": "x", "body": "b", "box": [NaN, 0, 1, 1]}', "not_json"),
        ('{"id": "x", "body": "b", "box": [0, 5, 1, 1]}', "bad_geometry"),
        ('{"id": "x", "body": "b", "box": [0, 0, 1]}', "bad_geometry"),
        ('{"id": "x", "body": "b", "box": ["a", 0, 1, 1]}', "bad_geometry"),
        ('{"id": "x", "body": "b", "box": [500000, 5000000, 500001, 5000001]}', "bad_geometry"),
        ('{"id": "x", "body": "b", "box": [' + "9" * 400 + ", 0, 1, 1]}", "bad_geometry"),
        ('{"id": "x", "body": "b", "box": ["\\ud800", 0, 1, 1]}', "bad_geometry"),
        ('{"id": "x\\ud800", "body": "b"}', "wrong_encoding"),
        ('{"id": "x", "body": "b", "name": "a\\ud800"}', "wrong_encoding"),
        ('{"id": "x", "body": "b", "when": 1588291200}', "bad_period"),
        ('{"id": "x", "body": "b", "when": "von 1950 bis 1960"}', "bad_period"),
        ('{"id": "x", "body": "b", "when": "19th century"}', "bad_period"),
        ("[1, 2]", "not_json"),
        ("{not json", "not_json"),
        ("[" * 100_000, "not_json"),
    ],
)
def test_a_bad_record_is_quarantined_and_the_others_are_kept(home: Home, tmp_path: Path, line: str, kind: str) -> None:
    good = '{"id": "good", "body": "text", "box": null, "when": null, "name": null}\n'
    (tmp_path / "r.jsonl").write_text(f"{good}\n{line}\n")
    synced(home, declared(tmp_path, records("r.jsonl", bbox="box", period="when", title="name")))
    assert list(documents(home)) == ["good"]
    assert quarantined(home)["r.jsonl:3"][0] == kind


def test_an_unreadable_period_may_be_left_out_by_declaration(home: Home, tmp_path: Path) -> None:
    write_records(tmp_path / "r.jsonl", [{"id": "a", "body": "x", "when": ["19th century", "1850"]}])
    synced(home, declared(tmp_path, records("r.jsonl", period="when", unreadable_period="ignore")))
    assert documents(home)["a"].period == (-3786825600.0, -3755289600.0)


def test_a_column_that_no_record_has_is_an_error_that_names_those_there_are(home: Home, tmp_path: Path) -> None:
    write_records(tmp_path / "r.jsonl", [{"id": "a", "body": "x"}, {"id": "b", "body": "y"}])
    with pytest.raises(SourceError, match=r"declared column missing: abstract.*r\.jsonl.*found: body, id"):
        synced(home, declared(tmp_path, records("r.jsonl", text=["body", "abstract"])))
    write_texts(tmp_path, {"r.csv": "id,body\na,x\n"})
    with pytest.raises(SourceError, match=r"declared column missing: abstract.*r\.csv"):
        synced(home, declared(tmp_path, records("r.csv", text=["abstract"])))
    write_geoparquet(tmp_path / "r.parquet", {"id": ["a"]}, [None])
    with pytest.raises(SourceError, match=r"declared column missing: body.*r\.parquet"):
        synced(home, declared(tmp_path, records("r.parquet")))
    assert documents(home) == {}


def test_records_met_in_a_folder_of_texts_need_columns(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"docs/a.md": "text", "docs/r.jsonl": '{"id": 1}\n'})
    with pytest.raises(SourceError, match=r"declares no columns.*r\.jsonl"):
        synced(home, declared(tmp_path, ["docs"]))
    assert documents(home) == {}


def test_a_cut_off_or_damaged_archive_changes_nothing(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    lines = "".join(json.dumps({"id": str(number), "body": f"text {number * 7919}"}) + "\n" for number in range(2_000))
    whole = gzip.compress(lines.encode())
    path.write_bytes(whole)
    synced(home, declared(tmp_path, records("r.jsonl.gz")))
    for broken in (whole[: len(whole) // 2], b"no gzip", whole[:100] + b"\0" * 50 + whole[150:]):
        path.write_bytes(broken)
        with pytest.raises(SourceError, match=r"damaged or cut off.*r\.jsonl\.gz"):
            synced(home, declared(tmp_path, records("r.jsonl.gz")))
        assert len(documents(home)) == 2_000


def test_csv_keeps_line_ends_in_quotes_finds_its_delimiter_and_refuses_ragged_rows(home: Home, tmp_path: Path) -> None:
    table = '\ufeffid;body;w;s;e;n\r\na;"one\r\ntwo; three";1;2;3;4\r\nb;x\r\n\r\nc;Zürich;;;;\r\n'
    content = table.encode() + b"d;\xff;1;2;3;4\r\n"
    (tmp_path / "t.csv").write_bytes(content)
    synced(home, declared(tmp_path, records("t.csv", bbox=["w", "s", "e", "n"])))
    found = documents(home)
    assert {name: document.text for name, document in found.items()} == {"a": "one\r\ntwo; three", "c": "Zürich"}
    assert found["a"].location == "t.csv:2"
    assert found["c"].geometry_wkb is None
    kinds = {location: kind for location, (kind, _) in quarantined(home).items()}
    assert kinds == {"t.csv:4": "ragged_row", "t.csv:7": "wrong_encoding"}


def test_csv_that_cannot_be_read_on_is_an_error(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"t.csv": 'id,body\na,"never closed\nb,x\n', "empty.csv": ""})
    with pytest.raises(SourceError, match=r"cannot be read on.*t\.csv:2.*unclosed quote"):
        synced(home, declared(tmp_path, records("t.csv")))
    with pytest.raises(SourceError, match="the table is empty"):
        synced(home, declared(tmp_path, records("empty.csv")))


def test_geoparquet_records_state_their_frame(home: Home, tmp_path: Path) -> None:
    rows = {"id": ["a", "b", "c", "d"], "body": ["A", "B", "C", "D"]}
    bow = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])
    write_geoparquet(tmp_path / "r.parquet", rows, [shapely.Point(5, 6), bow, shapely.Point(), b"\x01junk"], 25832)
    synced(home, declared(tmp_path, records("r.parquet")))
    found = documents(home)
    assert found["a"].geometry_epsg == 25832
    assert found["a"].geometry_evidence == "GeoParquet metadata of r.parquet: EPSG:25832 x"
    assert found["b"].geometry_flags == ("made_valid",)
    assert found["c"].geometry_wkb is None
    assert quarantined(home)["r.parquet:4"][0] == "bad_geometry"


@pytest.mark.parametrize(("crs", "epsg"), [(..., 4326), (None, None), (2056, 2056), ({"name": "local grid"}, None)])
def test_the_frame_of_a_sidecar_is_the_one_its_file_states(
    home: Home, tmp_path: Path, crs: object, epsg: int | None
) -> None:
    write_texts(tmp_path, {"a.md": "# A"})
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a"]}, [shapely.box(1, 2, 3, 4)], crs)
    synced(home, declared(tmp_path, ["*.md"], geometry={"sidecar": "s.parquet"}))
    assert documents(home)["a.md"].geometry_epsg == epsg


def test_a_sidecar_and_a_declaration_that_state_two_frames(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"a.md": "# A"})
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a"]}, [shapely.box(1, 2, 3, 4)], 2056)
    with pytest.raises(SourceError, match=r"expected: EPSG:4326.*found: EPSG:2056"):
        synced(home, declared(tmp_path, ["*.md"], geometry={"sidecar": "s.parquet", "epsg": 4326}))
    with pytest.raises(SourceError, match=r"Parquet file cannot be read.*none\.parquet"):
        synced(home, declared(tmp_path, ["*.md"], geometry={"sidecar": "none.parquet"}))
    with pytest.raises(SourceError, match="column missing: key"):
        synced(home, declared(tmp_path, ["*.md"], geometry={"sidecar": "s.parquet", "id": "key"}))


def test_a_sidecar_counts_what_does_not_join_and_its_bad_rows_are_quarantined(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {f"{name}.md": f"# {name}" for name in "abcde"})
    nan = shapely.from_wkb(shapely.to_wkb(shapely.Point(float("nan"), 1)))
    shapes = [shapely.box(0, 0, 1, 1), nan, shapely.Point(1, 1), shapely.Point(2, 2), None, shapely.Point(3, 3)]
    write_geoparquet(tmp_path / "s.parquet", {"id": ["a", "b", "c", "c", "d", "z"]}, shapes, 4326)
    report = synced(home, declared(tmp_path, ["*.md"], geometry={"sidecar": "s.parquet"}))
    found = documents(home)
    assert found["a.md"].feature_ids == ("a",)
    assert found["d.md"].geometry_wkb is None
    assert sorted(found) == ["a.md", "d.md", "e.md"]
    kinds = {location: kind for location, (kind, _) in quarantined(home).items()}
    assert kinds == {"b.md:1": "bad_geometry", "c.md:1": "bad_geometry"}
    assert report.metadata["documents_without_sidecar_row"] == 1
    assert report.metadata["sidecar_rows_without_document"] == 1
    assert report.metadata["unjoined"] == {"documents": ["e.md"], "rows": ["z"]}


@pytest.mark.parametrize(
    ("box", "bounds", "flags"),
    [
        ([170, -20, -170, -10], (170, -20, 190, -10), ("wrapped_box",)),
        ([10, 40, 6, 50], (10, 40, 366, 50), ("wrapped_box", "belt_box")),
        ([-180, -90, 180, 90], (-180, -90, 180, 90), ()),
        ([7, 47, 7, 47], (7, 47, 7, 47), ()),
        ([7, 47, 8, 47], (7, 47, 8, 47), ()),
        ([190, 0, 200, 1], (-170, 0, -160, 1), ()),
        ([1, 2, -50, 3, 4, 900], (1, 2, 3, 4), ()),
        ("1, 2, 3, 4", (1, 2, 3, 4), ()),
    ],
)
def test_a_box_means_what_rfc_7946_says(box: object, bounds: tuple[float, ...], flags: tuple[str, ...]) -> None:
    shape = box_of(box, None, "bbox")
    assert shape is not None
    assert shapely.from_wkb(shape.wkb).bounds == bounds
    assert shape.flags == flags
    assert shape.epsg == 4326


@given(st.lists(st.floats() | st.integers(-(10**6), 10**6) | st.none() | st.text(max_size=3), max_size=7))
def test_any_box_is_a_shape_of_finite_degrees_or_refused(values: list[object]) -> None:
    try:
        shape = box_of(values, None, "bbox")
    except UnusableError:
        return
    if shape is not None:
        west, south, east, north = shapely.from_wkb(shape.wkb).bounds
        assert -180 <= west <= 180
        assert west <= east <= west + 720
        assert -90 <= south <= north <= 90


@pytest.mark.parametrize(
    ("value", "epsg"),
    [
        ("POINT (1 2)", 2056),
        ("SRID=4326;POINT (1 2)", 4326),
        ('{"type": "Point", "coordinates": [1, 2]}', 4326),
        ({"type": "Point", "coordinates": [1, 2]}, 4326),
        (shapely.to_wkb(shapely.Point(1, 2)), 2056),
        (shapely.to_wkb(shapely.set_srid(shapely.Point(1, 2), 3857), include_srid=True), 3857),
        (shapely.to_wkb(shapely.Point(1, 2), hex=True), 2056),
    ],
)
def test_a_geometry_value_states_its_frame_or_takes_the_declared_one(value: object, epsg: int) -> None:
    shape = shape_of(value, 2056, "declared frame of the corpus", "geom")
    assert shape is not None
    assert shapely.from_wkb(shape.wkb) == shapely.Point(1, 2)
    assert shape.epsg == epsg


@pytest.mark.parametrize(
    "value",
    [
        "POINT (1",
        "{",
        {"type": "Nothing"},
        b"\x00",
        7,
        "POINT (nan 1)",
        "SRID=x;POINT (1 2)",
        "SRID=99999999999999999999;POINT (1 2)",
        "SRID=-5;POINT (1 2)",
    ],
)
def test_a_geometry_value_that_cannot_be_read(value: object) -> None:
    with pytest.raises(UnusableError):
        shape_of(value, None, None, "geom")


def test_records_in_a_list_inside_each_line(home: Home, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"question": "Where?", "passages": [{"id": "a", "body": "North."}, {"id": "b", "body": "South."}]},
        {"question": "When?", "passages": []},
        {"question": "Who?", "passages": [{"id": "a", "body": "A second a."}]},
        {"question": "Which?", "passages": ["no record"]},
        {"question": "Why?"},
    ]
    write_records(tmp_path / "asked.jsonl", lines)
    report = synced(home, declared(tmp_path, [{**records("asked.jsonl")[0], "records": "passages"}]))
    assert {name: document.text for name, document in documents(home).items()} == {"a": "North.", "b": "South."}
    assert report.counts["quarantined"] == 3
    assert quarantined(home)["asked.jsonl:3"] == ("duplicate_id", "id 'a' is taken by asked.jsonl:1")
    assert quarantined(home)["asked.jsonl:4"] == ("bad_column", "passages: expected a JSON object, found str")
    assert quarantined(home)["asked.jsonl:5"] == ("bad_column", "passages: expected a list of records, found NoneType")


def test_a_source_states_the_licence_of_its_documents(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"de/a.md": "Gesetz", "fr/b.md": "Loi"})
    sources = [{"path": "de/*.md", "licence": "public domain"}, "fr/*.md"]
    synced(home, declared(tmp_path, sources, licence="etalab-2.0"))
    assert [document.licence for _, document in sorted(documents(home).items())] == ["public domain", "etalab-2.0"]
