"""Logs of jobs that were killed, cancelled or never began: signals, memory, schedulers, launchers, rendezvous."""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    INIT,
    PYTORCH,
    SITE,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    Shape,
    a_case,
    chatter,
    deepspeed_end,
    gloo_closed,
    in_two,
    steps,
    torchrun_summary,
    trace,
    with_noise,
)

SLURM = "https://slurm.schedmd.com/srun.html"
FOUR = range(4)
TWO_NODES = Shape(4, ("gpu-node-01", "gpu-node-02"))
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."


def launcher(*lines: str) -> list[Said]:
    return [Said(None, "\n".join(lines))]


def _signals() -> list[JobLogCase]:
    """Ranks that a signal ended."""
    victims = [gloo_closed(rank) for rank in (0, 1, 3)]
    segfault = Said(
        2,
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1ce7c1f0d0 (most recent call first):\n"
        '  File "/home/user/ops.py", line 31 in fused_kernel\n  File "/home/user/train.py", line 171 in main\n'
        '  File "/home/user/train.py", line 212 in <module>',
    )
    abort = Said(
        2,
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    )
    rows: Sequence[tuple[str, list[Said], str, Label]] = (
        ("SIGKILL of rank 2 with a summary", [*victims, torchrun_summary(2, -9)],
         "https://github.com/hpcaitech/ColossalAI/issues/3514", Label("restart", (2,))),
        ("a segmentation fault of rank 2", [segfault, *victims, torchrun_summary(2, -11)], PYTORCH, Label("restart", (2,))),
        ("an abort of rank 2 for want of memory", [abort, *victims, torchrun_summary(2, -6)], PYTORCH, Label("restart", (2,))),
        ("a bus error of rank 2", [torchrun_summary(2, -7)], "https://github.com/deepspeedai/DeepSpeed/issues/4000", Label("restart", (2,))),
        ("a loader's worker without shared memory",
         [Said(2, "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                  + trace("RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are "
                          "out of shared memory. Please try to raise your shared memory limit.", *TRAIN,
                          f"{SITE}/torch/utils/data/_utils/signal_handling.py:73:handler")), *victims],
         PYTORCH + "/issues/108861", Label("restart", (2,), also=("stop",))),
        ("a loader's worker that was killed",
         [Said(2, trace("RuntimeError: DataLoader worker (pid(s) 46794) exited unexpectedly", *TRAIN, f"{SITE}/torch/utils/data/dataloader.py:1285:_try_get_data")), *victims],
         PYTORCH, Label("restart", (2,))),
        ("a loader's worker that was killed by SIGKILL",
         [Said(2, trace("RuntimeError: DataLoader worker (pid 46794) is killed by signal: Killed. ", *TRAIN, f"{SITE}/torch/utils/data/_utils/signal_handling.py:73:handler")), *victims],
         PYTORCH, Label("restart", (2,))),
        ("host memory that can't be had",
         [Said(2, trace("OSError: [Errno 12] Cannot allocate memory", *TRAIN, "/opt/conda/lib/python3.11/os.py:1234:fork")), *victims], PYTORCH, Label("restart", (2,))),
    )  # fmt: skip
    cases = []
    for index, (name, said, source, label) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.SRUN),
            (PrefixStyle.SRUN, PrefixStyle.RANK_FILES),
            (PrefixStyle.RANK_FILES, PrefixStyle.DEFAULT),
        )[index % 3]
        flavour = ("megatron", "nanogpt", "trainer")[index % 3]
        cases += in_two(name, said, label, source, FOUR, flavour, styles)
    return cases


