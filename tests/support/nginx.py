"""Debian's nginx before a controller, as people put it there: TLS of its own, a path, its default buffering."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.service import Running

PROGRAM = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_CONFIG = """\
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
worker_shutdown_timeout 1s;
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        {locations}
    }}
}}
"""


@dataclass
class Nginx:
    folder: Path
    port: int
    up: Running
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def write(self, locations: str) -> None:
        files = self.up.folder
        text = _CONFIG.format(
            user="user root;" if os.geteuid() == 0 else "",
            folder=self.folder,
            port=self.port,
            certificate=files / "server.crt",
            key=files / "server.key",
            locations=locations,
        )
        (self.folder / "nginx.conf").write_text(text)

    def start(self) -> None:
        assert PROGRAM is not None
        conf = self.folder / "nginx.conf"
        self.process = subprocess.Popen(
            [PROGRAM, "-c", str(conf), "-e", str(self.folder / "error.log")]
        )
        eventually(lambda: bool(self.pids()), "nginx with its worker")

    def pids(self) -> list[int]:
        """Return the master and its workers, once it serves."""
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "error.log").read_text()
        master = self.process.pid
        if not (self.folder / "nginx.pid").exists():
            return []
        workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        return [master, *map(int, workers)] if workers else []

    def change(self, locations: str) -> None:
        """Serve this from now on, and cut what is open."""
        self.write(locations)
        old = self.pids()[1:]
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: not set(old) & set(self.pids()), "the old worker has ended")

    def send(self, number: int) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            for pid in self.pids():
                os.kill(pid, signal.SIGCONT)
            self.process.terminate()
        self.process.wait()


@contextmanager
def nginx(folder: Path, up: Running, locations: str) -> Iterator[Nginx]:
    """Run nginx before this controller, or skip the test where there is none."""
    if PROGRAM is None:
        pytest.skip("no nginx: apt-get install nginx-light")
    folder.mkdir()
    proxy = Nginx(folder, free_port(), up)
    proxy.write(locations)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()
