"""A node's share of a fabric test: it joins the coordinator, carries out its works, and tells what it measured.

It starts nothing on its own. When the coordinator is gone, or says the end, it closes every connection and returns.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import ConfigError, LaunchError, RankmendError
from recovery.api.connection import ControllerConnection, pause_s
from recovery.api.controller_errors import ControllerError, RefusedError, UnreachableError
from recovery.lab.fabric.coordinator import POLL_S
from recovery.lab.fabric.fabric_messages import (
    CollectiveResult,
    CollectiveWork,
    FinishedWork,
    FlowResult,
    FlowWork,
    JoinedFabric,
    JoinFabric,
    LookWork,
    PeerFindings,
    Rail,
    TraceWork,
    Transport,
    Work,
    decode_work,
)
from recovery.lab.fabric.fabric_place import FabricPlace
from recovery.lab.fabric.path_trace import trace_all
from recovery.lab.fabric.rails import LocalRail, LocalRails
from recovery.lab.fabric.rdma_probe import RdmaProbe, RdmaRail
from recovery.lab.fabric.running_flows import look
from recovery.lab.fabric.send_bounds import SendBounds
from recovery.lab.fabric.tcp_probe import Exchange, ProbeListener, Prober
from recovery.service.meeting_secret import Identity

GONE_S_MAX: Final = 20.0  # without an answer of the coordinator
WATCHED_S_MIN: Final = (
    3.0  # tests that send so long end early if the coordinator does; shorter ones are soon over
)
LOST_S_MAX: Final = 5.0  # without an answer of the coordinator, until they do


# Runs collectives under the user's PyTorch, in a child process that ends with this one or at its time limit.


SCRIPT: Final = Path(__file__).with_name("collective_child.py")
OUTPUT_BYTES_MAX: Final = 1 << 20


def run_collectives(
    work: CollectiveWork,
    python: Path,
    interface: str,
    on_start: Callable[[subprocess.Popen[bytes]], None],
) -> tuple[CollectiveResult, ...]:
    """Return the time of each operation and size; raise LaunchError with the last line of what went wrong.

    ``on_start`` gets the process, which another thread may kill.
    """
    order = {
        "address": work.address, "port": work.port, "rank": work.rank, "count": work.count,
        "sizes": work.sizes_bytes, "backend": work.backend, "interface": interface,
        "limit_s": work.limit_s,
    }  # fmt: skip
    try:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen([python, SCRIPT], **pipes) as child:  # type: ignore[call-overload]
            try:
                on_start(child)
                output, errors = child.communicate(msgspec.json.encode(order), work.limit_s)
            except BaseException:
                child.kill()
                raise
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"the collectives did not end within {work.limit_s:g} s") from error
    except OSError as error:
        raise LaunchError(f"cannot run {python}: {error.strerror}") from error
    if child.returncode != 0 or len(output) > OUTPUT_BYTES_MAX:
        words = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise LaunchError(f"{python} with PyTorch: exit code {child.returncode}: {words[-1][:300]}")
    try:
        lines = output.splitlines()
        return msgspec.json.decode(lines[-1] if lines else b"", type=tuple[CollectiveResult, ...])
    except msgspec.MsgspecError as error:
        raise LaunchError(
            f"the collectives of {python} ended with an invalid answer: {error}"
        ) from error


class FabricPeer:
    def __init__(
        self,
        place: FabricPlace,
        node: str,
        local: LocalRails,
        python: Path,
        bounds: SendBounds | None = None,
    ) -> None:
        self._place = place
        self._node = node
        self._python = python
        self._local = local
        self.names = [rail.name for rail in local.rails]
        self.sent_bytes_per_s: list[float] = []  # of each test that this node took part in
        self.received_bytes_per_s: list[float] = []
        self._prober = Prober(
            [(rail.address, ProbeListener(rail.address)) for rail in local.rails], bounds
        )
        self._collective: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._end: FinishedWork | None = None  # said while a work was under way

    def run(
        self, url: str | None, secret: str | None, join_s: float, limit_s: float
    ) -> FinishedWork:
        """Take part until the coordinator says the end; raise RankmendError where it is lost."""
        until_s = time.monotonic() + limit_s
        try:
            client = self._join(url, secret, time.monotonic() + join_s)
            try:
                return self._work(client, until_s)
            finally:
                client.close()
        finally:
            self._prober.close()

    def stop(self) -> None:
        """End the load of this node at once, and begin none. For any thread."""
        self._is_stopped = True
        self._prober.close()
        if self._collective is not None:
            self._collective.kill()

    def _note_collective(self, child: subprocess.Popen[bytes]) -> None:
        self._collective = child
        if self._is_stopped:
            child.kill()

    def _join(self, url: str | None, secret: str | None, until_s: float) -> ControllerConnection:
        """Return the connection to the coordinator, which may start later than this node."""
        body = msgspec.json.encode(
            JoinFabric(
                self._place.rank,
                self._node,
                tuple(
                    _rail_of(rail, listener.port)
                    for rail, (_address, listener) in zip(
                        self._local.rails, self._prober.rails, strict=True
                    )
                ),
            )
        )
        failures, problem = 0, "no coordinator is known"
        while True:
            target = (url, secret) if url and secret else self._read_note()
            if target is not None:
                identity = Identity(target[1])
                client = ControllerConnection(
                    [target[0]], token=identity.token, fingerprint=identity.fingerprint
                )
                try:
                    client.decode(client.request("POST", "/v1/fabric/join", body), JoinedFabric)
                    return client
                except RefusedError:
                    client.close()
                    raise
                except UnreachableError as error:
                    client.close()
                    problem = f"the coordinator does not answer: {error}"
            failures += 1
            if time.monotonic() > until_s:
                raise LaunchError(f"{self._node} could not join the fabric test: {problem}")
            time.sleep(min(1.0, pause_s(failures)))

    def _read_note(self) -> tuple[str, str] | None:
        folder = self._place.folder
        note = folder.read() if folder is not None else None
        if note is None or note.slurm_run != self._place.run:
            return None
        return note.url, note.secret

    def _work(self, client: ControllerConnection, until_s: float) -> FinishedWork:
        after, heard_s, failures = 0, time.monotonic(), 0
        while time.monotonic() < until_s:
            path = f"/v1/fabric/work/{self._place.rank}/{after}"
            try:
                body = client.request("GET", path, answer_s=POLL_S + 5.0)
                heard_s, failures = time.monotonic(), 0
                if not body:
                    continue
                work = decode_work(body)
                after = work.number
                if isinstance(work, FinishedWork):
                    return work
                with self._watched(client, work):
                    reported = self._carry_out(work)
                if self._end is not None:
                    return self._end
                client.request("POST", "/v1/fabric/told", msgspec.json.encode(reported))
                heard_s = time.monotonic()
            except (UnreachableError, msgspec.MsgspecError) as error:
                failures += 1
                if time.monotonic() - heard_s > GONE_S_MAX:
                    raise LaunchError(
                        f"the coordinator of the fabric test is gone: {error}"
                    ) from error
                time.sleep(min(1.0, pause_s(failures)))
            except ControllerError as error:
                raise LaunchError(f"the coordinator refused: {error}") from error
        raise LaunchError("the fabric test did not end within its time")

    @contextlib.contextmanager
    def _watched(self, client: ControllerConnection, work: Work) -> Iterator[None]:
        """End the load of a long work at once when the coordinator says the end, or is gone: nobody waits for what it finds."""
        is_over = threading.Event()
        if not _is_short(work):
            arguments = (client, work.number, is_over)
            threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def _watch(self, client: ControllerConnection, number: int, is_over: threading.Event) -> None:
        path, heard_s = f"/v1/fabric/work/{self._place.rank}/{number}", time.monotonic()
        while not is_over.is_set():
            try:
                body = client.request("GET", path, answer_s=POLL_S + 5.0)
                heard_s = time.monotonic()
                work = decode_work(body) if body else None
            except UnreachableError:
                if time.monotonic() - heard_s > LOST_S_MAX:
                    self.stop()
                    return
                is_over.wait(0.5)
                continue
            except (RankmendError, msgspec.MsgspecError):
                return  # the next request of the work itself tells what is wrong
            if isinstance(work, FinishedWork):
                self._end = work
                self.stop()
            if work is not None:
                return

    def _carry_out(self, work: Work) -> PeerFindings:
        rank, number = self._place.rank, work.number
        try:
            if isinstance(work, FlowWork):
                self._check_rails([flow.rail for flow in work.flows])
                exchange = self._over_rdma() if work.transport is Transport.RDMA else None
                flows = self._prober.run(work.flows, work.seconds, exchange)
                self._note(flows)
                return PeerFindings(rank, number, flows=flows)
            if isinstance(work, TraceWork):
                self._check_rails([trace.rail for trace in work.traces])
                sources = [address for address, _listener in self._prober.rails]
                return PeerFindings(rank, number, traces=trace_all(work, sources))
            if isinstance(work, LookWork):
                addresses = [address for address, _listener in self._prober.rails]
                seen, pairs, ports = look(work.seconds, addresses, self.names)
                return PeerFindings(rank, number, seen=seen, pairs=pairs, ports=ports)
            if isinstance(work, CollectiveWork):
                interface = self.names[0]
                found = run_collectives(work, self._python, interface, self._note_collective)
                return PeerFindings(rank, number, collectives=found)
        except (RankmendError, OSError, IndexError) as error:
            return PeerFindings(rank, number, failure=f"{self._node}: {error}"[:1000])
        return PeerFindings(rank, number, failure=f"{self._node} does not know this work")

    def _over_rdma(self) -> Exchange:
        perftest, ports = self._local.perftest, [rail.rdma for rail in self._local.rails]
        if perftest is None or self._prober.bounds is not None:
            raise ConfigError("a test over RDMA, which this node can't do or bound")
        rails = [RdmaRail(port, rail.address) for rail, port in zip(self._local.rails, ports, strict=True) if port]  # fmt: skip
        if len(rails) < len(ports):
            raise ConfigError("a test over RDMA, but not every rail has an RDMA port")
        return RdmaProbe(perftest, rails, self._prober.programs).exchange

    def _note(self, flows: Sequence[FlowResult]) -> None:
        sent, received = ([flow.sent_bytes_per_s for flow in flows], [flow.received_bytes_per_s for flow in flows])  # fmt: skip
        self.sent_bytes_per_s += [item for item in sent if item is not None]
        self.received_bytes_per_s += [item for item in received if item is not None]

    def _check_rails(self, rails: list[int]) -> None:
        if any(rail >= len(self.names) for rail in rails):
            raise ConfigError(f"a test of rail {max(rails)}, but this node has {len(self.names)}")


def _is_short(work: Work) -> bool:
    if not isinstance(work, FlowWork):
        return False
    return work.transport is Transport.TCP and work.seconds < WATCHED_S_MIN


def _rail_of(rail: LocalRail, port: int) -> Rail:
    """Return what the coordinator gets to know of a rail."""
    rdma, is_ethernet = ("", False) if rail.rdma is None else (rail.rdma.name, rail.rdma.is_ethernet)  # fmt: skip
    return Rail(
        rail.name, rail.address, port, rail.has_tcp, rdma, is_ethernet, rail.rdma_problem[:1000]
    )
