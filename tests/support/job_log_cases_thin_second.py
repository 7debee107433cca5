"""A second look at kinds that no table had many of, after the rules for `job_log_cases_thin`, labelled first again.

oneCCL, Paddle, submitit, boxes of tracebacks, kernel lines, loaders, actors. The lines have the programs' own form, shortened, with
neutral paths.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import CUDA_TAIL, FIT, NEXT, field_case
from tests.support.job_log_cases_forms import ALL_REDUCE, SITE, TRAIN, JobLogCase, trace

SPAWN = (*TRAIN, f"{SITE}/torch/multiprocessing/spawn.py:145:join")


def _before(prefix: str, text: str) -> str:
    return "\n".join(f"{prefix}{line}" for line in text.splitlines())


def _communication() -> list[JobLogCase]:
    family = "[trainer3]:n1016:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n[trainer3]:n1016:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set to eth2\n[trainer0|0]:ncclInternalError: Internal check failed.\n[trainer0|0]:Last error:\n[trainer0|0]:ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"  # fmt: skip
    reverse = _before("[rank2]: ", trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, internal error - please report this issue to the NCCL developers, NCCL version 2.20.5\nncclInternalError: Internal check failed.\nLast error:\nFailed to find reverse path from remNode 0/200000 nlinks 3 to node 0/700000", *ALL_REDUCE))  # fmt: skip
    interface = trace("torch.distributed.DistBackendError: NCCL error in: /opt/conda/conda-bld/pytorch_1682343995622/work/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1207, internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found", *TRAIN, f"{SITE}/torch/distributed/distributed_c10d.py:3328:barrier") + "".join(f"\nWARNING:torch.distributed.elastic.multiprocessing.api:Sending process {n} closing signal SIGTERM" for n in (3710366, 3710367))  # fmt: skip
    mlx = "Train epoch [1/1]: 100%|##########| 128/128 [23:32<00:00, 11.04s/it, pg=-0.0683, rm=-0.5, ret=-0.5, glen=7.28e+3, tlen=7.4e+3, kl=0, act_lr=4.95e-7]\n(LLMRayActor pid=90621, ip=172.19.24.110) update weight: model.embed_tokens.weight, dtype: torch.bfloat16, shape: torch.Size([152064, 5120])\n(LLMRayActor pid=90738, ip=172.19.24.110) mlx5: host_unknown: got completion with error:\n(LLMRayActor pid=90738, ip=172.19.24.110) 00000000 00000000 00000000 00000000\n(LLMRayActor pid=90738, ip=172.19.24.110) 00000000 12006802 0a0007b5 0000e1d2"  # fmt: skip
    fit = trace("ray.exceptions.RayTaskError(ActorDiedError): ray::ActorModelRayActor.fit() (pid=6146, ip=worker-0.svc.cluster.local, actor_id=9c72eb1b2306d051efccdc7b03000000)\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "/home/user/openrlhf/cli/train_ppo_ray.py:171:train", f"{SITE}/ray/_private/worker.py:861:get_objects")  # fmt: skip
    glog = _before("(ActorModelRayActor pid=118633, ip=10.81.10.44) ", "/usr/local/lib/python3.10/dist-packages/torch/lib/libtorch_cuda.so(+0xe5c7aa) [0x7fc7410877aa] c10d::ProcessGroupNCCL::ncclCommWatchdog()\n/usr/lib/x86_64-linux-gnu/libc.so.6(clone+0x44) [0x7ff700c5fa04] __clone\n\n*** SIGABRT received at time=1744106512 on cpu 176 ***\nPC: @     0x7ff700bd09fc  (unknown)  pthread_kill\n    @     0x7ff700b7c520  (unknown)  (unknown)\n[2025-04-08 10:01:52,986 E 118633 120395] logging.cc:497: *** SIGABRT received at time=1744106512 on cpu 176 ***")  # fmt: skip
    client = "(RayWorkerVllm pid=207931, ip=10.0.1.75) [E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).\n(CriticModelRayActor pid=489162) Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root... [repeated 3x across cluster]\n(ActorModelRayActor pid=207260, ip=10.0.1.75) [E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3856, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800268 milliseconds before timing out."  # fmt: skip
    thread = "2023:11:28-16:35:45:(35980) |CCL_WARN| did not find MPI-launcher specific variables, switch to ATL/OFI, to force enable ATL/MPI set CCL_ATL_TRANSPORT=mpi\n2023:11:28-16:35:45:(35980) |CCL_ERROR| base_thread.cpp:36 start: error while creating worker thread #0 pthread_create returns 22\n2023:11:28-16:35:45:(35980) |CCL_ERROR| exec.cpp:134 start_workers: condition workers.back()->start(cpu_affinity, mem_affinity) == ccl::status::success failed\nfailed to start worker # 0\n\nRuntimeError: oneCCL: exec.cpp:134 start_workers: EXCEPTION: failed to start worker # 0"  # fmt: skip
    local = "2024:01:15-03:36:29:(1980058) |CCL_WARN| could not get local_idx/count from environment variables, trying to get them from ATL\n2024:01:15-03:36:29:(1980058) |CCL_ERROR| global.cpp:150 getenv_local_coord: condition global_data::env().ze_ipc_exchange == ccl::ze::ipc_exchange_mode::sockets failed\nto get local_idx/count from ATL, set CCL_ZE_IPC_EXCHANGE=sockets explicitly\n" + trace("RuntimeError: oneCCL: global.cpp:150 getenv_local_coord: EXCEPTION: to get local_idx/count from ATL, set CCL_ZE_IPC_EXCHANGE=sockets explicitly", "/home/user/run_fine-tune.py:261:<module>", f"{SITE}/fire/core.py:141:Fire")  # fmt: skip
    xpu = _before("[0] ", trace("RuntimeError: broadcast isn't implemented on backend [xpu].", "/home/user/test_ddp.py:28:<module>", f"{SITE}/torch/nn/parallel/distributed.py:578:__init__"))  # fmt: skip
    ofi = "CCL_ERROR| atl_ofi_helper.cpp:1118 fi_getinfo error: ret -61, providers 0\nRuntimeError: oneCCL: atl_ofi_comm.cpp:232 init_transport: EXCEPTION: failed to initialize ATL"  # fmt: skip
    return [
        field_case("NCCL: an interface that isn't there, behind trainers' names", "restart", family, "NVIDIA/nccl/issues/1837", error_class="communication", also=("stop",)),
        field_case("RCCL finds no reverse path", "restart", reverse, "ROCm/rccl/issues/1728", error_class="communication", also=("stop",)),
        field_case("NCCL finds no interface", "restart", interface, "codefuse-ai/MFTCoder/issues/31", error_class="communication", also=("stop",)),
        field_case("mlx5 completes with an error as weights go to vLLM", "restart", mlx, "OpenRLHF/OpenRLHF/issues/621"),
        field_case("Ray's task was that of an actor that died", "restart", fit, "OpenRLHF/OpenRLHF/issues/624"),
        field_case("Ray prints glog's SIGABRT behind a watchdog", "restart", glog, "OpenRLHF/OpenRLHF/issues/949", also=("unknown",)),
        field_case("a client of the store and a reduction time out", "restart", client, "OpenRLHF/OpenRLHF/issues/265"),
        field_case("oneCCL starts no worker thread", "restart", thread, "intel/torch-ccl/issues/54", also=("stop",)),
        field_case("oneCCL wants a variable", "stop", local, "huggingface/accelerate/issues/2340", also=("restart",)),
        field_case("torch-ccl knows no broadcast, behind mpirun's numbers", "stop", xpu, "intel/torch-ccl/issues/33", also=("restart",)),
        field_case("oneCCL finds no provider", "restart", ofi, "llm-d/llm-d/pull/2270", also=("stop",)),
    ]  # fmt: skip


def _devices() -> list[JobLogCase]:
    asserts = "".join(f"/opt/conda/conda-bld/pytorch_1695392035891/work/aten/src/ATen/native/cuda/Loss.cu:94: operator(): block: [117,0,0], thread: [{n},0,0] Assertion `input_val >= zero && input_val <= one` failed.\n" for n in (26, 27, 28)) + "[E ProcessGroupNCCL.cpp:915] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: device-side assert triggered" + CUDA_TAIL + trace("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT", *SPAWN)  # fmt: skip
    frames = "frame #0: std::function<std::string ()>::operator()() const + 0x11 (0x7fa72bfe2441 in /opt/conda/lib/python3.6/site-packages/torch/lib/libc10.so)\nframe #1: c10::Error::Error(c10::SourceLocation, std::string const&) + 0x2a (0x7fa72bfe1d7a in /opt/conda/lib/python3.6/site-packages/torch/lib/libc10.so)\nframe #3: c10::TensorImpl::release_resources() + 0x50 (0x7fa72bfd2ce0 in /opt/conda/lib/python3.6/site-packages/torch/lib/libc10.so)\n" + trace("subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', './tools/train.py', '--local_rank=0', 'configs/my.py', '--launcher', 'pytorch']' died with <Signals.SIGABRT: 6>.", "/opt/conda/lib/python3.6/runpy.py:193:_run_module_as_main", f"{SITE}/torch/distributed/launch.py:242:main")  # fmt: skip
    reserve = "2022-04-04 00:27:49.642380: E tensorflow/compiler/xla/xla_client/xla_util.cc:88]   (1) RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G free, 0B reserved, and 3.33G reservable.\n2022-04-04 00:27:49.642385: E tensorflow/compiler/xla/xla_client/xla_util.cc:88] \t [[{{node XRTExecute}}]]\n2022-04-04 00:27:49.642409: E tensorflow/compiler/xla/xla_client/xla_util.cc:88] Recent warning and error logs:\n2022-04-04 00:27:49.642414: E tensorflow/compiler/xla/xla_client/xla_util.cc:88]   OP_REQUIRES failed at tpu_execute_op.cc:266 : RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G free, 0B reserved, and 3.33G reservable."  # fmt: skip
    pod = "2020-10-22 02:48:58 10.128.0.33 [3]   (1) Resource exhausted: Attempting to allocate 180.59M. That was not possible. There are 142.58M free.; (0x3x0_HBM1)"  # fmt: skip
    hsail = "\n".join(f":0:rocdevice.cpp:3586: Callback: Queue 0x{q} aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016" for q in ("7f78cb400000", "7ed480c00000", "7edc9ec00000"))  # fmt: skip
    lost = "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU"  # fmt: skip
    xid = "Aug 29 16:58:38 my-devbox-gpu kernel: [14282.651831] NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."  # fmt: skip
    return [
        field_case("a loss asserts on the device of rank 1", "restart", asserts, "pytorch/pytorch/issues/112488", error_class="program", ranks=(1,), also=("stop",)),
        field_case("an error in a destructor after six epochs", "restart", frames, "open-mmlab/mmdetection/issues/2426"),
        field_case("XLA can't reserve memory after epochs, in its own log", "restart", reserve, "pytorch/xla/issues/3470", error_class="device_memory", also=("stop",)),
        field_case("XLA can't allocate on a worker of a pod", "restart", pod, "pytorch/xla/issues/2569", error_class="device_memory", also=("stop",)),
        field_case("ROCm: queues of all devices abort", "restart", hsail, "ROCm/legacy-rocm-build/issues/6023"),
        field_case("nvidia-smi has lost a GPU", "restart", lost, "JosephKJ/OWOD/issues/81", error_class="device"),
        field_case("syslog: Xid 79 on a box", "restart", xid, "learning-at-home/hivemind/issues/509", error_class="device", nodes=("my-devbox-gpu",)),
    ]  # fmt: skip


def _launchers() -> list[JobLogCase]:
    requeue = "submitit WARNING (2021-03-28 01:13:17,420) - Caught signal 15 on learnfair0463: this job is preempted.\nslurmstepd: error: *** STEP 38544509.0 ON learnfair0463 CANCELLED AT 2021-03-28T01:13:17 DUE TO JOB REQUEUE ***\nslurmstepd: error: *** JOB 38544509 ON learnfair0463 CANCELLED AT 2021-03-28T01:13:17 DUE TO JOB REQUEUE ***\nsubmitit WARNING (2021-03-28 01:13:17,482) - Bypassing signal 18\n38544484_16: Job is pending execution\nsubmitit ERROR (2021-03-28 01:13:17,535) - Could not dump error:\nCommand '['scontrol', 'requeue', '38544484_16']' returned non-zero exit status 1.\n\nbecause of A temporary saved file already exists.\nsubmitit ERROR (2021-03-28 01:13:17,535) - Submitted job triggered an exception"  # fmt: skip
    mesh = trace("Exception: process 0 terminated with exit code 17", *SPAWN)
    crashed = trace("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\n\tactor_id: 4b8e\n\tpid: 166642\n\tip: 10.1.0.12\nThe actor died because its owner has died. Owner Id: 01000000ffffffff Owner Ip address: 10.1.0.11 Owner worker exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.", *TRAIN)  # fmt: skip
    step = "slurmstepd-sp-0016: error: pyxis: couldn't start container\nslurmstepd-sp-0016: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd-sp-0016: error: Failed to invoke spank plugin stack\nsrun: error: sp-0016: task 0: Exited with exit code 1"  # fmt: skip
    plugin = "srun: job 321 queued and waiting for resources\nsrun: job 321 has been allocated resources\nsrun: error: task 0 launch failed: Plugin initialization failed"  # fmt: skip
    paddle = "LAUNCH INFO 2022-10-25 15:17:31,067 Pod failed\nLAUNCH ERROR 2022-10-25 15:17:31,067 Container failed !!!\nContainer rank 0 status failed cmd ['/usr/bin/python3.8', '-u', 'train.py'] code -6 log log/default.fpwuxo.0.log"  # fmt: skip
    three = "INFO 2021-05-24 17:17:14,611 launch_utils.py:307] terminate all the procs\nERROR 2021-05-24 17:17:14,611 launch_utils.py:545] ABORT!!! Out of all 4 trainers, the trainer process with rank=[3] was aborted. Please check its log.\nINFO 2021-05-24 17:17:17,615 launch_utils.py:307] terminate all the procs\n[INFO]: train job failed! train_ret: 1"  # fmt: skip
    fleet = "--------------------------------------\nC++ Traceback (most recent call last):\n--------------------------------------\n0   paddle::framework::SignalHandle(char const*, int)\n1   paddle::platform::GetCurrentTraceBackString()\n\n----------------------\nError Message Summary:\n----------------------\nFatalError: A serious error (Termination signal) is detected by the operating system. (at /paddle/paddle/fluid/platform/init.cc:303)\n  [TimeInfo: *** Aborted at 1602737349 (unix time) try \"date -d @1602737349\" if you are using GNU date ***]\n  [SignalInfo: *** SIGTERM (@0x919b) received by PID 37275 (TID 0x7f0) from PID 37275 ***]"  # fmt: skip
    pull = 'Error from server (BadRequest): container "pytorch" in pod "pytorch-dist-mnist-gloo-master-0" is waiting to start: trying and failing to pull image\nError from server (BadRequest): container "pytorch" in pod "pytorch-dist-mnist-gloo-worker-0" is waiting to start: PodInitializing'  # fmt: skip
    grpc = "[71.95655]\n[13.743915]\nE0523 18:38:30.050364  1005 grpc_client.cc:236] proc param error:name:[fc_0.b_0] ep:[10.255.92.12:30002] grpc error:Deadline Exceeded\nE0523 18:38:30.051322  1004 grpc_client.cc:236] proc param error:name:[fc_0.w_0] ep:[10.255.93.18:30002] grpc error:Deadline Exceeded\n" + trace("paddle.fluid.core.EnforceNotMet: internal grpc error", *TRAIN, f"{SITE}/paddle/fluid/executor.py:336:run")  # fmt: skip
    rabit = "[16:22:39] XGBoost distributed mode detected, will split data among workers\n[16:22:39] Load part of data 0 of 2 parts\n[16:22:44] 100017x10438 matrix with 330975794 entries loaded from train.200k.libsvm\nToo many nodes went down and we cannot recover.., shutting down process"  # fmt: skip
    return [
        field_case("submitit: a requeue that can't save itself", "restart", requeue, "facebookincubator/submitit/issues/1617", error_class="preempted"),
        field_case("xla_spawn: process 0 ends with 17", "restart", mesh, "huggingface/transformers/issues/8304", also=("unknown",)),
        field_case("Ray: the owner's node has crashed", "restart", crashed, "hiyouga/EasyR1/issues/324"),
        field_case("Pyxis behind slurmstepd's node", "restart", step, "NVIDIA/pyxis/issues/135", also=("unknown",)),
        field_case("srun: a plugin doesn't start", "restart", plugin, "NVIDIA/pyxis/issues/4", also=("unknown",)),
        field_case("Paddle: container rank 0 aborts", "restart", paddle, "PaddlePaddle/Paddle/issues/47326", ranks=(0,), also=("unknown",)),
        field_case("Paddle: trainer 3 was aborted", "restart", three, "PaddlePaddle/Paddle/issues/33074", ranks=(3,), also=("unknown",)),
        field_case("Paddle was sent SIGTERM", "restart", fleet, "PaddlePaddle/PaddleFleetX/issues/390", also=("unknown",)),
        field_case("Kubernetes can't pull the image of a master", "restart", pull, "kubeflow/pytorch-operator/issues/264", also=("unknown", "stop")),
        field_case("Paddle's servers don't answer in time", "restart", grpc, "PaddlePaddle/Paddle/issues/10876"),
        field_case("XGBoost: too many nodes went down", "restart", rabit, "dmlc/xgboost/issues/4250"),
    ]  # fmt: skip


def _programs() -> list[JobLogCase]:
    batch = trace("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7", *TRAIN, f"{SITE}/deepspeed/runtime/config.py:891:_batch_assertion")  # fmt: skip
    box = '│   879 │   │   assert (train_batch > 0), f"Train batch size: {train_batch} has to be greater th   │\n│   880 │   │                                                                                      │\n│ ❱ 881 │   │   assert (micro_batch > 0), f"Micro batch size per gpu: {micro_batch} has to be gr   │\n│   882 │   │                                                                                      │\n╰──────────────────────────────────────────────────────────────────────────────────────────────────╯\nAssertionError: Micro batch size per gpu: 0 has to be greater than 0'  # fmt: skip
    workers = "Epoch 7:  41%|####      | 312/760 [01:12<01:44,  4.30it/s, loss=0.412]\n" + trace("RuntimeError: DataLoader worker (pid 3397436) is killed by signal: Aborted. ", *FIT, f"{SITE}/torch/utils/data/_utils/signal_handling.py:66:handler")  # fmt: skip
    files = "Epoch 45:   0%|          | 0/2 [00:00<?, ?it/s, v_num=0]\n" + trace("OSError: [Errno 24] Too many open files", *FIT, f"{SITE}/torch/utils/data/dataloader.py:1040:__init__", "/opt/conda/lib/python3.11/multiprocessing/popen_fork.py:64:_launch")  # fmt: skip
    vanished = trace(
        "RuntimeError: DataLoader worker (pid(s) 18359) exited unexpectedly", *FIT, NEXT
    )
    gradients = "| epoch 012 | loss 3.976 | nll_loss 2.204 | ppl 4.61 | wps 99460 | num_updates 9165\n" + trace("AssertionError: Fatal error: gradients are inconsistent between workers", "/home/user/fairseq_cli/train.py:311:distributed_main", "/home/user/fairseq/trainer.py:426:train_step")  # fmt: skip
    root = "[rank1]: PermissionError: [Errno 13] Permission denied: '/.cache'"
    shared = "Could not cache non-existence of file. Will ignore error and continue. Error: [Errno 13] Permission denied: '/models/hf_hub/hub/models--meta-llama--Llama-3.2-1B-Instruct/.no_exist/9213176/adapter_config.json'\n" + trace("PermissionError: [Errno 13] Permission denied: '/models/hf_hub/data/_models_hf_hub_data_tatsu-lab___alpaca.lock'", "/home/user/train.py:14:<module>", f"{SITE}/filelock/_unix.py:42:_acquire")  # fmt: skip
    cache = "[2025-01-08 23:37:51,800] [INFO] [launch.py:152:main] nnodes=1, num_local_procs=1, node_rank=0\n" + trace("PermissionError: [Errno 13] Permission denied: 'data/input/train_001/cache/hunyuan-video'", "/home/user/train.py:311:<module>", "/home/user/utils/dataset.py:412:cache_metadata")  # fmt: skip
    size = _before("(EmbodiedFSDPActor pid=9671) ", trace("ValueError: Size mismatch between saved torch.Size([257152, 2048]) and current: torch.Size([131661824]) for fsdp_checkpoint.model.language_model.embed_tokens.weight", "/home/user/rlinf/hybrid_engines/fsdp/strategy/base.py:257:load_checkpoint", f"{SITE}/torch/distributed/checkpoint/state_dict_loader.py:172:load"))  # fmt: skip
    keys = trace('RuntimeError: Error(s) in loading state_dict for Generator:\n        Unexpected key(s) in state_dict: "_causal_controller._generator.0.0.weight", "_causal_controller._generator.0.0.bias". ', "/home/user/src/gans/gan.py:316:_load", f"{SITE}/torch/nn/modules/module.py:1671:load_state_dict")  # fmt: skip
    column = "xgboost/plugin/updater_gpu/src/updater_gpu.cc:73: GPU plugin exception: [11:58:08] xgboost/plugin/updater_gpu/src/gpu_hist_builder.cu:573: Check failed: fmat.SingleColBlock() grow_gpu_hist: must have single column block. Try setting 'tree_method' parameter to 'exact'\n\nStack trace returned 9 entries:\n[bt] (0) /tmp/libxgboost4j3121745917140858065.so(_ZN4dmlc15LogMessageFatalD1Ev+0x3c) [0x7f99ab5c497c]"  # fmt: skip
    return [
        field_case("DeepSpeed's sizes of batches differ", "stop", batch, "OpenRLHF/OpenRLHF/issues/346", blame="program"),
        field_case("DeepSpeed's micro batch is 0, in a box", "stop", box, "LIN-SHANG/InstructERC/issues/16", blame="program"),
        field_case("a loader's worker aborts", "restart", workers, "Lightning-AI/pytorch-lightning/issues/8821"),
        field_case("too many open files after 45 epochs", "restart", files, "Lightning-AI/pytorch-lightning/issues/18487"),
        field_case("a loader's worker vanishes under Flash", "restart", vanished, "Lightning-Universe/lightning-flash/issues/896", error_class="host_memory"),
        field_case("fairseq's workers differ in epoch 12", "restart", gradients, "facebookresearch/fairseq/issues/1404"),
        field_case("a cache in the root, on rank 1", "stop", root, "opendatahub-io/ilab-on-ocp/pull/26", also=("restart",)),
        field_case("a lock of another user's data set", "stop", shared, "huggingface/datasets/issues/7900", also=("restart",)),
        field_case("a data set's cache that isn't writable", "stop", cache, "tdrussell/diffusion-pipe/issues/71", also=("restart",)),
        field_case("FSDP's checkpoint has other sizes, on an actor", "stop", size, "RLinf/RLinf/issues/655", blame="program"),
        field_case("a GAN's checkpoint has other keys", "stop", keys, "Emad-COMBINE-lab/GRouNdGAN/issues/15", blame="program"),
        field_case("XGBoost's method doesn't fit its input", "stop", column, "dmlc/xgboost/issues/2324", also=("restart", "unknown")),
    ]  # fmt: skip


THIN_SECOND: Sequence[JobLogCase] = (
    *_communication(),
    *_devices(),
    *_launchers(),
    *_programs(),
)
