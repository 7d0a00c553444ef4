"""``python -m tests.house``: the figures of the house; exit status 1 where a limit is broken."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from tests.house import citations, exceptions, imports, paths, prose, sizes


def without_excuse(what: str, found: Mapping[str, str], excuses: Mapping[str, str]) -> list[str]:
    """Return what breaks a rule without an exception, and exceptions that nothing needs."""
    broken = [
        f"{what}: {name}{': ' + why if why else ''}" for name, why in found.items() if not _covers(excuses, name)
    ]
    unused = [f"{what}: the exception {name} is no longer needed" for name in excuses if not _used(found, name)]
    return broken + unused


def _covers(excuses: Iterable[str], name: str) -> bool:
    return any(name == excuse or (excuse.endswith(".*") and name.startswith(excuse[:-1])) for excuse in excuses)


def _used(found: Iterable[str], excuse: str) -> bool:
    return any(_covers((excuse,), name) for name in found)


def _too_long(kind: str, most: int) -> dict[str, str]:
    return {size.name: f"{size.lines} > {most}" for size in sizes.longest(kind) if size.lines > most}


def check() -> tuple[list[str], list[str]]:
    """Return the figures as lines, and what breaks a limit."""
    circles, upward, impure = imports.circles(), imports.upward_imports(), imports.impure()
    cited, unresolved = citations.citations(), citations.unresolved()
    documents = prose.documents()
    words = prose.lengths([path.read_text() for path in documents])
    claimed = {name: way for name, way in impure.items() if not _covers(exceptions.IMPURE, name)}
    words_a_sentence = f"median {words.median}, p90 {words.p90}"
    figures = [
        f"files: {len(sizes.sources())}",
        f"circles: {len(circles)}",
        f"upward imports: {len(upward)}",
        *(f"longest {kind}: {sizes.longest(kind)[0].name} ({sizes.longest(kind)[0].lines})" for kind in
          ("function", "file", "class")),
        f"modules not pure: {len(impure)} of {len(imports.modules())}; claimed pure and not: {len(claimed)}",
        f"spec citations: {len(cited)}; unresolved: {len(unresolved)}",
        f"docs: {len(documents)} documents, {words.sentences} sentences; words: {words_a_sentence}",
    ]  # fmt: skip
    broken = [f"circle: {', '.join(circle)}" for circle in circles]
    broken += [f"upward: {line}" for line in upward]
    broken += without_excuse("not pure", impure, exceptions.IMPURE)
    broken += without_excuse(
        "long function", _too_long("function", sizes.FUNCTION_LINES_MAX), exceptions.LONG_FUNCTIONS
    )
    broken += without_excuse("long file", _too_long("file", sizes.FILE_LINES_MAX), exceptions.LONG_FILES)
    broken += without_excuse("large class", _too_long("class", sizes.METHODS_MAX), exceptions.LARGE_CLASSES)
    broken += [f"cited at {at}: docs/spec/{document} has no {place}" for at, document, place in unresolved]
    if len(cited) < citations.CITATIONS_MIN:
        broken.append(f"citations: {len(cited)} < {citations.CITATIONS_MIN}")
    if words.median > prose.MEDIAN_MAX or words.p90 > prose.P90_MAX:
        broken.append(
            f"sentences: median {words.median} > {prose.MEDIAN_MAX} or p90 {words.p90} > {prose.P90_MAX}"
        )
    broken += [f"no such file: {found}" for found in paths.missing_paths()]
    broken += [f"no such link: {found}" for found in paths.missing_links()]
    return figures, broken


def main() -> int:
    figures, broken = check()
    print(*figures, sep="\n")
    print(*broken, sep="\n", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
