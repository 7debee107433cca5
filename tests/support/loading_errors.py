"""Ends of ranks from public trackers, and what each says about the checkpoint: a table that grows with each report.

A case holds the frames that matter (file, function, source line) and the lines of the error as the
program prints them; long paths are cut. `text` gives them as a rank's stderr.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.failed.loading_error import LoadingVerdict

LOADS, OUTER, OPEN = LoadingVerdict.LOADING, LoadingVerdict.OUTSIDE, LoadingVerdict.UNKNOWN
SP: Final = "/opt/conda/lib/python3.10/site-packages"
STD: Final = "/opt/conda/lib/python3.10"
CHAINED: Final = "During handling of the above exception, another exception occurred:"
CAUSED: Final = "The above exception was the direct cause of the following exception:"


@dataclass(frozen=True)
class Case:
    """One rank's end."""

    source: str  # tracker and number; "made": built after the report beside it
    verdict: LoadingVerdict
    text: str


def trace(frames: Sequence[tuple[str, str, str]], error: str) -> str:
    """Return a traceback as Python prints it."""
    lines = ["Traceback (most recent call last):"]
    for number, (path, function, code) in enumerate(frames):
        lines.append(f'  File "{path}", line {number + 10}, in {function}')
        if code:
            lines.append(f"    {code}")
    return "\n".join([*lines, error])


def case(
    source: str, verdict: LoadingVerdict, frames: Sequence[tuple[str, str, str]], error: str
) -> Case:
    return Case(source, verdict, trace(frames, error))


MAIN: Final = ("train.py", "<module>", "main()")
TORCH_LOAD: Final = [
    (f"{SP}/torch/serialization.py", "load", "return _load(opened_zipfile,"),
    (f"{SP}/torch/serialization.py", "_load", "result = unpickler.load()"),
]
ZIP_READER: Final = [
    (
        f"{SP}/torch/serialization.py",
        "load",
        "with _open_zipfile_reader(opened_file) as opened_zipfile:",
    ),
    (
        f"{SP}/torch/serialization.py",
        "__init__",
        "super().__init__(torch._C.PyTorchFileReader(name_or_buffer))",
    ),
]
CENTRAL: Final = (
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
)
OPTIM_LOAD: Final = (f"{SP}/torch/optim/optimizer.py", "load_state_dict", "raise ValueError(")
MODULE_LOAD: Final = (
    f"{SP}/torch/nn/modules/module.py",
    "load_state_dict",
    "raise RuntimeError('Error(s) in loading state_dict for {}:",
)
PL: Final = f"{SP}/lightning/pytorch/trainer"
LOADER: Final = [
    (f"{SP}/torch/utils/data/dataloader.py", "__next__", "data = self._next_data()"),
    (f"{SP}/torch/utils/data/dataloader.py", "_process_data", "data.reraise()"),
    (f"{SP}/torch/_utils.py", "reraise", "raise exception"),
]
WORKER: Final = [
    (f"{SP}/torch/utils/data/_utils/worker.py", "_worker_loop", "data = fetcher.fetch(index)"),
    (
        f"{SP}/torch/utils/data/_utils/fetch.py",
        "<listcomp>",
        "data = [self.dataset[idx] for idx in possibly_batched_index]",
    ),
]

