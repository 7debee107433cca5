"""The controller's HTTP API with the real core behind it: launchers that join, report and are ordered."""

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import urllib3

from rankmend.cli import output
from rankmend.cli.screens.status_view import render
from rankmend.cli.sources.picture import Picture, Wanted
from rankmend.errors import ConfigError
from recovery.api import wire
from recovery.api.connection import pause_s
from recovery.api.controller_errors import (
    ConflictError,
    JobEndedError,
    RefusedError,
    TlsFault,
    UnknownJobError,
    UnreachableError,
)
from recovery.journal.job_records import OutcomeKind
from recovery.messages.exchange import (
    WHY_NOT_FORKED_CHARACTERS_MAX,
    HeldSnapshot,
    KeptSnapshots,
    RankStart,
    StartKind,
)
from recovery.messages.outside import PersonAct, Refusal
from recovery.service.http.error_answers import NotNow
from recovery.service.http.openapi import describe
from recovery.service.http.routes import ROUTES
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import (
    FullClient,
    Running,
    Speaker,
    join_of,
    make_folder,
    running,
    two_speakers,
)
from tests.support.service_bench import ask

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controller") / "files"
    make_folder(folder)
    for name, roles, options in (
        ("alice", [Role.LAUNCH], {}),
        ("reader", [Role.FLEET_READ], {}),
        ("narrow", [Role.LAUNCH], {"nodes": ["n1"], "jobs": ["narrow-*"]}),
        ("alerts", [Role.ALERT], {}),
    ):
        text, entry = make_token(name, roles, **options)
        add_token(folder / "tokens.toml", entry)
        path = folder / f"{name}.token"
        path.write_text(text)
        path.chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Running]:
    with running(folder) as up:
        yield up


# Launchers.


@pytest.mark.safety
def test_same_key_and_owner_is_the_same_job_and_another_owners_is_not(up: Running) -> None:
    ours, theirs = up.client("launch"), up.client("alice")

    first = ours.join(join_of("n1", key="same"))
    second = ours.join(join_of("n2", key="same"))
    other = theirs.join(join_of("n1", key="same"))

    assert (first.is_new, second.is_new, other.is_new) == (True, False, True)
    assert first.job_id == second.job_id != other.job_id
    assert first.secret == second.secret != other.secret


def test_two_launchers_that_report_are_ordered_their_ranks(up: Running) -> None:
    one, two = two_speakers(up.client(), key="ordered")

    assert one.order is not None
    assert two.order is not None
    assert (one.order.ranks, two.order.ranks) == ((0, 1), (2, 3))
    assert one.order.rendezvous == two.order.rendezvous
    assert one.order.epoch == 1


def test_launchers_get_the_lines_of_the_job_and_the_last_ones_with_its_end(up: Running) -> None:
    one, two = two_speakers(up.client(), key="lines")
    for speaker in (one, two):
        speaker.obey()

    accepted = eventually(
        lambda: (got := one.say(line_printed=0)).lines and got, "the lines of its journal"
    )
    first = accepted.lines[0]
    assert first.text.startswith("start: attempt 1")
    assert one.say(line_printed=None).lines == [], "it prints none"
    assert first.number not in [line.number for line in one.say(line_printed=first.number).lines]

    for speaker in (one, two):
        speaker.finish()
    ended = eventually(lambda: _ended(one), "the end of the job")

    assert ended.problem.lines[-1].text == "done: every rank ended with exit code 0"


def _ended(speaker: Speaker) -> JobEndedError | None:
    try:
        speaker.say()
    except JobEndedError as error:
        return error
    return None


