"""Schedulers by name, and the exact sentence for every way to name one wrongly."""

from __future__ import annotations

import importlib.metadata
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.policies import registry
from scheduler.policies.base import Planner
from scheduler.policies.registry import describe, find
from topologies import UsageError

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ", ".join(registry.BUILT_IN)  # and nothing installed

MY_FLUX = """
    from fluxbed import OrderedProgram, Planner

    class MyFlux(Planner):
        '''Does nothing, slowly.'''

        name = "my-flux"

        def __init__(self, pause_ns: int = 0, turns: int = 3, share: float = 0.5,
                     loud: bool = False, mood: str = "calm") -> None:
            self.pause_ns, self.turns, self.share = pause_ns, turns, share
            self.loud, self.mood = loud, mood

        def plan(self, problem):
            return OrderedProgram.from_entries([[] for _ in problem.fabric.planes])

    class Half(Planner):
        name = "half"

    class NeedsOne(MyFlux):
        def __init__(self, size_bytes: int) -> None:
            self.size_bytes = size_bytes

    not_a_class = 3
"""


@pytest.fixture
def my_flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_flux.py"
    path.write_text(textwrap.dedent(MY_FLUX))
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    return path


def test_every_built_in_loads_and_has_its_own_name() -> None:
    for name in registry.BUILT_IN:
        assert find(name).name == name


def test_describe_has_one_line_each_and_tunes_what_can_be_tuned() -> None:
    lines = describe()
    assert set(registry.BUILT_IN) <= set(lines)
    tuned = {name for name in lines if name.endswith("-tuned")}
    assert {"rotor-direct-tuned", "rotor-vlb-tuned", "rotorlb-tuned"} <= tuned
    assert not {"flux-tuned", "static-tuned", "greedy-tuned"} & tuned
    assert all(line and "\n" not in line for line in lines.values())


def test_options_take_units_and_types(my_flux: Path) -> None:
    assert find("rotor-direct,slot=100us,phase=5us").params == {
        "slot_ns": 100_000,
        "phase_ns": 5_000,
    }
    spec = f"{my_flux}:MyFlux,pause=2ms,turns=7,share=0.25,loud=yes,mood=wild"
    assert find(spec).params == {
        "pause_ns": 2_000_000,
        "turns": 7,
        "share": 0.25,
        "loud": True,
        "mood": "wild",
    }


def test_file_class_is_used(my_flux: Path) -> None:
    scheduler = find("my_flux.py:MyFlux")
    assert my_flux.is_file()
    assert (scheduler.name, scheduler.describe()) == ("my-flux", "Does nothing, slowly.")


@pytest.mark.usefixtures("my_flux")
@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "fluks",
            (
                f"fluks: there is no scheduler 'fluks', because the schedulers are {NAMES}: "
                "did you mean flux?"
            ),
        ),
        (
            "static,slot=1us",
            "static,slot=1us: there is no option 'slot', because it has none: correct the spelling",
        ),
        (
            "rotor-direct,slt=1us",
            (
                "rotor-direct,slt=1us: there is no option 'slt', because its options are "
                "slot, phase: did you mean slot?"
            ),
        ),
        (
            "rotor-direct,slot=100",
            (
                "duration: '100' has no unit, because the units of a duration are "
                "ns, us, µs, ms, s: write 100us"
            ),
        ),
        (
            "rotor-direct,slot",
            (
                "rotor-direct,slot: 'slot' is not key=value, because a scheduler is written "
                "name,key=value,...: correct it"
            ),
        ),
        (
            "flux-tuned",
            (
                "flux-tuned: flux cannot be tuned, because only timed schedulers have a slot and a "
                "phase: use flux as it is"
            ),
        ),
        (
            "absent.py:MyFlux",
            (
                "absent.py:MyFlux: 'absent.py' is missing, because no such file can be read: "
                "correct the path"
            ),
        ),
        (
            "broken.py:MyFlux",
            (
                "broken.py:MyFlux: 'broken.py' cannot be used, because running it raises "
                "ModuleNotFoundError: No module named 'no_such_module': correct the file"
            ),
        ),
        (
            "my_flux.py:Absent",
            (
                "my_flux.py:Absent: 'my_flux.py' has no 'Absent', because it has "
                "MyFlux, Half, NeedsOne: name one of these"
            ),
        ),
        (
            "my_flux.py:not_a_class",
            (
                "my_flux.py:not_a_class: 'not_a_class' is not a scheduler, because it is not a "
                "subclass of fluxbed.Planner or fluxbed.Reactive: derive it from one of them"
            ),
        ),
        (
            "my_flux.py:Half",
            "my_flux.py:Half: 'Half' is not complete, because it does not define plan: define plan",
        ),
        (
            "my_flux.py:NeedsOne",
            (
                "my_flux.py:NeedsOne: the options do not suffice, because NeedsOne refuses: "
                "NeedsOne.__init__() missing 1 required positional argument: 'size_bytes': "
                "give what it needs"
            ),
        ),
        (
            "my_flux.py:MyFlux,turns=many",
            (
                "my_flux.py:MyFlux,turns=many: turns='many', because it is a whole number: "
                "write turns=3"
            ),
        ),
        (
            "my_flux.py:MyFlux,loud=2",
            "my_flux.py:MyFlux,loud=2: loud='2', because it must be yes or no: write loud=yes",
        ),
    ],
)
def test_bad_specs_are_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(spec)
    assert str(caught.value) == sentence
    assert caught.value.exit_code == 2


class Installed(Planner):
    """Offered by a package."""

    name = "installed"

    def plan(self, problem: Any) -> Any:
        raise AssertionError(problem)


def _offer(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = importlib.metadata.EntryPoint("installed", value, registry.ENTRY_POINTS)
    points = importlib.metadata.EntryPoints([point])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: points)


def test_entry_points_are_found_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(monkeypatch, f"{__name__}:Installed")
    assert type(find("installed")).__name__ == "Installed"
    assert describe()["installed"] == "Offered by a package."


def test_a_broken_entry_point_is_named_and_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _offer(monkeypatch, "no_such_package:Thing")
    assert describe()["installed"] == (
        "cannot be used: its package 'no_such_package:Thing' does not load: "
        "No module named 'no_such_package'"
    )
    assert "flux" in describe()
    with pytest.raises(UsageError, match="repair that package"):
        find("installed")
