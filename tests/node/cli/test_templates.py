"""The gallery of job files: every one is valid, says its defaults, and becomes a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.templates import names, template
from state.primitives.errors import ConfigError
from tasks.kinds.container import KIND_CONTAINER
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import KINDS, kind_of, read_file, request_of_member
from tasks.requests.references import TaskRef
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.tuned import TINY

DATA = ("answers.jsonl", "prompts.jsonl", "texts.jsonl", "test.jsonl")


def test_there_is_a_template_for_each_kind() -> None:
    assert set(KINDS) <= {kind_of(read_file(template(name), "f.yaml").request) for name in names()}


@pytest.mark.parametrize("name", names())
def test_what_a_template_shows_are_the_defaults(name: str) -> None:
    text = template(name)
    found = read_file(text, "f.yaml")
    least = "".join(line for line in text.partition("# Every field")[0].splitlines(keepends=True))
    for step, same in zip(read_file(least, "f.yaml").steps, found.steps, strict=True):
        for member, other in zip(step.members, same.members, strict=True):
            assert request_of_member(member) == request_of_member(other)
    assert found.terms.budget


def test_the_sweep_is_an_array_of_twelve_and_the_steps_are_two_jobs() -> None:
    assert [len(step.members) for step in read_file(template("sweep"), "f").steps] == [12]
    steps = read_file(template("steps"), "f")
    assert [(step.name, step.after) for step in steps.steps] == [("tune", ()), ("ask", ("tune",))]
    asked = steps.request_of(steps.steps[1].members[0], {"tune": "task:0x" + "ab" * 32})
    assert getattr(asked, "adapter", None) == TaskRef(b"\xab" * 32)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_template_becomes_a_job_with_a_model_and_data(name: str, tmp_path: Path) -> None:
    for model in ("smollm2-135m", "all-minilm-l6-v2"):
        (tmp_path / "models" / model).mkdir(parents=True)
    write_folder(tmp_path / "models/smollm2-135m", TINY)
    write_folder(tmp_path / "models/all-minilm-l6-v2", TINY)
    for data in DATA:
        (tmp_path / data).write_text('{"input_ids": [1, 2, 3]}\n' * 2)
    (tmp_path / "book.txt").write_text("A text.\nAnd its second line.\n")
    (tmp_path / "main.py").write_text("print(1)\n")
    done = CliRunner().invoke(group, ["templates", "show", name])
    (tmp_path / "job.yaml").write_text(done.stdout.replace("new_tokens: 64", "new_tokens: 4"))
    checked = CliRunner().invoke(group, ["task", "validate", str(tmp_path / "job.yaml"), "--json"])
    assert checked.exit_code == 0 and json.loads(checked.stdout)["kind"] == name
    for data in DATA:
        (tmp_path / data).write_text('{"input_ids": [1, 2, 3]}\nnothing\n')
    (tmp_path / "book.txt").write_bytes(b"A text.\n\xff\n")
    (tmp_path / "main.py").unlink()
    broken = CliRunner().invoke(group, ["task", "validate", str(tmp_path / "job.yaml")])
    assert isinstance(broken.exception, RequestInvalid)
    if name == KIND_CONTAINER:
        assert "main.py" in str(broken.exception)
    else:
        assert (broken.exception.line, broken.exception.code) == (2, "rows_invalid")
    alone = CliRunner().invoke(group, ["task", "validate", str(tmp_path / "job.yaml"), "--fields"])
    assert alone.exit_code == 0


def test_an_unknown_template_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean finetune"):
        template("finetun")
    listed = CliRunner().invoke(group, ["templates", "--json"])
    assert [row["name"] for row in json.loads(listed.stdout)] == names()
