"""What a large build costs: chunking and framing on all cores beside one, Dagster beside the functions called plainly.

`python -m benchmarks.throughput [--json] [--quick] [--only cores|share]`. The corpus is every text of the shared data
that is no row of a catalogue, several times over under other ids. For the cores each copy has a word of its own in
every sentence, so that nothing is remembered from one to the next that a real corpus would not repeat. For Dagster's
share the copies are equal: their vectors are made once and found again, and the figure is an upper bound, because the
build it is a share of has the vectors already.

What belongs here: time and memory of whole stages and runs. What does not: one stage's inner speed (`chunking`,
`build`, `embedding`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil

from benchmarks.chunking import texts
from benchmarks.report import Report, data_folder, run
from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.declaration import CorpusDeclaration, load_declaration
from georag_assets.corpus.documents import sync_documents
from georag_assets.corpus.models import CHUNKS
from georag_assets.corpus.versions import publish_version
from georag_assets.frames.stage import frame_corpus
from georag_assets.home import Home
from georag_assets.index.embedding_stage import EMBEDDINGS, MODELS
from georag_assets.operations.pipeline import build_corpus
from georag_assets.reports import StageReport
from georag_assets.settings import Settings

CORPUS = "throughput"
ROOT = Path(__file__).resolve().parent.parent
CHUNKS_WANTED, QUICK_TEXTS = 100_000, 400
ROUNDS = 2
FASTER, DAGSTER_SHARE = 1.7, 10.0


PARTS = ("cores", "share")
# After the first word of a sentence that has two.
_SENTENCE = re.compile(r"([^\W\d_]{4}) ([^\W\d_]{4}[^.!?\n]*)")
_WORDS = ("", *["likewise", "moreover", "indeed", "again", "also", "thus", "still", "hence"])


def measure(report: Report, quick: bool, only: str | None = None) -> None:
    """Make the corpus, then fill the report: cores, memory, where the time goes, Dagster's share."""
    folder = Path(tempfile.mkdtemp(prefix="georag-throughput-"))
    try:
        _measure(report, folder, PARTS if only is None else (only,), quick=quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(report: Report, folder: Path, parts: Sequence[str], *, quick: bool) -> None:
    every = [(name, text) for _, name, text in texts(data_folder()) if text.strip()]
    if quick:
        every = every[:: max(1, len(every) // QUICK_TEXTS)]
    once = _declared(folder / "once", every, 1)
    size = _in_parts(folder / "count", once, workers=None)
    copies = 1 if quick else -(-CHUNKS_WANTED // size.chunks)
    report.context |= {"texts": len(every), "copies": copies, "load_at_start": os.getloadavg()[0]}
    if "cores" in parts:
        distinct = _declared(folder / "distinct", every, copies, distinct=True)
        _add_cores(report, folder, distinct, size, quick=quick)
    if "share" in parts:
        equal = _declared(folder / "equal", every, copies)
        _add_profile(report, folder, equal)
        _add_share(report, folder, equal, rounds=1 if quick else ROUNDS, quick=quick)


# --- cores --------------------------------------------------------------------------------------------------------


def _add_cores(report: Report, folder: Path, declaration: CorpusDeclaration, size: Parts, *, quick: bool) -> None:
    cores = Settings().worker_count
    runs: dict[int, list[Parts]] = {1: [], cores: []}
    for turn in range(1 if quick else ROUNDS):
        for workers in runs:
            runs[workers].append(_in_parts(folder / f"{workers}-{turn}", declaration, workers=workers))
    one, all_cores = (min(found, key=lambda parts: parts.seconds) for found in runs.values())
    report.compare("chunks", one.chunks, "chunks")
    for name, parts in (("one process", one), (f"{cores} workers", all_cores)):
        report.compare(f"chunking, {name}", parts.chunk_s, "s")
        report.compare(f"framing, {name}", parts.frame_s, "s")
    told = f"chunking and framing, one process's time beside that of {cores} workers"
    ratio = one.seconds / all_cores.seconds
    report.compare(told, ratio, "x") if quick else report.at_least(told, FASTER, ratio, "x")
    report.compare(
        f"  peak memory of it at {size.chunks:,} chunks, {cores} workers and their parent", size.peak_mib, "MiB"
    )
    report.compare(
        f"  peak memory of it at {one.chunks:,} chunks, {cores} workers and their parent", all_cores.peak_mib, "MiB"
    )
    report.compare(f"  peak memory of it at {one.chunks:,} chunks, one process", one.peak_mib, "MiB")


@dataclass(frozen=True)
class Parts:
    """Chunking and framing of one home."""

    chunks: int
    chunk_s: float
    frame_s: float
    peak_mib: float

    @property
    def seconds(self) -> float:
        """Both stages."""
        return self.chunk_s + self.frame_s


def _in_parts(folder: Path, declaration: CorpusDeclaration, *, workers: int | None) -> Parts:
    """Chunk and frame a fresh home in a process of its own, whose memory is then theirs."""
    asked = {"folder": str(folder), "file": str(declaration.file), "workers": workers}
    done = _watched([sys.executable, "-m", "benchmarks.throughput", "--in-parts", json.dumps(asked)])
    shutil.rmtree(folder)
    return Parts(**json.loads(done.out.splitlines()[-1]), peak_mib=done.peak_mib)


def in_parts(asked: str) -> None:
    """Print chunks and seconds of chunking and framing: the child's side of `_in_parts`."""
    given = json.loads(asked)
    home = Home(Settings(home=Path(given["folder"]), workers=given["workers"]))
    declaration = load_declaration(Path(given["file"]))
    sync_documents(home, declaration)
    publish_version(home, declaration)
    chunked, chunk_s = _timed(lambda: chunk_corpus(home, declaration))
    framed, frame_s = _timed(lambda: frame_corpus(home, declaration))
    _refuse_blocked(chunked, framed)
    print(json.dumps({"chunks": chunked.counts["new"], "chunk_s": chunk_s, "frame_s": frame_s}))


def _timed(stage: Callable[[], StageReport]) -> tuple[StageReport, float]:
    started = time.perf_counter()
    report = stage()
    return report, time.perf_counter() - started


def _refuse_blocked(*reports: StageReport) -> None:
    for one in reports:
        if one.blocked:
            sys.exit(f"{one.stage} is blocked: {[check.name for check in one.checks if not check.passed]}")


# --- where the time goes ------------------------------------------------------------------------------------------


def _add_profile(report: Report, folder: Path, declaration: CorpusDeclaration) -> None:
    """Build once with everything to do, and keep the vectors for the runs that Dagster is measured by."""
    home = Home(Settings(home=folder / "whole"))
    started = time.perf_counter()
    done = build_corpus(home, declaration)
    whole = time.perf_counter() - started
    _refuse_blocked(*done)
    report.compare("whole build, functions called plainly, every vector made", whole, "s")
    for one in done:
        steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in one.seconds.items() if seconds >= 0.05)
        seconds = sum(one.seconds.values())
        report.compare(f"  {one.stage} ({100 * seconds / whole:.0f} %): {steps}", seconds, "s")
    rows = home.tables.read(CORPUS, CHUNKS, columns=["embedded_sha256"])
    report.compare("  texts among its chunks", len(set(rows["embedded_sha256"].to_pylist())), "texts")


def _with_vectors(folder: Path, name: str) -> Path:
    """Return a fresh home that has the vectors of `whole` and nothing else."""
    made, fresh = (Home(Settings(home=folder / each)) for each in ("whole", name))
    for spec in (MODELS, EMBEDDINGS):
        rows = made.tables.batches(CORPUS, spec)
        fresh.tables.replace_rows(CORPUS, spec, key="model_fingerprint", removed=[], added=rows)
    return folder / name


# --- Dagster's share ----------------------------------------------------------------------------------------------


def _add_share(report: Report, folder: Path, declaration: CorpusDeclaration, *, rounds: int, quick: bool) -> None:
    declarations = str(Path(str(declaration.file)).parent.parent)
    programs = Path(sys.executable).parent
    commands = {
        "plain": [str(programs / "georag"), "build", CORPUS],
        "dagster": [
            *(str(programs / "dagster"), "job", "execute", "-m", "georag_assets.definitions", "-j", f"build_{CORPUS}"),
        ],
    }
    best: dict[str, Done] = {}
    for turn in range(rounds):
        for name, command in commands.items():
            home = _with_vectors(folder, f"{name}-{turn}")
            (home / "dagster").mkdir()
            places = {"GEORAG_HOME": home, "GEORAG_DECLARATIONS": declarations, "DAGSTER_HOME": home / "dagster"}
            done = _watched(command, {name: str(value) for name, value in places.items()})
            shutil.rmtree(home)
            if name not in best or done.seconds < best[name].seconds:
                best[name] = done
    plain, dagster = best["plain"], best["dagster"]
    report.compare("`georag build`, vectors there, from start to end of the process", plain.seconds, "s")
    report.compare("`dagster job execute`, the same", dagster.seconds, "s")
    report.compare("  peak memory of `georag build` and its children", plain.peak_mib, "MiB")
    report.compare("  peak memory of `dagster job execute` and its children", dagster.peak_mib, "MiB")
    share = 100 * (dagster.seconds - plain.seconds) / dagster.seconds
    told = "Dagster's share of its run"
    # On a sample its start outweighs the work: the share is the whole corpus's figure.
    report.compare(told, share, "%") if quick else report.at_most(told, DAGSTER_SHARE, share, "%")


# --- corpus and processes -----------------------------------------------------------------------------------------


def _declared(folder: Path, every: list[tuple[str, str]], copies: int, *, distinct: bool = False) -> CorpusDeclaration:
    corpus = folder / CORPUS
    corpus.mkdir(parents=True)
    with gzip.open(corpus / "texts.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as lines:
        for copy in range(copies):
            word = _WORDS[copy % len(_WORDS)] if distinct else ""
            for name, text in every:
                said = _SENTENCE.sub(rf"\1 {word} \2", text) if word else text
                record = {"id": f"{copy}/{name}", "title": name, "text": said}
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    (corpus / "defs.yaml").write_text(
        "type: georag_assets.components.Corpus\n"
        "attributes:\n"
        f"  name: {CORPUS}\n"
        "  sources:\n"
        "    - path: texts.jsonl.gz\n"
        "      columns: {id: id, title: title, text: text}\n"
        # Among the texts are invalid examples of standards; what is left out is counted by `corpora`.
        "  quarantine_threshold: 1.0\n",
        encoding="utf-8",
    )
    return load_declaration(corpus / "defs.yaml")


@dataclass(frozen=True)
class Done:
    """A process that ended well: what it printed, its seconds, the peak of its own and its children's memory."""

    out: str
    seconds: float
    peak_mib: float


def _watched(command: list[str], environment: dict[str, str] | None = None) -> Done:
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command, stdout=out, stderr=told, cwd=ROOT, env={**os.environ, **(environment or {})}
        )
        ended, peak = Event(), [0.0]
        watching = Thread(target=_watch, args=(process.pid, ended, peak))
        watching.start()
        code = process.wait()
        seconds = time.perf_counter() - started
        ended.set()
        watching.join()
        out.seek(0)
        told.seek(0)
        if code:
            sys.exit(f"{' '.join(command)} ended with {code}:\n{told.read()[-2000:]}")
        return Done(out.read(), seconds, peak[0])


def _watch(pid: int, ended: Event, peak: list[float]) -> None:
    while not ended.wait(0.2):
        try:
            process = psutil.Process(pid)
            # Shared pages once: what one process maps the others map too.
            held = sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True)))
        except psutil.Error:
            continue
        peak[0] = max(peak[0], held / 2**20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-parts"]:
        in_parts(sys.argv[2])
    else:
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--only", choices=PARTS)
        options, sys.argv[1:] = parser.parse_known_args()
        run(
            "throughput",
            lambda report, quick: measure(report, quick, options.only),
            packages=("dagster", "pyiceberg", "openvino", "qdrant-edge-py"),
        )
