"""The Chakra execution trace as protobuf messages, their descriptor built here at import.

Package ChakraProtoMsg of mlcommons/chakra, `schema/protobuf/et_def.proto`; only what a training
trace uses (no storage nodes). A `.et` file is a `GlobalMetadata` and then `Node`s, each preceded by
its length as a varint. Importing this module imports protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "COMM_TYPES",
    "NODE_TYPES",
    "GlobalMetadata",
    "Node",
    "attributes",
    "frames",
    "set_attribute",
    "write_frames",
]

NODE_TYPES: Final = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
COMM_TYPES: Final = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
# In the order of their field numbers: value from 3, list from 4, in steps of 2.
_SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FIRST_VALUE: Final = 3
_MOST_VARINT: Final = 10  # bytes of a 64-bit number


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="chakra/et_def.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    for name, named in (("NodeType", NODE_TYPES), ("CollectiveCommType", COMM_TYPES)):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(named):
            enum.value.add(name=value, number=number)
    for scalar in _SCALARS:
        _message(file, f"{scalar.capitalize()}List", [("values", 1, scalar, True)])
    values = [
        field
        for k, scalar in enumerate(_SCALARS)
        for field in (
            (f"{scalar}_val", _FIRST_VALUE + 2 * k, scalar, False),
            (f"{scalar}_list", _FIRST_VALUE + 2 * k + 1, f"{scalar.capitalize()}List", False),
        )
    ]
    _message(
        file,
        "AttributeProto",
        [("name", 1, "string", False), ("doc_string", 2, "string", False), *values],
        one_of="value",
    )
    texts = [(name, k, "string", False) for k, name in enumerate(("values", "shapes", "types"), 1)]
    _message(file, "IOInfo", texts)
    _message(
        file,
        "GlobalMetadata",
        [("version", 1, "string", False), ("attr", 2, "AttributeProto", True)],
    )
    _message(
        file,
        "Node",
        [
            ("id", 1, "uint64", False),
            ("name", 2, "string", False),
            ("type", 3, "NodeType", False),
            ("ctrl_deps", 4, "uint64", True),
            ("data_deps", 5, "uint64", True),
            ("start_time_micros", 6, "uint64", False),
            ("duration_micros", 7, "uint64", False),
            ("inputs", 8, "IOInfo", False),
            ("outputs", 9, "IOInfo", False),
            ("attr", 10, "AttributeProto", True),
        ],
    )
    return file


def _message(
    file: descriptor_pb2.FileDescriptorProto,
    name: str,
    fields: Iterable[tuple[str, int, str, bool]],
    one_of: str | None = None,
) -> None:
    """Add a message; a field is (name, number, type, repeated)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name=name)
    if one_of is not None:
        message.oneof_decl.add(name=one_of)
    for field, number, kind, repeated in fields:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        added = message.field.add(name=field, number=number, label=label)
        if kind in _SCALARS:
            added.type = getattr(kinds, f"TYPE_{kind.upper()}")
        else:
            added.type = kinds.TYPE_ENUM if kind == "NodeType" else kinds.TYPE_MESSAGE
            added.type_name = f".{file.package}.{kind}"
        if one_of is not None and number >= _FIRST_VALUE:
            added.oneof_index = 0


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:  # noqa: ANN401 (protobuf makes it)
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))


Node: Final = _class("Node")
GlobalMetadata: Final = _class("GlobalMetadata")


def set_attribute(message: Any, name: str, kind: str, value: Any) -> None:  # noqa: ANN401 (protobuf)
    """Append an attribute of `kind`, such as "int64" or "string"; a list makes a list of them."""
    added = message.attr.add(name=name)
    if isinstance(value, (list, tuple)):
        getattr(added, f"{kind}_list").values.extend(value)
        if not value:
            getattr(added, f"{kind}_list").SetInParent()
    else:
        setattr(added, f"{kind}_val", value)


def attributes(message: Any) -> dict[str, Any]:  # noqa: ANN401 (protobuf)
    """Return a message's attributes by name, lists as Python lists."""
    found = {}
    for each in message.attr:
        kind = each.WhichOneof("value")
        if kind is not None:
            value = getattr(each, kind)
            found[each.name] = list(value.values) if kind.endswith("_list") else value
    return found


def frames(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the messages of a `.et` file; raises `InputError` where it is cut or no such file."""
    at = 0
    while at < len(data):
        size, shift, start = 0, 0, at
        while True:
            if at == len(data) or at - start == _MOST_VARINT:
                raise _damaged(where, start)
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 (the top bit says that more follows)
                break
        if size > len(data) - at:
            raise _damaged(where, start)
        yield data[at : at + size]
        at += size


def _damaged(where: str, offset: int) -> InputError:
    return InputError(
        f"the message at byte {offset} is incomplete",
        where,
        "a Chakra trace is a sequence of messages, each preceded by its length",
        "copy or write the file again, completely",
    )


def write_frames(messages: Iterable[Any]) -> Iterator[bytes]:
    """Yield the bytes of a `.et` file of `messages`; equal messages give equal bytes."""
    for message in messages:
        body = message.SerializeToString(deterministic=True)
        size, head = len(body), bytearray()
        while size >= 0x80:  # noqa: PLR2004 (seven bits a byte)
            head.append(size & 0x7F | 0x80)
            size >>= 7
        head.append(size)
        yield bytes(head) + body
