"""Logs of jobs that code, configuration or data ended: most fail again the same way on any machine."""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    ALL_REDUCE,
    BACKWARD,
    DDP_FORWARD,
    PYTORCH,
    SITE,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    Work,
    a_case,
    chatter,
    deepspeed_end,
    exit_noise,
    gloo_closed,
    in_two,
    mixed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
)

STOP = Label("stop")
# One rank was seen, or steps were made before: whether the same start fails again is not certain.
IN_DOUBT = Label("stop", also=("restart",))
FOUR = range(4)


def every(text: str, ranks: Sequence[int] = range(8)) -> list[Said]:
    """Return the same words of all ranks, line by line in turn."""
    return mixed([Said(rank, text) for rank in ranks])


def _imports_and_arguments() -> list[JobLogCase]:
    """Errors before the first step, on all ranks."""
    transformers = (
        f"{SITE}/transformers/modeling_utils.py:58:<module>",
        "/home/user/train.py:12:<module>",
    )
    rows: Sequence[tuple[str, str, str, str]] = (
        ("a module that is not installed", trace("ModuleNotFoundError: No module named 'flash_attn'", "/home/user/train.py:9:<module>", code="import flash_attn"),
         "https://github.com/axolotl-ai-cloud/axolotl", "plain"),
        ("a name that a package no longer has", trace("ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama' (/opt/conda/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py)", *transformers, code="from transformers.models.llama.modeling_llama import LlamaFlashAttention2"),
         "https://github.com/huggingface/transformers", "trainer"),
        ("an option that is missing", "usage: train.py [-h] --data-path DATA_PATH [--lr LR]\ntrain.py: error: the following arguments are required: --data-path",
         "https://docs.python.org/3/library/argparse.html", "plain"),
        ("an option that is not known", "usage: pretrain_gpt.py [-h] [--num-layers NUM_LAYERS]\npretrain_gpt.py: error: unrecognized arguments: --use-flash-attn-v3",
         "https://github.com/NVIDIA/Megatron-LM", "megatron"),
        ("a syntax error", '  File "/home/user/train.py", line 44\n    def forward(self, x\n               ^\nSyntaxError: \'(\' was never closed',
         "https://docs.python.org/3/library/exceptions.html", "plain"),
        ("a key that the configuration lacks", trace("omegaconf.errors.ConfigAttributeError: Key 'hidden_size' is not in struct\n    full_key: model.hidden_size\n    object_type=dict", *TRAIN, f"{SITE}/omegaconf/base.py:231:_format_and_raise"),
         "https://github.com/NVIDIA/NeMo", "lightning"),
        ("a tensor-parallel size that doesn't divide", trace("AssertionError: world size (16) is not divisible by total_model_size (model_parallel_size=3 * pipeline_model_parallel_size=2)", *TRAIN, "/opt/megatron/megatron/core/parallel_state.py:512:initialize_model_parallel"),
         "https://github.com/NVIDIA/Megatron-LM", "megatron"),
        ("a batch size of DeepSpeed that doesn't fit", trace("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 8 * 16", *TRAIN, f"{SITE}/deepspeed/runtime/config.py:1009:_configure_train_batch_size"),
         "https://github.com/deepspeedai/DeepSpeed", "deepspeed"),
        ("a script that is not there", "/opt/conda/bin/python3.11: can't open file '/home/user/trian.py': [Errno 2] No such file or directory",
         "https://docs.python.org/3/using/cmdline.html", "plain"),
        ("a checkpoint of another shape", trace("RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for transformer.wte.weight: copying a param with shape torch.Size([50304, 768]) from checkpoint, the shape in current model is torch.Size([50257, 768]).", *TRAIN, f"{SITE}/torch/nn/modules/module.py:2581:load_state_dict"),
         "https://github.com/karpathy/nanoGPT", "nanogpt"),
        ("keys that a checkpoint lacks", trace("RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tMissing key(s) in state_dict: \"model.layers.0.self_attn.q_proj.weight\", \"model.layers.0.self_attn.k_proj.weight\". ", *TRAIN, f"{SITE}/torch/nn/modules/module.py:2581:load_state_dict"),
         "https://github.com/huggingface/transformers", "trainer"),
        ("an attribute that is not there", trace("AttributeError: 'TrainingArguments' object has no attribute 'deepspeed_plugin'", *TRAIN, f"{SITE}/transformers/trainer.py:4411:create_accelerator_and_postprocess"),
         "https://github.com/huggingface/transformers", "trainer"),
        ("an argument that a function doesn't know", trace("TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'", *TRAIN),
         "https://github.com/huggingface/trl", "trainer"),
        ("an optimiser whose groups differ", trace("ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group", *TRAIN, f"{SITE}/torch/optim/optimizer.py:890:load_state_dict"),
         PYTORCH, "nanogpt"),
        ("gradients that DDP doesn't get", trace("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`", *DDP_FORWARD, f"{SITE}/torch/nn/parallel/distributed.py:1521:_pre_forward"),
         PYTORCH, "plain"),
        ("a Lightning accelerator that doesn't exist", trace("lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3, 4, 5, 6, 7]\n But your machine only has: [0, 1, 2, 3]", *TRAIN, f"{SITE}/lightning/fabric/utilities/device_parser.py:134:_sanitize_gpu_ids"),
         "https://github.com/Lightning-AI/pytorch-lightning", "lightning"),
    )  # fmt: skip
    cases = []
    for index, (name, text, source, flavour) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.SRUN),
            (PrefixStyle.SRUN, PrefixStyle.RANK_FILES),
            (PrefixStyle.RANK_FILES, PrefixStyle.DEFAULT),
        )[index % 3]
        said = [*every(text, FOUR), torchrun_summary(index % 4, 1, all_others(index % 4))]
        also = ("restart",) if "Misconfiguration" in text else ()
        cases += in_two(
            name, said, Label("stop", also=also), source, FOUR, flavour, styles, is_at_start=True
        )
    return cases


