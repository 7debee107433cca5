"""Ends of jobs as threads of public trackers show them: launchers, schedulers and libraries that are rare elsewhere.

Each was labelled before the rules judged it. Paths are neutral; error lines have the programs' own form.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
    BACKWARD,
    SITE,
    TRAIN,
    JobLogCase,
    PrefixStyle,
    Said,
    chatter,
    deepspeed_end,
    mixed,
    remote_closed,
    steps,
    torchrun_summary,
    trace,
    written,
)

HF = (
    "/home/user/src/train.py:14:<module>",
    "/home/user/src/llamafactory/train/tuner.py:110:run_exp",
    f"{SITE}/transformers/trainer.py:2171:train",
    f"{SITE}/transformers/trainer.py:2480:_inner_training_loop",
)
FIT = (
    *TRAIN,
    f"{SITE}/lightning/pytorch/trainer/trainer.py:608:fit",
    f"{SITE}/lightning/pytorch/trainer/call.py:38:_call_and_handle_interrupt",
)
EPOCH = (
    "/home/user/tools/train.py:319:<module>",
    "/home/user/tools/train.py:314:main",
    "/home/user/tools/train.py:176:train_one_epoch",
)
NEXT = f"{SITE}/torch/utils/data/dataloader.py:701:__next__"
CUDA_TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)


def field_case(
    name: str,
    decision: str,
    said: str | Sequence[Said],
    source: str,
    *,
    ranks: tuple[int, ...] | None = None,
    nodes: tuple[str, ...] | None = None,
    error_class: str | None = None,
    blame: str | None = None,
    also: tuple[str, ...] = (),
    style: PrefixStyle = PrefixStyle.BARE,
) -> JobLogCase:
    """Return a case of text as it was pasted, or of what processes said."""
    blocks = [Said(None, said)] if isinstance(said, str) else said
    return JobLogCase(
        name,
        written(blocks, style),
        decision,
        source if source.startswith("http") else f"https://github.com/{source}",
        error_class=error_class,
        culprit_ranks=ranks,
        culprit_nodes=nodes,
        blame=blame,
        also=also,
        is_noisy=len(blocks) > 3,
    )


def _hangs() -> list[JobLogCase]:
    caught = "[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=120000) ran for 120822 milliseconds before timing out."
    jax = "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:\n" + "\n".join(f"/job:jax_worker/replica:0/task:{n}" for n in (1, 6, 3, 2, 5, 7, 4)) + "\n\nAdditional GRPC error information from remote target unknown_target_for_coordination_leader while calling /tensorflow.CoordinationService/Barrier:\n"  # fmt: skip
    ei = "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6\n[ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api failed.\nEI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the data in time. Please check the reason for the rank being stuck"
    return [
        field_case("half of four ranks wait for their first reduction", "restart",
                   "\n".join(caught.format(r=r) for r in (2, 3)) + "\n[E ProcessGroupNCCL.cpp:488] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n[E ProcessGroupNCCL.cpp:494] To avoid data inconsistency, we are taking the entire process down.\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  [Rank 2] NCCL watchdog thread terminated with exception: " + caught.format(r=2)[27:],
                   "huggingface/picotron_tutorial/issues/6"),
        field_case("a rank of a subgroup ends with 1, and ten minutes later the rest waits in vain", "restart",
                   [torchrun_summary(4, 1, node="workergpu008"), Said(None, "srun: error: workergpu008: task 1: Exited with exit code 1"),
                    Said(None, "[rank0]:[E820 11:47:24.069865760 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=2, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n[rank0]:[E820 11:47:24.070046070 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 2, last enqueued NCCL work: 3, last completed NCCL work: 1.")],
                   "pytorch/pytorch/issues/134006"),
        field_case("ranks gather pieces of other sizes", "restart",
                   "\n".join(f"[rank{r}]:[E318 07:39:53.79263{r}246 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=610, OpType=COALESCED, NumelIn={n}, NumelOut={8 * n}, Timeout(ms)=600000) ran for 600086 milliseconds before timing out.\n[rank{r}]:[E318 07:39:53.79277{r}442 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {r}] Exception (either an error or timeout) detected by watchdog at work: 610, last enqueued NCCL work: 616, last completed NCCL work: 609."
                             for r, n in ((4, 56320), (6, 76800), (5, 56320), (7, 56320))),
                   "modelscope/DiffSynth-Studio/issues/458"),
        field_case("JAX: seven of eight tasks never register", "restart", trace(jax, "/root/llama-2-jax/train.py:146:<module>", f"{SITE}/jax/_src/distributed.py:95:initialize"),
                   "ayaka14732/llama-2-jax/issues/20"),
        field_case("JAX: a task sends no heartbeat", "restart",
                   "I1115 16:00:39.451247 140641718562816 trainer.py:501] Training: step 198\nI1115 16:00:39.451110 140427877240832 trainer.py:501] Training: step 198\n2022-11-15 16:03:15.140058: E external/org_tensorflow/tensorflow/core/distributed_runtime/coordination/coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly. [type.googleapis.com/tensorflow.CoordinationServiceError='']",
                   "EleutherAI/architecture-objective/issues/26", ranks=(37,)),
        field_case("JAX: a barrier whose tasks the log names, after a worker crashed", "restart",
                   trace("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: multihost_broadcast_sync0. Timed out task names:\n/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n", "/home/user/levanter/src/levanter/logging.py:232:init"),
                   "stanford-crfm/levanter/issues/432"),
        field_case("HCCL waits for data of a rank", "restart", [Said(1, trace(ei, *ALL_REDUCE)), Said(1, "        Solution: 1. Check the rank service processes with other errors or no errors in the cluster.")],
                   "vllm-project/vllm-ascend/issues/486", style=PrefixStyle.RANK),
        field_case("HCCL's process of an earlier job is still there", "restart",
                   trace("RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n[ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\nEJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n        Solution: Wait for 10s after killing the last training process and try again.", *TRAIN, f"{SITE}/torch/distributed/distributed_c10d.py:3439:barrier"),
                   "hiyouga/LlamaFactory/issues/3839"),
        field_case("an NPU's tasks run out of time", "restart",
                   "worker-1: [W NPUStream.cpp:365] Warning: NPU warning, error code is 107020[Error]: .\nworker-1: EH9999: Inner Error!\nworker-1:         rtDeviceSynchronize execute failed, reason=[task timeout][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]\nworker-1: EH9999: 2024-07-03-11:28:40.451.641  wait for compute device to finish failed, runtime result = 107020.[FUNC:ReportCallError][FILE:log_inner.cpp][LINE:161]\nworker-1: RuntimeError: ACL stream synchronize failed, error code:107020",
                   "Ascend/pytorch/issues/43"),
        field_case("a torchelastic rendezvous that ran out of time, as JSON", "restart",
                   'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n    "message": "RendezvousTimeoutError: ",\n    "extraInfo": {\n      "py_callstack": "Traceback (most recent call last):\\n  File \\"/opt/conda/lib/python3.8/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py\\", line 345, in wrapper\\n    return f(*args, **kwargs)\\n",\n      "timestamp": "1666258123"\n    }\n  }\n}\n'
                   + trace("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", f"{SITE}/torch/distributed/run.py:719:main", f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1025:next_rendezvous"),
                   "facebookresearch/av_hubert/issues/19", ranks=(), error_class="communication"),
        field_case("the client socket of c10d's store gets no answer", "restart",
                   "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 192.0.0.1:1234.\n" + trace("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:161:_create_tcp_store"),
                   "pytorch/pytorch/issues/107021", ranks=(), error_class="communication"),
        field_case("a rendezvous that another node closed", "restart",
                   [*steps("plain", 1, 9), Said(None, trace("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", f"{SITE}/torch/distributed/run.py:794:main", f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1111:_close"))],
                   "pytorch/pytorch/issues/116974", ranks=(), error_class="communication"),
    ]  # fmt: skip


def _ends() -> list[JobLogCase]:
    composer = "ERROR:composer.cli.launcher:Rank {r} crashed with exit code {c}.\nWaiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.\n"
    spawn = f"{SITE}/torch/multiprocessing/spawn.py:160:join"
    return [
        field_case("Composer: a bus error of rank 2", "restart", "WARNING: device_microbatch_size > device_batch_size, will be reduced from 8 -> 2.\nInitializing model...\nBuilding train loader...\nBuilding trainer...\n" + composer.format(r=2, c=-7) + "Global rank 0 (PID 1161) exited with code 0\nGlobal rank 2 (PID 1163) exited with code -7\nERROR:composer.cli.launcher:Global rank 0 (PID 1161) exited with code -15",
                   "mosaicml/llm-foundry/issues/258", ranks=(2,), error_class="crashed"),
        field_case("Composer: a crash of rank 0", "restart", "[2024-05-07 09:39:45,388][composer.utils.reproducibility][INFO] - Setting seed to 17\nstart to train........\n" + composer.format(r=0, c=-11) + "Global rank 0 (PID 147193) exited with code -11",
                   "mosaicml/diffusion/issues/140", ranks=(0,), error_class="crashed"),
        field_case("Composer: rank 1 finds another run's shared memory", "restart",
                   trace("FileExistsError: [Errno 17] File exists: '/000000_locals'", *TRAIN, f"{SITE}/streaming/base/shared/memory.py:74:__init__") + "\n" + composer.format(r=1, c=1) + "UserWarning: resource_tracker: '/af0626_barrier': [Errno 2] No such file or directory: '/af0626_barrier'\nERROR:composer.cli.launcher:Global rank 1 (PID 1003410) exited with code 1",
                   "mosaicml/examples/issues/292"),
        field_case("spawn: process 0 ends with 17", "restart", "distributed init (rank 0): tcp://localhost:17169\nsetting up world_size 8\n" + trace("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 17", *TRAIN, spawn),
                   "facebookresearch/fairseq/issues/2527", ranks=(0,)),
        field_case("spawn: process 1 gets no device memory", "restart",
                   trace("torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:", *TRAIN, spawn) + "\n" + trace("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 23.69 GiB total capacity; 2.10 GiB already allocated; 8.19 MiB free; 2.20 GiB reserved in total by PyTorch)", f"{SITE}/torch/multiprocessing/spawn.py:69:_wrap", "/home/user/train.py:80:run"),
                   "fairseq and torch/multiprocessing/spawn.py", ranks=(1,), error_class="device_memory"),
        field_case("Lightning: a folder that can't be made on rank 3", "restart",
                   [*steps("lightning", 7380, 9), Said(3, trace("OSError: [Errno 5] Input/output error: '/app/naifu555'", *TRAIN, "/usr/lib/python3.10/os.py:225:makedirs")), Said(None, "[rank: 3] Child process with PID 170 terminated with code 1. Forcefully terminating all other processes to avoid zombies \U0001f9df")],
                   "Mikubill/naifu/issues/35", ranks=(3,), error_class="storage", style=PrefixStyle.RANK),
        field_case("Lightning: a child process that was killed", "restart",
                   [*steps("lightning", 7380, 9), Said(None, "[rank: 5] Child process with PID 8170 terminated with code -9. Forcefully terminating all other processes to avoid zombies \U0001f9df")],
                   "Lightning-AI/pytorch-lightning/pull/18218", ranks=(5,), error_class="killed"),
        field_case("Megatron: a segmentation fault after iterations", "restart",
                   [*steps("megatron", 10, 5), Said(None, "W1223 05:17:58.996000 3304089 site-packages/torch/distributed/elastic/multiprocessing/api.py:908] Sending process 3304210 closing signal SIGTERM\nE1223 05:18:02.971000 3304089 site-packages/torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -11) local_rank: 0 (pid: 3304209) of binary: /opt/conda/bin/python3.12"), torchrun_summary(0, -11)],
                   "NVIDIA/Megatron-LM/issues/1880", ranks=(0,), error_class="crashed"),
        field_case("DeepSpeed: a process was killed after five steps", "restart", [*steps("deepspeed", 1, 5), deepspeed_end(-9, 2)],
                   "deepspeedai/DeepSpeed/issues/4890", error_class="killed"),
        field_case("DeepSpeed: Ctrl-C and an error of the launcher's own handler", "restart",
                   [*steps("deepspeed", 1, 5), Said(None, "[2023-05-30 20:29:14,854] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 19380\n" + trace("KeyboardInterrupt", *TRAIN, "/opt/conda/lib/python3.8/subprocess.py:1806:_wait") + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace("NameError: free variable 'kill_cmd' referenced before assignment in enclosing scope", f"{SITE}/deepspeed/launcher/runner.py:556:main", f"{SITE}/deepspeed/launcher/runner.py:548:sigkill_handler"))],
                   "deepspeedai/DeepSpeed/issues/3645", also=("unknown",)),
        field_case("verl: an actor's process died", "restart",
                   [Said(None, "(WorkerDict pid=8110) Actor use_remove_padding=True\n(main_task pid=7001) step:41 - actor/pg_loss:-0.021 - actor/grad_norm:0.312"), Said(None, trace("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n        class_name: create_colocated_worker_cls.<locals>.WorkerDict\n        actor_id: 2ff1880847bacdff86a9838801000000\n        pid: 8110\n        name: daMARVWorkerDict_0:5\n        ip: 222.20.97.158\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.", *TRAIN))],
                   "hiyouga/EasyR1/issues/163"),
        field_case("Ray ends a worker as the node runs low on memory", "restart",
                   trace("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.7.57, ID: 201f2cc4) where the task (actor ID: fead2dfe, name=RayTrainWorker.__init__, pid=89513, memory used=46.77GB) was running was 60.03GB / 62.86GB (0.955), which exceeds the memory usage threshold of 0.95.", *TRAIN, f"{SITE}/ray/_private/worker.py:2623:get"),
                   "ray-project/ray/issues/47461", blame="memory"),
        field_case("a watched script that bash saw killed, and the batch step's own count", "restart",
                   [Said(None, "Epoch: [0][415/1736]\t Loss 0.5844 MAE 0.6568 RMSE 0.7644\nEpoch: [0][447/1736]\t Loss 0.5504 MAE 0.6153 RMSE 0.7419"), Said(None, "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --prop hform --epochs 400\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.")],
                   "ArjunaCluster/ArjunaUsers/issues/52", error_class="oom_killed", blame="memory"),
        field_case("srun: three of four tasks ran out of memory", "restart",
                   [*chatter(range(4)), *steps("plain", 1, 5), Said(None, "slurmstepd: error: Detected 3 oom_kill events in StepId=440575.0. Some of the step tasks have been OOM Killed.\nsrun: error: nid001277: tasks 1-3: Out Of Memory\nsrun: Terminating StepId=440575.0\nslurmstepd: error: *** STEP 440575.0 ON nid001277 CANCELLED AT 2023-12-05T07:16:01 ***")],
                   "chrisknewman/tusas/issues/149", ranks=(1, 2, 3), nodes=("nid001277",), error_class="oom_killed", blame="memory"),
        field_case("kraken: a loader's worker was killed, and srun says of what", "restart",
                   "stage 1/50\n" + trace("RuntimeError: DataLoader worker (pid 21551) is killed by signal: Killed. ", *EPOCH, NEXT, f"{SITE}/torch/utils/data/_utils/signal_handling.py:66:handler") + "\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=4404.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: gpu001: task 0: Out Of Memory",
                   "FoNDUE-HTR/Documentation/issues/5", ranks=(0,), nodes=("gpu001",), error_class="oom_killed", blame="memory"),
        field_case("Lightning waits for 96 members until somebody cancels the job", "restart",
                   "GPU available: True (cuda), used: True\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/96\nslurmstepd: error: *** JOB 168885 ON scn67-10g CANCELLED AT 2023-08-31T18:04:42 ***",
                   "Lightning-AI/torchmetrics/issues/2300", ranks=(), blame="user", also=("unknown",)),
        field_case("LSF's memory limit", "restart", "epoch 3 step 400 loss 2.114\nTERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 130.\n\nResource usage summary:\n\n    CPU time :               4123.42 sec.\n    Max Memory :             64000 MB",
                   "https://www.ibm.com/products/hpc-workload-management", error_class="oom_killed", blame="memory"),
        field_case("PBS's walltime", "restart", "{'loss': 1.2214, 'grad_norm': 0.81, 'learning_rate': 4.9e-05, 'epoch': 0.41}\n=>> PBS: job killed: walltime 3612 exceeded limit 3600\nTerminated", "https://www.openpbs.org", ranks=(), error_class="time_limit", blame="user"),
        field_case("a node of the job fails, and Slurm says which", "restart",
                   [*chatter(range(4)), *steps("plain", 1, 5), Said(None, "srun: error: Node failure on gn021\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd: error: *** STEP 5534.0 ON gn020 CANCELLED AT 2025-03-01T10:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***")],
                   "https://slurm.schedmd.com/faq.html", nodes=("gn021",), error_class="node_failed"),
        field_case("a GPU that fell off the bus, with the host before the kernel's line", "restart",
                   [*chatter(range(4)), *steps("plain", 1, 5), Said(None, "Mar  1 10:12:44 gpu-b17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), Said(3, trace("RuntimeError: CUDA error: unspecified launch failure" + CUDA_TAIL, *BACKWARD)), torchrun_summary(3, 1)],
                   "https://docs.nvidia.com/deploy/xid-errors/", nodes=("gpu-b17",), error_class="device", blame="rank"),
        field_case("KeyboardInterrupt that Lightning handles", "restart", [*steps("lightning", 1, 9), Said(None, "Detected KeyboardInterrupt, attempting graceful shutdown ...\n" + trace("KeyboardInterrupt", *FIT))], "Lightning-AI/pytorch-lightning", ranks=(), blame="user", also=("unknown", "stop")),
    ]  # fmt: skip


def _devices() -> list[JobLogCase]:
    return [
        field_case("an ECC error that the watchdog repeats", "restart",
                   [*steps("plain", 1, 5), Said(None, trace("RuntimeError: CUDA error: uncorrectable ECC error encountered" + CUDA_TAIL, *TRAIN, "/home/user/library/sdxl_original_unet.py:257:get_timestep_embedding")), Said(None, "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered" + CUDA_TAIL + "Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7a71e4e84617 in /opt/conda/lib/libc10.so)\nterminate called after throwing an instance of 'c10::DistBackendError'")],
                   "kohya-ss/sd-scripts/issues/1434", ranks=(1,), error_class="device", blame="rank"),
        field_case("an ECC error in the words of an old release", "restart", "epoch 18 iter 200 / 372, train main loss 0.244\n" + trace("RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /pytorch/aten/src/THC/THCCachingHostAllocator.cpp:265", *EPOCH) + "\nterminate called without an active exception", "NVIDIA/semantic-segmentation/issues/33", error_class="device", blame="rank"),
        field_case("an NVLink error that only C++ reports", "restart",
                   "Epoch  1,   800/15756; ; ppl: 562.11 ; lr: 0.0000674 ; updates:     200; 26377 src tok/s; loss 6.31\nterminate called after throwing an instance of 'std::system_error'\n  what():  Transport endpoint is not connected\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable NVLink error detected during the execution\nException raised from create_event_internal at /pytorch/c10/cuda/CUDACachingAllocator.cpp:733 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x42 (0x7faf5458c2f2 in /opt/conda/lib/libc10.so)",
                   "pytorch/pytorch/issues/58155", error_class="device"),
        field_case("torchtitan: an illegal access before the first step", "restart",
                   "[rank0]:2025-01-28 13:23:00,193 - root - INFO - Training starts at step 1, with local batch size 8, global batch size 16, sequence length 2048, total steps 10 (warmup 2)\n[rank0]:[rank0]:[E128 13:23:00.788972321 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n[rank0]:CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n[rank0]:For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
                   "pytorch/torchtitan/issues/810", ranks=(0,), error_class="kernel_fault"),
        field_case("an AMD GPU's memory access fault", "restart", [*steps("trainer", 1, 5), Said(None, "Memory access fault by GPU node-4 (Agent handle: 0x56387095fa40) on address (nil). Reason: Unknown."), deepspeed_end(-6)], "deepspeedai/DeepSpeed/issues/6725", error_class="kernel_fault"),
        field_case("an AMD GPU that hangs", "restart", [*steps("trainer", 1, 5), Said(None, "HW Exception by GPU node-7 (Agent handle: 0x55d2d6d6a2c0) reason :GPU Hang"), torchrun_summary(5, -6)], "ROCm/legacy-rocm-build/issues/4021", ranks=(5,)),
        field_case("cuDNN can't execute, after steps", "restart", [*steps("plain", 1, 5), Said(None, trace("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", *BACKWARD))], "pytorch/pytorch/issues/27588"),
        field_case("cuBLAS gets no memory for its handle", "restart", trace("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", *TRAIN, f"{SITE}/torch/nn/modules/linear.py:114:forward"), "pytorch/pytorch/issues/39825", also=("stop",)),
        field_case("NCCL gets no device memory", "restart", trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes", *ALL_REDUCE), "CaraJ7/T2I-R1/issues/17"),
        field_case("one rank of eight runs out of device memory after steps, the others lose it", "restart",
                   [*steps("plain", 1, 9), Said(5, trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 5 has a total capacity of 79.11 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.89 GiB memory in use. Of the allocated memory 74.61 GiB is allocated by PyTorch, and 1.73 GiB is reserved by PyTorch but unallocated.", *BACKWARD)), *[remote_closed(r, 5) for r in (4, 6, 0)], torchrun_summary(0, 1, (4, 5))],
                   "huggingface/accelerate/issues/1519", ranks=(5,), error_class="device_memory", style=PrefixStyle.RANK),
        field_case("all ranks fill their devices before the first step", "stop",
                   mixed([Said(r, trace(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.50 GiB. GPU {r} has a total capacity of 79.11 GiB of which 2.20 GiB is free. Including non-PyTorch memory, this process has 76.89 GiB memory in use. Of the allocated memory 75.61 GiB is allocated by PyTorch, and 0.73 GiB is reserved by PyTorch but unallocated.", *TRAIN, f"{SITE}/torch/nn/modules/module.py:1160:convert")) for r in range(4)]),
                   "hiyouga/LlamaFactory", error_class="device_memory", also=("restart",), style=PrefixStyle.RANK),
    ]  # fmt: skip


def _links() -> list[JobLogCase]:
    system = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
    return [
        field_case("NCCL's sockets can't connect from two ranks", "restart", mixed([Said(r, trace(system + "socketStartConnect: Connect to 10.15.13.105<42639> failed : Software caused connection abort", *ALL_REDUCE)) for r in (8, 9)]),
                   "pytorch/pytorch/issues/131781", ranks=(), error_class="communication", style=PrefixStyle.RANK),
        field_case("NCCL has no route to a host", "restart", trace(system + "socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host", *ALL_REDUCE) + "\n[2024-03-18 17:38:50,208] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 (pid: 2031) of binary: /opt/conda/bin/python", "hkproj/pytorch-transformer-distributed/issues/1", error_class="communication"),
        field_case("NCCL takes a link-local address", "restart", "n122-246-085:12246:12397 [0] NCCL INFO misc/socket.cc:567 -> 2\n\nn122-246-085:12251:12400 [5] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to fe80::966d:ae03:a2:8cf0%ib1<17943> failed : Software caused connection abort\nn122-246-085:12251:12400 [5] NCCL INFO misc/socket.cc:564 -> 2\nn122-246-085:12251:12400 [5] NCCL INFO bootstrap.cc:270 -> 2", "NVIDIA/nccl/issues/975"),
        field_case("NCCL finds two ranks on one device of a node", "stop",
                   "\nd-9-11-1:2870757:2870776 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 86000\nd-9-11-1:2870757:2870776 [0] NCCL INFO init.cc:1358 -> 5\n" + trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 86000", *TRAIN, f"{SITE}/torch/nn/parallel/distributed.py:655:__init__"),
                   "pytorch/examples/issues/1279", also=("restart",)),
        field_case("a port that is in use, as Slurm starts a launcher for each task", "restart", "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:12211 (errno: 98 - Address already in use).\n[W socket.cpp:436] [c10d] The server socket has failed to bind to 0.0.0.0:12211 (errno: 98 - Address already in use).\n[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.\n" + trace("RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:12211 (errno: 98 - Address already in use).", *TRAIN), "huggingface/accelerate/issues/2246", ranks=(), error_class="communication"),
        field_case("gloo meets two kinds of addresses", "restart", trace("RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:225] ss1.ss_family == ss2.ss_family. 2 vs 10", *TRAIN, f"{SITE}/torch/distributed/distributed_c10d.py:1310:init_process_group"), "pytorch/pytorch/issues/135355"),
        field_case("a cable that flaps: completion errors of one node with three others", "restart",
                   "\n".join(f"gpu-{n:03}:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer gpu-007<44206> with status=12 opcode=129 len=65536 vendor err 129 (Recv) localGid ::ffff:29.87.88.182 remoteGids::ffff:29.87.4.221" for n in (1, 2, 3)),
                   "NVIDIA/nccl/issues/426", nodes=("gpu-007",), error_class="communication", blame="communication"),
    ]  # fmt: skip


def _storage() -> list[JobLogCase]:
    save = (*TRAIN, f"{SITE}/torch/serialization.py:374:save")
    return [
        field_case("Keras can't save to a NAS", "restart", "128/128 [==============================] - 41s 320ms/step - loss: 0.3312\n" + trace("OSError: [Errno 116] Unable to synchronously create file (unable to fstat file, errno = 116, error message = 'Stale file handle')", "/mnt/nas/train.py:395:<module>", f"{SITE}/h5py/_hl/files.py:241:make_fid"), "h5py/h5py/issues/2346", error_class="storage"),
        field_case("a cache file that went stale on one rank of a node", "restart", [Said(1, trace("OSError: [Errno 116] Stale file handle: '/cache/indices.arrow'", *TRAIN, f"{SITE}/datasets/arrow_dataset.py:4101:_select_with_indices_mapping")), torchrun_summary(1, 1)], "modelscope/ms-swift/issues/6695", ranks=(1,), error_class="storage", style=PrefixStyle.RANK),
        field_case("PyTorch's writer fails in the middle of a file", "restart", [*steps("trainer", 1, 5), Said(None, trace("RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/318: file write failed", *save) + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace("RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 1374389568 vs 1374389464", *save))], "pytorch/pytorch/issues/58840"),
        field_case("Lustre's server went away on rank 6", "restart", [*steps("plain", 1, 5), Said(6, trace("OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/ckpt/iter_0004000/mp_rank_06/model_optim_rng.pt'", *save)), *[remote_closed(r, 6) for r in (0, 1, 2)]], "bigscience-workshop/bigscience", ranks=(6,), error_class="storage", style=PrefixStyle.RANK),
        field_case("safetensors with a cut header", "restart", "Loading checkpoint shards:  33%|###3      | 1/3 [00:05<00:11,  5.90s/it]\n" + trace("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", *HF[:2], f"{SITE}/transformers/modeling_utils.py:508:load_state_dict"), "huggingface/transformers/issues/26490", ranks=None),
        field_case("a quota of a home folder", "restart", [*steps("trainer", 1, 5), Said(None, trace("OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/huggingface/datasets/json/x.incomplete'", *TRAIN))], "huggingface/datasets/issues/1796", error_class="storage", blame="nobody"),
        field_case("the hub can't be reached, and no file is cached", "restart", trace("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\nCheck your internet connection or see how to run the library in offline mode.", *HF[:2], f"{SITE}/transformers/utils/hub.py:446:cached_file"), "huggingface/transformers/issues/22138", error_class="service", blame="nobody"),
        field_case("a data set that the hub doesn't have", "stop", trace("datasets.exceptions.DatasetNotFoundError: Dataset 'alpaca_zhh' doesn't exist on the Hub or cannot be accessed.", *HF[:2], f"{SITE}/datasets/load.py:1780:dataset_module_factory"), "huggingface/datasets/issues/6957", also=("restart",)),
        field_case("Weights & Biases' process went away, after steps", "restart", [*steps("trainer", 1, 5), Said(None, trace("wandb.errors.CommError: Error communicating with wandb process, exiting...", *HF, f"{SITE}/wandb/sdk/interface/router_sock.py:40:_read_message"))], "wandb/wandb/issues/4929"),
    ]  # fmt: skip


def _programs() -> list[JobLogCase]:
    concat = trace(
        'TypeError: can only concatenate tuple (not "str") to tuple',
        "/home/user/src/weathergen/run_train.py:160:train_with_args",
        "/home/user/src/weathergen/train/trainer.py:255:run",
        code='s += f". The value have been adjusted to cf.lr_steps_warmup={cf.lr_steps_warmup} and "',
    )
    caught = trace(
        "IndexError: Caught IndexError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
        + '  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop\n    data = fetcher.fetch(index)\n  File "/home/user/data.py", line 53, in __getitem__\n    return self.items[i]\nIndexError: list index out of range',
        *EPOCH,
        NEXT,
    )
    return [
        field_case("a wrong concatenation in the set-up of all tasks", "stop", mixed([Said(r, concat) for r in range(8)]), "ecmwf/WeatherGenerator/issues/391", error_class="program", blame="program", style=PrefixStyle.SRUN),
        field_case("a setting that is None where a number belongs", "stop", [Said(1, trace("TypeError: int() argument must be a string, a bytes-like object or a real number, not 'NoneType'", "/home/user/axbench/scripts/train.py:520:<module>", "/home/user/axbench/scripts/train.py:495:main", code="output_length=int(args.output_length),"))], "stanfordnlp/axbench/issues/153", also=("restart",), style=PrefixStyle.RANK),
        field_case("a number of epochs that is text", "stop", trace("TypeError: must be real number, not str", "/home/user/train_mamba.py:56:<module>", "/home/user/train_mamba.py:43:run", f"{SITE}/transformers/trainer.py:1555:train", f"{SITE}/transformers/trainer.py:1597:_inner_training_loop", code="max_steps = math.ceil(args.num_train_epochs * num_update_steps_per_epoch)"), "midrender/mamba-chat/pull/1", also=("restart",), error_class="program"),
        field_case("an interval that is text, after an epoch of steps", "restart", "2022-02-26 10:11:02,113 - mmdet - INFO - Epoch [1][50/200]\tlr: 1.0e-03, eta: 1:02:11, time: 0.41, loss_cls: 1.1, loss: 2.2140\n2022-02-26 10:12:02,113 - mmdet - INFO - Epoch [1][100/200]\tlr: 1.0e-03, eta: 1:01:11, time: 0.41, loss_cls: 1.0, loss: 2.1140\n" + trace("TypeError: '>' not supported between instances of 'str' and 'int'", "./tools/train.py:153:<module>", f"{SITE}/mmcv/runner/epoch_based_runner.py:54:train", f"{SITE}/mmcv/runner/hooks/hook.py:68:every_n_epochs"), "jbwang1997/OBBDetection/issues/121", also=("stop",)),
        field_case("operands of a loss, in a log without steps", "restart", "Namespace(batch_size=16, epochs=300)\nStart training on 8 GPUs\n" + trace("TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'", *EPOCH, code="loss = losses['cls'] + losses['box']"), "open-mmlab/mmdetection", also=("unknown",)),
        field_case("operands of a schedule, in a log without steps", "restart", "Start training on 8 GPUs\n" + trace("TypeError: unsupported operand type(s) for *: 'float' and 'list'", "/home/user/tools/train.py:319:<module>", "/home/user/tools/train.py:176:train", f"{SITE}/torch/optim/lr_scheduler.py:152:step", code="lr = base_lr * self.scale(step)"), "pytorch/pytorch", also=("stop",)),
        field_case("an interval of the logger that is None, in the step", "restart", "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\n" + trace("TypeError: unsupported operand type(s) for %: 'int' and 'NoneType'", "train.py:72:<module>", "/DB/trainer.py:86:train", "/DB/trainer.py:127:train_step", code="if step % self.experiment.logger.log_interval == 0:"), "MhLiao/DB/issues/47", also=("stop",)),
        field_case("DataParallel: an error of a replica", "stop", trace("RuntimeError: Caught RuntimeError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n" + f'  File "{SITE}/torch/nn/parallel/parallel_apply.py", line 60, in _worker\n    output = module(*input, **kwargs)\n' + "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!", "train.py:650:<module>", "train.py:407:train", f"{SITE}/torch/nn/parallel/data_parallel.py:155:forward"), "ultralytics/yolov5/issues/820", also=("restart",)),
        field_case("Megatron: too few samples for the last epoch", "stop", "> building train, validation, and test datasets for GPT ...\n" + trace("AssertionError: last epoch number of samples exceeded max value.", "pretrain_gpt.py:126:<module>", "/opt/megatron/megatron/training.py:115:pretrain", "/opt/megatron/megatron/data/gpt_dataset.py:290:_build_index_mappings"), "NVIDIA/Megatron-LM/issues/176", also=("restart",)),
        field_case("Megatron: a checkpoint of iterations, a run of samples", "stop", " loading checkpoint from /ckpt at iteration 500\n" + trace("AssertionError: only backward compatiblity support for iteration-based training", "/opt/megatron/megatron/training.py:132:pretrain", "/opt/megatron/megatron/training.py:842:build_train_valid_test_data_iterators", code="assert args.train_samples is None, \\"), "deepspeedai/Megatron-DeepSpeed/pull/4", also=("restart",)),
        field_case("an index out of range in a loader's worker, after steps", "restart", [*steps("plain", 1, 9), Said(2, caught), torchrun_summary(2, 1)], "webdataset/webdataset/issues/449", ranks=(2,), style=PrefixStyle.RANK),
        field_case("an index out of range in a collator, in a log without steps", "restart", [Said(0, trace("IndexError: list index out of range", *HF, f"{SITE}/transformers/trainer.py:5038:get_batch_samples", NEXT, "/home/user/src/training/data.py:212:__call__"))], "2U1/Qwen-VL-Series-Finetune/issues/19", ranks=(0,), also=("stop",), style=PrefixStyle.RANK),
        field_case("a loader's worker that was killed, under a progress bar", "restart", "Training progress:   0% 0/10000 [00:00<?, ?it/s]data loading done [20/08 20:48:14]\n" + trace("RuntimeError: DataLoader worker (pid 12851) is killed by signal: Killed. ", NEXT, f"{SITE}/torch/utils/data/_utils/signal_handling.py:66:handler") + "\n\nThe above exception was the direct cause of the following exception:\n\n" + trace("RuntimeError: DataLoader worker (pid(s) 12851) exited unexpectedly", *EPOCH, NEXT), "cvlab-kaist/GaussianTalker/issues/42", blame="memory"),
        field_case("many loaders' workers ended without words", "restart", trace("RuntimeError: DataLoader worker (pid(s) 2535, 2850, 3039, 3228) exited unexpectedly", *EPOCH, NEXT), "pytorch/pytorch/issues/131631"),
        field_case("arguments that the parser of transformers doesn't use", "stop", mixed([Said(r, trace("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lora_rankk', '8']", "/home/user/src/train.py:14:<module>", "/home/user/src/llamafactory/hparams/parser.py:52:_parse_args")) for r in range(4)]), "hiyouga/LlamaFactory/issues/1223", style=PrefixStyle.RANK, error_class="exception", blame="program"),
        field_case("a number format that the device lacks", "restart", trace("ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0", "/home/user/train.py:9:<module>", f"{SITE}/transformers/training_args.py:1327:__post_init__"), "huggingface/transformers/issues/22140", also=("stop",)),
        field_case("an option that DeepSpeed's configuration doesn't know", "stop", mixed([Said(r, trace("pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage3_prefetch_bucket_sizes\n  Extra inputs are not permitted [type=extra_forbidden, input_value=9437184, input_type=int]", *TRAIN, f"{SITE}/deepspeed/runtime/config.py:809:_initialize_params")) for r in range(4)]), "deepspeedai/DeepSpeed/issues/6525", blame="program", style=PrefixStyle.RANK),
        field_case("an extension that was built against another release", "stop", mixed([Said(r, trace("ImportError: /opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs", "/home/user/train.py:9:<module>")) for r in range(4)]), "Dao-AILab/flash-attention/issues/667", also=("restart",), style=PrefixStyle.SRUN),
        field_case("a module that is missing, under mpirun", "stop", mixed([Said(r, trace("ModuleNotFoundError: No module named 'amp_C'", "/home/user/pretrain_gpt.py:9:<module>", "/opt/megatron/megatron/optimizer/__init__.py:16:<module>")) for r in range(4)]), "NVIDIA/Megatron-LM/issues/143", style=PrefixStyle.MPI, blame="program"),
        field_case("an attribute that an older library lacks", "stop", mixed([Said(r, trace("AttributeError: module 'torch.distributed' has no attribute 'device_mesh'", "/home/user/train.py:4:<module>", "/home/user/parallel.py:7:<module>")) for r in range(4)]), "pytorch/torchtitan", error_class="program", style=PrefixStyle.RANK),
        field_case("a kernel that needs more shared memory than the GPU has", "stop", trace("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.", *TRAIN, f"{SITE}/triton/compiler/compiler.py:380:_init_handles"), "triton-lang/triton/issues/922", also=("restart",)),
        field_case("gcc fails for a compiled graph", "restart", trace("torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpu7/main.c', '-O3', '-shared']' returned non-zero exit status 1.", *TRAIN, f"{SITE}/torch/_inductor/compile_fx.py:1490:_compile_fx_inner"), "pytorch/pytorch/issues/144167", also=("stop", "unknown")),
        field_case("a key that a sharded checkpoint lacks", "stop", mixed([Said(r, trace("RuntimeError: Missing key in checkpoint state_dict: model.layers.0.attention.wq.weight.", *TRAIN, f"{SITE}/torch/distributed/checkpoint/default_planner.py:471:create_default_local_load_plan")) for r in range(4)]), "pytorch/torchtitan/issues/811", also=("restart",), style=PrefixStyle.RANK),
        field_case("PyTorch without CUDA", "stop", trace("AssertionError: Torch not compiled with CUDA enabled", *TRAIN, f"{SITE}/torch/cuda/__init__.py:310:_lazy_init"), "pytorch/pytorch/issues/30664", also=("restart",)),
        field_case("a loss that is no number on one rank of Megatron", "restart", [*steps("megatron", 4210, 9), Said(3, trace("RuntimeError: Rank 3, node gpu-12, device 3, iteration 4221: Unexpected result nan (message='found NaN in local forward loss calculation')", *TRAIN, "/opt/megatron/megatron/core/rerun_state_machine.py:511:validate_result"))], "NVIDIA/Megatron-LM", error_class="numbers", style=PrefixStyle.RANK),
        field_case("an error of data on rank 6, while torchelastic names rank 0", "restart", [*steps("plain", 1, 9), Said(6, trace("ValueError: could not convert string to float: '1.2.3'", *EPOCH, NEXT, "/home/user/data.py:61:__getitem__")), *[remote_closed(r, 6) for r in (0, 3)], torchrun_summary(0, 1, (3, 6))], "hpcaitech/ColossalAI", ranks=(6,), style=PrefixStyle.RANK),
    ]  # fmt: skip


def _second_round() -> list[JobLogCase]:
    """Logs that were labelled and judged once the rules had been mended for those above."""
    save = (*TRAIN, f"{SITE}/torch/serialization.py:850:save")
    glog = 'W1212 04:02:33.4 24044 init.cc:205] *** Aborted at 1576123353 (unix time) try "date -d @1576123353" if you are using GNU date ***\nW1212 04:02:33.4 24044 init.cc:205] *** SIGSEGV (@0x0) received by PID 24044 (TID 0x7f6406bd7740) from PID 0; stack trace: ***\n'
    determined = trace(
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,56,56,64] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "/run/determined/workdir/model_def.py:88:fit",
    )
    orte = "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[43015,0],0] on node bert-launcher-gdqv7\n  Remote daemon: [[43015,0],20] on node bert-worker-19\n\nThis is usually due to either a failure of the TCP network\nconnection to the node, or possibly an internal failure of\nthe daemon itself. We cannot recover from this failure, and\ntherefore will terminate the job.\n"
    stuck = "\n".join(
        f"[rank{r}]:[E ProcessGroupNCCL.cpp:563] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800096 milliseconds before timing out.\n[rank{r}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {r}] Timeout at NCCL work: {n}, last enqueued NCCL work: {n}, last completed NCCL work: {n - 1}."
        for r, n in ((0, 7487), (1, 7487), (2, 7487), (3, 7486))
    )
    missing = trace(
        "ModuleNotFoundError: No module named 'einops'", "/home/user/train.py:5:<module>"
    )
    wait = "[rank{r}]:[E626 16:48:25.440239265 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before timing out."
    return [
        field_case("Paddle: trainers 0 and 2 were aborted after a crash", "restart", glog + "ERROR 2019-12-12 04:02:41,061 launch.py:269] ABORT!!! Out of all 4 trainers, the trainer process with rank=[0, 2] was aborted. Please check its log.", "PaddlePaddle/models/issues/4064", ranks=(0, 2), error_class="crashed"),
        field_case("Determined: device memory of rank 0 behind its own prefix", "restart", "\n".join(f"<>        [2021-12-07 10:40:48] 514a56c5 [rank=0] || {line}" for line in determined.splitlines()), "determined-ai/determined/issues/3275", also=("stop",)),
        field_case("mpirun lost a worker's daemon", "restart", orte, "kubeflow/mpi-operator/issues/152", nodes=("bert-worker-19",), error_class="node_failed"),
        field_case("rank 3 is one work behind", "restart", stuck, "ShinoharaHare/LLM-Training/issues/7", ranks=(3,)),
        field_case("a loader's worker that was aborted, on rank 1", "restart", [*steps("plain", 1, 5), Said(1, trace("RuntimeError: DataLoader worker (pid 1008552) is killed by signal: Aborted. ", *EPOCH, f"{SITE}/torch/utils/data/_utils/signal_handling.py:66:handler") + "\n\nThe above exception was the direct cause of the following exception:\n\n" + trace("RuntimeError: DataLoader worker (pid(s) 1008552) exited unexpectedly", *EPOCH, NEXT))], "NVIDIA-NeMo/Speech/issues/12205", ranks=(1,), style=PrefixStyle.RANK),
        field_case("a storage of a checkpoint has a wrong size", "restart", trace("RuntimeError: storage has wrong size: expected 0 got 512", *TRAIN, "/home/user/src/trainer.py:547:reload_checkpoint", f"{SITE}/torch/serialization.py:581:_load"), "facebookresearch/XLM/issues/184", also=("stop",)),
        field_case("a damaged archive at a resume, on rank 0", "restart", [Said(0, trace("RuntimeError: PytorchStreamReader failed reading file data/8: invalid header or archive is corrupted", *HF, f"{SITE}/transformers/integrations/deepspeed.py:495:deepspeed_load_checkpoint"))], "2U1/Gemma3-Finetune/issues/3", style=PrefixStyle.RANK),
        field_case("the optimiser's partitions of another number of GPUs", "restart", "[2024-04-18 14:32:49,139] [INFO] [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint from /ckpt/checkpoint-250/global_step250/zero_pp_rank_0_mp_rank_00_model_states.pt...\n" + trace("RuntimeError: The size of tensor a (778567680) must match the size of tensor b (155713536) at non-singleton dimension 0", *HF, f"{SITE}/deepspeed/runtime/zero/stage3.py:2402:load_state_dict"), "hiyouga/LlamaFactory/issues/3326", also=("stop",)),
        field_case("kohya: accelerate's simple launcher reports a segmentation fault", "restart", [Said(None, "steps:  22%|██▏       | 2250/10000 [32:04<1:50:29,  1.17it/s, avr_loss=0.439]"), Said(None, trace("subprocess.CalledProcessError: Command '['/usr/bin/python', 'flux_train_network.py']' died with <Signals.SIGSEGV: 11>.", "/usr/local/bin/accelerate:7:<module>", f"{SITE}/accelerate/commands/launch.py:823:simple_launcher"))], "bmaltais/kohya_ss/issues/3082", error_class="crashed"),
        field_case("SIGABRT of rank 2 before any step, and nothing else", "restart", [torchrun_summary(2, -6)], "nvidia-cosmos/cosmos-predict2/issues/168", ranks=(2,), error_class="crashed"),
        field_case("Xid 31 and an illegal address on rank 5", "restart", [*steps("plain", 1, 5), Said(None, "Mar  1 10:12:44 gpu-node-01 kernel: NVRM: Xid (PCI:0000:9b:00): 31, pid=4205, name=python, Ch 00000018, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2e_c0000000."), Said(5, trace("RuntimeError: CUDA error: an illegal memory access was encountered" + CUDA_TAIL, *BACKWARD))], "https://docs.nvidia.com/deploy/xid-errors/", ranks=(5,), error_class="kernel_fault", style=PrefixStyle.RANK),
        field_case("one node has no driver", "restart", [Said(None, "gpu-12: " + line) for line in trace("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx", *TRAIN).splitlines()] + [Said(None, "gpu-13: " + wait.format(r=9))], "pytorch/pytorch", error_class="device"),
        field_case("NCCL's proxy can't connect", "restart", "gpu-node-02:4211:4330 [3] proxy.cc:1485 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable\n" + trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: Internal check failed.\nLast error:\nProxy Call to rank 11 failed (Connect)", *ALL_REDUCE), "NVIDIA/nccl/issues/1062", error_class="communication"),
        field_case("UCX gives up a queue pair", "restart", "[1709290364.114] [gpu-node-02:4211 :0]      ib_mlx5_log.c:177  UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n[gpu-node-02:4211 :0:4330] Caught signal 6 (Aborted: tkill(2) or tgkill(2))\n[gpu-node-02:04211] *** Process received signal ***", "openucx/ucx/issues/5171"),
        field_case("MPI's own error ends all", "restart", "[gpu-node-01:2112] *** An error occurred in MPI_Allreduce\n[gpu-node-01:2112] *** reported by process [3314941952,2]\n[gpu-node-01:2112] *** on communicator MPI_COMM_WORLD\n[gpu-node-01:2112] *** MPI_ERR_OTHER: known error not in list\n[gpu-node-01:2112] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n", "open-mpi/ompi/issues/6618", also=("unknown",)),
        field_case("srun gets no such resource", "stop", "srun: error: Unable to create step for job 4711: Invalid generic resource (gres) specification", "https://slurm.schedmd.com/gres.html", also=("restart", "unknown")),
        field_case("torchrun isn't in the path", "stop", "/var/spool/slurmd/job4711/slurm_script: line 22: torchrun: command not found", "https://slurm.schedmd.com", also=("restart", "unknown")),
        field_case("a module that one node of two lacks, and ranks of the other wait", "restart", [*[Said(r, missing) for r in range(8, 16)], *[Said(None, wait.format(r=r)) for r in range(8)]], "pytorch/pytorch", style=PrefixStyle.RANK),
        field_case("too many open files on rank 3 after hours", "restart", [*steps("plain", 1, 9), Said(3, trace("OSError: [Errno 24] Too many open files: '/data/shard_0412.tar'", *EPOCH, "/home/user/data.py:44:__getitem__"))], "pytorch/pytorch/issues/11201", ranks=(3,), style=PrefixStyle.RANK),
        field_case("a full /tmp while Triton compiles", "restart", trace("OSError: [Errno 28] No space left on device: '/tmp/torchinductor_user/triton/0/tmp8p'", *TRAIN, f"{SITE}/triton/runtime/cache.py:131:put"), "triton-lang/triton", error_class="storage", blame="nobody"),
        field_case("a terminal that was closed", "restart", [*steps("plain", 1, 9), Said(None, "[2024-03-01 10:12:44,118] torch.distributed.elastic.agent.server.api: [WARNING] Received Signals.SIGHUP death signal, shutting down workers\n" + trace("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4100 got signal: 1", f"{SITE}/torch/distributed/run.py:806:main", f"{SITE}/torch/distributed/elastic/multiprocessing/api.py:62:_terminate_process_handler"))], "pytorch/pytorch/issues/67538", ranks=(), blame="user", also=("unknown",)),
        field_case("a device-side assert on one rank after steps", "restart", [*steps("plain", 1, 9), Said(6, "/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n" + trace("RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, *BACKWARD)), remote_closed(2, 6)], "pytorch/pytorch", ranks=(6,), style=PrefixStyle.RANK),
        field_case("a label outside its classes, in a log without steps", "restart", "/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n" + trace("RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, *EPOCH), "pytorch/pytorch", also=("stop",)),
        field_case("a batch without labels, read in the loop of a script", "restart", "Start training\n" + trace("KeyError: 'labels'", "/home/user/train.py:88:<module>", code="loss = model(batch['input_ids'], labels=batch['labels'])"), "huggingface/transformers", also=("stop",)),
        field_case("pictures of other sizes in a batch, in a log without steps", "restart", trace("RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [3, 225, 224] at entry 3", *EPOCH, NEXT, f"{SITE}/torch/utils/data/_utils/collate.py:162:default_collate"), "pytorch/pytorch", also=("unknown",)),
        field_case("the kernel's pipe: dmesg -T of a node beside ranks that crashed", "restart", [*steps("plain", 1, 5), Said(None, "[Sat Mar  1 10:12:44 2025] Out of memory: Killed process 4205 (python) total-vm:91234567kB, anon-rss:61234567kB, file-rss:0kB, shmem-rss:1024kB, UID:1000 pgtables:124000kB oom_score_adj:0"), torchrun_summary(5, -9)], "https://www.kernel.org/doc/html/latest/admin-guide/mm/concepts.html", ranks=(5,), error_class="oom_killed", blame="memory"),
        field_case("a saved run that a full quota ends on rank 0, the others wait at the barrier", "restart", [*steps("megatron", 10, 5), Said(0, trace("OSError: [Errno 122] Disk quota exceeded", *save)), *[Said(None, wait.format(r=r)) for r in range(1, 4)]], "NVIDIA/Megatron-LM", ranks=(0,), error_class="storage", blame="nobody", style=PrefixStyle.RANK),
        field_case("a run that ended well although its tracker complains at the end", "unknown", [*steps("trainer", 1, 9), Said(0, "{'train_runtime': 811.2, 'train_samples_per_second': 12.3, 'train_loss': 1.92, 'epoch': 3.0}"), Said(0, "wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [504]>)")], "wandb/wandb/issues/4929", ranks=(), blame="nobody", style=PrefixStyle.RANK),
    ]  # fmt: skip


FIELD: Sequence[JobLogCase] = (
    *_hangs(),
    *_ends(),
    *_devices(),
    *_links(),
    *_storage(),
    *_programs(),
    *_second_round(),
)
