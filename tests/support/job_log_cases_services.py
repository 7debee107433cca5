"""Logs of jobs that storage or something outside ended: no rank is to blame, and a restart may go on."""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    PYTORCH,
    SITE,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    a_case,
    exit_noise,
    gloo_closed,
    in_two,
    mixed,
    steps,
    torchrun_summary,
    trace,
)

FOUR = range(4)
SAVE = (
    *TRAIN,
    "/home/user/train.py:140:save_checkpoint",
    f"{SITE}/torch/serialization.py:850:save",
    f"{SITE}/torch/serialization.py:1114:_save",
)
URLLIB = f"{SITE}/urllib3/connectionpool.py:787:urlopen"


def _storage() -> list[JobLogCase]:
    """File systems that are full, stale, read-only, slow or broken."""
    writer = "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 190007680 vs 190007572"
    rows: Sequence[tuple[str, str, str, tuple[str, ...]]] = (
        ("a full disk while a checkpoint is written",
         trace("OSError: [Errno 28] No space left on device", *SAVE) + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace(writer, *SAVE),
         PYTORCH + "/issues/10577", ("stop",)),
        ("a writer that failed", trace("RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/176: file write failed", *SAVE),
         "https://github.com/hiyouga/LlamaFactory/issues/1223", ()),
        ("a quota that is used up", trace("OSError: [Errno 122] Disk quota exceeded: '/scratch/user/ckpt/step_4000.pt'", *SAVE), "https://github.com/zai-org/ChatGLM-6B/issues/1166", ("stop",)),
        ("a stale NFS handle", trace("OSError: [Errno 116] Stale file handle: '/nfs/data/shard_00012.bin'", *TRAIN, "/home/user/data.py:44:read_shard"),
         "https://github.com/huggingface/transformers/issues/9732", ()),
        ("a stale handle in torch.load", trace("RuntimeError: read(): fd 33 failed with Stale file handle", *TRAIN, f"{SITE}/torch/serialization.py:1521:load"), PYTORCH + "/issues/45826", ()),
        ("an input/output error", trace("OSError: [Errno 5] Input/output error: '/data/shard_00012.bin'", *TRAIN, "/home/user/data.py:44:read_shard"), PYTORCH + "/issues/10577", ()),
        ("a read-only file system", trace("OSError: [Errno 30] Read-only file system: '/data/ckpt/step_4000.tmp'", *SAVE), "https://man7.org/linux/man-pages/man3/errno.3.html", ()),
        ("a mount that is not connected", trace("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/ckpt'", *SAVE), "https://github.com/s3fs-fuse/s3fs-fuse", ()),
        ("a Lustre time-out", trace("OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/user/ckpt/step_4000/model_0.pt'", *SAVE), "https://wiki.lustre.org", ()),
        ("a safetensors file that ran out of space", trace("safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })", *SAVE),
         "https://github.com/huggingface/safetensors", ("stop",)),
    )  # fmt: skip
    cases = []
    for index, (name, text, source, also) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.SRUN),
            (PrefixStyle.BARE, PrefixStyle.DEFAULT),
            (PrefixStyle.RANK_FILES, PrefixStyle.KUBE),
        )[index % 3]
        said = [
            Said(0, text),
            *[gloo_closed(rank) for rank in (1, 2, 3)],
            torchrun_summary(0, 1, (1, 2, 3)),
        ]
        flavour = ("nanogpt", "megatron", "trainer", "lightning")[index % 4]
        noisy_end = 0 if index % 2 else None
        cases += in_two(
            name,
            said,
            Label("restart", None, also=also),
            source,
            FOUR,
            flavour,
            styles,
            noisy_end=noisy_end,
        )
    return cases