def all_others(root: int, ranks: Sequence[int] = FOUR) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank != root)


def _first_step() -> list[JobLogCase]:
    """Errors of shapes, devices and data types in the first step, on all ranks."""
    shape = trace(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8192x4096 and 2048x11008)",
        *DDP_FORWARD,
        "/home/user/model.py:77:forward",
        f"{SITE}/torch/nn/modules/linear.py:125:forward",
    )
    device = trace(
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        *DDP_FORWARD,
        "/home/user/model.py:41:forward",
    )
    dtype = trace(
        "RuntimeError: expected scalar type BFloat16 but found Float",
        *DDP_FORWARD,
        "/home/user/model.py:52:forward",
    )
    asserted = "\n".join(
        f"../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [{block},0,0], thread: [{thread},0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed."
        for block in (36, 106)
        for thread in range(4)
    )
    device_assert = (
        asserted
        + "\n"
        + trace(
            "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some "
            "other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
            "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            *DDP_FORWARD,
        )
    )
    grad = trace(
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.cuda.FloatTensor [4096]] is at version 3; expected version 2 instead.",
        *BACKWARD,
    )
    rows = (
        ("shapes that don't multiply", shape, "https://github.com/NVIDIA/Megatron-LM", "megatron", ()),
        ("tensors on two devices", device, "https://github.com/huggingface/accelerate", "plain", ()),
        ("a data type that differs", dtype, "https://github.com/huggingface/peft", "trainer", ()),
        ("an index outside an embedding", device_assert, "https://github.com/deepspeedai/Megatron-DeepSpeed/issues/207", "deepspeed", ("restart",)),
        ("a variable that was changed in place", grad, PYTORCH, "plain", ()),
    )  # fmt: skip
    cases = []
    for index, (name, text, source, flavour, also) in enumerate(rows):
        plain = (PrefixStyle.RANK, PrefixStyle.SRUN)[index % 2]
        other = (PrefixStyle.KUBE, PrefixStyle.MPI)[index % 2]
        said = [*every(text, FOUR), torchrun_summary(index % 4, 1, all_others(index % 4))]
        cases += in_two(
            name,
            said,
            Label("stop", also=also),
            source,
            FOUR,
            flavour,
            (plain, other),
            is_at_start=True,
        )
    return cases