def test_a_job_tells_how_the_processes_of_its_ranks_came_to_be(up: Running) -> None:
    one, two = two_speakers(up.client(), key="starts")
    for speaker in (one, two):
        speaker.obey()
    assert one.report is not None
    why_not = "the fork server is still importing" * 100
    starts = [RankStart(StartKind.FORKED), RankStart(StartKind.STANDBY, why_not)]
    ranks = [
        replace(rank, start=start) for rank, start in zip(one.report.ranks, starts, strict=True)
    ]

    one.say(ranks=tuple(ranks))
    reader = up.client("reader")
    eventually(lambda: any(node.starts for node in reader.job(one.job_id).nodes), "the report")

    nodes = {node.node: node for node in reader.job(one.job_id).nodes}
    assert nodes["n1"].starts == [
        wire.StartView("forked", [0]),
        wire.StartView("standby", [1], why_not[:WHY_NOT_FORKED_CHARACTERS_MAX]),
    ]
    assert nodes["n2"].starts == [], "its launcher reports none"
    picture = Picture(up.url, [], list(nodes.values()), [], wire.Cluster([], [], [], []))
    with (console := output.console(is_wide=True)).capture() as shown:
        console.print(render(picture, Wanted(None, with_ended=False, every_node=True)))
    assert "0 forked; 1 standby: the fork server is still importing" in shown.get()


def test_a_job_tells_what_its_ranks_keep_in_memory_on_all_nodes(up: Running) -> None:
    speakers = two_speakers(up.client(), key="memory")
    for speaker in speakers:
        speaker.obey()
        assert speaker.report is not None
        held = tuple(
            HeldSnapshot(one.rank, 1, step, 4, 1000, "0" * 32, 9.0 - step, sequence=step)
            for one in speaker.report.ranks
            for step in (2, 3)
        )
        kept = KeptSnapshots(count=2, refused=0, stalled_s=0.2, files=2)
        ranks = tuple(replace(one, snapshots=kept) for one in speaker.report.ranks)
        speaker.say(ranks=ranks, snapshots=held)
    reader, job_id = up.client("reader"), speakers[0].job_id

    def seen() -> wire.SnapshotView | None:
        found = reader.job(job_id).job.snapshots
        return found if found is not None and found.step is not None else None

    eventually(lambda: seen() is not None, "both reports")

    told = seen()
    assert told is not None
    assert (told.step, told.attempt, told.steps_since, told.size_bytes) == (3, 1, 0, 4000)
    assert (told.held_bytes, told.node_bytes, told.without) == (8000, 4000, [])
    assert (told.stall_s, told.interval_s) == (0.1, 1.0)
    assert told.age_s is not None
    assert 6.0 <= told.age_s < 60.0
    _status, text = ask(up, "GET", "/metrics", "reader")
    assert f'rankmend_controller_snapshot_held_bytes{{job_id="{job_id}"}} 8000.0'.encode() in text
    assert f'restorable_age_seconds{{job_id="{job_id}",tier="memory"}}'.encode() in text


def test_time_in_which_the_event_loop_stood_still_is_counted_as_unheard(up: Running) -> None:
    hearing = up.service.worker.hearing
    before_s = hearing.unheard_s

    up.thread._loop.call_soon_threadsafe(time.sleep, 1.5)
    eventually(lambda: hearing.unheard_s - before_s > 1.0, "the loop goes round again")

    _status, text = ask(up, "GET", "/metrics", "reader")
    (told,) = re.findall(rb"^rankmend_controller_unheard_seconds_total (\S+)", text, re.MULTILINE)
    assert float(told) - before_s > 1.0


def test_poll_answers_at_once_when_an_order_comes(up: Running) -> None:
    speakers = two_speakers(up.client(), key="wakes")
    one, _two = speakers
    assert one.client.wait_s == wire.WAIT_S_MAX
    for speaker in speakers:
        speaker.obey()
    heard: list[object] = []
    waiting = threading.Thread(target=lambda: heard.append(one.ask(one.client.wait_s)))
    waiting.start()
    eventually(lambda: up.service.board.waiting > 0, "a poll that waits")

    up.client("admin").command(one.job_id, PersonAct.STOP, reason="enough")
    waiting.join(DEADLINE_S)

    assert one.order is not None
    assert heard == [one.order]
    assert one.order.ranks == ()


def test_answer_that_was_lost_is_given_again(up: Running) -> None:
    one, _two = two_speakers(up.client(), key="lost")
    first = one.order
    assert first is not None

    again = one.client.order(one.job_id, "n1", one.launcher_id, after=0, epoch=0, wait_s=0)
    nothing = one.client.order(
        one.job_id, "n1", one.launcher_id, after=first.revision, epoch=first.epoch, wait_s=0
    )

    assert again == first
    assert nothing is None


