"""Containers from the requester's side: mounts are packed, and what is left is fetched and unpacked (R96).

Nothing about a container is proven. What its machine says of it is shown as what its machine says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from rpc.client.api import each
from rpc.client.blobs import Progress
from rpc.client.core import Core, Flow, RunBlocking, gather, hexed
from rpc.client.errors import NoResult
from rpc.client.image_files import pack_image
from rpc.client.packing import MOUNT_SENT_BYTES_MAX, PackedFile, folder_for_large_files, pack_source
from rpc.client.results import Machine
from rpc.client.sealing import Sealing, open_results, pieces_of, seal_contents, with_placeholders
from rpc.client.secret_sources import read_secrets
from rpc.client.tasks import Places, ask_task, fetch_blob, fetch_file, spec_of
from state.primitives.manifests import BlobTooLarge
from tasks.custody.container_keys import LOG, OUTPUT
from tasks.kinds.container import LOG_BYTES_MAX, METER_PROGRESS, Mount, MountForm
from tasks.kinds.folders import ArchiveInvalid, unpack
from tasks.requests.containing import ContainerRequest, MountRequest
from tasks.requests.errors import RequestInvalid
from tasks.spec import JobSpec, Requirements, container_job, container_of

if TYPE_CHECKING:
    from rpc.client.results import Task
    from state.primitives.keys import SecretKey

__all__ = [
    "ContainerJob", "ContainerResult", "MachineRun", "ask_container", "make_container", "seal_job", "with_sealing",
]  # fmt: skip


_Job = TypeVar("_Job")
MASKED_BYTES_MIN: Final = 4
"""A shorter secret would be found in any text (``tasks.executor.containers.masking``)."""


class ContainerJob(NamedTuple):
    """A container and its packed mounts, in the order of their paths; behind them the archive of its image."""

    spec: JobSpec
    blobs: tuple[PackedFile, ...]
    notes: tuple[str, ...]
    model: bytes = b""
    rows: bytes = b""
    sealing: Sealing | None = None
    """What is sealed, once the account is known that posts it: ``seal_job``."""


class MachineRun(NamedTuple):
    """A machine that ran a container: its counted seconds, and those of them that were lost and not paid."""

    worker: str
    seconds: int
    lost: int


class ContainerResult(NamedTuple):
    """How a container ended, as its machine says: nobody has checked that. ``files`` were unpacked.

    ``code`` is the exit code, or the number of the signal. ``logs`` is the end of what it printed. Of a quorum
    ``agreed`` are the machines with the result that counts, which is that of the first of them; ``differed`` those
    with another one. Seconds and pay are those of all its machines.
    """

    task: bytes
    phase: str
    reason: str
    seconds: int
    paid: int
    kind: str | None
    code: int | None
    logs: bytes
    files: int
    machines: tuple[MachineRun, ...] = ()
    agreed: tuple[bytes, ...] = ()
    differed: tuple[bytes, ...] = ()


def make_container(request: ContainerRequest, *, max_price: int, match_ms: int) -> ContainerJob:
    """Return the job of a request, with its mounts packed and its image checked. Raises RequestInvalid."""
    mounts, blobs = list[Mount](), list[PackedFile]()
    for wanted in request.mounts:
        content, form = _packed(request, wanted)
        blobs.append(content)
        mounts.append(Mount(wanted.path, content.blob, content.size_bytes, form))
    part = request.part._replace(storage=request.part.storage._replace(mounts=tuple(mounts)))
    if request.image:
        image, archive = pack_image(request)
        part = part._replace(image=image)
        blobs.append(archive)
    wanted_of = request.settings
    spec = container_job(
        part, ticks=wanted_of.ticks, tick_s=wanted_of.tick_s, max_price_per_tera_unit=max_price,
        requirements=Requirements(
            wanted_of.gpus, wanted_of.memory_mib, wanted_of.rate, wanted_of.gpu_words, wanted_of.gpu_memory_mib
        ),
        match_ms=match_ms,
        level=wanted_of.level,
    )  # fmt: skip
    notes = ["nothing about a container is proven: its machine is paid for seconds; watch it, cancel it in need"]
    if spec.is_quorum:
        notes = [
            "two machines of different owners run it, and a third one if their outputs differ; those that agree "
            "are paid"
        ]
    if part.metering.name == METER_PROGRESS:
        idle_s = part.metering.idle_s
        notes.append(f"after {idle_s} seconds in which its counter does not move it ends, says its machine")
    if part.process.environment:
        notes.append("the environment is public on the chain: no secrets in it, they have a field of their own")
    if spec.egress:
        notes.append(
            f"it reaches {', '.join(spec.egress)} through its machine, which sees names and sizes; what it sends "
            "there has left the task, in a private container too"
        )
    job = ContainerJob(spec, tuple(blobs), tuple(notes))
    if not request.seal.has_any:
        return job
    sealing = Sealing(request.seal.is_private, read_secrets(request))
    if request.seal.secrets and part.checkpoint is not None and not sealing.is_private:
        notes.append(
            "everybody can read the checkpoint: a secret that the program keeps there is none (private: true)"
        )
    if any(len(value) < MASKED_BYTES_MIN for value in sealing.secrets.values):
        notes.append(f"a secret of less than {MASKED_BYTES_MIN} bytes is not masked in the log")
    return with_sealing(job._replace(notes=tuple(notes)), sealing)


def with_sealing(job: ContainerJob, sealing: Sealing) -> ContainerJob:
    """Return a job of which so much will be sealed: ``seal_job`` does it. Raises RequestInvalid."""
    return job._replace(
        spec=job.spec._replace(part=with_placeholders(container_of(job.spec), sealing)), sealing=sealing
    )


def seal_job(job: _Job, key: SecretKey) -> _Job:
    """Return a job as ``key``'s account posts it: a container is sealed now, where it asks for that."""
    if not isinstance(job, ContainerJob) or job.sealing is None:
        return job
    part, blobs = seal_contents(container_of(job.spec), job.blobs, job.sealing, key)
    return cast("_Job", job._replace(spec=job.spec._replace(part=part), blobs=blobs, sealing=None))


