"""A small assembler for eBPF: one method per instruction we use, jumps to labels, nothing more.

The instruction set is RFC 9669. Only what a kernel of 5.10 verifies is offered; `assemble` gives
the bytes bpf(2) takes, so neither a compiler nor headers are needed where fluxbed runs.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = ["Assembler"]

_LD_IMM64: Final = 0x18
_PSEUDO_MAP_VALUE: Final = 2  # the second half is an offset into the map's one value
_LDX: Final = {4: 0x61, 8: 0x79}
_XADD64: Final = 0xDB
_MOV_REG, _MOV_IMM, _ADD_REG, _ADD_IMM, _MUL_IMM, _LSH_IMM = 0xBF, 0xB7, 0x0F, 0x07, 0x27, 0x67
_JUMP_REG: Final = {">": 0x2D, "<": 0xAD}  # unsigned
_JUMP_IMM: Final = {"==": 0x15, "!=": 0x55, ">": 0x25, ">=": 0x35}
_JA, _CALL, _EXIT = 0x05, 0x85, 0x95


class _Instruction(NamedTuple):
    opcode: int
    dst: int = 0
    src: int = 0
    offset: int = 0
    immediate: int = 0
    target: str | None = None


class Assembler:
    """Collects instructions; registers are numbers, offsets bytes, jumps go to labels.

    >>> program = Assembler()
    >>> program.move(0, 2)
    >>> program.exit()
    >>> program.assemble().hex()
    'b7000000020000009500000000000000'
    """

    def __init__(self) -> None:
        self._code: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the next instruction; a name is given once."""
        assert name not in self._labels, name
        self._labels[name] = len(self._code)

    def move(self, dst: int, immediate: int) -> None:
        """Set register `dst` to a constant, sign-extended to 64 bits."""
        self._code.append(_Instruction(_MOV_IMM, dst, immediate=immediate))

    def copy(self, dst: int, src: int) -> None:
        """Copy register `src` to `dst`."""
        self._code.append(_Instruction(_MOV_REG, dst, src))

    def add(self, dst: int, src: int) -> None:
        """Add register `src` to `dst`."""
        self._code.append(_Instruction(_ADD_REG, dst, src))

    def add_immediate(self, dst: int, immediate: int) -> None:
        """Add a constant to `dst`."""
        self._code.append(_Instruction(_ADD_IMM, dst, immediate=immediate))

    def multiply(self, dst: int, immediate: int) -> None:
        """Multiply `dst` by a constant."""
        self._code.append(_Instruction(_MUL_IMM, dst, immediate=immediate))

    def shift_left(self, dst: int, bits: int) -> None:
        """Shift `dst` left."""
        self._code.append(_Instruction(_LSH_IMM, dst, immediate=bits))

    def load(self, dst: int, src: int, offset: int, size: int = 8) -> None:
        """Load `size` bytes (4 or 8) from the address in `src` plus `offset`."""
        self._code.append(_Instruction(_LDX[size], dst, src, offset))

    def load_map_value(self, dst: int, map_fd: int, offset: int) -> None:
        """Set `dst` to an address inside the one value of an array map (kernel >= 5.2)."""
        self._code.append(_Instruction(_LD_IMM64, dst, _PSEUDO_MAP_VALUE, immediate=map_fd))
        self._code.append(_Instruction(0, immediate=offset))

    def atomic_add(self, dst: int, offset: int, src: int) -> None:
        """Add register `src` to the 64-bit word at the address in `dst` plus `offset`."""
        self._code.append(_Instruction(_XADD64, dst, src, offset))

    def jump(self, target: str) -> None:
        """Go to a label further on."""
        self._code.append(_Instruction(_JA, target=target))

    def jump_if(self, dst: int, condition: str, immediate: int, target: str) -> None:
        """Go to a label further on if register `dst` compares so to a constant (unsigned)."""
        opcode = _JUMP_IMM[condition]
        self._code.append(_Instruction(opcode, dst, immediate=immediate, target=target))

    def jump_if_register(self, dst: int, condition: str, src: int, target: str) -> None:
        """Go to a label further on if register `dst` compares so to `src` (unsigned)."""
        self._code.append(_Instruction(_JUMP_REG[condition], dst, src, target=target))

    def call(self, helper: int) -> None:
        """Call a kernel helper: arguments in 1 to 5, which are lost, the result in 0."""
        self._code.append(_Instruction(_CALL, immediate=helper))

    def exit(self) -> None:
        """Return register 0."""
        self._code.append(_Instruction(_EXIT))

    def assemble(self) -> bytes:
        """Return the program, 8 bytes an instruction, with every jump resolved."""
        words = []
        for at, (opcode, dst, src, offset, immediate, target) in enumerate(self._code):
            distance = offset if target is None else self._labels[target] - at - 1
            assert target is None or distance >= 0, f"{target} lies behind: old kernels refuse"
            words.append(struct.pack("<BBhi", opcode, dst | src << 4, distance, immediate))
        return b"".join(words)
