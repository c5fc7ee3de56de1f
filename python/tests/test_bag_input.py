"""Offsets, lengths and shapes that do not fit are refused by every form of a forward, before a kernel sees them."""

from __future__ import annotations

import random
from typing import Any, List, Optional

import pytest
import torch

import gradbus
from gradbus import _native

ROWS = 50
IDS = torch.tensor([3, 1, 4, 1, 5])


def fits(offsets: List[int], ids: int, last: bool) -> bool:
    """The contract, said the slow way: every id is in one bag, and bags come one after the other."""
    ends = offsets[1:] if last else offsets[1:] + [ids]
    bags = [range(low, high) for low, high in zip(offsets, ends)]
    ordered = all(low <= high for low, high in zip(offsets, ends)) and all(0 <= at <= ids for at in offsets)
    return ordered and bool(offsets or not (last or ids)) and [i for bag in bags for i in bag] == list(range(ids))


def test_the_library_finds_what_does_not_fit() -> None:
    library, draw = _native.native(), random.Random(1)
    seen = set()
    for _ in range(20_000):
        ids, n, last = draw.randrange(4), draw.randrange(5), draw.random() < 0.5
        offsets = [draw.randrange(-1, 6) for _ in range(n)]
        if draw.random() < 0.5:
            offsets.sort()
        own = torch.tensor(offsets, dtype=torch.int64)
        code = library.check_offsets(own.data_ptr(), n, ids, last)
        assert (code == 0) == fits(offsets, ids, last), (offsets, ids, last)
        seen.add((code, (library.error() or b"")[:10] if code else b""))
    assert len(seen) == 5  # what fits, and each of the four errors
    assert library.check_offsets(None, 1, 1, False) == library.check_offsets(None, -1, 1, False) == _native.ARGUMENT


class Jagged:
    """Shaped like a KeyedJaggedTensor of features x and y; ``bags``: of each, where that is said."""

    def __init__(self, values: Any, bags: Optional[List[int]] = None, **given: Any) -> None:
        self.keys, self.values = lambda: ["x", "y"], lambda: values
        for name, tensor in given.items():
            setattr(self, name, lambda tensor=tensor: tensor)
        if bags is not None:
            self.stride_per_key = lambda: bags


