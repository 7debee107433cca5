"""Which hardware a node has, by its driver's and firmware's files."""

from pathlib import Path

from recovery.launcher.host.hardware import read_node_kinds
from recovery.messages.exchange import KIND_MAX, NodeKinds


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_node_is_described_by_driver_and_firmware(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    for slot in ("0000:17:00.0", "0000:2a:00.0"):
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n"
        write(proc / "driver/nvidia/gpus" / slot / "information", text)
    write(sys / "class/infiniband/mlx5_0/hca_type", "MT4129\n")
    write(sys / "class/dmi/id/sys_vendor", "Supermicro\n")
    write(sys / "class/dmi/id/product_name", "SYS-821GE-TNHR\n")

    kinds = read_node_kinds(proc, sys)

    assert kinds == NodeKinds("NVIDIA H100 80GB HBM3", "MT4129", "Supermicro SYS-821GE-TNHR")


def test_what_a_node_lacks_is_empty_and_a_mixture_is_said_to_be_one(tmp_path: Path) -> None:
    for name, kind in (("mlx5_0", "MT4129"), ("mlx5_1", "MT4123")):
        write(tmp_path / "class/infiniband" / name / "hca_type", kind)

    assert read_node_kinds(tmp_path / "no", tmp_path / "no") == NodeKinds()
    assert read_node_kinds(tmp_path / "no", tmp_path) == NodeKinds(nic="several")


def test_name_of_a_hostile_firmware_is_printable_and_short(tmp_path: Path) -> None:
    write(tmp_path / "class/dmi/id/product_name", "\x1b[31m" + "x" * 500)

    kinds = read_node_kinds(tmp_path / "no", tmp_path)

    assert "\x1b" not in kinds.node
    assert len(kinds.node) <= KIND_MAX
