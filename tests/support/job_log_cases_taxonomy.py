"""Ends of jobs over the 38 kinds that NVIDIA's resiliency extension tells apart, and some more.

The kinds are those of its restart agent (nvidia_resiliency_ext/attribution/restart_agent/l1/categories.json); the
lines have the programs' own forms. Each case was labelled before the rules judged it, and this half before the other
one was written. Where that list and the meaning of `stop` here differ, both answers are right.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import CUDA_TAIL, FIT, HF, field_case
from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
    INIT,
    SITE,
    TRAIN,
    JobLogCase,
    PrefixStyle,
    Said,
    Work,
    deepspeed_end,
    mixed,
    remote_closed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
    watchdog_abort,
)

NVRX = "NVIDIA/nvidia-resiliency-ext/pull/411"
RANK, SRUN = PrefixStyle.RANK, PrefixStyle.SRUN
CORE = "/workspace/megatron-lm/megatron"
MEGATRON = (
    "/workspace/megatron-lm/pretrain_gpt.py:310:<module>",
    f"{CORE}/training/training.py:812:pretrain",
)
MEGATRON_LOAD = (
    *MEGATRON,
    f"{CORE}/training/training.py:1105:setup_model_and_optimizer",
    f"{CORE}/training/checkpointing.py:1402:load_checkpoint",
    f"{CORE}/core/dist_checkpointing/serialization.py:118:load",
)
MEGATRON_DATA = (
    *MEGATRON,
    f"{CORE}/training/training.py:2410:build_train_valid_test_data_iterators",
    "/workspace/megatron-lm/pretrain_gpt.py:262:train_valid_test_datasets_provider",
    f"{CORE}/core/datasets/blended_megatron_dataset_builder.py:144:build",
)
MEGATRON_STEP = (
    *MEGATRON,
    f"{CORE}/training/training.py:1980:train",
    f"{CORE}/training/training.py:1322:train_step",
    f"{CORE}/core/pipeline_parallel/schedules.py:488:forward_backward_no_pipelining",
    f"{CORE}/core/pipeline_parallel/schedules.py:315:forward_step",
)
MEGATRON_SAVE = (
    *MEGATRON,
    f"{CORE}/training/training.py:2085:train",
    f"{CORE}/training/training.py:1640:save_checkpoint_and_time",
    f"{CORE}/training/checkpointing.py:620:save_checkpoint",
)
BEGUN = "[before the start of training step] datetime: 2026-03-01 10:02:11"
SAVED = "  successfully saved checkpoint from iteration    4200 to /lustre/ckpt/run7"
LOADED = (
    "  successfully loaded checkpoint from /lustre/ckpt/run7 [ t 1/2, p 1/1 ] at iteration 4200"
)


def on(ranks: Sequence[int], text: str) -> list[Said]:
    """Return what several ranks print at once."""
    return mixed([Said(rank, text) for rank in ranks])


def running(count: int = 12) -> list[Said]:
    return steps("megatron", 4201, count)


def ucx(rank: int, node: str, signal: str) -> Said:
    """Return UCX's words for a signal, with a few frames."""
    return Said(
        rank,
        f"[{node}:31415:0:31977] Caught {signal}\n==== backtrace (tid:  31977) ====\n"
        " 0 0x0000000000042520 __sigaction()  ???:0\n"
        " 1 0x0000000000e3a2b1 at::native::_pin_memory()  ???:0\n=================================",
    )


