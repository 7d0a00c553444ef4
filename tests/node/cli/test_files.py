"""Files that a person hands in: the error names the file, the place in it, and what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.files import check_overwrite, check_regular
from node.cli.jobs import read_spec
from node.cli.output import parse_amount
from node.cli.transactions import read_possession
from node.home.keys import read_passphrase
from rpc.client import GatewayUnreachable
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import ConfigError, KeystoreError
from tasks.spec import encode_spec
from tests.tasks.world import spec

JOB: dict[str, Any] = spec_to_json(spec())


def write(folder: Path, content: bytes | str) -> Path:
    file = folder / "my job.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("content", ["secret", "secret\n", "secret\r\n", "\ufeffsecret\n", "secret\n\n \n"])
def test_a_passphrase_is_the_line_of_its_file_without_what_an_editor_adds(tmp_path: Path, content: str) -> None:
    assert read_passphrase(write(tmp_path, content)) == "secret"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty; the mnemonic is expected in it"),
        (b"\n", "the first line is empty; the mnemonic is expected in it"),
        (b"\xef\xbb\xbf\n", "the first line is empty; the mnemonic is expected in it"),
        (b"one\ntwo\n", "2 lines found; the mnemonic is expected in one line, alone"),
        ("secret\n".encode("utf-16"), "UTF-16 text; save the mnemonic as UTF-8"),
        (b"caf\xe9\n", r"not UTF-8 text \(byte 3\)"),
        (b"x" * 70_000, "file too large; one line with the mnemonic is expected"),
    ],
)
def test_what_is_no_secret_in_one_line_is_told_with_what_was_found(
    tmp_path: Path, content: bytes, said: str
) -> None:
    with pytest.raises(KeystoreError, match=rf"my job\.json: {said}$"):
        read_passphrase(write(tmp_path, content), "mnemonic")


def test_a_secret_that_others_can_read_is_named_as_what_it_is(tmp_path: Path) -> None:
    file = write(tmp_path, "x")
    file.chmod(0o644)
    with pytest.raises(KeystoreError, match=r"others can read the secret key \(mode 0644\); chmod 600 it$"):
        read_passphrase(file, "secret key")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty; expected a job specification"),
        ("steps = 3\n", r"not valid JSON \(line 1, column 1: Expecting value\); expected a job specification"),
        ('{\n"kind": "train",\n}', r"not valid JSON \(line 3, column 1"),
        ("a,b\n1,2\n", r"not valid JSON \(line 1"),
        ("[1, 2]", "the specification: not a JSON object"),
        (b"{}\n\xff", r"not UTF-8 text \(line 2\); expected a job specification"),
        ("[" * 30_000, "(JSON nested too deeply|not valid JSON)"),
        (b"\x82\x01", "the job cannot run: "),
    ],
)
def test_a_job_that_is_none_is_told_with_file_line_and_what_was_expected(
    tmp_path: Path, content: bytes | str, said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"my job\.json: {said}"):
        read_spec(write(tmp_path, content))


def test_a_job_is_read_as_json_with_a_byte_order_mark_and_as_canonical_bytes(tmp_path: Path) -> None:
    raw = encode_spec(spec())
    assert read_spec(write(tmp_path, "\ufeff" + json.dumps(JOB))) == raw
    assert read_spec(write(tmp_path, raw)) == raw


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("", "match_ms", 0, "match_ms: an integer from 1 to 86400000 expected, not 0"),
        ("", "match_ms", -1, "match_ms: not a whole number of 0 or more: -1"),
        ("", "match_ms", "9" * 50, r"match_ms: number too large \(50 digits\)"),
        (
            "",
            "kind",
            "infer",
            "the kinds train, finetune, generate, container, embed, evaluate can be run, not .infer.",
        ),
        ("dataset", "samples", 0, "dataset.samples: an integer from 1 to 524288 expected, not 0"),
        ("dataset", "blob", "0x12", "dataset.blob: not 64 hex digits"),
        ("", "max_price_per_tera_unit", "0", "max_price_per_tera_unit: an integer from 1 to "),
        ("requirements", "rate_min", 1 << 53, "requirements.rate_min: an integer from 0 to "),
        ("requirements", "gpus", 1025, r"requirements.gpus: an integer from 0 to [0-9]+ expected, not 1025"),
        ("schedule", "segment_steps", 7, "schedule.window_steps: a multiple of segment_steps"),
        ("schedule", "total_steps", 1, "schedule: segment_steps .* <= total_steps 1 expected"),
    ],
)
def test_a_job_whose_field_is_out_of_bounds_names_field_and_bound(
    tmp_path: Path, part: str, name: str, value: Any, said: str
) -> None:
    job = json.loads(json.dumps(JOB))
    (job[part] if part else job)[name] = value
    with pytest.raises(ConfigError, match=said):
        read_spec(write(tmp_path, json.dumps(job)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty; expected what `dekube signer possession --json` writes"),
        ("{", r"not valid JSON \(line 1, column 2"),
        ("[]", "not a JSON object"),
        ('{"vote_key": "0x12"}', "possession is missing"),
        ('{"vote_key": "0xzz"}', "vote_key: not 0x and hex digits"),
        ('{"vote_key": 12}', "vote_key: not 0x and hex digits"),
    ],
)
def test_a_possession_that_is_none_is_told_with_what_is_missing(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"my job\.json: {said}"):
        read_possession(write(tmp_path, content))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.1234567890123456789", "it has 19 decimals, and 1 DKB has 18"),
        ("-1", "it is negative"),
        ("", "it is empty"),
        ("1,5", "the decimal point is a point"),
        ("1e18", "other characters than digits"),
        ("1.5wei", "wei is the smallest unit, it has no fraction"),
        ("9" * 31, "it is too large"),
        ("٣", "other characters than digits"),
    ],
)
def test_what_is_no_amount_is_told_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said) as caught:
        parse_amount(text)
    assert "is not an amount" in str(caught.value)


def test_a_file_that_is_there_is_not_overwritten_by_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "mine")
    for free in (None, tmp_path / "new"):
        check_overwrite(free, yes=False)
    check_overwrite(file, yes=True)
    with pytest.raises(ConfigError, match=r"the file exists; add --yes to overwrite it\. Nothing was changed"):
        check_overwrite(file, yes=False)
    for yes in (False, True):
        with pytest.raises(ConfigError, match="a folder"):
            check_overwrite(tmp_path, yes=yes)
    with pytest.raises(ConfigError, match="none: the folder of --save does not exist"):
        check_overwrite(tmp_path / "none" / "x", yes=True, option="--save")
    asked: list[str] = []
    monkeypatch.setattr("node.cli.files.is_at_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", lambda question, **_: asked.append(question))
    check_overwrite(file, yes=False)
    assert asked == [f"{file} exists. Overwrite it?"]


def test_what_has_no_end_is_not_read() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: not a regular file"):
        check_regular(Path("/dev/zero"))


TASK = "0x" + "ab" * 32


@pytest.mark.parametrize(
    "line",
    [("task", "quote", "--save"), ("task", "result", TASK, "--out"), ("blob", "get", TASK, "--out")],
    ids=" ".join,
)
def test_a_command_that_would_overwrite_says_so_before_it_asks_anybody(
    tmp_path: Path, line: tuple[str, ...]
) -> None:
    file = tmp_path / "mine.npz"
    file.write_text("mine")
    command = [*line, str(file), "--home", str(tmp_path), "--rpc", "http://127.0.0.1:1"]
    done = CliRunner().invoke(group, command, standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and "add --yes to overwrite it" in str(done.exception)
    asked = CliRunner().invoke(group, [*command, "--yes"], standalone_mode=False)
    assert isinstance(asked.exception, GatewayUnreachable)
    assert file.read_text() == "mine"


def test_what_has_no_end_is_not_put_into_a_blob_store(tmp_path: Path) -> None:
    command = ["blob", "put", "/dev/zero", "--home", str(tmp_path), "--rpc", "http://127.0.0.1:1"]
    done = CliRunner().invoke(group, command, standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and "/dev/zero: not a regular file" in str(done.exception)


@pytest.mark.parametrize("verb", ["new", "import"])
@pytest.mark.parametrize("name", ["a/b", "/tmp/x", "./x", "x.json", "../x"])
def test_an_account_has_a_name_and_no_path(tmp_path: Path, verb: str, name: str) -> None:
    done = CliRunner().invoke(group, ["wallet", verb, name, "--home", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert "a name expected, not the path of a file" in str(done.exception)
    assert not list(tmp_path.iterdir())
