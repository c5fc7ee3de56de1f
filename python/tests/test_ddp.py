"""DistributedDataParallel: gradbus beside it, and in place of its all-reduce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradbus

HEAD = (Path(__file__).parent / "ddp_program.py").read_text()


def ranks(start, body, n=2, **env):
    """Runs a body in n processes that know each other by gloo, beside a ps; gives what each has printed."""
    _, server = start.ps()
    meeting = start.folder / f"meeting{len(start.programs)}"
    source = HEAD + "\n" + re.sub(r"(?m)^    ", "", body)
    programs = [start.python(source, server, meeting, rank, n, **env) for rank in range(n)]
    for program in programs:
        assert program.end() == 0 and program.err.read_text() == "", program.said()
    return [program.out.read_text() for program in programs]


@pytest.mark.parametrize("n", [2, 3])
def test_the_hook_averages_as_gloo_does(start, n):
    """Dense parameters are the script's: the same steps with gloo's all-reduce and with the hook. Of two ranks the bits
    are equal: a sum of two has one order, and a half is exact. Of three gloo divides first, by 3: two roundings of each
    term and two sums, 5 units in the last place of the largest term a step, where gradbus divides once."""
    said = ranks(
        start,
        """
    exact = processes == 2
    results = {}
    for way in "gloo", "hook":
        session = gradbus.join(server, f"ddp-{way}", trainers=processes, id=f"t{rank}", manifest={"policy": "fail"})
        model = Model(session)
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
        ddp = DDP(model, bucket_cap_mb=0.0001)  # several buckets
        if way == "hook":
            ddp.register_comm_hook(session, gradbus.hook)
        dense = torch.optim.SGD(ddp.parameters(), lr=0.5)
        seen = []
        for i in range(6):
            train(ddp, dense, opt, *batch(i, rank))
            seen.append([p.detach().clone() for p in ddp.parameters()])
        results[way] = seen, session.lookup("users", torch.arange(50))
        session.close()
    for (gloo, hook) in zip(results["gloo"][0], results["hook"][0]):
        for a, b in zip(gloo, hook):
            assert torch.equal(a, b) if exact else torch.allclose(a, b, rtol=0, atol=6 * 5 * 2**-24), a - b
    a, b = results["gloo"][1], results["hook"][1]
    assert torch.equal(a, b) if exact else torch.allclose(a, b, rtol=0, atol=1e-5)
    # all ranks have the same bits
    mine = torch.cat([p.flatten() for p in results["hook"][0][-1]])
    theirs = [torch.empty_like(mine) for _ in range(processes)]
    torch.distributed.all_gather(theirs, mine)
    assert all(torch.equal(mine, t) for t in theirs)
    print("equal")
    """,
        n,
    )
    assert said == ["equal\n"] * n


def test_the_hook_leaves_gradients_to_servers_that_step_them(start):
    """With dense=SGD the gradients arrive undivided: the same bits as without DDP."""
    said = ranks(
        start,
        """
    digests = []
    for wrapped in False, True:
        session = gradbus.join(server, f"servers-{wrapped}".lower(), trainers=2, id=f"t{rank}", manifest={"policy": "fail"})
        model = Model(session)
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), dense=gradbus.SGD(0.5))
        called = model
        if wrapped:
            called = DDP(model)
            called.register_comm_hook(session, gradbus.hook)
        for i in range(4):
            train(called, None, opt, *batch(i, rank))
        digests.append(session.digest())
        assert session._mean is None  # nothing is sent twice
        session.close()
    assert digests[0] == digests[1]
    print("equal")
    """,
    )
    assert said == ["equal\n"] * 2


def test_accumulation_with_no_sync(start):
    """Two micro batches a step: the first stays with its rank, and the second's buckets have the sum of both."""
    said = ranks(
        start,
        """
    results = []
    for way in "gloo", "hook":
        session = gradbus.join(server, f"accumulates-{way}", trainers=2, id=f"t{rank}", manifest={"policy": "fail"})
        model = Model(session)
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
        ddp = DDP(model)
        if way == "hook":
            ddp.register_comm_hook(session, gradbus.hook)
        dense = torch.optim.SGD(ddp.parameters(), lr=0.5)
        for i in range(3):
            with ddp.no_sync():
                ids, values, labels = batch(2 * i, rank)
                loss_of(ddp(ids, values), labels).backward()
            train(ddp, dense, opt, *batch(2 * i + 1, rank))
        results.append([*model.state_dict().values(), session.lookup("users", torch.arange(50))])
        session.close()
    assert all(torch.equal(a, b) for a, b in zip(*results) if isinstance(a, torch.Tensor))
    print("equal")
    """,
    )
    assert said == ["equal\n"] * 2


