"""The shapes that logs of training jobs have: prefixes of launchers, tracebacks, summaries, watchdog lines, noise.

A case is written as what each process said, in order (`Said`); a style turns that into the text of files, as a
launcher, `srun -l`, a container runtime or a log folder does. The noise of a run (progress bars, NCCL's INFO lines,
warnings of libraries, what interpreters print while they end) is woven in by place, never by chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, islice, zip_longest

PYTORCH = "https://github.com/pytorch/pytorch"


@dataclass(frozen=True, slots=True)
class JobLogCase:
    """A job's log, and what an operator of experience would say of it."""

    name: str
    files: Mapping[str, str]  # name of the file -> its text
    decision: str  # "restart", "stop" or "unknown"
    source: str  # the public thread or the program whose format the lines have
    error_class: str | None = None  # None: any
    culprit_ranks: tuple[int, ...] | None = None  # None: not judged; (): no rank is to blame
    culprit_nodes: tuple[str, ...] | None = None
    blame: str | None = None
    also: tuple[str, ...] = ()  # other decisions that an operator would accept
    is_training_log: bool = True
    is_noisy: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """Lines that one process wrote in one piece; no rank: a launcher, the scheduler, the kernel."""

    rank: int | None
    text: str


class PrefixStyle(Enum):
    """Who collected the output, by what is in front of each line."""

    BARE = "bare"  # nothing
    RANK = "rank"  # [rank3]: as PyTorch's own hook for tracebacks
    DEFAULT = "default"  # [default3]: as torchrun --tee, by local rank
    SRUN = "srun"  # 3: as srun --label
    MPI = "mpi"  # [1,3]<stderr>: as mpirun --tag-output
    HOST = "host"  # gpu-node-02: as pdsh under DeepSpeed
    KUBE = "kube"  # a time, a stream and F, as a container runtime keeps it
    RANK_FILES = "rank_files"  # a file for each rank, as torchrun --log-dir
    NODE_FILES = "node_files"  # a file for each node, as a Slurm job's %N


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks a node has, and how nodes are named."""

    ranks_per_node: int = 8
    nodes: tuple[str, ...] = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.ranks_per_node]


@dataclass(frozen=True, slots=True)
class Label:
    """What is true of a log."""

    decision: str
    ranks: tuple[int, ...] | None = None
    nodes: tuple[str, ...] | None = None
    blame: str | None = None
    error_class: str | None = None
    also: tuple[str, ...] = field(default=())


ONE_NODE = Shape()


def _prefix(style: PrefixStyle, rank: int | None, index: int, shape: Shape) -> str:
    """Return what stands in front of a line of this rank."""
    if style is PrefixStyle.KUBE:
        second, micros = divmod(index * 7919, 1_000_000)
        return f"2025-03-01T10:{second // 60 % 60:02}:{second % 60:02}.{micros:06}Z stderr F "
    if rank is None:
        return ""
    if style is PrefixStyle.HOST:
        return f"{shape.node_of(rank)}: "
    return {
        PrefixStyle.RANK: f"[rank{rank}]: ",
        PrefixStyle.DEFAULT: f"[default{rank % shape.ranks_per_node}]:",
        PrefixStyle.SRUN: f"{rank:>2}: ",
        PrefixStyle.MPI: f"[1,{rank}]<stderr>:",
    }.get(style, "")


def _file_of(style: PrefixStyle, rank: int | None, shape: Shape) -> str:
    if style is PrefixStyle.RANK_FILES:
        return "launcher.log" if rank is None else f"attempt_0/{rank}/stderr.log"
    if style is PrefixStyle.NODE_FILES:
        return f"slurm-4711-{shape.node_of(rank or 0)}.out"
    return "job.log"


def written(
    said: Iterable[Said], style: PrefixStyle = PrefixStyle.BARE, shape: Shape = ONE_NODE
) -> dict[str, str]:
    """Return the files that a collector of this style leaves of what was said."""
    files: dict[str, list[str]] = {}
    index = 0
    for block in said:
        lines = files.setdefault(_file_of(style, block.rank, shape), [])
        for line in block.text.splitlines():
            index += 1
            # PyTorch puts its own prefix before what C++ logs, so nobody does it twice.
            is_own = line.startswith("[rank") and style is PrefixStyle.RANK
            lines.append(("" if is_own else _prefix(style, block.rank, index, shape)) + line)
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def woven(*streams: Sequence[Said]) -> list[Said]:
    """Return the blocks of several streams in turn."""
    return [block for blocks in zip_longest(*streams) for block in blocks if block is not None]


def line_by_line(said: Iterable[Said]) -> list[Said]:
    """Return each line as a block of its own, so that blocks of several ranks can be woven."""
    return [Said(block.rank, line) for block in said for line in block.text.splitlines()]


def mixed(blocks: Sequence[Said]) -> list[Said]:
    """Return the blocks of all ranks as they come out of one pipe: line by line, in turn."""
    by_rank: dict[int | None, list[Said]] = {}
    for block in line_by_line(blocks):
        by_rank.setdefault(block.rank, []).append(block)
    return woven(*by_rank.values())


# --- Python -----------------------------------------------------------------------------------------------------


def trace(error: str, *frames: str, code: str = "main()") -> str:
    """Return a traceback: frames are written as `file:line:function`."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames or ("/home/user/train.py:212:<module>",):
        file, number, function = frame.rsplit(":", 2)
        lines += [f'  File "{file}", line {number}, in {function}', f"    {code}"]
    return "\n".join([*lines, error])


