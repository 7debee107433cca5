"""The layout of the progress file (contract 1, version 2).

One file a rank. The launcher makes it, sizes it and writes identity and lease; the rank
maps it and is the only writer of all the rest; the launcher and the agent only read that.
Every other block and record ends in a CRC-32 of its own bytes, so a reader tells a torn read
(retry) from a corrupt file (error) on every machine: Python gives no store order on ARM.

    0     identity     launcher, once, before the rank starts
    64    lease        launcher: until when the rank may run; zeros: no lease (`rankmend.hook.lease`). Aligned 8-byte stores, no CRC
    128   attachment   rank: pid, start time, marks; rewritten when a mark is set
    192   rendezvous   rank: when its first process group began to form and stood; zeros until then
    256   live         rank: the section it is in, since when, how many it has entered
    320   collectives  rank: collectives entered and completed
    352   timeout     rank: after how long PyTorch ends a collective; zeros where it never told
    384   head         rank: number of step records written (one aligned 8-byte store)
    512   numbers head rank: number of number records written (one aligned 8-byte store)
    576   first bad    rank: the first loss and the first gradient norm that was no finite number
    640   numbers      rank: the last `NUMBERS_SLOTS` number records
    3584  snapshots    rank: snapshots of its state in host memory; zeros until the first
    3712  work         rank: FLOPs, tokens and samples that the script told; zeros until then
    3840  hidden       rank: communication in flight while it did its own work; zeros until told
    3920  background   rank: reading and communication of its other threads; zeros until told
    3968  place        rank: where it stands in the parallel layout of its model; zeros until known
    4000  nccl         rank: versions of NCCL that it has loaded; zeros until its first process group or step
    4096  ring         rank: the last `RING_SLOTS` step records

Blocks that a hook of an older version does not know stay zeros, and a reader of an older version
does not look at them: they are added in gaps, without another version. All integers are
little-endian. Times are CLOCK_MONOTONIC nanoseconds of the node.
This module is part of the hook: standard library and Python 3.8 only.
"""

import struct

MAGIC = b"RMENDPRG"
VERSION = 2

# magic, version, reserved, file size, job UUID, attempt, rank, local rank, world size,
# ring slots, record size
IDENTITY = struct.Struct("<8sHHI16sIIIIII")
IDENTITY_AT = 0

# CLOCK_BOOTTIME in ns at which a rank that still steps ends itself, and from which on it publishes nothing; inode of the
# launcher's time namespace, 0: not known; then by the rank: when it has ended itself. The first two change.
LEASE = struct.Struct("<QQQQ")
LEASE_AT = 64

# pid, flags, start time in clock ticks since boot (/proc/PID/stat field 22),
# attached, resume() called, first compute or communication section entered (0: not yet):
# reading data and the checkpoint lies before it
ATTACHMENT = struct.Struct("<IIQQQQ")
ATTACHMENT_AT = 128
FLAG_AUTO = 1  # the optimizer hook counts the steps; the script does not report them
FLAG_RELATIVE = 2  # step numbers count from the start of this process
FLAG_PAIRS = 4  # it sends to or receives from single ranks: perhaps a pipeline stage
# How its script has ended: two bits. By sys.exit it may have ended in the middle of its training; one that has
# destroyed its default process group counts as returned.
END_SHIFT = 3
END_MASK = 3
END_EXITED, END_RETURNED, END_FAILED = 1, 2, 3

# began, ended
RENDEZVOUS = struct.Struct("<QQ")
RENDEZVOUS_AT = 192

# sections entered since the start << SECTION_BITS | section code, entered at
LIVE = struct.Struct("<QQ")
LIVE_AT = 256
SECTION_BITS = 3

# collectives entered, completed, time of the last change
COLLECTIVES = struct.Struct("<QQQ")
COLLECTIVES_AT = 320

# timeout of the process group of the newest collective, in ns; 0: unknown
TIMEOUT = struct.Struct("<Q")
TIMEOUT_AT = 352

HEAD_AT = 384

# record count (1 for the first), step, ended at, then nanoseconds since attachment spent in
# compute, communication, io, checkpoint, wait (exclusive of nested sections)
RECORD = struct.Struct("<QQQQQQQQ")
RING_AT = 4096
RING_SLOTS = 256
RECORD_SIZE = 72

CRC = struct.Struct("<I")

NUMBERS_HEAD_AT = 512
# step + 1 and value of the first loss that was not finite, then of the first gradient norm; 0: none yet
FIRST_BAD = struct.Struct("<QdQd")
FIRST_BAD_AT = 576
# record count << NUMBERS_BITS | which of the numbers were told, step, loss, gradient norm
NUMBERS = struct.Struct("<QQdd")
NUMBERS_AT = 640
NUMBERS_SLOTS = 64
NUMBERS_SIZE = 40
NUMBERS_BITS = 2
HAS_LOSS = 1
HAS_GRAD_NORM = 2
NUMBERS_SLOTS_AT = range(NUMBERS_AT, NUMBERS_AT + NUMBERS_SLOTS * NUMBERS_SIZE, NUMBERS_SIZE)

SLOTS_AT = range(RING_AT, RING_AT + RING_SLOTS * RECORD_SIZE, RECORD_SIZE)
FILE_SIZE = RING_AT + RING_SLOTS * RECORD_SIZE

