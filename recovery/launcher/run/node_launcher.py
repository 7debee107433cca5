"""Assembles one node's launcher, for the only node of a job as for one of several."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rankmend import console
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import LaunchError, StorageError
from rankmend.files import write_output
from recovery.checkpoints.marks import BESIDE, FenceFile, check_writable
from recovery.checkpoints.snapshots.copies.copier import CopierProcess
from recovery.console.views.job_view import script_of
from recovery.journal.folder.job_folder import JobFolder
from recovery.journal.folder.job_key import JobKey
from recovery.journal.folder.network_storage import refuse_network_file_system
from recovery.journal.folder.state_folder import default_state_folder
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.evidence.evidence_collector import EvidenceCollector
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.host.open_files import ensure_open_files
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.ownership.claim import OwnerKind
from recovery.launcher.ownership.ownership import Ownership, own
from recovery.launcher.processes.standing import shows_other_namespace
from recovery.launcher.ranks.command import RankCommand, program_of
from recovery.launcher.ranks.launch_plan import LaunchPlan, parse_step_work
from recovery.launcher.ranks.rank_output import Output, OutputPlan
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.launcher.rendezvous.ports import PortRange
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.launcher.run.assembly import (
    choose_processors,
    clear_former,
    clear_leftovers,
    count_local_ranks,
    make_agent_link,
    make_command,
    make_hardware,
    make_pins,
    make_store,
    make_waiting,
    say,
    standard_input,
)
from recovery.launcher.run.options import (
    RunOptions,
    grace_s,
    make_log_folder,
    make_output_plan,
    stop_signals,
)
from recovery.messages.exchange import Report, StopReason

if TYPE_CHECKING:
    from recovery.launcher.run.slurm.allocation_end import AllocationEnd

log = logging.getLogger(__name__)

VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"


class ControllerLink(Protocol):
    """The link between a launcher and its controller: in one process, or over the network.

    `recovery.launcher.run.in_process_link` hosts the controller of a job on one node;
    `recovery.launcher.run.remote_link` talks to a controller elsewhere. `serve` runs a launcher
    over either.
    """

    @property
    def membership(self) -> Membership:
        """How the launcher takes part in the job of this controller."""
        ...

    @property
    def empty_through(self) -> int:
        """No process of the attempts up to this one is left on this node."""
        ...

    @property
    def outcome(self) -> JobOutcome | None:
        """The job's outcome; None: the controller has not reported its end."""
        ...

    def put(self, report: Report) -> None:
        """Send a report to the controller. Must not block."""
        ...

    def start(self, launcher: Launcher) -> None:
        """Deliver the controller's orders to the launcher from now on, and end it with the job."""
        ...

    def flush(self) -> None:
        """Wait, with a bound, until the controller has the newest report, if the job continues."""
        ...

    def close(self) -> None:
        """Deliver no more orders or reports."""
        ...

    def leave(self, last: Report | None) -> None:
        """Report to a continuing job that this node is empty; ``last``: the last report."""
        ...

    def exit_code(self, stop_requested: StopReason | None) -> int:
        """Print how the run ended, and return the exit code."""
        ...


def write_error_file(outcome: JobOutcome, environment: Mapping[str, str], unix_s: float) -> None:
    """Write the first rank's error, or why the job ended, to the file that the launcher's environment names.

    torchrun records there why a job failed, for a scheduler or a launcher above it. Format:
    torch/distributed/elastic/multiprocessing/errors/error_handler.py (2.13).
    """
    path = environment.get(VARIABLE)
    if not path or outcome.exit_code == 0:
        return
    error = outcome.error
    message = outcome.reason if error is None else f"{error.type_name}: {error.message}"
    trace = "" if error is None else error.traceback
    reported = {"py_callstack": trace, "timestamp": str(int(unix_s))}
    body = {
        "message": {"message": message, "errorCode": outcome.exit_code, "extraInfo": reported},
    }
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_output(Path(path), json.dumps(body).encode(), StorageError)
    except (OSError, StorageError) as error_of_file:
        log.warning("%s can't be written", VARIABLE, extra={"error": str(error_of_file)})


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """A launcher's settings from the command line and this node, independent of the job."""

    options: RunOptions
    environment: Mapping[str, str]
    command: RankCommand
    slots: int  # ranks on this node
    output_plan: OutputPlan
    beside: Path | None  # rankmend's folder beside the checkpoints
    state: Path  # folder for journals

    @classmethod
    def read(
        cls, options: RunOptions, environment: Mapping[str, str], *, is_one_node: bool
    ) -> "NodeSetup":
        """Return the set-up, after checking that ranks can run and write here."""
        refuse_foreign_proc()
        command = make_command(options, environment)
        slots = count_local_ranks(options, environment, command)
        ensure_open_files(slots, is_one_node=is_one_node)
        output_plan = make_output_plan(options, slots)
        beside = None
        if options.checkpoint_dir is not None:
            check_writable(options.checkpoint_dir)
            beside = options.checkpoint_dir.absolute() / BESIDE
        state = state_folder(options, environment)
        return cls(options, environment, command, slots, output_plan, beside, state)


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """The job that this node runs, the node's name in it, and where its ranks meet."""

    job_id: str
    job_name: str
    node: str
    folder: JobFolder
    runtime: RuntimeFolder
    address: str  # address at which other nodes reach this one
    bind_address: str  # empty: every address
    ports: PortRange | int
    mark_node: str | None = None  # this node's name, if the machine may run other nodes of the job

    def fence_path(self, setup: NodeSetup) -> Path:
        return (setup.beside or self.runtime.path) / "attempt"


