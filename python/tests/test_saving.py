"""Saved models and states: what is in them, what is read without a server, and what a job begins with."""

from __future__ import annotations

import copy
import io
import pickle
import re

import pytest
import torch
from torch import nn

import gradbus


class Model(nn.Module):
    """The same with gradbus's tables and with PyTorch's."""

    def __init__(self, plain=False):
        super().__init__()
        torch.manual_seed(11)
        kinds = (nn.EmbeddingBag, nn.Embedding) if plain else (gradbus.EmbeddingBag, gradbus.Embedding)
        self.users, self.films = kinds[0](40, 4, mode="sum"), kinds[1](30, 3)
        self.last = nn.Linear(7, 2)

    def forward(self, users, films):
        return self.last(torch.cat([self.users(users), self.films(films)], 1))


def batch(i):
    g = torch.Generator().manual_seed(i)
    return (
        torch.randint(0, 40, (5, 3), generator=g),
        torch.randint(0, 30, (5,), generator=g),
        torch.randint(0, 2, (5,), generator=g),
    )


def train(model, opt, steps, first=0):
    for i in range(first, first + steps):
        users, films, labels = batch(i)
        nn.functional.cross_entropy(model(users, films), labels).backward()
        opt.step()
        opt.zero_grad()


def made(name="saves", momentum=0.0, dense=True, **more):
    session = gradbus.local(name, **more)
    model = Model()
    sgd = gradbus.SGD(0.5, momentum=momentum)
    return session, model, gradbus.Optimizer(model, session, embeddings=sgd, dense=sgd if dense else None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file, and what its session knew: (path, digest, rows by table, output)."""
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    session, model, opt = made(shards=2)
    with session:
        train(model, opt, 4)
        session.save(path)
        rows = {name: session.lookup(name, torch.arange(n)) for name, n in (("users", 40), ("films", 30))}
        model.eval()
        return path, session.digest(), rows, model(*batch(9)[:2]).detach()


def test_a_saved_model_is_read_without_a_server(saved):
    path, digest, rows, out = saved
    with gradbus.open_model(path) as model:
        assert model.digest == digest and model.version == 4
        assert model.tables == {"users": (40, 4), "films": (30, 3)} and model.parameters == ["last.weight", "last.bias"]
        for name, want in rows.items():
            assert torch.equal(model.table(name), want)
        ids = torch.tensor([[3, 39], [3, 0]], dtype=torch.int32)
        assert torch.equal(model.lookup("users", ids), rows["users"][ids.long()])
        assert model.lookup("films", torch.empty(0, dtype=torch.int64)).shape == (0, 3)
        plain = Model(plain=True)
        model.load_into(plain)
        assert torch.equal(plain(*batch(9)[:2]), out)
        plain(*batch(9)[:2]).sum().backward()
        with torch.no_grad():
            plain.users.weight.add_(1)  # copied: neither the file nor the model has it
        assert torch.equal(model.table("users"), rows["users"])
        model.table("users").zero_()  # nor does the file have what is written to its pages
    with gradbus.open_model(path, verify=True) as model:
        assert torch.equal(model.table("users"), rows["users"])
    with pytest.raises(gradbus.ClosedError, match="closed"):
        model.table("users")


def test_other_names_of_tables(saved):
    with gradbus.open_model(saved[0]) as model:
        state = model.state_dict({"users": "embeddings.0.weight"})
        assert sorted(state) == ["embeddings.0.weight", "films.weight", "last.bias", "last.weight"]
        with pytest.raises(gradbus.ArgumentError, match="last.bias"):
            model.state_dict({"users": "last.bias"})
        with pytest.raises(gradbus.ArgumentError, match="'user'.*films.*users"):
            model.state_dict({"user": "x"})
        with pytest.raises(RuntimeError, match="films.weight"):
            model.load_into(nn.Linear(7, 2))


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda m: m.table("last.bias"), gradbus.ArgumentError, "'last.bias'.*films"),
        (lambda m: m.param("users"), gradbus.ArgumentError, "'users'.*last.weight"),
        (lambda m: m.lookup("users", torch.tensor([1, 40])), IndexError, "'users'.*number 1 is 40.*0 to 39"),
        (lambda m: m.lookup("users", torch.tensor([[-1]])), gradbus.IdError, "number 0 is -1"),
        (lambda m: m.lookup("users", torch.tensor([1.0])), gradbus.ArgumentError, "float32.*int64"),
        (lambda m: m.lookup("users", [1]), gradbus.ArgumentError, "list.*int64"),
    ],
)
def test_what_a_saved_model_refuses(saved, call, error, says):
    with gradbus.open_model(saved[0]) as model, pytest.raises(error, match=says):
        call(model)


def test_files_that_are_no_models(saved, tmp_path):
    whole = saved[0].read_bytes()
    at = whole.index(b'"gradbus.manifest"')
    for name, data, says in [
        ("empty", b"", "empty"),
        ("short", whole[:7], "not a file that session.save wrote"),
        ("cut", whole[:-4], "want"),
        ("longer", whole + b"\0", "want"),
        ("header", whole[:8] + b"[" + whole[9:], "not a file"),
        ("length", b"\xff" * 8 + whole[8:], "header"),
        ("manifest", whole[:at] + b'"gradbus.manifold"' + whole[at + 18 :], "manifest"),
        ("format", whole.replace(b"gradbus model 1", b"gradbus model 9"), "format is 'gradbus model 9'"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(gradbus.FileError, match=f"{re.escape(str(path))}.*{says}"):
            gradbus.open_model(path)
    with pytest.raises(OSError, match="nowhere"):
        gradbus.open_model(tmp_path / "nowhere")
    changed = tmp_path / "changed"
    changed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    gradbus.open_model(changed).close()
    with pytest.raises(gradbus.FileError, match="digest"):
        gradbus.open_model(changed, verify=True)


def test_a_job_begins_with_a_saved_model(saved):
    """Rows and dense parameters; on other shards; and it goes on as the job that was saved does, for SGD without
    slots."""
    path, digest, rows, _ = saved
    session, model, opt = made("begins", start=path, shards=3)
    with session:
        assert torch.equal(session.lookup("users", torch.arange(40)), rows["users"])
        with gradbus.open_model(path) as file:
            assert torch.equal(model.last.weight, file.param("last.weight"))
        assert session.digest() == digest
        train(model, opt, 3, first=4)
        begun = session.digest()
    session, model, opt = made("whole")
    with session:
        train(model, opt, 7)
        assert session.digest() == begun


def test_what_a_job_cannot_begin_with(saved, tmp_path):
    with pytest.raises(gradbus.FileError, match="nowhere"):
        gradbus.local("x", start=tmp_path / "nowhere")
    session = gradbus.local("x", start=saved[0])
    with session:
        model = nn.Sequential(gradbus.Embedding(40, 4, name="users"), nn.Linear(4, 2))
        with pytest.raises(gradbus.ConfigError, match="'1.weight'.*no such one"):
            gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1))
        gradbus.Optimizer(model[0], session, embeddings=gradbus.SGD(0.1))
        with pytest.raises(gradbus.ConfigError, match=r"\['films.weight', 'last.bias', 'last.weight'\].*has not"):
            session.start()


def test_a_state_holds_dense_values_and_no_rows(saved, tmp_path):
    session, model, opt = made("states")
    with session:
        train(model, opt, 4)
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "state.pt")
        session.save(tmp_path / "rows.safetensors")
        train(model, opt, 2, first=4)
        want = session.digest()
    state = torch.load(tmp_path / "state.pt")
    tensors = {name for name, value in state["model"].items() if isinstance(value, torch.Tensor)}
    assert tensors == {"last.weight", "last.bias"}
    assert state["model"]["users._extra_state"] == {
        "format": "gradbus table 1",
        "table": "users",
        "rows": 40,
        "dim": 4,
        "version": 4,
    }
    assert [group["lr"] for group in state["opt"]["param_groups"]] == [0.5, 0.5] and state["opt"]["state"] == {}

    session, model, opt = made("again", start=tmp_path / "rows.safetensors")
    with session:  # the whole of it again
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        train(model, opt, 2, first=4)
        assert session.digest() == want
    session, model, opt = made("without")
    with (
        session,
        pytest.raises(gradbus.ConfigError, match="'users'.*version 4, and has no rows.*version 0.*start=path"),
    ):
        model.load_state_dict(state["model"])


def test_a_state_of_another_table_or_package(saved):
    session, model, opt = made("other")
    with session:
        state = model.state_dict()
        state["users._extra_state"] = {**state["users._extra_state"], "rows": 41}
        with pytest.raises(gradbus.ConfigError, match=r"'users' \[40, 4\].*'users' \[41, 4\]"):
            model.load_state_dict(state)


# States of plain PyTorch.


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_a_plain_state_is_what_a_job_begins_with(bound, dense):
    """Before the optimizer or after it; and the state that comes out has the same bits."""
    plain = Model(plain=True)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
    state = plain.state_dict()
    session, model = gradbus.local("plain", shards=2), Model()
    with session:
        if not bound:
            model.load_state_dict(state)
        gradbus.Optimizer(
            model, session, embeddings=gradbus.SGD(0.5), dense=gradbus.SGD(0.5, momentum=0.9) if dense else None
        )
        if bound:
            model.load_state_dict(state)
        with torch.no_grad():
            plain.users.weight.zero_()  # a state that changes later is no matter
        model.eval()
        users, films, _ = batch(0)
        out = gradbus.plain_state_dict(model)
        assert list(out) == ["last.weight", "last.bias", "users.weight", "films.weight"]
        twin = Model(plain=True)
        twin.load_state_dict(out)
        assert torch.equal(model(users, films), twin(users, films))
        assert torch.equal(twin.films.weight, plain.films.weight) and not torch.equal(
            twin.users.weight, plain.users.weight
        )
        assert session.batch == 0


def test_training_goes_on_from_a_plain_state():
    """It moves as plain PyTorch does. Bags have at most 15 summands of values below 1, a step halves them: 3 steps of
    16 roundings, in another order."""
    plain = Model(plain=True)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.5)
    session, model, opt = made("goes-on")
    with session:
        model.load_state_dict(plain.state_dict())
        train(model, opt, 3)
        train(plain, sgd, 3)
        out = gradbus.plain_state_dict(model)
    for name, value in plain.state_dict().items():
        assert torch.allclose(out[name], value, rtol=0, atol=3 * 16 * 2**-24), name


def test_tables_that_a_plain_state_leaves_out_are_drawn():
    state = Model(plain=True).state_dict()
    films = state.pop("films.weight")
    drawn = {}
    for part in False, True:
        session, model, _ = made("part", seed=5)
        with session:
            if part:
                missing = model.load_state_dict(state, strict=False).missing_keys
                assert missing == ["films._extra_state"]
            drawn[part] = gradbus.plain_state_dict(model)
    assert torch.equal(drawn[True]["users.weight"], state["users.weight"])
    assert torch.equal(drawn[True]["films.weight"], drawn[False]["films.weight"])
    assert not torch.equal(drawn[True]["films.weight"], films)


def test_plain_states_that_do_not_fit(saved):
    state = Model(plain=True).state_dict()
    for wrong, says in (
        (torch.zeros(41, 4), r"table 'users' \[40, 4\]: the weight of the state is torch.float32 \[41, 4\]: want"),
        (torch.zeros(40, 4, dtype=torch.int64), "torch.int64"),
        ([1.0], "list"),
        (torch.full((40, 4), float("nan")), "'users'.*NaN or infinity: want finite values"),
    ):
        for with_session in False, True:
            model = made("wrong")[1] if with_session else Model()
            with pytest.raises(gradbus.ConfigError, match=says):
                model.load_state_dict({**state, "users.weight": wrong})
    session, model, opt = made("late")
    with session:
        train(model, opt, 1)
        with pytest.raises(gradbus.ConfigError, match="'users'.*has joined.*before the first forward"):
            model.load_state_dict(state)
    session, model, opt = made("both", start=saved[0])
    with session, pytest.raises(gradbus.ConfigError, match="'users'.*begins with the rows of its start"):
        model.load_state_dict(state)


def test_a_state_that_would_change_what_servers_have_is_refused():
    """After the session has joined: dense values would be lost at the next step, so the step says so."""
    session, model, opt = made("late")
    with session:
        best = copy.deepcopy(model.state_dict())
        train(model, opt, 1)
        with pytest.raises(gradbus.ConfigError, match="version 0, and has no rows; those here are of version 1"):
            model.load_state_dict(best)
        users, films, labels = batch(1)
        nn.functional.cross_entropy(model(users, films), labels).backward()
        with torch.no_grad():
            model.last.bias.clamp_(-0.1, 0.1)
        with pytest.raises(gradbus.OrderError, match="'last.bias' was written to"):
            opt.step()


def test_rates_of_a_state_are_those_of_the_job():
    digests = []
    for way in "given", "loaded":
        session, model, opt = made(way)
        with session:
            if way == "loaded":
                state = opt.state_dict()
                for group in state["param_groups"]:
                    group["lr"] = 0.25
                opt.load_state_dict(state)
                assert [group["lr"] for group in opt.param_groups] == [0.25, 0.25]
            else:
                for group in opt.param_groups:
                    group["lr"] = 0.25
            train(model, opt, 2)
            digests.append(session.digest())
    assert digests[0] == digests[1]


def test_pickles():
    session, model, opt = made("copies")
    with session:
        for what in model, session, opt:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(what)
        with pytest.raises(TypeError, match="cannot be pickled"):
            torch.save(model, io.BytesIO())


def test_a_model_of_many_parameters(tmp_path):
    def deep():
        torch.manual_seed(1)
        return nn.Sequential(gradbus.Embedding(10, 4, name="e"), *[nn.Linear(4, 4) for _ in range(60)])

    digests = []
    for name, start in ("deep", None), ("deeper", tmp_path / "deep"):
        with gradbus.local(name, start=start) as session:
            gradbus.Optimizer(deep(), session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1))
            digests.append(session.digest())
            session.save(tmp_path / name)
    with gradbus.open_model(tmp_path / "deep", verify=True) as model:
        assert len(model.parameters) == 120
    assert digests[0] == digests[1]


def test_names_are_those_of_the_model(tmp_path):
    """Keys of a ModuleDict may be any text without a dot, and so may names of parameters and tables: the file of the session
    has them, and the plain model takes it."""

    def model_of(bag):
        torch.manual_seed(1)
        keys = ("user: country", "größe (cm)")
        towers = {key: nn.Sequential(bag(10, 4, mode="sum"), nn.Linear(4, 1)) for key in keys}
        return nn.ModuleDict(towers)

    model, plain = model_of(gradbus.EmbeddingBag), model_of(nn.EmbeddingBag)
    ids = torch.tensor([[1, 2], [3, 4]])
    with gradbus.local("named") as session:
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1))
        for _ in range(2):
            opt.zero_grad()
            sum(tower(ids).sum() for tower in model.values()).backward()
            opt.step()
        session.save(tmp_path / "model.safetensors")
        outputs = [tower(ids) for tower in model.eval().values()]
    gradbus.open_model(tmp_path / "model.safetensors", verify=True).load_into(plain)
    for tower, output in zip(plain.values(), outputs):
        assert torch.equal(tower(ids), output)
