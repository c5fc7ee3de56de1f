"""torch.nn.utils.clip_grad_norm_ and clip_grad_value_ over opt.param_groups, against PyTorch's on the same model."""

from __future__ import annotations

import pytest
import torch
from small import equal, loss_of, made
from torch import nn

import gradbus

ROWS = 20


class Twice(nn.Module):
    """A table that two modules share, the second of which pools bags."""

    def __init__(self, pool=None, mode="sum", padding=None):
        super().__init__()
        torch.manual_seed(3)
        if pool is None:
            self.bags = nn.EmbeddingBag(ROWS, 4, mode=mode, padding_idx=padding)
        else:
            self.bags = gradbus.EmbeddingBag(ROWS, 4, mode=mode, pool=pool, padding_idx=padding, name="t")
        self.last = nn.Linear(4, 1)

    def forward(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(0, ROWS, (2, 6, 3), generator=g)
        return self.last(self.bags(ids[0]) * self.bags(ids[1])).square().sum()


def pair(name, **kind):
    session = gradbus.local(name)
    model, sgd = Twice(**kind), gradbus.SGD(0.5)
    opt = gradbus.Optimizer(model, session, embeddings=sgd, dense=sgd)
    plain = Twice(None, kind.get("mode", "sum"), kind.get("padding"))
    with torch.no_grad():
        plain.bags.weight.copy_(session.read_table("t"))
        if kind.get("padding") is not None:
            plain.bags.weight[kind["padding"]] = 0
        plain.last.load_state_dict(model.last.state_dict())
    return session, model, opt, plain, torch.optim.SGD(plain.parameters(), lr=0.5)


def parameters(opt):
    return [p for group in opt.param_groups for p in group["params"]]


def clip_norm(parameters):
    return float(nn.utils.clip_grad_norm_(parameters, 0.25))


def clip_value(parameters):
    return nn.utils.clip_grad_value_(parameters, 0.25)


@pytest.mark.parametrize("clip", [clip_norm, clip_value])
@pytest.mark.parametrize(
    "kind",
    [
        {"pool": "client"},
        {"pool": "client", "mode": "mean", "padding": 3},
        {"pool": "servers"},
        {"pool": "servers", "mode": "mean"},
    ],
)
def test_what_several_backwards_give_of_a_table_is_clipped_as_one(clip, kind):
    """Two forwards of a table in a backward, and two backwards of a step. Sums of up to 24 products of values below 8,
    in another order, of which a step takes half: 3 steps are below 3 * 24 * 8 * 2^-24."""
    session, model, opt, plain, sgd = pair("clips", **kind)
    with session:
        for i in range(3):
            for micro in range(2):
                model(2 * i + micro).backward()
                plain(2 * i + micro).backward()
            assert len(opt.param_groups[0]["params"]) == 1
            mine, theirs = clip(parameters(opt)), clip(list(plain.parameters()))
            assert mine == theirs or abs(mine - theirs) <= 1e-5 * theirs
            for one in opt, sgd:
                one.step()
                one.zero_grad()
            rows, want = session.read_table("t"), plain.bags.weight.detach().clone()
            if kind.get("padding") is not None:
                rows[kind["padding"]] = 0
            assert torch.allclose(rows, want, rtol=0, atol=3 * 24 * 8 * 2.0**-24)


def test_a_clipped_sum_moves_a_row_once():
    session, model, opt, _, _ = made("once")
    with session:
        before = session.lookup("users", torch.tensor([7]))
        for _ in range(2):
            (model.users(torch.tensor([[7]])) * 8).sum().backward()
        nn.utils.clip_grad_value_(opt.param_groups[0]["params"], 0.25)
        (model.users(torch.tensor([[7]])) * 8).sum().backward()  # behind the clipping, as in PyTorch: 8.25
        opt.step()
        assert torch.equal(session.lookup("users", torch.tensor([7])), before - 0.5 * 8.25)


@pytest.mark.parametrize("backwards", [1, 2, 3, 70])
@pytest.mark.parametrize("kind", [{"pool": "client"}, {"pool": "client", "mode": "mean"}, {"pool": "servers"}])
def test_clipping_to_infinity_changes_no_bit(kind, backwards):
    """Also of sums that are long enough to be cut: the library adds them up in both cases."""
    digests = []
    for clips in False, True:
        session, model, opt, _, _ = pair("infinity", **kind)
        with session:
            for i in range(2):
                for micro in range(backwards):
                    (model(100 * i + micro) / backwards).backward()
                if clips:
                    nn.utils.clip_grad_norm_(parameters(opt), float("inf"))
                opt.step()
                opt.zero_grad()
            digests.append(session.digest())
    assert digests[0] == digests[1]


def test_each_lane_has_gradients_of_its_own():
    """The gradients of each lane are its own."""
    with gradbus.local("lanes", lanes=2) as session:
        emb = gradbus.Embedding(2**26, 1, name="t", init=gradbus.Zeros())
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(2.0))
        ids = torch.tensor([2**26 - 1, 0])
        for _ in range(2):
            (emb(ids).sum() + emb(ids[:1]).sum()).backward()
            (grad,) = (p.grad for p in opt.param_groups[0]["params"])
            assert grad.tolist() == [[1], [2]]
            nn.utils.clip_grad_value_(opt.param_groups[0]["params"], 1.5)
            opt.step()
        assert session.lookup("t", ids).tolist() == [[-3], [-2]]


def test_accumulated_steps_are_clipped_as_in_pytorch():
    session, model, opt, plain, sgd = made("small")
    with session:
        for i in range(4):
            for micro in range(3):
                loss_of(model, 3 * i + micro).backward()
                loss_of(plain, 3 * i + micro).backward()
            a, b = nn.utils.clip_grad_norm_(parameters(opt), 0.1), nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            assert abs(float(a) - float(b)) <= float(b) * 100 * 2**-24  # sums of up to 88 squares
            for one in opt, sgd:
                one.step()
                one.zero_grad()
        equal(session, model, plain, atol=4 * 100 * 2**-24)
