"""Logs of other frameworks, devices and clouds, of jobs that went on, and of several incidents in one file."""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
    BACKWARD,
    DDP_FORWARD,
    INIT,
    PYTORCH,
    SITE,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    Shape,
    Work,
    a_case,
    chatter,
    gloo_closed,
    in_two,
    mixed,
    remote_closed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
)

FOUR = range(4)
TWO_NODES = Shape(4, ("gpu-node-01", "gpu-node-02"))


def _frameworks() -> list[JobLogCase]:
    """Horovod, JAX, Ray, ROCm, and collectives of clouds."""
    stalled = Said(
        0,
        "[2025-03-01 10:12:44.113: W /tmp/pip-install/horovod/horovod/common/stall_inspector.cc:107] One or more tensors were submitted "
        "to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. "
        "This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is submitting "
        "tensors, which will cause deadlock. \nMissing ranks:\n3: [allreduce.grad.conv1.weight, allreduce.grad.conv2.weight ...]",
    )
    shut = [
        Said(rank, trace("horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of "
                         "the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If the "
                         "shutdown was caused by an exception, you should see the exception in the log before the first shutdown message.", *TRAIN))
        for rank in (0, 1, 3)
    ]  # fmt: skip
    heartbeat = Said(
        None,
        "2025-03-01 10:12:44.113812: E external/xla/xla/tsl/distributed_runtime/coordination/coordination_service.cc:1412] "
        "/job:jax_worker/replica:0/task:3 has been set to ERROR in coordination service: UNAVAILABLE: Task "
        "/job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed "
        "unexpectedly.",
    )
    actor = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayTrainWorker\n\tactor_id: "
        "8a11\n\tpid: 81244\n\tname: rank-2\n\tip: 10.1.0.12\nThe actor is dead because its worker process has died. Worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential "
        "root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage."
    )
    rocm = Said(
        2,
        "Memory access fault by GPU node-4 (Agent handle: 0x55d1c80) on address 0x7f2a00000000. Reason: Page not present or supervisor privilege.",
    )
    hip = Said(2, trace("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 63.98 GiB of which "
                        "1.10 GiB is free.", *BACKWARD))  # fmt: skip
    ofi = [
        Said(rank, f"gpu-node-01:{4200 + rank}:4399 [{rank}] ofi_process_cq:1211 NCCL WARN NET/OFI Request 0x7f11 completed with error. RC: 113. Error: "
                   "No route to host. Completed length: 0, Request: { dev: 0, size: 0, state: CREATED, direction: SEND }")
        for rank in (0, 1)
    ]  # fmt: skip
    return [
        *in_two("Horovod misses rank 3", [stalled, *steps("plain", 50, 1)], Label("restart", (3,)), "https://github.com/horovod/horovod", FOUR, "plain",
                (PrefixStyle.BARE, PrefixStyle.MPI)),
        *in_two("Horovod was shut down, rank 2 had memory trouble",
                [Said(2, trace("MemoryError", *TRAIN, "/home/user/data.py:31:__getitem__")), *shut], Label("restart", (2,)),
                "https://github.com/horovod/horovod/issues/243", FOUR, "plain", (PrefixStyle.MPI, PrefixStyle.RANK_FILES)),
        *in_two("JAX's coordinator lost task 3", [heartbeat], Label("restart", (3,)), "https://github.com/jax-ml/jax", FOUR, "plain",
                (PrefixStyle.BARE, PrefixStyle.KUBE)),
        a_case("a Ray actor died", [*steps("plain", 1, 6), Said(None, actor)], Label("restart", None), "https://github.com/ray-project/ray"),
        *in_two("an AMD device's memory access fault", [rocm, torchrun_summary(2, -6)], Label("restart", (2,)), "https://github.com/ROCm/ROCm", FOUR, "trainer",
                (PrefixStyle.RANK, PrefixStyle.SRUN)),
        *in_two("an AMD device's memory is used up on rank 2", [hip, *[gloo_closed(rank) for rank in (0, 1, 3)]], Label("restart", (2,), also=("stop",)),
                PYTORCH, FOUR, "titan", (PrefixStyle.RANK, PrefixStyle.SRUN)),
        *in_two("EFA has no route to a host", [*ofi, remote_closed(0, 5)], Label("restart", None), "https://github.com/aws/aws-ofi-nccl", range(8), "plain",
                (PrefixStyle.BARE, PrefixStyle.KUBE), TWO_NODES),
    ]  # fmt: skip


