"""Files of containers: what they describe, what a person is told, and what is fetched and unpacked at the end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

import node.cli.tasks.keeping
from node.cli import group
from node.cli.jobs import spec_from_json
from node.cli.session import Session
from node.cli.tasks.job_file import read_job
from node.cli.tasks.private import container_readers, reading_machines
from node.cli.tasks.told import COMPARED, UNPROVEN, told_container, told_job
from node.cli.tasks.views import _job, _progress
from node.cli.templates import template
from rpc.client import Client
from rpc.client.containers import ContainerJob, seal_job
from rpc.client.jobs import blobs_of, judge_job, make_job
from rpc.client.packing import PackedFile
from rpc.client.results import TaskQuote
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import ConfigError
from state.primitives.manifests import manifest_of
from tasks.custody.streams import stream_size
from tasks.kinds.container import ARCHIVED, MachineLimit, MountForm
from tasks.kinds.folders import unpack
from tasks.kinds.image_archives import read_image
from tasks.ledger.screening import check_start, kind_objections
from tasks.ledger.transitions import CREATE_TASK
from tasks.requests.errors import RequestInvalid
from tasks.spec import container_of, decode_spec, encode_spec
from tests.node.cli.test_interrupted import KEY, Chain, tasks_of
from tests.rpc.harness import hexed
from tests.tasks.containers import container
from tests.tasks.images import docker_save, layout, tar

IMAGE = "ghcr.io/some/image@sha256:" + "ab" * 32
FILE = f"""
kind: container
image: {IMAGE}
command: [python, /job/main.py, "3"]
environment: {{B: "2", A: one two}}
mounts:
  - {{source: data, path: /data}}
  - {{source: main.py, path: /job/main.py}}
output: /output
output_mib: 2
minutes: 5
tick_s: 30
cores: 2
gpus: 1
rate: 7000000000
user: 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "rows.txt").write_text("rows")
    (tmp_path / "main.py").write_text("print(1)")
    (tmp_path / "job.yaml").write_text(FILE)
    return tmp_path


def made(folder: Path, text: str = FILE) -> ContainerJob:
    (folder / "job.yaml").write_text(text)
    found = make_job(read_job(folder / "job.yaml").request, seed=bytes(32), max_price_per_tera_unit=10**15)
    assert isinstance(found, ContainerJob)
    return found


def test_a_file_describes_a_container(folder: Path) -> None:
    job = made(folder)
    part = container_of(job.spec)
    assert decode_spec(encode_spec(job.spec)) == job.spec
    assert part.image.reference == IMAGE
    assert part.process == (("python", "/job/main.py", "3"), ("A=one two", "B=2"), 0, ())
    assert (part.storage.output, part.storage.output_bytes_max, part.cores) == ("/output", 2 << 20, 2)
    assert (job.spec.windows, job.spec.tick_s) == (10, 30)
    assert job.spec.requirements[:3] == (1, 2_048, 7 * 10**9) and not job.spec.requirements.orders_card
    assert [(mount.path, mount.form) for mount in part.storage.mounts] == [
        ("/data", MountForm.FOLDER), ("/job/main.py", MountForm.FILE),
    ]  # fmt: skip
    assert any("nothing about a container is proven" in note for note in job.notes)
    assert any("public" in note for note in job.notes)


def test_a_deterministic_container_runs_on_machines_that_are_compared(folder: Path) -> None:
    job = made(folder, FILE + "deterministic: true\n")
    assert (job.spec.level, made(folder, FILE + "deterministic: false\n").spec.level) == (1, 0)
    assert decode_spec(encode_spec(job.spec)) == job.spec == spec_from_json(spec_to_json(job.spec))
    assert told_job(job)["assurance"] == COMPARED
    assert any("two machines of different owners" in note for note in job.notes)
    with pytest.raises(RequestInvalid, match="an output folder is needed"):
        made(folder, FILE.replace("output: /output\noutput_mib: 2\n", "") + "deterministic: true\n")


def test_its_mounts_are_the_blobs_that_are_uploaded(folder: Path, tmp_path: Path) -> None:
    job = made(folder)
    mounts = container_of(job.spec).storage.mounts
    assert blobs_of(job) == job.blobs
    for mount, blob in zip(mounts, job.blobs, strict=True):
        content = blob.path.read_bytes()
        assert (mount.blob, mount.size_bytes) == (manifest_of(io.BytesIO(content)).blob_id, len(content))
        assert (blob.blob, blob.size_bytes) == (mount.blob, mount.size_bytes)
    with job.blobs[0].path.open("rb") as packed:
        unpack(packed, tmp_path / "again", limit_bytes=1 << 20)
    assert (tmp_path / "again" / "inner" / "rows.txt").read_text() == "rows"
    assert job.blobs[1].path == folder / "main.py"  # no copy of a single file
    assert made(folder).spec == job.spec  # the same files are the same job


