"""A connection to a Qdrant server: address, key, certificates, time limits, and what is tried again.

What belongs here: the one place through which every request goes, and its errors. What does not: what is asked
(`store`, `collections`).

The client's own bulk uploads are not used: they retry without looking at what was refused, and swallow a batch's error
until the end. Here each request is one call that either was acknowledged or is an error that says why.
"""

from __future__ import annotations

import json
import re
import ssl
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from georag_assets.errors import ServerError, SettingError
from georag_assets.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import QdrantClient
    from tenacity import RetryCallState

Answer = TypeVar("Answer")

DEFAULT_PORT = 6333
# ACORN, on which searches above the exact limit rely, came with this one.
OLDEST = (1, 16)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Statuses that say "not now": too many requests, a proxy or a node that is away or starting.
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 20.0
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: `http` or `https`, host, port and perhaps a path before every request's."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address that a URL means.

        Raises
        ------
        SettingError
            It is no http(s) URL, or it holds a user, a password or a query: a key belongs in GEORAG_QDRANT_API_KEY.
        """
        expected = "http://host[:port] or https://host[:port]"
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise SettingError("this cannot be a server's address", expected=expected, found=str(error)) from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SettingError(
                "a server's address holds more than where it is",
                expected=f"{expected}, without user, password or query",
                do="give the key by GEORAG_QDRANT_API_KEY",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError("this cannot be a server's address", expected=expected, found=f"{url[:80]!r}")
        return cls(parts.scheme, parts.hostname, port or DEFAULT_PORT, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The address in its one spelling."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def folder(self) -> str:
        """A name for files about this server; the scheme does not matter, the path does."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", f"{self.host}_{self.port}{self.prefix}")

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        return self.host in _LOOPBACK


class Connection:
    """A Qdrant server over REST; nothing is sent before the first call.

    Parameters
    ----------
    patience_s
        Seconds that a request is tried again for while the server is away, busy or says "later".
    """

    def __init__(
        self,
        address: Address,
        *,
        api_key: str | None = None,
        certificates: str | None = None,
        timeout_s: int = 30,
        patience_s: float = 300.0,
        client: QdrantClient | None = None,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self._key = api_key
        self._certificates = certificates
        self._given = client

    @classmethod
    def of(cls, settings: Settings, url: str | None = None) -> Connection:
        """Return the connection that the settings describe, to another address where one is given."""
        stated = url or settings.qdrant_url
        if stated is None:
            raise SettingError("no Qdrant server is named", do="set GEORAG_QDRANT_URL, or give --to URL")
        key = settings.qdrant_api_key
        return cls(
            Address.parse(stated),
            api_key=key.get_secret_value() if key else None,
            certificates=str(settings.qdrant_ca) if settings.qdrant_ca else None,
            timeout_s=settings.qdrant_timeout_s,
            patience_s=settings.qdrant_patience_s,
        )

    @cached_property
    def client(self) -> QdrantClient:
        """The client; its own check of versions is replaced by `version`."""
        if self._given is not None:
            return self._given
        from qdrant_client import QdrantClient

        options: dict[str, Any] = {} if self.address.scheme == "http" else {"verify": self._trust()}
        with warnings.catch_warnings():
            if self.address.is_loopback:
                warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
            return QdrantClient(
                url=self.address.url,
                api_key=self._key,
                timeout=self.timeout_s,
                prefer_grpc=False,
                check_compatibility=False,
                **options,
            )

    @cached_property
    def is_local_mode(self) -> bool:
        """Whether the client answers by itself, from arrays: then there is no index and no graph to measure."""
        from qdrant_client.local.qdrant_local import QdrantLocal

        return isinstance(self.client._client, QdrantLocal)

    @cached_property
    def version(self) -> str:
        """The server's version.

        Raises
        ------
        ServerError
            It cannot be reached, or is older than what searches rely on.
        """
        version = str(self.call("state its version", lambda client: client.info()).version)
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            raise ServerError(
                "the Qdrant server is too old",
                where=self.address.url,
                expected=f"{'.'.join(map(str, OLDEST))} or newer",
                found=version,
            )
        return version

    def call(self, purpose: str, ask: Callable[[QdrantClient], Answer], *, collection: str | None = None) -> Answer:
        """Send one request; try again while the server is away or says "later", for as long as patience lasts.

        Every request that is sent through here may be sent twice: ids are stable, so an upsert or a deletion that was
        done and not acknowledged changes nothing when it is done again.

        Raises
        ------
        ServerError
            The server refused for good, or patience ended.
        """
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException
        from tenacity import Retrying, retry_if_exception, stop_after_delay

        retrying = Retrying(
            stop=stop_after_delay(self.patience_s),
            wait=_wait,
            retry=retry_if_exception(_is_passing),
            sleep=time.sleep,
            reraise=True,
        )
        where = self.address.url + (f", collection {collection}" if collection else "")
        try:
            return retrying(ask, self.client)
        except (ApiException, QdrantException, ssl.SSLError, OSError) as error:
            raise self._explained(error, purpose, where) from None

    def close(self) -> None:
        """Close the client, if one was made."""
        if "client" in self.__dict__:
            self.client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._certificates)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(
                "the file of certificates cannot be read",
                where="GEORAG_QDRANT_CA",
                expected="a PEM file",
                found=type(error).__name__,
            ) from None

    def _explained(self, error: Exception, purpose: str, where: str) -> ServerError:
        status = getattr(error, "status_code", None)
        what = f"the Qdrant server did not {purpose}"
        if status in (401, 403):
            return ServerError(
                f"the Qdrant server refused to {purpose}: no or another key",
                status=status,
                where=where,
                found=f"status {status}",
                do="set GEORAG_QDRANT_API_KEY to a key that may write this collection",
            )
        if status is not None:
            found = f"status {status}: {_told(getattr(error, 'content', b''))}"
            return ServerError(what, status=status, where=where, found=found)
        source = getattr(error, "source", error)
        patience = f" (tried for {self.patience_s:.0f} s)" if _is_passing(error) else ""
        return ServerError(
            what,
            where=where,
            found=f"{type(source).__name__}: {str(source)[:_SHOWN]}{patience}",
            do="see that the server runs at GEORAG_QDRANT_URL and that its certificate is trusted",
        )


def _is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    import httpx
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    match error:
        case ResourceExhaustedResponse():
            return True
        case UnexpectedResponse():
            return error.status_code in _LATER
        case ResponseHandlingException():
            source = error.source
            # A certificate that is not trusted is not trusted a second later either.
            untrusted = "CERTIFICATE_VERIFY_FAILED" in str(source)
            return isinstance(source, httpx.TransportError) and not untrusted
    return False


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: what the server asks for, else twice as long each time, with jitter."""
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from tenacity import wait_random_exponential

    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, ResourceExhaustedResponse):
        return float(max(0, error.retry_after_s))
    return float(_FIRST_WAIT_S + wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S)(state))


def _told(content: bytes) -> str:
    """Return the server's own sentence, short; what was sent is not repeated in it."""
    try:
        told = json.loads(content)["status"]["error"]
    except (ValueError, KeyError, TypeError):
        told = content.decode("utf-8", "replace")
    return " ".join(str(told).split())[:_SHOWN]
