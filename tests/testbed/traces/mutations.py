"""Seeded damage to example files: their bytes, or the values in them, so that they still parse."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import tarfile
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    import random
    from pathlib import Path

_BYTES: Final = [
    b"", b"0", b"-1", b"1e999", b"null", b"[", b"]", b"{", b"}", b'"', b",", b":", b"\x00", b"\xff",
    b"99999999999999999999", b'"x"', b"NaN", b" ", b"\n", b"[[]]", b"send", b"-", b"\x80\x80\x80",
]  # fmt: skip
_VALUES: Final = [
    b"0", b"1", b"-1", b"7", b"-0.5", b"1e300", b"2147483648", b"99999999999999999999", b"null",
    b"true", b'"x"', b'"0"', b'""', b"[]", b"{}", b"[[]]", b"[0,1,2]", b'"all_reduce"', b'"[0, 0]"',
]  # fmt: skip
_WORDS: Final = [b"0", b"-1", b"1.5", b"999999999999", b"x", b"", b"NONE", b"None", b"nan", b"}"]
_JSON_TOKEN: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*"(?!\s*:)|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null'
)
_TEXT_TOKEN: Final = re.compile(rb"[^\s,;:]+")
_TELLING: Final = re.compile(
    rb"nccl|record_param|c10d|gloo|ProfilerStep|COMM|\"rank\"|process_group|all_reduce|all_to_all"
)
_KERNEL: Final = re.compile(rb'"cat"\s*:\s*"[Kk]ernel"')
# what joins a kernel with its launch, and both with who called for them
_LINK: Final = re.compile(rb'"(?:correlation|External id|Record function id)"\s*:\s*[1-9]\d*')
_LONG: Final = 4_000
_SMALLER: Final = [
    (b"pp: 12", b"pp: 1"), (b"all_gpus: 9216", b"all_gpus: 32"),
    (b"rank127", b"rank7"), (b"oup,16,", b"oup,1,"),
]  # fmt: skip
_FEW: Final = 12


class Mutator:
    """Makes damaged versions of one file's content."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._json = content.lstrip()[:1] in (b"{", b"[")
        text = self._json or b"\x00" not in content
        pattern = _JSON_TOKEN if self._json else _TEXT_TOKEN
        self._spans = [m.span() for m in pattern.finditer(content)] if text else []

    def mutate(self, dice: random.Random) -> bytes:
        """Return one more: three in four with values changed, where there are values."""
        if self._spans and dice.random() < 0.75:
            return self._values(dice)
        return self._bytes(dice)

    def _values(self, dice: random.Random) -> bytes:
        few = min(len(self._spans), dice.randint(1, 3))
        content = self._content
        for start, end in sorted(dice.sample(self._spans, few), reverse=True):
            if dice.random() < 0.3:  # another value of this file, where it does not belong
                first, last = dice.choice(self._spans)
                value = self._content[first:last]
            else:
                value = dice.choice(_VALUES if self._json else _WORDS)
            content = content[:start] + value + content[end:]
        return content

    def _bytes(self, dice: random.Random) -> bytes:
        content = self._content
        whole = dice.random() < 0.8
        changed = bytearray(content if whole else content[: dice.randrange(len(content))])
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(changed) + 1)
            changed[at : at + dice.choice((0, 1, 2, 5))] = dice.choice(_BYTES)
        return bytes(changed)


def shortened(content: bytes) -> bytes:
    """Leave a few of a JSON document's many events: those of communication, and some others."""
    if content.lstrip()[:1] == b"[":
        return _some(content)
    document = msgspec.json.decode(content, type=dict[str, Raw])
    for key, value in document.items():
        if bytes(value).startswith(b"[") and len(bytes(value)) > _LONG:
            document[key] = Raw(_some(bytes(value)))
    return msgspec.json.encode(document)


def _some(array: bytes) -> bytes:
    events = [bytes(event) for event in msgspec.json.decode(array, type=list[Raw])]
    told = [place for place, event in enumerate(events) if _TELLING.search(event)]
    kernels = [place for place in told if _KERNEL.search(events[place])]
    kept = {*told[:_FEW], *kernels[:_FEW], *range(0, len(events), max(1, len(events) // _FEW))}
    links = {link for place in kept for link in _LINK.findall(events[place])}
    kept |= {p for p, event in enumerate(events) if not links.isdisjoint(_LINK.findall(event))}
    return b"[" + b",".join(events[place] for place in sorted(kept)) + b"]"


def member(path: Path, place: int = 0) -> bytes:
    with tarfile.open(path) as archive:
        files = [m for m in archive.getmembers() if m.isfile()]
        stream = archive.extractfile(files[place])
        assert stream is not None
        return stream.read()


def plain(path: Path) -> bytes:
    return path.read_bytes()


def lines(path: Path) -> bytes:
    """Return the first lines of a text that is expanded to many ranks, for fewer ranks.

    A SimAI workload is told that it has no more.
    """
    first = path.read_bytes().splitlines(keepends=True)[:30]
    if first[1].strip().isdigit():
        first[1] = b"%d\n" % (len(first) - 2)
    whole = b"".join(first)
    for many, few in _SMALLER:
        whole = whole.replace(many, few)
    return whole


def unpacked(path: Path) -> bytes:
    return shortened(gzip.decompress(path.read_bytes()))


def first_member(path: Path) -> bytes:
    return shortened(member(path))


def second_member(path: Path) -> bytes:
    return member(path, 1)


def chakra_of(path: Path) -> bytes:
    """Return the beginning of a long Chakra trace, cut where a message ends."""
    content, at = path.read_bytes(), 0
    while at < 12_000:
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
    return content[:at]


def pickled(path: Path) -> bytes:
    return pickle.dumps(json.loads(gzip.decompress(path.read_bytes())))
