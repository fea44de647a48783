"""The command line: a contract of commands, JSON fields and exit codes.

What belongs here: options, printing, exit codes (0 done, 1 could not, 2 wrong usage). What does not: any work; each
command imports the room that does it when it runs, because `georag geometries` must not wait for an index.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from georag_assets.errors import GeoragError, PlaceError, QueryError, SettingError, SourceError
from georag_assets.settings import Settings, unknown_names

if TYPE_CHECKING:
    from georag_assets.corpus.declaration import CorpusDeclaration, ServerLayout
    from georag_assets.home import Home
    from georag_assets.index.server.connection import Connection
    from georag_assets.reports import StageReport
    from georag_assets.retrieval.evidence import Answer, Evidence

app = typer.Typer(
    name="georag",
    help="A geospatial RAG index as data assets: chunk, frame, search, evaluate, operate.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# Typer brings its own copy of click from 0.29 on; its public error leads to the root of either.
_USAGE: Any = typer.BadParameter.__mro__[2]

index_app = typer.Typer(
    name="index",
    help="Bring live builds to a Qdrant server (GEORAG_QDRANT_URL), and see what is there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(index_app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Corpora = Annotated[list[str] | None, typer.Option("--corpus", help="Corpus to search; repeatable. Default: all live.")]


class Unit(StrEnum):
    """What a chunk is cut to."""

    feature = "feature"
    section = "section"
    document = "document"


class PlaceMode(StrEnum):
    """Where an evaluation takes each query's place from."""

    given = "given"
    words = "words"


# --- text, without a home -------------------------------------------------------------------------------------------


@app.command()
def chunk(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Text files; - is standard input.")],
    unit: Annotated[Unit, typer.Option(help="What a chunk is cut to.")] = Unit.section,
    budget: Annotated[int, typer.Option(min=16, max=8192, help="Model tokens per chunk.")] = 256,
    as_json: Json = True,  # JSON is the only form
) -> None:
    """Cut files into chunks that cut no geometry: a JSON line per chunk."""
    from georag_assets.operations.preview import preview_chunks

    for name in files:
        text, doc_id = _text_of(name)
        _print_lines(preview_chunks(text, doc_id, unit=unit.value, budget=budget))


@app.command()
def geometries(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A text file, or - for standard input.")],
    as_json: Json = True,  # JSON is the only form
) -> None:
    """Find every geometry literal in a text: a JSON line per literal."""
    from georag_assets.operations.preview import preview_geometries

    _print_lines(preview_geometries(_text_of(file)[0]))


@app.command()
def frame(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A text file, or - for standard input.")],
    place: Annotated[str | None, typer.Option(help="Where its coordinates should lie.")] = None,
    as_json: Json = True,  # JSON is the only form
) -> None:
    """Grade the reference frame that a text's evidence speaks for: one JSON object."""
    from georag_assets.operations.preview import preview_frame

    _print_json(preview_frame(_home(), _text_of(file)[0], place))


# --- the index ------------------------------------------------------------------------------------------------------