# fmt: off
LOADING_CASES: Final = (
    case('maudzung/SFA3D#48', LOADS, [MAIN, ('train.py', 'main_worker', "optimizer.load_state_dict(utils_state_dict['optimizer'])")], "KeyError: 'optimizer'"),
    case('YuvalNirkin/hyperseg#34', LOADS, [('configs/train/m1.py', '<module>', 'scheduler=scheduler, criterion=criterion)'), ('hyperseg/train.py', 'main', 'optimizer.load_state_dict(checkpoint["optimizer"])')], "KeyError: 'optimizer'"),
    case('aws-neuron-samples#52', LOADS, [('pretrain.py', '_mp_fn', 'train_llama(flags)'), ('pretrain.py', 'train_llama', 'optimizer.load_state_dict(state_dict["optimizer"])')], "KeyError: 'optimizer'"),
    case('bl0/moco#8', LOADS, [('train.py', 'train', 'load_checkpoint(args, model, optimizer, scheduler)'), ('train.py', 'load_checkpoint', "optimizer.load_state_dict(checkpoint['optimizer'])"), (f'{SP}/torch/optim/optimizer.py', 'load_state_dict', "saved_groups = state_dict['param_groups']")], "KeyError: 'param_groups'"),
    case('pytorch/torchtitan#848', LOADS, [(f'{SP}/torchtitan/checkpoint.py', 'load', 'dcp.load(states, checkpoint_id=checkpoint_id)'), (f'{SP}/torch/optim/optimizer.py', 'load_state_dict', 'self.__setstate__(dict(state=state))'), (f'{SP}/torch/optim/adamw.py', '__setstate__', 'if len(p_state) != 0 and not torch.is_tensor(p_state["step"]):')], "KeyError: 'step'"),
    case('NVIDIA/Megatron-LM#3885', LOADS, [('pretrain_gpt.py', '<module>', 'pretrain('), ('megatron/training/training.py', 'setup_model_and_optimizer', 'args.iteration, args.num_floating_point_operations_so_far = load_checkpoint('), ('megatron/training/checkpointing.py', 'load_checkpoint', "optimizer.load_state_dict(state_dict['optimizer'])"), ('megatron/core/optimizer/optimizer.py', 'load_state_dict', "state_dict = state_dict['state']")], "KeyError: 'state'"),
    case('pytorch/pytorch#43455 kind, trials/unload', LOADS, [('unload.py', '<module>', 's = torch.load(sys.argv[1]); m.load_state_dict(s["m"]); o.load_state_dict(s["optimizer"]); start = s["step"] + 1')], "KeyError: 'optimizer'"),
    case('acids-ircam/RAVE#196', LOADS, [MAIN, (f'{PL}/connectors/checkpoint_connector.py', 'restore_model', 'self.trainer.strategy.load_model_state_dict('), MODULE_LOAD], 'RuntimeError: Error(s) in loading state_dict for RAVE:\n\tsize mismatch for decoder.net.0.weight: copying a param with shape torch.Size([1536, 16]) from checkpoint, the shape in current model is torch.Size([1536, 128]).'),
    case('Pay20Y/SEED#29', LOADS, [MAIN, ('main.py', 'main', "model.load_state_dict(checkpoint['state_dict'])"), MODULE_LOAD], 'RuntimeError: Error(s) in loading state_dict for ModelBuilder:\n\tMissing key(s) in state_dict: "decoder.decoder.embed_fc.weight", "embeder.eEmbed.bias". '),
    case('samuelschen/DSB2018#2', LOADS, [MAIN, ('helper.py', 'load_ckpt', "model.load_state_dict(checkpoint['model'])"), MODULE_LOAD], 'RuntimeError: Error(s) in loading state_dict for CaUNet:\n\tUnexpected key(s) in state_dict: "module.c1.weight".'),
    case('pytorch-deeplab-xception#134', LOADS, [MAIN, ('my_train.py', '__init__', "self.optimizer.load_state_dict(checkpoint['optimizer'])"), OPTIM_LOAD], "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"),
    case('ExAvatar_RELEASE#5', LOADS, [MAIN, ('common/base.py', '_make_model', "optimizer.load_state_dict(ckpt['optimizer'])"), OPTIM_LOAD], 'ValueError: loaded state dict has a different number of parameter groups'),
    case('kohya-ss/sd-scripts#378', LOADS, [(f'{SP}/bitsandbytes/optim/optimizer.py', 'load_state_dict', 'raise ValueError(')], "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"),
    case('CompVis/stable-diffusion#93', LOADS, [MAIN, ('scripts/txt2img.py', 'load_model_from_config', 'pl_sd = torch.load(ckpt, map_location="cpu")'), *ZIP_READER], CENTRAL),
    case('NVIDIA/pix2pixHD#243', LOADS, [('models/base_model.py', 'load_network', 'network.load_state_dict(torch.load(save_path))'), *ZIP_READER], 'RuntimeError: [enforce fail at inline_container.cc:145] . PytorchStreamReader failed reading zip archive: failed finding central directory'),
    Case('innnky/so-vits-svc#169', LOADS, trace([(f'{SP}/torch/multiprocessing/spawn.py', 'join', 'raise ProcessRaisedException(msg, error_index, failed_process.pid)')], 'torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n') + trace([('train.py', 'run', '_, _, _, epoch_str = utils.load_checkpoint(path, net_g)'), ('utils.py', 'load_checkpoint', "checkpoint_dict = torch.load(checkpoint_path, map_location='cpu')"), *ZIP_READER], CENTRAL)),
    case('trials/metrics (jobs.md 1)', LOADS, [('metrics.py', '<module>', 's = torch.load(args.resume)'), *ZIP_READER], 'RuntimeError: [enforce fail at inline_container.cc:180] . file in archive is not in a subdirectory: loss.npy'),
    case('ProcessPainter#5', LOADS, [MAIN, (f'{SP}/transformers/modeling_utils.py', 'from_pretrained', 'state_dict = load_state_dict(resolved_archive_file)'), (f'{SP}/transformers/modeling_utils.py', 'load_state_dict', 'with safe_open(checkpoint_file, framework="pt") as f:')], 'safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge'),
    case('MotionGPT3#4', LOADS, [(f'{SP}/transformers/modeling_utils.py', 'from_pretrained', 'with safe_open(checkpoint_files[0], framework="pt") as f:')], 'safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer'),
    case('modelscope/ms-swift#5235', LOADS, [MAIN, (f'{SP}/transformers/trainer.py', 'train', 'return inner_training_loop('), (f'{SP}/transformers/trainer.py', '_inner_training_loop', 'self._load_rng_state(resume_from_checkpoint)'), (f'{SP}/transformers/trainer.py', '_load_rng_state', 'checkpoint_rng_state = torch.load(rng_file)'), (f'{SP}/torch/serialization.py', 'load', 'raise pickle.UnpicklingError(_get_wo_message(str(e))) from None')], '_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options\n\t(1) Re-running `torch.load` with `weights_only` set to `False` will likely succeed\nCheck the documentation of torch.load at https://pytorch.org.'),
    case('allenai/open-instruct#673', LOADS, [('finetune.py', 'main', 'accelerator.load_state(last_checkpoint_path)'), (f'{SP}/accelerate/accelerator.py', 'load_state', 'override_attributes = load_accelerator_state('), (f'{SP}/accelerate/checkpointing.py', 'load_accelerator_state', 'optimizer_state = load(input_optimizer_file)'), (f'{SP}/torch/serialization.py', 'load', 'raise pickle.UnpicklingError')], '_pickle.UnpicklingError: Weights only load failed.'),
    case('2U1/Qwen-VL-Series-Finetune#185', LOADS, [(f'{SP}/transformers/trainer.py', '_load_optimizer_and_scheduler', 'torch.load(os.path.join(checkpoint, OPTIMIZER_NAME), map_location=map_location)'), (f'{SP}/torch/serialization.py', 'load', 'raise pickle.UnpicklingError')], '_pickle.UnpicklingError: Weights only load failed.'),
    case('pytorch/pytorch#27043', LOADS, [('process.py', 'load_state_dict', "state_dict = torch.load(trained_model_file, map_location='cpu')"), (f'{SP}/torch/serialization.py', '_load', 'magic_number = pickle_module.load(f, **pickle_load_args)')], 'EOFError: Ran out of input'),
    case('kuangliu/pytorch-cifar#20', LOADS, [('cifar10.py', '<module>', "checkpoint = torch.load('./checkpoint/ckpt.t7')"), *TORCH_LOAD], "AttributeError: Can't get attribute 'Net' on <module '__main__' from 'cifar10.py'>"),
    case('Talented-Q/POSTER_V2#18', LOADS, [MAIN, ('main.py', 'main', 'checkpoint = torch.load(args.resume)'), *TORCH_LOAD, (f'{SP}/torch/serialization.py', 'find_class', 'return super().find_class(mod_name, name)')], "AttributeError: Can't get attribute 'RecorderMeter1' on <module '__main__' from 'main.py'>"),
    case('ultralytics#13931 kind', LOADS, [('train.py', 'main', 'ckpt = torch.load(weights)'), *TORCH_LOAD, (f'{SP}/torch/serialization.py', 'find_class', 'return super().find_class(mod_name, name)')], "ModuleNotFoundError: No module named 'ultralytics.nn.modules.conv'"),
    case('deepspeedai/DeepSpeed#2898', LOADS, [MAIN, (f'{SP}/deepspeed/runtime/engine.py', 'load_checkpoint', 'success = self._load_zero_checkpoint('), (f'{SP}/deepspeed/runtime/engine.py', '_load_zero_checkpoint', 'raise ZeRORuntimeException("The checkpoint being loaded used a DP " \\')], "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but the current world size is 6. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."),
    Case('pytorch/pytorch#148252', LOADS, trace([('scratch.py', 'load_into_bigger_model', 'dcp.load(to_load, storage_reader=reader)'), (f'{SP}/torch/distributed/checkpoint/utils.py', 'reduce_scatter', 'raise result')], 'torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])\n') + trace([(f'{SP}/torch/distributed/checkpoint/utils.py', 'reduce_scatter', 'local_data = map_fun()'), (f'{SP}/torch/distributed/checkpoint/default_planner.py', 'create_default_local_load_plan', 'raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")')], 'RuntimeError: Missing key in checkpoint state_dict: model.2.weight.').replace('last):', 'last): (RANK 0)')),
    case('dlms-are-super-data-learners#4', LOADS, [(f'{SP}/torch/distributed/checkpoint/state_dict_loader.py', 'local_step', 'local_plan = planner.create_local_plan()'), ('megatron/core/dist_checkpointing/strategies/torch.py', 'create_local_plan', 'return super().create_local_plan()')], 'RuntimeError: Missing key in checkpoint state_dict: model.layers.0.weight.'),
    case('NVIDIA/cosmos#145', LOADS, [('/opt/megatron-lm/megatron/core/dist_checkpointing/strategies/tensorstore.py', '_load_regular_chunk', 'raise CheckpointingException(_msg)')], 'megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded ((4096, 68)) and expected ((4096, 72)) tensor for key module.x_embedder.proj.1.weight'),
    Case('NVIDIA-NeMo/Speech#13913', LOADS, trace([('/opt/megatron-lm/megatron/core/dist_checkpointing/strategies/torch.py', 'get_reformulation_metadata', 'ckpt_global_shape = ckpt_metadata.mcore_data[sh_ten.key][')], "KeyError: 'nd_reformulated_orig_global_shape'") + f'\n\n{CAUSED}\n\n' + trace([('/opt/megatron-lm/megatron/core/dist_checkpointing/strategies/torch.py', 'get_reformulation_metadata', 'raise CheckpointingException(')], 'megatron.core.dist_checkpointing.core.CheckpointingException: Cannot find global shape metadata for N-D flattened tensor ShardedTensor')),
    case('facebookresearch/fairseq#4590', LOADS, [('fairseq_cli/train.py', 'main', 'disable_iterator_cache=task.has_sharded_data("train"),'), ('fairseq/checkpoint_utils.py', 'load_checkpoint', 'reset_meters=reset_meters,'), ('fairseq/trainer.py', 'load_checkpoint', '"please ensure that the architectures match.".format(filename)')], 'Exception: Cannot load model parameters from checkpoint ./bart.base/model.pt; please ensure that the architectures match.'),
    case('Stability-AI/stable-audio-tools#163', LOADS, [MAIN, (f'{PL}/trainer.py', '_run', 'self._checkpoint_connector._restore_modules_and_callbacks(ckpt_path)'), (f'{PL}/connectors/checkpoint_connector.py', 'resume_start', 'self._loaded_checkpoint = _pl_migrate_checkpoint(loaded_checkpoint, checkpoint_path)'), (f'{SP}/lightning/pytorch/utilities/migration/utils.py', '_pl_migrate_checkpoint', 'old_version = _get_version(checkpoint)'), (f'{SP}/lightning/pytorch/utilities/migration/utils.py', '_get_version', 'return checkpoint["pytorch-lightning_version"]')], "KeyError: 'pytorch-lightning_version'"),
    case('bytedance/music_source_separation#20', LOADS, [(f'{SP}/pytorch_lightning/trainer/connectors/checkpoint_connector.py', 'restore_training_state', 'raise KeyError(')], "KeyError: 'Trying to restore training state but checkpoint contains only the model. This is probably due to `ModelCheckpoint.save_weights_only` being set to `True`.'"),
    case('IDEA-CCNL/Fengshenbang-LM#411', LOADS, [('finetune.py', '<module>', 'trainer.fit(model, datamoule, ckpt_path=args.load_ckpt_path)'), (f'{SP}/pytorch_lightning/trainer/connectors/checkpoint_connector.py', 'restore_model', 'self.trainer._call_lightning_module_hook("on_load_checkpoint", self._loaded_checkpoint)'), (f'{SP}/pytorch_lightning/trainer/trainer.py', '_call_lightning_module_hook', 'output = fn(*args, **kwargs)'), ('finetune.py', 'on_load_checkpoint', "global_step_offset = checkpoint['global_step']")], "KeyError: 'global_step'"),
    case('Lightning-AI/pytorch-lightning#5325', LOADS, [(f'{PL}/connectors/checkpoint_connector.py', 'restore_optimizers', 'self.trainer.strategy.load_optimizer_state_dict(self._loaded_checkpoint)'), (f'{SP}/torch/optim/optimizer.py', 'load_state_dict', 'state_dict = deepcopy(state_dict)')], "KeyError: 'radam_buffer'"),
    case('google/orbax#2540', LOADS, [('train.py', 'main', 'state = manager.restore(step, args=args)'), (f'{SP}/orbax/checkpoint/_src/serialization/type_handlers.py', 'deserialize', 'tspec = get_cast_tspec_deserialize(tspec, arg)')], "TypeError: Cannot interpret 'key<fry>' as a data type"),
    case('MIT-REALM/efppo#8', LOADS, [('train.py', 'main', 'state = manager.restore(step, args=args)'), (f'{SP}/orbax/checkpoint/checkpointer.py', 'restore', 'restored = self._restore(directory, args=ckpt_args)')], 'ValueError: User-provided restore item and on-disk value metadata tree structures do not match:\nalg_cfg:'),
    case('google/orbax#648', LOADS, [('train.py', 'main', 'state = ckptr.restore(path)'), (f'{SP}/orbax/checkpoint/type_handlers.py', '_deserialize_sharding_from_json_string', 'np.array(jax.devices()).reshape(shape), axis_names=axis_names')], 'ValueError: cannot reshape array of size 2 into shape (1,64)'),
    case('google/orbax#924', LOADS, [('train.py', 'main', 'state = ckptr.restore(path)'), (f'{SP}/orbax/checkpoint/standard_checkpoint_handler.py', 'restore', 'return self._impl.restore(directory, args=args)')], 'ValueError: NOT_FOUND: Error opening "zarr" driver: Metadata at local file "/home/u/orbax-test/a/.zarray" does not exist'),
    case('huggingface/transformers#35782', LOADS, [(f'{SP}/transformers/trainer.py', '_load_from_checkpoint', 'raise ValueError(f"Can\'t find a valid checkpoint at {resume_from_checkpoint}")')], "ValueError: Can't find a valid checkpoint at out/checkpoint-500"),
    case("made after timm's resume_checkpoint", LOADS, [MAIN, (f'{SP}/timm/models/_helpers.py', 'resume_checkpoint', 'loss_scaler.load_state_dict(checkpoint[loss_scaler.state_dict_key])'), (f'{SP}/timm/utils/cuda.py', 'load_state_dict', 'self._scaler.load_state_dict(state_dict)'), (f'{SP}/torch/amp/grad_scaler.py', 'load_state_dict', 'raise RuntimeError(')], 'RuntimeError: The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.'),
    case('made: a step of migration', LOADS, [MAIN, ('train.py', 'load_checkpoint', 'state = migrate(state)'), ('train.py', 'migrate', 'state["layers"] = [rename(layer) for layer in state["blocks"]]')], "KeyError: 'blocks'"),
    case('made: npz, jobs.md 1', LOADS, [MAIN, ('train.py', 'restore', 'optimizer = file["optimizer"]'), (f'{SP}/numpy/lib/_npyio_impl.py', '__getitem__', 'raise KeyError(f"{key} is not a file in the archive")')], "KeyError: 'optimizer is not a file in the archive'"),
    case('made: a plain pickle', LOADS, [MAIN, ('train.py', 'load_ckpt', 'return pickle.load(file)')], '_pickle.UnpicklingError: pickle data was truncated'),
    case('made: dtype', LOADS, [MAIN, ('train.py', 'load_weights', 'own[name].copy_(tensor)')], "RuntimeError: result type Float can't be cast to the desired output type Long"),
    case('made: version', LOADS, [MAIN, ('train.py', 'main', 'start = resume(args.resume)'), ('train.py', 'resume', 'raise ValueError(f"checkpoint format 3 is newer than this code")')], 'ValueError: checkpoint format 3 is newer than this code'),
    case('made: TensorFlow', LOADS, [MAIN, (f'{SP}/tensorflow/python/training/py_checkpoint_reader.py', 'error_translator', 'raise errors_impl.NotFoundError(')], 'tensorflow.python.framework.errors_impl.NotFoundError: Key dense/kernel not found in checkpoint'),
    case('made: mmengine', LOADS, [MAIN, (f'{SP}/mmengine/runner/checkpoint.py', 'load_checkpoint_to_model', 'raise RuntimeError(')], 'RuntimeError: No state_dict found in checkpoint file epoch_1.pth'),
    case('made: Flax', LOADS, [MAIN, (f'{SP}/flax/serialization.py', 'from_state_dict', 'return ty_from_state_dict(target, state)')], "ValueError: The target dict keys and state dict keys do not match, target dict contains keys {'a'} which are not present in state dict at path ./params"),
    case("made: accelerate's set_module_tensor_to_device", LOADS, [MAIN, (f'{SP}/transformers/modeling_utils.py', '_load_state_dict_into_meta_model', 'set_module_tensor_to_device(model, name, device)'), (f'{SP}/accelerate/utils/modeling.py', 'set_module_tensor_to_device', 'raise ValueError(')], 'ValueError: Trying to set a tensor of shape torch.Size([32000, 4096]) in "weight" (which has shape torch.Size([32001, 4096])), this looks incorrect.'),
    case("made: Megatron's comparison of arguments", LOADS, [MAIN, ('megatron/training/checkpointing.py', 'check_checkpoint_args', "_compare('hidden_size')"), ('megatron/training/checkpointing.py', '_compare', 'assert checkpoint_value == args_value, error_message')], 'AssertionError: hidden_size value from checkpoint (1024) is not equal to the input argument value (2048).'),
)
# fmt: on
"""The program could not load the state that it began from."""

