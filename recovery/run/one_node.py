"""`rankmend run` on one node: launcher and controller in one process, no service.

The main thread is the launcher's loop; the controller has a thread of its own, because it
waits for the disk. They exchange reports and orders as they would over a network.
"""

import contextlib
import logging
import os
import queue
import threading
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from rankmend import console, logs
from rankmend.clock import Clock, SystemClock, read_boot_id
from rankmend.errors import RankmendError
from rankmend.node import node_name
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.marks import BESIDE, BudgetCopy, FenceFile, check_writable
from recovery.checkpoints.model import CheckpointVerdict
from recovery.job.controller import Controller
from recovery.job.settings import JobSettings
from recovery.journal.job_folder import JobFolder, default_state_folder, open_job
from recovery.journal.job_key import key_of_one_node
from recovery.journal.ledger import Copy, decode_copy, fold_all
from recovery.journal.limits import Policy
from recovery.journal.narrator import describe_passed_over, narrate
from recovery.journal.records import AttemptStarted, Entry, JobOutcome, OutcomeKind, Placement
from recovery.journal.store import Journal, refuse_network_file_system
from recovery.launcher.early_stop import exit_on
from recovery.launcher.evidence.collector import EvidenceCollector
from recovery.launcher.guardian.client import Guardian
from recovery.launcher.host.open_files import ensure_open_files
from recovery.launcher.launcher import Launcher
from recovery.launcher.ranks.command import (
    RankCommand,
)
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.output import Output, OutputPlan
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from recovery.messages.exchange import Report
from recovery.ownership.claim import OwnerKind
from recovery.ownership.ownership import Ownership, own
from recovery.run.assembly import (
    choose_processors,
    clear_former,
    clear_leftovers,
    count_local_ranks,
    make_agent_link,
    make_command,
    make_hardware,
    make_standbys,
    make_store,
    make_watch,
    port_range,
    say,
    standard_input,
)
from recovery.run.error_file import write_error_file
from recovery.run.options import (
    RunOptions,
    grace_s,
    make_log_folder,
    make_output_plan,
    make_policy,
    stop_signals,
)

log = logging.getLogger(__name__)

_TICK_S = 0.05
_REPORTS_MAX = 1000
_CANDIDATES = 4  # valid ones; what was validated beside training costs a stat


def tell(entry: Entry) -> None:
    """Say on stderr what has just been made durable."""
    record = entry.record
    line = narrate(record)
    if line is not None:
        say(line)
    if isinstance(record, AttemptStarted):
        for passed in describe_passed_over(record.choice):
            say(passed)


class _Checkpoints:
    """What the planner may choose from: several valid ones, so that some can be passed over."""

    def __init__(self, watch: CheckpointWatch) -> None:
        self._watch = watch

    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        return self._watch.candidates(is_training=is_training, enough=_CANDIDATES)


class ControllerThread:
    """Feeds the controller with reports and the passing of time."""

    def __init__(self, controller: Controller, launcher: Launcher) -> None:
        self._controller = controller
        self._launcher = launcher
        self._reports: queue.Queue[Report] = queue.Queue(_REPORTS_MAX)
        self._should_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self.crash: Exception | None = None

    @property
    def outcome(self) -> JobOutcome | None:
        return self._controller.outcome

    def start(self) -> None:
        self._thread.start()

    def put(self, report: Report) -> None:
        try:
            self._reports.put_nowait(report)
        except queue.Full:  # the disk hangs; the next report says the same and more
            return

    def join(self, timeout_s: float) -> None:
        self._should_end.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._controller.start()
            while self._controller.outcome is None and not self._should_end.is_set():
                with contextlib.suppress(queue.Empty):
                    self._controller.handle_report(self._reports.get(timeout=_TICK_S))
                self._controller.tick()
        except Exception as error:
            log.exception("the controller failed")
            self.crash = error
        self._launcher.finish()