@app.command()
def search(
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    place: Annotated[str | None, typer.Option(help="Name of the place to search in.")] = None,
    near: Annotated[str | None, typer.Option(metavar="LON,LAT", help="Point to search around.")] = None,
    bbox: Annotated[str | None, typer.Option(metavar="W,S,E,N", help="Box to search in.")] = None,
    radius: Annotated[float | None, typer.Option(metavar="M", help="Metres around the point or place.")] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="DATE", help="Start of the period.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="DATE", help="End of the period, itself included.")] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many candidates.")] = 10,
    corpus: Corpora = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Switch a ranking signal off: semantic, topic, lexical, fit, proximity.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the passages that answer a question about a place, with the evidence for their order.

    Without an option that says where, a place is looked for in the words ("... in Napa Valley"); where there is none,
    the search is by text alone, and says so.
    """
    from georag_assets.operations.status import live_corpora
    from georag_assets.retrieval.question import Question
    from georag_assets.retrieval.retriever import Retriever
    from georag_assets.retrieval.settings import RankingSettings

    asked = Question(
        text=question,
        place=place,
        near=_numbers("--near", near, 2),  # type: ignore[arg-type]
        bbox=_numbers("--bbox", bbox, 4),  # type: ignore[arg-type]
        radius_m=radius,
        period=_period(from_, to),
        k=k,
    )
    home = _home()
    with Retriever(
        home,
        [_named(name) for name in corpus or live_corpora(home)],
        settings=RankingSettings().without(*(without or ())),
    ) as retriever:
        answer = retriever.search(asked)
        if as_json:
            _print_json(answer.as_dict())
        else:
            _show_answer(answer)


@app.command()
def evaluate(
    queries: Annotated[Path, typer.Argument(metavar="QUERIES.jsonl", help="Labelled queries, JSON Lines (.gz).")],
    k: Annotated[int, typer.Option("--k", "-k", help="Documents looked at per query.")] = 8,
    place: Annotated[
        PlaceMode, typer.Option(help="Each query's true box, or the place in its words.")
    ] = PlaceMode.given,
    corpus: Annotated[str | None, typer.Option(help="Corpus to ask; may be left out where one is live.")] = None,
    build: Annotated[str | None, typer.Option(help="A build instead of the live one.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Switch a ranking signal off.")] = None,
    as_json: Json = False,
) -> None:
    """Measure recall@k, MRR and nDCG@10 on labelled queries, by class and per signal."""
    from georag_assets.operations.status import live_corpora
    from georag_assets.retrieval import evaluation
    from georag_assets.retrieval.settings import RankingSettings

    home = _home()
    names = (_named(corpus),) if corpus else live_corpora(home)
    if len(names) != 1:
        raise QueryError("which corpus?", expected="--corpus NAME", found=", ".join(names) or "none is live")
    settings = RankingSettings().without(*(without or ()))
    report = evaluation.evaluate(home, names[0], queries, k, place.value, build=build, settings=settings)
    if as_json:
        _print_json(report.as_dict())
        return
    typer.echo(f"{report.corpus}, build {report.build}: {report.overall.queries} queries, place {report.place}")
    typer.echo(f"{'':34}{'queries':>8}{f'recall@{k}':>11}{'MRR':>8}{'nDCG@10':>9}")
    rows = {"all": report.overall, **report.by_half, **report.by_class}
    rows |= {f"signals: {name}": figures for name, figures in report.per_signal.items()}
    for name, figures in rows.items():
        typer.echo(
            f"{name:34}{figures.queries:>8}{figures.recall_at_k:>11.3f}{figures.mrr:>8.3f}{figures.ndcg_at_10:>9.3f}"
        )
    if report.unanswered:
        typer.echo(f"{report.unanswered} refused: {dict(report.refusals)}; each counts as a miss")


@app.command()
def status(as_json: Json = False) -> None:
    """Show every staleness number, per corpus."""
    from georag_assets.operations import status as numbers

    home = _home()
    found = numbers.status(home, _declarations(home.settings))
    if as_json:
        _print_json(numbers.as_dict(found))
        return
    if not found:
        typer.echo("no corpus is declared or built")
    for one in found:
        typer.echo(f"{one.corpus}: {one.state.replace('_', ' ')}")
        for name, value in (
            ("fault", one.fault),
            ("documents", f"{one.documents:,}" if one.documents else None),
            ("newest version", one.newest_version),
            ("live build", one.live_build),
            ("version lag", one.version_lag),
            ("promoted", one.promoted_at),
            ("index age", None if one.index_age_seconds is None else _duration(one.index_age_seconds)),
            ("within policy", one.within_policy),
            ("points", None if one.points is None else f"{one.points:,}"),
            ("size", None if one.allocated_bytes is None else f"{one.allocated_bytes / 2**20:.1f} MiB"),
            ("rebuild", None if one.rebuild_seconds is None else _duration(one.rebuild_seconds)),
            ("builds kept", one.builds or None),
            ("rolled back", None if one.hold is None else f"from {one.hold['rolled_back_from']}, held"),
            ("checks", f"{sum(one.checks.values())} of {len(one.checks)} passed" if one.checks else None),
            ("failed checks", ", ".join(one.failed_checks) or None),
            *(
                (
                    "server",
                    f"{server['server']}: {server['state']}, "
                    f"{'the live build' if server['is_live_build'] else server['build']}",
                )
                for server in one.servers
            ),
            ("quarantined", f"{one.quarantined} ({one.quarantine_rate:.2%})" if one.quarantine_rate else None),
            ("newest record", one.newest_record),
        ):
            if value is not None:
                typer.echo(f"  {name:15} {value}")


@app.command()
def rollback(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS")],
    to: Annotated[
        str | None, typer.Option(metavar="BUILD", help="The build; default: the one that was live before.")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="End the hold of an earlier rollback.")] = False,
    as_json: Json = False,
) -> None:
    """Make an earlier build live and hold it there, or release the hold."""
    from dataclasses import asdict

    from georag_assets.index import live
    from georag_assets.index.server.records import of_corpus

    if to and release:
        raise typer.BadParameter("--to and --release exclude each other")
    home = _home()
    state = live.rollback(home, _named(corpus), to, release=release)
    if as_json:
        _print_json(asdict(state))
    else:
        held = f"; held against {state.hold.corpus_version}" if state.hold else ""
        typer.echo(f"{corpus}: {state.build} is live{held}")
    if any(record.build != state.build for record in of_corpus(home, corpus) if record.promoted_at):
        sys.stderr.write(f"georag: a server answers from another build; run: georag index copy --corpus {corpus}\n")


@app.command()
def evidence(
    chunk_id: Annotated[str, typer.Argument(metavar="CHUNK_ID")],
    corpus: Annotated[str, typer.Option(metavar="CORPUS", help="The corpus that the citation names.")],
    as_json: Json = False,
) -> None:
    """Print the passage that a chunk id names, or named: an old id is read from its version and marked superseded."""
    from dataclasses import asdict

    from georag_assets.retrieval.citation import resolve_citation

    citation = resolve_citation(_home(), _named(corpus), chunk_id)
    if as_json:
        _print_json(asdict(citation))
    else:
        superseded = "; superseded" if citation.superseded else ""
        typer.echo(f"{citation.doc_id} {citation.start}-{citation.end}, {citation.corpus_version}{superseded}")
        typer.echo(citation.text)


@app.command()
def build(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS|DEFS.yaml", help="A declared corpus, or its YAML file.")],
    allow_removal: Annotated[
        bool, typer.Option("--allow-removal", help="Accept that the sources lost more than the declared share.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a corpus from its sources to a live index, without Dagster; a JSON line per stage with --json."""
    from dataclasses import asdict

    from georag_assets.operations.pipeline import build_corpus

    def tell(report: StageReport) -> None:
        if as_json:
            _print_json({**asdict(report), "blocked": report.blocked})
            return
        counts = ", ".join(f"{value:,} {name}" for name, value in report.counts.items() if value)
        typer.echo(f"{report.stage:15} {sum(report.seconds.values()):7.1f} s  {counts}")
        for check in report.checks:
            if not check.passed:
                typer.echo(f"  {'BLOCKED' if check.blocking else check.severity} {check.name}: {check.description}")

    home = _home()
    declaration = _declaration(home.settings, corpus)
    allowed = allow_removal or home.settings.allow_removal
    reports = build_corpus(home, declaration, allow_removal=allowed, on_stage=tell)
    if reports[-1].blocked:
        failed = ", ".join(check.name for check in reports[-1].checks if check.blocking and not check.passed)
        _fail(f"stage {reports[-1].stage} is blocked by {failed}; what was live is live", 1)


