"""EmbeddingBagCollection against a bag for each feature, on the same rows; and that it asks for all tables together."""

from __future__ import annotations

import collections
from typing import Any, Dict, Optional

import pytest
import torch

import gradbus

ROWS = 40


class Jagged:
    """Shaped like TorchRec's KeyedJaggedTensor, as far as that is used."""

    def __init__(
        self, keys: Any, values: torch.Tensor, lengths: torch.Tensor, weights: Optional[torch.Tensor] = None
    ) -> None:
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights

    def keys(self) -> Any:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def weights_or_none(self) -> Optional[torch.Tensor]:
        return self._weights


class JaggedOffsets(Jagged):
    def offsets(self) -> torch.Tensor:
        return torch.cat([self._lengths.new_zeros(1), self._lengths.cumsum(0)])

    lengths = None  # type: ignore[assignment]


def collection(
    dims: Any = (4, 4, 4), modes: Any = ("sum", "sum", "sum"), padding: Any = (None, None, None), weighted: bool = False
) -> gradbus.EmbeddingBagCollection:
    """Features a, b, c and d, of which b and d share a table."""
    bags = [gradbus.EmbeddingBag(ROWS + i, dims[i], mode=modes[i], padding_idx=padding[i]) for i in range(3)]
    return gradbus.EmbeddingBagCollection({"a": bags[0], "b": bags[1], "c": bags[2], "d": bags[1]}, weighted)


def reference(emb: gradbus.EmbeddingBagCollection, session: gradbus.Session) -> Dict[str, torch.nn.EmbeddingBag]:
    """torch.nn's, by feature, with the session's rows."""
    out: Dict[str, torch.nn.EmbeddingBag] = {}
    made: Dict[int, torch.nn.EmbeddingBag] = {}
    for i, feature in enumerate(emb.features):
        module = emb._module(i)
        if id(module) not in made:
            bag = torch.nn.EmbeddingBag(
                module.num_embeddings, module.embedding_dim, mode=module.mode, padding_idx=module.padding_idx
            )
            bag.weight.data = session.lookup(module.name, torch.arange(module.num_embeddings))
            made[id(module)] = bag
        out[feature] = made[id(module)]
    return out


def features(kind: torch.dtype = torch.int64) -> Dict[str, Any]:
    """Three bags of each feature, by the four ways to say them."""
    return {
        "a": torch.tensor([5, 7, 5], dtype=kind),
        "b": torch.tensor([[1, 2], [2, 2], [0, 39]], dtype=kind),
        "c": (torch.tensor([8, 9, 8, 1], dtype=kind), torch.tensor([0, 3, 3], dtype=kind)),
        "d": (torch.tensor([2, 3], dtype=kind), torch.tensor([0, 0, 1])),
    }


def bags_of(given: Any) -> Any:
    """ids and offsets of a feature, for torch.nn."""
    if isinstance(given, tuple):
        return given[0].long(), given[1].long(), *given[2:]
    ids = given.reshape(given.shape[0], -1).long()
    return ids.reshape(-1), torch.arange(ids.shape[0]) * ids.shape[1]


def check(emb: Any, given: Any, plain: Dict[str, Any]) -> None:
    """One step of the collection and of bags for each feature; tables have equal bits where each table's sums have one
    order."""
    with gradbus.local("collection") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        bags = reference(emb, session)
        theirs = torch.optim.SGD([b.weight for b in set(bags.values())], lr=1.0)
        for step in range(2):
            out = emb(given)
            assert out.keys() == emb.features and len(out) == len(emb.features)
            wants = {}
            for feature, (ids, offsets, *weights) in ((f, bags_of(plain[f])) for f in emb.features):
                wants[feature] = bags[feature](ids, offsets, *weights)
                assert torch.equal(out[feature], wants[feature])
            assert torch.equal(out.values(), torch.cat(list(wants.values()), 1))
            scale = torch.arange(1.0, 1 + out.values().shape[1]) * 0.125
            opt.zero_grad()
            theirs.zero_grad()
            (out.values() * scale).sum().backward()
            (torch.cat(list(wants.values()), 1) * scale).sum().backward()
            opt.step()
            theirs.step()
            for feature, bag in bags.items():
                name = emb._module(emb.features.index(feature)).name
                rows = session.lookup(name, torch.arange(bag.num_embeddings))
                if bag.padding_idx is not None:
                    rows[bag.padding_idx] = bag.weight[bag.padding_idx].detach()
                assert torch.equal(rows, bag.weight)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_named_features(mode: str, kind: torch.dtype) -> None:
    """One dim and mode: all features are one operation. Gradients are multiples of 1/8, so sums of them have no
    rounding in any order."""
    check(collection(modes=(mode,) * 3), features(kind), features())