def _scheduler() -> list[JobLogCase]:
    cancelled = "slurmstepd: error: *** STEP 1822.0 ON nvl72-07 CANCELLED AT 2026-03-01T10:12:44 ***\nsrun: Job step aborted: Waiting up to 122 seconds for job step to finish.\nsrun: error: nvl72-07: tasks 0-3: Terminated\nsrun: Terminating StepId=1822.0"
    node = "srun: error: Node failure on nvl72-11\nsrun: Job step aborted: Waiting up to 122 seconds for job step to finish.\nslurmstepd: error: *** STEP 1822.0 ON nvl72-01 CANCELLED AT 2026-03-01T10:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    threads = (
        "\n".join(
            f'Thread 0x00007f3c{number}a700 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 359 in wait\n  File "/usr/lib/python3.12/threading.py", line 1010 in _bootstrap_inner\n'
            for number in (1, 2, 3)
        )
        + '\nThread 0x00007f41b2ffd740 (most recent call first):\n  File "/workspace/megatron-lm/megatron/core/pipeline_parallel/sched'
    )
    clean = [
        *running(),
        Said(0, f"{SAVED}\n[exiting program at iteration 4212] datetime: 2026-03-01 11:02:44"),
        Said(
            0,
            "[W301 11:02:47.114 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
        ),
    ]
    benign = "WARNING:megatron.core.dist_checkpointing.validation:There are keys in the checkpoint that were not requested. Unexpected keys (from the current `load` call): ['optimizer.state.step']\nreset_opt_norm: ignoring unexpected keys"
    pyxis = "pyxis: importing docker image ...\nslurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing contents of log file ...\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: hpc-pg0-2: task 1: Exited with exit code 1"
    failed = "[2026-04-29T23:36:37.809] error: *** STEP 52222788.0 ON nid002888 CANCELLED AT 2026-04-29T23:36:37 DUE TO TASK FAILURE ***\nsrun: error: nid002888: tasks 0-57,59-63: Terminated\nsrun: Force Terminated StepId=52222788.0"
    launch = "srun: error: slurm_receive_msgs: [[n1.cluster]:6818] failed: Socket timed out on send/recv operation\nsrun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation\nsrun: error: Application launch failed: Socket timed out on send/recv operation\nsrun: Job step aborted"
    killed = "srun: error: learn0824: task 5: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=43575862.0\nslurmstepd: error: *** STEP 43575862.0 ON learn0824 CANCELLED AT 2021-07-14T08:00:36 ***\nsrun: error: learn0824: tasks 3,7: Killed\nsrun: error: learn0833: tasks 8-15: Killed\nsrun: error: learn0824: tasks 0-2,4,6: Killed\nsrun: Force Terminated StepId=43575862.0"
    return [
        field_case("taxonomy 1: a step that Slurm cancels while all is well", "restart", [*running(), Said(None, cancelled)], NVRX, ranks=(), error_class="user", blame="user"),
        field_case("taxonomy 2: a node that Slurm loses", "restart", [*running(), Said(None, node)], NVRX, nodes=("nvl72-11",), error_class="node_failed"),
        field_case("taxonomy 3: threads' stacks of a signal that the log doesn't name", "restart", [*running(), Said(None, threads)], NVRX, ranks=(), also=("unknown",)),
        field_case("taxonomy 4: a run that exits at its interval", "unknown", clean, NVRX, ranks=(), error_class="none"),
        field_case("taxonomy 4: keys that nobody asked for, and a run that ends well", "unknown", [Said(0, benign), *clean], NVRX, ranks=(), error_class="none"),
        field_case("taxonomy 9: Pyxis starts no container", "restart", pyxis, "NVIDIA/pyxis/issues/61", also=("unknown",)),
        field_case("Slurm cancels a step whose task 58 failed", "restart", [*steps("plain", 1, 9), Said(None, failed)], "desihub/desispec/issues/2744", also=("unknown",)),
        field_case("Slurm can't launch tasks on n1", "restart", launch, "NVIDIA/pyxis/issues/107", nodes=("n1",), error_class="node_failed"),
        field_case("task 5 exits first, and srun kills the rest", "restart", [*steps("plain", 1, 9), Said(None, killed)], "facebookresearch/deit/issues/102", ranks=(5,)),
    ]  # fmt: skip


