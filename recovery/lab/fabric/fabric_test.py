"""Runs a test of the network between nodes: this node's share of it, and on the first node the whole.

`run_fabric_test` is the one way in, for `rankmend fabric` and for checks before a job. Every node calls it with the same options;
all return the verdict, and the first node the whole report.
"""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from detectors.fabric.fabric_verdict import FabricVerdict
from rankmend.errors import ConfigError, LaunchError, RankmendError
from recovery.api.contact import is_loopback
from recovery.lab.fabric.coordinator import Coordinator
from recovery.lab.fabric.fabric_messages import FinishedWork
from recovery.lab.fabric.fabric_options import FabricOptions
from recovery.lab.fabric.fabric_place import FabricPlace
from recovery.lab.fabric.fabric_report import FabricReport
from recovery.lab.fabric.fabric_rounds import FabricRounds
from recovery.lab.fabric.peer import FabricPeer
from recovery.lab.fabric.rails import LocalRails, find_rails, needs_route, with_rdma
from recovery.lab.fabric.transport_choice import sought
from recovery.launcher.run.meeting_site import HostNote, url_of
from recovery.launcher.run.slurm.taking import node_address
from recovery.service.meeting_secret import Identity, new_secret

_SLACK_S: Final = 10.0  # for this node's own share to end


@dataclass(frozen=True, slots=True)
class FabricRun:
    """``report``: on the first node only. ``verdict``: None where the test judges nothing.

    The rates are this node's own, in bytes/s: the medians of its tests; None: it measured none.
    """

    verdict: FabricVerdict | None
    report: FabricReport | None
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    rails: tuple[str, ...] = ()  # interfaces that were tested


def run_fabric_test(place: FabricPlace, node: str, options: FabricOptions) -> FabricRun:
    """Take part in the test as this node. Raises RankmendError where it cannot be done; nothing is left running."""
    if place.is_coordinator:
        return _coordinate(place, node, options)
    peer = FabricPeer(place, node, _rails(place, options), options.python, options.bounds)
    url = url_of(place.host, place.port) if place.host and place.folder is None else None
    finished = peer.run(url, place.secret, options.join_s, options.limit_s)
    if finished.failure:
        raise LaunchError(finished.failure)
    return FabricRun(finished.verdict, None, *_rates_of(peer))


def _rails(place: FabricPlace, options: FabricOptions) -> LocalRails:
    host, is_routed = place.host, needs_route(options.rails, options.sysfs)
    if host is None and place.folder is not None and not place.is_coordinator and is_routed:
        until_s = time.monotonic() + options.join_s
        while host is None:
            note = place.folder.read()
            if note is not None and note.slurm_run == place.run:
                host = note.node
            elif time.monotonic() > until_s:
                raise LaunchError(f"the first node has left no note in {place.folder.folder}")
            else:
                time.sleep(0.2)
    if host is None and is_routed:
        host_asked = node_address(place.other) if place.other else socket.gethostname()
    else:
        host_asked = host or ""
    found = find_rails(options.rails, host_asked, place.port, options.sysfs)
    routed = next((rail for rail in found if not (options.rails and rail.has_tcp)), None)
    if host is None and routed is not None and is_loopback(routed.address):
        raise ConfigError(
            f"which interface leads to the other nodes? {socket.gethostname()} has the address {routed.address} here: "
            f"name an interface with an address by --rail, or give --rdzv-endpoint"
        )
    return with_rdma(found, sought(options.transport, options.kind), options.sysfs)


def _coordinate(place: FabricPlace, node: str, options: FabricOptions) -> FabricRun:
    local = _rails(place, options)
    own = local.rails[0].address
    secret = place.secret or new_secret()
    identity = Identity(secret)
    coordinator = Coordinator(identity, place.count, "", place.port)
    note: HostNote | None = None
    try:
        coordinator.start()
        options.on_listening(coordinator.port)
        if place.folder is not None:
            url = url_of(own, coordinator.port)
            note = HostNote(
                key="fabric", node=own, url=url, secret=secret,
                fingerprint=identity.fingerprint, epoch=1, beat=1, slurm_run=place.run,
            )  # fmt: skip
            place.folder.write(note)
        peer = FabricPeer(place, node, local, options.python, options.bounds)
        mine = threading.Thread(
            target=_take_part,
            args=(peer, url_of(own, coordinator.port), secret, options),
            name="peer",
            daemon=True,
        )
        mine.start()
        failure, report = "the coordinator has ended early", None
        try:
            report = FabricRounds(coordinator, place.count, options).run()
            failure = ""
        except RankmendError as error:
            failure = str(error)
            raise
        except BaseException as error:
            failure = f"the first node was {error}"
            raise
        finally:
            if report is None:
                peer.stop()
            verdict = report.verdict if report is not None else None
            number = coordinator.next_number()
            last = FinishedWork(number, verdict, failure)
            coordinator.finish(dict.fromkeys(range(place.count), last))
            mine.join(_SLACK_S)
        return FabricRun(verdict, report, *_rates_of(peer))
    finally:
        coordinator.close()
        if place.folder is not None and note is not None:
            with contextlib.suppress(
                LaunchError
            ):  # an old note misleads nobody: it names its start
                place.folder.forget()


def _rates_of(peer: FabricPeer) -> tuple[float | None, float | None, tuple[str, ...]]:
    sent, received = list(peer.sent_bytes_per_s), list(peer.received_bytes_per_s)
    rates = (median(sent) if sent else None, median(received) if received else None)
    return *rates, tuple(peer.names)


def _take_part(peer: FabricPeer, url: str, secret: str, options: FabricOptions) -> None:
    try:
        peer.run(url, secret, options.join_s, options.limit_s)
    except RankmendError:
        return  # the coordinator misses it, and says so
