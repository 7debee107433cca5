"""The tables of an incident's page with what agents said."""

from recovery.accounting.readings.reading import NodeReading, ReadAt, pick_samples
from recovery.console.node_readings import NodeTables, view_readings

GPU_3 = 'gpu="3",uuid="GPU-5f",pci_bus_id="0000:4b:00.0"'
GPU_4 = 'gpu="4",uuid="GPU-60",pci_bus_id="0000:4c:00.0"'
FIRST = f"""\
rankmend_host_load_processes{{window="1m"}} 12.25
rankmend_host_cpus 96
rankmend_host_memory_available_bytes 1073741824
rankmend_host_memory_size_bytes 2147483648
rankmend_gpu_success{{{GPU_3}}} 1
rankmend_gpu_lost{{{GPU_3}}} 0
rankmend_gpu_temperature_celsius{{{GPU_3}}} 91
rankmend_gpu_memory_temperature_celsius{{{GPU_3}}} 96
rankmend_gpu_clock_hertz{{{GPU_3},clock="sm"}} 1.2e9
rankmend_gpu_clock_max_hertz{{{GPU_3},clock="sm"}} 1.98e9
rankmend_gpu_clocks_limited_seconds_total{{{GPU_3},reason="hw_thermal_slowdown"}} 90
rankmend_gpu_clocks_event_seconds_total{{{GPU_3},reason="gpu_idle"}} 9000
rankmend_gpu_ecc_errors_total{{{GPU_3},kind="corrected",counter="volatile"}} 2
rankmend_gpu_temperature_celsius{{{GPU_4}}} 45
rankmend_nic_port_state_id{{device="mlx5_0",port="1"}} 4
rankmend_nic_rate_bytes_per_second{{device="mlx5_0",port="1"}} 2.5e10
rankmend_nic_rate_max_bytes_per_second{{device="mlx5_0",port="1"}} 5e10
rankmend_nic_symbol_errors_total{{device="mlx5_0",port="1"}} 0
rankmend_network_receive_errors_total{{device="lo"}} 0
"""
LATER = (
    FIRST.replace('counter="volatile"} 2', 'counter="volatile"} 5')
    .replace('symbol_errors_total{device="mlx5_0",port="1"} 0', 'symbol_errors_total{device="mlx5_0",port="1"} 7')
    + 'rankmend_gpu_xid_total{pci_bus_id="0000:4b:00.0",xid="79"} 1\n'
)  # fmt: skip


def read_of(page: str, at: ReadAt, unix_s: float) -> NodeReading:
    samples, is_cut = pick_samples(page.encode(), "n1")
    return NodeReading("n1", at, unix_s, "", samples, is_cut)


def tables(*accused: tuple[str, str]) -> NodeTables:
    readings = [read_of(FIRST, ReadAt.OPENED, 10.0), read_of(LATER, ReadAt.CLOSED, 20.0)]
    (found,) = view_readings(readings, accused)
    return found


def rows_of(found: NodeTables, title: str) -> dict[str, tuple[str, ...]]:
    device = next(one for one in found.devices if title in one.title)
    return {row.name: row.cells for row in device.rows}


def test_blamed_gpu_comes_first_by_its_uuid_or_its_pci_address() -> None:
    for name in ("GPU-5f", "0000:4b:00.0"):
        found = tables(("n1", name))

        assert "GPU-5f" in found.devices[0].title
        assert [one.is_blamed for one in found.devices] == [True, False, False, False]
        assert found.devices[1].title == "The node"
    assert not any(one.is_blamed for one in tables(("n2", "GPU-5f")).devices)


def test_gpu_is_told_in_figures_and_units_with_what_has_grown() -> None:
    rows = rows_of(tables(), "GPU-5f")

    assert rows["Answers"] == ("yes", "yes")
    assert rows["Temperature"] == ("91 °C, memory 96 °C",) * 2
    assert rows["SM clock"] == ("1,200 of 1,980 MHz",) * 2
    assert rows["Clocks held back"] == ("hw thermal slowdown: 90 s",) * 2
    assert rows["ECC errors"] == ("corrected: 2", "corrected: 5 (+3)")
    assert rows["XIDs"] == ("none", "XID 79: 1 (+1)")


def test_nic_has_its_rate_and_errors_and_the_node_its_load() -> None:
    found = tables()

    nic, node = rows_of(found, "mlx5_0"), rows_of(found, "The node")
    assert nic["Link"] == ("active", "active")
    assert nic["Rate"] == ("200 of 400 Gbit/s",) * 2
    assert nic["Errors"] == ("none", "symbol errors: 7 (+7)")
    assert node["Load (1 min)"] == ("12.2 on 96 CPUs",) * 2
    assert node["Memory"] == ("1.0 of 2.0 GiB available",) * 2


def test_reading_that_failed_leaves_its_column_empty_and_says_why() -> None:
    failed = NodeReading("n1", ReadAt.CLOSED, 20.0, "n1:9476 did not answer within 5 s")
    (found,) = view_readings([read_of(FIRST, ReadAt.OPENED, 10.0), failed], ())

    assert [column.problem for column in found.columns] == ["", failed.problem]
    assert rows_of(found, "GPU-5f")["Answers"] == ("yes", "-")
    assert [one.devices for one in view_readings([failed], ())] == [()]
