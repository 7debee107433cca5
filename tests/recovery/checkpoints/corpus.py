"""Folders of checkpoints as people's scripts leave them, and what a restart should begin from: one entry each.

Files are listed in the order in which they were written, a minute apart unless `at` says otherwise; a name that ends
in `/` is a folder, `name -> target` a link. `truth` may name several where they are the same state. The source is the
project, or the report, that saves so.
"""

from dataclasses import dataclass
from typing import Any, Final

from tests.support.checkpoint_contents import (
    Tensor,
    adam,
    npz_file,
    safetensors_file,
    torch_file,
    weights,
)

Files = tuple[tuple[str, bytes] | tuple[str, bytes, float], ...]


@dataclass(frozen=True)
class Folder:
    name: str
    source: str
    files: Files
    truth: str | tuple[str, ...]  # by its path in the folder; "": nothing can be restored
    step: int | None = None  # of the truth; None: not asserted
    parts: tuple[str, ...] = ()  # other files of the same save


NET: Final = weights()
OTHER: Final = weights(24, 3, "blocks")
SMALL: Final = weights(8, 1, "head")
IMAGE: Final = Tensor((4, 3, 64, 64))


def state(model: dict[str, Tensor] = NET, **more: Any) -> bytes:
    """A model with its optimizer."""
    return torch_file({"model": model, "optimizer": adam(model), **more})


def keyed(model_key: str, optimizer_key: str | None, **more: Any) -> bytes:
    content: dict[str, Any] = {model_key: NET}
    if optimizer_key is not None:
        content[optimizer_key] = adam(NET)
    return torch_file({**content, **more})


def model(which: dict[str, Tensor] = NET) -> bytes:
    return torch_file(which)


def optimizer(which: dict[str, Tensor] = NET, **more: Any) -> bytes:
    return torch_file({"optimizer": adam(which), **more} if more else adam(which))


def lightning(step: int, epoch: int = 0, *, is_whole: bool = True) -> bytes:
    states = {"optimizer_states": [adam(NET)]} if is_whole else {}
    version = {"pytorch-lightning_version": "2.6.6", "epoch": epoch, "global_step": step}
    return torch_file({**version, "state_dict": NET, **states})


def safe(which: dict[str, Tensor] = NET, **texts: str) -> bytes:
    return safetensors_file({name: tensor.sizes for name, tensor in which.items()}, **texts)


def fairseq(updates: int, epoch: int) -> bytes:
    history = [{"optimizer_name": "FairseqAdam", "num_updates": updates}]
    inner = {"train_iterator": {"epoch": epoch}}
    states = {"optimizer_history": history, "last_optimizer_state": adam(NET)}
    return torch_file({"model": NET, "extra_state": inner, **states})


def composer(batch: int, epoch: int) -> bytes:
    times = {"epoch": epoch, "batch": batch}
    inner = {"model": NET, "optimizers": {"DecoupledAdamW": adam(NET)}, "timestamp": times}
    return torch_file({"state": inner, "rng": [1]})


def mmengine(iteration: int, epoch: int) -> bytes:
    meta = {"epoch": epoch, "iter": iteration}
    return torch_file({"meta": meta, "state_dict": NET, "optimizer": adam(NET)})


def hf(step: int, *, is_whole: bool = True) -> Files:
    """A folder of Hugging Face Trainer."""
    base = f"checkpoint-{step}"
    trainer_state = f'{{"global_step": {step}, "epoch": 1.0}}'.encode()
    inner: list[tuple[str, bytes]] = [(f"{base}/model.safetensors", safe())]
    if is_whole:
        inner += [(f"{base}/optimizer.pt", optimizer()), (f"{base}/scheduler.pt", torch_file({}))]
        inner += [(f"{base}/rng_state.pth", torch_file({}))]
    return (*inner, (f"{base}/trainer_state.json", trainer_state))


def accelerate(base: str, *extra: str) -> Files:
    names = (*extra, "model.safetensors", "optimizer.bin", "scheduler.bin")
    content = {"model.safetensors": safe(), "optimizer.bin": optimizer()}
    files = tuple((f"{base}/{name}", content.get(name, torch_file({}))) for name in names)
    return (*files, (f"{base}/random_states_0.pkl", b"\x80\x02}."))


def numbered(pattern: str, steps: tuple[int, ...], content: bytes) -> Files:
    return tuple((pattern.format(step), content) for step in steps)


def steps(*more: tuple[str, bytes], key: str = "step") -> Files:
    """Three whole states whose content tells the step, and what lies beside them."""
    return (*((f"step_{n}.pt", state(**{key: n})) for n in (100, 200, 300)), *more)


def pair(first: str, second: str, numbers: tuple[int, ...], *contents: bytes) -> Files:
    return tuple(
        (name.format(number), content)
        for number in numbers
        for name, content in zip((first, second), contents, strict=True)
    )


NUMBERS: Final = npz_file(loss=[0.5] * 30)
# Files that scripts write beside their states; jobs trial 1 lost a job by each of the first 25.
SIDE: Final[tuple[tuple[str, bytes], ...]] = (
    *((name, NUMBERS) for name in ("metrics.npz", "history.npz", "loss_curve.npz")),
    ("confusion_matrix.npz", npz_file(matrix=[[1, 2], [3, 4]])),
    ("embeddings.npz", npz_file(x=[[0.5] * 64] * 64)),
    ("normalizer.npz", npz_file(mean=[0.5], std=[0.5])),
    ("predictions.pt", torch_file(Tensor((1000, 10)))),
    ("val_outputs.pt", torch_file({"logits": Tensor((500, 10)), "labels": Tensor((500,))})),
    ("samples.pt", torch_file([IMAGE, IMAGE])),
    ("grads.pt", model()),
    ("stats.pt", torch_file({"mean": Tensor((3,)), "std": Tensor((3,))})),
    ("args.pt", torch_file({"lr": 0.1, "epochs": 30})),
    ("config.pt", torch_file({"width": 64, "steps": 1000})),
    ("replay_buffer.pt", torch_file({"obs": Tensor((1000, 8)), "actions": Tensor((1000, 2))})),
    *((name, model()) for name in ("teacher.pt", "swa.pt", "ema.pt", "model_final.pt")),
    ("vae.pt", model(OTHER)),
    ("lora_weights.pt", model(SMALL)),
    ("adapter.safetensors", safe(SMALL)),
    ("student.safetensors", safe(SMALL)),
    ("best.safetensors", safe()),
    ("vocab.pt", torch_file({"a": 1, "b": 2})),
    ("scaler.pt", torch_file({"scale": 65536.0, "growth_factor": 2.0})),
    ("best.pt", model()),
    ("reference_policy.pt", model()),
    ("exported_weights.pth", model()),
    ("anchors.pt", torch_file(Tensor((9, 2)))),
    ("class_weights.pt", torch_file(Tensor((100,)))),
    ("optimizer_backup.pt", optimizer()),
)