def _one_rank_failed() -> list[JobLogCase]:
    """One rank's exception with victims: a restart may pass it, and nobody but the rank is named."""
    victims = [gloo_closed(rank) for rank in (0, 2, 3)]
    nccl_victims = mixed([timed_out(rank, Work(4021), "2.5") for rank in (0, 2, 3)])
    rows: Sequence[tuple[str, Said, list[Said], str, Label, int | None]] = (
        ("a sample of rank 1 that can't be decoded",
         Said(1, trace("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80 in position 101: invalid start byte", *TRAIN, "/home/user/data.py:31:__getitem__")),
         victims, "nanogpt", Label("restart", (1,), also=("stop",)), None),
        ("an index error of rank 1 in its loader",
         Said(1, trace("IndexError: Caught IndexError in DataLoader worker process 3.\nOriginal " + trace("IndexError: list index out of range", f"{SITE}/torch/utils/data/_utils/worker.py:351:_worker_loop", "/home/user/data.py:31:__getitem__"), *TRAIN, f"{SITE}/torch/_utils.py:733:reraise")),
         nccl_victims, "trainer", Label("restart", (1,), also=("stop",)), 1),
        ("a key error of rank 1, and a summary that names rank 0",
         Said(1, trace("KeyError: 'attention_mask'", *TRAIN, "/home/user/data.py:61:collate")),
         [*victims, torchrun_summary(0, 1, (1, 2, 3))], "plain", Label("restart", (1,), also=("stop",)), None),
        ("a loss of rank 1 that is no number",
         Said(1, trace("AssertionError: Rank 1: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 1, node: gpu-node-01", *TRAIN, "/opt/megatron/megatron/core/distributed/param_and_grad_buffer.py:139:check_for_nan_in_grad")),
         nccl_victims, "megatron", Label("restart", (1,)), 1),
        ("a loss that is infinite on rank 1",
         Said(1, trace("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.", *TRAIN)),
         victims, "plain", Label("restart", (1,), also=("stop", "unknown")), None),
        ("an assertion of rank 1's own",
         Said(1, trace("AssertionError: loss is nan at step 812", *TRAIN)),
         victims, "nanogpt", Label("restart", (1,), also=("unknown",)), 1),
        ("CUDA memory of rank 1",
         Said(1, trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of 63.29 GiB of which 1.82 GiB is free. Including non-PyTorch memory, this process has 61.46 GiB memory in use.", *BACKWARD)),
         victims, "titan", Label("restart", (1,), also=("stop",)), None),
        ("CUDA memory of rank 1 in an old PyTorch",
         Said(1, trace("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 31.75 GiB total capacity; 29.84 GiB already allocated; 11.75 MiB free; 30.20 GiB reserved in total by PyTorch)", *BACKWARD)),
         victims, "lightning", Label("restart", (1,), also=("stop",)), 1),
        ("cuBLAS of rank 1 got no memory",
         Said(1, trace("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", *DDP_FORWARD)),
         nccl_victims, "trainer", Label("restart", (1,), also=("stop",)), None),
        ("a JSON line of rank 1 that is cut off",
         Said(1, trace("json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 10241 (char 10240)", *TRAIN, "/opt/conda/lib/python3.11/json/decoder.py:355:raw_decode")),
         victims, "plain", Label("restart", (1,), also=("stop",)), 1),
    )  # fmt: skip
    cases = []
    for index, (name, first, rest, flavour, label, noisy_end) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.SRUN),
            (PrefixStyle.RANK_FILES, PrefixStyle.MPI),
            (PrefixStyle.SRUN, PrefixStyle.DEFAULT),
        )[index % 3]
        cases += in_two(
            name, [first, *rest], label, PYTORCH, FOUR, flavour, styles, noisy_end=noisy_end
        )
    return cases


def _all_ranks_of_memory() -> list[JobLogCase]:
    """Every rank runs out of the accelerator's memory in the first step: the batch doesn't fit anywhere."""
    text = trace(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.11 GiB of "
        "which 1.02 GiB is free.",
        *DDP_FORWARD,
    )
    return in_two(
        "CUDA memory of all ranks in the first step",
        [*every(text, FOUR), torchrun_summary(0, 1, (1, 2, 3))],
        Label("stop", also=("restart",)),
        "https://github.com/hiyouga/LlamaFactory/issues/3494",
        FOUR,
        "trainer",
        (PrefixStyle.RANK, PrefixStyle.SRUN),
        is_at_start=True,
    )