def _deepspeed_and_mpi() -> list[JobLogCase]:
    """Launchers that name no rank, or a rank in their own words."""
    mpi = launcher(
        "--------------------------------------------------------------------------",
        "Primary job  terminated normally, but 1 process returned",
        "a non-zero exit code. Per user-direction, the job has been aborted.",
        "--------------------------------------------------------------------------",
        "--------------------------------------------------------------------------",
        "mpirun noticed that process rank 7 with PID 0 on node gpu-node-02 exited on signal 9 (Killed).",
        "--------------------------------------------------------------------------",
    )
    detected = launcher(
        "--------------------------------------------------------------------------",
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:",
        "",
        "  Process name: [[29973,1],5]",
        "  Exit code:    1",
        "--------------------------------------------------------------------------",
    )
    return [
        *in_two("DeepSpeed's return code -9", [deepspeed_end(-9, 4)], Label("restart", None), "https://github.com/deepspeedai/DeepSpeed/issues/3232",
                FOUR, "deepspeed", (PrefixStyle.BARE, PrefixStyle.HOST)),
        *in_two("DeepSpeed's return code -11", [deepspeed_end(-11, 2)], Label("restart", None, also=("unknown",)), "https://github.com/deepspeedai/DeepSpeedExamples/issues/626",
                range(2), "deepspeed", (PrefixStyle.BARE, PrefixStyle.HOST)),
        *in_two("mpirun noticed that rank 7 was killed", mpi, Label("restart", (7,), ("gpu-node-02",)), "https://github.com/horovod/horovod/issues/469",
                range(8), "plain", (PrefixStyle.BARE, PrefixStyle.MPI), TWO_NODES),
        a_case("DeepSpeed's return code 1 and nothing else", [*steps("deepspeed", 1, 6), deepspeed_end(1, 2)], Label("unknown", None, also=("restart",)),
               "https://github.com/deepspeedai/DeepSpeed/issues/5302"),
        a_case("mpirun's first process with an exit code and nothing else", [*steps("plain", 1, 6), *detected], Label("unknown", None, also=("restart",)),
               "https://github.com/horovod/horovod/issues/1421"),
        a_case("torchrun's exit code 1 and no traceback", [*chatter(FOUR), *steps("plain", 1, 6), torchrun_summary(2, 1)], Label("unknown", None, also=("restart",)),
               "https://github.com/Facico/Chinese-Vicuna/issues/113", is_noisy=True),
        a_case("accelerate's command ended with 1 and no traceback",
               launcher(trace("subprocess.CalledProcessError: Command '['/opt/conda/bin/python', 'train.py']' returned non-zero exit status 1.",
                              "/opt/conda/bin/accelerate:8:<module>", f"{SITE}/accelerate/commands/launch.py:763:simple_launcher")),
               Label("unknown", None, also=("restart",)), "https://github.com/huggingface/accelerate"),
        a_case("accelerate's command was killed",
               launcher(trace("subprocess.CalledProcessError: Command '['/opt/conda/bin/python', 'train.py']' died with <Signals.SIGKILL: 9>.",
                              "/opt/conda/bin/accelerate:8:<module>", f"{SITE}/accelerate/commands/launch.py:763:simple_launcher")),
               Label("restart", None), "https://github.com/huggingface/accelerate"),
    ]  # fmt: skip


