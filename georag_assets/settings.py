"""Settings: the only place that reads the environment (GEORAG_*).

What belongs here: names, types, defaults of settings that hold for a whole installation. What does not: anything
declared per corpus (`corpus.declaration`).
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from georag_assets.errors import SettingError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand(text: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` by the environment's values; unset without default is an error."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise SettingError(
                f"environment variable {match[1]} is not set", do=f"set it, or write ${{{match[1]}:-default}}"
            )
        return found

    return _REFERENCE.sub(value, text)


class Settings(BaseSettings):
    """Installation-wide settings, each from `GEORAG_<NAME>`.

    Attributes
    ----------
    home
        Folder of the local warehouse, builds and caches.
    declarations
        Folder whose `*/defs.yaml` declare corpora for the CLI; empty means the package's own `defs/`.
    catalog_uri, warehouse
        Iceberg catalog and warehouse; empty means a SQLite catalog and a folder under `home`.
    model
        `all-MiniLM-L6-v2` (from its package), or a sentence-transformers name or folder.
    embedding_backend
        `auto` takes OpenVINO where it loads, else torch.
    keep_builds
        How many newest builds stay beside the live one and those that a reader holds.
    exact_limit
        Survivors up to which a filtered search is answered exactly (40,000 of 200,000 points: `benchmarks.bakeoff`).
    workers
        Processes that chunk and frame; empty means one per core. Small changes are made in one process anyway.
    executor
        Dagster executor of the shipped jobs.
    qdrant_url
        Address of a Qdrant server, `http(s)://host[:port]`; with it, corpora that were copied there are searched there.
    qdrant_api_key, qdrant_ca
        Its key, and a file of certificates to trust instead of the system's; neither is ever written anywhere.
    qdrant_timeout_s
        Seconds that one request may take.
    qdrant_patience_s
        Seconds that a refused or broken request is tried again for, and that a collection may take to become ready
        without any sign of progress.
    """

    model_config = SettingsConfigDict(env_prefix="GEORAG_", extra="ignore", env_ignore_empty=True)

    home: Path = Path(".georag")
    declarations: Path | None = None
    catalog_uri: str | None = None
    warehouse: str | None = None
    model: str = "all-MiniLM-L6-v2"
    embedding_backend: Literal["auto", "torch", "openvino"] = "auto"
    embedding_batch: int = Field(default=64, ge=1, le=4096)
    keep_builds: int = Field(default=3, ge=1)
    exact_limit: int = Field(default=50_000, ge=0)
    workers: int | None = Field(default=None, ge=1, le=256)
    executor: Literal["in_process", "multiprocess"] = "in_process"
    allow_removal: bool = False
    qdrant_url: str | None = None
    qdrant_api_key: SecretStr | None = None
    qdrant_ca: Path | None = None
    qdrant_timeout_s: int = Field(default=30, ge=1, le=3600)
    qdrant_patience_s: float = Field(default=300, gt=0)

    @property
    def worker_count(self) -> int:
        """Processes that chunk and frame: as set, else one for each core that this process may use."""
        return self.workers or _usable_cores()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Read elsewhere: by `make` and the tests.
_OTHERS = frozenset({"GEORAG_SHARED"})


def unknown_names() -> dict[str, str | None]:
    """Return GEORAG_* variables of the environment that no setting reads, each with the name that was likely meant."""
    known = {f"GEORAG_{name.upper()}" for name in Settings.model_fields}
    strange = sorted(name for name in os.environ if name.startswith("GEORAG_") and name not in known | _OTHERS)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), None) for name in strange}
