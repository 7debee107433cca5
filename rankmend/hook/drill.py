"""Breaks this rank when `rankmend inject` asks for it, in a job that was started with `rankmend run --drills` only,
or that is watched and whose owner has set RANKMEND_WATCH_DRILLS.

The first Python process of the rank says in a file (RANKMEND_DRILL_FILE, or beside its progress file) that it listens, and looks ten times a second for a file
beside it, `.order`: which fault, and until when by CLOCK_BOOTTIME. Only this user or root can have written that. A leak is
freed, and a grandchild ends, as soon as the order is gone or its time is over. In every other job nothing of this runs.
"""

import ctypes
import json
import os
import stat
import subprocess
import sys
import threading
import time

from rankmend.hook import layout
from rankmend.hook.writer import read_start_ticks

LOOK_S = 0.1
ORDER_BYTES_MAX = 4096
_BLOCK_BYTES = 1 << 20
_PAGE_BYTES = 4096
# A process that leaves its session and its parent, and outlives the rank until the order is gone.
_GRANDCHILD = (
    "import os, sys, time\n"
    "os.fork() and os._exit(0)\n"
    "while os.path.exists(sys.argv[1]) and time.clock_gettime(time.CLOCK_BOOTTIME) < float(sys.argv[2]):\n"
    "    time.sleep(0.1)\n"
)

_offered_by = None  # the process that listens; a fork of it does not


class InjectedFaultError(BaseException):
    """Raised in the main thread of a rank on purpose, by `rankmend inject exception`.

    No Exception: it may come while the thread is within rankmend's own code, which lets none of those out.
    """

    def __str__(self):
        return "a fault injected by rankmend inject"


def offer(path=None):
    """Listen for orders if this job allows drills; never raise. ``path``: the file, where no variable names it."""
    global _offered_by
    try:
        path = path or os.environ.get(layout.ENV_DRILL_FILE)
        if not path or _offered_by == os.getpid() or not _take(path):
            return
        _offered_by = os.getpid()
        main = threading.main_thread().ident
        thread = threading.Thread(target=_listen, args=(path + ".order", main), daemon=True)
        thread.name = "rankmend-drill"
        thread.start()
    except Exception:  # then nothing can be injected here
        pass


def _take(path):
    """Write into the file which process listens; return False where another one that lives does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        words = os.pread(descriptor, 100, 0).split()
        if len(words) == 2 and read_start_ticks(int(words[0])) == int(words[1]):
            return False
        pid = os.getpid()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d %d\n" % (pid, read_start_ticks(pid) or 0), 0)
        return True
    finally:
        os.close(descriptor)


def _listen(path, main):
    seen = None
    while True:
        time.sleep(LOOK_S)
        try:
            order = _read(path)
            if order is not None and order["id"] != seen:
                seen = order["id"]
                _obey(order, path, main)
        except Exception:
            seen = None  # a broken order is none


def _read(path):
    """Return the order that stands, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.getuid()):
            return None
        order = json.loads(os.read(descriptor, ORDER_BYTES_MAX))
    finally:
        os.close(descriptor)
    return order if _stands(order, path) else None


def _stands(order, path):
    return time.clock_gettime(time.CLOCK_BOOTTIME) < float(
        order["until_boot_s"]
    ) and os.path.exists(path)


def _obey(order, path, main):
    fault = order["fault"]
    if fault == "exit-code":
        os._exit(int(order["code"]))
    elif fault == "exception":
        error = ctypes.py_object(InjectedFaultError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), error)
    elif fault == "memory-leak":
        _leak(order, path)
    elif fault == "grandchild":
        arguments = [
            sys.executable,
            "-ESs",
            "-c",
            _GRANDCHILD,
            path,
            str(float(order["until_boot_s"])),
        ]
        null = subprocess.DEVNULL
        subprocess.Popen(
            arguments, stdin=null, stdout=null, stderr=null, start_new_session=True
        ).wait()


def _leak(order, path):
    """Take so much memory a second until it is enough, and keep it while the order stands."""
    rate, most = float(order["rate_bytes_per_s"]), float(order["bytes_max"])
    began_s, retained = time.monotonic(), []
    while _stands(order, path):
        due = min(most, rate * (time.monotonic() - began_s))
        while len(retained) * _BLOCK_BYTES < due:
            block = bytearray(_BLOCK_BYTES)
            for page in range(0, _BLOCK_BYTES, _PAGE_BYTES):
                block[page] = 1  # or the kernel would share one page of zeros
            retained.append(block)
        time.sleep(LOOK_S)
