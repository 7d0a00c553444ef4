"""What a job file takes of tasks: adapters or a model of one that trains, rows of one that continues prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.blobs import download_folder, show_progress
from node.cli.tasks.watch import say
from rpc.client.jobs import rows_from
from tasks.requests.errors import RequestInvalid
from tasks.requests.references import read_ref

if TYPE_CHECKING:
    from rpc.client.sync import Client
    from rpc.client.tasks import TaskResult
    from tasks.requests.reading import Request

__all__ = ["rows_of", "tuned_of"]


def tuned_of(client: Client, request: Request, control: Path | None) -> TaskResult | None:
    """Fetch the result of the task that a request names as its adapters or its model; None if it names none.

    Raises RequestInvalid for a private task: machines that continue prompts would publish what it has trained.
    """
    named = getattr(request, "adapter", None)
    if named is None:
        return None
    terms = client.custody_terms(named.task)
    if terms is not None and not terms.is_public:
        text = "the task is private, and adapters are public inputs of a job: merge them into the model"
        if not request.model:
            text = "the task is private, and a model is a public input of a job: export it, and name its folder"
        raise RequestInvalid(text, file=request.file, field="adapter" if request.model else "model")
    say("Fetching the adapters ..." if request.model else "Fetching the model ...")
    return client.result(
        named.task, control=control, step=named.step, progress=show_progress("Fetching"), folder=download_folder()
    )


def rows_of(client: Client, request: Request, control: Path | None) -> bytes | None:
    """Fetch the rows of the task that a request names as its data; None if it names a file.

    Raises RequestInvalid; NoResult for a private task, whose rows its requester writes into a file.
    """
    named = read_ref(request.data)
    if named is None:
        return None
    say("Fetching the completions ...")
    found = client.result(
        named.task, control=control, step=named.step, progress=show_progress("Fetching"), folder=download_folder()
    )
    return rows_from(request, found)