def test_several_dims_modes_and_paddings() -> None:
    emb = collection(dims=(4, 6, 6), modes=("sum", "mean", "max"), padding=(None, 2, None))
    assert len(emb._groups) == 3
    check(emb, features(), features())


def test_weights() -> None:
    """A feature with weights beside those without."""
    given = features()
    given["c"] = (*given["c"], torch.tensor([0.5, 2.0, 1.0, 0.25]))
    check(collection(), given, given)


@pytest.mark.parametrize("shape", [Jagged, JaggedOffsets])
@pytest.mark.parametrize("weighted", [False, True])
def test_jagged(shape: Any, weighted: bool) -> None:
    """A KeyedJaggedTensor, whose keys may be more and in another order. Its weights count where the collection is
    weighted."""
    plain = {name: bags_of(given) for name, given in features().items()}
    order, values, lengths = ["d", "other", "a", "c", "b"], [], []
    plain["other"] = (torch.tensor([77, 78]), torch.tensor([0, 1, 2]))
    for name in order:
        ids, offsets = plain[name]
        values.append(ids)
        lengths.append(torch.diff(torch.cat([offsets, torch.tensor([ids.numel()])])))
    flat = torch.cat(values)
    weights = torch.arange(flat.numel()) * 0.25
    if weighted:
        at = 0
        for name, ids in zip(order, values):
            plain[name] = (*plain[name], weights[at : at + ids.numel()])
            at += ids.numel()
    check(collection(weighted=weighted), shape(order, flat, torch.cat(lengths), weights), plain)


def test_columns() -> None:
    """One id a bag, a column a feature; the result as a block."""
    ids = torch.tensor([[1, 2, 3, 2], [4, 5, 3, 6]])
    check(collection(), ids, {name: ids[:, i] for i, name in enumerate("abcd")})
    emb = collection()
    with gradbus.local("columns") as session:
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        out = emb(ids)
        assert out.stacked().shape == (2, 4, 4)
        assert torch.equal(out.stacked(), torch.stack([out[f] for f in "abcd"], 1))
        assert list(out.to_dict()) == list("abcd")


def test_one_lookup() -> None:
    """Tables of three groups are asked for by one call of the library, and so are those of an evaluation."""
    emb = collection(dims=(4, 6, 8))
    with gradbus.local("one") as session:
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        session.start()
        calls: Any = collections.Counter()
        lookup = session.native.lookup

        def counted(*arguments: Any) -> Any:
            calls[arguments[3]] += 1
            return lookup(*arguments)

        session.native.__dict__["lookup"] = counted
        try:
            emb(features())
            emb.eval()
            emb(features())
        finally:
            session.native.__dict__["lookup"] = lookup
        assert calls == {3: 2}


def test_names() -> None:
    """A module without a name is called by the collection's place and its first feature."""
    model = torch.nn.ModuleDict({"sparse": collection()})
    with gradbus.local("names") as session:
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        assert [table["name"] for table in session.job["tables"]] == ["sparse.a", "sparse.b", "sparse.c"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dims", [(4, 4, 4), (4, 6, 8)])
def test_a_batch_without_samples(mode: str, dims: Any) -> None:
    """Features are [0, dim], and a step moves nothing."""
    emb, none = collection(dims=dims, modes=(mode,) * 3), torch.zeros(0, dtype=torch.int64)
    with gradbus.local("none") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0, weight_decay=0.5))
        before = session.digest()
        for given in (
            {name: none for name in "abcd"},
            {name: none.view(0, 3) for name in "abcd"},
            {name: (none, none) for name in "abcd"},
            none.view(0, 4),
            Jagged(list("abcd"), none, none),
            JaggedOffsets(list("abcd"), none, none),
        ):
            for train in True, False:
                out = emb.train(train)(given)
                assert [tuple(out[f].shape) for f in "abcd"] == [(0, dims[0]), (0, dims[1]), (0, dims[2]), (0, dims[1])]
                assert out.values().shape == (0, dims[0] + 2 * dims[1] + dims[2])
                if train:
                    out.values().sum().backward()
                    opt.step()
        assert session.batch == 6 and session.digest() == before
        one = gradbus.EmbeddingBagCollection({"a": emb.bags[0]})
        assert one({"a": none}).values().shape == one({"a": none}).stacked().flatten(1).shape == (0, dims[0])


