"""Sessions that are read while they train, after their end, by other threads; and what frameworks do to an optimizer."""

from __future__ import annotations

import contextlib
import tempfile
import threading

import pytest
import torch
from small import Model, equal, loss_of, made
from torch import nn

import gradbus


# Reading.


def test_lookups_that_train_nothing_move_no_version():
    session, model, opt, _, _ = made("reads")
    with session:
        loss_of(model, 0).backward()
        opt.step()
        opt.zero_grad()
        before, batches = session.digest(), session.batch
        model.eval()
        for _ in range(3):
            loss_of(model, 1).detach()
            (loss_of(model, 1) * 2).backward()  # dense parameters have gradients; rows have none
        model.train()
        with torch.no_grad():
            loss_of(model, 1)
        with torch.inference_mode():
            loss_of(model, 1)
        opt.zero_grad()
        assert session.digest() == before and session.batch == batches
        assert len(opt.param_groups[0]["params"]) == 0
        loss_of(model, 2).backward()
        opt.step()
        assert session.batch == batches + 1


def test_an_evaluation_in_the_middle_of_a_lane_sees_the_version_that_it_is_computed_on():
    session, model, opt, plain, sgd = made("middle")
    with session:
        for i in range(3):
            loss = loss_of(model, i)
            with torch.no_grad():
                assert float(loss_of(model, i)) == float(loss)
            loss.backward()
            opt.step()
            opt.zero_grad()


def test_threads_read_while_one_trains():
    session, model, opt, _, _ = made("threads")
    done, errors, seen = threading.Event(), [], []

    def read():
        try:
            while not done.is_set():
                rows = session.lookup("users", torch.arange(20))
                seen.append(bool(rows.isfinite().all()) and rows.shape == (20, 4))
        except BaseException as error:
            errors.append(error)

    with session:
        session.start()
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for i in range(30):
            loss_of(model, i).backward()
            opt.step()
            opt.zero_grad()
        done.set()
        for reader in readers:
            reader.join(60)
            assert not reader.is_alive()
    assert errors == [] and len(seen) >= 3 and all(seen)


# After the end, and at the wrong time.


def test_a_closed_session_says_so():
    session, model, opt, _, _ = made("closed")
    loss = loss_of(model, 0)
    session.close()
    session.close()
    loss.backward()
    for call in (
        lambda: loss_of(model, 0),
        lambda: opt.step(),
        lambda: session.lookup("users", torch.tensor([1])),
        lambda: session.digest(),
        lambda: session.save("nowhere.safetensors"),
        lambda: session.skip(),
    ):
        with pytest.raises(gradbus.ClosedError, match="'closed' is closed"):
            call()


def test_two_sessions_and_their_threads():
    """Two jobs in one process, each trained by a thread of its own, have the bits of each alone."""
    alone, together = [], []

    def train(session, model, opt, into):
        with session:
            for i in range(8):
                loss_of(model, i).backward()
                opt.step()
                opt.zero_grad()
            into.append(session.digest())

    train(*made("one")[:3], alone)
    both = [made(name)[:3] for name in ("two", "three")]  # here: PyTorch's generator is the process's
    threads = [threading.Thread(target=train, args=(*one, together)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone * 2


def test_a_signal_right_behind_a_call_leaves_none_under_way(monkeypatch):
    """A handler may raise between the library's answer that a call goes on and the wait for it: here, a join that waits
    for a second trainer. This thread's next calls are as if there had been none."""
    session = gradbus.local("lonely", manifest={"trainers": 2, "lanes": 2})
    opt = gradbus.Optimizer(Model(), session, embeddings=gradbus.SGD(0.5))
    join = session.native.join

    def interrupted(*arguments):
        assert join(*arguments) == 1  # it goes on
        raise KeyboardInterrupt

    monkeypatch.setattr(session.native, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.start()
    monkeypatch.undo()
    session.close()
    assert opt.session is session
    session, model, opt, _, _ = made("next")
    with session:
        loss_of(model, 0).backward()
        opt.step()
        session.digest()


@pytest.mark.parametrize("behind", ["the library's call", "the wait for it"])
def test_a_join_that_was_interrupted_behind_its_end_is_left(monkeypatch, behind):
    """A handler may raise when the trainer has joined, and the session does not know it yet."""
    session = gradbus.local("behind")
    gradbus.Optimizer(Model(), session, embeddings=gradbus.SGD(0.5))
    native = session.native
    join = native.join

    def interrupted(*arguments):
        code = join(*arguments)
        while code == 1:
            code = native.resume()
        assert code == 0
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def waiting(*_):
        yield
        raise KeyboardInterrupt

    if behind == "the wait for it":
        monkeypatch.setattr("gradbus.session.waiting", waiting)
    else:
        monkeypatch.setattr(native, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.start()
    monkeypatch.undo()
    session.close()  # and the shards, which refuse while a session is in their job
    with pytest.raises(gradbus.ClosedError):
        native.check(native.leave(session._joining, None))


# What frameworks do with an optimizer.


def test_what_frameworks_find():
    """The protocol of Lightning and Accelerate, without them: groups, state, closures, schedulers, hooks of the
    loop."""
    session, model, opt, plain, sgd = made("frameworks")
    with session:
        assert isinstance(opt, torch.optim.Optimizer) and opt.state == {} and isinstance(opt.defaults, dict)
        assert [sorted(group) for group in opt.param_groups] == [["lr", "name", "params"]] * 2
        assert {id(p) for p in opt.param_groups[1]["params"]} == {id(p) for p in model.last.parameters()}
        schedules = [torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.5) for o in (opt, sgd)]
        calls = []
        for i in range(5):

            def closure(one=model, by=opt):
                calls.append(i)
                by.zero_grad(set_to_none=True)
                loss = loss_of(one, i)
                loss.backward()
                return loss

            a, b = opt.step(closure), sgd.step(lambda: closure(plain, sgd))
            assert torch.isclose(a, b, rtol=1e-5) and a.requires_grad
            for schedule in schedules:
                schedule.step()
        assert calls == [i for i in range(5) for _ in range(2)]
        assert opt.param_groups[0]["lr"] == sgd.param_groups[0]["lr"] == 0.125
        equal(session, model, plain, atol=5 * 2**-22)
        assert repr(opt).startswith("Optimizer (")
        with pytest.raises(gradbus.ConfigError, match="no further parameter groups"):
            opt.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


@pytest.mark.parametrize("where", ["none", "full"])
def test_a_folder_for_temporary_files_that_takes_nothing_is_named(where, monkeypatch):
    """Rows to begin with go by a temporary file. Errors of it name TMPDIR, also where Python finds no such folder."""
    if where == "none":
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb"))
    session, table = gradbus.local("homeless"), gradbus.Embedding(5000, 2, name="a")
    gradbus.Optimizer(table, session, embeddings=gradbus.SGD(0.1))
    table.load_state_dict({"weight": torch.ones(5000, 2)})
    with session, pytest.raises(gradbus.FileError, match=r"rows to begin with, 40000 bytes .*TMPDIR"):
        session.start()


def test_a_refusal_for_want_of_memory_names_the_argument():
    session = gradbus.local("small", memory_mib=64)
    model = gradbus.Embedding(1_000_000, 64)
    gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1))
    with session, pytest.raises(gradbus.JobError, match=r"use smaller tables, or raise memory_mib by \d+") as error:
        session.start()
    assert "server" not in str(error.value)
    with pytest.raises(gradbus.ConfigError, match="memory_mib 0: want an integer, at least 1"):
        gradbus.local("small", memory_mib=0)
