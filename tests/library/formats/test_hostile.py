"""Files made to take memory or time, or to be taken for what they are not: each is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pathlib
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.config import Context
from aster_ml.errors import FormatError
from aster_ml.nn import datasets
from aster_ml.nn.state import gguf_load, safe_load, tar_extract, torch_load, zip_extract
from aster_ml.unpacking import FREE_NBYTES

ZEROS_NBYTES = 100 << 20
SECONDS = 30


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Every test here takes little memory and time."""
    start = time.monotonic()
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * FREE_NBYTES + ZEROS_NBYTES
    assert time.monotonic() - start < SECONDS


def packed_zeros(compressor: Any, nbytes: int = ZEROS_NBYTES) -> bytes:
    """Many zeros, packed."""
    piece = bytes(1 << 20)
    return b"".join([compressor.compress(piece) for _ in range(nbytes >> 20)]) + compressor.flush()


def gzip_zeros(nbytes: int = ZEROS_NBYTES) -> bytes:
    """A gzip file of many zeros."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packer:
        for _ in range(nbytes >> 20):
            packer.write(bytes(1 << 20))
    return file.getvalue()


def tar_start(size: int) -> bytes:
    """The header of a member of that size."""
    info = tarfile.TarInfo("zeros")
    info.size = size
    return info.tobuf()


@pytest.mark.parametrize(
    "pack", [gzip_zeros, lambda: packed_zeros(bz2.BZ2Compressor()), lambda: packed_zeros(
        lzma.LZMACompressor(preset=0)
    )]
)  # fmt: skip
def test_tar_bombs(tmp_path: pathlib.Path, pack: Callable[[], bytes]) -> None:
    (tmp_path / "x.tar").write_bytes(pack())
    with pytest.raises(FormatError, match=r"would take .* bytes of memory or more, the limit is"):
        tar_extract(tmp_path / "x.tar")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("read", [zip_extract, torch_load])
def test_zip_bombs(
    tmp_path: pathlib.Path, method: int, read: Callable[[pathlib.Path], Any]
) -> None:
    with (
        zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive,
        archive.open("a/data.pkl", "w") as member,
    ):
        for _ in range(ZEROS_NBYTES >> 20):
            member.write(bytes(1 << 20))
    with pytest.raises(FormatError, match=r"would take .* bytes of memory or more, the limit is"):
        read(tmp_path / "x.zip")


def test_the_limit_can_be_raised_and_lifted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip_zeros(70 << 20))
    with pytest.raises(FormatError, match="LOAD_LIMIT=32"):
        datasets.unzip(path)
    for limit in (1000, 0):
        with Context(LOAD_LIMIT=limit):
            assert len(datasets.unzip(path)) == 70 << 20


def test_many_members_of_few_bytes(tmp_path: pathlib.Path) -> None:
    # All of them are one member of the archive, and the directory has it again and again.
    name, data = b"x", bytes(1 << 20)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, len(data), len(data), 1, 0)
    start = local + name + data
    row = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, len(data), len(data), 1, 0, 0, 0, 0, 0, 0
    )
    rows = b"".join([row + bytes([65 + i]) for i in range(20)])
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 20, 20, len(rows), len(start), 0)
    (tmp_path / "x.zip").write_bytes(start + rows + end)
    with pytest.raises(FormatError, match="its header has the name"):
        zip_extract(tmp_path / "x.zip")


def zip_of(**flags: int) -> bytes:
    """A zip archive of one stored member, the fields of its two headers changed."""
    data, name = b"0123456789", b"name"
    value = {"flags": 0, "method": 0, "crc": 0xA684C7C6, "packed": 10, "size": 10, "second": 0}
    value |= {"local_size": flags.get("size", 10), "offset": 0, "count": 1, "gap": 0} | flags
    local = struct.pack(
        "<4s5H3I2H", b"PK\3\4", 20, value["flags"], value["method"], 0, 0, value["crc"],
        value["packed"], value["local_size"], len(name), 0,
    )  # fmt: skip
    row = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, value["flags"], value["method"], 0, 0, value["crc"],
        value["packed"], value["size"], len(name), 0, 0, 0, 0, 0, value["offset"],
    )  # fmt: skip
    rows = (row + name) * (1 + value["second"])
    start = local + name + data + b"PK\3\4" * value["gap"]
    count = value["count"] + value["second"]
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(rows), len(start), 0)
    return start + rows + end


def test_the_hand_made_archive_is_right(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.zip").write_bytes(zip_of())
    assert bytes(zip_extract(tmp_path / "x.zip")["name"].data()) == b"0123456789"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"crc": 7}, r"have the CRC a684c7c6, 00000007 is wanted: it is damaged"),
        ({"packed": 9}, "stored as it is, in 9 bytes and not 10"),
        ({"size": 9}, "stored as it is, in 10 bytes and not 9"),
        ({"packed": 9, "size": 9, "local_size": 9}, r"have the CRC [0-9a-f]{8}, a684c7c6 is"),
        ({"local_size": 9}, r"says method 0, CRC a684c7c6, 10 bytes, 9 unpacked; the directory"),
        ({"packed": 2**31, "size": 2**31}, r"it ends at 2147483682, the directory begins at 44"),
        ({"flags": 1}, "it is encrypted"),
        ({"flags": 0x40}, "it is encrypted"),
        ({"method": 99}, "packed by method 99; known are 0 stored, 8 deflate"),
        ({"offset": 1}, "no local header at 1"),
        ({"second": 1}, "the name comes twice"),
        ({"count": 2}, "no member at|takes 46 bytes|claims 2 members"),
        ({"count": 0}, "bytes more than members"),
    ],
)
def test_lying_archives(tmp_path: pathlib.Path, flags: dict[str, int], message: str) -> None:
    (tmp_path / "x.zip").write_bytes(zip_of(**flags))
    with pytest.raises(FormatError, match=message):
        zip_extract(tmp_path / "x.zip")


def damaged_tar(**changes: Any) -> bytes:
    """An archive of one member, its header changed and summed up anew."""
    info = tarfile.TarInfo("name")
    info.size = 10
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    places = {"size": (124, 12), "kind": (156, 1), "magic": (257, 6), "mode": (100, 8)}
    for key, value in changes.items():
        begin, width = places[key]
        block[begin : begin + width] = value.ljust(width, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + b"0123456789".ljust(512, b"\0") + bytes(1024)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (damaged_tar(size=b"77777777777"), "a member of 8589934591 bytes begins at 512"),
        (damaged_tar(size=b"\x80" + b"\xff" * 11), "a member of 3094850098213450687247810"),
        (damaged_tar(size=b"\xff" * 12), "its size is"),
        (damaged_tar(size=b"-1"), "its size is"),
        (damaged_tar(mode=b"99"), "its mode is"),
        (damaged_tar(kind=b"S"), "a sparse file"),
        (damaged_tar(kind=b"?"), "of the unknown kind"),
        (damaged_tar(magic=b"UStar"), "of the unknown form"),
        (damaged_tar(kind=b"L"), "a name of 10 bytes without its end"),
        (damaged_tar(kind=b"x"), "its record's length is"),
        (damaged_tar()[:1024], "a header is wanted at 1024"),
        (damaged_tar()[:700], "there are 700 bytes: no tar archive, or it is truncated"),
        (damaged_tar()[:1024] * 2 + bytes(1024), "the name 'name' comes twice"),
        (damaged_tar()[:1024] + bytes(512) + damaged_tar(), "is all zeros, and more follows"),
        (b"x" + damaged_tar()[1:], "its checksum is"),
    ],
)
def test_damaged_tars(tmp_path: pathlib.Path, data: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(tarfile.ReadError, match=message):
        tar_extract(tmp_path / "x.tar")


def test_an_archive_of_one_member_is_right(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.tar").write_bytes(damaged_tar())
    assert bytes(tar_extract(tmp_path / "x.tar")["name"].data()) == b"0123456789"


def test_a_global_header_of_many_records(tmp_path: pathlib.Path) -> None:
    headers = {f"k{i}": "v" for i in range(5_000)}
    with tarfile.open(
        tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT, pax_headers=headers
    ) as archive:
        for i in range(500):
            archive.addfile(tarfile.TarInfo(f"{i}"))
    assert list(tar_extract(tmp_path / "x.tar")) == [f"{i}" for i in range(500)]


def test_local_headers_that_claim_what_follows(tmp_path: pathlib.Path) -> None:
    count, extra = 5_000, 0xFFFF
    starts, rows = b"", b""
    for i in range(count):
        name = b"%06d" % i
        rows += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, len(starts)
        )
        rows += name
        starts += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 6, extra) + name
    starts += bytes(extra + 30)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(rows), len(starts), 0)
    (tmp_path / "x.zip").write_bytes(starts + rows + end)
    with pytest.raises(FormatError, match=r"an extra field is cut short|inside of '000000'"):
        zip_extract(tmp_path / "x.zip")


def gguf_strings(count: int, text: bytes = b"") -> bytes:
    """A GGUF file whose only value is a list of strings."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    return head + struct.pack("<IIQ", 9, 8, count) + (struct.pack("<Q", len(text)) + text) * count


