"""Files behind an address (`s3://`, `gs://`, `https://`, ...), through fsspec: listed, and brought here one at a time.

What belongs here: opening a remote file system with time limits, listing, downloading, what is tried again. What does
not: credentials, which the file system's own library takes from the environment or the machine, and which are never
read, written or told here; formats.
"""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from georag_assets.corpus.declaration import Source
from georag_assets.corpus.sources.listing import COMPANIONS, Listed, is_mixed
from georag_assets.errors import SourceError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from tenacity import RetryCallState

Answer = TypeVar("Answer")

CONNECT_S: Final = 10
READ_S: Final = 60
ATTEMPTS: Final = 5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 20.0
# The packages that bring a file system, by the extra that installs them.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}
# What a store says of a file that changes when its contents do, the best first.
_STAMPS = ("ETag", "etag", "md5Hash", "Content-MD5", "Last-Modified", "LastModified", "mtime", "updated", "created")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


def list_remote(source: Source) -> tuple[list[Listed], str, bool]:
    """Return a remote source's files, the name of its root and whether it may hold files that nobody meant.

    Raises
    ------
    SourceError
        The address is not there, may not be listed, or cannot be reached: never an empty list instead.
    """
    system, address = _opened(source)
    magic = _magic(address, source)
    root = _root(address) if magic else address
    found: dict[str, dict[str, Any]]
    mixed = single = False
    if magic:
        mixed = is_mixed(address)
        found = _asked(source, lambda: system.glob(address, detail=True))
    else:
        info = _asked(source, lambda: system.info(address))
        if info.get("type") == "directory":
            mixed = True
            found = _asked(source, lambda: system.find(address, detail=True))
        else:
            single = True
            found = {address: info}
    label = posixpath.basename(root.rstrip("/")) or urlsplit(source.url or "").netloc
    files = []
    for name in sorted(found):
        info = found[name]
        if info.get("type") == "directory":
            continue
        if info.get("size") is None or not any(info.get(key) for key in _STAMPS):
            # A listing by links, as of a web server, knows names alone.
            info = {**info, **_asked(source, lambda name=name: system.info(name))}  # type: ignore[misc]
        plain = name.split("?")[0]
        relative = posixpath.basename(plain) if single else plain[len(root) :].lstrip("/")
        if any(part.startswith(".") for part in PurePosixPath(relative).parts):
            continue
        where = plain if "://" in plain else f"{urlsplit(source.url or '').scheme}://{plain}"
        files.append(Listed(relative if single else f"{label}/{relative}", where, _stamp(info), remote=name))
    return files, "" if single else label, mixed


def fetch(source: Source, listed: Listed, folder: Path) -> Path:
    """Bring a file into a folder, whole, and with a Shapefile its other parts; return where it now lies.

    Raises
    ------
    SourceError
        It is gone, may not be read, or did not arrive whole.
    """
    assert listed.remote is not None
    system, _ = _opened(source)
    target = _download(source, system, listed.remote, folder)
    if target.suffix.lower() == ".shp":
        stem = listed.remote[: -len(".shp")]
        parent = posixpath.dirname(listed.remote)
        for name in _asked(source, lambda: system.ls(parent, detail=False)):
            if any(name.startswith(stem) and name[len(stem) :].lower() == suffix for suffix in COMPANIONS):
                _download(source, system, name, folder)
    return target


def _download(source: Source, system: AbstractFileSystem, name: str, folder: Path) -> Path:
    target = folder / posixpath.basename(name.split("?")[0])

    def get() -> None:
        system.get_file(name, str(target))

    _asked(source, get)
    expected = _asked(source, lambda: system.info(name)).get("size")
    if expected is not None and target.stat().st_size != expected:
        raise SourceError(
            "a remote file did not arrive whole, or was changed meanwhile",
            where=name.split("?")[0],
            expected=f"{expected:,} bytes",
            found=f"{target.stat().st_size:,} bytes",
            do="run again",
        )
    return target