def _machines() -> list[JobLogCase]:
    nvlink = trace(
        "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution"
        + CUDA_TAIL,
        *MEGATRON_STEP,
    )
    flap = "nvl72-03:2201:2544 [1] transport/net_ib.cc:1090 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\nnvl72-03:2201:2570 [1] transport/net_ib.cc:2360 NCCL WARN NET/IB: Got completion from peer 10.4.1.9<53393> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:10.4.1.3 remoteGids::ffff:10.4.1.9 hca mlx5_3"
    launch = trace(
        "torch.AcceleratorError: CUDA error: unspecified launch failure" + CUDA_TAIL, *MEGATRON_STEP
    )
    fallen = "[1843.308145] NVRM: Xid (PCI:0000:b3:00): 79, pid=31415, name=python3, GPU has fallen off the bus.\n[1843.308150] NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
    double = "Mar  1 10:12:44 gpu-17 kernel: [88123.114] NVRM: Xid (PCI:0000:1b:00): 48, pid=4207, name=python, DBE (double bit error) detected\nMar  1 10:12:44 gpu-17 kernel: [88123.119] NVRM: Xid (PCI:0000:1b:00): 63, pid=4207, name=python, Row Remapper: New row (0x0000000020d6a7a4) marked for remapping, reset gpu to activate."
    notready = trace(
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.25.1\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'",
        *INIT,
    )
    return [
        field_case("taxonomy 7: an NVLink error on rank 12", "restart", [*running(), Said(12, nvlink), *[remote_closed(rank, 12) for rank in (0, 1, 2)]], NVRX, ranks=(12,), error_class="device", blame="rank", style=RANK),
        field_case("taxonomy 8: a port that flaps below rank 1", "restart", [*running(), Said(1, flap), *[timed_out(rank, Work(88123)) for rank in range(4)]], NVRX, nodes=("nvl72-03",), error_class="communication", style=RANK),
        field_case("taxonomy 33: a launch failure on rank 5", "restart", [*running(), Said(5, launch), remote_closed(0, 5)], NVRX, ranks=(5,), error_class="kernel_fault", style=RANK),
        field_case("taxonomy 34: a segmentation fault of rank 608", "restart", [Said(0, BEGUN), ucx(608, "nvl72-152", "signal 11 (Segmentation fault: address not mapped to object at address 0x7ffe21a8)")], NVRX, ranks=(608,), error_class="crashed", style=RANK),
        field_case("taxonomy 35: a bus error of rank 44 while Triton loads a kernel", "restart", [Said(0, BEGUN), ucx(44, "nvl72-11", "signal 7 (Bus error: nonexistent physical address)")], NVRX, ranks=(44,), error_class="crashed", style=RANK),
        field_case("taxonomy 36: pinned memory crashes four ranks at the start", "restart", [Said(0, BEGUN), *[ucx(rank, "nvl72-11", "signal 11 (Segmentation fault: address not mapped to object at address 0x8)") for rank in range(4)]], NVRX, also=("stop",), error_class="crashed", style=RANK),
        field_case("taxonomy 37: glibc finds a damaged heap on rank 3", "restart", [Said(0, BEGUN), Said(3, "malloc(): unaligned tcache chunk detected\nFatal Python error: Aborted"), torchrun_summary(3, -6)], NVRX, ranks=(3,), also=("stop",), error_class="crashed", style=RANK),
        field_case("the kernel says that a device fell off the bus", "restart", [*running(), Said(None, fallen), *[timed_out(rank, Work(712)) for rank in range(3)]], "NVIDIA/NVSentinel/issues/155", error_class="device", blame="rank", style=RANK),
        field_case("a double bit error in the kernel's log of gpu-17", "restart", [*running(), Said(None, double)], "leptonai/gpud/pull/1209", nodes=("gpu-17",), error_class="device", blame="rank"),
        field_case("a fabric that isn't ready on eight ranks", "restart", [*on(range(8), notready)], "hiyouga/LlamaFactory/issues/8968", error_class="device", style=RANK),
    ]  # fmt: skip


