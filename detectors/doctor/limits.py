"""What ranks and launchers need of shared memory and resource limits. Pure.

Sources: docker run(1), --shm-size (64 MB by default); PyTorch, "Multiprocessing package" (its workers share
tensors in /dev/shm, by open descriptors); recovery/launcher/host/open_files.py for a launcher's own need.
"""

from dataclasses import dataclass
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    lacking,
    not_applicable,
    ok,
)

SHM_BYTES_MIN: Final = (
    1 << 30
)  # Docker gives 64 MB; one batch of images of 8 workers takes some 100 MB
SHM_FREE_BYTES_MIN: Final = 16 << 20  # the launcher's own files, and NCCL's: some MB a rank
FILES_MIN: Final = (
    4096  # 1024, the usual soft limit, is what data loaders with many workers run into
)
PROCESSES_MIN: Final = 4096  # 8 ranks with 64 threads and 16 workers each
_MIB: Final = 1 << 20
_SHM: Final = "/dev/shm"  # noqa: S108 - only named


@dataclass(frozen=True, slots=True)
class LimitFacts:
    shm_bytes: int | None  # None: there is no /dev/shm
    shm_free_bytes: int = 0
    shm_type: str = "tmpfs"
    shm_error: str = ""  # why no file can be made there
    files: int | None = None  # soft limit; None: unlimited, here and below
    files_max: int | None = None  # hard limit
    files_needed: int = 0  # by a launcher of 8 ranks on several nodes
    processes: int | None = None
    is_root: bool = False


def _shm(facts: LimitFacts) -> HostVerdict:
    if facts.shm_bytes is None:
        return broken("no /dev/shm", "mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    if facts.shm_error:
        return broken(facts.shm_error, "mount -o remount,rw,mode=1777 /dev/shm")
    if facts.shm_type not in ("", "tmpfs", "ramfs"):
        return broken(
            f"{_SHM} is {facts.shm_type}, no memory",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        )
    if facts.shm_bytes < SHM_BYTES_MIN:
        return lacking(
            f"{_SHM} has {facts.shm_bytes // _MIB} MiB",
            "start the container with --shm-size=64g or --ipc=host (Kubernetes: an emptyDir with medium: Memory)",
        )
    return ok(f"{_SHM} has {facts.shm_bytes // _MIB} MiB")


def _shm_free(facts: LimitFacts) -> HostVerdict:
    if not facts.shm_bytes:
        return not_applicable("no /dev/shm")
    if facts.shm_free_bytes < SHM_FREE_BYTES_MIN:
        return broken(
            f"{_SHM} has {facts.shm_free_bytes // _MIB} MiB left",
            "du -xsh /dev/shm/*  # remove what no process uses (fuser FILE); under Slurm: rankmend cleanup",
        )
    return ok(f"{facts.shm_free_bytes // _MIB} MiB left")


def _files(facts: LimitFacts) -> HostVerdict:
    if facts.files_max is not None and facts.files_max < facts.files_needed:
        return broken(
            f"at most {facts.files_max} open files, a launcher of 8 ranks needs {facts.files_needed}",
            "echo '* - nofile 1048576' >> /etc/security/limits.d/nofile.conf  # a service: LimitNOFILE=",
        )
    if facts.files is not None and facts.files < FILES_MIN:
        wanted = FILES_MIN if facts.files_max is None else min(1 << 20, facts.files_max)
        if facts.files_max is not None and facts.files_max < FILES_MIN:
            return lacking(
                f"at most {facts.files_max} open files",
                "echo '* - nofile 1048576' >> /etc/security/limits.d/nofile.conf  # a service: LimitNOFILE=",
            )
        return lacking(f"{facts.files} open files in each process", f"ulimit -n {wanted}")
    return ok("unlimited" if facts.files is None else f"{facts.files}")


def _processes(facts: LimitFacts) -> HostVerdict:
    if facts.is_root:
        return not_applicable("the limit does not hold for root")
    if facts.processes is not None and facts.processes < PROCESSES_MIN:
        return lacking(
            f"{facts.processes} processes and threads for this user",
            "echo '* - nproc unlimited' >> /etc/security/limits.d/nproc.conf",
        )
    return ok("unlimited" if facts.processes is None else f"{facts.processes}")


_P: Final = HostPart.LIMITS
LIMIT_CHECKS: Final[tuple[HostCheck[LimitFacts], ...]] = (
    HostCheck(
        "limits_shm",
        _P,
        "shared memory",
        "data loaders and NCCL (bus error, 'unable to open shared memory'); snapshots in memory",
        _shm,
    ),
    HostCheck("limits_shm_free", _P, "free shared memory", "the start of ranks", _shm_free),
    HostCheck(
        "limits_files", _P, "open files (ulimit -n)", "'too many open files' in ranks", _files
    ),
    HostCheck(
        "limits_processes",
        _P,
        "processes (ulimit -u)",
        "threads: 'resource temporarily unavailable'",
        _processes,
    ),
)
