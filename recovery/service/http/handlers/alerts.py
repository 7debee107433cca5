"""Alerts, as Prometheus and agents post them and as Alertmanager's webhook brings them."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from recovery.api import wire
from recovery.controller.cluster.alert_shares import Sender, node_sender
from recovery.controller.cluster.incoming_alerts import IncomingAlert, decode_posted, decode_webhook
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.request_errors import LateAlertError
from recovery.service.jobs.alert_delivery import Delivered
from recovery.service.roles import Subject

log = logging.getLogger(__name__)

# Messages of one sender in progress. A message of 8 MiB takes about 150 MiB once decoded.
MESSAGES_MAX: Final = 4
NODE_MESSAGES_MAX: Final = 2
RECORD_S_MAX: Final = 5.0  # Prometheus waits 10 s for an answer
_LOOK_S: Final = 0.02


@dataclass(slots=True)
class AlertMessage:
    """The alerts of one request."""

    alerts: tuple[IncomingAlert, ...]
    left_out: int = 0  # alerts that the sender's own limit kept back
    body: bytes = b""  # as it came, for other controllers


def read_posted(body: bytes, now_unix_s: float) -> AlertMessage:
    return AlertMessage(decode_posted(body, now_unix_s), body=body)


def read_webhook(body: bytes, _now_unix_s: float) -> AlertMessage:
    return AlertMessage(*decode_webhook(body), body=body)


async def post(backend: Backend, call: Call[AlertMessage]) -> wire.Taken:
    return await _take(backend, call, "alerts")


async def webhook(backend: Backend, call: Call[AlertMessage]) -> wire.Taken:
    left_out = call.given.left_out
    if left_out:
        log.warning(
            "Alertmanager's webhook left out alerts (max_alerts)", extra={"count": left_out}
        )
        backend.read_alerts()
    return await _take(backend, call, "webhook")


def sender_of(subject: Subject) -> Sender:
    """Return as whom a subject sends alerts, with its limits."""
    if subject.is_node:
        return node_sender(subject.name, subject.nodes)
    return Sender(subject.name, nodes=subject.nodes, is_of_jobs=bool(subject.jobs))


async def _take(backend: Backend, call: Call[AlertMessage], route: str) -> wire.Taken:
    """Take alerts in, and pass them to the other controllers of the database: each has jobs of its own.

    Raises PeerSilentError if one of those that live doesn't take them, LateAlertError if one fires that has just ended: the Alertmanagers are
    asked, too. The sender tries again, and a repeat changes nothing.
    """
    subject, rules, message = call.subject, call.rules, call.given
    sender = sender_of(subject)
    most = NODE_MESSAGES_MAX if subject.is_node else MESSAGES_MAX
    count = len(message.alerts)
    with backend.alert_messages.hold(subject.name, most):
        try:
            delivered = await backend.ask(
                lambda: backend.worker.alerts.take(message.alerts, sender, rules)
            )
            message.alerts = ()
            await _wait_for_record(backend, delivered)
            if backend.peers is not None:
                await backend.peers.pass_on(route, subject, message.body)
        finally:
            # The deciding thread may be stuck with the call still queued: free the memory.
            message.alerts, message.body = (), b""
    backend.measures.alerts.inc(count - delivered.refused)
    backend.measures.alerts_refused.inc(delivered.refused)
    if delivered.late:
        backend.read_alerts()  # whether they hold on
        raise LateAlertError(
            f"{delivered.late} of {count} alerts fire that have just ended: send them again if they hold on"
        )
    return wire.Taken(count - delivered.refused, delivered.refused)


async def _wait_for_record(backend: Backend, delivered: Delivered) -> None:
    """Return once a restart of this controller would not lose the alerts: Alertmanager repeats what was accepted after hours.

    Raises JournalError where a disk takes longer than `RECORD_S_MAX`. A job that records nothing now, because its nodes have
    not reported yet, is not waited for longer.
    """
    alerts, job_ids = backend.worker.alerts, delivered.job_ids
    end_s = backend.clock.now_s() + RECORD_S_MAX
    while bool(job_ids) and await backend.ask(lambda: bool(alerts.find_unrecorded(job_ids))):
        if backend.clock.now_s() >= end_s:
            await backend.ask(lambda: alerts.refuse_unwritten(job_ids))
            return
        await asyncio.sleep(_LOOK_S)
