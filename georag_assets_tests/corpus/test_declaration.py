"""Declarations: one YAML file declares a corpus; all that is wrong is told at once, by file, key and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from georag_assets.corpus.declaration import CorpusDeclaration, load_declaration, load_declarations
from georag_assets.errors import DeclarationError
from georag_assets_tests.conftest import REPOSITORY

HEAD = "type: georag_assets.components.Corpus\nattributes:\n  name: ava\n"


def errors_of(folder: Path, files: dict[str, str]) -> DeclarationError:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with pytest.raises(DeclarationError) as caught:
        load_declarations(folder)
    return caught.value


def test_the_shipped_declarations_load(shared: Path) -> None:
    ava = load_declarations(REPOSITORY / "georag_assets" / "defs")["ava"]
    assert ava.geometry is not None
    assert ava.geometry.sidecar.is_file()
    stanford = load_declarations(REPOSITORY / "georag_assets_tests" / "corpora")["stanford_ogm"]
    columns = stanford.sources[0].columns
    assert stanford.sources[0].path.is_file()
    assert stanford.evaluation is not None
    assert stanford.evaluation.queries.is_file()
    assert columns is not None
    assert not {"subjects", "places", "themes"} & set(columns.declared)


def test_paths_start_at_the_file_and_read_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "defs.yaml"
    path.parent.mkdir()
    path.write_text(HEAD + "  sources: ['${SOMEWHERE:-../docs}/*.md', one.txt]\n")
    assert [source.path for source in load_declaration(path).sources] == [
        tmp_path / "docs" / "*.md",
        tmp_path / "a" / "one.txt",
    ]
    monkeypatch.setenv("SOMEWHERE", "/mnt/texts")
    assert load_declaration(path).sources[0].path == Path("/mnt/texts/*.md")


def test_case_o22_a_key_given_twice_names_both_lines(tmp_path: Path, case: Callable[[str], dict]) -> None:
    o22 = case("o22")
    error = errors_of(tmp_path, o22["input"])
    assert all(name in str(error) for name in o22["expected"]["error_names"])
    assert "lines {} and {}".format(*o22["expected"]["error_lines"]) in str(error)


def test_case_o23_a_number_that_yaml_would_change_is_refused(tmp_path: Path, case: Callable[[str], dict]) -> None:
    o23 = case("o23")
    text = o23["input"]["defs.yaml"]
    variants = [text, *(text.replace("epsg: 04326", other) for other in o23["input"]["also"])]
    for number, variant in enumerate(variants):
        key = variant.splitlines()[-1].split(":")[0].strip()
        error = errors_of(tmp_path / str(number), {"defs.yaml": variant})
        assert f"defs.yaml:5: attributes.{key}" in str(error)
        assert "2262" not in str(error)
        assert "2892" not in str(error)


def test_case_o24_every_wrong_file_is_named_and_no_good_one(tmp_path: Path, case: Callable[[str], dict]) -> None:
    o24 = case("o24")
    expected = o24["expected"]
    error = errors_of(tmp_path, o24["input"])
    assert len(error.problems) == len(expected["one_error_names_files"])
    for problem, name, key in zip(
        error.problems, expected["one_error_names_files"], expected["keys_named"], strict=True
    ):
        assert name in problem
        assert f"{key}: unknown key; did you mean {expected['suggestions'][key]!r}?" in problem
    assert "defs/c/" not in str(error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  unit: page\n", "unit: expected input should be 'feature', 'section' or 'document'; found 'page'"),
        ("  budget: many\n", "budget: expected input should be a valid integer"),
        (
            "  quarantine_threshold: 3\n",
            "quarantine_threshold: expected input should be less than or equal to 1; found 3",
        ),
        ("  period: 2020\n", "(a period is text, not a number); found 2020"),
        ("  licence: no\n", "licence: YAML would read this word as true or false"),
        ("  epsg: 4326\n", "epsg: unknown key; did you mean 'frame.epsg'?"),
        ("  frame: {epsg: 99}\n", "frame.epsg: expected input should be greater than or equal to 1024; found 99"),
        ("  geometry: {id: x}\n", "geometry.sidecar: missing"),
        ("  frame: &f {names: *f}\n", "an alias contains itself"),
        ("  <<: {a: b}\n", "merge keys are not read"),
        ("  budget: !!python/int 3\n", "the tag is not read"),
    ],
)
def test_a_wrong_value_says_key_line_expected_and_found(tmp_path: Path, line: str, message: str) -> None:
    error = errors_of(tmp_path, {"x/defs.yaml": HEAD + "  sources: [a.md]\n" + line})
    assert len(error.problems) == 1
    assert "x/defs.yaml:5" in error.problems[0]
    assert message in error.problems[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attributes: [", "not YAML"),
        ("just text", "expected a mapping with type and attributes, found text"),
        ("attributes: {name: a}", "type: missing; expected georag_assets.components.Corpus"),
        ("type: georag_assets.component.Corpus", "did you mean 'georag_assets.components.Corpus'?"),
        (HEAD, "sources: missing"),
        (HEAD + "  sources: []", "sources: expected"),
        (HEAD + "  sources: [{path: a.md, records: passages}]", "only a line of jsonl can hold a list of them"),
        (HEAD + "  sources: records.jsonl", "columns (id and text at least), because jsonl holds records"),
        (
            HEAD + "  sources: [{path: a.md, encoding: utf-9}]",
            "sources[0].encoding: expected the name of a text encoding",
        ),
        (HEAD + "  sources: ${NO_SUCH_VARIABLE}/a.md", "NO_SUCH_VARIABLE is not set"),
        (HEAD.replace("ava", "Ava!") + "  sources: a.md", "name: expected string should match pattern"),
        ("type: georag_assets.components.Corpus\nattributes: text", "attributes: expected input should be"),
    ],
)
def test_a_file_that_is_no_declaration(tmp_path: Path, text: str, message: str) -> None:
    error = errors_of(tmp_path, {"x/defs.yaml": text})
    assert message in str(error)
    assert "x/defs.yaml" in str(error)
    assert "Traceback" not in str(error)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeclarationError, match=r"defs\.yaml: cannot be read"):
        load_declaration(tmp_path / "defs.yaml")
    with pytest.raises(DeclarationError, match=r"none\.yaml: cannot be read: No such file"):
        load_declaration(tmp_path / "none.yaml")
    with pytest.raises(DeclarationError, match="folder of declarations"):
        load_declarations(tmp_path / "nowhere")


def test_two_corpora_of_one_name_and_other_peoples_components(tmp_path: Path) -> None:
    good = HEAD + "  sources: [a.md]\n"
    (tmp_path / "defs.yaml").write_text("type: mine.Other\nattributes: {anything: 1}\n---\n" + good)
    assert list(load_declarations(tmp_path)) == ["ava"]
    error = errors_of(tmp_path, {"second/defs.yaml": good})
    assert "'ava' is declared in" in str(error)


def test_shorthands_and_one_geometry_at_most() -> None:
    columns = {"id": "id", "text": "body", "period": "year"}
    made = CorpusDeclaration.model_validate({"name": "a", "sources": [{"path": "a.csv", "columns": columns}]})
    assert made.sources[0].columns is not None
    assert made.sources[0].columns.declared == ("id", "body", "year")
    for wrong in ({"bbox": ["w", "s", "e"]}, {"bbox": "b", "geometry": "g"}):
        with pytest.raises(ValueError, match=r"bbox|four"):
            CorpusDeclaration.model_validate({"name": "a", "sources": [{"path": "a.csv", "columns": columns | wrong}]})


def test_a_file_nested_without_end_is_told_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_text("x: " + "[" * 5000)
    with pytest.raises(DeclarationError, match="nested too deeply"):
        load_declaration(tmp_path / "defs.yaml")