# wait: the part of communication in which a rank only waits for others
SECTIONS = ("idle", "compute", "communication", "io", "checkpoint", "wait")
STEP_MAX = 2**63 - 1

# Variables that the launcher sets for a rank, beside those of torchrun. docs/reference/environment.md lists them.
ENV_PROGRESS_FILE = "RANKMEND_PROGRESS_FILE"
ENV_JOB_ID = "RANKMEND_JOB_ID"
ENV_ATTEMPT = "RANKMEND_ATTEMPT"
ENV_RESUME_PATH = "RANKMEND_RESUME_PATH"
ENV_CHECKPOINT = "RANKMEND_CHECKPOINT"  # the same, under torchrun (recovery.launcher.torchrun)
ENV_RESUME_STEP = "RANKMEND_RESUME_STEP"
ENV_FENCE_FILE = "RANKMEND_FENCE_FILE"
ENV_AUTO = "RANKMEND_AUTO"
ENV_WATCH = "RANKMEND_WATCH"  # 1: watch a rank of another launcher
ENV_WATCH_ANY = "RANKMEND_WATCH_ANY"  # 1: and processes that no launcher has started
ENV_WATCH_SECTIONS = "RANKMEND_WATCH_SECTIONS"  # 1: and tell its sections, too
ENV_WATCH_EVIDENCE = "RANKMEND_WATCH_EVIDENCE"  # 1: and its stacks, when the job hangs
ENV_WATCH_DRILLS = "RANKMEND_WATCH_DRILLS"  # 1: `rankmend inject` may break it
ENV_STACKS_FILE = "RANKMEND_STACKS_FILE"
ENV_IMPORTS_FILE = "RANKMEND_IMPORTS_FILE"
ENV_DRILL_FILE = "RANKMEND_DRILL_FILE"  # of a job that allows drills
ENV_SNAPSHOTS = "RANKMEND_SNAPSHOTS"  # the folder of snapshot files; absent: none are kept
ENV_SNAPSHOT = "RANKMEND_SNAPSHOT"  # ATTEMPT:STEP of the one that this attempt restores
RAISED_SUFFIX = ".raised"  # beside the progress file: the uncaught exception of the main thread
# torchrun's variables that tell ranks, attempts or jobs apart: a process that waits to become a rank has none.
RANK_VARIABLES = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    )
)

# What a forked rank and its guardian say to each other over their link.
FORKED = b"forked %d"  # the rank's pid
GO = b"go"
RUNNING = b"running"
STANDS_BY = b"stands by"  # of a standby, to the launcher

# First line of the file of stacks: process, descriptor through which it writes, its start time.
STACKS_HEAD = "stacks %d %d %d\n"
STACKS_HEAD_BYTES_MAX = 64
# Asks a rank for its Python stacks. A real-time signal (SIGRTMIN + 11 with glibc): frameworks
# and schedulers use SIGUSR1 and SIGUSR2, the C library the lowest of these, profilers SIGPROF.
STACKS_SIGNAL = 45

# snapshots kept, refused or skipped, step of the newest + 1, bytes of the state, nanoseconds that training
# stood still for them in all, and for the newest; level: files that there is room for (0, 1, 2)
SNAPSHOTS = struct.Struct("<QQQQQQQ")
SNAPSHOTS_AT = 3584

# times told, FLOPs, tokens, samples in all, data type of the FLOPs, name of the device (ASCII, zeros behind)
WORK = struct.Struct("<QdddB47s")
WORK_AT = 3712
DATA_TYPES = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4")  # "": no FLOPs were told
DEVICE_NAME_BYTES_MAX = 47

# What of the communication ran beside the rank's own work (`rankmend.hook.hidden_work`): facts, then collectives
# timed, nanoseconds hidden at least and at most; iterations of DistributedDataParallel sampled, and of these the
# nanoseconds from the first bucket to the end, and the part of it in which backward still computed.
HIDDEN = struct.Struct("<QQQQQQQ")
HIDDEN_AT = 3840
HAS_REPLICA = 1  # a DistributedDataParallel reduces gradients, unseen but for its own statistics
HAS_UNTIMED = 2  # there were collectives whose end nobody sees
LOADS_ITSELF = 4  # the thread that trains makes the batches of a data loader itself
LOADS_IN_WORKERS = 8  # other processes make them

# `rankmend.background`: reads and communications begun, nanoseconds of each beside the rank's own work.
BACKGROUND = struct.Struct("<QQQQ")
BACKGROUND_AT = 3920

# who told, then the index along each dimension of parallelism, -1 where it is not known
PLACE = struct.Struct("<Iiiiii")
PLACE_AT = 3968
DIMENSIONS = ("dp", "tp", "pp", "cp", "ep")
PLACE_MAX = 2**24  # ranks along one dimension
TOLD_BY_SCRIPT = 1
TOLD_BY_GROUPS = 2  # of PyTorch

# versions of NCCL (or RCCL) that the rank has loaded, as ncclGetVersion tells them, ascending; 0 behind the last
NCCL_MAX = 4
NCCL = struct.Struct("<%dI" % NCCL_MAX)
NCCL_AT = 4000
NCCL_VERSION_MAX = 10**7  # 22703 is 2.27.3
