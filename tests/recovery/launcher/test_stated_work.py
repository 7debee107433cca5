"""Work stated once on the command line."""

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.ranks.launch_plan import StatedWork, parse_step_work
from recovery.messages.exchange import RankWork


def test_each_rank_has_its_share_of_the_steps() -> None:
    stated = parse_step_work("flops=8e15, tokens=4096,dtype=fp8,device=NVIDIA H200")

    assert stated == StatedWork(8e15, 4096.0, 0.0, "fp8", "NVIDIA H200")
    assert stated.of_rank(3, 8) == RankWork(3e15, 1536.0, 0.0, "fp8", "NVIDIA H200")


def test_data_type_belongs_to_flops_and_is_bf16_if_nobody_says() -> None:
    assert parse_step_work("flops=1").data_type == "bf16"
    assert parse_step_work("samples=32").data_type == ""


@pytest.mark.parametrize(
    "text",
    [
        *("", "flops", "flops=", "flops=x", "flops=nan", "flops=inf", "flops=-1", "flops=0"),
        *("flops=1,flops=2", "speed=3", "dtype=bf16", "flops=1,dtype=int8", "flops=1,dtype="),
        *("flops=1,device=\x1b[2J", "flops=1,device=" + "x" * 48, "flops=1;tokens=2"),
    ],
)
def test_what_states_no_work_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--step-work"):
        parse_step_work(text)
