"""What faults need of the system: mounts, routes, programs, and two settings of a GPU.

Sources: proc_pid_mountinfo(5), mount(2), umount2(2); rtnetlink(7), iproute2/ip/iproute.c (route_dump_magic, 0x45311224),
linux/rtnetlink.h (struct rtmsg, RTPROT_KERNEL); NVML API reference, "Device Commands": nvmlDeviceSetGpuLockedClocks,
nvmlDeviceResetGpuLockedClocks, nvmlDeviceSetPowerManagementLimit. These need root and were never tried on a real GPU.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from rankmend.errors import NoSourceError, SourceError

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_LAYERS_MAX: Final = 8
# linux/mount.h, linux/fs.h
_MS_RDONLY: Final = 1
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)

_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length first
_PROTOCOL_AT: Final = _HEADER.size + 5  # rtm_protocol in struct rtmsg
_KERNEL: Final = 2

TIMEOUT_S: Final = 15.0
_OUTPUT_CHARACTERS_MAX: Final = 300

_T = TypeVar("_T")

_MAGIC: Final = struct.pack("=I", 0x45311224)


def count_mounts(path: str) -> int:
    """Return how many mounts lie on a folder, one above the other, in this mount namespace."""
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise SourceError(f"cannot read /proc/self/mountinfo: {error.strerror}") from error
    return sum(1 for line in text.splitlines() if _plain(line.split(" ")[4]) == path)


def cover_read_only(path: str) -> None:
    """Mount a folder on itself, for reading only."""
    flags = ctypes.c_ulong(_MS_BIND)
    _check(path, _libc.mount(os.fsencode(path), os.fsencode(path), None, flags, None))
    flags = ctypes.c_ulong(_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    _check(path, _libc.mount(None, os.fsencode(path), None, flags, None))


def unmount_to(path: str, mounts_before: int) -> None:
    """Unmount, the newest first, until so many are left; an open file keeps its mount until it closes.

    By system calls: umount(8) would look at the mount point, and wait for ever where that hangs.
    """
    for _ in range(_LAYERS_MAX):
        if count_mounts(path) <= mounts_before:
            return
        _check(path, _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW))
    raise SourceError(f"{path} is still mounted {count_mounts(path)} times, not {mounts_before}")


def _check(path: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: os.fsdecode(bytes([int(found[1], 8)])), text)


def without_kernels(saved: bytes) -> bytes:
    """Return the same with only the routes that somebody has added; empty where there is none.

    The kernel adds some routes by itself for each address. Restored with the others, they would
    come a second time, with another metric.
    """
    if not saved.startswith(_MAGIC):
        raise SourceError(f"ip route save wrote no routes: {saved[:40]!r}")
    retained, at = [], len(_MAGIC)
    while at + _HEADER.size <= len(saved):
        length = _HEADER.unpack_from(saved, at)[0]
        if length <= _PROTOCOL_AT or at + length > len(saved):
            raise SourceError(f"ip route save wrote a route of {length} bytes at {at}")
        if saved[at + _PROTOCOL_AT] != _KERNEL:
            retained.append(saved[at : at + (length + 3 & ~3)])
        at += length + 3 & ~3
    return _MAGIC + b"".join(retained) if retained else b""


def run_program(argv: Sequence[str], data: bytes = b"") -> bytes:
    """Return what a program prints; raise NoSourceError where it is missing, SourceError where it fails."""
    need_program(argv[0])
    try:
        with tempfile.TemporaryFile() as file:  # `ip route restore` looks where it is in its input
            file.write(data)
            file.seek(0)
            done = subprocess.run(
                argv, stdin=file, capture_output=True, timeout=TIMEOUT_S, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[:_OUTPUT_CHARACTERS_MAX]
        raise SourceError(f"{' '.join(argv)} failed: {said or f'exit code {done.returncode}'}")
    return done.stdout


def need_program(name: str) -> None:
    if shutil.which(name) is None:
        raise NoSourceError(f"the program {name} is not on this node")


def lock_clocks(gpu: str, mhz: int) -> None:
    _call(lambda nvml: nvml.nvmlDeviceSetGpuLockedClocks(_handle(nvml, gpu), mhz, mhz))


def reset_clocks(gpu: str) -> None:
    _call(lambda nvml: nvml.nvmlDeviceResetGpuLockedClocks(_handle(nvml, gpu)))


def check_gpu(gpu: str) -> None:
    """Raise NoSourceError or SourceError where there is no such GPU, or no NVML."""
    _call(lambda nvml: _handle(nvml, gpu))


def read_power_limit(gpu: str) -> int:
    """Return the limit in milliwatts."""
    return int(_call(lambda nvml: nvml.nvmlDeviceGetPowerManagementLimit(_handle(nvml, gpu))))


def set_power_limit(gpu: str, milliwatts: int) -> None:
    _call(lambda nvml: nvml.nvmlDeviceSetPowerManagementLimit(_handle(nvml, gpu), milliwatts))


def _handle(nvml: Any, gpu: str) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(gpu.encode("ascii"))


def _call(do: Callable[[Any], _T]) -> _T:
    try:
        import pynvml  # noqa: PLC0415 - of the extra ``agent``
    except ModuleNotFoundError as error:
        raise NoSourceError("NVML needs nvidia-ml-py: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoSourceError(f"NVML does not start: {error}") from error
    try:
        return do(pynvml)
    except pynvml.NVMLError as error:
        raise SourceError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()
