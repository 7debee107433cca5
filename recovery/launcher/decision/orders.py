"""The controller that a launcher follows, and that controller's orders. Pure.

In each epoch only the first controller that sends an order counts, and only its newest order.
Orders of older epochs are refused.
"""

from dataclasses import dataclass, replace
from typing import Final

from recovery.messages.exchange import Claim, Order

# a progress file stores it in 32 bits; at one attempt a second, 68 years
ATTEMPT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FollowedOrders:
    job_id: str
    node: str
    launcher_id: str  # empty: the only launcher of its job
    slots: int
    followed_at_s: float  # when the followed controller last answered; monotonic
    epoch: int = 0  # the highest epoch seen
    controller_id: str = ""  # the first controller of that epoch
    newest: Order | None = None  # carried out or not
    standing: Order | None = None  # the newest order that places ranks
    # epoch and UUID of the controller that accepts our reports
    answered_by: tuple[int, str] = (0, "")

    @property
    def group_count(self) -> int:
        """Return the number of reporting launchers, including this one."""
        return 1 if self.newest is None else self.newest.group_count

    def refusal(self, order: Order) -> str | None:  # noqa: PLR0911 - a reason each
        """Return why an order is refused, None if it is accepted; empty if it is merely an old order."""
        if order.job_id != self.job_id or order.node not in ("", self.node):
            return f"it is for node {order.node!r} of job {order.job_id}"
        if order.launcher_id not in ("", self.launcher_id):
            return f"it is for launcher {order.launcher_id}; this is {self.launcher_id}"
        if order.epoch < self.epoch:
            return f"it comes from controller epoch {order.epoch}, but epoch {self.epoch} was already seen"
        if order.epoch == self.epoch and self.controller_id not in ("", order.controller_id):
            return f"it comes from another controller of epoch {order.epoch}: {order.controller_id}"
        if order.attempt > ATTEMPT_MAX:
            return f"its attempt is {order.attempt}; the limit is {ATTEMPT_MAX}"
        if len(order.ranks) > self.slots:
            return f"it has {len(order.ranks)} ranks; this node runs at most {self.slots}"
        newest = self.newest
        if newest is None or order.epoch > newest.epoch or order.revision > newest.revision:
            return None
        return ""

    def follow(self, order: Order, now_s: float) -> "FollowedOrders":
        """Return the state after an accepted order."""
        standing = self.standing
        if order.ranks or standing is None or standing.attempt != order.attempt:
            standing = order
        return replace(
            self,
            followed_at_s=now_s,
            epoch=order.epoch,
            controller_id=order.controller_id,
            newest=order,
            standing=standing,
        )

    def hear(self, epoch: int, controller_id: str, at_s: float) -> "FollowedOrders":
        """Return the state after a controller has accepted a report."""
        is_followed = (epoch, controller_id) == (self.epoch, self.controller_id)
        followed_at_s = max(self.followed_at_s, at_s) if is_followed else self.followed_at_s
        return replace(self, answered_by=(epoch, controller_id), followed_at_s=followed_at_s)

    def claim(self, now_s: float) -> Claim | None:
        """Return the claim to send to a controller other than the followed one."""
        followed = (self.epoch, self.controller_id)
        if self.answered_by in ((0, ""), followed) or not self.controller_id:
            return None
        order = self.standing
        assert order is not None, "a controller that is followed has sent an order"
        return Claim(
            contact_age_s=now_s - self.followed_at_s,
            attempt=order.attempt,
            ranks=order.ranks,
            world_size=order.world_size,
            group_rank=order.group_rank,
            group_count=order.group_count,
            restarts=order.restarts,
            restore=order.restore,
            rendezvous=order.rendezvous,
            peers=order.peers,
            snapshot=order.snapshot,
            group_sizes=order.group_sizes,
        )
