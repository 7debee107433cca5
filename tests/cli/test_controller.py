"""The operator's commands against a real controller: its own process, TLS, tokens, and launchers that only speak."""

import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rankmend.cli import cli
from recovery.api.controller_errors import JobEndedError, UnreachableError
from recovery.messages.exchange import Endpoint, RankExit
from recovery.messages.outside import PersonAct
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.controllers import RANKMEND, Service
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Speaker, join_of, make_folder

pytestmark = pytest.mark.process

POLICY = """\
[cluster]
approval = "off"

[[jobs]]
match = "ask-*"
approval = "all"

[[jobs]]
match = "lost-*"
[jobs.policy]
node_silent_s = 5.0
"""
PORTS = itertools.count(30001)  # of rendezvous: none is used twice


class Fleet:
    """Launchers of one job, which do at once what they are ordered to."""

    def __init__(self, service: Service, name: str, nodes: list[str], *, needed: int) -> None:
        self.client = service.connect("launch")
        changes = {
            "key": f"job:{name}",
            "name": name,
            "nodes_min": needed,
            "nodes_max": len(nodes),
            "grace_s": 5.0,
        }
        joined = [self.client.join(join_of(node, **changes)) for node in nodes]
        self.job_id = joined[0].job_id
        self._speakers = {node: Speaker(self.client, node, self.job_id) for node in nodes}
        self._silent: set[str] = set()
        self._dying: set[str] = set()
        self._ends = threading.Event()
        self.is_ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                for node, speaker in self._speakers.items():
                    if node not in self._silent:
                        self._speak(node, speaker)
            except JobEndedError:
                self.is_ended = True
                return
            except UnreachableError:
                continue

    def _speak(self, node: str, speaker: Speaker) -> None:
        if speaker.order is None:
            speaker.say()
        # Half of the reports that a node may send.
        if speaker.ask(wait_s=0.2 / len(self._speakers)) is not None:
            speaker.obey()
            if speaker.order is not None and not speaker.order.ranks:
                speaker.say(rendezvous=Endpoint("127.0.0.1", next(PORTS)))
        elif node in self._dying and speaker.report is not None and speaker.report.ranks:
            self._dying.discard(node)
            killed = RankExit(0.1, None, 9, False, False, None, ())
            first, *others = speaker.report.ranks
            speaker.say(ranks=(replace(first, process_state="", exit=killed), *others))
        else:
            speaker.say()

    def kill_rank(self, node: str) -> None:
        """Have the first rank of the node die by SIGKILL."""
        self._dying.add(node)

    def silence(self, node: str) -> None:
        self._silent.add(node)

    def close(self) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_S)
        self.client.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("controller") / "files"
    config = make_folder(folder)
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text()
    text = re.sub(r"(?m)^#policy_file = .*", f'policy_file = "{folder}/policy.toml"', text)
    config.write_text(re.sub(r"(?m)^#acts = .*", "acts = 100.0", text))
    for name, roles in (("reader", [Role.FLEET_READ]), ("actor", [Role.FLEET_READ, Role.ACT])):
        token, entry = make_token(name, roles)
        add_token(folder / "tokens.toml", entry)
        (folder / f"{name}.token").write_text(token)
        (folder / f"{name}.token").chmod(0o600)
    up = Service(folder)
    try:
        yield up
    finally:
        up.close()


@pytest.fixture
def start(service: Service) -> Iterator[Callable[..., Fleet]]:
    """Start jobs that run; they are stopped at the end of the test."""
    fleets: list[Fleet] = []

    def start(name: str, nodes: list[str], needed: int = 2) -> Fleet:
        fleet = Fleet(service, name, nodes, needed=needed)
        fleets.append(fleet)
        eventually(lambda: service.job(name).highest_step == 3, f"{name} to make steps")
        return fleet

    yield start
    for fleet in fleets:
        try:
            if not fleet.is_ended:
                service.client.command(fleet.job_id, PersonAct.STOP)
                eventually(lambda fleet=fleet: fleet.is_ended, "the job's end")  # type: ignore[misc]
        finally:
            fleet.close()


