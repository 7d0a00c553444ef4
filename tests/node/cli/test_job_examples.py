"""Examples of docs/jobs.md: each is a job file that is read, or a part of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tasks.requests.reading import read_file

DOCUMENT = Path(__file__).parents[3] / "docs" / "jobs.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
IMAGE = "docker.io/library/python@sha256:"
KIND = "kind: container\n"
REST = f"{KIND}image: {IMAGE}{'ab' * 32}\n"
"""What a part of a job file lacks: all of them are of containers."""


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize(
    "text", BLOCKS, ids=[block.partition("\n")[0].partition("#")[0].strip() for block in BLOCKS]
)
def test_an_example_is_read(text: str) -> None:
    text = text.replace(f"{IMAGE}...", f"{IMAGE}{'ab' * 32}")
    if not {"kind", "jobs"} & (fields := yaml.safe_load(text).keys()):
        text = (KIND if "image" in fields else REST) + text
    assert read_file(text, "job.yaml").steps
