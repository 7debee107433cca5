"""Folders as public projects leave them: habit, files, truth. Most were written down before anybody looked at the rules.

A file has its age in minutes beside its content. Folders are those that a person names with `--checkpoint-dir`.
"""

import io
import json
import zipfile
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tests.recovery.checkpoints.corpus import Folder
from tests.support.checkpoint_contents import (
    Tensor,
    adam,
    npz_file,
    pickled,
    safetensors_file,
    torch_file,
    weights,
)

File = tuple[str, float, bytes]  # path, age in minutes, content
NET: Final = weights()
ADAM: Final = adam(NET)
BEGIN_MIN: Final = 10_000.0


def folder(
    name: str, truth: str | tuple[str, ...], source: str, *files: File | Iterable[File]
) -> Folder:
    """Return an entry of the corpus."""
    listed: list[File] = []
    for file in files:
        listed += [file] if isinstance(file, tuple) else file
    listed.sort(key=lambda file: -file[1])
    return Folder(
        f"project: {name}",
        source,
        tuple((path, data, 60 * (BEGIN_MIN - age_min)) for path, age_min, data in listed),
        truth,
    )


def full(step: int, key: str = "step", model: str = "model", **more: Any) -> bytes:
    return torch_file({model: NET, "optimizer": ADAM, key: step, **more})


def text(value: Any = None) -> bytes:
    """A file that is no checkpoint; of a value, its JSON."""
    return b"x" * 300 if value is None else json.dumps(value).encode()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


# fmt: off
LARGE: Final = weights(24, 3, "net")
SAFE: Final = safetensors_file({name: tensor.sizes for name, tensor in NET.items()})
LORA: Final = safetensors_file({"lora_A": (2, 16), "lora_B": (16, 2)})


def model() -> bytes:
    return torch_file(NET)


def stable_baselines() -> bytes:
    parts = {"policy.pth": model(), "policy.optimizer.pth": torch_file(ADAM)}
    return zipped({"data": b"{}", **parts, "_stable_baselines3_version": b"2.0"})


def scripted() -> bytes:
    return zipped({"model/data.pkl": pickled(NET), "model/code/__torch__.py": b"class M: pass", "model/version": b"3"})


def trainer(where: str, step: int, age_min: float, *, is_lora: bool = False, is_torn: bool = False) -> list[File]:
    """What transformers' Trainer saves; torn: killed after the weights."""
    kept = {"adapter_model.safetensors": LORA} if is_lora else {"model.safetensors": SAFE}
    if not is_torn:
        state = {"global_step": step, "epoch": 1.0}
        kept |= {"optimizer.pt": torch_file(ADAM), "scheduler.pt": torch_file({"last_epoch": step})}
        kept |= {"rng_state.pth": torch_file({"cpu": Tensor((50,))}), "trainer_state.json": text(state)}
    return [(f"{where}/{name}", age_min, data) for name, data in kept.items()]


def accelerate(where: str, age_min: float) -> list[File]:
    kept = {"model.safetensors": SAFE, "optimizer.bin": torch_file(ADAM)}
    kept |= {"scheduler.bin": torch_file({"last_epoch": 3}), "random_states_0.pkl": pickled({"step": 0})}
    return [(f"{where}/{name}", age_min, data) for name, data in kept.items()]


def deepspeed(where: str, step: int, age_min: float, ranks: Iterable[int] = (0, 1)) -> list[File]:
    module = torch_file({"module": NET, "global_steps": step, "dp_world_size": 2})
    shards = [(f"{where}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", age_min, torch_file({"optimizer_state_dict": ADAM})) for rank in ranks]
    return [(f"{where}/mp_rank_00_model_states.pt", age_min, module), *shards]


def lightning(epoch: int, step: int) -> bytes:
    version = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.1.0"}
    return torch_file({**version, "state_dict": NET, "loops": {}, "callbacks": {}, "optimizer_states": [ADAM], "lr_schedulers": []})


def yolo(e: int) -> bytes:
    return torch_file({'epoch': e, 'best_fitness': 0.3, 'model': NET, 'ema': NET, 'updates': e * 10, 'optimizer': ADAM})


def detectron(n: int) -> bytes:
    return torch_file({'model': NET, 'optimizer': ADAM, 'scheduler': {'last_epoch': n}, 'iteration': n})


def mmengine(e: int) -> bytes:
    return torch_file({'meta': {'epoch': e, 'iter': e * 100, 'mmcv_version': '1.7'}, 'state_dict': NET, 'optimizer': ADAM})


def fairseq(u: int, e: int) -> bytes:
    return torch_file({'args': None, 'cfg': {}, 'model': NET, 'optimizer_history': [{'num_updates': u, 'optimizer_name': 'FairseqAdam'}], 'extra_state': {'train_iterator': {'epoch': e}, 'metrics': []}, 'last_optimizer_state': ADAM})


def megatron(n: int) -> bytes:
    return torch_file({'args': {}, 'checkpoint_version': 3.0, 'iteration': n, 'model': NET, 'optimizer': ADAM, 'opt_param_scheduler': {}, 'rng_state': []})


def megatron_ranks(n: int, age: float, rs: Iterable[int]=(0, 1)) -> list[File]:
    return [(f'iter_{n:07d}/mp_rank_0{r}/model_optim_rng.pt', age, megatron(n)) for r in rs]


def guided(n: int, a: float) -> list[File]:
    return [(f'model{n:06d}.pt', a, model()), (f'ema_0.9999_{n:06d}.pt', a - 0.1, model()), (f'opt{n:06d}.pt', a - 0.2, torch_file(ADAM))]


def hifigan(n: int, a: float) -> list[File]:
    return [(f'g_{n:08d}', a, torch_file({'generator': NET})), (f'do_{n:08d}', a - 0.1, torch_file({'mpd': NET, 'msd': NET, 'optim_g': ADAM, 'optim_d': ADAM, 'steps': n, 'epoch': 3}))]


