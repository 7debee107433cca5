"""`rankmend agent-helper`: the root helper of the node agent."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli.options import examples
from rankmend.cli.output import failure

if TYPE_CHECKING:
    from rankmend.signals import SignalInbox


@click.command(
    epilog=examples(
        "rankmend agent-helper", after="SIGTERM and SIGINT stop the helper; SIGHUP does nothing."
    )
)
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    help="Listen here. [default: systemd's socket, else /run/rankmend-helper/helper.sock]",
)
@click.option(
    "--user",
    default="rankmend-agent",
    show_default=True,
    help="Name or number of the agent's user; only this user and root may send queries.",
)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="PATTERN",
    help="Never open this disk or network device; may be repeated.",
)
def agent_helper(path: Path | None, user: str, excluded: tuple[str, ...]) -> None:
    """Answer the agent's queries that need root: IPMI, SMART, transceivers, ACS of PCIe bridges.

    The list of queries is fixed, and none takes an argument.
    """
    import signal

    from rankmend.signals import SignalInbox

    with SignalInbox({signal.SIGHUP, signal.SIGTERM, signal.SIGINT}) as inbox:
        _serve(path, user, excluded, inbox)


def _serve(path: Path | None, user: str, excluded: tuple[str, ...], inbox: "SignalInbox") -> None:
    import os
    import pwd

    from agent.root_helper.listener import IDLE_S, HelperService, inherited_listener, listen, log
    from agent.root_helper.program_list import Paths
    from agent.root_helper.questions import SOCKET_PATH
    from rankmend import logs
    from rankmend.clock import SystemClock
    from rankmend.errors import ConfigError

    try:
        uid = int(user) if user.isascii() and user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise failure(f"no user {user!r}; --user names the agent's") from error
    logs.configure()
    try:
        listener = inherited_listener(os.environ.get("LISTEN_PID"), os.environ.get("LISTEN_FDS"))
        own_path = None
        idle_s: float | None = IDLE_S
        if listener is None or path is not None:
            own_path, idle_s = path or SOCKET_PATH, None  # without systemd nobody starts it again
            listener = listen(own_path, uid)
    except ConfigError as error:
        raise failure(error) from error
    helper = HelperService(listener, uid, SystemClock(), Paths(), excluded, idle_s)
    log.info("helper started", extra={"socket": own_path or "systemd's", "uid": uid})
    helper.serve(inbox)
    if own_path is not None:
        own_path.unlink(missing_ok=True)
    log.info("helper stopped")
