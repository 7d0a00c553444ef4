"""The job's process: ``python -m tasks.executor.child FD SCRATCH ENGINE MEMORY_MIB CPU_S NICENESS MODEL``.

Order matters: leave the network and all files but the installation, fix the environment, import what will be
needed, give up files, user, privileges and system calls, and only then read the job. It ends when its work is
done, when it is told to, or when the supervisor is gone.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tasks.executor import sandbox

if TYPE_CHECKING:
    from tasks.engines.arrays import Arrays
    from tasks.engines.plan import TrainingPlan
    from tasks.executor.job import ChildFrame, ParentFrame, Train
    from tasks.executor.linking import RunLinks
    from tasks.executor.playing import Play

__all__ = ["main", "warm_up_plan"]

PROGRESS_INTERVAL_S: Final = 0.2
"""Least time between two reports of progress; also how soon an order to end is heard between steps."""
LINKS_INTERVAL_S: Final = 0.1
"""The same for links of a speed trial: what was not reported as a trial ends does not count."""
STDIN: Final = 0
"""The end of a pipe that the supervisor holds open and writes nothing to."""
THREADS: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_EMULATE_DOUBLE_PRECISION": "0",
}
"""Results do not depend on these except the last, which enables float64; the others limit threads."""


class _Orphaned(Exception):
    """The supervisor closed the socket or sent an order to end."""


class _Link:
    """The socket to the supervisor."""

    def __init__(self, connection: socket.socket, model: int) -> None:
        """``model`` is the descriptor of a file with the order's model, -1 if it has none."""
        self._connection, self._model = connection, model

    def receive(self) -> ParentFrame:
        from tasks.executor.job import FRAME_HEADER_BYTES, Cancel, decode_parent_frame, parent_frame_limit

        size = int.from_bytes(self._exactly(FRAME_HEADER_BYTES), "big")
        if size > parent_frame_limit():
            raise _Orphaned
        message = decode_parent_frame(self._exactly(size), self._take_model())
        if isinstance(message, Cancel):
            raise _Orphaned
        return message

    def _take_model(self) -> bytes:
        """Return the model, once: an order comes first, and all other messages have none."""
        if self._model < 0:
            return b""
        with open(self._model, "rb") as file:
            self._model = -1
            return file.read()

    def send(self, message: ChildFrame) -> None:
        from tasks.executor.job import encode_frame

        try:
            self._connection.sendall(encode_frame(message))
        except OSError as error:
            raise _Orphaned from error

    def check(self) -> None:
        """Raise _Orphaned if there is anything to hear: only an end or an order to end can come now."""
        if select.select([self._connection], [], [], 0)[0]:
            raise _Orphaned

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(min(size - len(data), 1 << 20))
            if not part:
                raise _Orphaned
            data += part
        return bytes(data)


def main(arguments: list[str]) -> int:
    """Run one job over the socket with the given file descriptor; return the exit status."""
    descriptor, scratch, engine, memory_mib, cpu_s, niceness, model = arguments
    sandbox.end_with_parent()
    os.nice(int(niceness))
    os.environ.update(THREADS)
    isolation = sandbox.leave_network() | sandbox.keep_installation(scratch)
    from tasks.executor.job import Failed, Hello

    link = _Link(socket.socket(fileno=int(descriptor)), int(model))
    try:
        try:
            arrays = _engine(engine)
        except Exception as error:
            link.send(Failed(getattr(error, "code", "engine_broken"), str(error)))
            return 1
        _warm_up(arrays)
        late_loading = arrays.device != "cpu:numpy"
        isolation |= sandbox.close_in(
            scratch,
            memory_bytes=int(memory_mib) << 20,
            cpu_s=int(cpu_s),
            threads_allowed=late_loading,
            files_needed=late_loading,
        )
        sandbox.end_with(STDIN)
        isolation |= sandbox.refuse_calls(files_needed=late_loading)
        link.send(Hello(arrays.device, isolation))
        return _serve(link, arrays)
    except _Orphaned:
        return 0


def _engine(name: str) -> Arrays:
    """Return the engine ``name`` (supervisor.ENGINES). Raises EngineMissing."""
    from tasks.engines.arrays import NumpyArrays
    from tasks.engines.torch_arrays import TorchArrays, has_gpu

    match name:
        case "numpy":
            return NumpyArrays()
        case "torch":
            return TorchArrays("cuda" if has_gpu() else "cpu")
        case _:
            return TorchArrays("cuda") if has_gpu() else NumpyArrays()


def warm_up_plan() -> TrainingPlan:
    """Return a tiny job: its program has all operators that a job can have."""
    from tasks.engines.plan import TrainingPlan

    return TrainingPlan((2, 3, 2), "silu", 2, 3, 2, 0, bytes(32), 1_000_000, weight_decay_nano=1)


def _warm_up(arrays: Arrays) -> None:
    """Run a tiny job so that every module and kernel is loaded before the files are gone."""
    from tasks.engines.datasets import Dataset
    from tasks.engines.state import TrainingState
    from tasks.engines.training import Trainer, initial_state

    plan = warm_up_plan()
    dataset = Dataset.decode(Dataset(3, 2, 2, 0, 2, bytes(6), bytes(3)).encode())
    state = TrainingState.decode(initial_state(plan).encode(), plan)
    trainer = Trainer(plan, dataset, arrays, state)
    trainer.run_segment(1)
    trainer.evaluate()
    import tasks.engines.trial_runs
    import tasks.executor.loading
    import tasks.executor.segments  # noqa: F401  for a game


