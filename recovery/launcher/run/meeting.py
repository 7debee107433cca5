"""`rankmend run --nnodes N --rdzv-endpoint HOST:PORT`: the launcher on HOST hosts the controller.

It is the same service as `rankmend controller`, with one job, in threads of this launcher (`meeting_host`).
The launchers share a secret, in the note beside the checkpoints (`meeting_note`) or in a token file;
`meeting_secret` derives keys and tokens from it. If the host is lost, another launcher takes over
(`host_guard`).
"""

import fcntl
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, RankmendError
from rankmend.node import is_name_given
from rankmend.own_folder import make_private
from recovery.api.contact import is_loopback
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.checkpoints.marks import BESIDE, BudgetCopy, check_writable
from recovery.journal.folder.job_key import JobKey, key_of_meeting
from recovery.journal.folder.saved_budgets import decode_budgets
from recovery.launcher.early_stop import exit_on
from recovery.launcher.ownership.claim import OwnerKind
from recovery.launcher.run.host_guard import HostGuard
from recovery.launcher.run.many_nodes import Node, begin_logging, checked_node_name
from recovery.launcher.run.meeting_site import HostFolder, MeetingClient, Site
from recovery.launcher.run.node_launcher import own_folder, state_folder
from recovery.launcher.run.options import (
    Meeting,
    RunOptions,
    command_line,
    make_policy,
    parse_meeting,
    stop_signals,
    title_of,
)
from recovery.launcher.run.route import route_address
from recovery.launcher.run.slurm.meeting_folder import make_meeting_folder
from recovery.launcher.run.slurm.own_allocation import OwnSlurm
from recovery.service.meeting_secret import read_secret

log = logging.getLogger(__name__)

LAUNCHERS_HERE_MAX: Final = 64  # of one job on one machine, without a --node-name


def run_meeting(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run this node's part of a job whose launchers host the controller themselves."""
    begin_logging()
    meeting = parse_meeting(options)
    key = _job_key(options, environment, meeting)
    shared = _shared_folder(options, environment, meeting, key)
    state = state_folder(options, environment) / "hosts" / _folder_name(options, key, meeting)
    if is_loopback(meeting.host) and not is_name_given(options.node_name, environment):
        name, held = claim_name(state / "names", checked_node_name(options, environment))
        options = replace(options, node_name=name)
    else:
        held = None
    site = Site(
        meeting=meeting,
        key=key,
        folder=HostFolder(shared) if shared is not None else None,
        secret=read_secret(options.token_file) if options.token_file else None,
        name=checked_node_name(options, environment),
        state=state,
        policy=make_policy(options),
        budgets=_budgets(options, shared),
        slurm=_own_slurm(options, environment),
        address=options.local_addr or route_address(meeting.host, meeting.port),
    )
    with exit_on(stop_signals(options)):
        ownership = own_folder(options, OwnerKind.MEETING, key, environment)
        if ownership.is_copy and site.folder is not None:
            site.folder.forget()
        client = MeetingClient(site)
        guard = HostGuard(site, client, options)
        try:
            guard.open()
            where = (meeting.host, meeting.port)
            known = None if ownership.is_copy else _known_job(site)
            node = Node(options, environment, key, where, {}, known, ownership)
            guard.node = node
            if options.slurm_run:
                node.prints_job = lambda: guard.is_hosting
            guard.start()
            return node.run(client)
        finally:
            ownership.end()
            guard.close()
            client.close()
            if site.budgets is not None:
                site.budgets.close()
            if held is not None:
                os.close(held)


def claim_name(folder: Path, host: str) -> tuple[str, int]:
    """Return a name for this launcher among those of its job on one machine, and the lock that keeps it.

    Where the nodes meet at a loopback address, all of them are launchers of this machine, as in PyTorch's own test of
    several agents: the first is called as the host, the others HOST-2, HOST-3 ... A name is free again once its
    launcher has ended, so that one that is started again has the name that it had.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder, ConfigError)
        for number in range(1, LAUNCHERS_HERE_MAX + 1):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(folder / f"{number}.lock", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            return (host if number == 1 else f"{host}-{number}"), descriptor
    except OSError as error:
        raise ConfigError(
            f"cannot choose a name for this launcher in {folder}: {error.strerror}; give --node-name"
        ) from error
    raise ConfigError(
        f"{LAUNCHERS_HERE_MAX} launchers of this job run on this machine: give this one a --node-name"
    )


def _job_key(options: RunOptions, environment: Mapping[str, str], meeting: Meeting) -> JobKey:
    # Where Slurm names the place, it is the same for all runs of an allocation.
    line = command_line(options) if options.slurm_run else ()
    title = title_of(options)
    named = (options.job, options.rdzv_id, environment, options.checkpoint_dir)
    key = key_of_meeting(*named, line, title)
    if not key.is_anonymous:
        return key
    label = f"meeting-{meeting.port}"
    return JobKey(f"meeting:{meeting}", title or label, "where its nodes meet", label=label)


def _own_slurm(options: RunOptions, environment: Mapping[str, str]) -> OwnSlurm | None:
    if not options.slurm or not environment.get("SLURM_JOB_ID"):
        return None
    return OwnSlurm(environment, options.slurm_requeue_s)


def _folder_name(options: RunOptions, key: JobKey, meeting: Meeting) -> str:
    """Return the name of the folder for this node's journals as host of the job.

    Other jobs, which meet elsewhere, may have the same --rdzv-id or SLURM_JOB_ID.
    """
    if options.job or options.checkpoint_dir is not None or options.slurm_run:
        return key.folder_name
    return replace(key, text=f"{key.text}@{meeting}").folder_name


def _shared_folder(
    options: RunOptions, environment: Mapping[str, str], meeting: Meeting, key: JobKey
) -> Path | None:
    """Return the folder for the note, or raise ConfigError if the launchers share no secret."""
    if options.checkpoint_dir is not None:
        check_writable(options.checkpoint_dir)
        return options.checkpoint_dir.absolute() / BESIDE
    if options.slurm_run:
        return make_meeting_folder(environment, key.folder_name)
    if options.token_file is not None:
        return None
    if is_loopback(meeting.host):  # all of them are on this machine
        folder = state_folder(options, environment) / f"meeting-{meeting.port}"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder, ConfigError)
        return folder
    raise ConfigError(
        f"--rdzv-endpoint {meeting} is open to the network, and the launchers share no secret. Give "
        f"--checkpoint-dir, a folder that all nodes share (rankmend creates a secret in it that only "
        f"you can read), or give each node the same --token-file (RANKMEND_TOKEN_FILE, mode 0600); "
        f"to create one: openssl rand -hex 32"
    )


def _budgets(options: RunOptions, shared: Path | None) -> BudgetWriter | None:
    """Return what keeps the budgets where the job's next host finds them, on any node."""
    if shared is None or not (options.slurm_run or options.checkpoint_dir is not None):
        return None
    return BudgetWriter(BudgetCopy(shared / "budgets.json"))


def _known_job(site: Site) -> uuid.UUID | None:
    """Return the job's id from the copy of the budgets beside the checkpoints."""
    try:
        body = site.budgets.load() if site.budgets is not None else None
        return uuid.UUID(decode_budgets(body).job_id) if body is not None else None
    except (RankmendError, ValueError) as error:
        log.warning("the copy of the budgets beside the checkpoints is unusable: %s", error)
        return None
