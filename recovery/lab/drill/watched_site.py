"""What watches a drilled job of another launcher: a controller and an agent of its own, and what they said."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError, SourceError
from rankmend.files import read_if_there
from rankmend.watch.hook_folder import make_hook_folder
from recovery.api import wire
from recovery.api.operator_client import OperatorClient
from recovery.service.setup import init, make_node_files

NODE: Final = "drill"  # the agent's name
_START_S_MAX: Final = 120.0  # of a Python program, on a busy machine
_END_S_MAX: Final = 30.0
_LOOK_S: Final = 0.3
_LOG_BYTES_MAX: Final = 4 << 20
_STARTED: Final = re.compile(rb"controller started.*? port=([0-9]+)")
_AGENT_STARTED: Final = re.compile(rb"agent started")


@dataclass(frozen=True, slots=True)
class WatchedLook:
    """What the controller said of a job at a moment."""

    unix_s: float
    view: wire.WatchedView


@dataclass(slots=True)
class WatchedSite:
    """The services, and what they said of each job."""

    hook: Path
    client: OperatorClient
    looks: dict[str, list[WatchedLook]] = field(
        default_factory=dict
    )  # by the job's name; of each change
    _stop: threading.Event = field(default_factory=threading.Event)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _times: tuple[wire.WatchedTime, ...] = ()
    _asked_at_s: float = float("-inf")  # monotonic

    def run_looks(self) -> None:
        """Ask again and again, until the site closes; keep what has changed."""
        while not self._stop.wait(_LOOK_S):
            try:
                seen = self.client.watched()
            except RankmendError:
                continue  # busy: the next look is soon
            for item in seen:
                known = self.looks.setdefault(item.name, [])
                if not known or _facts(known[-1].view) != _facts(item):
                    known.append(WatchedLook(time.time(), item))

    def close(self) -> None:
        self._stop.set()

    def time_of(self, name: str) -> wire.WatchedTime | None:
        """Return where a job's time went, as the controller accounts for it, at most as old as a look.

        All jobs of a matrix at once would ask more often than the controller lets one person read.
        """
        with self._asking:
            if time.monotonic() - self._asked_at_s > _LOOK_S:
                self._times, self._asked_at_s = tuple(self.client.watched_times()), time.monotonic()
        return next((item for item in self._times if item.name == name), None)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables that have a job watched, as `rankmend watch env --drills` prints them."""
        retained = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(home)}
        marks = {"RANKMEND_WATCH": "1", "RANKMEND_WATCH_DRILLS": "1"}
        return {**retained, **marks, "PYTHONPATH": str(self.hook)}


def _facts(view: wire.WatchedView) -> tuple[object, ...]:
    ranks = [finding.ranks for finding in view.findings]
    return view.job_id, view.attempt, view.state, view.act, ranks, view.ranks_seen


@contextlib.contextmanager
def watching(
    folder: Path,
    *,
    node: str = NODE,
    policy: str = "",
    tables: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[WatchedSite]:
    """Run a controller and an agent of the node ``node``, whose files lie in ``folder``.

    ``policy``: the controller's policy file; ``tables``: lines of tables in its configuration; ``variables``: of its environment.
    Raises SourceError where one of them does not start.
    """
    home = folder / "controller"
    made = init(home, ["127.0.0.1", "localhost"], home / "state", None)
    text = made.config.read_text(encoding="utf-8")
    text = text.replace('listen = ":9477"', 'listen = "127.0.0.1:0"')
    if policy:
        (home / "policy.toml").write_text(policy, encoding="utf-8")
        text = f'policy_file = "{home}/policy.toml"\n{text}'
    for table, lines in (tables or {}).items():
        text = text.replace(f"\n[{table}]\n", f"\n[{table}]\n{lines}\n")
    made.config.write_text(text, encoding="utf-8")
    cert, key = make_node_files(home, node, folder / "node")
    make_hook_folder(folder / "hook")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(
            _service(folder, "controller", ("run", f"--config={made.config}"), _STARTED, variables)
        )
        url = f"https://127.0.0.1:{port}"
        # A socket's path has at most 107 bytes.
        short = stack.enter_context(tempfile.TemporaryDirectory(prefix="rankmend-"))
        (folder / "agent.toml").write_text(
            f'node = "{node}"\nsocket = "{short}/agent.sock"\ndisabled = ["mounts", "disk_health"]\n'
            f'[alerts]\nca_file = "{made.authority}"\ncert_file = "{cert}"\nkey_file = "{key}"\n'
            f'[watch]\ncontroller = "{url}"\n',
            encoding="utf-8",
        )
        options = ("--listen=127.0.0.1:0", f"--config={folder / 'agent.toml'}")
        stack.enter_context(_service(folder, "agent", options, _AGENT_STARTED))
        client = OperatorClient([url], ca_file=made.authority, token_file=made.admin_token)
        stack.callback(client.close)
        site = WatchedSite(folder / "hook", client)
        looking = threading.Thread(target=site.run_looks, daemon=True, name="looks")
        looking.start()
        stack.callback(looking.join)
        stack.callback(site.close)
        yield site


@contextlib.contextmanager
def _service(
    folder: Path,
    name: str,
    arguments: Sequence[str],
    started: "re.Pattern[bytes]",
    variables: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a service of rankmend; yield the port that it tells, 0 where it tells none."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankmend.cli", name, *arguments],
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield _await_start(process, name, log, started)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S_MAX)


def _await_start(
    process: "subprocess.Popen[bytes]", name: str, log: Path, started: "re.Pattern[bytes]"
) -> int:
    until_s = time.monotonic() + _START_S_MAX
    while True:
        said = read_if_there(log, _LOG_BYTES_MAX, SourceError) or b""
        if (found := started.search(said)) is not None:
            return int(found[1]) if found.groups() else 0
        if process.poll() is not None:
            tail = said.decode("utf-8", "replace").strip()[-300:]
            raise SourceError(f"the {name} of the drill ended with {process.returncode}: {tail}")
        if time.monotonic() > until_s:
            raise SourceError(f"the {name} of the drill did not start within {_START_S_MAX:g} s")
        time.sleep(_LOOK_S / 3)
