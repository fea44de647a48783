"""Sources behind an address: S3 and the web, by local servers, any fsspec file system; and their faults."""

from __future__ import annotations

import functools
import http.server
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pyogrio
import pytest
import shapely
from geopandas import GeoDataFrame
from moto.server import ThreadedMotoServer

from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.source_state import source_state
from georag_assets.corpus.sources import remote
from georag_assets.errors import DeclarationError, RemovalThresholdError, SourceError
from georag_assets.home import Home
from georag_assets.operations.pipeline import build_corpus
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets_tests.corpus.sources import declared, documents, quarantined, synced
from georag_assets_tests.small_corpora import texts

SECRET = "a-secret-that-is-told-nowhere"


@dataclass
class Bucket:
    """A bucket of the local S3 server."""

    client: Any
    name: str = "maps"

    def put(self, key: str, body: bytes | str) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="maps", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield Bucket(client)
    for found in client.list_objects_v2(Bucket="maps").get("Contents", []):
        client.delete_object(Bucket="maps", Key=found["Key"])
    client.delete_bucket(Bucket="maps")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remote, "_LONGEST_WAIT_S", 0.05)


def zipped(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


# --- S3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("s3://maps/docs", ["docs/a.md", "docs/deep/b.txt"]),
        ("s3://maps/docs/", ["docs/a.md", "docs/deep/b.txt"]),
        ("s3://maps/docs/*.md", ["docs/a.md"]),
        ("s3://maps/docs/**/*.txt", ["docs/deep/b.txt"]),
        ("s3://maps/**/*.md", ["maps/docs/a.md"]),
        ("s3://maps/docs/a.md", ["a.md"]),
    ],
)
def test_a_bucket_is_listed_like_a_folder(
    home: Home, tmp_path: Path, bucket: Bucket, url: str, names: list[str]
) -> None:
    for key, body in {"docs/a.md": "# A\n", "docs/deep/b.txt": "b\n", "docs/p.png": "x", "docs/.x.md": "# x\n"}.items():
        bucket.put(key, body)
    report = synced(home, declared(tmp_path, [url]))
    assert sorted(documents(home)) == names
    assert report.metadata["documents_by_source"] == {url: len(names)}


def test_records_archives_and_map_layers_come_from_a_bucket(home: Home, tmp_path: Path, bucket: Bucket) -> None:
    columns = {"id": "id", "text": ["body"]}
    frame = GeoDataFrame({"id": ["w1"], "body": ["well"]}, geometry=[shapely.Point(7.5, 47.5)], crs=4326)
    pyogrio.write_dataframe(frame, tmp_path / "wells.shp")
    for path in tmp_path.glob("wells.*"):
        bucket.put(f"gis/{path.name}", path.read_bytes())
    bucket.put("rows.jsonl", '{"id": "r1", "body": "ridge"}\n')
    bucket.put("set.zip", zipped({"in/z.md": "# Z\n"}))
    urls = ["s3://maps/rows.jsonl", "s3://maps/gis/*.shp"]
    synced(home, declared(tmp_path, [*({"url": url, "columns": columns} for url in urls), "s3://maps/set.zip"]))
    found = documents(home)
    assert sorted(found) == ["r1", "set.zip!/in/z.md", "w1"]
    assert found["w1"].geometry_epsg == 4326


