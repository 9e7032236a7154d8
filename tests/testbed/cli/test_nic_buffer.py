"""`--nic-buffer` from the command line: recorded, checked, an axis, refused if absurd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed.cli.evaluation import simulate_point
from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory
from testbed.sweep.experiment import read_experiment

if TYPE_CHECKING:
    from pathlib import Path

FABRIC = "rails,planes=2,delay=10us"


def test_a_run_with_small_buffers_says_so_and_checks(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    common = ["-t", FABRIC, "-n", "4", "--format", "json"]
    common += [word for name in ("rotor-direct", "rotor-vlb", "greedy") for word in ("-s", name)]
    asked = ["--nic-buffer", "100kB", "-o", tmp_path / "o"]
    code, out, _ = fluxbed("simulate", step, *common, *asked)
    assert code == 0
    plain = json.loads(fluxbed("simulate", step, *common, "-o", tmp_path / "p").out)
    slower = 0
    for row, endless in zip(json.loads(out), plain, strict=True):
        assert (row["nic_buffer_bytes"], endless["nic_buffer_bytes"]) == (100_000, None)
        slower += row["iteration_ns"] > endless["iteration_ns"]
        run = read_run(row["run"])
        assert run.manifest.injection.buffer_bytes == 100_000
        assert read_run(endless["run"]).manifest.injection.buffer_bytes is None
        assert check_run_directory(run.path) == []
    assert slower > 0


def test_a_buffer_smaller_than_the_one_there_was_is_caught(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    words = ["-t", FABRIC, "-s", "rotor-direct", "-n", "3", "-o", tmp_path / "o"]
    assert fluxbed("simulate", step, *words, "--nic-buffer", "1GB").code == 0
    path = tmp_path / "o" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["injection"]["buffer_bytes"] = 1000
    path.write_text(json.dumps(manifest))
    assert "a message has room in its NIC" in {v.rule for v in check_run_directory(tmp_path / "o")}


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("0", "NIC buffer: a NIC holds 0 bytes, because nothing could ever be sent: write 4MiB or"),
        ("much", "'much' is not a size"),
    ],
)
def test_absurd_buffers_are_refused(
    fluxbed: Any, step: Path, tmp_path: Path, size: str, sentence: str
) -> None:
    words = ["-t", FABRIC, "-s", "static", "--nic-buffer", size, "-o", tmp_path / "o"]
    code, _, error = fluxbed("simulate", step, *words)
    assert code == 2
    assert sentence in error
    assert not (tmp_path / "o").exists()


def test_an_experiment_has_buffers_as_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        """
        format = "fluxbed-experiment"
        version = 1
        title = "small"
        schedulers = ["greedy"]
        iterations = 4
        nic_buffer = ["unlimited", "1MB"]
        synth = {model = "llama3-8b", tp = 2, dp = 2, layers = 1, seq = 512}
        topology = {name = "rails", delay = "10us"}
        """
    )
    endless, small = (simulate_point(point) for point in read_experiment(path).points(path))
    assert (endless["nic_buffer_bytes"], small["nic_buffer_bytes"]) == (None, 1_000_000)
    assert small["nic_peak_bytes_eager"] <= 1_000_000 < endless["nic_peak_bytes_eager"]
    assert small["iteration_ns"] >= endless["iteration_ns"]
