"""The adapters or the model that a job file names: the result of a task that trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.blobs import download_folder, show_progress
from node.cli.tasks.watch import say
from tasks.requests.errors import RequestInvalid

if TYPE_CHECKING:
    from rpc.client.sync import Client
    from rpc.client.tasks import TaskResult
    from tasks.requests.reading import Request

__all__ = ["tuned_of"]


def tuned_of(client: Client, request: Request, control: Path | None) -> TaskResult | None:
    """Fetch the result of the task that a request names as its adapters or its model; None if it names none.

    Raises RequestInvalid for a private task: machines that continue prompts would publish what it has trained.
    """
    task = getattr(request, "adapter", None)
    if task is None:
        return None
    terms = client.custody_terms(task)
    if terms is not None and not terms.is_public:
        text = "the task is private, and adapters are public inputs of a job: merge them into the model"
        if not request.model:
            text = "the task is private, and a model is a public input of a job: export it, and name its folder"
        raise RequestInvalid(text, file=request.file, field="adapter" if request.model else "model")
    say("Fetching the adapters ..." if request.model else "Fetching the model ...")
    return client.result(task, control=control, progress=show_progress("Fetching"), folder=download_folder())
