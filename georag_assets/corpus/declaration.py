"""A corpus as its YAML declares it, and errors that name file, key, line, expected, found and the likely spelling.

What belongs here: the schema of `defs.yaml` and reading it. What does not: strict YAML (`strict_yaml`), reading sources
(`sources`), Dagster (`components`).

The file::

    type: georag_assets.components.Corpus
    attributes:
      name: ava
      sources: [docs/*.md]
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from georag_assets.corpus import strict_yaml
from georag_assets.corpus.period import parse_period
from georag_assets.errors import DeclarationError, GeoragError
from georag_assets.settings import expand

CORPUS_TYPE = "georag_assets.components.Corpus"
TEXT_FORMATS = {
    ".md": "markdown",
    ".mkd": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".rst": "restructuredtext",
    ".adoc": "asciidoc",
    ".asciidoc": "asciidoc",
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
}
RECORD_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "geoparquet",
    ".geojson": "geojson",
    ".gpkg": "geopackage",
    ".shp": "shapefile",
    ".kml": "kml",
    ".gml": "gml",
}
FORMATS = TEXT_FORMATS | RECORD_FORMATS
LAYERED_FORMATS = ("geopackage", "kml", "gml")
# Read as a stream out of their `.gz`; the other formats are unpacked first.
_STREAMED = (".jsonl", ".ndjson", ".csv", ".geojson")
ARCHIVES = {".zip": "zip", ".kmz": "zip", ".tar": "tar", ".tgz": "tar", ".tbz2": "tar", ".txz": "tar"}


_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def _located(value: object, info: ValidationInfo) -> object:
    """Resolve a path against the folder of the YAML file, after `${NAME:-default}` and `~`."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("a path")
    folder = Path((info.context or {}).get("folder") or Path.cwd())
    return Path(os.path.normpath(Path(folder, Path(expand(str(value))).expanduser())))


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _address(value: object) -> object:
    """Accept an address such as `s3://bucket/docs/*.md`, after `${NAME:-default}`; refuse one with credentials."""
    if not isinstance(value, str) or not _ADDRESS.match(value):
        raise ValueError("an address such as s3://bucket/docs/*.md or https://host/file.zip")
    address = expand(value)
    parts = urlsplit(address)
    if parts.username or parts.password:
        raise ValueError("an address without user and password; credentials come from the environment")
    return address


