"""Siblings of what the looks at public threads found: for each kind other words, another framework, another order of lines.

They are written in the programs' own forms, to see that a rule rests on its evidence and not on one thread.
"""

import json
from collections.abc import Sequence

from tests.support.job_log_cases_field import field_case
from tests.support.job_log_cases_forms import SITE, TRAIN, JobLogCase, PrefixStyle, Said, trace

STEP = "iter 1200: loss 2.8812, time 251.3ms, mfu 41.2%\n"


def _written(program: str) -> str:
    return f"{program} (written in its form)"


def _launches() -> list[JobLogCase]:
    return [
        field_case("bash has no torchrun", "stop", "/var/spool/slurmd/job00191/slurm_script: line 28: torchrun: command not found\nsrun: error: n1: task 0: Exited with exit code 127", _written("bash"), also=("restart",)),
        field_case("a container has no deepspeed", "stop", 'docker: Error response from daemon: failed to create task: OCI runtime create failed: exec: "deepspeed": executable file not found in $PATH: unknown.', _written("opencontainers/runc")),
        field_case("slurmstepd can't start a launcher", "stop", "slurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: n2: task 1: Exited with exit code 2", _written("SchedMD/slurm"), also=("restart",)),
        field_case("a shell has no module command, and the run goes on", "unknown", "run.sh: line 4: module: command not found\nrun.sh: line 5: nvidia-smi: command not found\n" + STEP, _written("bash")),
        field_case("an MPI library is missing", "restart", "python: error while loading shared libraries: libmpi.so.40: cannot open shared object file: No such file or directory\nsrun: error: n3: task 3: Exited with exit code 127", _written("glibc"), also=("stop",)),
        field_case("a symbol is missing at a lookup", "restart", "/opt/venv/bin/python: symbol lookup error: /opt/venv/lib/libtorch_cuda.so: undefined symbol: ncclCommSplit", _written("glibc"), also=("stop",)),
        field_case("XLA: NCCL is asked wrongly", "stop", trace("jaxlib.xla_extension.XlaRuntimeError: INVALID_ARGUMENT: NCCL operation ncclCommInitRankConfig(&comm, nranks, id, rank, &config) failed: invalid argument", "/app/train.py:47:<module>", f"{SITE}/jax/_src/pjit.py:180:cache_miss"), _written("openxla/xla"), also=("restart", "unknown")),
    ]  # fmt: skip


