"""``dekube api``: serves fine-tuning jobs and batches to programs that speak the OpenAI wire format."""

from __future__ import annotations

from pathlib import Path

import click

from node.cli.arguments import AMOUNT, OUTPUT_FILE, WholeNumber
from node.cli.commands import CommandGroup
from node.cli.options import DEFAULT_HOME, parse_home
from node.cli.output import json_option, show_amount, show_fields
from node.cli.session import Session, session_options
from node.home.options import LogOptions
from node.telemetry.logs import configure_logs
from state.primitives.errors import ConfigError
from tasks.spec import PRICE_MAX

__all__ = ["api"]

PORT: int = 8700


@click.group(cls=CommandGroup)
def api() -> None:
    """Serve jobs to programs that speak the OpenAI wire format.

    \b
    Examples:
      dekube api run --budget 10
      dekube api run --model smollm2=models/SmolLM2-135M-Instruct --budget 10
      dekube api key
    """


@api.command()
@session_options
@click.option("--model", "models", multiple=True, metavar="NAME=PATH",
              help="Serve the model in PATH (a folder or a GGUF file) as NAME; repeatable.")  # fmt: skip
@click.option(
    "--budget", required=True, type=AMOUNT, metavar="DKB", help="Most that jobs may cost in 24 hours, in DKB."
)
@click.option("--max-price", default="0.005", show_default=True, type=AMOUNT,
              help="Highest price per 10^12 work units, in DKB.")  # fmt: skip
@click.option("--match-s", default=3600, show_default=True, type=WholeNumber(1, 86_400),
              help="Seconds to search for a worker before a job fails.")  # fmt: skip
@click.option("--port", default=PORT, show_default=True, type=WholeNumber(0, 65_535),
              help="Port on 127.0.0.1; 0 takes any free one.")  # fmt: skip
@click.option("--folder", type=OUTPUT_FILE, metavar="PATH",
              help="Folder of files, jobs and the key.  [default: HOME/api]")  # fmt: skip
@click.option("--ready-file", type=OUTPUT_FILE, help="Write process ID and port to this file when it listens.")
def run(
    session: Session, models: tuple[str, ...], budget: int, max_price: int, match_s: int, port: int,
    folder: Path | None, ready_file: Path | None,
) -> None:  # fmt: skip
    """Serve until it is stopped; clients need a base address and a key.

    Jobs are paid by the account --key, or that of the node in --home. They go on when clients
    disconnect, and after a restart of this command. Models of the home (`dekube model`) are served too.
    See docs/api.md for what is served.

    \b
    Example:
      dekube api run --budget 10 --model mine=models/my-llama
    """
    import uvloop

    from node.api.making import parse_model
    from node.api.process import ApiOptions, serve
    from rpc.client import Client
    from rpc.client.core import ClientOptions

    try:
        named = tuple(parse_model(text) for text in models)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None
    if len({model.name for model in named}) < len(named):
        raise click.BadParameter("a name is there twice", param_hint="--model")
    if not 0 < max_price <= PRICE_MAX:
        text = f"the price must be above 0 DKB and at most {show_amount(PRICE_MAX)}"
        raise click.BadParameter(text, param_hint="--max-price")
    options = ApiOptions(
        session.home,
        folder or session.home.root / "api",
        named,
        budget,
        max_price,
        match_s * 1000,
        port,
        ready_file,
    )
    gateways, chain_id = session.gateways(), session.signed_for()

    def connect() -> Client:
        return Client(*gateways, options=ClientOptions(chain_id=chain_id))

    with connect():  # an address that is none ends the command before it asks for a passphrase
        pass
    key = session.key()
    configure_logs(LogOptions())
    uvloop.run(serve(key, options, connect, session.control))


@api.command()
@click.option("--home", default=DEFAULT_HOME, show_default=True, help="Home folder of the node.")
@click.option("--folder", type=OUTPUT_FILE, metavar="PATH", help="Folder of the server.  [default: HOME/api]")
@json_option
def key(home: str, folder: Path | None, as_json: bool) -> None:
    """Show the file with the key, and make the key if there is none.

    \b
    Example:
      export OPENAI_API_KEY="$(cat "$(dekube api key)")"
    """
    from node.api.key import open_key_file

    path = (folder or parse_home(home).root / "api") / "key"
    open_key_file(path)
    if as_json:
        show_fields({"file": str(path)}, as_json=True)
    else:
        click.echo(str(path))
