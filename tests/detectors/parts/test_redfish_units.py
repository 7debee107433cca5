"""Coolant units and power feeds that a command reads by Redfish."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from detectors.formats.site.plant_files import POWER_FILE
from detectors.parts.power_feeds import PowerReading
from rankmend.cli import cli
from tests.support.redfish_bmc import Bmc, load

pytestmark = pytest.mark.process

COOLANT_LOOPS = "".join(
    f"[[coolant_loop]]\nname='cdu-{at}'\nnodes=['n[{10 * at}-{10 * at + 9}]']\n" for at in range(4)
)
POWER_FEEDS = "".join(
    f"[[power_feed]]\nname='pdu-{at}'\nnodes=['n[{10 * at}-{10 * at + 9}]']\n" for at in range(4)
)


def test_command_reads_a_unit_by_redfish_and_judges_the_file(tmp_path: Path) -> None:
    secret, file = tmp_path / "cdu.toml", tmp_path / "cooling.json"
    secret.write_text('user = "monitor"\npassword = "s3cret"\n')
    secret.chmod(0o600)
    topology, pages = tmp_path / "site.json", tmp_path / "pages"
    pages.mkdir()
    for at in range(20):
        is_hot = at < 10
        text = (
            'rankmend_finding_active{check="gpu_slowed_by_heat",uuid="G"} 1\n' if is_hot else "\n"
        )
        (pages / f"n{at}").write_text(text)
    (tmp_path / "site.toml").write_text(COOLANT_LOOPS)
    run = CliRunner().invoke
    run(cli, ["fabric", "topology", "--site", str(tmp_path / "site.toml"), "-o", str(topology)])

    with Bmc(load("new.json")) as bmc:
        read = run(cli, ["check", "cooling", str(file), "--redfish", f"http://127.0.0.1:{bmc.port}",
                         "--credentials", str(secret), "--unit", "cdu-0", "--json"])  # fmt: skip
    judged_now = run(cli, ["check", "cooling", str(file), "--topology", str(topology),
                           "--pages", str(pages)])  # fmt: skip
    broken = run(cli, ["check", "cooling", str(topology)])

    (unit,) = json.loads(read.output)
    assert read.exit_code in (0, 1), read.output
    assert unit["reading"]["flow_liters_per_s"] is not None
    assert judged_now.exit_code == 1
    assert "10 nodes of 10 on it slowed by heat" in judged_now.output
    assert (broken.exit_code, "coolant units" in broken.stderr) == (64, True)


def test_command_reads_a_pdu_by_redfish_keeps_the_sites_limits_and_judges_the_file(
    tmp_path: Path,
) -> None:
    secret, file = tmp_path / "pdu.toml", tmp_path / "power.json"
    secret.write_text('user = "monitor"\npassword = "s3cret"\n')
    secret.chmod(0o600)
    topology, pages = tmp_path / "site.json", tmp_path / "pages"
    pages.mkdir()
    braked = 'rankmend_finding_active{check="gpu_power_brake",uuid="G"} 1\n'
    for at in range(20):
        (pages / f"n{at}").write_text(braked if at < 10 else "\n")
    (tmp_path / "site.toml").write_text(POWER_FEEDS)
    file.write_bytes(POWER_FILE.encode([PowerReading("pdu-0", 1.0, power_watts_max=15e3)]))
    run = CliRunner().invoke
    run(cli, ["fabric", "topology", "--site", str(tmp_path / "site.toml"), "-o", str(topology)])

    with Bmc(load("pdu.json")) as pdu:
        read = run(cli, ["check", "power", str(file), "--redfish", f"http://127.0.0.1:{pdu.port}",
                         "--credentials", str(secret), "--feed", "pdu-0", "--json"])  # fmt: skip
    shown = run(cli, ["check", "power", str(file), "--topology", str(topology),
                      "--pages", str(pages)])  # fmt: skip
    broken = run(cli, ["check", "power", str(topology)])

    (feed,) = json.loads(read.output)
    assert (read.exit_code, feed["reading"]["power_watts"], feed["reading"]["load_ratio"]) == (1, 15.2e3, 0.75)  # fmt: skip
    assert feed["words"] == (
        "power feed pdu-0: 15.2 kW, above 15 kW; a breaker has tripped; it calls itself critical"
    )
    assert shown.exit_code == 1
    assert "10 nodes of 10 on it short of power" in shown.output
    assert (broken.exit_code, "power feeds" in broken.stderr) == (64, True)
