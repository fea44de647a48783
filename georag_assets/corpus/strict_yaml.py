"""YAML read strictly: what YAML would silently change or drop is an error with its line.

What belongs here: reading YAML text into plain values, with the line of every key. What does not: what the values mean
(`declaration`). YAML 1.1, which PyYAML reads, keeps the last of two equal keys, and takes `04326` for 2262, `1:30` for
90, `1_0` for 10 and `no` for false; here each is refused, and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

Path = tuple[str | int, ...]

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at a key: `lines` are 1-based and name every place involved."""

    path: Path
    lines: tuple[int, ...]
    what: str
    expected: str | None = None
    found: str | None = None


@dataclass(frozen=True, slots=True)
class StrictDocument:
    """One document of a YAML file: its value, the line of every path, and all faults found."""

    value: object
    lines: dict[Path, int]
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class _Reader:
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    open_nodes: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: Path) -> object:
        self.lines.setdefault(path, _line(node))
        if id(node) in self.open_nodes:
            self._fault(path, node, "an alias contains itself")
            return None
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            where = (*path, key)
            if key_node.tag == _TAG + "merge":
                self._fault(where, key_node, "merge keys are not read", "the keys written out", "<<")
                continue
            if key in first:
                lines = (first[key], _line(key_node))
                self.faults.append(Fault(where, lines, "the key is given twice", "one value", "two"))
                continue
            first[key] = self.lines[where] = _line(key_node)
            result[key] = self.value(value_node, where)
        return result

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        text = str(node.value)
        quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
        if quoted or node.tag in {_TAG + "str", _TAG + "timestamp"}:
            return text
        if node.tag.removeprefix(_TAG) not in {"int", "float", "bool", "null"}:
            self._fault(path, node, "the tag is not read", "plain YAML", node.tag)
            return None
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if node.tag in {_TAG + "int", _TAG + "float"}:
            expected = 'a plain decimal number, or text in quotes ("...")'
            self._fault(path, node, "YAML would read this as another number", expected, text)
        else:
            self._fault(path, node, "YAML would read this word as true or false", 'true, false, or "..."', text)
        return None

    def _fault(
        self, path: Path, node: yaml.Node, what: str, expected: str | None = None, found: str | None = None
    ) -> None:
        self.faults.append(Fault(path, (_line(node),), what, expected, found))


def read(text: str) -> Iterator[StrictDocument]:
    """Yield the documents of a YAML text.

    Raises
    ------
    yaml.YAMLError
        The text is not YAML at all; its `problem_mark` has the line.
    """
    for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
        reader = _Reader()
        value = reader.value(node, ())
        yield StrictDocument(value, reader.lines, tuple(reader.faults))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
