"""Every text set of the real data, whole: documents in are indexed, quarantined or removed, and none is lost.

`python -m benchmarks.corpora [--json] [--quick] [--only NAME]`. Documents in are counted here by other means than the
loaders': files by `glob`, records by lines. Those indexed are read from the live build, those quarantined from their
table, and each of those is printed with its reason, for a person to accept or not. After the build one document of each
set is taken out of a copy of its source, and must be counted as removed.

What belongs here: that account, and what a set became. What does not: how good the answers are (`georag evaluate`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.report import Report, data_folder, run
from georag_assets.corpus.declaration import CorpusDeclaration, Source, load_declaration
from georag_assets.corpus.models import CHUNKS, QUARANTINE
from georag_assets.definitions import OWN_DECLARATIONS
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.index.builds import open_build
from georag_assets.operations.pipeline import build_corpus
from georag_assets.settings import Settings

DECLARATIONS = Path(__file__).resolve().parent.parent / "georag_assets_tests" / "corpora"
# Small sets, every kind of source among them.
QUICK = ("geojson_draft", "groundedgeo", "nyc_metadata", "geovirus")
SHOWN = 60


def measure(report: Report, quick: bool, only: str | None = None) -> None:
    """Build each set in a home of its own, from a copy of its sources, and fill the report."""
    data = data_folder()
    names = sorted(
        path.parent.name for folder in (OWN_DECLARATIONS, DECLARATIONS) for path in folder.glob("*/defs.yaml")
    )
    if only is not None and only not in names:
        sys.exit(f"no such set: {only}; there are {', '.join(names)}")
    for name in [only] if only else QUICK if quick else names:
        folder = Path(tempfile.mkdtemp(prefix="georag-corpora-"))
        try:
            _account(report, folder, _copied(folder, data, name))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _copied(folder: Path, data: Path, name: str) -> CorpusDeclaration:
    """Return a set's declaration over a copy of its sources, which may then be changed."""
    if (OWN_DECLARATIONS / name).is_dir():
        shutil.copytree(OWN_DECLARATIONS / name, folder / name)
        return load_declaration(folder / name / "defs.yaml")
    shutil.copytree(data / name, folder / "shared" / "data" / name)
    os.environ["GEORAG_SHARED"] = str(folder / "shared")
    return load_declaration(DECLARATIONS / name / "defs.yaml")


def _account(report: Report, folder: Path, declaration: CorpusDeclaration) -> None:
    name = declaration.name
    home = Home(Settings(home=folder / "home"))
    started = time.perf_counter()
    done = build_corpus(home, declaration)
    seconds = time.perf_counter() - started
    live = done[-1].stage == "live_index" and not done[-1].blocked
    failed = [check.name for one in done for check in one.checks if check.blocking and not check.passed]
    report.add(f"{name}: live, every blocking check passed", "yes", "yes" if live else ", ".join(failed), "", live)
    if not live:
        return
    found = sum(_documents_in(source) for source in declaration.sources)
    indexed = _indexed(home, name)
    quarantine = [
        row
        for row in home.tables.read(name, QUARANTINE).to_pylist()
        if row["stage"] in ("documents", "chunks")  # of embeddings they are chunks, counted below
    ]
    removed = done[0].counts["removed"]
    whole = found == indexed + len(quarantine) + removed
    told = f"{name}: documents in = indexed + quarantined + removed"
    report.add(told, f"{found:,}", f"{indexed:,} + {len(quarantine):,} + {removed:,}", "documents", whole)
    for row in quarantine[:SHOWN]:
        report.compare(f"  quarantined, {row['kind']}: {row['reason']}", row["location"], "")
    if len(quarantine) > SHOWN:
        kinds = Counter(row["kind"] for row in quarantine[SHOWN:])
        report.compare("  quarantined too", ", ".join(f"{kind} {count}" for kind, count in kinds.items()), "documents")
    _add_what_it_became(report, home, name, seconds)
    _take_one_out(report, home, declaration, indexed)


def _files(source: Source) -> list[Path]:
    path = Path(str(source.path))
    return sorted(path.parent.glob(path.name)) if any(mark in path.name for mark in "*?[") else [path]


def _documents_in(source: Source) -> int:
    """Count a source's documents from its files' bytes: lines of JSON, items of a list in each, or the files."""
    files = _files(source)
    return len(files) if source.columns is None else sum(len(items) for file in files for items in _lines(file, source))


def _lines(file: Path, source: Source) -> list[list[dict[str, Any]]]:
    """Return the records of each line: the line itself, or the items of the list that it holds."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines if line.strip()]
    return [line[source.records] for line in read] if source.records else [[line] for line in read]


def _indexed(home: Home, name: str) -> int:
    """Count the documents that have a point in the live build."""
    with open_build(home, name) as build:
        told = build.payloads([each.decode() for each in build.columns.ids.tolist()])
    return len({str(payload["doc_id"]) for payload in told.values()})


def _add_what_it_became(report: Report, home: Home, name: str, seconds: float) -> None:
    chunks = home.tables.read(name, CHUNKS, columns=["chunk_id", "token_count", "flags"])
    frames = home.tables.read(name, FRAMES, columns=["grade", "west", "epsg", "assumed_epsg"])
    located = frames.num_rows - frames["west"].null_count
    grades = ", ".join(f"{grade} {count:,}" for grade, count in Counter(frames["grade"].to_pylist()).most_common())
    codes = Counter(frames["epsg"].drop_null().to_pylist()).most_common(6)
    tokens = chunks["token_count"]
    report.compare(f"  {name}: build", seconds, "s")
    report.compare(
        f"  {name}: chunks, {located:,} of them located; tokens {pc.min(tokens)} to {pc.max(tokens)}",
        chunks.num_rows,
        "chunks",
    )
    report.compare(f"  {name}: frames", grades, "")
    report.compare(f"  {name}: most named EPSG codes", ", ".join(f"{code} ({count:,})" for code, count in codes), "")


def _take_one_out(report: Report, home: Home, declaration: CorpusDeclaration, before: int) -> None:
    """Build again without one document of the source, which must be counted as removed and leave the index."""
    source = declaration.sources[0]
    file = _files(source)[0]
    if source.columns is None:
        file.unlink()
    else:
        _drop_one(file, source)
    again = build_corpus(home, declaration)
    removed, after = again[0].counts["removed"], _indexed(home, declaration.name)
    told = f"{declaration.name}: one document taken out of its source is removed, and leaves the index"
    right = removed == 1 and after == before - 1 and not again[-1].blocked
    report.add(told, f"1; {before - 1:,}", f"{removed:,}; {after:,}", "documents", right)


def _drop_one(file: Path, source: Source) -> None:
    """Drop the first record whose id no other record has."""
    assert source.columns is not None
    column, lines = source.columns.id, _lines(file, source)
    seen = Counter(item[column] for items in lines for item in items)
    first = next(item for items in lines for item in items if seen[item[column]] == 1)
    for items in lines:
        items[:] = [item for item in items if item is not first]
    with gzip.open(file, "wt", encoding="utf-8") as into:
        for items in lines:
            whole = [{source.records: items}] if source.records else items
            into.writelines(json.dumps(line) + "\n" for line in whole)


def main() -> None:
    """Take `--only NAME` off the command line and run as every benchmark does."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", metavar="NAME")
    options, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    run("corpora", lambda report, quick: measure(report, quick, options.only), packages=("dagster", "openvino"))


if __name__ == "__main__":
    main()