def _opened(source: Source) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a source's address, and the address as that names it."""
    import fsspec

    url = source.url
    assert url is not None
    scheme = urlsplit(url).scheme
    try:
        system, address = fsspec.url_to_fs(url, **_options(scheme, anonymous=source.anonymous))
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        raise SourceError(
            f"addresses of {scheme}:// need a package that is not installed",
            where=source.shown,
            found=str(error)[:200],
            do=f"pip install 'georag-assets[{extra}]'" if extra else f"install fsspec's package for {scheme}",
        ) from error
    except ValueError as error:
        raise SourceError("this cannot be a source's address", where=source.shown, found=str(error)[:200]) from error
    return system, str(address)


def _options(scheme: str, *, anonymous: bool) -> dict[str, Any]:
    """Return time limits in each library's own words, and whether to go without credentials."""
    # Listings are asked for anew: a cached one would hide what has changed.
    common = {"use_listings_cache": False, "skip_instance_cache": True}
    match scheme:
        case "s3" | "s3a":
            limits = {"connect_timeout": CONNECT_S, "read_timeout": READ_S, "retries": {"max_attempts": 1}}
            return {**common, "anon": anonymous, "config_kwargs": limits}
        case "gs" | "gcs":
            return {**common, "timeout": READ_S, **({"token": "anon"} if anonymous else {})}
        case "http" | "https":
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
            return {**common, "client_kwargs": {"timeout": timeout}}
    return common


def _magic(address: str, source: Source) -> bool:
    # In an address of the web `?` begins a query.
    web = urlsplit(source.url or "").scheme in ("http", "https")
    return "*" in address or "[" in address if web else glob.has_magic(address)


def _root(address: str) -> str:
    """Return the part of a pattern before the first folder that holds a wildcard."""
    parts = address.split("/")
    wild = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:wild])


def _stamp(info: dict[str, Any]) -> str:
    known = next((str(info[key]) for key in _STAMPS if info.get(key)), "")
    return f"{info.get('size')} {known}"


def _asked(source: Source, ask: Callable[[], Answer]) -> Answer:
    """Ask a remote file system; try again what may pass, and say where and what where it does not."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS), wait=_wait, retry=retry_if_exception(_is_passing), reraise=True
    )
    try:
        return retrying(ask)
    except Exception as caught:
        error = _true(caught)
        if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
            raise SourceError(
                "the source may not be read",
                where=source.shown,
                found=_first_line(error),
                do="give credentials the way its own tools take them, or say `anonymous: true` for a public one",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise SourceError(
                "the source is not there", where=source.shown, found=_first_line(error), do="check the address"
            ) from error
        tried = f" (tried {ATTEMPTS} times)" if _is_passing(error) else ""
        raise SourceError(
            "the source cannot be reached",
            where=source.shown,
            found=f"{type(error).__name__}: {_first_line(error)}{tried}",
            do="see that its service runs and that this machine may reach it; nothing was changed",
        ) from error


def _true(error: BaseException) -> BaseException:
    """Return what happened: fsspec's file system of the web calls every failure "not found"."""
    cause = error.__cause__
    web = isinstance(cause, OSError | TimeoutError) or type(cause).__module__.startswith("aiohttp")
    gone = getattr(cause, "status", None) in (404, 410)
    return cause if cause is not None and web and not gone and isinstance(error, FileNotFoundError) else error


def _is_passing(caught: BaseException) -> bool:
    error = _true(caught)
    if (status := getattr(error, "status", None)) is not None:
        return status in _LATER
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    return isinstance(error, OSError | TimeoutError) or type(error).__module__.startswith("aiohttp")


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: what the service asks for in seconds, else twice as long each time, with jitter."""
    from tenacity import wait_random_exponential

    caught = state.outcome.exception() if state.outcome is not None else None
    error = None if caught is None else _true(caught)
    stated = (getattr(error, "headers", None) or {}).get("Retry-After", "")
    if str(stated).isdigit():
        return min(float(stated), _LONGEST_WAIT_S)
    return float(_FIRST_WAIT_S + wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S)(state))


def _first_line(error: BaseException) -> str:
    """Return an error's first line without an address's query, in which a signature may stand."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return " ".join(word.split("?")[0] if "://" in word else word for word in line.split())[:200]
