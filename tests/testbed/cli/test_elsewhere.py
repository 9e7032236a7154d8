"""Everything but `run` works on any system that Python runs on: here one without Unix's ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testbed.files.workload import write_workload
from testbed.synth import synth

ROOT = Path(__file__).resolve().parents[3]

# What a Python elsewhere lacks is hidden after the libraries are imported, which bring their own
# for each system: it is our code that must do without.
ELSEWHERE = """
import json, os, platform, signal, sys, time
import numpy, numba, polars, plotly.graph_objects, msgspec, rich.console, click

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

HIDDEN = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "pyroute2", "mininet"}
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
for name in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
    del sys.modules[name]
UNIX = ["sysconf", "sysconf_names", "getuid", "geteuid", "getgid", "getegid", "chown", "fork",
        "getloadavg", "pidfd_open", "setns", "unshare", "uname", "nice", "setsid", "statvfs",
        "mkfifo", "O_NONBLOCK"]
UNIX += [name for name in vars(os) if name.startswith(("sched_", "SCHED_"))]
for name in UNIX:
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGPIPE", "pidfd_send_signal", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("clock_getres", "clock_gettime", "clock_nanosleep", "CLOCK_MONOTONIC"):
    if hasattr(time, name):
        delattr(time, name)
platform.system = lambda: "Windows"
platform.release = lambda: "11"

import pathlib
read = pathlib.Path.read_text
def nothing_of_linux(path, *more, **named):
    if path.as_posix().startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(path)
    return read(path, *more, **named)
pathlib.Path.read_text = nothing_of_linux

from scheduler.model.memory import available_bytes
assert available_bytes() is None

from testbed.emulator import registry
registry.RUNS = pathlib.Path("nowhere")  # this machine may be running something

import fluxbed
for line in json.loads(sys.argv[1]):
    sys.argv[:] = ["fluxbed", *line]
    try:
        fluxbed.main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    print(json.dumps([line, code]), file=sys.stderr, flush=True)
"""
GRID = """
format = "fluxbed-experiment"
version = 1
title = "One scheduler, two delays"
schedulers = ["greedy"]

[workload]
path = "step.workload.jsonl"

[topology]
name = "rails"
delay = ["10us", "1ms"]
"""


def test_every_verb_but_run_does_without_unix(tmp_path: Path) -> None:
    step, runs = tmp_path / "step.workload.jsonl", tmp_path / "runs"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=512, mfu=0.5), step)
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    plan, topology = str(tmp_path / "plan.json"), "rails,delay=20us"
    image = str(tmp_path / "figure.svg")
    both = ["-s", "flux", "-s", "greedy"]
    lines = [
        ["--help"],
        ["schedulers"],
        ["topologies", "show", "rotor,nodes=4"],
        ["synth", "llama3-8b", "--tp", "2", "--layers", "1", "-o", f"{tmp_path}/s.jsonl"],
        ["inspect", str(step)],
        ["convert", str(step), "-o", f"{tmp_path}/c.workload.jsonl"],
        ["expand", str(step), "-t", topology, "-o", f"{tmp_path}/messages.parquet"],
        ["plan", str(step), "-t", topology, "-s", "flux", "-o", plan],
        ["check", plan, str(step)],
        ["simulate", str(step), "-t", topology, *both, "-n", "3", "-o", str(runs)],
        ["check", f"{runs}/flux"],
        ["compare", f"{runs}/flux", f"{runs}/greedy"],
        ["report", f"{runs}/greedy"],
        ["sweep", str(grid), "-o", f"{tmp_path}/sweep", "-j", "1"],
        ["figure", f"{tmp_path}/sweep", "-x", "topology.delay", "-y", "iteration_ns", "-o", image],
        ["clean"],
    ]  # fmt: skip
    refused = [["doctor"], ["run", str(step), "-t", topology, "-s", "flux"]]
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", ELSEWHERE, json.dumps([*lines, *refused])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[[")]
    assert said == [[line, 0] for line in lines] + [[line, 4] for line in refused], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("needs Linux") == len(refused)