SITE = "/opt/conda/lib/python3.11/site-packages"
TRAIN = ("/home/user/train.py:212:<module>", "/home/user/train.py:188:main")
DDP_FORWARD = (
    *TRAIN,
    f"{SITE}/torch/nn/modules/module.py:1553:_wrapped_call_impl",
    f"{SITE}/torch/nn/parallel/distributed.py:1636:forward",
)
BACKWARD = (
    *TRAIN,
    f"{SITE}/torch/_tensor.py:581:backward",
    f"{SITE}/torch/autograd/__init__.py:347:backward",
    f"{SITE}/torch/autograd/graph.py:825:_engine_run_backward",
)
ALL_REDUCE = (
    *TRAIN,
    f"{SITE}/torch/distributed/c10d_logger.py:83:wrapper",
    f"{SITE}/torch/distributed/distributed_c10d.py:2501:all_reduce",
)
INIT = (
    *TRAIN,
    f"{SITE}/torch/distributed/c10d_logger.py:97:wrapper",
    f"{SITE}/torch/distributed/distributed_c10d.py:1520:init_process_group",
)


# --- NCCL's watchdog, by versions of PyTorch --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """A collective that a watchdog saw run out of time."""

    number: int
    operation: str = "ALLREDUCE"
    elements_in: int = 466119168
    elements_out: int = 466119168
    timeout_ms: int = 600000


