"""Valid files of each kind, made by the packages that own the formats, and ways to damage them.

`samples(kind)` are a kind's files; `damage(kind, data, rng)` changes one: bits, cuts, blocks and
numbers anywhere, or what the format is made of (JSON headers, zip and tar headers, opcodes of
pickles, fields of GGUF). What readers make of the result does not belong here.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import pickletools
import random
import re
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

KINDS = ("safetensors", "torch", "zip", "tar", "gguf", "idx", "text")
EXTREMES = [0, 1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
EXTREMES += [2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -2]


# valid files


def arrays() -> dict[str, Any]:
    """A few arrays of several dtypes."""
    rng = np.random.default_rng(1)
    return {
        "layer.weight": rng.standard_normal((4, 3)).astype(np.float32),
        "layer.bias": rng.standard_normal(4).astype(np.float16),
        "count": np.array([7, -1], np.int64),
        "flags": np.array([True, False, True]),
        "bytes": np.arange(17, dtype=np.uint8),
        "double": np.array([[1e300]]),
        "empty": np.zeros((0, 5), np.float32),
    }


def make_safetensors() -> list[bytes]:
    """With and without metadata."""
    from safetensors.numpy import save

    found = arrays()
    return [
        save(found),
        save(found, {"format": "np", "note": "grüße"}),
        save({"x": found["count"]}),
    ]


def make_torch() -> list[bytes]:
    """Both forms; shared and permuted tensors, an optimizer, plain values."""
    import torch

    base = torch.arange(24, dtype=torch.float32)
    net = torch.nn.Linear(3, 2)
    opt = torch.optim.Adam(net.parameters(), lr=0.5)
    net(torch.ones(2, 3)).sum().backward()
    opt.step()
    values: list[Any] = [
        {k: torch.from_numpy(v) for k, v in arrays().items()},
        {"a": base.reshape(2, 3, 4).permute(2, 0, 1), "b": base[5:11], "e": base[3:4].expand(5)},
        {"model": net.state_dict(), "opt": opt.state_dict(), "epoch": 3, "lr": [0.1, None, True]},
        [(torch.ones(2, dtype=torch.bfloat16), "text"), {1: torch.tensor(2)}],
        [base[1::3], base.reshape(4, 6)[:, 1:4].T, base.unfold(0, 4, 2), base[:4].to(torch.uint16)],
    ]
    made = []
    for value in values:
        for as_zip in (True, False):
            file = io.BytesIO()
            torch.save(value, file, _use_new_zipfile_serialization=as_zip)
            made.append(file.getvalue() if as_zip else name_storages(file.getvalue()))
    return made


def name_storages(data: bytes) -> bytes:
    """The form before PyTorch 1.6 with storages by number, where PyTorch has their addresses."""
    names = dict.fromkeys(re.findall(rb"X\x0e\0\0\0(\d{14})", data))
    for i, name in enumerate(names):
        data = data.replace(name, b"%014d" % i)
    return data


def make_zip() -> list[bytes]:
    """One for each way to pack, and one with all."""
    ways = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    made = []
    for chosen in [[way] for way in ways] + [ways]:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for i, way in enumerate(chosen * 2):
                archive.writestr(f"folder/{i}.bin", bytes(range(200)) * (i + 1), way)
            archive.writestr("folder/", b"")
            archive.writestr("empty", b"", chosen[0])
            archive.comment = b"a comment"
        made.append(file.getvalue())
    return made


def make_tar() -> list[bytes]:
    """Three formats, and three ways to pack a whole archive."""
    made = []
    for mode, form in (
        ("w", tarfile.USTAR_FORMAT),
        ("w", tarfile.GNU_FORMAT),
        ("w", tarfile.PAX_FORMAT),
        ("w:gz", tarfile.GNU_FORMAT),
        ("w:bz2", tarfile.PAX_FORMAT),
        ("w:xz", tarfile.USTAR_FORMAT),
    ):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=mode, format=form) as archive:  # type: ignore[call-overload]
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            long = "deep/" * 30 + "name" if form != tarfile.USTAR_FORMAT else "deep/" * 20 + "name"
            for name, size in (("a.bin", 700), ("folder/b", 0), (long, 30), ("grüße", 512)):
                info = tarfile.TarInfo(name)
                info.size = size
                archive.addfile(info, io.BytesIO(bytes(i % 251 for i in range(size))))
        made.append(file.getvalue())
    return made


def make_gguf() -> list[bytes]:
    """Metadata of all types, plain tensors, a quantised one, and one of each quantised type."""
    import gguf

    made = []
    for quantised in (0, 1, 2):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            writer = gguf.GGUFWriter(file.name, "llama")
            writer.add_uint32("u", 7)
            writer.add_int64("i", -(2**40))
            writer.add_float32("f", 1.5)
            writer.add_bool("b", True)
            writer.add_string("s", "grüße")
            writer.add_array("words", ["a", "bc", "", "def"])
            writer.add_array("numbers", [1, 2, 3])
            found = arrays()
            writer.add_tensor("w", found["layer.weight"])
            writer.add_tensor("h", found["layer.bias"])
            if quantised == 2:
                writer.add_uint16("split.count", 1)
                for kind in quantised_types():
                    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
                    size = 2 * nbytes if elements > 64 else 6 * nbytes
                    blocks = np.random.default_rng(kind).integers(0, 256, (2, size // 2))
                    writer.add_tensor(kind.name, blocks.astype(np.uint8), raw_dtype=kind)
            if quantised == 1:
                values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor("q", gguf.quants.quantize(values, kind), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            file.seek(0)
            made.append(file.read())
    return made


def quantised_types() -> list[Any]:
    """The types in blocks that the gguf package decodes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    return [
        kind
        for kind in GGMLQuantizationType
        if kind in quants._type_traits and GGML_QUANT_SIZES[kind][0] > 1
    ]


