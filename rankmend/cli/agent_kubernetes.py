"""`rankmend agent-kubernetes`: tells the findings of this node's agent in Kubernetes."""

from pathlib import Path

import click

from rankmend.agent_page import LISTENS_AT
from rankmend.cli.options import examples
from rankmend.cli.output import failure


@click.command(
    epilog=examples("rankmend agent-kubernetes --node gpu-17", after="SIGTERM and SIGINT stop it.")
)
@click.option("--node", required=True, metavar="NAME", help="Name of this node in Kubernetes.")
@click.option(
    "--agent", "agent_url", default=LISTENS_AT, show_default=True, metavar="URL", help="The agent."
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Connect to Kubernetes with this file. [default: the service account of this pod]",
)
@click.option("--context", metavar="NAME", help="Context in that file. [default: its current one]")
@click.option(
    "--pods-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file which pod has which GPU, for the agent's [gpu] kubelet_checkpoint.",
)
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    help="The kubelet's socket.",
)
@click.option(
    "--pod-logs",
    type=click.Path(path_type=Path),
    default="/var/log/pods",
    show_default=True,
    help="Folder with an entry for each pod, named with its UID.",
)
def agent_kubernetes(
    node: str,
    agent_url: str,
    kubeconfig: str | None,
    context: str | None,
    pods_file: Path | None,
    pod_resources: Path,
    pod_logs: Path,
) -> None:
    """Keep this node's conditions and events in Kubernetes up to date with the agent's findings.

    With --pods-file, also keep the agent up to date with the kubelet's pods.

    This is a separate process, because the Kubernetes client takes as much memory as the whole
    agent.
    """
    import signal

    from agent.kubernetes.pod_resources import keep_pods
    from agent.kubernetes.teller import LOOK_S, Teller, log
    from rankmend import logs
    from rankmend.agent_page import read_agent
    from rankmend.clock import SystemClock
    from rankmend.errors import ConfigError, ManagerError, MissingPackageError, SourceError
    from rankmend.kubernetes_api import connect
    from rankmend.packages import Extra, require
    from rankmend.signals import SignalInbox

    page = f"{agent_url.rstrip('/')}/api/v1/findings"
    with SignalInbox({signal.SIGTERM, signal.SIGINT}) as inbox:
        logs.configure()
        try:
            require(Extra.KUBERNETES, "rankmend agent-kubernetes")
            api = connect(kubeconfig, context, 10.0, "rankmend-agent")
        except (ConfigError, MissingPackageError) as error:
            raise failure(error) from error

        def read() -> bytes:
            return read_agent(page, bytes_max=4 * 1024 * 1024, timeout_s=5.0)

        teller = Teller(api, node, read, SystemClock())
        while True:
            try:
                teller.look()
            except ManagerError as error:
                log.warning("Kubernetes does not receive the findings", extra={"error": str(error)})
            try:
                if pods_file is not None:
                    keep_pods(pod_resources, pod_logs, pods_file)
            except SourceError as error:
                log.warning("the pods of GPUs are not known", extra={"error": str(error)})
            inbox.wait(LOOK_S)
            if inbox.read():
                return