def run_standalone(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run a job on this node until its end and return the exit code for the shell."""
    logs.configure(logs.LogShape.LAUNCHER)
    command = make_command(options, environment)
    world_size = count_local_ranks(options, environment, command)
    ensure_open_files(world_size, is_one_node=True)
    policy = make_policy(options)
    output_plan = make_output_plan(options, world_size)
    clock = SystemClock()
    beside = None
    if options.checkpoint_dir is not None:
        check_writable(options.checkpoint_dir.absolute())
        beside = options.checkpoint_dir.absolute() / BESIDE
    copy = BudgetCopy(beside / "budgets.json") if beside else None
    state = options.state_dir or default_state_folder(environment, refuse_network_file_system)
    refuse_network_file_system(state.absolute())
    line = (str(Path.cwd()), options.target, *options.arguments)
    key = key_of_one_node(options.job, options.rdzv_id, environment, options.checkpoint_dir, line)
    with exit_on(stop_signals(options)):
        ownership = own(
            options.checkpoint_dir,
            OwnerKind.LAUNCHER,
            key,
            environment,
            say,
            take_over=options.take_over,
        )
        try:
            known_id = None if ownership.is_copy else _known_id(copy)
            folder = open_job(state.absolute(), key, known_id, clock.unix_s())
            try:
                session = _Session(
                    options, environment, clock, folder, policy, world_size, ownership
                )
                return session.run(command, output_plan, beside, copy)
            finally:
                os.close(folder.lock_descriptor)
        finally:
            ownership.end()


class _Session:
    """One run of the launcher, from the job's open folder to the exit code."""

    def __init__(
        self,
        options: RunOptions,
        environment: Mapping[str, str],
        clock: Clock,
        folder: JobFolder,
        policy: Policy,
        world_size: int,
        ownership: Ownership,
    ) -> None:
        self._options = options
        self._environment = environment
        self._clock = clock
        self._folder = folder
        self._ownership = ownership
        self._policy = policy
        self._world_size = world_size
        self._job_id = str(folder.job_id)
        self._node = node_name(None, environment)

    def run(
        self,
        command: RankCommand,
        output_plan: OutputPlan,
        beside: Path | None,
        copy: BudgetCopy | None,
    ) -> int:
        journal = Journal(self._folder.journal, self._clock, read_boot_id())
        try:
            for warning in journal.warnings:
                say(warning)
            return self._run(journal, command, output_plan, beside, copy)
        finally:
            journal.close()

    def _run(
        self,
        journal: Journal,
        command: RankCommand,
        output_plan: OutputPlan,
        beside: Path | None,
        copy: BudgetCopy | None,
    ) -> int:
        runtime = RuntimeFolder(default_root(), self._folder.job_id)
        with self._ownership.clearing():
            clear_former(self._ownership.former_job_id, self._job_id, self._clock)
            clear_leftovers(self._job_id, self._clock, runtime)
        self._ownership.name_job(
            self._job_id
        )  # not before: the claim names whose ranks to look for
        self._folder.write_run(
            {"pid": os.getpid(), "node": self._node, "runtime": str(runtime.path)}
        )
        fence_path = (beside or runtime.path) / "attempt"
        ports = self._options.master_port or port_range(self._options)
        address = self._options.master_addr or "127.0.0.1"
        store, is_old_torch = make_store(
            self._options, self._environment, command, self._clock, ports, address, address
        )
        log_plan = make_log_folder(output_plan, self._folder.key.name)
        output = Output(log_plan, console.take_over())
        watch = make_watch(self._options, self._clock)
        if watch is not None:
            watch.start()
        plan = LaunchPlan(
            job_id=self._job_id,
            job_name=self._folder.key.name,
            node=self._node,
            boot_id=read_boot_id(),
            command=command,
            environment=self._environment,
            folder=Path.cwd(),
            run_id=self._options.rdzv_id or self._folder.key.name,
            role=self._options.role,
            fence_file=fence_path,
            is_auto=self._options.auto and command.interpreter is not None,
            time_limit_s=self._options.time_limit,
            is_old_torch=is_old_torch,
            stop_signals=stop_signals(self._options),
            is_virtual_local_rank=self._options.virtual_local_rank,
            cpus=choose_processors(self._options, self._environment, command, self._world_size),
            stdin=standard_input(),
        )
        agent = make_agent_link(self._options, self._environment, self._clock)
        launcher = Launcher(
            plan,
            lambda: Guardian.start(self._job_id, process_list=runtime.process_list),
            store,
            output,
            runtime,
            agent,
            self._clock,
            lambda report: thread.put(report),  # noqa: PLW0108 - the thread is made below
            make_standbys(
                self._options,
                self._environment,
                command,
                runtime,
                self._world_size,
                self._job_id,
                self._clock,
            ),
            evidence=EvidenceCollector(self._folder.incidents, self._clock, output.last_lines),
            hardware=make_hardware(self._options, self._job_id, self._clock),
        )
        fence = FenceFile(fence_path)
        self._ownership.keep_fence(fence.restore)
        controller = Controller(
            journal,
            launcher,
            _Checkpoints(watch) if watch else None,
            fence,
            copy,
            self._clock,
            self._settings(),
            None if self._options.quiet else tell,
        )
        thread = ControllerThread(controller, launcher)
        thread.start()
        try:
            self._ownership.begin(launcher.finish)
            launcher.run(self._last_attempt(journal, copy))
        finally:
            thread.join(10.0)
            if launcher.close():
                self._ownership.note_empty()
            store.close()
            output.close()
            if watch is not None:
                watch.stop()
        if thread.outcome is not None:
            write_error_file(thread.outcome, self._environment, self._clock.unix_s())
        self._ownership.check()
        return _exit_code(thread)

    def _settings(self) -> JobSettings:
        return JobSettings(
            job_id=self._job_id,
            name=self._folder.key.name,
            placement=(Placement(self._node, tuple(range(self._world_size))),),
            rankmend_version=version("rankmend"),
            pid=os.getpid(),
            policy=self._policy,
            grace_s=grace_s(self._options, self._environment),
            budgets_reset_by=f"uid {os.getuid()}" if self._options.reset_budgets else None,
            claim_taken=self._ownership.record,
        )

    def _last_attempt(self, journal: Journal, copy: BudgetCopy | None) -> int:
        """Return the newest attempt that an earlier start can have made: all of them are gone."""
        known = _read_copy(copy)
        return max(fold_all(journal.opened).attempt, known.attempt if known else 0)


def _exit_code(thread: ControllerThread) -> int:
    """Return the code for the shell, and show the first rank's error once more, at the end."""
    outcome = thread.outcome
    if outcome is None:
        say(f"the controller failed and the job was stopped: {thread.crash!r}")
        return 1
    if outcome.error is not None and outcome.kind is OutcomeKind.ESCALATED:
        who = "a rank" if outcome.rank is None else f"rank {outcome.rank}"
        say(f"{who} had said:\n{outcome.error.traceback or outcome.error.message}")
    return outcome.exit_code


def _read_copy(copy: BudgetCopy | None) -> Copy | None:
    """Return what lies of the job beside its checkpoints, if it is there and sound."""
    try:
        body = copy.load() if copy else None
        return decode_copy(body) if body else None
    except RankmendError as error:
        log.warning("the copy of the budgets beside the checkpoints is of no use: %s", error)
        return None


def _known_id(copy: BudgetCopy | None) -> uuid.UUID | None:
    known = _read_copy(copy)
    try:
        return uuid.UUID(known.job_id) if known else None
    except ValueError:
        return None
