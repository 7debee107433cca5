"""A controller that loses its state folder, or is away, under launchers that know another one."""

from collections.abc import Callable

import pytest

from recovery.journal.attempt_records import Adopted, AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.incident_records import PlanWaits
from tests.support.eventually import eventually
from tests.support.faults import process, storage
from tests.system.faults.nodes import Nodes, Service, newest

pytestmark = [pytest.mark.process, pytest.mark.safety]


@pytest.mark.real_fault("controller's state lost")
def test_a_job_trains_on_under_a_controller_that_has_lost_its_folder_and_is_recovered_by_it(
    make: Callable[..., Nodes], services: Callable[[str], Service]
) -> None:
    service = services("ctl").start()
    nodes = make("3", f"--controller={service.url}", steps=100_000, spares=1)
    nodes.start("a", "b", "c")
    nodes.wait_step(20)
    placed = [name for name in "abc" if "attempt 1: ranks" in nodes.said(name)]
    ranks = {name: nodes.rank_pids(name) for name in placed}

    service.kill()
    lost = storage.lose(service.state)
    service.start()
    (adopted,) = eventually(lambda: service.journaled(Adopted), "the attempt is adopted")
    nodes.wait_step(newest(nodes) + 50)

    assert adopted.attempt == 1
    assert {place.node for place in adopted.placement} == set(placed)
    assert {name: nodes.rank_pids(name) for name in placed} == ranks
    status = service.ask("status").stdout
    assert "the journal was lost" in status
    assert "adopted at attempt 1" in service.ask("incidents").stdout
    assert "adopted: attempt 1 runs" in service.ask("why", nodes.name).stdout

    process.kill(ranks[placed[0]][0])
    eventually(lambda: service.journaled(PlanWaits), "a plan waits")
    eventually(
        lambda: "waits: the journal was lost" in service.ask("status").stdout, "a plan waits"
    )
    assert service.journaled(AttemptStarted) == []
    confirmed = service.ask("reset-budgets", nodes.name, "--yes", "--reason=looked")
    assert confirmed.returncode == 0, confirmed.stderr
    for name in placed:
        nodes.wait_said(name, "attempt 2: ranks")
    assert service.journaled(AttemptStarted)[-1].choice.restore is not None
    nodes.wait_step(newest(nodes) + 50)

    # The old folder is found: whoever starts a controller on it goes on from what runs.
    service.kill()
    lost.end()
    service.start()
    (again,) = eventually(lambda: service.journaled(Adopted), "the attempt is adopted again")
    assert (again.attempt, again.is_history_lost) == (2, False)
    assert again.epoch > adopted.epoch
    nodes.wait_step(newest(nodes) + 50)
    assert nodes.said(placed[0]).count(": ranks ") == 2


def test_launchers_wait_for_the_controller_that_knows_their_job_beside_one_that_does_not(
    make: Callable[..., Nodes], services: Callable[[str], Service]
) -> None:
    first, second = services("ctl").start(), services("ctl-2").start()
    nodes = make("2", f"--controller={first.url},{second.url}", steps=100_000)
    nodes.start("a", "b")
    nodes.wait_step(20)
    ranks = {name: nodes.rank_pids(name) for name in "ab"}
    # The first of the list, unless it was too busy for a moment when they joined.
    home, other = (first, second) if first.journaled(AttemptStarted) else (second, first)

    home.kill()
    for name in "ab":
        nodes.wait_said(name, f"waiting for {home.url}, or for another controller")
    nodes.wait_step(newest(nodes) + 100)
    home.start()
    for name in "ab":
        nodes.wait_said(name, "the controller answers again")

    assert other.journaled(AttemptStarted) == []
    process.kill(ranks["b"][0])
    for name in "ab":
        nodes.wait_said(name, "attempt 2: ranks")
    nodes.wait_step(newest(nodes) + 50)


def test_launchers_that_joined_different_controllers_meet_at_the_first_of_the_list(
    make: Callable[..., Nodes], services: Callable[[str], Service]
) -> None:
    first, second = services("ctl"), services("ctl-2").start()
    nodes = make("2", f"--controller={first.url},{second.url}", steps=100_000)
    nodes.start("a")
    eventually(lambda: list_folders(second.state), "a joins the second")
    second.kill()
    first.start()
    nodes.start("b")
    eventually(lambda: list_folders(first.state), "b joins the first")

    second.start()

    for name in "ab":
        nodes.wait_said(name, "attempt 1: ranks")
    assert len(first.journaled(AttemptStarted)) == 1
    assert second.journaled(AttemptStarted) == []
