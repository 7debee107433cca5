"""Logs of jobs that hung: what watchdogs, monitors, barriers and stacks say, and who held the others up."""

from collections.abc import Mapping, Sequence

from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
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
    dump_signal,
    in_two,
    line_by_line,
    mixed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
    watchdog_abort,
    with_noise,
    woven,
)

TWO_NODES = Shape(8, ("gpu-node-01", "gpu-node-02"))
SMALL_NODES = Shape(4, ("n1", "n2", "n3", "n4"))


def all_but(count: int, *silent: int) -> list[int]:
    return [rank for rank in range(count) if rank not in silent]


def _silent(
    count: int, silent: int, work: Work, version: str, aborts: bool = True, **status: str | int
) -> list[Said]:
    """Return the lines of all ranks but one, which says nothing."""
    others = all_but(count, silent)
    said = mixed([timed_out(rank, work, version, **status) for rank in others])
    return said + ([watchdog_abort(rank, work, version) for rank in others[:3]] if aborts else [])


def _behind(count: int, behind: Mapping[int, Work], work: Work, version: str) -> list[Said]:
    """Return the lines of all ranks; those behind ran out of time in an older work."""
    return mixed([timed_out(rank, behind.get(rank, work), version) for rank in range(count)])


def _silent_cases() -> list[JobLogCase]:
    """One rank of many never says that it waits: it never launched what the others wait in."""
    cases = []
    rows: Sequence[tuple[str, int, int, Work, str, str, PrefixStyle, PrefixStyle, str]] = (
        ("16 ranks, rank 5 silent", 16, 5, Work(1580), "2.5", "megatron", PrefixStyle.BARE, PrefixStyle.SRUN,
         "https://github.com/hiyouga/LlamaFactory/issues/7396"),
        ("8 ranks, rank 0 silent", 8, 0, Work(7753, "_REDUCE_SCATTER_BASE", 544997376, 68124672), "2.4", "trainer",
         PrefixStyle.BARE, PrefixStyle.KUBE, "https://github.com/hiyouga/LlamaFactory/issues/6269"),
        ("8 ranks, rank 7 silent in an old PyTorch", 8, 7, Work(469508, timeout_ms=1800000), "1.13", "plain",
         PrefixStyle.BARE, PrefixStyle.HOST, "https://github.com/OFA-Sys/OFA/issues/271"),
        ("16 ranks, rank 11 silent in PyTorch 2.1", 16, 11, Work(88, "_ALLGATHER_BASE", 19008, 304128), "2.1", "lightning",
         PrefixStyle.BARE, PrefixStyle.SRUN, PYTORCH + "/issues/118369"),
        ("8 ranks, rank 3 silent in PyTorch 2.3", 8, 3, Work(44, "ALLREDUCE", 6832129, 6832129, 1800000), "2.3",
         "nanogpt", PrefixStyle.BARE, PrefixStyle.DEFAULT, "https://github.com/MLI-lab/DeepDeWedge/issues/22"),
        ("16 ranks, rank 9 silent in PyTorch 2.7", 16, 9, Work(120049), "2.7", "titan", PrefixStyle.BARE,
         PrefixStyle.NODE_FILES, "https://github.com/snowflakedb/ArcticTraining/issues/219"),
    )  # fmt: skip
    for name, count, silent, work, version, flavour, plain, other, source in rows:
        met = Said(
            0 if silent else 1,
            f"INFO:torch.distributed.distributed_c10d:Rank {0 if silent else 1}: Completed store-based barrier for "
            f"key:store_based_barrier_key:1 with {count} nodes.",
        )
        cases += in_two(
            f"watchdogs of {name}",
            [met, *_silent(count, silent, work, version)],
            Label("restart", (silent,)),
            source,
            range(count),
            flavour,
            (plain, other),
            TWO_NODES,
        )
    return cases


