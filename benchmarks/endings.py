"""What is left of runs that end in every way: `sudo python benchmarks/endings.py`.

Short runs one after the other, two at once, one killed, one on a full disk, one into a directory
that is read-only. Before and after each: network namespaces, links and qdiscs of the machine, BPF
maps and programs, sysctls, records and shells of runs. Nothing may be left or changed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.emulator.capacity import measure_link_bps
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.registry import RUNS
from testbed.files.workload import write_workload
from testbed.synth import synth
from topologies import rails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
FABRIC = "rails,planes=2,rate=400Gbps,delay=50us"
BPF_CALL, NEXT_PROGRAM, NEXT_MAP = 321, 11, 12  # x86-64
SETTLE_S = 10.0  # programs and maps go a moment after their interfaces
FULL_KIB = 64


def bpf_ids(command: int) -> set[int]:
    """Return the ids of the machine's BPF objects of one kind."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: set[int] = set()
    attribute = (ctypes.c_uint32 * 3)()
    while libc.syscall(BPF_CALL, command, attribute, ctypes.sizeof(attribute)) == 0:
        attribute[0] = attribute[1]
        found.add(attribute[1])
    return found


def sysctls() -> set[str]:
    """Return every readable setting of the network and the scheduler."""
    found = set()
    for path in [*Path("/proc/sys/net").rglob("*"), *Path("/proc/sys/kernel").glob("sched*")]:
        if path.is_file():
            with contextlib.suppress(OSError):
                found.add(f"{path} {path.read_text('utf-8', 'replace').strip()}")
    return {line for line in found if "conntrack_count" not in line}


def lines(*command: str) -> set[str]:
    """Return what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (fixed words)
    return set(done.stdout.splitlines())


def namespaces() -> set[str]:
    """Return the network namespaces that have a process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                found.add(str((entry / "ns/net").readlink()))
    return found


def seen() -> dict[str, set[str] | set[int]]:
    """Return what a run might leave or change."""
    return {
        "namespaces": namespaces(),
        "links": lines("ip", "-o", "link"),
        "qdiscs": lines("tc", "qdisc"),
        "maps": bpf_ids(NEXT_MAP),
        "programs": bpf_ids(NEXT_PROGRAM),
        "sysctls": sysctls(),
        "records": {path.name for path in RUNS.glob("*.json")},
    }


def difference(before: dict[str, set[str] | set[int]]) -> list[str]:
    """Wait until everything is as before; return what is not."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = seen()
        left = [f"{k}: {sorted(after[k] ^ before[k])[:4]}" for k in before if after[k] != before[k]]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def start(step: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    """Start a short run as a user does."""
    words = ["run", step, "-t", FABRIC, "-s", "flux", "-o", output, *more]
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, "-m", "fluxbed", *map(str, words)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for a run; return its exit code and its last sentence."""
    errors = process.communicate()[1].strip().splitlines()
    assert "Traceback" not in " ".join(errors), errors
    return f"exit {process.returncode}: {errors[-1] if errors else ''}"


@contextlib.contextmanager
def mounted(options: str) -> Iterator[Path]:
    """Yield a small file system of its own."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)  # noqa: S603, S607 (fixed words)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)  # noqa: S603, S607 (fixed words)


def short_runs(count: int) -> str:
    """Build, run and take down, one after the other."""
    for number in range(count):
        name = f"endings-{os.getpid()}-{number}"
        with EmulatedFabric(rails(nodes=4, planes=2), name) as network:
            measure_link_bps(network)
    return f"{count} done"


def killed(step: Path, place: Path) -> str:
    """Kill a run in its execution, then clean up."""
    target = place / "killed"
    process = start(step, target, "-n", "200")
    while not (target / "workload.jsonl").is_file():
        assert process.poll() is None, ended(process)
        time.sleep(0.05)
    time.sleep(0.5)
    process.kill()
    process.wait()
    for record in RUNS.glob(f"*-{process.pid}.json"):  # ours, and nobody else's
        clean = [sys.executable, "-m", "fluxbed", "clean", "--run", record.stem]
        subprocess.run(clean, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own interpreter)
    return "killed and cleaned"


def at_once(step: Path, place: Path) -> str:
    """Let two runs go at once."""
    runs = [start(step, place / f"twin{k}") for k in range(2)]
    return "; ".join(ended(run) for run in runs)


def full_disk(step: Path) -> str:
    """Run into a disk that becomes full."""
    with mounted(f"size={FULL_KIB}k") as place:
        return ended(start(step, place / "run"))


def read_only(step: Path) -> str:
    """Run into a directory that cannot be written."""
    with mounted("ro") as place:
        return ended(start(step, place / "run"))


def main() -> int:
    """Try each way to end; the exit code says whether anything was left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", nargs="*", help="as short-runs killed full-disk")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        step = place / "step.workload.jsonl"
        write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=512, mfu=0.5), step)
        cases: dict[str, Callable[[], str]] = {
            "short-runs": lambda: short_runs(options.runs),
            "killed": lambda: killed(step, place),
            "at-once": lambda: at_once(step, place),
            "full-disk": lambda: full_disk(step),
            "read-only": lambda: read_only(step),
        }
        for name, case in cases.items():
            if options.only and name not in options.only:
                continue
            before, begun_s = seen(), time.monotonic()
            told = case()
            took_s, left = time.monotonic() - begun_s, difference(before)
            failed |= bool(left)
            print(f"{name} ({took_s:.0f} s): {told}; left: {'; '.join(left) or 'nothing'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
