"""`rankmend run` on one node: launcher and controller in one process, no service."""

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

from rankmend import logs
from rankmend.checkpoint_figures import CheckpointFigures
from rankmend.clock import Clock, SystemClock, read_boot_id
from rankmend.errors import RankmendError
from rankmend.node import node_name
from rankmend.rank_values import Unsaved
from rankmend.version import RANKMEND_VERSION
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.api.wire import CheckpointView
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.checkpoints.marks import BudgetCopy
from recovery.checkpoints.pins import CheckpointPins
from recovery.checkpoints.snapshots.memory import NodeMemory
from recovery.console.views.checkpoint_view import view_checkpoint, view_unsaved
from recovery.console.views.snapshot_view import view_snapshots
from recovery.controller.job.controller import Controller
from recovery.controller.job.nodes import Orders
from recovery.controller.job.settings import JobSettings, for_one_node
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.folder.heartbeat import Heartbeat
from recovery.journal.folder.job_folder import JobFolder, open_job
from recovery.journal.folder.job_key import key_of_one_node
from recovery.journal.folder.saved_budgets import SavedBudgets, decode_budgets
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.journal.narration.launcher_lines import LauncherLines
from recovery.journal.records import Entry
from recovery.journal.store import Journal
from recovery.launcher.early_stop import exit_on
from recovery.launcher.membership.node_membership import alone
from recovery.launcher.ownership.claim import OwnerKind
from recovery.launcher.ownership.ownership import Ownership
from recovery.launcher.ranks.command import program_of, takes_checkpoint
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from recovery.launcher.run.assembly import (
    checkpoint_folder,
    make_watch,
    port_range,
    say,
)
from recovery.launcher.run.in_process_link import InProcessLink
from recovery.launcher.run.job_door import JobDoor, answer_person
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
    grace_s,
    make_layout,
    make_policy,
    stop_signals,
    title_of,
)
from recovery.messages.candidates import CheckpointVerdict

log = logging.getLogger(__name__)

_CANDIDATES = 4  # valid ones; one that was validated during training costs a stat


class ConsoleTeller:
    """Prints a job's records on stderr once they are durable."""

    def __init__(self) -> None:
        self._lines = LauncherLines()

    def tell(self, entry: Entry) -> None:
        line = self._lines.note(entry)
        for text in line.text.splitlines() if line is not None else ():
            say(text)


class FolderCheckpoints:
    """The planner's candidates: several valid ones, so that it can skip some."""

    def __init__(self, watch: CheckpointWatch, pins: CheckpointPins | None) -> None:
        self._watch = watch
        self._pins = pins

    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        if self._pins is not None and not is_training:
            self._pins.mend()
        return self._watch.candidates(is_training=is_training, enough=_CANDIDATES)

    def known(self) -> tuple[CheckpointVerdict, ...]:
        return self._watch.known()

    def check_on(self, path: str) -> None:
        self._watch.check_on(path)

    def is_there(self, path: str) -> bool:
        return os.path.lexists(path)


