"""Names for shell completion, from the controller or this machine's jobs. It never fails and never waits long."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.sources.controller_options import (
    Access,
    JobClient,
    access_of,
    client_of,
    local_client,
)
from rankmend.printable import is_printable

if TYPE_CHECKING:
    from recovery.api.operator_client import OperatorClient

_WAIT_S: Final = 1.0  # a person has pressed TAB; an answer takes about 10 ms


def complete_job(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    return _query_any(ctx, begun, lambda client: [job.name for job in client.jobs()])


def complete_node(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    def names(client: "OperatorClient") -> list[str]:
        held = [item.node for item in client.cluster().held]
        return [*(node.node for node in client.nodes()), *held]

    return _query(ctx, begun, names)


def complete_plan(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the incidents that have a pending plan."""
    return _query_any(
        ctx, begun, lambda client: [plan.incident_id or plan.job for plan in client.plans()]
    )


def complete_open(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the open incidents."""
    return _query_any(ctx, begun, lambda client: [job.incident_id or "" for job in client.jobs()])


def complete_story(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the incidents and jobs."""

    def names(client: "OperatorClient") -> list[str]:
        jobs = [job.name for job in client.jobs()]
        return [*jobs, *(incident.incident_id for incident in client.incidents())]

    return _query(ctx, begun, names)


def _query(
    ctx: click.Context, begun: str, names: "Callable[[OperatorClient], list[str]]"
) -> list[str]:
    """Return a controller's names with this prefix; none if no controller is named."""
    access = access_of(ctx.params)
    return _complete(begun, lambda: names(client_of(access))) if access.is_named else []


def _query_any(
    ctx: click.Context, begun: str, names: Callable[[JobClient], list[str]]
) -> list[str]:
    """Return the names with this prefix from the controller, or from this machine if none is named."""
    access = access_of(ctx.params)
    return _complete(begun, lambda: names(_any_client(access)))


def _any_client(access: Access) -> JobClient:
    return client_of(access) if access.is_named else local_client(access)


def _complete(begun: str, names: Callable[[], list[str]]) -> list[str]:
    """Return the names with this prefix, or nothing if they don't come in time."""
    # Imported before the wait begins: on a busy machine importing takes longer than the answer.
    from rankmend.errors import RankmendError
    from recovery.api import operator_client  # noqa: F401

    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(names())
        except (RankmendError, OSError):
            return  # the command itself will report it

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_WAIT_S)
    fitting = {name for name in found if name.startswith(begun) and is_printable(name)}
    return sorted(fitting - {""})