# --- the server ------------------------------------------------------------------------------------------------------

Server = Annotated[str | None, typer.Option("--to", metavar="URL", help="The server; default: GEORAG_QDRANT_URL.")]
OneCorpus = Annotated[str | None, typer.Option("--corpus", help="Which corpus; may be left out where one is live.")]


@index_app.command("copy")
def index_copy(to: Server = None, corpus: OneCorpus = None, as_json: Json = False) -> None:
    """Copy the live build to a collection of its own, prove it there, and let it answer."""
    from georag_assets.index.server.deploy import copy

    _bring(copy, to, corpus, as_json)


@index_app.command("sync")
def index_sync(to: Server = None, corpus: OneCorpus = None, as_json: Json = False) -> None:
    """Bring the collection that answers to the live build in place: only the difference is written."""
    from georag_assets.index.server.deploy import sync

    _bring(sync, to, corpus, as_json)


@index_app.command("status")
def index_status(to: Server = None, corpus: Corpora = None, as_json: Json = False) -> None:
    """Ask the server for its collections and show them beside what this home knows of them."""
    from dataclasses import asdict

    from georag_assets.index.server.connection import Connection
    from georag_assets.index.server.deploy import status as server_status
    from georag_assets.operations.status import live_corpora

    home = _home()
    names = [_named(name) for name in corpus or live_corpora(home)]
    with Connection.of(home.settings, to) as server:
        version = server.version
        found = [one for name in names for one in server_status(home, name, server)]
    if as_json:
        _print_json(
            {
                "server": server.address.url,
                "server_version": version,
                "collections": [asdict(one) for one in found],
            }
        )
        return
    typer.echo(f"{server.address.url}: Qdrant {version}")
    for one in found:
        known = "unknown to this home"
        if one.record is not None:
            fresh = "the live build" if one.record.build == one.live_build else "not the live build"
            known = f"{one.record.state}, {one.record.build} ({fresh})"
        typer.echo(f"{'*' if one.answers else ' '} {one.collection}: {one.points:,} points, {one.status}; {known}")
    if not found:
        typer.echo("no collection of these corpora is there")