def _services() -> list[JobLogCase]:
    """Trackers, hubs, object stores, name servers that are away for a while."""
    rows: Sequence[tuple[str, str, str]] = (
        ("Weights & Biases doesn't answer",
         "wandb: Network error (ReadTimeout), entering retry loop.\nwandb: ERROR Run initialization has timed out after 90.0 sec. \n"
         + trace("wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.", *TRAIN, f"{SITE}/wandb/sdk/wandb_init.py:1266:init"),
         "https://github.com/wandb/wandb/issues/7671"),
        ("the Hugging Face hub answers 503",
         trace("huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/api/models/meta-llama/Llama-3.1-8B", *TRAIN, f"{SITE}/huggingface_hub/utils/_http.py:482:hf_raise_for_status"),
         "https://github.com/huggingface/huggingface_hub/issues/1516"),
        ("the hub's name can't be resolved",
         trace("requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool(host=\\'huggingface.co\\', port=443): Max retries exceeded with url: /api/datasets/allenai/c4 (Caused by NameResolutionError(\"<urllib3.connection.HTTPSConnection object at 0x7f1ce7c1f0d0>: Failed to resolve \\'huggingface.co\\' ([Errno -3] Temporary failure in name resolution)\"))'), '(Request ID: 1f2c)')", *TRAIN, URLLIB),
         "https://github.com/huggingface/datasets"),
        ("S3 asks to slow down",
         trace("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): Please reduce your request rate.", *TRAIN, f"{SITE}/botocore/client.py:1059:_make_api_call"),
         "https://github.com/boto/botocore"),
        ("S3's endpoint can't be reached",
         trace('botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.eu-west-1.amazonaws.com/ckpt/step_4000/__0_0.distcp"', *TRAIN, f"{SITE}/botocore/httpsession.py:493:send"),
         "https://github.com/boto/botocore"),
        ("GCS answers 503",
         trace("google.api_core.exceptions.ServiceUnavailable: 503 POST https://storage.googleapis.com/upload/storage/v1/b/ckpt/o?uploadType=resumable: We encountered an internal error. Please try again.", *TRAIN, f"{SITE}/google/cloud/storage/blob.py:2881:upload_from_file"),
         "https://github.com/googleapis/python-storage"),
        ("an MLflow server that refuses connections",
         trace("mlflow.exceptions.MlflowException: API request to http://mlflow.cluster:5000/api/2.0/mlflow/runs/log-batch failed with exception HTTPConnectionPool(host='mlflow.cluster', port=5000): Max retries exceeded with url: /api/2.0/mlflow/runs/log-batch (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] Connection refused'))", *TRAIN, f"{SITE}/mlflow/utils/rest_utils.py:176:http_request"),
         "https://github.com/mlflow/mlflow"),
        ("a hub that limits the rate",
         trace("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/allenai/c4/tree/main", *TRAIN, f"{SITE}/huggingface_hub/utils/_http.py:482:hf_raise_for_status"),
         "https://github.com/huggingface/huggingface_hub"),
    )  # fmt: skip
    cases = []
    for index, (name, text, source) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.KUBE),
            (PrefixStyle.SRUN, PrefixStyle.RANK_FILES),
            (PrefixStyle.BARE, PrefixStyle.SRUN),
        )[index % 3]
        said = [Said(0, text), torchrun_summary(0, 1)]
        cases += in_two(
            name,
            said,
            Label("restart", ()),
            source,
            FOUR,
            "trainer",
            styles,
            noisy_end=0 if index % 2 else None,
        )
    return cases


def _rights() -> list[JobLogCase]:
    """Rights, tokens and names that no restart mends."""
    gated = trace(
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n401 "
        "Client Error. (Request ID: Root=1-67e2)",
        *TRAIN,
        f"{SITE}/transformers/utils/hub.py:426:cached_file",
    )
    denied = trace("PermissionError: [Errno 13] Permission denied: '/data/ckpt'", *SAVE)
    missing = trace(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", *TRAIN
    )
    absent = trace(
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-67e2)\n\nRepository Not Found for url: "
        "https://huggingface.co/api/models/meta-lama/Llama.\nPlease make sure you specified the correct `repo_id` and `repo_type`.",
        *TRAIN,
    )
    key = trace(
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        *TRAIN,
    )
    rows = (
        ("a repository that is gated", gated, "https://github.com/huggingface/transformers", ()),
        ("a folder that may not be written", denied, "https://man7.org/linux/man-pages/man3/errno.3.html", ("restart",)),
        ("a data file that isn't there, on all ranks", missing, "https://github.com/karpathy/nanoGPT", ("restart",)),
        ("a repository that doesn't exist", absent, "https://github.com/huggingface/huggingface_hub", ()),
        ("a tracker without a key", key, "https://github.com/wandb/wandb", ()),
    )  # fmt: skip
    return [
        case
        for index, (name, text, source, also) in enumerate(rows)
        for case in in_two(
            name,
            [*mixed([Said(rank, text) for rank in FOUR]), torchrun_summary(index % 4, 1)],
            Label("stop", None, also=also),
            source,
            FOUR,
            "plain",
            ((PrefixStyle.RANK, PrefixStyle.SRUN), (PrefixStyle.SRUN, PrefixStyle.MPI))[index % 2],
            is_at_start=True,
        )
    ]


SERVICES: Sequence[JobLogCase] = (
    *_storage(),
    *_services(),
    *_rights(),
    a_case(
        "a tracker that complains while the job goes on, then a full disk",
        [
            *steps("trainer", 1, 5),
            Said(0, "wandb: Network error (ConnectTimeout), entering retry loop."),
            *steps("trainer", 6, 20),
            Said(0, "wandb: Network error resolved after 0:03:12, resuming normal operation."),
            *steps("trainer", 26, 10),
            Said(0, trace("OSError: [Errno 28] No space left on device", *SAVE)),
            *exit_noise(0),
        ],
        Label("restart", None, also=("stop",)),
        "https://github.com/wandb/wandb/issues/5550",
        PrefixStyle.RANK,
        is_noisy=True,
    ),
)
