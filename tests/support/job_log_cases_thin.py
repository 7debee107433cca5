"""Logs of public threads of the kinds that no table had many of, none cited before: each was labelled before any rule judged it.

Stacks of py-spy, Horovod, JAX, TPUs, Gaudi, TensorFlow, containers, rendezvous, drivers. The lines have the programs' own form,
shortened, with neutral paths. `also` is given only where the thread itself leaves open whether a new start helps.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_blind import ELASTIC_RUN, MEGATRON, SPAWN
from tests.support.job_log_cases_field import HF, field_case
from tests.support.job_log_cases_forms import SITE, TRAIN, JobLogCase, PrefixStyle, Said, trace

STALLED = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is submitting tensors, which will cause deadlock."
SHUT = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown was caused by an exception, you should see the exception in the log before the first shutdown message."
KERAS = (
    "/home/user/train.py:202:<module>",
    f"{SITE}/tensorflow/python/keras/engine/training.py:1183:fit",
    f"{SITE}/tensorflow/python/eager/execute.py:60:quick_execute",
)
XMP = (
    f"{SITE}/torch_xla/distributed/xla_multiprocessing.py:330:_mp_start_fn",
    f"{SITE}/torch_xla/distributed/xla_multiprocessing.py:323:_start_fn",
    f"{SITE}/torch_xla/core/xla_model.py:231:xla_device",
)
ACCELERATE = (
    "/opt/conda/bin/accelerate:8:<module>",
    f"{SITE}/accelerate/commands/accelerate_cli.py:47:main",
    f"{SITE}/accelerate/commands/launch.py:986:launch_command",
    f"{SITE}/accelerate/commands/launch.py:646:multi_gpu_launcher",
)
COMPILE = (
    *TRAIN,
    f"{SITE}/torch/_dynamo/eval_frame.py:749:compile_wrapper",
    f"{SITE}/torch/_inductor/compile_fx.py:923:_compile_fx_inner",
)
LAUNCH = (
    "/opt/conda/lib/python3.8/runpy.py:194:_run_module_as_main",
    f"{SITE}/torch/distributed/launch.py:195:<module>",
    f"{SITE}/torch/distributed/launcher/api.py:246:launch_agent",
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
RENDEZVOUS = (
    *ELASTIC_RUN,
    f"{SITE}/torch/distributed/elastic/agent/server/api.py:881:_invoke_run",
    f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1079:num_nodes_waiting",
    f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:115:_call_store",
)


def _before(prefix: str, text: str) -> str:
    return "\n".join(f"{prefix}{line}" for line in text.splitlines())


def _stacks() -> list[JobLogCase]:
    zero = 'Thread 4888 (idle): "MainThread"\n    _engine_run_backward (torch/autograd/graph.py:769)\n    backward (torch/autograd/__init__.py:289)\n    backward (torch/_tensor.py:521)\n    backward (deepspeed/runtime/fp16/loss_scaler.py:63)\n    backward (deepspeed/runtime/zero/stage3.py:2247)\n    wrapped_fn (deepspeed/utils/nvtx.py:18)\n    training_loop (src/fine_tune_accelerate.py:411)\n    main (src/fine_tune_accelerate.py:582)\n    <module> (src/fine_tune_accelerate.py:586)\nThread 5406 (idle): "Thread-1"\n    wait (threading.py:324)\n    wait (threading.py:607)\n    run (tqdm/_monitor.py:60)\n    _bootstrap_inner (threading.py:1016)\n    _bootstrap (threading.py:973)\nThread 8283 (idle)\nThread 8287 (active)\n    partition_grads (deepspeed/runtime/zero/stage3.py:1500)\n    wrapped_fn (deepspeed/utils/nvtx.py:18)\n    __reduce_and_partition_ipg_grads (deepspeed/runtime/zero/stage3.py:1309)\n    decorate_context (torch/utils/_contextlib.py:116)'  # fmt: skip
    process = 'Process 39: /usr/bin/python3.10 -u src/fine_tune_accelerate.py --config_file src/configs/mixtral_8x7b/config.yaml\nPython v3.10.12 (/usr/bin/python3.10)\n\nThread 39 (idle): "MainThread"\n    backward (torch/autograd/__init__.py:266)\n    backward (torch/_tensor.py:522)\n    backward (deepspeed/runtime/fp16/loss_scaler.py:63)\n    backward (deepspeed/runtime/zero/stage3.py:2213)\n    wrapped_fn (deepspeed/utils/nvtx.py:15)\n    backward (deepspeed/runtime/engine.py:1976)'  # fmt: skip
    gather = 'Thread 42 (idle): "MainThread"\n    backward (torch/autograd/__init__.py:266)\n    backward (torch/_tensor.py:522)\n    training_loop (src/fine_tune_accelerate.py:410)\n    <module> (src/fine_tune_accelerate.py:587)\nThread 928 (idle): "Thread-1"\n    wait (threading.py:324)\n    run (tqdm/_monitor.py:60)\nThread 4076 (idle)\nThread 4079 (active)\n    all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)\n    wrapper (torch/distributed/c10d_logger.py:72)\n    all_gather_into_tensor (deepspeed/comm/torch.py:219)\n    _fn (torch/_dynamo/eval_frame.py:489)\n    all_gather_into_tensor (deepspeed/comm/comm.py:305)'  # fmt: skip
    return [
        field_case("py-spy: ZeRO 3 partitions gradients in one process", "restart", zero, "deepspeedai/DeepSpeed/issues/6524", also=("unknown",)),
        field_case("py-spy: a backward pass of one of eight processes", "restart", process, "pytorch/pytorch/issues/135703", also=("unknown",)),
        field_case("py-spy: a gather in a thread of autograd", "restart", gather, "huggingface/accelerate/issues/3104", also=("unknown",)),
    ]  # fmt: skip


def _horovod() -> list[JobLogCase]:
    ncf = "2021-07-22 05:04:29.383019: I tensorflow/stream_executor/platform/default/dso_loader.cc:48] Successfully opened dynamic library libcublas.so.11\n" + "".join(f"2021-07-22 05:04:29.58{n}233: W tensorflow/core/framework/op_kernel.cc:1651] OP_REQUIRES failed at mpi_ops.cc:316 : Unknown: {SHUT}\n" for n in (9, 9, 9))  # fmt: skip
    tagged = "[1,0]<stdout>:2022-02-20 10:38:29,028 [INFO] {'loss': 1.0014339685440063, 'auc': 0.4689686894416809, 'batch': 0}\n[1,1]<stdout>:2022-02-20 10:38:29,032 [INFO] {'loss': 0.9956496357917786, 'auc': 0.4890790581703186, 'batch': 0}\n[1,2]<stdout>:2022-02-20 10:38:29,033 [INFO] {'loss': 1.0065269470214844, 'auc': 0.5079171061515808, 'batch': 0}\n[1,0]<stdout>:925/925 - 522s - loss: 0.1655 - auc: 0.7404 - val_loss: 0.1336 - val_auc: 0.8013\n" + _before("[1,2]<stderr>:", trace(f"tensorflow.python.framework.errors_impl.UnknownError: {SHUT}", *KERAS))  # fmt: skip
    seq = f"1469.worker.1  | [2019-06-04T16:49:20Z] [2019-06-04 16:49:19.737850: W horovod/common/operations.cc:588] {STALLED}\n1469.worker.1  | [2019-06-04T16:49:20Z] Stalled ops:Loss_Optimization/all_reduce/HorovodAllreduce_Loss_Optimization_mul_1_0 [missing ranks: 0]\n1469.worker.1  | [2019-06-04T16:49:20Z] [2019-06-04 16:49:19.738018: W horovod/common/operations.cc:588] Loss_Optimization/all_reduce/HorovodAllreduce_Loss_Optimization_mul_2_0 [missing ranks: 0]"  # fmt: skip
    docker = f"[1,0]<stderr>:[2019-04-13 13:55:31.858119: W horovod/common/operations.cc:588] HorovodBroadcast_dense_kernel_Momentum_0 [missing ranks: 1]\n[1,0]<stderr>:[2019-04-13 13:55:31.858146: W horovod/common/operations.cc[1,0]<stderr>::588] HorovodBroadcast_conv2d_1_kernel_0 [missing ranks: 1]\n[1,0]<stderr>:[2019-04-13 13:56:31.861697: W horovod/common/operations.cc:588] {STALLED}\n[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]\n[1,0]<stderr>:[2019-04-13 13:56:31.861765: W horovod/common/operations.cc:588] HorovodBroadcast_dense_1_kernel_0 [missing ranks: 1]"  # fmt: skip
    automl = f"[1,0]<stderr>:[2020-07-04 19:23:57.817885: W horovod/common/stall_inspector.cc:105] {STALLED} \n[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:0: [HorovodBroadcast_box_net_box_0_bias_0, HorovodBroadcast_box_net_box_0_bias_Momentum_0, HorovodBroadcast_box_net_box_0_bn_3_beta_0 ...]\n[1,0]<stderr>:1: [DistributedMomentumOptimizer_Allreduce/HorovodAllreduce_gradients_AddN_100_0, DistributedMomentumOptimizer_Allreduce/HorovodAllreduce_gradients_AddN_101_0 ...]"  # fmt: skip
    adadelta = f"[2020-03-24 04:54:54.292744: W horovod/common/stall_inspector.cc:105] {STALLED}\nStalled ranks:\n0: [training/Adadelta_Allreduce/HorovodAllreduce_Adadelta_1_gradients_AddN_102_0, training/Adadelta_Allreduce/HorovodAllreduce_Adadelta_1_gradients_AddN_103_0 ...]"  # fmt: skip
    caffe = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /home/user/gloo/gloo/transport/tcp/pair.cc:498] optval == 0. 111 vs 0. SO_ERROR: Connection refused\n--------------------------------------------------------------------------\nmpirun noticed that process rank 1 with PID 29013 on node 10.17.27.12 exited on signal 6 (Aborted).\n--------------------------------------------------------------------------"  # fmt: skip
    yolox = "2022-03-09 15:13:23 | INFO     | yolox.core.trainer:351 - Save weights to /home/user/YOLOX/opi\n2022-03-09 15:13:24 | INFO     | yolox.core.trainer:202 - ---> start train epoch6\n2022-03-09 15:13:43 | INFO     | yolox.core.trainer:351 - Save weights to /home/user/YOLOX/opi\n" + trace("RuntimeError: [/opt/conda/conda-bld/pytorch_1607370120218/work/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect [127.0.1.1]:3496: Connection refused", *TRAIN, f"{SITE}/torch/distributed/distributed_c10d.py:1870:barrier")  # fmt: skip
    io = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [/opt/conda/conda-bld/pytorch_1544084119927/work/third_party/gloo/gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused\nAborted (core dumped)"  # fmt: skip
    return [
        field_case("Horovod is shut down under NCF", "restart", ncf, "NVIDIA/DeepLearningExamples/issues/972", ranks=()),
        field_case("Horovod is shut down behind rank 2 after an epoch", "restart", tagged, "horovod/horovod/issues/3412", ranks=()),
        field_case("Horovod: operations miss rank 0, behind a worker's name", "restart", seq, "NVIDIA/OpenSeq2Seq/issues/456", ranks=(0,)),
        field_case("Horovod: broadcasts miss rank 1, under mpirun's tags", "restart", docker, "horovod/horovod/issues/1012", ranks=(1,)),
        field_case("Horovod: two ranks wait for each other's tensors", "restart", automl, "google/automl/issues/563"),
        field_case("Horovod: stalled rank 0", "restart", adadelta, "horovod/horovod/issues/1206", ranks=(0,)),
        field_case("gloo of Caffe2 is refused under mpirun", "restart", caffe, "facebookarchive/caffe2/issues/360"),
        field_case("gloo is refused after six epochs", "restart", yolox, "Megvii-BaseDetection/YOLOX/issues/1167", error_class="communication"),
        field_case("gloo is refused by the host's own other address", "restart", io, "pytorch/pytorch/issues/15592", error_class="communication"),
    ]  # fmt: skip


def _tpus() -> list[JobLogCase]:
    leader = "E0929 17:42:48.594192 1044529 coordination_service_agent.cc:332] Polled an error from coordination service (this can be an error from this or another task).\nF0929 17:42:48.594200 1044529 client.h:77] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details. Disable Python buffering, i.e. `python -u`, to be sure to see all the previous output. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or this task is experiencing network issues. Check earlier logs from 1) this task, 2) the leader (usually slice 0 task 0), and 3) cluster scheduler to debug further.\nAdditional GRPC error information from remote target coordination_service while calling /tensorflow.CoordinationService/PollForError:\n:UNKNOWN:Error received from peer  {grpc_message:\"Socket closed\", grpc_status:14}"  # fmt: skip
    clique = "".join(f"2024-07-29 17:14:59.9{200 + n}89: E external/xla/xla/service/rendezvous.cc:38] This thread has been waiting for `initialize clique for rank {r}; clique=devices=[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]; stream=0; run_id=724296073` for 10 seconds and may be stuck. Expected 8 threads to join the rendezvous, but not all of them arrived on time.\n" for n, r in ((1, 6), (7, 0)))  # fmt: skip
    accel = trace("RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: open(/dev/accel2): Operation not permitted: Operation not permitted; Couldn't open device: /dev/accel2", *TRAIN, f"{SITE}/torch_xla/core/xla_model.py:79:get_xla_supported_devices")  # fmt: skip
    device = 'Exception in device=TPU:0: tensorflow/compiler/xla/xla_client/xrt_local_service.cc:56 : Check failed: tensorflow::NewServer(server_def, &server_) == ::tensorflow::Status::OK() (PERMISSION_DENIED: open(/dev/accel0): Operation not permitted: Operation not permitted; Couldn\'t open device: /dev/accel0; Unable to create Node RegisterInterface for node 0, config: device_path: \t "/dev/accel0" mode: KERNEL debug_data_directory: "" dump_anomalies_only: true crash_in_debug_dump: false allow_core_dump: true; could not create driver instance vs. OK)\n' + trace("RuntimeError: tensorflow/compiler/xla/xla_client/xrt_local_service.cc:56 : Check failed: tensorflow::NewServer(server_def, &server_) == ::tensorflow::Status::OK() (PERMISSION_DENIED: open(/dev/accel0): Operation not permitted)", *XMP)  # fmt: skip
    slices = "File /usr/local/lib/python3.10/site-packages/torch_xla/_internal/pjrt.py:214, in spawn(fn, nprocs, start_method, args)\n    211 elif nprocs is not None:\n    212   logging.warning('Unsupported nprocs (%d), ignoring...' % nprocs)\n--> 214 run_multiprocess(spawn_fn, start_method=start_method)\n\nFile /usr/local/lib/python3.10/site-packages/torch_xla/runtime.py:95, in requires_pjrt.<locals>.wrapper(*args, **kwargs)\n---> 95 return fn(*args, **kwargs)\n\nRuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: Invalid --2a886c8_slice_builder_worker_addresses specified. Expected 4 worker addresses, got 1."  # fmt: skip
    scoped = "  XLA label: %fusion.4431 = (f32[1024]{0:T(1024)}, f32[24,128]{1,0:T(8,128)}, f32[24,128]{1,0:T(8,128)}, f32[1024]{0:T(1024)}, f32[24...\n  Allocation type: scoped\n\n\t [[{{node XRTCompile}}]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions for current allocation info.\n\n0 successful operations.\n0 derived errors ignored.\n" + trace("RuntimeError: Resource exhausted: From /job:tpu_worker/replica:0/task:0:\n2 root error(s) found.\n  (0) Resource exhausted: Ran out of memory in memory space vmem. Used 17.30M of 16.00M vmem. Exceeded vmem capacity by 1.30M.", *XMP)  # fmt: skip
    pods = "2023-01-16 20:44:15 172.16.80.29 [9] SCP: Attempting to connect to worker 9...\n" + "".join(f"2023-01-16 20:44:18 172.16.80.{ip} [{n}] Terminated\n" for ip, n in ((8, 14), (121, 8), (32, 10), (31, 2))) + "Process Process-1:\n" + trace("", "/usr/lib/python3.8/multiprocessing/process.py:315:_bootstrap", f"{SITE}/torch_xla/distributed/xla_dist.py:400:_run_cmd")  # fmt: skip
    mesh = "*** End stack trace ***\nFailed to connect to client mesh master: d7c1c93dfe8c:56419\n" + trace("Exception: process 1 terminated with exit code 17", *SPAWN)  # fmt: skip
    loader = "Process 0 is using TPU:0\nProcess 4 is using TPU:4\nProcess 3 is using TPU:3\nException in thread Thread-15:\n" + trace("", "/usr/lib/python3.7/threading.py:926:_bootstrap_inner", f"{SITE}/torch_xla/distributed/parallel_loader.py:166:_worker") + trace("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGABRT", *SPAWN)  # fmt: skip
    term = "*** SIGTERM received by PID 1163 (TID 1163) on cpu 81 from PID 850; stack trace: ***\nPC: @     0x7a08e60c807c  (unknown)  __read\n    @     0x7a076eb28a1a       1152  (unknown)\n    @     0x7a08e600bf90  (unknown)  (unknown)\nE0919 02:13:18.050124    1163 coredump_hook.cc:360] RAW: Remote crash gathering disabled for SIGTERM.\nE0919 02:13:18.217713    1623 process_state.cc:1074] RAW: Signal 15 raised at PC: 0x7a076eb9ee7a while already in FailureSignalHandler!\nE0919 02:13:18.263254    1165 process_state.cc:1109] RAW: Raising 15 signal with default behavior"  # fmt: skip
    return [
        field_case("JAX: the leader of the coordination is gone", "restart", leader, "jax-ml/jax/pull/39095"),
        field_case("JAX: not all threads come to a clique", "restart", clique, "jax-ml/jax/issues/22740", also=("unknown",)),
        field_case("a TPU's device is not to be opened", "restart", accel, "pytorch/xla/issues/9604", also=("unknown",)),
        field_case("a TPU's device is not to be opened, now and then", "restart", device, "pytorch/xla/issues/3947", also=("unknown",)),
        field_case("a TPU's slice has four addresses and got one", "stop", slices, "Lightning-AI/pytorch-lightning/issues/20244", also=("restart", "unknown")),
        field_case("XLA's program needs more vector memory than a TPU has", "stop", scoped, "huggingface/transformers/pull/3702", error_class="device_memory", also=("restart",)),
        field_case("xla_dist ends the workers of a pod", "restart", pods, "pytorch/xla/issues/4465", also=("unknown",)),
        field_case("a TPU's process finds no mesh master", "restart", mesh, "pytorch/xla/issues/2604", also=("unknown",)),
        field_case("a TPU's process aborts behind its loader's thread", "restart", loader, "pytorch/xla/issues/3122", also=("unknown",)),
        field_case("Abseil reports SIGTERM in a notebook's processes", "restart", term, "pytorch/xla/issues/5616", also=("unknown",)),
    ]  # fmt: skip


def _accelerators() -> list[JobLogCase]:
    hip = ":1:hip_code_object.cpp      :516 : 1349537983 us: [pid:224   tid:0x7ff81ad1d740] hipErrorNoBinaryForGpu: Unable to find code object for all current devices!\n:1:hip_code_object.cpp      :517 : 1349537997 us: [pid:224   tid:0x7ff81ad1d740]   Devices:\n:1:hip_code_object.cpp      :520 : 1349538005 us: [pid:224   tid:0x7ff81ad1d740]     amdgcn-amd-amdhsa--gfx1030 - [Not Found]\nMemory access fault by GPU node-2 (Agent handle: 0x5640a8bb1980) on address 0x7feea09c5000. Reason: Page not present or supervisor privilege."  # fmt: skip
    gaudi = "".join(_before(f"[rank{r}]: ", trace("RuntimeError: synNodeCreateWithId failed for node: batch_gemm with synStatus 26 [Generic failure]. .", "/home/user/src/llamafactory/launcher.py:23:<module>", "/home/user/src/llamafactory/train/tuner.py:107:run_exp", f"{SITE}/optimum/habana/transformers/trainer.py:609:train")) + "\n" for r in (2, 3))  # fmt: skip
    graph = "[19:08:34.164951][GC                    ][error][tid:44F8A] Failed to load tpc kernel for node: TPC634, GUID: constant_bf16. Got error: GLUE_FAILED\n[19:08:34.164986][PASS_MANAGER          ][error][tid:44F8A] Graph optimization failed pass: loadTpcKernels\n[19:08:34.165034][SYN_API       ][error][tid:44F8A] synGraphCompile: SYN_API_CALL failed status: 26[synFail]. graphHandle 0x557b3b2885e0\n[19:08:34.165045][PT_BRIDGE       ][error][tid:44F8A] /npu-stack/pytorch-integration/backend/synapse_helpers/graph.cpp: 599Graph compile failed. synStatus=synStatus 26 [Generic failure]. compile\n" + _before("[rank0]: ", trace("RuntimeError: Graph compile failed. synStatus=synStatus 26 [Generic failure].", *TRAIN))  # fmt: skip
    bloomz = "[rank6]:   File \"/usr/local/lib/python3.10/dist-packages/torch/_tensor_str.py\", line 138, in __init__\n[rank6]:     nonzero_finite_vals = torch.masked_select(\n[rank6]: RuntimeError: [Rank:6] FATAL ERROR :: MODULE:PT_BRIDGE Exception in Launch thread...\n[rank6]: Check $HABANA_LOGS/ for detailsGraph compile failed. synStatus=synStatus 26 [Generic failure].\n[rank6]: [Rank:6] Habana exception raised from compile at graph.cpp:599\n" + _before("[rank2]: ", trace("RuntimeError: Graph compile failed. synStatus=synStatus 26 [Generic failure].", f"{SITE}/torch/distributed/c10d_logger.py:79:wrapper", f"{SITE}/torch/distributed/distributed_c10d.py:3208:all_gather_into_tensor"))  # fmt: skip
    compat = "THCudaCheck FAIL file=/opt/conda/conda-bld/pytorch_1591914855613/work/aten/src/THC/THCGeneral.cpp line=47 error=804 : forward compatibility was attempted on non supported HW\n" + trace("RuntimeError: cuda runtime error (804) : forward compatibility was attempted on non supported HW at /opt/conda/conda-bld/pytorch_1591914855613/work/aten/src/THC/THCGeneral.cpp:47", *TRAIN, f"{SITE}/torch/cuda/__init__.py:153:_lazy_init")  # fmt: skip
    old = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."  # fmt: skip
    pose = "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=74 error=35 : CUDA driver version is insufficient for CUDA runtime version\n" + trace("RuntimeError: cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version at /pytorch/aten/src/THC/THCGeneral.cpp:74", *TRAIN, f"{SITE}/torch/nn/modules/module.py:258:cuda")  # fmt: skip
    tests = "nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \nmisc/ibvwrap.cu:60 WARN Failed to open libibverbs.so[.1]\nCuda failure common.cu:891 'CUDA driver version is insufficient for CUDA runtime version'"  # fmt: skip
    paddle = "Tue Nov 27 13:49:06 2018[1,10]<stdout>:F1127 13:49:06.743296 17418 hl_cuda_device.cc:565] Check failed: cudaSuccess == cudaStat (0 vs. 35) Cuda Error: CUDA driver version is insufficient for CUDA runtime version\nTue Nov 27 13:49:06 2018[1,10]<stdout>:*** Check failure stack trace: ***"  # fmt: skip
    return [
        field_case("HIP finds no code and faults", "restart", hip, "ROCm/legacy-rocm-build/issues/2804", also=("stop",)),
        field_case("Gaudi creates no node of a graph, on two ranks", "restart", gaudi, "hiyouga/LlamaFactory/pull/7275", also=("stop",)),
        field_case("Gaudi has no kernel for a graph", "restart", graph, "HabanaAI/vllm-fork/issues/484", also=("stop",)),
        field_case("Gaudi compiles no graph in a launch thread", "restart", bloomz, "huggingface/optimum-habana/issues/1426", also=("stop",)),
        field_case("CUDA's forward compatibility, of an old PyTorch", "restart", compat, "pytorch/pytorch/issues/40671", error_class="device"),
        field_case("a driver that is too old, as one line", "restart", old, "serend1p1ty/SeqNet/issues/36", error_class="device", also=("stop",)),
        field_case("a driver that is insufficient, by THC", "restart", pose, "microsoft/human-pose-estimation.pytorch/issues/23", error_class="device", also=("stop",)),
        field_case("a driver that is insufficient, by NCCL's tests", "restart", tests, "NVIDIA/nccl-tests/issues/12", error_class="device", also=("stop",)),
        field_case("a driver that is insufficient, by Paddle under mpirun", "restart", paddle, "PaddlePaddle/Paddle/issues/14625", error_class="device", also=("stop",)),
    ]  # fmt: skip


def _tensorflow() -> list[JobLogCase]:
    rnn = '1/95 [..............................] - ETA: 2:39 - loss: 0.6943\nInternalError (see above for traceback): Failed to call ThenRnnForward\n\t [[Node: tower_0/cudnn_rnn_stack/cudnn_rnn_relu/CudnnRNN = CudnnRNN[T=DT_FLOAT, direction="bidirectional", dropout=0, input_mode="linear_input", is_training=true, rnn_mode="rnn_relu", seed=0, seed2=0, _device="/job:localhost/replica:0/task:0/device:GPU:0"](tower_0/cudnn_rnn_stack/transpose)]]'  # fmt: skip
    mirrored = "2019-11-07 10:45:15.308780: W tensorflow/core/common_runtime/base_collective_executor.cc:217] BaseCollectiveExecutor::StartAbort Internal: cuDNN launch failure : input shape([16,3,262,262]) filter shape([7,7,3,64])\n         [[{{node replica_1/resnet50/conv1_conv/Conv2D}}]]\n2019-11-07 10:45:15.332853: E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n  1/548 [..............................] - ETA: 2:39:09" + trace("tensorflow.python.framework.errors_impl.InternalError: 2 root error(s) found.\n  (0) Internal:  cuDNN launch failure : input shape([16,3,262,262]) filter shape([7,7,3,64])\n\t [[{{node replica_1/resnet50/conv1_conv/Conv2D}}]]", *KERAS)  # fmt: skip
    backward = "2020-01-16 10:26:44.374373: E tensorflow/stream_executor/dnn.cc:596] CUDNN_STATUS_INTERNAL_ERROR\nin tensorflow/stream_executor/cuda/cuda_dnn.cc(1802): 'cudnnRNNForwardTraining( cudnn.handle(), rnn_desc.handle(), model_dims.max_seq_length, input_desc.handles())'\n2020-01-16 10:26:44.375949: W tensorflow/core/framework/op_kernel.cc:1655] OP_REQUIRES failed at cudnn_rnn_ops.cc:1517 : Internal: Failed to call ThenRnnForward with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0 , [num_layers, input_size, num_units, dir_count, max_seq_length, batch_size, cell_num_units]: [1, 64, 64, 1, 1850, 64, 64] \n2020-01-16 10:26:44.376544: W tensorflow/core/common_runtime/base_collective_executor.cc:217] BaseCollectiveExecutor::StartAbort Internal: Failed to call ThenRnnForward with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0"  # fmt: skip
    illegal = "2018-02-14 23:51:31.591963: E tensorflow/stream_executor/cuda/cuda_event.cc:49] Error polling for event status: failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS\n2018-02-14 23:51:31.592000: F tensorflow/core/common_runtime/gpu/gpu_event_mgr.cc:203] Unexpected Event status: 1\n2018-02-14 23:51:31.592023: E tensorflow/stream_executor/cuda/cuda_dnn.cc:1679] Failed to call cudnnRNNBackwardData: CUDNN_STATUS_INTERNAL_ERROR\nAborted (core dumped)"  # fmt: skip
    unset = "FailedPreconditionError (see above for traceback): Error while reading resource variable cudnn_lstm/opaque_kernel from Container: localhost. This could mean that the variable was uninitialized. Not found: Container localhost does not exist. (Could not find resource: localhost/cudnn_lstm/opaque_kernel)\n\t [[node Shape_2/Identity_1/ReadVariableOp (defined at /opt/conda/lib/python3.6/site-packages/tensorflow_estimator/python/estimator/estimator.py:1254) ]]"  # fmt: skip
    quota = trace("tensorflow.python.framework.errors_impl.ResourceExhaustedError: models/context.model/variables/variables_temp_d0c7555bd2/part-00000-of-00002.data-00000-of-00001.tempstate8490917510693379885; Disk quota exceeded [Op:SaveV2]", *KERAS)  # fmt: skip
    return [
        field_case("TensorFlow: cuDNN runs no RNN after epochs", "restart", rnn, "tensorflow/tensorflow/issues/17410"),
        field_case("TensorFlow: cuDNN gives no handle to a replica", "restart", mirrored, "tensorflow/tensorflow/issues/34067", also=("stop",)),
        field_case("TensorFlow: cuDNN fails within an RNN", "restart", backward, "tensorflow/tensorflow/issues/35950"),
        field_case("TensorFlow: an illegal address after iterations", "restart", illegal, "tensorflow/tensorflow/issues/17009", error_class="kernel_fault"),
        field_case("TensorFlow: a variable that was not made", "stop", unset, "tensorflow/tensorflow/issues/29730", also=("restart",)),
        field_case("TensorFlow: a quota while it saves", "restart", quota, "keras-team/keras-tuner/issues/390", error_class="storage", blame="nobody"),
    ]  # fmt: skip


def _compilers() -> list[JobLogCase]:
    ptx = "---------------------------------------------------------------------------\nRuntimeError                              Traceback (most recent call last)\nCell In [2], line 9\n      7     loss.backward()\n----> 9 with torchdynamo.optimize(\"inductor\"):\n     10     f(torch.randn(3, 3, device='cuda'))\n\nRuntimeError: Internal Triton PTX codegen error"  # fmt: skip
    header = "/tmp/tmpbd3c5a/main.c:4:10: fatal error: cuda.h: No such file or directory\n    4 | #include \"cuda.h\"\n      |          ^~~~~~~~\ncompilation terminated.\n" + trace("torch._dynamo.exc.BackendCompilerFailed: compile_fx raised CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpbd3c5a/main.c', '-O3', '-I/usr/local/cuda/include', '-shared', '-fPIC', '-lcuda', '-o', '/tmp/tmpbd3c5a/launcher.so']' returned non-zero exit status 1.", *COMPILE)  # fmt: skip
    gcc = trace("torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpwq_1zcm6/cuda_utils.c', '-O3', '-shared', '-fPIC', '-Wno-psabi', '-o', '/tmp/tmpwq_1zcm6/cuda_utils.cpython-311-x86_64-linux-gnu.so', '-lcuda']' returned non-zero exit status 1.\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch).", *COMPILE)  # fmt: skip
    absent = trace("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Cannot find a working triton installation. Either the package is not installed or it is too old. More information on installing Triton can be found at https://github.com/openai/triton", *COMPILE)  # fmt: skip
    return [
        field_case("Triton's PTX doesn't compile, in a notebook", "stop", ptx, "pytorch/torchdynamo/issues/886", also=("restart",)),
        field_case("Triton's launcher finds no cuda.h", "stop", header, "pytorch/pytorch/issues/90178"),
        field_case("Triton's helper is not built by gcc", "stop", gcc, "kijai/ComfyUI-WanVideoWrapper/issues/1168"),
        field_case("Inductor finds no Triton", "stop", absent, "pytorch/pytorch/issues/143406"),
    ]  # fmt: skip


def _launchers() -> list[JobLogCase]:
    etcd = "I0807 20:59:57.533000 139762139563840 torch/distributed/launcher/api.py:189]   rdzv_backend     : etcd-v2\nI0807 20:59:57.533000 139762139563840 torch/distributed/launcher/api.py:189]   rdzv_endpoint    : foo-etcd:2379\n" + trace("etcd.EtcdKeyNotFound: Key not found : /torch/elastic/store", *ELASTIC_RUN)  # fmt: skip
    pipe = "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'node04.localdomain_3882442_0' has failed to shutdown the rendezvous '9987b766-350c-48bf-aa45-cfc2da182f33' due to an error of type RendezvousConnectionError.\n" + trace("RuntimeError: Broken pipe", f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:113:_call_store") + "\n\nThe above exception was the direct cause of the following exception:\n\n" + trace("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", *RENDEZVOUS)  # fmt: skip
    actor = _before("(CommandActor pid=552, ip=10.130.6.168) ", trace("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", *RENDEZVOUS))  # fmt: skip
    closed = "E0213 12:07:20.086000 870572 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 876053) of binary: /opt/conda/bin/python3.11\nI0213 12:07:20.086000 870572 torch/distributed/elastic/agent/server/api.py:889] [default] Worker group FAILED. 3/3 attempts left; will restart worker group\nI0213 12:07:20.087000 870572 torch/distributed/elastic/agent/server/api.py:677] [default] Rendezvous'ing worker group\n" + trace("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", *ELASTIC_RUN, f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1153:next_rendezvous")  # fmt: skip
    local = "  Warning  Evicted              109s  kubelet                                Pod ephemeral local storage usage exceeds the total limit of containers 5Gi.\n  Normal   Killing              109s  kubelet                                Stopping container gke-gcsfuse-sidecar\n  Normal   Killing              109s  kubelet                                Stopping container model\n  Warning  ExceededGracePeriod  99s   kubelet                                Container runtime did not kill the pod within specified grace period."  # fmt: skip
    egg = "4m11s       Warning   Evicted               pod/egg-0    The node was low on resource: memory. Container egg was using 5053216Ki, which exceeds its request of 0.\n4m11s       Normal    Killing               pod/egg-0    Stopping container egg\n4m          Warning   ExceededGracePeriod   pod/egg-0    Container runtime did not kill the pod within specified grace period.\n4m7s        Warning   Evicted               pod/egg-1    The node had condition: [MemoryPressure]."  # fmt: skip
    main = "The node was low on resource: ephemeral-storage. Threshold quantity: 10120387530, available: 9702960Ki. Container main was using 26498512Ki, request is 0, has larger consumption of ephemeral-storage. "  # fmt: skip
    execve = "NOTE: This module uses Singularity. Some commands execute inside the container\n(e.g. python3, pip3).\n\nslurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: g1301: task 0: Exited with exit code 2\nsrun: launch/slurm: _step_signal: Terminating StepId=3022331.0"  # fmt: skip
    hook = "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:   nvidia-container-cli: container error: file lookup failed: /proc/421042/root/fsx/enroot/data/user-1111/pyxis_nemo_2502/etc/debian_version: permission denied\nslurmstepd: error: pyxis:   [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: gpu-dy-g58xlarge-1: task 0: Exited with exit code 1"  # fmt: skip
    shadow = [Said(22, line) for line in 'slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     /etc/enroot/hooks.d/10-shadow.sh: line 70: 3474706 Broken pipe             yes 2> /dev/null\nslurmstepd: error: pyxis:          3474707 Segmentation fault      (core dumped) | pwck -R "${ENROOT_ROOTFS}" "${pwddb#${ENROOT_ROOTFS}}" /etc/shadow > /dev/null 2>&1\nslurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 11'.splitlines()]  # fmt: skip
    image = "pyxis: importing docker image: hello-world.sqsh\nslurmstepd: error: pyxis: child 10028 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     [INFO] Querying registry for permission grant\nslurmstepd: error: pyxis:     [INFO] Authenticating with user: <anonymous>\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: compute-0: task 0: Exited with exit code 1"  # fmt: skip
    return [
        field_case("etcd lacks the store's key", "restart", etcd, "pytorch/pytorch/issues/132950", also=("unknown", "stop")),
        field_case("torchrun's store went away with another job", "restart", pipe, "wenet-e2e/wespeaker/issues/171", error_class="communication"),
        field_case("torchrun's store is away, in Ray's actor", "restart", actor, "meta-pytorch/torchx/issues/540", error_class="communication"),
        field_case("torchrun restarts into a closed rendezvous", "restart", closed, "pytorch/pytorch/issues/147064", also=("unknown",)),
        field_case("Kubernetes evicts a pod for its local storage", "restart", local, "substratusai/runbooks/issues/92"),
        field_case("Kubernetes evicts two pods for memory", "restart", egg, "FederatedAI/KubeFATE/issues/64", also=("unknown",)),
        field_case("Kubernetes says only that ephemeral storage is low", "restart", main, "GoogleCloudPlatform/ml-auto-solutions/pull/297"),
        field_case("slurmstepd finds no torchrun in a module's container", "stop", execve, "CSCfi/pytorch-ddp-examples/issues/1"),
        field_case("srun's only task has a segmentation fault", "restart", "srun: error: node12: task 0: Segmentation fault (core dumped)", "JIA-Lab-research/Stratified-Transformer/issues/3", error_class="crashed", ranks=(0,), nodes=("node12",)),
        field_case("srun: all tasks have a segmentation fault", "restart", "srun: error: nid04277: task 1: Segmentation fault (core dumped)\nsrun: Terminating job step 20370799.1\nsrun: error: nid04276: task 0: Segmentation fault (core dumped)", "facebookresearch/habitat-lab/issues/298", error_class="crashed"),
        field_case("Pyxis: NVIDIA's hook may not read a file", "restart", hook, "NVIDIA/pyxis/issues/166", also=("unknown", "stop")),
        field_case("Pyxis: a hook of task 22 crashes", "restart", shadow, "NVIDIA/pyxis/issues/122", ranks=(22,), style=PrefixStyle.SRUN),
        field_case("Pyxis imports no image", "restart", image, "NVIDIA/pyxis/issues/127", also=("unknown", "stop")),
    ]  # fmt: skip


def _ends() -> list[JobLogCase]:
    bar = "{'loss': 0.8851, 'learning_rate': 0.0001999373309097499, 'epoch': 0.05}\n{'loss': 1.2749, 'learning_rate': 0.00019993683061240205, 'epoch': 0.05}\n  1%|1                                   | 272/22292 [03:40<4:26:46,  1.38it/s]"  # fmt: skip
    seven = "".join(f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {202100 + n} closing signal SIGTERM\n" for n in range(7)) + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 7 (pid: 202107) of binary: /opt/conda/bin/python\n" + trace(CHILD, *ACCELERATE)  # fmt: skip
    interrupt = "[2024-04-23 21:39:51,276] [INFO] [axolotl.train.log:61] [PID:1486799] [RANK:0] Starting trainer...\n\n^C[2024-04-23 22:04:33,011] torch.distributed.elastic.agent.server.api: [WARNING] Received Signals.SIGINT death signal, shutting down workers\n" + "".join(f"[2024-04-23 22:04:33,012] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process {1486799 + n} closing signal SIGINT\n" for n in range(4))  # fmt: skip
    gathers = "[rank1]:[E ProcessGroupNCCL.cpp:537] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n[rank1]:[E ProcessGroupNCCL.cpp:543] To avoid data inconsistency, we are taking the entire process down.\n[rank1]:[E ProcessGroupNCCL.cpp:1182] [Rank 1] NCCL watchdog thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2263, OpType=ALLGATHER, NumelIn=1, NumelOut=2, Timeout(ms)=300000) ran for 300189 milliseconds before timing out."  # fmt: skip
    labelled = "0: terminate called after throwing an instance of 'c10::DistBackendError'\n0:   what():  [PG 0 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600022 milliseconds before timing out."  # fmt: skip
    low = trace("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 192.168.0.107, ID: fc2befb2867ce88e73a8a45572c43a640751ae1f2b5e15bd8315f293) where the task (actor ID: f9cc340f5aef7b479d86345001000000, name=SimEnv.__init__, pid=4331, memory used=2.22GB) was running was 59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: d98ac96cdd66ea8c0a2604609381c3256c8285b87822896c767f7714) because it was the most recently scheduled task", "/home/user/run_sim.py:152:<module>", f"{SITE}/ray/_private/worker.py:2523:get")  # fmt: skip
    raylet = "(raylet) [2025-12-07 09:57:19,206 E 393463 393463] (raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 8289f87b78d161ae21bf723c7c57838345a56248dd48a2c3f0d5ac73, IP: 172.24.0.226) over the last time period. To see more information about the Workers killed on this node, use `ray logs raylet.out -ip 172.24.0.226`\n(raylet) \n(raylet) Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html."  # fmt: skip
    star = trace("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n\tactor_id: 772b47483834f39d7b2aa6cc03000000\n\tpid: 694415\n\tname: OvenE5WorkerDict_2:5\n\tnamespace: 34fdc195-03f5-4dd6-9900-21e6d5741454\n\tip: 10.1.0.12\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.", "/home/user/verl/single_controller/ray/base.py:42:func")  # fmt: skip
    joblib = "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated. This could be caused by a segmentation fault while calling the function or by an excessive memory usage causing the Operating System to kill the worker.\n\nThe exit codes of the workers are {SIGKILL(-9)}"  # fmt: skip
    mask = "classes\n['background']\niter 144: image-id:0254212, time:1.722(sec), regular_loss: 0.248765, total-loss 0.5882(0.0360, 0.5233, 0.000000, 0.0289, 0.0000), instances: 3, batch:(16|85, 0|11, 0|0)\nlabels\n[]\nclasses\n['background']\nKilled"  # fmt: skip
    llava = "[2024-02-06 06:23:39,510] [ERROR] [launch.py:321:sigkill_handler] ['/opt/conda/bin/python', '-u', '/home/user/llava/train/train_mem.py', '--local_rank=7', '--deepspeed', './scripts/zero2.json', '--version', 'plain', '--bf16', 'False', '--report_to', 'wandb'] exits with return code = -9"  # fmt: skip
    return [
        field_case("accelerate's only process got SIGTERM", "restart", bar + trace("subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-m', 'axolotl.cli.train', 'examples/openllama-3b/lora.yml']' died with <Signals.SIGTERM: 15>.", *ACCELERATE[:3]), "axolotl-ai-cloud/axolotl/issues/779"),
        field_case("accelerate: rank 7 of 8 is killed as models load", "restart", seven, "axolotl-ai-cloud/axolotl/issues/1268", error_class="killed", ranks=(7,)),
        field_case("accelerate: rank 0 is killed as training ends", "restart", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 357394) of binary: /opt/conda/bin/python\n" + trace(CHILD, *ACCELERATE), "axolotl-ai-cloud/axolotl/issues/788", error_class="killed", ranks=(0,)),
        field_case("accelerate's only process got SIGKILL", "restart", trace("subprocess.CalledProcessError: Command '['/usr/bin/python', '/home/user/train_lora_sd_XL.py', '--pretrained_model_name_or_path=/home/user/stable_diffusion_xl_base_1.0']' died with <Signals.SIGKILL: 9>.", *ACCELERATE[:3]), "aigc-apps/sd-webui-EasyPhoto/issues/401", error_class="killed"),
        field_case("DeepSpeed: eight processes exit with -9", "restart", llava, "haotian-liu/LLaVA/issues/1085", error_class="killed"),
        field_case("Ctrl-C after a trainer that did nothing", "restart", interrupt, "axolotl-ai-cloud/axolotl/issues/1563", error_class="user", blame="user"),
        field_case("a gather of two ranks times out as training ends", "restart", gathers, "axolotl-ai-cloud/axolotl/issues/1670"),
        field_case("a first reduction times out, behind srun's label", "restart", labelled, "awslabs/awsome-distributed-ai/pull/376"),
        field_case("torch.distributed.launch: rank 0 is killed", "restart", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178) of binary: /opt/conda/bin/python\n" + trace(CHILD, *LAUNCH), "xxayt/MGSV/issues/2", error_class="killed", ranks=(0,)),
        field_case("fairseq: process 0 got SIGKILL", "restart", "2021-02-04 20:05:25 | INFO | fairseq.distributed.utils | initialized host 4d9f00389311 as rank 1\n2021-02-04 20:05:25 | INFO | fairseq.distributed.utils | initialized host 4d9f00389311 as rank 0\n" + trace("Exception: process 0 terminated with signal SIGKILL", *SPAWN), "facebookresearch/fairseq/issues/3215", error_class="killed", ranks=(0,)),
        field_case("Ray kills a task, for the node is low on memory", "restart", low, "real-stanford/flingbot/issues/11"),
        field_case("Ray's node manager killed two workers for memory", "restart", raylet, "WM-PO/WMPO/issues/3"),
        field_case("Ray's actor ends at once, and three causes are possible", "restart", star, "RUC-NLPIR/Tool-Star/issues/10"),
        field_case("joblib's workers were killed", "restart", joblib, "hotpotqa/hotpot/issues/39"),
        field_case("a shell says that an iteration was killed", "restart", mask, "CharlesShang/FastMaskRCNN/issues/172", error_class="killed"),
    ]  # fmt: skip


def _files() -> list[JobLogCase]:
    triton = trace("OSError: [Errno 122] Disk quota exceeded", *TRAIN, f"{SITE}/triton/compiler/compiler.py:314:compile", f"{SITE}/triton/runtime/cache.py:116:put", code="with open(temp_path, mode) as f:")  # fmt: skip
    image = trace("OSError: [Errno 122] Disk quota exceeded", "/home/user/train.py:57:<module>", "/home/user/util/visualizer.py:196:display_current_results", f"{SITE}/PIL/Image.py:2216:save", code="fp.close()")  # fmt: skip
    tar = "2022/03/21 15:16:35 2022-03-21 15:16:35,489 DEBUG TRAIN Batch 1/100 loss 48.813408 loss_att 45.244461 loss_ctc 57.140949 lr 0.00007464 rank 5\n2022/03/21 15:17:15 2022-03-21 15:17:15,154 DEBUG TRAIN Batch 1/200 loss 112.027512 loss_att 104.039352 loss_ctc 130.666565 lr 0.00007664 rank 5\n" + _before("2022/03/21 15:17:47 ", trace("tarfile.ReadError: unexpected end of data", "/home/user/wenet/bin/train.py:295:<module>", "/home/user/wenet/dataset/processor.py:76:tar_file_and_group", "/opt/conda/lib/python3.8/tarfile.py:2318:next"))  # fmt: skip
    state = "[default7]:[rank7]: KeyError: 'state'\n" + _before("[default0]:[rank0]: ", trace("KeyError: 'state'", *MEGATRON[:2], "/opt/megatron-lm/megatron/training/checkpointing.py:1818:load_checkpoint", "/opt/megatron-lm/megatron/core/optimizer/optimizer.py:1244:load_state_dict"))  # fmt: skip
    master = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n(TaskRunner pid=2794513) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::WorkerDict.actor_rollout_load_checkpoint() (pid=2815153, ip=172.16.1.199, actor_id=b356e3855bd713676ffba0ed01000000)\n" + _before("(TaskRunner pid=2794513) ", '  File "/home/user/verl/workers/megatron_workers.py", line 750, in load_checkpoint\n    self.checkpoint_mananager.load_checkpoint(\n  File "/home/user/verl/utils/checkpoint/megatron_checkpoint_manager.py", line 298, in load_checkpoint\n    sharded_state_dict = self.generate_state_dict(\nKeyError: \'master_param\'')  # fmt: skip
    chat = trace("ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed! For information about writing templates and setting the tokenizer.chat_template attribute, please see the documentation at https://huggingface.co/docs/transformers/main/en/chat_templating", *TRAIN)  # fmt: skip
    bpe = "Root Cause (first observed failure):\n[0]:\n  time      : 2024-08-05_10:01:43\n  host      : gpu-node-01\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 46669)\n  error_file: /tmp/torchelastic_i4d4ivao/none_jzj2c4lc/attempt_0/0/error.json\n  traceback : Traceback (most recent call last):\n    File \"/opt/conda/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py\", line 355, in wrapper\n      return f(*args, **kwargs)\n    File \"/home/user/torchtitan/train.py\", line 207, in main\n      tokenizer = create_tokenizer(tokenizer_type, job_config.model.tokenizer_path)\n    File \"/opt/conda/lib/python3.10/site-packages/tiktoken/load.py\", line 149, in <dictcomp>\n      base64.b64decode(token): int(rank)\n  ValueError: invalid literal for int() with base 10: b'coding=utf-8'\n"  # fmt: skip
    backend = trace("ValueError: Couldn't instantiate the backend tokenizer from one of: \n(1) a `tokenizers` library serialization file, \n(2) a slow tokenizer instance to convert or \n(3) an equivalent slow tokenizer class to instantiate and convert. \nYou need to have sentencepiece installed to convert a slow tokenizer to a fast one.", "/home/user/train_sft.py:184:<module>", f"{SITE}/transformers/tokenization_utils_fast.py:119:__init__")  # fmt: skip
    wrapped = "RuntimeError: The server socket has failed to listen on any local network\naddress. The server socket has failed to bind to [::]:29600 (errno: 98 - Address\nalready in use). The server socket has failed to bind to 0.0.0.0:29600 (errno:\n98 - Address already in use)."  # fmt: skip
    query = "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:9901 (errno: 98 - Address already in use). The server socket has failed to bind to ?UNKNOWN? (errno: 98 - Address already in use)."  # fmt: skip
    shared = trace("PermissionError: [Errno 13] Permission denied: '/tmp/triton/d645ef562cfc8f31ab6c7b88eccac0f6.lock'", *TRAIN, f"{SITE}/triton/compiler.py:1239:compile")  # fmt: skip
    openshift = trace("PermissionError: [Errno 13] Permission denied: '/.triton'", *HF, "/usr/lib64/python3.11/os.py:225:makedirs")  # fmt: skip
    home = trace("PermissionError: [Errno 13] Permission denied: '/home/appuser/.cache/huggingface'", "/home/user/train_network.py:773:<module>", f"{SITE}/transformers/utils/hub.py:409:cached_file")  # fmt: skip
    return [
        field_case("Triton's cache is over a quota", "restart", triton, "NOAA-EPIC/EAGLE/issues/121", error_class="storage", blame="nobody"),
        field_case("an image of results is over a quota", "restart", image, "junyanz/pytorch-CycleGAN-and-pix2pix/issues/1456", error_class="storage", blame="nobody"),
        field_case("a tar from a web server ends early in epoch 1", "restart", tar, "wenet-e2e/wenet/issues/981"),
        field_case("Megatron's optimiser finds no state", "stop", state, "NVIDIA/Megatron-LM/issues/3885", blame="program"),
        field_case("verl's checkpoint lacks master parameters", "stop", master, "verl-project/verl/issues/3517", also=("restart",)),
        field_case("a tokenizer without a chat template", "stop", chat, "OpenRLHF/OpenRLHF/issues/613", blame="program"),
        field_case("a tokenizer's file is none", "stop", bpe, "pytorch/torchtitan/issues/502", blame="program"),
        field_case("a tokenizer that nothing converts", "stop", backend, "hpcaitech/ColossalAI/issues/3381", blame="program"),
        field_case("a port is in use, in wrapped lines", "restart", wrapped, "deepspeedai/DeepSpeed/issues/3916", error_class="communication", blame="nobody"),
        field_case("a port is in use, of an unknown address", "restart", query, "Meituan-AutoML/MobileVLM/issues/60", error_class="communication", blame="nobody"),
        field_case("Triton's lock is another user's", "stop", shared, "triton-lang/triton/issues/518", also=("restart",)),
        field_case("Triton's cache in the root of a container", "stop", openshift, "foundation-model-stack/fms-hf-tuning/issues/367", blame="program"),
        field_case("a cache that a container's user may not write", "stop", home, "bmaltais/kohya_ss/issues/859", blame="program"),
    ]  # fmt: skip


THIN: Sequence[JobLogCase] = (
    *_stacks(),
    *_horovod(),
    *_tpus(),
    *_accelerators(),
    *_tensorflow(),
    *_compilers(),
    *_launchers(),
    *_ends(),
    *_files(),
)
