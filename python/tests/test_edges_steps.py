"""Steps that are unlike others: accumulated, scaled, skipped, in bfloat16, read only, by another thread, and what
frameworks do to them."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from programs import nursery, start  # noqa: F401  fixtures
from torch import nn

import gradbus

INF = float("inf")


class Model(nn.Module):
    def __init__(self, plain=False):
        super().__init__()
        torch.manual_seed(3)
        self.users = nn.EmbeddingBag(20, 4, mode="sum") if plain else gradbus.EmbeddingBag(20, 4, mode="sum")
        self.last = nn.Linear(4, 2)

    def forward(self, ids):
        return self.last(self.users(ids))


def made(name, dense=True, **more):
    """A session, its model and optimizer, and the same in plain PyTorch with the same values."""
    session = gradbus.local(name, **more)
    model, sgd = Model(), gradbus.SGD(0.5)
    opt = gradbus.Optimizer(model, session, embeddings=sgd, dense=sgd if dense else None)
    plain = Model(plain=True)
    with torch.no_grad():
        plain.users.weight.copy_(session.lookup("users", torch.arange(20)))
        plain.last.load_state_dict(model.last.state_dict())
    return session, model, opt, plain, torch.optim.SGD(plain.parameters(), lr=0.5)


def loss_of(model, i, rows=4):
    g = torch.Generator().manual_seed(i)
    ids, labels = torch.randint(0, 20, (rows, 3), generator=g), torch.randint(0, 2, (rows,), generator=g)
    return nn.functional.cross_entropy(model(ids), labels)


def equal(session, model, plain, atol=0.0):
    pairs = [(session.lookup("users", torch.arange(20)), plain.users.weight)]
    pairs += list(zip(model.last.parameters(), plain.last.parameters()))
    for a, b in pairs:
        assert torch.allclose(a, b, rtol=0, atol=atol), (a - b).abs().max()


# Accumulation.


def test_several_backwards_are_one_step():
    """Gradients add up. Rows have at most three summands a backward and three backwards, in another order than
    PyTorch's: 9 roundings of values below 1, halved by the rate."""
    session, model, opt, plain, sgd = made("accumulates")
    with session:
        for i in range(4):
            for micro in range(3):
                (loss_of(model, 3 * i + micro) / 3).backward()
                (loss_of(plain, 3 * i + micro) / 3).backward()
            opt.step()
            opt.zero_grad()
            sgd.step()
            sgd.zero_grad()
        assert session.batch == 4
        equal(session, model, plain, atol=4 * 9 * 2**-24)


def test_zero_grad_forgets_what_was_accumulated():
    session, model, opt, plain, sgd = made("forgets")
    with session:
        for set_to_none in True, False:
            (loss_of(model, 7) * 100).backward()
            opt.zero_grad(set_to_none=set_to_none)
            loss_of(model, 8).backward()
            loss_of(plain, 8).backward()
            opt.step()
            opt.zero_grad(set_to_none=set_to_none)
            sgd.step()
            sgd.zero_grad()
        equal(session, model, plain, atol=2**-22)


# Scaled losses.


class Scaler:
    """What torch.amp.GradScaler does on a processor, which PyTorch 1.13 does not have: the same states, the same calls
    of the optimizer. ``hands``: "itself" as PyTorch 1 does, "tensors" as PyTorch 2 does."""

    class State:
        def __init__(self, name):
            self.name = name

    def __init__(self, scale, hands):
        self.scale, self.hands, self.clear = torch.tensor(float(scale)), hands, None
        self.update()

    def update(self):
        if self.clear is not None and any(
            float(f) for s in self._per_optimizer_states.values() for f in s["found_inf_per_device"].values()
        ):
            self.scale = self.scale / 2
        self.clear = True
        self._per_optimizer_states = {}

    def state(self, opt):
        empty = {"stage": self.State("READY"), "found_inf_per_device": {}}
        return self._per_optimizer_states.setdefault(id(opt), empty)

    def look(self, opt, inverse):
        found = torch.zeros(1)
        for group in opt.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found += float(not parameter.grad.isfinite().all())
                    parameter.grad.mul_(inverse)
        self.state(opt)["found_inf_per_device"][torch.device("cpu")] = found

    def unscale_(self, opt):
        assert self.state(opt)["stage"].name == "READY"
        self.look(opt, self.scale.double().reciprocal().float())
        self.state(opt)["stage"] = self.State("UNSCALED")

    def step(self, opt):
        assert opt._step_supports_amp_scaling
        state = self.state(opt)
        if self.hands == "itself":
            self._per_optimizer_states[id(opt)] = state
            opt.step(grad_scaler=self)
        else:
            ready = state["stage"].name == "READY"
            if ready:
                self.look(opt, 1.0)
            opt.grad_scale = self.scale if ready else None
            opt.found_inf = sum(state["found_inf_per_device"].values())
            opt.step()
            del opt.grad_scale, opt.found_inf
        assert state["found_inf_per_device"]
        state["stage"] = self.State("STEPPED")