def test_job_that_is_done_is_gone_for_its_launchers_and_kept_for_people(up: Running) -> None:
    speakers = two_speakers(up.client(), key="done", name="done-job", run="submission-1")
    for speaker in speakers:
        speaker.obey()
    for speaker in speakers:
        speaker.finish()
    job_id = speakers[0].job_id
    eventually(lambda: up.service.worker.jobs.known[job_id].outcome is not None, "the job's end")

    with pytest.raises(JobEndedError) as report:
        speakers[0].say()
    with pytest.raises(JobEndedError) as poll:
        speakers[1].ask(wait_s=20)
    with pytest.raises(JobEndedError):
        up.client().join(
            join_of("n3", key="done", name="done-job", run="submission-1", launcher_id="late")
        )

    assert report.value.outcome.kind is poll.value.outcome.kind is OutcomeKind.DONE
    views = {view.job_id: view for view in up.client("reader").jobs(with_ended=True)}
    assert views[job_id].state == "done"
    assert up.client("reader").job(job_id).job.attempt == 1
    assert up.client("reader").story(job_id).lines[-1].kind == "job_ended"


@pytest.mark.safety
def test_job_that_has_ended_begins_again_in_its_next_run_with_its_journal(up: Running) -> None:
    speakers = two_speakers(up.client(), key="again", run="1")
    for speaker in speakers:
        speaker.obey()
    for speaker in speakers:
        speaker.finish()
    job_id = speakers[0].job_id
    eventually(lambda: up.service.worker.jobs.known[job_id].outcome is not None, "the job's end")

    later = two_speakers(up.client(), key="again", run="2", launcher_id="another", grace_s=5.0)

    assert later[0].job_id == job_id
    assert later[0].order is not None
    assert later[0].order.attempt == 2
    assert later[0].order.epoch == 2


def test_launcher_that_contradicts_the_first_is_told_in_what(up: Running) -> None:
    up.client().join(join_of("n1", key="differs"))

    with pytest.raises(ConflictError) as refused:
        up.client().join(join_of("n2", key="differs", nodes_max=8))

    assert (refused.value.problem.field, refused.value.problem.value) == ("nodes_max", "8")
    assert "2" in refused.value.problem.error


def test_launcher_that_was_replaced_is_refused_with_reports_and_polls(up: Running) -> None:
    one, _two = two_speakers(up.client(), key="replaced")
    newer = Speaker(one.client, "n1", one.job_id, "newer-launcher")
    newer.say()
    eventually(
        lambda: (
            up.service.worker.jobs.running[one.job_id].refuses("n1", one.launcher_id) is not None
        ),
        "the newer launcher",
    )

    with pytest.raises(ConflictError):
        one.say()
    with pytest.raises(ConflictError):
        one.ask(wait_s=0)


def test_job_of_another_subject_is_none(up: Running) -> None:
    joined = up.client("launch").join(join_of("n1", key="private"))

    with pytest.raises(UnknownJobError):
        Speaker(up.client("alice"), "n1", joined.job_id).say()
    with pytest.raises(UnknownJobError):
        Speaker(up.client("alice"), "n1", joined.job_id).ask(wait_s=0)


def test_token_speaks_for_its_nodes_and_jobs_only(up: Running) -> None:
    client = up.client("narrow")
    joined = client.join(join_of("n1", name="narrow-job", key="narrow"))

    for wrong in (
        join_of("n2", name="narrow-job", key="narrow"),
        join_of("n1", name="wide", key="w"),
    ):
        with pytest.raises(RefusedError, match="403"):
            client.join(wrong)
    with pytest.raises(RefusedError, match="403"):
        Speaker(client, "n2", joined.job_id).say()


def test_claimed_identity_of_another_job_is_refused(up: Running) -> None:
    known = up.client("launch").join(join_of("n1", key="first"))

    with pytest.raises(ConflictError, match="another key or owner"):
        up.client("alice").join(join_of("n1", key="stolen", job_id=known.job_id))


