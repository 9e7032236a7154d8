"""Writing circuits: a row says what was written last for each time, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.emulator import _kernels_crossbar as write
from testbed.emulator.crossbar import NEVER, CrossbarTables
from testbed.emulator.crossbar_program import DEPTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

PORTS = 3


def fresh() -> CrossbarTables:
    table, owner = np.full((2, PORTS, 2 * DEPTH), NEVER, np.int64)
    return CrossbarTables(table, owner, np.arange(10, 10 + PORTS))


def entries(row: NDArray[np.int64]) -> dict[int, int]:
    used = [(int(t), int(v)) for t, v in row.reshape(DEPTH, 2) if t != NEVER]
    assert len(used) == len(dict(used)), "two entries for one time"
    return dict(sorted(used))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=40))
def test_a_write_replaces_what_was_planned_from_its_time_on(
    writes: list[tuple[int, int]],
) -> None:
    rows = np.full((2, 2 * DEPTH), NEVER, np.int64)
    untouched = rows[0].copy()
    expected: dict[int, int] = {}
    for at_ns, value in writes:
        write.put(rows, 1, at_ns, value)
        if len(expected) == DEPTH:
            del expected[min(expected)]  # full before: the oldest has gone
        expected = {t: v for t, v in expected.items() if t < at_ns} | {at_ns: value}
        assert entries(rows[1]) == expected
    np.testing.assert_array_equal(rows[0], untouched)


def test_one_circuit_after_another() -> None:
    tables = fresh()
    write.light(tables, 0, 1, 0)
    write.darken_output(tables, 0, 100)
    write.darken_input(tables, 2, 100)
    write.light(tables, 0, 2, 150)
    assert entries(tables.table[0]) == {0: 11, 100: 0, 150: 12}
    assert entries(tables.owner[1]) == {0: 1}
    assert entries(tables.owner[2]) == {100: 0, 150: 1}
    assert not entries(tables.table[1])


def test_a_change_of_mind_cancels_the_light_that_was_coming() -> None:
    tables = fresh()
    write.light(tables, 0, 1, 100)
    write.darken_output(tables, 0, 50)
    write.light(tables, 0, 2, 150)
    assert entries(tables.table[0]) == {50: 0, 150: 12}


def test_no_dark_time_at_all() -> None:
    tables = fresh()
    write.light(tables, 0, 1, 0)
    write.darken_output(tables, 0, 70)
    write.darken_input(tables, 2, 70)
    write.light(tables, 0, 2, 70)
    assert entries(tables.table[0]) == {0: 11, 70: 12}
    assert entries(tables.owner[2]) == {70: 1}
