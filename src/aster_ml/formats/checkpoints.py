"""Checkpoints that PyTorch writes, their tensors as views of the file.

Two forms: a zip archive with a pickle and one member a storage (since PyTorch 1.6), and five
pickles with the storages behind them. The pickles are read as data by `formats.pickles`, which runs
nothing of a file; what they say of tensors is checked here, number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import FormatError
from aster_ml.formats.fileio import (
    TENSOR_NBYTES,
    FileBytes,
    accept_filename,
    count_elements,
    cursor_over,
    show_value,
    view_bytes,
)
from aster_ml.formats.pickles import PLAIN_MAKERS, PickleReader, Placeholder
from aster_ml.formats.zips import STORED, ZipMember, unpack_member, zip_members

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
    "UntypedStorage": dtypes.uint8,
}
STORAGE_MODULES = ("torch", "torch.storage", "torch.cuda")
# The dtypes that have no storage of their own name.
NAMED_DTYPES = {
    "torch.uint16": dtypes.uint16,
    "torch.uint32": dtypes.uint32,
    "torch.uint64": dtypes.uint64,
    "torch.float8_e4m3fn": dtypes.fp8e4m3,
    "torch.float8_e5m2": dtypes.fp8e5m2,
}
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
WHERE = "torch checkpoint"
MAX_DIMS = 64
# What makes tensors of kinds that Aster has not, and what to save instead.
REFUSED = {
    "torch._utils._rebuild_sparse_tensor": ("a sparse tensor", "tensor.to_dense()"),
    "torch._utils._rebuild_sparse_csr_tensor": ("a sparse tensor", "tensor.to_dense()"),
    "torch._utils._rebuild_nested_tensor": ("a nested tensor", "its tensors"),
    "torch._utils._rebuild_qtensor": ("a quantised tensor", "tensor.dequantize()"),
    "torch._utils._rebuild_meta_tensor_no_storage": ("a meta tensor", "one with values"),
    "torch._utils._rebuild_wrapper_subclass": ("a tensor subclass", "a plain tensor"),
    "torch._utils._rebuild_device_tensor_from_numpy": ("a tensor of another device", "a CPU one"),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": (
        "a tensor of another device", "a CPU one",
    ),
    "torch._utils._rebuild_xla_tensor": ("a tensor of another device", "a CPU one"),
}  # fmt: skip
# Element types that PyTorch names and Aster has not.
COMPLEX = ("ComplexFloatStorage", "ComplexDoubleStorage")
# The parts of a state that only a module has.
MODULE_PARTS = frozenset({"_parameters", "_modules"})


class Storage:
    """One flat run of elements: where its bytes are, once that is known."""

    __slots__ = ("count", "dtype", "key", "view")

    def __init__(self, dtype: Any, key: str, count: int) -> None:
        self.dtype, self.key, self.count = dtype, key, count
        self.view: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return self.count * int(self.dtype.itemsize)


class Checkpoint:
    """Makers of what the pickles of one file may make: storages and tensors that are views of them.

    `find_storage` gives a storage's bytes; None where it is not known yet, and tensors are left
    out. Persistent ids have five `parts` in zip files, six in the older form.
    """

    def __init__(
        self, file: FileBytes, find_storage: Callable[[Storage], Tensor] | None, parts: int
    ) -> None:
        self.file, self.find_storage, self.parts = file, find_storage, parts
        self.storages: dict[str, Storage] = {}
        # By what they are given out as; each is kept alive by its storage.
        self.of_view: dict[int, Storage] = {}
        # What makes tensors, also those that have attributes or a class of their own.
        self.makers: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor_v2": self.tensor_v2,
            "torch._utils._rebuild_tensor_v3": self.tensor_v3,
            "torch._utils._rebuild_parameter": self.parameter,
            **{name: refusal(*what) for name, what in REFUSED.items()},
        }

    def reader(self, cursor: Any) -> PickleReader:
        """Reads pickles that have tensors in them."""
        makers = (
            PLAIN_MAKERS
            | self.makers
            | {
                "torch._utils._rebuild_tensor": self.tensor,
                "torch._utils._rebuild_parameter_with_state": self.parameter,
                "torch._tensor._rebuild_from_type_v2": self.from_type,
                "torch.Size": self.size,
            }
        )
        return PickleReader(cursor, makers, self.storage)

    def storage(self, pid: Any) -> Storage | Tensor:
        """The storage that a persistent id names: its elements, once it is known where they are."""
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":
            raise whole_module(pid[1])
        if not isinstance(pid, tuple) or len(pid) != self.parts or pid[0] != "storage":
            raise FormatError(f"persistent id {show_value(pid)}, a storage is wanted", WHERE)
        kind, key, count = pid[1], pid[2], pid[4]
        name = kind.name if isinstance(kind, Placeholder) and kind.args is None else ""
        module, _, short = name.rpartition(".")
        dtype = STORAGES.get(short) if module in STORAGE_MODULES else None
        if not isinstance(key, (str, int)) or not is_size(count):
            raise FormatError(
                f"storage {show_value(key)} of {show_value(count)} elements; a name and a number "
                "are wanted",
                WHERE,
            )
        if short in COMPLEX:
            raise FormatError(
                f"storage {show_value(key)} has complex numbers; save torch.view_as_real(tensor) "
                "instead",
                WHERE,
            )
        if dtype is None:
            raise FormatError(
                f"storage {show_value(key)} has the unknown element type {show_value(name)}", WHERE
            )
        if len(pid) > 5 and pid[5] is not None:
            raise FormatError(
                f"storage {show_value(key)} is a view of another, as PyTorch wrote them before "
                "0.4; load and save it with a newer one",
                WHERE,
            )
        found = self.storages.get(str(key))
        if found is None:
            found = self.storages[str(key)] = Storage(dtype, str(key), count)
            if self.find_storage is not None:
                found.view = self.find_storage(found)
                self.of_view[id(found.view)] = found
        if found.dtype is not dtype or found.count != count:
            raise FormatError(
                f"storage {show_value(key)} is {found.count} of {found.dtype.name}, and "
                f"{show_value(count)} of {dtype.name} elsewhere",
                WHERE,
            )
        return found if found.view is None else found.view

    def storage_of(self, value: Any) -> Storage:
        """The storage that `storage` gave `value` for."""
        found = value if isinstance(value, Storage) else self.of_view.get(id(value))
        if found is None:
            raise FormatError(f"a tensor of {show_value(value)}, a storage is wanted", WHERE)
        return found

    def tensor(self, data: Any, offset: Any, size: Any, stride: Any) -> Tensor | None:
        """Makes the tensor of `_rebuild_tensor`."""
        storage = self.storage_of(data)
        self.file.allowance.take(TENSOR_NBYTES, WHERE)
        if storage.view is None:
            return None
        return tensor_of(storage.view, storage, offset, size, stride)

    def tensor_v2(
        self,
        data: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        metadata: Any = None,
    ) -> Tensor | None:
        """Makes the tensor of `_rebuild_tensor_v2`; `metadata` may say that signs are turned."""
        if not isinstance(requires_grad, bool):
            raise TypeError(f"requires_grad is {show_value(requires_grad)}")
        if metadata is not None and not isinstance(metadata, dict):
            raise TypeError(f"what is said of a tensor is {show_value(metadata)}")
        flags = {key for key, value in (metadata or {}).items() if value is not False}
        if not flags <= {"neg"}:
            raise FormatError(
                f"a tensor marked {show_value(sorted(map(str, flags)))}; save tensor.resolve_conj()"
                " instead",
                WHERE,
            )
        found = self.tensor(data, offset, size, stride)
        return -found.to("CPU") if flags and found is not None else found

    def tensor_v3(
        self,
        data: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        dtype: Any,
        metadata: Any = None,
    ) -> Tensor | None:
        """Makes the tensor of `_rebuild_tensor_v3`: a tensor of bytes under another dtype."""
        storage, name = self.storage_of(data), dtype.name if isinstance(dtype, Placeholder) else ""
        if name not in NAMED_DTYPES:
            raise FormatError(
                f"a tensor of dtype {show_value(name)}, one of {', '.join(NAMED_DTYPES)} is wanted",
                WHERE,
            )
        other = NAMED_DTYPES[name]
        if storage.nbytes % other.itemsize:
            raise FormatError(
                f"storage {show_value(storage.key)} has {storage.nbytes} bytes, no whole number "
                f"of {other.name}",
                WHERE,
            )
        same = Storage(other, storage.key, storage.nbytes // other.itemsize)
        if storage.view is not None:
            same.view = storage.view.bitcast(other) if storage.count else storage.view.cast(other)
        return self.tensor_v2(same, offset, size, stride, requires_grad, hooks, metadata)

    def from_type(self, maker: Any, kind: Any, args: Any, state: Any) -> Any:
        """A tensor with attributes, or of a class of its own: the tensor."""
        name = maker.name if isinstance(maker, Placeholder) and maker.args is None else ""
        if name not in self.makers or not isinstance(args, tuple):
            raise FormatError(f"a tensor made by {show_value(name)}, which is unknown", WHERE)
        return self.makers[name](*args)

    def parameter(self, data: Any, requires_grad: Any, hooks: Any = None, state: Any = None) -> Any:
        """A parameter is its tensor."""
        return data

    def size(self, values: Any = ()) -> tuple[int, ...]:
        """The shape of a tensor."""
        if not isinstance(values, (list, tuple)) or not all([is_size(v) for v in values]):
            raise FormatError(f"torch.Size of {show_value(values)}", WHERE)
        return tuple(values)


def refusal(kind: str, instead: str) -> Callable[..., Any]:
    """Stands for a maker of tensors that are none here, and refuses them by name."""

    def refuse(*args: Any) -> Any:
        raise FormatError(f"it holds {kind}; save {instead} instead", WHERE)

    return refuse


def whole_module(kind: Any) -> FormatError:
    """The error for a module that was saved with its class."""
    name = kind.name if isinstance(kind, Placeholder) else kind
    return FormatError(
        f"it holds the whole module {show_value(name)}, whose code is not in the file; save "
        "module.state_dict() instead",
        WHERE,
    )


def check_no_module(value: Any) -> None:
    """Raises FormatError, which names its class, where a whole module was saved."""
    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Placeholder):
            state = item.state
            if isinstance(state, dict) and state.keys() >= MODULE_PARTS:
                raise whole_module(item)
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, (list, tuple)):
            pending += item


def is_size(value: Any) -> bool:
    """Whether a value is a whole number of at least 0 that an address can reach."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def tensor_of(flat: Tensor, storage: Storage, offset: Any, size: Any, stride: Any) -> Tensor:
    """The tensor of these numbers as a view of its storage.

    Elements that do not lie densely (`x[:, ::2]`) are gathered on the CPU when they are used.

    Raises: FormatError when it reaches past its storage.
    """
    place = f"{WHERE}: tensor of size {show_value(size)}, stride {show_value(stride)}"
    for what in (size, stride):
        if not isinstance(what, tuple) or len(what) > MAX_DIMS or not all(map(is_size, what)):
            raise FormatError("tuples of numbers of at least 0 are wanted", place)
    if len(size) != len(stride) or not is_size(offset):
        raise FormatError("as many strides as sizes, and a number as offset, are wanted", place)
    count = count_elements(size, place)
    if count == 0:
        return Tensor.empty(*size, dtype=storage.dtype, device=flat.device)
    last = offset + sum([(n - 1) * s for n, s in zip(size, stride)])
    if last >= storage.count:
        raise FormatError(f"element {last} is past the end of a storage of {storage.count}", place)
    # Axes from the farthest apart to the nearest; repeated ones (stride 0) are expanded.
    axes = [i for i, (n, s) in enumerate(zip(size, stride)) if n > 1 and s > 0]
    axes.sort(key=lambda i: -stride[i])
    dense, step = True, 1
    for i in reversed(axes):
        dense, step = dense and stride[i] == step, step * size[i]
    if not dense:
        return strided(flat.shrink(((offset, last + 1),)), size, stride)
    view = flat.shrink(((offset, offset + step),))
    view = view.reshape([size[i] for i in axes])
    order = [axes.index(i) for i in sorted(axes)]
    view = view.permute(order) if len(order) > 1 else view
    shape = [size[i] if i in axes else 1 for i in range(len(size))]
    return view.reshape(shape).expand(size)