class NodeLauncher:
    """A launcher with its outputs and rendezvous, from its start to its end."""

    def __init__(
        self, setup: NodeSetup, job: JobOnNode, clock: Clock, copier: CopierProcess | None = None
    ) -> None:
        """``copier``: None where no snapshots are copied. Ends with this launcher."""
        self._setup = setup
        self._copier = copier
        self._job = job
        self._clock = clock
        name = job.job_name if job.mark_node is None else f"{job.job_name}_{job.mark_node}"
        log_plan = make_log_folder(setup.output_plan, name)
        job.folder.write_run(
            {
                "pid": os.getpid(),
                "node": job.node,
                "runtime": str(job.runtime.path),
                "allows_drills": setup.options.drills,
                "script": script_of(program_of(setup.command)),
                "logs": None if log_plan.log_folder is None else str(log_plan.log_folder),
                "checkpoints": None if setup.beside is None else str(setup.beside.parent),
            }
        )
        self.fence = FenceFile(job.fence_path(setup), is_beside=setup.beside is not None)
        self.pins = make_pins(setup.options, clock)
        if setup.command.prefix is not None:
            job.runtime.copy_hook()
        self._waiting = self._make_waiting()
        self._store, self._is_old_torch = self._make_store()
        if log_plan.log_folder is not None and not setup.options.quiet:
            say(f"log files of the ranks: {log_plan.log_folder}")
        self._output = Output(log_plan, console.take_over())

    def serve(self, link: ControllerLink, ownership: Ownership) -> int:
        """Run until the job ends or this node leaves it, and return the exit code."""
        launcher = self._make(link, ownership.held_open)
        ownership.keep_fence(self.fence.restore)
        link.start(launcher)
        allocation = self._watch_allocation(launcher)
        try:
            ownership.begin(launcher.finish)
            launcher.run(link.empty_through)
            link.flush()
        finally:
            link.close()
            if allocation is not None:
                allocation.close()
            is_empty = launcher.close()
            if is_empty:
                link.leave(launcher.last_report())
            self._store.close()
            self._output.close()
            is_over = link.outcome is not None or not link.membership.outlives_launcher
            if is_empty and is_over:
                ownership.note_empty()  # all others are empty, too: the job has ended
        if link.outcome is not None:
            write_error_file(link.outcome, self._setup.environment, self._clock.unix_s())
        ownership.check()
        code = link.exit_code(launcher.stop_requested)
        if link.outcome is not None:
            _show_rank_error(link.outcome, self._output)
        return code

    def _make(self, link: ControllerLink, held_open: tuple[int, ...]) -> Launcher:
        """Return the launcher, with its guardian running."""
        setup, job, clock = self._setup, self._job, self._clock
        options, environment = setup.options, setup.environment
        return Launcher(
            self._plan(),
            lambda: Guardian.start(
                job.job_id,
                node=job.mark_node,
                process_list=job.runtime.process_list,
                held_open=held_open,
            ),
            self._store,
            self._output,
            job.runtime,
            make_agent_link(options, environment, clock),
            clock,
            link.put,
            link.membership,
            self._waiting,
            evidence=EvidenceCollector(job.folder.incidents, clock, self._output.last_lines),
            hardware=make_hardware(options, job.job_id, clock),
            pins=self.pins,
            copier=self._copier,
        )

    def _watch_allocation(self, launcher: Launcher) -> "AllocationEnd | None":
        """Have the job stopped ahead of the end of its Slurm allocation."""
        options, environment = self._setup.options, self._setup.environment
        if not (options.slurm and environment.get("SLURM_JOB_ID")):
            return None
        from recovery.launcher.run.slurm.allocation_end import watch_end  # noqa: PLC0415 - under Slurm only

        grace = grace_s(options, environment)
        return watch_end(environment, grace, self._clock, launcher.end_time)

    def _make_waiting(self) -> WaitingProcesses | None:
        setup, job = self._setup, self._job
        return make_waiting(
            setup.options,
            setup.environment,
            setup.command,
            job.runtime,
            setup.slots,
            job.job_id,
            self._clock,
            job.mark_node,
            state=setup.state,
        )

    def _make_store(self) -> tuple[RendezvousStore, bool]:
        setup, job = self._setup, self._job
        return make_store(
            setup.options,
            setup.environment,
            setup.command,
            self._clock,
            job.ports,
            job.address,
            job.bind_address,
            None if self._waiting is None else self._waiting.imports_torch,
        )

    def _plan(self) -> LaunchPlan:
        setup, job = self._setup, self._job
        options, environment = setup.options, setup.environment
        return LaunchPlan(
            job_id=job.job_id,
            job_name=job.job_name,
            node=job.node,
            boot_id=read_boot_id(),
            command=setup.command,
            environment=environment,
            folder=Path.cwd(),
            run_id=options.rdzv_id or job.job_name,
            role=options.role,
            fence_file=job.fence_path(setup),
            is_auto=options.auto,
            time_limit_s=options.time_limit,
            mark_node=job.mark_node,
            grace_s=grace_s(options, environment),
            is_old_torch=self._is_old_torch,
            stop_signals=stop_signals(options),
            is_virtual_local_rank=options.virtual_local_rank,
            cpus=choose_processors(options, environment, setup.command, setup.slots),
            stdin=standard_input(),
            keeps_snapshots=options.snapshots,
            allows_drills=options.drills,
            step_work=None if options.step_work is None else parse_step_work(options.step_work),
        )


