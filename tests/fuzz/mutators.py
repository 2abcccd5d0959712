# SPDX-License-Identifier: Apache-2.0
"""Damage to files: of any bytes, and of what the formats are made of. All of it follows from a seed."""

from __future__ import annotations

import ast
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

Mutator = Callable[[random.Random, bytes], bytes]

#: Numbers at which something overflows, or that no file can hold.
NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), 0.5, 1e400, True, False, None),
)
#: Texts that no name, path or type should be.
TEXTS = (
    *("", ".", "..", "/", "../secret.bin", "/etc/passwd", "a/../../secret.bin", "C:\\x", "a\0b", "\x1b[2J", "\ud800"),
    *("F32", "F16", "BF16", "I4", "F8_E4M3", "F4", "C64", "U8", "BOOL", "f4", "O", "x" * 300, "é", "__metadata__"),
    *("9" * 5000, "weight_scale", "<U0", "|S0", "<f8", "|V3", "[3, 5]", "INT4", "%s{0}", "\r\n", "\u202e"),
)


def mutated(kind: str, seed: int, whole: bytes) -> bytes:
    """The bytes of a file of that kind, damaged one to three times."""
    rng = random.Random(f"{kind} {seed}")
    for _ in range(rng.choice((1, 1, 2, 3))):
        mutator = rng.choice(ANY) if rng.random() < 0.4 or kind not in OF_KIND else rng.choice(OF_KIND[kind])
        try:
            whole = mutator(rng, whole)
        except (ValueError, SyntaxError, KeyError, IndexError, TypeError, struct.error, RecursionError, DecodeError):
            # What is damaged already cannot always be taken apart.
            whole = flipped(rng, whole)
    return whole


# ---- any bytes ----


def flipped(rng: random.Random, whole: bytes) -> bytes:
    data = bytearray(whole or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(rng: random.Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(len(whole) + 1)]


def extended(rng: random.Random, whole: bytes) -> bytes:
    return whole + rng.choice((b"\0", bytes(100), b"\xff" * 9, whole))


def without(rng: random.Random, whole: bytes) -> bytes:
    begin, end = _part(rng, whole)
    return whole[:begin] + whole[end:]


def repeated(rng: random.Random, whole: bytes) -> bytes:
    begin, end = _part(rng, whole)
    return whole[:end] + whole[begin:end] * rng.choice((1, 2, 50)) + whole[end:]


def swapped(rng: random.Random, whole: bytes) -> bytes:
    begin, end = _part(rng, whole)
    length = end - begin
    other = rng.randrange(end, len(whole) - length + 1) if end + length <= len(whole) else 0
    if other < end:
        return whole
    return whole[:begin] + whole[other : other + length] + whole[end:other] + whole[begin:end] + whole[other + length :]


def numbered(rng: random.Random, whole: bytes) -> bytes:
    """A number somewhere, of any width."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(whole) - width))
    number = int(rng.choice([number for number in NUMBERS if type(number) is int]))
    return whole[:at] + (number % (1 << 8 * width)).to_bytes(width, "little") + whole[at + width :]


def _part(rng: random.Random, whole: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(whole))
    return begin, min(len(whole), begin + rng.choice((1, 2, 4, 8, 46, 100)))


ANY: tuple[Mutator, ...] = (flipped, flipped, cut, extended, without, repeated, swapped, numbered)


# ---- JSON ----


def _hostile(rng: random.Random, old: Any) -> Any:
    """A value that does not belong there."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1 and isinstance(old, list):
        return rng.choice((old * 2, old[:-1], [*old, 1], old[::-1], [[entry] for entry in old], old * 40))
    if kind == 2:
        return rng.choice(({}, [], {"": {}}, [[]], [0] * 65, {"weight_map": {}}))
    if kind == 3 and isinstance(old, int):
        return rng.choice((old + 1, old - 1, -old, old * 2, float(old % 2**64), str(old)))
    return rng.choice(NUMBERS)


def _changed(rng: random.Random, value: Any) -> Any:
    """A JSON value with one change, anywhere in it."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return _hostile(rng, value)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    name = rng.choice(list(value))
    how = rng.random()
    if how < 0.1:
        return {key: entry for key, entry in value.items() if key != name}
    if how < 0.2:
        return {(rng.choice(TEXTS) if key == name else key): entry for key, entry in value.items()}
    if how < 0.3:
        return value | {name: value[rng.choice(list(value))]}
    return value | {name: _changed(rng, value[name])}


def _written(rng: random.Random, value: Any) -> bytes:
    """JSON that says it, sometimes twice, or deeper than any parser goes."""
    text = json.dumps(value)
    how = rng.random()
    if how < 0.15 and isinstance(value, dict) and value:
        name = rng.choice(list(value))
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(value[name])}}}"
    elif how < 0.25:
        depth = rng.choice((100, 5000))
        text = f'{text[:-1]}, "deep": {"[" * depth}{"]" * depth}}}'
    return text.encode()


def json_value(rng: random.Random, whole: bytes) -> bytes:
    return _written(rng, _changed(rng, json.loads(whole)))


def safetensors_header(rng: random.Random, whole: bytes) -> bytes:
    length = int.from_bytes(whole[:8], "little")
    text = _written(rng, _changed(rng, json.loads(whole[8 : 8 + length])))
    return len(text).to_bytes(8, "little") + text + whole[8 + length :]


# ---- .npy, .npz ----


def npy_header(rng: random.Random, whole: bytes) -> bytes:
    """Another type, order or shape; the length of the header fits."""
    length = int.from_bytes(whole[8:10], "little")
    fields = ast.literal_eval(whole[10 : 10 + length].decode("latin-1"))
    name = rng.choice(list(fields))
    if name == "descr":
        several = [[("a", "<f4")], [("a", "<f4"), ("a", "<f4")], [("bfloat16", "<u2")]]
        kinds = ("<f2", "<f8", ">f4", "|O", "<U0", "|S0", "|V0", "<U9", "<M8[ns]", "|b1", "<c8", "f1", "(3,)<f4")
        fields[name] = rng.choice((*kinds, *several, 3, None))
    elif name == "shape":
        fields[name] = tuple(_changed(rng, list(fields[name]) or [1]) or ()) if rng.random() < 0.9 else [3]
    else:
        fields[name] = rng.choice((True, 1, "False", None))
    if rng.random() < 0.1:
        fields["more"] = 1
    text = (repr(fields) + "\n").encode("latin-1")
    return whole[:8] + struct.pack("<H", len(text)) + text + whole[10 + length :]


_RECORD = "<4s6H3L5H2L"


def _records(whole: bytes) -> list[tuple[int, list[Any], bytes]]:
    """The central directory of an archive: for each member where its record is, its fields, and its name and extras."""
    found, at = [], whole.find(b"PK\1\2")
    while at >= 0 and whole[at : at + 4] == b"PK\1\2":
        fields = list(struct.unpack_from(_RECORD, whole, at))
        more = sum(fields[10:13])
        found.append((at, fields, whole[at + 46 : at + 46 + more]))
        at += 46 + more
    return found


def zip_field(rng: random.Random, whole: bytes) -> bytes:
    """A field of a member's record: its method, sizes, checksum, flags, the place of its bytes."""
    at, fields, _ = rng.choice(_records(whole))
    field, limit = rng.choice(((3, 1 << 16), (4, 1 << 16), (7, 1 << 32), (8, 1 << 32), (9, 1 << 32), (16, 1 << 32)))
    number = int(rng.choice([number for number in NUMBERS if type(number) is int]))
    fields[field] = rng.choice((number, fields[field] + 1, fields[field] - 1, 0, 8, 12, 14)) % limit
    return whole[:at] + struct.pack(_RECORD, *fields) + whole[at + 46 :]


def zip_overlap(rng: random.Random, whole: bytes) -> bytes:
    """Many members that are one and the same, or that begin within each other."""
    records = _records(whole)
    begin = records[0][0]
    _, fields, more = rng.choice(records)
    count = rng.choice((2, 3, 200))
    made = []
    for number in range(count):
        name = more[: fields[10]]
        name = (name[:-4] + b"%03d" % number + name[-4:]) if rng.random() < 0.9 else name
        new = list(fields)
        new[10] = len(name)
        new[16] = rng.choice((fields[16], fields[16], rng.choice(records)[1][16], fields[16] + 1))
        made.append(struct.pack(_RECORD, *new) + name + more[fields[10] :])
    directory = b"".join(made)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), begin, 0)
    return whole[:begin] + directory + end


