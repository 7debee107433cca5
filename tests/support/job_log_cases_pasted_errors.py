"""Errors of programs, their data and services that people pasted into public trackers.

The lines have the programs' own form, shortened, with neutral paths. Each was labelled before the rules judged it.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import CUDA_TAIL, HF, NEXT, field_case
from tests.support.job_log_cases_forms import (
    SITE,
    TRAIN,
    JobLogCase,
    PrefixStyle,
    Said,
    mixed,
    trace,
)

RANK, SRUN = PrefixStyle.RANK, PrefixStyle.SRUN
INDEX = "../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [134,0,0], thread: [{t},0,0] Assertion `srcIndex < srcSelectDimSize` failed."


def _programs() -> list[JobLogCase]:
    plan = 'Traceback (most recent call last): (RANK {r})\n  File "/opt/conda/lib/python3.9/site-packages/torch/distributed/_shard/checkpoint/utils.py", line 140, in reduce_scatter\n    local_data = map_fun()\n  File "/opt/conda/lib/python3.9/site-packages/torch/distributed/_shard/checkpoint/default_planner.py", line 131, in create_default_local_load_plan\n    md = metadata.state_dict_metadata[fqn]\nKeyError: \'pos_embedding\''
    planned = trace("torch.distributed._shard.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3])\n" + "\n".join(plan.format(r=r) for r in range(4)), "/home/user/main_training.py:512:<module>", "/home/user/model_checkpointing/checkpoint_handler.py:67:load_model_sharded", f"{SITE}/torch/distributed/_shard/checkpoint/utils.py:162:reduce_scatter")  # fmt: skip
    none = trace("KeyError: None", "/home/user/train.py:212:<module>", f"{SITE}/transformers/trainer.py:1556:train", f"{SITE}/transformers/trainer.py:1963:_inner_training_loop", f"{SITE}/transformers/trainer.py:2081:_load_from_checkpoint", f"{SITE}/torch/distributed/fsdp/fully_sharded_data_parallel.py:608:set_state_dict_type")  # fmt: skip
    valid = trace("ValueError: Can't find a valid checkpoint at /workspace/models/fsdp_debug/checkpoint-5", "/home/user/train.py:212:<module>", f"{SITE}/transformers/trainer.py:1556:train", f"{SITE}/transformers/trainer.py:2093:_load_from_checkpoint")  # fmt: skip
    logged = [
        Said(rank, trace("AssertionError", "/workspace/megatron/pretrain_gpt.py:396:<module>", "/workspace/megatron/megatron/training/training.py:710:pretrain", "/workspace/megatron/megatron/training/training.py:2195:train", "/workspace/megatron/megatron/training/training.py:1555:training_log", code="assert decoupled_learning_rate is not None"))
        for rank in (15, 14)
    ]  # fmt: skip
    samples = trace("AssertionError: only backward compatiblity support for iteration-based training", "pretrain_gpt.py:237:<module>", "/home/user/Megatron-DeepSpeed/megatron/training.py:132:pretrain", "/home/user/Megatron-DeepSpeed/megatron/training.py:842:build_train_valid_test_data_iterators", code="assert args.train_samples is None, \\")  # fmt: skip
    llama = "Checkpoint not found for file release/mp_rank_00_001_dp_000/ at root /code/model/llama2_7b\n(min, max) time across ranks (ms):\n    load-checkpoint ................................: (30.11, 32.08)\n" + "\n".join(INDEX.format(t=t) for t in range(4)) + "\n" + trace("RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, "pretrain_megatron_llama.py:119:<module>", "/code/Megatron-LLaMA/megatron/training.py:150:pretrain", "/code/Megatron-LLaMA/megatron/training.py:421:train_step", "/code/Megatron-LLaMA/megatron/model/language_model.py:225:forward")  # fmt: skip
    grpo = "../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [58,0,0], thread: [10,0,0], thread: [38,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [6,0,0], thread: [39../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [58,0,0], thread: [11,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" + trace("RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, "/home/user/grpo.py:88:<module>", f"{SITE}/transformers/trainer.py:2171:train", f"{SITE}/trl/trainer/grpo_trainer.py:560:_prepare_inputs")  # fmt: skip
    late = "  6%|6         | 88/1398 [1:31:02<25:44:02, 70.72s/it]\n  6%|6         | 89/1398 [1:32:11<25:28:13, 70.05s/it]" + "\n".join(INDEX.format(t=t) for t in range(4)) + "\n" + trace("RuntimeError: CUDA error: device-side assert triggered" + CUDA_TAIL, "/home/user/ppo.py:102:<module>", f"{SITE}/trl/trainer/ppov2_trainer.py:380:train")  # fmt: skip
    xlm = "INFO - 02/11/21 07:42:16 - 0:01:50 -     600 -   73.84 sent/s -  3794.87 words/s - cs:  0.3453 (coef=1.0000) || sm:  5.3166 (coef=1.0000) - Transformer LR = 1.0000e-04\n\nINFO - 02/11/21 07:42:18 - 0:01:52 -     610 -   76.07 sent/s -  3359.69 words/s - cs:  0.2447 (coef=1.0000) || sm:  5.2666 (coef=1.0000) - Transformer LR = 1.0000e-04\n\n/opt/conda/conda-bld/pytorch_1544199946412/work/aten/src/THC/THCTensorIndex.cu:362: void indexSelectLargeIndex(TensorInfo<T, IndexType>): block: [84,0,0], thread: [109,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" + trace("RuntimeError: CUDA error: device-side assert triggered", "model/train.py:323:<module>", "model/train.py:290:main", "model/src/trainer.py:861:enc_dec_step")  # fmt: skip
    genhpf = "[2025-11-29 18:05:48,225][genhpf.train][INFO] - Start iterating over samples\nepoch 001:  37%|###7 | 521/1426 [02:47<04:46,  3.16it/s, loss=0.138, accuracy=0.98125, ups=3.16, num_updates=520, train_wall=3, gb_free=20.8, wall=168]\n/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [31,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` \nfailed.\n" + trace("torch.AcceleratorError: CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.", "/home/user/genhpf/cli_train.py:40:main", "/home/user/genhpf/train.py:200:train")  # fmt: skip
    sampler = trace("AssertionError", "wenet/bin/train.py:228:<module>", "/home/user/wenet/utils/executor.py:33:train", f"{SITE}/torch/utils/data/dataloader.py:291:__iter__", f"{SITE}/torch/utils/data/dataloader.py:994:_try_put_index", f"{SITE}/torch/utils/data/sampler.py:208:__iter__", f"{SITE}/torch/utils/data/distributed.py:80:__iter__", code="assert len(indices) == self.total_size")  # fmt: skip
    logs = "['train.py', '--output_directory=./outdir_mgpu', '--log_directory=./logdir_mgpu', '--hparams=distributed_run=True', '--n_gpus=4', '--rank=0']\n" + trace("FileNotFoundError: [Errno 2] No such file or directory: 'logs/2018_05_11-223841_GPU_1.log'", "/opt/conda/lib/python3.6/runpy.py:193:_run_module_as_main", "/opt/conda/lib/python3.6/runpy.py:85:_run_code", "/home/user/tacotron2/multiproc.py:16:<module>")  # fmt: skip
    ordinal = "2024-09-05 07:57:34.555804: W external/xla/xla/service/platform_util.cc:199] unable to create StreamExecutor for CUDA:1: failed initializing StreamExecutor for CUDA device ordinal 1: INTERNAL: Failed call to cuDeviceGet: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal\n" + trace("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: no supported devices found for platform CUDA", f"{SITE}/jax/_src/xla_bridge.py:879:backends", f"{SITE}/jax/_src/xla_bridge.py:970:_init_backend", f"{SITE}/jax/_src/xla_bridge.py:676:factory")  # fmt: skip
    backend = trace("RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)", "/home/user/train.py:12:<module>", f"{SITE}/jax/_src/distributed.py:241:initialize", f"{SITE}/jax/_src/xla_bridge.py:912:backends")  # fmt: skip
    symbol = '{\n  "insertId": "op5hl1g1bhcbgu",\n  "jsonPayload": {\n    "lineno": 974,\n    "message": "Module raised an exception for failing to TPU node IP: /root/.local/lib/python3.7/site-packages/tensorflow/core/kernels/libtfkernel_sobol_op.so: undefined symbol: _ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternalEPKNS_9KernelDefE.",\n    "levelname": "ERROR"\n  },\n  "timestamp": "2021-12-24T02:06:25.605309724Z",\n  "severity": "ERROR"\n}'
    return [
        field_case("a sharded checkpoint lacks the model's names", "stop", planned, "pytorch/pytorch/issues/85949", blame="program"),
        field_case("FSDP's kind of state is not set on a resume", "stop", none, "huggingface/transformers/issues/26159", blame="program", also=("restart",)),
        field_case("no valid checkpoint in the folder that was named", "stop", valid, "huggingface/transformers/issues/26186", blame="program", also=("restart",)),
        field_case("Megatron's first log line asserts a learning rate", "stop", mixed(logged), "NVIDIA/Megatron-LM/issues/2156", also=("restart",), style=RANK),
        field_case("Megatron resumes a run that counted samples otherwise", "stop", samples, "deepspeedai/Megatron-DeepSpeed/pull/2", blame="program"),
        field_case("tokens above the vocabulary of Megatron-LLaMA", "stop", llama, "alibaba/Megatron-LLaMA/issues/10", error_class="program", blame="program"),
        field_case("tokens above the vocabulary, lines woven into each other", "stop", grpo, "huggingface/trl/issues/2996", also=("restart",), error_class="program"),
        field_case("a token above the vocabulary after 89 steps", "restart", late, "huggingface/trl/issues/1995", also=("stop",), error_class="program"),
        field_case("a token above the vocabulary after 610 updates of XLM", "restart", xlm, "JasonObeid/Chart2Text/issues/1", also=("stop",)),
        field_case("an index outside its range after 521 batches, as CUDA 13 words it", "restart", genhpf, "hoon9405/GenHPF/issues/17", also=("stop",), error_class="program"),
        field_case("fewer samples than the sampler's ranks", "stop", sampler, "wenet-e2e/wenet/issues/503", also=("restart",)),
        field_case("a folder for logs that nobody made", "stop", logs, "NVIDIA/tacotron2/issues/16", blame="program"),
        field_case("JAX under Slurm: a device's number that the task doesn't see", "stop", ordinal, "jax-ml/jax/issues/23452", also=("restart",)),
        field_case("JAX under Slurm: no device at all", "restart", backend, "jax-ml/jax/issues/28194", also=("stop",)),
        field_case("a library of TensorFlow lacks a symbol, in JSON", "stop", symbol, "FIRST-Tech-Challenge/fmltc/issues/244", also=("restart",)),
    ]  # fmt: skip


def _data() -> list[JobLogCase]:
    fast = "[2024-04-02 11:24:25] epoch    4 | iter 2286/2291 | loss  4.63 | mel  1.45 | dur  0.36 | pitch  0.40 | align  3.10 | took 0.29 s\n[2024-04-02 11:24:25] epoch    4 | iter 2287/2291 | loss  4.37 | mel  1.24 | dur  0.30 | pitch  0.38 | align  3.06 | took 0.27 s\n" + trace("RuntimeError: Caught RuntimeError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.10/site-packages/torch/utils/data/_utils/fetch.py\", line 54, in fetch\n    return self.collate_fn(data)\n  File \"fastpitch/data_function.py\", line 493, in __call__\n    dur_padded[i, :dur.size(0), :dur.size(1)] = dur\nRuntimeError: The expanded size of the tensor (113) must match the existing size (114) at non-singleton dimension 1.  Target sizes: [599, 113].  Tensor sizes: [599, 114]", *TRAIN, NEXT)  # fmt: skip
    scale = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n    self.loss_scaler.update_scale(has_overflow)\n  File \"/opt/conda/lib/python3.8/dist-packages/deepspeed/runtime/fp16/loss_scaler.py\", line 175, in update_scale\n    raise Exception(\n    Exceptionself.loss_scaler.update_scale(has_overflow):\nCurrent loss scale already at minimum - cannot decrease scale anymore. Exiting run.  File \"/opt/conda/lib/python3.8/dist-packages/deepspeed/runtime/fp16/loss_scaler.py\", line 175, in update_scale\n    raise Exception(\n  4%|4         | 17/387 [05:25<1:57:56, 19.13s/it]\n[2023-07-26 15:19:24,960] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 45098\n[2023-07-26 15:19:27,802] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 45099\n[2023-07-26 15:19:30,250] [ERROR] [launch.py:321:sigkill_handler] ['/opt/conda/bin/python', '-u', 'src/train_bash.py', '--local_rank=7'] exits with return code = 1"  # fmt: skip
    overflow = "| WARNING: overflow detected, setting loss scale to: 0.0625\n| epoch 001:    200 / 1374 loss=14.351, ppl=20899.56, wps=49604, ups=0, wpb=277035.016, bsz=8563.074, num_updates=190, lr=4.84525e-06, gnorm=3.901, clip=0.000, oom=0.000, loss_scale=0.062, wall=1061, train_wall=945\n| WARNING: overflow detected, setting loss scale to: 0.03125\n| epoch 001:    400 / 1374 loss=13.137, ppl=9007.95, wps=52932, ups=0, wpb=277361.147, bsz=8693.717, num_updates=389, lr=9.81528e-06, gnorm=2.587, clip=0.000, oom=0.000, loss_scale=0.031, wall=2038, train_wall=1880"
    reused = trace("ValueError: Reused local directory: ['/root/my-copy-c4/train_small'] vs ['/root/my-copy-c4/train_small']. Provide a different one. If using a unique local directory, try deleting the local directory and call `streaming.base.util.clean_stale_shared_memory()` only once in your script to clean up the stale shared memory before instantiation of `StreamingDataset`.", "/root/llm-foundry/scripts/train/train.py:254:<module>", "/root/llm-foundry/scripts/train/train.py:150:main", "/root/llm-foundry/llmfoundry/data/text_data.py:110:__init__", f"{SITE}/streaming/base/shared.py:340:get_shm_prefix")  # fmt: skip
    barrier = trace("FileExistsError: [Errno 17] File exists: '/000000_barrier'", "/opt/conda/lib/python3.10/multiprocessing/shared_memory.py:104:__init__") + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace("PermissionError: [Errno 13] Permission denied: '/000000_barrier'", "/home/user/llm-foundry/scripts/train/train.py:256:<module>", "/home/user/llm-foundry/llmfoundry/data/text_data.py:110:__init__", f"{SITE}/streaming/base/dataset.py:331:__init__", f"{SITE}/streaming/base/shared.py:88:__init__")  # fmt: skip
    return [
        field_case("a sample whose lengths differ by one, after four epochs", "restart", fast, "dan-wells/fastpitch/issues/2", also=("stop",)),
        field_case("DeepSpeed's loss scale is at its minimum, ranks' lines woven", "restart", scale, "hiyouga/LlamaFactory/issues/251", error_class="numbers"),
        field_case("overflows, and the training goes on", "unknown", overflow, "facebookresearch/fairseq/issues/515"),
        field_case("shared memory of an earlier run: a folder is used twice", "restart", reused, "mosaicml/llm-foundry/issues/141", also=("stop",)),
        field_case("shared memory of another person's run", "restart", barrier, "mosaicml/llm-foundry/issues/159", also=("stop",)),
    ]  # fmt: skip


def _services() -> list[JobLogCase]:
    worker = trace("huggingface_hub.errors.HfHubHTTPError: Caught HfHubHTTPError in DataLoader worker process 10.\nOriginal Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.10/site-packages/torch/utils/data/_utils/fetch.py\", line 32, in fetch\n    data.append(next(self.dataset_iter))\n  File \"/opt/conda/lib/python3.10/site-packages/datasets/iterable_dataset.py\", line 1367, in __iter__\n    yield from self._iter_pytorch()\nhuggingface_hub.utils._errors.HfHubHTTPError: 500 Server Error: Internal Server Error for url: https://huggingface.co/api/datasets/org/set/paths-info/8b2a1", *TRAIN, NEXT)  # fmt: skip
    slow = "Training...:  43%|####3     | 21450/50000 [10:02:11<13:21:40,  1.69s/it]\n" + trace("asyncio.exceptions.TimeoutError", "/home/user/dalle/run_seq2seq_flax.py:991:main", f"{SITE}/fsspec/asyn.py:25:_runner", f"{SITE}/fsspec/implementations/http.py:614:async_fetch_range", f"{SITE}/aiohttp/client_reqrep.py:1032:read", f"{SITE}/aiohttp/helpers.py:656:__exit__")  # fmt: skip
    gone = trace("ConnectionError: Server Disconnected", "/home/user/dalle/run_seq2seq_flax.py:1027:<module>", "/home/user/dalle/run_seq2seq_flax.py:991:main", f"{SITE}/datasets/iterable_dataset.py:341:__iter__", f"{SITE}/datasets/utils/streaming_download_manager.py:121:read_with_retries")  # fmt: skip
    titan = "[titan] 2026-05-13 00:52:16,792 - root - INFO - step: 2690  loss:  3.76196  grad_norm:  0.2823  memory: 59.24GiB(74.81%)  tps: 2,059  tflops: 119.27  mfu: 12.06%\n" + "\n".join("[rank3]: " + line for line in trace("httpx.ReadTimeout: The read operation timed out", "/home/user/torchtitan/train.py:530:train", "/home/user/torchtitan/hf_datasets/text_datasets.py:121:__iter__", f"{SITE}/huggingface_hub/utils/_http.py:300:http_backoff").splitlines()) + "\n" + "\n".join(f"[rank{r}]:[E513 01:02:20.401{r}12345 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=191220, OpType=_ALLGATHER_BASE, NumelIn=524288, NumelOut=4194304, Timeout(ms)=100000) ran for 100013 milliseconds before timing out." for r in (0, 1, 2, 4, 5, 6, 7))  # fmt: skip
    c4 = "\n".join("[rank5]: " + line for line in trace("ConnectionError: Couldn't reach 'allenai/c4' on the Hub (ConnectTimeout)", "/home/user/torchtitan/train.py:440:<module>", "/home/user/torchtitan/torchtitan/datasets/hf_datasets.py:101:__init__", f"{SITE}/datasets/load.py:2594:load_dataset", f"{SITE}/datasets/load.py:1914:dataset_module_factory").splitlines())  # fmt: skip
    return [
        field_case("the hub answers a loader's worker with 500", "restart", worker, "huggingface/datasets/issues/6577", error_class="service", blame="nobody"),
        field_case("a stream of samples times out after ten hours", "restart", slow, "huggingface/datasets/issues/3049"),
        field_case("a server of samples disconnects", "restart", gone, "huggingface/datasets/pull/3050", error_class="service"),
        field_case("torchtitan: rank 3's stream of samples times out, and the others wait", "restart", titan, "pytorch/torchtitan/issues/3338", ranks=None),
        field_case("the hub can't be reached from rank 5", "restart", c4, "pytorch/torchtitan/issues/407", error_class="service"),
        field_case("the hub is slow, seen by task 3 alone", "restart", [Said(3, trace("urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)", *TRAIN, f"{SITE}/urllib3/response.py:449:_error_catcher"))], "awslabs/awsome-distributed-ai/pull/378", error_class="service", style=SRUN),
    ]  # fmt: skip


def _storage() -> list[JobLogCase]:
    opened = "Number of train samples: 761740\nStart from epoch 0\nEpoch 0, time usage: 10319.676s, average loss: [0.050121 0.051044]/0.050582\n" + trace("RuntimeError: File my_out/checkpoints/checkpoint_0.pt cannot be opened.", "/ronin/source/ronin_resnet.py:423:<module>", "/ronin/source/ronin_resnet.py:227:train", f"{SITE}/torch/serialization.py:287:__init__")  # fmt: skip
    dolly = "\n".join("2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] [09c561ee-a44c-4795-967c-7183a83b3160] " + line for line in ("2023-04-29 06:01:12 ERROR [__main__] main failed\n" + trace("OSError: [Errno 28] No space left on device", *HF, f"{SITE}/torch/serialization.py:379:save", f"{SITE}/torch/serialization.py:604:_save")).splitlines())  # fmt: skip
    pos = "Part 0 | Epoch 00001 | Batch 080 | Loss: 1.4221 | Time: 3.4350\nPart 0 | Epoch 00001 | Batch 100 | Loss: 1.3927 | Time: 3.3764\nEpoch 1 take 6133.379153013229\n" + trace("RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 8310080 vs 8309968", "/home/user/graphstorm/run.py:80:main", f"{SITE}/torch/serialization.py:379:save", f"{SITE}/torch/serialization.py:259:__exit__")  # fmt: skip
    return [
        field_case("a checkpoint can't be opened after an epoch", "restart", opened, "Sachini/ronin/issues/51"),
        field_case("Databricks: a full disk, each line with the task's name", "restart", dolly, "databrickslabs/dolly/issues/139", error_class="storage", blame="nobody"),
        field_case("a checkpoint's end isn't where it should be", "restart", pos, "awslabs/graphstorm/issues/199"),
        field_case("a stale handle and nothing else", "restart", "OSError: [Errno 116] Stale file handle: '/mnt/share/model/model-00001-of-00002.safetensors'", "hiyouga/LlamaFactory/issues/3243", error_class="storage", blame="nobody"),
    ]  # fmt: skip


PASTED_ERRORS: Sequence[JobLogCase] = (*_programs(), *_data(), *_services(), *_storage())
