"""`rankmend agent`: run the node agent, or print what it would serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.options import examples
from rankmend.cli.output import echo, echo_exact, failure
from rankmend.cli.units import DURATION, DurationBetween

if TYPE_CHECKING:
    from rankmend.signals import SignalInbox

_INHERITED: Final = frozenset({"socket", "config_path"})  # by the commands to a running agent


@click.group(
    invoke_without_command=True,
    epilog="SIGHUP reloads the configuration; SIGTERM and SIGINT stop the agent.",
)
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file (TOML)."
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to serve on. [default: 127.0.0.1:9476]"
)
@click.option(
    "--socket",
    metavar="PATH",
    help="Socket on which launchers offer their ranks. [default: /run/rankmend/agent.sock, else "
    "$XDG_RUNTIME_DIR/rankmend/agent.sock]",
)
@click.option(
    "--interval",
    "interval_s",
    type=DURATION,
    help="Run every collector this often.",
)
@click.option(
    "--node", metavar="NAME", help="Name of this node. [default: Slurm's, else the host's]"
)
@click.option(
    "--progress-glob",
    metavar="PATTERN",
    help="Also read the progress files that match this pattern.",
)
@click.option("--procfs", metavar="FOLDER", help="Folder to read instead of /proc.")
@click.option("--sysfs", metavar="FOLDER", help="Folder to read instead of /sys.")
@click.option("--once", is_flag=True, help="Collect once, print the page and exit.")
@click.pass_context
def agent(
    context: click.Context, /, config_path: Path | None, once: bool, **flags: str | float | None
) -> None:
    """Collect this node's and its ranks' signals and serve them to Prometheus."""
    if context.invoked_subcommand is not None:
        _refuse_lost_options(context)
        return
    import signal

    from rankmend.signals import SignalInbox

    with SignalInbox() as inbox:
        if not once:  # before the slow imports: an uncaught SIGHUP ends the process
            inbox.catch({signal.SIGHUP})
        _run(config_path, once, flags, inbox)


def _refuse_lost_options(context: click.Context) -> None:
    """Raise UsageError for an option of the agent itself that the command behind it would not see."""
    command = context.invoked_subcommand
    takes = frozenset() if command == "init" else _INHERITED
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is click.core.ParameterSource.COMMANDLINE and option.name not in takes:
            name = option.opts[0]
            raise click.UsageError(
                f"{name} is an option of `rankmend agent` itself, and {command} does not take it. "
                f"The options of {command} stand behind it; --help there lists them"
            )


def _run(
    config_path: Path | None,
    once: bool,
    flags: dict[str, str | float | None],
    inbox: "SignalInbox",
) -> None:
    import os

    from rankmend.packages import Extra, require

    require(Extra.AGENT, "rankmend agent")
    from agent import config as configuration
    from agent.daemon import node_agent, service
    from rankmend import logs
    from rankmend.clock import SystemClock
    from rankmend.errors import ConfigError

    def read_config() -> configuration.AgentConfig:
        base = configuration.load(config_path) if config_path else configuration.AgentConfig()
        config = configuration.override(base, **flags)
        return config if once else configuration.with_state_dir(config, os.environ)

    logs.configure(is_daemon=not once)
    try:
        config = read_config()
        if config.log_format is configuration.LogFormat.JSON:
            logs.use(logs.LogShape.JSON)
        if once:
            echo_exact(node_agent.NodeAgent(config, SystemClock()).collect_page(), nl=False)
        else:
            service.run(config, read_config, inbox)
    except ConfigError as error:
        raise failure(error) from error


_socket_option = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="The agent's socket for launchers. [default: the agent's own default]",
)


@agent.command(epilog=examples("rankmend agent release --for 30m"))
@click.option(
    "--for",
    "for_s",
    type=DurationBetween(1, 86_400),
    default="1h",
    show_default=True,
    help="Read the GPUs again after this long.",
)
@_socket_option
def release(for_s: float, socket_path: Path | None) -> None:
    """Release the GPUs.

    They can then be reset, or change their MIG mode.
    """
    _send_command(socket_path, {"command": "release", "for_s": for_s})


@agent.command(epilog=examples("rankmend agent resume"))
@_socket_option
def resume(socket_path: Path | None) -> None:
    """Start reading the released GPUs again."""
    _send_command(socket_path, {"command": "resume"})


@agent.command(epilog=examples("rankmend agent forget 0000:3b:00.0"))
@click.argument("devices", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Forget every device that is missing.")
@_socket_option
def forget(devices: tuple[str, ...], is_all: bool, socket_path: Path | None) -> None:
    """Accept that DEVICES are gone.

    Ends the findings about devices that were removed or replaced.


    Name a device as its finding does: by name, PCI address, GUID, MAC, UUID or serial number.
    """
    if bool(devices) == is_all:
        raise click.UsageError("name the devices to forget, or give --all")
    _send_command(socket_path, {"command": "forget", "devices": None if is_all else list(devices)})


@agent.command(epilog=examples("rankmend agent init agent.toml"))
@click.argument(
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    default=Path("/etc/rankmend/agent.toml"),
    required=False,
)
@click.option("--listen", metavar="HOST:PORT", help="Address to serve on.")
@click.option("--node", metavar="NAME", help="Name of this node.")
@click.option("--controller", metavar="URL", help="Controller for the jobs of other launchers.")
@click.option(
    "--alerts", multiple=True, metavar="URL", help="Alertmanager or controller; repeatable."
)
@click.option("--ca-file", type=click.Path(), metavar="FILE", help="CA of their certificates.")
@click.option(
    "--cert-file", type=click.Path(), metavar="FILE", help="This node's certificate (PEM)."
)
@click.option("--key-file", type=click.Path(), metavar="FILE", help="Its key (PEM).")
@click.option("--no-expect", is_flag=True, help="Don't list the devices that this host has now.")
@click.option("--yes", "-y", is_flag=True, help="Replace FILE without asking.")
def init(
    file: Path,
    alerts: tuple[str, ...],
    controller: str | None,
    no_expect: bool,
    yes: bool,
    **flags: str | None,
) -> None:
    """Write a commented configuration for this host to FILE, by default /etc/rankmend/agent.toml.

    [expect] lists the devices present now. If one is missing later, that is a critical finding, so check
    the numbers. On a virtual machine these lines are commented out. An existing FILE is replaced only if you
    confirm it, and is kept as FILE.old. With - the configuration is printed.
    """
    from agent.setup import found, template, writing
    from rankmend.cli.sources.controller_options import confirm
    from rankmend.errors import RankmendError

    counts = {} if no_expect or found.is_virtual() else found.count_devices()
    names = {"ca_file": "alerts.ca_file", "cert_file": "alerts.cert_file"}
    names |= {"key_file": "alerts.key_file", "listen": "listen", "node": "node"}
    settings: dict[str, template.Setting] = {
        names[name]: value for name, value in flags.items() if value is not None
    }
    if controller is not None:
        settings["watch.controller"] = controller
    if alerts:
        settings["alerts.urls"] = list(alerts)
    settings |= {f"expect.{name}": count for name, count in counts.items()}
    text = template.render(settings, _heading(counts))
    try:
        if str(file) == "-":
            writing.check_text(text)
            echo_exact(text, nl=False)
            return
        exists = file.exists()
        if exists:
            confirm(f"{file} exists. Replace it?", yes=yes)
        retained = writing.write_config(file, text, replaces=exists)
    except FileExistsError:
        raise failure(f"another process has just created {file}: nothing was written") from None
    except (RankmendError, OSError) as error:
        raise failure(error) from error
    echo(f"wrote {file}" + (f"; the one before is {retained}" if retained else ""))
    for name, count in counts.items():
        echo(f"  [expect] {name} = {count:g}")
    echo(f"Next: systemctl reload-or-restart rankmend-agent, or rankmend agent --config {file}")


def _heading(counts: "dict[str, int | float]") -> list[str]:
    from rankmend.node import node_name
    from rankmend.printable import printable

    lines = [f"Written by `rankmend agent init` on {printable(node_name())}."]
    if counts:
        lines.append("[expect] is what this host had then: less is a critical finding. Check it.")
    return lines


def _socket_of_group() -> Path | None:
    """Return the socket that stands before the command: `rankmend agent --socket S release`, or `--config F`, whose agent is meant."""
    parent = click.get_current_context().parent
    given = parent.params if parent is not None else {}
    if given.get("socket"):
        return Path(given["socket"])
    if not given.get("config_path"):
        return None
    from agent import config as configuration
    from rankmend.errors import ConfigError

    try:
        named = configuration.load(given["config_path"]).socket
    except ConfigError as error:
        raise failure(error) from error
    return None if named is None else Path(named)


def _send_command(socket_path: Path | None, request: dict[str, object]) -> None:
    """Send a command to the running agent and print its answer."""
    import os

    from agent.control_socket import ask, control_path
    from rankmend.agent_socket import socket_paths
    from rankmend.errors import SourceError

    usual = socket_paths(os.environ)
    socket_path = socket_path or _socket_of_group()
    paths = [control_path(path) for path in ([socket_path] if socket_path else usual)]
    path = next((path for path in paths if path.exists()), paths[0])
    try:
        echo(ask(path, request))
    except SourceError as error:
        raise failure(error) from error