def test_identity_found_beside_the_checkpoints_is_kept(up: Running) -> None:
    job_id = "0f0e0d0c-0b0a-4908-8706-050403020100"

    assert up.client().join(join_of("n1", key="beside", job_id=job_id)).job_id == job_id


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nodes_min": 3}, "nodes_min"),
        ({"slots": 0}, "slots"),
        ({"policy": {"lease_s": 1.0}}, "lease_s"),
        ({"policy": {"restarts_max": 1.5}}, "restarts_max"),
        ({"policy": {"restarts_max": 1e9}}, "restarts_max"),
        ({"node": "a/b"}, "node"),
        ({"node": "n1\n"}, "node"),
        ({"shrink_multiple": 3}, "multiple of 3"),
        ({"parallel": wire.ParallelSizes(dp=3)}, "dp=3 don't fit: they make 3 ranks"),
        ({"parallel": wire.ParallelSizes(dp=0)}, "dp"),
        ({"version": 2, "key": ""}, "key"),
    ],
)
def test_join_that_can_not_be_is_named(up: Running, changes: dict[str, object], named: str) -> None:
    with pytest.raises(RefusedError, match=named) as refused:
        up.client().join(join_of(**({"node": "n1", "key": "wrong"} | changes)))

    assert refused.value.status == 400


# After a restart.


def test_restart_takes_jobs_up_and_orders_nothing_before_the_nodes_are_heard(
    tmp_path: Path,
) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as first:
        speakers = two_speakers(first.client())
        for speaker in speakers:
            speaker.obey()
        job_id = speakers[0].job_id
        epochs = [speaker.order.epoch for speaker in speakers if speaker.order]

    with running(tmp_path / "files") as second:
        client = second.client()
        quiet = Speaker(client, "n1", job_id)
        before = client.order(job_id, "n1", quiet.launcher_id, after=0, epoch=0, wait_s=1)
        assert second.service.worker.jobs.known[job_id].outcome is None
        for speaker in speakers:
            speaker.client = client
            speaker.say()
        orders = [speaker.wait_order() for speaker in speakers]

    assert before is None
    assert epochs == [1, 1]
    assert [order.epoch for order in orders if order] == [2, 2]
    assert [order.attempt for order in orders if order] == [1, 1]  # the same ranks go on


def test_second_controller_on_the_same_folder_is_refused(up: Running) -> None:
    with pytest.raises(Exception, match="another controller runs"), running(up.folder):
        pass


def test_redirect_is_followed_with_the_same_path(up: Running, tmp_path: Path) -> None:
    make_folder(tmp_path / "other")

    def send_on(config: object) -> object:
        return msgspec.structs.replace(config, redirect_to=up.url)  # type: ignore[type-var]

    with running(tmp_path / "other", send_on) as other:  # type: ignore[arg-type]
        both = tmp_path / "both.crt"
        both.write_text(up.ca.read_text() + other.ca.read_text())
        client = FullClient([other.url], token_file=up.folder / "launch.token", ca_file=both)
        joined = client.join(join_of("n1", key="redirected"))
        asked_at = client.url
        client.close()

    assert asked_at == up.url
    assert joined.job_id in up.service.worker.jobs.known


def test_next_controller_of_the_list_is_asked_when_one_is_away(up: Running) -> None:
    client = FullClient(
        ["https://127.0.0.1:1", up.url], token_file=up.folder / "launch.token", ca_file=up.ca
    )

    joined = client.join(join_of("n1", key="listed"))
    client.close()

    assert joined.is_new
    assert client.url == up.url


def test_a_launcher_stays_with_the_controller_that_it_joined(tmp_path: Path) -> None:
    make_folder(tmp_path / "a")
    make_folder(tmp_path / "b")
    both = tmp_path / "both.crt"
    with running(tmp_path / "b") as other:
        with running(tmp_path / "a") as home:
            both.write_text(home.ca.read_text() + other.ca.read_text())
            (tmp_path / "b" / "launch.token").write_text(
                (tmp_path / "a" / "launch.token").read_text()
            )
            client = FullClient(
                [home.url, other.url], token_file=tmp_path / "a" / "launch.token", ca_file=both
            )
            speaker = Speaker(client, "n1", client.join(join_of("n1")).job_id)
            speaker.say()

        with pytest.raises(
            UnreachableError, match=f"waiting for {home.url}, or for another controller"
        ):
            speaker.say()
        client.close()

    assert other.service.worker.jobs.known == {}


