"""Makes the progress file of a rank that another launcher has started. Where it lies: `rankmend.hook.watched`."""

import json
import os
import stat
import sys
import tempfile
import time
import zlib

from rankmend.hook import layout
from rankmend.hook.watched_layout import (
    DRILL_SUFFIX,
    FOLDER_PREFIX,
    JOB_FILE,
    RECORDER_SUFFIX,
    ROOT,
    find_rank,
    job_id_of,
    number_of,
)
from rankmend.hook.writer import read_start_ticks

_TEXT_MAX = 200  # characters of a name, in job.json
_LEFT_S = 86400.0  # files of dead ranks are removed by a later one
_LOOKED_AT_MAX = 256
_FIRST_NAMESPACE = (
    0xEFFFFFFC  # inode of the machine's PID namespace: PROC_PID_INIT_INO of the kernel
)


def find_job(environment, launcher, is_child=False):
    """Return what all ranks of a job know alike, as text, and the number of this attempt."""
    scheduled = [environment.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID")]
    attempt = 1 + (number_of(environment, "SLURM_RESTART_COUNT") or 0)
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if launcher in ("spawn", "single"):
        own = _find_own(launcher, is_child)
    elif (
        launcher == "hydra"
    ):  # tells no number of a run: what tells its ranks' rendezvous from another's
        names = ("SLURM_STEP_ID", "PMI_SIZE", "MASTER_ADDR", "MASTER_PORT")
        own = ["hydra"] + [environment.get(name, "") for name in names]
    elif launcher == "srun":
        own = ["step", environment.get("SLURM_STEP_ID", "")]
    elif launcher == "mpirun":
        own = [
            "mpi",
            environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", ""),
        ]
    elif run and run != "none":  # torchrun's name for a run that got none
        own = ["run", run]
    else:
        own = ["at", environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")]
    attempt += number_of(environment, "TORCHELASTIC_RESTART_COUNT") or 0
    return json.dumps(scheduled + own), attempt


def find_restarter(environment):
    """Return what starts the ranks again after a failure, or nothing: whoever acts on the job must leave that to it."""
    # nvidia-resiliency-ext: its launcher is a torchrun with a monitor for each rank, which also ends hung ones.
    if environment.get("FT_RANK_MONITOR_IPC_SOCKET") or environment.get("FT_LAUNCHER_IPC_SOCKET"):
        return "nvrx"
    if number_of(environment, "TORCHELASTIC_MAX_RESTARTS"):
        return "torchelastic"
    return ""


def find_unlaunched(is_child):
    """Return as `find_rank` what this process is without a launcher, at its first step; None: no rank."""
    if os.environ.get(layout.ENV_WATCH_ANY) != "1":
        return None
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        local_rank = number_of(os.environ, "LOCAL_RANK")
        is_own = local_rank is not None and local_rank <= rank  # and not that of a parent
        return "spawn", rank, local_rank if is_own else rank, size
    return None if is_child else ("single", 0, 0, 1)


def _find_own(launcher, is_child):
    """Return what tells a job without a launcher from others."""
    address = os.environ.get("MASTER_ADDR", "")
    is_local = address in ("", "localhost", "::1") or address.startswith("127.")
    if launcher == "spawn" and not is_local:
        return ["at", address, os.environ.get("MASTER_PORT", "")]
    # All ranks are children of one process. A single one is known by itself, and so is rank 0 of Lightning, which
    # starts the others: it sets their variables in its own environment, too.
    is_parent = not is_child and os.environ.get("LOCAL_RANK") == "0"
    pid = os.getpid() if launcher == "single" or is_parent else os.getppid()
    return [launcher, os.uname().nodename, pid, read_start_ticks(pid) or 0]


def make(is_child=False):
    """Make this rank's progress file and return its path. Raises OSError or ValueError; may be called by ranks only.

    ``is_child``: multiprocessing has started this process, so that a launcher's variables are those of its parent.
    """
    found = None if is_child else find_rank(os.environ)
    found = found or find_unlaunched(is_child)
    if found is None:
        raise ValueError("not a rank of a known launcher")
    launcher, rank, local_rank, size = found
    key, attempt = find_job(os.environ, launcher, is_child)
    root = _own_root()
    _remove_left(root)
    folder = os.path.join(root, str(job_id_of(os.getuid(), key)))
    _make_folder(folder)
    _tell_job(folder, key, launcher)
    path = os.path.join(folder, "rank-%d.progress" % rank)
    if _is_written(path):
        raise ValueError("%s belongs to a living process" % path)
    _make_progress(path, job_id_of(os.getuid(), key), (attempt, rank, local_rank, size))
    if os.environ.get(layout.ENV_WATCH_EVIDENCE) == "1":
        from rankmend.hook import watched_stacks

        watched_stacks.offer(path)
        _tell_recorder(path, rank)
    if os.environ.get(layout.ENV_WATCH_DRILLS) == "1":
        from rankmend.hook import drill

        drill.offer(path + DRILL_SUFFIX)
    return path


def _own_root():
    """Return this user's folder. Another user may have taken its plain name: then one with a name that nobody could foresee."""
    plain = os.path.join(ROOT, "%s%d" % (FOLDER_PREFIX, os.getuid()))
    try:
        _make_folder(plain)
        return plain
    except OSError:
        pass
    prefix = os.path.basename(plain) + "-"
    found = _first_own(prefix)
    if found is None:
        made = tempfile.mkdtemp(prefix=prefix, dir=ROOT)
        os.chmod(made, 0o755)  # noqa: S103 - the agent reads, and so may others
        found = _first_own(prefix) or made
        if found != made:  # another rank was faster
            os.rmdir(made)
    return found


def _first_own(prefix):
    for name in sorted(os.listdir(ROOT)):
        if name.startswith(prefix) and _is_own_folder(os.path.join(ROOT, name)):
            return os.path.join(ROOT, name)
    return None


def _make_folder(path):
    """Make a folder that only this user writes to. Raises OSError where something else is there."""
    try:
        os.mkdir(path, 0o755)
        os.chmod(path, 0o755)  # noqa: S103 - the agent reads: whatever the umask
    except FileExistsError:
        if not _is_own_folder(path):
            raise


def _is_own_folder(path):
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _tell_job(folder, key, launcher):
    """Write what is known of the job, unless another rank has."""
    path = os.path.join(folder, JOB_FILE)
    if os.path.exists(path):
        return
    environment = os.environ
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    name = environment.get("SLURM_JOB_NAME") or (run if _is_name(run) else "") or _script_name()
    reported = {
        "key": key,
        "launcher": launcher,
        "name": name[:_TEXT_MAX],
        "slurm_job": environment.get("SLURM_JOB_ID", "")[:_TEXT_MAX],
        "restarter": find_restarter(environment),
    }
    _write_new(path, reported)


def _is_name(run):
    """Return whether a person has chosen it: torchrun --standalone makes a UUID, even where one has."""
    return run not in ("", "none") and [len(part) for part in run.split("-")] != [8, 4, 4, 4, 12]


def _write_new(path, reported):
    descriptor, temporary = tempfile.mkstemp(prefix=".told-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(reported, file)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except BaseException:
        _unlink(temporary)
        raise


def _tell_recorder(path, rank):
    """Write down where PyTorch's flight recorder of this rank dumps, if the job says so, and where NCCL's RAS listens."""
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    dump = next((os.environ[name] for name in names if os.environ.get(name)), None)
    pipe = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    reported = {}
    if dump:
        reported["dump"] = os.path.abspath("%s%d" % (dump, rank))
    if pipe:
        reported["pipe"] = os.path.abspath("%s%d.pipe" % (pipe, rank))
    if os.environ.get("NCCL_RAS_ENABLE") != "0":
        port = number_of({"": os.environ.get("NCCL_RAS_ADDR", "").rpartition(":")[2]}, "")
        reported["ras_port"] = port if port and port < 65536 else 28028
    try:
        _unlink(path + RECORDER_SUFFIX)
        if reported:
            _write_new(path + RECORDER_SUFFIX, reported)
    except OSError:
        pass


def _script_name():
    return os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""


def _make_progress(path, job_id, numbers):
    temporary = "%s.%d" % (path, os.getpid())
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    _unlink(temporary)
    descriptor = os.open(temporary, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        os.posix_fallocate(descriptor, 0, layout.FILE_SIZE)  # a full /dev/shm is an error here
        body = layout.IDENTITY.pack(
            *(layout.MAGIC, layout.VERSION, 0, layout.FILE_SIZE, job_id.bytes),
            *numbers,
            *(layout.RING_SLOTS, layout.RECORD_SIZE),
        )
        os.pwrite(descriptor, body + layout.CRC.pack(zlib.crc32(body)), layout.IDENTITY_AT)
        os.rename(temporary, path)
    except BaseException:
        _unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def _is_written(path):
    """Return whether a living process writes this file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        data = os.pread(descriptor, layout.ATTACHMENT.size, layout.ATTACHMENT_AT)
        if len(data) < layout.ATTACHMENT.size:
            return False
        pid, _flags, ticks = layout.ATTACHMENT.unpack(data)[:3]
        return bool(pid and ticks and pid != os.getpid() and read_start_ticks(pid) == ticks)
    finally:
        os.close(descriptor)


def _sees_all_processes():
    """Return whether this is not a container with a PID namespace of its own, where living ranks of others look dead."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def _remove_left(root):
    """Remove what ranks that died long ago have left, a bounded number of files."""
    if not _sees_all_processes():
        return
    now_s, looked_at = time.time(), 0
    for job in os.listdir(root):
        folder = os.path.join(root, job)
        try:
            names = os.listdir(folder)
            is_new = now_s - os.lstat(folder).st_mtime < _LEFT_S  # another rank is just filling it
        except OSError:
            continue
        if is_new:
            continue
        for name in names:
            path = os.path.join(folder, name)
            looked_at += 1
            if looked_at > _LOOKED_AT_MAX:
                return
            try:
                is_old = now_s - os.lstat(path).st_mtime > _LEFT_S
            except OSError:
                continue
            if is_old and name.endswith(".progress") and not _is_written(path):
                _unlink(path)
        if not any(name.endswith(".progress") for name in names):
            for name in names[
                :_LOOKED_AT_MAX
            ]:  # what tells of the job, and what ranks had beside their progress
                _unlink(os.path.join(folder, name))
            try:
                os.rmdir(folder)
            except OSError:
                pass


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass
