"""What comes too early, too late or twice: rates, values, steps that are refused, and signals."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

import gradbus
from gradbus import _native, plain

ZERO = torch.tensor([0])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = gradbus.Embedding(4, 2, init=gradbus.Zeros())
        self.l = nn.Linear(2, 1, bias=False)

    def forward(self, ids):
        return self.l(self.e(ids))


def made(name="orders", dense=None, start=None, **more):
    model, session = Model(), gradbus.local(name, start=start, **more)
    return model, session, gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0), dense=dense)


def moved(model, session, opt):
    before = session.lookup("e", ZERO)[0, 0] if session.handle else torch.tensor(0.0)
    model.e(ZERO).sum().backward()
    opt.step()
    opt.zero_grad()
    return float(before - session.lookup("e", ZERO)[0, 0])


# Rates.


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_scheduler_that_asks_a_sampler_sets_the_first_batch(lanes):
    model, session, opt = made(lanes=lanes)
    with session:
        sampler = gradbus.LaneSampler(10, session, 2)
        assert len(sampler) == 5 * lanes and not session.handle
        schedule = OneCycleLR(opt, max_lr=1.0, total_steps=len(sampler), cycle_momentum=False)
        for _ in range(3):
            want = opt.param_groups[0]["lr"]
            for _ in range(lanes - 1):
                session.skip()
            assert moved(model, session, opt) == pytest.approx(want, rel=1e-5)
            schedule.step()


def test_a_rate_between_the_join_and_the_first_batch_is_an_error():
    model, session, opt = made()
    with session:
        session.start()
        opt.param_groups[0]["lr"] = 0.04
        with pytest.raises(gradbus.OrderError, match="embeddings 1 to 0.04 were changed after .* had joined"):
            moved(model, session, opt)
        opt.param_groups[0]["lr"] = 1.0
        assert moved(model, session, opt) == 1
        opt.param_groups[0]["lr"] = 0.5
        assert moved(model, session, opt) == 0.5


def test_a_group_of_rate_zero_stays_there():
    model, session, opt = made(dense=gradbus.SGD(0.0))
    with session:
        schedule = ExponentialLR(opt, 0.5)
        for want in 1.0, 0.5, 0.25:
            assert moved(model, session, opt) == want
            schedule.step()


def test_a_scale_that_was_not_decided_is_asked_for_again(monkeypatch):
    model, session, opt = made()
    with session:
        assert moved(model, session, opt) == 1
        opt.param_groups[0]["lr"] = 0.5
        with monkeypatch.context() as patch:
            patch.setattr(gradbus.Session, "scale_lr", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                moved(model, session, opt)
        assert moved(model, session, opt) == 0.5


# A session that begins with a file.


@pytest.fixture
def saved(tmp_path):
    model, session, opt = made("saves", gradbus.SGD(0.1))
    with session:
        moved(model, session, opt)
        session.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_dense_values_written_before_the_join_with_a_file(saved):
    model, session, _ = made(dense=gradbus.SGD(0.1), start=saved)
    with session:
        weight = model.l.weight.detach().clone()
        nn.init.constant_(model.l.weight, 100.0)
        with pytest.raises(gradbus.ConfigError, match="'l.weight' was written to"):
            model(ZERO)
        model.l.load_state_dict({"weight": weight})
        model(ZERO)


def test_a_state_before_the_join_with_a_file(saved):
    model, session, _ = made(dense=gradbus.SGD(0.1), start=saved)
    with session:
        state = model.state_dict()
        assert state["e._extra_state"]["version"] == 1
        model.load_state_dict(state)


# Steps.


def test_gradients_that_are_views_become_zeros():
    model, session, opt = made(dense=gradbus.SGD(0.1))
    with session:
        flat = torch.ones(4)
        model.l.weight.grad = flat[:2].view(1, 2)
        opt.zero_grad(set_to_none=False)
        assert flat.tolist() == [0, 0, 1, 1]
        model.l.weight.grad = torch.ones(1, 2, requires_grad=True) * 2
        opt.zero_grad(set_to_none=False)
        assert model.l.weight.grad.grad_fn is None and not model.l.weight.grad.any()


def test_a_refused_step_can_be_made_again():
    model, session, opt = made(dense=gradbus.SGD(0.0))
    with session:
        model.e(ZERO).sum().backward()
        for wrong in -1, 2**31:
            with pytest.raises(gradbus.ArgumentError, match=f"a lane of {wrong} samples"):
                opt.step(samples=wrong)
        opt.step()
        assert session.lookup("e", ZERO).tolist() == [[-1, -1]]
        model(ZERO).sum().backward()
        with torch.no_grad():
            model.l.weight.zero_()
        with pytest.raises(gradbus.OrderError, match="written to"):
            opt.step()
        model.e(ZERO).sum().backward()  # the lane is open


def test_a_refused_commit_can_be_made_again(monkeypatch):
    model, session, opt = made()
    with session:
        model.e(ZERO).sum().backward()
        with monkeypatch.context() as patch:
            patch.setattr(session.native, "commit", lambda *_: _native.ARGUMENT)
            with pytest.raises(gradbus.ArgumentError):
                opt.step()
        assert not session._batches.failed
        model.e(ZERO).sum().backward()
        opt.step()
        assert session.lookup("e", ZERO).tolist() == [[-2, -2]]


# Signals.


def test_an_interrupt_leaves_no_file(monkeypatch, tmp_path):
    model, session, _ = made()
    with session:
        model.load_state_dict({"e.weight": torch.ones(4, 2)}, strict=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        opened, temporary = [], tempfile.TemporaryFile

        def interrupted(**named):
            opened.append(temporary(**named))
            return SimpleNamespace(write=lambda _: (_ for _ in ()).throw(KeyboardInterrupt), close=opened[0].close)

        with monkeypatch.context() as patch:
            patch.setattr(plain.tempfile, "TemporaryFile", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.start()
        assert os.listdir(tmp_path) == [] and opened[0].closed


@pytest.mark.parametrize(
    "error, reason",
    [(KeyboardInterrupt(), None), (SystemExit(0), None), (SystemExit(3), b"SystemExit: 3"),
     (TimeoutError("late"), b"TimeoutError: late")],
)  # fmt: skip
def test_what_a_signal_handler_raises_in_a_wait_is_the_reason(monkeypatch, error, reason):
    """Where it does not tell the program to end, the job fails by it."""
    native, raised, reasons = _native.native(), [error], []

    def resume():
        if raised:
            raise raised.pop()
        return _native.OK

    monkeypatch.setattr(native, "resume", resume)
    monkeypatch.setattr(native, "cancel", lambda handle, reason: reasons.append(reason))
    with pytest.raises(type(error)):
        native.wait(7, lambda: _native.AGAIN)
    assert reasons == [reason]


def test_a_second_interrupt_waits_for_the_call(monkeypatch):
    native, codes, canceled = _native.native(), [_native.AGAIN, None, None, _native.AGAIN, _native.OK], []

    def resume():
        code = codes.pop(0)
        if code is None:
            raise KeyboardInterrupt
        return code

    monkeypatch.setattr(native, "resume", resume)
    monkeypatch.setattr(native, "cancel", lambda handle, reason: canceled.append(handle))
    with pytest.raises(KeyboardInterrupt):
        native.wait(7, lambda: _native.AGAIN)
    assert codes == [] and set(canceled) == {7}


PROGRAM = """
import sys, torch, gradbus
model = gradbus.Embedding(4, 2, name="e")
session = gradbus.join(sys.argv[1], "ends", trainers=2)
opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
try:
    model(torch.tensor([0])).sum().backward()
    if sys.argv[2] == "ends":
        sys.exit("no such file")
    opt.step()
    session.digest()
except gradbus.JobError as error:
    print(error)
"""


def test_an_end_in_the_middle_of_a_batch_reaches_the_others(start):
    _, server = start.ps()
    ends, waits = (start.python(PROGRAM, server, what) for what in ("ends", "waits"))
    assert ends.end() == 1 and waits.end() == 0, ends.said() + waits.said()
    assert "in the middle of a batch" in waits.out.read_text(), waits.said()
