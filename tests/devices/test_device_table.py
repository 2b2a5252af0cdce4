"""The table of devices, and the names that lead to them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

import flopwatch
from flopwatch.cli.main import cli
from flopwatch.devices.device_names import find_device, find_devices, parse_hardware
from flopwatch.devices.device_specs import USUAL_NODE
from flopwatch.devices.device_table import DEVICES, DTYPES
from flopwatch.errors import UsageError
from flopwatch.prediction.hardware import describe_device

DRIVERS = {
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H200": "H200-SXM",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 144G HBM3e": "GH200-144GB",
    "NVIDIA H100 64GB HBM2": "H100-SXM-64GB",
    "NVIDIA H100 96GB HBM3": "H100-SXM-96GB",
    "NVIDIA H20-3e": "H20-3e",
    "Tesla V100S-PCIE-32GB": "V100S-PCIe-32GB",
    "Tesla V100-SXM3-32GB": "V100-SXM3-32GB",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Server",
    "AMD Instinct MI300A": "MI300A",
    "AMD Instinct MI308X": "MI308X",
    "GAUDI2": "Gaudi2",
    "GAUDI3": "Gaudi3",
    "TPU v5e": "TPU-v5e",
    "TPU v5p": "TPU-v5p",
    "TPU v6e": "TPU-v6e",
    "TPU7x": "TPU-v7",
    "NVIDIA H800": "H800-SXM",
    "NVIDIA H20": "H20",
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A800-SXM4-80GB": "A800-SXM-80GB",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA A30": "A30",
    "NVIDIA A40": "A40",
    "NVIDIA RTX A6000": "RTX-A6000",
    "RTX A6000": "RTX-A6000",
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "Tesla V100-SXM2-16GB": "V100-SXM-16GB",
    "Tesla V100-SXM2-32GB": "V100-SXM-32GB",
    "Tesla V100-PCIE-16GB": "V100-PCIe-16GB",
    "Tesla V100-PCIE-32GB": "V100-PCIe-32GB",
    "Tesla T4": "T4",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
    "GeForce RTX 3090": "RTX-3090",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "NVIDIA GeForce RTX 5090": "RTX-5090",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "AMD INSTINCT MI250X": "MI250X-GCD",
}

TERA = {
    ("V100-SXM-32GB", "float16"): 125,
    ("V100-PCIe-16GB", "float16"): 112,
    ("T4", "float16"): 65,
    ("T4", "int8"): 130,
    ("A100-SXM-40GB", "bfloat16"): 312,
    ("A100-SXM-80GB", "tf32"): 156,
    ("A100-SXM-80GB", "float32"): 19.5,
    ("A10", "bfloat16"): 125,
    ("A10G", "bfloat16"): 70,
    ("A40", "bfloat16"): 149.7,
    ("RTX-A6000", "bfloat16"): 154.8,
    ("L4", "bfloat16"): 121,
    ("L40", "bfloat16"): 181.05,
    ("L40S", "bfloat16"): 362.05,
    ("H100-SXM", "bfloat16"): 989.4,
    ("H100-SXM", "float8_e4m3fn"): 1978.9,
    ("H100-PCIe", "bfloat16"): 756,
    ("H100-NVL", "bfloat16"): 835.5,
    ("H200-SXM", "bfloat16"): 989.4,
    ("H20", "bfloat16"): 148,
    ("B200", "bfloat16"): 2250,
    ("GB200", "bfloat16"): 2500,
    ("B200", "float4_e2m1fn_x2"): 9000,
    ("RTX-3090", "bfloat16"): 71,
    ("RTX-4090", "bfloat16"): 165.2,
    ("RTX-5090", "bfloat16"): 209.5,
    ("MI250X-package", "bfloat16"): 383,
    ("MI250X-GCD", "bfloat16"): 191.5,
    ("MI300X", "bfloat16"): 1307.4,
    ("MI325X", "bfloat16"): 1307.4,
    ("MI355X", "bfloat16"): 2516.6,
    ("V100S-PCIe-32GB", "float16"): 130,
    ("V100-SXM3-32GB", "float16"): 125,
    ("H100-SXM-64GB", "bfloat16"): 989.4,
    ("H20-3e", "float8"): 296,
    ("RTX-PRO-6000", "bfloat16"): 503.8,
    ("MI300A", "bfloat16"): 980.6,
    ("MI308X", "bfloat16"): 344.05,  # 80 of 304 compute units
    ("Gaudi2", "bfloat16"): 432,
    ("Gaudi3", "bfloat16"): 1677,
    ("TPU-v5e", "bfloat16"): 197,
    ("TPU-v5p", "bfloat16"): 459,
    ("TPU-v6e", "int8"): 1836,
    ("TPU-v7", "float8"): 4614,
}

BY_NAME = {device.name: device for device in DEVICES}


@pytest.mark.parametrize(("reported", "name"), DRIVERS.items())
def test_a_driver_s_name_is_that_of_one_device(reported: str, name: str) -> None:
    device = find_device(reported)
    assert device is not None
    assert device.name == name


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA", "NVIDIA H1000", "H100", "NVIDIA A100", "NVIDIA L40S-24Q", "Radeon VII",
     "AMD Instinct MI250X/MI250", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"],
)  # fmt: skip
def test_any_other_name_is_nobody_s(name: str) -> None:
    """Part of a GPU, or a name like another's, has not the peaks of the whole."""
    assert find_device(name) is None


