"""The emulated fabric as `run` uses it: built once, measured once, then one execution at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from testbed.cli.contest import row
from testbed.cli.live import LiveView, watching
from testbed.cli.output import note
from testbed.cli.working import aside
from testbed.files.faults import effect_sentence, lost_in_the_dark
from topologies.errors import CheckError, StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scheduler.model.timeline import Timeline
    from testbed.cli.contest import Attempt
    from testbed.emulator.capacity import Capacity
    from testbed.emulator.dilation import Dilation
    from testbed.emulator.engine import Execution
    from testbed.emulator.network import EmulatedFabric
    from testbed.files.faults import Fault
    from testbed.files.rundir import RunDirectory
    from testbed.files.summary import Summary

__all__ = ["Stage", "hosts_named"]

_LATE: Final = ("lateness", "hop")  # of a frame's departure, and of its arrival
_RESEND_US: Final = 1000.0  # a frame later than this is sent again: nothing is later unnoticed
_HOST: Final = re.compile(r"h(0|[1-9][0-9]{0,4})")


def hosts_named(names: Sequence[str], nodes: int) -> list[int]:
    """Return the nodes that `--pcap` names, ascending; raises `UsageError`.

    >>> hosts_named(["h2", "h0"], 4), hosts_named(["all"], 2)
    ([0, 2], [0, 1])
    """
    if "all" in names:
        return list(range(nodes))
    found = set()
    for name in names:
        match = _HOST.fullmatch(name)
        if match is None or int(match[1]) >= nodes:
            why = f"the hosts are h0 to h{nodes - 1}"
            raise UsageError(f"there is no host {name!r}", "--pcap", why, "name one, or all")
        found.add(int(match[1]))
    return sorted(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What was found out about this machine before the first execution."""

    capacity: Capacity
    facts: dict[str, Any]  # fields of the manifest


class Stage:
    """The emulated fabric, built when the first contender needs it and shared by all.

    `dilation` is a factor, a dilation to be used as it is, or None for the smallest honest one.
    """

    def __init__(
        self, stack: contextlib.ExitStack, dilation: float | Dilation | None, *, dry: bool
    ) -> None:
        self._stack = stack
        self._dilation = dilation
        self._dry = dry
        self._network: EmulatedFabric | None = None
        self._machine: _Machine | None = None

    def network(self, attempt: Attempt) -> EmulatedFabric:
        """Return the fabric, built at the first call."""
        if self._network is None:
            from testbed.emulator.network import EmulatedFabric

            fabric = attempt.job.fabric
            links = sum(plane.ports for plane in fabric.planes)
            note(f"building {fabric.nodes} hosts on {len(fabric.planes)} planes, {links:,} links")
            run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
            self._network = self._stack.enter_context(EmulatedFabric(fabric, run_id))
        return self._network

    def execute(self, attempt: Attempt) -> dict[str, Any]:
        """Predict and measure one contender; return its row."""
        from testbed.emulator.engine import require_drivable
        from testbed.emulator.faults import require_bearable
        from testbed.files.faults import parse_faults

        captured = hosts_named(attempt.options.get("pcap", ()), attempt.job.fabric.nodes)
        require_drivable(attempt.plan.fabric, attempt.plan.program)
        faults = parse_faults(attempt.options.get("faults", ()), attempt.plan.fabric)
        require_bearable(faults, attempt.plan.program)
        network = self.network(attempt)
        if self._machine is None:
            self._machine = _examine(network)
        label, capacity = attempt.contender.label, self._machine.capacity
        ideal = aside(f"{label}: predicting", lambda: _predict(attempt, None, faults))
        dilation = aside(
            f"{label}: choosing how slow to run", lambda: self._dilate(attempt, capacity, ideal)
        )
        note(
            f"{attempt.contender.label}: {dilation.factor:g} times slower than the fabric "
            f"({dilation.bound_by}), {float(f'{dilation.expected_wall_s:.2g}'):g} s on the wall"
        )
        predicted = aside(
            f"{label}: predicting with these frames",
            lambda: _predict(attempt, dilation, faults),
        )
        if self._dry:
            return {
                "status": "not run",
                "predicted_iteration_ns": predicted.iteration_ns(attempt.options["skip"]),
                "dilation": dilation.factor,
                "expected_wall_s": dilation.expected_wall_s,
            }
        measurement = _Measurement(
            attempt=attempt,
            network=network,
            dilation=dilation,
            predicted=predicted,
            ideal=ideal,
            captured=captured,
            faults=faults,
            facts=self._machine.facts,
        )
        try:
            return measurement.take()
        except StalledError:
            measurement.report_stall()
            raise

    def _dilate(self, attempt: Attempt, capacity: Capacity, ideal: Timeline) -> Dilation:
        from testbed.emulator.dilation import Dilation, choose

        if isinstance(self._dilation, Dilation):
            wall_s = int(ideal.iteration_ends_ns[-1]) * self._dilation.factor / 1e9
            return dataclasses.replace(self._dilation, expected_wall_s=wall_s)
        return choose(
            attempt.job.expansion.graph,
            attempt.plan.fabric,
            attempt.plan.program,
            capacity,
            factor=self._dilation,
            iterations=attempt.options["iterations"],
            lookahead_ns=attempt.options["lookahead_ns"],
            nic_buffer_bytes=attempt.options["nic_buffer_bytes"],
        )


