"""`rankmend agent init`: a configuration that the agent takes, with what the host has, and nothing overwritten."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig, load
from agent.setup.found import count_devices
from agent.setup.template import render
from agent.setup.writing import check_text, write_config
from rankmend.cli.agent import agent
from rankmend.errors import ConfigError, StorageError
from tests.support.eventually import DEADLINE_S
from tests.support.nics import add_pci, add_rdma, link, write

pytestmark = pytest.mark.process


def init(*words: str) -> Result:
    return CliRunner().invoke(agent, ["init", *words])


def test_settings_are_switched_on_in_their_tables_and_the_rest_stays_a_comment(
    tmp_path: Path,
) -> None:
    path = tmp_path / "etc" / "agent.toml"
    (tmp_path / "node.crt").write_text("")

    done = init(
        *(str(path), "--listen", ":9476", "--node", "gpu-1", "--no-expect"),
        *("--controller", "https://controller.example:9477", "--alerts", "http://am-a:9093"),
        *("--alerts", "http://am-b:9093", "--cert-file", "/c.crt", "--key-file", "/c.key"),
    )

    config = load(path)
    assert done.exit_code == 0, done.output
    assert (config.listen, config.node) == (":9476", "gpu-1")
    assert config.watch.controller == "https://controller.example:9477"
    assert config.alerts.urls == ("http://am-a:9093", "http://am-b:9093")
    assert (config.alerts.cert_file, config.tls) == ("/c.crt", None)
    assert "\n#interval_s = 1.0\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_file_that_is_there_is_not_touched_without_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('node = "mine"\n')

    done = init(str(path), "--no-expect")

    assert (done.exit_code, "add --yes" in done.output) == (2, True)
    assert [file.name for file in tmp_path.iterdir()] == ["agent.toml"]
    assert path.read_text() == 'node = "mine"\n'


def test_file_that_is_replaced_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('node = "mine"\n')
    path.chmod(0o640)

    done = init(str(path), "--no-expect", "--yes")

    kept = tmp_path / "agent.toml.old"
    assert done.exit_code == 0, done.output
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ('node = "mine"\n', 0o640)
    assert load(path) == AgentConfig()


@pytest.mark.parametrize(("answer", "is_replaced"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_person_at_a_terminal_is_asked(tmp_path: Path, answer: str, is_replaced: bool) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("# mine\n")
    ours, theirs = os.openpty()
    os.write(ours, answer.encode())

    done = subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "agent", "init", str(path), "--no-expect"],
        stdin=theirs,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    os.close(ours)
    os.close(theirs)

    assert "Replace it?" in done.stderr
    assert (path.read_text() != "# mine\n") is is_replaced


def test_dash_prints_what_would_be_written() -> None:
    done = init("-", "--no-expect", "--node", "gpu-1")

    assert done.exit_code == 0
    assert '\nnode = "gpu-1"\n' in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--controller", "ftp://x"), "ftp"),
        (("--alerts", "http://am-a:9093", "--alerts", "am-b:9093"), "alerts.urls is not http(s)"),
        (("--alerts", "http://am-a:port"), "'http://am-a:port'"),
        (("--node", "\udcff"), "is not text"),
    ],
)
def test_setting_that_the_agent_would_refuse_is_not_written(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "agent.toml"

    done = init(str(path), "--no-expect", *words)

    assert (done.exit_code, said in done.output) == (1, True)
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_place_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StorageError, match="is not a file"):
            write_config(place, render({}), replaces=True)
    with pytest.raises(FileExistsError):  # made by another since we looked
        write_config(tmp_path / "pipe", render({}), replaces=False)


@given(st.text(max_size=60).filter(lambda text: "\x7f" not in text))
def test_any_name_ends_up_in_the_file_as_it_is(text: str) -> None:
    try:
        check_text(render({"node": text}))
    except ConfigError:
        assert any("\ud800" <= one <= "\udfff" for one in text)


def test_devices_are_counted_as_the_agent_counts_them(tmp_path: Path) -> None:
    sysfs, procfs = tmp_path / "sys", tmp_path / "proc"
    for number in range(2):
        card = add_pci(sysfs, f"4{number}/4{number}:00.0", "0x020700", "0x15b3", 0, "mlx5_core")
        add_rdma(sysfs, f"mlx5_{number}", card, "InfiniBand", "400 Gb/sec (4X NDR)")
    disk = add_pci(sysfs, "50/50:00.0", "0x010802", "0x144d", 0, "nvme") / "nvme" / "nvme0"
    write(disk / "model", "MZ")
    write(disk / "serial", "S1")
    write(disk / "transport", "pcie")
    link(sysfs / "class" / "nvme" / "nvme0", disk)
    fixture = Path(__file__).resolve().parents[1] / "fixtures" / "sys-node" / "proc"
    for name in ("meminfo", "stat", "loadavg", "uptime", "vmstat"):
        write(procfs / name, (fixture / name).read_text().rstrip("\n"))
    total_kib = int((fixture / "meminfo").read_text().split()[1])

    counts = count_devices(procfs, sysfs, asks_nvml=False)

    assert (counts["nics"], counts["disks"]) == (2, 1)
    assert 0.95 * total_kib / (1 << 20) - 1 < counts["memory_gib"] < total_kib / (1 << 20)
    check_text(render({f"expect.{name}": count for name, count in counts.items()}))


def test_host_of_which_nothing_is_known_states_nothing(tmp_path: Path) -> None:
    assert count_devices(tmp_path, tmp_path, asks_nvml=False) == {}
