"""A third look at what people pasted into public trackers, after the rules for the second: signals, memory, NCCL, races of files.

The lines have the programs' own form, shortened, with neutral paths. Each was labelled before the rules judged it.
"""

from collections.abc import Sequence

from tests.support.job_log_cases_field import field_case
from tests.support.job_log_cases_forms import BACKWARD, DDP_FORWARD, SITE, JobLogCase, trace

ELASTIC = (
    f"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py:355:wrapper",
    f"{SITE}/torch/distributed/run.py:883:run",
    f"{SITE}/torch/distributed/elastic/agent/server/api.py:717:run",
    f"{SITE}/torch/distributed/elastic/multiprocessing/api.py:84:_terminate_process_handler",
)
REDUCTION = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \nmaking sure all `forward` function outputs participate in calculating loss."
FRAGMENTS = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"


def _ranked(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.splitlines())


def _signals() -> list[JobLogCase]:
    old = "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n" + "".join(f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {pid} closing signal SIGHUP\n" for pid in (2704351, 2704352))  # fmt: skip
    new = "W0920 09:10:41.194000 84933 site-packages/torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting down workers\nW0920 09:10:41.195000 84933 site-packages/torch/distributed/elastic/multiprocessing/api.py:900] Sending process 85005 closing signal SIGHUP\n"
    ended = (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got signal: 1"
    )
    return [
        field_case("a terminal closes behind VRT", "restart", "22-09-01 02:48:36.264 : <epoch:  0, iter:     600, lr:4.000e-04> G_loss: 1.637e-02 \n22-09-01 03:06:01.631 : <epoch:  0, iter:     800, lr:4.000e-04> G_loss: 7.941e-02 \n" + old + trace(ended.format(2704349), *ELASTIC), "JingyunLiang/VRT/issues/47", error_class="user", blame="user"),
        field_case("a terminal closes after 40 epochs", "restart", new + trace(ended.format(84933), *ELASTIC), "modelscope/ms-swift/issues/5884", error_class="user", blame="user"),
        field_case("a terminal closes behind a progress bar", "restart", "INFO:musubi_tuner.dataset.image_video_dataset:epoch is incremented. current_epoch: 3, epoch: 4\nsteps:   2%|2         | 77/5000 [57:02<60:46:54, 44.45s/it, avr_loss=0.0462]W1120 12:45:06.328250 642371 site-packages/torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting down workers\n" + trace(ended.format(642371), *ELASTIC), "kohya-ss/musubi-tuner/issues/733", error_class="user", blame="user"),
        field_case("a terminal closes on one GPU", "restart", "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\nWARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2920926 closing signal SIGHUP\n" + ended.format(2920830), "GanjinZero/RRHF/issues/35", error_class="user", blame="user"),
        field_case("torchelastic: local rank 0 ended with 1, in the middle of a run", "restart", " torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 0 (pid: 1077) of binary: /opt/conda/bin/python\n" + trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "/opt/conda/bin/torchrun:8:<module>", *ELASTIC[:2]), "hiyouga/LlamaFactory/issues/4849", also=("unknown",)),
        field_case("torchelastic's table of four ranks with code 1", "restart", "".join(f"[{r}]:\n  time      : 2024-03-05_07:01:51\n  host      : vm1.internal.example.net\n  rank      : {r} (local_rank: {r})\n  exitcode  : 1 (pid: {69811 + r})\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n" for r in (1, 2, 3)) + "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2024-03-05_07:01:51\n  host      : vm1.internal.example.net\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 69811)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n============================================================", "pytorch/pytorch/issues/121209", also=("unknown",)),
    ]  # fmt: skip


