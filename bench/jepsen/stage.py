"""What the run happens on: PostgreSQL with a standby, three controllers, and the network between all of them.

All of it stands in network and mount namespaces of its own (`__main__` makes them), so that nftables' rules and the full
disk are nobody else's. A controller reaches each server of the database through a wire that can be cut in mid-commit. Launchers
speak TLS to the controllers, and controllers to each other; so does the first controller to the database, where the wire can't
read what it cuts.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.jepsen.history import Limits, WrittenEntry, WrittenJournal
from bench.jepsen.servers import Servers, make_certificates, running_servers
from rankmend.errors import JournalError
from recovery.controller.cluster.cluster_limits_file import read_policy_file
from recovery.journal.journal_rows import JournalRow, verify_rows
from tests.support.faults import process
from tests.support.faults.clock import FakeClock
from tests.support.faults.fault import Fault
from tests.support.postgres import Wire

CONTROLLERS = 3
TLS_TO_DATABASE = (0,)
START_S_MAX = 120.0
_TABLE = "jepsen"

# Patience in seconds instead of minutes, and budgets that the run comes to the end of. A job goes back behind each loss that is no
# number: that stops one that trains, which the budget of stops is for.
POLICY = """
[budgets]
stops_per_hour_max = {stops_per_hour_max}
nodes_held_percent = 100
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
numbers_rollbacks_max = 1000
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


@dataclass(frozen=True)
class Wires:
    """A controller's ways to both servers of the database."""

    each: tuple[Wire, ...]
    is_legible: bool  # what passes can be read, so that a wire knows what to cut

    def lose(self, text: bytes, *, only_answer: bool) -> None:
        """Lose the next statement with this text, or its answer; where nothing can be read, whatever comes next."""
        for one in self.each:
            lose = one.lose_answer if only_answer else one.lose_statement
            lose(text if self.is_legible else b"")

    def close_all(self) -> None:
        for one in self.each:
            one.close_all()

    def allow(self) -> None:
        for one in self.each:
            one.is_open = True

    def close(self) -> None:
        for one in self.each:
            one.close()

    @property
    def cuts(self) -> int:
        return sum(one.cuts for one in self.each)


@dataclass
class Controller:
    """One `rankmend controller`, its way to the database, and its wall clock."""

    number: int
    folder: Path
    config: Path
    port: int
    wires: "Wires"
    clock: FakeClock
    running: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    should_run: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

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
    servers: Servers
    database: str
    controllers: list[Controller]
    limits: Limits

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.controllers]

    @property
    def authority(self) -> Path:
        """The file of the authority that the controllers' certificate is from."""
        return self.folder / "ca.crt"

    def keep_controllers(self) -> None:
        """Start again those that have ended, as a service manager does."""
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
        return lose(f"tcp {'dport' if to_port else 'sport'} {port}")

    def cut_node(self, address: str, *, from_node: bool) -> Fault:
        """Have all packets of a launcher's node to every controller, or the other way, be lost."""
        return lose(f"ip {'saddr' if from_node else 'daddr'} {address}")

    def unfence(self) -> None:
        """Have the database refuse nothing: anybody takes any lease and appends behind whatever is there."""
        self.servers.ask(self.database, _UNFENCED)

    # What is left.

    def read_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all journals, read as the administrator."""
        return self.servers.ask(
            self.database,
            "SELECT journal, written_by::text, epoch, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8,"
            " number, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum"
            " FROM rankmend.record ORDER BY journal, number",
        )

    def read_journals(self) -> tuple[list[WrittenJournal], WrittenJournal]:
        """Return the journals of all jobs and that of the cluster."""
        return journals_of(self.read_rows())


def journals_of(rows: list[tuple[Any, ...]]) -> tuple[list[WrittenJournal], WrittenJournal]:
    """Return the journals of all jobs and that of the cluster, out of their rows."""
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


def lose(what: str) -> Fault:
    """Have packets be lost."""
    told = nft(f"add rule inet {_TABLE} lost {what} drop", "--echo", "--handle")
    handle = told.split("# handle ")[1].split()[0]
    return Fault(what, lambda: nft(f"delete rule inet {_TABLE} lost handle {handle}") and None)


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
    make_certificates(folder)
    policy = folder / "policy.toml"
    policy.write_text(
        POLICY.format(restarts_max=restarts_max, stops_per_hour_max=stops_per_hour_max)
    )
    with running_servers(folder) as servers:
        database = servers.primary.make_database()
        made = [
            _make_controller(folder, number, servers, database, policy, lease_s)
            for number in range(CONTROLLERS)
        ]
        stage = Stage(folder, servers, database, made, limits_of(policy))
        try:
            for one in made:
                one.start()
            stage.wait_started()
            yield stage
        finally:
            for one in made:
                one.should_run = False
                one.kill()
                one.wires.close()


def limits_of(policy: Path) -> Limits:
    """Return the budgets that the policy file says, as the controllers read it."""
    read = read_policy_file(policy)
    job, budgets = read.policy, read.cluster.budgets
    return Limits(
        job.restarts_max, job.no_progress_max, job.no_progress_any_max,
        budgets.stops_per_hour_max, budgets.moves_per_job_day_max,
    )  # fmt: skip


def _make_controller(
    folder: Path, number: int, servers: Servers, database: str, policy: Path, lease_s: float
) -> Controller:
    home = folder / f"controller-{number}"
    (home / "state").mkdir(parents=True)
    assert servers.standby is not None, "nothing has failed yet"
    each = tuple(Wire(one.port) for one in (servers.primary, servers.standby))
    wires, port = Wires(each, number not in TLS_TO_DATABASE), 9400 + number  # a namespace of ours
    hosts = ",".join(f"localhost:{one.port}" for one in each)
    tls = "disable" if wires.is_legible else f"verify-full&sslrootcert={folder}/ca.crt"
    config = home / "controller.toml"
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{home}/state"\npolicy_file = "{policy}"\n'
        f'journal = "postgresql://controller@{hosts}/{database}?sslmode={tls}"\n'
        f'[tls]\ncert_file = "{folder}/host.crt"\nkey_file = "{folder}/host.key"\n'
        f'[postgres]\nlease_s = {lease_s}\nurl = "https://127.0.0.1:{port}"\n'
        '[limits]\nshared_addresses = ["127.0.0.0/8"]\nalerts = 200.0\nacts = 200.0\n'
    )
    return Controller(number, home, config, port, wires, FakeClock(home / "clock"))
