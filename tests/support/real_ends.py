"""Ends of ranks as real scripts: rank 1 ends so, rank 0 waits. The classes are those of `error_ends`. A table that grows."""

from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame
from detectors.finding import SymptomKind as S

# Both ranks make three steps, and rank 0 then waits, as for a collective.
PRELUDE: Final = """\
import atexit, logging, os, signal, subprocess, sys, threading, time
import rankmend

rankmend.attach()
for step in (1, 2, 3):
    rankmend.step(step)
if os.environ["RANK"] == "0" and "GLOO" not in os.environ:
    time.sleep(600)


def load():
    raise ValueError("bad sample 7")


"""


@dataclass(frozen=True)
class RealEnd:
    """How rank 1 ends, and what is said of it."""

    name: str
    body: str
    kind: S
    culprit: str  # as in `error_ends`
    blame: Blame
    line: str  # in the finding's summary
    exit_code: int = 1
    needs_torch: bool = False
    has_peer: bool = False  # rank 0 doesn't wait apart, but runs the same

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return who is accused: an end with 0 accuses the program alone."""
        return () if self.kind is S.COMMUNICATION else (1,)

    @property
    def needs_small_disk(self) -> bool:
        return "SMALL" in self.body


def end(
    name: str,
    body: str,
    kind: S,
    culprit: str,
    blame: Blame,
    line: str,
    *,
    exit_code: int = 1,
    needs_torch: bool = False,
    has_peer: bool = False,
) -> RealEnd:
    return RealEnd(name, body, kind, culprit, blame, line, exit_code, needs_torch, has_peer)


PROGRAM, NOBODY, RANK, MEMORY, USER = (
    Blame.PROGRAM,
    Blame.NOBODY,
    Blame.RANK,
    Blame.MEMORY,
    Blame.USER,
)
BAD: Final = "ValueError: bad sample 7"
WORKER: Final = """\
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        if index > 3: {act}
        return torch.ones(1)
for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass
"""
# Rank 0 loses its peer, and says so at once.
PEER: Final = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1": {act}
dist.all_reduce(torch.ones(4))
time.sleep(60)
"""
SPAWN: Final = """\
import torch.multiprocessing
def child(index):
    if index == 1: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
if __name__ == "__main__":
    torch.multiprocessing.start_processes(child, nprocs=2, start_method="fork")
"""