def _memory() -> list[JobLogCase]:
    flux = _ranked(2, trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 72.00 MiB. GPU 2 has a total capacity of 15.89 GiB of which 67.12 MiB is free. Including non-PyTorch memory, this process has 15.82 GiB memory in use. Of the allocated memory 15.18 GiB is allocated by PyTorch, and 291.97 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", "/home/user/sd-scripts/flux_train_network.py:519:<module>", f"{SITE}/torch/nn/modules/module.py:1120:bfloat16")) + "\n[rank0]:[W1002 16:13:48.643604082 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\nW1002 16:13:48.300000 1358 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 1424 closing signal SIGTERM"  # fmt: skip
    script = 'RuntimeError: The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call last):\n  File "/home/user/src/model.py", line 323, in forward\n        k = torch.square(torch.relu(k))\n                         ~~~~~~~~~~ <--- HERE\nRuntimeError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 16.66 GiB\nRequested               : 31.27 MiB\nDevice limit            : 22.13 GiB'
    gp = "".join(f"    Number of devices: 8 -- Kernel partition size: {n}\n    RuntimeError: CUDA out of memory. Tried to allocate 28.09 GiB (GPU 0; 31.75 GiB total capacity; 28.08 GiB already allocated; 3.22 GiB free; 28.09 GiB reserved in total by PyTorch){FRAGMENTS}\n" for n in (43413, 21707, 10854))  # fmt: skip
    coati = trace("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.12 GiB (GPU 5; 23.70 GiB total capacity; 22.00 GiB already allocated; 292.56 MiB free; 22.29 GiB reserved in total by PyTorch)" + FRAGMENTS, "train_sft.py:184:<module>", f"{SITE}/coati/trainer/sft.py:110:fit", f"{SITE}/colossalai/zero/sharded_optim/low_level_optim.py:480:step") + "\nwandb: Waiting for W&B process to finish... (failed 1).\nwandb: Waiting for W&B process to finish... (failed 1)."  # fmt: skip
    return [
        field_case("a process without 6 GiB of its device", "restart", trace("RuntimeError: CUDA out of memory. Tried to allocate 58.00 MiB (GPU 0; 23.70 GiB total capacity; 16.76 GiB already allocated; 2.44 MiB free; 16.94 GiB reserved in total by PyTorch) \n" + FRAGMENTS[1:], *BACKWARD), "johannakarras/DreamPose/issues/40", error_class="device_memory"),
        field_case("rank 2's model alone fills its device", "stop", flux, "cocktailpeanut/fluxgym/issues/162", also=("restart",), error_class="device_memory"),
        field_case("TorchScript: the asynchronous allocator has no memory", "stop", script, "PicoCreator/RWKV-LM-LoRA/issues/32", also=("restart",), error_class="device_memory"),
        field_case("a search for a size that fits a device, so far without", "restart", gp, "cornellius-gp/gpytorch/issues/1448", also=("stop", "unknown")),
        field_case("Colossal-AI: the optimizer's state fills a device", "stop", coati, "hpcaitech/ColossalAI/issues/3509", also=("restart",), error_class="device_memory"),
        field_case("half of a small device is another's", "restart", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but unallocated." + FRAGMENTS, "carolchenyx/MGFN./issues/35", also=("stop",), error_class="device_memory"),
        field_case("a map of the data set loses a process", "restart", _ranked(0, trace("RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.", "/home/user/LLaMA-Factory/src/llamafactory/launcher.py:23:<module>", "/home/user/LLaMA-Factory/src/llamafactory/data/loader.py:203:_get_preprocessed_dataset", f"{SITE}/datasets/arrow_dataset.py:3161:map", f"{SITE}/datasets/utils/py_utils.py:1412:iflatmap_unordered")), "hiyouga/LlamaFactory/issues/4928", blame="memory"),
    ]  # fmt: skip


def _devices() -> list[JobLogCase]:
    cublas = "I1021 20:37:20.290321 139692541118272 submission_runner.py:269] Starting training loop.                                        \n" + "\n".join(f"{line:<150}" for line in trace("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "submission_runner.py:547:<module>", f"{SITE}/absl/app.py:308:run", f"{SITE}/torch/nn/modules/linear.py:114:forward").splitlines())  # fmt: skip
    thread = trace("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "/opt/conda/bin/nnUNetv2_train:8:<module>", f"{SITE}/nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py:1237:run_training", f"{SITE}/torch/autograd/__init__.py:200:backward") + "\nException in thread Thread-4 (results_loop):\n" + trace("RuntimeError: One or more background workers are no longer alive. Exiting. Please check the print statements above for the actual error message", f"{SITE}/batchgenerators/dataloading/nondet_multi_threaded_augmenter.py:125:results_loop")  # fmt: skip
    return [
        field_case("cuDNN isn't initialized in the backward pass", "restart", trace("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "main.py:116:<module>", "/home/user/vae/trainer.py:35:train", f"{SITE}/torch/autograd/__init__.py:99:backward"), "seanie12/Info-HCVAE/issues/7", also=("stop",)),
        field_case("cuDNN can't execute in the first step", "restart", "Data initialization complete.\nTraining START\n" + trace("RuntimeError: CuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "train.py:20:<module>", "/home/user/model/model.py:159:fit", f"{SITE}/torch/nn/modules/conv.py:301:forward"), "AbnerHqC/GaitSet/issues/170", also=("stop",)),
        field_case("cuBLAS isn't initialized, lines filled with blanks", "restart", cublas, "mlcommons/algorithmic-efficiency/issues/185", also=("stop",)),
        field_case("cuDNN fails, and a thread's error follows", "restart", thread, "MIC-DKFZ/nnUNet/issues/1739", error_class="kernel_fault"),
    ]  # fmt: skip


def _links() -> list[JobLogCase]:
    system = "NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8\nncclSystemError: System call (socket, malloc, munmap, etc) failed."
    bare = '2019-07-29 23:18:56,398 - logger.py:104 - Loading model\n  File "training/train_imagenet_nv.py", line 139, in main\n    model = dist_utils.DDP(model, device_ids=[args.local_rank], output_device=args.local_rank)\n  File "/opt/conda/lib/python3.6/site-packages/torch/nn/parallel/distributed.py", line 410, in _dist_broadcast_coalesced\n    dist._dist_broadcast_coalesced(self.process_group, tensors, buffer_size, False)\nNCCL error in: /opt/conda/conda-bld/pytorch_1556653099582/work/torch/lib/c10d/ProcessGroupNCCL.cpp:272, unhandled cuda error'
    info = "ptwop-176:1755:1755 [0] NCCL INFO Bootstrap : Using [0]eno1:162.105.146.176<0>\nptwop-176:1755:1755 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nptwop-176:1755:1755 [0] NCCL INFO NET/Socket : Using [0]eno1:162.105.146.176<0>\nNCCL version 2.4.8+cuda10.1\n" + trace("RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:514, unhandled system error, NCCL version 2.4.8", "ddp.py:52:<module>", f"{SITE}/torch/nn/parallel/distributed.py:335:__init__")  # fmt: skip
    return [
        field_case("DDP's constructor meets a system error, then torchelastic's old words", "restart", trace("RuntimeError: " + system, "./train_sup_change.py:48:<module>", f"{SITE}/torch/nn/parallel/distributed.py:496:__init__") + "\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 31335) of binary: /opt/conda/bin/python\nERROR:torch.distributed.elastic.agent.server.local_elastic_agent:[default] Worker group failed", "Z-Zheng/ChangeStar/issues/5", error_class="communication"),
        field_case("a broadcast meets a system error, with a quote behind it", "restart", "starting in debug mode\nFiles already downloaded and verified\n" + trace("RuntimeError: " + system + "`", "train_ddgan.py:564:<module>", "train_ddgan.py:36:broadcast_params", f"{SITE}/torch/distributed/distributed_c10d.py:1039:broadcast"), "NVlabs/denoising-diffusion-gan/issues/28", error_class="communication"),
        field_case("an error of NCCL without a type", "restart", bare, "pytorch/pytorch/issues/23534"),
        field_case("NCCL's internal error and nothing else", "restart", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, internal error - please report this issue to the NCCL developers, NCCL version 2.18.1\nncclInternalError: Internal check failed.", "NVIDIA/nccl/issues/1092", error_class="communication"),
        field_case("NCCL has no InfiniBand, and then a system error", "restart", info, "pytorch/pytorch/issues/39388", error_class="communication"),
    ]  # fmt: skip


def _programs() -> list[JobLogCase]:
    frames = "\nException raised from ensure_prior_reduction_finished at ../torch/csrc/distributed/c10d/reducer.cpp:1067 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string const&) + 0x33 (0x7fdbbca8b813 in /opt/conda/lib/libc10.so)\nframe #1: c10d::Reducer::prepare_for_backward(std::vector<torch::autograd::Variable> const&) + 0x734 (0x7fdc054d0654 in /opt/conda/lib/libtorch_python.so)"
    hooks = trace("AssertionError: found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective. Device: 3, node: gpu7", "/opt/NeMo/scripts/llm/gpt_train.py:210:<module>", "/opt/megatron-lm/megatron/core/distributed/param_and_grad_buffer.py:212:check_grads")  # fmt: skip
    return [
        field_case("Cannot find valid samples in the whole data set", "stop", _ranked(0, trace("RuntimeError: Cannot find valid samples, check `data/README.md` for the data format.", "/home/user/LLaMA-Factory/src/llamafactory/launcher.py:23:<module>", "/home/user/LLaMA-Factory/src/llamafactory/train/sft/workflow.py:51:run_sft", "/home/user/LLaMA-Factory/src/llamafactory/data/loader.py:272:_get_preprocessed_dataset")), "hiyouga/LlamaFactory/issues/8323", also=("restart",)),
        field_case("a data set's name that swift doesn't know", "stop", trace("KeyError: '_1 _1'", "/home/user/swift/swift/llm/sft.py:178:llm_sft", "/home/user/swift/swift/llm/utils/dataset.py:2390:get_dataset", code="dataset_info = DATASET_MAPPING[dataset_name]"), "modelscope/ms-swift/issues/1399", also=("restart",)),
        field_case("parameters without a gradient in mmdetection", "stop", trace(REDUCTION, "./tools/train.py:161:<module>", f"{SITE}/mmcv/runner/runner.py:282:train", f"{SITE}/torch/nn/parallel/distributed.py:464:forward"), "open-mmlab/mmdetection/issues/2153", blame="program"),
        field_case("parameters without a gradient on rank 1", "stop", _ranked(1, trace(REDUCTION, *DDP_FORWARD)), "modelscope/DiffSynth-Studio/issues/1001", also=("restart",)),
        field_case("parameters without a gradient, and C++ frames", "stop", trace(REDUCTION + frames, *DDP_FORWARD), "open-mmlab/mmdetection/issues/7803", also=("restart",)),
        field_case("NeMo: a gradient is no number after 100 steps", "restart", " [2026-07-29 10:11:00] iteration      105/     500 | consumed samples:         6720 | elapsed time per iteration (ms): 2412.4 | lm loss: 2.101311E+00 |\n" + hooks, "NVIDIA/Megatron-LM/issues/6018", error_class="numbers"),
        field_case("Megatron counts no number that isn't one, and no loss", "unknown", "\n".join(f"iteration     338{n}/    8000 | consumed samples:       2165{n}2 | elapsed time per iteration (ms): 7613.1 | learning rate: 6.680E-06 | global batch size:    64 | lm loss: 7.334521E-01 | loss scale: 1.0 | grad norm: 0.752 | number of skipped iterations:   0 | number of nan iterations:   0 |" for n in (3, 4)) + "\niteration     3385/    8000 | consumed samples:       216640 | elapsed time per iteration (ms): 7624.3 | learning rate: 6.676E-06 | global batch size:    64 | loss scale: 1.0 | grad norm: nan | number of skipped iterations:   0 | number of nan iterations:   0 |", "epfLLM/Megatron-LLM/issues/33", also=("restart",)),
        field_case("TensorBoard is given what is no number", "unknown", " iteration      100/  500000 | consumed samples:          800 | elapsed time per iteration (ms): 412.4 | learning rate: 1.5E-04 | lm loss: 9.101311E+00 |\nNaN or Inf found in input tensor.\nNaN or Inf found in input tensor.\n iteration      200/  500000 | consumed samples:         1600 | elapsed time per iteration (ms): 409.9 | learning rate: 1.5E-04 | lm loss: 8.101311E+00 |", "NVIDIA/Megatron-LM/issues/375", also=("restart",)),
        field_case("MLX trains", "unknown", "Starting training..., iters: 2596\nIter 1: Val loss 2.086, Val took 17.177s\nIter 25: Train loss 1.593, Learning Rate 7.000e-05, It/sec 0.999, Tokens/sec 387.697, Trained Tokens 9699, Peak mem 8.104 GB\nIter 100: Saved adapter weights to checkpoints/100_adapters.npz.", "ml-explore/mlx-examples/issues/620"),
    ]  # fmt: skip


def _files() -> list[JobLogCase]:
    spawn = 'Traceback (most recent call last):\n  File "train.py", line 62, in main\n    trainer.fit(model)\n  File "/opt/conda/lib/python3.7/site-packages/torch/multiprocessing/spawn.py", line 118, in join\n    raise Exception(msg)\nException: \n\n-- Process 1 terminated with the following error:\n'
    exists = spawn + trace("FileExistsError: [Errno 17] File exists: '/home/user/lightning_logs/version_0'", f"{SITE}/torch/multiprocessing/spawn.py:19:_wrap", f"{SITE}/pytorch_lightning/trainer/ddp_mixin.py:181:ddp_train", f"{SITE}/pytorch_lightning/trainer/callback_config_mixin.py:31:configure_checkpoint_callback", "/opt/conda/lib/python3.7/os.py:221:makedirs")  # fmt: skip
    removed = spawn + trace("FileNotFoundError: [Errno 2] No such file or directory: '/home/user/ckpt/epoch=0.ckpt'", f"{SITE}/torch/multiprocessing/spawn.py:19:_wrap", f"{SITE}/pytorch_lightning/trainer/training_loop.py:370:train", f"{SITE}/pytorch_lightning/callbacks/model_checkpoint.py:199:_del_model")  # fmt: skip
    absent = "Global seed set to 3211215663\nInitializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\n[2023-08-28 15:53:07,511][torch.distributed.distributed_c10d][INFO] - Rank 1: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.\n" + trace("FileNotFoundError: Checkpoint at saved/muti_benchmark_01/last-epoch.ckpt not found. Aborting training.", "/home/user/run.py:60:main", f"{SITE}/pytorch_lightning/trainer/trainer.py:696:fit", f"{SITE}/pytorch_lightning/trainer/connectors/checkpoint_connector.py:75:resume_start")  # fmt: skip
    tested = "Epoch 2: 100%|##########| 79/79 [00:03<00:00, 21.55it/s, loss=0.241, v_num=0]\n" + trace("FileNotFoundError: [Errno 2] No such file or directory: '/gpfs/user/checkpoints/epoch=2-step=236.ckpt'", "lit_image_classifier.py:220:cli_main", f"{SITE}/pytorch_lightning/trainer/trainer.py:560:test", f"{SITE}/fsspec/implementations/local.py:235:_open")  # fmt: skip
    shape = trace("FileExistsError: [Errno 17] File exists: '/000000_epoch_shape'", f"{SITE}/streaming/base/dataset.py:520:__init__", f"{SITE}/streaming/base/shared/memory.py:70:__init__", "/opt/conda/lib/python3.11/multiprocessing/shared_memory.py:104:__init__")  # fmt: skip
    archive = trace("RuntimeError: [enforce fail at inline_container.cc:222] . file not found: archive/data/94881266361728", "/home/user/predict.py:31:main", f"{SITE}/torch/serialization.py:584:load", f"{SITE}/torch/serialization.py:831:load_tensor")  # fmt: skip
    return [
        field_case("two ranks make one folder", "restart", exists, "Lightning-AI/pytorch-lightning/issues/529", also=("stop",)),
        field_case("two ranks remove one checkpoint after an epoch", "restart", removed, "Lightning-AI/pytorch-lightning/issues/1134", also=("stop",)),
        field_case("a checkpoint that rank 1 doesn't find", "stop", absent, "Lightning-AI/pytorch-lightning/issues/18413", also=("restart",)),
        field_case("the best checkpoint isn't there for the test", "restart", tested, "Lightning-AI/pytorch-lightning/issues/6700", also=("stop",)),
        field_case("shared memory of an earlier epoch's shape", "restart", shape, "Lightning-AI/pytorch-lightning/issues/20226", also=("stop",)),
        field_case("an archive lacks a tensor", "restart", archive, "Lightning-AI/pytorch-lightning/issues/4761", also=("stop",)),
    ]  # fmt: skip


PASTED_THIRD: Sequence[JobLogCase] = (
    *_signals(),
    *_memory(),
    *_devices(),
    *_links(),
    *_programs(),
    *_files(),
)