def _behind_cases() -> list[JobLogCase]:
    """A rank ran out of time, too, but in an older work: the others wait for it."""
    last = Work(96120, timeout_ms=1800000)
    cases = in_two(
        "rank 7 at an older sequence number",
        _behind(8, {7: Work(64088, timeout_ms=1800000)}, last, "2.1"),
        Label("restart", (7,)),
        PYTORCH + "/issues/118369",
        flavour="lightning",
        styles=(PrefixStyle.BARE, PrefixStyle.DEFAULT),
    )
    cases += in_two(
        "rank 12 one work behind 15 others",
        _behind(16, {12: Work(1579, "_ALLGATHER_BASE", 16, 256)}, Work(1580), "2.5"),
        Label("restart", (12,)),
        PYTORCH,
        range(16),
        "megatron",
        (PrefixStyle.BARE, PrefixStyle.SRUN),
        TWO_NODES,
    )
    cases += in_two(
        "rank 2 never enqueued the work, by the monitors' lines",
        [
            *mixed([timed_out(rank, Work(1580), "2.7", enqueued=1582) for rank in all_but(8, 2)]),
            dump_signal(2, 0, 1579, 1579),
            *[dump_signal(rank, 0, 1582, 1579) for rank in all_but(8, 2)],
        ],
        Label("restart", (2,)),
        PYTORCH + "/blob/v2.7.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        flavour="titan",
        styles=(PrefixStyle.BARE, PrefixStyle.DEFAULT),
    )
    cases += in_two(
        "rank 6 enqueued less, though its watchdog fired for a later group",
        [
            *mixed([timed_out(rank, Work(310, "ALLREDUCE", 8, 8), "2.5", enqueued=312) for rank in all_but(8, 6)]),
            dump_signal(6, 1, 309, 309),
        ],
        Label("restart", (6,)),
        PYTORCH,
        flavour="trainer",
        styles=(PrefixStyle.RANK, PrefixStyle.RANK_FILES),
    )  # fmt: skip
    cases += in_two(
        "ranks 4 to 7 of a node behind the other node's",
        mixed(
            [timed_out(rank, Work(900 if rank >= 4 else 901), "2.5", enqueued=900 if rank >= 4 else 905) for rank in range(8)]
        ),
        Label("restart", (4, 5, 6, 7), ("n2",)),
        PYTORCH,
        styles=(PrefixStyle.HOST, PrefixStyle.NODE_FILES),
        shape=SMALL_NODES,
    )  # fmt: skip
    return cases


def _group_cases() -> list[JobLogCase]:
    """Watchdogs of groups that don't hold all ranks."""
    tensor = [
        timed_out(rank, Work(5120, "_ALLGATHER_BASE", 4096, 16384), "2.5", group="TENSOR_MODEL_PARALLEL_GROUP", group_id=3)
        for rank in (4, 5, 7)
    ]  # fmt: skip
    data = [
        timed_out(rank, Work(801), "2.5", group="DATA_PARALLEL_GROUP", group_id=1)
        for rank in (0, 1, 2, 3)
    ]
    cases = in_two(
        "rank 6 silent in its tensor group, the data group waits",
        mixed(tensor + data),
        Label("restart", (6,)),
        "https://github.com/NVIDIA/Megatron-LM/issues/1207",
        flavour="megatron",
        styles=(PrefixStyle.BARE, PrefixStyle.SRUN),
    )
    cases += in_two(
        "a pipeline stage waits for the stage before it, which says nothing",
        mixed(
            [
                timed_out(rank, Work(412, "RECV", 8388608, 8388608), "2.5", group="PIPELINE_MODEL_PARALLEL_GROUP", group_id=2)
                for rank in (2, 3)
            ]
        ),
        Label("restart", None),
        "https://github.com/NVIDIA/Megatron-LM",
        range(4),
        "megatron",
        (PrefixStyle.BARE, PrefixStyle.DEFAULT),
    )  # fmt: skip
    return cases


