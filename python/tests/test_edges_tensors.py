"""What PyTorch can be told or do that changes which tensors a session meets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradbus

IDS = torch.arange(4)
DEFAULTS = """
import torch, gradbus
torch.set_default_dtype(torch.bfloat16)
model = torch.nn.Module()
model.each = gradbus.Embedding(1000, 64)
model.bags = gradbus.EmbeddingBag(1000, 64, mode="sum", pool="servers")
with gradbus.local("bfloat16") as session:
    opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
    before = session.read_table("bags")
    for _ in range(3):
        ids = torch.arange(1000).view(-1, 4)
        (model.each(ids).sum() + model.bags(ids).sum()).backward()
        opt.step()
    after = session.read_table("bags")
    assert after.dtype == torch.float32 and torch.allclose(before - 3, after, rtol=0, atol=1e-5)
    print("ended")
"""


def made(model, name="tensors", **more):
    session = gradbus.local(name)
    more.setdefault("embeddings", gradbus.SGD(1.0))
    return session, gradbus.Optimizer(model, session, **more)


def one(**modules):
    model = nn.Module()
    for name, module in modules.items():
        setattr(model, name, module)
    return model


# Other defaults.


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_default_dtype_float64(doubles):
    model = one(
        e=gradbus.Embedding(4, 2, init=gradbus.Uniform(1.0)),
        b=gradbus.EmbeddingBag(4, 2, mode="sum", pool="servers", init=gradbus.Uniform(1.0)),
        c=gradbus.EmbeddingBagCollection({"x": gradbus.EmbeddingBag(4, 2), "y": gradbus.EmbeddingBag(4, 2)}),
    )
    session, opt = made(model)
    with session:
        rows, bags = session.lookup("e", IDS), session.lookup("b", IDS)
        assert rows.dtype == bags.dtype == torch.float32
        assert torch.equal(session.read_table("e"), rows) and rows.abs().max() <= 1 and rows.unique().numel() == 8
        assert model.e(IDS).dtype == torch.float64 and torch.equal(model.e(IDS).float(), rows)
        assert torch.equal(model.b(IDS.view(4, 1)).float(), bags)
        (model.e(IDS).sum() + model.b(IDS.view(4, 1)).sum() + model.c(IDS.view(2, 2)).values().sum()).backward()
        opt.step()
        for name, before in (("e", rows), ("b", bags)):
            assert torch.equal(session.read_table(name), before - 1)


def test_default_dtype_bfloat16(start):
    program = start.python(DEFAULTS)
    assert program.end() == 0 and program.out.read_text() == "ended\n", program.said()


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="of PyTorch 2")
def test_default_device():
    model = one(e=gradbus.Embedding(4, 2), c=gradbus.EmbeddingBagCollection({"x": gradbus.EmbeddingBag(4, 2)}))
    session, opt = made(model)
    with session:
        rows = session.read_table("e")
        torch.set_default_device("meta")
        try:
            (model.e(IDS).sum() + model.c({"x": IDS.view(2, 2)}).values().sum()).backward()
            opt.step()
            assert torch.equal(session.lookup("e", IDS), rows - 1)
            assert list(gradbus.LaneSampler(4, session, 2, shuffle=False)) == [[2, 3]]
        finally:
            torch.set_default_device(None)


# What a program does with what it is given.


@pytest.mark.parametrize("pool", ["client", "servers"])
def test_bags_can_be_changed_in_place(pool):
    model = one(e=gradbus.EmbeddingBag(4, 2, mode="sum", pool=pool, init=gradbus.Uniform(1.0)))
    session, opt = made(model)
    with session:
        rows = session.read_table("e")
        torch.relu_(model.e(IDS.view(4, 1))).sum().backward()
        opt.step()
        assert torch.equal(session.read_table("e"), rows - (rows > 0).float())


def test_features_can_be_changed_in_place():
    bags = {name: gradbus.EmbeddingBag(4, 2, init=gradbus.Uniform(1.0)) for name in "xy"}
    model = one(c=gradbus.EmbeddingBagCollection(bags))
    session, opt = made(model)
    with session:
        x, y = (session.read_table(bags[name].table) for name in "xy")
        out = model.c({name: IDS.view(4, 1) for name in "xy"})
        (torch.relu_(out["x"]).sum() + out["y"].sum()).backward()
        opt.step()
        assert torch.equal(session.read_table(bags["x"].table), x - (x > 0).float())
        assert torch.equal(session.read_table(bags["y"].table), y - 1)


def test_the_last_offset_ends_the_last_bag():
    bag = gradbus.EmbeddingBag(10, 1, mode="sum", include_last_offset=True)
    model, given = one(c=gradbus.EmbeddingBagCollection({"x": bag})), torch.tensor([1, 2, 3, 4, 5])
    session, _ = made(model)
    with session:
        plain = nn.EmbeddingBag.from_pretrained(session.read_table(bag.table), mode="sum", include_last_offset=True)
        ends = torch.tensor([0, 2, 5])
        assert torch.equal(model.c({"x": (given, ends)})["x"], plain(given, ends))
        weights = torch.rand(5)
        assert torch.equal(model.c({"x": (given, ends, weights)})["x"], plain(given, ends, weights))


def test_the_row_of_the_padding_is_zeros_elsewhere(tmp_path):
    model, plain = one(e=gradbus.Embedding(4, 2, padding_idx=1)), one(e=nn.Embedding(4, 2, padding_idx=1))
    session, _ = made(model)
    with session, torch.no_grad():
        rows = model.e(IDS)
        plain.load_state_dict(gradbus.plain_state_dict(model))
        assert torch.equal(plain.e(IDS), rows) and not rows[1].any()
        session.save(tmp_path / "saved")
        nn.init.ones_(plain.e.weight)
        gradbus.open_model(tmp_path / "saved").load_into(plain)
        assert torch.equal(plain.e(IDS), rows)


# Samples.


def moved(session, opt, loss, **step):
    before = session.read_table("e")[0, 0]
    loss.backward()
    opt.step(**step)
    opt.zero_grad()
    return float(before - session.read_table("e")[0, 0])


def test_samples_are_those_of_backwards():
    from torch.utils.checkpoint import checkpoint

    model, two = one(e=gradbus.Embedding(4, 2, init=gradbus.Zeros())), torch.tensor([0, 0])
    session, opt = made(model, weight="samples")
    with session:
        assert moved(session, opt, model.e(two).sum(), samples=2) == 1
        assert moved(session, opt, model.e(two).sum()) == 1
        model.e(two).sum()  # and is given up
        opt.zero_grad()
        assert moved(session, opt, model.e(two).sum()) == 1
        out = model.e(two)
        opt.zero_grad()  # after the forward
        assert moved(session, opt, out.sum()) == 1
        scale = torch.ones(1, requires_grad=True)
        out = checkpoint(lambda ids: model.e(ids) ** 1 * scale, two, use_reentrant=False)
        assert moved(session, opt, out.sum()) == 1


def test_samples_of_forwards_that_an_error_ended():
    model = one(e=gradbus.Embedding(4, 2), f=gradbus.Embedding(4, 2))
    session, opt = made(model, weight="samples")
    with session:
        with pytest.raises(gradbus.IdError):
            model.e(IDS), model.f(IDS + 1)
        assert moved(session, opt, (model.e(IDS) + model.f(IDS)).sum()) == 0.25