def _old_words() -> list[JobLogCase]:
    """Words of older versions: aborted communicators that name themselves."""
    aborted = [
        Said(rank, trace(f"RuntimeError: NCCL communicator was aborted on rank {rank}.  Original reason for failure was: [Rank {rank}] Watchdog caught "
                         f"collective operation timeout: WorkNCCL(SeqNum=911, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for {1802212 + rank} milliseconds "
                         "before timing out.", *ALL_REDUCE))
        for rank in range(8) if rank != 5
    ]  # fmt: skip
    refused = [
        Said(rank, trace("RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
                         "store->get('0'), but store->get('0') got error: Socket Timeout", *ALL_REDUCE))
        for rank in (1, 2, 3)
    ]  # fmt: skip
    return [
        *in_two("communicators that were aborted on all ranks but 5", aborted, Label("restart", (5,)), "https://github.com/OFA-Sys/OFA/issues/271", range(8), "plain",
                (PrefixStyle.BARE, PrefixStyle.SRUN)),
        *in_two("rank 0 gave no id for NCCL", refused, Label("restart", (0,)), PYTORCH, FOUR, "plain", (PrefixStyle.RANK, PrefixStyle.SRUN), is_at_start=True),
    ]  # fmt: skip


def _limits() -> list[JobLogCase]:
    """Limits of a process or a container."""
    victims = [gloo_closed(rank) for rank in (0, 2, 3)]
    describe = (
        "Name:             train-worker-2\nNamespace:        ml\nState:          Terminated\n  Reason:       OOMKilled\n  Exit Code:    137\n"
        "  Started:      Sat, 01 Mar 2025 09:00:00 +0000\n  Finished:     Sat, 01 Mar 2025 10:12:44 +0000"
    )
    evicted = (
        "Warning  Evicted  2m  kubelet  The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. Container "
        "trainer was using 212Gi, request is 0, has larger consumption of ephemeral-storage."
    )
    rows: Sequence[tuple[str, list[Said], Label]] = (
        ("too many open files on rank 1", [Said(1, trace("OSError: [Errno 24] Too many open files: '/data/shard_00012.bin'", *TRAIN)), *victims], Label("restart", (1,), also=("stop",))),
        ("a full /dev/shm on rank 1", [Said(1, trace("RuntimeError: unable to write to file </torch_4201_3322_0>: No space left on device (28)", *TRAIN, f"{SITE}/torch/multiprocessing/reductions.py:607:reduce_storage")), *victims],
         Label("restart", None, also=("stop",))),
        ("threads that can't be started on rank 1", [Said(1, trace("RuntimeError: can't start new thread", *TRAIN, "/opt/conda/lib/python3.11/threading.py:957:start")), *victims], Label("restart", (1,))),
        ("pinned memory that can't be had on rank 1", [Said(1, trace("RuntimeError: CUDA error: OS call failed or operation not supported on this OS", *BACKWARD)), *victims], Label("restart", (1,), also=("unknown",))),
    )  # fmt: skip
    cases = [
        case
        for index, (name, said, label) in enumerate(rows)
        for case in in_two(
            name, said, label, PYTORCH, FOUR, "nanogpt",
            ((PrefixStyle.RANK, PrefixStyle.SRUN), (PrefixStyle.RANK_FILES, PrefixStyle.MPI))[index % 2],
        )
    ]  # fmt: skip
    return [
        *cases,
        a_case("kubectl describes a pod that was killed for memory", [*steps("trainer", 1, 9), Said(None, describe)], Label("restart", None),
               "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/"),
        a_case("a pod that the kubelet evicted", [*steps("trainer", 1, 9), Said(None, evicted)], Label("restart", None),
               "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"),
    ]  # fmt: skip


def _checkpoints() -> list[JobLogCase]:
    """Checkpoints that can't be read."""
    zipped = trace(
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        *TRAIN,
        f"{SITE}/torch/serialization.py:1425:load",
    )
    header = trace(
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        *TRAIN,
    )
    distcp = trace(
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3])\n"
        + "\n".join(
            f'Traceback (most recent call last): (RANK {rank})\n  File "{SITE}/torch/distributed/checkpoint/utils.py", line 163, in reduce_scatter\n    local_data = map_fun()\n'
            "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.lm_head.weight.step."
            for rank in FOUR
        ),
        *TRAIN,
    )
    rows = (
        ("an archive without its end, on all ranks", zipped, ("restart",)),
        ("a safetensors file without its end, on all ranks", header, ("restart",)),
        ("a key that a distributed checkpoint lacks", distcp, ("restart",)),
    )
    return [
        case
        for name, text, also in rows
        for case in in_two(name, [*mixed([Said(rank, text) for rank in FOUR]), torchrun_summary(3, 1, (0, 1, 2))], Label("stop", None, also=also),
                           PYTORCH, FOUR, "titan", (PrefixStyle.RANK, PrefixStyle.SRUN), is_at_start=True)
    ]  # fmt: skip


