"""Forks ranks from a process that has imported what they import (`rankmend.hook.fork_server`).

For each rank of the node a forked process waits, so that a restart waits for no fork: two copies of the page tables of
PyTorch take some 20 ms a rank. It is an orphan, and so a child of the guardian (PR_SET_CHILD_SUBREAPER), dies with
the guardian, and ends with the server. `STAGES` is its way to becoming a rank. It leads a session
and carries its attempt's mark before the guardian hears of it; and it runs no user code before the guardian,
which then holds its pid and pidfd, lets it. If the guardian closes the link, it ends.

Standard library and Python 3.8 only.
"""

import array
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time

from rankmend.hook import becoming, import_order, imports, layout, variables

REASON_BYTES_MAX = 300
OOM_SCORE_FILE = "/proc/self/oom_score_adj"
REFILL_S = 0.5  # after the last rank: until then the ranks that start have the processors
RETRY_S = 30.0  # after a fork ahead that failed
_TRIES_MAX = 3  # for a rank whose process ends before it is given one
_WAIT_S = 0.0002  # for the kernel to hand an orphan over: some 50 us
# The kernel may have killed the server for memory that this process shares: then it has to find this one next. It doesn't
# see a process that ends by itself and holds its memory still, and would kill a rank.
_LINGER_S = 1.0
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_EX_OSERR = 71

_libc = ctypes.CDLL(None, use_errno=True)  # here: a forked child should not load it


def serve(channel, guardian_pid, prepared, ahead):
    """Give each rank that the launcher requests to a forked process; return its arguments there, and only there.

    ``ahead``: how many processes wait for a rank.
    """
    server = _Server(channel, prepared, ahead)
    while True:
        given = server.take_request() if server.has_request() else server.fork_ahead()
        if given is not None:
            return _be_rank(given, guardian_pid, prepared)


class _Server:
    """Its methods return None in the server, and in a process that they have forked its channel."""

    def __init__(self, channel, prepared, ahead):
        self._channel = channel
        self._prepared = prepared
        self._ahead = ahead
        self._waiting = []  # a channel to each process that waits
        self._pause_s = 0.0  # without a request, before the next process is forked ahead

    def has_request(self):
        """Wait for a request; False when there is time to fork ahead instead."""
        timeout_s = self._pause_s if len(self._waiting) < self._ahead else None
        return bool(select.select([self._channel], [], [], timeout_s)[0])

    def fork_ahead(self):
        self._pause_s = 0.0
        try:
            return self._fork()
        except OSError:  # the launcher hears of it if there is a rank that can't be forked
            self._pause_s = RETRY_S
            return None

    def take_request(self):
        packet, descriptors = becoming.receive(self._channel)
        if not packet:
            os._exit(0)
        stale = self._prepared.stale()
        if stale is not None:
            tell(self._channel, stale=stale)
            os._exit(0)
        self._pause_s = REFILL_S
        try:
            return self._give(packet, descriptors)
        except OSError as error:
            _fail(descriptors[0], error, "fork")
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _give(self, packet, descriptors):
        """Hand a rank to a process that waits, or fork one; raise OSError if none takes it."""
        left = len(self._waiting) + _TRIES_MAX
        while True:
            given = None if self._waiting else self._fork()
            if given is not None:
                return given
            with self._waiting.pop(0) as channel:
                try:
                    _send(channel, packet, descriptors)
                    return None
                except OSError:  # it has ended
                    left -= 1
                    if not left:
                        raise

    def _fork(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
            if pid == 0:
                for channel in (self._channel, ours, *self._waiting):
                    channel.close()
                return theirs
            number = reap(pid)
            if number:
                raise OSError(number, os.strerror(number))
        except OSError:
            ours.close()
            theirs.close()
            raise
        theirs.close()
        self._waiting.append(ours)
        return None


def tell(channel, **fields):
    """Report to the launcher."""
    channel.send(json.dumps(fields).encode("ascii"))


def reap(pid):
    """Wait for a child; return its exit code, 0 if that isn't known."""
    try:
        status = os.waitpid(pid, 0)[1]
    except ChildProcessError:  # an import has had SIGCHLD ignored
        return 0
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def die_with(parent):
    """Have the kernel kill this process with its parent; end at once where that is dead already."""
    zero = ctypes.c_ulong(0)
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(_EX_OSERR)


def write_oom_score(score):
    with open(OOM_SCORE_FILE, "w", encoding="ascii") as file:
        file.write(score)


def _send(channel, packet, descriptors):
    numbers = array.array("i", descriptors)
    channel.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])


def _be_rank(given, guardian_pid, prepared):
    """Become a rank, in a forked process, and return its arguments; never return to the server."""
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or _EX_OSERR)
    rank = ForkedRank(given, guardian_pid, prepared, between)
    doing = "start"
    try:
        for stage in STAGES:
            doing = stage.__name__.replace("_", " ")
            stage(rank)
        return rank.body["argv"]
    except BaseException as error:
        if rank.link is not None:
            _fail(rank.link, error, doing)
    os._exit(_EX_OSERR)