def test_a_job_is_not_begun_by_a_launcher_that_only_looks_for_it(up: Running) -> None:
    client, known = up.client(), up.service.worker.jobs.known.keys()

    with pytest.raises(UnknownJobError, match="is not running here"):
        client.join(join_of("n1", key="looked-for", begins=False))
    assert up.service.worker.jobs.known.keys() == known
    begun = client.join(join_of("n1", key="looked-for"))
    again = client.join(join_of("n1", key="looked-for", begins=False))
    assert again.job_id == begun.job_id


def test_a_forged_epoch_leaves_room_above_itself(up: Running) -> None:
    client = up.client()

    with pytest.raises(RefusedError, match="epoch"):
        client.join(join_of("n1", key="forged", epoch=2**63))
    joined = client.join(join_of("n1", key="forged", epoch=10**9))

    job = up.service.worker.jobs.running[joined.job_id]
    assert job.decided_by[0] == 1_000_001


def test_nobody_at_home_is_said_with_every_controller() -> None:
    client = FullClient(["http://127.0.0.1:1", "http://127.0.0.1:2"])

    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        client.jobs()
    client.close()


def test_pause_before_the_next_try_doubles_to_a_bound_and_is_spread() -> None:
    assert [pause_s(n, 1.0) for n in (1, 2, 3, 6, 60)] == [0.5, 1.0, 2.0, 15.0, 15.0]
    assert pause_s(6, 0.0) == 7.5


# People and scripts.


def test_people_pause_drain_and_take_back(up: Running) -> None:
    client = up.client("admin")

    client.pause("maintenance of the core switch")
    client.drain("n77", "fan broken", is_expected=True)
    held = client.cluster()
    client.resume("done")
    client.release("n77", "fan replaced")
    free = client.cluster()

    assert [(one.scope, one.who, one.reason) for one in held.paused] == [
        ("cluster", "admin", "maintenance of the core switch")
    ]
    assert [(one.node, one.who) for one in held.held] == [("n77", "admin")]
    assert (free.paused, free.held) == ([], [])
    with pytest.raises(ConflictError, match="not paused"):
        client.resume("twice")


def test_dry_run_shows_the_step_and_changes_nothing(up: Running) -> None:
    one, two = two_speakers(up.client(), key="dry")
    one.obey()
    two.obey()
    reached = {"attempt_verified", "milestone"}  # no further record follows by itself
    eventually(
        lambda: reached <= {line.kind for line in up.client("admin").story(one.job_id).lines},
        "the job trains",
    )
    before = len(up.client("admin").story(one.job_id).lines)

    shown = up.client("reader").dry_run(one.job_id, "n1")

    assert (shown.step, shown.judgement, shown.without) == ("move", "allowed", ["n1"])
    assert len(up.client("admin").story(one.job_id).lines) == before


def test_command_is_obeyed_in_the_name_of_the_token_and_refusals_say_why(up: Running) -> None:
    one, _two = two_speakers(up.client(), key="commanded")
    client = up.client("admin")

    client.command(one.job_id, PersonAct.PAUSE, reason="look at it", key="k1")
    client.command(one.job_id, PersonAct.PAUSE, reason="look at it", key="k1")

    acted = [line for line in client.story(one.job_id).lines if line.kind == "person_acted"]
    assert len(acted) == 1
    assert b'"who":"admin"' in bytes(acted[0].record)
    with pytest.raises(ConflictError):
        client.command(one.job_id, PersonAct.APPROVE, incident_id="none-1")


def test_a_controller_that_stops_says_so_in_a_word_for_programs(up: Running) -> None:
    up.service.backend.is_stopping = True
    try:
        status, body = ask(up, "GET", "/readyz", "reader")
    finally:
        up.service.backend.is_stopping = False

    problem = msgspec.json.decode(body, type=wire.Problem)
    assert (status, problem.refusal) == (503, NotNow.STOPPING.value)
    assert f"`{problem.refusal}`" in (ROOT / "docs/reference/api.md").read_text()
    assert all(f"`{one.value}`" in (ROOT / "docs/reference/api.md").read_text() for one in NotNow)


def test_prometheus_is_given_the_whole_list_of_agents(up: Running) -> None:
    two_speakers(up.client(), key="discovered")

    status, body = ask(up, "GET", "/v1/sd/agents", "reader")

    targets = {
        target: entry["labels"]
        for entry in msgspec.json.decode(body)
        for target in entry["targets"]
    }
    assert status == 200
    assert targets["n1:9476"]["node"] == "n1"
    assert "n2:9476" in targets


