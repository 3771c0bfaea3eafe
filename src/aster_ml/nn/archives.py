"""Archives whose members are tensors: tar, zip, and the checkpoints that PyTorch writes.

Members that are stored as they are become views of the file; compressed ones are unpacked into
memory. A checkpoint is a pickle: only the few names that describe tensors are resolved, everything
else becomes an inert placeholder, so loading a file never runs what is in it.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
import tarfile
import zipfile
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import FormatError
from aster_ml.helpers import prod
from aster_ml.nn.fileio import TensorIO, accept_filename, byte_count, read_bytes, view_bytes

STORAGES = {
    "DoubleStorage": dtypes.float64,
    "FloatStorage": dtypes.float32,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "LongStorage": dtypes.int64,
    "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16,
    "CharStorage": dtypes.int8,
    "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool,
    "Float8_e4m3fnStorage": dtypes.fp8e4m3,
    "Float8_e5m2Storage": dtypes.fp8e5m2,
}
TORCH_MAGIC = 0x1950A86A20F9469CFC6C


@accept_filename
def tar_extract(t: Tensor) -> dict[str, Tensor]:
    """The regular files of a tar archive, by name, as views of it; compressed ones are unpacked.

    Raises: FormatError when it is no tar archive.
    """
    try:
        with tarfile.open(fileobj=io.BufferedReader(TensorIO(t)), mode="r:*") as tar:
            plain = isinstance(tar.fileobj, io.BufferedReader)
            members = {}
            for member in tar:
                if not member.isreg():
                    continue
                if plain and not member.issparse():
                    members[member.name] = take_bytes(t, member.offset_data, member.size)
                    continue
                file = tar.extractfile(member)
                assert file is not None, "a regular member has contents"
                members[member.name] = from_bytes(file.read())
            return members
    except (tarfile.TarError, EOFError) as error:
        raise FormatError(f"tar: {error} (in {t.shape[0]} bytes)") from error


@accept_filename
def zip_extract(t: Tensor) -> dict[str, Tensor]:
    """The files of a zip archive, by name; stored ones as views of it, others unpacked.

    Raises: FormatError when it is no zip archive or a member is damaged.
    """
    nbytes = byte_count(t, "zip")
    members = {}
    try:
        with zipfile.ZipFile(io.BufferedReader(TensorIO(t))) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                if info.compress_type != zipfile.ZIP_STORED:
                    members[info.filename] = from_bytes(archive.read(info))
                    continue
                # The local header repeats the name and has extra fields of its own length.
                header = read_bytes(t, info.header_offset, min(info.header_offset + 30, nbytes))
                if len(header) < 30 or header[:4] != b"PK\x03\x04":
                    raise FormatError(
                        f"zip: member {info.filename!r}: no local header at {info.header_offset}"
                    )
                start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
                if start + info.file_size > nbytes:
                    raise FormatError(
                        f"zip: member {info.filename!r} ends at {start + info.file_size}, the "
                        f"file has {nbytes} bytes"
                    )
                members[info.filename] = take_bytes(t, start, info.file_size)
    except (zipfile.BadZipFile, EOFError) as error:
        raise FormatError(f"zip: {error} (in {nbytes} bytes)") from error
    return members


def take_bytes(t: Tensor, start: int, size: int) -> Tensor:
    """`size` bytes from `start` as a view."""
    return view_bytes(t, start, start + size, dtypes.uint8, (size,))


def from_bytes(data: bytes) -> Tensor:
    """Bytes in memory as a uint8 tensor."""
    return Tensor(data, dtype=dtypes.uint8) if data else Tensor.empty(0, dtype=dtypes.uint8)


class Placeholder:
    """Stands for an object of a pickle that describes no tensor; keeps its parts, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("entries", []).append((key, value))

    def append(self, value: Any) -> None:
        """Keep an element of what claims to be a list."""
        self.__dict__.setdefault("elements", []).append(value)

    def extend(self, values: Any) -> None:
        """Keep several elements."""
        for value in values:
            self.append(value)


class Storage:
    """One flat run of elements: where its bytes are, once that is known."""

    def __init__(self, dtype: Any, key: str, count: int) -> None:
        self.dtype, self.key, self.count = dtype, key, count
        self.view: Tensor | None = None


class LazyTensor:
    """A tensor of a checkpoint before its storage has been found."""

    def __init__(
        self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> None:
        self.storage, self.offset = storage, offset
        self.size, self.stride = tuple(size), tuple(stride)

    def resolve(self) -> Tensor:
        """The tensor as a view of its storage.

        Raises: FormatError when it reaches past its storage, or its elements lie in no order that
        reshape and permute can express.
        """
        what = f"torch checkpoint: tensor of size {list(self.size)}, stride {list(self.stride)}"
        flat = self.storage.view
        if flat is None:
            raise FormatError(f"{what}: its storage {self.storage.key!r} is not in the file")
        if prod(self.size) == 0:
            return Tensor.empty(*self.size, dtype=self.storage.dtype, device=flat.device)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride))
        if min(self.offset, *self.stride, 0) < 0 or last >= self.storage.count:
            raise FormatError(
                f"{what}: element {last} is past the end of a storage of {self.storage.count}"
            )
        # Axes from the farthest apart to the nearest; repeated ones (stride 0) are expanded.
        axes = [i for i, (n, s) in enumerate(zip(self.size, self.stride)) if n > 1 and s > 0]
        axes.sort(key=lambda i: -self.stride[i])
        dense, step = True, 1
        for i in reversed(axes):
            dense, step = dense and self.stride[i] == step, step * self.size[i]
        if not dense:
            raise FormatError(
                f"{what}: its elements do not lie densely; save tensor.contiguous() instead"
            )
        view = flat.shrink(((self.offset, self.offset + step),))
        view = view.reshape([self.size[i] for i in axes])
        order = [axes.index(i) for i in sorted(axes)]
        view = view.permute(order) if len(order) > 1 else view
        shape = [self.size[i] if i in axes else 1 for i in range(len(self.size))]
        return view.reshape(shape).expand(self.size)


