"""One subject uses up its own share of everything; the others get in as before."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from recovery.messages.codec import encode_message
from recovery.service.controller_config import Config, JobsSection, Limits
from recovery.service.http.handlers.launchers import JOINS_MAX
from recovery.service.jobs.retained import DAY_S, JournalBytes, Retained, Room
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S
from tests.support.service import Running, Speaker, join_of, make_folder, running

pytestmark = pytest.mark.process

JOBS_MAX, CONNECTIONS = 8, 40
SHARE_BYTES = 1 << 20


def small(config: Config) -> Config:
    rates = {"reports_per_node": 1e5, "launches": 1e5, "reads": 1e5}
    limits = Limits(
        connections=CONNECTIONS,
        shared_addresses=("127.0.0.0/8",),
        journal_bytes_per_day=SHARE_BYTES,
        **rates,  # type: ignore[arg-type]
    )
    return msgspec.structs.replace(config, jobs=JobsSection(at_once_max=JOBS_MAX), limits=limits)


@dataclass
class Site:
    up: Running
    tokens: dict[str, str]
    pool: urllib3.PoolManager

    def ask(
        self, who: str, method: str, path: str, body: bytes | None = None, pool: Any = None
    ) -> tuple[int, str]:
        """Return status and error, if it is one."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = (pool or self.pool).request(
            method, self.up.url + path, body=body, headers=headers, timeout=DEADLINE_S
        )
        error = json.loads(answer.data).get("error", "") if answer.data else ""
        return answer.status, error

    def join(self, who: str, key: str, **changes: Any) -> tuple[int, str]:
        return self.ask(
            who, "POST", "/v1/jobs", msgspec.json.encode(join_of("n1", key=key, **changes))
        )

    def speaker(self, who: str, node: str, key: str, **changes: Any) -> Speaker:
        client = self.up.client("", token=self.tokens[who])
        launcher = f"launcher-{who}-{node}"
        joined = client.join(join_of(node, key=key, launcher_id=launcher, **changes))
        speaker = Speaker(client, node, joined.job_id, launcher)
        speaker.say()
        return speaker


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder, tokens = tmp_path / "files", {}
    make_folder(folder)
    for name in ("alice", "mallory"):
        tokens[name], entry = make_token(name, [Role.LAUNCH, Role.READ])
        add_token(folder / "tokens.toml", entry)
    with (
        running(folder, small) as up,
        urllib3.PoolManager(ca_certs=str(up.ca), retries=False) as pool,
    ):
        yield Site(up, tokens, pool)


def test_jobs_without_launchers_of_one_subject_leave_room_for_those_of_another(site: Site) -> None:
    answers = [site.join("mallory", f"job:f{number}") for number in range(3 * JOBS_MAX)]

    assert Counter(status for status, _error in answers) == {200: 4, 429: 20}
    assert answers[-1][1] == (
        "mallory has 4 running jobs: its share of jobs.at_once_max (jobs.of_subject_percent)"
    )
    assert [site.join("alice", f"job:a{number}")[0] for number in range(2)] == [200] * 2


def test_many_joins_of_one_job_are_one_job_and_leave_room_for_those_of_another(site: Site) -> None:
    joins = site.up.service.backend.joins
    for number in range(300):
        assert site.join("mallory", "job:one", launcher_id=f"l{number}")[0] == 200
    with ExitStack() as held:
        for _ in range(JOINS_MAX):
            held.enter_context(joins.hold("mallory", JOINS_MAX))

        refused = site.join("mallory", "job:one", launcher_id="further")
        other = site.join("alice", "job:a")

    assert refused == (429, f"{JOINS_MAX} joins of mallory are in progress; try again")
    assert other[0] == 200
    assert len(site.up.service.worker.jobs.running) == 2


