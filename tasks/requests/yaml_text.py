"""A strict subset of YAML: one meaning for each text, a line for each field, bounded (docs/jobs.md, The file).

PyYAML's events are composed here. Its own values are not used: it takes ``no`` for false, ``010`` for eight,
``1:30`` for ninety and ``1e-3`` for a text, and repeats what an alias names as often as it is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tasks.requests.errors import RequestInvalid
from tasks.requests.fields import FieldPath

__all__ = ["BYTES_MAX", "Document", "read_yaml"]

BYTES_MAX: Final = 1 << 16
DEPTH_MAX: Final = 8
NODES_MAX: Final = 4096
KEY_LENGTH_MAX: Final = 64
NUMBER_LENGTH_MAX: Final = 40

_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,4})?")
_HALF: Final = re.compile("[\ud800-\udfff]")
_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}")
_WORDS: Final = {"true": True, "false": False}
_NOTHING: Final = frozenset(("", "~", "null", "Null", "NULL"))
_DOUBTFUL_WORDS: Final = frozenset(("yes", "no", "on", "off", "y", "n", "true", "false"))
_DOUBTFUL_NUMBER: Final = re.compile(
    r"[-+]?(?:0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9]+(?::[0-9]+)+(?:\.[0-9]*)?|[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9]+\.(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF|nan|NaN|NAN))"
)


class Document(NamedTuple):
    """The fields of a file, and the line of each field and item."""

    values: dict[str, Any]
    lines: dict[FieldPath, int]


def read_yaml(text: str, file: str) -> Document:
    """Return the fields of a text. Raises RequestInvalid, naming ``file`` and line."""
    import yaml

    if len(text.encode("utf-8", "surrogatepass")) > BYTES_MAX:
        raise RequestInvalid(f"too large: more than {BYTES_MAX} bytes", file=file)
    reader = _Reader(file)
    try:
        return reader.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        what = (error.problem or error.context or "not readable").replace("\0", "")
        raise RequestInvalid(f"not valid YAML: {what}", file=file, line=line, column=column) from None
    except yaml.YAMLError as error:  # of the reader: a character that YAML does not allow
        position = getattr(error, "position", None)
        line = None if position is None else text.count("\n", 0, position) + 1
        raise RequestInvalid("not valid YAML: a control character", file=file, line=line) from None


class _Reader:
    """Composes values from events; every construct that readers of YAML understand differently is refused."""

    def __init__(self, file: str) -> None:
        self._file, self._nodes = file, 0
        self._lines: dict[FieldPath, int] = {}

    def document(self, events: Iterator[Any]) -> Document:
        import yaml

        next(events)  # the start of the stream
        start = next(events)
        if isinstance(start, yaml.StreamEndEvent):
            raise RequestInvalid("no field in it", file=self._file)
        if start.version is not None or start.tags:
            raise self._wrong("no directives (%YAML, %TAG)", start)
        values = self._value(events, next(events), (), 0)
        if values == {}:
            raise RequestInvalid("no field in it", file=self._file)
        if not isinstance(values, dict):
            raise self._wrong("fields expected, as `kind: finetune`", start)
        next(events)  # the end of the document
        if not isinstance(after := next(events), yaml.StreamEndEvent):
            raise self._wrong("a second document begins here; one file is one document", after)
        return Document(values, self._lines)

    def _wrong(self, what: str, event: Any) -> RequestInvalid:
        return RequestInvalid(what, file=self._file, line=event.start_mark.line + 1)

    def _value(self, events: Iterator[Any], event: Any, path: FieldPath, depth: int) -> Any:
        import yaml

        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._wrong(f"more than {NODES_MAX} fields and items", event)
        if depth > DEPTH_MAX:
            raise self._wrong(f"nested deeper than {DEPTH_MAX}", event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._wrong("no anchors and aliases (& and *): write the value again, or in quotes", event)
        if event.tag is not None:
            raise self._wrong("no tags (!): the field says which type it has", event)
        self._lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                items.append(self._value(events, inner, (*path, len(items)), depth + 1))
            return items
        fields: dict[str, Any] = {}
        while not isinstance(inner := next(events), yaml.MappingEndEvent):
            name = self._name(inner)
            where = (*path, name)
            if name in fields:
                raise self._wrong(f"{name} is there twice, first in line {self._lines[where]}", inner)
            self._lines[where] = inner.start_mark.line + 1
            fields[name] = self._value(events, next(events), where, depth + 1)
        return fields

    def _name(self, event: Any) -> str:
        import yaml

        if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
            raise self._wrong("the name of a field is a text", event)
        name = self._text(event)
        if not name or len(name) > KEY_LENGTH_MAX or not name.isprintable():
            raise self._wrong(f"the name of a field has 1 to {KEY_LENGTH_MAX} characters", event)
        if name == "<<":
            raise self._wrong("no merging (<<): write the fields again", event)
        return name

    def _text(self, event: Any) -> str:
        value = str(event.value)
        if _HALF.search(value):  # "\\ud800" in quotes
            raise self._wrong("half a character (a surrogate); write it as it is", event)
        return value

    def _scalar(self, event: Any) -> Any:
        value = self._text(event)
        if event.style is not None:  # in quotes, or a block: a text
            return value
        if value in _NOTHING:
            raise self._wrong("a field without a value; remove the line for its default", event)
        if value in _WORDS:
            return _WORDS[value]
        if value.lower() in _DOUBTFUL_WORDS:
            raise self._wrong(f'{value} has two meanings: write true or false, or "{value}" for a text', event)
        if _HASH.fullmatch(value):
            return value
        if _DOUBTFUL_NUMBER.fullmatch(value):
            raise self._wrong(
                f'{value[:NUMBER_LENGTH_MAX]} has two meanings: write a decimal number, or "..." for a text', event
            )
        if _FRACTION.fullmatch(value):
            if len(value) > NUMBER_LENGTH_MAX:
                raise self._wrong(f"a number of more than {NUMBER_LENGTH_MAX} characters", event)
            return int(value) if _WHOLE.fullmatch(value) else float(value)
        return value