def _packed(request: ContainerRequest, wanted: MountRequest) -> tuple[PackedFile, MountForm]:
    """Return what a mount has. Raises RequestInvalid, which names the file."""

    def wrong(text: str, code: str | None = None) -> RequestInvalid:
        return RequestInvalid(text, file=request.file, field="mounts", code=code)

    try:
        return pack_source(Path(wanted.source))
    except FileNotFoundError:
        raise wrong(f"no file or folder {wanted.source}, which is to be at {wanted.path}") from None
    except ArchiveInvalid as error:
        raise wrong(f"{wanted.source}: {error}", error.code) from None
    except BlobTooLarge:
        raise wrong(f"{wanted.source}: more than {MOUNT_SENT_BYTES_MAX} bytes") from None
    except OSError as error:
        raise wrong(f"{wanted.source}: {error.strerror}") from None


def ask_container(
    core: Core, task: bytes, *, folder: Path | None = None, control: Path | None = None,
    progress: Progress | None = None, downloads: Path | None = None, key: SecretKey | None = None,
) -> Flow[ContainerResult]:  # fmt: skip
    """Return how a container ended, with the end of its logs; its output is unpacked into the new ``folder``.

    What a private container left opens with the ``key`` of its requester's account.

    The output is a stranger's archive: links and paths that leave the folder are refused before a byte is written.
    Raises NoResult, ArchiveInvalid, ControlUnavailable, GatewayUnreachable.
    """
    record = yield from ask_task(core, task)
    if record is None:
        raise NoResult(f"no task has the id {hexed(task)}")
    spec: JobSpec = yield RunBlocking(partial(spec_of, record))
    if not spec.is_metered:
        raise NoResult(f"task {hexed(task)} is of kind {spec.kind}: `result` fetches what it made")
    quorum = record.document.get("quorum")  # a gateway of an earlier version does not say
    if quorum is not None:
        return (yield from _ask_quorum(core, record, quorum, folder, control, progress, downloads, key))
    return (yield from _ask_end(core, record, spec, folder, control, progress, downloads, key))