def _slurm() -> list[JobLogCase]:
    """What slurmstepd and srun say when they end a step."""
    rows: Sequence[tuple[str, list[Said], str, Label]] = (
        ("a time limit", launcher("slurmstepd: error: *** JOB 494583 ON gpu-node-01 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***", ABORTED,
                                  "slurmstepd: error: *** STEP 494583.0 ON gpu-node-01 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***"),
         "https://github.com/ZettaAI/zetta_utils/issues/671", Label("restart", ())),
        ("preemption", launcher("slurmstepd: error: *** JOB 37361369 ON gpu-node-01 CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***", ABORTED),
         "https://github.com/facebookincubator/submitit/issues/1613", Label("restart", ())),
        ("a requeue", launcher("slurmstepd: error: *** JOB 608 ON gpu-node-01 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***", ABORTED),
         "https://github.com/facebookincubator/submitit/issues/1708", Label("restart", ())),
        ("a node that failed", launcher("slurmstepd: error: *** JOB 4711 ON gpu-node-01 CANCELLED AT 2025-03-01T10:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", ABORTED,
                                        "srun: error: Node failure on gpu-node-02"), SLURM, Label("restart", None, ("gpu-node-02",))),
        ("a task that Slurm's memory limit killed", launcher("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
                                                             "srun: error: gpu-node-02: task 5: Out Of Memory"),
         "https://github.com/nextflow-io/nextflow/issues/5932", Label("restart", (5,), ("gpu-node-02",))),
        ("a killed task", launcher("srun: error: gpu-node-01: task 3: Killed", "srun: Terminating StepId=4711.0", "slurmstepd: error: *** STEP 4711.0 ON gpu-node-01 CANCELLED AT 2025-03-01T10:12:44 ***"),
         "https://github.com/ArjunaCluster/ArjunaUsers/issues/48", Label("restart", (3,), ("gpu-node-01",))),
        ("a segmentation fault of a task", launcher("srun: error: gpu-node-02: task 6: Segmentation fault (core dumped)", "srun: Terminating StepId=4711.0"), SLURM, Label("restart", (6,), ("gpu-node-02",))),
        ("a launch that failed", launcher("srun: error: Task launch for StepId=4711.0 failed on node gpu-node-02: Communication connection failure",
                                          "srun: error: Application launch failed: Communication connection failure", ABORTED), SLURM, Label("restart", None, ("gpu-node-02",))),
    )  # fmt: skip
    cases = []
    for index, (name, said, source, label) in enumerate(rows):
        flavour = ("megatron", "lightning", "titan", "plain")[index % 4]
        cases += in_two(
            f"Slurm: {name}",
            said,
            label,
            source,
            range(8),
            flavour,
            (PrefixStyle.BARE, PrefixStyle.SRUN),
            TWO_NODES,
        )
    cases += [
        a_case("Slurm: somebody cancelled the job",
               [*steps("megatron", 1, 10), *launcher("slurmstepd: error: *** STEP 4711.0 ON gpu-node-01 CANCELLED AT 2025-03-01T10:12:44 ***", ABORTED)],
               Label("unknown", (), also=("restart",)), SLURM),
        a_case("Slurm: scancel in the words of srun -l, which ends all tasks",
               [*[Said(rank, "step 12 loss 0.7214") for rank in range(3)],
                Said(0, "slurmstepd-node1: error: *** STEP 1908804.0 ON node1 CANCELLED AT 2026-11-29T14:35:12 ***"),
                *launcher("srun: Job step aborted: Waiting up to 5 seconds for job step to finish.", "srun: error: node2: task 1: Terminated",
                          "srun: error: node3: task 2: Terminated", "srun: error: node1: task 0: Terminated")],
               Label("unknown", (), also=("restart",)), "a run of srun -l", PrefixStyle.SRUN),
        a_case("Slurm: tasks with exit code 1 and no traceback",
               [*steps("plain", 1, 10), *launcher("srun: error: gpu-node-02: tasks 4-7: Exited with exit code 1", "srun: Terminating StepId=4711.0")],
               Label("unknown", None, also=("restart",)), "https://github.com/facebookincubator/submitit/issues/1708"),
        a_case("Slurm: an expired credential",
               launcher("srun: error: Task launch for 36.0 failed on node gpu-node-02: Job credential expired", "srun: error: Application launch failed: Job credential expired", ABORTED),
               Label("restart", None, ("gpu-node-02",)), "https://github.com/ai4d-iasc/trixie/issues/58"),
        a_case("submitit's signal of preemption in noise",
               with_noise(launcher("submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on gpu-node-01: this job is preempted.",
                                   "slurmstepd: error: *** STEP 608.0 ON gpu-node-01 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***"), FOUR, "plain"),
               Label("restart", ()), "https://github.com/facebookincubator/submitit/issues/1708", PrefixStyle.SRUN, is_noisy=True),
    ]  # fmt: skip
    return cases


