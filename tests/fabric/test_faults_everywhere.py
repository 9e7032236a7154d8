"""Every fault on every topology: the run ends degraded and owns up, or says what is blocked."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from scheduler.model.options import ExpansionOptions
from scheduler.model.workload import Collective, Compute, Group, Participation, Source, Workload
from testbed.cli import stage as stages
from testbed.cli.contest import Attempt
from testbed.cli.pipeline import Contender, plan_job, prepare
from testbed.cli.stage import Stage
from testbed.emulator.capacity import Capacity
from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory
from topologies import StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed.cli.pipeline import Job

FACTOR: Final = 100.0
TOPOLOGIES: Final = {
    "single,ports=2": "flux",
    "servers,gpus=2,nodes=2": "flux",
    "rotor,matchings=2": "rotorlb,slot=100us",
    "torus": "flux",
    "hybrid,planes=1": "rotor-vlb,slot=100us",
    "hybrid,planes=1,packet_rate=400Gbps": "flux",
    "rails,duplex=yes": "rotor-direct,slot=100us",
    "rails,planes=1,all_stop=yes": "greedy",
}
COSTLY: Final = (
    "stuck-dark:plane=0,port=1,at=10us,for=60us",
    "lost-plane:plane=0,at=20us,for=50us",
    "frame-loss:share=0.1",
    "paused-host:host=h1,at=5us,for=80us",
)
SLOWING: Final = (
    "slow-plane:plane=0,rate=40Gbps",
    "late-commands:plane=0,mean=2us,dist=uniform",
    "late-lock:plane=0,mean=2us,dist=uniform",
)
STRANGE: Final = ("stuck-dark:plane={},port=0", "lost-plane:plane={}", "late-lock:mean=1us")
CAPACITY: Final = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)


def step(size: int = 500_000) -> Workload:
    """All-reduces of four ranks along the sides of a square: every topology joins those pairs."""
    sides = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    groups = {
        f"{name}{k}": Group(ranks=pair, desc=name)
        for name, pairs in sides.items()
        for k, pair in enumerate(pairs)
    }
    made: list[Compute | Collective] = []
    for _ in range(2):
        last = dict(enumerate(range(len(made), len(made) + 4)))
        made += [
            Compute(id=last[rank], rank=rank, stream=0, dur_ns=10_000 + 500 * rank, iter=0)
            for rank in range(4)
        ]
        for name, group in groups.items():
            parts = {
                rank: Participation(in_bytes=size, out_bytes=size, stream=0, deps=(last[rank],))
                for rank in group.ranks
            }
            made.append(
                Collective(id=len(made), kind="all_reduce", group=name, ranks=parts, iter=0)
            )
    source = Source(path="made by a test", sha256=None, format="synthetic")
    return Workload(world=4, groups=groups, operations=tuple(made), source=source)


class Place:
    """A topology whose hosts stand, and what is planned on it."""

    def __init__(self, stack: contextlib.ExitStack, topology: str) -> None:
        self._stage = Stage(stack, FACTOR, dry=False)
        self._options: dict[str, Any] = {
            "seed": 1, "budget_ns": 10**8, "lookahead_ns": 0, "iterations": 2, "skip": 1,
            "nic_buffer_bytes": None,
        }  # fmt: skip
        self._label = TOPOLOGIES[topology]
        self._job: Job = prepare(step(), f"{topology},delay=20us", ExpansionOptions())
        self._plan = plan_job(self._job, self._label, self._options)
        self.kinds = [plane.kind for plane in self._plan.fabric.planes]

    def bear(self, text: str, output: Path) -> dict[str, Any]:
        """Run under the fault; its directory is checked from its files."""
        attempt = Attempt(
            contender=Contender(label=self._label),
            job=self._job,
            plan=self._plan,
            options=self._options | {"faults": [text]},
            output=output,
        )
        return self._stage.execute(attempt)


@pytest.fixture(scope="module", params=TOPOLOGIES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        # measuring the machine takes seconds, and changes nothing here
        machine = stages._Machine(capacity=CAPACITY, facts={})
        patch.setattr(stages, "_examine", lambda _: machine)
        yield Place(stack, request.param)


def sound(place: Place, text: str, output: Path) -> dict[str, Any]:
    """Run under a fault that passes; return what it did."""
    row = place.bear(text, output)
    assert row["status"] == "ok"
    assert row["faulted"] is True
    assert row["lost_bytes"] == 0
    (effect,) = row["faults"]
    assert effect["fault"] == text
    assert row["frames_resent"] >= row["frames_discarded"] + effect["frames_lost"]
    assert check_run_directory(output) == []
    found: dict[str, Any] = effect | {"circuits_changed": row["reconfigurations"]}
    return found


@pytest.mark.parametrize("text", COSTLY)
def test_what_passes_costs_something(place: Place, text: str, tmp_path: Path) -> None:
    effect = sound(place, text, tmp_path / "run")
    assert effect["delayed" if text.startswith("paused") else "frames_lost"] > 0


@pytest.mark.parametrize("text", SLOWING)
def test_what_slows_loses_nothing(place: Place, text: str, tmp_path: Path) -> None:
    effect = sound(place, text, tmp_path / "run")
    assert effect["frames_lost"] == 0
    if effect["circuits_changed"] and text.startswith("late"):
        assert effect["delayed"] > 0


@pytest.mark.parametrize(
    "text", ["slow-plane:plane={},rate=10Gbps", "frame-loss:plane={},share=0.2"]
)
def test_packet_planes_bear_what_they_can(place: Place, text: str, tmp_path: Path) -> None:
    if "eps" not in place.kinds:
        pytest.skip("no packet plane")
    sound(place, text.format(place.kinds.index("eps")), tmp_path / "run")


def test_packet_planes_have_no_circuits_to_fail(place: Place, tmp_path: Path) -> None:
    if "eps" not in place.kinds:
        pytest.skip("no packet plane")
    for text in STRANGE:
        with pytest.raises(UsageError, match="a packet plane has no circuits") as refused:
            place.bear(text.format(place.kinds.index("eps")), tmp_path / "run")
        assert refused.value.exit_code == 2
        assert not (tmp_path / "run").exists()


def test_what_lasts_stops_the_run_or_strikes_nothing(place: Place, tmp_path: Path) -> None:
    text = "stuck-dark:plane=0,port=1"
    row = ended = None
    try:
        row = place.bear(text, tmp_path / "run")
    except StalledError as stalled:
        ended = stalled
    if row is not None:
        assert row["drops"]["dark"] == row["faults"][0]["frames_lost"]
        assert row["frames_resent"] >= row["drops"]["dark"]
        return
    assert ended is not None
    assert "is blocked: message" in ended.what
    assert "rank" in ended.what
    assert f"passes nothing under {text}" in ended.why
    assert ended.exit_code == 6
    run = read_run(tmp_path / "run")
    assert run.manifest.status == run.summary.status == "stalled"
    assert run.summary.iteration_ns is None
    assert run.summary.faulted
    assert "is blocked" in (tmp_path / "run" / "report.html").read_text("utf-8")
