"""Ends of jobs that people pasted into public trackers: hangs, crashes, kills, devices, links, schedulers.

The lines have the programs' own form, shortened, with neutral paths. Each was labelled before the rules judged it.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import CUDA_TAIL, field_case
from tests.support.job_log_cases_forms import BACKWARD, SITE, TRAIN, JobLogCase, trace

PLAIN_TAIL = "\n[E ProcessGroupNCCL.cpp:537] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."  # fmt: skip
LAUNCH_FRAMES = (
    "/opt/conda/bin/torchrun:8:<module>",
    f"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py:345:wrapper",
    f"{SITE}/torch/distributed/run.py:761:main",
    f"{SITE}/torch/distributed/launcher/api.py:246:launch_agent",
)


def watchdog(rank: int, number: int, operation: str, elements: int, before: str = "") -> str:
    """Return the two lines of a rank's watchdog as PyTorch 2.4 to 2.6 print them."""
    return (
        f"{before}[rank{rank}]:[E321 02:07:08.40827{rank}257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) ran for 60006{rank} milliseconds before timing out.\n"
        f"{before}[rank{rank}]:[E321 02:07:08.46525{rank}152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {number}, last enqueued NCCL work: {number + 2}, last completed NCCL work: {number - 1}."
    )


def ray_died(host: str = "192.168.111.204") -> str:
    return (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffffffffffffffffe6820df8da2b90e4a8c69f5301000000 Worker ID: f8abf57db1813e9ac65ac19c8efbb59a6dbe750b416e7b08eb1124e8 Node ID: 09d07a17c937a1df95bae63476615a85a6aeb7428c5ab141e843f738 "
        f"Worker IP address: {host} Worker port: 10110 Worker PID: 1508038 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
    )


def _hangs() -> list[JobLogCase]:
    wrapped = "\n".join(
        f"[rank{r}]:[E424 01:11:21.1608{r}2730 ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, NumelIn=112, NumelOut=112, Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out."
        for r in (2, 3, 6, 5, 4)
    )
    store = trace(
        "torch.distributed.DistBackendError: [6] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0:1//worker', but store->get('0:1//worker') got error: Connection was likely closed. Did the remote server shutdown or crash?\nException raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:671 (most recent call first):\n. This may indicate a possible application crash on rank 0 or a network set up issue.",
        "/home/user/scripts/train.py:628:main",
        "/home/user/fsdp_utils.py:100:save_fsdp_checkpoint",
    )
    return [
        field_case("a watchdog's words in another order", "restart", "[E ProcessGroupNCCL.cpp:523] Watchdog caught collective operation timeout:\nWorkNCCL(OpType=ALLREDUCE, SeqNum=458) ran for 1800600 ms before timing out." + PLAIN_TAIL + "\n[E ProcessGroupNCCL.cpp:543] To avoid data inconsistency, the entire process is terminated.", "InternRobotics/AnySplat/issues/61"),
        field_case("a watchdog's lines that a terminal broke", "restart", " ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112, Numel\nOut=112, Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.\n" + wrapped, "huggingface/open-r1/issues/620"),
        field_case("a rank loses the store while it saves", "restart", "\n".join(f"[rank6]: {line}" for line in store.splitlines()), "yifan123/flow_grpo/issues/171"),
        field_case("gloo's barrier names a rank whose log is to be read", "restart", "2023-12-30 18:37:02,114 DEBUG TRAIN Batch 3/8400 loss 2.310214 lr 0.00012 rank 1\n[E ProcessGroupGloo.cpp:137] Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n2023-12-30 18:39:41,609 INFO Detected uneven workload distribution: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.", "wenet-e2e/wenet/issues/2266"),
        field_case("JAX: not all tasks registered in an hour", "restart", "Stopping coordination service as cluster registration failed. This may be due to 1) some tasks crashed earlier before connecting, 2) some tasks were never scheduled, or 3) scheduling delays. Consider setting a longer initialization timeout if such delays are expected, the timeout is currently set to: 1h.\n\nOriginal error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. This usually happens because a task triggered the barrier too early or too slowly. Please look at the task logs (both timed out and first task) to debug further.", "AI-Hypercomputer/gpu-recipes/issues/2", error_class="communication"),
        field_case("Ray: workers don't register in time", "restart", "\n".join(f"(raylet) [2025-10-31 17:08:05,{s} E 24507 24507] (raylet) worker_pool.cc:586: Some workers of the worker process({p}) have not registered within the timeout. The process is dead, probably it crashed during start." for s, p in ((490, 26154), (550, 26158), (591, 26160))), "RLinf/RLinf/issues/227", also=("unknown",)),
    ]  # fmt: skip