def _containers() -> list[JobLogCase]:
    """A container's memory limit, evictions, spot nodes."""
    return [
        *in_two("the kernel killed a container's process for memory",
                [Said(None, "Memory cgroup out of memory: Killed process 4201 (python) total-vm:88211232kB, anon-rss:64211232kB, file-rss:72312kB, shmem-rss:1024kB, UID:0 pgtables:131072kB oom_score_adj:992"),
                 torchrun_summary(1, -9)],
                Label("restart", (1,)), "https://www.kernel.org/doc/html/latest/admin-guide/cgroup-v2.html", FOUR, "trainer", (PrefixStyle.BARE, PrefixStyle.KUBE)),
        *in_two("SIGTERM to torchrun while a pod is evicted",
                launcher("W0301 10:12:44.110000 4100 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers",
                         "W0301 10:12:44.111000 4100 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4200 closing signal SIGTERM",
                         trace("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4100 got signal: 15", "/opt/conda/bin/torchrun:8:<module>",
                               f"{SITE}/torch/distributed/elastic/multiprocessing/api.py:84:_terminate_process_handler")),
                Label("restart", ()), PYTORCH, FOUR, "titan", (PrefixStyle.BARE, PrefixStyle.KUBE)),
        a_case("Ctrl-C of a person",
               [*steps("nanogpt", 1, 20), *[Said(rank, trace("KeyboardInterrupt", *TRAIN)) for rank in FOUR],
                *launcher(trace("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4100 got signal: 2", "/opt/conda/bin/torchrun:8:<module>"))],
               Label("unknown", (), also=("restart",)), PYTORCH, PrefixStyle.RANK),
        a_case("a shell that reports a kill", launcher("step 3 loss 2.10", "/var/spool/slurmd/job4711/slurm_script: line 9:  4727 Killed                  python train.py"),
               Label("restart", None), "https://github.com/c3nl-neuraldynamics/c3nl_cluster/issues/20"),
    ]  # fmt: skip


def _meeting() -> list[JobLogCase]:
    """Rendezvous, ports and stores."""
    timeout = trace(
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "/opt/conda/bin/torchrun:8:<module>",
        f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:670:_run", code="raise RendezvousTimeoutError",
    )  # fmt: skip
    connection = trace(
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner "
        "exception for details.", "/opt/conda/bin/torchrun:8:<module>",
        f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:162:_create_tcp_store",
    )  # fmt: skip
    port = trace(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
        "false, code: -98, name: EADDRINUSE, message: address already in use",
        *INIT,
    )
    old_port = trace(
        "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to "
        "[::]:29500 (errno: 98 - Address already in use).",
        *INIT,
    )
    name = trace(
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (gpu-node-09, 29500). The "
        "name or service is not known: gai error: -2 - Name or service not known",
        *INIT,
    )
    rows: Sequence[tuple[str, list[Said], str, Label]] = (
        ("a rendezvous that ran out of time", launcher(timeout), "https://github.com/ymcui/Chinese-LLaMA-Alpaca-2/issues/274", Label("restart", None)),
        ("a rendezvous store that can't be reached", launcher("[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 10.1.0.11:1234", connection),
         PYTORCH + "/issues/107021", Label("restart", None)),
        ("a port that is in use", [Said(0, port)], PYTORCH, Label("restart", None, also=("unknown",))),
        ("a port that is in use, in an old PyTorch", [Said(0, old_port), torchrun_summary(0, 1)], PYTORCH, Label("restart", None, also=("unknown",))),
        ("a host's name that isn't known", [Said(1, name)], PYTORCH, Label("restart", None, also=("stop", "unknown"))),
        ("a node that left the rendezvous", launcher("W0301 10:12:44.110000 4100 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1218] The node "
                                                     "'gpu-node-02_4100_0' has failed to send a keep-alive heartbeat to the rendezvous 'run1' due to an error of type RendezvousConnectionError."),
         PYTORCH + "/issues/116974", Label("restart", None, also=("unknown",))),
    )  # fmt: skip
    return [
        case
        for index, (title, said, source, label) in enumerate(rows)
        for case in in_two(
            title, said, label, source, FOUR, "plain",
            ((PrefixStyle.RANK, PrefixStyle.SRUN), (PrefixStyle.BARE, PrefixStyle.KUBE))[index % 2], is_at_start=True)
    ]  # fmt: skip


ENDS: Sequence[JobLogCase] = (
    *_signals(),
    *_deepspeed_and_mpi(),
    *_slurm(),
    *_containers(),
    *_meeting(),
)