def test_many_empty_strings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf_strings(50_000))
    metadata, _ = gguf_load(tmp_path / "x.gguf")
    assert metadata["k"] == [""] * 50_000


def gguf_nest(depth: int) -> bytes:
    """A GGUF file of arrays in arrays."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    return head + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)


def test_arrays_in_arrays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf_nest(7))
    assert gguf_load(tmp_path / "x.gguf")[0] == {"k": [[[[[[[[]]]]]]]]}
    (tmp_path / "x.gguf").write_bytes(gguf_nest(100_000))
    with pytest.raises(FormatError, match="more than 8 deep"):
        gguf_load(tmp_path / "x.gguf")


def gguf_of(infos: list[tuple[bytes, int, int]], data: bytes, values: int = 0) -> bytes:
    """A GGUF file of float tensors by name, size and offset."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), values)
    head += (struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 7, 1 + values // 3)) * values
    for name, size, offset in infos:
        head += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, size, 0, offset)
    return head + bytes(-len(head) % 32) + data


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (gguf_of([(b"a", 16, 0), (b"b", 8, 32)], bytes(64)), "'b' begins at .* overlaps 'a'"),
        (gguf_of([(b"a", 8, 0), (b"b", 8, 8)], bytes(64)), "'b': it begins at 8 of the data"),
        (gguf_of([(b"a", 8, 2**63)], bytes(64)), "'a': shape .8. of F32 needs bytes"),
        (gguf_of([(b"a", 2**62, 0)], bytes(64)), "is larger than any memory"),
        (gguf_of([(b"\xff", 8, 0)], bytes(64)), "which is no UTF-8"),
        (gguf_of([], b"", 2), "the key 'k' comes twice"),
        (gguf_of([], b"", 1).replace(b"\x07\0\0\0\1", b"\x07\0\0\0\2"), "a truth value of 2"),
        (gguf_strings(1, b"x")[:-1], "takes 1 bytes at"),
    ],
)
def test_lying_gguf_files(tmp_path: pathlib.Path, raw: bytes, message: str) -> None:
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises(FormatError, match=message):
        gguf_load(tmp_path / "x.gguf")


