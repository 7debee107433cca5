"""Writes a launcher's reports: what runs, what has ended, and what a member of a job adds."""

import logging
from dataclasses import replace

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from recovery.launcher.decision.orders import FollowedOrders
from recovery.launcher.decision.state import LauncherState
from recovery.launcher.evidence.collector import EvidenceCollector
from recovery.launcher.guardian.last_word import LastWord
from recovery.launcher.host.hardware import HardwareWatch
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.membership.peers import boot_time_s
from recovery.launcher.membership.remote import RETURNS_PER_S
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchFault
from recovery.launcher.rendezvous.store import RendezvousStore
from recovery.messages.exchange import VERSION, Endpoint, Report, StopReason

log = logging.getLogger(__name__)


class Reporter:
    def __init__(
        self,
        plan: LaunchPlan,
        store: RendezvousStore,
        clock: Clock,
        membership: Membership | None,
        evidence: EvidenceCollector | None,
        hardware: HardwareWatch | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._clock = clock
        self._membership = membership
        self._evidence = evidence
        self._hardware = hardware
        self._number = 0
        self._launched_at_s = boot_time_s()

    def write(
        self,
        attempt: LaunchedAttempt | None,
        state: LauncherState,
        orders: FollowedOrders,
        fault: LaunchFault | None,
        stop_requested: StopReason | None,
    ) -> Report:
        """Return the next report."""
        ranks = list(attempt.ranks.values()) if attempt else []
        report = Report(
            version=VERSION,
            node=self._plan.node,
            boot_id=self._plan.boot_id,
            job_id=self._plan.job_id,
            revision=state.carried[1],
            attempt=attempt.number if attempt else 0,
            ranks=tuple(rank.report(self._clock.now_s) for rank in ranks),
            empty_through=state.empty_through,
            launch_error=None if fault is None else fault.text,
            launch_fault="" if fault is None else fault.name,
            stop_requested=stop_requested,
            collected=self._evidence.take_report() if self._evidence else None,
            hardware=self._hardware.take_report() if self._hardware else None,
        )
        if self._membership is None:
            return report
        return self._sign(report, state, orders, self._membership)

    def make_word(self, orders: FollowedOrders) -> LastWord | None:
        """Return what is to be said for this launcher once it has ended; None: to nobody."""
        plan, membership = self._plan, self._membership
        contact = None if membership is None else membership.contact()
        if membership is None or contact is None:
            return None
        return LastWord(
            job_id=plan.job_id,
            node=plan.node,
            launcher_id=membership.launcher_id,
            boot_id=plan.boot_id,
            slots=membership.slots,
            launcher_started_s=self._launched_at_s,
            contact=contact,
            spread_s=orders.group_count / RETURNS_PER_S,
        )

    def _sign(
        self,
        report: Report,
        state: LauncherState,
        orders: FollowedOrders,
        membership: Membership,
    ) -> Report:
        """Return the report with what only a launcher among several has to say."""
        self._number += 1
        storage, peers = membership.storage, membership.peers
        is_finder = orders.newest is not None and orders.newest.finds_checkpoints
        found = storage.found
        if found is not None and found.revision != state.found_for[1]:
            found = None  # of a look that another order had asked for
        return replace(
            report,
            launcher_id=membership.launcher_id,
            number=self._number,
            slots=membership.slots,
            rendezvous=self._propose(),
            peer_endpoint=peers.endpoint,
            unreachable=peers.unreachable,
            fence_attempt=storage.fence_attempt,
            found=found if is_finder else None,
            launcher_started_s=self._launched_at_s,
            epoch=orders.epoch,
            controller_id=orders.controller_id,
            claim=orders.claim(self._clock.now_s()),
        )

    def _propose(self) -> Endpoint | None:
        try:
            return self._store.propose()
        except LaunchError as error:  # every port is taken: told when an attempt is to start
            log.warning("the rendezvous store cannot be offered: %s", error)
            return None