def _communication() -> list[JobLogCase]:
    store = trace(
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
        *INIT,
    )
    truncated = trace(
        "torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error - please report this issue to the NCCL developers, NCCL version 2.27.3\nncclInternalError: Internal check failed.\nLast error:\nMessage truncated : received 1024 bytes instead of 256",
        *MEGATRON_LOAD,
        f"{SITE}/torch/distributed/distributed_c10d.py:3210:gather_object",
    )
    bind = trace(
        "OSError: [Errno 98] Address already in use",
        *TRAIN,
        "/usr/lib/python3.12/socketserver.py:478:server_bind",
    )
    master = trace(
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable MASTER_ADDR expected, but not set",
        *INIT,
        f"{SITE}/torch/distributed/rendezvous.py:259:_env_rendezvous_handler",
    )
    clients = trace(
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.",
        *INIT,
    )
    gloo = trace(
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        *ALL_REDUCE,
    )
    first = Work(1, "BROADCAST", 1, 1)
    return [
        field_case("taxonomy 10: all ranks wait for a checkpoint's first broadcast", "restart", [Said(0, " loading checkpoint from /lustre/ckpt/run7 at iteration 4200"), *[timed_out(rank, first, "2.6") for rank in range(8)], watchdog_abort(0, first)], NVRX, style=RANK),
        field_case("taxonomy 11: rank 9 is behind 15 others", "restart", [*running(), *[timed_out(rank, Work(90116 if rank != 9 else 90114), "2.6") for rank in range(16)]], NVRX, ranks=(9,), style=RANK),
        field_case("taxonomy 12: a store that answers nobody", "restart", on(range(4), store), NVRX, error_class="communication", style=RANK),
        field_case("taxonomy 13: NCCL's bootstrap gets too many bytes", "restart", [Said(0, truncated), Said(0, "Fatal Python error: Segmentation fault"), torchrun_summary(0, -11)], NVRX, error_class="communication", style=RANK),
        field_case("taxonomy 13: three ranks lost their peer, and nobody says which", "restart", [*running(), *[remote_closed(rank, 5) for rank in (0, 1, 2)]], NVRX, ranks=(), error_class="communication", style=RANK),
        field_case("taxonomy 14: a port that another process holds", "restart", bind, NVRX, ranks=(), error_class="communication", blame="nobody"),
        field_case("taxonomy 28: no MASTER_ADDR", "stop", master, NVRX),
        field_case("a client of three joined", "restart", clients, "OpenRLHF/OpenRLHF/issues/1040", error_class="communication"),
        field_case("three of four ranks wait for gloo", "restart", [*steps("plain", 1, 9), Said(2, "evaluating ..."), *[Said(rank, gloo) for rank in (0, 1, 3)]], "rwth-i6/returnn/issues/1484", ranks=(2,), style=RANK),
    ]  # fmt: skip