def zip_member(rng: random.Random, whole: bytes) -> bytes:
    """The header of an .npy member that is only stored: its length stays."""
    at = whole.index(b"\x93NUMPY", rng.randrange(max(1, len(whole) // 2)))
    length = int.from_bytes(whole[at + 8 : at + 10], "little")
    text = npy_header(rng, whole[at : at + 10 + length])[10:].strip().ljust(length - 1)[: length - 1] + b"\n"
    return whole[: at + 10] + text + whole[at + 10 + length :]


# ---- ONNX ----


def _change_tensor(rng: random.Random, tensor: Any) -> None:
    how = rng.randrange(7)
    number = int(rng.choice([n for n in NUMBERS if type(n) is int and -(2**63) <= n < 2**63]))
    if how == 0:
        tensor.dims.append(number)
    elif how == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = number
    elif how == 2:
        tensor.data_type = rng.choice((0, 1, 8, 10, 11, 14, 16, 22, 23, 26, 99, 2**31 - 1))
    elif how == 3:
        tensor.name = rng.choice([text for text in TEXTS if text != "\ud800"])
    elif how == 4:
        tensor.raw_data = rng.choice((b"", tensor.raw_data + b"\0", tensor.raw_data[:-1], bytes(1000)))
    elif how == 5:
        getattr(tensor, rng.choice(("float_data", "int32_data", "int64_data", "double_data"))).append(1)
    elif tensor.external_data:
        entry = rng.choice(tensor.external_data)
        texts = [str(n) for n in NUMBERS] + [text for text in TEXTS if text != "\ud800"]
        entry.value = rng.choice(texts)
        if rng.random() < 0.2:
            entry.key = rng.choice(("location", "offset", "length", "checksum", ""))
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret.bin")


def onnx_tensor(rng: random.Random, whole: bytes) -> bytes:
    model = onnx.ModelProto.FromString(whole)
    tensors = model.graph.initializer
    _change_tensor(rng, rng.choice(tensors))
    if rng.random() < 0.1:
        tensors.append(rng.choice(tensors))
    return bytes(model.SerializeToString())


def pb_tensor(rng: random.Random, whole: bytes) -> bytes:
    tensor = onnx.TensorProto.FromString(whole)
    _change_tensor(rng, tensor)
    return bytes(tensor.SerializeToString())


OF_KIND: dict[str, tuple[Mutator, ...]] = {
    "npy": (npy_header,),
    "npz": (zip_field, zip_overlap, zip_member),
    "pb": (pb_tensor,),
    "onnx": (onnx_tensor,),
    "safetensors": (safetensors_header,),
    "json": (json_value,),
}