def _ask_quorum(
    core: Core, record: Task, quorum: Any, folder: Path | None, control: Path | None,
    progress: Progress | None, downloads: Path | None, key: SecretKey | None,
) -> Flow[ContainerResult]:  # fmt: skip
    """Return the result of the first machine of a quorum whose result is that of the majority."""
    seats = quorum["seats"]
    of_state = {
        state: tuple(
            bytes.fromhex(seat["worker"][2:]) for seat in seats if seat["state"] == state and seat["worker"]
        )
        for state in ("agreed", "differed")
    }
    shown = next((seat for seat in seats if seat["state"] == "agreed"), None)
    source: Task = record
    if shown is not None and shown["task"] != hexed(record.id):
        found = yield from ask_task(core, bytes.fromhex(shown["task"][2:]))
        if found is None:
            raise NoResult(f"no task has the id {shown['task']}")
        source = found
    if shown is None and folder is not None and record.has_ended:
        raise NoResult(
            f"the machines of task {hexed(record.id)} do not agree ({quorum['reason']}): it has no output"
        )
    spec: JobSpec = yield RunBlocking(partial(spec_of, record))
    result = yield from _ask_end(core, source, spec, folder, control, progress, downloads, key)
    return result._replace(
        task=record.id, phase=record.phase, reason=record.reason,
        seconds=sum(seat["seconds"] for seat in seats), paid=sum(int(seat["paid"]) for seat in seats),
        agreed=of_state["agreed"], differed=of_state["differed"],
    )  # fmt: skip


def _ask_end(
    core: Core, record: Task, spec: JobSpec, folder: Path | None, control: Path | None,
    progress: Progress | None, downloads: Path | None, key: SecretKey | None,
) -> Flow[ContainerResult]:  # fmt: skip
    """Return how the container of one task ended."""
    task, part = record.id, container_of(spec)
    meter = record.document["meter"]
    end = meter["exit"]
    logs, files = b"", 0
    if end is not None:
        places = yield from _places(core, record, end["worker"], control, progress, downloads)
        if end["logs"] is not None:
            logs = yield from fetch_blob(core, places, bytes.fromhex(end["logs"][2:]), LOG_BYTES_MAX)
            logs = b"".join(open_results(part, key, [logs], task=task, what=LOG))
        if folder is not None:
            if end["output"] is None:
                raise NoResult(f"the container of task {hexed(task)} left no output")
            most = part.storage.output_bytes_max

            def opened(file: IO[bytes]) -> Iterable[bytes]:
                return open_results(part, key, pieces_of(file), task=task, what=OUTPUT)

            output = bytes.fromhex(end["output"][2:])
            files = yield from _unpacked(core, places, output, most, folder, opened if part.is_private else None)
    elif folder is not None:
        raise NoResult(f"task {hexed(task)} is {record.phase}: its machine has said nothing of an end")
    return ContainerResult(
        task, record.phase, record.reason, meter["seconds"], int(meter["paid"]),
        None if end is None else end["kind"], None if end is None else end["code"], logs, files,
        tuple(MachineRun(run["worker"], run["seconds"], run["lost"]) for run in meter.get("machines", ())),
    )  # fmt: skip


def _unpacked(
    core: Core, places: Places, output: bytes, most: int, folder: Path,
    opened: Callable[[IO[bytes]], Iterable[bytes]] | None,
) -> Flow[int]:  # fmt: skip
    """Fetch an output into a file and unpack that: no output is held in memory. ``opened`` opens a sealed one."""
    with tempfile.TemporaryDirectory(prefix="dekube-", dir=folder_for_large_files()) as near:
        packed = Path(near) / "output"
        yield from fetch_file(core, places, output, most, packed)

        def write() -> int:
            plain = packed
            if opened is not None:
                plain = Path(near) / "plain"
                with packed.open("rb") as file, plain.open("wb") as target:
                    for piece in opened(file):
                        target.write(piece)
                packed.unlink()
            with plain.open("rb") as file:
                return unpack(file, folder, limit_bytes=most)

        files: int = yield RunBlocking(write)
    return files


def _places(
    core: Core, record: Task, worker: str, control: Path | None, progress: Progress | None, downloads: Path | None
) -> Flow[Places]:
    """Return where blobs of a container are fetched from: its machine first."""
    sources: list[bytes] = []
    if control is not None:
        machines = yield from gather(each(core, Machine, "dekube_getNodes"))
        sources = list(dict.fromkeys([bytes.fromhex(worker[2:]), *(machine.address for machine in machines)]))
    return Places(record.id, control, sources, downloads or Path(), progress)