def run_standalone(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run a job on this node until its end and return the exit code."""
    logs.configure(logs.LogShape.LAUNCHER)
    setup = NodeSetup.read(options, environment, is_one_node=True)
    layout = make_layout(options)
    if layout is not None:
        layout.sizes(setup.slots)  # refused before anything of the job is touched
    policy = make_policy(options)
    clock = SystemClock()
    copy = BudgetCopy(setup.beside / "budgets.json") if setup.beside else None
    line = command_line(options)
    named = (options.job, options.rdzv_id, environment, options.checkpoint_dir)
    key = key_of_one_node(*named, line, title_of(options))
    with exit_on(stop_signals(options)):
        ownership = own_folder(options, OwnerKind.LAUNCHER, key, environment)
        try:
            known_id = None if ownership.is_copy else _known_id(copy)
            folder = open_job(setup.state, key, known_id, clock.unix_s())
            try:
                return _Session(setup, clock, folder, policy, ownership, copy).run()
            finally:
                os.close(folder.lock_descriptor)
        finally:
            ownership.end()


class _Session:
    """One run of the launcher, from the job's open folder to the exit code."""

    def __init__(
        self,
        setup: NodeSetup,
        clock: Clock,
        folder: JobFolder,
        policy: Policy,
        ownership: Ownership,
        copy: BudgetCopy | None,
    ) -> None:
        self._setup = setup
        self._options = setup.options
        self._environment = setup.environment
        self._clock = clock
        self._folder = folder
        self._ownership = ownership
        self._copy = copy
        self._budgets = None if copy is None else BudgetWriter(copy)
        self._policy = policy
        self._job_id = str(folder.job_id)
        self._node = node_name(None, setup.environment)

    def run(self) -> int:
        journal = Journal(self._folder.journal, self._clock, read_boot_id())
        heartbeat = Heartbeat(self._folder.path, self._clock, read_boot_id())
        try:
            for warning in journal.warnings:
                say(warning)
            return self._run(journal, heartbeat)
        finally:
            heartbeat.close()
            journal.close()
            if self._budgets is not None:
                self._budgets.close()

    def _run(self, journal: Journal, heartbeat: Heartbeat) -> int:
        runtime = RuntimeFolder(default_root(), self._folder.job_id)
        runtime.lock_snapshots()
        prove_empty(self._ownership, self._job_id, runtime, self._clock)
        # Not earlier: the claim names the launcher whose ranks to look for.
        self._ownership.name_job(self._job_id)
        address = self._options.master_addr or "127.0.0.1"
        job = JobOnNode(
            job_id=self._job_id,
            job_name=self._folder.key.name,
            node=self._node,
            folder=self._folder,
            runtime=runtime,
            address=address,
            bind_address=address,
            ports=self._options.master_port or port_range(self._options),
        )
        made = NodeLauncher(self._setup, job, self._clock)
        watch = make_watch(self._options, self._clock, self._job_id, world_size=self._setup.slots)
        if watch is not None:
            watch.start()
        try:
            settings = self._settings(heartbeat.age_s())
            link = InProcessLink(
                lambda orders: self._make_controller(journal, orders, made, watch, settings),
                alone(self._setup.slots),
                self._last_attempt(journal),
                lambda controller: figures_of(
                    controller.ledger, controller.memories(), self._clock
                ),
                heartbeat.beat,
            )
            with self._door(link, settings):
                return made.serve(link, self._ownership)
        finally:
            if watch is not None:
                watch.stop()

    def _make_controller(
        self,
        journal: Journal,
        orders: Orders,
        made: NodeLauncher,
        watch: CheckpointWatch | None,
        settings: JobSettings,
    ) -> Controller:
        return Controller(
            journal,
            orders,
            FolderCheckpoints(watch, made.pins) if watch is not None else None,
            made.fence,
            self._budgets,
            self._clock,
            settings,
            None if self._options.quiet else ConsoleTeller().tell,
        )

    @contextmanager
    def _door(self, link: InProcessLink, settings: JobSettings) -> Iterator[None]:
        """Let people ask and command the controller; a job whose folder takes no socket runs without."""

        def answer(ask: JobAsk, who: str) -> "Future[JobAnswer]":
            return link.ask(lambda controller: answer_person(controller, settings, ask, who))

        door = JobDoor(self._folder.path, answer)
        try:
            door.open()
        except OSError as error:
            say(
                f"no socket in {self._folder.path}, so `rankmend approve` can't reach this job: {error}"
            )
        try:
            yield
        finally:
            door.close()

    def _settings(self, alive_age_s: float | None) -> JobSettings:
        return JobSettings(
            job_id=self._job_id,
            name=self._folder.key.name,
            rankmend_version=RANKMEND_VERSION,
            pid=os.getpid(),
            policy=for_one_node(self._policy),
            grace_s=grace_s(self._options, self._environment),
            budgets_reset_by=f"uid {os.getuid()}" if self._options.reset_budgets else None,
            starts_from_scratch=self._options.start_from_scratch,
            claim_taken=self._ownership.record,
            nodes_min=1,
            nodes_max=1,
            slots=self._setup.slots,
            layout=make_layout(self._options),
            own_node=self._node,
            checkpoint_folder=checkpoint_folder(self._options),
            takes_checkpoint=takes_checkpoint(self._setup.command),
            program=program_of(self._setup.command),
            checkpoint_names=self._options.checkpoint_names,
            alive_age_s=alive_age_s,
        )

    def _last_attempt(self, journal: Journal) -> int:
        """Return the newest attempt of earlier starts; all of them are gone."""
        known = _read_copy(self._copy)
        return max(fold_all(journal.opened).attempt, known.attempt if known else 0)


def figures_of(
    ledger: Ledger, memories: Sequence[NodeMemory], clock: Clock
) -> CheckpointFigures | None:
    """Return what the node's agent exports of the job's checkpoints and snapshots; None if there are none."""
    view = view_checkpoint(ledger, clock.unix_s())
    retained = view_snapshots(memories, ledger)
    unsaved = view_unsaved(ledger, clock.unix_s())
    since_s = None if unsaved is None else unsaved.since_s
    if view is None and retained is None and since_s is None:
        return None
    figures = CheckpointFigures(at_s=None)
    if view is not None:
        figures = _checkpoint_figures(view, clock.now_s())
    if unsaved is not None and since_s is not None:
        at_s = clock.now_s() - since_s
        figures = replace(figures, unsaved_at_s=at_s, unsaved=Unsaved(unsaved.cause))
    if retained is not None:
        figures = replace(
            figures,
            snapshot_at_s=None if retained.age_s is None else clock.now_s() - retained.age_s,
            snapshot_held_bytes=float(retained.held_bytes),
            snapshot_stall_s=retained.stall_s,
            snapshot_interval_s=retained.interval_s,
            snapshot_best_interval_s=None if retained.best is None else retained.best.interval_s,
        )
    return figures


def _checkpoint_figures(view: CheckpointView, now_s: float) -> CheckpointFigures:
    present = view.present
    return CheckpointFigures(
        at_s=now_s - view.age_s,
        interval_s=view.interval_s,
        best_interval_s=None if view.best is None else view.best.interval_s,
        stall_s=view.stall_s,
        save_s=view.save_s,
        write_bytes_per_s=view.write_bytes_per_s,
        read_bytes_per_s=view.read_bytes_per_s,
        stalls_ratio=None if present is None else present.stalls,
        recomputed_ratio=None if present is None else present.recomputed,
        restarts_ratio=None if present is None else present.restarts,
    )


def _read_copy(copy: BudgetCopy | None) -> SavedBudgets | None:
    """Return the copy of the budgets beside the checkpoints, if it exists and is valid."""
    try:
        body = copy.load() if copy else None
        return decode_budgets(body) if body else None
    except RankmendError as error:
        log.warning("the copy of the budgets beside the checkpoints is unusable: %s", error)
        return None


def _known_id(copy: BudgetCopy | None) -> uuid.UUID | None:
    known = _read_copy(copy)
    try:
        return uuid.UUID(known.job_id) if known else None
    except ValueError:
        return None