def test_the_state_of_a_bucket_changes_with_its_contents_alone(tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("docs/a.md", "# A\n")
    declaration = declared(tmp_path, ["s3://maps/docs/*.md"])
    first = source_state(declaration)
    assert source_state(declaration) == first
    bucket.put("docs/a.md", "# B\n")  # as long as before
    second = source_state(declaration)
    bucket.put("docs/c.md", "# C\n")
    assert len({first, second, source_state(declaration)}) == 3


def test_an_empty_or_missing_bucket_never_means_that_documents_are_gone(
    home: Home, tmp_path: Path, bucket: Bucket
) -> None:
    declaration = declared(tmp_path, ["s3://maps/docs/*.md"])
    with pytest.raises(SourceError, match="matches no file"):
        synced(home, declaration)
    for name in "abc":
        bucket.put(f"docs/{name}.md", f"# {name}\n")
    synced(home, declaration)
    for name in "abc":
        bucket.remove(f"docs/{name}.md")
    with pytest.raises(RemovalThresholdError, match="would remove 3 of 3"):
        synced(home, declaration)
    for url in ("s3://nothere/docs/*.md", "s3://nothere/docs", "s3://maps/nothere"):
        with pytest.raises((SourceError, RemovalThresholdError)) as caught:
            synced(home, declared(tmp_path, [url]))
        assert url in str(caught.value)
    assert len(documents(home)) == 3


def test_a_file_that_leaves_between_listing_and_reading_is_an_error_and_no_removal(
    home: Home, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdefgh":
        bucket.put(f"docs/{name}.md", f"# {name}\n")
    declaration = declared(tmp_path, ["s3://maps/docs/*.md"])
    synced(home, declaration)
    fetch = remote.fetch

    def late(source: Any, listed: Any, folder: Path) -> Path:
        bucket.remove("docs/c.md")
        return fetch(source, listed, folder)

    monkeypatch.setattr(remote, "fetch", late)
    with pytest.raises(SourceError, match="not there"):
        synced(home, declaration)
    assert len(documents(home)) == 8


def test_credentials_are_told_nowhere(
    home: Home, tmp_path: Path, bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    bucket.put("docs/a.md", "# A\n")
    report = synced(home, declared(tmp_path, ["s3://maps/docs/*.md"]))
    assert SECRET not in repr(report)
    with pytest.raises(RemovalThresholdError) as caught:
        synced(home, declared(tmp_path, ["s3://maps/nothere.md"]))
    assert SECRET not in str(caught.value)
    written = [path for path in home.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert written == []
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.parametrize("address", ["s3://id:secret@maps/docs", "https://user:secret@host/a.md"])
def test_credentials_in_an_address_are_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(DeclarationError, match="without user and password"):
        declared(tmp_path, [address])


def test_a_zip_on_s3_becomes_a_live_index_that_answers(
    tmp_path: Path, fresh_home: Callable[[Path], Home], bucket: Bucket
) -> None:
    """From the archive in a bucket to evidence, through every stage; a second run does nothing."""
    bucket.put("corpora/places.zip", zipped({f"docs/{name}": text for name, text in texts().items()}))
    (tmp_path / "defs.yaml").write_text(
        "type: georag_assets.components.Corpus\n"
        "attributes: {name: places, sources: ['s3://maps/corpora/*.zip'], licence: CC0-1.0}\n",
        encoding="utf-8",
    )
    home = fresh_home(tmp_path / "home")
    declaration = load_declaration(tmp_path / "defs.yaml")
    reports = build_corpus(home, declaration)
    assert reports[-1].stage == "live_index"
    assert reports[-1].counts["points"] == 6
    with Retriever(home, ["places"]) as retriever:
        answer = retriever.search(Question(text="fault full of groundwater", bbox=(8.0, 46.0, 9.0, 47.0)))
    assert answer.candidates[0].doc_id == "corpora/places.zip!/docs/tunnel.md"
    again = build_corpus(home, declaration)
    assert {report.stage: report.counts.get("new", 0) for report in again}["documents"] == 0
    assert again[-1].counts["promoted"] == 0


# --- the web ------------------------------------------------------------------------------------------------------


@dataclass
class Web:
    """A web server over a folder, with faults to order."""

    url: str
    folder: Path
    faults: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "www"
    folder.mkdir()
    state = Web("", folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send_head(self) -> Any:
            path = self.path.split("?")[0]
            state.asked.append(self.path)
            if self.command == "GET" and state.faults.get(path):
                self.send_response(status := state.faults[path].pop(0))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None
            return super().send_head()

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{listener.server_address[1]}"
    yield state
    listener.shutdown()
    listener.server_close()
    thread.join()


def test_a_page_an_archive_and_a_listing_come_from_the_web(home: Home, tmp_path: Path, web: Web) -> None:
    (web.folder / "docs").mkdir()
    for name in ("a.md", "b.md", "c.txt"):
        (web.folder / "docs" / name).write_text(f"# {name}\n")
    (web.folder / "set.zip").write_bytes(zipped({"z.md": "# Z\n"}))
    synced(home, declared(tmp_path, [f"{web.url}/docs/*.md", f"{web.url}/set.zip", f"{web.url}/docs/c.txt"]))
    assert sorted(documents(home)) == ["c.txt", "docs/a.md", "docs/b.md", "set.zip!/z.md"]


def test_the_query_of_an_address_is_used_and_never_told(home: Home, tmp_path: Path, web: Web) -> None:
    (web.folder / "a.md").write_text("# A\n")
    address = f"{web.url}/a.md?signature={SECRET}"
    report = synced(home, declared(tmp_path, [address]))
    assert any(SECRET in path for path in web.asked)
    assert documents(home)["a.md"].source == "a.md"
    assert SECRET not in repr(report)
    (web.folder / "a.md").unlink()
    with pytest.raises((SourceError, RemovalThresholdError)) as caught:
        synced(home, declared(tmp_path, [address]))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("statuses", [[503], [429, 502], [500, 500, 503, 504]])
def test_what_passes_is_tried_again(home: Home, tmp_path: Path, web: Web, statuses: list[int]) -> None:
    (web.folder / "a.md").write_text("# A\n")
    web.faults["/a.md"] = statuses
    synced(home, declared(tmp_path, [f"{web.url}/a.md"]))
    assert list(documents(home)) == ["a.md"]


def test_what_does_not_pass_ends_with_how_often_it_was_tried(home: Home, tmp_path: Path, web: Web) -> None:
    (web.folder / "a.md").write_text("# A\n")
    web.faults["/a.md"] = [503] * 100
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        synced(home, declared(tmp_path, [f"{web.url}/a.md"]))
    assert "503" in str(caught.value)
    assert f"tried {remote.ATTEMPTS} times" in str(caught.value)


def test_a_refusal_is_not_tried_again(home: Home, tmp_path: Path, web: Web) -> None:
    (web.folder / "a.md").write_text("# A\n")
    web.faults["/a.md"] = [403] * 100
    with pytest.raises(SourceError, match="may not be read"):
        synced(home, declared(tmp_path, [f"{web.url}/a.md"]))
    assert len(web.faults["/a.md"]) > 95


def test_a_server_that_is_away_is_told_by_its_address(home: Home, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        synced(home, declared(tmp_path, ["http://127.0.0.1:9/a.md"]))
    assert "http://127.0.0.1:9/a.md" in str(caught.value)


# --- any other file system ----------------------------------------------------------------------------------------


def test_any_file_system_of_fsspec_is_a_source(home: Home, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.md").write_text("# A\n")
    synced(home, declared(tmp_path, [f"file://{tmp_path}/far/*.md"]))
    assert list(documents(home)) == ["far/a.md"]


@pytest.mark.parametrize(("url", "says"), [("gs://maps/a.md", "georag-assets[gs]"), ("nosuch://maps/a.md", "address")])
def test_a_file_system_that_is_not_installed_says_what_to_install(
    home: Home, tmp_path: Path, url: str, says: str
) -> None:
    with pytest.raises(SourceError) as caught:
        synced(home, declared(tmp_path, [url]))
    assert says in str(caught.value)


def test_a_damaged_remote_file_is_named_by_its_address(home: Home, tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("rows.csv", "id,other\n1,2\n")
    source = {"url": "s3://maps/rows.csv", "columns": {"id": "id", "text": ["body"]}}
    with pytest.raises(SourceError) as caught:
        synced(home, declared(tmp_path, [source]))
    assert "s3://maps/rows.csv" in str(caught.value)
    assert "georag-source" not in str(caught.value)


def test_a_bad_remote_document_is_quarantined(home: Home, tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("docs/a.md", "# A\n")
    bucket.put("docs/b.md", b"\xff\xfe nothing")
    synced(home, declared(tmp_path, ["s3://maps/docs/*.md"]))
    assert list(documents(home)) == ["docs/a.md"]
    assert list(quarantined(home)) == ["docs/b.md"]
