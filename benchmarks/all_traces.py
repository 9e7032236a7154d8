"""Every trace that has all its ranks, on the emulated fabric: measured, and checked from its files.

What was captured on CPUs computes for hundreds of milliseconds; it is scaled to a GPU's share.
"fabric" is how long the replay itself took on the wall, "command" all of `fluxbed run`: planning,
building the network and measuring what the machine carries, which waits for other work on it.

    python benchmarks/all_traces.py [DIRECTORY] [NAME ...]

DIRECTORY holds captured traces (FLUXBED_TRACES, else ../shared/traces); the bundled one is always
taken. Needs root. Exits 1 when a run fails or its check finds a violation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FABRIC: Final = "rails,planes=2,rate=400Gbps,delay=50us"
SCHEDULER: Final = "flux"
ITERATIONS: Final = "3"
SCALES: Final = {"bundled": 0.01, "gloo 4 ranks, kineto": 0.01, "dlrm8 kineto": 0.1}
TRACES: Final = {
    "dlrm8 kineto": "kineto/dlrm8.kineto.tar.gz",
    "dlrm8 execution trace": "execution-trace/dlrm8.et.tar.gz",
    "dlrm8 comms-replay": "comms-replay/param_comms.*.json",
    "gloo 4 ranks, kineto": "captured-gloo-4rank/kineto_*",
    "gloo 4 ranks, flight recorder": "captured-gloo-4rank/fr_*",
    "chakra all_gather": "chakra/micro_all_gather.*",
    "chakra all_reduce": "chakra/micro_all_reduce.*",
    "chakra all_to_all": "chakra/micro_all_to_all.*",
    "chakra reduce_scatter": "chakra/micro_reduce_scatter.*",
    "chakra T1D": "chakra/T1D-*",
    "goal tree of 16": "goal/lgs_binary_tree_16.goal",
    "goal tree of 32": "goal/lgs_binary_tree_32.goal",
    "goal dissemination of 16": "goal/lgs_dissemination_16.goal",
    "goal dissemination of 32": "goal/lgs_dissemination_32.goal",
    "goal schedule": "goal/lgs_schedule.goal",
}
BUNDLED: Final = ROOT / "examples" / "traces" / "llama-tp4-dp2"


def fluxbed(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-m", "fluxbed", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def replay(paths: list[Path], directory: Path, compute_scale: float) -> tuple[bool, str]:
    """Convert, run and check one trace; return whether all went well, and a line about it."""
    workload, run = directory / "step.workload.jsonl", directory / "run"
    done = fluxbed("convert", *paths, "-o", workload, "--compute-scale", compute_scale)
    if done.returncode:
        return False, done.stderr.strip().splitlines()[-1]
    began = time.monotonic()
    options = ("-t", FABRIC, "-s", SCHEDULER, "-n", ITERATIONS, "-o", run, "--format", "json")
    done = fluxbed("run", workload, *options)
    wall_s = time.monotonic() - began
    if done.returncode:
        return False, done.stderr.strip().splitlines()[-1]
    (row,) = json.loads(done.stdout)
    checked = fluxbed("check", row["run"])
    manifest = json.loads((run / "manifest.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    fabric_s = sum(summary["iterations_ns"]) * manifest["dilation"] / 1e9
    predicted, measured = (row[key] / 1e3 for key in ("predicted_iteration_ns", "iteration_ns"))
    verdict = "passed" if checked.returncode == 0 else checked.stderr.strip().splitlines()[-1]
    took = f"{fabric_s:6.1f} s {wall_s:6.1f} s"
    figures = f"{predicted:12.1f} {measured:12.1f} {100 * (measured / predicted - 1):+7.2f} %"
    return checked.returncode == 0, f"{figures} {row['lost_bytes']:6} {took}  {verdict}"


def main() -> int:
    """Run the benchmark."""
    words = sys.argv[1:]
    traces = Path(os.environ.get("FLUXBED_TRACES", ROOT.parent / "shared" / "traces"))
    if words and Path(words[0]).is_dir():
        traces = Path(words.pop(0))
    chosen = {"bundled": [BUNDLED]}
    chosen |= {name: sorted(traces.glob(pattern)) for name, pattern in TRACES.items()}
    print(f"{FABRIC}; {SCHEDULER}; {ITERATIONS} iterations")
    heads = f"{'predicted us':>12} {'measured us':>12} {'':9} {'lost':>6}"
    print(f"{'trace':30} {heads} {'fabric':>8} {'command':>8}  check")
    passed = True
    for name, paths in chosen.items():
        if words and name not in words:
            continue
        with tempfile.TemporaryDirectory() as directory:
            scale = SCALES.get(name, 1.0)
            ok, line = replay(paths, Path(directory), scale) if paths else (False, "no such file")
        passed &= ok
        print(f"{name:30} {line}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
