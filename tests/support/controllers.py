"""Controllers as a site has them: several on one database with one authority and the same tokens, or a process."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.api import wire
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.service import FullClient, Running, make_folder, running

RANKMEND = [sys.executable, "-m", "rankmend.cli"]
SHARED = (
    "ca.crt",
    "ca.key",
    "server.crt",
    "server.key",
    "tokens.toml",
    "admin.token",
    "launch.token",
)


def configure(
    folder: Path, url: str, *, lease_s: float = 4.0, like: Path | None = None, more: str = ""
) -> Path:
    """Make the files of a controller on a port of its own; ``like``: the folder whose authority and tokens it has."""
    path, port = make_folder(folder), free_port()
    text = path.read_text().replace("\nstate_dir", f'\njournal = "{url}"\nstate_dir')
    text = text.replace("127.0.0.1:0", f"127.0.0.1:{port}")
    text = text.replace("#lease_s = 8.0", f"lease_s = {lease_s}")
    text = text.replace(
        '#url = "https://controller-a.example:9477"', f'url = "https://127.0.0.1:{port}"'
    )
    if more:  # in place of the tables that are there
        for table in re.findall(r"^\[(\w+)\]$", more, re.MULTILINE):
            text = text.replace(f"\n[{table}]\n", f"\n#[{table}]\n")
    path.write_text(text + more)
    for name in SHARED if like is not None else ():
        assert like is not None
        shutil.copy(like / name, folder / name)
    return folder


@contextmanager
def running_controllers(
    home: Path, url: str, count: int = 2, **options: Any
) -> Iterator[list[Running]]:
    """Run so many controllers in this process."""
    with ExitStack() as stack:
        started: list[Running] = []
        for number in range(count):
            like = started[0].folder if started else None
            folder = configure(home / f"controller-{number}", url, like=like, **options)
            started.append(stack.enter_context(running(folder)))
        yield started


def listen_of(folder: Path) -> str:
    """Return where a controller will listen."""
    text = (folder / "controller.toml").read_text()
    return re.findall(r'^listen = "(.*)"$', text, re.MULTILINE)[0]


def reach(folder: Path, port: int) -> None:
    """Have others reach a controller by this port, in place of where it listens."""
    path = folder / "controller.toml"
    path.write_text(
        re.sub(
            r'^url = ".*"$',
            f'url = "https://127.0.0.1:{port}"',
            path.read_text(),
            flags=re.MULTILINE,
        )
    )


@dataclass
class ControllerProcess:
    folder: Path
    process: forked_cli.ForkedProcess

    def port_in(self, url: str) -> bool:
        """Return whether this address leads here."""
        return url.endswith(listen_of(self.folder).rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(300)


@contextmanager
def controller_process(folder: Path, **variables: str) -> Iterator[ControllerProcess]:
    """Run a controller as a process of its own; its log is appended to the file `log` of its folder. ``variables``: of its environment."""
    with (folder / "log").open("ab") as log:
        started = forked_cli.start(
            ["controller", "run", "--config", str(folder / "controller.toml")],
            cwd=Path(__file__).parents[2],
            environment={**os.environ, **variables},
            stdout=log,
        )
    made = ControllerProcess(folder, started)
    try:
        yield made
    finally:
        made.kill()


class Service:
    """`rankmend controller run` in a process of its own."""

    def __init__(self, folder: Path, config: str = "controller.toml", token: str = "actor") -> None:
        self.folder = folder
        self.log = folder / "controller.log"
        with self.log.open("ab") as out:
            began = out.tell()
            self.process = forked_cli.start(
                ["controller", "run", "--config", str(folder / config)],
                cwd=Path.cwd(),
                environment=os.environ,
                stdout=out,
            )
        eventually(lambda: self._port(began) is not None, "the controller's start")
        self.port = self._port(began)
        self.url = f"https://127.0.0.1:{self.port}"
        self.client = self.connect(token)

    def connect(self, token: str) -> FullClient:
        return FullClient(
            [self.url], token_file=self.folder / f"{token}.token", ca_file=self.folder / "ca.crt"
        )

    def job(self, name: str) -> wire.JobView:
        return next(job for job in self.client.jobs(with_ended=True) if job.name == name)

    def _port(self, began: int) -> int | None:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"controller started.*\bport=(\d+)", self.log.read_text()[began:])
        return int(found[1]) if found else None

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(DEADLINE_S)