def timed_out(rank: int, work: Work, version: str = "2.5", **status: str | int) -> Said:
    """Return what the watchdog of a rank says; `enqueued`, `completed` and `group` may differ from the work's."""
    enqueued = status.get("enqueued", work.number + 2)
    completed = status.get("completed", work.number - 1)
    group = status.get("group", "default_pg")
    number = status.get("group_id", 0)
    ran_ms = work.timeout_ms + 4 + 7 * rank
    sizes = (
        "" if version == "1.13" else f"NumelIn={work.elements_in}, NumelOut={work.elements_out}, "
    )
    caught = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work.number}, "
        f"OpType={work.operation}, {sizes}Timeout(ms)={work.timeout_ms}) ran for {ran_ms} milliseconds before timing out."
    )
    down = (
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data."
    )
    entire = "To avoid data inconsistency, we are taking the entire process down."
    if version == "1.13":
        return Said(
            rank, f"[E ProcessGroupNCCL.cpp:737] {caught}\n[E ProcessGroupNCCL.cpp:414] {down}"
        )
    if version == "2.1":
        lines = [(475, caught), (489, down), (495, entire)]
        return Said(rank, "\n".join(f"[E ProcessGroupNCCL.cpp:{at}] {text}" for at, text in lines))
    if version == "2.3":
        lines = [(523, caught), (537, f"[Rank {rank}] {down}"), (543, f"[Rank {rank}] {entire}")]
        return Said(
            rank,
            "\n".join(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:{at}] {text}" for at, text in lines),
        )
    if version == "2.4":
        pg = f"[PG {number} ({group}) Rank {rank}]"
        lines = [
            (607, caught),
            (1664, f"{pg} Exception (either an error or timeout) detected by watchdog at work: {work.number}, "
                   f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."),
            (1709, f"{pg} Timeout at NCCL work: {work.number}, last enqueued NCCL work: {enqueued}, "
                   f"last completed NCCL work: {completed}."),
            (621, f"[Rank {rank}] {down}"),
            (627, f"[Rank {rank}] {entire}"),
        ]  # fmt: skip
    elif version == "2.5":
        pg = f"[PG ID {number} PG GUID {number}({group}) Rank {rank}]"
        lines = [
            (616, caught),
            (1785, f"{pg} Exception (either an error or timeout) detected by watchdog at work: {work.number}, "
                   f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."),
            (1834, f"{pg} Timeout at NCCL work: {work.number}, last enqueued NCCL work: {enqueued}, "
                   f"last completed NCCL work: {completed}."),
            (630, f"[Rank {rank}] {down}"),
            (636, f"[Rank {rank}] {entire}"),
        ]  # fmt: skip
    else:
        pg = f"[PG ID {number} PG GUID {number}({group}) Rank {rank}]"
        lines = [
            (632, caught),
            (2268, f"{pg}  failure detected by watchdog at work sequence id: {work.number} PG status: "
                   f"last enqueued work: {enqueued}, last completed work: {completed}"),
            (670, "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. "
                  "You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."),
            (684, f"[Rank {rank}] {down}"),
            (698, f"[Rank {rank}] {entire}"),
        ]  # fmt: skip
    return Said(
        rank,
        "\n".join(
            f"[rank{rank}]:[E626 16:48:25.{440238649 + 1031 * rank + at} ProcessGroupNCCL.cpp:{at}] {text}"
            for at, text in lines
        ),
    )


def dump_signal(rank: int, signal_from: int, enqueued: int, completed: int) -> Said:
    """Return what the monitor of a rank says when another rank's watchdog ran out of time (PyTorch 2.5 and newer)."""
    return Said(
        rank,
        f"[rank{rank}]:[E626 16:48:26.11{rank:02}51107 ProcessGroupNCCL.cpp:1484] "
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from "
        f" rank {signal_from} and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}.This is most likely caused by incorrect usages of collectives, e.g., "
        "wrong sizes used across ranks, the order of collectives is not same for all ranks or the scheduled "
        "collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other reasons "
        "such as network errors or bugs in the communications library (e.g. NCCL), etc.",
    )


def watchdog_abort(rank: int, work: Work, version: str = "2.5") -> Said:
    """Return how a process that its watchdog takes down ends, with C++ frames."""
    sizes = f"NumelIn={work.elements_in}, NumelOut={work.elements_out}, "
    caught = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work.number}, OpType="
        f"{work.operation}, {'' if version == '1.13' else sizes}Timeout(ms)={work.timeout_ms}) ran for "
        f"{work.timeout_ms + 60} milliseconds before timing out."
    )
    if version in ("1.13", "2.1", "2.3"):
        prefix = f"[rank{rank}]:" if version == "2.3" else ""
        said = f"{prefix}[E ProcessGroupNCCL.cpp:916] [Rank {rank}] NCCL watchdog thread terminated with exception: {caught}\n"
        end = f"terminate called after throwing an instance of 'std::runtime_error'\n  what():  {caught}"
        return Said(rank, end if version == "1.13" else said + end)
    return Said(
        rank,
        f"[rank{rank}]:[E626 16:48:26.9{rank:02}4107 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        f"Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={work.number}, OpType={work.operation}, NumelIn={work.elements_in}, "
        f"NumelOut={work.elements_out}, Timeout(ms)={work.timeout_ms}) ran for {work.timeout_ms + 60} milliseconds "
        "before timing out.\n"
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f8a11cb9446 in /opt/conda/lib/libc10.so)\n"
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, "
        "std::ratio<1l, 1000l> > >) + 0x282 (0x7f89c7a2a772 in /opt/conda/lib/libtorch_cuda.so)\n"
        "frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f89c7a31bb3 in /opt/conda/lib/libtorch_cuda.so)\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    )


