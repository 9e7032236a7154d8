"""What the view of a run shows: circuits that really stand, and nothing moving in a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from testbed.cli.live import LiveView, watching
from testbed.emulator.capacity import _UNDILATED, _traffic
from testbed.emulator.engine import Monitor, execute

if TYPE_CHECKING:
    import pytest

    from testbed.emulator.network import EmulatedFabric


def view_of(network: EmulatedFabric, monitor: Monitor, tasks: int) -> LiveView:
    return LiveView(
        label="flux", tasks=tasks, network=network, monitor=monitor, dilation=_UNDILATED
    )


def shown(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_circuits_that_stand_are_shown(idle: EmulatedFabric) -> None:
    view = view_of(idle, Monitor(), 4)
    assert view.circuits() == ["0>-  1>-  2>-  3>-"] * 2
    assert view.queues() == []
    idle.crossbar.set_circuit_at(0, 3)
    idle.crossbar.set_circuit_at(5, 4)
    assert view.circuits() == ["0>3  1>-  2>-  3>-", "0>-  1>0  2>-  3>-"]
    idle.crossbar.set_dark_at(0)
    assert view.circuits()[0] == "0>-  1>-  2>-  3>-"


def test_an_execution_is_over_in_the_end(
    idle: EmulatedFabric, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = Monitor()
    work = _traffic(idle.fabric, steps=4, frames=4, frame_ns=100_000)
    view = view_of(idle, monitor, work[0].tasks)
    with watching(view):
        execute(*work, idle, iterations=1, dilation=_UNDILATED, monitor=monitor)
    assert monitor.tasks_done == work[0].tasks
    assert view.queues() == [(node, 0) for node in range(idle.fabric.nodes)]
    text = shown(view)
    assert f"flux: {work[0].tasks} of {work[0].tasks} tasks" in text
    for plane in range(2):
        assert f"plane {plane}  0>1  1>2  2>3  3>0" in text
    assert "NIC h3" in text
    assert "\x1b" not in capsys.readouterr().err  # no terminal: nothing moves
