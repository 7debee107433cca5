"""What the run happens on: a real PostgreSQL on a small disk, three controllers, and the network between all of them.

All of it stands in network and mount namespaces of its own (`__main__` makes them), so that nftables' rules and the full
disk are nobody else's. A controller reaches the database through a wire that can be cut in mid-commit.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.jepsen.history import Limits, WrittenEntry, WrittenJournal
from rankmend.errors import JournalError
from recovery.cluster.cluster_limits_file import read_policy_file
from recovery.journal.journal_rows import JournalRow, verify_rows
from tests.support.faults import process
from tests.support.faults.clock import FakeClock
from tests.support.faults.fault import Fault
from tests.support.postgres import PostgresServer, Wire, running_server

CONTROLLERS = 3
DISK_MIB = 320  # of the database, its log of writes among it
START_S_MAX = 120.0
_TABLE = "jepsen"

# Patience in seconds instead of minutes, and budgets that the run comes to the end of.
POLICY = """
[budgets]
stops_per_hour_max = {stops_per_hour_max}
moves_per_job_day_max = 4
[quarantine]
blames = 1000
[policy]
restarts_max = {restarts_max}
no_progress_max = 6
no_progress_any_max = 12
tries_max = 10
node_silent_s = 6
lease_s = 10
kill_bound_s = 3
fence_timeout_s = 60
start_timeout_s = 60
verify_timeout_s = 90
verify_attached_s = 60
spare_wait_s = 90
join_wait_s = 15
evidence_wait_s = 1
retry_pause_s = 0.5
retry_pause_max_s = 4
"""


# `demand_lease` finds every lease in force, `take` gives one to whoever asks, and `append` takes rows wherever the journal ends.
_UNFENCED = """
CREATE OR REPLACE FUNCTION rankmend.demand_lease(asked text, by_controller uuid, lease_epoch bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER AS $$ SELECT $$;
CREATE OR REPLACE FUNCTION rankmend.append(
    asked text, by_controller uuid, lease_epoch bigint, after bigint, after_checksum bytea,
    kinds text[], majors integer[], minors integer[], unix double precision[], monotonic double precision[],
    boots text[], bodies bytea[], checksums bytea[]
) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    INSERT INTO rankmend.record
    SELECT asked, (SELECT coalesce(max(number), 0) FROM rankmend.record WHERE journal = asked) + place,
           kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, by_controller, lease_epoch
    FROM unnest(kinds, majors, minors, unix, monotonic, boots, bodies, checksums)
         WITH ORDINALITY AS given (kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, place)
$$;
CREATE OR REPLACE FUNCTION rankmend.take(
    asked text, by_controller uuid, OUT epoch bigint, OUT holder_name text, OUT holder_url text, OUT left_s double precision
) LANGUAGE sql SECURITY DEFINER AS $$
    UPDATE rankmend.journal SET holder = by_controller WHERE name = asked
    RETURNING journal.epoch, NULL::text, NULL::text, NULL::float8
$$;
"""


@dataclass
class Controller:
    """One `rankmend controller`, its way to the database, and its wall clock."""

    number: int
    folder: Path
    config: Path
    port: int
    wire: Wire
    clock: FakeClock
    running: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    should_run: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        command = (
            sys.executable,
            "-m",
            "rankmend.cli",
            "controller",
            "run",
            f"--config={self.config}",
        )
        with self.lock, self.log.open("ab") as output:
            self.starts += 1
            self.running = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **self.clock.environment}
            )

    def keep(self) -> None:
        """Start it again where it has ended, as systemd does."""
        if self.should_run and (self.running is None or self.running.poll() is not None):
            self.start()

    def kill(self) -> None:
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill(self.running)
            self.running.wait(30)

    def stop(self) -> Fault | None:
        """Have it stand still, if it runs."""
        with contextlib.suppress(ProcessLookupError, OSError):
            if self.running is not None and self.running.poll() is None:
                return process.stop(self.running)
        return None


@dataclass
class Stage:
    folder: Path
    server: PostgresServer
    database: str
    controllers: list[Controller]
    limits: Limits
    is_server_wanted: bool = True
    server_starts: int = 1

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.controllers]

    def keep(self) -> None:
        """Start again what has ended, as a service manager does."""
        process_ = self.server.process
        if self.is_server_wanted and (process_ is None or process_.poll() is not None):
            with contextlib.suppress(AssertionError):  # it doesn't start: its disk is full
                self.server_starts += 1
                self.server.start()
        for one in self.controllers:
            one.keep()

    def wait_started(self) -> None:
        until_s = time.monotonic() + START_S_MAX
        for one in self.controllers:
            while "controller started" not in one.log.read_text(errors="replace"):
                if time.monotonic() > until_s:
                    raise SystemExit(f"a controller does not start:\n{one.log.read_text()[-3000:]}")
                time.sleep(0.1)

    # What is broken.

    def lose(self, port: int, *, to_port: bool) -> Fault:
        """Have all packets to a port, or from it, be lost."""
        words = f"tcp {'dport' if to_port else 'sport'} {port} drop"
        told = nft(f"add rule inet {_TABLE} lost {words}", "--echo", "--handle")
        handle = told.split("# handle ")[1].split()[0]
        return Fault(words, lambda: nft(f"delete rule inet {_TABLE} lost handle {handle}") and None)

    def fill_disk(self) -> Fault:
        """Leave the database's disk without a free byte."""
        filler = self.server.data.parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
        return Fault("disk full", lambda: filler.unlink(missing_ok=True))

    def kill_server(self) -> None:
        """End all processes of the database at once."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int((self.server.data / "postmaster.pid").read_text().split()[0])
            master = psutil.Process(pid)
            processes = [master, *master.children(recursive=True)]
            for one in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(processes, timeout=30)
        if self.server.process is not None:
            self.server.process.wait(30)

    def end_backend(self) -> None:
        """Have the server end a session of a controller, if possible one that commits."""
        with contextlib.suppress(Exception):
            self.server.ask(
                "postgres",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rankmend-controller'"
                " ORDER BY (state = 'active') DESC, random() LIMIT 1",
            )

    def unfence(self) -> None:
        """Have the database refuse nothing: anybody takes any lease and appends behind whatever is there."""
        self.server.ask(self.database, _UNFENCED)

    # What is left.

    def read_journals(self) -> tuple[list[WrittenJournal], WrittenJournal]:
        """Return the journals of all jobs and that of the cluster, read as the administrator, row by row."""
        rows = self.server.ask(
            self.database,
            "SELECT journal, written_by::text, epoch, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8,"
            " number, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum"
            " FROM rankmend.record ORDER BY journal, number",
        )
        by_name: dict[str, list[tuple[object, ...]]] = {"cluster": []}
        for name, *rest in rows:
            by_name.setdefault(name, []).append(tuple(rest))
        found = [_journal(name, one) for name, one in by_name.items()]
        cluster = next(one for one in found if one.name == "cluster")
        return [one for one in found if one.name.startswith("job:")], cluster


def _journal(name: str, rows: list[tuple[object, ...]]) -> WrittenJournal:
    stored = [JournalRow(*row[3:]) for row in rows]  # type: ignore[arg-type]
    try:
        entries, torn = verify_rows(stored, name)
        damage = f"{torn} records don't have their checksums" if torn else ""
    except JournalError as error:
        entries, damage = [], str(error)
    written = tuple(
        WrittenEntry(entry, str(row[0]), int(row[1]), float(row[2]))  # type: ignore[call-overload, arg-type]
        for entry, row in zip(entries, rows, strict=False)
    )
    return WrittenJournal(name, written, damage)


def nft(rule: str, *words: str) -> str:
    done = subprocess.run(["nft", *words, rule], capture_output=True, text=True, check=True)
    return done.stdout


@contextlib.contextmanager
def standing(
    folder: Path, *, lease_s: float, restarts_max: int, stops_per_hour_max: int
) -> Iterator[Stage]:
    """Stand everything up in ``folder``, with controllers that have started."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    nft(f"add table inet {_TABLE}")
    nft(f"add chain inet {_TABLE} lost {{ type filter hook input priority 0; }}")
    disk = Path(f"/tmp/rankmend-jepsen-{uuid.uuid4().hex[:8]}")
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0777", "tmpfs", disk], check=True
    )
    policy = folder / "policy.toml"
    policy.write_text(
        POLICY.format(restarts_max=restarts_max, stops_per_hour_max=stops_per_hour_max)
    )
    try:
        with running_server(
            data_folder=disk / "data", initdb_words=("--wal-segsize=1",), track_commit_timestamp="on",
            max_wal_size="48MB", min_wal_size="4MB", checkpoint_timeout="60s", log_min_messages="warning",
        ) as server:  # fmt: skip
            database = server.make_database()
            made = [
                _make_controller(folder, number, server, database, policy, lease_s)
                for number in range(CONTROLLERS)
            ]
            stage = Stage(folder, server, database, made, _limits(policy))
            try:
                for one in made:
                    one.start()
                stage.wait_started()
                yield stage
            finally:
                for one in made:
                    one.should_run = False
                    one.kill()
                    one.wire.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=False)
        disk.rmdir()


def _limits(policy: Path) -> Limits:
    """Return the budgets that the policy file says, as the controllers read it."""
    read = read_policy_file(policy)
    job, budgets = read.policy, read.cluster.budgets
    return Limits(
        job.restarts_max, job.no_progress_max, job.no_progress_any_max,
        budgets.stops_per_hour_max, budgets.moves_per_job_day_max,
    )  # fmt: skip


def _make_controller(
    folder: Path, number: int, server: PostgresServer, database: str, policy: Path, lease_s: float
) -> Controller:
    home = folder / f"controller-{number}"
    (home / "state").mkdir(parents=True)
    wire, port = Wire(server.port), 9400 + number  # the namespace is ours alone
    config = home / "controller.toml"
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{home}/state"\npolicy_file = "{policy}"\n'
        f'journal = "{server.url(database, "controller", wire.port)}"\n'
        f'[postgres]\nlease_s = {lease_s}\nurl = "http://127.0.0.1:{port}"\n'
        '[limits]\nshared_addresses = ["127.0.0.0/8"]\nalerts = 200.0\nacts = 200.0\n'
    )
    return Controller(number, home, config, port, wire, FakeClock(home / "clock"))