def test_a_person_is_told_that_nothing_is_proven_and_what_an_hour_costs(folder: Path) -> None:
    told = told_job(made(folder))
    assert told["assurance"] == UNPROVEN
    assert told["an hour costs, at most"].startswith("0.0276")  # 7e9 units and 10 GiB, for 3600 s
    assert told["image"] == IMAGE
    assert "public" in told["environment"]


@pytest.mark.parametrize(
    ("line", "instead", "said", "number"),
    [
        (f"image: {IMAGE}", "image: python:3.12", "image: REPOSITORY@sha256:DIGEST", 3),
        (f"image: {IMAGE}", f"image: {IMAGE.upper().replace('SHA', 'sha')}", "image:", 3),
        ('command: [python, /job/main.py, "3"]', "command: [python, 3]", "command: a list of texts", 4),
        ('environment: {B: "2", A: one two}', "environment: {B: 2}", "environment: names with texts", 5),
        ('environment: {B: "2", A: one two}', 'environment: {1B: "2"}', "environment:", 5),
        ('environment: {B: "2", A: one two}', 'environment: {DEKUBE_A: "2"}', "environment:", 5),
        ("output: /output", "output: /data/out", "mounts:", 6),
        ("output: /output", "output: /proc/x", "output:", 9),
        ("output_mib: 2", "output_mib: 5000", "output_mib: a whole number from 1 to 4096", 10),
        ("minutes: 5", "minutes: 0", "minutes: a number above 0", 11),
        ("minutes: 5", "hours: 2000", "hours: a number above 0 expected, 720", 11),
        ("tick_s: 30", "tick_s: 5", "tick_s: a whole number of 10 or more", 12),
        ("cores: 2", "core: 2", "did you mean cores", 13),
        ("cores: 2", "deterministic: 1", "deterministic: true or false", 13),
        ("cores: 2", "allow: unisolated", "allow:", 13),
        ("cores: 2", "allow: [everything]", "allow: a list of unisolated", 13),
        ("cores: 2", "allow: [unisolated, unisolated]", "allow: a list of unisolated", 13),
        ("gpus: 1", "gpus: 99", "gpus:", 14),
        ("rate: 7000000000", "rate: 0", "rate: work units", 15),
        ("  - {source: data, path: /data}", "  - {source: data}", "mounts: a list of", 6),
        ("  - {source: data, path: /data}", "  - {source: data, path: /data/}", "mounts: '/data/' is no path", 6),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(
    folder: Path, line: str, instead: str, said: str, number: int
) -> None:
    (folder / "job.yaml").write_text(FILE.replace(line, instead))
    with pytest.raises(RequestInvalid, match=said.replace("[", "\\[")) as caught:
        _ = read_job(folder / "job.yaml").request
    assert caught.value.line == number


@pytest.mark.parametrize("make", [layout, docker_save])
def test_an_image_may_be_a_file(folder: Path, make: Callable[..., bytes]) -> None:
    (folder / "image.tar").write_bytes(make((tar({"a": b"a"}),)))
    job = made(folder, FILE.replace(IMAGE, "./image.tar"))
    image, blob = container_of(job.spec).image, job.blobs[-1]
    with blob.path.open("rb") as file:
        assert image.digest == read_image(file).digest
    assert (image.repository, image.blob, image.size_bytes) == (ARCHIVED, blob.blob, blob.size_bytes)
    assert blob.path == folder / "image.tar", "it is sent as it is, without a copy"
    assert decode_spec(encode_spec(job.spec)) == job.spec
    assert container_of(job.spec).inputs_bytes == sum(size for _, size in container_of(job.spec).blobs)
    assert container_of(job.spec).refused & MachineLimit.NO_ARCHIVES
    assert f"an archive of {blob.size_bytes} bytes" in told_container(job)["image"]
    assert spec_from_json(spec_to_json(job.spec)) == job.spec
    sealed = seal_job(made(folder, FILE.replace(IMAGE, "image.tar") + "private: true\n"), KEY)
    hidden = container_of(sealed.spec).image
    assert (hidden.digest, hidden.blob) == (image.digest, sealed.blobs[-1].blob) and hidden.blob != image.blob
    assert hidden.size_bytes == sealed.blobs[-1].size_bytes == stream_size(image.size_bytes)
    assert [blob.blob for blob in sealed.blobs] == [name for name, _ in container_of(sealed.spec).blobs]


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("python:3", "docker save"), ("./absent.tar", "docker save"), ("main.py.tar", "not an archive"),
        ("ftp://a/b.tar", "image:"), ("task:0x00/a.tar", "image"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_by_name(folder: Path, image: str, told: str) -> None:
    (folder / "main.py.tar").write_bytes(b"x" * 1024)
    with pytest.raises(RequestInvalid, match=told) as refused:
        made(folder, FILE.replace(IMAGE, image))
    assert refused.value.field == "image"
    (folder / "image.tar").write_bytes(layout((tar({"a": b"a"}),)))
    login = "registry: {user: 'env:U', password: 'env:P'}\n"
    with pytest.raises(RequestInvalid, match="nothing is pulled"):
        made(folder, FILE.replace(IMAGE, "./image.tar") + login)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpu: {model: H100}", (1, ("h100",), 0)),
        (
            "gpus: 2\ngpu: {model: NVIDIA A100-SXM4-40GB, memory_gb: 40}",
            (2, ("40gb", "a100", "nvidia", "sxm4"), 38_146),
        ),
        ("gpu: {memory_gb: 24}", (1, (), 22_888)),
        ("gpus: 3\nmig: 1g.10gb", (3, ("1g.10gb", "mig"), 0)),
        ("mig: 1g.10gb+me\ngpu: {model: h100}", (1, ("1g.10gb.me", "h100", "mig"), 0)),
    ],
)
def test_a_model_of_gpus_or_a_part_may_be_ordered(folder: Path, text: str, wanted: tuple[object, ...]) -> None:
    job = made(folder, FILE.replace("gpus: 1", text))
    found = job.spec.requirements
    assert (found.gpus, found.gpu_words, found.gpu_memory_mib) == wanted
    assert decode_spec(encode_spec(job.spec)) == job.spec == spec_from_json(spec_to_json(job.spec))
    assert all(word in told_container(job)["machine"] for word in found.gpu_words)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("gpu: H100", "gpu"), ("gpu: {}", "gpu"), ("gpu: {name: H100}", "gpu"), ("gpu: {memory_gb: -1}", "gpu"),
        ("gpu: {memory_gb: 0}", "gpu"), ("gpu: {model: '--'}", "gpu"), ("gpu: {model: A100 MIG}", "gpu"),
        ("gpu: {model: a b c d e f g h i}", "gpu"), ("mig: big", "mig"), ("mig: 1g.10", "mig"),
        ("gpus: 0\nmig: 1g.10gb", "gpus"), ("gpu: {model: a b c d e f g}\nmig: 1g.10gb", "gpu"),
        ("gpu: {model: true}", "gpu"),
    ],
)  # fmt: skip
def test_other_orders_of_gpus_are_refused(folder: Path, text: str, field: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        made(folder, FILE.replace("gpus: 1", text))
    assert refused.value.field == field


def test_a_source_that_is_missing_or_has_links_is_named(folder: Path) -> None:
    with pytest.raises(RequestInvalid, match="no file or folder"):
        made(folder, FILE.replace("source: data", "source: nothing"))
    (folder / "data" / "link").symlink_to("/etc/passwd")
    with pytest.raises(RequestInvalid, match="no links"):
        made(folder)


def test_too_long_a_command_is_refused_before_anything_is_sent(folder: Path) -> None:
    with pytest.raises(RequestInvalid, match="the job cannot run"):
        made(folder, FILE.replace('"3"]', '"' + "x" * 2_100 + '"]'))


def test_the_template_is_a_file_that_reads(folder: Path) -> None:
    job = made(folder, template("container"))
    part = container_of(job.spec)
    assert (job.spec.windows, part.metering.grace_s, part.process.user) == (60, 120, 65_534)


def test_what_is_allowed_of_a_machine_is_read_and_told(folder: Path) -> None:
    for text, allows, refused in (
        ("", 1, MachineLimit.UNISOLATED), ("allow: [unisolated]\n", 3, MachineLimit(0)),
        ("allow: [unisolated]\ninterruptible: false\n", 2, MachineLimit(0)),
        ("allow: []\n", 1, MachineLimit.UNISOLATED),
    ):  # fmt: skip
        job = made(folder, FILE + text)
        part = container_of(job.spec)
        assert (part.allows, part.refused) == (allows, refused | MachineLimit.NO_ROOT), "user 0 is asked for"
        told = told_job(job)
        assert "user 0 (clusters have none)" in told["machine"]
        assert ("clusters are asked too" in told["isolation"]) == (allows > 1)
        assert spec_from_json(spec_to_json(job.spec)) == job.spec


def test_a_container_is_written_and_read_as_json(folder: Path) -> None:
    spec = made(folder).spec
    assert spec_from_json(spec_to_json(spec)) == spec
    assert _job(spec_to_json(spec)).startswith("container ghcr.io/some/image@sha256:abab")


def test_nothing_of_a_start_is_judged(folder: Path) -> None:
    spec = made(folder).spec
    assert check_start(spec) == kind_objections(spec) == []
    assert judge_job(spec, _Quote()).objections == ()


class _Quote(TaskQuote):
    def __init__(self) -> None:
        object.__setattr__(self, "objections", ())


def test_what_a_task_shows() -> None:
    record: dict[str, Any] = {
        "spec": spec_to_json(container()),
        "meter": {
            "seconds": 120, "paid": "5", "own_seconds": 60, "began_ms": 1, "stop_ms": None,
            "exit": {
                "kind": "exited", "code": 3, "output": None, "output_bytes": 0, "logs": None, "logs_bytes": 0,
                "worker": "0x" + "11" * 20,
            },
        },
    }  # fmt: skip
    told = _progress(record)
    assert told["metered"].startswith("120 seconds of 600")
    assert told["ended"].startswith("exited 3, says its machine")


SEALED = FILE + "retries: 2\ncheckpoint: {path: /state}\nsecrets:\n  - {env: T, from: env:MY_T}\n"


def test_a_quote_says_who_reads_and_how_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_T", "hidden-value")
    public, secret = made(folder), made(folder, SEALED)
    private = made(folder, SEALED + "private: true\n")
    assert "everybody reads" in container_readers(public.spec)
    assert "3 machines at most" in container_readers(secret.spec)
    assert "mounts, checkpoints, output and log" in container_readers(secret.spec)
    told = container_readers(private.spec)
    assert (
        "3 machines at most" in told and "declines" in told and "checkpoints: the owners of that machine" in told
    )
    assert [reading_machines(job.spec) for job in (public, secret, private)] == [2, 3, 3]
    assert reading_machines(made(folder, FILE + "deterministic: true\n").spec) == 6
    assert any("checkpoint" in note and "everybody" in note for note in secret.notes)
    assert not any("everybody" in note for note in private.notes)
    for job in (secret, private):
        assert "hidden-value" not in f"{container_readers(job.spec)}{job}{job.notes}{encode_spec(job.spec)!r}"


class Keeper(Chain):
    """A chain whose node takes the mounts of containers."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[PackedFile] = []

    def put_contents(self, contents: tuple[PackedFile, ...], **_: Any) -> None:
        self.contents += contents


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
def test_keep_brings_the_mounts_of_a_container_and_has_machines_keep_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    monkeypatch.setenv("MY_T", "hidden-value")
    chain = Keeper()
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    monkeypatch.setattr(Session, "control", lambda _session: folder / "control")
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, chain))
    monkeypatch.setattr(node.cli.tasks.keeping, "ask_node", chain.control)
    text = SEALED + "private: true\n" if is_private else FILE
    job = seal_job(made(folder, text), KEY)
    chain.wait(chain.sign(KEY, CREATE_TASK, [encode_spec(job.spec)]))
    (task,) = tasks_of(chain)

    def keep(*words: object) -> None:
        line = ["keep", hexed(task), *words, "--yes", "--home", "/nonexistent"]
        done = CliRunner().invoke(group, ["task", *map(str, line)], standalone_mode=False)
        if done.exception is not None:
            raise done.exception

    with pytest.raises(click.UsageError, match="nothing to do"):
        keep()
    with pytest.raises(click.UsageError, match="no data set"):
        keep("--keep-input")
    if is_private:
        with pytest.raises(ConfigError, match="cannot be made a second time"):
            keep("-f", folder / "job.yaml")
    else:
        keep("-f", folder / "job.yaml")
        assert [content.blob for content in chain.contents] == [content.blob for content in job.blobs]
        (folder / "other.yaml").write_text(FILE.replace("cores: 2", "cores: 3"))
        with pytest.raises(ConfigError, match="another job"):
            keep("-f", folder / "other.yaml")
    before = chain.shares
    keep("--holders", 2)
    assert chain.shares == before + 1 and chain.kinds == [CREATE_TASK]