# --- Victims and launchers --------------------------------------------------------------------------------------


def remote_closed(rank: int, peer: int, node: str = "10.1.0.12") -> Said:
    """Return what a rank says that lost its peer: NCCL's and PyTorch's words."""
    return Said(
        rank,
        trace(
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote "
            "process exited or there was a network error, NCCL version 2.21.5\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
            f"Last error:\nNET/Socket : peer {node}<{40000 + peer}> closed the connection: Connection closed by remote peer",
            *ALL_REDUCE,
        ),
    )


def gloo_closed(rank: int, port: int = 41823) -> Said:
    return Said(
        rank,
        trace(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            f"[10.1.0.11]:{port}",
            *ALL_REDUCE,
        ),
    )


def torchrun_summary(
    root: int,
    exitcode: int,
    others: Iterable[int] = (),
    script: str = "train.py",
    node: str = "gpu-node-01",
    ranks: int = 4,
) -> Said:
    """Return what torchrun prints when a worker failed: signals, its own traceback and the summary."""
    others = tuple(others)
    said = (
        f"Signal {-exitcode} ({_SIGNALS.get(-exitcode, '')}) received by PID {4200 + root}"
        if exitcode < 0
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )

    def entry(index: int, rank: int, code: int, told: str) -> str:
        return (
            f"[{index}]:\n  time      : 2025-03-01_10:12:44\n  host      : {node}\n  rank      : {rank} "
            f"(local_rank: {rank % 8})\n  exitcode  : {code} (pid: {4200 + rank})\n  error_file: <N/A>\n  traceback : {told}"
        )

    failures = "\n".join(
        entry(
            index + 1,
            rank,
            1,
            "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        )
        for index, rank in enumerate(others)
    )
    closing = "\n".join(
        f"W0301 10:12:44.{100 + rank}000 4100 torch/distributed/elastic/multiprocessing/api.py:897] Sending process "
        f"{4200 + rank} closing signal SIGTERM"
        for rank in range(max(ranks, root % 8 + 1))
        if rank != root % 8 and rank not in others
    )
    return Said(
        None,
        f"{closing}\nE0301 10:12:44.981000 4100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        f"{exitcode}) local_rank: {root % 8} (pid: {4200 + root}) of binary: /opt/conda/bin/python3.11\n"
        + trace(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "/opt/conda/bin/torchrun:8:<module>",
            f"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py:355:wrapper",
            f"{SITE}/torch/distributed/run.py:919:main",
            f"{SITE}/torch/distributed/launcher/api.py:269:launch_agent",
            code="raise ChildFailedError(",
        )
        + f"\n{'=' * 60}\n{script} FAILED\n{'-' * 60}\nFailures:\n{failures or '  <NO_OTHER_FAILURES>'}\n{'-' * 60}\n"
        f"Root Cause (first observed failure):\n{entry(0, root, exitcode, said)}\n{'=' * 60}",
    )


