"""Sessions that go on from a durable version."""

from __future__ import annotations

import pytest
import torch

import gradbus

# Trains a model by lanes, from the first batch on or from a durable version; halves its rates in batch 20. It trains
# until an increment is durable and some batches more, or to the batch that it is told, and prints what it has come to.
PROGRAM = """
import pathlib, sys, time, torch, gradbus
server, folder, trainers, seed, end = sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:6])
torch.set_num_threads(1)
torch.manual_seed(seed)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = gradbus.EmbeddingBag(20000, 8, mode="mean")
        self.top = torch.nn.Linear(8, 1)
    def forward(self, ids):
        return self.top(self.words(ids)).squeeze(1)

generator = torch.Generator().manual_seed(3)
ids = torch.randint(0, 900, (120, 3), generator=generator)
labels = ids[:, 0].remainder(2).float()
session = gradbus.join(server, "again", trainers=trainers, lanes=2)
model = Model()
opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-2))
if end:
    first = [p.detach().clone() for p in model.parameters()]
    done = session.resume()
    changed = all(not torch.equal(a, b) for a, b in zip(first, model.parameters()) if a.numel())
    print("resumed", done, session.next_batch, changed, [round(g["lr"], 6) for g in opt.param_groups], flush=True)
sampler = gradbus.LaneSampler(120, session, 20)

def durable():
    # an increment, whose manifest names its base
    return any('"base"' in path.read_text() for path in folder.glob("again/*/complete.json"))

stop, began = end, time.monotonic()
while not stop or session.batch < stop:
    for chosen in sampler.tensors():
        if session.batch == 20 and not end:
            for group, rate in zip(opt.param_groups, (0.025, 5e-3)):
                group["lr"] = rate
        opt.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(ids[chosen]), labels[chosen]).backward()
        opt.step()
        if stop and session.batch == stop:
            break
    if not stop and durable():
        stop = session.batch + 10
    assert time.monotonic() < began + 60
print("at", session.batch, session.digest(), flush=True)
if not end:
    time.sleep(60)
"""


def test_resume(start, tmp_path):
    """A script that is killed with its server goes on, on other shards and by other trainers, with equal bits; the
    values that its model is made with do not matter."""
    folder = tmp_path / "checkpoints"
    ps, url = start.ps("--shards", 2, "--checkpoint-dir", folder, "--checkpoint-every", "1s")
    first = start.python(PROGRAM, url, folder, 1, 1, 0)
    first.wait_for("at ")
    _, batches, digest = first.out.read_text().split()
    ps.kill()
    first.kill()
    for shards, trainers in (1, 1), (3, 2):
        ps, url = start.ps("--shards", shards, "--checkpoint-dir", folder, "--checkpoint-every", "1h")
        programs = [start.python(PROGRAM, url, folder, trainers, 5, batches) for _ in range(trainers)]
        for program in programs:
            assert program.end() == 0, program.said()
            resumed, reached = program.out.read_text().splitlines()
            word, done, following, changed, rates = resumed.split(" ", 4)
            assert (word, changed, rates) == ("resumed", "True", "[0.025, 0.005]")
            assert 20 < int(done) == int(following) <= int(batches)
            assert reached == f"at {batches} {digest}"
        ps.kill()


def made(session):
    model = torch.nn.Sequential(gradbus.Embedding(10, 2, name="words"))
    return gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1)), model


def test_resume_refused(start, tmp_path):
    """What cannot be resumed says why, and a session that could not be may begin anew."""
    _, bare = start.ps()
    _, empty = start.ps("--checkpoint-dir", tmp_path / "checkpoints")
    for url, says in (bare, "start it with --checkpoint-dir"), (empty, "there is no durable version of it"):
        with gradbus.join(url, "anew") as session:
            opt, model = made(session)
            with pytest.raises(gradbus.JobError, match=says):
                session.resume()
            assert session.start().next_batch == 0
            with pytest.raises(gradbus.OrderError, match="has joined its job"):
                session.resume()
            model(torch.tensor([1, 2])).sum().backward()
            opt.step()
            assert session.batch == 1
    with gradbus.join(empty, "without") as session:
        with pytest.raises(gradbus.OrderError, match="has no optimizer"):
            session.resume()
