"""The controller's series of a job's checkpoints."""

import re

import msgspec

from recovery.service.measures import Measures
from tests.cli.test_checkpoint_lines import VIEW


def values(measures: Measures) -> dict[str, float]:
    """Return the series of the job, each without its job_id."""
    text = measures.render().decode().replace('{job_id="j"}', "").replace('job_id="j",', "")
    found = re.findall(
        r'^rankmend_controller_((?:checkpoint|failure)_[\w{}="]+) (\S+)$', text, re.M
    )
    return {name: float(value) for name, value in found}


def test_checkpoint_has_its_series_and_what_is_unknown_has_none() -> None:
    measures = Measures()

    measures.note_checkpoint("j", msgspec.structs.replace(VIEW, read_bytes_per_s=None))

    assert values(measures) == {
        "checkpoint_age_seconds": 180.0,
        "checkpoint_interval_seconds": 720.0,
        "checkpoint_best_interval_seconds": 580.0,
        "checkpoint_stall_seconds": 14.4,
        "checkpoint_save_seconds": 30.0,
        "checkpoint_write_bytes_per_second": 70e6,
        "failure_interval_seconds": 11_520.0,
        'checkpoint_cost_ratio{part="stalls"}': 0.02,
        'checkpoint_cost_ratio{part="recomputed"}': 0.031,
        'checkpoint_cost_ratio{part="restarts"}': 0.0078,
    }


def test_series_end_where_nothing_can_be_restored_any_more() -> None:
    measures = Measures()
    measures.note_checkpoint("j", VIEW)

    measures.note_checkpoint("j", None)

    assert values(measures) == {}
