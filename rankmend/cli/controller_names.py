"""Names for shell completion, from the controller. It never fails and never waits long."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.controller_options import access_of, client_of
from rankmend.printable import is_printable

if TYPE_CHECKING:
    from recovery.api.operator_client import OperatorClient

_WAIT_S: Final = 1.0  # a person has pressed TAB; an answer takes about 10 ms


def complete_job(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    return _ask(ctx, begun, lambda client: [job.name for job in client.jobs()])


def complete_node(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    def names(client: "OperatorClient") -> list[str]:
        held = [one.node for one in client.cluster().held]
        return [*(node.node for node in client.nodes()), *held]

    return _ask(ctx, begun, names)


def complete_plan(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the incidents that have a pending plan."""
    return _ask(ctx, begun, lambda client: [plan.incident_id for plan in client.plans()])


def complete_open(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the open incidents."""
    return _ask(ctx, begun, lambda client: [job.incident_id or "" for job in client.jobs()])


def complete_story(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the incidents and jobs."""

    def names(client: "OperatorClient") -> list[str]:
        jobs = [job.name for job in client.jobs()]
        return [*jobs, *(one.incident_id for one in client.incidents())]

    return _ask(ctx, begun, names)


def _ask(
    ctx: click.Context, begun: str, names: "Callable[[OperatorClient], list[str]]"
) -> list[str]:
    """Return the names with this prefix, or nothing if the controller doesn't answer in time."""
    access = access_of(ctx.params)
    if not access.is_named:
        return []
    # Imported before the wait begins: on a busy machine importing takes longer than the answer.
    from rankmend.errors import RankmendError
    from recovery.api import operator_client  # noqa: F401

    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(names(client_of(access)))
        except (RankmendError, OSError):
            return  # the command itself will report it

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_WAIT_S)
    fitting = {name for name in found if name.startswith(begun) and is_printable(name)}
    return sorted(fitting - {""})