def _storage() -> list[JobLogCase]:
    worker = 'BrokenPipeError: Caught BrokenPipeError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)\n  File "/workspace/megatron-lm/megatron/core/datasets/indexed_dataset.py", line 418, in read\n    bin_buffer_file.readinto(sequence)\nBrokenPipeError: [Errno 108] Cannot send after transport endpoint shutdown'
    index = trace(
        "OSError: [Errno 5] Input/output error",
        *MEGATRON_DATA,
        f"{CORE}/core/datasets/gpt_dataset.py:402:_build_document_sample_shuffle_indices",
        f"{SITE}/numpy/lib/npyio.py:455:load",
    )
    cached = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/cache/GPTDataset_indices/8f1e-GPTDataset-train-document_index.npy'",
        *MEGATRON_DATA,
        f"{CORE}/core/datasets/gpt_dataset.py:402:_build_document_sample_shuffle_indices",
        f"{SITE}/numpy/lib/npyio.py:427:load",
    )
    absent = trace(
        "AssertionError: One or both of the .idx and .bin files cannot be found at the path prefix /lustre/data/books_text_document",
        *MEGATRON_DATA,
        f"{CORE}/core/datasets/indexed_dataset.py:512:__init__",
    )
    denied = trace(
        "PermissionError: [Errno 13] Permission denied: '/lustre/cache/GPTDataset_indices'",
        *MEGATRON_DATA,
        "<frozen os>:225:makedirs",
    )
    write = (
        "ERROR:megatron.core.dist_checkpointing.strategies.filesystem_async:Local process 0 encountered an error: [Errno 5] Input/output error\n"
        + trace(
            "RuntimeError: Worker failure: 0",
            *MEGATRON_SAVE,
            f"{CORE}/core/dist_checkpointing/strategies/filesystem_async.py:340:write_preloaded_data_multiproc",
        )
    )
    pickle = trace(
        "_pickle.UnpicklingError: invalid load key, '\\x00'.",
        *MEGATRON_LOAD,
        f"{SITE}/torch/distributed/checkpoint/filesystem.py:701:read_metadata",
    )
    unicode = trace(
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x93 in position 1187: invalid start byte",
        *MEGATRON_LOAD,
        f"{SITE}/torch/distributed/checkpoint/filesystem.py:701:read_metadata",
    )
    progress = trace(
        "AssertionError: Should have seen at least one 'Starting job' entry with same world_size",
        *MEGATRON,
        f"{CORE}/training/training.py:2301:compute_throughputs_and_append_to_progress_log",
        f"{CORE}/training/training.py:212:get_start_time_from_progress_log",
    )
    nopath = trace(
        "megatron.core.dist_checkpointing.core.CheckpointingException: Checkpoint directory /lustre/ckpt/run7/iter_0004200 does not exist",
        *MEGATRON_LOAD,
    )
    shape = trace(
        "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded (torch.Size([50304, 1024])) and expected ((51200, 1024)) tensor for key embedding.word_embeddings.weight",
        *MEGATRON_LOAD,
    )
    finalize = trace(
        "AttributeError: 'NoneType' object has no attribute 'finalize'",
        *MEGATRON_SAVE,
        f"{CORE}/core/dist_checkpointing/strategies/async_utils.py:512:maybe_finalize_async_calls",
    )
    writer = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f41b2ffd740 (most recent call first):\n  File "/opt/conda/lib/python3.11/site-packages/torch/serialization.py", line 1180 in _save\n  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", line 480 in _write_item'
    nospace = trace(
        "OSError: [Errno 28] No space left on device: '/lustre/ckpt/run7/iter_0004400/__3_1.distcp'",
        *MEGATRON_SAVE,
    )
    return [
        field_case("taxonomy 15: a loader's worker loses Lustre", "restart", [*running(), Said(6, trace(worker, *MEGATRON_STEP, f"{SITE}/torch/_utils.py:733:reraise"))], NVRX, ranks=(6,), error_class="storage", style=RANK),
        field_case("taxonomy 16: rank 3 can't read an index", "restart", [Said(3, index), *[remote_closed(rank, 3) for rank in (0, 1)]], NVRX, ranks=(3,), error_class="storage", style=RANK),
        field_case("taxonomy 16: rank 9 doesn't see what rank 0 has cached", "restart", [Said(0, "> building the document index ... done"), Said(9, cached), *[remote_closed(rank, 9) for rank in (0, 1)]], NVRX, ranks=(9,), style=RANK),
        field_case("taxonomy 17: the data's files are missing", "stop", on(range(4), absent), NVRX, error_class="exception", blame="program", style=RANK),
        field_case("taxonomy 18: a cache that nobody may write", "stop", on(range(4), denied), NVRX, error_class="exception", blame="program", style=RANK),
        field_case("taxonomy 19: a checkpoint's writer meets an input/output error", "restart", [*running(), Said(0, write)], "THUDM/slime/issues/326", error_class="storage", blame="nobody", style=RANK),
        field_case("taxonomy 20: a checkpoint's metadata is garbled", "restart", on(range(4), pickle), NVRX, style=RANK),
        field_case("taxonomy 20: a checkpoint's metadata is no text", "restart", unicode, NVRX),
        field_case("taxonomy 21: a progress log that lacks its first entry", "restart", [Said(0, LOADED), Said(0, progress)], NVRX, style=RANK),
        field_case("taxonomy 22: a checkpoint that isn't there", "stop", on(range(4), nopath), NVRX, blame="program", style=RANK),
        field_case("taxonomy 23: a vocabulary of another size", "stop", on(range(4), shape), NVRX, blame="program", style=RANK),
        field_case("taxonomy 24: the end of an asynchronous save has a bug", "stop", [*running(), Said(0, SAVED), *on(range(4), finalize)], NVRX, blame="program", also=("restart",), style=RANK),
        field_case("taxonomy 25: the first save crashes rank 2", "restart", [*running(), Said(2, writer), torchrun_summary(2, -11)], NVRX, ranks=(2,), also=("stop",), error_class="crashed", style=RANK),
        field_case("a checkpoint's shard finds no space", "restart", [*running(), Said(3, nospace), *[remote_closed(rank, 3) for rank in (0, 1)]], NVRX, error_class="storage", blame="nobody", style=RANK),
    ]  # fmt: skip