def of(*numbers: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


# offsets, whether they have the last one, and what the error says
WRONG = [
    (of(0, 3, 1, 4), False, "offset number 2 is 1, after 3: want offsets that never fall"),
    (of(0, 9, 2), False, "offset number 2 is 2, after 9"),
    (of(0, 6), False, "offsets end at 6: want at most the 5 ids"),
    (of(1, 4), False, "offsets begin at 1: want 0"),
    (of(-1, 4), False, "offsets begin at -1: want 0"),
    (of(), False, "no offsets for 5 ids: want one for each bag"),
    (of(0, 2, 4), True, "offsets end at 4: want exactly the 5 ids"),
    (of(0, 2, 6), True, "offsets end at 6: want exactly the 5 ids"),
    (of(), True, "no offsets for 5 ids"),
    (of(0, 2).view(1, 2), False, "offsets of 2 dimensions: want 1"),
    (torch.tensor(0), False, "offsets of 0 dimensions: want 1"),
    (torch.tensor([0.0, 2.0]), False, "offsets are torch.float32: want torch.int64"),
    (torch.tensor([False]), False, "offsets are torch.bool"),
    (of(0, 2).to_sparse(), False, "offsets are torch.sparse_coo: want torch.strided"),
    (of(0, 2).to("meta"), False, "offsets are on device meta"),
    ([0, 2], False, "offsets are list: want a tensor"),
]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mode, pool", [("sum", "client"), ("mean", "client"), ("max", "client"), ("mean", "servers")])
def test_offsets_that_do_not_fit(mode: str, pool: str, train: bool) -> None:
    """By a module and by a collection. The session goes on, and nothing was trained."""
    with gradbus.local("offsets") as session:
        bags = {
            last: gradbus.EmbeddingBag(ROWS, 2, mode, include_last_offset=last, pool=pool) for last in (False, True)
        }
        model = torch.nn.ModuleList(bags.values())
        forms: Any = {last: [bag] for last, bag in bags.items()}
        if pool == "client":
            for last, bag in bags.items():
                collection = gradbus.EmbeddingBagCollection({"x": bag})
                forms[last].append(lambda *given, collection=collection: collection({"x": given})["x"])
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        model.train(train)
        before = session.digest()
        for offsets, last, says in WRONG:
            for form in forms[last]:
                with pytest.raises(gradbus.ArgumentError, match=says):
                    form(IDS, offsets)
        for form in forms[False]:
            assert form(IDS, of(0, 0, 5)).shape == (3, 2)
        assert session.digest() == before


def test_jagged_tensors_that_do_not_fit() -> None:
    with gradbus.local("jagged") as session:
        emb = gradbus.EmbeddingBagCollection({name: gradbus.EmbeddingBag(ROWS, 2, mode="sum") for name in "yx"})
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        for wrong, says in (
            (Jagged(IDS, lengths=of(2, 2)), "offsets end at 4: want exactly the 5 ids"),
            (Jagged(IDS, lengths=of(2, 4)), "offsets end at 6: want exactly the 5 ids"),
            (Jagged(IDS, lengths=of(6, -1)), "offset number 2 is 5, after 6"),
            (Jagged(IDS, lengths=of(2**62, 2**62, 2**62, 2**62 + 5)), "never fall"),
            (Jagged(IDS, lengths=torch.tensor([2.0, 3.0])), "lengths are torch.float32"),
            (Jagged(IDS, lengths=of(2, 3).to("meta")), "lengths are on device meta"),
            (Jagged(IDS, offsets=of(0, 3, 1, 4, 5)), "offset number 2 is 1, after 3"),
            (Jagged(IDS, offsets=of(1, 2, 5)), "offsets begin at 1"),
            (Jagged(IDS, offsets=of(0, 2, 4)), "offsets end at 4: want exactly the 5 ids"),
            (Jagged(IDS, offsets=of()), "no offsets for 5 ids"),
            (Jagged(IDS, offsets=of(0, 1, 3, 5)), "4 offsets of 2 features: want features [*] bags [+] 1"),
            (Jagged(IDS, offsets=of(0, 1, 3, 5), bags=[3, 3]), r"2 keys with \[3, 3\] bags: want a number of each, 3"),
            (Jagged(IDS, offsets=of(0, 1, 3, 5), bags=[4, -1]), r"2 keys with \[4, -1\] bags"),
            (Jagged(IDS, offsets=of(0, 1, 3, 5), bags=[3]), r"2 keys with \[3\] bags"),
            (Jagged(IDS, offsets=of(0, 1, 3, 5), bags=[2, 1]), "feature 'x' has 2 bags and 'y' 1: want as many"),
            (Jagged(IDS.view(1, 5), offsets=of(0, 2, 5)), "values of 2 dimensions: want 1"),
            (Jagged(IDS, offsets=of(0, 1, 5), inverse_indices_or_none=(["x"], of(0, 0))), r"inverse indices of \['x'\]"),
            (
                Jagged(IDS, offsets=of(0, 1, 5), inverse_indices_or_none=(["y", "x"], of(0, 0, 0, 1).view(2, 2))),
                "feature 'x': inverse indices from 0 to 1: want 0 to 0",
            ),
        ):
            with pytest.raises(gradbus.ArgumentError, match=says):
                emb(wrong)
        rows = {name: session.read_table(name) for name in "xy"}
        for right in (
            Jagged(IDS, offsets=of(0, 1, 3, 4, 5)),
            Jagged(IDS, lengths=of(1, 2, 1, 1, dtype=torch.int32)),
            Jagged(IDS, lengths=of(1, 2, 1, 1).view(2, 2), bags=[2, 2]),
        ):
            out = emb(right)
            assert torch.equal(out["x"], torch.stack([rows["x"][3], rows["x"][1] + rows["x"][4]]))
            assert torch.equal(out["y"], torch.stack([rows["y"][1], rows["y"][5]]))


@pytest.mark.parametrize(
    "ids, weights, says",
    [
        (of(1, 2).to_sparse(), None, "ids are torch.sparse_coo: want torch.strided"),
        (of(1, 2), torch.ones(3), r"per_sample_weights \[3\]: want the shape of input, \[2\]"),
        (of(1, 2), of(1, 2), "per_sample_weights are torch.int64: want a tensor of floats"),
        (of(1, 2), torch.ones(2).to_sparse(), "per_sample_weights are torch.sparse_coo"),
        (of(1, 2), [1.0, 2.0], "per_sample_weights are list"),
        ([1, 2], None, "ids are list: want a tensor"),
    ],
)
def test_ids_and_weights_that_do_not_fit(ids: Any, weights: Any, says: str) -> None:
    with gradbus.local("ids") as session:
        bag = gradbus.EmbeddingBag(ROWS, 2, mode="sum", name="t")
        emb = gradbus.EmbeddingBagCollection({"x": bag})
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        for form in (bag, lambda *given: emb({"x": given})):
            with pytest.raises(gradbus.ArgumentError, match=says):
                form(ids, of(0, 1), weights)
        if weights is None:
            with pytest.raises(gradbus.ArgumentError, match=says):
                session.lookup("t", ids)