def environment_of(service: Service, token: str | None = "actor", **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKMEND_")}
    told = {"RANKMEND_CONTROLLER": service.url, "RANKMEND_CA_FILE": str(service.folder / "ca.crt")}
    if token is not None:
        told["RANKMEND_TOKEN_FILE"] = str(service.folder / f"{token}.token")
    return kept | told | changes


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command within this process: a start of its own takes longer than most commands."""
    absent = dict.fromkeys(os.environ.keys() - environment.keys())
    done = CliRunner().invoke(cli, list(arguments), env={**absent, **environment})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)


def run_json(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = run(environment, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# What is.


@pytest.mark.safety
def test_status_shows_jobs_nodes_spares_and_what_is_left_of_the_budgets(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("shown", ["n1", "n2", "n3"])

    told = run_json(environment_of(service, "reader"), "status")
    shown = run(environment_of(service, "reader"), "status", "sho")

    (job,) = [job for job in told["jobs"] if job["job_id"] == fleet.job_id]
    assert (job["state"], job["attempt"], job["world_size"], job["nodes"]) == ("running", 1, 4, 2)
    assert (job["restarts_left"], job["no_progress_left"], job["highest_step"]) == (100, 3, 3)
    nodes = {one["node"]: (one["ranks"], one["is_spare"]) for one in told["nodes"]}
    assert nodes == {"n1": ([0, 1], False), "n2": ([2, 3], False), "n3": ([], True)}
    assert told["controller"] == service.url
    assert shown.returncode == 0, shown.stderr
    assert "4 ranks on 2 nodes, 1 spare, 0 restarts, 0 incidents" in shown.stdout
    assert re.search(r"n2 +shown +2-3 +[\d.]+ s ago +training", shown.stdout)
    assert re.search(r"n3 +shown +- +[\d.]+ s ago +spare", shown.stdout)


def test_watch_tells_a_pipe_what_changes_and_ends_well_by_sigint(
    service: Service, start: Callable[..., Fleet]
) -> None:
    start("watched", ["n1", "n2"])
    watch = subprocess.Popen(
        [*RANKMEND, "status", "watched", "--watch"],
        env=environment_of(service, "reader"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    lines = iter(watch.stdout.readline, "")
    try:
        first = [next(lines), next(lines)]
        service.client.pause("look", "node:n1")
        paused = next(lines)
        service.client.resume("", "node:n1")
        resumed = next(lines)
    finally:
        watch.send_signal(signal.SIGINT)
        code = watch.wait(DEADLINE_S)
        watch.stdout.close()

    assert service.url in first[0]
    assert "watched  running  attempt 1" in first[1]
    assert "node:n1 is paused by actor: look" in paused
    assert "pause of node:n1 is no longer listed" in resumed
    assert code == 0


def test_watch_on_a_terminal_shows_the_table_and_goes_on_without_a_controller(
    service: Service, start: Callable[..., Fleet]
) -> None:
    start("live", ["n1", "n2"])

    with terminal(environment_of(service), "status", "live", "--watch") as live:
        shown = live.read_until("training")
        live.process.send_signal(signal.SIGINT)
        assert live.process.wait(DEADLINE_S) == 0
    nobody = environment_of(service, RANKMEND_CONTROLLER="https://127.0.0.1:1")
    with terminal(nobody, "status", "--watch") as live:
        alone = live.read_until("no controller answered")
        assert live.process.poll() is None
        live.process.send_signal(signal.SIGINT)
        assert live.process.wait(DEADLINE_S) == 0

    assert "live" in shown
    assert "127.0.0.1:1" in alone


# What a person decides.


def test_approved_plan_is_carried_out_and_its_story_is_that_of_the_controllers_own_files(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("ask-approve", ["n1", "n2"])
    environment = environment_of(service)
    fleet.kill_rank("n1")
    eventually(lambda: service.job("ask-approve").state == "waiting", "a plan that waits")
    incident = str(service.job("ask-approve").incident_id)

    status = run(environment, "status", "ask-approve").stdout
    asked = run(environment, "approve", incident)
    done = run_json(environment, "approve", incident, "--yes", "--reason", "spare checked")
    eventually(lambda: service.job("ask-approve").state == "running", "the recovery")
    late = run(environment, "approve", incident, "--yes")
    (row,) = run_json(environment, "incidents", "ask-approve")["incidents"]
    why = run(environment, "why", incident).stdout
    theirs = run_json(environment, "why", incident)["entries"]
    ours = run_json(environment, "why", incident, f"--state-dir={service.folder}/state")["entries"]
    (spent,) = run_json(environment, "report", "--job", "ask-approve")["jobs"]

    assert status.count("needs a person's approval") == 1, status
    assert f"waits (rankmend approve {incident}, or reject)" in status
    assert asked.returncode == 2
    assert "restart in place" in asked.stderr
    assert "add --yes" in asked.stderr
    assert done["plan"]["step"] == "restart_in_place"
    assert late.returncode == 1
    assert f"incident '{incident}' has no pending plan; none is pending" in late.stderr
    assert (row["id"], row["outcome"], row["tries"]) == (incident, "recovered", 1)
    (cost,) = spent["incidents"]
    assert (cost["incident_id"], cost["mttr_s"]) == (incident, row["total_s"])
    assert spent["parts"]["wait_person"]["seconds"] > 0
    assert sum(one["seconds"] for one in spent["parts"].values()) == pytest.approx(spent["wall_s"])
    assert row["phases"]["fence_s"] >= 0
    assert row["total_s"] > 0
    for part in (
        "rank 0 failed after step 3: SIGKILL",
        "wait status: rank 0: SIGKILL",
        "waiting to restart in place: every plan of this job needs a person's approval",
        "approve requested by actor: carrying out the plan to restart in place",
        "reason: spare checked",
        "decision: rank 0 failed",
        "restart: attempt 2",
        "attempt 2 makes progress on 4 ranks",
    ):
        assert part in why
    assert theirs == ours


def test_plan_that_changed_while_a_person_thought_about_it_is_not_approved(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("ask-change", ["n1", "n2", "n3"])
    fleet.kill_rank("n1")
    eventually(lambda: service.job("ask-change").state == "waiting", "a plan that waits")
    incident = str(service.job("ask-change").incident_id)

    with terminal(environment_of(service), "approve", incident) as asked:
        shown = asked.read_until("[y/N]")
        service.client.drain("n1", "fan")
        eventually(lambda: service.client.plans()[0].step == "move", "the other plan")
        asked.write("y\n")
        told = asked.read_until("without n1")
        code = asked.process.wait(DEADLINE_S)
    service.client.release("n1", "")
    acts = [one for one in service.client.story(incident).lines if one.kind == "person_acted"]

    assert "restart in place" in shown
    assert "the plan has changed, and nothing was approved" in told
    assert (code, acts) == (1, [])


def test_rejected_plan_ends_the_job_and_only_after_a_yes(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("ask-reject", ["n1", "n2"])
    fleet.kill_rank("n2")
    eventually(lambda: service.job("ask-reject").state == "waiting", "a plan that waits")
    incident = str(service.job("ask-reject").incident_id)

    with terminal(environment_of(service), "reject", incident) as asked:
        question = asked.read_until("[y/N]")
        asked.write("n\n")
        refused = asked.process.wait(DEADLINE_S)
    before = service.job("ask-reject").state
    with terminal(environment_of(service), "reject", incident, "--reason", "not again") as asked:
        asked.read_until("[y/N]")
        asked.write("y\n")
        accepted = asked.process.wait(DEADLINE_S)
    eventually(lambda: fleet.is_ended, "the job's end")
    why = run(environment_of(service, "reader"), "why", "ask-reject").stdout
    noted = run(environment_of(service), "acknowledge", incident, "--reason", "seen")
    unknown = run(environment_of(service), "acknowledge", "00000000-1")

    assert "restart in place" in question
    assert "stops the remaining ranks" in question
    assert (refused, before, accepted) == (1, "waiting", 0)
    assert service.job("ask-reject").state == "escalated"
    assert "reject requested by actor: the incident is given up" in why
    assert "reason: not again" in why
    assert (noted.returncode, unknown.returncode) == (0, 1), noted.stderr
    assert "no incident 00000000-1" in unknown.stderr


def test_cancelled_incident_leaves_the_job_as_it_is_until_it_is_resumed(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("ask-cancel", ["n1", "n2"])
    environment = environment_of(service)
    fleet.kill_rank("n1")
    eventually(lambda: service.job("ask-cancel").state == "waiting", "a plan that waits")
    incident = str(service.job("ask-cancel").incident_id)

    wrong = run(environment, "cancel", "none-1")
    done = run(environment, "cancel", incident, "--reason", "I debug it")
    status = run(environment, "status", "ask-cancel").stdout

    assert (wrong.returncode, done.returncode) == (1, 0)
    assert f"is not open; open: {incident}" in wrong.stderr
    assert service.job("ask-cancel").is_paused
    assert "ask-cancel  standing  paused" in status
    assert "not training: actor left it stopped" in status
    assert "I debug it" in run(environment, "why", incident).stdout


def test_plan_is_shown_as_it_would_be_judged_and_nothing_is_done(
    service: Service, start: Callable[..., Fleet]
) -> None:
    start("planned", ["n1", "n2", "n3"])
    start("ask-planned", ["n4", "n5"])
    reader = environment_of(service, "reader")

    move = run_json(reader, "plan", "planned", "--node", "n1")
    words = run(reader, "plan", "planned", "--node", "n1").stdout
    waits = run_json(reader, "plan", "ask-planned")["plan"]

    assert (move["plan"]["step"], move["plan"]["without"]) == ("move", ["n1"])
    assert (move["plan"]["judgement"], move["is_waiting"]) == ("allowed", False)
    assert "if node n1 were lost now:" in words
    assert "without n1" in words
    assert waits["judgement"] == "wait"
    assert service.job("planned").incidents == 0


# Pauses, nodes, windows.


def test_each_scope_is_paused_and_resumed_and_only_one_at_a_time(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("paused", ["n1", "n2"])
    environment = environment_of(service)
    scopes = (["--job", "paused"], ["--node", "n1"], ["--cluster"])

    for scope in scopes:
        done = run(environment, "pause", *scope, "--reason", "switch")
        assert done.returncode == 0, done.stderr
    service.client.pause("by script", f"job:{fleet.job_id}")
    shown = run(environment, "status").stdout
    held = {one.scope for one in service.client.cluster().paused}
    for scope in scopes:
        done = run(environment, "resume", *scope)
        assert done.returncode == 0, done.stderr
    again = [run(environment, "resume", *scope) for scope in scopes]
    both = run(environment, "pause", "--cluster", "--job", "paused", "--reason", "x")
    silent = run(environment, "pause", "--cluster")

    assert "cluster is paused by actor: switch" in shown
    assert "running  paused" in shown
    assert held == {"cluster", "node:n1", f"job:{fleet.job_id}"}
    assert service.client.cluster().paused == []
    assert not service.job("paused").is_paused
    assert [done.returncode for done in again] == [1, 1, 1]
    assert "job paused is not paused" in again[0].stderr
    assert "n1 is neither paused nor held back" in again[1].stderr
    assert "cluster is not paused" in again[2].stderr
    assert (both.returncode, silent.returncode) == (2, 2)


def test_drained_node_is_left_for_a_spare_and_taken_back(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("drained", ["n1", "n2", "n3"])
    environment = environment_of(service)

    plain = run(environment, "drain", "n1", "--reason", "fan 3")
    held = run(environment, "status", "drained").stdout
    unsure = run(environment, "drain", "n1", "--reason", "fan 3", "--now")
    moved = run(environment, "drain", "n1", "--reason", "fan 3", "--now", "--yes")
    eventually(lambda: ranks_of(service, fleet) == {"n3": [0, 1], "n2": [2, 3]}, "the move")
    eventually(lambda: service.job("drained").state == "running", "the recovery")
    back = run(environment, "resume", "--node", "n1", "--reason", "fan replaced")
    nodes = {one.node: one for one in service.client.job(fleet.job_id).nodes}

    assert plain.returncode == 0
    assert f"n1 runs 2 ranks of job {fleet.job_id}: --now moves them" in plain.stdout
    assert "training, drained by actor: fan 3" in held
    assert (unsure.returncode, moved.returncode, back.returncode) == (2, 0, 0)
    assert "can get ranks again" in back.stdout
    assert f"job {fleet.job_id} may use n1 again" in back.stdout
    assert (nodes["n1"].is_spare, nodes["n1"].held) == (True, None)


def test_a_node_that_nobody_knows_is_refused_with_those_that_are_like_it_unless_it_is_expected(
    service: Service, start: Callable[..., Fleet]
) -> None:
    start("spelled", ["gpu-1", "gpu-2"])
    environment = environment_of(service)
    why = ["--reason", "typed by hand"]

    refused = [
        run(environment, *words)
        for words in (
            ["drain", "gpu2", *why],
            ["pause", "--node", "gpu2", *why],
            ["maintenance", "add", "gpu2", "--for", "1h", *why],
            ["resume", "--node", "gpu2"],
            ["confirm-gone", "gpu2", "--job", "spelled", "--yes"],
            ["plan", "spelled", "--node", "gpu2"],
        )
    ]
    told = run(environment, "drain", "gpu2", *why, "--json")
    job = run(environment, "restart", "spelt", "--yes")
    expected = run(environment, "drain", "gpu-new", *why, "--expected")
    back = run(environment, "resume", "--node", "gpu-new")

    assert [done.returncode for done in refused] == [1] * 6
    for done in refused:
        assert "gpu-2" in done.stderr.partition("similar names: ")[2], done.stderr
    assert json.loads(told.stdout)["refusal"] == "unknown_node"
    assert "no job 'spelt'; similar names: spelled" in job.stderr
    assert (expected.returncode, back.returncode) == (0, 0), expected.stderr
    assert not [one for one in service.client.cluster().held if one.node.startswith("gpu")]


def test_drain_that_a_job_can_not_follow_is_told_with_a_failing_exit_code(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("stuck", ["n1", "n2"])
    environment = environment_of(service)

    done = run(environment, "drain", "n1", "--reason", "fan", "--now", "--yes")
    run(environment, "resume", "--node", "n1")

    assert done.returncode == 1
    assert (
        f"job {fleet.job_id} stays on the node: refused: no other node can replace n1"
        in done.stderr
    )


def test_persons_word_that_a_silent_node_is_gone_lets_the_next_attempt_start(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("lost-node", ["n1", "n2", "n3"])
    environment = environment_of(service)

    speaks = run(environment, "confirm-gone", "n1", "--job", "lost-node", "--yes")
    fleet.silence("n1")
    fleet.kill_rank("n2")
    eventually(lambda: age_of(service, fleet, "n1") > 5.5, "the node to be silent")
    eventually(lambda: service.job("lost-node").state == "recovering", "the recovery to begin")
    unsure = run(environment, "confirm-gone", "n1", "--job", "lost-node")
    given = run(environment, "confirm-gone", "n1", "--job", "lost-node", "--yes", "--reason", "off")
    eventually(lambda: ranks_of(service, fleet).get("n3") == [0, 1], "the spare's turn")
    why = run(environment, "why", "lost-node").stdout

    assert speaks.returncode == 1
    assert "the launcher of n1 is reporting: only its own report counts" in speaks.stderr
    assert unsure.returncode == 2
    assert "no process of job lost-node is left on n1" in unsure.stderr
    assert given.returncode == 0, given.stderr
    assert "confirm gone n1 requested by actor" in why
    assert re.search(
        r"attempt 1 no longer runs on any node\n +n1 is empty: a person confirmed it", why
    )


def test_maintenance_window_is_added_listed_and_removed(service: Service) -> None:
    environment = environment_of(service)

    added = run_json(
        environment,
        "maintenance",
        "add",
        "m*",
        "x1",
        "--for",
        "2h",
        "--reason",
        "PDU",
        "--expected",
    )
    window = added["window"]
    listed = run(environment, "maintenance", "list").stdout
    blocked = run(environment, "resume", "--node", "m7")
    removed = run(environment, "maintenance", "remove", window["window_id"])
    empty = run(environment, "maintenance", "list").stdout
    wrong = [
        run(environment, "maintenance", "add", "m1", "--reason", "r", *times)
        for times in (
            [],
            ["--for", "1h", "--until", "2099-01-01T00:00"],
            ["--until", "2020-01-01T00:00"],
            ["--from", "soon", "--for", "1h"],
        )
    ]
    long = run(
        environment, "maintenance", "add", "m1", "--for", "100d", "--reason", "r", "--expected"
    )

    assert window["nodes"] == ["m*", "x1"]
    assert window["until_unix_s"] - window["from_unix_s"] == pytest.approx(7200)
    assert window["window_id"] in listed
    assert "m*, x1" in listed
    assert f"maintenance window {window['window_id']} names it" in blocked.stderr
    assert removed.returncode == 0
    assert "no maintenance window" in empty
    assert [done.returncode for done in wrong] == [2, 2, 2, 2]
    assert long.returncode == 1
    assert "refused: a window lasts up to 90 days" in long.stderr


def test_job_is_restarted_and_stopped_by_a_persons_word(
    service: Service, start: Callable[..., Fleet]
) -> None:
    fleet = start("told", ["n1", "n2"])
    environment = environment_of(service)

    unsure = [run(environment, what, "told") for what in ("restart", "stop")]
    restarted = run(environment, "restart", "told", "--yes", "--reason", "new mount")
    eventually(lambda: service.job("told").attempt == 2, "the second attempt")
    eventually(lambda: service.job("told").state == "running", "the recovery")
    stopped = run(environment, "stop", fleet.job_id[:8], "--yes", "--reason", "diverged")
    eventually(lambda: fleet.is_ended, "the job's end")
    gone = run(environment, "restart", "told", "--yes")
    listed = run_json(environment, "status", "--all")["jobs"]

    assert [done.returncode for done in unsure] == [2, 2]
    assert "Kill the 4 ranks of job told, at step 3" in unsure[0].stderr
    assert (restarted.returncode, stopped.returncode) == (0, 0)
    assert gone.returncode == 1
    assert f"job told {fleet.job_id} has ended: stopped: stop requested by actor" in gone.stderr
    assert next(job["state"] for job in listed if job["name"] == "told") == "stopped"


# What can't be done.


def test_command_without_a_controller_says_what_it_needs() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKMEND_")}

    done = run(environment, "drain", "gpu-17", "--reason", "fans")

    assert done.returncode == 2
    assert "--controller URL or RANKMEND_CONTROLLER" in done.stderr


def test_job_that_is_not_on_this_machine_is_looked_for_in_its_state_folder(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKMEND_")}

    done = run({**environment, "RANKMEND_STATE_DIR": str(tmp_path)}, "stop", "train", "--yes")

    assert done.returncode == 1
    assert "no job 'train'; known jobs: none; searched: jobs of this machine" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "--controller a controller" in done.stderr


def test_who_asks_without_a_token_or_the_role_is_told_which_one_and_where_to_get_it(
    service: Service,
) -> None:
    nobody = run(environment_of(service, None), "status")
    reader = run(environment_of(service, "reader"), "pause", "--cluster", "--reason", "x")
    launcher = run(environment_of(service, "launch"), "status")
    forged = service.folder / "forged.token"
    forged.write_text("rm_00000000_" + "0" * 64)
    forged.chmod(0o600)
    stranger = run(environment_of(service, "forged"), "status")
    missing = run(environment_of(service, "missing"), "status")
    forged.chmod(0o644)
    open_to_all = run(environment_of(service, "forged"), "status")

    assert "--token-file or RANKMEND_TOKEN_FILE" in nobody.stderr
    assert "reader does not have the role act" in reader.stderr
    assert "does not have the role read" in launcher.stderr
    assert f"refuses the token in {forged}" in stranger.stderr
    assert [done.returncode for done in (nobody, reader, launcher, stranger)] == [1, 1, 1, 1]
    assert "cannot read token file" in missing.stderr
    assert "chmod 600" in open_to_all.stderr
    assert (missing.returncode, open_to_all.returncode) == (2, 2)
    assert not any("Traceback" in done.stderr for done in (nobody, reader, launcher, missing))


def test_certificate_that_is_not_believed_is_told_with_the_setting_that_helps(
    service: Service, tmp_path: Path
) -> None:
    make_folder(tmp_path / "other")
    empty = tmp_path / "empty.crt"
    empty.write_text("no certificate\n")
    system = environment_of(service)
    del system["RANKMEND_CA_FILE"]

    unknown = run(system, "status")
    other = run(environment_of(service, RANKMEND_CA_FILE=f"{tmp_path}/other/ca.crt"), "status")
    broken = run(environment_of(service, RANKMEND_CA_FILE=str(empty)), "status")
    plain = run(
        environment_of(service, RANKMEND_CONTROLLER="http://controller.example:9477"), "status"
    )
    name = run(
        environment_of(service, RANKMEND_CONTROLLER=service.url.replace("127.0.0.1", "127.0.0.2")),
        "status",
    )

    assert "with --ca-file or RANKMEND_CA_FILE" in unknown.stderr
    assert f"the CA in {tmp_path}/other/ca.crt did not issue" in other.stderr
    assert str(empty) in broken.stderr
    assert "sends a token over https only" in plain.stderr
    assert "127.0.0.2" in name.stderr
    done = (unknown, other, broken, plain, name)
    assert all(one.returncode in (1, 2) for one in done)
    assert not any("Traceback" in one.stderr for one in done)


def test_each_controller_that_does_not_answer_is_named_and_another_one_is_asked(
    service: Service,
) -> None:
    two = "https://127.0.0.1:1,https://127.0.0.1:2"

    nobody = run(environment_of(service, RANKMEND_CONTROLLER=two), "status")
    third = run_json(environment_of(service, RANKMEND_CONTROLLER=f"{two}, {service.url}"), "status")

    assert nobody.returncode == 1
    assert re.search(r"\n  127\.0\.0\.1:1: .*refused\n  127\.0\.0\.1:2: .*refused", nobody.stderr)
    assert third["controller"] == service.url


@contextmanager
def busy_controller(reason: str) -> Iterator[str]:
    """A controller that is there, and answers each request with 503."""

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"error": "not now", "refusal": reason}).encode()
            self.send_response(503)
            self.send_header("Retry-After", "3")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    ("reason", "todo"),
    [("starting", "/readyz"), ("busy", "RankmendControllerOverloaded"), ("journal", "state_dir")],
)
def test_a_controller_that_can_not_now_is_told_from_one_that_is_not_there(
    reason: str, todo: str
) -> None:
    with busy_controller(reason) as url:
        environment = {
            "PATH": os.environ["PATH"],
            "RANKMEND_CONTROLLER": f"http://127.0.0.1:1,{url}",
        }
        done = run(environment, "status")

    assert done.returncode == 1
    assert "the controller answers, but can't do this now:" in done.stderr
    assert "127.0.0.1:1: " in done.stderr
    assert f"{url}/v1/plans: 503: not now" in done.stderr
    assert "try again in 3 s; " in done.stderr
    assert todo in done.stderr
    assert "no controller answered" not in done.stderr


def test_redirect_to_another_controller_is_followed_and_shown(service: Service) -> None:
    text = (service.folder / "controller.toml").read_text()
    text = re.sub(r"(?m)^#redirect_to = .*", f'redirect_to = "{service.url}"', text)
    text = text.replace(f"{service.folder}/state", f"{service.folder}/state-b")
    (service.folder / "b.toml").write_text(text)
    other = Service(service.folder, "b.toml")
    try:
        told = run_json(environment_of(other), "status")
    finally:
        other.close()

    assert told["controller"] == service.url


def test_job_that_is_not_there_or_not_the_only_one_is_told_with_those_there_are(
    service: Service, start: Callable[..., Fleet]
) -> None:
    one, two = start("twin-a", ["n1", "n2"]), start("twin-b", ["n3", "n4"])
    reader = environment_of(service, "reader")

    none = run(reader, "status", "nothing")
    both = run(reader, "plan", "twin")
    story = run(reader, "why", "no such/thing")

    assert "no job 'nothing'; known jobs:" in none.stderr
    assert f"twin-a {one.job_id}" in both.stderr
    assert f"twin-b {two.job_id}" in both.stderr
    assert "no job 'no such/thing'" in story.stderr
    assert [done.returncode for done in (none, both, story)] == [1, 1, 1]


def test_state_folder_on_the_command_line_counts_more_than_a_controller_in_the_environment(
    service: Service, tmp_path: Path
) -> None:
    local = run(environment_of(service), "status", f"--state-dir={tmp_path}")
    both = run(
        environment_of(service),
        "status",
        f"--state-dir={tmp_path}",
        f"--controller={service.url}",
    )

    assert str(tmp_path) in local.stdout.replace("\n", "")
    assert "no running job" in local.stdout
    assert both.returncode == 2
    assert "give either --state-dir" in both.stderr


def test_shell_completes_jobs_and_nodes_that_the_controller_names_and_nothing_without_one(
    service: Service, start: Callable[..., Fleet]
) -> None:
    start("completed", ["n1", "n2"])

    def complete(words: str, **changes: str) -> list[str]:
        told = {"_RANKMEND_COMPLETE": "bash_complete", "COMP_WORDS": words}
        told["COMP_CWORD"] = str(words.count(" "))
        done = subprocess.run(  # a shell starts the command anew for each completion
            RANKMEND,
            env=environment_of(service, "reader", **told, **changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    assert complete("rankmend stop comp") == ["completed"]
    assert complete("rankmend drain n") == ["n1", "n2"]
    assert complete("rankmend approve ") == []
    assert complete("rankmend stop comp", RANKMEND_CONTROLLER="https://127.0.0.1:1") == []
    assert "confirm-gone" in complete("rankmend c")


@pytest.mark.parametrize(
    "command",
    ["approve", "reject", "cancel", "acknowledge", "plan", "pause", "resume", "drain", "confirm-gone", "stop",
     "restart", "maintenance add", "status", "incidents", "why"],
)  # fmt: skip
def test_help_of_each_command_has_an_example_and_names_the_controller(command: str) -> None:
    told = CliRunner().invoke(cli, [*command.split(), "--help"]).output

    assert "Example" in told
    assert f"rankmend {command}" in told.partition("Example")[2]
    assert "RANKMEND_CONTROLLER" in told
    assert "--json" in told


def age_of(service: Service, fleet: Fleet, node: str) -> float:
    nodes = service.client.job(fleet.job_id).nodes
    return next(one.heard_age_s or 0.0 for one in nodes if one.node == node)


def ranks_of(service: Service, fleet: Fleet) -> dict[str, list[int]]:
    nodes = service.client.job(fleet.job_id).nodes
    return {one.node: one.ranks for one in nodes if one.ranks}


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*RANKMEND, *arguments],
            env={**environment, "TERM": "xterm", "COLUMNS": "160"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read_until(self, text: str) -> str:
        seen = ""

        def is_written() -> bool:
            nonlocal seen
            if select.select([self._master], [], [], 0)[0]:
                seen += os.read(self._master, 65536).decode(errors="replace")
            return text in seen

        eventually(is_written, lambda: f"{text!r}: {seen}")
        return seen

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        os.close(self._master)


@contextmanager
def terminal(environment: dict[str, str], *arguments: str) -> Iterator[Terminal]:
    one = Terminal(environment, *arguments)
    try:
        yield one
    finally:
        one.close()