_SIGNALS = {
    1: "SIGHUP",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def deepspeed_end(code: int, pids: int = 8) -> Said:
    """Return what DeepSpeed's launcher prints when a process ended; it names no rank."""
    killing = "\n".join(
        f"[2025-03-01 10:12:45,{index:03}] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {4200 + index}"
        for index in range(pids)
    )
    return Said(
        None,
        f"{killing}\n[2025-03-01 10:12:46,002] [ERROR] [launch.py:325:sigkill_handler] ['/opt/conda/bin/python', '-u', "
        f"'train.py', '--local_rank={pids - 1}', '--deepspeed', 'ds_config.json'] exits with return code = {code}",
    )


# --- What a run says while all is well --------------------------------------------------------------------------


def steps(flavour: str, first: int, count: int, rank: int = 0) -> list[Said]:
    """Return lines of progress as a framework prints them."""
    forms = {
        "nanogpt": "iter {s}: loss {l:.4f}, time 251.{s}ms, mfu 41.2%",
        "megatron": " [2025-03-01 10:11:{t:02}] iteration {s:>8}/  500000 | consumed samples: {c:>12} | elapsed time per "
        "iteration (ms): 2412.4 | learning rate: 1.5E-04 | global batch size:  1024 | lm loss: {l:.6E} | loss scale: 1.0 "
        "| grad norm: 0.231 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        "trainer": "{{'loss': {l:.4f}, 'grad_norm': 0.8123, 'learning_rate': 4.99e-05, 'epoch': 0.{s}}}",
        "lightning": "Epoch 0:  12%|█▏        | {s}/9000 [1:02:{t:02}<7:14:01,  2.41it/s, v_num=3, train_loss={l:.3f}]",
        "titan": "[titan] 2025-03-01 10:11:{t:02},118 - root - INFO - step: {s:>2}  loss:  {l:.4f}  grad_norm:  1.2031  "
        "memory: 61.11GiB(64.32%)  tps: 7,412  tflops: 429.93  mfu: 43.47%",
        "deepspeed": "[2025-03-01 10:11:{t:02},880] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0, "
        "lr=[1e-05], mom=[(0.9, 0.95)]",
        "plain": "step {s} loss {l:.4f}",
    }
    return [
        Said(
            rank, forms[flavour].format(s=step, l=2.1 + 1 / (step + 1), t=step % 60, c=step * 1024)
        )
        for step in range(first, first + count)
    ]


def chatter(ranks: Sequence[int], shape: Shape = ONE_NODE) -> list[Said]:
    """Return what processes of a run say that is no failure."""
    said = [
        Said(
            None,
            "W0301 10:01:02.114000 4100 torch/distributed/run.py:793] \nW0301 10:01:02.114000 4100 torch/distributed/run.py:793] "
            "*****************************************\nW0301 10:01:02.114000 4100 torch/distributed/run.py:793] Setting "
            "OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, "
            "please further tune the variable for optimal performance in your application as needed.",
        )
    ]
    for rank in ranks[:4]:
        local = rank % shape.ranks_per_node
        said += [
            Said(rank, f"{shape.node_of(rank)}:{4200 + rank}:{4300 + rank} [{local}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB "
                       f"[RO]; OOB eth0:10.1.0.{11 + rank // shape.ranks_per_node}<0>"),
            Said(rank, f"{shape.node_of(rank)}:{4200 + rank}:{4300 + rank} [{local}] NCCL INFO comm 0x55f01c18e490 rank {rank} "
                       f"nranks {len(ranks)} cudaDev {local} nvmlDev {local} busId {local + 1}b000 commId 0x5ae77eb5ea4ec1ee - "
                       "Init COMPLETE"),
            Said(rank, f"{SITE}/torch/utils/checkpoint.py:460: UserWarning: torch.utils.checkpoint: please pass in "
                       "use_reentrant=True or use_reentrant=False explicitly.\n  warnings.warn("),
        ]  # fmt: skip
    return [
        *said,
        Said(ranks[0], "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. "
                       "Disabling parallelism to avoid deadlocks...\nTo disable this warning, you can either:\n\t- Avoid using "
                       "`tokenizers` before the fork if possible\n\t- Explicitly set the environment variable "
                       "TOKENIZERS_PARALLELISM=(true | false)"),
        Said(ranks[0], "Loading checkpoint shards: 100%|██████████| 4/4 [00:12<00:00,  3.05s/it]"),
        Said(ranks[-1], "[W301 10:01:44.115 reducer.cpp:1400] Warning: find_unused_parameters=True was specified in DDP "
                        "constructor, but did not find any unused parameters in the forward pass. (function operator())"),
    ]  # fmt: skip


def exit_noise(rank: int) -> list[Said]:
    """Return what an interpreter prints while it ends, after the error that counts."""
    return [
        Said(rank, "[W301 10:12:43.551 ProcessGroupNCCL.cpp:1294] Warning: WARNING: process group has NOT been destroyed before "
                   "we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to "
                   "ensure that any pending NCCL operations have finished in this process. (function operator())"),
        Said(rank, "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1ce7c1f0d0>\n"
                   + trace("AssertionError: can only test a child process",
                           f"{SITE}/torch/utils/data/dataloader.py:1604:__del__",
                           f"{SITE}/torch/utils/data/dataloader.py:1587:_shutdown_workers", code="self._shutdown_workers()")),
        Said(rank, "Exception in thread Thread-4 (_pin_memory_loop):\n"
                   + trace("EOFError", "/opt/conda/lib/python3.11/threading.py:1045:_bootstrap_inner",
                           "/opt/conda/lib/python3.11/multiprocessing/connection.py:399:_recv",
                           code="raise EOFError")),
        Said(rank, "/opt/conda/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There "
                   "appear to be 8 leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: There "
                   "appear to be %d '"),
    ]  # fmt: skip


# --- Cases ------------------------------------------------------------------------------------------------------


def a_case(
    name: str,
    said: Iterable[Said],
    label: Label,
    source: str,
    style: PrefixStyle = PrefixStyle.BARE,
    shape: Shape = ONE_NODE,
    is_noisy: bool = False,
) -> JobLogCase:
    """Return a case of what was said, as a collector of this style keeps it."""
    return JobLogCase(
        name=name,
        files=written(said, style, shape),
        decision=label.decision,
        source=source,
        error_class=label.error_class,
        culprit_ranks=label.ranks,
        culprit_nodes=label.nodes,
        blame=label.blame,
        also=label.also,
        is_noisy=is_noisy,
    )


def with_noise(
    said: Sequence[Said],
    ranks: Sequence[int],
    flavour: str,
    shape: Shape = ONE_NODE,
    noisy_end: int | None = None,
    is_at_start: bool = False,
) -> list[Said]:
    """Return the blocks after a run's beginning, with progress between them, and with an interpreter's last words."""
    # What fails before the first step has no progress before it.
    between = [] if is_at_start else steps(flavour, 131, max(1, len(said) // 6), ranks[0])
    pieces = zip_longest(_slices(said, 6), between)
    ended = exit_noise(noisy_end) if noisy_end is not None else []
    return [
        *chatter(ranks, shape),
        *([] if is_at_start else steps(flavour, 100, 30, ranks[0])),
        *chain.from_iterable(
            [*(piece or ()), *((step,) if step else ())] for piece, step in pieces
        ),
        *ended,
    ]


def after_a_run(case: JobLogCase) -> JobLogCase:
    """Return a case of one file behind the output of a run that made steps: what no start has fails then, too."""
    ((name, text),) = case.files.items()
    run = written([*chatter(range(8)), *steps("plain", 100, 30)])["job.log"]
    return replace(case, name=f"{case.name}, in noise", files={name: run + text}, is_noisy=True)


def after_a_start(case: JobLogCase) -> JobLogCase:
    """Return a case of one file behind what processes print before a first step."""
    ((name, text),) = case.files.items()
    start = written(chatter(range(8)))["job.log"]
    files = {name: start + text}
    return replace(case, name=f"{case.name}, in a start's noise", files=files, is_noisy=True)


def _slices(said: Sequence[Said], count: int) -> list[list[Said]]:
    rest = iter(said)
    return list(iter(lambda: list(islice(rest, count)), []))


def in_two(
    name: str,
    said: Sequence[Said],
    label: Label,
    source: str,
    ranks: Sequence[int] = range(8),
    flavour: str = "plain",
    styles: tuple[PrefixStyle, PrefixStyle] = (PrefixStyle.BARE, PrefixStyle.SRUN),
    shape: Shape = ONE_NODE,
    noisy_end: int | None = None,
    is_at_start: bool = False,
) -> list[JobLogCase]:
    """Return a log by itself in one style, and the same end after a noisy run in another."""
    noisy = with_noise(said, ranks, flavour, shape, noisy_end, is_at_start)
    return [
        a_case(name, said, label, source, styles[0], shape),
        a_case(f"{name}, in noise", noisy, label, source, styles[1], shape, is_noisy=True),
    ]