def _serve(link: _Link, arrays: Arrays) -> int:
    from state.primitives.errors import DekubeError
    from tasks.executor.job import Failed, Train
    from tasks.executor.linking import RunLinks
    from tasks.executor.playing import Play

    try:
        orders = [link.receive()]
        match orders[0]:
            case Train():
                _train(link, arrays, orders)
            case Play() as order:
                _play(link, arrays, order)
            case RunLinks() as order:
                _run_links(link, arrays, order)
            case _:
                raise _Orphaned
    except DekubeError as error:
        link.send(Failed(error.code, str(error)))
        return 1
    except MemoryError:
        link.send(Failed("out_of_memory", "the job needs more memory than it may have"))
        return 1
    return 0


def _train(link: _Link, arrays: Arrays, orders: list[Any]) -> None:
    """Run the one of ``orders``, which is taken out: its blobs end once they are loaded."""
    from tasks.engines.errors import Diverged, StateInvalid, UnsupportedJob
    from tasks.engines.state import TrainingState
    from tasks.executor.job import Finished, Segment
    from tasks.executor.loading import beginning_of, make_run
    from tasks.programs.generate import MADE

    order: Train = orders.pop()
    job = order.job
    state = beginning_of(job.plan) if order.state is None else TrainingState.decode(order.state, job.plan)
    root = state.root(job.plan)
    if state.step == 0 and root != job.init_root:
        raise StateInvalid("the initial state is not the one the job names")
    if not state.step <= order.step_to <= job.total_steps or (
        state.step % job.segment_steps and not job.ends_at(state)
    ):
        raise UnsupportedJob(f"cannot go from step {state.step} to {order.step_to}")
    model = [order.model]
    step_to, evaluates, order = order.step_to, order.evaluate, replace(order, model=b"")
    trainer, evaluate = make_run(
        arrays, job.plan, state, order.dataset, model, dataset_root=job.dataset_root,
        root_of_model=job.model_root, root_of_adapter=job.adapter_root,
        claimed=TrainingState(order.step_to, {MADE: order.guess}) if order.guess else None,
    )  # fmt: skip
    del order, state
    pulse = _Pulse(link)
    while trainer.step < step_to and not trainer.is_over:
        started, pulse.spent_ns = time.perf_counter_ns(), 0
        step_from = trainer.step
        try:
            result = trainer.run_segment(min(step_to, job.segment_end(step_from)) - step_from, pulse)
        except Diverged as error:
            result = trainer.diverged_segment(step_from, error)
        compute_ns = time.perf_counter_ns() - started - pulse.spent_ns
        link.send(
            Segment(
                result.step_from,
                result.step_to,
                root,
                result.state_root,
                result.work_digest,
                result.loss_bits,
                max(1, compute_ns // 1_000_000),
                trainer.state().encode(),
                diverged=result.diverged,
                ended=result.diverged is None and trainer.is_over,
            )
        )
        if result.diverged is not None:
            link.send(Finished(0, 0))
            return
        root = result.state_root
    if evaluates:
        found = evaluate()
        link.send(Finished(found.right, found.samples))
    else:
        link.send(Finished(0, 0))


def _play(link: _Link, arrays: Arrays, order: Play) -> None:
    """Answer with the move that is due, and again after each further moves, until the supervisor ends it."""
    from tasks.executor.playing import MoreMoves, Played
    from tasks.executor.segments import make_player

    player = make_player(arrays, order, _Pulse(link))
    moves = order.moves
    while True:
        player.hear(moves)
        link.send(Played(player.answer()))
        message = link.receive()
        if not isinstance(message, MoreMoves):
            raise _Orphaned
        moves = message.moves


def _run_links(link: _Link, arrays: Arrays, order: RunLinks) -> None:
    """Run links of a speed trial and report their results; a chain goes on until the supervisor ends it."""
    from tasks.engines.trial_runs import LinkRunner
    from tasks.executor.job import Finished
    from tasks.executor.linking import RESULTS_MAX, Links
    from tasks.trials import LINKS_MAX, next_state

    runner = LinkRunner(order.seed, order.width, arrays)
    results: list[bytes] = []
    state, due = order.befores[0], time.perf_counter() + LINKS_INTERVAL_S
    for number in range(LINKS_MAX if order.is_chain else len(order.befores)):
        results.append(runner.result(state if order.is_chain else order.befores[number]))
        state = next_state(state, results[-1])
        if len(results) == RESULTS_MAX or time.perf_counter() >= due:
            link.check()
            link.send(Links(tuple(results)))
            results, due = [], time.perf_counter() + LINKS_INTERVAL_S
    if results:
        link.send(Links(tuple(results)))
    link.send(Finished(0, 0))


class _Pulse:
    """Reports steps and listens, at most once in PROGRESS_INTERVAL_S; ``spent_ns`` is not metered as work."""

    def __init__(self, link: _Link) -> None:
        self._link, self._due_ns, self.spent_ns = link, 0, 0

    def __call__(self, step: int) -> None:
        from tasks.executor.job import Progress

        now = time.perf_counter_ns()
        if now >= self._due_ns:
            self._due_ns = now + int(PROGRESS_INTERVAL_S * 1e9)
            self._link.check()
            self._link.send(Progress(step))
            self.spent_ns += time.perf_counter_ns() - now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