def _bring(
    bring: Callable[[Home, str, ServerLayout, Connection], StageReport],
    to: str | None,
    corpus: str | None,
    as_json: bool,
) -> None:
    """Bring a corpus's live build to a server as its one writer, and say what came of it."""
    from dataclasses import asdict

    from georag_assets.corpus.declaration import ServerLayout
    from georag_assets.corpus.writer import writing
    from georag_assets.index.server.connection import Connection
    from georag_assets.operations.status import live_corpora
    from georag_assets.tables.measurements import record

    home = _home()
    names = (_named(corpus),) if corpus else live_corpora(home)
    if len(names) != 1:
        raise QueryError("which corpus?", expected="--corpus NAME", found=", ".join(names) or "none is live")
    declared = _declarations(home.settings).get(names[0])
    layout = (declared.server if declared else None) or ServerLayout()
    with writing(home, names[0]), Connection.of(home.settings, to) as server:
        report = bring(home, names[0], layout, server)
        record(home.tables, names[0], (report, datetime.now(UTC)))
    if as_json:
        _print_json({**asdict(report), "blocked": report.blocked})
    else:
        typer.echo(f"{report.metadata['collection']} on {report.metadata['server']}")
        counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in report.counts.items() if value)
        typer.echo(f"  {counts}; {sum(report.seconds.values()):.1f} s")
        for check in report.checks:
            numbers = ", ".join(f"{name} {value:g}" for name, value in check.numbers.items())
            typer.echo(f"  {'passed' if check.passed else 'FAILED'} {check.name}: {numbers or check.description}")
    if report.blocked:
        failed = ", ".join(check.name for check in report.checks if check.blocking and not check.passed)
        _fail(f"the collection may not answer: {failed} failed on the server", 1)


# --- what commands share --------------------------------------------------------------------------------------------


def _home() -> Home:
    from pydantic import ValidationError

    from georag_assets.home import Home

    for name, meant in unknown_names().items():
        hint = f"; did you mean {meant}?" if meant else ""
        sys.stderr.write(f"georag: {name} is set, and no setting reads it{hint}\n")
    try:
        return Home(Settings())
    except ValidationError as error:
        fault = error.errors()[0]
        name = "GEORAG_" + "_".join(str(part) for part in fault["loc"]).upper()
        raise SettingError("a setting cannot be used", where=name, expected=str(fault["msg"])) from None


def _named(corpus: str) -> str:
    """Return a corpus's name; what could not be one would become a path."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", corpus):
        raise QueryError("this cannot be a corpus's name", expected="lower-case letters, digits and _")
    return corpus


def _declarations(settings: Settings) -> dict[str, CorpusDeclaration]:
    from georag_assets.corpus.declaration import load_declarations

    return load_declarations(settings.declarations or Path(__file__).parent / "defs")


def _declaration(settings: Settings, corpus: str) -> CorpusDeclaration:
    from georag_assets.corpus.declaration import load_declaration

    if corpus.endswith((".yaml", ".yml")):
        return load_declaration(Path(corpus))
    declared = _declarations(settings)
    if corpus not in declared:
        raise QueryError(
            "this corpus is not declared",
            expected=", ".join(declared) or "a declaration",
            do="name its YAML file, or set GEORAG_DECLARATIONS",
        )
    return declared[corpus]


def _text_of(name: str) -> tuple[str, str]:
    """Return a file's text as it is (no newline is changed), and its name as a document id."""
    if name == "-":
        data, shown = sys.stdin.buffer.read(), "stdin"
    else:
        path, shown = Path(name), name
        if path.is_dir():
            raise SourceError("a folder where a file is meant", where=name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SourceError("the file cannot be read", where=name, found=error.strerror) from None
    try:
        text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            "the file is not UTF-8", where=f"{shown}@{error.start}", found=f"byte 0x{data[error.start]:02x}"
        ) from None
    if "\0" in text:
        raise SourceError("the file holds NUL characters", where=f"{shown}@{text.index(chr(0))}")
    return text, shown


