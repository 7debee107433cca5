"""Decides which launcher of a meeting hosts the controller, and takes over from a lost host.

docs/internals/design/0003-cluster.md explains it. The times ensure that two hosts never both have running
ranks: a host that can't refresh its note for `lease_s` stops serving; another launcher takes over only once
the note has not changed for twice as long.
"""

import importlib
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankmend.errors import ConfigError, JobHeldError, RankmendError
from recovery.journal.job_records import JobOutcome
from recovery.launcher.rendezvous.ports import reserve
from recovery.launcher.run.assembly import port_range, say
from recovery.launcher.run.many_nodes import Node
from recovery.launcher.run.meeting_site import (
    HostFolder,
    HostNote,
    MeetingClient,
    Site,
    bind_address,
    has_address,
    url_of,
)
from recovery.launcher.run.options import RunOptions
from recovery.messages.exchange import Order
from recovery.service.meeting_secret import Identity, new_secret

if TYPE_CHECKING:
    from recovery.launcher.run.meeting_host import MeetingHost

log = logging.getLogger(__name__)

REFRESH_S: Final = 2.0  # between two updates of the note: small against the lease
STAGGER_S: Final = 5.0  # between launchers that may take over, so that the first one does
LINGER_S: Final = 15.0  # for the others to learn of the end; their longest pause after a failure
_LINGER_LOOK_S: Final = 0.1
# Updates of the note after which another Slurm step counts as alive: one that is ending may make a last one.
_MOVES_OF_ANOTHER: Final = 3
# The controller's service takes a second of a processor to load, and 30 MB. Only the host loads it at its start. The others
# do so later: what a takeover needs must not depend on files that an upgrade replaces, or on storage that is away.
_SERVICE: Final = "recovery.launcher.run.meeting_host"
_LOAD_AFTER_S: Final = 300.0
_PORT_TRIES: Final = 4  # each but the last may lose a race for the port
_REIGNS_KEPT: Final = 3


