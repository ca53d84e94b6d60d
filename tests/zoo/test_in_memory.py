"""Images in memory: batches are a function of seed, epoch, index and rank; augmentation is a crop and a mirror."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import gator
from gator.zoo import cifar_files, in_memory, load_data, made_up, order, shape_of

EACH = 24  # images in a synthetic batch file


def write_cifar10(folder: Path, each: int = EACH, protocol: int = 2) -> Path:
    """The standard layout with noise in it; every label is at hand as the first bytes of its picture."""
    random = np.random.default_rng(0)
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for file in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        images = random.integers(0, 256, (each, 3072), dtype=np.uint8)
        entry = {b"data": images, b"labels": random.integers(0, 10, each).tolist(), b"batch_label": b"noise"}
        (place / file).write_bytes(pickle.dumps(entry, protocol))
    return folder


@pytest.fixture
def cifar(tmp_path) -> str:
    return str(write_cifar10(tmp_path))


def both(name: str, cifar: str, **options) -> gator.zoo.Data:
    return load_data(name, folder=cifar if name == "cifar10" else None, verify=False, **options)


def same(one, other) -> None:
    one, other = list(one), list(other)
    assert len(one) == len(other)
    for (x, y), (a, b) in zip(one, other, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)


def different(one, other) -> bool:
    return not all(torch.equal(x, a) for (x, _), (a, _) in zip(one, other, strict=True))


SETS = pytest.mark.parametrize("name", ["digits", "cifar10"])


@SETS
def test_shape_and_size(name: str, cifar: str) -> None:
    data = both(name, cifar, batch=16)
    assert shape_of(name) == (data.shape, data.classes)
    x, y = next(data.train.batches(0))
    assert x.shape == (16, *data.shape)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert len(list(data.train.batches(0))) == len(data.train) == data.train.examples // 16
    assert data.train.examples == {"digits": 1348, "cifar10": 5 * EACH}[name] // 16 * 16


@SETS
def test_a_batch_is_a_function_of_seed_epoch_and_index(name: str, cifar: str) -> None:
    data, again = both(name, cifar, batch=16, seed=3), both(name, cifar, batch=16, seed=3)
    first = list(data.train.batches(5))
    list(data.train.batches(1))
    same(first, data.train.batches(5))
    same(first, again.train.batches(5))
    assert different(first, data.train.batches(6))
    assert different(first, both(name, cifar, batch=16, seed=4).train.batches(5))


@SETS
def test_order_and_augmentation_both_change_with_epoch_and_seed(name: str, cifar: str) -> None:
    def seen(epoch: int, seed: int, augment: bool) -> torch.Tensor:
        return torch.cat([x for x, _ in both(name, cifar, batch=8, seed=seed, augment=augment).train.batches(epoch)])

    for epoch, seed in [(1, 0), (0, 1)]:
        one, other = seen(0, 0, False), seen(epoch, seed, False)
        assert not torch.equal(one, other)  # the order alone
        assert set(map(_bytes, one)) & set(map(_bytes, other))
    look = both(name, cifar, batch=8).train.augmentation
    first, second = (in_memory.Draw.of(order.random(0, epoch, 0), 64, look.pad, slice(0, 64)) for epoch in (0, 1))
    assert not torch.equal(first.down, second.down)


def _bytes(x: torch.Tensor) -> bytes:
    return x.numpy().tobytes()


@SETS
@pytest.mark.parametrize("start", [0, 1, 4, 7])
def test_a_late_start_is_the_tail(name: str, start: int, cifar: str) -> None:
    data = both(name, cifar, batch=16)
    same(list(data.train.batches(2))[start:], data.train.batches(2, start=start))
    same(list(data.test.batches(2))[start:], data.test.batches(2, start=start))


@SETS
@pytest.mark.parametrize("world", [2, 3])
def test_processes_see_together_what_one_sees(name: str, world: int, cifar: str) -> None:
    alone = both(name, cifar, batch=8 * world)
    parts = [both(name, cifar, batch=8, rank=rank, world=world) for rank in range(world)]
    assert {part.train.examples for part in parts} == {alone.train.examples}
    together = [
        (torch.cat([x for x, _ in batch]), torch.cat([y for _, y in batch]))
        for batch in zip(*(part.train.batches(1) for part in parts), strict=True)
    ]
    same(alone.train.batches(1), together)


@SETS
@pytest.mark.parametrize("world", [1, 2, 5])
def test_every_test_example_is_seen_once_in_order(name: str, world: int, cifar: str) -> None:
    whole = torch.cat([x for x, _ in both(name, cifar, batch=4, test_batch=1000).test.batches(0)])
    seen = []
    for rank in range(world):
        loader = both(name, cifar, batch=4, test_batch=7, rank=rank, world=world).test
        batches = list(loader.batches(9))
        assert len(batches) == len(loader)
        assert loader.examples == len(whole)
        seen += [x for x, _ in batches]
    assert torch.equal(torch.cat(seen), whole)


@SETS
def test_the_global_generators_are_left_alone(name: str, cifar: str) -> None:
    torch.manual_seed(7)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    data = both(name, cifar, batch=16)
    first = list(data.train.batches(0))
    list(data.test.batches(0))
    list(made_up((3, 4), 5, batch=2).train.batches(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    torch.manual_seed(8)
    same(first, data.train.batches(0))


def slow(image: torch.Tensor, train: in_memory.TrainImages, down: int, right: int, mirrored: bool) -> torch.Tensor:
    """One image after the other: pad with black, crop, flip, normalize."""
    height, width = image.shape[1:]
    look, varied = train.preprocessing, train.augmentation
    ground = functional.pad(image, (varied.pad,) * 4)
    window = ground[:, down : down + height, right : right + width]
    if mirrored and varied.flip:
        window = window.flip(2)
    scaled = window.float() / look.pixel_max
    return (scaled - torch.tensor(look.mean)[:, None, None]) / torch.tensor(look.std)[:, None, None]


@SETS
def test_augmentation_is_a_crop_and_a_mirror_of_the_original(name: str, cifar: str) -> None:
    """Found by trying every crop of the original image, without asking how it was drawn."""
    data, plain = both(name, cifar, batch=16), both(name, cifar, batch=16, augment=False)
    look, varied = data.train.preprocessing, data.train.augmentation
    seen = set()
    for (x, y), (original, labels) in zip(data.train.batches(0), plain.train.batches(0), strict=True):
        assert torch.equal(y, labels)
        raw = original * torch.tensor(look.std)[:, None, None] + torch.tensor(look.mean)[:, None, None]
        raw = (raw * look.pixel_max).round().to(torch.uint8)
        for one, source in zip(x[:4], raw[:4], strict=True):
            steps = range(2 * varied.pad + 1)
            ways = [(d, r, m) for d in steps for r in steps for m in ([False, True] if varied.flip else [False])]
            found = [way for way in ways if torch.equal(slow(source, data.train, *way), one)]
            assert found
            seen |= set(found)
    assert {m for *_, m in seen} == ({False, True} if varied.flip else {False})
    assert len({d for d, *_ in seen}) > 2
    assert len({r for _, r, _ in seen}) > 2


def test_cifar_looks_as_the_published_checkpoints_expect(cifar: str) -> None:
    entry = pickle.loads((Path(cifar) / "cifar-10-batches-py" / "test_batch").read_bytes())
    raw = torch.from_numpy(entry[b"data"]).reshape(-1, 3, 32, 32)
    x, y = next(both("cifar10", cifar, batch=8).test.batches(0))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(x, (raw / 255 - mean[:, None, None]) / std[:, None, None], atol=1e-6)
    assert y.tolist() == entry[b"labels"]


def test_digits_are_normalised_and_every_fourth_is_tested_on() -> None:
    from sklearn.datasets import load_digits

    data = load_data("digits", batch=1348, augment=False)
    x, _ = next(data.train.batches(0))
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01
    tested = torch.cat([y for _, y in data.test.batches(0)])
    assert tested.tolist() == load_digits().target[3::4].tolist()
    assert data.tested_on == "449 digits, every fourth of 1,797"


def test_held_back_examples_are_not_trained_on(cifar: str) -> None:
    (Path(cifar) / "cifar-10-batches-py" / "test_batch").unlink()  # not even read
    data = both("cifar10", cifar, batch=10, hold_back=20, augment=False, seed=1)
    other = both("cifar10", cifar, batch=10, hold_back=20, augment=False, seed=2)
    same(data.test.batches(0), other.test.batches(0))
    assert data.tested_on == "20 held-back training images"
    held = {x.numpy().tobytes() for batch, _ in data.test.batches(0) for x in batch}
    trained = {x.numpy().tobytes() for batch, _ in data.train.batches(0) for x in batch}
    assert (len(held), len(trained), data.train.examples) == (20, 100, 100)
    assert not held & trained
    for held_back in (120, 121):
        with pytest.raises(gator.DataError, match="leaves nothing to train on: there are 120"):
            both("cifar10", cifar, hold_back=held_back)


def test_made_up_data() -> None:
    data = made_up((3, 8, 8), 7, batch=4, batches=3, seed=1)
    batches = list(data.train.batches(0))
    assert [x.shape for x, _ in batches] == [(4, 3, 8, 8)] * 3
    assert all(y.min() >= 0 and y.max() < 7 for _, y in batches)
    same(batches[1:], data.train.batches(0, start=1))
    assert different(batches, data.train.batches(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch = 0; expected 1 or more"),
        ({"rank": 2, "world": 2}, "rank = 2; expected less than the number of processes, 2"),
        ({"seed": -1}, "seed = -1"),
        ({"batch": 2000}, "a batch of 2,000 examples is larger than the 1,348 training examples; use a smaller batch"),
        ({"batch": 1000, "world": 2}, "a batch of 1,000 examples in each of 2 processes is larger"),
    ],
)
def test_wrong_settings(options: dict, words: str) -> None:
    with pytest.raises(gator.DataError, match=words):
        load_data("digits", **options)


@pytest.mark.parametrize(("name", "words"), [("cifar", "did you mean cifar10"), ("zzz", "it has digits, cifar10")])
def test_unknown_names_get_a_hint(name: str, words: str) -> None:
    for ask in (load_data, shape_of):
        with pytest.raises(gator.DataError, match=f"has no '{name}'; {words}"):
            ask(name)


def test_a_missing_extra_is_named(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(gator.MissingExtraError, match=r"pip install 'torch-gator\[train\]'"):
        load_data("digits")


class TestCifarFiles:
    @pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
    def test_every_protocol_is_read(self, protocol: int, tmp_path) -> None:
        folder = write_cifar10(tmp_path, protocol=protocol)
        assert len(load_data("cifar10", folder=str(folder), verify=False, batch=4).train) == 5 * EACH // 4
        inside = str(folder / "cifar-10-batches-py")
        assert load_data("cifar10", folder=inside, verify=False, batch=4).test.examples == EACH

    def test_the_names_of_older_numpy_are_read_too(self, cifar: str) -> None:
        file = Path(cifar) / "cifar-10-batches-py" / "test_batch"
        new = file.read_bytes()
        assert b"numpy._core.multiarray" in new
        file.write_bytes(new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
        assert both("cifar10", cifar, batch=4).test.examples == EACH

    def test_cifar100(self, tmp_path) -> None:
        place = tmp_path / "cifar-100-python"
        place.mkdir()
        for file in ("train", "test"):
            labels = list(range(100))
            entry = {b"data": np.zeros((100, 3072), np.uint8), b"fine_labels": labels, b"coarse_labels": [0] * 100}
            (place / file).write_bytes(pickle.dumps(entry, 2))
        data = load_data("cifar100", folder=str(tmp_path), verify=False, batch=10)
        assert data.classes == 100
        assert sorted(y for _, batch in data.train.batches(0) for y in batch.tolist()) == list(range(100))
        with pytest.raises(gator.DataError, match="train: 100 images, expected 50,000; verify = false"):
            load_data("cifar100", folder=str(tmp_path))

    def test_changed_content_is_told(self, tmp_path, monkeypatch) -> None:
        folder = write_cifar10(tmp_path)
        monkeypatch.setattr(cifar_files, "COUNTS", {"train": 5 * EACH, "test": EACH})
        files = [f for part in cifar_files.CIFAR10.parts.values() for f in part]
        place = folder / "cifar-10-batches-py"
        for file in files:
            read = cifar_files.read_file(cifar_files.CIFAR10, place / file, EACH, verify=False)
            monkeypatch.setitem(cifar_files.CIFAR10.published, file, cifar_files.checksum(read))
        load_data("cifar10", folder=str(folder), batch=4)
        entry = pickle.loads((place / "data_batch_3").read_bytes())
        entry[b"data"][5, 77] ^= 1
        (place / "data_batch_3").write_bytes(pickle.dumps(entry, 2))
        with pytest.raises(gator.DataError, match=r"data_batch_3: .* not the published(.|\n)*verify = false"):
            load_data("cifar10", folder=str(folder), batch=4)
        load_data("cifar10", folder=str(folder), batch=4, verify=False)

    def test_a_pickle_that_would_run_code_is_refused(self, cifar: str, tmp_path) -> None:
        class Wicked:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "ran",))

        class Subtle:
            def __reduce__(self):
                import builtins

                return (builtins.eval, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

        for bad in (Wicked(), Subtle()):
            (Path(cifar) / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps({b"data": bad}))
            with pytest.raises(gator.DataError, match=r"data_batch_2: the pickle asks for .*; refused"):
                both("cifar10", cifar)
            assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda b: b[: len(b) // 2], "data_batch_1: damaged or truncated"),
            (lambda b: b"", "data_batch_1: damaged or truncated"),
            (lambda b: pickle.dumps([1, 2]), "expected a dictionary with 'data' and 'labels', found list"),
            (lambda b: pickle.dumps({b"data": 3}), "expected a dictionary with 'data' and 'labels', found data"),
            (
                lambda b: _entry(np.zeros((3, 3071), np.uint8), [0] * 3),
                r"\(n, 3072\) under 'data', found uint8 \(3, 3071\)",
            ),
            (lambda b: _entry(np.zeros((3, 3072)), [0] * 3), r"found float64 \(3, 3072\)"),
            (lambda b: _entry(np.zeros((3, 3072), np.uint8), [0] * 4), "3 images but 4 labels"),
            (lambda b: _entry(np.zeros((3, 3072), np.uint8), [0, 1, 10]), "labels from 0 to 10, expected 0 to 9"),
            (lambda b: _entry(np.zeros((3, 3072), np.uint8), ["a"] * 3), "not a list of integers"),
            (lambda b: _entry(np.zeros((3, 3072), np.uint8), [[0], [0, 1], 2]), "not a list of integers"),
        ],
    )
    def test_damage_is_told(self, change, words: str, cifar: str) -> None:
        file = Path(cifar) / "cifar-10-batches-py" / "data_batch_1"
        file.write_bytes(change(file.read_bytes()))
        with pytest.raises(gator.DataError, match=words):
            both("cifar10", cifar)

    def test_what_is_not_there(self, cifar: str, tmp_path) -> None:
        with pytest.raises(gator.DataError, match="cifar10 needs a folder"):
            load_data("cifar10")
        with pytest.raises(gator.DataError, match=r"no data_batch_1 in .*nowhere(.|\n)*download = true"):
            load_data("cifar10", folder=str(tmp_path / "nowhere"))
        with pytest.raises(gator.DataError, match="data_batch_1: 24 images, expected 10,000; verify = false"):
            load_data("cifar10", folder=cifar)
        (Path(cifar) / "cifar-10-batches-py" / "data_batch_4").unlink()
        with pytest.raises(gator.DataError, match="data_batch_4 is missing; unpack the whole archive"):
            both("cifar10", cifar)


def _entry(images: np.ndarray, labels: list) -> bytes:
    return pickle.dumps({b"data": images, b"labels": labels}, 2)
