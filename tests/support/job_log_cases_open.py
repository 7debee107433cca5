"""Logs that say nothing of a failure, logs of something else, and bad input."""

from dataclasses import replace

from tests.support.job_log_cases_forms import (
    PYTORCH,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    Work,
    a_case,
    chatter,
    exit_noise,
    mixed,
    steps,
    timed_out,
    trace,
)

UNKNOWN = Label("unknown", ())
OPEN = Label("unknown", None)
FOUR = range(4)


def _successes() -> list[JobLogCase]:
    """Runs that ended well, or that still run."""
    return [
        a_case("nanoGPT runs to its last step", [*steps("nanogpt", 4970, 30), Said(0, "saving checkpoint to out")], UNKNOWN, "https://github.com/karpathy/nanoGPT"),
        a_case("Megatron ends after its iterations",
               [*chatter(FOUR), *steps("megatron", 499990, 10), Said(0, "  successfully saved checkpoint from iteration  500000 to /ckpt [ t 1/1, p 1/1 ]"), Said(0, "[after training is done] datetime: 2025-03-01 10:12:44 ")],
               UNKNOWN, "https://github.com/NVIDIA/Megatron-LM", PrefixStyle.SRUN, is_noisy=True),
        a_case("a Trainer reports its metrics", [*steps("trainer", 1, 9), Said(0, "{'train_runtime': 811.2, 'train_samples_per_second': 12.3, 'train_loss': 1.92, 'epoch': 3.0}")],
               UNKNOWN, "https://github.com/huggingface/transformers", PrefixStyle.RANK),
        a_case("Lightning reached its epochs", [*steps("lightning", 1, 9), Said(0, "`Trainer.fit` stopped: `max_epochs=10` reached.")], UNKNOWN, "https://github.com/Lightning-AI/pytorch-lightning"),
        a_case("torchtitan completed", [*steps("titan", 1, 9), Said(0, "[titan] 2025-03-01 10:11:59,118 - root - INFO - Training completed")], UNKNOWN, "https://github.com/pytorch/torchtitan", PrefixStyle.DEFAULT),
        a_case("DeepSpeed's launcher ended well",
               [*chatter(FOUR), *steps("deepspeed", 1, 9), Said(None, "[2025-03-01 10:12:46,002] [INFO] [launch.py:351:main] Process 4200 exits successfully.")],
               UNKNOWN, "https://github.com/deepspeedai/DeepSpeed", PrefixStyle.HOST, is_noisy=True),
        a_case("a success with an interpreter's last complaints", [*steps("nanogpt", 4970, 30), Said(0, "training done"), *exit_noise(0)], UNKNOWN, PYTORCH, is_noisy=True),
        a_case("a success in which an error was handled",
               [*steps("plain", 1, 9), Said(0, "WARNING: retrying read of shard 12\n" + trace("OSError: [Errno 5] Input/output error", *TRAIN, "/home/user/data.py:44:read_shard")),
                *steps("plain", 10, 30), Said(0, "Training completed after 40 steps")],
               UNKNOWN, PYTORCH, PrefixStyle.RANK, is_noisy=True),
    ]  # fmt: skip


def _beginnings() -> list[JobLogCase]:
    """Logs that were cut before anything happened."""
    return [
        a_case("only a run's beginning", chatter(FOUR), OPEN, PYTORCH, PrefixStyle.SRUN, is_noisy=True),
        a_case("only progress bars", steps("lightning", 100, 60), OPEN, "https://github.com/Lightning-AI/pytorch-lightning"),
        a_case("only NCCL's INFO lines", mixed([Said(rank, f"gpu-node-01:{980 + rank}:1265 [{rank}] NCCL INFO Connected NVLS tree\n"
                                                          f"gpu-node-01:{980 + rank}:1265 [{rank}] NCCL INFO threadThresholds 8/8/64 | 512/8/64 | 512 | 512") for rank in range(8)]),
               OPEN, "https://github.com/NVIDIA/nccl/issues/1814", is_noisy=True),
        a_case("a traceback that is cut before its error", [*steps("plain", 1, 4), Said(0, 'Traceback (most recent call last):\n  File "/home/user/train.py", line 212, in <module>\n    main()\n  File "/home/user/tr')],
               Label("unknown", None, also=("restart",)), PYTORCH, PrefixStyle.RANK),
        a_case("warnings and nothing else", [*chatter(FOUR), *steps("trainer", 1, 12), Said(0, "[rank0]:[W301 10:12:43.551 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect. Specify device_ids in barrier() to force use of a particular device, or call init_process_group() with a device_id.")],
               OPEN, PYTORCH, is_noisy=True),
    ]  # fmt: skip


