"""Logs of jobs that a device, a link, a driver or a node ended: another node, or the same one later, can go on."""

from collections.abc import Sequence

from tests.support.job_log_cases_forms import (
    BACKWARD,
    DDP_FORWARD,
    INIT,
    PYTORCH,
    TRAIN,
    JobLogCase,
    Label,
    PrefixStyle,
    Said,
    Shape,
    Work,
    a_case,
    chatter,
    in_two,
    mixed,
    remote_closed,
    steps,
    timed_out,
    torchrun_summary,
    trace,
)

TWO_NODES = Shape(4, ("gpu-node-01", "gpu-node-02"))
XID = "https://docs.nvidia.com/deploy/xid-errors/"
ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)


def kernel(text: str, node: str = "gpu-node-01", second: int = 40) -> Said:
    return Said(None, f"Mar  1 10:12:{second} {node} kernel: [812345.120331] {text}")


def cuda_error(rank: int, words: str) -> Said:
    return Said(rank, trace(f"RuntimeError: CUDA error: {words}{ASYNC}", *BACKWARD))


def watchdog_cuda(rank: int, words: str) -> Said:
    """Return what the watchdog of a rank says whose device failed."""
    return Said(
        rank,
        f"[rank{rank}]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank {rank}] Process group "
        f"watchdog thread terminated with exception: CUDA error: {words}{ASYNC}\n\n"
        "Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x153667acbf86 in /opt/conda/lib/libc10.so)\n"
        "frame #1: c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string const&) + 0x64 "
        "(0x153667a7ad10 in /opt/conda/lib/libc10.so)",
    )


