"""``dekube task validate``: what is wrong with a job file, without a network."""

from __future__ import annotations

from pathlib import Path

import click

from node.cli.arguments import PathName
from node.cli.options import home_option
from node.cli.output import json_option, show_fields
from node.cli.tasks.job_file import read_job
from node.cli.tasks.told import told_job
from node.home.paths import Home

__all__ = ["validate"]


@click.command()
@home_option
@click.argument("file", type=PathName(), metavar="FILE")
@click.option("--fields", "fields_only", is_flag=True, help="Check the file alone, not its model and data.")
@json_option
def validate(home: Home, file: Path, fields_only: bool, as_json: bool) -> None:
    """Check a job file, its model and its data on this machine; nothing is sent.

    An error names file, line and remedy. The exit status is 1 then.

    \b
    Example:
      dekube task validate finetune.yaml
    """
    from rpc.client.jobs import make_job
    from rpc.client.stores import is_remote
    from tasks.requests.reading import kind_of
    from tasks.requests.references import read_ref

    job = read_job(file, home)
    requests = [job.request_of(member) for step in job.steps for member in step.members]
    answer = {"file": str(file), "kind": ", ".join(dict.fromkeys(map(kind_of, requests)))}
    if not job.is_single:
        answer["tasks"] = str(len(requests))
    for request in () if fields_only else requests:
        if getattr(request, "adapter", None) is not None:  # it is on another machine
            answer["not checked"] = "the adapter and whether it fits its model and prompts"
            continue
        if read_ref(request.data) is not None:
            answer["not checked"] = "the completions that are its rows"
            continue
        if is_remote(request):
            answer["not checked"] = "the blobs and outputs of tasks that it names"
            continue
        made = make_job(request, seed=bytes(32), max_price_per_tera_unit=1, verifiers=job.terms.verifiers)
        if job.is_single:
            steps, windows = made.spec.schedule.total_steps, made.spec.windows
            answer |= {"steps": str(steps), "windows": str(windows), **told_job(made)}
            answer |= {"notes": "; ".join(made.notes)} if made.notes else {}
    show_fields(answer, as_json=as_json, title="Valid")