def test_a_gradient_that_is_not_finite_reaches_all_ranks(start):
    """As an all-reduce has it, so that every rank's GradScaler skips the step; the next step is like any other."""
    said = ranks(
        start,
        """
    session = gradbus.join(server, "overflows", trainers=2, id=f"t{rank}", manifest={"policy": "fail"})
    model = Model(session)
    opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
    ddp = DDP(model)
    ddp.register_comm_hook(session, gradbus.hook)
    for i in range(3):
        ids, values, labels = batch(i, rank)
        (loss_of(ddp(ids, values), labels) * (float("inf") if rank == i == 1 else 1.0)).backward()
        finite = [bool(p.grad.isfinite().all()) for p in model.parameters() if p.numel()]
        assert finite == [i != 1] * len(finite), (i, finite)
        session.skip()
        ddp.zero_grad()
    print("seen")
    session.close()
    """,
    )
    assert said == ["seen\n"] * 2


def test_what_the_hook_refuses(start):
    said = ranks(
        start,
        """
    session = gradbus.join(server, "refuses", trainers=1, id=f"t{rank}", manifest={"policy": "fail"})
    model = Model(session)
    ddp = DDP(model)
    ddp.register_comm_hook(session, gradbus.hook)
    ids, dense, labels = batch(0, rank)
    if rank == 0:
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
        try:
            loss_of(ddp(ids, dense), labels).backward()
        except (RuntimeError, gradbus.ConfigError) as error:  # DDP of PyTorch 1 makes a RuntimeError of it
            text = f"{type(error).__name__}: {error}"
            assert "ConfigError" in text and "1 trainers" in text and "2 processes" in text, text
            print("refused")
    else:
        print("refused")
    """,
    )
    assert said == ["refused\n"] * 2


def test_the_hook_averages_sparse_gradients_as_gloo_does(start):
    """Of a small table of PyTorch beside one of gradbus: the rows of both ranks, with the bits of gloo's sum of two, and
    none that no rank has; SparseAdam moves what a gradient has. One that is not finite reaches both."""
    said = ranks(
        start,
        """
    class Small(Model):
        def __init__(self, session):
            super().__init__(session)
            self.small = torch.nn.EmbeddingBag(30, 4, mode="sum", sparse=True)

        def forward(self, ids, dense):
            return super().forward(ids, dense) + self.small(ids % 30).sum(1, keepdim=True)

    results = {}
    for way in "gloo", "hook":
        session = gradbus.join(server, f"sparse-{way}", trainers=2, id=f"t{rank}", manifest={"policy": "fail"})
        model = Small(session)
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
        ddp = DDP(model)
        if way == "hook":
            ddp.register_comm_hook(session, gradbus.hook)
        layers = [p for name, p in model.named_parameters() if "small" not in name]
        optimizers = [torch.optim.SGD(layers, lr=0.5), torch.optim.SparseAdam(model.small.parameters(), lr=0.5), opt]
        seen = []
        for i in range(5):
            ids, values, labels = batch(i, rank)
            loss_of(ddp(ids, values), labels).backward()
            grad = model.small.weight.grad.coalesce()
            seen.append(grad.indices())
            for one in optimizers:
                one.step()
                one.zero_grad()
            seen += [grad.values(), *(p.detach().clone() for p in model.parameters())]
        results[way] = seen
        if way == "hook":
            ids, values, labels = batch(9, rank)
            (loss_of(ddp(ids, values), labels) * (float("inf") if rank else 1.0)).backward()
            assert not model.small.weight.grad.coalesce().values().isfinite().any()
            session.skip()
        session.close()
    assert len(results["gloo"]) == len(results["hook"])
    assert all(torch.equal(a, b) for a, b in zip(results["gloo"], results["hook"]))
    print("equal")
    """,
    )
    assert said == ["equal\n"] * 2


def test_names_of_second_jobs_are_nobody_elses():
    from gradbus.ddp import derived_name

    names = ["movies", "a" * 56, "a" * 57, "a" * 63, "a" * 62 + "b", "a" * 20 + "-" + "b" * 35]
    derived = [derived_name(name) for name in names]
    assert len(set(derived)) == len(names) and derived[0] == "movies--dense"
    for name in derived:
        assert len(name) <= 63
        with pytest.raises(gradbus.ConfigError, match="names with -- are those that gradbus derives"):
            gradbus.local(name)
