"""The crossbar's program, interpreted here without a kernel, against the rule it implements."""

from __future__ import annotations

import hashlib
import operator
import struct
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.emulator.crossbar import CAUSES, NEVER
from testbed.emulator.crossbar_program import (
    COUNTER_BYTES,
    DEPTH,
    HIGHEST_IFINDEX,
    MapPlaces,
    crossbar_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PORTS: Final = 4
SWITCHES: Final = 2
ROWS, COUNTERS, PORT_OF = 3, 4, 5
NOW: Final = 1000
FRAME_BYTES: Final = 142
FIRST_IFINDEX: Final = 2
MASK: Final = (1 << 64) - 1
SHOT, REDIRECTED = 2, 7
Row = list[tuple[int, int]]
ARITHMETIC: Final[dict[int, Callable[[int, int], int]]] = {
    0x00: operator.add,
    0x20: operator.mul,
    0x60: operator.lshift,
    0xB0: lambda _, operand: operand,
}
CONDITIONS: Final[dict[int, Callable[[int, int], bool]]] = {
    0x00: lambda _, __: True,
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x50: operator.ne,
    0xA0: operator.lt,
}


class Machine:
    """Runs eBPF on made-up maps: an address is a map number in the upper half, an offset below."""

    def __init__(self, rows: list[Row], switch: int) -> None:
        flat = [word for row in rows for entry in row for word in entry]
        numbers = [-1] * (SWITCHES * (HIGHEST_IFINDEX + 1))
        for port in range(PORTS):
            numbers[switch * (HIGHEST_IFINDEX + 1) + FIRST_IFINDEX + port] = port
        self.memory = {
            ROWS: bytearray(struct.pack(f"<{len(flat)}q", *flat)),
            COUNTERS: bytearray(PORTS * COUNTER_BYTES),
            PORT_OF: bytearray(struct.pack(f"<{len(numbers)}i", *numbers)),
            6: bytearray(struct.pack("<II", FRAME_BYTES, 3)),
        }
        self.redirected_to = -1
        self.changed_type = False

    def run(self, code: bytes) -> int:
        registers = [0] * 11
        registers[1] = 6 << 32
        at = executed = 0
        while True:
            executed += 1
            assert executed < 200, "this program has no loops"
            opcode, both, offset, immediate = struct.unpack_from("<BBhi", code, at * 8)
            dst, src = both & 15, both >> 4
            at += 1
            if opcode == 0x95:
                return registers[0]
            if opcode == 0x18:
                assert src == 2
                registers[dst] = (immediate << 32) + struct.unpack_from("<i", code, at * 8 + 4)[0]
                at += 1
            elif opcode == 0x85:
                registers[0] = self.call(immediate, registers)
                registers[1:6] = [0xDEAD] * 5  # what a call may destroy, it does
            elif opcode in (0x61, 0x79):
                form = "<I" if opcode == 0x61 else "<Q"
                registers[dst] = self.read(registers[src] + offset, form)
            elif opcode == 0xDB:
                where = registers[dst] + offset
                struct.pack_into(
                    "<Q",
                    self.memory[where >> 32],
                    where & 0xFFFFFFFF,
                    (self.read(where, "<Q") + registers[src]) & MASK,
                )
            elif opcode & 7 == 7:
                operand = registers[src] if opcode & 8 else immediate & MASK
                registers[dst] = ARITHMETIC[opcode & 0xF0](registers[dst], operand) & MASK
            else:
                operand = registers[src] if opcode & 8 else immediate & MASK
                taken = CONDITIONS[opcode & 0xF0](registers[dst], operand)
                at += offset if taken else 0

    def read(self, address: int, form: str) -> int:
        size = len(self.memory[address >> 32])
        assert (address & 0xFFFFFFFF) + struct.calcsize(form) <= size
        return int(struct.unpack_from(form, self.memory[address >> 32], address & 0xFFFFFFFF)[0])

    def call(self, helper: int, registers: list[int]) -> int:
        if helper == 5:
            return NOW
        if helper == 32:
            assert registers[1:3] == [6 << 32, 0]
            self.changed_type = True
            return 0
        assert helper == 155
        assert registers[2] == 0
        assert self.changed_type, "the frame still counts as somebody else's"
        self.redirected_to = registers[1]
        return REDIRECTED


def newest(row: Row) -> int | None:
    """What a row says at NOW; of entries of the same time the later wins."""
    come = [(t_ns, place, value) for place, (t_ns, value) in enumerate(row) if t_ns <= NOW]
    return max(come)[2] if come else None


def rule(rows: list[Row], port: int) -> str:
    out = newest(rows[port])
    if out is None:
        return "unconnected"
    if out == 0:
        return "dark"
    if not FIRST_IFINDEX <= out < FIRST_IFINDEX + PORTS:
        return "conflict"
    owner = newest(rows[PORTS + out - FIRST_IFINDEX])
    return {0: "dark", port + 1: "forwarded"}.get(-1 if owner is None else owner, "conflict")


def rows_of(values: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
    times = st.sampled_from([NEVER, NEVER, NOW + 1, NOW, NOW - 1, 500, 1, 0])
    return st.lists(st.tuples(times, values), min_size=DEPTH, max_size=DEPTH)


OUTS = st.sampled_from(
    [0, *range(FIRST_IFINDEX, FIRST_IFINDEX + PORTS), 1, 4095, 4096, 1 << 33, -5]
)
OWNERS = st.integers(0, PORTS)


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    return [draw(rows_of(OUTS)) for _ in range(PORTS)] + [
        draw(rows_of(OWNERS)) for _ in range(PORTS)
    ]


def fresh() -> Iterator[Row]:
    for _ in range(2 * PORTS):
        yield [(NEVER, 0)] * DEPTH


@settings(deadline=None, max_examples=300)
@given(tables(), st.integers(0, PORTS - 1), st.integers(0, SWITCHES - 1))
def test_every_frame_meets_the_rule_and_one_counter(
    rows: list[Row], port: int, switch: int
) -> None:
    machine = Machine(rows, switch)
    result = machine.run(crossbar_program(MapPlaces(ROWS, COUNTERS, PORT_OF, switch), port, PORTS))
    cause = rule(rows, port)
    counted = struct.unpack(f"<{PORTS * 8}q", machine.memory[COUNTERS])
    expected = [0] * (PORTS * 8)
    expected[port * 8 + 2 * CAUSES.index(cause)] = 1
    expected[port * 8 + 2 * CAUSES.index(cause) + 1] = FRAME_BYTES
    assert list(counted) == expected
    assert (result, machine.redirected_to) == (
        (REDIRECTED, newest(rows[port])) if cause == "forwarded" else (SHOT, -1)
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_the_rule_has_an_example_of_each_cause(cause: str) -> None:
    rows = list(fresh())
    out = FIRST_IFINDEX + 1
    rows[0][0] = {"unconnected": (NOW + 1, out), "dark": (NOW, 0)}.get(cause, (NOW, out))
    rows[PORTS + 1][0] = (NOW, 1 if cause == "forwarded" else 2)
    assert rule(rows, 0) == cause


def test_the_program_is_small_and_what_it_was() -> None:
    code = crossbar_program(MapPlaces(3, 4, 5, 0), 0, 8)
    assert len(code) // 8 == 129
    assert code[:32].hex(" ", 8).split() == [
        "bf16000000000000",  # r6 = r1
        "8500000005000000",  # call bpf_ktime_get_ns
        "bf08000000000000",  # r8 = r0
        "1829000004000000",  # r9 = value of map 4
    ]
    assert hashlib.sha256(code).hexdigest() == (
        "55e1b3bd220d7294e84ca9e3cca299a71362ff25ed1502555a443c7f4f9061f5"
    )
