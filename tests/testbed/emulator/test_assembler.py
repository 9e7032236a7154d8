"""The assembler's bytes, against the encoding of RFC 9669."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.emulator.assembler import Assembler

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("instruction", "golden"),
    [
        (lambda a: a.move(3, -1), "b7030000ffffffff"),
        (lambda a: a.copy(6, 1), "bf16000000000000"),
        (lambda a: a.add(5, 1), "0f15000000000000"),
        (lambda a: a.add_immediate(9, 16), "0709000010000000"),
        (lambda a: a.multiply(5, 128), "2705000080000000"),
        (lambda a: a.shift_left(1, 2), "6701000002000000"),
        (lambda a: a.load(1, 4, 24), "7941180000000000"),
        (lambda a: a.load(4, 6, 0, size=4), "6164000000000000"),
        (lambda a: a.load_map_value(9, 7, 64), "18290000070000000000000040000000"),
        (lambda a: a.atomic_add(9, 8, 4), "db49080000000000"),
        (lambda a: a.call(155), "850000009b000000"),
        (lambda a: a.exit(), "9500000000000000"),
    ],
)
def test_one_instruction(instruction: Callable[[Assembler], None], golden: str) -> None:
    program = Assembler()
    instruction(program)
    assert program.assemble().hex() == golden


def test_jumps_count_from_the_next_instruction() -> None:
    program = Assembler()
    program.jump_if(3, "==", -1, "end")
    program.jump_if(3, "!=", 7, "end")
    program.jump_if(3, ">", 4095, "end")
    program.jump_if(5, ">=", 8, "end")
    program.jump_if_register(1, ">", 8, "end")
    program.jump_if_register(1, "<", 2, "end")
    program.jump("end")
    program.label("end")
    program.exit()
    assert program.assemble().hex(" ", 8).split() == [
        "15030600ffffffff",
        "5503050007000000",
        "25030400ff0f0000",
        "3505030008000000",
        "2d81020000000000",
        "ad21010000000000",
        "0500000000000000",
        "9500000000000000",
    ]


def test_what_the_verifier_would_refuse_is_refused_here() -> None:
    program = Assembler()
    program.label("loop")
    program.jump("loop")
    with pytest.raises(AssertionError, match="lies behind"):
        program.assemble()
    with pytest.raises(AssertionError, match="loop"):
        program.label("loop")
