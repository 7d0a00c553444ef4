"""Changes options in the text of a config.toml. Comments, order and spelling stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from node.home.config import flat_options, read_table
from state.primitives.errors import ConfigError

if TYPE_CHECKING:
    from node.home.config import HomeOptions

__all__ = ["edit_options"]

INTEGER_LIMIT: Final = 2**63
"""TOML readers accept no larger integers. Larger amounts are written as strings."""


def edit_options(text: str, options: HomeOptions) -> str:
    """Return ``text`` with the new values of ``options``; everything else is unchanged.

    Raises ConfigError if the text is not the options of this kind of home, or cannot be changed.
    """
    import tomlkit  # few commands change options
    from tomlkit.exceptions import TOMLKitError

    before = flat_options(read_table(text, type(options)))
    try:
        document = tomlkit.parse(text)
        for name, value in flat_options(options).items():
            if before[name] != value:
                table, _, key = name.rpartition(".")
                container: Any = document
                for part in table.split(".") if table else ():
                    if part not in container:
                        container[part] = tomlkit.table()
                    container = container[part]
                container[key] = _plain(value)
        edited = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ConfigError(f"the options cannot be changed: {error}") from None
    if read_table(edited, type(options)) != options:
        raise ConfigError(
            "the options cannot be changed without losing others: write each table once, in [table] form"
        )
    return edited


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if type(value) is int and value >= INTEGER_LIMIT else value
