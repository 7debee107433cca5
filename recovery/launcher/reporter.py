"""Writes a launcher's reports: its identity, what runs, and what has ended."""

import logging
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from recovery.checkpoints.snapshots.copies.node_copies import NodeCopies
from recovery.checkpoints.snapshots.copies.placement import failure_domain
from recovery.checkpoints.snapshots.watch import SnapshotWatch
from recovery.launcher.decision.launcher_state import FollowedOrders, LauncherState
from recovery.launcher.evidence.evidence_collector import EvidenceCollector
from recovery.launcher.guardian.word import LastWord
from recovery.launcher.host.hardware import HardwareWatch, read_node_kinds
from recovery.launcher.host.node_probe import NodeProbe
from recovery.launcher.membership.node_membership import Membership, boot_time_s, spread_s
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchFault
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.messages.candidates import PutBack
from recovery.messages.exchange import (
    VERSION,
    Endpoint,
    Found,
    FoundCheckpoint,
    HeldSnapshot,
    Report,
    StopReason,
)

log = logging.getLogger(__name__)

PROPOSED_S: Final = (
    10.0  # how long an idle node proposes the same place: longer than an order needs
)


class Reporter:
    def __init__(
        self,
        plan: LaunchPlan,
        store: RendezvousStore,
        clock: Clock,
        membership: Membership,
        evidence: EvidenceCollector | None,
        hardware: HardwareWatch | None,
        snapshots: SnapshotWatch,
        copies: NodeCopies | None = None,
        probe: NodeProbe | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._clock = clock
        self._membership = membership
        self._evidence = evidence
        self._hardware = hardware
        self._snapshots = snapshots
        self._copies = copies
        self._probe = probe
        self._domain = failure_domain(plan.environment)
        self._kinds = read_node_kinds()
        self._number = 0
        self._launched_at_s = boot_time_s()
        self._idle_since_s: float | None = (
            None  # since when nothing has run and the proposal has not changed
        )

    def write(
        self,
        attempt: LaunchedAttempt | None,
        state: LauncherState,
        orders: FollowedOrders,
        fault: LaunchFault | None,
        stop_requested: StopReason | None,
        put_back: PutBack | None = None,
    ) -> Report:
        """Return the next report."""
        ranks = list(attempt.ranks.values()) if attempt else []
        self._number += 1
        membership = self._membership
        # first: what is held is then at least as new
        read_through = self._snapshots.settled_through
        return Report(
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
            launcher_id=membership.launcher_id,
            number=self._number,
            slots=membership.slots,
            rendezvous=self._propose(is_idle=attempt is None),
            peer_endpoint=membership.peers.endpoint,
            unreachable=membership.peers.unreachable,
            fence_attempt=membership.storage.fence_attempt,
            found=self._found(state, orders),
            known=self._known(orders),
            folder_id=membership.storage.folder_id,
            kinds=self._kinds,
            put_back=put_back,
            snapshots=self._held(),
            snapshots_through=read_through,
            copier=None if self._copies is None else self._copies.endpoint,
            domain=self._domain.names,
            domain_is_block=self._domain.is_block,
            copies=() if self._copies is None else self._copies.held(),
            copy_faults=() if self._copies is None else self._copies.faults(),
            role=membership.role,
            passed_preflight=membership.passed_preflight,
            can_probe=self._probe is not None,
            probe=None if self._probe is None else self._probe.told,
            launcher_started_s=self._launched_at_s,
            epoch=orders.epoch,
            controller_id=orders.controller_id,
            claim=orders.claim(self._clock.now_s()),
        )

    def make_word(self, orders: FollowedOrders) -> LastWord | None:
        """Return the last report for after this launcher has ended; None: there is no controller to tell."""
        plan, membership = self._plan, self._membership
        contact = membership.contact()
        if contact is None:
            return None
        return LastWord(
            job_id=plan.job_id,
            node=plan.node,
            launcher_id=membership.launcher_id,
            boot_id=plan.boot_id,
            slots=membership.slots,
            launcher_started_s=self._launched_at_s,
            contact=contact,
            spread_s=spread_s(orders.group_count),
        )

    def _known(self, orders: FollowedOrders) -> tuple[FoundCheckpoint, ...]:
        """Return the checkpoints that this node sees, if it reports them for the job."""
        order = orders.newest
        speaks = order is not None and (order.group_rank == 0 or order.share is not None)
        return self._membership.storage.known() if speaks else ()

    def _held(self) -> tuple[HeldSnapshot, ...]:
        """Return what this node's ranks have in memory: all of it, since one rank may be a snapshot ahead."""
        now_ns = self._clock.now_s() * 1e9
        return tuple(
            HeldSnapshot(
                rank=item.head.rank,
                attempt=item.head.attempt,
                step=item.head.step,
                world_size=item.head.world_size,
                size_bytes=item.head.size_bytes,
                digest=item.digest.whole,
                parts=item.digest.parts,
                age_s=max(0.0, (now_ns - item.head.written_ns) / 1e9),
                is_damaged=item.is_damaged,
                sequence=item.head.sequence,
            )
            for item in self._snapshots.known
        )

    def _found(self, state: LauncherState, orders: FollowedOrders) -> Found | None:
        """Return the checkpoints that the newest order requested, once the search is done."""
        if orders.newest is None or not orders.newest.finds_checkpoints:
            return None
        found = self._membership.storage.found
        return found if found is not None and found.revision == state.found_for[1] else None

    def _propose(self, *, is_idle: bool) -> Endpoint | None:
        """Return where the next attempt can meet; None if no other node needs to find it.

        While nothing runs here, the place changes from time to time: no attempt may meet where an
        earlier one did, and a restarted launcher can't know those places.
        """
        if self._membership.peers.endpoint is None:
            return None
        now_s = self._clock.now_s()
        if not is_idle:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= PROPOSED_S:
            self._idle_since_s = now_s
            self._store.withdraw()
        try:
            return self._store.propose()
        except LaunchError as error:  # every port is taken; reported when an attempt starts
            log.warning("the rendezvous store cannot be offered: %s", error)
            return None
