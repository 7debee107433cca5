"""The nodes of one job: what they have said, and the orders they are sent."""

from dataclasses import dataclass
from typing import Final, Protocol

from recovery.evidence_desk import collection_for
from recovery.ledger import Ledger, Wish
from recovery.messages import VERSION, Order, Report, Stop
from recovery.settings import JobSettings

RESEND_S: Final = 1.0  # an order that no report acknowledges is sent again


class Orders(Protocol):
    def send(self, order: Order) -> None:
        """Take an order to its node, perhaps late, twice or never. Must not block or raise."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """A node's newest report, and the most that it has ever acknowledged."""

    report: Report
    at_s: float
    revision: int
    empty_through: int


class Nodes:
    def __init__(self, settings: JobSettings, orders: Orders) -> None:
        self._settings = settings
        self._orders = orders
        self.names = tuple(place.node for place in settings.placement)
        self._heard: dict[str, Heard] = {}
        self._sent_revision = 0
        self._sent_at_s = 0.0

    def take(self, report: Report, now_s: float) -> None:
        before = self._heard.get(report.node)
        self._heard[report.node] = Heard(
            report,
            now_s,
            max(report.revision, before.revision if before else 0),
            max(report.empty_through, before.empty_through if before else 0),
        )

    @property
    def reports(self) -> list[Report]:
        return [heard.report for heard in self._heard.values()]

    @property
    def silent(self) -> list[str]:
        """Nodes that have said nothing yet."""
        return [name for name in self.names if name not in self._heard]

    @property
    def highest_attempt(self) -> int:
        """Return the highest attempt that any node has spoken of; 0 for none."""
        known = [(one.report.attempt, one.empty_through) for one in self._heard.values()]
        return max((max(pair) for pair in known), default=0)

    def are_empty(self, attempt: int) -> bool:
        """Return whether every node has said that no process through ``attempt`` is left."""
        return not self.silent and all(
            heard.empty_through >= attempt for heard in self._heard.values()
        )

    @property
    def heard_through_s(self) -> float:
        """Return the time through which every node has spoken; 0 before all have."""
        if self.silent:
            return 0.0
        return min(heard.at_s for heard in self._heard.values())

    def send(self, ledger: Ledger, now_s: float) -> None:
        """Send every node what it ought to be running."""
        if ledger.wish is Wish.NOTHING_YET:
            return
        if ledger.wish is Wish.RANKS and self.are_empty(ledger.attempt):
            return  # an attempt that is known to be gone is never started again
        self._sent_revision, self._sent_at_s = ledger.revision, now_s
        for order in orders_for(ledger, self._settings):
            self._orders.send(order)

    def resend(self, ledger: Ledger, now_s: float) -> None:
        """Send the orders again while a node has not acknowledged them."""
        is_behind = any(heard.revision < ledger.revision for heard in self._heard.values())
        is_new = self._sent_revision != ledger.revision
        if is_new or (is_behind and now_s - self._sent_at_s >= RESEND_S):
            self.send(ledger, now_s)


def orders_for(ledger: Ledger, settings: JobSettings) -> tuple[Order, ...]:
    """Return what each node ought to be running, from the ledger alone."""
    is_running = ledger.wish is Wish.RANKS
    collect, collect_s = collection_for(ledger)
    choice = ledger.started.choice if ledger.started is not None and is_running else None
    return tuple(
        Order(
            version=VERSION,
            job_id=settings.job_id,
            revision=ledger.revision,
            attempt=ledger.attempt,
            ranks=place.ranks if is_running else (),
            world_size=settings.world_size,
            group_rank=group_rank,
            group_count=len(settings.placement),
            stop=Stop.KILL if ledger.closing is None else ledger.closing.stop,
            grace_s=0.0 if ledger.closing is None else ledger.closing.grace_s,
            restore=None if choice is None else choice.restore,
            restarts=ledger.restarts,
            restarts_max=settings.policy.restarts_max,
            collect=collect,
            collect_s=collect_s,
        )
        for group_rank, place in enumerate(settings.placement)
    )
