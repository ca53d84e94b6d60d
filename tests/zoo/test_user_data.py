"""A user's own loaders: repeatable, resumable in the middle, and without effect on the global generators."""

import random

import numpy as np
import pytest
import torch

import gator
from gator.zoo import load_data, shape_of

SOURCE = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset

class Noisy(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return torch.randn(3) + index + random.random() + np.random.rand(), index % 4

def loaders(batch, seed):
    return DataLoader(Noisy(), batch_size=batch, shuffle=True, drop_last=True), DataLoader(Noisy(), batch_size=7)

def generator():
    mine = torch.Generator()
    mine.seed()
    return DataLoader(Noisy(), batch_size=4, shuffle=True, generator=mine), DataLoader(Noisy(), batch_size=7)

def workers():
    return DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1), DataLoader(Noisy(), batch_size=7)

def split():
    parts = torch.utils.data.random_split(Noisy(), [12, 8])
    return DataLoader(parts[0], batch_size=4), DataLoader(parts[1], batch_size=4)

def shared(batch, rank, world):
    data = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20))
    parts = [DistributedSampler(data, world, rank, shuffle=shuffle) for shuffle in (True, False)]
    return tuple(DataLoader(data, batch_size=batch, sampler=part) for part in parts)

def lists():
    batches = [(torch.full((3, 2), float(i)), torch.zeros(3, dtype=torch.long)) for i in range(5)]
    return batches, batches[:2]

def everything(**given):
    assert sorted(given) == ["batch", "folder", "rank", "seed", "world"] and given["folder"] == "somewhere"
    return lists()

def one():
    return lists()[0]

def endless():
    return lists()[0], (x for x in lists()[0])

def triples():
    return lists()[0], [(1, 2, 3)]

def hollow():
    return lists()[0], []

def fails(size):
    return size
"""


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def same(one, other) -> bool:
    return all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(list(one), list(other), strict=True))


@pytest.mark.parametrize("function", ["loaders", "generator", "workers", "split"])
def test_an_epoch_is_repeatable_and_begins_anywhere(function: str, file: str) -> None:
    data = load_data(f"{file}:{function}", batch=4, seed=2)
    random.seed(5)
    torch.manual_seed(5)
    first = list(data.train.batches(3))
    assert len(first) == len(data.train)
    random.seed(6)
    torch.manual_seed(6)
    assert same(first, data.train.batches(3))
    assert same(first[2:], data.train.batches(3, start=2))
    assert same(first, load_data(f"{file}:{function}", batch=4, seed=2).train.batches(3))
    assert not same(first, data.train.batches(4))
    assert not same(first, load_data(f"{file}:{function}", batch=4, seed=3).train.batches(3))


def test_the_global_generators_are_left_alone(file: str) -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002

    def seeded() -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002

    seeded()
    expected = [drawn() for _ in range(6)]
    seeded()
    found = [drawn()]
    data = load_data(f"{file}:loaders", batch=4)
    for _ in data.train.batches(0):  # the loop's own draws, between the loader's
        found.append(drawn())
    assert found == expected


def test_draws_go_on_from_batch_to_batch(file: str) -> None:
    noise = torch.cat([x[:, 0] - x[:, 1] for x, _ in load_data(f"{file}:loaders", batch=4).test.batches(0)])
    assert len(noise.unique()) == 20


def test_what_is_known_of_it(file: str) -> None:
    data = load_data(f"{file}:loaders", batch=8)
    assert (len(data.train), data.train.examples, len(data.test), data.test.examples) == (2, 16, 3, 20)
    assert (data.classes, data.shape, data.tested_on) == (0, (3,), "20 test examples of mine.py:loaders")
    listed = load_data(f"{file}:lists")
    assert (listed.train.examples, listed.test.examples, listed.shape) == (15, 6, (2,))
    assert len(load_data(f"{file}:everything", folder="somewhere").train) == 5
    assert shape_of(f"{file}:loaders") is None


def test_processes_share_by_their_own_sampler(file: str) -> None:
    parts = [load_data(f"{file}:shared", batch=5, rank=rank, world=2) for rank in range(2)]
    epochs = [[y for part in parts for _, ys in part.train.batches(epoch) for y in ys.tolist()] for epoch in (0, 1)]
    assert all(sorted(seen) == list(range(20)) for seen in epochs)
    assert epochs[0] != epochs[1]  # set_epoch was called
    assert parts[0].train.examples == 20
    with pytest.raises(gator.DataError, match="the same batches; add the parameters `rank` and `world`"):
        load_data(f"{file}:loaders", world=2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("one", r"returned a list of tuple, tuple, tuple, tuple; expected \(train, test\)"),
        ("endless", "endless, test: generator has no length or cannot be iterated"),
        ("triples", r"triples, test: a batch is a tuple of int, int, int; expected \(input, label\)"),
        ("hollow", "the test loader is empty"),
        (
            "fails",
            r"raised TypeError: fails\(\) missing 1(.|\n)*called with no arguments; its parameters may be any of batch",
        ),
        ("lodaers", "has no 'lodaers'; did you mean loaders"),
    ],
)
def test_wrong_functions(function: str, words: str, file: str) -> None:
    with pytest.raises(gator.DataError, match=words):
        load_data(f"{file}:{function}")


def test_wrong_files(tmp_path) -> None:
    with pytest.raises(gator.DataError, match="there is no file"):
        load_data(f"{tmp_path}/none.py:data")
    with pytest.raises(gator.DataError, match="names a file but no function"):
        load_data(f"{tmp_path}/none.py")
    with pytest.raises(gator.DataError, match="hold_back = 3: only digits"):
        load_data(f"{tmp_path}/none.py:data", hold_back=3)
