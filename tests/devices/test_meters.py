"""What is read of a device while it works."""

from __future__ import annotations

from pathlib import Path

from flopwatch.devices.meters import HostMeters, open_meters


def write(root: Path, **numbers: int) -> None:
    for name, number in numbers.items():
        folder = root / "sys/class/powercap" / name.replace("_", ":")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "energy_uj").write_text(f"{number}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")


def rename(**numbers: int) -> dict[str, int]:
    return {f"intel-rapl_{name}": number for name, number in numbers.items()}


def test_energy_is_that_of_all_packages_since_the_first_reading(tmp_path: Path) -> None:
    # A part of a package, such as its memory, is counted there.
    write(tmp_path, **rename(**{"0": 1_000_000, "1": 9_000_000, "0_0": 5}))
    meters = HostMeters(tmp_path)
    assert meters.read().energy_j == 0.0
    write(tmp_path, **rename(**{"0": 3_000_000, "1": 500_000}))  # the second has started again
    assert meters.read().energy_j == 2.0 + 1.5


def test_without_a_meter_there_is_no_energy(tmp_path: Path) -> None:
    found = HostMeters(tmp_path).read()
    assert found.energy_j is None
    assert found.memory_bytes
    assert (found.peak_memory_bytes or 0) >= found.memory_bytes
    assert found.throttle_reasons == []


def test_a_cpu_that_gets_too_hot_says_so(tmp_path: Path) -> None:
    path = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    path.parent.mkdir(parents=True)
    path.write_text("4\n")
    meters = HostMeters(tmp_path)
    assert meters.read().throttle_reasons == []
    path.write_text("5\n")
    assert meters.read().throttle_reasons == ["its temperature"]
    assert meters.read().throttle_reasons == []


def test_any_host_has_meters() -> None:
    assert open_meters("cpu").read().memory_bytes
