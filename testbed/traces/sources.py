"""Opening what users give: files, directories, archives, compressed streams, standard input.

Everything is recognised by content; `ARCHIVE!MEMBER` is what an archive holds under that name, in
that folder, or fitting that pattern. The result is a flat list of `Blob`s, read when asked.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
import zipfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.files.codec import GZIP_MAGIC, ZSTD_MAGIC, decompress
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Blob", "digest", "open_sources"]

_ZIP_MAGIC: Final = b"PK\x03\x04"
_TAR_MAGIC: Final = (257, b"ustar")
_HEAD: Final = 2**16
_SHOWN: Final = 6  # members of an archive, in a message
_MOST_BYTES: Final = 2**35
_JUNK: Final = ("._", ".DS_Store")


@dataclass(frozen=True, slots=True)
class Blob:
    """One file's content, wherever it was found: `path` says where, `!` enters an archive.

    `named` is False for what was found in a directory or archive, beside which anything may lie.
    """

    path: str
    load: Callable[[], bytes]
    named: bool = True

    @property
    def name(self) -> str:
        """The last part of the path, without compression suffixes."""
        return Path(self.path.rpartition("!")[2]).name.removesuffix(".gz").removesuffix(".zst")


def open_sources(paths: Iterable[Path | str]) -> list[Blob]:
    """Find every file in `paths`; "-" is standard input. Raises `InputError` if one is unreadable.

    Archives are entered, compression undone; files macOS and editors leave behind are skipped.
    """
    return [blob for path in paths for blob in _open(path)]


def _open(path: Path | str) -> Iterator[Blob]:
    if str(path) == "-":
        data = sys.stdin.buffer.read()
        yield from _enter("standard input", data[:_HEAD], lambda: data)
        return
    place = Path(path)
    if place.is_dir():
        for inside in sorted(place.rglob("*")):
            if inside.is_file() and not any(
                part.startswith(".") for part in inside.relative_to(place).parts
            ):
                yield from (replace(blob, named=False) for blob in _open(inside))
        return
    archive, member = _parts(place)
    if member:
        yield from _members(archive, member)
        return
    yield from _enter(str(place), _read_head(place), lambda: _read(place))


def _parts(place: Path) -> tuple[Path, str]:
    """Take ARCHIVE!MEMBER apart, where that is not itself a file."""
    archive, _, member = str(place).partition("!")
    inside = member and not place.exists() and Path(archive).is_file()
    return (Path(archive), member) if inside else (place, "")


def _members(archive: Path, member: str) -> Iterator[Blob]:
    """Find what an archive holds under a name, in a folder or fitting a pattern."""
    held = list(_open(archive))
    names = [blob.path.partition("!")[2] for blob in held]
    fitting = [
        replace(blob, named=name == member)
        for blob, name in zip(held, names, strict=True)
        if name == member or name.startswith(f"{member.rstrip('/')}/") or fnmatchcase(name, member)
    ]
    if not fitting:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        why = f"it holds {shown}" if any(names) else "it is no archive"
        raise InputError(f"there is no {member!r} in it", str(archive), why, "choose one of them")
    yield from fitting


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(
            "the file cannot be read", str(place), why, "check the path and its permissions"
        ) from error


def _read_head(place: Path) -> bytes:
    """Read the beginning of a file, or nothing when it cannot be read (`_read` then says why)."""
    try:
        with place.open("rb") as stream:
            return stream.read(_HEAD)
    except OSError:
        return b""


def _enter(path: str, head: bytes, load: Callable[[], bytes]) -> Iterator[Blob]:
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        data = decompress(load(), path)
        if data.startswith(_ZIP_MAGIC) or _is_tar(data):
            yield from _enter(path, data[:_HEAD], lambda: data)
        else:
            yield Blob(path, lambda: decompress(load(), path))
    elif head.startswith(_ZIP_MAGIC):
        yield from _unzip(path, load())
    elif _is_tar(head):
        yield from _untar(path, load())
    else:
        yield Blob(path, load)


def _is_tar(data: bytes) -> bool:
    offset, magic = _TAR_MAGIC
    return data[offset : offset + len(magic)] == magic


def _wanted(name: str, size: int, where: str) -> bool:
    if size > _MOST_BYTES:
        why = f"it says it holds {size} bytes"
        raise InputError(f"member {name!r} is too large", where, why, "unpack it yourself")
    last = name.rstrip("/").rpartition("/")[2]
    return size > 0 and not last.startswith(_JUNK) and "__MACOSX" not in name


def _untar(path: str, data: bytes) -> Iterator[Blob]:
    try:
        with tarfile.open(fileobj=BytesIO(data)) as archive:
            members = sorted(archive.getmembers(), key=lambda member: member.name)
            for member in members:
                if member.isfile() and _wanted(member.name, member.size, path):
                    stream = archive.extractfile(member)
                    content = stream.read() if stream else b""
                    yield from _inside(f"{path}!{member.name}", content)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(path, error) from error


def _inside(path: str, content: bytes) -> Iterator[Blob]:
    for blob in _enter(path, content[:_HEAD], lambda: content):
        yield replace(blob, named=False)


def _unzip(path: str, data: bytes) -> Iterator[Blob]:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            for member in sorted(archive.infolist(), key=lambda member: member.filename):
                if not member.is_dir() and _wanted(member.filename, member.file_size, path):
                    content = archive.read(member)
                    yield from _inside(f"{path}!{member.filename}", content)
    except (zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> InputError:
    text = str(error)
    return InputError(
        "the archive is damaged",
        path,
        text[:1].lower() + text[1:] or "it ends early",
        "copy it again, completely",
    )


def digest(paths: Iterable[Path | str]) -> str | None:
    """Return the SHA-256 of all the given files' bytes in order; None for standard input.

    Raises `InputError` when one cannot be read.
    """
    total = hashlib.sha256()
    for path in paths:
        if str(path) == "-":
            return None
        place = _parts(Path(path))[0]
        files = sorted(f for f in place.rglob("*") if f.is_file()) if place.is_dir() else [place]
        for file in files:
            total.update(_read(file))
    return total.hexdigest()