def _crashes() -> list[JobLogCase]:
    closing = "".join(f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {pid} closing signal SIGTERM\n" for pid in (5527, 5529))  # fmt: skip
    nvdiff = (
        closing
        + "WARNING:torch.distributed.elastic.multiprocessing.api:Unable to shutdown process 5527 via 15, forcefully exitting via 9\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 1 (pid: 5528) of binary: /opt/conda/bin/python3.8\nINFO:torch.distributed.elastic.agent.server.api:Local worker group finished (FAILED). Waiting 300 seconds for other agents to finish\nINFO:torch.distributed.elastic.multiprocessing.errors:local_rank 1 FAILED with no error file. Decorate your entrypoint fn with @record for traceback info. See: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    hallo = (
        "Could not find checkpoint under ./exp_output/stage1/checkpoints, start training from scratch\nSteps:   0%|                    | 0/30000 [00:00<?, ?it/s]"
        + "".join(f"[2024-11-26 02:04:28,494] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process {pid} closing signal SIGTERM\n" for pid in (750661, 750664, 750668))
        + "[2024-11-26 02:04:31,514] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -11) local_rank: 1 (pid: 750662) of binary: /home/user/envs/hallo/bin/python\n"
        + trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", f"{SITE}/accelerate/commands/launch.py:1042:launch_command", f"{SITE}/accelerate/commands/launch.py:754:deepspeed_launcher")
    )  # fmt: skip
    three = "".join(
        f"[{r}]:\n  time      : 2023-06-14_22:36:10\n  host      : node7.example.org\n  rank      : {r} (local_rank: {r})\n  exitcode  : -6 (pid: {2385922 + r})\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID {2385922 + r}\n"
        for r in (1, 2)
    )
    aborts = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 2385922) of binary: /opt/conda/bin/python\n"
        + trace(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", *LAUNCH_FRAMES
        )
        + f"\n========================================================\ntools/train.py FAILED\n--------------------------------------------------------\nFailures:\n{three}--------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2023-06-14_22:36:10\n  host      : node7.example.org\n  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 2385922)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 2385922\n========================================================"
    )
    old_launch = trace(
        "subprocess.CalledProcessError: Command '['/opt/conda/bin/python3', '-u', 'train_imagenet.py', '--local_rank=7', '--save-dir', './run_0718', '--epochs', '180', '--resume', './run_0718/model.pth.tar']' died with <Signals.SIGSEGV: 11>.",
        "/opt/conda/lib/python3.7/runpy.py:193:_run_module_as_main",
        f"{SITE}/torch/distributed/launch.py:263:<module>",
        f"{SITE}/torch/distributed/launch.py:259:main",
    )
    shards = "Loading checkpoint shards:  50%|#####     | 1/2 [00:10<00:10, 10.36s/it]" + "\n".join(f"[2023-08-22 11:46:2{i},908] [INFO] [launch.py:315:sigkill_handler] Killing subprocess {3210 + i}" for i in range(4)) + "\n[2023-08-22 11:46:26,758] [ERROR] [launch.py:321:sigkill_handler] ['/opt/conda/bin/python', '-u', 'train_ds.py', '--local_rank=3', '--version=./LLaVA'] exits with return code = -9"  # fmt: skip
    resumed = "[INFO|deepspeed.py:449] 2022-05-15 00:12:20,447 >> Attempting to resume from finetuned/checkpoint-22\n[2022-05-15 00:12:51,292] [INFO] [engine.py:2754:_get_all_zero_checkpoint_state_dicts] successfully read 2 ZeRO state_dicts for rank 0\n[2022-05-15 00:12:57,785] [INFO] [launch.py:178:sigkill_handler] Killing subprocess 97277\n[2022-05-15 00:12:57,786] [INFO] [launch.py:178:sigkill_handler] Killing subprocess 97278\n[2022-05-15 00:12:57,786] [ERROR] [launch.py:184:sigkill_handler] ['/usr/bin/python3', '-u', 'run_clm.py', '--local_rank=1', '--deepspeed', './ds_config_gptj6b.json'] exits with return code = -9"
    aborted_worker = trace(
        "RuntimeError: DataLoader worker (pid 801) is killed by signal: Aborted. ",
        f"{SITE}/torch/utils/data/dataloader.py:1132:_try_get_data",
        f"{SITE}/torch/utils/data/_utils/signal_handling.py:66:handler",
    )
    gone = trace(
        "RuntimeError: DataLoader worker (pid(s) 411948) exited unexpectedly",
        f"{SITE}/ignite/engine/engine.py:807:_run_once_on_dataset",
        f"{SITE}/torch/utils/data/dataloader.py:628:__next__",
        f"{SITE}/torch/utils/data/dataloader.py:1133:_try_get_data",
    )
    eureka = ray_died() + "\n" + trace("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: ReferenceModelRayActor\n\tactor_id: 26112883fcf1df750a93627c01000000\n\tpid: 909447", "/tmp/ray/session_2025-04-02/openrlhf/cli/train_ppo_ray.py:478:<module>", "/tmp/ray/session_2025-04-02/openrlhf/cli/train_ppo_ray.py:170:train", f"{SITE}/ray/_private/worker.py:2755:get")  # fmt: skip
    wake = "\n".join(
        f"(TaskRunner pid=892962) {line}"
        for line in "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::AsyncSglangServer.wake_up() (pid=913710, ip=100.96.31.18, actor_id=41dbf51b81646e07dae7109901000000)\n  File \"/home/user/verl/workers/rollout/sglang_rollout/async_sglang_server.py\", line 71, in wake_up\n    ray.get(futures)\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n\tpid: 909447\n\tname: gxgUtgWorkerDict_0:1".splitlines()
    )
    rewards = trace("ray.exceptions.RayTaskError(WorkerCrashedError): ray::RemoteRewardModel.get_rewards() (pid=1625610, ip=0.0.0.0, actor_id=7cdb557236a)\nray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task. Check python-core-worker-*.log files for more information.", "/home/user/OpenRLHF/openrlhf/trainer/ppo_trainer.py:526:fit", "/home/user/OpenRLHF/openrlhf/trainer/ppo_utils/experience_maker.py:615:make_experience")  # fmt: skip
    return [
        field_case("torchelastic in lower case: local rank 1 of three ends with a segmentation fault", "restart", nvdiff, "NVlabs/nvdiffrecmc/issues/21", ranks=(1,), error_class="crashed"),
        field_case("accelerate under DeepSpeed: local rank 1 ends with a segmentation fault", "restart", hallo, "fudan-generative-vision/hallo2/issues/56", ranks=(1,), error_class="crashed"),
        field_case("three ranks abort in the same second", "restart", aborts, "open-mmlab/mmsegmentation/issues/3106", error_class="crashed"),
        field_case("the old launcher's words for a segmentation fault", "restart", old_launch, "pytorch/pytorch/issues/61839", error_class="crashed"),
        field_case("a segmentation fault of one GPU's only rank", "restart", "E1119 08:26:02.715000 28705 site-packages/torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -11) local_rank: 0 (pid: 28773) of binary: /opt/conda/bin/python3.12\n" + trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", *LAUNCH_FRAMES), "FlagOpen/FlagEmbedding/issues/1549", ranks=(0,), error_class="crashed"),
        field_case("DeepSpeed: SIGKILL while shards are loaded", "restart", shards, "JIA-Lab-research/LISA/issues/33"),
        field_case("DeepSpeed: SIGKILL after a checkpoint was read", "restart", resumed, "deepspeedai/DeepSpeed/issues/1956"),
        field_case("Lightning: a loader's worker aborts", "restart", aborted_worker + "\n\nThe above exception was the direct cause of the following exception:\n\n" + trace("RuntimeError: DataLoader worker (pid(s) 801) exited unexpectedly", "/workspace/src/train.py:277:<module>", f"{SITE}/lightning/pytorch/trainer/trainer.py:544:fit"), "Lightning-AI/pytorch-lightning/issues/19302"),
        field_case("ignite: a loader's worker is gone", "restart", gone + "\n2023-08-28 12:03:30,077 ignite.distributed.launcher.Parallel INFO: Finalized processing group with backend: 'nccl'", "suprosanna/relationformer/issues/18"),
        field_case("Composer: code -11 of rank 0", "restart", "2024-08-30 11:06:12,928: rank0[208865][MainThread]: INFO: composer.trainer.trainer: Run name: llm\n2024-08-30 11:06:12,930: rank0[208865][MainThread]: INFO: composer.core.state: Automatically setting data_parallel_shard to have parallelization degree 1.\nERROR:composer.cli.launcher:Global rank 0 (PID 208865) exited with code -11", "mosaicml/llm-foundry/issues/1501", ranks=(0,), error_class="crashed"),
        field_case("a bus error and leaked shared memory", "restart", "Bus error (core dumped)\n/usr/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 2 leaked shared_memory objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '", "mosaicml/llm-foundry/issues/82"),
        field_case("Ray: an actor of the reference model died", "restart", eureka, "ModalMinds/MM-EUREKA/issues/32"),
        field_case("Ray: one line of a dead actor", "restart", "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.", "Unakar/Logic-RL/issues/18"),
        field_case("Ray: a worker died, and hydra names the job", "restart", "[2025-05-10 00:18:27] " + ray_died("train-1316148307689748608-worker-0") + "\n[2025-05-10 00:18:27] Error executing job with overrides: ['algorithm.adv_estimator=grpo', 'data.train_batch_size=64', 'data.truncation=error']", "verl-project/verl/issues/1309"),
        field_case("Ray: a server's wake-up finds its actor dead", "restart", wake, "verl-project/verl/issues/2987"),
        field_case("Ray under Slurm: the reward model's worker is killed for memory", "restart", rewards + "\nslurmstepd: error: Detected 2 oom_kill events in StepId=11342423.batch. Some of the step tasks have been OOM Killed.", "OpenRLHF/OpenRLHF/issues/1139", error_class="oom_killed", blame="memory"),
        field_case("mpirun names rank 1 of a Horovod job", "restart", "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------------------------------------------------------\nmpirun noticed that process rank 1 with PID 18121 on node gpu-4 exited on signal 9 (Killed).\n--------------------------------------------------------------------------", "Kay1794/Aware-of-the-history/issues/2", ranks=(1,), error_class="killed", blame="rank"),
        field_case("mpirun: a process ended with 1", "restart", "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------------------------------------------------------\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[40321,1],5]\n  Exit code:    1\n--------------------------------------------------------------------------", "horovod/horovod/issues/2656", also=("unknown",)),
        field_case("horovodrun: two tasks see a shutdown", "restart", "\n".join(f"Fri Sep 25 16:52:5{s} 2020[{r}]<stderr>:{t}" for s, r, t in ((3, 0, "2020-09-25 16:52:53.640992: W tensorflow/core/framework/op_kernel.cc:1651] OP_REQUIRES failed at mpi_ops.cc:402 : Unknown: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution."), (7, 1, "User function raise error: 2 root error(s) found."), (7, 1, "  (0) Unknown: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution."))), "horovod/horovod/issues/2097", also=("unknown",)),
        field_case("ranks of a pipeline abort on one node of two", "restart", "E0410 10:47:58.118000 55867 torch/distributed/elastic/multiprocessing/api.py:870] failed (exitcode: -6) local_rank: 0 (pid: 56003) of binary: /usr/bin/python\n" + trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", *LAUNCH_FRAMES), "NVIDIA/Megatron-LM/issues/1525", error_class="crashed"),
        field_case("the old launcher's command line, cut", "restart", trace("subprocess.CalledProcessError: Command '['/opt/conda/envs/u2pl/bin/python', '-u', '../../../../train_semi.py', '--local_rank=1', '--config=config.yaml', '--seed', '2', '--port', '21350']' returned non-zero exit status 1.", f"{SITE}/torch/distributed/launch.py:340:<module>", f"{SITE}/torch/distributed/launch.py:326:main", f"{SITE}/torch/distributed/launch.py:301:sigkill_handler"), "Haochen-Wang409/U2PL/issues/62", also=("unknown",)),
        field_case("accelerate: a command's code 1 and nothing else", "restart", trace("subprocess.CalledProcessError: Command '['/usr/bin/python3', '-m', 'axolotl.cli.train', '/content/test_axolotl.yaml']' returned non-zero exit status 1.", "/usr/local/bin/accelerate:8:<module>", f"{SITE}/accelerate/commands/launch.py:1057:launch_command", f"{SITE}/accelerate/commands/launch.py:673:simple_launcher"), "axolotl-ai-cloud/axolotl/issues/1571", also=("unknown",)),
        field_case("torchelastic: rank 1 ended with 1", "restart", trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", *LAUNCH_FRAMES) + "\n============================================================\naxolotl.cli.train FAILED\n------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-06-18_04:34:33\n  host      : acb95752c5d2\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 113422)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n============================================================", "axolotl-ai-cloud/axolotl/issues/2791", also=("unknown",)),
        field_case("a framed traceback of a launcher", "restart", "|   919                                                                |\n│ /home/user/venv/lib/site-packages/accelerate/commands/launch.py:580 in simple_launcher │\n│                                                                                                  │\n│   577 │   process.wait()                                                                         │\n│ ❱ 580 │   │   │   raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)    │\n╰──────────────────────────────────────────────────────────────────────────────────────────────────╯\nCalledProcessError: Command '['/home/user/venv/bin/python', 'train_network.py', '--enable_bucket']' returned non-zero exit status 1.", "bmaltais/kohya_ss/issues/1188", also=("unknown",)),
        field_case("SageMaker: a script's code 1 with a line of its code", "restart", "Error for Training job huggingface-pytorch-training-2022-01-25-19-23-38-888: Failed. Reason: AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"raise EnvironmentError(msg)", "huggingface/notebooks/issues/136", also=("unknown",)),
        field_case("a thread of the TPU's watcher ends, the training goes on", "restart", "Exception in thread Thread-4:\n" + trace("KeyError: 'health'", "/usr/lib/python3.6/threading.py:916:_bootstrap_inner", f"{SITE}/tensorflow/python/tpu/preempted_hook.py:89:run"), "tensorflow/tpu/issues/590", also=("unknown",)),
        field_case("all is saved, and a thread of TensorFlow's queue still runs", "restart", "INFO:tensorflow:global step 2810: loss = 2.0889 (0.639 sec/step)\nINFO:tensorflow:Stopping Training.\nINFO:tensorflow:Finished training! Saving model to disk.\n" + trace("RuntimeError: Coordinator stopped with threads still running: QueueRunnerThread-dummy_queue-sync_token_q_EnqueueMany", "train.py:599:main", f"{SITE}/tensorflow/contrib/slim/python/slim/learning.py:785:train", f"{SITE}/tensorflow/python/training/coordinator.py:397:join"), "richardaecn/cvpr18-inaturalist-transfer/issues/5", also=("unknown",)),
    ]  # fmt: skip


def _devices() -> list[JobLogCase]:
    ecc = trace(
        "RuntimeError: transform: failed to synchronize: cudaErrorECCUncorrectable: uncorrectable ECC error encountered\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable ECC error encountered\nException raised from create_event_internal at /opt/conda/conda-bld/pytorch_1616554793803/work/c10/cuda/CUDACachingAllocator.cpp:733 (most recent call first):",
        *BACKWARD,
    )
    torch_illegal = "[rank3]:[E115 15:39:38.012111423 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered" + CUDA_TAIL + "\nException raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):"  # fmt: skip
    return [
        field_case("NVLink errors of four GPUs, and their channels go with them", "restart", "\n".join(f"kernel: NVRM: Xid (PCI:0000:{b}:00): 45, pid=18189{p}, name=python3, Ch 0000000{c} caused by previous Xid {x}" for b, p, c, x in (("dc", 90, 1, 149), ("ed", 92, "c", 145), ("ba", 89, 2, 145), ("97", 87, 3, 145))), "NVIDIA/open-gpu-kernel-modules/issues/1150", error_class="device"),
        field_case("a double-bit error in a node's log", "restart", "Dec  2 10:43:35 worker4 kernel: [240314.528856] NVRM: Xid (PCI:0000:07:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x7fdd60000 partition 4, subpartition 1.", "NVIDIA/gpu-operator/issues/1146", nodes=("worker4",), error_class="device", blame="rank"),
        field_case("a device off the bus, and its USB controller with it", "restart", "[1084456.074554] NVRM: GPU at PCI:0000:09:00: GPU-26fba6b2-9e52-006e-68db-4ce18382a5ea\n[1084456.074562] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.\n[1084456.074566] NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.\n[1084456.074591] NVRM: A GPU crash dump has been created. If possible, please run\n                 NVRM: nvidia-bug-report.sh as root to collect this data before\n[1084456.746765] nvidia-gpu 0000:09:00.3: Refused to change power state, currently in D3\n[1084456.886526] xhci_hcd 0000:09:00.2: PCI post-resume error -19!", "NVIDIA/nvidia-docker/issues/1553", error_class="device", blame="rank"),
        field_case("BLOOM's first: an ECC error in the backward pass", "restart", ecc, "pytorch/pytorch/issues/63174", error_class="device", blame="rank"),
        field_case("an NVLink error after 800 batches", "restart", "Epoch  1,   700/15756; ; ppl: 800.48 ; lr: 0.0000590 ; updates:     175; 41216 src tok/s; 68691 tgt tok/s; 0:02:03 elapsed\nEpoch  1,   800/15756; ; ppl: 562.11 ; lr: 0.0000674 ; updates:     200; 26377 src tok/s; 45662 tgt tok/s; 0:02:26 elapsed\n" + trace("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution" + CUDA_TAIL, *BACKWARD), "quanpn90/NMTGMinor/issues/28", error_class="device", blame="rank"),
        field_case("an ECC error as CUDA 13 words it", "restart", trace("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", *TRAIN), "ostris/ai-toolkit/issues/470", error_class="device", blame="rank"),
        field_case("an illegal address that rank 3's watchdog reports", "restart", torch_illegal, "microsoft/TRELLIS.2/issues/90", error_class="kernel_fault"),
        field_case("an illegal address, and the default group is named first", "restart", "[rank0]:[E907 22:34:22.823452114 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered" + CUDA_TAIL, "bytedance/flux/issues/40", error_class="kernel_fault"),
        field_case("Ray: an illegal address, then an abort with modules listed", "restart", "(RayWorkerVllm pid=7046) [2024-04-16 00:03:25,080 E 7046 7269] logging.cc:361:     @     0x7f514b634520  (unknown)  (unknown)\n(RayWorkerVllm pid=7046) Fatal Python error: Aborted\n(RayWorkerVllm pid=7046) \n(RayWorkerVllm pid=7046) Extension modules: msgpack._cmsgpack, google._upb._message, psutil._psutil_linux (total: 37)\n[E ProcessGroupNCCL.cpp:916] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered" + CUDA_TAIL, "vllm-project/vllm/issues/4108", error_class="kernel_fault"),
        field_case("AMD: a memory access fault in the first iteration", "restart", "I0719 10:54:02.507711  2540 solver.cpp:404]     Test net output #0: accuracy = 0.00109375\nI0719 10:54:02.508229  2540 solver.cpp:404]     Test net output #1: loss = 6.91062 (* 1 = 6.91062 loss)\nMemory access fault by GPU node-2 on address 0x422ea6b000. Reason: Page not present or supervisor privilege.\n*** Aborted at 1500432842 (unix time) try \"date -d @1500432842\" if you are using GNU date ***\nPC: @     0x7f64489dc428 gsignal\n*** SIGABRT (@0x9ec) received by PID 2540 (TID 0x7f642c526700) from PID 2540; stack trace: ***", "ROCm/hipCaffe/issues/11"),
        field_case("AMD: a memory access fault with an agent's handle", "restart", "Memory access fault by GPU node-1 (Agent handle: 0x2fb8040) on address 0x541e00000. Reason: Page not present or supervisor privilege.\nAborted (core dumped)", "ROCm/pytorch/issues/499"),
        field_case("AMD: page faults and a reset in the kernel's log", "restart", "[ 2746.403998] amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32771, for process python3 pid 5139 thread python3 pid 5139)\n[ 2746.404012] amdgpu 0000:03:00.0: amdgpu:   in page starting at address 0x00007f0c2c200000 from client 10\n[ 2751.510312] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n[ 2751.880011] amdgpu 0000:03:00.0: amdgpu: GPU reset succeeded, trying to resume", "ROCm/legacy-rocm-build/issues/2494", also=("unknown",)),
        field_case("a TPU's core halts after one step", "restart", "  0%|          | 1/7800 [00:01<2:37:37,  1.21s/it]F0000 00:00:1717141650.890307    9276 pjrt_computation_client.cc:487] Non-OK-status: status status: INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps due to an on-device check-failure. Node 0 halted unexpectedly at tag:pc TensorCoreSequencer:887:0x6f1 (from TensorCoreSequencer:887:0x3b91): no debugging message found for this tag:pc. HLO: fusion.1; HLO computation: SyncTensorsGraph.55205_spmd\n*** Begin stack trace ***\n        tsl::CurrentStackTrace()", "pytorch/xla/issues/7138", also=("unknown",)),
    ]  # fmt: skip


def _links() -> list[JobLogCase]:
    old_ib = "\n".join(
        f"H100-{h}:19989:20082 [{d}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::966d:ae03:8b:df78%ib0<53249> with error 4, opcode 32564, len 32564, vendor err 81 (Send)\nH100-{h}:19989:20082 [{d}] NCCL INFO transport/net.cc:1008 -> 6"
        for h, d in ((2, 1), (1, 1), (5, 3))
    )
    rendezvous = trace(
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:155:_create_tcp_store",
    )
    json_handler = '[INFO] 2021-09-13 22:17:26,653 api: Starting elastic_operator with launch configs:\n  entrypoint       : main.py\n  min_nodes        : 2\n[ERROR] 2021-09-13 22:18:26,678 error_handler: {\n  "message": {\n    "message": "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",\n    "extraInfo": {'
    return [
        field_case("InfiniBand: local protection errors on three hosts", "restart", old_ib, "NVIDIA/nccl/issues/928", error_class="communication"),
        field_case("JAX: NCCL's CUDA call fails", "restart", "W external/xla/xla/service/gpu/runtime/support.cc:58] Intercepted XLA runtime error:\nINTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error\n2023-09-01 10:20:11.257981: E external/xla/xla/pjrt/pjrt_stream_executor_client.cc:2593] Execution of replica 3 failed: INTERNAL: Failed to execute XLA Runtime executable: run time error: custom call 'xla.gpu.all_reduce' failed: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error; current tracing scope: all-reduce-start.163", "jax-ml/jax/issues/17399", also=("unknown",)),
        field_case("JAX: NCCL's socket is closed", "restart", "user-G493:275204:275658 [4] NCCL INFO misc/socket.cc:666 -> 2\nuser-G493:275204:275658 [4] NCCL INFO bootstrap.cc:280 -> 2\n2024-07-30 01:35:14.107390: W external/xla/xla/service/gpu/runtime/support.cc:58] Intercepted XLA runtime error:\nINTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled system error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'socketTryAccept: Accept failed: Bad file descriptor'.", "jax-ml/jax/issues/22747", error_class="communication"),
        field_case("JAX: NCCL finds no attribute of a NIC", "restart", trace("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to execute XLA Runtime executable: run time error: custom call 'xla.gpu.reduce_scatter' failed: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: internal error - please report this issue to the NCCL developers. Last NCCL warning(error) log entry (may be unrelated) 'Attribute busid of node nic not found'.", "/data/LWM/lwm/vision_generation.py:258:<module>", "/data/LWM/lwm/vision_generation.py:158:generate_first_frame"), "LargeWorldModel/LWM/issues/42", also=("unknown",)),
        field_case("torchrun's store can't be reached from any node", "restart", rendezvous + "\n\nThe above exception was the direct cause of the following exception:\n\n" + trace("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", *LAUNCH_FRAMES), "pytorch/pytorch/issues/69197", error_class="communication"),
        field_case("torchrun's own JSON about its store", "restart", json_handler, "pytorch/pytorch/issues/64926", error_class="communication"),
        field_case("torchtune's agent loses the store in mid-run", "restart", "1|412|Loss: 1.2213:  41%|####      | 412/1000 [31:12<44:10,  4.51s/it]\n" + trace("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1255:num_nodes_waiting", f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:119:_call_store"), "meta-pytorch/torchtune/issues/2676", error_class="communication"),
        field_case("TensorFlow meets a worker that was started anew", "restart", trace("tensorflow.python.framework.errors_impl.AbortedError: RecvTensor expects a different device incarnation: 15132506705170928619 vs. 17767066468299283119. Your worker job (\"/job:worker/replica:0/task:0\") was probably restarted. Check your worker job for the reason why it was restarted.", "/home/user/train.py:80:<module>", f"{SITE}/tensorflow_core/python/framework/ops.py:942:_numpy"), "tensorflow/tensorflow/issues/38257"),
        field_case("TensorFlow's replicas lose a stream", "restart", "I  worker-replica-3 global step 52335: loss = 6.2518 (0.464 sec/step)  worker-replica-3\n" + "\n".join(f"I  worker-replica-{n} Error reported to Coordinator: <class 'tensorflow.python.framework.errors_impl.UnavailableError'>, Stream removed  worker-replica-{n}" for n in (1, 3, 2)) + "\nE  master-replica-0 Command '['python3', '-m', 'object_detection.train', '--train_dir=gs://bucket1']' returned non-zero exit status 1  master-replica-0", "tensorflow/models/issues/4578"),
        field_case("TensorFlow's collective ops end with a reset connection", "restart", "25/1000 [..............................] - ETA: 2:41 - loss: 0.6712 - accuracy: 0.6101\n2020-08-19 02:11:41.101223: W tensorflow/core/common_runtime/base_collective_executor.cc:217] BaseCollectiveExecutor::StartAbort Unavailable: [_Derived_]Connection reset by peer\nAdditional GRPC error information:\n{\"created\":\"@1597803101.100872\",\"description\":\"Error received from peer ipv4:10.4.1.7:5000\",\"file\":\"external/com_github_grpc_grpc/src/core/lib/surface/call.cc\",\"file_line\":1056,\"grpc_message\":\"Connection reset by peer\",\"grpc_status\":14}\n" + trace("tensorflow.python.framework.errors_impl.UnavailableError: [_Derived_]Connection reset by peer", "train.py:188:<module>", f"{SITE}/tensorflow/python/keras/engine/training.py:1098:fit"), "tensorflow/tensorflow/issues/42498"),
    ]  # fmt: skip


def _schedulers() -> list[JobLogCase]:
    knet = "2022-05-17 17:51:02,331 - mmdet - INFO - Epoch [3][1450/1487]\tlr: 1.000e-04, eta: 1 day, 2:02:41, time: 1.130, data_time: 0.021, memory: 14012, loss: 12.1193\nslurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) in StepId=9411285.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: gpu20-15: task 0: Out Of Memory\nsrun: launch/slurm: _step_signal: Terminating StepId=9411285.0\nslurmstepd-gpu20-15: error: *** STEP 9411285.0 ON gpu20-15 CANCELLED AT 2022-05-17T17:58:10 ***"
    return [
        field_case("Slurm: task 0 used up its memory, and the daemon's name is in front", "restart", knet, "ZwwWayne/K-Net/issues/30", ranks=(0,), nodes=("gpu20-15",), error_class="oom_killed", blame="memory"),
        field_case("Slurm: a job is cancelled and its memory was used up", "restart", trace("RuntimeError: DataLoader worker (pid 108439) is killed by signal: Killed. ", *TRAIN, f"{SITE}/torch/utils/data/_utils/signal_handling.py:73:handler") + "\nslurmstepd: error: *** JOB 10609057 ON g002 CANCELLED AT 2025-08-22T01:14:01 ***\nslurmstepd: error: Detected 1 oom_kill event in StepId=10609057.batch. Some of the step tasks have been OOM Killed.", "Visual-AI/3DRS/issues/7", blame="memory"),
        field_case("Slurm: the time limit, and the daemon's name is in front", "restart", "Epoch: [3][415/1736]\t Loss 0.5844 MAE 0.6568\nslurmstepd-phoenix-07: error: *** JOB 1449736 ON phoenix-07 CANCELLED AT 2023-12-03T12:47:09 DUE TO TIME LIMIT ***", "DataBiosphere/toil/issues/4706", error_class="time_limit", blame="user"),
        field_case("a script without its execute bit", "stop", "running script\nslurmstepd: error: execve(): start-agent.sh: Permission denied\nsrun: error: my-node01: task 0: Exited with exit code 13", "elyall/wandb_on_slurm/issues/5", also=("restart",)),
        field_case("a shell without srun", "stop", "train.sh: 1: srun: not found", "zhiyuanyou/SAFECount/issues/16"),
        field_case("Lightning is sent SIGTERM while it validates", "restart", "Validation sanity check: 0it [00:00, ?it/s]\nValidation sanity check:  50%|#####     | 1/2 [00:06<00:06,  6.42s/it]\nbypassing sigterm\nbypassing sigterm\nbypassing sigterm\nslurmstepd: error: *** JOB 2713300 ON node104 CANCELLED AT 2021-02-14T11:03:12 ***", "Lightning-AI/pytorch-lightning/issues/5969", also=("unknown",)),
        field_case("kubectl: evicted for the node's memory", "restart", "Status:         Failed\nReason:         Evicted\nMessage:        The node was low on resource: memory.", "kubeflow/trainer/issues/301", also=("unknown",)),
    ]  # fmt: skip


PASTED_ENDS: Sequence[JobLogCase] = (
    *_hangs(),
    *_crashes(),
    *_devices(),
    *_links(),
    *_schedulers(),
)
