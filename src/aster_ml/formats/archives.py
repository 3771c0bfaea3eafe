"""Archives whose members are tensors: tar and zip.

Receives a file; returns its members by name. Those that are stored as they are become views of the
file; packed ones are unpacked into memory, within what LOAD_LIMIT allows. Nothing is written to the
disk, so a member's name is a name and never a path.
"""

from __future__ import annotations

import tarfile

from aster_ml import Tensor, dtypes
from aster_ml.errors import FormatError
from aster_ml.formats.fileio import TENSOR_NBYTES, FileBytes, accept_filename, view_bytes
from aster_ml.formats.tars import TarReader, Unpacked
from aster_ml.formats.zips import STORED, unpack_member, zip_members
from aster_ml.unpacking import kind_of_packed, unpack


class TarError(FormatError, tarfile.ReadError):
    """A tar archive that is damaged, or none; programs that know tarfile catch its error."""


@accept_filename
def tar_extract(t: Tensor) -> dict[str, Tensor]:
    """The regular files of a tar archive, by name, as views of it.

    One that is packed as a whole (gzip, bzip2, xz) is unpacked into memory first. Folders, links
    and devices are left out.

    Raises: FormatError, which is a tarfile.ReadError too, when it is no tar archive, is damaged or
    cut short, has a name twice, or would take more memory than LOAD_LIMIT allows.
    """
    try:
        file: FileBytes | Unpacked = FileBytes(t, "tar")
        kind = kind_of_packed(file.read(0, 6))
        if kind is not None:
            data = unpack(file.read(0, file.nbytes), kind, file.allowance, "tar")
            file = Unpacked(data, file.allowance)
        members = TarReader(file).load()
        if isinstance(file, Unpacked):
            t = Tensor(file.data, dtype=dtypes.uint8)
        file.allowance.take(TENSOR_NBYTES * len(members), "tar")
    except FormatError as error:
        raise TarError(error.reason, error.place) from error
    return {name: take_bytes(t, begin, size) for name, (begin, size) in members.items()}


@accept_filename
def zip_extract(t: Tensor) -> dict[str, Tensor]:
    """The files of a zip archive, by name; stored ones as views of it, others unpacked.

    The checksums of all members are compared, which reads the file once.

    Raises: FormatError when it is no zip archive, when a member is damaged, encrypted, overlaps
    another or has its name, and when it would take more memory than LOAD_LIMIT allows.
    """
    file = FileBytes(t, "zip")
    members: dict[str, Tensor] = {}
    for member in zip_members(file):
        file.allowance.take(TENSOR_NBYTES, f"zip: {member.name}")
        if member.method == STORED:
            members[member.name] = take_bytes(t, member.begin, member.nbytes)
        else:
            members[member.name] = from_bytes(unpack_member(file, member))
    return members


def take_bytes(t: Tensor, start: int, size: int) -> Tensor:
    """`size` bytes from `start` as a view."""
    return view_bytes(t, start, start + size, dtypes.uint8, (size,))


def from_bytes(data: bytearray) -> Tensor:
    """Bytes in memory as a uint8 tensor."""
    return Tensor(data, dtype=dtypes.uint8) if data else Tensor.empty(0, dtype=dtypes.uint8)