def rebuild_tensor(
    storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> LazyTensor:
    """What `torch._utils._rebuild_tensor_v2` and its elder are to us."""
    return LazyTensor(storage, offset, size, stride)


def rebuild_parameter(data: Any, *_: Any) -> Any:
    """A parameter is its tensor."""
    return data


RESOLVED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    ("torch", "Size"): tuple,
}


class CheckpointUnpickler(pickle.Unpickler):
    """Reads a checkpoint's pickle; resolves the names of RESOLVED and of storages, no others."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for."""
        if module in ("torch", "torch.storage", "torch.cuda") and name in STORAGES:
            return STORAGES[name]
        return RESOLVED.get((module, name), Placeholder)

    def persistent_load(self, pid: Any) -> Any:
        """The storage that a persistent id names."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise FormatError(f"torch checkpoint: persistent id {pid!r}, a storage is wanted")
        dtype, key, count = pid[1], str(pid[2]), int(pid[4])
        if dtype not in STORAGES.values():
            raise FormatError(f"torch checkpoint: storage {key!r} has an unknown element type")
        return self.storages.setdefault(key, Storage(dtype, key, count))


def resolve_tensors(value: Any) -> Any:
    """The unpickled value with every tensor made a view."""
    if isinstance(value, LazyTensor):
        return value.resolve()
    if isinstance(value, dict):
        return {key: resolve_tensors(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([resolve_tensors(entry) for entry in value])
    return value


@accept_filename
def torch_load(t: Tensor) -> dict[str, Tensor]:
    """What `torch.save` wrote, tensors as views of the file, in the structure they were saved in.

    Reads the zip form of PyTorch 1.6 and later and the plain pickles before it. Objects that are
    neither tensors nor built-in containers become placeholders; nothing of the file is run.

    Raises: FormatError when it is neither, or does not add up.
    """
    nbytes = byte_count(t, "torch checkpoint")
    if nbytes >= 4 and read_bytes(t, 0, 4) == b"PK\x03\x04":
        value: dict[str, Tensor] = load_zip_checkpoint(t)
    else:
        value = load_plain_checkpoint(t, nbytes)
    return value


def unpickle(unpickler: pickle.Unpickler, what: str) -> Any:
    """The next object of a pickle; damage is a FormatError."""
    try:
        return unpickler.load()
    except FormatError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FormatError(
            f"torch checkpoint: {what} is damaged or of an unknown kind: {error!r}"
        ) from error


def load_zip_checkpoint(t: Tensor) -> Any:
    """The form since PyTorch 1.6: `data.pkl` and one file a storage."""
    members = zip_extract(t)
    pickles = [name for name in members if name.endswith("/data.pkl") or name == "data.pkl"]
    if not pickles:
        raise FormatError(
            f"torch checkpoint: a zip archive without data.pkl; it has {', '.join(members)[:200]}"
        )
    prefix = pickles[0][: -len("data.pkl")]
    order = members.get(prefix + "byteorder")
    if order is not None and bytes(order.data()) != b"little":
        raise FormatError("torch checkpoint: saved on a big-endian machine, little is wanted")
    unpickler = CheckpointUnpickler(io.BytesIO(bytes(members[pickles[0]].data())))
    value = unpickle(unpickler, pickles[0])
    for key, storage in unpickler.storages.items():
        data = members.get(f"{prefix}data/{key}")
        if data is not None:
            storage.view = storage_view(storage, data, 0)
    return resolve_tensors(value)


def storage_view(storage: Storage, t: Tensor, start: int) -> Tensor:
    """The storage's elements, from byte `start` of t."""
    stop = start + storage.count * storage.dtype.itemsize
    if stop > int(t.shape[0]):
        raise FormatError(
            f"torch checkpoint: storage {storage.key!r} of {storage.count} elements needs bytes "
            f"{start} to {stop}, there are {t.shape[0]}: the file is truncated"
        )
    return view_bytes(t, start, stop, storage.dtype, (storage.count,))


def load_plain_checkpoint(t: Tensor, nbytes: int) -> Any:
    """The form before PyTorch 1.6: five pickles, then each storage after its count of elements."""
    file = io.BufferedReader(TensorIO(t))
    magic = unpickle(CheckpointUnpickler(file), "its start")
    if magic != TORCH_MAGIC:
        raise FormatError(
            f"torch checkpoint: neither a zip archive nor the older form; it begins with "
            f"{read_bytes(t, 0, min(nbytes, 16))!r}"
        )
    for what in ("the version", "the platform"):
        unpickle(CheckpointUnpickler(file), what)
    unpickler = CheckpointUnpickler(file)
    value = unpickle(unpickler, "the object")
    keys = unpickle(CheckpointUnpickler(file), "the list of storages")
    position = file.tell()
    for key in keys:
        storage = unpickler.storages.get(str(key))
        if storage is None:
            raise FormatError(f"torch checkpoint: storage {key!r} belongs to no tensor")
        storage.view = storage_view(storage, t, position + 8)
        position += 8 + storage.count * storage.dtype.itemsize
    return resolve_tensors(value)
