"""Our fabrics in Mininet's own command, run as a user runs it."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from testbed.emulator.mininet_topology import pairing
from topologies.matchings import node_matchings

REPOSITORY = Path(__file__).parents[2]
MN = Path(sys.executable).with_name("mn")
DISARMED = """
import runpy, sys
import mininet.clean
mininet.clean.cleanup = lambda: print("would clean the whole machine")
sys.argv[0] = {mn!r}
runpy.run_path({mn!r}, run_name="__main__")
"""


def mn(*options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `mn` without its habit of killing everybody's networks after an error."""
    if not MN.exists() or not shutil.which("ping"):
        pytest.skip("mn or ping is not installed")
    command = [sys.executable, "-c", DISARMED.format(mn=str(MN)), "--custom", "testbed/mn.py"]
    return subprocess.run(  # noqa: S603 (ours)
        [*command, *options],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=60,
    )


def reached(output: str) -> list[list[str]]:
    """The table of each `pingall`: who answered, `X` for who did not."""
    rows = [line.split(" -> ")[1].split() for line in output.splitlines() if " -> " in line]
    return [row for row in rows if row]


def test_pingall_reaches_who_has_a_circuit() -> None:
    done = mn("--topo", "rails,nodes=4,planes=2", "--test", "pingall")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert reached(said) == [["h1", "X", "X"], ["h0", "X", "X"], ["X", "X", "h3"], ["X", "X", "h2"]]
    assert "would clean" not in said


def test_circuits_are_changed_at_the_prompt() -> None:
    typed = """
        py p0.connect(0, 2)
        pingall
        py p0.totals()
        py p1.connect(0, 1)
        py h0.cmd("ping -c 1 -W 1 10.1.0.2")
    """
    done = mn("--topo", "rails,nodes=4,delay=1ms", typed=textwrap.dedent(typed))
    said = done.stdout + done.stderr
    assert reached(said)[:4] == [["X", "h2", "X"], ["X"] * 3, ["h0", "X", "X"], ["X"] * 3]
    assert "'conflict_frames': 0" in said
    assert "1 packets transmitted, 1 received" in said
    assert "would clean" not in said


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        ("rails,nodez=4", "there is no option 'nodez'"),
        ("rails,delay=100", "'100' has no unit"),
        ("rails,nodes=1", "a fabric joins two nodes or more"),
    ],
)
def test_a_bad_topology_is_one_sentence(topology: str, sentence: str) -> None:
    done = mn("--topo", topology)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("mn: ")]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert "would clean" not in done.stdout + done.stderr


def test_the_file_names_every_topology() -> None:
    from topologies.registry import BUILDERS

    assert set(runpy.run_path(str(REPOSITORY / "testbed/mn.py"))["topos"]) == set(BUILDERS)


@pytest.mark.parametrize("ports", [2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("plane", range(4))
def test_pairs_are_pairs(ports: int, plane: int) -> None:
    pairs = pairing(ports, plane)
    ends = [end for pair in pairs for end in pair]
    assert len(set(ends)) == len(ends) == ports - ports % 2
    assert plane == 0 or ports <= 2 * plane or set(pairs) != set(pairing(ports, plane - 1))


def test_a_rotor_turns_through_its_own_matchings_only() -> None:
    typed = """
        pingall
        py p0.turn(2)
        pingall
        py p0.connect(0, 2)
        py p0.turn(3)
    """
    done = mn("--topo", "rotor,nodes=4,matchings=3,duplex=yes", typed=textwrap.dedent(typed))
    said = done.stdout + done.stderr
    tables = reached(said)
    for number, rows in ((0, tables[:4]), (2, tables[4:])):
        partner = node_matchings(4, duplex=True)[number]
        others = [[f"h{far}" for far in range(4) if far != node] for node in range(4)]
        assert rows == [
            [far if far == f"h{partner[node]}" else "X" for far in others[node]]
            for node in range(4)
        ]
    assert "this switch makes no single circuit, because its 3 matchings are fixed" in said
    assert "no matching 3, because it has 3, numbered from 0" in said
    assert "would clean" not in said
