"""Disk health: smartctl and nvme in all forms; what a disk does not tell is never zero."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.disk_health import DiskHealthCollector
from agent.root_helper.questions import HelperAnswer, HelperQuery, ProgramOutcome, ProgramResult
from detectors.formats.disk_health import parse_nvme_smart_log, parse_smartctl
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, values_of

FIXTURES = ROOT / "tests" / "fixtures" / "disk-health"


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


def collect(
    smart: list[ProgramResult], nvme: list[ProgramResult] | None = None
) -> dict[str, float]:
    answers = {HelperQuery.DISK_SMART: tuple(smart), HelperQuery.NVME_SMART: tuple(nvme or ())}
    collector = DiskHealthCollector(lambda query: HelperAnswer(query, 0.0, answers[query]))
    return values_of(list(collector.collect()))


def answered(name: str, fixture: str, exit_code: int = 0) -> ProgramResult:
    return ProgramResult(name, ProgramOutcome.ANSWERED, exit_code, read(fixture))


def test_ata_disk_tells_its_sectors() -> None:
    values = collect([answered("sda", "smartctl-ata.json")])

    assert values["disk_health_info{sda,EXAMPLE 960G,S3X4MPL3,XF1230Q}"] == 1
    assert values["disk_smart_passed{sda}"] == 1
    assert values["disk_temperature_celsius{sda}"] == 33  # not the packed raw value
    assert values["disk_power_on_seconds_total{sda}"] == 36_000_000
    assert values["disk_reallocated_sectors{sda}"] == 2
    assert values["disk_pending_sectors{sda}"] == 8
    assert values["disk_uncorrectable_sectors{sda}"] == 1
    assert values["disk_crc_errors_total{sda}"] == 4
    assert not [name for name in values if "nvme" in name]


def test_failing_disk_is_measured_although_smartctl_exits_with_an_error() -> None:
    values = collect([answered("sdb", "smartctl-ata-failing.json", exit_code=8)])

    assert values["disk_smart_passed{sdb}"] == 0
    assert values["disk_health_success{sdb}"] == 1
    assert "disk_pending_sectors{sdb}" not in values


def test_nvme_disk_tells_its_wear_in_base_units() -> None:
    values = collect([answered("nvme0", "smartctl-nvme.json")])

    assert values["disk_nvme_used_ratio{nvme0}"] == 1.04
    assert values["disk_nvme_spare_ratio{nvme0}"] == 0.99
    assert values["disk_nvme_read_bytes_total{nvme0}"] == 512_000_000
    assert values["disk_nvme_media_errors_total{nvme0}"] == 5
    assert values["disk_nvme_critical_warning_id{nvme0}"] == 0


@pytest.mark.parametrize(
    ("fixture", "written_bytes", "passed"),
    [("nvme-1.json", 1_280_000_000_000, 0), ("nvme-2.json", 1_024_000_000, 1)],
)
def test_nvme_cli_is_read_with_floats_and_with_text(
    fixture: str, written_bytes: float, passed: int
) -> None:
    values = collect([], [answered("nvme0", fixture)])

    assert values["disk_temperature_celsius{nvme0}"] == 38  # kelvin in the file
    assert values["disk_nvme_written_bytes_total{nvme0}"] == written_bytes
    assert values["disk_smart_passed{nvme0}"] == passed


def test_nvme_answers_where_smartctl_failed() -> None:
    failed = ProgramResult("nvme0", ProgramOutcome.FAILED, None, "", "it took too long")

    values = collect([failed], [answered("nvme0", "nvme-1.json")])

    assert values["disk_health_success{nvme0}"] == 1


def test_disk_that_cannot_be_asked_is_shown_beside_those_that_can() -> None:
    values = collect(
        [
            answered("sda", "smartctl-ata.json"),
            answered("sdd", "smartctl-no-device.json", exit_code=2),
            ProgramResult("sde", ProgramOutcome.FAILED, None, "", "it took too long"),
            ProgramResult("sdf", ProgramOutcome.ANSWERED, 1, "garbage"),
        ]
    )

    assert [values[f"disk_health_success{{{disk}}}"] for disk in ("sda", "sdd", "sde", "sdf")] == [
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("exit_code", [0, 4])
def test_disk_that_refuses_its_health_log_is_no_success_and_never_absent(exit_code: int) -> None:
    values = collect(
        [
            answered("sda", "smartctl-ata.json"),
            answered("nvme1", "smartctl-nvme-refused.json", exit_code),
        ]
    )

    assert values["disk_health_success{nvme1}"] == 0
    assert values["disk_health_success{sda}"] == 1


def test_refusal_is_logged_with_its_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    refused = answered("nvme1", "smartctl-nvme-refused.json", 4)
    collector = DiskHealthCollector(
        lambda query: HelperAnswer(
            query, 0.0, (refused,) if query is HelperQuery.DISK_SMART else ()
        )
    )

    list(collector.collect())
    list(collector.collect())

    (record,) = caplog.records
    assert vars(record)["device"] == "nvme1"
    assert "NVMe Status 0x2002" in vars(record)["error"]


def test_health_that_one_program_can_not_read_is_taken_from_the_other() -> None:
    refused = answered("nvme0", "smartctl-nvme-refused.json", 4)

    values = collect([refused], [answered("nvme0", "nvme-1.json")])

    assert values["disk_health_success{nvme0}"] == 1
    assert values["disk_nvme_written_bytes_total{nvme0}"] == 1_280_000_000_000


def test_disk_without_smart_is_absent() -> None:
    page = json.dumps({"smartctl": {}, "smart_support": {"available": False}})

    with pytest.raises(NoSourceError):
        parse_smartctl(page, 0)


@pytest.mark.parametrize("exit_code", [0, 4])
@pytest.mark.parametrize(
    "page",
    [
        {"device": {"protocol": "NVMe"}, "smart_support": {"available": False}},
        {"device": {"protocol": "ATA"}, "smart_support": {"available": False}},
        {"device": {"protocol": "SCSI"}, "smart_support": {"available": False}},
        {"device": {"protocol": "SCSI"}, "scsi_vendor": "VMware"},
        {"device": {"protocol": "NVMe"}, "nvme_pci_vendor": {"id": 0x15AD}},  # VMware
        {"device": {"protocol": "NVMe"}, "nvme_pci_vendor": {"id": 0x1D0F}},  # Amazon EBS
        {
            "device": {"protocol": "NVMe"},
            "nvme_pci_vendor": {"id": 0x1414},  # Azure; smartctl 7.4 says so of any NVMe disk
            "smart_support": {"available": True},
        },
    ],
)
def test_virtual_disk_without_a_health_log_is_absent_also_where_nvme_fails(
    page: dict[str, object], exit_code: int
) -> None:
    text = json.dumps({"smartctl": {"exit_status": exit_code}, **page})
    nvme = ProgramResult(
        "nvme0", ProgramOutcome.ANSWERED, 1, "", "NVMe status: Invalid Field in Command"
    )

    with pytest.raises(NoSourceError):
        collect([ProgramResult("nvme0", ProgramOutcome.ANSWERED, exit_code, text)], [nvme])


@pytest.mark.parametrize(
    "page",
    [
        {"device": {"protocol": "SCSI"}, "smart_support": {"available": True}},
        {"device": {"protocol": "ATA"}, "smart_support": {"available": True}},
        {"device": {"protocol": "NVMe"}, "nvme_pci_vendor": {"id": 0x144D}},
    ],
)
def test_disk_that_has_smart_and_tells_nothing_is_silent(page: dict[str, object]) -> None:
    text = json.dumps({"smartctl": {}, **page})

    values = collect([ProgramResult("sda", ProgramOutcome.ANSWERED, 4, text)])

    assert values["disk_health_success{sda}"] == 0


def test_sleeping_disk_and_node_without_disks_are_absent() -> None:
    with pytest.raises(NoSourceError):
        parse_smartctl(read("smartctl-standby.json"), 0)
    with pytest.raises(NoSourceError):
        collect([answered("sdc", "smartctl-standby.json")])
    with pytest.raises(NoSourceError):
        collect([ProgramResult("sda", ProgramOutcome.ABSENT, None, "", "no smartctl")])
    with pytest.raises(NoSourceError):
        collect([])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.just("9" * 400),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "smartctl",
                        "smart_status",
                        "passed",
                        "temperature",
                        "current",
                        "table",
                        "raw",
                    ),
                    *("ata_smart_attributes", "id", "value", "messages", "power_on_time", "hours"),
                    *("nvme_smart_health_information_log", "critical_warning", "percent_used"),
                    *("device", "protocol", "nvme_pci_vendor", "smart_support", "available"),
                    *("data_units_read", "available_spare", "scsi_grown_defect_list"),
                ]
            ),
            inner,
        )
    ),
)


@PATIENT
@given(JSON, st.integers(0, 255))
def test_any_json_is_understood_or_refused(page: object, exit_code: int) -> None:
    text = json.dumps(page)
    for parse in (lambda: parse_smartctl(text, exit_code), lambda: parse_nvme_smart_log(text)):
        try:
            health = parse()
        except (NoSourceError, SourceError):
            continue
        assert health.reallocated_sectors is None or health.reallocated_sectors >= 0


@PATIENT
@given(st.text())
def test_any_text_is_understood_or_refused(text: str) -> None:
    for parse in (lambda: parse_smartctl(text, 0), lambda: parse_nvme_smart_log(text)):
        with pytest.raises((NoSourceError, SourceError)):
            parse()


@pytest.mark.parametrize("vendor", [[], {}, "VMware", None, -1])
def test_vendor_that_makes_no_sense_is_no_virtual_disk(vendor: object) -> None:
    page = {"device": {"protocol": "NVMe"}, "nvme_pci_vendor": {"id": vendor}}

    with pytest.raises(SourceError):
        parse_smartctl(json.dumps(page), 0)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000])
def test_deep_or_long_text_is_refused(text: str) -> None:
    with pytest.raises(SourceError):
        parse_smartctl(text, 0)