def scalers():
    found = getattr(getattr(torch, "amp", None), "GradScaler", None)
    return ["itself", "tensors"] + (["torch"] if found is not None else [])


def scaler(kind, scale=1024.0):
    return torch.amp.GradScaler("cpu", init_scale=scale) if kind == "torch" else Scaler(scale, kind)


def scaled(one, loss):
    return one.scale(loss) if callable(one.scale) else loss * one.scale


@pytest.mark.parametrize("kind", scalers())
@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_a_scaled_loss_trains_as_an_unscaled_one(kind, unscaled, dense):
    """A scale that is a power of two changes no bit. A step with an overflow changes nothing but the scale."""
    digests = []
    for way in "plain", "scaled":
        session, model, opt, _, _ = made(f"scaled-{way}", dense=dense)
        sgd = None if dense else torch.optim.SGD(model.parameters(), lr=0.5)
        one = scaler(kind)
        with session:
            for i in range(5):
                if i == 2 and way == "scaled":
                    (scaled(one, loss_of(model, 50)) * INF).backward()
                    one.step(opt)
                    one.update()
                    opt.zero_grad()
                    model.zero_grad()
                    assert float(one._scale if kind == "torch" else one.scale) == 512.0
                loss = loss_of(model, i)
                if way == "plain":
                    loss.backward()
                    opt.step()
                    if sgd is not None:
                        sgd.step()
                else:
                    scaled(one, loss).backward()
                    for o in [opt] + [sgd] * (sgd is not None and kind == "torch"):
                        if unscaled:
                            one.unscale_(o)
                        one.step(o)
                    if sgd is not None and kind != "torch":
                        for p in model.parameters():
                            p.grad.mul_(one.scale.reciprocal())
                        sgd.step()
                    one.update()
                opt.zero_grad()
                model.zero_grad()
            rows = session.lookup("users", torch.arange(20))
            digests.append([rows, *model.last.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*digests))


@pytest.mark.parametrize("kind", scalers())
def test_an_overflow_in_rows_alone_skips_the_step(kind):
    session, model, opt, _, _ = made(f"rows-{kind}")
    with session:
        loss_of(model, 0).backward()
        opt.step()
        opt.zero_grad()
        before, one = session.digest(), scaler(kind)
        out = model.users(torch.tensor([[1, 2, 3]]))
        (scaled(one, out.sum()) * INF).backward()  # no dense parameter has a gradient
        assert all(p.grad is None for p in model.parameters())
        one.step(opt)
        one.update()
        opt.zero_grad()
        assert session.digest() == before and session.batch == 2
        loss_of(model, 1).backward()
        opt.step()
        assert session.digest() != before


def test_gradients_of_rows_are_clipped_with_the_others():
    """torch.nn.utils.clip_grad_norm_ over param_groups: the norm of distinct rows and dense parameters together."""
    session, model, opt, plain, sgd = made("clips")
    with session:
        for i in range(3):
            loss_of(model, i).backward()
            loss_of(plain, i).backward()
            mine = [p for group in opt.param_groups for p in group["params"]]
            assert len(mine) == 3
            a = nn.utils.clip_grad_norm_(mine, 0.1)
            b = nn.utils.clip_grad_norm_(list(plain.parameters()), 0.1)
            assert abs(float(a) - float(b)) <= float(b) * 50 * 2**-24  # sums of up to 48 squares
            opt.step()
            opt.zero_grad()
            assert len(opt.param_groups[0]["params"]) == 0
            sgd.step()
            sgd.zero_grad()
        equal(session, model, plain, atol=3 * 60 * 2**-24)


def test_a_step_refuses_arguments_that_no_scaler_gives():
    session, model, opt, _, _ = made("arguments")
    with session:
        loss_of(model, 0).backward()
        with pytest.raises(TypeError, match="scale"):
            opt.step(scale=3)


