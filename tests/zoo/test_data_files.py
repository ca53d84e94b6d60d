"""Fashion-MNIST's files, data sets that are downloaded, and images in folders."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import gator
from gator.zoo import image_folder, load_data, shape_of

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion_files() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    counts = (30, 30, 12, 12)
    shapes = [(n, 28, 28) if "idx3" in name else (n,) for name, n in zip(NAMES, counts, strict=True)]
    return {
        name: idx(random.integers(0, 256 if "idx3" in name else 10, shape, dtype=np.uint8))
        for name, shape in zip(NAMES, shapes, strict=True)
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["", "FashionMNIST/raw"])
def test_fashion_mnist(packed: bool, inside: str, tmp_path) -> None:
    place = tmp_path / inside
    place.mkdir(parents=True, exist_ok=True)
    for name, raw in fashion_files().items():
        (place / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
    data = load_data("fashion-mnist", folder=str(tmp_path), verify=False, batch=10)
    assert shape_of("fashion-mnist") == (data.shape, data.classes) == ((1, 28, 28), 10)
    x, y = next(data.test.batches(0))
    raw = fashion_files()
    pixels = np.frombuffer(raw[NAMES[2]][16:], np.uint8).reshape(12, 1, 28, 28)
    assert np.allclose(x.numpy(), (pixels / 255 - 0.2860) / 0.3530, atol=1e-5)
    assert y.tolist() == list(raw[NAMES[3]][8:])
    assert len(data.train) == 3
    with pytest.raises(gator.DataError, match="30 images, expected 60,000; verify = false"):
        load_data("fashion-mnist", folder=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        (NAMES[0], b"\0\0\x08\x03abc", "expected an idx file of bytes with 3 axes"),
        (NAMES[1], idx(np.zeros((3, 3), np.uint8)), "expected an idx file of bytes with 1 axes"),
        (NAMES[0], idx(np.zeros((30, 28, 28), np.uint8))[:-5], "23,515 bytes, but its sizes are"),
        (NAMES[0], idx(np.zeros((30, 27, 28), np.uint8)), r"expected bytes of shape \(n, 1, 28, 28\)"),
        (NAMES[1], idx(np.zeros(29, np.uint8)), "30 images but 29 labels"),
        (NAMES[1], idx(np.full(30, 10, np.uint8)), "labels from 10 to 10, expected 0 to 9"),
        (NAMES[0] + ".gz", gzip.compress(idx(np.zeros((30, 28, 28), np.uint8)), mtime=0)[:-20], "damaged or truncated"),
        (NAMES[0], None, f"no {NAMES[0]} .or"),
    ],
)
def test_damaged_idx_files_are_told(name: str, raw: bytes | None, words: str, tmp_path) -> None:
    for each, good in fashion_files().items():
        (tmp_path / each).write_bytes(good)
    (tmp_path / name.removesuffix(".gz")).unlink()
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(gator.DataError, match=words):
        load_data("fashion-mnist", folder=str(tmp_path), verify=False)


class TestDownload:
    """From file: addresses put where torchvision keeps its own."""

    @pytest.fixture
    def archive(self, tmp_path, torchvision, monkeypatch) -> Path:
        file = tmp_path / "archive.tar.gz"
        entry = {b"data": np.zeros((8, 3072), np.uint8), b"labels": [0] * 8}
        self.pack(
            file,
            {
                f"cifar-10-batches-py/{n}": pickle.dumps(entry, 2)
                for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
            },
        )
        self.publish(file, torchvision, monkeypatch)
        return file

    @staticmethod
    def pack(file: Path, members: dict[str, bytes]) -> None:
        with tarfile.open(file, "w:gz") as tar:
            for name, raw in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))

    @staticmethod
    def publish(file: Path, torchvision, monkeypatch) -> None:
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", file.as_uri())
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", hashlib.md5(file.read_bytes()).hexdigest())

    def ask(self, folder: Path):
        return load_data("cifar10", folder=str(folder), download=True, verify=False, batch=4)

    def test_an_archive_is_fetched_once(self, archive: Path, tmp_path) -> None:
        folder = tmp_path / "new" / "sets"
        assert self.ask(folder).train.examples == 40
        assert [each.name for each in folder.iterdir()] == ["cifar-10-batches-py"]
        archive.unlink()
        assert self.ask(folder).train.examples == 40

    def test_a_wrong_checksum_leaves_nothing_behind(self, archive: Path, tmp_path) -> None:
        archive.write_bytes(archive.read_bytes() + b"x")
        with pytest.raises(gator.DataError, match=r"the checksum is .*, expected"):
            self.ask(tmp_path / "sets")
        assert not (tmp_path / "sets").exists()

    def test_no_network(self, archive: Path, tmp_path) -> None:
        archive.unlink()
        (tmp_path / "sets").mkdir()
        with pytest.raises(gator.DataError, match=r"could not be downloaded(.|\n)*Check the network"):
            self.ask(tmp_path / "sets")
        assert not list((tmp_path / "sets").iterdir())

    @pytest.mark.parametrize("members", [{"../outside": b"x"}, {"/tmp/gator-outside": b"x", "other": b""}, None])
    def test_an_archive_that_reaches_out_is_refused(self, members, archive: Path, tmp_path, torchvision, monkeypatch) -> None:
        if members is None:
            archive.write_bytes(b"no archive")
        else:
            self.pack(archive, members)
        self.publish(archive, torchvision, monkeypatch)
        with pytest.raises(gator.DataError, match="could not be unpacked"):
            self.ask(tmp_path / "a" / "sets")
        assert not list((tmp_path / "a").rglob("*"))

    def test_an_incomplete_set_is_not_overwritten(self, archive: Path, tmp_path) -> None:
        self.ask(tmp_path / "sets")
        (tmp_path / "sets" / "cifar-10-batches-py" / "data_batch_2").unlink()
        with pytest.raises(gator.DataError, match="exists but is not complete; remove it"):
            self.ask(tmp_path / "sets")

    def test_single_files(self, tmp_path, torchvision, monkeypatch) -> None:
        packed = {f"{name}.gz": gzip.compress(raw) for name, raw in fashion_files().items()}
        (tmp_path / "from").mkdir()
        for name, raw in packed.items():
            (tmp_path / "from" / name).write_bytes(raw)
        kind = torchvision.datasets.FashionMNIST
        monkeypatch.setattr(kind, "mirrors", [f"{(tmp_path / 'from').as_uri()}/"])
        monkeypatch.setattr(kind, "resources", [(name, hashlib.md5(raw).hexdigest()) for name, raw in packed.items()])
        options = {"folder": str(tmp_path / "to"), "verify": False, "batch": 4}
        assert load_data("fashion-mnist", **options, download=True).test.examples == 12
        assert sorted(p.name for p in (tmp_path / "to" / "FashionMNIST" / "raw").iterdir()) == sorted(packed)
        assert [p.name for p in (tmp_path / "to").iterdir()] == ["FashionMNIST"]
        (tmp_path / "from" / f"{NAMES[3]}.gz").unlink()
        with pytest.raises(gator.DataError, match="could not be downloaded"):
            load_data("fashion-mnist", folder=str(tmp_path / "other"), download=True)
        assert not (tmp_path / "other").exists()

    def test_what_cannot_be_fetched(self, tmp_path) -> None:
        with pytest.raises(gator.DataError, match="imagefolder cannot be downloaded"):
            load_data("imagefolder", folder=str(tmp_path), download=True)
        with pytest.raises(gator.DataError, match="cifar10 needs a folder"):
            load_data("cifar10", download=True)


class TestImageFolder:
    @pytest.fixture
    def folder(self, tmp_path) -> str:
        from PIL import Image

        random = np.random.default_rng(0)
        for part, count in (("train", 5), ("val", 3)):
            for name in ("ant", "bee"):
                place = tmp_path / part / name
                place.mkdir(parents=True)
                for i in range(count):
                    size = (int(random.integers(40, 70)), int(random.integers(40, 70)), 3)
                    Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)).save(place / f"{i}.png")
        (tmp_path / "train" / "ant" / "notes.txt").write_text("no picture")
        return str(tmp_path)

    def ask(self, folder: str, **options):
        return load_data("imagefolder", folder=folder, image_size=32, **{"batch": 2, "test_batch": 4} | options)

    def same(self, one, other) -> None:
        for (x, y), (a, b) in zip(list(one), list(other), strict=True):
            assert torch.equal(x, a)
            assert torch.equal(y, b)

    def test_shape_and_size(self, folder: str) -> None:
        data = self.ask(folder)
        assert (data.classes, data.shape, data.tested_on) == (2, (3, 32, 32), "6 validation images")
        assert shape_of("imagefolder", image_size=32) == ((3, 32, 32), 0)
        assert shape_of("imagefolder", image_size=32, folder=folder) == ((3, 32, 32), 2)
        assert data.class_names == ("ant", "bee")
        assert len(data.train) == 5
        assert sorted(y for _, batch in data.train.batches(0) for y in batch.tolist()) == [0] * 5 + [1] * 5
        assert torch.cat([y for _, y in data.test.batches(0)]).tolist() == [0, 0, 0, 1, 1, 1]

    def test_pure_with_or_without_workers_and_from_the_middle(self, folder: str) -> None:
        torch.manual_seed(7)
        before = torch.get_rng_state()
        data = self.ask(folder)
        batches = list(data.train.batches(3))
        assert torch.equal(torch.get_rng_state(), before)
        self.same(batches[2:], data.train.batches(3, start=2))
        at_work = self.ask(folder, workers=2)
        self.same(batches, at_work.train.batches(3))
        self.same(data.test.batches(0), at_work.test.batches(0))
        assert torch.equal(torch.get_rng_state(), before)
        assert not torch.equal(batches[0][0], next(data.train.batches(4))[0])
        assert not torch.equal(batches[0][0], next(self.ask(folder, seed=1).train.batches(3))[0])

    def test_two_processes_see_what_one_sees(self, folder: str) -> None:
        alone = self.ask(folder, batch=4)
        parts = [self.ask(folder, rank=rank, world=2) for rank in range(2)]
        together = [
            (torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]]))
            for one, two in zip(*(part.train.batches(0) for part in parts), strict=True)
        ]
        self.same(alone.train.batches(0), together)
        tested = torch.cat([x for part in parts for x, _ in part.test.batches(0)])
        assert torch.equal(tested, torch.cat([x for x, _ in alone.test.batches(0)]))

    def test_validation_looks_as_torchvision_makes_it(self, folder: str, torchvision) -> None:
        from PIL import Image
        from torchvision import transforms

        look = transforms.Compose(
            [
                transforms.Resize(round(32 * 256 / 224)),
                transforms.CenterCrop(32),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
        files = sorted((Path(folder) / "val").rglob("*.png"))
        expected = torch.stack([look(Image.open(file)) for file in files])
        found = torch.cat([x for x, _ in self.ask(folder).test.batches(0)])
        assert torch.allclose(found, expected, atol=1e-6)

    def test_a_drawn_box_is_inside_and_of_the_right_area(self) -> None:
        random = np.random.default_rng(0)
        areas = []
        for _ in range(500):
            left, top, right, bottom = image_folder.random_box(random, 60, 50)
            assert 0 <= left < right <= 60
            assert 0 <= top < bottom <= 50
            assert 0.7 < (right - left) / (bottom - top) < 1.45
            areas.append((right - left) * (bottom - top) / 3000)
        assert min(areas) < 0.15
        assert max(areas) > 0.85
        assert image_folder.random_box(random, 1000, 3) == (498, 0, 502, 3)

    def test_an_unreadable_picture_is_named(self, folder: str) -> None:
        file = Path(folder) / "val" / "bee" / "1.png"
        file.write_bytes(file.read_bytes()[:100])
        for workers in (0, 1):
            with pytest.raises(gator.DataError, match=r"bee/1.png: the image cannot be read .*; repair or remove it"):
                list(self.ask(folder, workers=workers).test.batches(0))

    def test_wrong_folders(self, folder: str, tmp_path) -> None:
        with pytest.raises(gator.DataError, match="imagefolder needs a folder"):
            load_data("imagefolder")
        with pytest.raises(gator.DataError, match="hold_back = 3: only digits"):
            self.ask(folder, hold_back=3)
        with pytest.raises(gator.DataError, match="a batch of 11 examples is larger than the 10"):
            self.ask(folder, batch=11)
        (tmp_path / "val" / "cat").mkdir()
        with pytest.raises(gator.DataError, match=r"no images in .*cat; add some, or remove the folder"):
            self.ask(folder)
        (tmp_path / "val" / "ant" / "0.png").rename(tmp_path / "val" / "cat" / "0.png")
        with pytest.raises(gator.DataError, match="classes that train does not have: cat"):
            self.ask(folder)
        with pytest.raises(gator.DataError, match=r"there is no folder .*train; expected train/CLASS"):
            self.ask(str(tmp_path / "val"))
        (tmp_path / "empty" / "train").mkdir(parents=True)
        with pytest.raises(gator.DataError, match="has no folders in it"):
            self.ask(str(tmp_path / "empty"))