class HostGuard:
    """Keeps the note up to date, and takes over when another host falls silent.

    One thread accesses the storage. Because storage can hang, another one does nothing but stop a host
    whose note was not refreshed in time.
    """

    def __init__(
        self,
        site: Site,
        client: MeetingClient,
        options: RunOptions,
        load_after_s: float = _LOAD_AFTER_S,
    ) -> None:
        self._load_after_s = load_after_s
        self._site = site
        self._client = client
        self._options = options
        self.node: Node | None = None
        self._lock = threading.Lock()
        self._host: MeetingHost | None = None
        self._note: HostNote | None = None  # our own as host, else the one read last
        self._epoch = 0  # epoch of the host that we follow
        self._refreshed_at_s = 0.0
        self._moved_at_s = time.monotonic()  # when the note last changed
        self._has_explained = False
        self._foreign_beat: tuple[int, int] | None = None
        self._foreign_moves = 0
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_note, name="host-note", daemon=True),
            threading.Thread(target=self._watch_note, name="host-watch", daemon=True),
        ]

    @property
    def is_hosting(self) -> bool:
        return self._host is not None

    @property
    def _stale_s(self) -> float:
        return 2 * self._site.policy.lease_s

    def open(self) -> None:
        """Become the host if this launcher is to host, else find the host."""
        site = self._site
        is_ours = site.meeting.is_host
        if is_ours is None:
            is_ours = has_address(site.meeting.host)
        if site.folder is None:
            say(
                "no shared folder: if the node that hosts the controller dies, no other node can "
                "take over, and the job waits for it; give a shared folder with --checkpoint-dir"
            )
        if not is_ours:
            if site.folder is not None:
                self._follow(site.folder.read())
            return
        if site.folder is not None and not self._is_free(site.folder):
            return
        if self._options.slurm_run and site.folder is not None:
            self._begin_anywhere()
            return
        self._begin(site.meeting.port, is_sure=site.meeting.is_host is True)

    def _begin_anywhere(self) -> None:
        """Become the host on any free port: the others read it in the note."""
        for _try in range(_PORT_TRIES):
            if self._begin(None, is_sure=False):
                return
        self._begin(None, is_sure=True)

    def _is_free(self, folder: HostFolder) -> bool:
        """Return whether no other node hosts the job; wait until that is certain."""
        note = folder.read()
        if note is None or note.outcome is not None or note.node == self._site.name:
            return True
        say(f"{note.node} hosted this job last; checking whether it still does")
        first, began_s = note, time.monotonic()
        while time.monotonic() - began_s < self._stale_s:
            time.sleep(REFRESH_S / 2)
            note = folder.read()
            if note is not None and (note.epoch, note.beat) != (first.epoch, first.beat):
                if self._is_of_other_step(note):
                    self._pass_over(note)
                    self._client.check()
                    first, began_s = note, time.monotonic()
                    continue
                say(f"{note.node} hosts this job")
                self._follow(note)
                return False
        return True

    def _begin(self, port: int | None, *, is_sure: bool) -> bool:
        """Become the host; return whether that succeeded."""
        from recovery.launcher.run.meeting_host import MeetingHost  # noqa: PLC0415 - see _LOAD_AFTER_S

        site, folder = self._site, self._site.folder
        before = folder.read() if folder is not None else None
        secret = site.secret or (before.secret if before is not None else new_secret())
        identity = Identity(secret)
        if port is None:
            free = reserve(port_range(self._options), bind_address(site.address))
            free.release()  # if another process takes it meanwhile, the next look tries again
            port = free.port
        epoch = 1
        if folder is not None:
            epoch = max(folder.newest_claim(), before.epoch if before is not None else 0) + 1
        is_ours = before is None or before.node == site.name
        state = _reign(site.state, epoch, is_continued=is_ours)
        try:
            host = MeetingHost(site, identity, epoch, port, state)
            host.start()  # if two launchers share the machine, the one that gets the port is host
        except (ConfigError, JobHeldError) as error:
            if is_sure:
                raise
            say(f"another launcher hosts the controller here: {error}")
            return False
        if folder is not None and not folder.claim(epoch, site.name):
            host.stop()
            return False
        url = url_of(site.address, port)
        note = HostNote(
            key=site.key.text,
            node=site.name,
            url=url,
            secret=secret,
            fingerprint=identity.fingerprint,
            epoch=epoch,
            beat=0,
            slurm_run=self._options.slurm_run,
        )
        began_s = time.monotonic()
        try:
            if folder is not None:
                folder.write(note)
        except BaseException:
            host.stop()
            raise
        with self._lock:
            self._host, self._note, self._epoch = host, note, epoch
            self._refreshed_at_s = self._moved_at_s = began_s
        say(f"this node hosts the controller at {url} (epoch {epoch})")
        if self._client.point(url, secret):
            self._hurry()
        return True

    def _is_of_other_step(self, note: HostNote) -> bool:
        """Return whether the launchers of another Slurm step, or of its last start, meet by this note."""
        return note.slurm_run != self._options.slurm_run and bool(self._options.slurm_run)

    def _pass_over(self, note: HostNote) -> None:
        """Wait for our own step's host; give up where another step runs this job and goes on."""
        beat = (note.epoch, note.beat)
        if self._foreign_beat not in (None, beat):
            self._foreign_moves += 1
        self._foreign_beat = beat
        if note.outcome is None and self._foreign_moves >= _MOVES_OF_ANOTHER:
            self._client.refuse(other_step(note))

    def _follow(self, note: HostNote | None) -> None:
        """Use the host in the note from now on."""
        if note is None or note.epoch < self._epoch:
            return
        if self._is_of_other_step(note):
            self._pass_over(note)
            return
        if note.key != self._site.key.text:
            raise ConfigError(
                f"{note.node} hosts another job ({note.key}) in the same folder; this job is "
                f"{self._site.key.text}: give each job its own --checkpoint-dir"
            )
        if self._note is None or (note.epoch, note.beat) != (self._note.epoch, self._note.beat):
            self._moved_at_s = time.monotonic()
        self._epoch, self._note = note.epoch, note
        if self._client.point(note.url, self._site.secret or note.secret):
            self._hurry()

    def _hurry(self) -> None:
        link = self.node.link if self.node is not None else None
        if link is not None:
            link.hurry()

    def start(self) -> None:
        if self._site.folder is not None:
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Stay until the others have learned how the job ended, then stop hosting."""
        host = self._host
        if host is not None:
            outcome = host.outcome
            if outcome is not None:
                self._leave_word(outcome)
                until_s = time.monotonic() + LINGER_S
                while time.monotonic() < until_s and not self._have_all_left(host):
                    time.sleep(_LINGER_LOOK_S)
            with self._lock:
                self._host = None
            host.stop()
        self._ending.set()

    def _have_all_left(self, host: "MeetingHost") -> bool:
        """Return whether no launcher can still be waiting for the end."""
        if self._site.folder is not None:
            return not host.is_awaited
        return False  # without a note the others can only learn it from this host

    def _leave_word(self, outcome: JobOutcome) -> None:
        with self._lock:
            note = self._note
            if note is None or self._site.folder is None:
                return
            self._note = note = msgspec.structs.replace(note, beat=note.beat + 1, outcome=outcome)
            try:
                self._site.folder.write(note)
            except RankmendError as error:
                log.warning("the end of the job cannot be recorded: %s", error)

    # The thread that accesses the storage.

    def _keep_note(self) -> None:
        folder = self._site.folder
        assert folder is not None, "only started with a folder"
        load_at_s = time.monotonic() + self._load_after_s
        while not self._ending.wait(REFRESH_S):
            try:
                if time.monotonic() >= load_at_s:
                    importlib.import_module(_SERVICE)  # once: later it is there
                if self._host is not None:
                    self._refresh(folder)
                else:
                    self._look(folder)
            except (ImportError, OSError, RankmendError) as error:
                log.warning("the note of the host: %s", error)

    def _refresh(self, folder: HostFolder) -> None:
        began_s = time.monotonic()
        # Opens the file again, so that a network file system does not answer from its cache.
        found = folder.read()
        newest = max(folder.newest_claim(), found.epoch if found is not None else 0)
        if newest > self._epoch:
            self._retire("another node has taken over")
            return
        with self._lock:
            note = self._note
            if note is None or note.outcome is not None or self._host is None:
                return
            self._note = note = msgspec.structs.replace(note, beat=note.beat + 1)
        folder.write(note)
        self._refreshed_at_s = began_s

    def _look(self, folder: HostFolder) -> None:
        note = folder.read()
        was_ours = note is not None and note.node == self._site.name and note.epoch == self._epoch
        if was_ours and folder.newest_claim() == self._epoch:
            self._begin(None, is_sure=False)  # we stopped because the storage was away
            return
        self._follow(note)
        link = self.node.link if self.node is not None else None
        if note is None or link is None or link.launcher is None:
            return
        if note.outcome is not None and link.newest is not None:
            if link.newest.epoch == note.epoch:
                link.ended(note.outcome)
            return
        stale_s = time.monotonic() - self._moved_at_s
        if stale_s >= self._stale_s and not self._has_explained:
            self._has_explained = True
            say(f"{note.node}, which hosts the controller, has been silent for {stale_s:.0f} s")
        if stale_s >= self._stale_s + STAGGER_S * self._place(link.newest):
            self._has_explained = False
            say(f"{self._site.name} takes over hosting the controller")
            self._begin(None, is_sure=False)
        elif stale_s < self._stale_s:
            self._has_explained = False

    def _place(self, order: Order | None) -> int:
        """Return how many launchers come before this one in taking over."""
        peers = order.peers if order is not None else ()
        names = [peer.node for peer in peers if self._note is None or peer.node != self._note.node]
        return names.index(self._site.name) if self._site.name in names else len(names)

    # The thread that never waits.

    def _watch_note(self) -> None:
        while not self._ending.wait(REFRESH_S / 4):
            late_s = time.monotonic() - self._refreshed_at_s
            if self._host is not None and late_s >= self._site.policy.lease_s:
                self._retire(f"its note could not be refreshed for {late_s:.0f} s")

    def _retire(self, reason: str) -> None:
        with self._lock:
            host, self._host = self._host, None
            self._moved_at_s = time.monotonic()  # gives a new host time to write its note
        if host is not None and host.outcome is None:
            say(f"this node no longer hosts the controller: {reason}")
        if host is not None:
            host.stop()


def other_step(note: HostNote) -> JobHeldError:
    """Return the error of a launcher whose job another step runs already."""
    job, _restarts, step = (*note.slurm_run.split(":"), "", "")[:3]
    who = f"step {step} of Slurm job {job}" if step else f"a launcher on {note.node}"
    return JobHeldError(
        f"{who} runs this job already (its controller is on {note.node}). A job is recognised by "
        f"its checkpoint folder, else by its script and arguments: give this one another --checkpoint-dir or "
        f"another name with --job"
    )


def _reign(state: Path, epoch: int, *, is_continued: bool) -> Path:
    """Return the folder for the journals of a host: its own last one, or a new one.

    Our own journal lacks another host's decisions since then: in that case the job continues from the
    budgets beside the checkpoints.
    """
    known = sorted(
        int(path.name)
        for path in (state.iterdir() if state.is_dir() else ())
        if path.name.isdigit()
    )
    if is_continued and known:
        return state / str(known[-1])
    for old in known[: -_REIGNS_KEPT + 1]:
        shutil.rmtree(state / str(old), ignore_errors=True)
    return state / str(epoch)