def test_refusals() -> None:
    with pytest.raises(gradbus.ConfigError, match="feature 'a' has mode 'mean': want 'sum' with is_weighted=True"):
        collection(modes=("mean", "sum", "sum"), weighted=True)
    with pytest.raises(gradbus.ConfigError, match="want at least one"):
        gradbus.EmbeddingBagCollection({})
    with pytest.raises(gradbus.ConfigError, match="feature 'a' is Embedding: want gradbus.EmbeddingBag"):
        gradbus.EmbeddingBagCollection({"a": gradbus.Embedding(3, 3)})  # type: ignore[dict-item]
    emb = collection()
    with gradbus.local("refusals") as session:
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        given = features()
        for wrong, says in (
            ({"a": given["a"]}, r"features \['b', 'c', 'd'\] are missing"),
            ({**given, "a": torch.tensor([1, 2])}, "feature 'b' has 3 bags and 'a' 2: want as many of each"),
            ({**given, "a": torch.zeros(1, 1, 1).long()}, "feature 'a': ids of 3 dimensions"),
            ({**given, "c": (torch.tensor([1]), torch.tensor([1, 1, 1]))}, "feature 'c': offsets begin at 1: want 0"),
            (
                {**given, "c": (torch.tensor([1, 2]), torch.tensor([0, 1, 1]), torch.ones(3))},
                r"feature 'c': per_sample_weights \[3\]",
            ),
            (torch.zeros(2, 3).long(), r"features of shape \[2, 3\]: want \[bags, 4\]"),
            (Jagged(["a", "b"], torch.zeros(2).long(), torch.ones(2).long()), r"features \['c', 'd'\] are missing"),
            (Jagged(list("abcd"), torch.zeros(5).long(), torch.ones(5).long()), "6 offsets of 4 features"),
            (3, "features are int: want a mapping"),
            ({**given, "c": (given["a"],)}, r"feature 'c' is tuple: want ids, \(ids, offsets\) or"),
        ):
            with pytest.raises(gradbus.ArgumentError, match=says):
                emb(wrong)
        weighted = collection(weighted=True)
        for module, ours in zip(weighted.bags, emb.bags):
            module.name = ours.name
            module.bind(session, ours.name)
        jagged = Jagged(list("abcd"), torch.zeros(4).long(), torch.ones(4).long())
        with pytest.raises(gradbus.ArgumentError, match="features without weights: want them, since"):
            weighted(jagged)
        with pytest.raises(gradbus.IdError, match='table "b".* is 41'):
            emb({**given, "d": torch.tensor([1, 41, 2])})


def test_tables_of_unequal_counts() -> None:
    """As many ids on the whole as if each table had the first one's count."""
    given = features()
    given["a"] = (torch.tensor([5, 7, 5]), torch.tensor([0, 1, 2]))
    given["b"] = (torch.tensor([1]), torch.tensor([0, 1, 1]))
    given["d"] = (torch.tensor([39]), torch.tensor([0, 0, 1]))
    given["c"] = torch.tensor([[8, 0], [9, 1], [40, 41]])
    bags = [gradbus.EmbeddingBag(ROWS + i, 4, mode="sum") for i in range(3)]
    check(gradbus.EmbeddingBagCollection(dict(zip("abc", bags))), given, given)
    emb = collection()
    given["c"] = (torch.tensor([8, 0, 9, 41]), torch.tensor([0, 1, 2]))  # 3, 2 and 4 ids: 9 in all
    check(emb, given, given)