def safetensors_of(text: str, data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw + data


ENTRY = '{"dtype":"U8","shape":[4],"data_offsets":'


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (safetensors_of(f'{{"a":{ENTRY}[0,4]}},"b":{ENTRY}[8,12]}}}}', bytes(12)), "belong"),
        (safetensors_of(f'{{"a":{ENTRY}[0,4]}}}}', bytes(9)), "the data has 9 bytes"),
        (safetensors_of("{}", b"x"), "the data has 1 bytes"),
        (safetensors_of(f'{{"a":{ENTRY}[0,4]}},"a":{ENTRY}[0,4]}}}}', bytes(4)), "'a' twice"),
        (safetensors_of('{"a":' + "9" * 5000 + "}"), "a number of 5000 digits"),
        (safetensors_of('{"a":' + "[" * 100_000), "is not JSON"),
        (safetensors_of('{"a":NaN}'), "has NaN"),
        (safetensors_of('{"a":' + ENTRY.replace("4", "9," * 50_000 + "1") + "[0,4]}}", bytes(4)),
         "50001 axes, at most 64 are wanted"),
        (safetensors_of('{"a":' + ENTRY.replace("4", f"{2**60},{2**60}") + "[0,4]}}", bytes(4)),
         "is larger than any memory"),
    ],
)  # fmt: skip
def test_lying_safetensors_files(tmp_path: pathlib.Path, raw: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(FormatError, match=message) as caught:
        safe_load(tmp_path / "x")
    assert len(str(caught.value)) < 1000


def test_headers_of_many_objects(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(safetensors_of('{"a":[' + '{"":0},' * 250_000 + "0]}"))
    with Context(LOAD_LIMIT=1), pytest.raises(FormatError, match="the limit is"):
        safe_load(tmp_path / "x")


def test_idx_files_of_odd_shapes(tmp_path: pathlib.Path) -> None:
    for data, message in (
        (b"\0\0\x08\xff" + bytes(4 * 255), "255 axes"),
        (b"\0\0\x08\x02\0\0", "2 axes in 6 bytes"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "is larger than any memory"),
    ):
        with pytest.raises(FormatError, match=message):
            datasets.parse_idx(data, "x")


READERS = [safe_load, torch_load, zip_extract, tar_extract, gguf_load]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
def test_what_is_no_plain_file(tmp_path: pathlib.Path, read: Callable[[Any], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(FormatError, match=r"a file is wanted|a folder without a safetensors"):
            read(path)
    for name in (tmp_path / "absent", "x\0y", "x" * 5000):
        with pytest.raises(FormatError, match="no file"):
            read(name)


@pytest.mark.parametrize("read", READERS)
def test_files_of_one_byte_again_and_again(
    tmp_path: pathlib.Path, read: Callable[[Any], Any]
) -> None:
    path = tmp_path / "x"
    for byte in (b"\0", b"P", b"{", b"\x80", b"\x1f", b"G", b"]"):
        for count in (1, 2, 7, 8, 9, 22, 30, 511, 512, 513, 70_000):
            if read is tar_extract and byte == b"\0" and count >= 512:
                # The end mark of an archive without members.
                assert read(Tensor(bytes(count))) == {}
                continue
            path.write_bytes(byte * count)
            with pytest.raises(FormatError, match=str(path)):
                read(path)
            with pytest.raises(FormatError):
                read(Tensor(np.frombuffer(byte * count, np.uint8)))
