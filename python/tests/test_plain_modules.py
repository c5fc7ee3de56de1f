"""Models of every kind that trains, and the same ones of plain PyTorch: a saved file gives the plain module its outputs,
and a file of the plain module's state begins a job with them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable, Dict

import pytest
import torch
from torch import nn

import gradbus

ROWS, DIM, BAG = 12, 4, 3
IDS = torch.tensor([[1, 5, 0], [11, 1, 1], [0, 0, 7], [5, 2, 3]])
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}


def write_plain(path: Any, state: Dict[str, torch.Tensor], **metadata: str) -> None:
    """A safetensors file in the order of the state, so with tensors that are not aligned."""
    header: Dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, value in state.items():
        raw = bytes(value.detach().contiguous().flatten().view(torch.uint8).tolist()) if value.dim() else None
        if raw is None:
            raw = bytes(value.detach().reshape(1).view(torch.uint8).tolist())
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Base(nn.Module):
    """Rows of a table, and a layer behind them."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.rows = self.table(plain)
        self.last = nn.Linear(DIM, 2)

    def table(self, plain: bool) -> nn.Module:
        return nn.EmbeddingBag(ROWS, DIM, mode="sum") if plain else gradbus.EmbeddingBag(ROWS, DIM, mode="sum")

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.rows(ids)))


class Norm(Base):
    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.norm = nn.BatchNorm1d(DIM)

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        return self.norm(rows)


class Frozen(Norm):
    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.norm.requires_grad_(False)
        self.last.bias.requires_grad_(False)


class Tied(Base):
    """A parameter of two layers, and a layer under two names."""

    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.a, self.b, self.again = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), self.last
        self.b.weight = self.a.weight

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(rows))) + self.again(rows).sum()


class TiedFrozen(Tied):
    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.requires_grad_(False)
        self.rows.requires_grad_(True)


class Padded(Base):
    def table(self, plain: bool) -> nn.Module:
        kind = nn.EmbeddingBag if plain else gradbus.EmbeddingBag
        return kind(ROWS, DIM, mode="mean", padding_idx=0)


class PaddedEmbedding(Base):
    def table(self, plain: bool) -> nn.Module:
        return (nn.Embedding if plain else gradbus.Embedding)(ROWS, DIM, padding_idx=-ROWS + 1)

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.flatten(0, 1)


class HashedPlain(nn.EmbeddingBag):
    def forward(self, ids: torch.Tensor, *_: Any) -> torch.Tensor:
        return super().forward(gradbus.hash_id(ids, ROWS, 7))


class Hashed(Base):
    def table(self, plain: bool) -> nn.Module:
        kind: Any = HashedPlain(ROWS, DIM, mode="max")
        return kind if plain else gradbus.EmbeddingBag(ROWS, DIM, mode="max", hashed=True, salt=7)


class Shared(Base):
    """A table of two modules, and one under two names; a name that is not its path."""

    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        if plain:
            self.left, self.right = nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)
            self.right.weight = self.left.weight
        else:
            self.left, self.right = gradbus.Embedding(ROWS, DIM, name="t"), gradbus.Embedding(ROWS, DIM, name="t")
        self.again = self.rows

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.left(IDS[:, 0]) + self.right(IDS[:, 1]) + self.again(IDS)


