"""Embedding: OpenVINO converted from the torch module beside torch, the same texts, the same run.

`python -m benchmarks.embedding [--json] [--quick]`
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.report import Report, data_folder, run
from georag_assets.index.embedding import Embedder
from georag_assets.settings import Settings

FIRST_QUERY = """
import time; started = time.perf_counter()
import sys; from pathlib import Path
from georag_assets.index.embedding import Embedder
from georag_assets.settings import Settings
Embedder.load(Settings(home=Path(sys.argv[1]))).encode(["weirs on the Limmat"])
print(time.perf_counter() - started)
"""


def texts(count: int) -> list[str]:
    """Return descriptions of real catalogue records, spread over the set."""
    with gzip.open(data_folder() / "stanford_ogm" / "docs.jsonl.gz", "rt", encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream]
    chosen = [records[row] for row in np.linspace(0, len(records) - 1, count).astype(int)]
    return [f"{record['title']}. {record.get('description') or ''}" for record in chosen]


def measure(report: Report, quick: bool) -> None:
    """Embed by both, compare vectors and speed, and time a first query in a new process."""
    given = texts(128 if quick else 512)
    vectors, rates = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        embedders = {
            backend: Embedder.load(settings.model_copy(update={"embedding_backend": backend}))
            for backend in ("torch", "openvino")
        }
        seconds = dict.fromkeys(embedders, 0.0)
        parts: dict[str, list[np.ndarray]] = {backend: [] for backend in embedders}
        for embedder in embedders.values():
            embedder.probe()
        # In turns, so that whatever else this machine does falls on both.
        for start in range(0, len(given), 64):
            for backend, embedder in embedders.items():
                started = time.perf_counter()
                parts[backend].append(embedder.encode(given[start : start + 64]))
                seconds[backend] += time.perf_counter() - started
        for backend, embedder in embedders.items():
            vectors[backend] = np.vstack(parts[backend])
            rates[backend] = len(given) / seconds[backend]
            report.compare(f"{backend} {embedder.identity.precision}", rates[backend], "texts/s")
        cosines = np.einsum("ij,ij->i", *vectors.values())
        report.at_least("OpenVINO beside torch", 1.5, rates["openvino"] / rates["torch"], "times")
        report.at_least("mean cosine between them", 0.9999, round(float(cosines.mean()), 6), "")
        report.compare("least cosine between them", round(float(cosines.min()), 6), "")
        firsts = [
            float(subprocess.run([sys.executable, "-c", FIRST_QUERY, folder], capture_output=True, check=True).stdout)
            for _ in range(3)
        ]
        report.at_most("first query in a new process, imports included", 1.0, min(firsts), "s")
    report.context["texts"] = len(given)


if __name__ == "__main__":
    run("embedding", measure, packages=("torch", "sentence-transformers", "openvino", "tokenizers"))