@pytest.mark.parametrize(("key", "tera"), TERA.items())
def test_known_figures(key: tuple[str, str], tera: float) -> None:
    name, dtype = key
    peak = BY_NAME[name].find_peak(dtype)
    assert peak is not None
    assert peak.flops_per_s == pytest.approx(tera * 1e12)


def test_what_a_device_has_not_is_unknown() -> None:
    assert BY_NAME["T4"].find_peak("bfloat16") is None
    assert BY_NAME["V100-SXM-16GB"].find_peak("tf32") is None
    assert BY_NAME["A100-SXM-80GB"].find_peak("float8_e5m2") is None
    assert BY_NAME["A100-SXM-80GB"].find_peak("unknown") is None


def test_names_are_unique() -> None:
    names = [device.name.casefold() for device in DEVICES]
    assert len(set(names)) == len(names)
    drivers = [name.casefold() for device in DEVICES for name in device.drivers]
    assert len(set(drivers)) == len(drivers)
    for device in DEVICES:
        assert find_devices(device.name) == (device,)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_figure_makes_sense_and_has_a_source(device) -> None:  # type: ignore[no-untyped-def]
    dense, sparse = device.rates.dense, device.rates.sparse
    practice = device.practice
    shares = [practice.matmul_share, practice.float8_share]
    figures = [
        *(*dense.values(), *sparse.values(), device.memory_gb, device.bandwidth_gb_per_s),
        *(device.link, *(share for share in shares if share)),
        *([] if practice.node == USUAL_NODE else [practice.node]),
    ]
    assert all(", 20" in figure.source for figure in figures)  # a document, its year
    assert all(0.3 < share.value < 1 for share in shares if share)
    assert practice.node.devices >= 4
    assert 25 <= practice.node.network_gbit <= 800
    assert set(dense) <= set(DTYPES)
    for dtype, peak in sparse.items():
        assert 1.3 < peak.flops_per_s / dense[dtype].flops_per_s < 2.1
    if device.name == "Gaudi3":  # its matrix engine has one rate for bfloat16 and float8
        return
    half = dense.get("bfloat16") or dense["float16"]
    assert dense.get("float16", half).flops_per_s == half.flops_per_s
    if "float8" in dense:
        assert dense["float8"].flops_per_s == pytest.approx(2 * half.flops_per_s, rel=0.02)
    if "tf32" in dense:
        ratio = dense["float16"].flops_per_s / dense["tf32"].flops_per_s
        assert ratio == pytest.approx(2, rel=0.03)
    # A GeForce card has half the rate for float16 with wide sums, and the whole one for int8.
    wide = {"MI250X": 1, "MI250-": 1, "RTX-3090": 4, "RTX-4090": 4, "RTX-5090": 4}
    times = next((n for start, n in wide.items() if device.name.startswith(start)), 2)
    if "int8" in dense:
        ratio = dense["int8"].flops_per_s / half.flops_per_s
        assert ratio == pytest.approx(times, rel=0.03)
    if "float32" in dense:
        assert dense["float32"].flops_per_s < half.flops_per_s
    assert 10 < device.memory_gb.value < 300
    assert 250 < device.bandwidth_gb_per_s.value <= 8000


