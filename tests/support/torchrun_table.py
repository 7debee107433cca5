"""The rows: command lines of PyTorch's own launcher tests and pages, with scripts of our own. No code of theirs is here."""

import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

from tests.support.torchrun_cases import CaseTier, Difference, LauncherCase, record

_RUN: Final = "test/distributed/launcher/test_run.py"
_AGENT: Final = "test/distributed/elastic/agent/server/test/local_elastic_agent_test.py"
_PROCESSES: Final = "test/distributed/elastic/multiprocessing/api_test.py"
_PAGE: Final = "torch/distributed/run.py, docstring"
_PARSER: Final = "torch/distributed/run.py, get_args_parser"
PROBE: Final = "{fixtures}/probe.py"
SHELL: Final = "{fixtures}/probe.sh"
_TWO: Final = ("--nproc-per-node=2",)
_ID: Final = ("--rdzv-id=r1",)
_MEET: Final = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}")
_SOON: Final = "--rdzv-conf=last_call_timeout=1"
_EXIT, _USAGE = frozenset({Difference.EXIT_CODE}), frozenset({Difference.USAGE})
_LOGS: Final = frozenset({Difference.LOG_FOLDER})


def _row(
    name: str,
    upstream: str,
    *options: str,
    do: tuple[str, ...] = (),
    target: tuple[str, ...] = (PROBE,),
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> LauncherCase:
    words = (*target, *(f"do={one}" for one in do))
    return LauncherCase(name, upstream, options, words, env or {}, **more)


def _refused(name: str, upstream: str, *options: str, **more: Any) -> LauncherCase:
    """Return a row that both refuse: torchrun with a traceback and 1, rankmend with a sentence and 2."""
    return _row(name, upstream, *options, differs=_USAGE, exits=(2,), **more)


def _killed(name: str, number: int) -> LauncherCase:
    return _row(
        name, f"{_PROCESSES}, signals of a worker", *_TWO, "--max-restarts=0",
        do=(f"1:signal:{number}", "0:hold"), differs=_EXIT, exits=(128 + number,), marks=("holds-0",),
    )  # fmt: skip


def _stopped(name: str, number: int, *options: str) -> LauncherCase:
    """Return a row whose launcher receives a signal: torchrun passes it on, and our ranks always receive SIGTERM."""
    return _row(
        name, _PARSER, *_TWO, *options, do=(f"all:catch:{number}", "all:catch:15", "all:hold"),
        signal=number, holds=2, differs=_EXIT | {Difference.STOP_SIGNAL}, exits=(128 + number,),
        marks=("got-SIGTERM-0", "got-SIGTERM-1", "holds-0", "holds-1"),
    )  # fmt: skip


_OF_RUN: Final = (
    _row("script", f"{_RUN}::test_launch_user_script_python", "--nnodes=1", "--nproc-per-node=4", *_ID, "--monitor-interval=1", "--start-method=spawn"),
    _row("static-form", f"{_RUN}::test_launch_user_script_python_caffe2_bc", "--nnodes=1", *_TWO, "--master-addr=localhost", "--master-port={port}", "--node-rank=0"),
    _row("shell", f"{_RUN}::test_launch_user_script_bash", "--nnodes=1", *_TWO, *_ID, "--no-python", target=(SHELL, "a b", "--c")),
    _row("shell-as-module", f"{_RUN}::test_launch_user_script_bash", "--no-python", "--module", target=(SHELL,)),
    _row("default-ranks", f"{_RUN}::test_launch_user_script_default_nproc", "--nnodes=1", *_ID),
    _row("variables", f"{_RUN}::test_launch_with_env_vars", env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "r2", "PET_MONITOR_INTERVAL": "1", "PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1", "PET_MODULE": "0"}, target=(SHELL,)),
    _row("variables-that-contradict", f"{_RUN}::test_launch_with_env_vars", env={"PET_NO_PYTHON": "1", "PET_MODULE": "1"}, target=(SHELL,)),
    _row("auto", f"{_RUN}::test_nproc_launch_auto_configurations", "--nproc-per-node=auto", tier=CaseTier.LIVE),
    _row("cpu", _PAGE, "--nproc-per-node=cpu", tier=CaseTier.LIVE),
    _row("number", f"{_RUN}::test_nproc_launch_number_configurations", "--nproc-per-node=3", *_ID),
    _refused("unknown-count", f"{_RUN}::test_nproc_launch_unknown_configurations", "--nproc-per-node=unknown"),
    _refused("gpu-without-one", f"{_RUN}::test_nproc_gpu_launch_configurations", "--nproc-per-node=gpu"),
    _refused("xpu-without-one", f"{_RUN}::test_nproc_xpu_launch_configurations", "--nproc-per-node=xpu"),
    _row("elastic-alone", f"{_RUN}::test_launch_elastic", "--nnodes=1:2", *_TWO, *_MEET, "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", *_ID),
    _row("elastic-raises", f"{_RUN}::test_launch_elastic_worker_raise_exception", "--nnodes=1:2", *_TWO, *_MEET, _SOON, *_ID, "--max-restarts=0", do=("1:raise:boom", "0:hold"), marks=("holds-0",)),
    _row("standalone", f"{_RUN}::test_launch_standalone", "--nnodes=1", *_TWO, "--standalone"),
    _row("run-path", f"{_RUN}::test_launch_run_path", "--run-path", "--nnodes=1", *_TWO),
    _row("two-launchers-elastic", f"{_RUN}::test_launch_elastic_multiple_agents", "--nnodes=1:2", *_TWO, *_MEET, *_ID, launchers=((), ())),
    _refused("three-counts", f"{_RUN}::test_min_max_nodes_parse", "--nnodes=2:20:30"),
    _refused("no-count", f"{_RUN}::test_min_max_nodes_parse", "--nnodes=x"),
    _row("launched", f"{_RUN}::test_is_torchelastic_launched", "--run-path", "--nnodes=1", "--nproc-per-node=1", "--monitor-interval=1"),
    _row("default-log-specs", f"{_RUN}::test_is_torchelastic_launched_with_logs_spec_defined", "--run-path", "--logs_specs=default"),
    _refused("unknown-log-specs", f"{_RUN}::test_logs_logs_spec_entrypoint_must_be_defined", "--run-path", "--logs_specs=DOESNOT_EXIST"),
    _row("given-port", f"{_RUN}::test_init_method_env_with_torchelastic", "--run-path", "--nnodes=1", *_TWO, "--master-addr=localhost", "--master-port={port}"),
    _row("redirect-and-tee", f"{_RUN}::test_capture_logs_using_default_logs_specs", *_TWO, *_ID, "--log-dir={logs}", "--redirect=3", "--tee=3", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: "}, differs=_LOGS),
    _row("virtual-local-rank", f"{_RUN}::test_virtual_local_rank", *_TWO, "--virtual-local-rank", env={"CUDA_VISIBLE_DEVICES": "4,6"}),
)  # fmt: skip

_OF_AGENT: Final = (
    _row("environment", f"{_AGENT}::test_run_check_env_function", "--nproc-per-node=1", "--max-restarts=3"),
    _row("nccl-handling-given", f"{_AGENT}::test_run_check_nccl_async_error_handling_env_c10d", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    _row("nccl-handling-default", f"{_AGENT}::test_run_check_nccl_async_error_handling_env_default_c10d"),
    _row("sum", f"{_AGENT}::test_simple_dist_sum_c10d", *_TWO, *_ID, target=("{fixtures}/sum.py",), tier=CaseTier.LIVE),
    _row("own-prefix", f"{_AGENT}::test_run_with_custom_log_lines", *_TWO, "--role=sum", "--log-dir={logs}", "--tee=3", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}-${local_rank}:${rank}]:"}, differs=_LOGS),
    _row("one-role", f"{_AGENT}::test_run_distributed_sum_homogeneous_c10d", "--nnodes=2", *_TWO, *_MEET, *_ID, "--role=sum", launchers=((), ())),
    _row("unequal-nodes", f"{_AGENT}::test_run_distributed_sum_heterogeneous_c10d", "--nnodes=3", *_MEET, *_ID, "--role=sum", launchers=(("--nproc-per-node=1",), ("--nproc-per-node=2",), ("--nproc-per-node=3",))),
    _row("roles", f"{_AGENT}::test_correct_rank_assignment_heterogeneous_etcd", "--nnodes=4", *_MEET, *_ID, launchers=(("--role=master", "--nproc-per-node=2"), ("--role=trainer", "--nproc-per-node=1"), ("--role=trainer", "--nproc-per-node=2"), ("--role=ps", "--nproc-per-node=1"))),
    _row("equal-nodes-of-roles", f"{_AGENT}::test_correct_rank_assignment_homogeneous_etcd", "--nnodes=3", *_TWO, *_MEET, *_ID, launchers=(("--role=trainer",), ("--role=trainer",), ("--role=ps",))),
    _row("raises", f"{_AGENT}::test_run_sad_function_c10d", *_TWO, "--max-restarts=0", do=("1:raise:boom", "0:hold"), marks=("holds-0",)),
    _row("error-file", f"{_AGENT}::test_run_sad_function_c10d", "--max-restarts=0", do=("0:raise:boom",), env={"TORCHELASTIC_ERROR_FILE": "{out}/error.json"}, differs=frozenset({Difference.ERROR_FILE}), marks=("error.json",)),
    _row("fails-each-time", f"{_AGENT}::test_run_bipolar_function_c10d", *_TWO, "--max-restarts=2", do=("1:exit:1", "0:hold"), differs=frozenset({Difference.SAME_ERROR}), ranks=("0-0", "0-1", "1-0", "1-1")),
    _row("fails-until-restarts-are-spent", f"{_AGENT}::test_run_bipolar_function_c10d", *_TWO, "--max-restarts=1", do=("1:exit:1", "0:hold")),
    _row("fails-once", f"{_PAGE}, fault tolerant", *_TWO, "--max-restarts=3", do=("1:exit:1:once",)),
    _row("all-fail-once", f"{_PAGE}, fault tolerant", *_TWO, "--max-restarts=3", do=("all:exit:3:once",)),
    _row("killed-once", f"{_PAGE}, fault tolerant", *_TWO, "--max-restarts=1", do=("0:signal:9:once",)),
    _row("failure-on-one-of-two-nodes", f"{_AGENT}::test_no_exit_barrier_on_failure", "--nnodes=2", "--nproc-per-node=1", *_MEET, *_ID, "--max-restarts=0", do=("all:exit:1",), launchers=((), ())),
)  # fmt: skip

_OF_PROCESSES: Final = (
    _row("exit-138", f"{_PROCESSES}::test_binary_exit", *_TWO, "--max-restarts=0", "--log-dir={logs}", "-r", "0:3", do=("0:exit:138", "1:hold"), differs=_EXIT | _LOGS, exits=(138,), marks=("holds-1",)),
    _row("exit-43", f"{_PROCESSES}::test_binary_exit", "--max-restarts=0", do=("0:exit:43",), differs=_EXIT, exits=(43,)),
    _row("exit-93", f"{_PROCESSES}::test_binary_exit", "--max-restarts=1", do=("0:exit:93",), differs=_EXIT | {Difference.NO_RETRY}, exits=(93,), ranks=("0-0",)),
    _row("binary-raises", f"{_PROCESSES}::test_binary_raises", *_TWO, "--max-restarts=0", do=("0:raise:boom", "1:hold"), marks=("holds-1",)),
    _killed("sigkill", signal.SIGKILL),
    _killed("sigsegv", signal.SIGSEGV),
    _killed("sigabrt", signal.SIGABRT),
    _killed("sigterm", signal.SIGTERM),
    _killed("sighup", signal.SIGHUP),
    _killed("sigusr1", signal.SIGUSR1),
    _row("no-script", f"{_PROCESSES}::test_binary_incorrect_entrypoint", target=("does_not_exist.py",)),
    _row("no-program", f"{_PROCESSES}::test_binary_incorrect_entrypoint", "--no-python", target=("./does_not_exist",)),
    *(
        _row(f"redirects-{number}", f"{_PROCESSES}::test_binary", *_TWO, "--log-dir={logs}", "-r", str(number), differs=_LOGS)
        for number in range(4)
    ),
    _row("redirect-some-tee-some", f"{_PROCESSES}::test_binary_redirect_and_tee", *_TWO, "--log-dir={logs}", "-r", "0:2,1:0", "-t", "0:1,1:2", differs=_LOGS),
    _row("filters", f"{_PROCESSES}::test_binary_duplicate_log_filters", *_TWO, "--log-dir={logs}", "-r", "0:2,1:0", "-t", "0:1,1:2", "--duplicate-stdout-filters=out 0", "--duplicate-stderr-filters=err 1,none", differs=_LOGS),
    _refused("stream-4", f"{_PROCESSES}::test_from_str_bad_input", "-r", "4"),
    _refused("stream-of-no-rank", f"{_PROCESSES}::test_from_str_bad_input", "-r", "x:3"),
)  # fmt: skip

_OF_PAGES: Final = (
    _row("tee-one-rank", _PARSER, *_TWO, "--log-dir={logs}", "-t", "0:3", differs=_LOGS),
    _row("all-to-files-one-shown", _PARSER, *_TWO, "--log-dir={logs}", "--redirects=3", "--tee=0:3", differs=_LOGS),
    _row("filter-with-tee", _PARSER, *_TWO, "--log-dir={logs}", "--tee=3", "--local-ranks-filter=0", differs=_LOGS),
    _row("filter-alone", _PARSER, *_TWO, "--local-ranks-filter=1"),
    _row("role", _PARSER, *_TWO, "--role=trainer"),
    _row("stacked", f"{_PAGE}, stacked single-node", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", *_TWO),
    _row("fault-tolerant", f"{_PAGE}, fault tolerant", "--nnodes=1", *_TWO, "--max-restarts=3", *_ID, *_MEET),
    _row("elastic", f"{_PAGE}, elastic", "--nnodes=1:4", *_TWO, "--max-restarts=3", *_ID, *_MEET, _SOON),
    _row("standalone-elastic", _PARSER, "--standalone", "--nnodes=1:2", _SOON, differs=frozenset({Difference.STANDALONE})),
    _row("two-nodes-c10d", f"{_PAGE}, fault tolerant", "--nnodes=2", *_TWO, "--max-restarts=3", *_ID, *_MEET, launchers=((), ())),
    _row("two-nodes-static", _PARSER, "--nnodes=2", *_TWO, "--master-addr=127.0.0.1", "--master-port={port}", launchers=(("--node-rank=0",), ("--node-rank=1",)), differs=frozenset({Difference.MASTER_PORT})),
    _row("module", _PARSER, *_TWO, "-m", target=("probe", "a")),
    _row("module-long", _PARSER, "--module", target=("probe", "-m", "x")),
    _row("arguments-like-options", _PARSER, *_TWO, target=(PROBE, "--nproc-per-node", "8", "-h", "--help", "-m")),
    _row("arguments-kept", _PARSER, target=(PROBE, "", "a b", "$HOME", "*", "--x=1")),
    _row("underscores", _PARSER, "--nproc_per_node=2", "--max_restarts=4", "--rdzv_id=r3", "--monitor_interval=1"),
    _row("abbreviated", _PARSER, "--nproc-per", "2", "--max-r", "1"),
    _row("option-over-variable", "torch/distributed/argparse_util.py, env", "--nproc-per-node=2", env={"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "5"}),
    _row("threads-given", "torch/distributed/run.py, config_from_args", *_TWO, env={"OMP_NUM_THREADS": "7"}),
    _row("threads-of-one", "torch/distributed/run.py, config_from_args", "--nproc-per-node=1"),
    _row("unknown-option", _PARSER, "--no-such-option", exits=(2,)),
    _row("nothing-to-run", _PARSER, target=(), exits=(2,)),
    _row("no-value", _PARSER, "--nproc-per-node", target=(), exits=(2,)),
    _refused("etcd", f"{_PAGE}, note on rendezvous backend", "--rdzv-backend=etcd", "--rdzv-endpoint=localhost:{port}"),
    _refused("unknown-backend", f"{_PAGE}, note on rendezvous backend", "--rdzv-backend=zeus", "--rdzv-endpoint=localhost:{port}"),
    _row("standalone-before-backend", _PARSER, "--standalone", "--rdzv-backend=etcd"),
    _row("event-handler", _PARSER, "--event-log-handler=null"),
    _row("stopped-by-sigterm", _PARSER, *_TWO, do=("all:catch:15", "all:hold"), signal=signal.SIGTERM, holds=2, differs=_EXIT, exits=(143,)),
    _stopped("stopped-by-sigint", signal.SIGINT),
    _stopped("stopped-by-sighup", signal.SIGHUP),
    _stopped("signal-of-ones-choice", signal.SIGUSR1, "--signals-to-handle=SIGTERM,SIGUSR1"),
    _row("log-dir-variable", _PARSER, *_TWO, env={"PET_LOG_DIR": "{logs}", "PET_REDIRECTS": "3"}, differs=_LOGS),
    _row("standalone-variable", _PARSER, *_TWO, "-m", env={"PET_STANDALONE": "1"}, target=("probe", "a")),
    _refused("no-ranks", _PARSER, "--nproc-per-node=0"),
    _refused("negative-ranks", _PARSER, "--nproc-per-node=-1"),
    _refused("no-nodes", _PARSER, "--nnodes=0"),
    _refused("min-above-max", _PARSER, "--nnodes=2:1"),
    _refused("negative-restarts", _PARSER, "--max-restarts=-1"),
    _refused("setting-without-a-value", _PARSER, "--rdzv-conf=bogus"),
    _row("unknown-start-method", _PARSER, "--start-method=bogus", exits=(2,)),
    _row("port-that-is-none", _PARSER, "--master-port=abc", exits=(2,)),
    _row("empty-id", _PARSER, *_TWO, "--rdzv-id="),
    _row("node-rank-of-one-node", _PARSER, *_TWO, "--nnodes=1", "--node-rank=1"),
    _row("two-dashes", _PARSER, *_TWO, "--", target=(PROBE, "--x")),
    _row("role-of-two-words", _PARSER, *_TWO, "--role=a b"),
    _row("repeated", _PARSER, "--nproc-per-node=2", "--nproc-per-node=3"),
    _row("program-on-path", _PARSER, *_TWO, "--no-python", target=("bash", SHELL, "x")),
    _row("redirect-one-rank", _PARSER, *_TWO, "-r", "1:1", "--log_dir={logs}", differs=_LOGS),
    _row("ranks-that-ignore", _PARSER, "--shutdown-timeout=1", do=("all:ignore:15", "all:hold"), signal=signal.SIGTERM, holds=1, differs=_EXIT, exits=(143,)),
)  # fmt: skip

CASES: Final = (*_OF_RUN, *_OF_AGENT, *_OF_PROCESSES, *_OF_PAGES)

if __name__ == "__main__":
    record(CASES, sys.argv[1:])