def vits(n: int, a: float, rs: str='GD') -> list[File]:
    return [(f'{r}_{n}.pth', a, torch_file({'model': NET, 'iteration': n // 100, 'optimizer': ADAM, 'learning_rate': 0.001})) for r in rs]


def cyclegan(n: int | str, a: float) -> list[File]:
    return [(f'{n}_net_{r}.pth', a, model()) for r in ('G_A', 'G_B', 'D_A', 'D_B')]


def coqui(n: int) -> bytes:
    return torch_file({'config': {}, 'model': NET, 'optimizer': ADAM, 'scaler': None, 'step': n, 'epoch': 2, 'date': 'x', 'model_loss': 0.4})


def icefall() -> bytes:
    return torch_file({'model': NET, 'model_avg': NET, 'optimizer': ADAM, 'scheduler': {'epoch': 1}, 'grad_scaler': {}, 'sampler': {}})


def speechbrain(d: str, n: int, a: float) -> list[File]:
    return [(f'{d}/CKPT.yaml', a, f'end-of-epoch: true\nunixtime: {n}\n'.encode()), (f'{d}/model.ckpt', a, model()), (f'{d}/optimizer.ckpt', a, torch_file(ADAM)), (f'{d}/counter.ckpt', a, str(n).encode()), (f'{d}/brain.ckpt', a, b'step: 10\n')]


def rl_games(e: int) -> bytes:
    return torch_file({'model': NET, 'epoch': e, 'frame': e * 100, 'optimizer': ADAM, 'last_mean_rewards': 3.0, 'env_state': None})


def rsl_rl(n: int) -> bytes:
    return torch_file({'model_state_dict': NET, 'optimizer_state_dict': ADAM, 'iter': n, 'infos': None})


def with_epoch(e: int, **k: Any) -> bytes:
    return torch_file({'epoch': e, 'model_state_dict': NET, 'optimizer_state_dict': ADAM, 'loss': 0.3, **k})


def proteinmpnn(e: int) -> bytes:
    return torch_file({'epoch': e, 'step': e * 100, 'num_edges': 48, 'noise_level': 0.2, 'model_state_dict': NET, 'optimizer_state_dict': ADAM})


def robomimic(e: int) -> bytes:
    return torch_file({'model': NET, 'config': '{}', 'algo_name': 'bc', 'env_metadata': {}, 'shape_metadata': {}, 'variable_state': {'epoch': e}, 'optim': ADAM})


def lerobot(n: int, a: float) -> list[File]:
    return [(f'checkpoints/{n:06d}/pretrained_model/model.safetensors', a, SAFE), (f'checkpoints/{n:06d}/pretrained_model/config.json', a, text({})), (f'checkpoints/{n:06d}/training_state/optimizer_state.safetensors', a, SAFE), (f'checkpoints/{n:06d}/training_state/optimizer_param_groups.json', a, text([])), (f'checkpoints/{n:06d}/training_state/training_step.json', a, text({'step': n})), (f'checkpoints/{n:06d}/training_state/rng_state.safetensors', a, SAFE)]


def timm(e: int) -> bytes:
    return torch_file({'epoch': e, 'arch': 'vit', 'state_dict': NET, 'optimizer': ADAM, 'version': 2, 'metric': 70.0})


def torchvision(e: int) -> bytes:
    return torch_file({'model': NET, 'optimizer': ADAM, 'lr_scheduler': {'last_epoch': e}, 'epoch': e, 'args': {}})


def dinov2(n: int, a: float) -> list[File]:
    return [(f'model_{n:07d}.rank_{r}.pth', a, detectron(n)) for r in (0, 1)]


def gaussians(n: int) -> bytes:
    return torch_file(((3, Tensor((50, 3)), Tensor((50, 1)), adam({'xyz': Tensor((50, 3))}), 1.5), n))


def torch_ngp(e: int) -> bytes:
    return torch_file({'epoch': e, 'global_step': e * 100, 'stats': {}, 'model': NET, 'optimizer': ADAM, 'ema': {'shadow_params': []}})


def olmo(n: int, a: float) -> list[File]:
    return [(f'step{n}/model.pt', a, model()), (f'step{n}/optim.pt', a, torch_file(ADAM)), (f'step{n}/train.pt', a, torch_file({'epoch': 0, 'global_step': n, 'global_train_examples_seen_this_epoch': n})), (f'step{n}/config.yaml', a, b'a: 1')]


def composer(b: int) -> bytes:
    return torch_file({'state': {'model': NET, 'optimizers': {'Adam': ADAM}, 'timestamp': {'Timestamp': {'epoch': 0, 'batch': b}}, 'run_name': 'x'}, 'rng': []})


def lucidrains(n: int) -> bytes:
    return torch_file({'step': n * 1000, 'model': NET, 'opt': ADAM, 'ema': NET, 'scaler': None, 'version': '1'})


def marian() -> bytes:
    return npz_file(encoder_W=np.zeros((9, 9)), decoder_W=np.zeros((9, 9)))


def ranks(n: int, a: float, rs: Iterable[int]=range(4)) -> list[File]:
    return [(f'ckpt_step{n}_rank{r}.pt', a, full(n)) for r in rs]


def catalyst(e: int, f: bool=True) -> bytes:
    return torch_file({'model_state_dict': NET, 'epoch_metrics': {}, 'epoch': e, **({'optimizer_state_dict': ADAM, 'checkpoint_data': {}} if f else {})})


STYLEGAN2: Final = torch_file({'g': NET, 'd': NET, 'g_ema': NET, 'g_optim': ADAM, 'd_optim': ADAM, 'args': {}, 'ada_aug_p': 0.0})

PROJECTS: Final = (
    folder('nanogpt', 'ckpt.pt', 'nanoGPT', ('ckpt.pt', 5, full(2000, 'iter_num', best_val_loss=2.5, config={})), ('samples.txt', 1, text())),
    folder('yolov5', 'weights/last.pt', 'YOLOv5', ('weights/best.pt', 40, yolo(9)), ('weights/last.pt', 5, yolo(12)), ('results.csv', 4, b'epoch,loss\n'), ('opt.yaml', 90, b'lr: 1\n'), ('weights/last_openvino_model.onnx', 2, text())),
    folder('ultralytics', ('weights/last.pt', 'weights/best.pt'), 'Ultralytics save_period', ('weights/epoch10.pt', 60, yolo(10)), ('weights/epoch20.pt', 20, yolo(20)), ('weights/last.pt', 3, yolo(23)), ('weights/best.pt', 2.9, yolo(23)), ('results.csv', 2, b'x'), ('train_batch0.jpg', 90, text())),
    folder('detectron2', 'model_0009999.pth', 'detectron2 PeriodicCheckpointer + BestCheckpointer', ('model_0004999.pth', 60, detectron(4999)), ('model_0009999.pth', 10, detectron(9999)), ('last_checkpoint', 10, b'model_0009999.pth'), ('metrics.json', 1, text({'iteration': 10400})), ('inference/instances_predictions.pth', 8, torch_file([{'image_id': 1, 'instances': []}])), ('inference/coco_instances_results.json', 8, text([]))),
    folder('mmdet1', 'epoch_3.pth', 'mmdetection 2.x', ('epoch_1.pth', 60, mmengine(1)), ('epoch_2.pth', 40, mmengine(2)), ('epoch_3.pth', 20, mmengine(3)), ('best_bbox_mAP_epoch_2.pth', 39, mmengine(2)), ('20230101_010101.log.json', 1, text({}))),
    folder('mmengine', 'epoch_3.pth', 'mmengine CheckpointHook save_best', ('epoch_1.pth', 60, mmengine(1)), ('epoch_2.pth', 40, mmengine(2)), ('epoch_3.pth', 20, mmengine(3)), ('last_checkpoint', 20, b'/w/epoch_3.pth'), ('best_coco_bbox_mAP_epoch_3.pth', 15, torch_file({'meta': {'epoch': 3, 'iter': 300}, 'state_dict': NET})), ('vis_data/scalars.json', 1, text({}))),
    folder('fairseq', 'checkpoint_last.pt', 'fairseq', ('checkpoint1.pt', 90, fairseq(5000, 1)), ('checkpoint_1_10000.pt', 50, fairseq(10000, 1)), ('checkpoint2.pt', 30, fairseq(11000, 2)), ('checkpoint_best.pt', 30, fairseq(11000, 2)), ('checkpoint_last.pt', 5, fairseq(12000, 3))),
    folder('fairseq_between', 'checkpoint_2_20000.pt', 'fairseq: killed between the copies', ('checkpoint_1_10000.pt', 50, fairseq(10000, 1)), ('checkpoint_best.pt', 50, fairseq(10000, 1)), ('checkpoint_last.pt', 50, fairseq(10000, 1)), ('checkpoint_2_20000.pt', 3, fairseq(20000, 2))),
    folder('hf_export', 'checkpoint-1000', 'transformers Trainer + save_model', trainer('checkpoint-500', 500, 60), trainer('checkpoint-1000', 1000, 20), ('model.safetensors', 5, SAFE), ('training_args.bin', 5, torch_file({'lr': 1.0})), ('runs/events.out.tfevents.1', 1, text())),
    folder('hf_partial', 'checkpoint-1000', 'transformers: killed while saving', trainer('checkpoint-500', 500, 60), trainer('checkpoint-1000', 1000, 20), trainer('checkpoint-1500', 1500, 5, is_torn=True)),
    folder('hf_peft', 'checkpoint-200', 'peft + Trainer, merged export', trainer('checkpoint-100', 100, 60, is_lora=True), trainer('checkpoint-200', 200, 20, is_lora=True), ('merged/model.safetensors', 4, SAFE), ('merged/config.json', 4, text({}))),
    folder('accelerate_steps', 'step_2000', 'accelerate examples (complete_nlp_example)', accelerate('epoch_0', 80), accelerate('step_1000', 50), accelerate('step_2000', 10), ('all_results.json', 3, text({}))),
    folder('accelerate_auto', 'checkpoints/checkpoint_10', 'accelerate automatic_checkpoint_naming', accelerate('checkpoints/checkpoint_8', 30), accelerate('checkpoints/checkpoint_9', 20), accelerate('checkpoints/checkpoint_10', 10)),
    folder('pl_last', ('epoch=4-step=500.ckpt', 'last.ckpt'), 'Lightning save_last', ('epoch=3-step=400.ckpt', 30, lightning(3, 400)), ('epoch=4-step=500.ckpt', 10, lightning(4, 500)), ('last.ckpt', 9.9, lightning(4, 500))),
    folder('pl_hpc', 'hpc_ckpt_1.ckpt', 'Lightning SLURM requeue', ('epoch=3-step=400.ckpt', 30, lightning(3, 400)), ('epoch=4-step=500.ckpt', 20, lightning(4, 500)), ('hpc_ckpt_1.ckpt', 3, lightning(5, 540))),
    folder('pl_v1', 'last-v1.ckpt', 'Lightning versioned last', ('epoch=07-val_loss=0.21.ckpt', 200, lightning(7, 700)), ('last.ckpt', 190, lightning(8, 800)), ('epoch=11-val_loss=0.19.ckpt', 30, lightning(11, 1100)), ('last-v1.ckpt', 10, lightning(13, 1300))),
    folder('deepspeed', 'global_step200', 'DeepSpeed + zero_to_fp32 export', deepspeed('global_step100', 100, 60), deepspeed('global_step200', 200, 20), ('latest', 20, b'global_step200'), ('zero_to_fp32.py', 20, text()), ('pytorch_model.bin', 2, model())),
    folder('deepspeed_part', 'global_step200', "DeepSpeed: one rank's shard missing", deepspeed('global_step100', 100, 60), deepspeed('global_step200', 200, 20), deepspeed('global_step300', 300, 4, (0,)), ('latest', 20, b'global_step200')),
    folder('megatron', 'iter_0000200', 'Megatron-LM', megatron_ranks(100, 60), megatron_ranks(200, 20), ('latest_checkpointed_iteration.txt', 20, b'200'), ('tensorboard/events.out.tfevents.1', 1, text())),
    folder('guided', ('model020000.pt', '*020000.pt'), 'guided-diffusion', guided(10000, 60), guided(20000, 20), ('progress.csv', 1, b'x'), ('samples_50000x64x64x3.npz', 2, npz_file(arr_0=np.zeros((4, 4))))),
    folder('guided_part', ('model020000.pt', '*020000.pt'), 'guided-diffusion: killed between files', guided(10000, 60), guided(20000, 20), ('model030000.pt', 5, model())),
    folder('ldm', 'checkpoints/last.ckpt', 'CompVis latent-diffusion', ('checkpoints/epoch=000001.ckpt', 60, lightning(1, 1000)), ('checkpoints/trainstep_checkpoints/epoch=000001-step=000001500.ckpt', 40, lightning(1, 1500)), ('checkpoints/last.ckpt', 10, lightning(2, 2100)), ('configs/2023-project.yaml', 90, b'a: 1'), ('images/train/samples_gs-002000.png', 5, text())),
    folder('diffusers', 'checkpoint-1000', 'diffusers train_text_to_image', [(p.replace('/model.s', '/unet/diffusion_pytorch_model.s'), a, b) for p, a, b in accelerate('checkpoint-500', 60) + accelerate('checkpoint-1000', 20)], ('checkpoint-1000/unet_ema/diffusion_pytorch_model.safetensors', 20, SAFE), ('pytorch_lora_weights.safetensors', 3, LORA), ('logs/events.out.tfevents.1', 1, text())),
    folder('kohya', 'my_lora-000002-state', 'kohya sd-scripts save_state', ('my_lora-000001.safetensors', 60, LORA), accelerate('my_lora-000001-state', 59.9), ('my_lora-000002.safetensors', 40, LORA), accelerate('my_lora-000002-state', 39.9), ('my_lora-000003.safetensors', 5, LORA)),
    folder('rosinality', 'checkpoint/020000.pt', 'stylegan2-pytorch', ('checkpoint/010000.pt', 60, STYLEGAN2), ('checkpoint/020000.pt', 10, STYLEGAN2), ('inception_ffhq.pkl', 5, pickled({'mean': Tensor((20,)), 'cov': Tensor((20, 20))})), ('sample/020000.png', 10, text())),
    folder('hifigan', ('?*_00010000', 'do_00010000', 'g_00010000', '*_00010000'), 'HiFi-GAN', hifigan(5000, 60), hifigan(10000, 10), ('config.json', 90, text({})), ('logs/events.out.tfevents.1', 1, text())),
    folder('hifigan_part', ('?*_00010000', '*_00010000', 'do_00010000'), 'HiFi-GAN: killed between files', hifigan(5000, 60), hifigan(10000, 20), ('g_00015000', 4, torch_file({'generator': NET}))),
    folder('vits', ('G_2000.pth', '?_2000.pth', '*_2000.pth'), 'VITS / so-vits-svc', vits(0, 90), vits(1000, 60), vits(2000, 10), ('kmeans_10000.pt', 3, torch_file({'cluster_centers_': Tensor((5, 5))}))),
    folder('vits_part', ('G_2000.pth', '?_2000.pth', '*_2000.pth'), 'VITS: killed between files', vits(1000, 60), vits(2000, 20), vits(3000, 5, 'G')),
    folder('cyclegan', ('latest_net_*.pth', 'latest_net_G_A.pth'), 'pytorch-CycleGAN-and-pix2pix', cyclegan(5, 60), cyclegan(10, 30), cyclegan('latest', 5), ('loss_log.txt', 1, text()), ('web/index.html', 4, text())),
    folder('coqui', 'checkpoint_20000.pth', 'Coqui TTS', ('checkpoint_10000.pth', 60, coqui(10000)), ('best_model_15000.pth', 40, coqui(15000)), ('best_model.pth', 40, coqui(15000)), ('checkpoint_20000.pth', 20, coqui(20000)), ('config.json', 90, text({})), ('speakers.pth', 2, torch_file({'a': 1, 'b': 2})), ('trainer_0_log.txt', 1, text())),
    folder('tacotron', 'checkpoint_2000', 'NVIDIA tacotron2', ('checkpoint_1000', 60, full(1000, 'iteration', 'state_dict', learning_rate=0.1)), ('checkpoint_2000', 10, full(2000, 'iteration', 'state_dict', learning_rate=0.1)), ('events.out.tfevents.1', 1, text())),
    folder('espnet', 'checkpoint.pth', 'ESPnet', ('1epoch.pth', 60, model()), ('2epoch.pth', 40, model()), ('checkpoint.pth', 20, torch_file({'model': NET, 'reporter': {'epoch': 3}, 'optimizers': [ADAM], 'schedulers': [{'last_epoch': 4}], 'scaler': None})), ('3epoch.pth', 19.9, model()), ('valid.acc.ave_3best.pth', 19.5, model()), ('train.log', 1, text())),
    folder('wenet', '2.pt', 'WeNet', ('init.pt', 90, model()), ('0.pt', 60, model()), ('0.yaml', 60, b'cv_loss: 1'), ('1.pt', 40, model()), ('1.yaml', 40, b'cv_loss: 1'), ('2.pt', 20, model()), ('2.yaml', 20, b'cv_loss: 1'), ('avg_3.pt', 5, model())),
    folder('icefall', 'checkpoint-8000.pt', 'icefall', ('epoch-1.pt', 60, icefall()), ('checkpoint-4000.pt', 50, icefall()), ('epoch-2.pt', 30, icefall()), ('best-valid-loss.pt', 30, icefall()), ('best-train-loss.pt', 30, icefall()), ('checkpoint-8000.pt', 10, icefall()), ('bad-model-0.pt', 200, icefall())),
    folder('nemo', 'm--val_loss=0.45-epoch=2-last.ckpt', 'NeMo exp_manager', ('m--val_loss=0.50-epoch=1.ckpt', 60, lightning(1, 100)), ('m--val_loss=0.45-epoch=2.ckpt', 20, lightning(2, 200)), ('m--val_loss=0.45-epoch=2-last.ckpt', 10, lightning(2, 240)), ('m.nemo', 3, text()), ('lightning_logs.txt', 1, text())),
    folder('speechbrain', 'CKPT+2026-11-28+11-00-00+00', 'SpeechBrain', speechbrain('CKPT+2026-11-28+10-00-00+00', 1, 60), speechbrain('CKPT+2026-11-28+11-00-00+00', 2, 10), ('label_encoder.txt', 2, text()), ('train_log.txt', 1, text())),
    folder('sb3', 'rl_model_20000_steps.zip', 'Stable-Baselines3 CheckpointCallback', ('rl_model_10000_steps.zip', 60, stable_baselines()), ('rl_model_20000_steps.zip', 10, stable_baselines()), ('rl_model_replay_buffer_20000_steps.pkl', 9.9, pickled({'obs': Tensor((50, 4))})), ('rl_model_vecnormalize_20000_steps.pkl', 9.8, pickled({'mean': Tensor((4,))})), ('best_model.zip', 40, stable_baselines()), ('evaluations.npz', 2, npz_file(timesteps=np.arange(5), results=np.zeros((5, 3))))),
    folder('ray_train', 'checkpoint_000003', 'Ray Train', ('checkpoint_000002/checkpoint.pt', 40, full(2, 'epoch')), ('checkpoint_000003/checkpoint.pt', 10, full(3, 'epoch')), ('result.json', 1, text({})), ('checkpoint_manager_snapshot.json', 10, text({}))),
    folder('rl_games', 'last_Ant_ep_200_rew_3000.12.pth', 'rl_games', ('Ant.pth', 30, rl_games(150)), ('last_Ant_ep_100_rew_1234.5.pth', 60, rl_games(100)), ('last_Ant_ep_200_rew_3000.12.pth', 10, rl_games(200)), ('summaries/events.out.tfevents.1', 1, text())),
    folder('rsl_rl', 'model_100.pt', 'rsl_rl / legged_gym', ('model_0.pt', 60, rsl_rl(0)), ('model_50.pt', 30, rsl_rl(50)), ('model_100.pt', 10, rsl_rl(100)), ('exported/policies/policy_1.pt', 2, scripted()), ('exported/policies/policy.onnx', 2, text()), ('git/x.diff', 60, text())),
    folder('dreamer', 'latest.pt', 'dreamerv3-torch', ('latest.pt', 20, torch_file({'agent_state_dict': NET, 'optims_state_dict': {'a': ADAM}})), ('train_eps/20260101T010101-0-500.npz', 3, npz_file(reward=np.zeros(5), action=np.zeros((5, 2)))), ('train_eps/20260101T010201-1-500.npz', 1, npz_file(reward=np.zeros(5), action=np.zeros((5, 2)))), ('eval_eps/20260101T010001-0-500.npz', 4, npz_file(reward=np.zeros(5))), ('metrics.jsonl', 1, text({}))),
    folder('pyg', 'gnn_epoch_20.pt', 'PyG projects', ('processed/data.pt', 200, torch_file(({'x': Tensor((30, 7)), 'edge_index': Tensor((2, 60))}, None))), ('processed/pre_filter.pt', 200, torch_file('None')), ('gnn_epoch_10.pt', 60, with_epoch(10)), ('gnn_epoch_20.pt', 20, with_epoch(20)), ('embeddings.pt', 2, torch_file(Tensor((30, 16))))),
    folder('ogb', 'checkpoint.pt', 'OGB-LSC examples', ('checkpoint.pt', 20, with_epoch(30, best_val_mae=0.1)), ('y_pred_mag240m.npz', 2, npz_file(y_pred=np.zeros(9))), ('test_submission/y_pred_pcqm4m-v2_test-dev.npz', 1, npz_file(y_pred=np.zeros(9)))),
    folder('dlrm', 'dlrm.pt', 'DLRM', ('dlrm.pt', 10, torch_file({'epoch': 0, 'nepochs': 1, 'iter': 2000, 'state_dict': NET, 'opt_state_dict': ADAM, 'train_loss': 0.1, 'test_acc': 0.7})), ('kaggleAdDisplayChallenge_processed.npz', 300, npz_file(X_int=np.zeros((4, 3)))), ('day_fea_count.npz', 2, npz_file(counts=np.zeros(26)))),
    folder('recbole', 'BPR-Nov-28-2026_10-11-12.pth', 'RecBole', ('BPR-Nov-28-2026_10-11-12.pth', 20, torch_file({'config': {}, 'epoch': 7, 'cur_step': 0, 'best_valid_score': 0.2, 'state_dict': NET, 'other_parameter': None, 'optimizer': ADAM})), ('ml-100k-dataset.pth', 4, pickled({'inter_feat': Tensor((100, 3))})), ('ml-100k-for-BPR-dataloader.pth', 3, pickled([{'a': Tensor((3, 3))}]))),
    folder('openfold', 'checkpoints/4-1600.ckpt', 'OpenFold', ('checkpoints/3-1200.ckpt', 60, lightning(3, 1200)), ('checkpoints/4-1600.ckpt', 10, lightning(4, 1600)), ('predictions/T1024.pdb', 3, text()), ('features.pkl', 2, pickled({'aatype': Tensor((50, 21))}))),
    folder('proteinmpnn', 'epoch_last.pt', 'ProteinMPNN', ('epoch10_step1000.pt', 60, proteinmpnn(10)), ('epoch20_step2000.pt', 30, proteinmpnn(20)), ('epoch_last.pt', 5, proteinmpnn(25)), ('log.txt', 1, text())),
    folder('diffdock', 'last_model.pt', 'DiffDock', ('best_model.pt', 40, model()), ('last_model.pt', 10, torch_file({'epoch': 30, 'model': NET, 'optimizer': ADAM, 'ema_weights': {'shadow_params': [Tensor((16, 16))]}})), ('best_ema_model.pt', 5, model()), ('best_inference_epoch_model.pt', 4, model()), ('model_parameters.yml', 90, b'a: 1')),
    folder('robomimic', 'last.pth', 'robomimic', ('models/model_epoch_50.pth', 60, robomimic(50)), ('models/model_epoch_100.pth', 30, robomimic(100)), ('models/model_epoch_100_best_validation_0.1.pth', 29, robomimic(100)), ('last_bak.pth', 10, robomimic(119)), ('last.pth', 5, robomimic(120))),
    folder('diffusion_policy', 'checkpoints/latest.ckpt', 'diffusion_policy', ('checkpoints/epoch=0050-train_action_mse=0.100.ckpt', 60, torch_file({'cfg': {}, 'state_dicts': {'model': NET, 'ema_model': NET, 'optimizer': ADAM}, 'pickles': {'global_step': 'b', 'epoch': 'b'}})), ('checkpoints/latest.ckpt', 10, torch_file({'cfg': {}, 'state_dicts': {'model': NET, 'ema_model': NET, 'optimizer': ADAM}, 'pickles': {'global_step': 'b', 'epoch': 'b'}})), ('normalizer.pkl', 3, pickled({'mean': Tensor((4,))})), ('logs.json.txt', 1, text())),
    folder('lerobot', ('checkpoints/001000', 'checkpoints/last'), 'LeRobot', lerobot(500, 60), lerobot(1000, 10)),
    folder('act', 'policy_epoch_200_seed_0.ckpt', 'ACT (aloha)', ('policy_epoch_100_seed_0.ckpt', 60, model()), ('policy_best.ckpt', 50, model()), ('policy_epoch_200_seed_0.ckpt', 20, model()), ('dataset_stats.pkl', 2, pickled({'action_mean': Tensor((14,)), 'qpos_std': Tensor((14,))})), ('train_val_loss_seed_0.png', 1, text())),
    folder('timm_recovery', 'recovery-12-1000.pth.tar', 'timm recovery_interval', ('checkpoint-10.pth.tar', 60, timm(10)), ('checkpoint-11.pth.tar', 30, timm(11)), ('last.pth.tar', 30, timm(11)), ('model_best.pth.tar', 60, timm(10)), ('recovery-12-1000.pth.tar', 5, timm(12)), ('summary.csv', 30, text())),
    folder('torchvision', ('checkpoint.pth', 'model_10.pth'), 'torchvision references', ('model_8.pth', 60, torchvision(8)), ('model_9.pth', 40, torchvision(9)), ('model_10.pth', 10, torchvision(10)), ('checkpoint.pth', 9.9, torchvision(10))),
    folder('dino', 'checkpoint.pth', 'DINO', ('checkpoint0000.pth', 100, torch_file({'student': NET, 'teacher': NET, 'optimizer': ADAM, 'epoch': 1})), ('checkpoint0020.pth', 50, torch_file({'student': NET, 'teacher': NET, 'optimizer': ADAM, 'epoch': 21})), ('checkpoint.pth', 10, torch_file({'student': NET, 'teacher': NET, 'optimizer': ADAM, 'epoch': 25})), ('checkpoint_teacher_linear.pth', 3, torch_file({'epoch': 9, 'state_dict': {'linear.weight': Tensor((10, 16))}, 'optimizer': {'state': {}, 'param_groups': []}, 'best_acc': 60.0})), ('trainfeat.pth', 2, torch_file(Tensor((100, 16)))), ('trainlabels.pth', 2, torch_file(Tensor((100,))))),
    folder('dinov2', ('model_0009999.rank_*.pth', 'model_0009999.rank_?.pth', 'model_0009999.rank_{rank}.pth', 'model_0009999.rank_0.pth'), 'DINOv2', dinov2(4999, 60), dinov2(9999, 20), ('last_checkpoint.rank_0', 20, b'model_0009999.rank_0.pth'), ('last_checkpoint.rank_1', 20, b'model_0009999.rank_1.pth'), ('eval/training_12499/teacher_checkpoint.pth', 3, torch_file({'teacher': NET}))),
    folder('openclip', 'checkpoints/epoch_latest.pt', 'open_clip', ('checkpoints/epoch_1.pt', 60, full(1, 'epoch', 'state_dict', name='x')), ('checkpoints/epoch_2.pt', 40, full(2, 'epoch', 'state_dict', name='x')), ('checkpoints/epoch_latest.pt', 10, full(3, 'epoch', 'state_dict', name='x')), ('results.jsonl', 1, text({}))),
    folder('detr', 'checkpoint.pth', 'DETR', ('checkpoint0099.pth', 60, torchvision(99)), ('checkpoint.pth', 10, torchvision(120)), ('eval/050.pth', 100, torch_file({'params': None, 'precision': Tensor((10, 101))})), ('eval/latest.pth', 5, torch_file({'params': None, 'counts': [10, 101], 'precision': Tensor((10, 101)), 'recall': Tensor((10, 8))})), ('log.txt', 5, text())),
    folder('nerf', '020000.tar', 'nerf-pytorch', ('010000.tar', 60, torch_file({'global_step': 10000, 'network_fn_state_dict': NET, 'network_fine_state_dict': NET, 'optimizer_state_dict': ADAM})), ('020000.tar', 10, torch_file({'global_step': 20000, 'network_fn_state_dict': NET, 'network_fine_state_dict': NET, 'optimizer_state_dict': ADAM})), ('testset_020000/000.png', 5, text()), ('args.txt', 90, text())),
    folder('gaussians', 'chkpnt30000.pth', '3D Gaussian Splatting', ('chkpnt7000.pth', 60, gaussians(7000)), ('chkpnt30000.pth', 10, gaussians(30000)), ('point_cloud/iteration_30000/point_cloud.ply', 5, text()), ('cfg_args', 90, text()), ('cameras.json', 90, text([]))),
    folder('ngp', 'checkpoints/ngp_ep0020.pth', 'torch-ngp', ('checkpoints/ngp_ep0010.pth', 60, torch_ngp(10)), ('checkpoints/ngp_ep0020.pth', 20, torch_ngp(20)), ('checkpoints/ngp.pth', 10, torch_file({'epoch': 20, 'global_step': 2000, 'stats': {}, 'model': NET})), ('validation/ngp_ep0020_0001_rgb.png', 5, text())),
    folder('olmo', ('step2000', 'latest'), 'OLMo, unsharded export', olmo(1000, 60), olmo(2000, 20), ('export/model.safetensors', 3, SAFE), ('export/config.json', 3, text({}))),
    folder('composer', ('ep0-ba200-rank0.pt', 'latest-rank0.pt'), 'MosaicML Composer', ('ep0-ba100-rank0.pt', 60, composer(100)), ('ep0-ba200-rank0.pt', 10, composer(200)), ('huggingface/ba200/model.safetensors', 5, SAFE)),
    folder('litgpt', ('step-00002000', 'step-00002000/lit_model.pth'), 'LitGPT pretrain', ('step-00001000/lit_model.pth', 60, full(1000, 'step_count', iter_num=4000)), ('step-00002000/lit_model.pth', 20, full(2000, 'step_count', iter_num=8000)), ('step-00002000/model_config.yaml', 20, b'x'), ('final/lit_model.pth', 3, torch_file({'model': NET}))),
    folder('modded', 'state_step002000.pt', 'modded-nanogpt', ('state_step001000.pt', 60, torch_file({'step': 1000, 'code': 'x', 'model': NET, 'optimizers': [ADAM, ADAM]})), ('state_step002000.pt', 10, torch_file({'step': 2000, 'code': 'x', 'model': NET, 'optimizers': [ADAM, ADAM]})), ('logs/ab12.txt', 1, text())),
    folder('lucidrains', 'model-10.pt', 'denoising-diffusion-pytorch', ('model-8.pt', 60, lucidrains(8)), ('model-9.pt', 40, lucidrains(9)), ('model-10.pt', 10, lucidrains(10)), ('sample-10.png', 9.9, text()), ('dataset_stats.npz', 3, npz_file(mu=np.zeros(4), sigma=np.zeros((4, 4))))),
    folder('edm', 'training-state-000500.pt', 'EDM', ('network-snapshot-000250.pkl', 60, pickled({'ema': NET, 'dataset_kwargs': {}})), ('training-state-000250.pt', 59.9, torch_file({'net': NET, 'optimizer_state': ADAM})), ('network-snapshot-000500.pkl', 30, pickled({'ema': NET, 'dataset_kwargs': {}})), ('training-state-000500.pt', 29.9, torch_file({'net': NET, 'optimizer_state': ADAM})), ('network-snapshot-000600.pkl', 3, pickled({'ema': NET, 'dataset_kwargs': {}})), ('stats.jsonl', 1, text())),
    folder('two_runs', 'expB_epoch_2.pt', 'several experiments in one folder', ('expA_epoch_1.pt', 3000, with_epoch(1)), ('expA_epoch_2.pt', 2900, with_epoch(2)), ('expA_epoch_3.pt', 2800, with_epoch(3)), ('expB_epoch_1.pt', 60, with_epoch(1)), ('expB_epoch_2.pt', 20, with_epoch(2))),
    folder('allennlp', ('model_state_epoch_2.th', '*_state_epoch_2.th', 'training_state_epoch_2.th'), 'AllenNLP', *[[(f'model_state_epoch_{e}.th', a, model()), (f'training_state_epoch_{e}.th', a - 0.1, torch_file({'metric_tracker': {}, 'epoch': e, 'optimizer': ADAM, 'batch_num_total': e * 10}))] for e, a in ((1, 60), (2, 20))], ('best.th', 10, model()), ('metrics_epoch_2.json', 9, text({})), ('vocabulary/tokens.txt', 90, text())),
    folder('marian', 'model.npz', 'Marian NMT', ('model.iter10000.npz', 60, marian()), ('model.npz.best-bleu.npz', 40, marian()), ('model.npz', 10, marian()), ('model.npz.optimizer.npz', 9.9, npz_file(adam_mt=np.zeros(162), adam_vt=np.zeros(162))), ('model.npz.progress.yml', 9.8, b'batches: 12000'), ('vocab.yml', 100, text())),
    folder('npz_series', 'state_000200.npz', 'NumPy evolution strategies', ('state_000100.npz', 60, npz_file(mean=np.zeros(20), sigma=np.ones(20), generation=np.array(100))), ('state_000200.npz', 20, npz_file(mean=np.zeros(20), sigma=np.ones(20), generation=np.array(200))), ('fitness_history.npz', 2, npz_file(best=np.zeros(210)))),
    folder('slots', 'ckpt_a.pt', 'two slots in turns', ('ckpt_b.pt', 30, full(300)), ('ckpt_a.pt', 10, full(400))),
    folder('same_times', 'step_10.pt', 'copied without times', ('step_9.pt', 10, full(9)), ('step_10.pt', 10, full(10)), ('step_8.pt', 10, full(8))),
    folder('bak_tmp', 'checkpoint.pt', 'tmp and bak of one file', ('checkpoint.pt.bak', 60, full(100)), ('checkpoint.pt', 20, full(200)), ('checkpoint.pt.tmp', 2, full(300)[:300])),
    folder('torn_last', 'last_prev.pt', 'torn last, previous kept', ('last_prev.pt', 20, full(100)), ('last.pt', 2, full(200)[:400])),
    folder('flat_ranks', ('ckpt_step200_rank*.pt', 'ckpt_step200_rank?.pt', 'ckpt_step200_rank{rank}.pt', 'ckpt_step200_rank0.pt'), 'a file per rank, last save torn', ranks(100, 60), ranks(200, 30), ranks(300, 3, (0, 1))),
    folder('lora_beside', 'step_200.pt', 'LoRA exports beside full saves', ('step_100.pt', 60, full(100)), ('step_200.pt', 20, full(200)), ('adapter_step_100.safetensors', 59, LORA), ('adapter_step_200.safetensors', 19, LORA), ('adapter_step_250.safetensors', 4, LORA)),
    folder('teacher', 'student_epoch_3.pt', 'mean teacher', *[(f'student_epoch_{e}.pt', 60 - 15 * e, with_epoch(e)) for e in (1, 2, 3)], ('teacher_epoch_1.pt', 44, model()), ('teacher_epoch_2.pt', 29, model()), ('teacher_epoch_3.pt', 14, model())),
    folder('exports', 'epoch_3.pt', 'ONNX, TorchScript, int8 exports', *[(f'epoch_{e}.pt', 60 - 15 * e, with_epoch(e)) for e in (1, 2, 3)], ('model_scripted.pt', 5, scripted()), ('model_int8.pt', 4, model()), ('model.onnx', 3, text()), ('swa_model.pt', 2, model())),
    folder('epoch_dirs', 'epoch_2', 'a folder per epoch, last one partial', *[[(f'epoch_{e}/model.pt', a, model()), (f'epoch_{e}/optimizer.pt', a, torch_file(ADAM)), (f'epoch_{e}/scheduler.pt', a, torch_file({'last_epoch': e}))] for e, a in ((1, 60), (2, 30))], ('epoch_3/model.pt', 3, model())),
    folder('folds', 'fold1_epoch2.pth', 'Kaggle folds', ('fold0_epoch4.pth', 90, with_epoch(4)), ('fold0_epoch5.pth', 70, with_epoch(5)), ('fold0_best.pth', 80, model()), ('oof_fold0.npz', 69, npz_file(oof=np.zeros(30))), ('fold1_epoch1.pth', 40, with_epoch(1)), ('fold1_epoch2.pth', 10, with_epoch(2)), ('fold1_best.pth', 9, model())),
    folder('stages', 'stage2_epoch2.pt', 'curriculum stages', ('stage1_epoch9.pt', 90, with_epoch(9)), ('stage1_epoch10.pt', 70, with_epoch(10)), ('stage2_epoch1.pt', 40, with_epoch(1)), ('stage2_epoch2.pt', 10, with_epoch(2))),
    folder('grads', 'ckpt_step_200.pt', 'debug dumps with steps', ('ckpt_step_100.pt', 60, full(100)), ('ckpt_step_200.pt', 20, full(200)), *[(f'grads_step_{n}.pt', 60 - n / 5, torch_file(NET)) for n in (150, 200, 250, 290)], *[(f'eval_preds_step_{n}.pt', 60 - n / 5, torch_file({'preds': Tensor((40,)), 'labels': Tensor((40,)), 'step': n})) for n in (150, 250, 295)]),
    folder('ema_dense', 'full_step_500.pt', 'dense EMA series', ('full_step_500.pt', 30, full(500)), *[(f'ema_step_{n}.pt', 90 - n / 10, torch_file({'ema': NET, 'step': n})) for n in range(100, 900, 100)]),
    folder('weights_dense', 'ckpt_step_200.pt', 'dense weight exports', ('ckpt_step_100.pt', 60, full(100)), ('ckpt_step_200.pt', 20, full(200)), *[(f'model_step_{n}.safetensors', 62 - n / 5, SAFE) for n in range(50, 310, 50)]),
    folder('basicsr', '10000.state', 'BasicSR', *[[(f'models/net_g_{n}.pth', a, torch_file({'params': NET, 'params_ema': NET})), (f'{n}.state', a - 0.1, torch_file({'epoch': n // 1000, 'iter': n, 'optimizers': [ADAM], 'schedulers': [{}]}))] for n, a in ((5000, 60), (10000, 20))], ('visualization/0801/0801_10000.png', 5, text()), ('train.log', 1, text())),
    folder('kair', ('10000_G.pth', '10000_*.pth'), 'KAIR', *[[(f'{n}_G.pth', a, model()), (f'{n}_E.pth', a, model()), (f'{n}_optimizerG.pth', a, torch_file(ADAM))] for n, a in ((5000, 60), (10000, 20))]),
    folder('preempt', 'preempt.pt', 'a save on SIGTERM', ('epoch_1.pt', 60, with_epoch(1)), ('epoch_2.pt', 30, with_epoch(2)), ('preempt.pt', 3, with_epoch(3))),
    folder('emergency', 'emergency_step_347.pt', 'a save on SIGTERM with its step', ('step_200.pt', 60, full(200)), ('step_300.pt', 30, full(300)), ('emergency_step_347.pt', 3, full(347))),
    folder('nan_dump', 'step_300.pt', 'dump at NaN', ('step_200.pt', 60, full(200)), ('step_300.pt', 30, full(300)), ('nan_dump_step_310.pt', 3, torch_file({'batch': {'input_ids': Tensor((4, 32))}, 'loss': 1e+30, 'step': 310, 'grads': NET}))),
    folder('pretrained', 'epoch_5.pth', 'a downloaded backbone', ('epoch_4.pth', 60, with_epoch(4)), ('epoch_5.pth', 30, with_epoch(5)), ('resnet50-0676ba61.pth', 3, model()), ('vgg16_lpips.pth', 3, torch_file({'lin0.weight': Tensor((1, 64))}))),
    folder('loss_names', 'model-0.9123.pt', 'names hold the loss', ('model-1.2345.pt', 60, with_epoch(3)), ('model-1.0456.pt', 40, with_epoch(4)), ('model-0.9123.pt', 10, with_epoch(5))),
    folder('epoch_iter', 'epoch_2_iter_500.pth', 'epoch and iteration', ('epoch_1_iter_500.pth', 60, with_epoch(1, iter=500)), ('epoch_1_iter_1000.pth', 40, with_epoch(1, iter=1000)), ('epoch_2_iter_500.pth', 10, with_epoch(2, iter=500))),
    folder('mace', 'checkpoints/MACE_run-123_epoch-20.pt', 'MACE', ('checkpoints/MACE_run-123_epoch-10.pt', 60, torch_file({'model': NET, 'optimizer': ADAM, 'lr_scheduler': {}})), ('checkpoints/MACE_run-123_epoch-20.pt', 20, torch_file({'model': NET, 'optimizer': ADAM, 'lr_scheduler': {}})), ('MACE.model', 4, model()), ('MACE_compiled.model', 3, scripted())),
    folder('fastai', 'stage-2.pth', 'fastai', ('stage-1.pth', 60, torch_file({'model': NET, 'opt': ADAM})), ('stage-2.pth', 20, torch_file({'model': NET, 'opt': ADAM})), ('export.pkl', 4, pickled({'model': NET, 'dls': None}))),
    folder('catalyst', 'checkpoints/last_full.pth', 'Catalyst', ('checkpoints/best_full.pth', 60, catalyst(3)), ('checkpoints/best.pth', 59.9, catalyst(3, False)), ('checkpoints/train.3_full.pth', 60, catalyst(3)), ('checkpoints/last_full.pth', 10, catalyst(5)), ('checkpoints/last.pth', 9.9, catalyst(5, False)), ('checkpoints/_metrics.json', 9.8, text({}))),
    folder('ignite', 'checkpoint_2000.pt', 'PyTorch Ignite', ('checkpoint_1000.pt', 60, torch_file({'trainer': {'iteration': 1000}, 'model': NET, 'optimizer': ADAM, 'lr_scheduler': {}})), ('checkpoint_2000.pt', 20, torch_file({'trainer': {'iteration': 2000}, 'model': NET, 'optimizer': ADAM, 'lr_scheduler': {}})), ('best_model_3_val_acc=0.9012.pt', 4, model())),
    folder('parlai', 'model.checkpoint', 'ParlAI', ('model', 60, torch_file({'model': NET, 'optimizer': ADAM, 'number_training_updates': 100})), ('model.opt', 60, text({})), ('model.dict', 90, text()), ('model.trainstats', 60, text({})), ('model.checkpoint', 10, torch_file({'model': NET, 'optimizer': ADAM, 'number_training_updates': 300})), ('model.checkpoint.trainstats', 10, text({}))),
    folder('flair', 'checkpoint.pt', 'Flair', ('checkpoint.pt', 10, torch_file({'epoch': 4, 'model': NET, 'optimizer_state_dict': ADAM, 'scheduler_state_dict': {}})), ('best-model.pt', 30, torch_file({'state_dict': NET, 'embeddings': {}, 'tag_dictionary': {}})), ('final-model.pt', 5, torch_file({'state_dict': NET, 'embeddings': {}, 'tag_dictionary': {}})), ('loss.tsv', 5, text())),
    folder('replay', 'agent_50000.pt', 'replay buffers with steps', ('agent_40000.pt', 60, torch_file({'actor': NET, 'critic': NET, 'actor_optimizer': ADAM, 'critic_optimizer': ADAM})), ('agent_50000.pt', 30, torch_file({'actor': NET, 'critic': NET, 'actor_optimizer': ADAM, 'critic_optimizer': ADAM})), ('replay_buffer_50000.pt', 29, torch_file({'obs': Tensor((500, 4)), 'action': Tensor((500,))})), ('replay_buffer_55000.pt', 3, torch_file({'obs': Tensor((550, 4)), 'action': Tensor((550,))}))),
    folder('dates', '2026-11-28_12-30-00.pt', 'names hold the date', ('2026-11-28_09-00-00.pt', 60, full(100)), ('2026-11-28_12-30-00.pt', 10, full(300)), ('2026-11-28_10-15-00.pt', 40, full(200))),
    folder('k_names', 'net_100k.pth', '10k names', ('net_90k.pth', 30, full(90000, 'iter')), ('net_100k.pth', 10, full(100000, 'iter')), ('net_ema_100k.pth', 9.9, model())),
    folder('bert', 'ckpt_8601.pt', 'NVIDIA BERT', ('ckpt_8000.pt', 60, torch_file({'model': NET, 'optimizer': ADAM, 'master params': [Tensor((16, 16))], 'files': ['a.hdf5'], 'epoch': 0})), ('ckpt_8601.pt', 10, torch_file({'model': NET, 'optimizer': ADAM, 'master params': [Tensor((16, 16))], 'files': ['a.hdf5'], 'epoch': 1})), ('dllogger.json', 1, text({}))),
    folder('only_side', '', 'nothing but side files', ('metrics.npz', 10, npz_file(loss=np.zeros(5))), ('args.pt', 20, torch_file({'lr': 0.1, 'batch': 4})), ('events.out.tfevents.1', 1, text())),
    folder('args_bin', 'model_best_and_last.pt', 'one save, arguments and vocabulary', ('model_best_and_last.pt', 20, with_epoch(5)), ('args.bin', 3, torch_file({'lr': 0.1})), ('vocab.pt', 2, torch_file({'a': 1})), ('scaler.pkl', 2, pickled({'mean_': Tensor((4,))}))),
    folder('pl_weights_only', 'step=1000.ckpt', 'Lightning save_weights_only beside', ('step=500.ckpt', 60, lightning(0, 500)), ('step=1000.ckpt', 20, lightning(0, 1000)), ('weights-step=1200.ckpt', 5, torch_file({'epoch': 0, 'global_step': 1200, 'pytorch-lightning_version': '2.1', 'state_dict': NET}))),
    folder('best_dir', ('epoch_3', 'best'), 'best folder beside epoch folders', *[[(f'epoch_{e}/model.pt', 60 - 10 * e, model()), (f'epoch_{e}/optimizer.pt', 60 - 10 * e, torch_file(ADAM))] for e in (1, 2, 3)], [('best/model.pt', 40, model()), ('best/optimizer.pt', 40, torch_file(ADAM))]),
    folder('last_dir', 'last', 'last folder overwritten', *[[(f'epoch_{e}/model.pt', 60 - 10 * e, model()), (f'epoch_{e}/optimizer.pt', 60 - 10 * e, torch_file(ADAM))] for e in (1, 2)], [('last/model.pt', 10, model()), ('last/optimizer.pt', 10, torch_file(ADAM))]),
    folder('actor_critic', ('actor_2000.pth', '*_2000.pth'), 'RL pairs', *[[(f'actor_{n}.pth', a, model()), (f'critic_{n}.pth', a - 0.1, torch_file(weights(17)))] for n, a in ((1000, 60), (2000, 20))], ('replay_memory.npz', 2, npz_file(a=np.zeros(5)))),
    folder('optim_ranks', ('model_step200.pt',), 'an optimizer file per rank', *[[(f'model_step{n}.pt', a, model()), (f'optim_step{n}_rank0.pt', a, torch_file(ADAM)), (f'optim_step{n}_rank1.pt', a, torch_file(ADAM))] for n, a in ((100, 60), (200, 30))], ('model_step300.pt', 3, model()), ('optim_step300_rank0.pt', 3, torch_file(ADAM))),
    folder('two_stage_nets', 'unet_step_200.pt', 'VAE, then U-Net', ('vae_step_900.pt', 90, full(900)), ('vae_step_1000.pt', 80, full(1000)), ('unet_step_100.pt', 40, torch_file({'model': weights(32), 'optimizer': adam(weights(32)), 'step': 100})), ('unet_step_200.pt', 10, torch_file({'model': weights(32), 'optimizer': adam(weights(32)), 'step': 200}))),
    folder('g_ema', ('G_2000.pth', '*_2000.pth'), 'GAN with EMA', *[[(f'G_{n}.pth', a, model()), (f'D_{n}.pth', a, torch_file(weights(20))), (f'G_ema_{n}.pth', a, model())] for n, a in ((1000, 60), (2000, 20))]),
    folder('espnet1', 'snapshot.ep.3', 'ESPnet1 snapshots', *[(f'snapshot.ep.{e}', 60 - 10 * e, torch_file({'epoch': e, 'iteration': e * 10, 'model': NET, 'optimizer': ADAM})) for e in (1, 2, 3)], ('model.loss.best', 5, model()), ('model.last5.avg.best', 4, model())),
    folder('pl_v1_same', 'epoch=0-step=100-v1.ckpt', 'Lightning, run again in the folder', ('epoch=0-step=100.ckpt', 600, lightning(0, 100)), ('epoch=0-step=100-v1.ckpt', 10, lightning(0, 100))),
    folder('hf_best', 'checkpoint-1000', 'Trainer, best copied to a folder', trainer('checkpoint-500', 500, 60), trainer('checkpoint-1000', 1000, 20), trainer('checkpoint-best', 500, 5), ('final/model.safetensors', 3, SAFE), ('final/config.json', 3, b'{}')),
    folder('tar_latest', 'checkpoint_latest.pth.tar', 'latest and best as tar', ('checkpoint_best.pth.tar', 50, with_epoch(4)), ('checkpoint_latest.pth.tar', 10, with_epoch(6)), ('model_weights.pth', 3, model())),
    folder('ds_tags', 'epoch2', 'DeepSpeed with tags', deepspeed('epoch1', 100, 60), deepspeed('epoch2', 200, 20), ('latest', 20, b'epoch2')),
    folder('d2_final', ('model_final.pth', 'model_0009999.pth'), 'detectron2 final', ('model_0004999.pth', 60, detectron(4999)), ('model_0009999.pth', 10, detectron(9999)), ('model_final.pth', 9, detectron(9999))),
    folder('dit', '0100000.pt', 'DiT', ('0050000.pt', 60, torch_file({'model': NET, 'ema': NET, 'opt': ADAM, 'args': {}})), ('0100000.pt', 10, torch_file({'model': NET, 'ema': NET, 'opt': ADAM, 'args': {}})), ('log.txt', 1, text())),
    folder('ppo_parts', ('policy_iter_200.pt', '*_iter_200.pt'), 'policy, value and normalizer', *[[(f'policy_iter_{n}.pt', a, model()), (f'value_iter_{n}.pt', a, torch_file(weights(12))), (f'obs_normalizer_iter_{n}.npz', a, npz_file(mean=np.zeros(4), var=np.ones(4)))] for n, a in ((100, 60), (200, 20))], ('obs_normalizer_iter_250.npz', 3, npz_file(mean=np.zeros(4), var=np.ones(4)))),
    folder('gd_last', ('generator_last.pt', '*_last.pt'), 'GAN last and best', ('generator_best.pt', 30, model()), ('discriminator_best.pt', 30, torch_file(weights(18))), ('generator_last.pt', 10, model()), ('discriminator_last.pt', 10, torch_file(weights(18)))),
    folder('memory_bank', 'ckpt_epoch_4.pth', 'contrastive memory', ('ckpt_epoch_3.pth', 60, with_epoch(3)), ('ckpt_epoch_4.pth', 30, with_epoch(4)), ('memory_bank.pth', 4, torch_file(Tensor((500, 16)))), ('queue.pth', 3, torch_file({'queue': Tensor((16, 400)), 'queue_ptr': Tensor((1,))}))),
    folder('loss_steps', 'step_200_loss_2.31.pt', 'loss in names, worse later', ('step_100_loss_2.10.pt', 60, full(100)), ('step_200_loss_2.31.pt', 20, full(200))),
    folder('two_runs_exact', 'runB_step_200.pt', 'two runs, steps in the content', *[(f'runA_step_{n}.pt', 3000 - n / 10, full(n)) for n in (100, 200, 300)], ('runB_step_100.pt', 60, full(100)), ('runB_step_200.pt', 20, full(200))),
    folder('seeds', 'seed1_epoch_1.pt', 'seeds one after the other', *[(f'seed0_epoch_{n}.pt', 3000 - n * 10, with_epoch(n)) for n in (1, 2, 3)], ('seed1_epoch_1.pt', 20, with_epoch(1))),
    folder('share_copy', 'epoch_5.pt', 'an old epoch copied to be shared', *[(f'epoch_{n}.pt', 60 - n * 10, with_epoch(n)) for n in (1, 2, 3, 4, 5)], ('demo_epoch_2.pt', 1, with_epoch(2))),
    folder('milestones', 'step_1200.pt', 'milestones kept, last two rotate', *[(f'milestone_step_{n}.pt', 200 - n / 10, full(n)) for n in (500, 1000)], ('step_1100.pt', 90, full(1100)), ('step_1200.pt', 80, full(1200))),
    folder('converted', 'step_2000.pt', 'all converted at the end', ('step_1000.pt', 60, model()), ('step_2000.pt', 30, model()), ('converted_step_1000.pt', 4, model()), ('converted_step_2000.pt', 3, model())),
    folder('cv_dirs', 'fold_1_epoch_2', 'folds as folders', *[[(f'fold_0_epoch_{e}/model.pt', 300 - e, model()), (f'fold_0_epoch_{e}/optimizer.pt', 300 - e, torch_file(ADAM))] for e in (1, 2, 3)], *[[(f'fold_1_epoch_{e}/model.pt', 60 - e, model()), (f'fold_1_epoch_{e}/optimizer.pt', 60 - e, torch_file(ADAM))] for e in (1, 2)]),
    folder('zip_export', 'step_20.pt', 'a zipped dataset and a zipped export', ('step_10.pt', 40, full(10)), ('step_20.pt', 20, full(20)), ('export.zip', 2, zipped({'model.pt': model(), 'readme.md': b'x'})), ('images.zip', 1, zipped({'a.png': b'x'}))),
    folder('xtts', 'checkpoint_3000.pth', 'TTS GPT fine-tune: dvae, mel stats beside', ('dvae.pth', 900, torch_file(weights(30))), ('mel_stats.pth', 900, torch_file(Tensor((80,)))), ('checkpoint_2000.pth', 60, coqui(2000)), ('checkpoint_3000.pth', 20, coqui(3000)), ('best_model_2900.pth', 22, coqui(2900)), ('speakers_xtts.pth', 1, torch_file({'a': Tensor((1, 16))}))),
    folder('rvc', ('G_400.pth', '?_400.pth', '*_400.pth'), 'RVC with small weights exported', vits(200, 60), vits(400, 20), ('voice_e10_s400.pth', 15, torch_file({'weight': NET, 'config': [1], 'info': '10epoch', 'sr': '40k'})), ('total_fea.npz', 2, npz_file(a=np.zeros(4)))),
    folder('coqui_best_newer', ('checkpoint_2000.pth',), 'best written between', ('checkpoint_1000.pth', 60, coqui(1000)), ('best_model.pth', 30, coqui(1700)), ('checkpoint_2000.pth', 10, coqui(2000))),
    folder('mlm_torch_bin', 'checkpoint-20000', 'old transformers, pytorch_model.bin', *[[(f'checkpoint-{n}/pytorch_model.bin', a, model()), (f'checkpoint-{n}/config.json', a, b'{}'), (f'checkpoint-{n}/optimizer.pt', a, torch_file(ADAM)), (f'checkpoint-{n}/scheduler.pt', a, torch_file({'last_epoch': n})), (f'checkpoint-{n}/trainer_state.json', a, text({'global_step': n})), (f'checkpoint-{n}/training_args.bin', a, torch_file({'a': 1}))] for n, a in ((9000, 60), (10000, 40), (20000, 10))], ('pytorch_model.bin', 3, model()), ('config.json', 3, b'{}')),
    folder('ema_only_newer', 'state_00020.pt', 'EMA saved by itself more often', ('state_00010.pt', 60, full(10, 'epoch')), ('state_00020.pt', 30, full(20, 'epoch')), *[(f'ema_{n:05d}.pt', 60 - 3 * (n - 10), torch_file({'ema': NET, 'epoch': n})) for n in range(10, 28)]),
    folder('iter_ep_last', 'last_checkpoint.pth', 'last_checkpoint newer than the series', ('checkpoint_ep10.pth', 60, with_epoch(10)), ('checkpoint_ep20.pth', 30, with_epoch(20)), ('last_checkpoint.pth', 5, with_epoch(23))),
    folder('mmseg_iter', 'iter_16000.pth', 'mmsegmentation', ('iter_8000.pth', 60, mmengine(1)), ('iter_16000.pth', 20, mmengine(2)), ('best_mIoU_iter_16000.pth', 18, mmengine(2)), ('work.pkl', 1, pickled([1]))),
    folder('hub_step', 'step_5000.pt', 'names with thousands, older ten thousands removed', ('step_4000.pt', 60, full(4000)), ('step_5000.pt', 30, full(5000)), ('step_5000_samples.pt', 29, torch_file(Tensor((4, 3, 32, 32))))),
    folder('recurrent_gcn', 'model_e12.tar', 'traffic GNN', ('model_e11.tar', 60, with_epoch(11)), ('model_e12.tar', 20, with_epoch(12)), ('adj_mx.pkl', 100, pickled({'a': Tensor((20, 20))})), ('pred.npz', 3, npz_file(prediction=np.zeros((5, 5)), truth=np.zeros((5, 5))))),
    folder('two_tower', 'tt_epoch3.pt', 'recommender: tower exports, index', *[(f'tt_epoch{e}.pt', 60 - 10 * e, with_epoch(e)) for e in (1, 2, 3)], ('user_tower.pt', 5, torch_file(weights(16, 1))), ('item_tower.pt', 5, torch_file(weights(16, 1, 'it'))), ('item_index.npz', 4, npz_file(vec=np.zeros((50, 8)), ids=np.arange(50)))),
    folder('esm', 'ckpt-00300.pt', 'protein LM: contacts, logits', ('ckpt-00200.pt', 60, full(200)), ('ckpt-00300.pt', 20, full(300)), ('contacts_00350.pt', 3, torch_file({'contacts': Tensor((40, 40))})), ('logits_00350.pt', 2, torch_file(Tensor((40, 33))))),
    folder('robot_bc', 'ckpt_010000.pt', 'behaviour cloning: stats json and pt', ('ckpt_005000.pt', 60, full(5000)), ('ckpt_010000.pt', 20, full(10000)), ('norm_stats.pt', 3, torch_file({'mean': Tensor((14,)), 'std': Tensor((14,))})), ('episode_000123.npz', 2, npz_file(qpos=np.zeros((9, 14)), action=np.zeros((9, 14))))),
    folder('distill', 'student-step600.pt', 'distillation, teacher larger and newer', ('student-step300.pt', 60, full(300)), ('student-step600.pt', 20, full(600)), ('teacher.pt', 4, torch_file({'model': LARGE, 'optimizer': adam(LARGE), 'epoch': 99}))),
    folder('gptq', 'pytorch_step_900.pt', 'post-training quantization', ('pytorch_step_600.pt', 60, full(600)), ('pytorch_step_900.pt', 20, full(900)), ('gptq_4bit.safetensors', 4, LORA), ('calibration.pt', 3, torch_file([Tensor((1, 32)), Tensor((1, 32))]))),
    folder('reward_model', 'policy_step_40.pt', 'RLHF: reward and reference beside', ('policy_step_20.pt', 60, full(20)), ('policy_step_40.pt', 20, full(40)), ('ref_policy.pt', 200, model()), ('reward_model.pt', 5, torch_file({'model': LARGE, 'optimizer': adam(LARGE)})), ('rollouts_step_45.pt', 2, torch_file({'logprobs': Tensor((8, 32)), 'values': Tensor((8, 32))}))),
    folder('hash_names', 'b7c1.pt', 'names say nothing', ('a91f.pt', 60, full(100)), ('c003.pt', 40, full(200)), ('b7c1.pt', 10, full(300))),
    folder('eval_pickle_torch', 'epoch-9.pt', 'torch.save of results lists each epoch', *[(f'epoch-{e}.pt', 100 - 10 * e, with_epoch(e)) for e in (8, 9)], *[(f'results-{e}.pt', 99 - 10 * e, torch_file([{'id': 1, 'score': 0.5}])) for e in (8, 9)], ('confusion.pt', 2, torch_file(Tensor((10, 10))))),
    folder('partial_lightning', 'epoch=1-step=20.ckpt', 'torn newest', ('epoch=0-step=10.ckpt', 60, lightning(0, 10)), ('epoch=1-step=20.ckpt', 30, lightning(1, 20)), ('epoch=2-step=30.ckpt', 2, lightning(2, 30)[:700])),
    folder('optim_apart', ('model_200.pt', '*_200.pt'), 'optimizer and scheduler apart, numbered', *[[(f'model_{n}.pt', a, model()), (f'optimizer_{n}.pt', a, torch_file(ADAM)), (f'lr_scheduler_{n}.pt', a, torch_file({'last_epoch': n}))] for n, a in ((100, 60), (200, 20))], ('model_300.pt', 2, model())),
    folder('npz_weights', 'weights_0020.npz', 'NumPy network', ('weights_0010.npz', 60, npz_file(w0=np.zeros((4, 4)), b0=np.zeros(4))), ('weights_0020.npz', 20, npz_file(w0=np.zeros((4, 4)), b0=np.zeros(4))), ('test_outputs.npz', 2, npz_file(y=np.zeros(100))), ('train_curve.npz', 1, npz_file(loss=np.zeros(20)))),
    folder('single_npz', 'theta.npz', 'one NumPy state without a step', ('theta.npz', 20, npz_file(theta=np.zeros(50))), ('rewards_log.npz', 2, npz_file(r=np.zeros(9)))),
    folder('ft_after_pre', 'finetune_step_200.pt', 'fine-tuning after pretraining in one folder', *[(f'pretrain_step_{n}.pt', 3000 - n / 10, full(n)) for n in (1000, 2000, 3000)], ('finetune_step_100.pt', 60, full(100)), ('finetune_step_200.pt', 20, full(200))),
    folder('chatty', 'ckpt_iter_600.pth', 'attention maps with the same number', ('ckpt_iter_300.pth', 60, full(300, 'iter')), ('ckpt_iter_600.pth', 20, full(600, 'iter')), ('attn_iter_600.pth', 19, torch_file({'attn': Tensor((8, 16, 16))})), ('attn_iter_700.pth', 3, torch_file({'attn': Tensor((8, 16, 16))}))),
    folder('best_newest_full', 'ckpt_12.pth', 'best of an earlier epoch saved last by copy', ('ckpt_10.pth', 60, with_epoch(10)), ('ckpt_11.pth', 40, with_epoch(11)), ('ckpt_12.pth', 20, with_epoch(12)), ('best.pth', 19.9, with_epoch(10))),
    folder('opt_json', 'run_last.pth', 'last with a JSON beside', ('run_last.pth', 10, with_epoch(7)), ('run_last.json', 2, text({'epoch': 7})), ('run_best.pth', 40, with_epoch(3)), ('run_swa.pth', 1, model())),
    folder('wd_dir', 'weights/epoch_2.pt', 'weights/ folder beside exports', ('weights/epoch_1.pt', 60, with_epoch(1)), ('weights/epoch_2.pt', 20, with_epoch(2)), ('export.pt', 2, model())),
    folder('weights_exports', 'step_200.pt', 'weights/ holds exports newer than the series', ('step_100.pt', 60, full(100)), ('step_200.pt', 20, full(200)), ('weights/step_250.safetensors', 3, SAFE), ('weights/step_250.pt', 3, model())),
    folder('snap_dir', 'step_200.pt', 'snapshots/ of predictions', ('step_100.pt', 60, full(100)), ('step_200.pt', 20, full(200)), ('snapshots/pred_300.pt', 3, torch_file(Tensor((9, 9))))),
    folder('gan3', ('G_AB_20.pth', '*_20.pth', 'G_*_20.pth'), 'DiscoGAN/CycleGAN of eriklindernoren', *[[(f'{r}_{n}.pth', a, torch_file(weights(16 if r[0] == 'G' else 12))) for r in ('G_AB', 'G_BA', 'D_A', 'D_B')] for n, a in ((10, 60), (20, 20))]),
    folder('sb3_best', 'rl_model_5000_steps.zip', 'best model newer', ('rl_model_5000_steps.zip', 30, stable_baselines()), ('best_model.zip', 4, stable_baselines()), ('evaluations.npz', 3, npz_file(results=np.zeros((5, 3))))),
    folder('sb3_vec', 'rl_model_9000_steps.zip', 'SB3 with a monitor and torn newest', ('rl_model_8000_steps.zip', 60, stable_baselines()), ('rl_model_9000_steps.zip', 30, stable_baselines()), ('rl_model_10000_steps.zip', 2, stable_baselines()[:800]), ('monitor.csv', 1, text())),
    folder('rewind', 'step_300.pt', 'learning-rate rewind kept', ('step_100.pt', 90, full(100)), ('step_200.pt', 70, full(200)), ('step_300.pt', 30, full(300)), ('rewind_step_100.pt', 10, torch_file({'model': NET, 'step': 100}))),
    folder('trials', 'trial_2_epoch_4.pt', 'hyperparameter trials one after the other', *[(f'trial_{t}_epoch_{e}.pt', 900 - 200 * t - 10 * e, with_epoch(e)) for t in (0, 1) for e in (1, 2, 3, 4, 5)], *[(f'trial_2_epoch_{e}.pt', 100 - 10 * e, with_epoch(e)) for e in (1, 2, 3, 4)]),
    folder('task_cl', 'task3_epoch_1.pt', 'continual learning', *[(f'task{t}_epoch_{e}.pt', 900 - 200 * t - 10 * e, with_epoch(e)) for t in (1, 2) for e in (1, 2)], ('task3_epoch_1.pt', 20, with_epoch(1)), ('task3_fisher.pt', 5, torch_file(NET))),
    folder('prog_gan', 'res128_iter_500.pt', 'progressive growing: other sizes', ('res64_iter_900.pt', 90, full(900)), ('res64_iter_1000.pt', 80, full(1000)), *[(f'res128_iter_{n}.pt', 60 - n / 10, torch_file({'model': weights(20), 'optimizer': adam(weights(20)), 'iter': n})) for n in (400, 500)]),
    folder('ddp_rank_state', ('rank_0_step_20.pt', 'rank_*_step_20.pt', 'rank_?_step_20.pt'), 'rank first in the name', *[(f'rank_{r}_step_{n}.pt', 60 - n, full(n)) for n in (10, 20) for r in (0, 1)], ('rank_0_step_30.pt', 2, full(30))),
    folder('inv', 'ckpt_0020.pth', 'folder with many other kinds', ('ckpt_0010.pth', 60, with_epoch(10)), ('ckpt_0020.pth', 30, with_epoch(20)), ('hist.pth', 5, torch_file({'train': [1.0, 2.0], 'val': [0.5]})), ('lr_finder.pt', 4, torch_file({'lr': [0.1], 'loss': [0.4]})), ('profile.pt', 3, torch_file([1, 2])), ('gt_boxes.pt', 2, torch_file(Tensor((20, 4)))), ('sampler_state.pt', 1, torch_file({'epoch': 21, 'position': 500}))),
    folder('slots3', 'ckpt_1.pt', 'three slots in turns', ('ckpt_2.pt', 30, full(30)), ('ckpt_0.pt', 20, full(40)), ('ckpt_1.pt', 10, full(50))),
    folder('slots_plain', 'ckpt_1.pt', 'three slots without steps', ('ckpt_2.pt', 30, model()), ('ckpt_0.pt', 20, model()), ('ckpt_1.pt', 10, model())),
    folder('opt_big', 'model.pt', 'weights and a larger optimizer file', ('model.pt', 10, model()), ('optimizer.pt', 9.9, torch_file(ADAM)), ('model_best.pt', 5, model())),
    folder('full_weights_pairs', 'ckpt_full_20.pt', 'full and weights-only of each epoch', *[[(f'ckpt_full_{e}.pt', 60 - e, with_epoch(e)), (f'ckpt_weights_{e}.pt', 59.9 - e, model())] for e in (10, 20)], ('ckpt_weights_25.pt', 30, model())),
    folder('step_npz_opt', 'state_40.npz', 'NumPy Adam', ('state_20.npz', 60, npz_file(w=np.zeros(9), m_w=np.zeros(9), v_w=np.zeros(9))), ('state_40.npz', 20, npz_file(w=np.zeros(9), m_w=np.zeros(9), v_w=np.zeros(9))), ('weights_45.npz', 3, npz_file(w=np.zeros(9)))),
    folder('train_val_gap', 'epoch_2.pt', 'features and index in numbers beyond', ('epoch_1.pt', 60, with_epoch(1)), ('epoch_2.pt', 20, with_epoch(2)), *[(f'chunk_{n}.pt', 10 - n / 10, torch_file({'ids': Tensor((40,)), 'mask': Tensor((40,))})) for n in range(5)], ('vec_0.npz', 1, npz_file(a=np.zeros(9)))),
    folder('lora_series', 'adapter_200.safetensors', 'LoRA alone', ('adapter_100.safetensors', 60, LORA), ('adapter_200.safetensors', 20, LORA), ('merged.safetensors', 5, SAFE)),
    folder('same_folder_hf_step', 'step_200', 'folders per step with export beside', *[[(f'step_{n}/model.safetensors', a, SAFE), (f'step_{n}/optimizer.pt', a, torch_file(ADAM))] for n, a in ((100, 60), (200, 20))], [('hf_export/model.safetensors', 3, SAFE), ('hf_export/config.json', 3, b'{}')]),
)
# fmt: on
