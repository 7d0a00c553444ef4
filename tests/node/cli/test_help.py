"""Help texts: plain sentences, a first sentence that stands in lists of commands, an example to copy."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import click
import pytest

from node.cli import _COMMANDS, group
from node.cli.commands import SENTENCE_MAX

WORDS_MAX = 15
_END = re.compile(r"(?<=[.?!])\s+")
_DEFAULT = re.compile(r"\s*\[default: [^]]*\]")
IMPERATIVE_NOT = {
    *(
        "the",
        "a",
        "an",
        "this",
        "that",
        "these",
        "it",
        "what",
        "who",
        "whoever",
        "how",
        "where",
        "when",
        "without",
    ),
    *("with", "of", "for", "to", "all"),
}
NO_SENTENCE = ("anew", "who sits", "whoever", "had with", "lives here")


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, (*path, name))


COMMANDS = dict(walk(group, ("dekube",)))
each_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def paragraphs(help_: str) -> list[str]:
    """Return the paragraphs of prose: not those that click leaves as they are written, such as examples."""
    found = [part.strip() for part in re.split(r"\n\s*\n", help_)]
    return [" ".join(part.split()) for part in found if not part.startswith("\b")]


def sentences(text: str) -> list[str]:
    return _END.split(text.strip())


def check_sentences(text: str) -> None:
    for sentence in sentences(text):
        assert sentence.endswith("."), f"no full stop: {sentence!r}"
        assert sentence[:1].isupper() or not sentence[:1].isalpha() or sentence.split()[0] in ("config.toml",), (
            sentence
        )
        count = len(sentence.split())
        assert count <= WORDS_MAX, f"{count} words: {sentence!r}"
    for word in NO_SENTENCE:
        assert word not in text.lower(), text


@each_command
def test_a_command_says_what_it_does_in_a_whole_first_sentence(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.help
    first = paragraphs(command.help)[0]
    assert len(sentences(first)) == 1, f"the first paragraph is one sentence: {first!r}"
    assert command.get_short_help_str(SENTENCE_MAX) == first
    verb = re.sub(r"^After a fork, ", "", first).split()[0]
    assert verb.lower() not in IMPERATIVE_NOT
    assert not verb.endswith("s"), f"an imperative verb first, not {verb!r}"


@each_command
def test_the_sentences_of_a_command_are_short(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    for paragraph in paragraphs(command.help or ""):
        check_sentences(paragraph)


@each_command
def test_the_sentences_of_options_are_short(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            check_sentences(_DEFAULT.sub("", parameter.help))


@each_command
def test_a_command_shows_an_example_of_itself(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    if isinstance(command, click.Group):
        return
    blocks = [part for part in re.split(r"\n\s*\n", command.help or "") if part.strip().startswith("\b")]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert any(" ".join(path) in line for line in lines), "no example"


@each_command
def test_an_example_has_only_options_and_commands_that_exist(path: tuple[str, ...]) -> None:
    blocks = [p for p in re.split(r"\n\s*\n", COMMANDS[path].help or "") if p.strip().startswith("\b")]
    for line in (line for block in blocks for line in block.splitlines()):
        for found in re.finditer(r"\bdekube((?: [a-z][a-z-]*)*)([^#\n]*)", line):
            words = found[1].split()
            command: click.Command = group
            while words and isinstance(command, click.Group):
                inner = command.get_command(click.Context(command), words[0])
                assert inner is not None, line
                command = inner
                words.pop(0)
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            for option in re.findall(r"(?<!\S)--[a-z-]+", found[2]):
                assert option in known, f"{option} in {line!r}"


def test_the_list_of_commands_has_the_first_sentence_of_each() -> None:
    """It is written apart, so that a list loads no command."""
    for name, (_, text) in _COMMANDS.items():
        command = COMMANDS["dekube", name]
        assert text == command.get_short_help_str(SENTENCE_MAX), name
    added = COMMANDS["dekube", "testnet"].get_short_help_str(SENTENCE_MAX)
    assert added == importlib.import_module("testnet").SHORT_HELP


def test_leaving_names_the_notice_of_an_engine_and_of_a_cluster() -> None:
    told = COMMANDS["dekube", "worker", "leave"].help or ""
    assert "executor.docker.notice_s" in told and "executor.kubernetes.notice_s" in told
