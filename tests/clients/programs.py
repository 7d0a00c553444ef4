"""Compiles the clients of Go, Rust and Java as their lock files name them, under build/; none of it is shipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rpc.ethereum.contracts import CONTRACTS

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PLACE: Final = ROOT / "build" / "clients"
ABI: Final = ROOT / "docs" / "contracts"
NAMES: Final = tuple(sorted(CONTRACTS.values()))
JAVA: Final = 21
"""The oldest that runs web3j 6."""
GO: Final = "1.25.3"
"""The oldest that go-ethereum 1.17 takes is 1.25; this one is fetched where none is as new."""
_GO_VERSION: Final = re.compile(r"go1\.(\d+)")


class CannotCompile(Exception):
    """A compiler is missing, or something does not compile; the text says which."""


def run(command: list[str | Path], folder: Path, **environment: str) -> str:
    """Run a command; return what it printed. Raises CannotCompile."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise CannotCompile(f"{command[0]}: not installed") from None
    if done.returncode:
        raise CannotCompile(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def fresh(source: str, *ignored: str) -> Path:
    """Return a copy of a client's sources to compile in."""
    target = PLACE / source
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(HERE / source, target, ignore=shutil.ignore_patterns(*ignored))
    return target


def go_program() -> tuple[Path | str, dict[str, str]]:
    """Return a Go command that is new enough, and the environment that it needs.

    Debian 12 has 1.19, which does not know of other toolchains. They are modules like any other, so an old command
    fetches a new one, checked by its sum, from where it has all modules.
    """
    environment = {"GOCACHE": str(PLACE / "go-cache"), "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    found = _GO_VERSION.search(run(["go", "version"], HERE, **environment))
    if found is None:
        raise CannotCompile("go version: not understood")
    if int(found[1]) >= int(GO.split(".")[1]):
        return "go", environment
    root = PLACE / f"go-{GO}"
    if not (root / "bin" / "go").exists():
        machine = run(["go", "env", "GOARCH"], HERE, **environment).strip()
        module = f"golang.org/toolchain@v0.0.1-go{GO}.linux-{machine}"
        scratch = PLACE / "toolchain"
        scratch.mkdir(parents=True, exist_ok=True)
        said = run(["go", "mod", "download", "-json", module], scratch, **environment | {"GOFLAGS": ""})
        folder = re.search(r'"Dir": "([^"]+)"', said)
        if folder is None:
            raise CannotCompile(f"{module}: {said}")
        unfinished = PLACE / f"go-{GO}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder[1], unfinished, copy_function=shutil.copyfile)
        for path in unfinished.rglob("*"):
            path.chmod(0o755)  # modules carry no permissions
        for path in unfinished.rglob("_go.mod"):
            shutil.copyfile(path, path.with_name("go.mod"))  # nor a module in a module
        unfinished.rename(root)
    return root / "bin" / "go", environment | {"GOROOT": str(root)}


def put_abi(folder: Path) -> Path:
    """Put the contracts' ABI files, as they are published, into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.copy(ABI / f"{name}.json", folder)
    return folder


def go_client() -> list[str]:
    """Return the command of the Go client."""
    go, environment = go_program()
    folder = fresh("go")
    run([go, "run", "./generate", put_abi(PLACE / "go-abi"), "."], folder, **environment)
    run([go, "vet", "./..."], folder, **environment)
    program = PLACE / "go-client"
    run([go, "build", "-o", program, "."], folder, **environment)
    return [str(program)]


def rust_client() -> list[str]:
    """Return the command of the Rust client."""
    folder = fresh("rust")
    put_abi(folder / "contracts")
    target = PLACE / "rust-target"
    run(["cargo", "build", "--locked", "--quiet", "--target-dir", target], folder)
    return [str(target / "debug" / "clients")]


def jdk() -> Path:
    """Return the programs of a JDK that is new enough: of JAVA_HOME, of the path, or where Debian puts them."""
    candidates = [Path(os.environ["JAVA_HOME"]) / "bin"] if "JAVA_HOME" in os.environ else []
    if found := shutil.which("javac"):
        candidates.append(Path(found).resolve().parent)
    candidates += sorted(Path("/usr/lib/jvm").glob("*/bin"))
    for folder in candidates:
        if (folder / "javac").exists():
            version = re.search(r"\d+", run([folder / "javac", "-version"], HERE))
            if version is not None and int(version[0]) >= JAVA:
                return folder
    raise CannotCompile(f"no JDK of {JAVA} or newer: name one by JAVA_HOME")


def java_libraries(pom: str, folder: Path) -> str:
    """Return the class path of what a project file names, whose versions are exact."""
    if not (folder / pom).exists() or (folder / pom).read_bytes() != (HERE / "java" / pom).read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = (HERE / "java" / pom).read_text()
        (folder / "new.xml").write_text(text)
        run(["mvn", "-q", "-B", "-f", "new.xml", "dependency:copy-dependencies", "-DoutputDirectory=lib"], folder)
        (folder / "new.xml").rename(folder / pom)
    return str(folder / "lib" / "*")


def java_client() -> list[str]:
    """Return the command of the Java client."""
    programs = jdk()
    libraries = java_libraries("pom.xml", PLACE / "java")
    generator = java_libraries("generator.pom.xml", PLACE / "java-generator")
    sources, classes = PLACE / "java-sources", PLACE / "java-classes"
    for folder in (sources, classes):
        shutil.rmtree(folder, ignore_errors=True)
    abi = put_abi(PLACE / "java-abi")
    for name in NAMES:
        tool = "org.web3j.codegen.SolidityFunctionWrapperGenerator"
        options: list[str | Path] = ["-a", abi / f"{name}.json", "-o", sources, "-p", "dekube.contracts"]
        run([programs / "java", "-cp", generator, tool, *options], PLACE)
    files = [*sources.rglob("*.java"), HERE / "java" / "Clients.java"]
    run([programs / "javac", "-nowarn", "-d", classes, "-cp", libraries, *files], PLACE)
    return [str(programs / "java"), "-cp", f"{classes}:{libraries}", "Clients"]


COMPILE: Final[Mapping[str, Callable[[], list[str]]]] = {
    "go": go_client, "java": java_client, "rust": rust_client,
}  # fmt: skip