LocatedPath = Annotated[Path, BeforeValidator(_located)]
Address = Annotated[str, BeforeValidator(_address)]
Names = Annotated[tuple[str, ...], BeforeValidator(_several)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Columns(_Declared):
    """Which column of a record holds what; only columns named here are ever read.

    `text` columns are rendered in order, a blank line between. `period` is a column, or two: first and last. `bbox` is
    a column of [west, south, east, north], or four columns; `geometry` one of WKT, GeoJSON or WKB. `fields` are kept
    beside the document as they are. A record whose period cannot be read is quarantined, or loses it
    (`unreadable_period: ignore`).
    """

    id: str
    text: Names = Field(min_length=1)
    title: str | None = None
    period: Names | None = Field(default=None, min_length=1, max_length=2)
    unreadable_period: Literal["quarantine", "ignore"] = "quarantine"
    licence: str | None = None
    url: str | None = None
    revision: str | None = None
    bbox: Names | None = None
    geometry: str | None = None
    fields: Names = ()

    @field_validator("bbox")
    @classmethod
    def _one_or_four(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(value) not in (1, 4):
            raise ValueError("one column, or four: west, south, east, north")
        return value

    @model_validator(mode="after")
    def _one_geometry(self) -> Columns:
        if self.bbox and self.geometry:
            raise ValueError("bbox or geometry, not both")
        return self

    @property
    def declared(self) -> tuple[str, ...]:
        """Every column that the declaration names, once."""
        single = (self.id, self.title, self.licence, self.url, self.revision, self.geometry)
        several = (*self.text, *(self.period or ()), *(self.bbox or ()), *self.fields)
        return tuple(dict.fromkeys(name for name in (*single, *several) if name is not None))


class Source(_Declared):
    """Files: a file, a folder (its files of known formats), or a pattern such as `docs/**/*.md`; archives are opened.

    `path` is on this machine, `url` elsewhere (`s3://`, `gs://`, `https://`, ...); one of them is given, `anonymous`
    reads a public store without credentials. `exclude` leaves out files below the root, or members of an archive, by
    patterns on their path or name.
    `layer` names the one layer to read of a file that holds several (GeoPackage, KML, GML). `records` names the list
    inside each line of JSON whose items are the records, where a line is not one itself. `licence` holds for documents
    of this source that do not state their own.
    """

    path: LocatedPath | None = None
    url: Address | None = None
    anonymous: bool = False
    exclude: Names = ()
    format: (
        Literal[
            "markdown",
            "text",
            "restructuredtext",
            "asciidoc",
            "html",
            "pdf",
            "jsonl",
            "csv",
            "geoparquet",
            "geojson",
            "geopackage",
            "shapefile",
            "kml",
            "gml",
        ]
        | None
    ) = None
    encoding: str = "utf-8"
    columns: Columns | None = None
    layer: str | None = None
    records: str | None = Field(default=None, min_length=1)
    licence: str | None = None

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "".encode(value)
        except LookupError as error:
            raise ValueError("the name of a text encoding, such as utf-8 or cp1252") from error
        return value

    @property
    def shown(self) -> str:
        """The path, or the address without its query, in which a signature may stand."""
        if self.url is None:
            return str(self.path)
        return urlsplit(self.url)._replace(query="", fragment="").geturl()

    @property
    def known_format(self) -> str | None:
        """The declared format, or the one that the suffix means."""
        return self.format or format_of(
            PurePosixPath(urlsplit(self.url).path) if self.url else PurePath(str(self.path))
        )

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.path is None) == (self.url is None):
            raise ValueError("a path or a url, one of them")
        if self.anonymous and self.url is None:
            raise ValueError("no anonymous, because only an address is read with credentials or without")
        return self

    @model_validator(mode="after")
    def _columns_fit(self) -> Source:
        known = self.known_format
        if known in RECORD_FORMATS.values() and self.columns is None:
            raise ValueError(f"columns (id and text at least), because {known} holds records")
        if known in TEXT_FORMATS.values() and self.columns is not None:
            raise ValueError(f"no columns, because {known} is one document per file")
        if self.layer is not None and known not in LAYERED_FORMATS:
            raise ValueError(f"no layer, because only {', '.join(LAYERED_FORMATS)} have layers")
        if self.records is not None and known != "jsonl":
            raise ValueError("no records, because only a line of jsonl can hold a list of them")
        return self


def _short_source(item: str) -> dict[str, str]:
    return {"url" if _ADDRESS.match(item) else "path": item}


class Sidecar(_Declared):
    """Geometry in a GeoParquet file beside the documents, joined by `key` of the document = column `id` of the file."""

    sidecar: LocatedPath
    key: Literal["stem", "doc_id", "title"] = "stem"
    id: str = "id"
    column: str | None = None
    epsg: int | None = Field(default=None, ge=1024, le=1_000_000)


class FrameHint(_Declared):
    """The frame that the source states for its coordinates, by code or by names as they stand in PROJ's database."""

    epsg: int | None = Field(default=None, ge=1024, le=1_000_000)
    names: Names = ()


class Evaluation(_Declared):
    """Labelled queries; a build may lose at most `margin` of recall@k against the live one."""

    queries: LocatedPath
    format: Literal["jsonl"] = "jsonl"
    k: int = Field(default=8, ge=1, le=1000)
    place: Literal["given", "words"] = "given"
    margin: float = Field(default=0.02, ge=0, le=1)


class Freshness(_Declared):
    """When a corpus counts as stale: a cron by which it must have been brought up to date, or an age."""

    cron: str | None = None
    timezone: str = "UTC"
    max_age_hours: float | None = Field(default=None, gt=0)


class Automation(_Declared):
    """When a build is asked for: at the times of a cron, and (`watch`) whenever sources and live index differ."""

    cron: str | None = None
    timezone: str = "UTC"
    watch: bool = False


class ServerLayout(_Declared):
    """How the corpus lies on a Qdrant server, where one is set (`GEORAG_QDRANT_URL`).

    `update: copy` gives each build a collection of its own behind an alias; `in_place` upserts and deletes the
    difference in the live collection, for corpora too big to hold twice. `keep` is how many collections stay beside the
    live one. `quantised` keeps vectors as int8 in memory beside the originals, which decide. Settings other than
    `update` and `keep` take effect with a new collection.
    """

    shards: int = Field(default=1, ge=1, le=1024)
    replicas: int = Field(default=1, ge=1, le=64)
    write_consistency: int = Field(default=1, ge=1, le=64)
    on_disk: bool = False
    quantised: bool = False
    update: Literal["copy", "in_place"] = "copy"
    keep: int = Field(default=1, ge=0, le=100)

    @model_validator(mode="after")
    def _reachable(self) -> ServerLayout:
        if self.write_consistency > self.replicas:
            raise ValueError("a write_consistency of at most replicas: more can never acknowledge a write")
        return self


class CorpusDeclaration(_Declared):
    """What a corpus is: where its documents are and what is known of them beforehand.

    Attributes
    ----------
    name
        Name of the namespace, the assets' key prefix and the index folder.
    sources
        Where documents come from; a string is short for `{path: ...}`.
    geometry
        Geometry from a sidecar file.
    frame, period, licence, credit
        Hold for every document that does not state its own.
    unit, budget
        How chunks are cut, and how many model tokens they may have.
    quarantine_threshold, removal_threshold
        Shares of the documents above which a check fails, and a sync stops.
    max_document_mb
        A larger text file or record is quarantined unread.
    max_archive_mb
        What the archives of a sync may unpack to in all.
    shards
        Runs that chunk, frame and embed the corpus side by side, each its share of the documents.
    server
        Serve the corpus from a Qdrant server too: each promotion is followed by bringing the server there.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    description: str = ""
    sources: tuple[Source, ...] = Field(min_length=1)
    frame: FrameHint = FrameHint()
    geometry: Sidecar | None = None
    period: str | None = None
    licence: str | None = None
    credit: str | None = None
    unit: Literal["feature", "section", "document"] = "section"
    budget: int = Field(default=256, ge=16, le=8192)
    quarantine_threshold: float = Field(default=0.05, ge=0, le=1)
    removal_threshold: float = Field(default=0.2, ge=0, le=1)
    max_document_mb: float = Field(default=50, gt=0, le=1024)
    max_archive_mb: float = Field(default=4096, gt=0)
    evaluation: Evaluation | None = None
    freshness: Freshness | None = None
    automation: Automation = Automation()
    shards: int = Field(default=1, ge=1, le=256)
    server: ServerLayout | None = None

    _file: Path | None = PrivateAttr(default=None)

    @field_validator("sources", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        items = [value] if isinstance(value, str | Mapping) else value
        if not isinstance(items, list | tuple):
            return items
        return [_short_source(item) if isinstance(item, str) else item for item in items]

    @field_validator("period", mode="before")
    @classmethod
    def _readable(cls, value: object) -> object:
        if value is not None:
            try:
                parse_period(value)
            except GeoragError as error:
                raise ValueError(f"{error.expected or 'a period'} ({error.what})") from error
        return value

    @model_validator(mode="after")
    def _shards_are_driven(self) -> CorpusDeclaration:
        if self.shards > 1 and self.automation.cron is not None and not self.automation.watch:
            raise ValueError("automation: {watch: true} beside cron, because the sensor starts the runs of the shards")
        return self

    @property
    def file(self) -> Path | None:
        """The YAML file that declares the corpus; None where it was made in Python."""
        return self._file


def format_of(path: PurePath) -> str | None:
    """Return the format that a file's suffix means, also before `.gz`; None where it means none, or an archive."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes = suffixes[:-1]
    return FORMATS.get(suffixes[-1]) if suffixes else None


def archive_kind(path: PurePath) -> Literal["zip", "tar"] | None:
    """Return whether a file's suffix means a zip or a tar; None where it is no archive of several files."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-2:-1] == [".tar"] and suffixes[-1] in (".gz", ".bz2", ".xz"):
        return "tar"
    found = ARCHIVES.get(suffixes[-1]) if suffixes else None
    return "zip" if found == "zip" else "tar" if found == "tar" else None


def is_archive(path: PurePath) -> bool:
    """Whether a file's suffix means an archive of several files."""
    return archive_kind(path) is not None


def is_packed(path: PurePath) -> bool:
    """Whether a file is the `.gz` of one file that has to be unpacked before it can be read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-1:] == [".gz"] and format_of(path) is not None and suffixes[-2] not in _STREAMED


def parse_attributes(
    attributes: object, file: Path, lines: Mapping[strict_yaml.Path, int] | None = None
) -> CorpusDeclaration:
    """Return the declaration that a mapping of attributes makes; relative paths start at the file's folder.

    Parameters
    ----------
    lines
        Line of each path below `attributes`, where the mapping was read from a file.

    Raises
    ------
    DeclarationError
        With a problem for each key that is wrong.
    """
    declaration, problems = _validated(attributes, file, lines or {})
    if declaration is None:
        raise _error(problems)
    return declaration


def load_declaration(path: Path) -> CorpusDeclaration:
    """Return the one corpus that a YAML file declares.

    Raises
    ------
    DeclarationError
        The file cannot be read, declares none or several, or is wrong: with all its problems.
    """
    found, problems = _read_file(path, path.name if not path.is_absolute() else str(path))
    if not problems and len(found) != 1:
        problems = [f"{path}: expected one document of type {CORPUS_TYPE}, found {len(found)}"]
    if problems:
        raise _error(problems)
    return found[0]


def load_declarations(folder: Path) -> dict[str, CorpusDeclaration]:
    """Return the corpora that the `defs.yaml` files below a folder declare, by name.

    Documents of other types (components of the user's own project) are left alone.

    Raises
    ------
    DeclarationError
        With every problem of every file, so that one look finds them all; a good file is not named.
    """
    if not folder.is_dir():
        raise DeclarationError(
            "the folder of declarations cannot be read", where=str(folder), do="set GEORAG_DECLARATIONS"
        )
    corpora: dict[str, CorpusDeclaration] = {}
    problems: list[str] = []
    for path in sorted(folder.rglob("defs.yaml")):
        found, wrong = _read_file(path, str(path))
        problems += wrong
        for declaration in found:
            if (other := corpora.get(declaration.name)) is not None:
                problems.append(f"{path}: name: {declaration.name!r} is declared in {other.file} already")
            corpora.setdefault(declaration.name, declaration)
    if problems:
        raise _error(problems)
    return corpora


def _error(problems: list[str]) -> DeclarationError:
    count = len(problems)
    return DeclarationError(f"{count} problem{'s' * (count > 1)} in declarations", problems=tuple(problems))


def _read_file(path: Path, shown: str) -> tuple[list[CorpusDeclaration], list[str]]:
    try:
        documents = list(strict_yaml.read(path.read_text(encoding="utf-8")))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        return [], [f"{shown}:{line}: not YAML: {error.problem or error.context}"]
    except RecursionError:
        return [], [f"{shown}: cannot be read: it is nested too deeply"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [], [f"{shown}: cannot be read: {getattr(error, 'strerror', None) or str(error).splitlines()[0]}"]
    found: list[CorpusDeclaration] = []
    problems: list[str] = []
    for document in documents:
        value = document.value
        if value is None and not document.faults:
            continue
        if not isinstance(value, dict):
            problems.append(f"{shown}:1: expected a mapping with type and attributes, found {_kind(value)}")
            continue
        kind = value.get("type")
        if isinstance(kind, str) and kind != CORPUS_TYPE:
            if close := difflib.get_close_matches(kind, [CORPUS_TYPE], cutoff=0.85):
                line = document.lines[("type",)]
                problems.append(f"{shown}:{line}: type: found {kind!r}; did you mean {close[0]!r}?")
            continue
        problems += [_fault_line(shown, fault) for fault in document.faults]
        if kind is None:
            problems.append(f"{shown}:1: type: missing; expected {CORPUS_TYPE}")
            continue
        lines = {path[1:]: line for path, line in document.lines.items() if path[:1] == ("attributes",)}
        faulty = {fault.path[1:] for fault in document.faults}
        declaration, wrong = _validated(value.get("attributes"), path, lines, shown, faulty)
        problems += wrong
        if declaration is not None:
            found.append(declaration)
    return found, problems


def _fault_line(shown: str, fault: strict_yaml.Fault) -> str:
    lines = " and ".join(map(str, fault.lines))
    where = f"{shown}:{fault.lines[0]}" if len(fault.lines) == 1 else f"{shown}: lines {lines}"
    parts = [f"{where}: {_dotted(fault.path)}: {fault.what}"]
    if fault.expected:
        parts.append(f"expected {fault.expected}")
    if fault.found:
        parts.append(f"found {fault.found}")
    return "; ".join(parts)


def _validated(
    attributes: object,
    file: Path,
    lines: Mapping[strict_yaml.Path, int],
    shown: str | None = None,
    reported: Set[strict_yaml.Path] = frozenset(),
) -> tuple[CorpusDeclaration | None, list[str]]:
    shown = shown or str(file)
    try:
        declaration = CorpusDeclaration.model_validate(
            attributes if attributes is not None else {}, context={"folder": file.absolute().parent}
        )
    except GeoragError as error:  # an environment variable that is not set
        return None, [f"{shown}: {error}"]
    except ValidationError as error:
        faults = [(tuple(fault["loc"]), fault) for fault in error.errors()]
        # One problem is told once: a required key that is there misspelt is not missing as well, a list whose only
        # item is wrong is not empty as well, and what strict YAML refused was told already.
        meant = {(*path[:-1], _suggestion(path)) for path, fault in faults if fault["type"] == "extra_forbidden"}
        above = {path[:length] for path, _ in faults for length in range(len(path))}
        told = sorted(
            (_line_of(path, lines), _explained(path, fault))
            for path, fault in faults
            if not (path in reported or path in above or (fault["type"] == "missing" and path in meant))
        )
        return None, [f"{shown}:{line}: {text}" for line, text in told]
    declaration._file = file.absolute()
    return declaration, []


def _line_of(path: strict_yaml.Path, lines: Mapping[strict_yaml.Path, int]) -> int:
    """Return the line of the path, or of the nearest one above it that is written in the file."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _explained(path: strict_yaml.Path, fault: Mapping[str, object]) -> str:
    key = _dotted(path)
    kind = fault["type"]
    if kind == "extra_forbidden":
        suggestion = _suggestion(path)
        known = f"did you mean {suggestion!r}?" if suggestion else f"expected one of {', '.join(_keys_at(path[:-1]))}"
        return f"{key}: unknown key; {known}"
    if kind == "missing":
        return f"{key}: missing; expected a value"
    message = str(fault["msg"]).removeprefix("Value error, ")
    found = fault.get("input")
    shown = repr(found) if isinstance(found, str | int | float | bool) else _kind(found)
    return f"{key or 'attributes'}: expected {message[0].lower()}{message[1:]}; found {shown[:80]}"


def _suggestion(path: strict_yaml.Path) -> str | None:
    """Return the key that was probably meant: one spelt alike here, or the same one a level below."""
    key = str(path[-1])
    keys = _keys_at(path[:-1])
    if close := difflib.get_close_matches(key, keys, n=1, cutoff=0.7):
        return close[0]
    nested = [f"{above}.{key}" for above in keys if key in _keys_at((*path[:-1], above))]
    return nested[0] if nested else None


def _keys_at(path: Iterable[str | int]) -> list[str]:
    """Return the keys that the schema has below a path."""
    model: type[BaseModel] = CorpusDeclaration
    for step in path:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(step)
        models = _types(field.annotation) if field is not None else []
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _types(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _types(inner)]


def _dotted(path: strict_yaml.Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _kind(value: object) -> str:
    names = {"dict": "a mapping", "list": "a list", "NoneType": "nothing", "str": "text", "bool": "true or false"}
    return names.get(type(value).__name__, type(value).__name__)