@pytest.mark.parametrize("where", ["rows", "dense"])
def test_a_gradient_that_is_not_finite_ends_the_job_and_is_named(where):
    session, model, opt, _, _ = made(f"named-{where}")
    with pytest.raises(gradbus.Error, match="users" if where == "rows" else "last"):
        with session:
            (model.users(torch.tensor([[7]])).sum() * INF if where == "rows" else loss_of(model, 0)).backward()
            if where == "dense":
                model.last.bias.grad[1] = float("nan")
            opt.step()
            opt.zero_grad()
            session.digest()


def test_a_gradient_that_is_not_finite_is_absent_where_the_job_skips_it():
    session, model, opt, _, _ = made("absent", manifest={"on_nonfinite": "skip"})
    with session:
        before = session.digest()
        (loss_of(model, 0) * INF).backward()
        opt.step()
        opt.zero_grad()
        assert session.digest() == before
        loss_of(model, 1).backward()
        opt.step()
        assert session.digest() != before


def test_a_run_of_skipped_steps_alone_ends_without_an_error():
    session, model, opt, _, _ = made("nothing")
    with session:
        before = session.digest()
        for i in range(3):
            loss_of(model, i).backward()
            session.skip()
            opt.zero_grad()
        assert session.digest() == before and session.batch == 3


def test_samples_of_a_skipped_lane_do_not_count_in_the_next():
    """A sum over 4 samples, divided by 4: the mean. Those of the skipped lane would make it 9."""
    session = gradbus.local("weighs")
    model = Model()
    opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), weight="samples")
    with session:
        before = session.lookup("users", torch.arange(20))
        loss_of(model, 0, rows=5).backward()
        session.skip()
        opt.zero_grad()
        model.users(torch.tensor([[3], [3], [3], [3]])).sum().backward()
        opt.step()
        before[3] -= 0.5
        assert torch.equal(session.lookup("users", torch.arange(20)), before)


def test_a_skipped_step_of_one_trainer_is_an_absent_lane(start):
    """Of two trainers the second overflows in batch 1: the batch is that of the first alone, and nobody waits. The same
    by skip()."""
    _, server = start.ps()
    digests = {}
    for way in "scaler", "skip":
        source = """
        import sys, torch, gradbus
        sys.path.insert(0, sys.argv[4])
        from test_edges_steps import INF, Model, Scaler, loss_of
        server, way, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
        session = gradbus.join(server, f"absent-{way}", trainers=2, id=f"t{rank}")
        model = Model()
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), dense=gradbus.SGD(0.5))
        for i in range(4):
            one, bad = Scaler(8.0, "tensors"), rank == 1 and i in (1, 2)
            loss = loss_of(model, 10 * rank + i)
            if way == "scaler":
                (loss * one.scale * (INF if bad else 1.0)).backward()
                one.step(opt)
            else:
                loss.backward()
                session.skip() if bad else opt.step()
            opt.zero_grad()
        print(session.digest())
        session.close()
        """
        programs = [start.python(source, server, way, rank, re.sub(r"[^/]*$", "", __file__)) for rank in range(2)]
        for program in programs:
            assert program.end() == 0 and program.err.read_text() == "", program.said()
        digests[way] = {program.out.read_text() for program in programs}
    assert digests["scaler"] == digests["skip"] and len(digests["skip"]) == 1


def test_autocast_to_bfloat16():
    """Linear layers in bfloat16, tables and parameters in float32: bits as in plain PyTorch, whose operations these
    are."""
    session, model, opt, plain, sgd = made("autocast")
    with session:
        for i in range(4):
            for one, by in (model, opt), (plain, sgd):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(one, i)
                loss.backward()
                by.step()
                by.zero_grad()
        assert model(torch.tensor([[1]])).dtype == torch.float32
        equal(session, model, plain, atol=4 * 2**-23)  # rows whose three or more summands come in another order


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

    def train(name, into):
        session, model, opt, _, _ = made(name)
        with session:
            for i in range(8):
                loss_of(model, i).backward()
                opt.step()
                opt.zero_grad()
            into.append(session.digest())

    train("one", alone)
    threads = [threading.Thread(target=train, args=(name, together)) for name in ("two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone * 2


# What frameworks do with an optimizer.


def test_what_frameworks_find():
    """The protocol of Lightning and Accelerate, without them: groups, state, closures, schedulers, hooks of the
    loop."""
    session, model, opt, plain, sgd = made("frameworks")
    with session:
        assert isinstance(opt, torch.optim.Optimizer) and opt.state == {} and isinstance(opt.defaults, dict)
        assert [sorted(group) for group in opt.param_groups] == [["lr", "name", "params"]] * 2
        assert {id(p) for p in opt.param_groups[1]["params"]} == {id(p) for p in model.parameters()}
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