def _links() -> list[JobLogCase]:
    return [
        field_case("XLA: NCCL lost a process", "restart", STEP + "E external/xla/xla/pjrt/pjrt_stream_executor_client.cc:3084] Execution of replica 0 failed: INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited or there was a network error. Last NCCL warning(error) log entry (may be unrelated) 'socketProgressOpt: Call to recv failed'.", _written("openxla/xla"), error_class="communication"),
        field_case("XLA: NCCL's system error in the first step", "restart", trace("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error (run with NCCL_DEBUG=INFO for details)", "/app/train.py:47:<module>", f"{SITE}/jax/_src/pjit.py:180:cache_miss"), _written("openxla/xla"), error_class="communication"),
        field_case("JAX: Orbax waits at a barrier", "restart", STEP + "E0301 10:00:02.123456 140 coordination_service_agent.cc:719] DEADLINE_EXCEEDED: Barrier timed out. Id: orbax_checkpoint_sync_1200. Timed out task names:\n/job:jax_worker/replica:0/task:3", _written("openxla/xla")),
        field_case("TensorFlow's coordinator hears of an abort", "restart", "INFO:tensorflow:loss = 0.41, step = 1200\nINFO:tensorflow:Error reported to Coordinator: <class 'tensorflow.python.framework.errors_impl.AbortedError'>, Session handle is not found: 3f2a. Possibly this worker just restarted.", _written("tensorflow/tensorflow")),
        field_case("gloo's barrier on two ranks names a third", "restart", [Said(r, "[E ProcessGroupGloo.cpp:138] Rank " + str(r) + " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 3. Please check rank 3 logs for faulty rank.") for r in (1, 2)], _written("pytorch/pytorch"), style=PrefixStyle.RANK),
        field_case("an internal error of NCCL without a type", "restart", STEP + "NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:272, internal error", _written("pytorch/pytorch")),
        field_case("a system error of NCCL on two ranks of PyTorch 1.6", "restart", [Said(r, trace("RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:492, unhandled system error, NCCL version 2.7.8", *TRAIN, f"{SITE}/torch/nn/parallel/distributed.py:410:__init__")) for r in (0, 1)], _written("pytorch/pytorch"), error_class="communication", style=PrefixStyle.RANK),
        field_case("InfiniBand's queue pair isn't ready in time", "restart", "n7:984:1357 [4] ibvwrap.cc:152 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\nn7:984:1357 [4] NCCL INFO transport/net_ib.cc:730 -> 2", _written("NVIDIA/nccl"), error_class="communication"),
        field_case("EFA: a message isn't acknowledged", "restart", STEP + "ip-10-0-1-7:79:131 [2] nccl_net_ofi_rdma.c:2345 NCCL WARN NET/OFI Request 0x7f2b completed with error. RC: 4126. Error: unresponsive receiver (reachable by EFA device but handshake failed)", _written("aws/aws-ofi-nccl"), error_class="communication"),
        field_case("Habana: a peer is gone", "restart", STEP + trace("RuntimeError: synStatus=26 [Generic failure] Collective call returned error.", *TRAIN, f"{SITE}/habana_frameworks/torch/core/step_closure.py:46:mark_step"), _written("HabanaAI")),
        field_case("settings that a service can't give now", "restart", trace("ValueError: config values are unavailable: HTTP Error 503: Service Unavailable", *TRAIN), _written("urllib")),
    ]  # fmt: skip


def _machines() -> list[JobLogCase]:
    return [
        field_case("a contained memory error, alone in a node's log", "restart", "2025-03-01T10:00:02.123456+00:00 gpu7 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=5139, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No", _written("NVRM"), nodes=("gpu7",), error_class="device", blame="rank"),
        field_case("a channel goes down with one that met a contained error", "restart", "[ 8812.120931] NVRM: Xid (PCI:0000:3b:00): 45, pid=5139, name=python3, Ch 00000008 caused by previous Xid 94", _written("NVRM"), error_class="device"),
        field_case("NCCL meets a device whose fabric isn't ready", "restart", "n1:100:200 [3] init.cc:1234 NCCL WARN Cuda failure 802 'system not yet initialized'", _written("NVIDIA/nccl"), error_class="device"),
        field_case("Level Zero loses a device", "restart", STEP + trace("RuntimeError: Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)", *TRAIN), _written("intel/llvm")),
        field_case("Neuron's execution meets a hardware error", "restart", trace("RuntimeError: Execution failed: NRT_EXEC_HW_ERR_COLLECTIVES (status 1202)", *TRAIN, f"{SITE}/torch_xla/core/xla_model.py:1077:mark_step"), _written("aws-neuron")),
        field_case("CANN: no memory of the device", "restart", STEP + "EL0004: [PID: 77] 2025-03-01-10:00:02.123.456 Failed to allocate memory.\n        Possible Cause: Available memory is insufficient.", _written("Ascend"), also=("stop",), error_class="device_memory"),
        field_case("the asynchronous allocator has no memory after a step", "restart", STEP + trace("torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\nCurrently allocated     : 70.11 GiB", *TRAIN), _written("pytorch/pytorch"), also=("stop",), error_class="device_memory"),
        field_case("a quota and nothing else", "restart", "OSError: [Errno 122] Disk quota exceeded: '/home/user/ckpt/step_7.pt'", _written("CPython"), error_class="storage"),
        field_case("an outage of the hub and nothing else", "restart", "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/org/m (Caused by NewConnectionError)", _written("psf/requests"), error_class="service"),
    ]  # fmt: skip