# fmt: off
OUTSIDE_CASES: Final = (
    Case('yuruotong1/autoMate#104', OUTER, trace([(f'{SP}/huggingface_hub/file_download.py', '_raise_on_head_call_error', 'raise LocalEntryNotFoundError(')], 'huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache.') + f'\n\n{CAUSED}\n\n' + trace([('train.py', 'load_model', 'model = AutoModel.from_pretrained(name)'), (f'{SP}/transformers/utils/hub.py', 'cached_file', 'raise EnvironmentError(')], "OSError: We couldn't connect to 'https://huggingface.co' to load this file")),
    case('llmware#311', OUTER, [('train.py', 'load_checkpoint', "config = AutoConfig.from_pretrained(state['base'])"), (f'{SP}/requests/adapters.py', 'send', 'raise ConnectionError(e, request=request)')], "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models (Caused by NewConnectionError('Failed to establish a new connection: [Errno -3] Temporary failure in name resolution'))"),
    case('NS2VC#25', OUTER, [(f'{SP}/vocos/pretrained.py', 'from_pretrained', 'config_path = hf_hub_download(repo_id=repo_id, filename="config.yaml")'), (f'{SP}/huggingface_hub/file_download.py', 'hf_hub_download', 'raise LocalEntryNotFoundError(')], 'huggingface_hub.utils._errors.LocalEntryNotFoundError: Connection error, and we cannot find the requested files in the disk cache.'),
    case('CSProm-KG#1', OUTER, [(f'{SP}/transformers/utils/hub.py', 'get_from_cache', 'raise ValueError(')], 'ValueError: Connection error, and we cannot find the requested files in the cached path. Please try again or make sure your Internet connection is on.'),
    case('wandb/wandb#5017', OUTER, [MAIN, (f'{SP}/wandb/sdk/wandb_init.py', 'init', 'raise CommError(error_message)')], 'wandb.errors.CommError: Error communicating with wandb process, exiting...'),
    case('ultralytics/yolov5#5498', OUTER, [MAIN, (f'{SP}/wandb/sdk/wandb_init.py', 'init', 'raise UsageError(error_message)')], 'wandb.errors.UsageError: Error communicating with wandb process'),
    case('GAIR-NLP/DeepResearcher#7', OUTER, [MAIN, ('train.py', 'resume_run', "wandb.init(resume='must')"), (f'{SP}/wandb/sdk/wandb_init.py', 'init', 'raise CommError(')], 'wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting'),
    case('mlflow/mlflow#12154', OUTER, [(f'{SP}/mlflow/utils/rest_utils.py', 'http_request', 'raise MlflowException(f"API request to {url} failed with exception {e}")')], "mlflow.exceptions.MlflowException: API request to http://localhost:5000/api/2.0/mlflow/experiments/get-by-name failed with exception HTTPConnectionPool(host='localhost', port=5000): Max retries exceeded with url: /api"),
    case('mlflow/mlflow#7795', OUTER, [('train.py', 'restore_run', "mlflow.start_run(run_id=state['run'])"), (f'{SP}/mlflow/utils/rest_utils.py', 'verify_rest_response', 'raise MlflowException(')], "mlflow.exceptions.MlflowException: API request to endpoint /api/2.0/mlflow/runs/create failed with error code 403 != 200. Response body: ''"),
    case('pytorch/pytorch#45826', OUTER, [('main.py', 'main_loop', 'state = torch.load(output_folder / model_file_name)'), (f'{SP}/torch/serialization.py', '_legacy_load', 'deserialized_objects[key]._set_from_file(f, offset, f_should_read_directly)')], 'RuntimeError: read(): fd 33 failed with Stale file handle'),
    case('AliaksandrSiarohin/first-order-model#355', OUTER, [('demo.py', 'load_checkpoints', 'checkpoint = torch.load(checkpoint_path)'), (f'{SP}/torch/serialization.py', '_is_zipfile', 'byte = f.read(1)')], 'OSError: [Errno 5] Input/output error'),
    case('huggingface/transformers#9732', OUTER, [(f'{SP}/transformers/trainer.py', '_load_optimizer_and_scheduler', "torch.load(os.path.join(checkpoint, 'optimizer.pt'))")], 'OSError: [Errno 116] Stale file handle'),
    case('dansuh17/segan-pytorch#19', OUTER, [('data_generator.py', '__getitem__', 'pair = np.load(self.filepaths[idx])'), (f'{SP}/numpy/lib/npyio.py', 'load', 'magic = fid.read(N)')], 'OSError: [Errno 5] Input/output error'),
    case('made: read only', OUTER, [('train.py', 'load_checkpoint', 'shutil.copy(path, cache)')], "OSError: [Errno 30] Read-only file system: '/cache/last.pt'"),
    case('made: permission', OUTER, [('train.py', 'load_checkpoint', 'torch.load(path)'), (f'{SP}/torch/serialization.py', '__init__', 'super().__init__(open(name, mode))')], "PermissionError: [Errno 13] Permission denied: '/ckpt/step_60.pt'"),
    case('nkolot/SPIN#76', OUTER, [('demo.py', '<module>', 'checkpoint = torch.load(args.checkpoint)'), (f'{SP}/torch/serialization.py', '_cuda_deserialize', 'return storage_type(obj.size())'), (f'{SP}/torch/cuda/__init__.py', '_lazy_new', 'return super(_CudaBase, cls).__new__(cls, *args, **kwargs)')], 'RuntimeError: CUDA error: out of memory'),
    case('facebookresearch/mmf#185', OUTER, [('pythia/utils/checkpoint.py', 'restore', 'self.trainer.optimizer.load_state_dict(ckpt["optimizer"])'), (f'{SP}/torch/optim/optimizer.py', 'load_state_dict', 'state_dict = deepcopy(state_dict)')], 'RuntimeError: CUDA out of memory. Tried to allocate 39.12 MiB (GPU 0; 10.76 GiB total capacity; 9.71 GiB already allocated)'),
    case('ray_lightning#38', OUTER, [('train.py', 'load_checkpoint', 'torch.load(path)'), (f'{SP}/torch/serialization.py', 'validate_cuda_device', "raise RuntimeError('Attempting to deserialize object on a CUDA '")], "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU."),
    case('made: ECC', OUTER, [('train.py', 'load_checkpoint', 'model.load_state_dict(state)'), (f'{SP}/torch/nn/modules/module.py', 'load_state_dict', 'param.copy_(input_param)')], 'RuntimeError: CUDA error: uncorrectable ECC error encountered'),
    case('made: host memory', OUTER, [('train.py', 'load_checkpoint', 'torch.load(path)'), *TORCH_LOAD], "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 51539607552 bytes. Error code 12 (Cannot allocate memory)"),
    case('made: plain memory', OUTER, [('train.py', 'load_checkpoint', 'data = file.read()')], 'MemoryError'),
    case('made: a lost peer in the middle of a load', OUTER, [('train.py', 'load_checkpoint', 'dist.broadcast_object_list(box)'), (f'{SP}/torch/distributed/distributed_c10d.py', 'broadcast_object_list', 'work.wait()')], 'RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5832'),
    case('made: NCCL in a load', OUTER, [('train.py', 'load_state_dict', 'dist.barrier()')], 'torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error'),
    case('made: an object store', OUTER, [('train.py', 'load_checkpoint', 's3.download_file(bucket, key, path)'), (f'{SP}/botocore/client.py', '_make_api_call', 'raise error_class(parsed_response, operation_name)')], 'botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation: Please reduce your request rate.'),
    case("made: a key that a tracker's answer lacks", OUTER, [('train.py', 'resume', "run = api.run(state['run'])"), (f'{SP}/wandb/apis/public/runs.py', 'load', 'return response["project"]')], "KeyError: 'project'"),
    case('made: Redis', OUTER, [('train.py', 'load_state', "queue.get('cursor')"), (f'{SP}/redis/connection.py', 'connect', 'raise ConnectionError(self._error_message(e))')], 'redis.exceptions.ConnectionError: Error 111 connecting to db:6379. Connection refused.'),
    case('made: DNS by urllib', OUTER, [('train.py', 'load_pretrained', 'urllib.request.urlretrieve(url)'), (f'{STD}/urllib/request.py', 'do_open', 'raise URLError(err)')], 'urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>'),
    Case('made: a loading error while a service failed', OUTER, trace([(f'{SP}/httpx/_transports/default.py', 'map_httpcore_exceptions', 'raise mapped_exc(message) from exc')], 'httpx.ConnectTimeout: timed out') + f'\n\n{CHAINED}\n\n' + trace([('train.py', 'load_checkpoint', 'return cache["weights"]')], "KeyError: 'weights'")),
    case('made: a file system of the cloud', OUTER, [('train.py', 'load_checkpoint', 'file.read()'), (f'{SP}/fsspec/asyn.py', 'sync', 'raise FSTimeoutError from return_result')], 'fsspec.exceptions.FSTimeoutError'),
    case('made: a driver that is not ready', OUTER, [('train.py', 'load_model', 'model.cuda()'), (f'{SP}/torch/cuda/__init__.py', '_lazy_init', 'torch._C._cuda_init()')], 'RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized'),
    case('made: a data set of the Hub', OUTER, [MAIN, (f'{SP}/datasets/load.py', 'dataset_module_factory', 'raise DatasetNotFoundError(msg)')], "datasets.exceptions.DatasetNotFoundError: Dataset 'org/set' doesn't exist on the Hub or cannot be accessed."),
)
# fmt: on
"""What the program uses failed; each in or near a load, so that only the error tells."""

