"""`rankmend agent`: run the node agent, or print what it would serve."""

from pathlib import Path

import click


@click.command(epilog="SIGHUP reads the configuration again; SIGTERM and SIGINT stop the agent.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--listen", metavar="HOST:PORT", help="Serve here [default: 127.0.0.1:9476].")
@click.option(
    "--socket",
    metavar="PATH",
    help="Take ranks from launchers here [default: /run/rankmend/agent.sock, else "
    "$XDG_RUNTIME_DIR/rankmend/agent.sock].",
)
@click.option("--interval", "interval_s", type=float, metavar="SECONDS", help="Of all collectors.")
@click.option(
    "--node", metavar="NAME", help="Name of this node [default: Slurm's, else the host's]."
)
@click.option("--progress-glob", metavar="PATTERN", help="Read progress files at these paths, too.")
@click.option("--procfs", metavar="FOLDER", help="Read here instead of /proc.")
@click.option("--sysfs", metavar="FOLDER", help="Read here instead of /sys.")
@click.option("--once", is_flag=True, help="Collect once, print the page and exit.")
def agent(config_path: Path | None, once: bool, **flags: str | float | None) -> None:
    """Collect this node's and its ranks' signals and serve them to Prometheus."""
    from agent import config as configuration
    from agent import daemon, logs
    from rankmend.clock import SystemClock
    from rankmend.errors import ConfigError

    def read_config() -> configuration.Config:
        base = configuration.load(config_path) if config_path else configuration.Config()
        return configuration.override(base, **flags)

    logs.configure()
    try:
        config = read_config()
        if once:
            click.echo(daemon.Agent(config, SystemClock()).collect_page(), nl=False)
        else:
            daemon.run(config, read_config)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
