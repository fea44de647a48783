"""A Qdrant engine behind the part of the REST API that the project speaks, on loopback: for where no server is.

The engine is the real one (`qdrant-edge-py`): filters, payload indexes, IDF, HNSW and counts are its own. What is not
the server's own is this file: routing, aliases, strict mode, states, and faults that a test orders. What only a real
server can show is in `test_real_server.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import qdrant_edge as engine

from georag_assets.index.embedded import index_type

VERSION = "1.18.3"
NEVER = 2**31
KEY = "k${HOME}y$with#signs"


class RefusedError(Exception):
    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status, self.told = status, told


@dataclass
class Fault:
    """What happens to matching requests, so many times: a status, or the connection ends before or after the work."""

    method: str
    path: str
    times: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: str = ""

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and re.search(self.path, path) is not None


def engine_filter(value: dict[str, Any]) -> engine.Filter:
    return engine.Filter(
        **{
            kind: [_condition(part) for part in value[kind]]
            for kind in ("must", "should", "must_not")
            if value.get(kind)
        }
    )


def _condition(value: dict[str, Any]) -> Any:
    if "has_id" in value:
        return engine.HasIdCondition(set(value["has_id"]))
    if "key" not in value:
        return engine_filter(value)
    if value.get("range"):
        return engine.FieldCondition(
            value["key"], range=engine.RangeFloat(**{name: at for name, at in value["range"].items() if at is not None})
        )
    if value.get("geo_bounding_box"):
        box = value["geo_bounding_box"]
        corners = [engine.GeoPoint(box[name]["lon"], box[name]["lat"]) for name in ("top_left", "bottom_right")]
        return engine.FieldCondition(value["key"], geo_bounding_box=engine.GeoBoundingBox(*corners))
    return engine.FieldCondition(value["key"], match=engine.MatchValue(value["match"]["value"]))


def filtered_fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "key" in value:
            yield value["key"]
        for part in value.values():
            yield from filtered_fields(part)
    elif isinstance(value, list):
        for part in value:
            yield from filtered_fields(part)


class Collection:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.folder = Path(tempfile.mkdtemp(prefix="georag-test-collection-"))
        self.status = "green"
        self.optimizer: Any = "ok"
        self.shard = engine.EdgeShard.create(str(self.folder), self._settings(NEVER))

    def _settings(self, threshold: int) -> engine.EdgeConfig:
        dense = self.config["vectors"]["text"]
        hnsw = self.config["hnsw_config"]
        modifier = self.config["sparse_vectors"]["lexical"]["modifier"]
        return engine.EdgeConfig(
            vectors={"text": engine.EdgeVectorParams(size=dense["size"], distance=engine.Distance.Cosine)},
            sparse_vectors={
                "lexical": engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf if modifier == "idf" else None)
            },
            hnsw_config=engine.HnswIndexConfig(
                m=hnsw["m"],
                ef_construct=hnsw["ef_construct"],
                full_scan_threshold=hnsw["full_scan_threshold"],
                max_indexing_threads=0,
                payload_m=hnsw["payload_m"],
            ),
            optimizers=engine.EdgeOptimizersConfig(
                default_segment_number=1, indexing_threshold=threshold, max_segment_size=NEVER
            ),
            wal_enabled=False,
        )

    def optimise(self, threshold: int) -> None:
        self.shard.flush()
        self.shard.close()
        self.shard = engine.EdgeShard.load(str(self.folder), self._settings(threshold or NEVER))
        if threshold:
            self.shard.optimize()
            self.shard.flush()

    def close(self) -> None:
        self.shard.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what the API asks of it ---

    def describe(self) -> dict[str, Any]:
        info = self.shard.info()
        names = {str(index_type(kind)): kind for kind in ("keyword", "integer", "float", "geo")}
        return {
            "status": self.status,
            "optimizer_status": self.optimizer,
            "indexed_vectors_count": info.indexed_vectors_count,
            "points_count": info.points_count,
            "segments_count": info.segments_count,
            "config": {
                "params": {"vectors": self.config["vectors"], "shard_number": self.config.get("shard_number")},
                "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
                "optimizer_config": {
                    "deleted_threshold": 0.2,
                    "vacuum_min_vector_number": 1000,
                    "default_segment_number": 0,
                    "flush_interval_sec": 5,
                },
            },
            "payload_schema": {
                name: {"data_type": names[str(index.data_type)], "points": index.points}
                for name, index in info.payload_schema.items()
            },
        }

    def refuse_unindexed(self, value: Any) -> None:
        strict = self.config.get("strict_mode_config") or {}
        if strict.get("enabled") and strict.get("unindexed_filtering_retrieve") is False:
            for name in filtered_fields(value):
                if name not in self.shard.info().payload_schema:
                    raise RefusedError(400, f'Index required but not found for "{name}"')

    def upsert(self, points: list[dict[str, Any]]) -> None:
        made = []
        for point in points:
            named: dict[str, Any] = {"text": point["vector"]["text"]}
            if sparse := point["vector"].get("lexical"):
                named["lexical"] = engine.SparseVector(sparse["indices"], sparse["values"])
            made.append(engine.Point(point["id"], named, point.get("payload") or {}))
        self.shard.update(engine.UpdateOperation.upsert_points(made))

    def query(self, body: dict[str, Any]) -> dict[str, Any]:
        asked, using = body["query"], body["using"]
        asked = asked["nearest"] if isinstance(asked, dict) and "nearest" in asked else asked
        vector = engine.SparseVector(asked["indices"], asked["values"]) if isinstance(asked, dict) else asked
        params = body.get("params") or {}
        acorn = params.get("acorn") or {}
        request = engine.QueryRequest(
            limit=body["limit"],
            query=engine.Query.Nearest(vector, using=using),
            filter=engine_filter(body["filter"]) if body.get("filter") else None,
            params=engine.SearchParams(
                exact=bool(params.get("exact")),
                hnsw_ef=params.get("hnsw_ef"),
                acorn=engine.AcornSearchParams(enable=True, max_selectivity=acorn["max_selectivity"])
                if acorn.get("enable")
                else None,
            ),
        )
        found = self.shard.query(request)
        return {"points": [{"id": str(point.id), "version": 0, "score": point.score} for point in found]}

    def records(self, ids: list[str], body: dict[str, Any]) -> list[dict[str, Any]]:
        payload, vector = body.get("with_payload", True), body.get("with_vector", False)
        found = self.shard.retrieve(ids, with_payload=payload, with_vector=vector)
        return [
            {"id": str(one.id), "payload": one.payload, "vector": _vectors_of(one) if vector else None} for one in found
        ]

    def scroll(self, body: dict[str, Any]) -> dict[str, Any]:
        request = engine.ScrollRequest(
            limit=body["limit"],
            offset=body.get("offset"),
            with_payload=body.get("with_payload", True),
            with_vector=False,
        )
        found, after = self.shard.scroll(request)
        points = [{"id": str(one.id), "payload": one.payload} for one in found]
        return {"points": points, "next_page_offset": None if after is None else str(after)}


def _vectors_of(record: Any) -> dict[str, Any]:
    return {name: value for name, value in (record.vector or {}).items() if name == "text"}


class RestServer:
    """The double: its state, what was asked of it, and the faults it is told to have."""

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}
        self.aliases: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.version = VERSION
        self.key: str | None = None
        self.broken: list[Exception] = []
        self.statuses: list[str] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.url = ""
        self._lock = threading.RLock()

    def fail(self, method: str, path: str, *, times: int = 1, **fault: Any) -> None:
        self.faults.append(Fault(method, path, times, **fault))

    def paths(self, method: str) -> list[str]:
        return [path for verb, path, _ in self.asked if verb == method]

    def of(self, corpus: str) -> Collection:
        return self.collections[self.aliases[f"georag__{corpus}"]]

    def answer(self, method: str, path: str, body: Any) -> Any:
        with self._lock:
            return self._routed(method, [part for part in path.split("/") if part], body or {})

    def _routed(self, method: str, parts: list[str], body: Any) -> Any:
        match method, parts:
            case "GET", []:
                return {"title": "qdrant", "version": self.version}
            case "GET", ["collections"]:
                return {"collections": [{"name": name} for name in sorted(self.collections)]}
            case "GET", ["aliases"]:
                return {"aliases": [{"alias_name": a, "collection_name": c} for a, c in self.aliases.items()]}
            case "POST", ["collections", "aliases"]:
                return self._alias(body["actions"])
            case "GET", ["collections", name, "exists"]:
                return {"exists": name in self.collections}
            case "PUT", ["collections", name]:
                if name in self.collections:
                    raise RefusedError(409, f"Wrong input: Collection `{name}` already exists!")
                self.collections[name] = Collection(body)
                return True
            case "DELETE", ["collections", name]:
                found = self.collections.pop(name, None)
                if found is not None:
                    found.close()
                self.aliases = {alias: to for alias, to in self.aliases.items() if to != name}
                return found is not None
        collection = self.collections.get(parts[1]) or self.collections.get(self.aliases.get(parts[1], ""))
        if collection is None:
            raise RefusedError(404, f"Not found: Collection `{parts[1]}` doesn't exist!")
        return self._of_collection(method, parts[2:], body, collection)

    def _of_collection(self, method: str, parts: list[str], body: Any, collection: Collection) -> Any:
        shard, done = collection.shard, {"operation_id": 0, "status": "completed"}
        match method, parts:
            case "GET", []:
                described = collection.describe()
                return {**described, "status": self.statuses.pop(0)} if self.statuses else described
            case "PATCH", []:
                threshold = (body.get("optimizers_config") or {}).get("indexing_threshold")
                if threshold is not None:
                    collection.optimise(threshold)
                return True
            case "PUT", ["index"]:
                shard.update(
                    engine.UpdateOperation.create_field_index(body["field_name"], index_type(body["field_schema"]))
                )
                return done
            case "DELETE", ["index", name]:
                shard.update(engine.UpdateOperation.delete_field_index(name))
                return done
            case "PUT", ["points"]:
                collection.upsert(body["points"])
                return done
            case "POST", ["points", "delete"]:
                shard.update(engine.UpdateOperation.delete_points(body["points"]))
                return done
            case "POST", ["points", "payload"]:
                collection.refuse_unindexed(body.get("filter"))
                shard.update(
                    engine.UpdateOperation.set_payload_by_filter(engine_filter(body["filter"]), body["payload"])
                )
                return done
            case "POST", ["points", "query"]:
                collection.refuse_unindexed(body.get("filter"))
                return collection.query(body)
            case "POST", ["points", "count"]:
                collection.refuse_unindexed(body.get("filter"))
                where = engine_filter(body["filter"]) if body.get("filter") else None
                return {"count": shard.count(engine.CountRequest(exact=True, filter=where))}
            case "POST", ["points"]:
                return collection.records(body["ids"], body)
            case "POST", ["points", "scroll"]:
                return collection.scroll(body)
        raise RefusedError(404, f"no such endpoint here: {method} {'/'.join(parts)}")

    def _alias(self, actions: list[dict[str, Any]]) -> bool:
        aliases = dict(self.aliases)
        for action in actions:
            if gone := action.get("delete_alias"):
                aliases.pop(gone["alias_name"])
            if made := action.get("create_alias"):
                if made["collection_name"] not in self.collections:
                    raise RefusedError(404, f"Not found: Collection `{made['collection_name']}` doesn't exist!")
                aliases[made["alias_name"]] = made["collection_name"]
        self.aliases = aliases
        return True


def _handler(server: RestServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            path = self.path.split("?")[0]
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            server.asked.append((self.command, path, body))
            server.before(self.command, path)
            fault = next((one for one in server.faults if one.matches(self.command, path)), None)
            if fault is not None:
                fault.times -= 1
                if fault.hang_up == "after":
                    server.answer(self.command, path, body)
                if fault.hang_up:
                    self.close_connection = True
                    return
                self._reply(fault.status, {"status": {"error": "ordered by the test"}}, fault.headers)
                return
            if server.key is not None and self.headers.get("api-key") != server.key:
                self._reply(401, {"status": {"error": "Must provide an API key"}})
                return
            try:
                result = server.answer(self.command, path, body)
            except RefusedError as error:
                self._reply(error.status, {"status": {"error": error.told}, "time": 0.0})
                return
            except Exception as error:
                server.broken.append(error)
                self._reply(500, {"status": {"error": f"the double is broken: {error!r}"}})
                return
            # The version is the one answer without an envelope.
            self._reply(200, result if path == "/" else {"result": result, "status": "ok", "time": 0.0})

        def _reply(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, told in (headers or {}).items():
                self.send_header(name, told)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _handle

    return Handler


@contextmanager
def serving(certificate: tuple[Path, Path] | None = None) -> Iterator[RestServer]:
    """Run the double on a free port of the loopback, by TLS where a certificate and its key are given."""
    state = RestServer()
    listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    listener.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    state.url = f"{'https' if certificate else 'http'}://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
        assert not state.broken, state.broken[0]
        for collection in state.collections.values():
            collection.close()