# fmt: off
REAL_ENDS: Final = (
    # Code and data.
    end("an exception", "load()", S.EXCEPTION, "data", PROGRAM, BAD),
    end("a typo", "print(modle)", S.PROGRAM, "code", PROGRAM, "NameError: name 'modle' is not defined"),
    end("a wrong argument", "load(1)", S.PROGRAM, "code", PROGRAM, "TypeError: load() takes 0 positional arguments"),
    end("a module that is not there", "import flash_attn_9", S.EXCEPTION, "code", PROGRAM, "ModuleNotFoundError: No module named 'flash_attn_9'"),
    end("a key of the data", "{}['labels']", S.EXCEPTION, "data", PROGRAM, "KeyError: 'labels'"),
    end("an assertion", "assert False, 'loss is nan'", S.EXCEPTION, "code", PROGRAM, "AssertionError: loss is nan"),
    end("a file that is not there", "open('/nowhere/shard-7.tar')", S.EXCEPTION, "data", PROGRAM, "FileNotFoundError"),
    end("a chain", "try:\n    load()\nexcept ValueError as error:\n    raise RuntimeError('step 4 failed') from error", S.EXCEPTION, "data", PROGRAM, "RuntimeError: step 4 failed"),
    end("sys.exit of a text", "sys.exit('config error: no such split')", S.EXIT, "code", PROGRAM, "exit code 1: config error: no such split"),
    end("exit code 3", "sys.exit(3)", S.EXIT, "unknown", PROGRAM, "exit code 3", exit_code=3),
    end("os._exit", "os._exit(4)", S.EXIT, "unknown", PROGRAM, "exit code 4", exit_code=4),
    end("a traceback that is printed, then an exit", "import traceback\ntry:\n    load()\nexcept ValueError:\n    traceback.print_exc()\n    sys.exit(1)", S.EXCEPTION, "data", PROGRAM, BAD),
    end("an own excepthook that prints nothing", "sys.excepthook = lambda *told: None\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    # Noise after the error.
    end("noise of a destructor", "class A:\n    def __del__(self): raise TypeError('x')\na = A()\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    end("noise of a thread", "def work(): raise ConnectionResetError(104, 'Connection reset by peer')\nthread = threading.Thread(target=work); thread.start(); thread.join()\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    end("noise of an exit handler", "atexit.register(lambda: 1 / 0)\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    end("noise of logging", "atexit.register(lambda: logging.error('%d', 'x'))\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    end("noise of a helper", "atexit.register(lambda: subprocess.run([sys.executable, '-c', 'raise MemoryError']))\nload()", S.EXCEPTION, "data", PROGRAM, BAD),
    # What is outside.
    end("a tracker that is away", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/api/log')", S.SERVICE, "service", NOBODY, "URLError"),
    end("a name that nobody knows", "import urllib.request\nurllib.request.urlopen('http://tracker.invalid/api')", S.SERVICE, "service", NOBODY, "URLError"),
    end("the script's own pipe", "child = subprocess.Popen(['true'], stdin=subprocess.PIPE, bufsize=0); child.wait()\nchild.stdin.write(bytes(1 << 20))", S.EXCEPTION, "code", PROGRAM, "BrokenPipeError"),
    end("a full disk", "with open(os.environ['SMALL'] + '/step_4.pt', 'wb') as file:\n    file.write(bytes(1 << 22))", S.STORAGE, "storage", NOBODY, "No space left on device"),
    end("memory that is not there", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nbytearray(1 << 34)", S.HOST_MEMORY, "memory", MEMORY, "MemoryError"),
    end("a person's interrupt", "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", S.USER, "person", USER, "SIGINT", exit_code=130),
    # Signals.
    end("SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", S.KILLED, "killer", RANK, "SIGKILL", exit_code=137),
    end("SIGSEGV", "os.kill(os.getpid(), signal.SIGSEGV)", S.CRASHED, "unknown", RANK, "SIGSEGV", exit_code=139),
    end("SIGBUS", "os.kill(os.getpid(), signal.SIGBUS)", S.CRASHED, "unknown", RANK, "SIGBUS", exit_code=135),
    end("SIGABRT", "os.abort()", S.CRASHED, "unknown", RANK, "SIGABRT", exit_code=134),
    end("a worker of a pool that is killed", "import concurrent.futures\nwith concurrent.futures.ProcessPoolExecutor(1) as pool:\n    pool.submit(os.kill, 0, 0)\n    pool.submit(os._exit, 9).result()", S.KILLED, "killer", RANK, "BrokenProcessPool"),
    # With PyTorch.
    end("a data loader's worker that is killed", WORKER.format(act="os.kill(os.getpid(), 9)"), S.HOST_MEMORY, "memory", MEMORY, "", needs_torch=True),
    end("a data loader's worker that raises", WORKER.format(act="load()"), S.EXCEPTION, "data", PROGRAM, "ValueError: Caught ValueError in DataLoader worker", needs_torch=True),
    end("a rank whose peer is reset", PEER.format(act="os.kill(os.getpid(), 9)"), S.KILLED, "killer", RANK, "SIGKILL", exit_code=137, needs_torch=True, has_peer=True),
    end("a rank whose peer is reset by an exit with 0", PEER.format(act="os._exit(0)"), S.COMMUNICATION, "code", PROGRAM, "ended with exit code 0", needs_torch=True, has_peer=True),
    end("a child of mp.spawn that is killed", SPAWN, S.KILLED, "killer", RANK, "terminated with signal SIGKILL", needs_torch=True),
)
# fmt: on