def _several() -> list[JobLogCase]:
    """Files with more than one story: restarts that helped, warnings from hours before, logs that were appended."""
    code = mixed([Said(rank, trace("KeyError: 'hidden_size'", *TRAIN)) for rank in FOUR])
    ecc = Said(2, trace("RuntimeError: CUDA error: uncorrectable ECC error encountered", *BACKWARD))
    again = Said(
        None,
        "I0301 10:12:45.110000 4100 torch/distributed/elastic/agent/server/api.py:874] [default] Worker group FAILED. 3/3 attempts left; "
        "will restart worker group",
    )
    remap = Said(
        None,
        "Mar  1 06:01:12 gpu-node-01 kernel: [799345.120331] NVRM: Xid (PCI:0000:5d:00): 63, pid=4203, name=python, Row Remapper: New row marked "
        "for remapping, reset gpu to activate.",
    )
    corrected = Said(
        None,
        "Mar  1 06:01:12 gpu-node-01 kernel: [799345.120331] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    )
    done = Said(0, "Training completed after 5000 steps")
    return [
        a_case("torchrun restarted after an ECC error, and the run ended well",
               [*steps("plain", 1, 9), ecc, again, *steps("plain", 1, 40), done], Label("unknown", ()), PYTORCH, PrefixStyle.RANK, is_noisy=True),
        a_case("a row that was remapped hours ago, then a key error on all ranks",
               [remap, *steps("plain", 0, 0), *code, torchrun_summary(1, 1, (0, 2, 3))], Label("stop", None), "https://docs.nvidia.com/deploy/xid-errors/", PrefixStyle.RANK, is_noisy=True),
        a_case("corrected memory errors, and the run ended well", [corrected, *chatter(FOUR), *steps("megatron", 4990, 10), done], Label("unknown", ()),
               "https://www.kernel.org/doc/html/latest/admin-guide/ras.html", is_noisy=True),
        a_case("two jobs in one file: killed, then well",
               [*steps("nanogpt", 1, 9), Said(None, "slurmstepd: error: *** JOB 4711 ON gpu-node-01 CANCELLED AT 2025-03-01T10:12:44 DUE TO PREEMPTION ***"),
                *chatter(FOUR), *steps("nanogpt", 9, 50), done], Label("unknown", (), also=("restart",)), "https://slurm.schedmd.com/sbatch.html", is_noisy=True),
        a_case("pip's lines, then a missing module",
               [Said(None, "Requirement already satisfied: torch in /opt/conda/lib/python3.11/site-packages (2.6.0)\nSuccessfully installed einops-0.8.0"),
                *[Said(rank, trace("ModuleNotFoundError: No module named 'xformers'", "/home/user/train.py:9:<module>")) for rank in FOUR]],
               Label("stop", None), "https://pip.pypa.io", PrefixStyle.SRUN, is_noisy=True),
        a_case("tracebacks of code and of a device on two ranks: the device came first",
               [ecc, *[Said(rank, trace("RuntimeError: NCCL communicator was aborted on rank " + f"{rank}.", *ALL_REDUCE)) for rank in (0, 1)],
                Said(3, trace("AttributeError: 'NoneType' object has no attribute 'shape'", *TRAIN, "/home/user/train.py:199:cleanup"))],
               Label("restart", (2,)), PYTORCH, PrefixStyle.SRUN),
        a_case("rank 1 ends well, the others time out in one more step",
               [*steps("plain", 90, 10), Said(1, "rank 1: data exhausted after 100 steps, exiting"), *mixed([timed_out(rank, Work(2201), "2.5") for rank in (0, 2, 3)])],
               Label("restart", (1,), also=("stop",)), "https://github.com/pytorch/pytorch/issues/38174", PrefixStyle.SRUN),
        a_case("a warning of the watchdog that the job outlived",
               [*steps("plain", 1, 9), Said(0, "[W301 10:12:43.551 socket.cpp:697] [c10d] The client socket has failed to connect to [gpu-node-01]:29500 (errno: 111 - Connection refused)."),
                *steps("plain", 10, 40), done], Label("unknown", ()), PYTORCH, is_noisy=True),
        a_case("a store that another job holds", [Said(rank, trace("RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
                                                                  "store_based_barrier_key:1 (world_size=8, worker_count=16, timeout=0:30:00)", *INIT)) for rank in range(8)],
               Label("restart", None), "https://github.com/facebookincubator/submitit/issues/1613", PrefixStyle.SRUN),
        a_case("a launch that timed out on a device with a display", [Said(2, trace("RuntimeError: CUDA error: the launch timed out and was terminated", *DDP_FORWARD))],
               Label("restart", (2,)), PYTORCH, PrefixStyle.RANK),
    ]  # fmt: skip


RARE: Sequence[JobLogCase] = (
    *_frameworks(),
    *_old_words(),
    *_limits(),
    *_checkpoints(),
    *_several(),
)