def _launchers() -> list[JobLogCase]:
    """The same errors in the words of DeepSpeed, accelerate, Lightning's rich tracebacks, spawn."""
    rich = (
        "╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮\n"
        "│ /home/user/train.py:188 in main                                                                  │\n"
        "│                                                                                                  │\n"
        "│   187 │   cfg = load(args.config)                                                                │\n"
        "│ ❱ 188 │   model = build(cfg['modle'])                                                            │\n"
        "╰──────────────────────────────────────────────────────────────────────────────────────────────────╯\n"
        "KeyError: 'modle'"
    )
    spawn = "\n\n".join((
        trace("torch.multiprocessing.spawn.ProcessRaisedException: ", *TRAIN, f"{SITE}/torch/multiprocessing/spawn.py:158:join"),
        "-- Process 2 terminated with the following error:",
        trace("NameError: name 'modle' is not defined", f"{SITE}/torch/multiprocessing/spawn.py:90:_wrap", "/home/user/train.py:101:run"),
    ))  # fmt: skip
    hydra = (
        "Could not override 'model.hiden_size'.\nTo append to your config use +model.hiden_size=4096\nKey 'hiden_size' is not in "
        "struct\n    full_key: model.hiden_size\n    object_type=dict\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a "
        "complete stack trace."
    )
    worker_in_ray = (
        "ray.exceptions.RayTaskError(TypeError): ray::WorkerDict.actor_init() (pid=81244, ip=10.1.0.12)\n"
        '  File "/home/user/worker.py", line 55, in actor_init\n    self.model = build(cfg, width=4096)\n'
        "TypeError: build() got an unexpected keyword argument 'width'"
    )
    return [
        a_case("a key error under DeepSpeed's launcher", [*chatter(range(2)), Said(0, trace("KeyError: 'zero_optimisation'", *TRAIN)), deepspeed_end(1, 2)],
               STOP, "https://github.com/deepspeedai/DeepSpeedExamples/issues/380", PrefixStyle.HOST, is_noisy=True),
        a_case("a key error in a rich traceback", [Said(0, rich), torchrun_summary(0, 1)], IN_DOUBT, "https://github.com/huggingface/accelerate/issues/1192"),
        a_case("a name error under spawn", [Said(None, spawn)], Label("stop"), "https://github.com/innnky/so-vits-svc/issues/46"),
        a_case("an override that Hydra refuses", [Said(None, hydra)], STOP, "https://github.com/facebookresearch/hydra"),
        a_case("a type error of a Ray worker", [*steps("plain", 0, 3), Said(None, worker_in_ray)], IN_DOUBT, "https://github.com/verl-project/verl/issues/1096", is_noisy=True),
        a_case("an import error in 16 interleaved ranks without prefixes",
               mixed([Said(rank, "Traceback (most recent call last):\nImportError: cannot import name 'rms_norm' from 'apex.normalization'") for rank in range(16)]),
               STOP, "https://github.com/NVIDIA/nccl/issues/1241"),
        a_case("two exceptions chained, the older is the cause",
               [Said(0, trace("FileNotFoundError: [Errno 2] No such file or directory: '/home/user/configs/tiny.yaml'", *TRAIN)
                     + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
                     + trace("RuntimeError: could not read the configuration", *TRAIN))],
               Label("stop", also=("restart",)), PYTORCH, PrefixStyle.RANK),
        a_case("an error after which atexit, threads and __del__ complain",
               [*steps("plain", 0, 4), Said(0, trace("TypeError: forward() missing 1 required positional argument: 'mask'", *DDP_FORWARD)), *exit_noise(0)],
               IN_DOUBT, PYTORCH, PrefixStyle.RANK, is_noisy=True),
        a_case("a logging error that kept the job alive, then a name error",
               [Said(0, "--- Logging error ---\n" + trace("ValueError: I/O operation on closed file.", "/opt/conda/lib/python3.11/logging/__init__.py:1113:emit", code="stream.write(msg + self.terminator)")
                     + "\nCall stack:\n  File \"/home/user/train.py\", line 99, in log\nMessage: 'step 3'\nArguments: ()"),
                *steps("plain", 3, 3),
                Said(0, trace("NameError: name 'scheduler' is not defined", *TRAIN))],
               STOP, "https://docs.python.org/3/library/logging.html", PrefixStyle.RANK, is_noisy=True),
    ]  # fmt: skip


def _misuse() -> list[JobLogCase]:
    """Misuse of NCCL and of the launcher."""
    duplicate = [
        Said(rank, f"gpu-node-01:{29880 + rank}:{30398 + rank} [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank {rank} and "
                   f"rank 0 both on CUDA device 1000\n"
                   + trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, "
                           "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\nncclInvalidUsage: This usually "
                           "reflects invalid usage of NCCL library.\nLast error:\n"
                           f"Duplicate GPU detected : rank {rank} and rank 0 both on CUDA device 1000", *ALL_REDUCE))
        for rank in range(1, 4)
    ]  # fmt: skip
    return [
        *in_two("ranks that share a GPU", duplicate, STOP, "https://github.com/horovod/horovod/issues/3929", FOUR, styles=(PrefixStyle.RANK, PrefixStyle.MPI), is_at_start=True),
        *in_two("an ordinal that no device has",
                every(trace("RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", *TRAIN, f"{SITE}/torch/cuda/__init__.py:478:set_device"), range(4, 8)),
                Label("stop", also=("restart",)), PYTORCH, styles=(PrefixStyle.RANK, PrefixStyle.SRUN), is_at_start=True),
        *in_two("torchrun without a script", [Said(None, "usage: torchrun [-h] [--nnodes NNODES] [--nproc-per-node NPROC_PER_NODE]\ntorchrun: error: the following arguments are required: training_script, training_script_args")],
                STOP, PYTORCH, range(1), is_at_start=True),
    ]  # fmt: skip


CODE: Sequence[JobLogCase] = (
    *_imports_and_arguments(),
    *_first_step(),
    *_one_rank_failed(),
    *_all_ranks_of_memory(),
    *_launchers(),
    *_misuse(),
)
