"""`rankmend run` as one launcher of several: joins a job, carries out its orders, leaves.

The controller is a service (--controller), or the launcher at the rendezvous endpoint hosts it
(`recovery.launcher.run.meeting`). In both cases this is the client described in docs/reference/api.md.
"""

import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rankmend import logs
from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError, JobHeldError
from rankmend.node import node_name
from rankmend.printable import printable
from recovery.api.contact import check_url, is_loopback
from recovery.api.launcher_client import LauncherClient, read_pod_token
from recovery.api.parallel_sizes import to_wire
from recovery.api.wire import (
    NAME_PATTERN,
    POLICY_OVERRIDES,
    ClaimNews,
    Join,
    JoinAnswer,
)
from recovery.checkpoints.marks import identify_folder
from recovery.checkpoints.snapshots.copies.copier import NO_LIMIT_BYTES_PER_S, CopierProcess
from recovery.checkpoints.snapshots.copies.copy_messages import StartCopier
from recovery.journal.folder.job_folder import JobFolder, open_job
from recovery.journal.folder.job_key import JobKey, key_at_service
from recovery.journal.limits import Policy
from recovery.launcher.early_stop import exit_on
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.peer_launchers import Peers, PeerWord
from recovery.launcher.ownership.claim import OwnerKind
from recovery.launcher.ownership.ownership import Ownership
from recovery.launcher.ranks.command import program_of, takes_checkpoint
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from recovery.launcher.rendezvous.ports import reserve
from recovery.launcher.run.assembly import (
    checkpoint_folder,
    make_watch,
    port_range,
    say,
)
from recovery.launcher.run.node_launcher import (
    JobOnNode,
    NodeLauncher,
    NodeSetup,
    own_folder,
    prove_empty,
)
from recovery.launcher.run.options import (
    RunOptions,
    command_line,
    count_nodes,
    grace_s,
    last_call_s,
    make_layout,
    read_policy,
    stop_signals,
    title_of,
)
from recovery.launcher.run.remote_link import JoiningClient, RemoteLink, join
from recovery.launcher.run.route import route_address
from recovery.launcher.run.slurm.step import read_step
from recovery.messages.exchange import Endpoint

log = logging.getLogger(__name__)

_ATTRIBUTES: Final = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
)


POD_TOKEN_FILE: Final = Path("/var/run/secrets/rankmend/token")
"""Where the examples mount the projected token of a launcher's pod: docs/use/kubernetes.md."""


def _pod_token_file(options: RunOptions) -> Path | None:
    """Return the file with this pod's token; raise ConfigError where one is named that can't be used."""
    if options.pod_token_file is None:
        return POD_TOKEN_FILE if POD_TOKEN_FILE.is_file() else None
    read_pod_token(options.pod_token_file)
    return options.pod_token_file