def _others() -> list[JobLogCase]:
    """Logs that are no training job's."""
    texts = {
        "nginx": (
            '192.0.2.7 - - [01/Mar/2025:10:12:44 +0000] "GET /index.html HTTP/1.1" 200 612 "-" "curl/8.5.0"\n'
            "2025/03/01 10:12:45 [error] 29#29: *1 open() \"/usr/share/nginx/html/favicon.ico\" failed (2: No such file or directory), client: 192.0.2.7\n",
            "https://nginx.org/en/docs/http/ngx_http_log_module.html",
        ),
        "kernel": (
            "[    0.000000] Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115)\n[    0.004000] x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'\n"
            "[   12.114412] EXT4-fs (sda1): mounted filesystem with ordered data mode\n[   13.551220] systemd[1]: Started Journal Service.\n",
            "https://www.kernel.org/doc/html/latest/admin-guide/",
        ),
        "pip": (
            "Collecting torch==2.9.0\n  Downloading torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl (899.8 MB)\n"
            "ERROR: Could not find a version that satisfies the requirement flash-attn==9.9 (from versions: 2.5.8, 2.6.3)\nERROR: No matching distribution found for flash-attn==9.9\n",
            "https://pip.pypa.io",
        ),
        "PostgreSQL": (
            "2025-03-01 10:12:44.113 UTC [71] LOG:  checkpoint starting: time\n2025-03-01 10:12:44.310 UTC [71] LOG:  checkpoint complete: wrote 43 buffers (0.3%)\n"
            "2025-03-01 10:13:01.113 UTC [99] ERROR:  relation \"users\" does not exist at character 15\n",
            "https://www.postgresql.org/docs/current/runtime-config-logging.html",
        ),
        "a compiler": (
            "cc -O2 -c main.c -o main.o\nmain.c: In function 'main':\nmain.c:12:5: error: implicit declaration of function 'foo'\nmake: *** [Makefile:4: main.o] Error 1\n",
            "https://www.gnu.org/software/make/",
        ),
        "Java": (
            "2025-03-01 10:12:44,113 ERROR [main] o.a.k.c.NetworkClient: Connection to node -1 could not be established.\n"
            "java.lang.NullPointerException\n\tat com.example.App.main(App.java:14)\n",
            "https://kafka.apache.org",
        ),
    }  # fmt: skip
    return [
        JobLogCase(f"a log of {name}", {f"{name}.log": text * 20}, "unknown", source, culprit_ranks=(), is_training_log=False)
        for name, (text, source) in texts.items()
    ] + [
        JobLogCase("an empty file", {"job.log": ""}, "unknown", "an empty file", culprit_ranks=(), is_training_log=False),
        JobLogCase("binary data", {"job.log": "\x00\x01\x7fELF\x02\x01\x01" * 4000}, "unknown", "an ELF file's beginning", culprit_ranks=(), is_training_log=False),
    ]  # fmt: skip


def _bad_input() -> list[JobLogCase]:
    """Training logs with colours, binary pieces, endless lines, cut ends."""
    ecc = Said(2, trace("RuntimeError: CUDA error: uncorrectable ECC error encountered", *TRAIN))
    plain = a_case(
        "-",
        [*steps("plain", 1, 5), ecc],
        Label("restart", (2,)),
        "https://github.com/verl-project/verl/issues/407",
        PrefixStyle.RANK,
    )
    text = plain.files["job.log"]
    missing = a_case(
        "-",
        [Said(rank, trace("ModuleNotFoundError: No module named 'apex'", *TRAIN)) for rank in FOUR],
        Label("stop"),
        PYTORCH,
        PrefixStyle.RANK,
    )
    hang = a_case(
        "-",
        mixed([timed_out(rank, Work(1580), "2.5") for rank in range(8) if rank != 3]),
        Label("restart", (3,)),
        PYTORCH,
    )
    silent = hang.files["job.log"]
    variants = {
        "in colours": replace(plain, files={"job.log": "\n".join(f"\x1b[36m{line[:8]}\x1b[0m{line[8:]}\x1b[K" for line in text.splitlines()) + "\n"}),
        "between binary pieces": replace(plain, files={"job.log": "\x00\x01\x02\udcff\udcfe" * 200 + "\n" + text + "\x00" * 500}),
        "after a line of a megabyte": replace(plain, files={"job.log": "tokens: " + "3141, " * 170_000 + "\n" + text}),
        "with carriage returns of a progress bar": replace(plain, files={"job.log": "".join(f"\r  {i}%|##  | {i}/100 [00:01<00:02]" for i in range(100)) + "\n" + text}),
        "with lines that end as on Windows": replace(plain, files={"job.log": text.replace("\n", "\r\n")}),
        "with a first line cut off": replace(plain, files={"job.log": text[17:]}),
    }  # fmt: skip
    return [
        *[replace(case, name=f"an ECC error {name}", is_noisy=True) for name, case in variants.items()],
        replace(missing, name="a missing module in colours", files={"job.log": missing.files["job.log"].replace("ModuleNotFoundError", "\x1b[1;31mModuleNotFoundError\x1b[0m")}, is_noisy=True),
        replace(hang, name="watchdogs cut in their first and last line", files={"job.log": silent[40:-60]}, is_noisy=True),
        replace(hang, name="watchdogs twice, in two files of the same job", files={"a/job.log": silent, "b/job.log": silent}, is_noisy=True),
        replace(hang, name="watchdogs in a pasted thread with line numbers",
                files={"paste.txt": "".join(f"[{80746 + n}] {line}\n" for n, line in enumerate(silent.splitlines()))}, is_noisy=True,
                source="https://github.com/hiyouga/LlamaFactory/issues/7396"),
        replace(hang, name="watchdogs with a container's times", files={"job.log": "".join(f"2025-03-01T10:12:{n % 60:02}.113Z {line}\n" for n, line in enumerate(silent.splitlines()))}, is_noisy=True),
        replace(hang, name="watchdogs indented in a quote", files={"job.log": "".join(f"    {line}\n" for line in silent.splitlines())}, is_noisy=True,
                source="https://github.com/NVIDIA/nccl/issues/1409"),
    ]  # fmt: skip


OPEN_CASES: tuple[JobLogCase, ...] = (*_successes(), *_beginnings(), *_others(), *_bad_input())