# fmt: off
UNKNOWN_CASES: Final = (
    case('wkentaro/pytorch-fcn#63', OPEN, [MAIN, ('torchfcn/trainer.py', 'train_epoch', 'self.optim.step()'), (f'{SP}/torch/optim/sgd.py', 'step', 'param_state = self.state[p]')], 'KeyError: Parameter containing:'),
    Case('milesial/Pytorch-UNet#250', OPEN, trace([MAIN, ('train.py', 'train_net', 'for batch in train_loader:'), *LOADER], 'KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal ') + trace([*WORKER, ('dataset.py', '__getitem__', 'row = self.frame[idx]'), (f'{SP}/pandas/core/indexes/base.py', 'get_loc', 'return self._engine.get_loc(casted_key)')], "KeyError: 'label'")),
    Case('a-PyTorch-Tutorial-to-Transformers#1', OPEN, trace([MAIN, *LOADER], 'KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal ') + trace([*WORKER, ('datasets.py', '__getitem__', "img = Image.open(self.images[i], mode='r')")], 'KeyError: 0')),
    case('kkoutini/PaSST#48', OPEN, [('<string>', '<module>', ''), (f'{STD}/multiprocessing/spawn.py', 'spawn_main', 'exitcode = _main(fd, parent_sentinel)'), (f'{STD}/multiprocessing/spawn.py', '_main', 'self = reduction.pickle.load(from_parent)')], 'EOFError: Ran out of input'),
    case('pytorch-deeplab-xception#220', OPEN, [(f'{STD}/multiprocessing/popen_spawn_posix.py', '_launch', 'reduction.dump(process_obj, fp)'), (f'{STD}/multiprocessing/reduction.py', 'dump', 'ForkingPickler(file, protocol).dump(obj)')], "TypeError: can't pickle module objects"),
    case('RAM-multiprocess-dataloader#4', OPEN, [(f'{STD}/multiprocessing/resource_sharer.py', '_serve', 'send, close = self._cache.pop(key)')], 'KeyError: 1'),
    case("made: a data set's key before the first step", OPEN, [MAIN, ('train.py', 'main', 'train_set = load_dataset(args)'), ('data.py', 'load_dataset', 'return raw["train"]')], "KeyError: 'train'"),
    case("made: a batch's key", OPEN, [MAIN, ('train.py', 'main', 'labels = batch["labels"]')], "KeyError: 'labels'"),
    case('made: a data file is not there', OPEN, [MAIN, ('train.py', 'main', 'rows = load_rows(args.data)'), ('train.py', 'load_rows', 'with open(path) as file:')], "FileNotFoundError: [Errno 2] No such file or directory: '/data/train-00007.jsonl'"),
    case('trials/perrank: a file of the save is not there; it may be put back', OPEN, [('perrank.py', '<module>', 's = torch.load(path)'), (f'{SP}/torch/serialization.py', '__init__', 'super().__init__(open(name, mode))')], "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/step_30_rank_1.pt'"),
    case('HuangLK/transpeeder#37', OPEN, [(f'{SP}/deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py', 'load', 'partition = torch.load(path, map_location=map_location)'), (f'{SP}/torch/serialization.py', '__init__', 'super().__init__(open(name, mode))')], "FileNotFoundError: [Errno 2] No such file or directory: 'llama/zero_pp_rank_0_mp_rank_00_optim_states.pt'"),
    case('made: sizes in forward', OPEN, [MAIN, ('train.py', 'main', 'loss = model(batch)'), (f'{SP}/torch/nn/modules/module.py', '_call_impl', 'return forward_call(*args, **kwargs)'), ('model.py', 'forward', 'return self.head(x)'), (f'{SP}/torch/nn/modules/linear.py', 'forward', 'return F.linear(input, self.weight, self.bias)')], 'RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x8 and 4x4)'),
    case('made: size mismatch in forward, older PyTorch', OPEN, [MAIN, ('model.py', 'forward', 'return torch.addmm(self.bias, x, self.weight)')], 'RuntimeError: size mismatch, m1: [2 x 8], m2: [4 x 4] at /pytorch/aten/src/TH/generic/THTensorMath.cpp:41'),
    case('made: optimizer state of another size, seen in the first step', OPEN, [MAIN, (f'{SP}/torch/optim/adamw.py', 'step', 'self._init_group('), (f'{SP}/torch/optim/adamw.py', '_single_tensor_adamw', 'exp_avg.lerp_(grad, 1 - beta1)')], 'RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0'),
    case('made: activation checkpointing', OPEN, [MAIN, ('model.py', 'forward', 'return checkpoint(self.block, x)'), (f'{SP}/torch/utils/checkpoint.py', 'check_recomputed_tensors_match', 'raise CheckpointError(')], 'torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.'),
    case('made: a bug in the loading function', OPEN, [MAIN, ('train.py', 'load_checkpoint', 'log(stpe)')], "NameError: name 'stpe' is not defined"),
    case('made: a call that no longer fits', OPEN, [MAIN, ('train.py', 'main', 'load_checkpoint(path, strict=True)')], "TypeError: load_checkpoint() got an unexpected keyword argument 'strict'"),
    case('made: a data set kept as .pt', OPEN, [MAIN, ('train.py', 'main', 'train_set = torch.load(args.data)'), *ZIP_READER], CENTRAL),
    case("made: the same in a data set's class", OPEN, [MAIN, ('graphs.py', '__init__', 'self.data, self.slices = torch.load(self.processed_paths[0])'), *ZIP_READER], CENTRAL),
    case('made: a sample that is no pickle', OPEN, [MAIN, ('reader.py', '__getitem__', 'return pickle.loads(self.rows[i])')], "_pickle.UnpicklingError: invalid load key, '\\x00'."),
    case('made: a vocabulary', OPEN, [MAIN, ('train.py', 'load_vocab', 'return pickle.load(file)')], '_pickle.UnpicklingError: pickle data was truncated'),
    case("made: a configuration's key", OPEN, [MAIN, ('train.py', 'load_config', 'return config["model"]["hidden"]')], "KeyError: 'hidden'"),
    case("made: a scheduler's own arguments", OPEN, [MAIN, ('train.py', 'main', 'scheduler = make_scheduler(optimizer)'), ('train.py', 'make_scheduler', 'return SCHEDULES[args.schedule](optimizer)')], "KeyError: 'cosin'"),
    case('made: a missing package at import', OPEN, [('train.py', '<module>', 'import flash_attn')], "ModuleNotFoundError: No module named 'flash_attn'"),
    case("made: the program's own check", OPEN, [MAIN, ('train.py', 'main', 'assert args.batch_size % world_size == 0')], 'AssertionError'),
    case('made: an error while saving', OPEN, [MAIN, ('train.py', 'save_checkpoint', 'raise RuntimeError("state dict and model do not match")')], 'RuntimeError: state dict and model do not match'),
    case('pytorch#38679 kind: wrong options of DDP', OPEN, [MAIN, (f'{SP}/torch/nn/parallel/distributed.py', '__init__', 'self._log_and_throw(')], "RuntimeError: DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient."),
    Case('made: an argument that the script does not know', OPEN, 'usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --resume ckpt/step_60.pt'),
    Case("made: only the interpreter's word", OPEN, "python3: can't open file '/work/train.py': [Errno 2] No such file or directory"),
    case('made: a tokenizer', OPEN, [MAIN, (f'{SP}/transformers/tokenization_utils_base.py', 'from_pretrained', 'raise EnvironmentError(')], "OSError: Can't load tokenizer for 'out'. Make sure that 'out' is the correct path to a directory containing all relevant files"),
    case('made: skipping to the batch of the resumed step', OPEN, [MAIN, ('train.py', 'resume_batches', 'return self.rows["text"]')], "KeyError: 'text'"),
    case('made: a loss', OPEN, [MAIN, ('model.py', 'forward', 'return cross_entropy(y, target)'), (f'{SP}/torch/nn/functional.py', 'cross_entropy', 'return torch._C._nn.cross_entropy_loss(')], 'ValueError: Expected input batch_size (32) to match target batch_size (16).'),
)
# fmt: on
"""Says nothing about the checkpoint, or too little."""

CASES: Final = (*LOADING_CASES, *OUTSIDE_CASES, *UNKNOWN_CASES)
