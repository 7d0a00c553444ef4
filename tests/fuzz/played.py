"""What campaigns have played, kept in the repository: machines come and go, counts add up.

A line for each decoder says how much of which software; ``campaign`` believes it as long as that is the software
of now. What was kept on the way is in the corpus, as far as somebody put it there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz.reading import Course

PLAYED: Final = Path(__file__).parent / "played.json"


@dataclass(frozen=True)
class Played:
    """What was played of a decoder without a failure, and the digest of what it ran."""

    course: Course
    digest: str


def read_played(path: Path = PLAYED) -> tuple[str, dict[str, Played]]:
    """Return the seed and what was played by decoder; of no seed and nothing where there is no record."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return "", {}
    files = document["files"]
    return document["seed"], {
        name: Played(Course(inputs, accepted, seconds, slowest_s, files=tuple(files[n] for n in ran)), digest)
        for name, (inputs, accepted, seconds, slowest_s, digest, ran) in document["decoders"].items()
    }


def write_played(seed: str, played: Mapping[str, Played], path: Path = PLAYED) -> None:
    """Write the record: a line for each decoder, the files that they run by number."""
    files = sorted({file for one in played.values() for file in one.course.files})
    number = {file: n for n, file in enumerate(files)}
    lines = []
    for name, (course, digest) in sorted((name, (one.course, one.digest)) for name, one in played.items()):
        ran = [number[file] for file in course.files]
        seconds, slowest_s = round(course.seconds, 1), round(course.slowest_s, 4)
        row = [course.inputs, course.accepted, seconds, slowest_s, digest, ran]
        lines.append(f"  {json.dumps(name)}: {json.dumps(row)}")
    decoders = "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"
    path.write_text(f'{{"seed": {json.dumps(seed)},\n "files": {json.dumps(files)},\n "decoders": {decoders}}}\n')