def test_what_is_built_around_a_device_is_in_its_entry() -> None:
    """Not found by the beginning of its name: a device of anybody's may begin with a B."""
    assert describe_device(BY_NAME["B200"]).attention_share == 0.5
    stranger = describe_device(replace(BY_NAME["L4"], name="Bolt"))
    assert stranger.attention_share == 1
    assert stranger.network_bytes_per_s == 100e9 / 8
    assert describe_device(replace(BY_NAME["B200"], name="Z1")).network_bytes_per_s == 400e9 / 8


@pytest.mark.parametrize(
    ("name", "devices", "gbit"),
    [("A100-SXM-80GB", 8, 200), ("H100-SXM", 8, 400), ("H100-SXM-64GB", 4, 200),
     ("V100-SXM3-32GB", 16, 50), ("GB300", 72, 400), ("TPU-v6e", 256, 100), ("L4", 8, 100)],
)  # fmt: skip
def test_nodes(name: str, devices: int, gbit: float) -> None:
    machine = describe_device(BY_NAME[name])
    assert (machine.per_node, machine.network_bytes_per_s) == (devices, gbit * 1e9 / 8)


@pytest.mark.parametrize("hardware", ["8xGaudi3", "256xTPU-v5p", "4xMI300A", "8xRTX-PRO-6000"])
def test_a_job_can_be_predicted_on_it(hardware: str) -> None:
    job = flopwatch.TrainingJob("1b", 2048, micro_batch=1, precision="bf16-mixed")
    assert flopwatch.predict(job, hardware).tokens_per_s > 0
    found = flopwatch.mfu(job, tokens_per_s=1e4, hardware=hardware)
    assert found.utilisations[0].mfu > 0


def test_half_a_package_has_half_of_everything() -> None:
    for name in ("MI250X", "MI250"):
        half, whole = BY_NAME[f"{name}-GCD"], BY_NAME[f"{name}-package"]
        assert len(whole.rates.dense) > 3
        assert {dtype: 2 * peak.flops_per_s for dtype, peak in half.rates.dense.items()} == {
            dtype: peak.flops_per_s for dtype, peak in whole.rates.dense.items()
        }
        assert half.memory_gb is not None
        assert whole.memory_gb is not None
        assert half.memory_gb.value == whole.memory_gb.value / 2


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8xA100-80GB", 8, "A100-80GB"),
        ("8xA100_80GB", 8, "A100-80GB"),
        ("32 x a100 40gb", 32, "A100-40GB"),
        ("A100", 1, "A100"),
        ("h100-sxm", 1, "H100-SXM"),
        ("16XH100-SXM5", 16, "H100-SXM"),
        ("l4", 1, "L4"),
        ("4x NVIDIA H100 80GB HBM3", 4, "H100-SXM"),
        ("2×H200-SXM", 2, "H200-SXM"),
        ("8x NVIDIA H200", 8, "H200-SXM"),
        ("NVIDIA H800", 1, "H800-SXM"),
        ("8xH20", 8, "H20"),
        ("4090", 1, "RTX-4090"),
        ("2x4090", 2, "RTX-4090"),
        ("8xMI250X-GCD", 8, "MI250X-GCD"),
    ],
)
def test_hardware_as_people_write_it(text: str, count: int, name: str) -> None:
    found, device = parse_hardware(text)
    assert (found, device.name) == (count, name)


