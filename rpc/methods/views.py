"""Methods about running containers: what their machines say to those who may hear it."""

from __future__ import annotations

from typing import Final

from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AT, HASH_OUT, address, at, hexed
from rpc.methods.schema import HASH, STRING, Param, data, obj
from rpc.protocol.requests import TaskViewRequests
from rpc.protocol.task_views import QUESTION_BYTES_MAX

__all__ = ["VIEW_METHODS"]


async def view_task(node: NodeApi, task: bytes, question: bytes) -> Json:
    """Answer ``dekube_viewTask``."""
    worker, sealed = await node.request(TaskViewRequests.task_view, task, question)
    return {"at": at(node.head), "task": hexed(task), "worker": address(worker), "sealed": hexed(sealed)}


VIEW_METHODS: Final = (
    Method(
        "dekube_viewTask",
        "Log, progress and use of a running container, sealed by its machine for the task's requester",
        view_task,
        obj({"at": AT, "task": HASH_OUT, "worker": ADDRESS_OUT, "sealed": STRING}),
        (
            Param("task", HASH, "ID of the task."),
            Param("question", data(QUESTION_BYTES_MAX), "The signed question (docs/spec/market.md, R109)."),
        ),
        cost=20,
        group="tasks",
        queue=QueueKind.VIEW,
        has_min_height=False,
        routes=(),
    ),
)
