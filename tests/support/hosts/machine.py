"""The power supply and the init of one test host; also the few system calls that Python lacks.

Run as a program with a JSON `Machine` as its only argument, it becomes two processes. The outer one (the power
supply) stays in the namespaces of the caller and waits on its standard input: a byte, or its end, because the
test was killed, ends the host. The inner one is PID 1 of the host: it makes the namespaces, mounts what
belongs to the host, says so on standard output and then reaps whatever is handed to it.
When PID 1 dies, the kernel kills every other process of the host and drops its mounts and links.

Standard library only, and one file: it starts in about 30 ms, and a fleet starts one for each host.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

# linux/sched.h and linux/mount.h
CLONE_NEWTIME = 0x00000080
CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_SYS_CLONE3 = 435  # the same number on every architecture
_CLONE_ARGS_BYTES = 64  # the first version of struct clone_args: eight 64-bit fields, flags first
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_CGROUP_GONE_S = 60.0  # a killed process leaves its cgroup when it is reaped, not when it is killed

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OWN_FOLDERS = ("/dev/shm", "/run", "/tmp")  # a tmpfs of its own on each host

# PyDLL keeps the interpreter's lock: these run in a forked child, where no other thread is left to give it back.
_LIBC = ctypes.PyDLL(None, use_errno=True)


def _call(what: str, result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    _call(f"unshare {flags:#x}", _LIBC.unshare(ctypes.c_int(flags)))


def setns(fd: int, flags: int) -> None:
    """Enter a namespace, or several of a process where ``fd`` is its pidfd (Linux 5.8)."""
    _call(f"setns {flags:#x}", _LIBC.setns(ctypes.c_int(fd), ctypes.c_int(flags)))


def fork_sibling() -> int:
    """Fork a process whose parent is this process's parent; return its pid there, or 0 within it."""
    arguments = (ctypes.c_uint64 * (_CLONE_ARGS_BYTES // 8))(CLONE_PARENT)
    size = ctypes.c_size_t(_CLONE_ARGS_BYTES)
    return _call("clone3", _LIBC.syscall(ctypes.c_long(_SYS_CLONE3), arguments, size))


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    data = os.fsencode(options) if options else None
    _call(f"mount {kind or source} at {target}", _LIBC.mount(*texts, ctypes.c_ulong(flags), data))


def keep_own_mounts() -> None:
    """Give this process mounts of its own: what it or a child mounts is seen by no other process of the machine.

    Raises OSError where the process may not (it needs root).
    """
    unshare(CLONE_NEWNS)
    _mount("", "/", flags=_MS_REC | _MS_PRIVATE)


@dataclass(frozen=True, slots=True)
class Machine:
    """What one host is made of, as its power supply is told."""

    name: str
    has_files: bool  # False: a switch, which needs no more than a network namespace
    uptime_s: float  # what CLOCK_MONOTONIC and CLOCK_BOOTTIME begin at
    folder_bytes_max: int  # size of each of OWN_FOLDERS
    binds: tuple[tuple[str, str], ...]  # (source, target): files and folders of the outside
    cgroups: tuple[str, ...]  # folders, made by the fleet, removed by the power supply

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        fields = json.loads(text)
        binds = tuple((source, target) for source, target in fields.pop("binds"))
        return cls(binds=binds, cgroups=tuple(fields.pop("cgroups")), **fields)


def thaw(cgroup: Path) -> None:
    """Let what is frozen in a cgroup run again: SIGKILL does not reach it before (v1)."""
    for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        if (cgroup / name).exists():
            (cgroup / name).write_text(text, encoding="ascii")


def main() -> None:
    machine = Machine.from_json(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the fleet, or its end, ends a host
    unshare(CLONE_NEWPID | CLONE_NEWTIME)
    _set_uptime(machine.uptime_s)
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(parent)
        _be_init(machine, child)
    os.close(child)
    _supply_power(machine, pid, parent)


def _set_uptime(uptime_s: float) -> None:
    with Path("/proc/self/timens_offsets").open("w", encoding="ascii") as file:
        for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
            offset_s, rest_s = divmod(uptime_s - time.clock_gettime(clock), 1)
            file.write(f"{name} {int(offset_s)} {int(rest_s * 1e9)}\n")
            file.flush()  # one write a line: the kernel takes no partial ones


def _supply_power(machine: Machine, pid: int, from_init: int) -> None:
    said = os.read(from_init, 4096).decode(errors="replace")
    print(json.dumps({"pid": pid, "error": "" if said == "up" else said or "died"}), flush=True)
    pidfd = os.pidfd_open(pid)
    select.select([sys.stdin, pidfd], [], [])
    for folder in machine.cgroups:
        with contextlib.suppress(OSError):
            thaw(Path(folder))
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline_s = time.monotonic() + _CGROUP_GONE_S
    for folder in machine.cgroups:
        _remove_cgroup(Path(folder), deadline_s)


def _remove_cgroup(folder: Path, deadline_s: float) -> None:
    while folder.exists():
        try:
            for inner in sorted(
                (path for path in folder.rglob("*") if path.is_dir()), reverse=True
            ):
                inner.rmdir()
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            select.select([], [], [], 0.01)


def _be_init(machine: Machine, to_supply: int) -> NoReturn:
    try:
        for folder in machine.cgroups:
            Path(folder, "cgroup.procs").write_text("0", encoding="ascii")
        unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
        _call("sethostname", _LIBC.sethostname(machine.name.encode(), len(machine.name.encode())))
        if machine.has_files:
            _mount_all(machine)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        os.write(to_supply, b"up")
    except BaseException as error:
        os.write(to_supply, f"{type(error).__name__}: {error}".encode()[:4096])
        os._exit(1)
    os.close(to_supply)
    while True:
        signal.sigwait([signal.SIGCHLD])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _mount_all(machine: Machine) -> None:
    _mount("", "/", flags=_MS_REC | _MS_PRIVATE)
    # What is bound may lie below a folder that is about to be covered: hold on to it first.
    held = [(os.open(source, os.O_PATH), target) for source, target in machine.binds]
    cgroups = os.open("/sys/fs/cgroup", os.O_PATH)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV)
    _mount(
        "sysfs", "/sys", "sysfs", _MS_NOSUID | _MS_NODEV | _MS_RDONLY
    )  # this network's /sys/class/net
    _mount(f"/proc/self/fd/{cgroups}", "/sys/fs/cgroup", flags=_MS_BIND | _MS_REC)
    os.close(cgroups)
    for folder, mode in zip(OWN_FOLDERS, ("1777", "755", "1777"), strict=True):
        options = f"mode={mode},size={machine.folder_bytes_max}"
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for fd, target in held:
        source = f"/proc/self/fd/{fd}"
        if Path(source).is_dir():
            Path(target).mkdir(parents=True, exist_ok=True)
        elif not Path(target).exists():
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).touch()
        _mount(source, target, flags=_MS_BIND | _MS_REC)
        os.close(fd)


if __name__ == "__main__":
    main()
