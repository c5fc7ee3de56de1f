"""Steps that are unlike others: accumulated, scaled, clipped, skipped, in bfloat16."""

from __future__ import annotations

import re

import pytest
import torch
from small import Model, equal, loss_of, made
from torch import nn

import gradbus

INF = float("inf")


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
        assert all(p.grad is None for p in model.last.parameters())
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


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("where", ["rows", "dense"])
def test_a_value_that_is_not_finite_ends_the_training_alone(where, shards, tmp_path):
    """The error names the value. The version before stays readable, and nothing else of the session trains."""
    session, model, opt, plain, sgd = made(f"{where}-named-{shards}", shards=shards)
    with session:
        for i in range(2):
            for of, by in (model, opt), (plain, sgd):
                by.zero_grad()
                loss_of(of, i).backward()
                by.step()
        before, rows = session.digest(), session.lookup("users", torch.arange(20))
        opt.zero_grad()
        loss_of(model, 2).backward()
        if where == "rows":
            (model.users(torch.tensor([[7]])).sum() * INF).backward()
        else:
            model.last.bias.grad[1] = float("nan")
        with pytest.raises(gradbus.JobError, match="users" if where == "rows" else "last") as error:
            opt.step()
        assert "version 2 can still be read and saved" in str(error.value)
        for _ in range(2):
            assert session.digest() == before and session.lookup("users", torch.arange(20)).equal(rows)
            with pytest.raises(gradbus.JobError, match="not finite|non_finite"):
                model(torch.tensor([[7]]))
            model.eval()
            assert model(torch.tensor([[7]])).isfinite().all()
            model.train()
        equal(session, model, plain, atol=2**-20)
        session.save(tmp_path / "model.safetensors")
        assert gradbus.plain_state_dict(model)["users.weight"].equal(rows)
    saved = gradbus.open_model(tmp_path / "model.safetensors", verify=True)
    assert saved.digest == before and saved.version == 2


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
        from small import Model, loss_of
        from test_edges_steps import INF, Scaler
        server, way, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
        session = gradbus.join(server, f"absent-{way}", trainers=2, id=f"t{rank}", manifest={"policy": "fail"})
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


# A parameter that a step leaves out.


def test_a_dense_parameter_without_a_gradient_has_one_of_zeros():
    """PyTorch leaves it alone; here momentum goes on to move it, as docs/pytorch.md says. With a rate, a momentum and
    gradients that are powers of two every product and sum is exact."""
    with gradbus.local("zeros") as session:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        opt = gradbus.Optimizer(model, session, dense=gradbus.SGD(0.5, momentum=0.5))
        seen = []
        for step in range(3):
            if step == 0:
                model(torch.ones(1, 1)).sum().backward()  # a gradient of 1
            opt.step()
            opt.zero_grad()
            seen.append(float(model.weight.detach()))
    assert seen == [-0.5, -0.75, -0.875]