def strided(flat: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Elements by steps along each axis, gathered from a copy when they are used."""
    shape = [n if step else 1 for n, step in zip(size, stride)]
    place = Tensor.zeros(*[1] * len(size), dtype=dtypes.int64, device="CPU")
    for i, (n, step) in enumerate(zip(shape, stride)):
        along = [n if j == i else 1 for j in range(len(size))]
        place = place + Tensor.arange(n, dtype=dtypes.int64, device="CPU").reshape(along) * step
    return flat.to("CPU")[place].expand(size)


@accept_filename
def torch_load(t: Tensor) -> dict[str, Tensor]:
    """Reads a file of `torch.save`: tensors as views of the file, in their structure.

    Reads the zip form of PyTorch 1.6 and later and the plain pickles before it. Objects that are
    neither tensors nor built-in containers become placeholders; nothing of the file is run, and
    nothing of this process changed. Tensors of kinds that there are none of here (sparse, nested,
    quantised, meta, complex), whole modules and TorchScript are refused by name. What the file says
    of itself (checksums, sizes, names that come once) has to be true. Memory is bounded by the
    setting LOAD_LIMIT, in multiples of the file.

    Raises: FormatError when it is neither, or does not add up.
    """
    file = FileBytes(t, WHERE)
    if file.read(0, 4) == b"PK\x03\x04":
        value: dict[str, Tensor] = load_zip_checkpoint(t, file)
    else:
        value = load_plain_checkpoint(t, file)
    check_no_module(value)
    return value


def load_zip_checkpoint(t: Tensor, file: FileBytes) -> Any:
    """The form since PyTorch 1.6: `data.pkl` and one member a storage."""
    members = {member.name: member for member in zip_members(file)}
    if any(name.endswith("constants.pkl") or "/code/" in name for name in members):
        raise FormatError(
            "a TorchScript archive, which is a program; torch.jit.load reads it, and "
            "torch.save(module.state_dict(), ...) saves what can be read here",
            WHERE,
        )
    pickles = [name for name in members if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(pickles) != 1:
        which = "without data.pkl" if not pickles else f"with {len(pickles)} of data.pkl"
        raise FormatError(f"a zip archive {which}; it has {show_names(members)}", WHERE)
    prefix = pickles[0][: -len("data.pkl")]
    order = members.get(prefix + "byteorder")
    if order is not None and bytes(unpack_member(file, order)) != b"little":
        raise FormatError("saved on a big-endian machine, little is wanted", WHERE)

    alignment = members.get(prefix + ".storage_alignment")
    if alignment is not None and not bytes(unpack_member(file, alignment)).isdigit():
        raise FormatError("the alignment of its storages is no number", WHERE)

    def find_storage(storage: Storage) -> Tensor:
        name = f"{prefix}data/{storage.key}"
        member = members.get(name)
        if member is None:
            raise FormatError(f"storage {show_value(storage.key)} is not in the file", WHERE)
        if member.nbytes != storage.nbytes:
            raise FormatError(
                f"storage {show_value(storage.key)} of {storage.count} elements takes "
                f"{storage.nbytes} bytes, {show_value(name)} has {member.nbytes}: the file is "
                "truncated, or it lies",
                WHERE,
            )
        if member.method == STORED:
            stop = member.begin + member.nbytes
            return view_bytes(t, member.begin, stop, storage.dtype, (storage.count,))
        data = Tensor(unpack_member(file, member), dtype=dtypes.uint8)
        return view_bytes(data, 0, member.nbytes, storage.dtype, (storage.count,))

    member = members[pickles[0]]
    place = f"{WHERE}: {pickles[0]}"
    data = unpack_member(file, member)
    cursor = cursor_over(data, place, file.allowance)
    return Checkpoint(file, find_storage, 5).reader(cursor).load()


def load_plain_checkpoint(t: Tensor, file: FileBytes) -> Any:
    """The form before PyTorch 1.6: five pickles, then each storage after its count of elements.

    The third of them has the tensors, and where their storages lie is known behind the last one, so
    it is read twice.
    """
    cursor = file.cursor(WHERE)
    plain = PickleReader(cursor, PLAIN_MAKERS)
    magic = load_part(plain, "its start")
    if magic != TORCH_MAGIC:
        raise FormatError(
            f"neither a zip archive nor the older form; it begins with {file.read(0, 16)!r}", WHERE
        )
    protocol, machine = load_part(plain, "the version"), load_part(plain, "the platform")
    if protocol != PROTOCOL or not isinstance(machine, dict):
        raise FormatError(f"version {show_value(protocol)}, {PROTOCOL} is wanted", WHERE)
    if machine.get("little_endian", True) is not True:
        raise FormatError("saved on a big-endian machine, little is wanted", WHERE)
    start = cursor.position
    first = Checkpoint(file, None, 6)
    load_part(first.reader(cursor), "the object")
    keys = load_part(plain, "the list of storages")
    places = find_storages(file, first.storages, keys, cursor.position)

    def find_storage(storage: Storage) -> Tensor:
        begin = places[storage.key]
        stop = begin + storage.nbytes
        return view_bytes(t, begin, stop, storage.dtype, (storage.count,))

    cursor.position = start
    return Checkpoint(file, find_storage, 6).reader(cursor).load()


def find_storages(
    file: FileBytes, storages: Mapping[str, Storage], keys: Any, position: int
) -> dict[str, int]:
    """Where each storage's elements begin: they lie one after another, behind their counts."""
    if not isinstance(keys, list) or not all([isinstance(key, (str, int)) for key in keys]):
        raise FormatError(f"the list of storages is {show_value(keys)}", WHERE)
    places: dict[str, int] = {}
    for key in keys:
        storage = storages.get(str(key))
        if storage is None or str(key) in places:
            raise FormatError(
                f"storage {show_value(key)} belongs to no tensor, or comes twice", WHERE
            )
        stop = position + 8 + storage.nbytes
        if stop > file.nbytes:
            raise FormatError(
                f"storage {show_value(key)} of {storage.count} elements needs bytes "
                f"{position} to {stop}, there are {file.nbytes}: the file is truncated",
                WHERE,
            )
        count = int.from_bytes(file.read(position, position + 8), "little")
        if count != storage.count:
            raise FormatError(
                f"storage {show_value(key)} has {storage.count} elements, and {count} where it "
                f"lies at {position}",
                WHERE,
            )
        places[str(key)] = position + 8
        position = stop
    missing = [key for key in storages if key not in places]
    if missing:
        raise FormatError(f"storage {show_value(missing[0])} is not in the file", WHERE)
    return places


def load_part(reader: PickleReader, what: str) -> Any:
    """One of the pickles of a file; what is wrong with it says which."""
    try:
        return reader.load()
    except FormatError as error:
        error.reason = f"{what} is damaged or of an unknown kind: {error.reason}"
        raise


def show_names(members: Mapping[str, ZipMember]) -> str:
    """The first names of an archive."""
    return ", ".join(members)[:200]
