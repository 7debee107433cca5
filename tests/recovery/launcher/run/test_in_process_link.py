"""A launcher and its controller in one process, with both ends played by the test."""

import threading
from collections.abc import Callable
from typing import cast

import pytest

from recovery.controller.job.controller import Controller
from recovery.controller.job.nodes import Orders
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.node_membership import alone
from recovery.launcher.run.in_process_link import InProcessLink
from recovery.messages.exchange import Order, Report, StopReason
from tests.support.eventually import DEADLINE_S
from tests.support.launcher_bench import order, report

pytestmark = pytest.mark.process

DONE = JobOutcome(OutcomeKind.DONE, 0, "every rank ended with exit code 0")


class FakeController:
    """Answers each report with an order, until the second report ends the job."""

    is_calm = True
    journal_trouble = None

    def __init__(self, orders: Orders, error: Exception | None = None) -> None:
        self.orders, self.error = orders, error
        self.outcome: JobOutcome | None = None
        self.heard: list[Report] = []

    def start(self) -> None:
        if self.error is not None:
            raise self.error

    def handle_report(self, told: Report) -> None:
        self.heard.append(told)
        self.orders.send(order(told.number))
        if told.number == 2:
            self.outcome = DONE

    def tick(self) -> None:
        pass


class FakeLauncher:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.ended = threading.Event()

    def send(self, taken: Order) -> None:
        self.orders.append(taken)

    def finish(self) -> None:
        self.ended.set()


def link_to(make: Callable[[Orders], FakeController]) -> tuple[InProcessLink, FakeLauncher]:
    launcher = FakeLauncher()
    link = InProcessLink(
        lambda orders: cast(Controller, make(orders)), alone(slots=2), empty_through=0
    )
    link.start(cast(Launcher, launcher))
    return link, launcher


def test_reports_reach_the_controller_its_orders_the_launcher_and_its_outcome_the_shell() -> None:
    link, launcher = link_to(FakeController)

    link.put(report(1))
    link.put(report(2))
    assert launcher.ended.wait(DEADLINE_S)
    link.close()

    assert [one.revision for one in launcher.orders] == [1, 2]
    assert link.outcome == DONE
    assert link.exit_code(None) == 0


def test_a_controller_that_fails_ends_the_launcher_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link, launcher = link_to(lambda orders: FakeController(orders, OSError("no space left")))

    assert launcher.ended.wait(DEADLINE_S)
    link.close()

    assert link.exit_code(None) == 1
    assert "the controller failed and the job was stopped: OSError('no space left')" in (
        capsys.readouterr().err
    )


def test_a_launcher_that_stopped_without_its_controller_exits_as_the_signal_says() -> None:
    link, _launcher = link_to(FakeController)

    link.close()

    assert link.exit_code(StopReason.SIGTERM) == 143