def refuse_foreign_proc() -> None:
    """Raise where /proc shows other processes by our pids: no rank could be watched or proved gone."""
    if shows_other_namespace():
        raise LaunchError(
            "/proc shows the processes of another PID namespace than this launcher's, so it would watch the "
            "wrong ones. Mount /proc in the container (unshare --mount-proc, bwrap --proc /proc)"
        )


def prove_empty(
    ownership: Ownership,
    job_id: str,
    runtime: RuntimeFolder,
    clock: Clock,
    node: str | None = None,
) -> None:
    """End all processes that earlier launchers left on this node, also for the folder's former job."""
    with ownership.clearing():
        clear_former(ownership.former_job_id, job_id, clock)
        clear_leftovers(job_id, clock, runtime, node)


def own_folder(
    options: RunOptions, kind: OwnerKind, key: JobKey, environment: Mapping[str, str]
) -> Ownership:
    """Take the checkpoint folder, if any, for the job; its other launchers may hold it already."""
    folder = options.checkpoint_dir
    if folder is not None:
        check_writable(folder)
    # Behind a prefix, a container's tool may close the files that a rank would inherit.
    locks = options.rank_prefix is None
    return own(folder, kind, key, environment, say, take_over=options.take_over, locks=locks)


def state_folder(options: RunOptions, environment: Mapping[str, str]) -> Path:
    """Return the folder for journals, which must not be on a network file system."""
    state = options.state_dir or default_state_folder(environment, refuse_network_file_system)
    refuse_network_file_system(state.absolute())
    return state.absolute()


def _show_rank_error(outcome: JobOutcome, output: Output) -> None:
    """Show the first rank's error once more, at the end of a job that could not be recovered.

    Not where the job has ended at its start: the error is the newest that the console shows.
    """
    error = outcome.error
    if error is None or outcome.kind is not OutcomeKind.ESCALATED:
        return
    who = "a rank" if outcome.rank is None else f"rank {outcome.rank}"
    line = f"{error.type_name}: {error.message}" if error.type_name else error.message
    if outcome.is_at_start and output.has_shown(line):
        return
    say(f"{who} had said:\n{error.traceback or error.message}")