def _schedulers() -> list[JobLogCase]:
    return [
        field_case("Grid Engine: a hard limit of time", "restart", STEP + "job 8812 exceeded hard wallclock time - initiate terminate method", _written("Grid Engine"), error_class="time_limit"),
        field_case("Kubernetes: a job's deadline", "restart", STEP + "Warning  DeadlineExceeded  2m  job-controller  Job was active longer than specified deadline", _written("kubernetes/kubernetes"), error_class="time_limit"),
        field_case("PBS: a person deletes a job", "restart", STEP + "PBS Job Id: 77.pbs\nJob deleted at request of alice@login1", _written("openpbs/openpbs"), error_class="user"),
        field_case("a scheduler says that a pod has been preempted", "restart", STEP + "0/12 nodes: pod train-worker-3 has been preempted by a pod of a higher priority", _written("kubernetes/kubernetes"), error_class="preempted"),
    ]  # fmt: skip


def _errors() -> list[JobLogCase]:
    lacks = [Said(r, trace("KeyError: 'layers.0.attention.wq.bias'", "/home/user/torchtitan/train.py:440:<module>", f"{SITE}/torch/distributed/checkpoint/state_dict_loader.py:211:local_step", f"{SITE}/torch/distributed/checkpoint/default_planner.py:131:create_default_local_load_plan")) for r in range(2)]  # fmt: skip
    scheduler = trace("KeyError: 'lr_scheduler'", *TRAIN, "/home/user/train.py:88:load_checkpoint", code="scheduler.load_state_dict(ckpt['lr_scheduler'])")  # fmt: skip
    logged = "2025-03-01 10:00:01,002 - ERROR - train failed\n" + trace("AssertionError: hidden_size must be divisible by num_heads", *TRAIN, "/home/user/model.py:41:__init__")  # fmt: skip
    handled = "2025-03-01 10:00:01,002 - ERROR - upload failed, will try again\n" + trace("AttributeError: 'NoneType' object has no attribute 'put'", "/home/user/upload.py:41:push") + "\n" + STEP * 3  # fmt: skip
    basic = trace("AssertionError: pipeline size must be a divisor of the layers", *TRAIN) + "\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: /usr/bin/python3"  # fmt: skip
    glog = trace("TypeError: __init__() got an unexpected keyword argument 'rope_base'", *TRAIN, "/home/user/model.py:41:__init__") + "\nE0301 10:00:02.123456 140 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: /opt/venv/bin/python"  # fmt: skip
    return [
        field_case("two ranks' planner lacks a name", "stop", lacks, _written("pytorch/pytorch"), blame="program", style=PrefixStyle.RANK),
        field_case("a checkpoint without a scheduler", "stop", scheduler, _written("a script"), blame="program", also=("restart",)),
        field_case("fairseq's loss scale is at its minimum, woven", "restart", STEP + "    raise FloatingPointError(\nFloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.", _written("facebookresearch/fairseq"), error_class="numbers"),
        field_case("DeepSpeed's loss scale is at its minimum, on a task", "restart", [Said(0, STEP.strip()), Said(3, "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."), Said(0, STEP.strip())], _written("deepspeedai/DeepSpeed"), error_class="numbers", style=PrefixStyle.RANK),
        field_case("a program logs the error that ends it", "stop", logged, _written("CPython"), blame="program"),
        field_case("a program logs an error and goes on", "unknown", handled, _written("CPython"), also=("restart",)),
        field_case("torchelastic's line in the old form follows an assertion", "stop", basic, _written("pytorch/pytorch"), blame="program"),
        field_case("torchelastic's line in glog's form follows a type error", "stop", glog, _written("pytorch/pytorch"), blame="program"),
    ]  # fmt: skip