def test_list_of_agents_is_an_empty_list_without_jobs(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as empty:
        assert ask(empty, "GET", "/v1/sd/agents") == (200, b"[]")


def test_alerts_are_taken_in_both_forms(up: Running) -> None:
    client = up.client("alerts")
    webhook = {
        "version": "4",
        "alerts": [{"status": "firing", "labels": {"alertname": "RankmendX"}}],
    }

    assert (
        client.post_alerts([{"labels": {"alertname": "RankmendGpuLost", "node": "n1"}}]).alerts == 1
    )
    status, body = ask(up, "POST", "/v1/alertmanager", "alerts", json=webhook)
    assert (status, msgspec.json.decode(body)) == (200, {"alerts": 1})
    assert (
        ask(up, "POST", "/v1/alertmanager", "alerts", json={"version": "3", "alerts": []})[0] == 400
    )


def test_health_is_open_to_all_and_metrics_are_not(up: Running) -> None:
    pool = urllib3.PoolManager(ca_certs=str(up.ca), retries=False)
    statuses = [
        pool.request("GET", up.url + path).status for path in ("/healthz", "/readyz", "/metrics")
    ]
    pool.clear()

    assert statuses == [200, 200, 401]


def test_incident_is_counted_with_its_phases(up: Running) -> None:
    status, body = ask(up, "GET", "/metrics", "reader")

    assert status == 200
    for name in (
        "jobs",
        "orders_pending",
        "reports_queued",
        "restarts_left",
        'budget_left{budget="stops_per_hour"} 6.0',
        "turn_seconds_bucket",
    ):
        assert f"rankmend_controller_{name}".encode() in body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "llama\x1b]0;x\x07"),
        ("name", "llama\nFAKE running"),
        ("name", "llama\u202e"),
        ("name", "lla\u200dma"),
        ("name", "\u2800"),
        ("name", "lla\u00a0ma"),
        ("name", "llama\u3000"),
        ("name", "lla\U00013430ma"),
        ("name", "llama\ufe0f"),
        ("name", "llama\U000e0041"),
        ("name", "llama" + 120 * "\u0301"),
        ("name", "llama" + 4 * "\u0e49"),
        ("name", "llama" + 4 * "\u064e"),
        ("name", "llama" + 4 * "\u1161"),
        ("name", "llama\uffff"),
        ("attributes", {"team": "nlp\u00ad"}),
        ("name", " llama"),
        ("launcher_id", "l\x1b"),
        ("run", "r\n"),
        ("attributes", {"a\x1b[31m": "b"}),
        ("attributes", {"a": "b\x9b31m"}),
        ("budgets_reset_by", "uid 0\r"),
        ("node", "n1\n"),
    ],
)
def test_name_that_would_steer_a_terminal_is_refused_by_its_field(
    up: Running, field: str, value: object
) -> None:
    join = msgspec.to_builtins(join_of("n1", key="odd")) | {field: value}

    status, body = ask(up, "POST", "/v1/jobs", "launch", body=msgspec.json.encode(join))

    assert status == 400
    assert f"`$.{field}" in msgspec.json.decode(body)["error"]


