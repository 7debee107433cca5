"""Prints, as one line of JSON, what a process can tell of how it was started. Python 3.8."""

import atexit
import ctypes
import faulthandler
import gc
import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings

PR_GET_PDEATHSIG = 2
PR_GET_CHILD_SUBREAPER = 37
FROM_STATUS = (
    *("Name", "Umask", "TracerPid", "Uid", "Gid", "FDSize", "Groups", "Threads", "SigQ", "SigPnd"),
    *("ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Speculation_Store_Bypass", "Cpus_allowed_list"),
    *("Mems_allowed_list", "THP_enabled"),
)
FILES = ("comm", "limits", "cgroup", "oom_score_adj", "coredump_filter", "personality")
FILES = (*FILES, "timerslack_ns", "loginuid")


def read(name):
    try:
        with open("/proc/self/" + name) as file:
            return file.read()
    except OSError as error:
        return type(error).__name__


def prctl(option):
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value


def describe(stream):
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines")
    told = {name: getattr(stream, name) for name in names}
    told["kinds"] = [type(stream).__name__, type(stream.buffer).__name__]
    told["is tty"], told["seekable"] = stream.isatty(), stream.seekable()
    return told


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:  # the listing's own
            pass
    return found


def tell():
    main = sys.modules["__main__"]
    status = dict(line.split(":\t", 1) for line in read("status").splitlines() if ":\t" in line)
    told = {"status " + name: status.get(name) for name in FROM_STATUS}
    told.update(("file " + name, read(name)) for name in FILES)
    told.update(
        {
            "argv": sys.argv,
            "orig_argv": getattr(sys, "orig_argv", None),
            "path": sys.path,
            "flags": str(sys.flags),
            "executable": [sys.executable, sys.prefix, sys.base_prefix],
            "main": {
                name: str(getattr(main, name, "missing"))
                for name in ("__name__", "__file__", "__spec__", "__doc__", "__package__")
            },
            "main's names": sorted(name for name in vars(main) if name.startswith("__")),
            "main's loader": type(main.__loader__).__name__,
            "is main": vars(main) is globals(),
            "folder": os.getcwd(),
            "leads its group": os.getpgid(0) == os.getpid(),
            "leads its session": os.getsid(0) == os.getpid(),
            "parent": os.getppid(),
            "dies with": prctl(PR_GET_PDEATHSIG),
            "subreaper": prctl(PR_GET_CHILD_SUBREAPER),
            "affinity": sorted(os.sched_getaffinity(0)),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "scheduler": os.sched_getscheduler(0),
            "limits": [
                resource.getrlimit(getattr(resource, name))
                for name in sorted(dir(resource))
                if name.startswith("RLIMIT_")
            ],
            "handlers": {
                str(number): str(signal.getsignal(number)).partition(" at 0x")[0]
                for number in range(1, signal.NSIG)
                if number not in (32, 33)
            },
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "timers": [signal.getitimer(which) for which in (0, 1, 2)],
            "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding()],
            "encodings": [sys.getfilesystemencoding(), sys.getdefaultencoding()],
            "time zone": time.tzname,
            "stdin": describe(sys.stdin),
            "stdout": describe(sys.stdout),
            "stderr": describe(sys.stderr),
            "are originals": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
            "descriptors": descriptors(),
            "environment": dict(os.environ),
            "threads": [one.name for one in threading.enumerate()],
            "is main thread": threading.main_thread().ident == threading.get_ident(),
            "native id": getattr(threading.main_thread(), "native_id", 0) == os.getpid(),
            # What a fork shares is frozen: see `rankmend.hook.fork_server.main`.
            "collector": [gc.isenabled(), gc.get_threshold()],
            "warnings": [str(one) for one in warnings.filters],
            "limits of Python": [sys.getrecursionlimit(), sys.getswitchinterval()],
            "finders": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
            "hash": hash("a text"),
            "process": multiprocessing.current_process().name,
            "traces": [sys.gettrace(), sys.getprofile()],
            "hooks": [sys.displayhook.__name__, sys.unraisablehook.__name__],
            "hook of threads": threading.excepthook.__name__,
            "excepthook": sys.excepthook.__name__,
            "at exit": atexit._ncallbacks(),
            "faulthandler": faulthandler.is_enabled(),
            "options": [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode],
            "stack size": threading.stack_size(),
            "children's usage": list(resource.getrusage(resource.RUSAGE_CHILDREN)),
            "io priority": ctypes.CDLL(None).syscall(252, 1, 0),  # ioprio_get, x86-64
            "command line": read("cmdline").split("\0")[:-1],
            "mark": [e for e in read("environ").split("\0") if e.startswith("RANKMEND_ATTEMPT")],
            # What differs between any two processes.
            "random": random.random(),
            "authkey": bytes(multiprocessing.current_process().authkey).hex(),
            "modules": sorted(sys.modules),
        }
    )
    return told


if __name__ == "__main__":
    atexit.register(print, "at exit", flush=True)
    print(json.dumps(tell()), flush=True)