def _collected() -> list[JobLogCase]:
    missing = trace("ModuleNotFoundError: No module named 'einops'", *TRAIN)
    ecc = trace("RuntimeError: CUDA error: uncorrectable ECC error encountered", *TRAIN)
    docker = "\n".join(json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-03-01T10:00:00.1Z"}) for line in missing.splitlines())  # fmt: skip
    cloud = "\n".join(json.dumps({"insertId": str(n), "textPayload": text, "severity": "ERROR"}) for n, text in enumerate((STEP.strip(), "[rank3]: " + ecc.replace("\n", "\n[rank3]: "))))  # fmt: skip
    payload = "\n".join(json.dumps({"jsonPayload": {"message": text, "levelname": "INFO"}, "resource": {"type": "ml_job"}}) for text in (STEP.strip(), STEP.strip(), "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."))  # fmt: skip
    logger = "\n".join([json.dumps({"levelname": "INFO", "message": "epoch 1 starts"}), json.dumps({"levelname": "ERROR", "message": "train failed", "exc_info": trace("OSError: [Errno 28] No space left on device", *TRAIN)})])  # fmt: skip
    journal = "\n".join(json.dumps({"_HOSTNAME": "gpu7", "MESSAGE": text, "PRIORITY": "4"}) for text in ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."))  # fmt: skip
    return [
        field_case("Docker's JSON holds a traceback, a line each", "stop", docker, _written("moby/moby"), blame="program"),
        field_case("Cloud Logging holds a rank's traceback in one entry", "restart", cloud, _written("googleapis/python-logging"), ranks=(3,), error_class="device"),
        field_case("Cloud Logging's payload holds Slurm's word", "restart", payload, _written("googleapis/python-logging"), error_class="oom_killed"),
        field_case("a JSON logger keeps the traceback by itself", "restart", logger, _written("python-json-logger"), error_class="storage"),
        field_case("journalctl's JSON holds the driver's words", "restart", journal, _written("systemd/systemd"), error_class="device"),
    ]  # fmt: skip


def _thin() -> list[JobLogCase]:
    """Siblings of `job_log_cases_thin`."""
    table = "".join(f"[{n}]:\n  time      : 2025-03-01_10:12:44\n  host      : gpu-node-01\n  rank      : {r} (local_rank: {r})\n  exitcode  : 1 (pid: {4200 + r})\n  error_file: /tmp/torchelastic_x/attempt_0/{r}/error.json\n  traceback : Traceback (most recent call last):\n    File \"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py\", line 355, in wrapper\n      return f(*args, **kwargs)\n    File \"/home/user/train.py\", line 207, in main\n      model = build_model(cfg)\n  TypeError: build_model() missing 1 required positional argument: 'vocab_size'\n\n" for n, r in ((1, 1), (0, 0)))  # fmt: skip
    first = "Root Cause (first observed failure):\n[0]:\n  time      : 2025-03-01_10:12:44\n  host      : gpu-node-02\n  rank      : 9 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n  error_file: /tmp/torchelastic_x/attempt_0/1/error.json\n  traceback : Traceback (most recent call last):\n    File \"/home/user/train.py\", line 207, in main\n      loss.backward()\n  RuntimeError: CUDA error: uncorrectable ECC error encountered\n\n============================================================"  # fmt: skip
    stalled = "[1,0]<stderr>:[2025-03-01 10:12:44.113: W /tmp/horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:3: [allreduce.grad.conv1.weight, allreduce.grad.conv2.weight ...]"  # fmt: skip
    missed = "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\nStalled ops:\nDistributedOptimizer_Allreduce/HorovodAllreduce_loss_1_0 [missing ranks: 2, 5]"  # fmt: skip
    shut = trace("tensorflow.python.framework.errors_impl.AbortedError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.", *TRAIN)  # fmt: skip
    hbm = trace("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 29.80G of 15.48G hbm. Exceeded hbm capacity by 14.32G.", *TRAIN)  # fmt: skip
    reserve = trace("RuntimeError: Resource exhausted: From /job:tpu_worker/replica:0/task:0:\nAttempting to reserve 3.95G at the bottom of memory. That was not possible. There are 1.92G free, 0B reserved, and 1.92G reservable.", *TRAIN)  # fmt: skip
    full = trace("tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__SaveV2}} /ckpt/m.tempstate77; No space left on device [Op:SaveV2]", *TRAIN)  # fmt: skip
    warned = "/opt/conda/lib/python3.11/site-packages/torch/cuda/__init__.py:138: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)\n" + STEP * 3  # fmt: skip
    return [
        field_case("torchrun's table holds the tracebacks of two ranks", "stop", table, _written("pytorch/pytorch"), blame="program"),
        field_case("torchrun's table holds a device's error of rank 9", "restart", STEP + first, _written("pytorch/pytorch"), ranks=(9,), error_class="device"),
        field_case("Horovod: rank 3 stalls, under mpirun's tags", "restart", stalled, _written("horovod/horovod"), ranks=(3,)),
        field_case("Horovod: an operation named after a loss misses two ranks", "restart", missed, _written("horovod/horovod"), ranks=(2, 5)),
        field_case("Horovod is shut down, and rank 1 aborts", "restart", [Said(1, shut)], _written("horovod/horovod"), ranks=(), style=PrefixStyle.RANK),
        field_case("XLA's program needs more memory than a TPU has", "stop", hbm, _written("openxla/xla"), also=("restart",), error_class="device_memory"),
        field_case("a TPU can't reserve memory", "restart", STEP + reserve, _written("openxla/xla"), error_class="device_memory"),
        field_case("TensorFlow saves to a full disk", "restart", full, _written("tensorflow/tensorflow"), error_class="storage"),
        field_case("XLA's context met an illegal address", "restart", STEP + "2025-03-01 10:12:44.113812: E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1205] failed to synchronize on CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", _written("openxla/xla"), error_class="kernel_fault"),
        field_case("XLA's kernel failed to launch", "restart", STEP + "2025-03-01 10:12:44.113812: E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1205] could not synchronize on CUDA context: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", _written("openxla/xla"), error_class="kernel_fault"),
        field_case("TensorFlow: an operation has lost its data", "restart", STEP + "2025-03-01 10:12:44.113812: W tensorflow/core/framework/op_kernel.cc:1830] OP_REQUIRES failed at example_parsing_ops.cc:91 : DATA_LOSS: corrupted record at 12", _written("tensorflow/tensorflow")),
        field_case("TensorFlow 1 ends with what stands above", "restart", STEP + "UnknownError (see above for traceback): Failed to get convolution algorithm.\n\t [[node conv1/Conv2D]]", _written("tensorflow/tensorflow")),
        field_case("TensorFlow's data set has ended, and the run goes on", "unknown", STEP + "2025-03-01 10:12:44.113812: W tensorflow/core/framework/op_kernel.cc:1830] OP_REQUIRES failed at iterator_ops.cc:902 : OUT_OF_RANGE: End of sequence\n" + STEP * 3, _written("tensorflow/tensorflow")),
        field_case("a program in C has too old a driver", "restart", "Test CUDA failure common.cu:1045 'CUDA driver version is insufficient for CUDA runtime version'", _written("NVIDIA/nccl-tests"), also=("stop",), error_class="device"),
        field_case("PyTorch warns of CUDA's compatibility, and the run goes on", "unknown", warned, _written("pytorch/pytorch")),
        field_case("a container is over its local storage", "restart", STEP + "  Warning  Evicted  2m  kubelet  Container trainer exceeded its local ephemeral storage limit \"20Gi\". ", _written("kubernetes/kubernetes"), error_class="storage"),
        field_case("an emptyDir is over its limit", "restart", "  Warning  Evicted    2m    kubelet    Usage of EmptyDir volume \"dshm\" exceeds the limit \"64Gi\". ", _written("kubernetes/kubernetes"), error_class="storage"),
        field_case("before PyTorch 1.6: process 3 of spawn crashed", "restart", trace("Exception: process 3 terminated with signal SIGSEGV", *TRAIN, f"{SITE}/torch/multiprocessing/spawn.py:112:join"), _written("pytorch/pytorch"), ranks=(3,), error_class="crashed"),
        field_case("joblib's workers crashed", "restart", STEP + "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated.\n\nThe exit codes of the workers are {SIGSEGV(-11), SIGSEGV(-11)}", _written("joblib/joblib"), error_class="crashed"),
        field_case("Pyxis creates no container on task 3", "restart", [Said(3, line) for line in ("slurmstepd: error: pyxis: failed to create container filesystem", "slurmstepd: error: pyxis: printing enroot log file:", "slurmstepd: error: pyxis:     [ERROR] No such file or directory: /run/enroot", "slurmstepd: error: pyxis: couldn't start container")], _written("NVIDIA/pyxis"), ranks=(3,), style=PrefixStyle.SRUN),
        field_case("a tokenizer without a padding token", "stop", trace("ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as `pad_token` `(tokenizer.pad_token = tokenizer.eos_token e.g.)`.", *TRAIN), _written("huggingface/transformers"), blame="program"),
        field_case("Inductor's cache in a home that isn't writable", "stop", trace("PermissionError: [Errno 13] Permission denied: '/home/user/.cache/torchinductor'", *TRAIN, f"{SITE}/transformers/trainer.py:2480:_inner_training_loop"), _written("CPython"), blame="program"),
        field_case("a shard that can't be read, in the loop", "restart", trace("PermissionError: [Errno 13] Permission denied: '/data/shard_0007.tar'", *TRAIN, f"{SITE}/transformers/trainer.py:2480:_inner_training_loop"), _written("CPython")),
    ]  # fmt: skip


def _thin_second() -> list[JobLogCase]:
    """Siblings of `job_log_cases_thin_second`."""
    warned = "2025-03-01 10:12:44.113812: W tensorflow/core/framework/op_kernel.cc:1830] OP_REQUIRES failed at autotune.cc:91 : RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.\n" + STEP * 3  # fmt: skip
    needs = trace("ValueError: the number of experts needs to be divisible by the expert parallel size", *TRAIN, "/home/user/config.py:41:validate_config")  # fmt: skip
    return [
        field_case("ROCm: an aperture is violated", "restart", STEP + ":0:rocdevice.cpp            :2984: 6275 us: [pid:77 tid:0x7f] Callback: Queue 0x7f78cb400000 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29", _written("ROCm/clr"), error_class="kernel_fault"),
        field_case("ROCm: a queue has no resources", "restart", STEP + ":0:rocdevice.cpp:2726: Callback: Queue 0x7f78cb400000 Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. code: 0x1008".replace("Aborting", "aborting"), _written("ROCm/clr"), error_class="device_memory"),
        field_case("nvidia-smi meets an unknown error", "restart", STEP + "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error", _written("NVML"), error_class="device"),
        field_case("mlx5 completes with an error on a node", "restart", STEP + "mlx5: gpu-node-02: got completion with error:\n00000000 00000000 00000000 00000000", _written("linux-rdma/rdma-core"), error_class="communication"),
        field_case("NCCL's system error without a traceback", "restart", STEP + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", _written("NVIDIA/nccl"), error_class="communication"),
        field_case("NCCL's remote error behind a trainer's name", "restart", STEP + "[trainer2|5]:ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", _written("NVIDIA/nccl"), error_class="communication"),
        field_case("oneCCL: a collective fails on an actor", "restart", STEP + "2025:03:01-10:12:44:(77) |CCL_ERROR| sched.cpp:97 operator(): EXCEPTION: ze error at zeCommandQueueExecuteCommandLists, code: ZE_RESULT_ERROR_DEVICE_LOST", _written("oneapi-src/oneCCL")),
        field_case("a TPU's program has no memory, on a task of a pod", "restart", STEP + "2025-03-01 10:12:44 10.128.0.33 [3] RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 29.80G of 7.98G hbm.", _written("pytorch/xla"), error_class="device_memory"),
        field_case("TensorFlow warns of memory and goes on", "unknown", warned, _written("tensorflow/tensorflow"), also=("restart",)),
        field_case("a number that needs to be divisible", "stop", needs, _written("Megatron-LM"), blame="program"),
        field_case("Paddle crashed, by its own word", "restart", STEP + "FatalError: `Process abort signal` is detected by the operating system.\n  [SignalInfo: *** SIGABRT (@0x9ec) received by PID 2540 (TID 0x7f64) from PID 2540 ***]", _written("PaddlePaddle/Paddle")),
    ]  # fmt: skip


SIBLINGS: Sequence[JobLogCase] = (
    *_launches(),
    *_links(),
    *_machines(),
    *_schedulers(),
    *_errors(),
    *_collected(),
    *_thin(),
    *_thin_second(),
)