def test_job_that_an_older_controller_took_with_odd_texts_is_taken_up(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        job_id = up.client().join(join_of("n1")).job_id
    (file,) = (tmp_path / "files/state/jobs").glob("*/service.json")
    stored = msgspec.json.decode(file.read_bytes())
    stored["join"] |= {"run": "old\n", "attributes": {"a": "old\x1b[2J"}}
    file.write_bytes(msgspec.json.encode(stored))

    with running(tmp_path / "files") as up:
        assert up.client("admin").job(job_id).job.attributes == {"a": "old\x1b[2J"}


# Roles, documentation.


def _paths() -> list[tuple[str, str, frozenset[Role]]]:
    job = "00000000-0000-4000-8000-000000000000"
    fill = {
        "{job}": job,
        "{node}": "n1",
        "{incident}": "x-1",
        "{scope}": f"job:{job}",
        "{window}": "w1",
    }
    found = []
    for route in ROUTES:
        path = route.path
        for name, value in fill.items():
            path = path.replace(name, value)
        found.append((route.method, path, frozenset(route.roles)))
    return found


@pytest.mark.parametrize(
    ("token", "role"), [("alice", Role.LAUNCH), ("reader", Role.FLEET_READ), ("alerts", Role.ALERT)]
)
def test_role_opens_its_paths_and_no_other(up: Running, token: str, role: Role) -> None:
    wrong = []
    for method, path, roles in _paths():
        status, _body = ask(up, method, path, token, body=b"")
        is_refused = status == 403
        if roles and is_refused != (role not in roles):
            wrong.append((method, path, status))

    assert wrong == []


def test_every_path_but_health_and_description_wants_somebody(up: Running) -> None:
    pool = urllib3.PoolManager(ca_certs=str(up.ca), retries=False)
    open_paths = {
        path
        for method, path, _roles in _paths()
        if pool.request(method, up.url + path, redirect=False).status != 401
    }
    pool.clear()

    assert open_paths == {"/healthz", "/readyz", "/openapi.json"}


def test_document_lists_the_paths_of_the_api() -> None:
    text = (ROOT / "docs/reference/api.md").read_text()

    missing = [f"{one.method} {one.path}" for one in ROUTES if f"`{one.method} {one.path}" not in
               text.replace("{job_id}", "{job}")]  # fmt: skip
    assert missing == []


def test_document_lists_the_fields_of_a_join() -> None:
    section = (ROOT / "docs/reference/api.md").read_text().partition("### `POST /v1/jobs`: join")[2]
    rows = [
        line.split("|")[1]
        for line in section.partition("\n### ")[0].splitlines()
        if line.startswith("| `")
    ]
    named = {name.strip(" `") for row in rows for name in row.split(",")}

    assert named == {*wire.JoinRequest.__struct_fields__, *wire.JoinAnswer.__struct_fields__}


def test_description_names_every_path_and_is_served(up: Running) -> None:
    status, body = ask(up, "GET", "/openapi.json")

    assert status == 200
    told = msgspec.json.decode(body)
    assert told["openapi"].startswith("3.1")
    assert (
        set(told["paths"])
        == {route.path for route in ROUTES}
        == set(describe(ROUTES, "1")["paths"])
    )


def test_token_file_that_others_can_read_is_not_used(up: Running, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text((up.folder / "launch.token").read_text())
    path.chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        FullClient([up.url], token_file=path, ca_file=up.ca)


def test_token_goes_out_by_tls_only() -> None:
    with pytest.raises(ConfigError, match="https only"):
        FullClient(["http://controller.example:9477"], token="secret")


def test_certificate_of_an_unknown_authority_is_refused(up: Running, tmp_path: Path) -> None:
    make_folder(tmp_path / "stranger")
    client = FullClient([up.url], token="rm_x", ca_file=tmp_path / "stranger" / "ca.crt")

    with pytest.raises(UnreachableError, match="certificate") as refused:
        client.jobs()
    client.close()
    assert refused.value.tls_fault is TlsFault.UNKNOWN_AUTHORITY


def test_stop_answers_polls_and_leaves_nothing_behind(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        one, _two = two_speakers(up.client())
        changed, answered = up.service.board.changed, []

        async def wait_for_ever(job_id: str, node: str, _wait_s: float) -> bool:
            answered.append(await changed(job_id, node, 1e6))
            return answered[-1]

        up.service.board.changed = wait_for_ever  # type: ignore[method-assign]
        waiting = threading.Thread(target=lambda: _poll(one))
        waiting.start()
        eventually(lambda: up.service.board.waiting > 0, "a poll that waits")
        up.thread.stop()
        waiting.join(DEADLINE_S)

    assert not waiting.is_alive()
    assert answered == [False]  # by the stop: neither cut off nor at the end of its time


def _poll(speaker: Speaker) -> None:
    try:
        speaker.ask(wait_s=speaker.client.wait_s)
    except UnreachableError:
        return


def test_document_lists_why_a_command_is_not_obeyed() -> None:
    text = (ROOT / "docs/reference/api.md").read_text()

    listed = re.findall(r"(?m)^\| `([a-z_]+)` \|", text.partition("| refusal |")[2])

    assert listed[: len(Refusal)] == [one.value for one in Refusal]