def test_what_candidates_do_not_share_is_unknown() -> None:
    device = parse_hardware("A100-80GB")[1]
    peak = device.find_peak("bfloat16")
    assert peak is not None
    assert peak.flops_per_s == 312e12
    assert device.memory_gb is not None
    assert device.memory_gb.value == 80
    assert device.bandwidth_gb_per_s is None  # 1935 as a card, 2039 as a module
    assert parse_hardware("A100")[1].memory_gb is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xH100", "'H100' is the name of devices with different peaks; write H100-SXM or "
         "H100-PCIe or H100-NVL"),
        ("8xH200", "'H200' is the name of devices with different peaks; write H200-SXM or "
         "H200-NVL"),
        ("h800", "'h800' is the name of devices with different peaks; write H800-SXM or "
         "H800-PCIe"),
        ("8x\nH200", "'H200' is the name of devices"),
        (f"9{500 * '0'}xA100-80GB", "the number of devices in --hardware has 501 digits; write at "
         "most 6, as in 8xH100-SXM"),
        ("MI250X", "'MI250X' is the name of devices with different peaks; write MI250X-GCD or "
         "MI250X-package"),
        ("8xH1000", "no device is called 'H1000'; write H100 or "),
        ("abacus", "no device is called 'abacus'; choose one that `flopwatch peaks --list` has, or "
         "give its peak by --peak TFLOPS"),
        ("0xL4", "hardware '0xL4' has no device; write a number from 1, as in 8xH100-SXM"),
        ("8x", "hardware '8x' is not understood; write how many, an x and a device"),
        ("8*A100-80GB", "hardware '8*A100-80GB' is not understood"),
        ("A100-80GBx8", "hardware 'A100-80GBx8' is not understood"),
        ("-2xL4", "hardware '-2xL4' is not understood"),
        ("8.5xL4", "hardware '8.5xL4' is not understood"),
        ("8", "hardware '8' is not understood"),
    ],
)  # fmt: skip
def test_hardware_that_cannot_be_told(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hardware(text)
    assert str(caught.value).startswith(message)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["peaks", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_lists_all_devices() -> None:
    listed = run("--list")
    assert all(device.name in listed for device in DEVICES)
    line = next(line for line in listed.splitlines() if line.startswith("A100-SXM-80GB "))
    assert line.split() == [
        *("A100-SXM-80GB", "19.5", "19.5", "156", "312", "312", "624", "80", "2039"),
        *("NVLink", "600"),
    ]


def test_the_command_tells_where_the_figures_of_one_device_are_from() -> None:
    lines = run("nvidia l4").splitlines()
    (line,) = [line for line in lines if line.startswith("bfloat16  ")]
    assert "121 TFLOP/s" in line
    assert "NVIDIA L4 Tensor Core GPU data sheet, 2023; its tensor figures are with" in line
    assert any("bfloat16, sparse" in line and "242 TFLOP/s" in line for line in lines)
    assert any("242.5 Top/s" in line for line in lines)  # of int8
    assert any("PCIe 4.0 x16, both directions" in line and "64 GB/s" in line for line in lines)
    assert any("network, one direction" in line and "100 Gbit/s" in line for line in lines)
    assert "Drivers call it L4." in lines


def test_the_command_lists_the_devices_of_a_shared_name() -> None:
    listed = run("H100")
    assert all(name in listed for name in ("H100-SXM", "H100-PCIe", "H100-NVL"))
    assert "H200" not in listed
    assert all(name in run("H200") for name in ("H200-SXM", "H200-NVL"))


def test_the_command_writes_json() -> None:
    (device,) = json.loads(run("MI300X", "--json"))
    assert device["rates"]["dense"]["bfloat16"] == {
        "flops_per_s": pytest.approx(1307.4e12),
        "source": "AMD Instinct MI300X data sheet, 2023",
    }
    assert device["memory_gb"]["value"] == 192
    assert len(json.loads(run("--list", "--json"))) == len(DEVICES)


def test_the_command_knows_no_other_device() -> None:
    result = CliRunner().invoke(cli, ["peaks", "H10"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith("no device is called 'H10'; write H100")
    assert "--peak" not in str(result.exception)


def test_a_new_device_is_one_entry_of_the_table() -> None:
    """In an interpreter of its own: names are read once."""
    program = (
        "import dataclasses\n"
        "from flopwatch.devices import device_table\n"
        "old = next(each for each in device_table.DEVICES if each.name == 'H100-SXM')\n"
        "new = dataclasses.replace(old, name='X900', drivers=('X900 HBM5',), shorts=('X9',))\n"
        "device_table.DEVICES = (*device_table.DEVICES, new)\n"
        "import flopwatch\n"
        "from flopwatch.devices.device_names import find_device, parse_hardware\n"
        "job = flopwatch.TrainingJob('7b', 2048, micro_batch=2, recompute='full')\n"
        "print(find_device('NVIDIA X900 HBM5').name, parse_hardware('8xX9')[1].name)\n"
        "print(flopwatch.predict(job, '8xX900').tokens_per_s > 0)\n"
        "print(flopwatch.plan(job, '8xX900').best[0].tokens_per_s > 0)\n"
        "print(flopwatch.memory(job, '8xX900').fits is not None)\n"
        "print(flopwatch.mfu(job, tokens_per_s=1e4, hardware='8xX900').utilisations[0].mfu > 0)\n"
        "from flopwatch.cli.main import main\n"
        "main(['peaks', 'X900'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    names, *works = done.stdout.splitlines()[:5]
    assert names == "X900 X900"
    assert works == ["True"] * 4
    assert "X900 HBM5" in done.stdout
