"""Slurm's lists of hosts, as `scontrol show hostnames` expands them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.site.host_list import HOSTS_MAX, expand_hosts
from rankmend.errors import SourceError
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

LISTS = {
    "node1": ("node1",),
    "node[1-3,7]": ("node1", "node2", "node3", "node7"),
    "node[1-3,7],gpu-a[01-04]": (
        *("node1", "node2", "node3", "node7"),
        *("gpu-a01", "gpu-a02", "gpu-a03", "gpu-a04"),
    ),
    "n[08-11]": ("n08", "n09", "n10", "n11"),
    "n[098-101]": ("n098", "n099", "n100", "n101"),
    "rack[0-1]node[1-2]": ("rack0node1", "rack0node2", "rack1node1", "rack1node2"),
    "a,b.example,c[5]": ("a", "b.example", "c5"),
    "n[1-2]-ib": ("n1-ib", "n2-ib"),
    "a,b[1-2]x,c": ("a", "b1x", "b2x", "c"),
}


@pytest.mark.parametrize("text", LISTS)
def test_list_is_expanded_in_its_order(text: str) -> None:
    assert expand_hosts(text) == LISTS[text]


@pytest.mark.parametrize("text", [one for one in LISTS if not one.endswith(("-ib", "x,c"))])
def test_scontrol_expands_it_alike(text: str, tmp_path: Path) -> None:
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed (slurm-client)")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=toy\nSlurmctldHost=localhost\nNodeName=localhost\n")

    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={"PATH": os.environ["PATH"], "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert tuple(done.stdout.split()) == expand_hosts(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "node[1-3", "node1-3]", "node[]", "node[3-1]", "node[a-b]", "node[1-3,]"),
        *("node[[1]]", "node[1-2]]", "a b", "$(reboot)", "node[1-99999999]", "node,,other", "né"),
        *("node[1-99999999999999999999]", "a[0-999]b[0-999]", "x" * 300_000, "[1]" * 9),
    ],
)
def test_what_is_no_list_or_too_long_a_one_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="host"):
        expand_hosts(text)


def test_the_largest_list_is_expanded() -> None:
    assert len(expand_hosts(f"n[1-{HOSTS_MAX}]")) == HOSTS_MAX


@given(st.text(alphabet="n0129[]-,. ", max_size=24))
def test_any_text_is_a_list_of_names_or_refused(text: str) -> None:
    try:
        hosts = expand_hosts(text)
    except SourceError:
        return
    assert all(host and not set(host) & set("[], ") for host in hosts)
