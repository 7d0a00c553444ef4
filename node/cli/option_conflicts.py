"""Options without effect in a combination: declared per command and refused as usage errors.

An ignored option is most harmful if it was a limit (a maximum price, another genesis). A command declares its
rules with ``only_with`` and ``not_with``, above the decorator that makes it a command. Checks that need more than
the command line call ``refuse_given``. A permission (``--force``, ``--yes``) needs no rule if there is nothing to
permit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

__all__ = ["Rule", "not_with", "only_with", "refuse_given", "rules_of"]

_Command = TypeVar("_Command", bound=click.Command)
_GIVEN: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_RULES: Final = "__option_rules__"


class Rule(NamedTuple):
    """``options`` have an effect only with one of ``others``, or only without all of them.

    Both are written as on the command line: --option, --no-option for a switch that is off, NAME for an argument.
    """

    options: tuple[str, ...]
    others: tuple[str, ...]
    needs_others: bool

    def broken_by(self, context: click.Context) -> str:
        """Return what is wrong with the command line; empty if nothing is."""
        given = [name for name in self.options if _is_given(context, name)]
        present = [name for name in self.others if _is_given(context, name)]
        if not given or bool(present) == self.needs_others:
            return ""
        if self.needs_others:
            return f"{_joined(given)} {_has(given)} no effect without {' or '.join(self.others)}."
        return f"{_joined(given)} {_has(given)} no effect with {_joined(present)}."


def only_with(options: Sequence[str], *others: str) -> Callable[[_Command], _Command]:
    """Declare that ``options`` have no effect without one of ``others``."""
    return _declare(Rule(tuple(options), others, needs_others=True))


def not_with(options: Sequence[str], *others: str) -> Callable[[_Command], _Command]:
    """Declare that ``options`` have no effect together with one of ``others``."""
    return _declare(Rule(tuple(options), others, needs_others=False))


def refuse_given(options: Sequence[str], why: str) -> None:
    """Refuse those of ``options`` that were given; ``why`` is the reason. Raises UsageError."""
    given = [name for name in options if _is_given(click.get_current_context(), name)]
    if given:
        raise click.UsageError(f"{_joined(given)} {_has(given)} no effect here: {why}.")


def rules_of(command: click.Command) -> tuple[Rule, ...]:
    """Return the rules that a command declares."""
    return tuple(getattr(command, _RULES, ()))


def _declare(rule: Rule) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        setattr(command, _RULES, (*rules_of(command), rule))
        for name in (*rule.options, *rule.others):
            _parameter(command, name)
        run = command.callback
        assert run is not None

        @wraps(run)
        def checked(*arguments: Any, **named: Any) -> Any:
            if wrong := rule.broken_by(click.get_current_context()):
                raise click.UsageError(wrong)
            return run(*arguments, **named)

        command.callback = checked
        return command

    return add


def _parameter(command: click.Command, name: str) -> click.Parameter:
    """Return the parameter of a command with this name on the command line.

    Raises AssertionError if there is none.
    """
    for parameter in command.params:
        if name in (*parameter.opts, *parameter.secondary_opts) or name == parameter.human_readable_name:
            return parameter
    raise AssertionError(f"{command.name} has no {name}")


def _is_given(context: click.Context, name: str) -> bool:
    parameter = _parameter(context.command, name)
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) not in _GIVEN:
        return False
    value = context.params.get(parameter.name)
    if parameter.secondary_opts:
        return bool(value) == (name in parameter.opts)
    return value is not None and value is not False and value != ()


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _has(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