def run_with_service(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run this node's part of a job that a `rankmend controller` manages."""
    begin_logging()
    assert options.controller is not None, "chosen by it"
    named = (url.strip() for url in options.controller.split(","))
    urls = [check_url(url, has_token=True) for url in named if url]
    client = LauncherClient(urls, token_file=options.token_file, ca_file=options.ca_file)
    client.pod_token_file = _pod_token_file(options)
    chosen = (options.job, options.rdzv_id, environment, options.checkpoint_dir)
    key = key_at_service(*chosen, command_line(options), title_of(options))
    if key.is_anonymous:
        raise ConfigError(
            "the launchers of a job find each other by its name: give --job or --rdzv-id, or "
            "--checkpoint-dir"
        )
    parts = urlsplit(urls[0])
    where = (parts.hostname or "", parts.port or 443)
    overrides = _policy_overrides(options)
    with exit_on(stop_signals(options)):
        ownership = own_folder(options, OwnerKind.SERVICE, key, environment)
        try:
            node = Node(options, environment, key, where, overrides, ownership=ownership)
            return node.run(client)
        finally:
            ownership.end()
            client.close()


def begin_logging() -> None:
    logs.configure(logs.LogShape.LAUNCHER)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # we report these ourselves


def _policy_overrides(options: RunOptions) -> dict[str, float]:
    """Return the limits that the user requests from a service, and warn about those that it ignores."""
    policy, default = read_policy(options.config_path), Policy()
    changed = {
        name: float(getattr(policy, name))
        for name in POLICY_OVERRIDES
        if getattr(policy, name) != getattr(default, name)
    }
    if options.max_restarts is not None:
        changed["restarts_max"] = float(options.max_restarts)
    if (wait_s := last_call_s(options)) is not None:
        changed["join_wait_s"] = wait_s
    if options.grow_every_s is not None:
        changed["grow_every_s"] = options.grow_every_s
    if options.observe:
        changed["observe"] = 1.0
    if options.snapshot_copies is not None:
        changed["snapshot_copies"] = float(options.snapshot_copies)
    unheard = [
        flag
        for flag, value in (
            ("--hang-min", options.hang_min_s),
            ("--hang-max", options.hang_max_s),
            ("--hang-multiple", options.hang_multiple),
            ("--hang-stopped", options.hang_stopped_s),
            ("--no-hang-detection", options.no_hang_detection or None),
        )
        if value is not None
    ]
    if unheard:
        say(f"{', '.join(unheard)}: the controller's own configuration decides when ranks are hung")
    if options.slurm_requeue_s is not None:
        say("--slurm-requeue: the controller's own configuration decides ([slurm] requeue_after_s)")
    return changed


def checked_node_name(options: RunOptions, environment: Mapping[str, str]) -> str:
    name = node_name(options.node_name, environment)
    if re.search(NAME_PATTERN, name) is None:
        raise ConfigError(f"node name {name!r}: letters, digits and ._:- only (--node-name)")
    return name


def _title(name: str) -> str:
    """Return a job's name in a form that a controller accepts; a folder may have any name."""
    return printable(name.encode(errors="replace").decode())[:128].strip() or "job"


class Node:
    """One node's run of a job, from joining to the exit code."""

    def __init__(
        self,
        options: RunOptions,
        environment: Mapping[str, str],
        key: JobKey,
        controller: tuple[str, int],
        overrides: Mapping[str, float],
        job_id: uuid.UUID | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        """``controller``: any of its addresses, for the route. ``job_id``: as the storage names it."""
        self._options = options
        self._environment = environment
        self._clock: Clock = SystemClock()
        self._key = key
        self._ownership = ownership or Ownership()
        self.name = checked_node_name(options, environment)
        self.address = options.local_addr or route_address(*controller)
        self.launcher_id = str(uuid.uuid4())
        self._setup = NodeSetup.read(options, environment, is_one_node=False)
        self.slots = self._setup.slots
        self.request = self._make_request(overrides, job_id)
        self.link: RemoteLink | None = None
        step = read_step(environment) if options.slurm else None
        is_first = step is None or step.place == 0
        # The launchers of a Slurm step print into one file: one of them prints what all would.
        self.prints_job: Callable[[], bool] = lambda: is_first

    def _make_request(self, overrides: Mapping[str, float], job_id: uuid.UUID | None) -> Join:
        options, environment = self._options, self._environment
        counts = count_nodes(options)
        slurm = [environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT")]
        run = options.slurm_run or (":".join(slurm) if slurm[0] else "")
        return Join(
            key=self._key.text,
            name=_title(self._key.name),
            node=self.name,
            launcher_id=self.launcher_id,
            run=printable(run),
            nodes_min=counts.least,
            nodes_max=counts.most,
            spares=counts.spares if counts.multiple else 0,  # of a fixed size they are the rest
            slots=self.slots,
            shrink_multiple=counts.multiple,
            parallel=to_wire(make_layout(options)),
            grace_s=grace_s(options, environment),
            policy=dict(overrides),
            attributes={
                name: printable(environment[name][:256])
                for name in _ATTRIBUTES
                if environment.get(name)
            },
            job_id=str(job_id) if job_id is not None else None,
            has_checkpoints=options.checkpoint_dir is not None,
            checkpoint_folder=checkpoint_folder(options)[:256],
            takes_checkpoint=takes_checkpoint(self._setup.command),
            program=program_of(self._setup.command),
            checkpoint_names=list(options.checkpoint_names),
            budgets_reset_by=f"uid {os.getuid()}" if options.reset_budgets else None,
            starts_from_scratch=options.start_from_scratch,
            claim_taken=self._claim_news(),
        )

    def _claim_news(self) -> ClaimNews | None:
        taken = self._ownership.record
        return None if taken is None else ClaimNews(taken.owner, taken.proof, taken.by)

    def run(self, client: JoiningClient) -> int:
        """Join, serve until the job has ended or this node leaves, and return the exit code."""
        # Launchers that briefly join different controllers keep one identity of the job.
        self.request.job_id = self.request.job_id or self._ownership.job_id
        while True:
            joined = join(client, self.request)
            self.request.job_id = joined.job_id
            self._ownership.name_job(joined.job_id)
            folder = self._open_folder(joined.job_id)
            try:
                runtime = RuntimeFolder(default_root(), folder.job_id, self.name)
                runtime.lock_snapshots()
                prove_empty(self._ownership, joined.job_id, runtime, self._clock, self.name)
                code = self._serve(client, joined, folder, runtime)
            finally:
                os.close(folder.lock_descriptor)
            if self.link is None or not self.link.is_moving:
                return code
            self.launcher_id = self.request.launcher_id = str(uuid.uuid4())

    def _make_copier(self, joined: JoinAnswer, job: JobOnNode) -> CopierProcess | None:
        """Return the process that copies snapshots to and from other nodes; None: it keeps none."""
        options = self._options
        if not options.snapshots or options.snapshot_copies == 0:
            return None
        rate = options.copy_rate_bytes_per_s
        start = StartCopier(
            job_id=joined.job_id,
            node=self.name,
            launcher_id=self.launcher_id,
            secrets=(joined.secret,),
            folder=str(job.runtime.copies),
            bytes_per_s=NO_LIMIT_BYTES_PER_S if rate == 0 else rate,
        )
        reserved = reserve(port_range(options), job.bind_address)
        endpoint = Endpoint(self.address, reserved.port)
        return CopierProcess(start, reserved.listen(), endpoint, self._clock)

    def _open_folder(self, job_id: str) -> JobFolder:
        """Open this node's folder of the job, which one launcher at a time may hold."""
        text = f"{self._key.text}|{job_id}"
        key = replace(self._key, text=text, is_derived=False, is_default_name=False)
        known = uuid.UUID(job_id)
        try:
            return open_job(
                self._setup.state / "nodes" / self.name, key, known, self._clock.unix_s()
            )
        except JobHeldError as error:
            raise JobHeldError(
                f"{error}; a second launcher of the job on one machine needs a --node-name"
            ) from error

    def _serve(
        self, client: JoiningClient, joined: JoinAnswer, folder: JobFolder, runtime: RuntimeFolder
    ) -> int:
        options = self._options
        job = JobOnNode(
            job_id=joined.job_id,
            job_name=self._key.name,
            node=self.name,
            folder=folder,
            runtime=runtime,
            address=self.address,
            bind_address=self.address if is_loopback(self.address) else "",
            ports=port_range(options),
            mark_node=self.name,
        )
        made = NodeLauncher(self._setup, job, self._clock, self._make_copier(joined, job))
        word = PeerWord(joined.job_id, self.name, self.launcher_id, 0, 0)
        peers = Peers(joined.secret, word, self.address, port_range(options), job.bind_address)
        beside = self._setup.beside
        folder_id = "" if beside is None else identify_folder(beside)
        watch = make_watch(options, self._clock, joined.job_id, self.name)
        storage = Storage(made.fence, watch, made.pins, folder_id)
        self.link = RemoteLink(
            client,
            self.request,
            peers,
            storage,
            self._clock,
            quiet=options.quiet,
            role="" if options.role == "default" else options.role,
            line=joined.line,
            prints_job=self.prints_job,
            passed_preflight=options.passed_preflight,
        )
        return made.serve(self.link, self._ownership)