def test_connections_that_one_subject_holds_leave_room_for_those_of_another(site: Site) -> None:
    with ExitStack() as held:

        def open_one() -> tuple[int, str]:
            pool = held.enter_context(
                urllib3.HTTPSConnectionPool(
                    "127.0.0.1", site.up.service.port, ca_certs=str(site.up.ca), retries=False
                )
            )
            headers = {"Authorization": f"Bearer {site.tokens['mallory']}"}
            answer = pool.request("GET", "/v1/jobs", headers=headers, timeout=DEADLINE_S)
            return answer.status, json.loads(answer.data).get("error", "")

        answers = [open_one() for _ in range(50)]
        others = [site.ask("alice", "GET", "/v1/jobs")[0], site.join("alice", "job:a")[0]]

    assert Counter(status for status, _error in answers) == {200: 35, 429: 15}
    assert answers[-1][1] == ("35 connections of mallory are open, its share of limits.connections")
    assert others == [200, 200]


def test_records_that_one_subject_causes_fill_its_own_share_and_its_jobs_go_on(site: Site) -> None:
    other = site.speaker("alice", "n1", "job:a", nodes_min=1, nodes_max=1)
    own = site.speaker("mallory", "n1", "job:m", nodes_min=20_000, nodes_max=20_000)
    assert own.report is not None
    path = f"/v1/jobs/{own.job_id}/reports"
    statuses: Counter[int] = Counter()
    for number in range(20_000):  # another node each time: a record for each
        node = f"m{number}"
        forged = replace(own.report, node=node, launcher_id=node, boot_id="b" * 64, number=1)
        statuses[site.ask("mallory", "POST", path, encode_message(forged))[0]] += 1
        if statuses[429]:
            break

    join = site.join("mallory", "job:m", launcher_id="further")
    foreign = replace(own.report, node="n7", launcher_id="seven", number=1)
    further = site.ask("mallory", "POST", path, encode_message(foreign))
    known = Counter(
        site.ask("mallory", "POST", path, encode_message(replace(own.report, number=2 + number)))[0]
        for number in range(5)
    )
    assert statuses[429] == 1
    assert statuses[202] > 100
    assert (join[0], further[0]) == (429, 429)
    for _status, error in (join, further):
        assert "the jobs of mallory have written more than 1048576 bytes" in error
        assert "limits.journal_bytes_per_day" in error
    assert known[202] >= 2  # a node that is known is listened to, but seldom
    assert known[429] >= 1
    other.say()
    assert site.join("alice", "job:a", launcher_id="further", nodes_min=1, nodes_max=1)[0] == 200
    assert own.job_id in site.up.service.worker.jobs.running


def test_share_of_what_is_written_fills_within_a_day() -> None:
    journals = JournalBytes(1000.0)
    journals.write("a", 1500, 0.0)

    assert journals.over_s("a", 0.0) == DAY_S / 2
    assert journals.over_s("a", DAY_S / 4) == DAY_S / 4
    assert journals.over_s("a", DAY_S / 2) is None
    assert journals.over_s("b", 0.0) is None
    journals.write("a", 400, DAY_S)
    assert journals.over_s("a", DAY_S) is None
    journals.write("a", 200, DAY_S)
    assert journals.over_s("a", DAY_S) == pytest.approx(0.1 * DAY_S)


def test_subject_has_a_bounded_number_of_nodes_however_little_they_say() -> None:
    shares = Retained(nodes_max=2)
    for node in ("n1", "n2"):
        assert shares.look("a", "j", node, 300) is Room.ENOUGH
        shares.note("a", "j", node, 300)

    assert shares.look("a", "j", "n3", 300) is Room.NONE
    assert shares.look("a", "j", "n1", 300) is Room.ENOUGH
    assert shares.look("b", "k", "n3", 300) is Room.ENOUGH
    shares.note("a", "j", "n1", 0)  # it has left
    assert shares.look("a", "j", "n3", 300) is Room.ENOUGH
    shares.note("a", "j", "n3", 300)
    shares.keep(())
    assert shares.nodes("a") == 0