def _programs() -> list[JobLogCase]:
    tree = (
        "/lustre/fsw/team/megatron-lm/pretrain_gpt.py:22:<module>",
        "/lustre/fsw/team/megatron-lm/megatron/core/models/gpt/gpt_model.py:18:<module>",
    )
    lustre = trace("ModuleNotFoundError: No module named 'megatron.core.transformer.moe'", *tree)
    save_memory = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 77.94 GiB memory in use. Of the allocated memory 74.20 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated.",
        *MEGATRON_SAVE,
    )
    nan = trace(
        "RuntimeError: Unexpected result nan on rank 17 at iteration #8422 invocation #1 (message='found NaN in local forward loss calculation')",
        *MEGATRON_STEP,
        f"{CORE}/core/rerun_state_machine.py:512:validate_result",
    )
    none = trace(
        "TypeError: float() argument must be a string or a real number, not 'NoneType'",
        *MEGATRON_STEP,
        f"{CORE}/core/transformer/moe/moe_layer.py:214:postprocess",
    )
    divides = trace(
        "AssertionError: world size (24) is not divisible by total_model_size (encoder_model_size=0 + decoder_model_size=16)",
        *MEGATRON,
        f"{CORE}/training/initialize.py:88:initialize_megatron",
        f"{CORE}/training/arguments.py:402:validate_args",
    )
    cubin = trace(
        "KeyError: 'Unknown key: cubin'",
        *MEGATRON_STEP,
        f"{SITE}/mamba_ssm/ops/triton/ssd_combined.py:620:forward",
        f"{SITE}/triton/runtime/autotuner.py:160:run",
        f"{SITE}/triton/compiler/compiler.py:360:__getitem__",
    )
    launcher = trace(
        "RuntimeError: CUDA driver error: file not found",
        *MEGATRON_STEP,
        f"{SITE}/torch/_inductor/runtime/static_cuda_launcher.py:92:load_kernel",
    )
    capture = trace(
        "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing"
        + CUDA_TAIL,
        *MEGATRON_STEP,
        f"{CORE}/core/transformer/cuda_graphs.py:512:create_fwd_graph",
    )
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=1822.0. Some of the step tasks have been OOM Killed.\nsrun: error: nvl72-09: task 33: Out Of Memory"
    memory = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.40 GiB is free. Including non-PyTorch memory, this process has 77.69 GiB memory in use. Of the allocated memory 70.11 GiB is allocated by PyTorch, and 4.31 GiB is reserved by PyTorch but unallocated.",
        *MEGATRON_STEP,
    )
    hashes = trace(
        "AssertionError: Parameter hashes not matching across DP replicas",
        *MEGATRON,
        f"{CORE}/training/training.py:2051:train",
        f"{CORE}/core/utils.py:611:check_param_hashes_across_dp_replicas",
    )
    usage = "usage: pretrain_gpt.py [-h] [--num-layers NUM_LAYERS]\npretrain_gpt.py: error: argument --num-layers: invalid int value: 'thirty'"
    return [
        field_case("taxonomy 16: four ranks don't see a module on Lustre", "restart", [*on(range(24, 28), lustre), *[remote_closed(rank, 24) for rank in (0, 1, 2, 3)]], NVRX, ranks=(24, 25, 26, 27), style=RANK),
        field_case("taxonomy 26: no device memory while a checkpoint is saved", "restart", [*running(), Said(1, save_memory), remote_closed(0, 1)], NVRX, error_class="device_memory", blame="program", also=("stop",), style=RANK),
        field_case("taxonomy 27: a loss of rank 17 that is no number", "restart", [*running(), Said(17, nan), *[remote_closed(rank, 17) for rank in (0, 1)]], NVRX, ranks=(17,), error_class="numbers", style=RANK),
        field_case("taxonomy 28: a None in the model's code, on all ranks", "stop", [Said(0, BEGUN), *on(range(4), none)], NVRX, error_class="program", blame="program", style=RANK),
        field_case("taxonomy 28: a world that the model's size doesn't divide", "stop", divides, NVRX, error_class="exception", blame="program"),
        field_case("taxonomy 28: an option that is no number", "stop", [Said(0, usage), torchrun_summary(0, 2)], NVRX, blame="program", style=RANK),
        field_case("taxonomy 29: Triton knows no cubin, on four ranks", "stop", [Said(0, BEGUN), *on(range(4), cubin)], NVRX, error_class="exception", blame="program", style=RANK),
        field_case("taxonomy 29: Inductor's launcher finds no file, on four ranks", "stop", [Said(0, BEGUN), *on(range(4), launcher)], NVRX, blame="program", also=("restart",), style=RANK),
        field_case("taxonomy 30: an operation that a graph's capture forbids", "stop", [Said(0, BEGUN), *on(range(4), capture)], NVRX, error_class="program", blame="program", style=RANK),
        field_case("taxonomy 31: the kernel kills task 33", "restart", [*running(), Said(None, oom)], NVRX, ranks=(33,), error_class="oom_killed", blame="memory", also=("stop",)),
        field_case("taxonomy 32: no device memory in the first step", "stop", [Said(0, BEGUN), *on(range(4), memory)], NVRX, error_class="device_memory", blame="program", style=RANK),
        field_case("taxonomy 38: weights differ between replicas", "restart", [*running(), *on((5, 13), hashes)], NVRX, style=RANK),
    ]  # fmt: skip