def _examine(network: EmulatedFabric) -> _Machine:
    """Look at the machine, test its clock, and measure what it carries on `network`."""
    from testbed.emulator.calibration import calibrate
    from testbed.emulator.capabilities import check_machine

    calibration = calibrate(network)
    note(f"this machine is {calibration.verdict}")
    late_ns = calibration.sleep_late_ns
    clock_test = {
        "resolution_ns": time.clock_getres(time.CLOCK_MONOTONIC) * 1e9,
        "sleep_late_p50_ns": late_ns.p50,
        "sleep_late_p99_ns": late_ns.p99,
        "sleep_late_most_ns": late_ns.most,
    }
    facts = {
        "capabilities": [
            f"{one.name}: {'ok' if one.ok else 'missing' if one.required else 'worse'}"
            for one in check_machine()
        ],
        "clock_test": clock_test,
        "calibration": calibration.facts(),
        "verdict": calibration.verdict,
    }
    return _Machine(capacity=calibration.capacity, facts=facts)


def _bears_in_simulation(attempt: Attempt, faults: Sequence[Fault]) -> bool:
    """Say whether the prediction bears the faults too."""
    from scheduler.model.program import TimedProgram
    from testbed.files.faults import predictable

    return predictable(faults, timed=isinstance(attempt.plan.program, TimedProgram))


