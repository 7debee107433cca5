"""Ends of jobs over the same kinds in other frameworks' words: DeepSpeed, Lightning, Ray, JAX, Paddle, torchtitan, Composer.

Most are of public threads, shortened; the others have the programs' own forms. They were labelled and judged after
the rules that the first half asked for, those of the second look after the rules that the others asked for.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import CUDA_TAIL, EPOCH, FIT, HF, NEXT, field_case
from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
    BACKWARD,
    DDP_FORWARD,
    INIT,
    SITE,
    TRAIN,
    JobLogCase,
    PrefixStyle,
    Said,
    Work,
    deepspeed_end,
    gloo_closed,
    mixed,
    remote_closed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
)

RANK, SRUN, MPI, KUBE = PrefixStyle.RANK, PrefixStyle.SRUN, PrefixStyle.MPI, PrefixStyle.KUBE
TITAN = (
    "/home/user/torchtitan/train.py:440:<module>",
    "/home/user/torchtitan/train.py:256:__init__",
)
DEEPSPEED = (
    *TRAIN,
    f"{SITE}/deepspeed/__init__.py:181:initialize",
    f"{SITE}/deepspeed/runtime/engine.py:303:__init__",
)
COMPOSER = (
    "/llm-foundry/scripts/train/train.py:9:<module>",
    f"{SITE}/llmfoundry/command_utils/train.py:662:train_from_yaml",
)
JAX = ("/app/train.py:47:<module>", "/app/train.py:43:main")


def on(ranks: Sequence[int], text: str) -> list[Said]:
    return mixed([Said(rank, text) for rank in ranks])


def _launches() -> list[JobLogCase]:
    ordinal = trace(
        "RuntimeError: CUDA error: invalid device ordinal" + CUDA_TAIL,
        "train.py:107:<module>",
        f"{SITE}/torch/cuda/__init__.py:399:set_device",
    )
    wrong = trace(
        "lightning_fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0]",
        *FIT,
    )
    ninja = (
        "[1/3] /usr/local/cuda/bin/nvcc -c multi_tensor_adam.cu -o multi_tensor_adam.cuda.o\nFAILED: multi_tensor_adam.cuda.o\nninja: build stopped: subcommand failed.\n"
        + trace(
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
            f"{SITE}/torch/utils/cpp_extension.py:2104:_run_ninja_build",
        )
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        + trace(
            "RuntimeError: Error building extension 'fused_adam'",
            *DEEPSPEED,
            f"{SITE}/torch/utils/cpp_extension.py:2120:_run_ninja_build",
        )
    )
    mesh = trace(
        "ValueError: Mesh 'tp' is not available. Ensure the corresponding parallelism dimension is enabled (size > 1).",
        *TITAN,
        "/home/user/torchtitan/distributed/parallel_dims.py:273:get_mesh",
    )
    merging = "Error merging checkpoint=file\nInvalid type assigned : ModelCheckpointConf is not a subclass of ModelCheckpointConf. value: {'filepath': None}\n        full_key: \n        reference_type=Optional[DeepSpeechConfig]\n        object_type=DeepSpeechConfig\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
    none = trace(
        "TypeError: 'NoneType' object is not subscriptable",
        "/root/train.py:94:<module>",
        f"{SITE}/EasyDel/trainer/causal_language_model_trainer.py:233:__init__",
        f"{SITE}/EasyDel/trainer/causal_language_model_trainer.py:381:configure_model",
    )
    compiled = trace(
        "AssertionError: Torch not compiled with CUDA enabled",
        *TRAIN,
        f"{SITE}/torch/nn/modules/module.py:1050:cuda",
        f"{SITE}/torch/cuda/__init__.py:310:_lazy_init",
    )
    noncl = trace("RuntimeError: Distributed package doesn't have NCCL built in", *INIT)
    peft = trace(
        "ValueError: Target modules {'query_key_value'} not found in the base model. Please check the target modules and try again.",
        *HF[:2],
        f"{SITE}/peft/tuners/tuners_utils.py:480:inject_adapter",
    )
    flash = trace(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.",
        *HF[:2],
        f"{SITE}/transformers/modeling_utils.py:1648:_check_and_enable_flash_attn_2",
    )
    batch = trace(
        "ValueError: The effective batch size (7 x 1 x 8) must be divisible by the number of generations (4).",
        *HF[:2],
        f"{SITE}/trl/trainer/grpo_config.py:610:__post_init__",
    )
    pydantic = trace(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage3_prefetch_bucket_size\n  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=15099494.4, input_type=float]",
        *DEEPSPEED,
    )
    yaml = trace(
        'yaml.scanner.ScannerError: mapping values are not allowed here\n  in "configs/run.yaml", line 7, column 12',
        *TRAIN,
        f"{SITE}/yaml/__init__.py:81:load",
    )
    indent = '  File "/home/user/train.py", line 88\n    optimizer.step()\nIndentationError: unexpected indent'
    return [
        field_case("two GPUs for four processes", "restart", [*on((2, 3), ordinal), torchrun_summary(2, 1, (3,))], "djiajunustc/TransVG/issues/27", also=("stop",), style=RANK),
        field_case("Lightning sees one GPU of four, on four tasks", "stop", on(range(4), wrong), "Lightning-AI/pytorch-lightning/issues/18950", error_class="exception", blame="program", style=SRUN),
        field_case("DeepSpeed can't build its optimiser", "stop", [Said(None, ninja), deepspeed_end(1, 2)], "deepspeedai/DeepSpeed/issues/6912", blame="program"),
        field_case("torchtitan has no mesh of that name", "stop", on(range(4), mesh), "pytorch/torchtitan/issues/2184", error_class="exception", blame="program", style=RANK),
        field_case("hydra can't merge a group", "stop", merging, "SeanNaren/deepspeech.pytorch/issues/677", blame="program"),
        field_case("a configuration without its class, twice", "stop", "Warning : In case of using finetune = True and Passing checkpoint_path = None\n" + none + "\n" + none, "erfanzar/EasyDeL/issues/71", error_class="program", blame="program"),
        field_case("a PyTorch for CPUs only", "stop", compiled, "pytorch/pytorch/issues/30664", blame="program"),
        field_case("a PyTorch without NCCL", "stop", on(range(2), noncl), "pytorch/pytorch/issues/94287", blame="program", style=RANK),
        field_case("modules that a model doesn't have", "stop", on(range(2), peft), "huggingface/peft/issues/1702", error_class="exception", blame="program", style=RANK),
        field_case("flash attention that isn't installed", "stop", flash, "huggingface/transformers/issues/28188", blame="program"),
        field_case("generations that don't divide the batch", "stop", batch, "huggingface/trl/issues/3017", error_class="exception", blame="program"),
        field_case("a ZeRO setting with a fraction", "stop", [Said(None, pydantic), deepspeed_end(1, 2)], "deepspeedai/DeepSpeed/issues/6525", error_class="exception", blame="program"),
        field_case("a YAML file that isn't one", "stop", yaml, "mosaicml/llm-foundry (written in its form)", blame="program", also=("restart",)),
        field_case("an indent on all tasks", "stop", on(range(4), indent), "https://docs.python.org/3/reference/lexical_analysis.html#indentation", error_class="program", blame="program", style=SRUN),
    ]  # fmt: skip


def _data() -> list[JobLogCase]:
    collator = "AttributeError: Caught AttributeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py\", line 55, in fetch\n    return self.collate_fn(data)\n  File \"/home/user/mantis/train/data.py\", line 1399, in _right_pad_inputs_with_attention_mask\n    pad_token_id = self.tokenizer.pad_token_id\nAttributeError: 'Collator' object has no attribute 'tokenizer'"
    column = trace(
        "KeyError: 'seq_len'",
        "/home/user/finetune.py:118:main",
        f"{SITE}/transformers/trainer.py:1872:_inner_training_loop",
        NEXT,
        f"{SITE}/torch/utils/data/_utils/fetch.py:61:fetch",
        "/home/user/finetune.py:28:data_collator",
    )
    idx = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/books_text_document.idx'",
        *TRAIN,
        "/home/user/data/indexed_dataset.py:512:__init__",
    )
    config = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: 'configs/llama-7b.yml'",
        "/home/user/deepy.py:37:<module>",
        "/home/user/megatron/neox_arguments/arguments.py:280:from_ymls",
    )
    ckpt = trace(
        "FileNotFoundError: Checkpoint path '/ckpt/base/iter_0100000' does not exist",
        *TRAIN,
        "/home/user/checkpoint.py:88:load_checkpoint",
    )
    image = trace(
        "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n  File \"/home/user/dataset.py\", line 32, in __getitem__\n    image = Image.open(self.paths[item])\nFileNotFoundError: [Errno 2] No such file or directory: '/data/train/n0153/a_8813.JPEG'",
        *EPOCH,
        NEXT,
    )
    output = trace(
        "PermissionError: [Errno 13] Permission denied: '/results/run7'",
        "/home/user/train.py:61:main",
        "<frozen os>:215:makedirs",
    )
    device = trace(
        "PermissionError: [Errno 13] Permission denied: '/dev/infiniband/uverbs0'", *INIT
    )
    parquet = trace(
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
        *TRAIN,
        f"{SITE}/datasets/packaged_modules/parquet/parquet.py:93:_generate_tables",
    )
    repo = trace(
        "OSError: meta-lama/Llama-3-8B is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        *HF[:2],
        f"{SITE}/transformers/utils/hub.py:470:cached_file",
    )
    offline = trace(
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files and it looks like gpt2 is not the path to a directory containing a file named config.json.",
        *HF[:2],
        f"{SITE}/transformers/utils/hub.py:446:cached_file",
    )
    vocabulary = trace(
        "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([32001, 4096]) from checkpoint, the shape in current model is torch.Size([32000, 4096]).",
        *HF[:2],
        f"{SITE}/torch/nn/modules/module.py:2153:load_state_dict",
    )
    header = trace(
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        *HF[:2],
        f"{SITE}/transformers/modeling_utils.py:531:load_state_dict",
    )
    eof = trace(
        "EOFError: Ran out of input", *TRAIN, f"{SITE}/torch/serialization.py:1028:_legacy_load"
    )
    key = trace(
        'torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3])\nTraceback (most recent call last): (RANK 2)\n  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/checkpoint/default_planner.py", line 233, in create_local_plan\n    return create_default_local_load_plan(\nRuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.decoder.layers.0.',
        *TRAIN,
        f"{SITE}/torch/distributed/checkpoint/utils.py:219:reduce_scatter",
    )
    removed = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/local/tmp_unzip/shard-00012.bin'",
        *TRAIN,
        "/home/user/data/stage.py:44:open_shard",
    )
    return [
        field_case("a collator without a tokenizer", "stop", on(range(3), trace(collator, *HF, NEXT)), "TIGER-AI-Lab/Mantis/issues/25", error_class="program", blame="program", style=RANK),
        field_case("a column that samples don't have", "stop", column, "mymusise/ChatGLM-Tuning/issues/258", blame="program", also=("restart",)),
        field_case("an index of data that isn't there, on all ranks", "stop", [*on(range(8), idx), torchrun_summary(0, 1, tuple(range(1, 8)), ranks=8)], "https://github.com/NVIDIA/Megatron-LM", blame="program", style=RANK),
        field_case("a configuration's file that isn't there", "stop", config, "EleutherAI/gpt-neox (written in its form)", blame="program"),
        field_case("a checkpoint's folder that isn't there, on two tasks", "stop", on(range(2), ckpt), "https://github.com/NVIDIA/Megatron-LM", blame="program", style=SRUN),
        field_case("rank 5's worker misses an image after an epoch", "restart", [*steps("plain", 1, 20), Said(5, image), *[remote_closed(rank, 5) for rank in (0, 1)]], "mila-iqia/milabench/pull/367", ranks=(5,), style=RANK),
        field_case("results that nobody may write", "stop", on(range(4), output), "https://man7.org/linux/man-pages/man3/errno.3.html", blame="program", style=SRUN),
        field_case("rank 7 may not open a network device", "restart", [Said(7, device), *[remote_closed(rank, 7) for rank in (0, 1)]], "https://man7.org/linux/man-pages/man3/errno.3.html", ranks=(7,), style=RANK),
        field_case("a shard that is no parquet", "stop", parquet, "huggingface/datasets/issues/5695", blame="program", also=("restart",)),
        field_case("a model's name that nobody has", "stop", on(range(4), repo), "huggingface/transformers (written in its form)", blame="program", style=RANK),
        field_case("a hub that can't be reached, and nothing in the cache", "restart", on(range(4), offline), "huggingface/transformers (written in its form)", error_class="service", blame="nobody", style=RANK),
        field_case("a vocabulary with one token more", "stop", on(range(2), vocabulary), "lm-sys/FastChat/issues/199", blame="program", style=RANK),
        field_case("a shard of weights that is cut off", "restart", header, "huggingface/transformers (written in its form)", also=()),
        field_case("a checkpoint that is empty", "restart", eof, "pytorch/pytorch (written in its form)"),
        field_case("an optimiser's state that a checkpoint lacks", "stop", on(range(4), key), "JinjieNi/dlms-are-super-data-learners/issues/4", blame="program", style=RANK),
        field_case("a shard that a node's scratch has lost", "restart", [Said(None, removed), torchrun_summary(6, 1, ranks=8)], "https://man7.org/linux/man-pages/man3/errno.3.html"),
    ]  # fmt: skip


def _devices() -> list[JobLogCase]:
    other = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Process 31415 has 61.20 GiB memory in use. Including non-PyTorch memory, this process has 17.40 GiB memory in use. Of the allocated memory 16.90 GiB is allocated by PyTorch.",
        *BACKWARD,
    )
    old = trace(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 22.31 GiB already allocated; 11.69 MiB free; 22.52 GiB reserved in total by PyTorch)",
        *DDP_FORWARD,
    )
    late = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.77 GiB. GPU 2 has a total capacity of 79.11 GiB of which 8.20 GiB is free. Including non-PyTorch memory, this process has 70.90 GiB memory in use.",
        *BACKWARD,
    )
    cublas = trace(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        *DDP_FORWARD,
    )
    image = trace(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device"
        + CUDA_TAIL,
        *DDP_FORWARD,
    )
    misaligned = trace("RuntimeError: CUDA error: misaligned address" + CUDA_TAIL, *BACKWARD)
    nvml = "NVML_ERROR: Failed to initialize NVML: Driver/library version mismatch\n" + trace(
        "RuntimeError: No CUDA GPUs are available",
        *TRAIN,
        f"{SITE}/torch/cuda/__init__.py:319:_lazy_init",
    )
    handle = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n" + trace(
        "RuntimeError: CUDA error: unknown error" + CUDA_TAIL, *BACKWARD
    )
    hip = "Memory access fault by GPU node-5 (Agent handle: 0x55d1a8c0) on address 0x7f1d4a200000. Reason: Unknown."
    gsp = "[Fri Aug 30 11:43:14 2024] NVRM: Xid (PCI:0000:cb:00): 119, pid=1797828, name=pt_main_thread, Timeout after 6s of waiting for RPC response from GPU7 GSP! Expected function 76 (GSP_RM_CONTROL)."
    posix = (
        "node08:2143:2561 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\nnode08:2143:2561 [1] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1462-1-2-3 (size 9637888)\n"
        + trace(
            "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
            *ALL_REDUCE,
        )
    )
    xla = trace(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 13.21G. That was not possible. There are 9.86G free.; (0x0x0_HBM0)",
        *JAX,
        "/app/utils/trainer.py:235:train",
    )
    return [
        field_case("another process holds rank 3's memory", "restart", [Said(3, other), *[remote_closed(rank, 3) for rank in (0, 1)]], "https://pytorch.org/docs/stable/notes/cuda.html", ranks=(3,), error_class="device_memory", style=RANK),
        field_case("a batch that fills two devices at once", "stop", on((0, 1), old), "Facico/Chinese-Vicuna/issues/113", error_class="device_memory", blame="program", style=RANK),
        field_case("a long sample after 20 steps", "restart", [*steps("trainer", 1, 20), Said(2, late), *[remote_closed(rank, 2) for rank in (0, 1)]], "https://pytorch.org/docs/stable/notes/cuda.html", ranks=(2,), error_class="device_memory", style=RANK),
        field_case("cuBLAS can't begin", "restart", cublas, "pytorch/pytorch/issues/54975", error_class="kernel_fault"),
        field_case("a build for older GPUs, on all ranks", "stop", on(range(8), image), "pytorch/pytorch/issues/90761", error_class="program", blame="program", style=RANK),
        field_case("an address that isn't aligned, on rank 1", "restart", [*steps("plain", 1, 9), Said(1, misaligned), remote_closed(0, 1)], "pytorch/pytorch (written in its form)", ranks=(1,), error_class="kernel_fault", style=RANK),
        field_case("a driver that was replaced below the job", "restart", nvml, "NVIDIA/nvidia-docker/issues/584", error_class="device"),
        field_case("nvidia-smi knows no handle", "restart", [*steps("plain", 1, 9), Said(None, handle)], "rwth-i6/returnn/issues/1486"),
        field_case("an AMD device meets a fault", "restart", [*steps("plain", 1, 9), Said(5, hip)], "ROCm/ROCm (written in its form)", ranks=(5,), error_class="kernel_fault", style=RANK),
        field_case("GSP doesn't answer, below watchdogs", "restart", [*steps("plain", 1, 9), *[timed_out(rank, Work(712)) for rank in range(8)], Said(None, gsp)], "leptonai/gpud", error_class="device", style=RANK),
        field_case("NCCL finds no shared memory", "restart", posix, "NVIDIA/nccl/issues/525", error_class="host_memory", blame="memory"),
        field_case("a TPU's memory is used up in the first step", "stop", xla, "jax-ml/jax/issues/19118", error_class="device_memory", also=("restart",)),
    ]  # fmt: skip


def _peers() -> list[JobLogCase]:
    mesh = trace(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        *INIT,
    )
    barrier = trace(
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=2, worker_count=8, timeout=0:30:00)",
        *INIT,
    )
    refused = trace(
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (gpu-node-01, 29500). The client socket has failed to connect to 10.1.0.11:29500 (errno: 111 - Connection refused).",
        *INIT,
    )
    heartbeat = "[rank{r}]:[F808 14:18:06.{r} ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank {r}] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n[rank{r}]:[E808 14:10:06.{r} ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {r}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
    disconnected = "--------------------------------------------------------------------------\nAn MPI communication peer process has unexpectedly disconnected.  This\nusually indicates a failure in the peer process (e.g., a crash or\notherwise exiting without calling MPI_FINALIZE first).\n\n  Local host: reco313\n  Local PID:  7720\n  Peer host:  reco316\n--------------------------------------------------------------------------"
    signal = "--------------------------------------------------------------------------\nmpirun noticed that process rank 9 with PID 31415 on node reco316 exited on signal 11 (Segmentation fault).\n--------------------------------------------------------------------------"
    grpc = '2021-04-16 06:05:53.861300: W   41468 tensorflow/core/distributed_runtime/rpc/grpc_remote_master.cc:159] RPC failed with status = "Unavailable: Socket closed" and grpc_error_string = "{"created":"@1618553153.86","description":"Error received from peer ipv4:10.0.0.2:8470","grpc_status":14}", maybe retrying the RPC'
    lame = "INFO:tensorflow:ShutdownHook: lame workers found: HeartbeatManager(/job:worker/replica:0/task:0/device:CPU:0)\nI0902 03:34:21.925864 140070334211904 session_support.py:391] ShutdownHook: lame workers found\nINFO:tensorflow:ShutdownHook: saving checkpoint to gs://bucket/model.ckpt"
    task = "2022-11-15 16:03:15.140058: E external/org_tensorflow/tensorflow/core/distributed_runtime/coordination/coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly."
    actor = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayTrainWorker\n\tactor_id: f2520e7442c3968c34db544c01000000\n\tpid: 43514\n\tip: 10.0.7.57\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
    hccl = trace(
        "RuntimeError: HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\nEI0006: [PID: 88] Getting socket times out. Reason: Remote Rank did not send the data in time.",
        *INIT,
    )
    fingerprints = "[I ProcessGroupWrapper.cpp:562] [Rank 0] Running collective: CollectiveFingerPrint(SequenceNumber=1277, OpType=ALLREDUCE, TensorShape=[], TensorDtypes=Float)\n[I ProcessGroupWrapper.cpp:562] [Rank 1] Running collective: CollectiveFingerPrint(SequenceNumber=1275, OpType=ALLREDUCE, TensorShape=[], TensorDtypes=Float)"
    return [
        field_case("gloo's mesh has no connection", "restart", on((4, 6), mesh), "sgl-project/sglang/issues/3226", error_class="communication", style=RANK),
        field_case("a barrier with more workers than the world", "restart", barrier, "auniquesun/CrossPoint-DDP/issues/3", also=("stop",), error_class="communication"),
        field_case("a master that refuses seven ranks", "restart", on(range(1, 8), refused), "vllm-project/vllm/issues/19670", error_class="communication", style=RANK),
        field_case("watchdogs that are stuck on four ranks", "restart", [*steps("titan", 1, 9), *[Said(None, heartbeat.format(r=rank)) for rank in range(4)]], "snowflakedb/ArcticTraining/issues/219", ranks=()),
        field_case("Open MPI: a peer went, and rank 9 crashed", "restart", [Said(3, disconnected), Said(None, signal)], "horovod/horovod/issues/1950", ranks=(9,), nodes=("reco316",), error_class="crashed", style=MPI),
        field_case("TensorFlow's master closes the socket", "restart", [*steps("plain", 1, 9), Said(None, grpc)], "pytorch/xla/issues/2875", also=("unknown",)),
        field_case("a preemptible TPU says that workers are lame", "restart", ["INFO:tensorflow:loss = 1.109375, step = 488600 (45.410 sec)\n" + lame][0], "megagonlabs/t5-japanese/issues/1", also=("unknown",)),
        field_case("JAX's task 37 sends no heartbeat", "restart", [Said(None, "I1115 16:00:39.451247 140641718562816 trainer.py:501] Training: step 198"), Said(None, task)], "EleutherAI/architecture-objective/issues/26", ranks=(37,)),
        field_case("Ray's actor died", "restart", [*steps("plain", 1, 9), Said(None, actor)], "ray-project/ray/issues/47759", error_class="killed"),
        field_case("HCCL waits for a rank at the start", "restart", on(range(4), hccl), "hiyouga/LlamaFactory (written in its form)", error_class="communication", style=RANK),
        field_case("gloo's victims on three ranks, and a killed one", "restart", [*steps("plain", 1, 9), *[gloo_closed(rank) for rank in (0, 1, 3)], torchrun_summary(2, -9)], "pytorch/pytorch/issues/150916", ranks=(2,), error_class="killed", style=RANK),
        field_case("two ranks run different collectives, then SIGKILL", "restart", [Said(None, fingerprints), deepspeed_end(-9, 2)], "deepspeedai/DeepSpeed/issues/4890"),
    ]  # fmt: skip


def _outside() -> list[JobLogCase]:
    wandb = (
        "wandb: Network error (ReadTimeout), entering retry loop.\nwandb: ERROR Run initialization has timed out after 90.0 sec. \n"
        + trace(
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting",
            *HF,
            f"{SITE}/wandb/sdk/wandb_init.py:1189:init",
        )
    )
    s3 = trace(
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation (reached max retries: 4): Please reduce your request rate.",
        *COMPOSER,
        f"{SITE}/streaming/base/storage/download.py:88:download_from_s3",
    )
    denied = trace(
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the ListObjectsV2 operation: Access Denied",
        *COMPOSER,
        f"{SITE}/composer/utils/object_store/s3_object_store.py:190:list_objects",
    )
    evicted = "Status:           Failed\nReason:           Evicted\nMessage:          The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8Gi. Container trainer was using 40Gi, request is 0."
    taint = "Warning  TaintManagerEviction  12s   taint-eviction-controller  Marking for deletion Pod train/worker-3\nDeletionByTaintManager: Taint manager: deleting due to NoExecute taint"
    spot = "2026-03-01 10:12:40 spot instance interruption notice: instance will be terminated at 10:14:40\nReceived SIGTERM: 15"
    limit = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-03-01T10:12:44 DUE TO TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish."
    requeue = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-03-01T10:12:44 DUE TO PREEMPTION ***"
    lightning = "Handling auto-requeue signal: 10\nrequeing job 4711...\nrequeued exp  4711"
    hostoom = "[88123.114] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n[88123.201] Out of memory: Killed process 4203 (python) total-vm:812342kB, anon-rss:71234kB, file-rss:0kB"
    mce = "mce: [Hardware Error]: Machine check events logged\n[88123.301] mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400"
    xfs = "[88123.401] XFS (nvme0n1p1): log I/O error -5\n[88123.402] XFS (nvme0n1p1): Filesystem has been shut down due to log error (0x2)."
    quota = trace(
        "OSError: [Errno 122] Disk quota exceeded: 'outputs/checkpoint-500'",
        *HF,
        f"{SITE}/transformers/trainer.py:3035:_save_checkpoint",
    )
    busy = trace(
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable" + CUDA_TAIL,
        *TRAIN,
    )
    interrupt = "^C" + trace("KeyboardInterrupt", *EPOCH)
    ok = "{'train_runtime': 3112.1, 'train_samples_per_second': 12.1, 'train_steps_per_second': 0.37, 'train_loss': 1.21, 'epoch': 3.0}\n100%|██████████| 1170/1170 [51:52<00:00,  2.66s/it]"
    cut = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/home/user/train.py", line 212, in <module>\n[rank0]:     main('
    return [
        field_case("Weights & Biases doesn't begin a run in time", "restart", wandb, "mbzuai-oryx/GeoChat/issues/49", error_class="service", blame="nobody"),
        field_case("S3 asks for fewer requests", "restart", on(range(8), s3), "mosaicml/streaming (written in its form)", error_class="service", blame="nobody", style=RANK),
        field_case("a bucket whose checkpoints nobody may list", "stop", on(range(8), denied), "mosaicml/composer/pull/3647", blame="program", style=RANK),
        field_case("a pod that the kubelet evicts", "restart", [*steps("plain", 1, 9), Said(None, evicted)], "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/", error_class="preempted", style=KUBE),
        field_case("a pod that a taint deletes", "restart", [*steps("plain", 1, 9), Said(None, taint)], "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/", error_class="preempted"),
        field_case("a spot instance that is taken back", "restart", [*steps("plain", 1, 9), Said(None, spot)], "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html", error_class="preempted"),
        field_case("a job's time is over", "restart", [*steps("megatron", 1, 9), Said(None, limit)], "ZettaAI/zetta_utils/issues/671", error_class="time_limit", blame="user"),
        field_case("Slurm preempts a job", "restart", [*steps("megatron", 1, 9), Said(None, requeue)], "mozilla/translations/pull/83", error_class="preempted", blame="user"),
        field_case("Lightning requeues its job", "restart", [*steps("lightning", 1, 9), Said(0, lightning)], "Lightning-AI/pytorch-lightning/issues/20434", also=("unknown",)),
        field_case("the kernel kills a process of the node, below torchrun", "restart", [*steps("plain", 1, 9), Said(None, hostoom), torchrun_summary(3, -9)], "https://www.kernel.org/doc/html/latest/admin-guide/mm/concepts.html", ranks=(3,), error_class="oom_killed", blame="memory"),
        field_case("a machine check in between", "restart", [*steps("plain", 1, 9), Said(None, mce), *[remote_closed(rank, 5) for rank in (0, 1)]], "https://www.kernel.org/doc/html/latest/arch/x86/x86_64/machinecheck.html", error_class="node_failed", style=RANK),
        field_case("a local file system that shuts down", "restart", [*steps("plain", 1, 9), Said(None, xfs), Said(2, trace("OSError: [Errno 5] Input/output error", *EPOCH, NEXT)), remote_closed(0, 2)], "https://www.kernel.org/doc/html/latest/filesystems/xfs/index.html", error_class="storage", style=RANK),
        field_case("a quota while a trainer saves", "restart", [*steps("trainer", 1, 20), Said(0, quota)], "open-mmlab/mmdetection/issues/12069", error_class="storage", blame="nobody", style=RANK),
        field_case("devices that another job holds", "restart", busy, "pytorch/pytorch (written in its form)", error_class="device"),
        field_case("a person stops a run", "restart", [*steps("plain", 1, 9), Said(None, interrupt)], "pytorch/pytorch/issues/91943", ranks=(), error_class="user", blame="user"),
        field_case("a trainer that has ended well", "unknown", [*steps("trainer", 1, 20), Said(0, ok)], "huggingface/transformers", ranks=(), error_class="none"),
        field_case("a log that ends within a traceback", "unknown", [*steps("plain", 1, 9), Said(None, cut)], "https://docs.python.org/3/library/traceback.html", ranks=(), also=("restart",)),
    ]  # fmt: skip


def _second_look() -> list[JobLogCase]:
    """One more look at the mended rules: again labelled first."""
    divides = trace(
        "AssertionError",
        "/home/user/nanogpt/train.py:379:<module>",
        "/home/user/nanogpt/train.py:178:train",
        code="assert gradient_accumulation_steps % world_size == 0",
    )
    killed = "[before the start of training step] datetime: 2025-05-06 12:45:42 \n" + trace(
        "RuntimeError: DataLoader worker (pid 9382) is killed by signal: Killed. ",
        "/home/user/pretrain_qwen.py:141:<module>",
        NEXT,
        f"{SITE}/torch/utils/data/dataloader.py:1130:_try_get_data",
    )
    aborted = "LLVM ERROR: pthread_join failed: Invalid argument\n" + trace(
        "RuntimeError: DataLoader worker (pid 69916) is killed by signal: Aborted. ", *HF, NEXT
    )
    gradients = trace(
        "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=no_c10d. Or are you mixing up different generation of GPUs in training?\ngrad_norm across the workers:\nrank   0 = nan\nrank   1 = nan",
        "/home/user/fairseq/trainer.py:643:train_step",
        "/home/user/fairseq/trainer.py:1120:_check_grad_norms",
    )
    scale = (
        "| epoch 028 | loss 3.976 | nll_loss 2.204 | ppl 4.61 | wps 279460 | num_updates 9165 | lr 0.000330319\n"
        + trace(
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.",
            "/home/user/fairseq/trainer.py:520:train_step",
        )
    )
    symbol = "/opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"
    flash = trace(
        f"ImportError: {symbol}",
        "/home/user/axolotl/cli/train.py:88:do_cli",
        f"{SITE}/flash_attn/flash_attn_interface.py:15:<module>",
    )
    failed = trace(
        f"RuntimeError: Failed to import transformers.models.bloom.modeling_bloom because of the following error (look up to see its traceback):\n{symbol}",
        "/home/user/train.py:7:<module>",
        f"{SITE}/transformers/utils/import_utils.py:1969:_get_module",
    )
    reduction = trace(
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not \nused in producing loss.\nParameter indices which did not receive grad for rank 1: 197 198",
        *DDP_FORWARD,
    )
    view = trace(
        "RuntimeError: Output 0 of ViewBackward0 is a view and its base or another view of its base has been modified inplace. This view is the output of a function that returns multiple views.",
        *TRAIN,
        f"{SITE}/torch/nn/modules/module.py:1501:_call_impl",
    )
    unallocated = trace(
        "RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet.",
        *TRAIN,
        f"{SITE}/torch/nn/functional.py:2210:embedding",
    )
    wrapped = trace(
        "ValueError: Expected embedder.encoder.encoder.layer.0 to NOT be FullyShardedDataParallel if using an `auto_wrap_policy`",
        *TRAIN,
        f"{SITE}/accelerate/accelerator.py:1292:prepare",
        f"{SITE}/torch/distributed/fsdp/_wrap_utils.py:60:_auto_wrap",
    )
    memory = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 GiB.",
        "/home/user/train_gpt.py:666:<module>",
        f"{SITE}/torch/autograd/graph.py:829:_engine_run_backward",
    )
    exited = trace(
        "RuntimeError: DataLoader worker (pid(s) 8864) exited unexpectedly",
        *EPOCH,
        NEXT,
        f"{SITE}/torch/utils/data/dataloader.py:1144:_try_get_data",
    )
    caught = "[E ProcessGroupNCCL.cpp:457] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1132079, OpType=ALLREDUCE, NumelIn=304640, NumelOut=304640, Timeout(ms)=1800000) ran for 1800035 milliseconds before timing out."
    mixed_up = "\n".join(
        f"[rank{rank}]:[E918 19:29:24.{rank} ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn={size}, NumelOut={size}, Timeout(ms)=3000000) ran for 3000097 milliseconds before timing out.\n[rank{rank}]:[E918 19:29:24.{rank}1 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {number + 1}, last completed work: {number - 1}"
        for rank, number, kind, size in (
            (3, 7219, "BROADCAST", 64),
            (2, 7219, "BROADCAST", 24084544),
            (0, 7221, "ALLREDUCE", 593920),
        )
    )
    channel = trace(
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: during context [pre-optimization]: channel is used for multiple host send/recv instructions",
        *JAX,
        "/app/utils/trainer.py:235:train",
    )
    dimensions = trace(
        "RuntimeError: weight should have at least three dimensions",
        *TRAIN,
        f"{SITE}/torch/nn/modules/conv.py:456:_conv_forward",
    )
    mpi = "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)"
    core = "\n".join(
        f"./pretrain_then_finetune.sh: line 184: {pid} Aborted                 (core dumped) litgpt pretrain $model_name --resume step500"
        for pid in (2324239, 2324238, 2324237)
    )
    script = "slurmstepd: error: execve(): /tmp/slurmd/job2997814/slurm_script: No such file or directory"
    credential = "srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\nsrun: error: Application launch failed: Job credential expired\nsrun: Job step aborted"
    latest = (
        "2020-12-21 10:42:55,182 - mmpose - INFO - load checkpoint from work_dirs/latest.pth\n"
        + trace(
            "RuntimeError: [enforce fail at inline_container.cc:144] . PytorchStreamReader failed reading zip archive: failed finding central directory",
            "./tools/train.py:152:main",
            f"{SITE}/mmcv/runner/base_runner.py:323:resume",
            f"{SITE}/torch/serialization.py:585:load",
        )
    )
    return [
        field_case("nanoGPT's accumulation that the world doesn't divide", "stop", "rank 0 is initialized local_rank = 0\n" + divides, "intelligent-machine-learning/dlrover/issues/533", blame="program"),
        field_case("rank 0's loader worker is killed before the first step", "restart", [Said(0, killed), torchrun_summary(0, 1)], "alibaba/Pai-Megatron-Patch/issues/583", error_class="host_memory", blame="memory", style=RANK),
        field_case("a loader's worker that aborts after an epoch", "restart", [*steps("trainer", 1, 9), Said(4, aborted)], "hiyouga/LlamaFactory/issues/8043", ranks=(4,), style=RANK),
        field_case("fairseq's gradients differ between workers", "restart", [Said(None, "| epoch 012 | loss 3.976 | num_updates 9165"), Said(None, gradients)], "facebookresearch/fairseq/issues/1372", error_class="numbers"),
        field_case("fairseq's loss scale reaches its minimum", "restart", scale, "facebookresearch/fairseq/issues/1529", error_class="numbers"),
        field_case("flash attention built against another PyTorch, on eight ranks", "stop", on(range(8), flash), "axolotl-ai-cloud/axolotl/issues/3142", blame="program", style=RANK),
        field_case("a model's module that can't be loaded for a symbol", "stop", failed, "Dao-AILab/flash-attention/issues/1612", blame="program"),
        field_case("gradients that some parameters don't get", "stop", reduction, "wangyuxinwhy/uniem/issues/65", blame="program"),
        field_case("a view that is changed in place under FSDP", "stop", view, "huggingface/accelerate/issues/1700", blame="program"),
        field_case("a tensor without data on two ranks", "stop", on(range(2), unallocated), "EleutherAI/lm-evaluation-harness/issues/1003", also=("restart",), style=RANK),
        field_case("a module that is wrapped twice", "stop", wrapped, "wangyuxinwhy/uniem/issues/65", blame="program"),
        field_case("no device memory on eight ranks in the first step", "stop", on(range(8), memory), "KellerJordan/modded-nanogpt/issues/112", error_class="device_memory", blame="program", style=RANK),
        field_case("rank 0's loader workers are gone after an epoch", "restart", [*steps("plain", 1, 9), Said(0, exited)], "hpcaitech/Open-Sora/issues/815", error_class="host_memory", style=RANK),
        field_case("three of four ranks wait, without prefixes", "restart", [Said(None, "2024-05-07 15:51:09,140 - root - INFO - Starting training step on epoch 3"), *[Said(None, caught.format(r=rank)) for rank in (3, 2, 1)]], "ai2cm/ace/issues/348", ranks=(0,)),
        field_case("ranks at numbers and sizes that differ", "restart", mixed_up, "modelscope/ms-swift/issues/10183"),
        field_case("XLA finds a channel twice", "stop", channel, "openxla/xla/issues/7904", also=("restart",)),
        field_case("a weight of too few dimensions", "stop", dimensions, "huggingface/accelerate/issues/2301", blame="program"),
        field_case("MPI can't begin", "restart", on(range(2), mpi), "NVIDIA-NeMo/Megatron-Bridge/issues/650", style=MPI),
        field_case("a shell counts three aborts", "restart", core, "Lightning-AI/pytorch-lightning/issues/20434"),
        field_case("Slurm's script isn't on the node", "restart", script, "ArjunaCluster/ArjunaUsers/issues/21", also=("unknown",)),
        field_case("a credential that ran out on cn131", "restart", credential, "ai4d-iasc/trixie/issues/58", nodes=("cn131",)),
        field_case("the latest checkpoint is cut off, as mmcv resumes", "restart", latest, "open-mmlab/mmpose/issues/376"),
    ]  # fmt: skip


def _doubts() -> list[JobLogCase]:
    """What looks as if no start could mend it, and a node, a mount, a process or a sample may be at fault."""
    tree = trace(
        "ImportError: cannot import name 'get_args' from 'megatron.training' (/lustre/fsw/team/megatron/training/__init__.py)",
        "/lustre/fsw/team/megatron/pretrain.py:9:<module>",
    )
    mount = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/train'", *TRAIN
    )
    lock = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/huggingface/datasets/_root_json.lock'",
        *TRAIN,
        f"{SITE}/filelock/_unix.py:42:_acquire",
    )
    shared = trace(
        "PermissionError: [Errno 13] Permission denied: '/tmp/torch_extensions/fused_adam/lock'",
        *DEEPSPEED,
    )
    ancillary = trace(
        "RuntimeError: received 0 items of ancdata",
        *EPOCH,
        NEXT,
        "/opt/conda/lib/python3.11/multiprocessing/reduction.py:164:recvfds",
    )
    pinned = trace("RuntimeError: Pin memory thread exited unexpectedly", *EPOCH, NEXT)
    thread = trace(
        "RuntimeError: can't start new thread",
        *TRAIN,
        "/opt/conda/lib/python3.11/threading.py:957:start",
    )
    driver = trace(
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "/home/user/train.py:3:<module>",
    )
    files = trace("OSError: [Errno 24] Too many open files: '/data/shard-0012.tar'", *EPOCH, NEXT)
    unread = trace(
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        *EPOCH,
        NEXT,
        f"{SITE}/torch/utils/data/_utils/fetch.py:54:fetch",
        "/home/user/dataset.py:41:__getitem__",
    )
    resumed = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/part-7.idx'", *TRAIN
    )
    table = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", *TRAIN
    )
    build = trace(
        "RuntimeError: Error building extension 'fused_adam': [1/3] c++ -c fused_adam_frontend.cpp",
        *DEEPSPEED,
    )
    forked = trace(
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        *TRAIN,
        f"{SITE}/torch/cuda/__init__.py:300:_lazy_init",
    )
    return [
        field_case("CUDA after a fork, which is no doubt", "stop", forked, "pytorch/pytorch/issues/40403", blame="program"),
        field_case("a tree on Lustre that may only be late", "restart", tree, "NVIDIA/nvidia-resiliency-ext/pull/411"),
        field_case("rank 3's mount lacks a folder", "restart", [Said(3, mount), *[remote_closed(rank, 3) for rank in (0, 1, 2)]], "NVIDIA/nvidia-resiliency-ext/pull/411", ranks=(3,), style=RANK),
        field_case("half of the tasks lack a folder", "restart", [*[Said(rank, "starting") for rank in range(8)], *on(range(4, 8), mount)], "NVIDIA/nvidia-resiliency-ext/pull/411", ranks=(4, 5, 6, 7), style=SRUN),
        field_case("a lock that another process took away", "restart", on(range(4), lock), "huggingface/datasets/issues/2820", style=RANK),
        field_case("a folder below /tmp that is somebody else's", "restart", on(range(4), shared), "deepspeedai/DeepSpeed/issues/885", style=RANK),
        field_case("a worker's tensors without descriptors", "restart", ancillary, "pytorch/pytorch/issues/973"),
        field_case("a thread for pinned memory that went", "restart", pinned, "pytorch/pytorch (written in its form)"),
        field_case("a node that allows no more threads", "restart", thread, "https://man7.org/linux/man-pages/man2/setrlimit.2.html"),
        field_case("no driver's library on all ranks of a node", "restart", on(range(8), driver), "NVIDIA/nvidia-docker/issues/584", style=RANK),
        field_case("too many open files", "restart", files, "https://man7.org/linux/man-pages/man2/setrlimit.2.html"),
        field_case("an image that OpenCV can't read", "restart", unread, "https://docs.opencv.org"),
        field_case("a file of data that is gone when a run resumes", "restart", [Said(0, "resuming from checkpoint /ckpt/run7 at iteration 4200"), *on(range(4), resumed)], "NVIDIA/nvidia-resiliency-ext/pull/411", style=RANK),
        field_case("a file that is missing on the node of rank 9", "restart", [Said(None, table), torchrun_summary(9, 1, node="gpu-node-02", ranks=16)], "https://github.com/karpathy/nanoGPT"),
        field_case("one of eight ranks can't build an extension", "restart", [*[Said(rank, "loading extension module fused_adam...") for rank in range(8)], Said(6, build), *[remote_closed(rank, 6) for rank in (0, 1)]], "deepspeedai/DeepSpeed/issues/6892", ranks=(6,), style=RANK),
    ]  # fmt: skip


FRAMEWORKS: Sequence[JobLogCase] = (
    *_launches(),
    *_data(),
    *_devices(),
    *_peers(),
    *_outside(),
    *_second_look(),
    *_doubts(),
)