class Collected(nn.Module):
    """What a collection of bags is in plain PyTorch."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        if plain:
            self.bags = nn.ModuleDict({name: nn.EmbeddingBag(ROWS, DIM, mode="sum") for name in ("x", "y")})
        else:
            self.bags = gradbus.EmbeddingBagCollection(
                {name: gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name="t" + name) for name in ("x", "y")}
            )
        self.last = nn.Linear(DIM, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(self.bags, nn.ModuleDict):
            return self.last(self.bags["x"](ids) * self.bags["y"](ids + 0))
        pooled = self.bags({"x": ids, "y": ids})
        return self.last(pooled["x"] * pooled["y"])


class Various(Base):
    """Parameters of half precision and without dimensions, buffers of many types, one of them shared, one not kept."""

    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.low = nn.Linear(DIM, DIM).to(torch.bfloat16)
        self.scale = nn.Parameter(torch.rand(()))
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.rand(DIM) > 0.3)
        self.register_buffer("counts", torch.randint(0, 9, (3,)))
        self.register_buffer("same", self.counts)
        self.register_buffer("halves", torch.rand(2).half())
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("scratch", torch.rand(2, dtype=torch.complex64), persistent=False)

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        more = rows * self.mask * self.scale + self.counts.sum() + self.halves.sum()
        return more + self.low(rows.to(torch.bfloat16)).float()


class Layers(Base):
    """Layers whose states PyTorch makes in ways of its own."""

    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.spectral = nn.utils.spectral_norm(nn.Linear(DIM, DIM))
        self.weight = nn.utils.parametrizations.orthogonal(nn.Linear(DIM, DIM))

    def between(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self.rnn(rows[None])[0]
        return self.weight(self.spectral(self.attention(rows, rows, rows)[0][0]))


KINDS = [Base, Norm, Frozen, Tied, TiedFrozen, Padded, PaddedEmbedding, Hashed, Shared, Collected, Various, Layers]


def made(session: Any, kind: Callable[[bool], nn.Module], seed: int, dense: bool) -> Any:
    torch.manual_seed(seed)
    model, sgd = kind(False), gradbus.SGD(0.125)
    opt = gradbus.Optimizer(model, session, embeddings=sgd, dense=sgd if dense else None)
    rest = [p for p in model.parameters() if p.requires_grad and p.numel()] if not dense else []
    return model, opt, torch.optim.SGD(rest, lr=0.125) if rest else None


def outputs(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(IDS)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_file_gives_a_plain_module_its_outputs(kind: Any, dense: bool, tmp_path: Any) -> None:
    path, plain_path = tmp_path / "saved", tmp_path / "plain"
    with gradbus.local("first", shards=2) as session:
        model, opt, rest = made(session, kind, 1, dense)
        for _ in range(2):
            model(IDS).square().sum().backward()
            opt.step()
            opt.zero_grad()
            if rest is not None:
                rest.step()
                rest.zero_grad()
        want, digest = outputs(model), session.digest()
        session.save(path)
        parts = [m for m in model.modules() if isinstance(m, gradbus.Embedding) and m.padding_idx is not None]
        for part in parts:
            assert not session.lookup(part, torch.tensor([part.padding_idx])).any()
        state = gradbus.plain_state_dict(model)
    torch.manual_seed(2)
    plain = kind(True)
    with gradbus.open_model(path, verify=True) as saved:
        assert saved.digest == digest
        saved.load_into(plain)
        assert {k: v.tolist() for k, v in plain.state_dict().items()} == {k: v.tolist() for k, v in state.items()}
    assert torch.equal(outputs(plain), want)
    write_plain(plain_path, plain.state_dict())
    for start in path, plain_path:
        with gradbus.local("again", start=start) as session:
            model, _, _ = made(session, kind, 3, dense)
            assert torch.equal(outputs(model), want)
            # A plain parameter of half precision lacks bits of the servers'.
            assert session.digest() == digest or start is plain_path and kind is Various and dense
    with gradbus.local("loaded") as session:
        model, _, _ = made(session, kind, 4, dense)
        model.load_state_dict(plain.state_dict())
        assert torch.equal(outputs(model), want)


def test_rows_by_raw_ids(tmp_path: Any) -> None:
    """Of a hashed table `lookup` takes what its module takes, in a session and in a file."""
    ids = torch.tensor([[5, -5], [2**63 - 1, 40]])
    with gradbus.local("raw") as session:
        seven, eight = (gradbus.Embedding(ROWS, DIM, name="t", hashed=True, salt=salt) for salt in (7, 8))
        alone = gradbus.EmbeddingBag(ROWS, DIM, name="alone", hashed=True, salt=2**64 - 7, mode="sum", pool="servers")
        opt = gradbus.Optimizer([seven, eight, alone], session, embeddings=gradbus.SGD(1.0))
        (seven(ids).sum() + alone(ids).sum()).backward()
        opt.step()
        for module in seven, eight, alone:
            module.eval()
            assert torch.equal(session.lookup(module, ids), session.read_table(module.table)[gradbus.hash_id(ids, ROWS, module.salt)])
        assert torch.equal(session.lookup(seven, ids), seven(ids)) and not torch.equal(seven(ids), eight(ids))
        assert [table["salts"] for table in session.job["tables"]] == [[7, 8], [-7]]
        want = session.lookup("alone", ids)
        assert torch.equal(want.sum(1), alone(ids))
        with pytest.raises(gradbus.ArgumentError, match=r"'t'.*salts \[7, 8\].*lookup\(module, ids\)"):
            session.lookup("t", ids)
        session.save(tmp_path / "saved")
    with gradbus.open_model(tmp_path / "saved") as saved:
        assert torch.equal(saved.lookup("alone", ids), want)
        with pytest.raises(gradbus.ArgumentError, match=r"'t'.*hash_id\(ids, 12, salt\)"):
            saved.lookup("t", ids)


def test_modules_of_a_table_have_one_padding() -> None:
    with gradbus.local("one") as session:
        gradbus.Embedding(ROWS, DIM, 0, name="t", session=session)
        with pytest.raises(gradbus.ConfigError, match="'padding': 0"):
            gradbus.Embedding(ROWS, DIM, name="t", session=session)


@pytest.mark.parametrize("way", ["start", "load_state_dict"])
def test_the_padding_of_a_plain_file_is_zeros(way: str, tmp_path: Any) -> None:
    plain = nn.EmbeddingBag(ROWS, DIM, padding_idx=2)
    nn.init.ones_(plain.weight)
    write_plain(tmp_path / "plain", plain.state_dict())
    with gradbus.local("pads", start=tmp_path / "plain" if way == "start" else None) as session:
        model = gradbus.EmbeddingBag(ROWS, DIM, padding_idx=2, name="t")
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        if way == "load_state_dict":
            model.load_state_dict(plain.state_dict())
        assert session.lookup("t", torch.arange(ROWS)).sum(1).tolist() == [4, 4, 0] + [4] * (ROWS - 3)


@pytest.mark.parametrize("way", ["start", "load_state_dict"])
@pytest.mark.parametrize("differ", [False, True])
def test_rows_of_one_table_by_two_keys_are_equal(way: str, differ: bool, tmp_path: Any) -> None:
    """A table has one set of rows: where a plain state has two that differ, one of them would be lost."""
    rows = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
    state = {"left.weight": rows, "right.weight": rows.clone()}
    if differ:
        state["right.weight"][-1, -1] += 1
    write_plain(tmp_path / "plain", state)
    with gradbus.local("shares", start=tmp_path / "plain" if way == "start" else None) as session:
        shared = gradbus.EmbeddingBag(ROWS, DIM, name="t")
        model = gradbus.EmbeddingBagCollection({"left": shared, "right": shared})
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))

        def begin() -> torch.Tensor:
            if way == "load_state_dict":
                model.load_state_dict(dict(state))
            return session.lookup("t", torch.arange(ROWS))

        if differ:
            with pytest.raises(gradbus.ConfigError, match="'left.weight' and 'right.weight' differ"):
                begin()
        else:
            assert torch.equal(begin(), rows)


def test_a_layer_is_frozen_or_left_to_the_script_from_a_file_on(tmp_path: Any) -> None:
    """Who trains what may change with a file: all of the state is in it, whoever has had it."""
    kinds: Dict[str, Any] = {"trained": Norm, "frozen": Frozen}
    wants = {}
    for name, kind in kinds.items():
        with gradbus.local(name) as session:
            model, opt, _ = made(session, kind, 1, True)
            model(IDS).square().sum().backward()
            opt.step()
            wants[name] = outputs(model)
            session.save(tmp_path / name)
    for name in kinds:
        for kind in kinds.values():
            for dense in True, False:
                with gradbus.local("other", start=tmp_path / name) as session:
                    model, opt, _ = made(session, kind, 4, dense)
                    assert torch.equal(outputs(model), wants[name])


def test_a_file_with_more_than_the_model_has(tmp_path: Any) -> None:
    """Also where the servers train the same."""

    class Fewer(Base):
        def __init__(self, plain: bool) -> None:
            super().__init__(plain)
            self.last.bias.requires_grad_(False)

    with gradbus.local("more") as session:
        made(session, Frozen, 1, True)
        session.save(tmp_path / "more")
    with gradbus.local("fewer", start=tmp_path / "more") as session:
        made(session, Fewer, 1, True)
        with pytest.raises(gradbus.ConfigError, match=r"'norm.running_mean'.*and the model has not"):
            session.start()


def test_files_of_others(tmp_path: Any) -> None:
    """A tied tensor may be there once: under the name that the file notes, or under any that the model has."""
    torch.manual_seed(5)
    plain = Tied(True)
    want, state = outputs(plain), plain.state_dict()
    assert state.pop("b.weight") is not None
    for gone in "last.weight", "last.bias":
        del state[gone]
    write_plain(tmp_path / "tied", state)
    write_plain(tmp_path / "noted", state, **{"b.weight": "a.weight", "last.weight": "again.weight", "last.bias": "again.bias"})

    write_plain(tmp_path / "all", plain.state_dict())

    class Untied(Tied):
        def __init__(self, plain: bool) -> None:
            super().__init__(plain)
            self.b = nn.Linear(DIM, DIM)
            self.last = nn.Linear(DIM, 2)

    for kind, file in (Tied, "tied"), (Tied, "noted"), (Untied, "noted"):
        with gradbus.local("others", start=tmp_path / file) as session:
            assert torch.equal(outputs(made(session, kind, 3, True)[0]), want)
    for kind, file, says in (
        (Untied, "tied", r"\['last.weight', 'last.bias', 'b.weight'\].*no such one"),
        (Norm, "tied", "'norm.weight'.*no such one"),
        (Base, "all", r"\['a.bias', 'a.weight', 'again.bias', 'again.weight', 'b.bias', 'b.weight'\], and the model has not"),
    ):
        with gradbus.local("unlike", start=tmp_path / file) as session, pytest.raises(gradbus.ConfigError, match=says):
            made(session, kind, 3, True)
            session.start()
    state["last.weight"], state["last.bias"] = torch.zeros(3, DIM), torch.zeros(2)
    write_plain(tmp_path / "shape", state)
    with gradbus.local("shape", start=tmp_path / "shape") as session:
        with pytest.raises(gradbus.ConfigError, match="does not fit the model.*size mismatch for last.weight"):
            made(session, Tied, 3, True)


class Buffered(Base):
    def __init__(self, value: Any) -> None:
        super().__init__(False)
        if isinstance(value, str):
            self.register_buffer(value, torch.zeros(1))
        else:
            self.register_buffer("odd", value)


class Extra(Base):
    def __init__(self, value: Any) -> None:
        super().__init__(False)
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


@pytest.mark.parametrize(
    "value, says",
    [
        (torch.zeros(2, dtype=torch.complex64), "'odd'.*torch.complex64.*persistent=False"),
        (torch.zeros(2).to_sparse(), "'odd'.*sparse_coo"),
        (torch.zeros(2, device="meta"), "'odd'.*on meta"),
        ({"steps": 3}, "'_extra_state'.*dict.*get_extra_state"),
        ("__metadata__", "'__metadata__'.*name that a file cannot have"),
        ("a\0b", "name that a file cannot have"),
    ],
)
def test_what_a_file_cannot_have_is_refused_at_the_start(value: Any, says: str) -> None:
    with gradbus.local("odd") as session:
        model = (Extra if isinstance(value, dict) else Buffered)(value)
        with pytest.raises(gradbus.ConfigError, match=says):
            gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1))


def test_names_that_meet_are_refused_at_the_start() -> None:
    for name, says in (("odd", "'odd'.*called as a table"), ("last.weight", "table and of a tensor|last.weight")):
        with gradbus.local("meet") as session:
            model = Base(False)
            model.register_buffer("odd", torch.zeros(1))
            model.more = gradbus.Embedding(2, 2, name=name)
            with pytest.raises(gradbus.ConfigError, match=says):
                gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1))
                session.start()


TRAINER = """
import sys, torch, gradbus
sys.path.insert(0, sys.argv[4])
from test_plain_modules import IDS, Norm, made, outputs
session = gradbus.join(sys.argv[1], "several", trainers=int(sys.argv[2]), lanes=2, start=sys.argv[3])
model, opt, _ = made(session, Norm, 3, True)
torch.set_num_threads(1)
model.norm.eval()  # whose statistics are each trainer's own
for step in range(2):
    for lane in session.lanes:
        model(IDS[lane::2]).square().sum().backward()
        opt.step()
        opt.zero_grad()
print(session.digest(), outputs(model).tolist())
session.close()
"""


def test_several_trainers_begin_with_a_plain_file(start: Any, tmp_path: Any) -> None:
    """One or two, they have the weights of one."""
    torch.manual_seed(6)
    plain = Norm(True)
    plain.train()
    plain(IDS)
    write_plain(tmp_path / "plain", plain.state_dict())
    said, here = set(), pathlib.Path(__file__).parent
    for trainers in 1, 2:
        _, server = start.ps("--shards", trainers)
        programs = [start.python(TRAINER, server, trainers, tmp_path / "plain", here) for _ in range(trainers)]
        for program in programs:
            assert program.end() == 0, program.said()
            said.add(program.out.read_text())
    assert len(said) == 1, said
