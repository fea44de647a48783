"""The command line as a caller meets it: exit codes, JSON fields, one line of error, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georag_assets import cli
from georag_assets.home import Home
from georag_assets_tests.small_corpora import declare

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TEXT = (
    "# Pit\r\n\r\nThe gravel pit was opened in 1953 and reaches the water table.\r\n\r\n"
    "Its boundary is SRID=4326;POLYGON ((7 46, 7.1 46, 7.1 46.1, 7 46)) as surveyed.\r\n\r\n"
    "# History\r\n\r\nIt was closed after a slide and is a pond today.\r\n"
)
WKT = "POLYGON ((7 46, 7.1 46, 7.1 46.1, 7 46))"


@pytest.fixture(scope="module")
def georag(tmp_path_factory: pytest.TempPathFactory, fresh_home: Callable[[Path], Home]) -> Run:
    """Return a function that runs `georag` in a home where one small corpus is live."""
    folder = tmp_path_factory.mktemp("cli")
    home = fresh_home(folder / "home").root
    declare(folder / "corpora", "small")
    environment = {
        **os.environ,
        "GEORAG_HOME": str(home),
        "GEORAG_DECLARATIONS": str(folder / "corpora"),
        "HF_HUB_OFFLINE": "1",
    }

    (folder / "text.md").write_bytes(TEXT.encode())
    (folder / "binary.txt").write_bytes(b"nul \0 here")
    (folder / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    queries = [
        {"query": "fault full of groundwater", "relevant": ["docs/tunnel.md"], "bbox": [8.7, 46.5, 8.8, 46.6]},
        {"query": "cherry trees", "relevant": ["docs/orchard.md"], "bbox": [7, 47, 9, 48], "class": "wide"},
    ]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")

    run_environment.update(environment)
    run_environment["cwd"] = str(folder)

    def run(
        *arguments: str, stdin: str | None = None, code: str | None = None, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code] if code else [sys.executable, "-m", "georag_assets.cli", *arguments],
            env={**environment, **settings},
            input=stdin,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=120,
        )

    built = run("build", "small", "--json")
    assert built.returncode == 0, built.stderr
    stages = [json.loads(line) for line in built.stdout.splitlines()]
    assert [stage["stage"] for stage in stages][-1] == "live_index"
    assert not any(stage["blocked"] for stage in stages)
    return run


run_environment: dict[str, str] = {}


@pytest.fixture
def here(
    georag: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Return a function that runs `georag` in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(run_environment["cwd"])
    for name, value in run_environment.items():
        if name.startswith("GEORAG_"):
            monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["georag", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code, *capsys.readouterr())

    return run


def parsed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Missing command"),
        (("nosuch",), 2, "nosuch"),
        (("search",), 2, "QUESTION"),
        (("search", "x", "--bbox", "1,2"), 2, "--bbox"),
        (("search", "x", "--bbox", "7,47,8,46"), 2, "south"),
        (("search", "x", "--bbox", "nan,46,8,47"), 2, "finite"),
        (("search", "x", "--near", "8,47", "--radius", "-5"), 2, "radius"),
        (("search", "x", "--near", "8,47", "--radius", "inf"), 2, "radius"),
        (("search", "x", "--near", "8,99"), 2, "latitude"),
        (("search", "x", "--near", "8,47", "--bbox", "7,46,8,47"), 2, "one place"),
        (("search", "x", "-k", "0"), 2, "k is out of bounds"),
        (("search", "x", "-k", "many"), 2, "-k"),
        (("search", " "), 2, "empty"),
        (("search", "x" * 3000), 2, "too long"),
        (("search", "x", "--from", "31.02.2020"), 2, "--from"),
        (("search", "x", "--from", "2020", "--to", "31.02.2021"), 2, "--to"),
        (("search", "x", "--radius", "500"), 2, "radius needs"),
        (("search", "half \udced"), 2, "Unicode"),
        (("search", "x", "--place", "half \udced"), 2, "Unicode"),
        (("search", "x", "--without", "luck"), 2, "signal"),
        (("search", "x", "--corpus", "../../etc"), 2, "name"),
        (("search", "x", "--corpus", "other"), 1, "live"),
        (("search", "x", "--place", "Xyzzyplugh"), 1, "gazetteer"),
        (("search", "x", "--place", "Springfield"), 1, "readings"),
        (("chunk", "nosuch.txt"), 1, "nosuch.txt"),
        (("chunk", "."), 1, "folder"),
        (("geometries", "binary.txt"), 1, "NUL"),
        (("geometries", "latin.txt"), 1, "UTF-8"),
        (("chunk", "a.txt", "--unit", "page"), 2, "--unit"),
        (("evaluate", "nosuch.jsonl"), 1, "nosuch.jsonl"),
        (("build", "other"), 2, "declared"),
        (("build", "nosuch.yaml"), 1, "nosuch.yaml"),
        (("rollback", "other"), 1, "other"),
        (("rollback", "small"), 1, "earlier"),
        (("rollback", "small", "--to", "../.."), 1, "build"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(georag, here, arguments, code, says):
    # In this process, because thirty starts of Python take longer than the rest of the suite.
    ended, out, err = here(*arguments)
    assert ended == code, err
    assert says.lower() in err.lower()
    assert err.count("\n") == 1 and "Traceback" not in err
    assert out == ""


def test_an_unforeseen_error_is_a_line_that_says_where(here, monkeypatch):
    monkeypatch.setattr("georag_assets.operations.status.status", lambda *_: 1 / 0)
    ended, out, err = here("status")
    assert (ended, out) == (1, "") and err.count("\n") == 1
    assert "ZeroDivisionError at test_cli.py" in err


def test_a_setting_that_cannot_be_used_is_named(georag):
    done = georag("status", GEORAG_KEEP_BUILDS="three")
    assert done.returncode == 1 and "GEORAG_KEEP_BUILDS" in done.stderr and done.stderr.count("\n") == 1


def test_geometries_from_standard_input(georag):
    (found,) = lines(georag("geometries", "-", stdin=f"é SRID=4326;{WKT} ends"))
    assert found.keys() == {"start", "end", "kind", "literal", "wkt", "epsg", "flags"}
    assert (found["start"], found["epsg"], found["wkt"]) == (2, 4326, WKT)


def test_a_literal_without_frame_is_assumed_and_says_so(georag):
    (found,) = lines(georag("geometries", "-", stdin=WKT))
    assert found["epsg"] is None and "assumed_wgs84" in found["flags"]


def test_text_commands_need_no_home(georag, tmp_path):
    away = {"GEORAG_HOME": str(tmp_path / "none")}
    assert lines(georag("geometries", "-", stdin=WKT, **away))
    assert parsed(georag("frame", "-", stdin=f"{WKT} in EPSG:2056", **away))
    assert lines(georag("chunk", "text.md", **away))
    assert not (tmp_path / "none").exists()


def test_chunk_covers_the_file_and_says_what_each_chunk_is(georag):
    chunks = lines(georag("chunk", "text.md", "--unit", "section", "--budget", "64"))
    fields = {"chunk_id", "doc_id", "start", "end", "text", "unit", "flags", "feature_ids", "epsg", "frame", "extent"}
    assert all(chunk.keys() == fields | {"period", "geometries"} for chunk in chunks)
    assert "".join(chunk["text"] for chunk in chunks) == TEXT
    (located,) = [chunk for chunk in chunks if chunk["geometries"]]
    assert located["extent"] == [7, 46, 7.1, 46.1]
    assert located["epsg"] == 4326 and located["frame"]["grade"] == "measured"


def test_frame_gives_its_evidence(georag):
    frame = parsed(georag("frame", "-", stdin=f"{WKT} in EPSG:4326"))
    assert {"epsg", "authority", "confidence", "grade", "evidence", "accuracy_m", "note"} <= frame.keys()
    assert frame["epsg"] == 4326 and frame["evidence"]


def test_frame_beside_a_place_shows_swapped_axes(georag):
    place = parsed(georag("frame", "-", "--place", "Bern", stdin="SRID=4326;POINT (46.95 7.44)"))["place"]
    assert place["distance_m_axes_swapped"] < 10_000 < place["distance_m"]


def test_search_in_a_region(georag):
    answer = parsed(georag("search", "groundwater in a fault", "--near", "8.73,46.53", "--json"))
    assert answer["mode"] == "region" and answer["region"]["radius_m"] == 5000
    assert {"corpora", "candidates", "staleness", "versions", "timings_ms", "settings"} <= answer.keys()
    (found,) = answer["candidates"]
    assert found["doc_id"] == "docs/tunnel.md" and found["distance_m"] == 0
    assert {"semantic", "lexical", "fused", "fit", "proximity", "score"} <= found["scores"].keys()
    assert found["ranks"]["final"] == 1 and found["frame"]["grade"] == "measured"
    assert found["corpus_version"] == answer["versions"]["small"]["corpus_version"]
    assert answer["staleness"]["small"]["version_lag"] == 0


def test_search_without_a_place_says_so(georag):
    answer = parsed(georag("search", "peat drains slowly", "--json", "-k", "2"))
    assert answer["mode"] == "text_only" and answer["region"] is None and "text-only" in answer["notes"][0]
    assert answer["candidates"][0]["doc_id"] == "docs/marsh.md"
    assert all(found["scores"]["fit"] is None for found in answer["candidates"])


def test_the_top_k_is_the_beginning_of_the_top_more(georag):
    three = parsed(georag("search", "river level", "--bbox", "7,46,9,48", "--json", "-k", "3"))["candidates"]
    five = parsed(georag("search", "river level", "--bbox", "7,46,9,48", "--json", "-k", "5"))["candidates"]
    assert [found["chunk_id"] for found in three] == [found["chunk_id"] for found in five[:3]]


def test_each_signal_can_be_switched_off(georag):
    answer = parsed(georag("search", "river", "--bbox", "7,46,9,48", "--json", "--without", "lexical"))
    assert answer["settings"]["lexical"] == 0
    assert all("lexical" not in found["scores"] for found in answer["candidates"])


def test_a_corpus_named_twice_is_searched_once(georag):
    answer = parsed(georag("search", "weir", "--corpus", "small", "--corpus", "small", "--json"))
    assert [used["corpus"] for used in answer["corpora"]] == ["small"]


def test_search_prints_for_people_too(georag):
    done = georag("search", "groundwater", "--near", "8.73,46.53")
    assert done.returncode == 0 and "docs/tunnel.md" in done.stdout and "EPSG:4326 measured" in done.stdout


def test_a_first_answer_imports_neither_torch_nor_the_catalog(georag, tmp_path):
    code = (
        "import sys, atexit\n"
        "from georag_assets import cli\n"
        "heavy = ('torch', 'sentence_transformers', 'geopandas', 'pyiceberg', 'pandas', 'dagster')\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))\n"
        "sys.argv = ['georag', 'search', 'groundwater', '--near', '8.73,46.53', '--json']\n"
        "cli.main()\n"
    )
    done = georag(code=code)
    assert done.returncode == 0 and done.stderr.strip() == "[]"


def test_status_has_every_number(georag):
    (small,) = parsed(georag("status", "--json"))["corpora"]
    assert (small["corpus"], small["state"], small["version_lag"], small["documents"]) == ("small", "live", 0, 6)
    assert small["index_age_seconds"] > 0 and small["quarantine_rate"] == 0 and small["failed_checks"] == []
    assert small["checks"]["filtered_recall"] is True and small["live_build"].startswith(small["newest_version"])


def test_a_corpus_that_is_declared_and_never_built_is_no_zero(georag, tmp_path):
    (small,) = parsed(georag("status", "--json", GEORAG_HOME=str(tmp_path / "fresh")))["corpora"]
    assert small["state"] == "never_built"
    assert small["index_age_seconds"] is None and small["quarantine_rate"] is None and small["version_lag"] is None


def test_evaluate_gives_figures_by_class_and_signal(georag):
    report = parsed(georag("evaluate", "queries.jsonl", "--k", "3", "--corpus", "small", "--json"))
    assert {"recall_at_k", "mrr", "ndcg_at_10", "by_class", "per_signal"} <= report.keys()
    assert report["recall_at_k"] == 1 and report["queries"] == 2
    assert report["per_signal"]["lexical"]["queries"] == 2


def test_two_wrong_declarations_are_told_at_once(georag, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "defs.yaml").write_text(
            f"type: georag_assets.components.Corpus\nattributes:\n  name: {name}\n  source: [x]\n", encoding="utf-8"
        )
    done = georag("status", GEORAG_DECLARATIONS=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"a{os.sep}defs.yaml" in done.stderr and f"b{os.sep}defs.yaml" in done.stderr