def _elsewhere() -> list[JobLogCase]:
    asserted = "\n".join(
        f"/opt/pytorch/pytorch/aten/src/ATen/native/cuda/Loss.cu:240: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{thread},0,0] Assertion `t >= 0 && t < n_classes` failed."
        for thread in range(12)
    )
    device = trace(
        "RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, *MEGATRON_STEP
    )
    incarnation = "2025-04-05 18:39:10.837611: E external/xla/xla/tsl/distributed_runtime/coordination/coordination_service.cc:962] /job:jax_worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted.\n2025-04-05 18:39:10.838153: F external/xla/xla/pjrt/distributed/client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details."
    tpu = "https://symbolize.stripped_domain/r/?trace=7facba4a8de2,7fadfda3d08f&map=068bf8\n*** SIGSEGV (@(nil)), see gl__________41#s15 received by PID 11743 (TID 12350) on cpu 17; stack trace: ***\nPC: @     0x7facba4a8de2  (unknown)  (unknown)\n    @     0x7facbd838294        976  (unknown)"
    daemon = "--------------------------------------------------------------------------\nPRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-nid002944-1918870@0,0] on node nid002944\n  Remote daemon: [prterun-nid002944-1918870@0,1] on node nid003032\n\nThis is usually due to either a failure of the TCP network\nconnection to the node, or possibly an internal failure of\nthe daemon itself.\n--------------------------------------------------------------------------"
    death = (
        "W0409 07:28:49.530000 1359 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\nW0409 07:28:49.531000 1359 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 1365 closing signal SIGTERM\n"
        + trace(
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1359 got signal: 15",
            f"{SITE}/torch/distributed/run.py:918:main",
            f"{SITE}/torch/distributed/elastic/multiprocessing/api.py:85:_terminate_process_handler",
        )
    )
    zip_ = trace(
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "/workspace/kohya/sdxl_train.py:817:<module>",
        f"{SITE}/accelerate/accelerator.py:2861:load_state",
        f"{SITE}/torch/serialization.py:993:load",
    )
    imagefolder = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: 'dataset2'",
        "/home/user/train.py:108:<module>",
        "/home/user/train.py:27:main",
        f"{SITE}/torchvision/datasets/folder.py:310:__init__",
        f"{SITE}/torchvision/datasets/folder.py:41:find_classes",
    )
    subfolders = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/ocr/data_lmdb/training/label/Synth/'",
        "/home/user/train.py:457:<module>",
        "/home/user/train.py:434:_get_databaunch",
        "/home/user/train.py:417:_get_dataset",
    )
    timeout = trace(
        "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 38f977ad)')",
        *TRAIN,
        f"{SITE}/datasets/load.py:2594:load_dataset",
        f"{SITE}/huggingface_hub/utils/_http.py:395:send",
    )
    image = trace(
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        *TRAIN,
        f"{SITE}/torch/_dynamo/output_graph.py:1010:call_user_compiler",
    )
    git = "Error executing job with overrides: ['+experiment=cvt']\n" + trace(
        "git.exc.InvalidGitRepositoryError: /home/user/cross_view_transformers",
        "/home/user/scripts/train.py:90:main",
        f"{SITE}/git/repo/base.py:276:__init__",
    )
    return [
        field_case("labels outside the classes", "stop", [Said(None, asserted), Said(2, device)], "alibaba/Megatron-LLaMA/issues/14", error_class="program", blame="program", also=("restart",), style=RANK),
        field_case("a JAX worker came back with another incarnation", "restart", incarnation, "google/grain/issues/802", ranks=(1,)),
        field_case("a TPU's library crashes", "restart", tpu, "jax-ml/jax/issues/12456", error_class="crashed"),
        field_case("PRTE lost its daemon on nid003032", "restart", [*steps("plain", 1, 9), Said(None, daemon)], "openpmix/prrte/issues/2694", nodes=("nid003032",), error_class="node_failed"),
        field_case("torchrun's agent gets SIGTERM", "restart", [*steps("plain", 1, 9), Said(None, death)], "pytorch/pytorch/issues/150916", ranks=(), error_class="user", blame="user"),
        field_case("a state that is cut off, as accelerate loads it", "restart", zip_, "kohya-ss/sd-scripts/issues/1245"),
        field_case("a folder of images that isn't there", "stop", imagefolder, "YubiaoYue/MedMamba/issues/4", blame="program"),
        field_case("a folder of data that isn't there, below torchrun", "stop", [Said(None, "[2024-04-11 16:02:33,141 train.py:52 INFO pre_tiny_65536] Construct dataset.\n" + subfolders), torchrun_summary(0, 1, ranks=1)], "TongkunGuan/CCD/issues/13", blame="program"),
        field_case("the hub answers too late at the start", "restart", on(range(8), timeout), "huggingface/huggingface_hub/issues/2272", error_class="service", blame="nobody", style=RANK),
        field_case("a kernel's image that the device can't read", "stop", image, "pytorch/pytorch/issues/119054", blame="program"),
        field_case("hydra's job needs a repository", "stop", git, "bradyz/cross_view_transformers/issues/56", also=("restart",)),
        field_case("DeepSpeed's process was killed while it loaded", "restart", [Said(None, "Loading checkpoint shards:   0%|          | 0/7 [00:00<?, ?it/s]"), deepspeed_end(-9, 4)], "liucongg/ChatGLM-Finetuning/issues/102", error_class="killed"),
        field_case("Lightning: a module of the datamodule is missing", "stop", trace("ModuleNotFoundError: No module named 'webdataset'", *FIT, "/home/user/data.py:3:<module>"), "Lightning-AI/pytorch-lightning/issues/20434", blame="program"),
        field_case("a trainer's argument that a new version doesn't know", "stop", trace("TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'", *HF[:2], "/home/user/src/llamafactory/train/sft/workflow.py:88:run_sft"), "hiyouga/LlamaFactory/issues/8968", error_class="program", blame="program"),
    ]  # fmt: skip


TAXONOMY: Sequence[JobLogCase] = (
    *_scheduler(),
    *_machines(),
    *_communication(),
    *_storage(),
    *_programs(),
    *_elsewhere(),
)