def make_idx() -> list[bytes]:
    """Images and labels as MNIST has them."""
    images = b"\0\0\x08\x03" + struct.pack(">3I", 3, 5, 4) + bytes(range(60))
    labels = b"\0\0\x08\x01" + struct.pack(">I", 9) + bytes(range(9))
    return [gzip.compress(images, mtime=0), gzip.compress(labels, mtime=0)]


def make_text() -> list[bytes]:
    """Kernels as linear programs."""
    from aster_ml.uop.print.text import linear_to_text
    from tests.core.linear_programs import CASES

    return [linear_to_text(make().linear).encode() for make in list(CASES.values())[:8]]


MAKERS: dict[str, Callable[[], list[bytes]]] = {
    "safetensors": make_safetensors,
    "torch": make_torch,
    "zip": make_zip,
    "tar": make_tar,
    "gguf": make_gguf,
    "idx": make_idx,
    "text": make_text,
}


@functools.cache
def samples(kind: str) -> list[bytes]:
    """The valid files of a kind."""
    return MAKERS[kind]()


# damage anywhere


def spot(data: bytes, rng: random.Random) -> int:
    """A place; the ends of a file, where headers are, more often."""
    where = rng.random()
    if where < 0.4:
        return min(int(rng.expovariate(1 / 60)), len(data) - 1)
    if where < 0.6:
        return max(0, len(data) - 1 - int(rng.expovariate(1 / 60)))
    return rng.randrange(len(data))


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    """One to four bits."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        changed[spot(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_byte(data: bytes, rng: random.Random) -> bytes:
    """One byte."""
    changed = bytearray(data)
    changed[spot(data, rng)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    """The end or the start is missing."""
    at = spot(data, rng)
    return data[:at] if rng.random() < 0.7 else data[at:]


def move_block(data: bytes, rng: random.Random) -> bytes:
    """A block is inserted, doubled, removed or zeroed."""
    at, size = spot(data, rng), rng.choice([1, 2, 8, 64, 512, rng.randrange(1, 300)])
    block = data[at : at + size]
    way = rng.randrange(5)
    if way == 0:
        return data[:at] + rng.randbytes(size) + data[at:]
    if way == 1:
        return data[:at] + block * rng.choice([2, 2, 50]) + data[at + size :]
    if way == 2:
        return data[:at] + data[at + size :]
    if way == 3:
        return data[:at] + bytes(len(block)) + data[at + size :]
    other = spot(data, rng)
    return data[:other] + block + data[other + size :]


def set_number(data: bytes, rng: random.Random) -> bytes:
    """A number of 1 to 8 bytes somewhere becomes an extreme one."""
    width = rng.choice([1, 2, 4, 8])
    at = spot(data, rng)
    value = rng.choice(EXTREMES) & ((1 << 8 * width) - 1)
    order = rng.choice(["little", "little", "big"])
    raw = value.to_bytes(width, order)  # type: ignore[arg-type]
    return data[:at] + raw + data[at + width :]


def join_files(data: bytes, rng: random.Random) -> bytes:
    """Something before or after the file."""
    other = rng.choice([data, rng.randbytes(rng.randrange(1, 600)), bytes(512)])
    return data + other if rng.random() < 0.7 else other + data


ANYWHERE = [flip_bits, flip_bits, set_byte, cut, move_block, set_number, set_number, join_files]


# damage to what a format is made of

ODD_VALUES: list[Any] = [
    *EXTREMES, 2**70, 10**40, -5, 1.5, 1e308, True, False, None, "", "x", "F32", "I64", "BF16", [],
    {}, [0], [1, 2], [0, 8], [[]], {"dtype": "F32"}, [0] * 100, [2**40, 2**40], "\ud800", "F8_E4M3",
    "F4", "C128", "f32",
]  # fmt: skip


def damage_json(data: bytes, rng: random.Random) -> bytes:
    """A value of a safetensors header is another, missing, twice, or too long for a number."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    places: list[tuple[Any, Any]] = []
    pending = [header]
    while pending:
        item = pending.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            places.append((item, key))
            if isinstance(item[key], (dict, list)):
                pending.append(item[key])
    parent, key = rng.choice(places)
    way = rng.randrange(6)
    if way <= 1:
        parent[key] = rng.choice(ODD_VALUES)
    elif way == 2:
        del parent[key]
    elif way == 3 and isinstance(parent[key], int):
        parent[key] += rng.choice([-8, -1, 1, 2, 8, 1000])
    elif way == 4 and isinstance(parent, dict):
        other = rng.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]
    text = json.dumps(header)
    if way == 5:
        text = rng.choice(
            [
                text[:-1] + "," + text[1:],
                text.replace("[", "[" * 2000, 1),
                re.sub(r"\d+", "9" * 5000, text, count=1),
                text.replace("0", "NaN", 1),
                text.replace("0", "1e999", 1),
                text + " " * rng.randrange(1, 100),
                " " + text,
                text.replace('"shape"', '"shape":[1],"shape"', 1),
            ]
        )
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw + data[8 + length :]


