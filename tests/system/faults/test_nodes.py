"""Jobs on several nodes under the real `rankmend run`: launchers of one machine, and test hosts."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.attempt_records import AttemptEnded, AttemptStarted, Proof
from recovery.journal.cluster_records import PowerOffAsked
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.job_records import JobEnded
from recovery.journal.node_records import LaunchersEnded, NodesOff
from recovery.local.report.overview import read_entries
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.support.faults.clock import WHY_NOT as WHY_NOT_CLOCK
from tests.support.faults.clock import FakeClock
from tests.support.hosts import Fleet, why_not
from tests.support.power_bmc import PASSWORD, PowerBmc, write_credentials
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import JOBS
from tests.system.faults.nodes import (
    ENDLESS,
    LET_GO,
    PATIENT,
    Nodes,
    journaled,
    run_controller,
    signal_all,
)

pytestmark = [pytest.mark.site, pytest.mark.safety]
NEEDS_HOSTS = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
DAY_S = 86_400.0


def test_two_nodes_survive_a_rank_a_launcher_and_the_host_with_the_same_result(
    make_meeting: Callable[..., Nodes], undisturbed_100: dict[str, object]
) -> None:
    # The host comes back before another launcher may take over, however busy the machine is.
    nodes = make_meeting("2", steps=100, policy=PATIENT)
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")

    nodes.wait_step(50)
    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
    nodes.kill("b")
    nodes.start("b")
    nodes.wait_said("a", "attempt 3 makes progress on 4 ranks")
    nodes.kill("a")
    nodes.start("a")

    assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_100
    assert "(epoch 2)" in nodes.said("a")
    (hosted,) = list_folders(nodes.folder / "state-a")  # where `rankmend why` looks
    records = [entry.record for entry in read_entries(hosted)]
    assert sum(isinstance(record, AttemptStarted) for record in records) == 4
    assert isinstance(records[-1], JobEnded)


@pytest.mark.real_fault("launcher that hosts the controller killed")
def test_when_the_host_stays_away_another_launcher_takes_over_with_the_spare(
    make_meeting: Callable[..., Nodes], undisturbed_100: dict[str, object]
) -> None:
    nodes = make_meeting("3", steps=100, spares=1)
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    nodes.wait_step(50)

    nodes.kill("a")

    assert nodes.wait_ends("b", "c") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_100
    # On a busy machine the spare may begin before the one whose turn it is; then one of them retires.
    began = [name for name in ("b", "c") if "this node hosts the controller" in nodes.said(name)]
    retired = [name for name in began if "this node no longer hosts" in nodes.said(name)]
    assert len(began) - len(retired) == 1, nodes.output


@pytest.mark.skipif(bool(WHY_NOT_CLOCK), reason=WHY_NOT_CLOCK or "-")
def test_wall_clocks_that_jump_apart_change_neither_the_host_nor_the_result(
    make_meeting: Callable[..., Nodes], tmp_path: Path, undisturbed_100: dict[str, object]
) -> None:
    nodes = make_meeting("3", steps=100, spares=1)
    nodes.clocks = {name: FakeClock(tmp_path / f"clock-{name}") for name in "abc"}
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    nodes.wait_step(20)

    with nodes.clocks["b"].jump(DAY_S), nodes.clocks["c"].jump(-DAY_S):
        nodes.wait_step(60)
        os.kill(nodes.rank_pids("a")[0], signal.SIGKILL)
        nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
        assert not [name for name in "bc" if "this node hosts the controller" in nodes.said(name)]
        nodes.kill("a")  # the others take over, with clocks two days apart

        assert nodes.wait_ends("b", "c") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_100  # of two that take over at once the later one hosts


def test_launchers_say_what_went_wrong_and_what_to_do_where_a_service_decides(
    make: Callable[..., Nodes], controller: str
) -> None:
    nodes = make("2", f"--controller={controller}", "--max-restarts=1", steps=ENDLESS)
    nodes.start("a", "b")
    nodes.wait_step(20)

    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)
    for name in "ab":
        nodes.wait_said(name, "; recovered: `rankmend why ")
        said = nodes.said(name)
        assert f"rankmend: [{name}] incident " in said
        assert "(blamed: " in said
        assert f"rankmend: [{name}] decision: " in said
        assert f"rankmend: [{name}] restart: attempt 2 from " in said
    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)

    assert nodes.wait_ends("a", "b") == [137, 137], nodes.output
    for name in "ab":
        said = nodes.said(name)
        assert f"rankmend: [{name}] gave up: " in said, nodes.output
        assert f"rankmend: [{name}] next: remove the cause" in said
        assert said.count(f"[{name}] incident ") == 2, "each line once"


def test_two_spares_that_race_for_one_place_get_one_place_each_in_turn(
    make: Callable[..., Nodes], controller: str
) -> None:
    nodes = make("4", f"--controller={controller}", steps=ENDLESS, spares=2)
    nodes.start(*"abcd")
    nodes.wait_step(20)
    spares = [name for name in "abcd" if "attempt 1: ranks" not in nodes.said(name)]
    first, second = (name for name in "abcd" if name not in spares)

    nodes.kill(first)
    taken = eventually(
        lambda: [name for name in spares if "attempt 2: ranks" in nodes.said(name)],
        "a spare takes the place",
    )
    nodes.wait_said(second, "attempt 2: ranks")
    assert len(taken) == 1, nodes.output
    (left,) = (name for name in spares if name not in taken)
    assert not nodes.rank_pids(left)
    nodes.kill(second, taken[0])  # two places at once, and one spare: the job waits for a node
    nodes.start(first)

    nodes.wait_said(left, "attempt 3: ranks")
    nodes.wait_said(first, "attempt 3: ranks")
    last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
    nodes.wait_step(last + 20)
    placed = [
        sorted(place.node for place in one.placement) for one in journaled(nodes, AttemptStarted)
    ]
    assert placed == [
        sorted([first, second]),
        sorted([second, taken[0]]),
        sorted([first, left]),
    ]


def test_a_person_speaks_to_a_job_whose_launcher_hosts_its_controller(
    make_meeting: Callable[..., Nodes],
) -> None:
    nodes = make_meeting("2", steps=ENDLESS, policy=PATIENT)
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")
    nodes.wait_step(20)

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked_cli.run(*arguments, f"--job-folder={nodes.checkpoints}")

    shown = ask("status", nodes.name, "--json")
    restarted = ask("restart", nodes.name, "--yes", "--reason=new data")
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
    unknown = ask("confirm-gone", "z", f"--job={nodes.name}", "--yes")
    stopped = ask("stop", nodes.name, "--yes")

    assert nodes.name in shown.stdout, shown.stderr
    assert restarted.returncode == stopped.returncode == 0, restarted.stderr + stopped.stderr
    assert (unknown.returncode, "'z'" in unknown.stderr) == (1, True), unknown.stderr
    assert nodes.wait_ends("a", "b") == [143, 143], nodes.output
    gone = ask("stop", nodes.name, "--yes")
    assert (gone.returncode, "has ended" in gone.stderr) == (2, True), gone.stderr


def test_a_spare_takes_the_place_of_a_lost_node_and_a_scheduler_stops_all(
    make: Callable[..., Nodes], controller: str
) -> None:
    nodes = make("3", f"--controller={controller}", "--grace=10", steps=ENDLESS, spares=1)
    nodes.start("a", "b", "c")
    nodes.wait_step(20)
    (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
    lost, kept = (name for name in "abc" if name != spare)

    nodes.kill(lost)
    nodes.wait_said(spare, "attempt 2: ranks")
    nodes.wait_said(kept, "attempt 2: ranks")
    (ended,) = journaled(nodes, AttemptEnded)
    assert [(one.node, one.proof) for one in ended.proofs] == [(lost, Proof.LAST_WORD)]
    nodes.start(lost)  # comes back as a spare, and leaves as one
    nodes.wait_said(lost, "runs no ranks on this node")
    nodes.running[lost].send_signal(signal.SIGTERM)
    assert nodes.wait_ends(lost) == [143], nodes.output
    eventually(
        lambda: [one.launchers[0].node for one in journaled(nodes, LaunchersEnded)] == [lost] * 2,
        "both ends are on record: by the guardian's word, and by its own",
    )
    last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
    nodes.wait_step(last + 20)
    nodes.running[kept].send_signal(signal.SIGTERM)

    assert nodes.wait_ends(kept, spare) == [143, 143], nodes.output
    assert "stopped" in nodes.said(spare)


def test_a_spare_takes_the_place_of_a_node_without_power_and_waits_for_no_lease(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    policy = PATIENT.replace("lease_s = 15", "lease_s = 600")  # so long that only the BMC proves it
    policy = policy.replace("silent_s = 10", "silent_s = 5")
    with PowerBmc("On") as bmc:
        file = write_credentials(tmp_path)
        more = (
            f'[[bmcs]]\nmatch = "*"\nurl = "{bmc.url}"\ncredentials_file = "{file}"\ncheck_s = 0\n'
        )
        with run_controller(tmp_path, policy, more) as url:
            nodes = make("3", f"--controller={url}", "--grace=10", steps=ENDLESS, spares=1)
            nodes.start("a", "b", "c")
            nodes.wait_step(20)
            (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
            lost, kept = (name for name in "abc" if name != spare)

            nodes.vanish(lost)
            eventually(lambda: bmc.readings > 0, "the controller reads the power state")
            assert len(journaled(nodes, AttemptStarted)) == 1  # On proves nothing
            bmc.power = "Off"

            nodes.wait_said(spare, "attempt 2: ranks")
            nodes.wait_said(kept, "attempt 2: ranks")
            (ended,) = journaled(nodes, AttemptEnded)
            assert (ended.off, ended.proofs) == ((lost,), ())
            assert [one.node for one in journaled(nodes, NodesOff)[0].nodes] == [lost]
            last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
            nodes.wait_step(last + 20)
        told = [*(tmp_path / "ctl").rglob("*"), tmp_path / "controller.log"]
        assert not any(PASSWORD.encode() in path.read_bytes() for path in told if path.is_file())


def test_a_lost_node_that_may_wake_up_is_switched_off_and_its_place_taken(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    policy = PATIENT.replace("lease_s = 15", "lease_s = 600\npower_off_to_fence = true")
    policy = policy.replace("silent_s = 10", "silent_s = 5")
    with PowerBmc("On") as bmc:
        file = write_credentials(tmp_path)
        more = (
            f'[[bmcs]]\nmatch = "*"\nurl = "{bmc.url}"\ncredentials_file = "{file}"\ncheck_s = 0\n'
        )
        with run_controller(tmp_path, policy, more) as url:
            nodes = make("3", f"--controller={url}", "--grace=10", steps=ENDLESS, spares=1)
            nodes.start("a", "b", "c")
            nodes.wait_step(20)
            (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
            lost, kept = (name for name in "abc" if name != spare)
            asked_before: list[int] = []

            def lose_power() -> None:
                asked_before.append(len(journaled(nodes, PowerOffAsked)))
                signal_all(frozen, signal.SIGKILL)
                bmc.power = "Off"

            bmc.on_reset = lose_power
            frozen = nodes.freeze(lost)

            nodes.wait_said(spare, "attempt 2: ranks")
            nodes.wait_said(kept, "attempt 2: ranks")
            assert asked_before == [1]  # once, and on record before it was asked for
            (ended,) = journaled(nodes, AttemptEnded)
            assert (ended.off, ended.proofs) == ((lost,), ())


@NEEDS_HOSTS
def test_a_node_that_is_cut_off_stops_its_ranks_and_the_job_goes_on_without_it(
    make: Callable[..., Nodes], tmp_path: Path, undisturbed_100: dict[str, object]
) -> None:
    with Fleet(3, tmp_path) as fleet:
        hosts = {name: fleet[name] for name in ("h1", "h2", "h3")}
        flags = [
            f"--rdzv-endpoint={hosts['h1'].address}:29400",
            f"--config={fleet.shared}/policy.toml",
        ]
        nodes = make("3", *flags, steps=100, folder=fleet.shared, hosts=hosts, spares=1)
        nodes.start("h1")
        nodes.wait_said("h1", "hosts the controller")
        nodes.start("h2", "h3")
        nodes.wait_step(50)
        cut = next(name for name in ("h2", "h3") if "attempt 1: ranks" in nodes.said(name))
        (other,) = {"h2", "h3"} - {cut}

        with fleet.partition([hosts[cut]]):
            nodes.wait_said(cut, "stopping its ranks")
            nodes.wait_said(other, "attempt 2: ranks")

            assert nodes.wait_ends("h1", other) == [0, 0], nodes.output

        assert nodes.result() == undisturbed_100
        assert nodes.wait_ends(cut) == [0], nodes.output  # it reads the end beside the checkpoints
        nodes.close()


@NEEDS_HOSTS
@pytest.mark.torch
def test_a_torch_job_meets_over_two_hosts_again_after_a_rank_was_killed(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    needs_torch()
    with Fleet(2, tmp_path) as fleet:
        hosts = {name: fleet[name] for name in ("h1", "h2")}
        nodes = make(
            "2",
            "--no-fork-server",
            f"--rdzv-endpoint={hosts['h1'].address}",
            f"--config={fleet.shared}/policy.toml",
            folder=fleet.shared,
            hosts=hosts,
            slots=1,
            script=JOBS / "ddp.py",
        )
        nodes.arguments = [
            f"--checkpoint-dir={nodes.checkpoints}",
            f"--result={nodes.folder / 'result.pt'}",
            f"--let-go={nodes.folder / LET_GO}",
        ]
        nodes.start("h1", "h2")
        eventually(lambda: next(nodes.checkpoints.glob("step-*.pt"), None), "a checkpoint")
        (rank,) = hosts["h2"].run(["pgrep", "-f", "--", "-u .*jobs/ddp.py"]).stdout.split()

        hosts["h2"].run(["kill", "-KILL", rank])

        assert nodes.wait_ends("h1", "h2") == [0, 0], nodes.output
        assert "attempt 2: rank 1 of 2" in nodes.said("h1") + nodes.said("h2")
        nodes.close()
