"""The database of a run: a primary and its synchronous standby, each on a small disk of its own, both with TLS."""

import contextlib
import os
import pwd
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from recovery.service.http.authority import make_authority, make_server
from tests.support.faults.fault import Fault
from tests.support.postgres import PostgresServer, running_server

DISK_MIB = 320  # of each server, its log of writes among it


class Servers:
    """Whoever starts, ends or exchanges a server holds the lock."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby: PostgresServer | None = standby
        self._lost: PostgresServer | None = None  # the former primary, until it is a standby
        self._is_wanted = True
        self._lock = threading.Lock()
        self.starts = 2
        self.failovers = 0

    def ask(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        return self.primary.ask(database, statement)

    def keep(self) -> None:
        """Start again what has ended, as a service manager does."""
        with self._lock:
            if not self._is_wanted:
                return
            for one in (self.primary, self.standby):
                if one is not None and (one.process is None or one.process.poll() is not None):
                    with contextlib.suppress(AssertionError):  # it doesn't start: its disk is full
                        self.starts += 1
                        one.start()

    def kill(self) -> None:
        """End all processes of the primary at once; nobody starts it until `allow` or `fail_over`."""
        with self._lock:
            self._is_wanted = False
            kill(self.primary)

    def allow(self) -> None:
        self._is_wanted = True

    def fail_over(self) -> None:
        """Promote the standby in place of the primary, which was killed; that one follows as a new standby.

        As after each failover, commits wait for a standby only once there is one again.
        """
        with self._lock:
            assert self.standby is not None, "it was made again before the next failover"
            lost, self.primary, self.standby = self.primary, self.standby, None
            self.primary.promote()
            self.failovers += 1
        self.allow()
        shutil.rmtree(lost.data)
        lost.follow(self.primary)
        self.starts += 1
        self.standby = lost

    def fill_disk(self) -> Fault:
        """Leave the primary's disk without a free byte."""
        filler = self.primary.data.parent / "filler"
        for size in (65536, 512):
            with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(size))
        return Fault("disk full", lambda: filler.unlink(missing_ok=True))

    def end_backend(self) -> None:
        """Have the primary end a session of a controller, if possible one that commits."""
        with contextlib.suppress(Exception):
            self.ask(
                "postgres",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rankmend-controller'"
                " ORDER BY (state = 'active') DESC, random() LIMIT 1",
            )


def kill(server: PostgresServer) -> None:
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        pid = int((server.data / "postmaster.pid").read_text().split()[0])
        master = psutil.Process(pid)
        processes = [master, *master.children(recursive=True)]
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(processes, timeout=30)
    if server.process is not None:
        server.process.wait(30)


def make_certificates(folder: Path) -> None:
    """Make an authority, ca.crt, and a certificate for this machine, host.crt and host.key."""
    make_authority(folder / "ca.crt", folder / "ca.key", "jepsen")
    make_server(
        (folder / "ca.crt", folder / "ca.key"), folder / "host.crt", folder / "host.key", ["localhost", "127.0.0.1"]
    )  # fmt: skip


@contextlib.contextmanager
def running_servers(folder: Path) -> Iterator[Servers]:
    """Run both, with the certificate in ``folder``."""
    with _small_disk() as disk, _small_disk() as other_disk:
        for name in ("host.crt", "host.key"):
            copy = disk / name
            copy.write_bytes((folder / name).read_bytes())
            copy.chmod(0o600)
            user = pwd.getpwnam("postgres")
            os.chown(copy, user.pw_uid, user.pw_gid)
        with running_server(
            data_folder=disk / "data", initdb_words=("--wal-segsize=1",), track_commit_timestamp="on",
            max_wal_size="48MB", min_wal_size="4MB", checkpoint_timeout="60s", log_min_messages="warning",
            ssl="on", ssl_cert_file=str(disk / "host.crt"), ssl_key_file=str(disk / "host.key"),
            # A standby that was away for a restart of the primary finds all that it lacks, and soon.
            wal_keep_size="64MB", wal_retrieve_retry_interval="500ms",
        ) as primary:  # fmt: skip
            standby = PostgresServer(
                primary.programs, primary.folder / "standby", settings=dict(primary.settings), data_folder=other_disk / "data"
            )  # fmt: skip
            standby.make_folder()
            both = Servers(primary, standby)
            try:
                standby.follow(primary)
                yield both
            finally:
                for one in (primary, standby):
                    kill(one)
                    one.process = None


@contextlib.contextmanager
def _small_disk() -> Iterator[Path]:
    disk = Path(f"/tmp/rankmend-jepsen-{uuid.uuid4().hex[:8]}")
    disk.mkdir()
    words = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0777", "tmpfs", disk]
    subprocess.run(["mount", *words], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=False)
        disk.rmdir()