def _equal_cases() -> list[JobLogCase]:
    """Every rank launched the same work and none was late: a network or a device, and nobody to name."""
    return [
        *in_two(
            "16 ranks wait in the same work",
            mixed([timed_out(rank, Work(2044), "2.5") for rank in range(16)]),
            Label("restart", ()),
            "https://github.com/XPixelGroup/BasicSR/issues/737",
            range(16),
            "deepspeed",
            (PrefixStyle.BARE, PrefixStyle.HOST),
            TWO_NODES,
        ),
        *in_two(
            "4 ranks wait in the same work in PyTorch 2.7",
            mixed([timed_out(rank, Work(11), "2.7", enqueued=11) for rank in range(4)]),
            Label("restart", ()),
            "https://github.com/hiyouga/LlamaFactory/issues/8261",
            range(4),
            "trainer",
            (PrefixStyle.BARE, PrefixStyle.RANK_FILES),
        ),
    ]


def _mismatch_cases() -> list[JobLogCase]:
    """Ranks launched different works: the program's fault."""
    options = (
        "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )

    def fingerprint(operation: str, number: int, shape: str, dtype: str = "Float") -> str:
        return (
            f"CollectiveFingerPrint(SequenceNumber={number}, OpType={operation}, TensorShape=[{shape}], "
            f"TensorDtypes={dtype}, TensorDeviceTypes={options})"
        )

    def differ(rank: int, other: int, number: int) -> Said:
        mine, its = (
            fingerprint("ALLREDUCE", number, "195812480"),
            fingerprint("BROADCAST", number, "51123456"),
        )
        mine, its = (mine, its) if rank != 1 else (its, mine)
        return Said(
            rank,
            trace(
                f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: {mine}, "
                f"but Rank {other} is running collective: {its}.Collectives differ in the following aspects: \t Op type: "
                "ALLREDUCEvs BROADCAST",
                *ALL_REDUCE,
            ),
        )  # fmt: skip

    cases = in_two(
        "collectives differ at step 0, by the wrapper",
        [differ(rank, 1 if rank != 1 else 0, 0) for rank in range(4)] + [torchrun_summary(0, 1, (1, 2, 3))],
        Label("stop", (1,), also=("restart",)),
        "https://github.com/modelscope/ms-swift/pull/9443",
        range(4),
        "trainer",
        (PrefixStyle.RANK, PrefixStyle.RANK_FILES),
    )  # fmt: skip
    cases += in_two(
        "works of one number differ in operation and size",
        mixed(
            [
                timed_out(rank, Work(80078, "BROADCAST", 5056, 5056) if rank == 7 else Work(80078, "ALLREDUCE", 2106881, 2106881), "2.4", enqueued=80078)
                for rank in range(8)
            ]
        ),
        Label("restart", (7,), also=("stop",)),
        "https://github.com/NVIDIA/nccl/issues/1409",
        styles=(PrefixStyle.BARE, PrefixStyle.SRUN),
    )  # fmt: skip
    cases += in_two(
        "NCCL finds collectives that differ at initialisation",
        [
            Said(rank, f"gpu-node-01:{4200 + rank}:{4300 + rank} [{rank}] init.cc:1247 NCCL WARN Mismatched collective detected, "
                       "please check your collective calls at and around rank 3. You can use NCCL_DEBUG=INFO and "
                       "NCCL_DEBUG_SUBSYS=COLL to see the collective logs")
            for rank in range(4)
        ],
        Label("restart", None, also=("stop",)),
        "https://github.com/NVIDIA/nccl/issues/296",
        range(4),
    )  # fmt: skip
    return cases


def _start_cases() -> list[JobLogCase]:
    """Jobs whose ranks never met, and barriers that name who is missing."""
    cases = in_two(
        "15 of 16 ranks reached the store's barrier",
        [
            Said(rank, trace(f"torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on "
                             f"rank {rank}, for key: store_based_barrier_key:1 (world_size=16, num_workers_joined=15, "
                             "timeout=0:30:00 error=wait timeout after 1800000ms, keys: /default_pg/0//"
                             "store_based_barrier_key:1:last_worker)", *INIT))
            for rank in all_but(16, 13)
        ],
        Label("restart", (13,)),
        "https://github.com/facebookincubator/submitit/issues/1613",
        range(16),
        "plain",
        (PrefixStyle.RANK, PrefixStyle.SRUN),
        TWO_NODES, is_at_start=True)  # fmt: skip
    cases += in_two(
        "a monitored barrier names rank 3",
        [
            Said(0, trace("RuntimeError: Rank 3 failed to pass monitoredBarrier in 1800000 ms", *TRAIN,
                          f"{SITE}/torch/distributed/distributed_c10d.py:4121:monitored_barrier")),
            *[Said(rank, trace(f"RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while "
                               "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original "
                               "exception: \n[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
                               "[10.1.0.11]:51144", *TRAIN)) for rank in (1, 2)],
        ],
        Label("restart", (3,)),
        PYTORCH + "/blob/v2.4.0/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
        range(4),
        "plain",
        (PrefixStyle.RANK, PrefixStyle.RANK_FILES),
    )  # fmt: skip
    cases += in_two(
        "clients of the store never joined",
        [Said(0, trace("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.",
                       *INIT, f"{SITE}/torch/distributed/rendezvous.py:185:_create_c10d_store"))],
        Label("restart", None),
        "https://github.com/OpenRLHF/OpenRLHF/issues/1040",
        range(3),
        styles=(PrefixStyle.BARE, PrefixStyle.RANK), is_at_start=True)  # fmt: skip
    cases += in_two(
        "gloo waited for rank 2, which slept",
        [
            Said(rank, trace("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
                             "1800000ms for recv operation to complete", *ALL_REDUCE))
            for rank in (0, 1, 3)
        ] + [torchrun_summary(0, 1, (1, 3))],
        Label("restart", (2,)),
        PYTORCH,
        range(4),
        "nanogpt",
        (PrefixStyle.RANK, PrefixStyle.DEFAULT),
    )  # fmt: skip
    return cases


def _stuck_cases() -> list[JobLogCase]:
    """Watchdogs that stood still themselves, and stacks of ranks."""

    def heartbeat(rank: int) -> Said:
        pg = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        return Said(
            rank,
            f"[rank{rank}]:[E216 13:04:08.104644 ProcessGroupNCCL.cpp:1316] {pg} Heartbeat monitor timed out! Process will be "
            f"terminated after dumping debug info. workMetaList_.size()=1\n"
            f"[rank{rank}]:[F216 13:12:08.104644 ProcessGroupNCCL.cpp:1557] {pg} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. "
            "This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be "
            "triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other "
            "deadlock-prone behaviors.",
        )  # fmt: skip

    cases = in_two(
        "the watchdog of rank 6 is stuck, the others time out",
        [heartbeat(6), *mixed([timed_out(rank, Work(700), "2.5") for rank in all_but(8, 6)]), torchrun_summary(6, -6, ranks=8)],
        Label("restart", (6,)),
        "https://github.com/hiyouga/LlamaFactory/issues/6953",
        flavour="titan",
        styles=(PrefixStyle.BARE, PrefixStyle.DEFAULT),
    )  # fmt: skip
    reading = (
        'Thread 4203 (idle): "MainThread"\n    _poll (selectors.py:416)\n    wait (multiprocessing/connection.py:947)\n'
        "    _try_get_data (torch/utils/data/dataloader.py:1243)\n    __next__ (torch/utils/data/dataloader.py:708)\n"
        "    main (train.py:171)"
    )
    reducing = (
        'Thread {pid} (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n'
        "    sync_gradients (train.py:177)\n    main (train.py:181)"
    )
    cases += in_two(
        "py-spy's stacks: rank 3 reads data, the others reduce",
        [
            Said(rank, f"Process {4200 + rank}: python train.py --rank {rank}\nPython v3.11.9 (/opt/conda/bin/python3.11)\n\n"
                       + (reading if rank == 3 else reducing.format(pid=4200 + rank)))
            for rank in range(8)
        ],
        Label("restart", (3,), also=("unknown",)),
        "https://github.com/benfred/py-spy",
        styles=(PrefixStyle.RANK_FILES, PrefixStyle.SRUN),
    )  # fmt: skip
    cases += in_two(
        "faulthandler's stack of rank 1 on a time-out while it reads a file",
        [
            *mixed([timed_out(rank, Work(55), "2.5") for rank in (0, 2, 3)]),
            Said(1, "Timeout (0:10:00)!\nThread 0x00007f1ce7c1f0d0 (most recent call first):\n"
                    '  File "/home/user/data.py", line 44 in read_shard\n  File "/home/user/data.py", line 81 in __next__\n'
                    '  File "/home/user/train.py", line 171 in main\n  File "/home/user/train.py", line 212 in <module>'),
        ],
        Label("restart", (1,)),
        "https://docs.python.org/3/library/faulthandler.html",
        range(4),
        "nanogpt",
        (PrefixStyle.RANK, PrefixStyle.RANK_FILES),
    )  # fmt: skip
    return cases


def _cause_before_time_out() -> list[JobLogCase]:
    """The rank that the others wait for had said why it ended, long before."""
    memory = Said(
        3,
        trace(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 564.00 MiB. GPU 3 has a total capacity of 79.11 GiB "
            "of which 203.12 MiB is free. Process 9841 has 78.90 GiB memory in use. Of the allocated memory 75.13 GiB is "
            "allocated by PyTorch, and 1.69 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
            "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
            "Memory Management",
            *TRAIN,
        ),
    )
    cases = in_two(
        "CUDA memory of rank 3, then 15 watchdogs",
        [memory, *mixed([timed_out(rank, Work(4021), "2.5") for rank in all_but(16, 3)])],
        Label("restart", (3,), also=("stop",)),
        "https://github.com/Lightning-AI/litgpt/issues/303",
        range(16),
        "lightning",
        (PrefixStyle.RANK, PrefixStyle.SRUN),
        TWO_NODES,
    )
    killed = Said(
        None,
        "[812345.120331] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[812345.120552] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,"
        "oom_memcg=/slurm/uid_1000/job_4711,task_memcg=/slurm/uid_1000/job_4711/step_0,task=python,pid=4205,uid=1000\n"
        "[812345.120601] Memory cgroup out of memory: Killed process 4205 (python) total-vm:88211232kB, anon-rss:64211232kB, "
        "file-rss:72312kB, shmem-rss:1024kB, UID:1000 pgtables:131072kB oom_score_adj:0",
    )
    cases += in_two(
        "the kernel killed rank 5 before the watchdogs of the others",
        [
            killed,
            *mixed([timed_out(rank, Work(77), "2.5") for rank in all_but(8, 5)]),
            torchrun_summary(5, -9, ranks=8),
        ],
        Label("restart", (5,)),
        "https://www.kernel.org/doc/html/latest/admin-guide/cgroup-v2.html",
        flavour="megatron",
        styles=(PrefixStyle.BARE, PrefixStyle.DEFAULT),
    )
    bad = Said(2, trace("KeyError: 'input_ids'", *TRAIN, "/home/user/data.py:61:collate"))
    cases += [
        a_case(
            "a KeyError of rank 2 in one batch, then watchdogs of 7 others",
            woven(line_by_line([bad]), line_by_line(_silent(8, 2, Work(640), "2.5"))),
            Label("restart", (2,), also=("stop",)),
            PYTORCH,
            PrefixStyle.SRUN,
        ),
        a_case(
            "a summary of torchrun names a watchdog's victim, rank 4 was silent",
            with_noise([*_silent(8, 4, Work(1580), "2.5"), torchrun_summary(0, -6, (1, 2), ranks=8)], range(8), "trainer", noisy_end=0),
            Label("restart", (4,)),
            "https://github.com/pytorch/pytorch/issues/123070",
            PrefixStyle.BARE,
            is_noisy=True,
        ),
        a_case(
            "progress stops and nothing else is said",
            steps("nanogpt", 100, 40),
            Label("unknown", None),
            "https://github.com/karpathy/nanoGPT",
        ),
    ]  # fmt: skip
    return cases


HANGS: Sequence[JobLogCase] = (
    *_silent_cases(),
    *_behind_cases(),
    *_group_cases(),
    *_equal_cases(),
    *_mismatch_cases(),
    *_start_cases(),
    *_stuck_cases(),
    *_cause_before_time_out(),
)