def _numbers(option: str, value: str | None, count: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        raise typer.BadParameter(f"{option} takes {count} numbers with commas between")
    return numbers


def _period(from_: str | None, to: str | None) -> tuple[float, float] | None:
    if from_ is None and to is None:
        return None
    from georag_assets.corpus.period import parse_period
    from georag_assets.errors import PeriodError

    def read(option: str, value: str) -> tuple[float, float]:
        try:
            return parse_period(value)
        except PeriodError as error:
            raise typer.BadParameter(f"{option}: {error}") from None

    start = read("--from", from_)[0] if from_ is not None else -1e15
    end = read("--to", to)[1] if to is not None else 1e15
    return start, end


def _print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def _print_lines(values: Iterable[Mapping[str, Any]]) -> None:
    for value in values:
        _print_json(value)


def _show_answer(answer: Answer) -> None:
    if answer.region:
        region = answer.region
        west, south, east, north = region.bbox
        around = f" + {region.radius_m:,.0f} m" if region.radius_m else ""
        flags = f" ({', '.join(region.flags)})" if region.flags else ""
        credit = f"; {region.place['credit']}" if region.place and region.place.get("credit") else ""
        typer.echo(f"in {region.label}: {west:.4f},{south:.4f},{east:.4f},{north:.4f}{around}{flags}{credit}")
    for note in answer.notes:
        typer.echo(f"note: {note}")
    for used in answer.corpora:
        lag = "" if not used.version_lag else f", {used.version_lag} behind {used.newest_version}"
        where = "" if used.answers_from == "embedded" else f", answered by {used.answers_from}"
        typer.echo(f"{used.corpus} {used.corpus_version}, index {_duration(used.index_age_seconds)} old{lag}{where}")
    for evidence in answer.candidates:
        _show_evidence(evidence)
    if not answer.candidates:
        typer.echo("nothing found")
    if answer.unlocated:
        typer.echo("\nwithout geometry, so neither in the region nor outside it:")
        for evidence in answer.unlocated:
            _show_evidence(evidence)
    typer.echo(f"\n{answer.timings_ms['total']:.0f} ms")


def _show_evidence(evidence: Evidence) -> None:
    scores = " ".join(f"{name} {value:.3f}" for name, value in evidence.scores.items() if value is not None)
    frame = evidence.frame
    distance = "" if evidence.distance_m is None else f", {evidence.distance_m:,.0f} m away"
    epsg = f"EPSG:{frame['epsg']}" if frame["epsg"] else "no frame"
    typer.echo(f"\n{evidence.ranks['final']:>3}. {evidence.title or evidence.doc_id}  [{evidence.doc_id}]")
    typer.echo(f"     {' '.join(evidence.text.split())[:200]}")
    typer.echo(f"     {scores}{distance}")
    page = _page(evidence.pages)
    typer.echo(f"     {evidence.source}{page}, {evidence.corpus_version}; {epsg} {frame['grade']}: {frame['allows']}")
    if evidence.folded:
        typer.echo(f"     and {len(evidence.folded)} that say the same of the same place")


def _page(pages: tuple[int, int] | None) -> str:
    if pages is None:
        return ""
    first, last = pages
    return f", page {first}" if first == last else f", pages {first} to {last}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _fail(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(f"georag: {message}\n")
    sys.exit(code)


def main() -> None:
    """Run the command line: errors are one line on standard error, never a traceback."""
    try:
        result = app(standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", 130)
    except _USAGE as error:
        _fail(" ".join(error.format_message().split()), error.exit_code)
    except PlaceError as error:
        readings = f"; readings: {', '.join(error.readings)}" if error.readings and not error.found else ""
        _fail(f"{error}{readings}", 1)
    except QueryError as error:
        _fail(str(error), 2)
    except GeoragError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except OSError as error:
        _fail(f"{error.strerror or type(error).__name__}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:  # the user gets a place to report, not a traceback
        frame = error.__traceback__
        while frame and frame.tb_next:
            frame = frame.tb_next
        place = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else "unknown"
        _fail(f"internal error: {type(error).__name__} at {place}; please report it", 1)
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
