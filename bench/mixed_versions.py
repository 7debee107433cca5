"""An older rankmend beside this one on one PostgreSQL: their jobs are taken over in both directions, then everything is checked.

    git worktree add ../older COMMIT
    .venv/bin/python -m bench.mixed_versions ../older              # 8 jobs, 2 rounds, 3 minutes

The older one's code runs with this one's packages. It makes its schema and takes half of the jobs; this one must refuse that schema, if it is older, migrate it
under the living older one, and take the other half. In each round one of them is killed, the other one takes all jobs over and recovers each
of them from the death of a rank, and then the other way round. The launchers are simulated, as in `make jepsen`, and so is
the checker. Exit code 0: no job was lost, none ran twice, no rule was violated. Needs Debian's postgresql.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.jepsen.checker import check
from bench.jepsen.history import History, WrittenJournal
from bench.jepsen.launchers import Job, Seen
from bench.jepsen.stage import POLICY, Stage, limits_of
from bench.jepsen.trial import count
from recovery.journal.fold.entry_fold import fold_all
from tests.support.free_port import free_port
from tests.support.postgres import PostgresServer, running_server

if TYPE_CHECKING:
    from bench.jepsen.servers import Servers

HERE = Path(__file__).parents[1]
WAIT_S_MAX = 180.0
LEASE_S = 4.0


class Controller:
    def __init__(self, name: str, code: Path, folder: Path, journal: str, policy: Path) -> None:
        self.name, self._code, self._folder = name, code, folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = folder / "controller.toml"
        self._running: subprocess.Popen[bytes] | None = None
        self._starts = 0
        (folder / "state").mkdir(parents=True)
        self.config.write_text(
            f'listen = "{self.url.removeprefix("http://")}"\nstate_dir = "{folder}/state"\n'
            f'policy_file = "{policy}"\njournal = "{journal}"\n'
            f'[postgres]\nlease_s = {LEASE_S}\nurl = "{self.url}"\n'
            '[limits]\nshared_addresses = ["127.0.0.0/8"]\n'
        )

    def command(self, what: str, config: Path) -> "subprocess.CompletedProcess[str]":
        words = ["-m", "rankmend.cli", "controller", what, f"--config={config}"]
        return subprocess.run(
            [sys.executable, *words], cwd=self._code, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
        )  # fmt: skip

    def schema_version(self) -> int:
        """Return the version of the schema that this code makes."""
        words = [
            "-c",
            "from recovery.journal.postgres.migration import SCHEMA_VERSION as v; print(v)",
        ]
        done = subprocess.run(
            [sys.executable, *words], cwd=self._code, capture_output=True, text=True, timeout=WAIT_S_MAX, check=True
        )  # fmt: skip
        return int(done.stdout)

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"log-{self._starts}"
        words = ["-m", "rankmend.cli", "controller", "run", f"--config={self.config}"]
        with log.open("wb") as output:
            self._running = subprocess.Popen(
                [sys.executable, *words], cwd=self._code, stdout=output, stderr=output
            )
        running = self._running

        def has_started() -> bool:
            if running.poll() is not None:
                sys.exit(f"the {self.name} controller does not start:\n{log.read_text()[-2000:]}")
            return "controller started" in log.read_text()

        wait(has_started, f"the {self.name} controller has started")

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait(30)


class Site:
    def __init__(self, folder: Path, server: PostgresServer, older: Path, jobs: int) -> None:
        self.server, self.database = server, server.make_database(is_migrated=False)
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY.format(restarts_max=60, stops_per_hour_max=12))
        journal = server.url(self.database, "controller")
        self.older = Controller("older", older, folder / "older", journal, self.policy)
        self.newer = Controller("newer", HERE, folder / "newer", journal, self.policy)
        self.admin = folder / "admin.toml"
        self.admin.write_text(self.older.config.read_text().replace("controller@", "admin@"))
        self.seen = Seen()
        urls = [self.older.url, self.newer.url]
        half = jobs // 2
        self.jobs = [Job(n, n % 2, urls, None, self.seen) for n in range(half)]
        self.jobs += [Job(n, n % 2, urls[::-1], None, self.seen) for n in range(half, jobs)]
        self._draw = random.Random(1)

    def migrate(self, controller: Controller) -> None:
        done = controller.command("migrate", self.admin)
        say(f"{controller.name}: {(done.stdout + done.stderr).strip()}")
        if done.returncode:
            sys.exit(1)

    def held(self) -> dict[str, int]:
        """Return how many jobs each controller has."""
        rows = self.server.ask(
            self.database,
            "SELECT c.url, count(*) FROM rankmend.journal j JOIN rankmend.controller c ON c.controller_id = j.holder"
            " WHERE j.job_id IS NOT NULL GROUP BY c.url",
        )
        names = {one.url: one.name for one in (self.older, self.newer)}
        return {names[url]: number for url, number in rows}

    def recover(self, jobs: Sequence[Job], under: str) -> None:
        """Have a rank of each job die, and wait until all train again."""
        before = [_attempt(job) for job in jobs]
        for job in jobs:
            job.fail_rank("kill", self._draw)
        wait(
            lambda: all(map(_trains, jobs)) and all(_attempt(job) > was for job, was in zip(jobs, before, strict=True)),
            f"each of {len(jobs)} jobs has recovered from a death under {under}",
        )  # fmt: skip

    def history(self) -> History:
        stage = Stage(
            self.policy.parent, cast("Servers", self.server), self.database, [], limits_of(self.policy)
        )  # fmt: skip
        journals, cluster = stage.read_journals()
        seen = self.seen
        return History(stage.limits, tuple(journals), cluster, tuple(seen.orders), tuple(seen.lives))  # fmt: skip


def _trains(job: Job) -> bool:
    return sum(one.running is not None and one.running.is_alive for one in job.launchers) == 2


def _attempt(job: Job) -> int:
    running = [one.running for one in job.launchers]
    return max((one.order.attempt for one in running if one is not None), default=0)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def wait(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S_MAX
    while not is_so():
        if time.monotonic() > until_s:
            sys.exit(f"not within {WAIT_S_MAX:.0f} s: {what}")
        time.sleep(0.2)
    say(what)


def run(site: Site, rounds: int) -> None:
    older, newer, jobs = site.older, site.newer, site.jobs
    half = jobs[: len(jobs) // 2]
    site.migrate(older)
    older.start()
    for job in half:
        job.begin()
    wait(lambda: all(map(_trains, half)), f"{len(half)} jobs train under the older one")
    if older.schema_version() == newer.schema_version():
        say("both make the same schema: there is none to refuse")
    else:
        refused = newer.command("run", newer.config)
        if not refused.returncode or "version" not in refused.stderr:
            sys.exit(f"the newer controller does not refuse the older schema: {refused.stderr}")
        say(f"newer: {refused.stderr.strip().splitlines()[-1]}")
    site.migrate(newer)
    newer.start()
    for job in jobs[len(half) :]:
        job.begin()
    wait(lambda: all(map(_trains, jobs)), f"all {len(jobs)} jobs train")
    say(f"jobs of each: {site.held()}")
    site.recover(jobs, "both")
    for _round in range(rounds):
        for dies, other in ((older, newer), (newer, older)):
            dies.kill()
            wait(
                lambda other=other: site.held() == {other.name: len(jobs)},  # type: ignore[misc]
                f"the {other.name} one has all jobs of the {dies.name} one, which was killed",
            )
            site.recover(jobs, f"the {other.name} one")
            dies.start()
    wait(lambda: len(site.held()) == 2, "the spread has begun")
    site.recover(jobs, "both")
    wait(lambda: not any(map(_is_recovering, site.history().journals)), "every incident has ended")


def _is_recovering(journal: WrittenJournal) -> bool:
    return fold_all([one.entry for one in journal.entries]).incident is not None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path, help="folder with the older version's code")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(track_commit_timestamp="on") as server,
    ):
        site = Site(Path(folder), server, options.older.resolve(), options.jobs)
        try:
            run(site, options.rounds)
            for job in site.jobs:
                job.close()
            history = site.history()
        finally:
            site.older.kill()
            site.newer.kill()
    violations = check(history)
    for name, number in count(history).items():
        print(f"{name}: {number:,}")
    print(f"{len(violations)} violations")
    for one in violations:
        print(f"{one.rule.name}: {one.about}: {one.text}")
    sys.exit(1 if violations or len(history.journals) != options.jobs else 0)


if __name__ == "__main__":
    main()
