"""What every file format here shares: typed JSON, compression by content, sentences for errors.

A file is damaged in few ways, and each gets one `InputError` naming the file and the place; no
decoder's traceback leaves this module.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from topologies.errors import InputError, UsageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = [
    "GZIP_MAGIC",
    "ZSTD_MAGIC",
    "decode_json",
    "decompress",
    "json_schema",
    "read_bytes",
    "read_lines",
    "refusal",
    "write_chunks",
]

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError)
_LEVEL: Final = 6

T = TypeVar("T")


def decode_json(data: bytes | memoryview, kind: type[T], where: str, what: str) -> T:
    """Decode one JSON document as `kind`; `what` names it in the `InputError` when it is not one.

    >>> decode_json(b'{"a": 1}', dict[str, int], "x.json", "a table of counts")
    {'a': 1}
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise refusal(error, where, what) from error


def refusal(error: Exception, where: str, what: str) -> InputError:
    """Turn a decoder's message into a sentence; `what` is what the document should have been."""
    if isinstance(error, RecursionError):
        why, fix = "it is nested too deeply to be one", "write it again"
    elif isinstance(error, msgspec.ValidationError):
        text = str(error)
        why, fix = text[:1].lower() + text[1:].replace(" - at ", " at "), "correct it"
    elif "truncated" in str(error):
        why, fix = "the JSON ends early", "copy or write the file again, completely"
    else:
        text = str(error).replace("JSON is malformed: ", "")
        why, fix = f"it is not JSON: {text}", "give the file as it was written"
    return InputError(f"this is not {what}", where, why, fix)


def decompress(data: bytes, where: str) -> bytes:
    """Undo gzip and zstandard, recognised by content and nested at will; `InputError` if cut."""
    while True:
        try:
            if data.startswith(GZIP_MAGIC):
                data = gzip.decompress(data)
            elif data.startswith(ZSTD_MAGIC):
                data = zstd.decompress(data)
            else:
                return data
        except _DAMAGED as error:
            raise _cut(error, where) from error


def _cut(error: Exception, where: str) -> InputError:
    return InputError(
        "the compressed data is damaged", where, str(error)[:1].lower() + str(error)[1:],
        "copy the file again, completely",
    )  # fmt: skip


def read_bytes(path: Path) -> bytes:
    """Read a file, undoing its compression; `InputError` when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(error, path) from error
    return decompress(data, str(path))


def _unreadable(error: OSError, path: Path) -> InputError:
    why = (error.strerror or str(error)).lower()
    return InputError("the file cannot be read", str(path), why, "check the path")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a possibly compressed file without holding it; errors as `read_bytes`."""
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
            raw.seek(0)
            stream: Iterable[bytes] = raw
            if head.startswith(GZIP_MAGIC):
                stream = gzip.open(raw, "rb")  # noqa: SIM115 (closed with `raw`)
            elif head.startswith(ZSTD_MAGIC):
                stream = zstd.open(raw, "rb")
            yield from stream
    except _DAMAGED as error:
        raise _cut(error, str(path)) from error
    except OSError as error:
        raise _unreadable(error, path) from error


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Write chunks, compressed as the name ends (.gz, .zst); equal chunks give equal bytes.

    The file appears complete or not at all. Raises `UsageError` when it cannot be written.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed:
                    packed.writelines(chunks)
            elif path.suffix == ".zst":
                with zstd.ZstdFile(raw, "wb") as packed_zstd:
                    packed_zstd.writelines(chunks)
            else:
                raw.writelines(chunks)
        beside.replace(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        fix = "make room, or choose another place"
        raise UsageError("the file cannot be written", str(path), why, fix) from error
    finally:
        with contextlib.suppress(OSError):  # a directory that may not be written
            beside.unlink(missing_ok=True)


def json_schema(title: str, name: str, *kinds: Any) -> bytes:  # noqa: ANN401 (types)
    """Write the JSON Schema of documents that are any one of `kinds`; `name` is its file's stem."""
    found, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"fluxbed:{name}",
        "title": title,
        "anyOf": list(found),
        "$defs": {key: definitions[key] for key in sorted(definitions)},
    }
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