def _fail(link, error, doing):
    number = getattr(error, "errno", None) or 22  # EINVAL
    text = "%d a forked rank cannot %s: %s" % (number, doing, error)
    try:
        os.write(link, text.encode("utf-8", "replace")[:REASON_BYTES_MAX])
    except OSError:
        pass


class ForkedRank:
    def __init__(self, given, guardian_pid, prepared, between=0):
        self.given = given  # the channel from the server
        self.guardian_pid = guardian_pid
        self.between = between  # the process between the server and this one, which ends at once
        self.prepared = prepared
        self.attempt = self.link = self.body_fd = None  # until it is given a rank
        self.is_store = False  # this process serves rendezvous stores instead; body_fd: its channel
        self.standard = []
        self.body = {}


def join_the_guardian(rank):
    """Wait until the kernel has made this orphan the guardian's child, or, where that is dead, another's."""
    while os.getppid() == rank.between:
        time.sleep(_WAIT_S)


def die_with_the_guardian(rank):
    die_with(rank.guardian_pid)


def await_a_rank(rank):
    """Wait until the server gives this process a rank."""
    packet, descriptors = becoming.receive(rank.given)
    rank.given.close()
    if not packet:  # the server has ended
        time.sleep(_LINGER_S)
        os._exit(0)
    requested = json.loads(packet.decode("ascii"))
    rank.attempt, rank.is_store = requested["attempt"], bool(requested.get("store"))
    rank.link, rank.body_fd = descriptors[:2]
    rank.standard = descriptors[2:]


def lead_a_session(_rank):
    os.setsid()


def carry_the_mark(rank):
    becoming.write_mark(str(rank.attempt))


def tell_the_guardian(rank):
    os.write(rank.link, layout.FORKED % os.getpid())


def await_the_guardian(rank):
    if os.read(rank.link, 16) != layout.GO:
        os._exit(_EX_OSERR)  # fenced meanwhile, or given up


def serve_stores(rank):
    """Serve rendezvous stores and end, where this process was forked for them; a rank goes on.

    It has the packages that the server has imported, and no line of the script ever runs in it.
    """
    if not rank.is_store:
        return
    os.dup2(rank.body_fd, 0)
    os.close(rank.body_fd)
    becoming.take_standard(rank.standard)
    if rank.prepared.oom_score is not None:
        write_oom_score(rank.prepared.oom_score)
    becoming.show_as((sys.executable, "rankmend.hook.store_host"))
    os.write(rank.link, layout.RUNNING)
    os.close(rank.link)
    rank.link = None
    from rankmend.hook import store_host

    os._exit(store_host.main(is_forked=True))


def take_the_program(rank):
    """Take the arguments, environment, output, folder, processors and OOM score of the rank."""
    rank.body = becoming.read_body(rank.body_fd)
    becoming.take_standard(rank.standard)
    os.close(rank.body_fd)
    becoming.show_as(rank.body["argv"])
    becoming.take_environment(rank.body["env"], rank.prepared.environment)
    os.chdir(rank.body["cwd"])
    becoming.bind(rank.body.get("cpus"))
    if rank.prepared.oom_score is not None:
        write_oom_score(rank.prepared.oom_score)
    becoming.renew_standard_objects()
    renew_id = getattr(threading.main_thread(), "_set_native_id", None)
    if renew_id is not None:  # Python up to 3.11 leaves the parent's
        renew_id()


def begin_random_states(_rank):
    """Seed what seeds itself at import; Python's own `random` does so after each fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def watch_the_steps(_rank):
    becoming.watch_steps()


def follow_the_variables(rank):
    """Have this rank start afresh if its script sets a variable otherwise than the imports have met it."""
    if rank.prepared.first is not None:
        imports.begin_first()
        import_order.watch_forked(
            variables.Guessed(os.environ._data, lambda: start_afresh(rank.body))
        )
        return
    expected = rank.prepared.expected
    if expected is None:  # nobody has learned
        return
    imports.begin_forked(rank.prepared.packages)
    follow = variables.Expected(os.environ._data, expected, lambda: start_afresh(rank.body))
    variables.follow(follow)


def start_afresh(body):
    """Run the program of a rank in this process, from its beginning."""
    os.execve(sys.executable, body["argv"], body["env"])  # noqa: S606 - the same program, by the same interpreter


def run_the_program(rank):
    os.write(rank.link, layout.RUNNING)
    os.close(rank.link)


STAGES = (
    join_the_guardian,
    die_with_the_guardian,
    await_a_rank,
    lead_a_session,
    carry_the_mark,
    tell_the_guardian,
    await_the_guardian,
    serve_stores,
    take_the_program,
    begin_random_states,
    watch_the_steps,
    follow_the_variables,
    run_the_program,
)