def damage_zip(data: bytes, rng: random.Random) -> bytes:
    """A field of one of the headers of a zip archive."""
    marks = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"]
    found = [m.start() for mark in marks for m in re.finditer(re.escape(mark), data)]
    at = rng.choice(found) + rng.choice(range(4, 46, 2))
    width = rng.choice([2, 4])
    old = int.from_bytes(data[at : at + width], "little")
    value = rng.choice([*EXTREMES, old + 1, old - 1, old ^ 1, old ^ 8, old ^ 0x800, old * 2])
    raw = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return data[:at] + raw + data[at + width :]


def rebuild_zip(data: bytes, rng: random.Random) -> bytes:
    """A zip archive with right checksums, one of whose members is another or has another name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(i.filename, archive.read(i), i.compress_type) for i in archive.infolist()]
    at = rng.randrange(len(members))
    name, content, how = members[at]
    pickled = [i for i, m in enumerate(members) if m[0].endswith("data.pkl")]
    way = rng.randrange(6)
    if pickled and way < 4:
        at = pickled[0]
        name, content, how = members[at]
        members[at] = (name, damage_pickle(content, rng), how)
    elif way == 4 or not content:
        other = rng.choice([members[rng.randrange(len(members))][0], name + "x", "data.pkl", "a/"])
        members[at] = (other, content, how)
    else:
        members[at] = (name, rng.choice(ANYWHERE)(content, rng), how)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content, how in members:
            archive.writestr(name, content, how)
    return file.getvalue()


def opcodes(data: bytes) -> list[bytes]:
    """The opcodes of a pickle with their arguments."""
    starts = [position for _, _, position in pickletools.genops(data) if position is not None]
    return [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]


ODD_OPCODES = [
    b"N", b"K\x01", b"J\xff\xff\xff\xff", b"]", b"}", b")", b"(", b"0", b"1", b"2", b"R", b"b",
    b"a", b"e", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"Q", b"\x8f", b"\x90", b"\x91",
    b"\x93", b"\x94", b"\x81", b"\x92", b".", b"q\x00", b"h\x00", b"h\x01", b"r\x00\x00\x00\x08",
    b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\nsystem\n",
    b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"X\x01\x00\x00\x00x", b"G" + b"\xff" * 8,
    b"\x8a\x09" + b"\x00" * 8 + b"\x01", b"\x8a\xff" + b"\x7f" * 255, b"I" + b"9" * 5000 + b"\n",
    b"\x8b\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 7 + b"\x7f", b"X\xff\xff\xff\x7f", b"\x82\x01",
    b"ctorch._utils\n_rebuild_tensor_v3\n", b"ctorch\nuint16\n",
    b"ctorch.storage\nUntypedStorage\n",
]  # fmt: skip


def damage_pickle(data: bytes, rng: random.Random) -> bytes:
    """Opcodes of a pickle are dropped, doubled, exchanged, or have other arguments."""
    ops = opcodes(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(ops))
        way = rng.randrange(7)
        if way == 0:
            del ops[at]
        elif way == 1:
            ops.insert(at, ops[at])
        elif way == 2:
            other = rng.randrange(len(ops))
            ops[at], ops[other] = ops[other], ops[at]
        elif way == 3:
            ops.insert(at, rng.choice(ODD_OPCODES))
        elif way == 4:
            ops[at] = rng.choice(ODD_OPCODES)
        elif way == 5:
            ints = [i for i, op in enumerate(ops) if op[:1] in b"KMJ"]
            if ints:
                value = rng.choice([0, 1, 2, 3, 5, 12, 255, 2**16, 2**31 - 1, -1])
                ops[rng.choice(ints)] = b"J" + struct.pack("<i", value)
        else:
            ops[at] = ops[at][:1] + rng.choice(ANYWHERE[:3])(ops[at][1:] or b"\0", rng)
        if not ops:
            return b"."
    return b"".join(ops)


def damage_legacy(data: bytes, rng: random.Random) -> bytes:
    """The third pickle of the form before PyTorch 1.6, or one of the others."""
    file, ends = io.BytesIO(data), [0]
    for _ in range(5):
        for _ in pickletools.genops(file):
            pass
        ends.append(file.tell())
    at = rng.choice([0, 1, 2, 3, 3, 3, 3, 4, 4])
    part = damage_pickle(data[ends[at] : ends[at + 1]], rng)
    return data[: ends[at]] + part + data[ends[at + 1] :]


def damage_torch(data: bytes, rng: random.Random) -> bytes:
    """Either form."""
    if data[:2] != b"PK":
        return damage_legacy(data, rng)
    return damage_zip(data, rng) if rng.random() < 0.4 else rebuild_zip(data, rng)


def damage_any_zip(data: bytes, rng: random.Random) -> bytes:
    """Headers, or the members."""
    return damage_zip(data, rng) if rng.random() < 0.7 else rebuild_zip(data, rng)


TAR_FIELDS = [(0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100)]
TAR_FIELDS += [(257, 6), (263, 2), (345, 155), (124, 12), (124, 12), (156, 1)]


def damage_tar(data: bytes, rng: random.Random) -> bytes:
    """A field of a header, with a checksum that is right; packed archives are packed again."""
    for magic, unpack_with, pack_with in PACKERS:
        if data.startswith(magic):
            inner = damage_tar(unpack_with(data), rng)
            return pack_with(inner)
    starts, position = [], 0
    while any(data[position : position + 512]):
        starts.append(position)
        size = int(data[position + 124 : position + 136].strip(b"\0 ") or b"0", 8)
        position += 512 + (size + 511) // 512 * 512
    at = rng.choice(starts)
    offset, width = rng.choice(TAR_FIELDS)
    field = data[at + offset : at + offset + width]
    numbers = [b"%o" % (v & 0o77777777777) for v in EXTREMES] + [b"-1", b"\x80" + b"\xff" * 11]
    numbers += [b"\xff" * 12, b"\x80" + b"\0" * 10 + b"\x05", b"", b"9", b" 7 "]
    kinds = [bytes([c]) for c in b"01234567gxLKSVMDNXA\0 \xff"]
    new = rng.choice(kinds if width == 1 else [*numbers, rng.choice(ANYWHERE)(field, rng)])
    header = bytearray(data[at : at + 512])
    header[offset : offset + width] = new[:width].ljust(width, b"\0")
    if rng.random() < 0.9:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    result = data[:at] + bytes(header) + data[at + 512 :]
    if rng.random() < 0.2 and b" path=" in result:
        at = result.index(b" path=")
        return result[: at - 3] + rng.choice([b"999", b"  3", b"000", b"-12", b"abc"]) + result[at:]
    return result


def make_packers() -> list[tuple[bytes, Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    """Magic, unpacker and packer of each kind of compression."""
    import bz2
    import lzma

    return [
        (b"\x1f\x8b", gzip.decompress, functools.partial(gzip.compress, mtime=0)),
        (b"BZh", bz2.decompress, bz2.compress),
        (b"\xfd7zXZ", lzma.decompress, lzma.compress),
    ]


PACKERS = make_packers()


def damage_gguf(data: bytes, rng: random.Random) -> bytes:
    """A number of the header: counts, lengths, types, sizes, offsets."""
    head = data.index(b"\0" * 16, 200) if b"\0" * 16 in data[200:] else len(data) // 2
    at = rng.randrange(4, max(5, head))
    width = rng.choice([4, 8, 8])
    old = int.from_bytes(data[at : at + width], "little")
    value = rng.choice([*EXTREMES, *range(40), old + 1, old - 1, old + 32, old * 2])
    raw = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return data[:at] + raw + data[at + width :]


def damage_gguf_fields(data: bytes, rng: random.Random) -> bytes:
    """Keys and names: twice, or moved with what belongs to them."""
    names = [m.start() for m in re.finditer(rb"[\x01-\x20]\0{7}[a-z]", data[:1500])]
    a, b = sorted(rng.sample(names, 2)) if len(names) > 1 else (24, 40)
    way = rng.randrange(3)
    if way == 0:
        return data[:a] + data[a:b] + data[a:]
    if way == 1:
        return data[:a] + data[b:]
    count = int.from_bytes(data[16:24], "little") + rng.choice([-1, 1])
    return data[:16] + (count & 2**64 - 1).to_bytes(8, "little") + data[24:a] + data[a:b] + data[a:]


def damage_idx(data: bytes, rng: random.Random) -> bytes:
    """What is in the gzip file."""
    inner = gzip.decompress(data)
    return gzip.compress(rng.choice(ANYWHERE)(inner, rng), mtime=0)


def damage_text(data: bytes, rng: random.Random) -> bytes:
    """Lines and words of a program."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    words = lines[at].split(b" ")
    word = rng.randrange(len(words))
    odd = [
        b"",
        b"%0",
        b"%99999",
        b"(" * 3000,
        b"9" * 5000,
        b"None",
        b"ADD",
        b"float32",
        b"x",
        b"-1",
    ]
    odd += [b"CONST", b"1e400", b"nan:zz", b"'", b"#", b"=", b":=", b"()", b"(1,)", b"[[[", b"\xff"]
    words[word] = rng.choice([*odd, rng.choice(data.split())])
    way = rng.randrange(4)
    if way <= 1:
        lines[at] = b" ".join(words)
    elif way == 2:
        lines.insert(rng.randrange(len(lines)), lines[at])
    else:
        del lines[at]
    return b"\n".join(lines)


STRUCTURED: dict[str, list[Callable[[bytes, random.Random], bytes]]] = {
    "safetensors": [damage_json],
    "torch": [damage_torch],
    "zip": [damage_any_zip],
    "tar": [damage_tar],
    "gguf": [damage_gguf, damage_gguf, damage_gguf_fields],
    "idx": [damage_idx],
    "text": [damage_text],
}


def damage(kind: str, data: bytes, rng: random.Random) -> bytes:
    """The file with one to three changes."""
    ways = [*ANYWHERE, *STRUCTURED[kind] * 8]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        try:
            data = rng.choice(ways)(data, rng) or b"\0"
        except Exception:
            # What is damaged already may have no parts that could be changed.
            data = flip_bits(data, rng)
    return data
