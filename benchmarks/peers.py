"""Other engines over the same points and cases: FAISS, LanceDB, PostgreSQL with pgvector. Each is optional.

What belongs here: building a peer and searching it with the same filter. What does not: which rows are shown
(`bakeoff`). `pip install 'georag-assets[bench]'` brings those that a package ships; one that is absent is a row that
says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.filtered_cases import Case, K, Searcher, meets
from benchmarks.sentences import Sentences
from georag_assets.index.filter import shifted_ranges


@dataclass(frozen=True)
class Peer:
    """A peer's index: how long it took to build, its size, and its searches by name."""

    name: str
    build_s: float
    disk_mib: float | None
    searches: dict[str, Searcher]


@contextmanager
def faiss(points: Sentences, extents: NDArray[np.float64], folder: Path, m: int, ef_construct: int) -> Iterator[Peer]:
    """FAISS: an HNSW graph and an exact scan, each with a selector of the rows that NumPy lets through."""
    import faiss as library

    started = time.perf_counter()
    graph = library.IndexHNSWFlat(points.vectors.shape[1], m, library.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = ef_construct
    graph.add(points.vectors)
    seconds = time.perf_counter() - started
    flat = library.IndexFlatIP(points.vectors.shape[1])
    flat.add(points.vectors)
    library.write_index(graph, str(folder / "faiss.index"))

    def by(index: Any, parameters: Any, case: Case) -> list[int]:
        mask = np.packbits(meets(extents, case.boxes), bitorder="little")
        selector = library.IDSelectorBitmap(len(points), library.swig_ptr(mask))
        _, rows = index.search(case.query[None], K, params=parameters(sel=selector))
        return [int(row) for row in rows[0] if row >= 0]

    def wide(sel: Any) -> Any:
        return library.SearchParametersHNSW(sel=sel, efSearch=1024)

    def narrow(sel: Any) -> Any:
        return library.SearchParametersHNSW(sel=sel, efSearch=64)

    searches: dict[str, Searcher] = {
        "HNSW, ef 64": lambda case: by(graph, narrow, case),
        "HNSW, ef 1024": lambda case: by(graph, wide, case),
        "exact": lambda case: by(flat, library.SearchParameters, case),
    }
    yield Peer(f"faiss-cpu {library.__version__}", seconds, _mib(folder / "faiss.index"), searches)


@contextmanager
def lancedb(points: Sentences, extents: NDArray[np.float64], folder: Path, m: int, ef_construct: int) -> Iterator[Peer]:
    """LanceDB: IVF with HNSW and scalar quantisation, prefilter by SQL over four indexed numbers; and an exact scan."""
    import lancedb as library
    import pyarrow as pa

    started = time.perf_counter()
    dimension = points.vectors.shape[1]
    table = pa.table(
        {
            "row": pa.array(np.arange(len(points))),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(points.vectors.reshape(-1)), dimension),
            **{edge: pa.array(extents[:, place]) for place, edge in enumerate(("west", "south", "east", "north"))},
        }
    )
    opened = library.connect(str(folder / "lance")).create_table("points", table)
    options = {"metric": "cosine", "m": m, "ef_construction": ef_construct, "num_partitions": 1}
    opened.create_index(index_type="IVF_HNSW_SQ", vector_column_name="vector", **options)
    for edge in ("west", "south", "east", "north"):
        opened.create_scalar_index(edge)
    seconds = time.perf_counter() - started

    def ask(case: Case, *, exact: bool) -> list[int]:
        query = opened.search(case.query).distance_type("cosine").where(_sql(case), prefilter=True).limit(K)
        query = query.bypass_vector_index() if exact else query.ef(1024).refine_factor(10)
        return [int(row) for row in query.select(["row", "_distance"]).to_arrow()["row"].to_pylist()]

    searches: dict[str, Searcher] = {
        "IVF_HNSW_SQ, ef 1024, refined": lambda case: ask(case, exact=False),
        "exact": lambda case: ask(case, exact=True),
    }
    yield Peer(f"lancedb {library.__version__}", seconds, _mib(folder / "lance"), searches)


@contextmanager
def postgresql(
    points: Sentences, extents: NDArray[np.float64], folder: Path, m: int, ef_construct: int
) -> Iterator[Peer]:
    """PostgreSQL with pgvector, as the package `pgserver` ships them; extents are `box` under GiST (no PostGIS)."""
    import pgserver
    import psycopg

    folder.chmod(0o755)
    server = pgserver.get_server(str(folder / "postgres"), cleanup_mode="delete")
    try:
        # Never prepared: a prepared statement keeps the plan that was chosen before `enable_indexscan` was off.
        with psycopg.connect(server.get_uri(), autocommit=True, prepare_threshold=None) as connection:
            connection.execute("CREATE EXTENSION vector")
            (version,) = connection.execute(
                "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
            ).fetchone() or ("?",)
            connection.execute("SET maintenance_work_mem = '1GB'")
            started = time.perf_counter()
            connection.execute(f"CREATE TABLE points (id int, vector vector({points.vectors.shape[1]}), extent box)")
            with (
                connection.cursor() as cursor,
                cursor.copy("COPY points (id, vector, extent) FROM STDIN") as lines,
            ):
                for row, (vector, box) in enumerate(zip(points.vectors, extents, strict=True)):
                    west, south, east, north = box
                    lines.write_row(
                        (row, "[" + ",".join(map(str, vector.tolist())) + "]", f"({east},{north}),({west},{south})")
                    )
            connection.execute("CREATE INDEX ON points USING gist (extent)")
            connection.execute(
                "CREATE INDEX ON points USING hnsw (vector vector_ip_ops) "
                f"WITH (m = {m}, ef_construction = {ef_construct})"
            )
            connection.execute("ANALYZE points")
            seconds = time.perf_counter() - started
            (size,) = connection.execute("SELECT pg_total_relation_size('points')").fetchone() or (0,)

            def ask(case: Case, *, plan: str) -> list[int]:
                where = " OR ".join("extent && %s::box" for _ in _boxes(case))
                with connection.transaction():
                    connection.execute("SET LOCAL hnsw.ef_search = 1000")
                    if plan == "exact":
                        connection.execute("SET LOCAL enable_indexscan = off")
                    text = f"SELECT id FROM points WHERE {where} ORDER BY vector <#> %s::vector LIMIT {K}"
                    vector = "[" + ",".join(map(str, case.query.tolist())) + "]"
                    return [row[0] for row in connection.execute(text, [*_boxes(case), vector]).fetchall()]

            searches: dict[str, Searcher] = {
                "as the planner chooses, ef_search 1000": lambda case: ask(case, plan="own"),
                "exact (bitmap over GiST, or a scan)": lambda case: ask(case, plan="exact"),
            }
            yield Peer(f"PostgreSQL 16 with pgvector {version} (pgserver)", seconds, size / 2**20, searches)
    finally:
        server.cleanup()


def _boxes(case: Case) -> list[str]:
    """Return the case's region as PostgreSQL boxes, longitudes shifted by whole turns."""
    found = []
    for box in case.boxes:
        for lowest_east, highest_west in shifted_ranges(box):
            found.append(f"({highest_west},{box.north}),({lowest_east},{box.south})")
    return found


def _sql(case: Case) -> str:
    parts = []
    for box in case.boxes:
        turns = " OR ".join(f"(west <= {high} AND east >= {low})" for low, high in shifted_ranges(box))
        parts.append(f"(south <= {box.north} AND north >= {box.south} AND ({turns}))")
    return " OR ".join(parts)


def _mib(path: Path) -> float:
    files: Sequence[Path] = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files) / 2**20