def _predict(attempt: Attempt, dilation: Dilation | None, faults: Sequence[Fault]) -> Timeline:
    """Simulate what is to be measured, with its frames and guard, or without them.

    Faults that the simulator does not know are left out of it, all of them.
    """
    from scheduler.dispatch.simulator import simulate
    from testbed.files.faults import faulted_fabric

    frames = (
        {}
        if dilation is None
        else {
            "quantum_bytes": dilation.quantum_bytes,
            "guard_ns": dilation.guard_ns,
            "gather_ns": dilation.gather_ns,
        }
    )
    fabric = attempt.plan.fabric
    if _bears_in_simulation(attempt, faults):
        fabric = faulted_fabric(fabric, faults)
    return simulate(
        attempt.job.expansion.graph,
        fabric,
        attempt.plan.program,
        iterations=attempt.options["iterations"],
        lookahead_ns=attempt.options["lookahead_ns"],
        nic_buffer_bytes=attempt.options["nic_buffer_bytes"],
        **frames,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """One execution: what is to be measured, how, and which hosts are captured meanwhile."""

    attempt: Attempt
    network: EmulatedFabric
    dilation: Dilation
    predicted: Timeline
    ideal: Timeline
    captured: Sequence[int]
    faults: Sequence[Fault]
    facts: dict[str, Any]
    made: list[Path] = field(default_factory=list)  # the run's directory

    def report_stall(self) -> None:
        """Write the report of a run that stalled: its records say how far it came."""
        from testbed.report import write_report

        for path in self.made:
            with contextlib.suppress(UsageError):  # a full disk: the stall is what matters
                note(f"how far it came: {write_report(path)}")

    def take(self) -> dict[str, Any]:
        """Execute, write the run directory, check it from its files; return the row."""
        from testbed.emulator.pace import overload
        from testbed.emulator.realtime import core_at, engine_place

        attempt, dilation = self.attempt, self.dilation
        skip = attempt.options["skip"]
        with attempt.directory(
            "emulated",
            skip=skip,
            quantum_bytes=dilation.quantum_bytes,
            guard_ns=dilation.guard_ns,
            gather_ns=dilation.gather_ns,
            dilation=dilation.factor,
            bytes_per_wall_byte=dilation.bytes_per_wall_byte,
            expected_wall_s=dilation.expected_wall_s,
            engine_core=core_at(engine_place()),
            options={"dilation_bound_by": dilation.bound_by},
            **self._borne(),
            **self.facts,
        ) as run:
            self.made.append(run.path)
            execution = self._execute(run)
            timeline = execution.timeline
            self._tell(execution)
            late_us = sum(timeline.measures[f"{name}_max_us"] or 0.0 for name in _LATE)
            late_us = max(late_us, timeline.measures["transit_max_us"] or 0.0, _RESEND_US)
            expected = self.predicted if self._comparable() else None
            found = overload(
                timeline,
                expected,
                attempt.plan.fabric,
                dilation,
                darkened=lost_in_the_dark(execution.effects),
                faulted=bool(self.faults),
            )
            for sentence in found:
                note(f"{attempt.contender.label}: THIS MACHINE DID NOT KEEP UP: {sentence}")
            run.update(
                tolerance_ns=math.ceil(late_us * 1e3 / dilation.factor),
                overload=found,
                fault_effects=list(execution.effects) if self.faults else None,
            )
            summary = run.write_results(
                timeline,
                predicted_ns=self.predicted.iteration_ns(skip),
                predicted_ideal_ns=self.ideal.iteration_ns(skip),
                pace_kept=not found,
                faults=execution.effects,
            )
            if execution.interrupted:
                raise KeyboardInterrupt
            if execution.error is not None:
                raise execution.error
        _verify(run)
        return row(summary, run.path) | {
            "dropped": sum(msgspec.to_builtins(summary.drops).values()),
            "difference": _difference(summary),
            "overload": found,
            "dilation": dilation.factor,
            "expected_wall_s": dilation.expected_wall_s,
            "wall_s": timeline.measures["wall_s"],
        }

    def _comparable(self) -> bool:
        """Say whether the prediction is of what was executed."""
        return _bears_in_simulation(self.attempt, self.faults)

    def _borne(self) -> dict[str, Any]:
        """Return what the manifest says of faults beforehand."""
        if not self.faults:
            return {}
        return {
            "faults": [fault.text for fault in self.faults],
            "fault_seed": self.attempt.options["seed"],
            "fault_predicted": self._comparable(),
        }

    def _tell(self, execution: Execution) -> None:
        """Say what each fault did, and what the prediction is worth."""
        label = self.attempt.contender.label
        for effect in execution.effects:
            note(f"{label}: FAULTED: {effect_sentence(effect)}")
        if self.faults and not self._comparable():
            note(f"{label}: the prediction is that of a sound fabric")

    def _execute(self, run: RunDirectory) -> Execution:
        """Execute under the eyes of the view and, if asked, of the packet capture."""
        from scheduler.model.planned import with_planned
        from testbed.emulator.engine import Monitor
        from testbed.emulator.engine import attempt as execute
        from testbed.emulator.packets import PacketCapture

        attempt, monitor = self.attempt, Monitor()
        graph, chosen = attempt.job.expansion.graph, attempt.options
        view = LiveView(
            label=attempt.contender.label,
            tasks=graph.tasks * chosen["iterations"],
            network=self.network,
            monitor=monitor,
            dilation=self.dilation,
        )
        capture = PacketCapture(self.network, self.captured, run.path)
        with capture if self.captured else contextlib.nullcontext(), watching(view):
            execution = execute(
                graph,
                attempt.plan.fabric,
                attempt.plan.program,
                self.network,
                dilation=self.dilation,
                iterations=chosen["iterations"],
                lookahead_ns=chosen["lookahead_ns"],
                nic_buffer_bytes=chosen["nic_buffer_bytes"],
                monitor=monitor,
                faults=self.faults,
                seed=chosen.get("seed") or 0,
                rank_to_node=attempt.job.expansion.rank_to_node,
            )
        timeline = with_planned(execution.timeline, self.predicted)
        measures = dict(timeline.measures)
        if self.captured:
            run.adopt(*capture.paths)
            measures |= capture.zero(timeline)
            for count in capture.counts(timeline):
                note(str(count))
                measures |= count.measures()
        timeline = dataclasses.replace(timeline, measures=measures)
        return dataclasses.replace(execution, timeline=timeline)


def _difference(summary: Summary) -> float | None:
    if summary.iteration_ns is None or not summary.predicted_iteration_ns:
        return None
    return summary.iteration_ns / summary.predicted_iteration_ns - 1


def _verify(run: RunDirectory) -> None:
    """Re-check the run from its files; one that breaks the model has failed."""
    from testbed.files.verify import check_run_directory

    violations = check_run_directory(run.path)
    if violations:
        what = f"{len(violations)} rules of the model are broken"
        fix = f"see fluxbed check {run.path}"
        error = CheckError(what, str(run.path), str(violations[0]), fix)
        run.finish("failed", error)
        raise error
