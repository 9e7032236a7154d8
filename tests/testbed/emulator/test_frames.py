from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.emulator.frames import (
    BTH_BYTES,
    CRC_BYTES,
    FIRST_QP,
    HEADER_BYTES,
    LEAST_DATA_BYTES,
    PSN_MODULUS,
    Frame,
    data_bytes,
    opcode,
    pack,
    unpack,
)
from topologies.errors import InputError

frames = st.builds(
    Frame,
    opcode=st.sampled_from([0, 1, 2, 4]),
    destination_qp=st.integers(FIRST_QP, 2**24 - 1),
    psn=st.integers(0, PSN_MODULUS - 1),
    iteration=st.integers(0, 2**32 - 1),
    message=st.integers(0, 2**32 - 1),
    offset_bytes=st.integers(0, 2**61),
    length_bytes=st.integers(1, 2**61),
    serial=st.integers(0, 2**61),
)


@given(frames, st.integers(LEAST_DATA_BYTES // 4, 2000))
def test_what_is_packed_is_unpacked(frame: Frame, words: int) -> None:
    datagram = pack(frame, 4 * words)
    assert len(datagram) == BTH_BYTES + 4 * words + CRC_BYTES
    assert unpack(datagram) == frame


def test_a_frame_is_these_bytes() -> None:
    frame = Frame(
        opcode=4,
        destination_qp=0x010203,
        psn=0x0A0B0C,
        iteration=1,
        message=2,
        offset_bytes=3,
        length_bytes=4,
        serial=5,
    )
    assert pack(frame, 36).hex() == (
        "0400ffff00010203000a0b0c"
        "00000001000000020000000000000003000000000000000400000000000000050000000000000000"
    )


@pytest.mark.parametrize(
    ("datagram", "said"),
    [
        (bytes(47), "frame: a datagram of 47 bytes is no frame, because the headers take 48 bytes"),
        (bytes(48), "frame: opcode 0x00 with partition key 0x0000 is no frame of ours"),
        (b"\x05\0\xff\xff" + bytes(44), "frame: opcode 0x05 with partition key 0xffff is no frame"),
    ],
)
def test_other_datagrams_are_refused(datagram: bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        unpack(datagram)
    assert str(refused.value).startswith(said)


@pytest.mark.filterwarnings("ignore")
def test_scapy_reads_our_transport_header() -> None:
    roce = pytest.importorskip("scapy.contrib.roce")
    frame = Frame(
        opcode=opcode(0, 7, 7),
        destination_qp=9,
        psn=77,
        iteration=0,
        message=1,
        offset_bytes=0,
        length_bytes=7,
        serial=0,
    )
    seen = roce.BTH(pack(frame, 64))
    assert (seen.opcode, seen.dqpn, seen.psn, seen.pkey, seen.padcount) == (4, 9, 77, 0xFFFF, 0)


@given(st.integers(1, 2**50), st.floats(1e-3, 1e9))
def test_a_frame_carries_its_share_in_whole_words(length: int, scale: float) -> None:
    carried = data_bytes(length, scale)
    assert carried % 4 == 0
    assert carried >= max(LEAST_DATA_BYTES, length / scale * (1 - 1e-9))
    assert carried <= max(LEAST_DATA_BYTES, length / scale * (1 + 1e-9) + 4)


@settings(deadline=None)  # the first example compiles
@given(frames, st.integers(0, 2**50))
def test_the_engine_writes_the_same_headers(frame: Frame, rest: int) -> None:
    from testbed.emulator._kernels_engine_tools import take, write_headers

    size = frame.offset_bytes + frame.length_bytes + rest
    code = opcode(frame.offset_bytes, frame.length_bytes, size)
    for writer in (write_headers, write_headers.py_func):
        buffer = np.zeros(BTH_BYTES + HEADER_BYTES + CRC_BYTES, np.uint8)
        buffer[2:4] = 0xFF
        writer(
            buffer,
            frame.destination_qp - FIRST_QP,
            frame.psn,
            frame.iteration,
            frame.message,
            frame.offset_bytes,
            frame.length_bytes,
            size,
            frame.serial,
        )
        assert buffer.tobytes() == pack(dataclasses.replace(frame, opcode=code), HEADER_BYTES)
    at = BTH_BYTES + 8
    assert take(buffer, at, 8) == take.py_func(buffer, at, 8) == frame.offset_bytes