def _devices() -> list[JobLogCase]:
    """A device of one rank failed; the others lost it."""
    victims = [remote_closed(rank, 2) for rank in (0, 1, 3)]
    late = mixed([timed_out(rank, Work(4021), "2.5") for rank in (0, 1, 3)])
    rows: Sequence[tuple[str, list[Said], str, str, tuple[str, ...]]] = (
        ("an ECC error of rank 2", [cuda_error(2, "uncorrectable ECC error encountered"), *victims],
         "https://github.com/huggingface/trl/issues/4149", "trainer", ()),
        ("an ECC error of rank 2's watchdog", [watchdog_cuda(2, "uncorrectable ECC error encountered"), *late],
         PYTORCH + "/issues/113128", "lightning", ()),
        ("an ECC error with the kernel's line",
         [kernel("NVRM: Xid (PCI:0000:8b:00): 48, pid=4202, name=python, DBE (double bit error) error detected"),
          cuda_error(2, "uncorrectable ECC error encountered"), *victims], XID, "megatron", ()),
        ("a device that fell off the bus",
         [kernel("NVRM: Xid (PCI:0000:8b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
          cuda_error(2, "unspecified launch failure"), *late], "https://github.com/rwth-i6/returnn/issues/1486", "titan", ()),
        ("an NVLink error", [kernel("NVRM: Xid (PCI:0000:8b:00): 74, pid=4202, name=python, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
                             cuda_error(2, "uncorrectable NVLink error detected during the execution"), *victims], XID, "nanogpt", ()),
        ("a device that can't be found any more", [cuda_error(2, "no CUDA-capable device is detected"), *victims], PYTORCH, "plain", ()),
        ("an illegal address of rank 2", [cuda_error(2, "an illegal memory access was encountered"), *late], PYTORCH, "deepspeed", ("unknown",)),
        ("a misaligned address with Xid 13", [kernel("NVRM: Xid (PCI:0000:8b:00): 13, pid=4202, name=python, Graphics Exception: ESR 0x504730=0x10009"),
                                              cuda_error(2, "misaligned address"), *victims], XID, "plain", ("unknown",)),
        ("a device that is in a bad state", [cuda_error(2, "CUDA-capable device(s) is/are busy or unavailable"), *victims], PYTORCH, "trainer", ()),
        ("a launch that failed", [cuda_error(2, "unspecified launch failure"), *late], PYTORCH, "nanogpt", ("unknown",)),
        ("cuDNN and a broken device", [Said(2, trace("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", *DDP_FORWARD)), *victims], PYTORCH, "plain", ("unknown",)),
        ("cuBLAS and a broken device", [Said(2, trace("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, CUDA_R_16BF)`", *DDP_FORWARD)), *late], PYTORCH, "trainer", ("unknown",)),
    )  # fmt: skip
    cases = []
    for index, (name, said, source, flavour, also) in enumerate(rows):
        styles = (
            (PrefixStyle.RANK, PrefixStyle.SRUN),
            (PrefixStyle.SRUN, PrefixStyle.DEFAULT),
            (PrefixStyle.RANK_FILES, PrefixStyle.MPI),
        )[index % 3]
        cases += in_two(
            name, said, Label("restart", (2,), also=also), source, range(4), flavour, styles
        )
    return cases


def _kernel_only() -> list[JobLogCase]:
    """Lines of a node's kernel between those of ranks: they name the node."""
    late = mixed([timed_out(rank, Work(512), "2.5") for rank in range(4)])
    return [
        *in_two(
            "GPU row remapping fails on the second node",
            [
                kernel("NVRM: Xid (PCI:0000:1b:00): 64, pid=4205, name=python, Row Remapper: failed to remap row", "gpu-node-02"),
                *[timed_out(rank, Work(900), "2.5") for rank in (0, 1, 2, 3)],
            ],
            Label("restart", None, ("gpu-node-02",)),
            XID,
            range(8),
            "megatron",
            (PrefixStyle.BARE, PrefixStyle.SRUN),
            TWO_NODES,
        ),
        *in_two(
            "GSP of a device times out",
            [kernel("NVRM: Xid (PCI:0000:5d:00): 119, pid=4203, name=python, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4)."), *late],
            Label("restart", None, ("gpu-node-01",)),
            XID,
            range(4),
        ),
        *in_two(
            "a machine check before a segmentation fault",
            [kernel("mce: [Hardware Error]: Machine check events logged"),
             kernel("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: ba00000000000405", second=41),
             torchrun_summary(2, -11)],
            Label("restart", (2,)),
            "https://www.kernel.org/doc/html/latest/arch/x86/x86_64/machinecheck.html",
            range(4),
        ),
    ]  # fmt: skip


def _network() -> list[JobLogCase]:
    """Links and connections between nodes."""

    def completion(rank: int, peer: str, status: int = 12) -> Said:
        node = TWO_NODES.node_of(rank)
        return Said(
            rank,
            f"{node}:{3468 + rank}:3905 [{rank % 4}] transport/net_ib.cc:2209 NCCL WARN NET/IB : Got completion from peer "
            f"{peer}<54862> with status={status} opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.1.0.11 "
            f"remoteGids::ffff:{peer} hca mlx5_0\n"
            f"{node}:{3468 + rank}:3905 [{rank % 4}] NCCL INFO transport/net.cc:1302 -> 6\n"
            f"{node}:{3468 + rank}:3905 [{rank % 4}] NCCL INFO proxy.cc:878 -> 6 [Progress Thread]",
        )

    def unhandled(rank: int) -> Said:
        return Said(
            rank,
            trace(
                "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2027, "
                "remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly "
                "due to a network error or a remote process exiting prematurely.\nLast error:\nNET/IB : Got completion from peer "
                "10.1.0.12<54862> with status=12 opcode=0 len=0 vendor err 129 (Send)",
                *BACKWARD,
            ),
        )

    return [
        *in_two(
            "an InfiniBand completion error names a peer",
            [completion(rank, "10.1.0.12") for rank in range(4)] + [unhandled(0), unhandled(1)],
            Label("restart", None),
            "https://github.com/NVIDIA/nccl/issues/1405",
            range(8),
            "megatron",
            (PrefixStyle.BARE, PrefixStyle.SRUN),
            TWO_NODES,
        ),
        *in_two(
            "an InfiniBand port goes down by the kernel's line",
            [kernel("mlx5_core 0000:9b:00.0 mlx5_3: Port: 1 Link DOWN", "gpu-node-02"),
             completion(1, "10.1.0.12"), *mixed([timed_out(rank, Work(77), "2.5") for rank in range(8)])],
            Label("restart", None, ("gpu-node-02",)),
            "https://github.com/NVIDIA/nccl/issues/1814",
            range(8),
            "titan",
            (PrefixStyle.BARE, PrefixStyle.NODE_FILES),
            TWO_NODES,
        ),
        *in_two(
            "NCCL's connection is refused while it starts",
            [Said(rank, f"gpu-node-01:{4200 + rank}:4399 [{rank}] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to "
                        "10.1.0.12<45763> failed : Software caused connection abort") for rank in (0, 1)]
            + [Said(0, trace("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
                             "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclSystemError: "
                             "System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
                             "socketStartConnect: Connect to 10.1.0.12<45763> failed : Software caused connection abort", *INIT))],
            Label("restart", None),
            "https://github.com/NVIDIA/nccl-tests/issues/166",
            range(8),
            "plain",
            (PrefixStyle.BARE, PrefixStyle.SRUN),
            TWO_NODES,
        ),
        *in_two(
            "no route to a host",
            [Said(3, trace("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
                           "(gpu-node-02, 29500). The IPv4 socket has failed to connect to gpu-node-02:29500 (errno: 113 - No route "
                           "to host).", *INIT))],
            Label("restart", None),
            PYTORCH,
            range(4),
            styles=(PrefixStyle.RANK, PrefixStyle.SRUN),
        ),
        *in_two(
            "gloo's connection was reset on all ranks but rank 3, which said nothing",
            [Said(rank, trace("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.1.0.14]:25266: "
                              "Connection reset by peer", *BACKWARD)) for rank in (0, 1, 2)],
            Label("restart", None),
            "https://github.com/RVC-Project/Retrieval-based-Voice-Conversion-WebUI/issues/1882",
            range(4),
            styles=(PrefixStyle.RANK, PrefixStyle.RANK_FILES),
        ),
        *in_two(
            "the store's host is gone",
            [Said(rank, trace("torch.distributed.DistNetworkError: Connection reset by peer", *TRAIN,
                              "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1520:_store_based_barrier")
                  + f"\n[rank{rank}]:[W301 10:12:41.116 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=67, addr=[gpu-node-02]:53120, "
                  "remote=[gpu-node-01]:29500): failed to recv, got 0 bytes") for rank in range(4, 8)],
            Label("restart", None),
            PYTORCH,
            range(8),
            styles=(PrefixStyle.RANK, PrefixStyle.NODE_FILES),
            shape=TWO_NODES,
        ),
        a_case("mpirun lost a node's daemon",
               [*chatter(range(8)), Said(None, "--------------------------------------------------------------------------\nORTE has lost communication with a "
                "remote daemon.\n\n  HNP daemon   : [[62714,0],0] on node gpu-node-01\n  Remote daemon: [[62714,0],1] on node gpu-node-02\n\n"
                "This is usually due to either a failure of the TCP network\nconnection to the node, or possibly an internal failure of\nthe daemon itself. We "
                "cannot recover from this failure, and\ntherefore will terminate the job.\n--------------------------------------------------------------------------")],
               Label("restart", None, ("gpu-node-02",)), "https://github.com/open-mpi/ompi", is_noisy=True),
    ]  # fmt: skip


def _versions() -> list[JobLogCase]:
    """Libraries and drivers that don't fit together, on one node or on all."""
    old = trace(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
        "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx",
        *TRAIN,
        "/opt/conda/lib/python3.11/site-packages/torch/cuda/__init__.py:319:_lazy_init",
    )
    return [
        *in_two("a driver that doesn't fit its library on the second node",
                [Said(rank, "Failed to initialize NVML: Driver/library version mismatch\n"
                      + trace("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
                              "might have already set an error? Error 803: system has unsupported display driver / cuda driver combination", *TRAIN))
                 for rank in range(4, 8)],
                Label("restart", None, ("gpu-node-02",), also=("stop",)), "https://github.com/tinygrad/open-gpu-kernel-modules/issues/47",
                range(8), "plain", (PrefixStyle.HOST, PrefixStyle.NODE_FILES), TWO_NODES, is_at_start=True),
        *in_two("a driver that is too old on all ranks", [Said(rank, old) for rank in range(4)],
                Label("stop", None, also=("restart",)), PYTORCH, range(4), "plain", (PrefixStyle.RANK, PrefixStyle.SRUN), is_at_start=True),
        *in_two("NCCLs of two versions",
                [Said(rank, f"gpu-node-01:{4200 + rank}:4399 [{rank}] init.cc:1003 NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 rank 1 version 21805")
                 for rank in (0, 1)],
                Label("stop", None, also=("restart",)), "https://github.com/NVIDIA/nccl/blob/master/src/init.cc", range(2), "plain",
                (PrefixStyle.BARE, PrefixStyle.SRUN), is_at_start=True),
        *in_two("a shared library that isn't there",
                [Said(rank, trace("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory", "/home/user/train.py:3:<module>", code="import torch"))
                 for rank in range(4)],
                Label("stop", None, also=("restart",)), PYTORCH, range(4), "plain", (PrefixStyle.RANK, PrefixStyle.SRUN), is_at_start=True),
        *in_two("a fabric manager that isn't running",
                [Said(rank, trace("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
                                  "might have already set an error? Error 802: system not yet initialized", *TRAIN)) for rank in range(4)],
                Label("restart", None), PYTORCH, range(4), "plain", (PrefixStyle.SRUN, PrefixStyle.KUBE), is_at_start=True),
    ]  # fmt: skip


MACHINES: Sequence[JobLogCase] = (
    *_devices(),
    *_kernel_only(),
    *_network(),
    *_versions(),
    a_case(
        "a device error of rank 6 on the second node, by host names",
        [*steps("deepspeed", 1, 20), cuda_error(6, "uncorrectable ECC error encountered")],
        Label("restart", None, ("gpu-node-02",)),
        "https://github.com/verl-project/verl/issues/407",
        PrefixStyle.HOST,
        TWO_NODES,
        is_noisy=True,
    ),
)