HABITS: Final = (
    Folder(
        "nanogpt",
        "karpathy/nanoGPT train.py",
        (("ckpt.pt", keyed("model", "optimizer", iter_num=250, model_args={"n_layer": 2})),),
        "ckpt.pt",
        250,
    ),
    Folder(
        "fairseq",
        "facebookresearch/fairseq checkpoint_utils.py",
        (
            ("checkpoint_1_500.pt", fairseq(500, 1)),
            ("checkpoint1.pt", fairseq(800, 2)),
            ("checkpoint_2_1000.pt", fairseq(1000, 2)),
            ("checkpoint2.pt", fairseq(1600, 3)),
            ("checkpoint_best.pt", fairseq(1600, 3)),
            ("checkpoint_3_2000.pt", fairseq(2000, 3)),
            ("checkpoint_last.pt", fairseq(2000, 3)),
        ),
        ("checkpoint_3_2000.pt", "checkpoint_last.pt"),
        2000,
    ),
    Folder(
        "fairseq without counters",
        "jobs trial 13: step 3 was shown, which is the epoch",
        (
            ("checkpoint_1_500.pt", state()),
            ("checkpoint1.pt", state()),
            ("checkpoint_3_2000.pt", state()),
        ),
        "checkpoint_3_2000.pt",
        2000,
    ),
    Folder(
        "composer, equal times",
        "mosaicml/composer checkpoint_saver.py; jobs trial 13",
        tuple(
            (f"ep{epoch}-ba{batch}-rank0.pt", composer(batch, epoch), 100.0)
            for epoch, batch in ((0, 900), (1, 1000), (1, 1100))
        ),
        "ep1-ba1100-rank0.pt",
        1100,
    ),
    Folder(
        "composer by name alone",
        "mosaicml/composer",
        tuple((f"ep1-ba{n}-rank0.pt", keyed("state", None), 100.0) for n in (900, 1100, 1000)),
        "ep1-ba1100-rank0.pt",
        1100,
    ),
    Folder(
        "timm",
        "huggingface/pytorch-image-models checkpoint_saver.py",
        (
            *(
                (f"checkpoint-{n}.pth.tar", keyed("state_dict", "optimizer", epoch=n))
                for n in (9, 10)
            ),
            ("model_best.pth.tar", keyed("state_dict", "optimizer", epoch=9)),
            ("last.pth.tar", keyed("state_dict", "optimizer", epoch=10)),
        ),
        ("checkpoint-10.pth.tar", "last.pth.tar"),
    ),
    Folder(
        "detectron2",
        "facebookresearch/fvcore checkpoint.py PeriodicCheckpointer",
        (
            *(
                (f"model_{n:07}.pth", keyed("model", "optimizer", iteration=n))
                for n in (4999, 9999)
            ),
            ("model_final.pth", keyed("model", "optimizer", iteration=12000)),
        ),
        "model_final.pth",
        12000,
    ),
    Folder(
        "mmengine",
        "open-mmlab/mmengine CheckpointHook",
        (
            ("epoch_9.pth", mmengine(900, 9)),
            ("epoch_10.pth", mmengine(1000, 10)),
            ("best_coco_bbox_mAP_epoch_10.pth", mmengine(1000, 10)),
            ("epoch_11.pth", mmengine(1100, 11)),
        ),
        "epoch_11.pth",
        1100,
    ),
    Folder(
        "yolo",
        "ultralytics/ultralytics trainer.py save_model",
        (
            ("epoch10.pt", keyed("model", "optimizer", epoch=10)),
            ("last.pt", keyed("model", "optimizer", epoch=15)),
            ("best.pt", keyed("model", "optimizer", epoch=14)),
        ),
        "last.pt",
    ),
    Folder(
        "yolov6, best stripped",
        "meituan/YOLOv6 issue 341",
        (
            ("last_ckpt.pt", keyed("model", "optimizer", epoch=15)),
            ("best_ckpt.pt", keyed("model", None, optimizer=None, epoch=14)),
        ),
        "last_ckpt.pt",
    ),
    Folder(
        "diffusers lora",
        "huggingface/diffusers train_text_to_image_lora.py",
        (
            *accelerate("checkpoint-500"),
            *accelerate("checkpoint-1000"),
            ("pytorch_lora_weights.safetensors", safe(SMALL)),
        ),
        "checkpoint-1000",
        1000,
    ),
    Folder(
        "kohya",
        "kohya-ss/sd-scripts train_network.py --save_state",
        (
            ("lora-000010.safetensors", safe(SMALL, ss_steps="1000", ss_epoch="10")),
            *accelerate("lora-000010-state"),
            ("lora.safetensors", safe(SMALL, ss_steps="2000", ss_epoch="20")),
        ),
        "lora-000010-state",
    ),
    Folder(
        "vits",
        "jaywalnut310/vits utils.py save_checkpoint",
        pair("G_{}.pth", "D_{}.pth", (1000, 2000), state(iteration=7), state(OTHER, iteration=7)),
        "G_2000.pth",
        parts=("D_2000.pth",),
    ),
    Folder(
        "vits torn",
        "jobs trial 6",
        pair("G_{}.pth", "D_{}.pth", (1000, 2000), state(), state())[:3],
        "G_1000.pth",
        parts=("D_1000.pth",),
    ),
    Folder(
        "rvc overwritten",
        "RVC-Project train.py: save only latest",
        (("G_2333333.pth", state(iteration=9)), ("D_2333333.pth", state(OTHER, iteration=9))),
        "G_2333333.pth",
        parts=("D_2333333.pth",),
    ),
    Folder(
        "hifigan",
        "jik876/hifi-gan train.py: g_00005000 and do_00005000",
        tuple(
            file
            for n in (5000, 10000)
            for file in (
                (f"g_{n:08}", torch_file({"generator": NET})),
                (f"do_{n:08}", torch_file({"mpd": OTHER, "optim_g": adam(NET), "steps": n})),
            )
        ),
        ("do_00010000", "g_00010000"),
    ),
    Folder(
        "guided diffusion",
        "openai/guided-diffusion train_util.py",
        tuple(
            file
            for n in (10000, 20000)
            for file in (
                (f"model{n:06}.pt", model()),
                (f"ema_0.9999_{n:06}.pt", model()),
                (f"opt{n:06}.pt", optimizer()),
            )
        ),
        "model020000.pt",
    ),
    Folder(
        "guided diffusion torn",
        "openai/guided-diffusion",
        tuple(
            file
            for n in (10000, 20000)
            for file in (
                (f"model{n:06}.pt", model()),
                (f"ema_0.9999_{n:06}.pt", model()),
                (f"opt{n:06}.pt", optimizer()),
            )
        )[:5],
        "model010000.pt",
    ),
    Folder(
        "cyclegan",
        "junyanz/pytorch-CycleGAN-and-pix2pix base_model.py",
        tuple(
            (f"{n}_net_{part}.pth", model(OTHER if part[0] == "D" else NET))
            for n in (5, 10)
            for part in ("G_A", "G_B", "D_A", "D_B")
        ),
        "10_net_G_A.pth",
        parts=("10_net_D_A.pth", "10_net_D_B.pth", "10_net_G_B.pth"),
    ),
    Folder(
        "dcgan",
        "pytorch/examples dcgan main.py",
        pair("netG_epoch_{}.pth", "netD_epoch_{}.pth", (0, 1, 2), model(), model(OTHER)),
        "netG_epoch_2.pth",
        2,
        parts=("netD_epoch_2.pth",),
    ),
    Folder(
        "named networks with a state",
        "scripts with generator_N, discriminator_N and checkpoint_N",
        tuple(
            file
            for n in (1, 2)
            for file in (
                (f"generator_{n}.pth", model()),
                (f"discriminator_{n}.pth", model(OTHER)),
                (f"checkpoint_{n}.pth", state(epoch=n)),
            )
        ),
        "checkpoint_2.pth",
    ),
    Folder(
        "stylegan2",
        "rosinality/stylegan2-pytorch train.py",
        tuple(
            (f"{n:06}.pt", torch_file({"g": NET, "d": OTHER, "g_ema": NET, "g_optim": adam(NET)}))
            for n in (10000, 20000)
        ),
        "020000.pt",
        20000,
    ),
    Folder(
        "tortoise state",
        "neonbjb/DL-Art-School training_state/",
        tuple((f"{n}.state", keyed("schedulers", "optimizers", iter=n)) for n in (500, 1000)),
        "1000.state",
        1000,
    ),
    Folder(
        "stable audio",
        "Stability-AI/stable-audio-tools ModelCheckpoint",
        (
            ("epoch=0-step=10000.ckpt", lightning(10000)),
            ("epoch=1-step=20000.ckpt", lightning(20000, 1)),
            ("unwrapped.ckpt", torch_file({"state_dict": NET})),
        ),
        "epoch=1-step=20000.ckpt",
        20000,
    ),
    Folder(
        "lightning last and best",
        "Lightning-AI ModelCheckpoint save_last, save_top_k",
        (
            ("epoch=3-step=80.ckpt", lightning(80, 3)),
            ("last.ckpt", lightning(100, 4)),
            ("best.ckpt", lightning(80, 3)),
        ),
        "last.ckpt",
        100,
    ),
    Folder(
        "lightning last-v1",
        "jinsuyoo/act issue 2",
        (("last.ckpt", lightning(100, 4)), ("last-v1.ckpt", lightning(200, 8))),
        "last-v1.ckpt",
        200,
    ),
    Folder(
        "lightning weights only beside last",
        "unitaryai/detoxify issue 45",
        (
            ("last.ckpt", lightning(80, 3)),
            ("epoch=4-step=100.ckpt", lightning(100, 4, is_whole=False)),
        ),
        "last.ckpt",
    ),
    Folder(
        "openclip",
        "mlfoundations/open_clip main.py",
        (
            ("epoch_1.pt", keyed("state_dict", "optimizer", epoch=1)),
            ("epoch_2.pt", keyed("state_dict", "optimizer", epoch=2)),
            ("epoch_latest.pt", keyed("state_dict", "optimizer", epoch=3)),
        ),
        "epoch_latest.pt",
    ),
    Folder(
        "dino",
        "facebookresearch/dino main_dino.py",
        (
            ("checkpoint0000.pth", keyed("student", "optimizer", epoch=1, teacher=NET)),
            ("checkpoint0020.pth", keyed("student", "optimizer", epoch=21, teacher=NET)),
            ("checkpoint.pth", keyed("student", "optimizer", epoch=25, teacher=NET)),
            ("teacher_checkpoint.pth", keyed("teacher", None)),
        ),
        "checkpoint.pth",
    ),
    Folder(
        "dinov2 by rank",
        "facebookresearch/dinov2 fsdp FSDPCheckpointer: model_0012499.rank_0.pth",
        tuple(
            (f"model_{n:07}.rank_{rank}.pth", state(iteration=n))
            for n in (12499, 24999)
            for rank in range(4)
        ),
        "model_0024999.rank_0.pth",
        24999,
        parts=tuple(f"model_0024999.rank_{rank}.pth" for rank in (1, 2, 3)),
    ),
    Folder(
        "mae",
        "facebookresearch/mae misc.save_model",
        tuple((f"checkpoint-{n}.pth", state(epoch=n, scaler={"scale": 1.0})) for n in (0, 20, 40)),
        "checkpoint-40.pth",
    ),
    Folder(
        "torchtune",
        "pytorch/torchtune recipe_state",
        (
            *((f"epoch_{n}/model-0000{k}-of-00002.pt", model()) for n in (0, 1) for k in (1, 2)),
            ("recipe_state/recipe_state.pt", optimizer(seed=1, epochs_run=2)),
        ),
        "epoch_1",
        1,
    ),
    Folder(
        "lit-gpt",
        "Lightning-AI/litgpt pretrain.py",
        (
            *((f"iter-{n:06}-ckpt.pth", state(iter_num=n, step_count=n // 4)) for n in (800, 1600)),
            ("lit_model_finetuned.pth", model()),
        ),
        "iter-001600-ckpt.pth",
        1600,
    ),
    Folder(
        "trainer and its export",
        "huggingface/transformers Trainer, axolotl, trl, whisper fine tunes",
        (*hf(10), *hf(20), ("model.safetensors", safe()), ("config.json", b"{}")),
        "checkpoint-20",
        20,
    ),
    Folder(
        "trainer and an adapter",
        "axolotl-ai-cloud/axolotl lora",
        (*hf(10), *hf(20), ("adapter_model.safetensors", safe(SMALL))),
        "checkpoint-20",
        20,
    ),
    Folder(
        "trainer and a best model",
        "huggingface/trl examples",
        (*hf(10), *hf(20), ("best_model.pt", model()), ("trainer_log.npz", NUMBERS)),
        "checkpoint-20",
        20,
    ),
    Folder(
        "speechbrain",
        "speechbrain/speechbrain Checkpointer",
        tuple(
            (f"CKPT+2024-01-{day:02}+12-00-00+0{n}/{name}", content)
            for day, n in ((9, 1), (10, 0))
            for name, content in (
                ("model.ckpt", model()),
                ("optimizer.ckpt", optimizer()),
                ("CKPT.yaml", b"unixtime: 1"),
            )
        ),
        "CKPT+2024-01-10+12-00-00+00",
    ),
    Folder(
        "espnet",
        "espnet/espnet abs_task trainer.py",
        (
            *((f"{n}epoch.pth", model()) for n in (1, 2, 3)),
            ("checkpoint.pth", keyed("model", "optimizers", reporter={"epoch": 3})),
            ("valid.acc.ave_3best.pth", model()),
        ),
        "checkpoint.pth",
    ),
    Folder(
        "nemo",
        "NVIDIA/NeMo exp_manager",
        (
            ("model--val_loss=0.31-epoch=3.ckpt", lightning(300, 3)),
            ("model--val_loss=0.25-epoch=4-last.ckpt", lightning(400, 4)),
        ),
        "model--val_loss=0.25-epoch=4-last.ckpt",
        400,
    ),
    Folder(
        "coqui",
        "coqui-ai/TTS trainer",
        (
            ("checkpoint_10000.pth", state(step=10000, epoch=5)),
            ("best_model_9500.pth", state(step=9500, epoch=5)),
            ("best_model.pth", state(step=9500, epoch=5)),
            ("checkpoint_20000.pth", state(step=20000, epoch=9)),
        ),
        "checkpoint_20000.pth",
        20000,
    ),
    Folder(
        "nnunet",
        "MIC-DKFZ/nnUNet checkpoint_latest, checkpoint_best",
        (
            (
                "checkpoint_latest.pth",
                keyed("network_weights", "optimizer_state", current_epoch=50),
            ),
            ("checkpoint_best.pth", keyed("network_weights", "optimizer_state", current_epoch=45)),
        ),
        "checkpoint_latest.pth",
    ),
    Folder(
        "faster-rcnn pipeline",
        "sovit-123 issue 75: last_model_state.pth is the bare model",
        (
            ("last_model.pth", keyed("model_state_dict", "optimizer_state_dict", epoch=7)),
            ("last_model_state.pth", keyed("model_state_dict", None)),
            ("best_model.pth", keyed("model_state_dict", None, epoch=5)),
        ),
        "last_model.pth",
    ),
    Folder(
        "rf-detr",
        "roboflow/rf-detr issue 205",
        (
            ("checkpoint0009.pth", state(epoch=9)),
            ("checkpoint.pth", state(epoch=11)),
            ("checkpoint_best_ema.pth", keyed("model", None)),
            ("checkpoint_best_total.pth", keyed("model", None)),
        ),
        "checkpoint.pth",
    ),
    Folder(
        "sam2",
        "facebookresearch/sam2 training checkpoint.pt",
        (
            ("checkpoint.pt", state(epoch=3, steps={"train": 900, "val": 3})),
            ("checkpoint_3.pt", state(epoch=3, steps={"train": 900, "val": 3})),
        ),
        ("checkpoint.pt", "checkpoint_3.pt"),
    ),
    Folder(
        "cleanrl",
        "vwxyzjn/cleanrl, script variants: agent and its optimizer apart",
        tuple(
            file
            for n in (100, 200)
            for file in ((f"agent_{n}.pt", model()), (f"agent_{n}_optimizer.pt", optimizer()))
        ),
        "agent_200.pt",
        parts=("agent_200_optimizer.pt",),
    ),
    Folder(
        "sac",
        "RL scripts: actor, critic and a replay buffer",
        tuple(
            file
            for n in (1000, 2000)
            for file in (
                (f"actor_{n}.pth", model()),
                (f"critic_{n}.pth", model(OTHER)),
                (f"replay_buffer_{n}.pt", torch_file({"obs": Tensor((5000, 8))})),
            )
        ),
        "actor_2000.pth",
        parts=("critic_2000.pth",),
    ),
    Folder(
        "fastai",
        "fastai/fastai Learner.save with_opt",
        (("model_0.pth", keyed("model", "opt")), ("model_1.pth", keyed("model", "opt"))),
        "model_1.pth",
    ),
    Folder(
        "jax script",
        "flax-like npz saves",
        tuple(
            (f"ckpt_{n:05}.npz", npz_file(w=[0.5] * 9, opt_w=[0.5] * 9, step=n)) for n in (5, 10)
        ),
        "ckpt_00010.npz",
        10,
    ),
    Folder(
        "weights by epoch and a resume file",
        "SwinTransformer forks, DETR: checkpoint.pth overwritten, weights kept",
        (
            *numbered("weights_epoch_{}.pth", (1, 2, 3), model()),
            ("checkpoint.pth", state(epoch=3)),
        ),
        "checkpoint.pth",
    ),
    Folder(
        "weights by epoch and an older resume file",
        "the same, killed between the two",
        (
            ("checkpoint.pth", state(epoch=3)),
            ("weights_epoch_4.pth", model()),
            ("weights_epoch_5.pth", model()),
        ),
        "checkpoint.pth",
    ),
    Folder(
        "weights alone",
        "scripts that save state_dict each epoch",
        (*numbered("model_epoch_{}.pth", (1, 2, 3), model()), ("best_model.pth", model())),
        "model_epoch_3.pth",
        3,
    ),
    Folder(
        "weights alone, with their predictions",
        "evaluation after each epoch",
        tuple(
            file
            for n in (1, 2)
            for file in (
                (f"model_epoch_{n}.pth", model()),
                (f"predictions_epoch_{n}.pth", torch_file({"y": Tensor((10, 3))})),
            )
        ),
        "model_epoch_2.pth",
        2,
    ),
    Folder(
        "last newer than the newest epoch",
        "issue 31: among files alike time orders",
        (*numbered("epoch_{}.pt", (1, 2, 3), state()), ("last.pt", state())),
        "last.pt",
    ),
    Folder(
        "last older than the newest epoch",
        "issue 31",
        (("last.pt", state()), *numbered("epoch_{}.pt", (1, 2, 3), state())),
        "epoch_3.pt",
        3,
    ),
    Folder(
        "last of another kind",
        "issue 31: without a step, unlike the series",
        (*numbered("epoch_{}.pt", (1, 2, 3), state()), ("last.pt", state(OTHER))),
        "epoch_3.pt",
    ),
    Folder(
        "best that is whole, just after its epoch",
        "scripts that copy the best state",
        (*numbered("epoch_{}.pt", (1, 2, 3), state()), ("best.pt", state(), 190.0)),
        "epoch_3.pt",
    ),
    Folder(
        "rotation with a number each",
        "keep last 2, best and last",
        (
            ("ckpt_step_1k.pt", state()),
            ("ckpt_step_2k.pt", state()),
            ("ckpt_step_10k.pt", state()),
            ("ckpt_step_9k.pt", state()),
        ),
        "ckpt_step_10k.pt",
        10000,
    ),
    Folder(
        "thousands",
        "trackers: 10k.pt, 20k.pt",
        (("10k.pt", state()), ("20k.pt", state()), ("ema.pt", model())),
        "20k.pt",
        20000,
    ),
    Folder(
        "steps after their number",
        "DLR-RM/stable-baselines3 CheckpointCallback names, saved by torch",
        tuple((f"rl_model_{n}_steps.pt", state()) for n in (5000, 10000)),
        "rl_model_10000_steps.pt",
        10000,
    ),
    Folder(
        "dated names",
        "scripts with a date and a step",
        (
            ("run_2026-11-27_step900.pt", state()),
            ("run_2026-11-28_step1000.pt", state()),
        ),
        "run_2026-11-28_step1000.pt",
        1000,
    ),
    Folder(
        "dates alone",
        "scripts that name saves by time",
        tuple(
            (f"ckpt_2026-11-{day}_{hour}-00.pt", state())
            for day, hour in ((27, 22), (27, 23), (28, 10))
        ),
        "ckpt_2026-11-28_10-00.pt",
    ),
    Folder(
        "losses in names",
        "Keras-like names with a metric",
        (
            ("model-epoch=09-val_loss=0.25.pt", state()),
            ("model-epoch=10-val_loss=0.31.pt", state()),
        ),
        "model-epoch=10-val_loss=0.31.pt",
        10,
    ),
    Folder(
        "torn newest",
        "any script killed in torch.save",
        (("step_10.pt", state(step=10)), ("step_20.pt", state(step=20)[:-30])),
        "step_10.pt",
        10,
    ),
    Folder(
        "torn last, with a best model",
        "any script killed in torch.save of last.pt",
        (("epoch_1.pt", state()), ("best.pt", model()), ("last.pt", state()[:-30])),
        "epoch_1.pt",
    ),
    Folder(
        "flat files by rank",
        "jobs trial 6: step_200_rank_3.pt was given to all",
        tuple(
            (f"step_{n}_rank_{r}.pt", state(step=n, rank=r)) for n in (100, 200) for r in range(4)
        ),
        "step_200_rank_0.pt",
        200,
        parts=tuple(f"step_200_rank_{rank}.pt" for rank in (1, 2, 3)),
    ),
    Folder(
        "flat files by rank, torn",
        "jobs trial 6: SimpleTuner 2986, Automodel 3437",
        tuple(
            (f"ckpt_rank{r}_step{n}.pt", state(step=n, rank=r))
            for n in (100, 200)
            for r in range(4)
            if (n, r) != (200, 3)
        ),
        "ckpt_rank0_step100.pt",
        100,
        parts=tuple(f"ckpt_rank{rank}_step100.pt" for rank in (1, 2, 3)),
    ),
    Folder(
        "flat files by rank, of two steps",
        "jobs trial 6",
        tuple((f"rank{r}.pt", state(step=200 if r < 3 else 100)) for r in range(4)),
        "",
    ),
    Folder(
        "parts of a number",
        "vLLM-like names: 3of8",
        tuple((f"ckpt-{n}-{k}of4.pt", model()) for n in (10, 20) for k in (1, 2, 3, 4)),
        "ckpt-20-1of4.pt",
        20,
        parts=tuple(f"ckpt-20-{k}of4.pt" for k in (2, 3, 4)),
    ),
    Folder(
        "parts of a number, the first save torn",
        "vLLM-like names",
        tuple((f"ckpt-10-{k}of4.pt", model()) for k in (1, 2, 4)),
        "",
    ),
    Folder(
        "model parallel ranks in a flat folder",
        "Megatron-like scripts: mp_rank_00",
        tuple((f"iter_{n}_mp_rank_{r:02}.pt", state()) for n in (100, 200) for r in range(2)),
        "iter_200_mp_rank_00.pt",
        200,
        parts=("iter_200_mp_rank_01.pt",),
    ),
    Folder(
        "model and optimizer by rank",
        "verl-like names in a flat folder",
        tuple(
            (f"step_{n}_{what}_world_size_2_rank_{r}.pt", content)
            for n in (10, 20)
            for what, content in (("model", model()), ("optim", optimizer()))
            for r in range(2)
        ),
        "step_20_model_world_size_2_rank_0.pt",
        20,
    ),
    Folder(
        "model and optimizer by rank, torn",
        "verl-like names in a flat folder",
        tuple(
            (f"step_{n}_{what}_world_size_2_rank_{r}.pt", content)
            for n in (10, 20)
            for what, content in (("model", model()), ("optim", optimizer()))
            for r in range(2)
        )[:7],
        "step_10_model_world_size_2_rank_0.pt",
        10,
    ),
    Folder(
        "two models of a number",
        "unet and text encoder apart",
        pair("unet_{}.pt", "text_encoder_{}.pt", (500, 1000), model(OTHER), model()),
        "unet_1000.pt",
    ),
    Folder(
        "any pair of a number, torn",
        "flow and vocoder",
        pair("flow_{}.pt", "vocoder_{}.pt", (500, 1000), state(OTHER), state())[:3],
        "flow_500.pt",
        parts=("vocoder_500.pt",),
    ),
    Folder(
        "a best copy of some numbers is no part of a save",
        "best_N beside epoch_N",
        (
            ("epoch_10.pt", state()),
            ("best_10.pt", state()),
            ("epoch_20.pt", state()),
        ),
        "epoch_20.pt",
        20,
    ),
    Folder(
        "slots",
        "scripts that write two files in turn",
        (("ckpt_1.pt", state()), ("ckpt_0.pt", state())),
        "ckpt_0.pt",
    ),
    Folder(
        "overwritten folder and best folder",
        "scripts with last/ and best/",
        (
            ("last/model.pt", model()),
            ("last/optimizer.pt", optimizer()),
            ("best/model.pt", model()),
        ),
        "last",
    ),
    Folder(
        "state in step folders",
        "OLMo, SpecForge: training_state.pt",
        (
            *((f"step_{n}/training_state.pt", state(step=n)) for n in (1000, 2000)),
            ("final.pt", model()),
        ),
        "step_2000",
        2000,
    ),
    Folder(
        "backup of the latest",
        "dexmal/opendm: latest.pt.bak",
        (("latest.pt.bak", state(step=100)), ("latest.pt", state(step=200)[:-30])),
        "latest.pt.bak",
    ),
    Folder(
        "two runs of other models",
        "a folder used again for another model",
        (
            *numbered("pretrain_step_{}.pt", (500, 1000), state(OTHER)),
            *numbered("finetune_step_{}.pt", (10, 20), state()),
        ),
        "finetune_step_20.pt",
        20,
    ),
    Folder(
        "a teacher in each save, and alone",
        "distillation scripts",
        (
            *((f"ckpt_{n}.pth", keyed("student", "optimizer", teacher=OTHER)) for n in (10, 20)),
            ("teacher_init.pth", model(OTHER)),
            ("student_best.pth", model()),
        ),
        "ckpt_20.pth",
        20,
    ),
)

BESIDE_FILES: Final = tuple(
    Folder(f"steps and {name}", "jobs trial 1 (mk2.py)", steps((name, content)), "step_300.pt", 300)
    for name, content in SIDE
)
BESIDE_FOLDERS: Final = tuple(
    Folder(
        f"step folders and {name}",
        "jobs trial 1 (mk2.py)",
        (
            *(
                (f"step_{n}/{file}", inner)
                for n in (100, 200)
                for file, inner in (("model.pt", model()), ("optimizer.pt", optimizer()))
            ),
            (name, content),
        ),
        "step_200",
        200,
    )
    for name, content in SIDE[::4]
)
BESIDE_LAST: Final = tuple(
    Folder(
        f"last and {name}",
        "jobs trial 1 (best.py): nothing has a number",
        (("last.pt", state()), (name, content)),
        "last.pt",
    )
    for name, content in SIDE[1::2]
)
BIG: Final = weights(64, 6, "enc")
# Written after the rules, to try them: what a script may do beside what projects do.
_SIBLINGS: Final[tuple[tuple[str, Any, str | tuple[str, ...]], ...]] = (
    (
        "series of samples",
        [
            (f"step_{n}.pt", state(step=n))
            if i == 0
            else (f"samples_{n}.pt", torch_file({"x": Tensor((64, 3, 8, 8))}))
            for n in (1, 2, 3)
            for i in (0, 1)
        ],
        "step_3.pt",
    ),
    (
        "eval npz series beside weights series",
        [f for n in (1, 2, 3) for f in ((f"model_{n}.pt", model()), (f"eval_{n}.npz", NUMBERS))],
        "model_3.pt",
    ),
    (
        "npz world",
        [
            *[
                f
                for n in (1, 2, 3)
                for f in (
                    (f"ckpt-{n}.npz", npz_file(w=[[0.5] * 9], b=[1.0])),
                    ("metrics.npz", NUMBERS),
                )
            ][:-1],
            ("metrics.npz", NUMBERS),
        ],
        "ckpt-3.npz",
    ),
    (
        "safetensors world",
        [(f"model-{n}.safetensors", safe()) for n in (100, 200)]
        + [("model-ema.safetensors", safe()), ("tokenizer_emb.safetensors", safe(SMALL))],
        "model-200.safetensors",
    ),
    (
        "lightning + swa",
        [
            ("epoch=1-step=10.ckpt", lightning(10, 1)),
            ("epoch=2-step=20.ckpt", lightning(20, 2)),
            ("swa.ckpt", model()),
            ("hparams.pt", torch_file({"a": 1})),
        ],
        "epoch=2-step=20.ckpt",
    ),
    (
        "ckpt + optimizer-only newer",
        [("epoch_1.pt", model()), ("epoch_2.pt", model()), ("optimizer.pt", optimizer())],
        "epoch_2.pt",
    ),
    (
        "checkpoint.pth + log.pth",
        [("checkpoint.pth", state()), ("log.pth", torch_file({"train_loss": [0.1] * 10}))],
        "checkpoint.pth",
    ),
    (
        "latest.pt + polyak.pt + critic.pt",
        [("latest.pt", state(step=9)), ("polyak.pt", model()), ("critic.pt", state(OTHER))],
        "latest.pt",
    ),
    (
        "snapshot_10.pt (tensor dict) + ref_model.pt big",
        [(f"snapshot_{n}.pt", state(epoch=n)) for n in (5, 10)] + [("ref_model.pt", model(BIG))],
        "snapshot_10.pt",
    ),
    (
        "iter_ in words",
        [(f"iter{n}.pt", state()) for n in (9, 10, 11)] + [("val_preds.npz", NUMBERS)],
        "iter11.pt",
    ),
    (
        "moving avg names",
        [("model.pt", state(epoch=4)), ("model_avg.pt", model()), ("model_swa.pt", model())],
        "model.pt",
    ),
    ("best with optimizer, last weights", [("last.pt", model()), ("best.pt", state())], "best.pt"),
    (
        "resume file",
        [
            ("weights_1.pt", model()),
            ("weights_2.pt", model()),
            ("resume.pt", state()),
            ("weights_3.pt", model()),
        ],
        "resume.pt",
    ),
    (
        "torn newest series + side",
        [
            ("it100.pth", state()),
            ("it200.pth", state()),
            ("it300.pth", state()[:-40]),
            ("result.npz", NUMBERS),
        ],
        "it200.pth",
    ),
    (
        "per gpu",
        [(f"ckpt_{n}_gpu{r}.pt", state(step=n)) for n in (10, 20) for r in range(2)],
        "ckpt_20_gpu0.pt",
    ),
    (
        "rank dash",
        [
            (f"step-{n}-rank-{r:02}.ckpt", state())
            for n in (10, 20)
            for r in range(3)
            if (n, r) != (20, 1)
        ],
        "step-10-rank-00.ckpt",
    ),
    (
        "shard of",
        [(f"model_step{n}_shard{k}of2.safetensors", safe()) for n in (1, 2) for k in (1, 2)][:3],
        "model_step1_shard1of2.safetensors",
    ),
    (
        "pi / vf",
        [f for n in (10, 20) for f in ((f"pi_{n}.pt", state()), (f"vf_{n}.pt", state(OTHER)))][:3],
        ("pi_10.pt", "vf_10.pt"),
    ),
    (
        "student/teacher series",
        [f for n in (10, 20) for f in ((f"student_{n}.pt", state()), (f"teacher_{n}.pt", model()))],
        "student_20.pt",
    ),
    ("zero pad", [(f"{n:08d}.ckpt", state()) for n in (999, 1000, 10000)], "00010000.ckpt"),
    (
        "hash names",
        [
            ("ckpt_ab12.pt", state(step=5)),
            ("ckpt_cd34.pt", state(step=9)),
            ("ckpt_00ff.pt", state(step=7)),
        ],
        "ckpt_cd34.pt",
    ),
    ("ckpt.pth + ckpt_prev.pth", [("ckpt_prev.pth", state()), ("ckpt.pth", state())], "ckpt.pth"),
    (
        "prev newer since torn",
        [("ckpt_prev.pth", state()), ("ckpt.pth", state()[:-50])],
        "ckpt_prev.pth",
    ),
    (
        "quantized",
        [
            ("model_ep3.pt", state(epoch=3)),
            ("model_ep4.pt", state(epoch=4)),
            ("model_int8.pt", model()),
            ("onnx_ready.pt", model()),
        ],
        "model_ep4.pt",
    ),
    (
        "tokenizer/codebook",
        [
            ("vq_100.pt", state(global_step=100)),
            ("vq_200.pt", state(global_step=200)),
            ("codebook.pt", torch_file({"embed": Tensor((512, 64))})),
            ("fid_stats.npz", npz_file(mu=[1.0], sigma=[[1.0]])),
        ],
        "vq_200.pt",
    ),
    (
        "ema weights series beside state series",
        [
            f
            for n in (100, 200)
            for f in ((f"ckpt_{n}.pt", state(step=n)), (f"ckpt_{n}_ema.pt", model()))
        ],
        "ckpt_200.pt",
    ),
    (
        "ema every other",
        [("ckpt_100.pt", state()), ("ckpt_100_ema.pt", model()), ("ckpt_200.pt", state())],
        "ckpt_200.pt",
    ),
    (
        "lora adapters beside full",
        [(f"step{n}.pt", state(step=n)) for n in (5, 10)]
        + [(f"step{n}_lora.safetensors", safe(SMALL)) for n in (5, 10)],
        "step10.pt",
    ),
    (
        "wandb artifact copy",
        [
            ("epoch-1.ckpt", lightning(10)),
            ("epoch-2.ckpt", lightning(20)),
            ("model.ckpt", lightning(20)),
        ],
        ("model.ckpt", "epoch-2.ckpt"),
    ),
    (
        "keep best k",
        [
            ("best_0.91_epoch_3.pt", state(epoch=3)),
            ("best_0.93_epoch_7.pt", state(epoch=7)),
            ("last.pt", state(epoch=9)),
        ],
        "last.pt",
    ),
    (
        "best k, last stale (epoch)",
        [("last.pt", state(epoch=6)), ("best_0.93_epoch_7.pt", state(epoch=7))],
        "best_0.93_epoch_7.pt",
    ),
    (
        "sched+scaler in own files",
        [
            f
            for n in (1, 2)
            for f in (
                (f"model_{n}.pt", model()),
                (f"optimizer_{n}.pt", optimizer()),
                (f"scheduler_{n}.pt", torch_file({"last_epoch": n})),
                (f"scaler_{n}.pt", torch_file({"scale": 1.0})),
            )
        ],
        "model_2.pt",
    ),
    (
        "optimizer named step_N_opt",
        [f for n in (1, 2) for f in ((f"step_{n}.pt", model()), (f"step_{n}_opt.pt", optimizer()))][
            :3
        ],
        "step_1.pt",
    ),
    (
        "per-epoch metrics only",
        [
            ("model.pt", state()),
            ("metrics_epoch_1.npz", NUMBERS),
            ("metrics_epoch_2.npz", NUMBERS),
            ("metrics_epoch_3.npz", NUMBERS),
        ],
        "model.pt",
    ),
    (
        "weights + metrics series no opt",
        [("model.pt", model()), ("metrics_epoch_1.npz", NUMBERS), ("metrics_epoch_2.npz", NUMBERS)],
        "model.pt",
    ),
    (
        "hydra cfg",
        [
            ("checkpoint-10.pt", state(cfg={"optimizer": {"name": "adam"}})),
            ("cfg.pt", torch_file({"optimizer": {"name": "adam", "lr": 0.1}, "model": {"n": 1}})),
        ],
        "checkpoint-10.pt",
    ),
    (
        "optuna study",
        [
            ("trial_best_params.pt", torch_file({"optimizer": "adam", "lr": 0.1})),
            ("ckpt.pt", state()),
        ],
        "ckpt.pt",
    ),
    (
        "two sizes time",
        [("small_last.pt", state()), ("large_last.pt", state(BIG))],
        "large_last.pt",
    ),
    (
        "loss tensor in state",
        [("m.pt", state(best=Tensor(()))), ("n.pt", state(best=Tensor((1,))))],
        "n.pt",
    ),
    (
        "gen disc dash",
        [
            f
            for n in (5, 10)
            for f in (
                (f"generator-epoch-{n}.pt", model()),
                (f"discriminator-epoch-{n}.pt", model(OTHER)),
            )
        ][:3],
        "generator-epoch-5.pt",
    ),
    (
        "G_A2B",
        [
            f
            for n in (5, 10)
            for f in (
                (f"G_A2B_{n}.pth", model()),
                (f"G_B2A_{n}.pth", model()),
                (f"D_A_{n}.pth", model(OTHER)),
                (f"D_B_{n}.pth", model(OTHER)),
            )
        ],
        "G_A2B_10.pth",
    ),
    (
        "net_g/net_d latest",
        [
            *[
                ("net_g_latest.pth", model()),
                ("net_d_latest.pth", model(OTHER)),
                ("net_g_5000.pth", model()),
                ("net_d_5000.pth", model(OTHER)),
            ][2:],
            ("net_g_latest.pth", model()),
            ("net_d_latest.pth", model(OTHER)),
        ],
        ("net_g_latest.pth", "net_g_5000.pth"),
    ),
    (
        "world size",
        [(f"optim_step10_world_size_2_rank_{r}.pt", optimizer()) for r in (0, 1)]
        + [(f"model_step10_world_size_2_rank_{r}.pt", model()) for r in (0, 1)],
        "model_step10_world_size_2_rank_0.pt",
    ),
    (
        "kfold",
        [(f"fold{k}_best.pt", state()) for k in (0, 1, 2)] + [("last.pt", state())],
        "last.pt",
    ),
    (
        "replay pickled np",
        [("agent.pt", state()), ("buffer.pt", torch_file({"obs": Tensor((10**6, 4)), "ptr": 3}))],
        "agent.pt",
    ),
    (
        "dcgan flat",
        [
            ("netG.pth", model()),
            ("netD.pth", model(OTHER)),
            ("fixed_noise.pt", torch_file(Tensor((64, 100)))),
        ],
        "netG.pth",
    ),
    (
        "actor critic",
        [("actor.pt", state()), ("critic.pt", state(OTHER)), ("obs_rms.npz", npz_file(mean=[1.0]))],
        "actor.pt",
    ),
    ("iter-rank in content", [(f"rank{r}.pt", state(step=5)) for r in range(2)], "rank0.pt"),
    (
        "update number",
        [
            ("checkpoint_12_34000.pt", state()),
            ("checkpoint_12_35000.pt", state()),
            ("checkpoint_best.pt", state()),
        ],
        "checkpoint_12_35000.pt",
    ),
    (
        "ep-ba sharded",
        [(f"ep0-ba{b}-rank{r}.pt", composer(b, 0)) for b in (100, 200) for r in range(2)][:3],
        "ep0-ba100-rank0.pt",
    ),
    (
        "50k",
        [("model_50k.pth", state()), ("model_100k.pth", state()), ("model_final_ema.pth", model())],
        "model_100k.pth",
    ),
    (
        "v2 suffix",
        [("last.ckpt", state()), ("last-v1.ckpt", state()), ("last-v2.ckpt", state())],
        "last-v2.ckpt",
    ),
    (
        "date dirs",
        [
            (f"ckpt-2026{m}01/{k}", c)
            for m in ("01", "02")
            for k, c in (("model.pt", model()), ("optimizer.pt", optimizer()))
        ],
        "ckpt-20260201",
    ),
    (
        "best whole far newer",
        [("epoch_10.pt", state()), ("epoch_20.pt", state()), ("best.pt", state(), 60 * 2 + 61)],
        "best.pt",
    ),
    (
        "speech lm",
        [(f"lm_{n}.pt", state(iteration=n)) for n in (10, 20)]
        + [("bpe.pt", torch_file({"merges": ["a b"]})), ("lm_final_avg10.pt", model())],
        "lm_20.pt",
    ),
    (
        "frozen backbone",
        [(f"head_ep{n}.pth", state(SMALL)) for n in (1, 2)] + [("backbone.pth", model())],
        "head_ep2.pth",
    ),
    (
        "world model",
        [
            (
                "latest.pt",
                torch_file({"wm": NET, "actor": SMALL, "opts": {"wm": adam(NET)}, "step": 500}),
            ),
            ("episodes.npz", npz_file(obs=[[0.1] * 64] * 99)),
            ("video.pt", torch_file(IMAGE)),
        ],
        "latest.pt",
    ),
    (
        "jax opt",
        [(f"params_{n}.npz", npz_file(w=[[0.1] * 9] * 9)) for n in (1, 2)]
        + [("opt_state.npz", npz_file(mu_w=[[0.1] * 9] * 9, nu_w=[[0.1] * 9] * 9))],
        "params_2.npz",
    ),
    (
        "rotate a/b",
        [
            ("state_a.pt", state(step=30)),
            ("state_b.pt", state(step=40)),
            ("state_a.pt.meta.npz", NUMBERS),
        ],
        "state_b.pt",
    ),
    (
        "rotate a/b no step",
        [("state_b.pt", state()), ("state_a.pt", state()), ("tsne.npz", NUMBERS)],
        "state_a.pt",
    ),
    (
        "hidden final opt stripped",
        [
            ("iter_100.pth", state(iteration=100)),
            ("iter_200.pth", state(iteration=200)),
            ("iter_300.pth", model()),
        ],
        "iter_200.pth",
    ),
    (
        "calibration",
        [
            ("ckpt.pt", state(epoch=3)),
            ("calibration.pt", torch_file({"temperature": Tensor((1,))})),
            ("thresholds.npz", NUMBERS),
            ("fisher.pt", model()),
        ],
        "ckpt.pt",
    ),
    (
        "lr finder",
        [
            ("lr_find.ckpt", lightning(0, 0)),
            ("epoch=0-step=50.ckpt", lightning(50, 0)),
            ("epoch=1-step=100.ckpt", lightning(100, 1)),
        ],
        "epoch=1-step=100.ckpt",
    ),
    (
        "mean teacher state file",
        [
            (
                f"mt_{n}k.pth",
                torch_file(
                    {"student": NET, "teacher": NET, "optimizer": adam(NET), "iter": n * 1000}
                ),
            )
            for n in (4, 8)
        ]
        + [("mt_teacher_8k.pth", model())],
        "mt_8k.pth",
    ),
    (
        "soup",
        [(f"run{n}_last.pt", state()) for n in (1, 2)] + [("soup.pt", model())],
        "run2_last.pt",
    ),
    (
        "probing",
        [(f"checkpoint-{n}.pt", state(global_step=n)) for n in (50, 100)]
        + [("probe_100.pt", state(SMALL)), ("probe_200.pt", state(SMALL))],
        "checkpoint-100.pt",
    ),
    (
        "nested best dirs",
        [
            (f"checkpoint-{n}/{k}", c)
            for n in (5, 10)
            for k, c in (("model.pt", model()), ("optim.pt", optimizer()))
        ]
        + [("best/model.pt", model()), ("predictions.npz", NUMBERS)],
        "checkpoint-10",
    ),
    (
        "disc first",
        [f for n in (7, 14) for f in ((f"disc_{n}.pt", state(OTHER)), (f"gen_{n}.pt", state()))],
        "gen_14.pt",
    ),
    (
        "disc first torn",
        [f for n in (7, 14) for f in ((f"disc_{n}.pt", state(OTHER)), (f"gen_{n}.pt", state()))][
            :3
        ],
        "gen_7.pt",
    ),
    (
        "encoder decoder",
        [
            f
            for n in (7, 14)
            for f in ((f"encoder-{n}.ckpt", model()), (f"decoder-{n}.ckpt", model(OTHER)))
        ],
        "encoder-14.ckpt",
    ),
    (
        "three roles any",
        [
            f
            for n in (1, 2)
            for f in (
                (f"text_{n}.pt", model()),
                (f"audio_{n}.pt", model(OTHER)),
                (f"fusion_{n}.pt", model(SMALL)),
            )
        ][:5],
        "audio_1.pt",
    ),
    (
        "r00 ranks",
        [(f"ckpt_s{n}_r{r:02}.pt", state(step=n)) for n in (10, 20) for r in range(4)][:7],
        "ckpt_s10_r00.pt",
    ),
    (
        "pp/tp",
        [
            (f"step{n}_tp{t}_pp{p}.pt", state(step=n))
            for n in (10, 20)
            for t in (0, 1)
            for p in (0, 1)
        ],
        "step20_tp0_pp0.pt",
    ),
    (
        "pp/tp torn",
        [
            (f"step{n}_tp{t}_pp{p}.pt", state(step=n))
            for n in (10, 20)
            for t in (0, 1)
            for p in (0, 1)
        ][:7],
        "step10_tp0_pp0.pt",
    ),
    (
        "rank prefix",
        [(f"rank{r}_epoch{n}.pt", state(epoch=n)) for n in (1, 2) for r in (0, 1)][:3],
        "rank0_epoch1.pt",
    ),
    (
        "0001-of-0004",
        [(f"epoch{n}.{k:04}-of-0004.pt", model()) for n in (1, 2) for k in range(1, 5)][:7],
        "epoch1.0001-of-0004.pt",
    ),
    (
        "zero-based of",
        [(f"m{n}-{k:05}-of-00003.safetensors", safe()) for n in (1, 2) for k in range(3)],
        "m2-00000-of-00003.safetensors",
    ),
    (
        "gpt2 124M",
        [(f"gpt2-124M_{n}.pt", state(step=n)) for n in (5, 10)] + [("gpt2-124M.pt", model())],
        "gpt2-124M_10.pt",
    ),
    (
        "iter & val",
        [(f"model_{n}_iters.pth", state()) for n in (1000, 9000, 10000)]
        + [("val_10000.npz", NUMBERS)],
        "model_10000_iters.pth",
    ),
    (
        "best_acc names",
        [
            ("resnet_best_acc_0.91.pth", state(epoch=9)),
            ("resnet_last.pth", state(epoch=12)),
            ("resnet_best_acc_0.93.pth", state(epoch=11)),
        ],
        "resnet_last.pth",
    ),
    (
        "optimizer inside, weights series younger",
        [
            ("train_state.pt", state(epoch=5)),
            ("epoch5.safetensors", safe()),
            ("epoch6.safetensors", safe()),
        ],
        "train_state.pt",
    ),
    (
        "legacy side",
        [("step_5.pt", state(step=5)), ("old.pth", b"\x80\x02}."), ("x.tar", b"ustar")],
        "step_5.pt",
    ),
    (
        "emb tables",
        [
            ("ckpt-1.pt", state()),
            ("ckpt-2.pt", state()),
            ("item_emb.pt", torch_file(Tensor((5000, 64)))),
            ("user_emb.npz", npz_file(u=[[0.1] * 8] * 99)),
        ],
        "ckpt-2.pt",
    ),
    (
        "quant export of each",
        [f for n in (1, 2) for f in ((f"model_{n}.pt", state()), (f"model_{n}_int8.pt", model()))],
        "model_2.pt",
    ),
    (
        "copy older run",
        [
            ("backup_step_900.pt", state(step=900)),
            ("step_10.pt", state(step=1010)),
            ("step_20.pt", state(step=1020)),
        ],
        "step_20.pt",
    ),
    (
        "a higher step of before, set aside",
        [
            ("old_ckpt_5000.pt", state(step=5000)),
            *((f"ckpt_{n}.pt", state(step=n)) for n in (100, 200)),
        ],
        "ckpt_200.pt",
    ),
    (
        "what the save before is renamed to",
        [("ckpt_old.pt", state(step=100)), ("ckpt.pt", state(step=200))],
        "ckpt.pt",
    ),
    (
        "only what the save before is renamed to is newer",
        [("step_100.pt", state(step=100)), ("last_old.pt", state(step=200))],
        "last_old.pt",
    ),
    (
        "ranks without a word",
        [(f"step{n}.{r}.pt", state(step=n)) for n in (10, 20) for r in range(4)],
        "step20.0.pt",
    ),
    (
        "ranks without a word, torn",
        [(f"step{n}.{r}.pt", state(step=n)) for n in (10, 20) for r in range(4)][:6],
        "step10.0.pt",
    ),
    (
        "ranks without a word behind a dash",
        [(f"ckpt-{n}-{r}.pth", state(step=n)) for n in (10, 20) for r in range(2)],
        "ckpt-20-0.pth",
    ),
    (
        "batches of an epoch that tell their steps",
        [(f"ckpt_{e}_{b}.pt", state(step=2 * e + b)) for e in (1, 2) for b in range(2)],
        "ckpt_2_1.pt",
    ),
)
SIBLINGS: Final = tuple(
    Folder(name, "scripts, tried after the rules were written", tuple(files), truth)
    for name, files, truth in _SIBLINGS
)


def at(name: str, content: bytes, minute: float) -> tuple[str, bytes, float]:
    return name, content, 60 * minute


# A second run in the folder of a first one, and what looks like one but is a copy.
OVERWRITTEN: Final = (
    Folder(
        "rerun over the first epochs",
        "scripts that name files by epoch and are started anew in one folder",
        (
            *(at(f"epoch_{n}.pt", state(), n) for n in range(3, 9)),
            *(at(f"epoch_{n}.pt", state(), 100 + n) for n in (1, 2)),
        ),
        "epoch_2.pt",
    ),
    Folder(
        "rerun whose content tells the step",
        "nanoGPT-like scripts started anew in one folder",
        (
            *(at(f"step_{n}.pt", state(step=n), n / 100) for n in range(400, 1100, 100)),
            *(at(f"step_{n}.pt", state(step=n), 100 + n / 100) for n in (100, 200, 300)),
        ),
        "step_300.pt",
        300,
    ),
    Folder(
        "rolled back and trained on",
        "a person restored step 200 after the loss had exploded",
        (
            *(at(f"step_{n}.pt", state(step=n), n / 100) for n in (100, 200, 500, 600)),
            *(at(f"step_{n}.pt", state(step=n), 100 + n / 100) for n in (300, 400)),
        ),
        "step_400.pt",
        400,
    ),
    Folder(
        "trainer folders of a rerun",
        "Trainer with overwrite_output_dir in a folder that is not empty",
        tuple(
            at(name, content, minute)
            for step, minute in ((300, 3), (400, 4), (500, 5), (100, 101), (200, 102))
            for name, content in hf(step)
        ),
        "checkpoint-200",
        200,
    ),
    Folder(
        "two old files copied",
        "files brought back from another disk without their times",
        (
            *(at(f"epoch_{n}.pt", state(), n) for n in range(3, 9)),
            *(at(f"epoch_{n}.pt", state(), 100 + n / 600) for n in (1, 2)),
        ),
        "epoch_8.pt",
    ),
    Folder(
        "one old file touched",
        "an evaluation that writes its result into one checkpoint",
        (*(at(f"epoch_{n}.pt", state(), n) for n in range(2, 9)), at("epoch_1.pt", state(), 101)),
        "epoch_8.pt",
    ),
    Folder(
        "all copied in the order of names",
        "rsync without --times",
        tuple(
            at(f"epoch_{n}.pt", state(), 100 + place / 60)
            for place, n in enumerate((1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9))
        ),
        "epoch_11.pt",
    ),
    Folder(
        "copied from the newest down",
        "ls -t | xargs cp",
        tuple(at(f"epoch_{n}.pt", state(), 100 - n / 60) for n in range(1, 9)),
        "epoch_8.pt",
    ),
    Folder(
        "copied in no order",
        "a copy by several processes",
        tuple(
            at(f"epoch_{n}.pt", state(), 100 + place)
            for place, n in enumerate((6, 2, 8, 1, 5, 7, 3, 4))
        ),
        "epoch_8.pt",
    ),
    Folder(
        "NequIP",
        "nequip before 0.7: trainer.pth has the optimizer, last_model.pth the weights",
        (
            at("best_model.pth", model(), 3),
            at("last_model.pth", model(), 9),
            at("trainer.pth", optimizer(progress={"epoch": 9}), 9.01),
            at("metrics_epoch.csv", b"epoch,loss\n", 9.02),
        ),
        ("last_model.pth", "trainer.pth"),
    ),
    Folder(
        "the same numbers under two names",
        "two experiments of one model in one folder",
        (
            *(at(f"a_{n}.pt", state(step=n), n) for n in (10, 20)),
            *(at(f"other_{n}.pt", state(step=n), 100 + n) for n in (10, 20)),
        ),
        "other_20.pt",
        20,
    ),
    Folder(
        "the same numbers under two names, of two sizes",
        "two experiments, the second with a larger model",
        (
            *(at(f"small_{n}.pt", state(step=n), n) for n in (10, 20)),
            *(at(f"large_{n}.pt", state(OTHER, step=n), 100 + n) for n in (10, 20)),
        ),
        "large_20.pt",
        20,
    ),
)
CORPUS: Final = (*OVERWRITTEN, *HABITS, *SIBLINGS, *BESIDE_FILES, *BESIDE_FOLDERS, *BESIDE_LAST)
