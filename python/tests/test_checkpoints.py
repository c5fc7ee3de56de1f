"""Sessions that make a version durable, and others that go on from it."""

from __future__ import annotations

import pytest
import torch
from small import loss_of

import gradbus

OPTIMIZERS = [
    gradbus.SGD(0.1, momentum=0.9, weight_decay=0.01),
    gradbus.SGD(0.1, momentum=0.9, exact=True),
    gradbus.Adagrad(0.05),
    gradbus.RowwiseAdagrad(0.05),
    gradbus.Adam(1e-2),
    gradbus.AdamW(1e-2, schedule=gradbus.CosineSchedule(30, warmup=4)),
    gradbus.FTRL(0.1, l1=1e-3),
]

# Trains batches of four lanes: from version 0, or from the newest one in the folder; to a batch, where it makes a
# version durable if it is told to. It prints where it began and what it has come to.
PROGRAM = """
import sys, torch, gradbus
where, trainers, folder, end, keeps, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:7])
torch.set_num_threads(1)
torch.manual_seed(seed)
if where == "local":
    session = gradbus.local("begun", lanes=4, shards=2)
else:
    session = gradbus.join(where, "begun", trainers=trainers, lanes=4)
words = gradbus.EmbeddingBag(2000, 8, mode="mean")
model = torch.nn.Sequential(words, torch.nn.Linear(8, 1))
opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-2))
generator = torch.Generator().manual_seed(3)
ids = torch.randint(0, 900, (120, 3), generator=generator)
labels = ids[:, 0].remainder(2).float()
first = (session.resume(folder) if where == "local" else session.resume()) if seed > 1 else 0
sampler = gradbus.LaneSampler(120, session, 20)
while session.batch < end:
    for chosen in sampler.tensors():
        opt.zero_grad()
        logits = model(ids[chosen]).squeeze(1)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[chosen]).backward()
        opt.step()
        if session.batch == end:
            break
if keeps:
    assert session.checkpoint(folder if where == "local" else None) == end
print(first, session.batch, session.digest(), flush=True)
session.close()
"""


def trained(start, where, trainers, folder, end, keeps=0, seed=1):
    programs = [start.python(PROGRAM, where, trainers, folder, end, keeps, seed) for _ in range(trainers)]
    said = set()
    for program in programs:
        assert program.end() == 0, program.said()
        said.add(program.out.read_text())
    assert len(said) == 1
    return said.pop().split()


def test_in_all_places(start, tmp_path):
    """A job begun in a process goes on with trainers at a ps, on other shards, and then in a process again; the values
    that a model is made with do not matter."""
    folder = tmp_path / "checkpoints"
    _, whole, digest = trained(start, "local", 1, folder, 20)
    assert whole == "20"
    assert trained(start, "local", 1, folder, 5, keeps=1)[:2] == ["0", "5"]
    ps, url = start.ps("--shards", 3, "--checkpoint-dir", folder, "--checkpoint-every", "1h")
    assert trained(start, url, 2, folder, 10, keeps=1, seed=2)[:2] == ["5", "10"]
    ps.kill()
    ps, url = start.ps("--checkpoint-dir", folder, "--checkpoint-every", "1h")
    assert trained(start, url, 4, folder, 13, keeps=1, seed=3)[:2] == ["10", "13"]
    ps.kill()
    assert trained(start, "local", 1, folder, 20, seed=4) == ["13", "20", digest]


@pytest.mark.parametrize("rows", OPTIMIZERS, ids=lambda spec: f"{type(spec).__name__}{spec.fields().get('exact', '')}")
def test_optimizers(tmp_path, rows):
    """Ten steps, a checkpoint, another session and ten steps are twenty steps, with every optimizer."""

    def run(resume, steps, keep):
        torch.manual_seed(7)
        session = gradbus.local("twenty", checkpoint_dir=tmp_path, checkpoint_every=10**6)
        model = torch.nn.Module()
        model.users = gradbus.EmbeddingBag(20, 4, mode="sum")
        model.last = torch.nn.Linear(4, 2)
        model.forward = lambda ids: model.last(model.users(ids))
        dense = gradbus.SGD(0.1, momentum=0.9) if getattr(rows, "exact", False) else rows
        opt = gradbus.Optimizer(model, session, embeddings=rows, dense=dense)
        with session:
            done = session.resume() if resume else 0
            for step in range(done, done + steps):
                opt.zero_grad()
                loss_of(model, step).backward()
                opt.step()
            if keep:
                assert session.checkpoint() == done + steps
            return session.digest()

    digest = run(False, 20, False)
    run(False, 10, True)
    assert run(True, 10, False) == digest


def made(session):
    model = torch.nn.Sequential(gradbus.Embedding(10, 2, name="words"))
    return gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1)), model


def step(opt, model):
    model(torch.tensor([1, 2])).sum().backward()
    opt.step()
    opt.zero_grad()


def test_written_by_itself(tmp_path):
    """With checkpoint_every a local session writes versions while it trains."""
    with gradbus.local("often", checkpoint_dir=tmp_path, checkpoint_every=5, checkpoint_keep=3) as session:
        opt, model = made(session)
        for _ in range(100000):
            step(opt, model)
            if len(list(tmp_path.glob("often/*/complete.json"))) >= 2:
                break
        else:
            raise AssertionError("no version was written")


def test_refused(start, tmp_path):
    """What cannot be written or resumed says why, and the session continues."""
    for arguments, says in (
        ({"checkpoint_every": 5}, "want checkpoint_dir with it"),
        ({"checkpoint_dir": tmp_path, "checkpoint_every": "often"}, "want a time, as 10s, or a number of batches"),
        ({"checkpoint_dir": tmp_path, "checkpoint_keep": 1}, "checkpoint_keep 1: want an integer, at least 2"),
        ({"checkpoint_dir": ""}, "want the path of a folder"),
    ):
        with pytest.raises(gradbus.ConfigError, match=says):
            gradbus.local("wrong", **arguments)
    with gradbus.local("here") as session:
        opt, model = made(session)
        with pytest.raises(gradbus.ConfigError, match="want resume.FOLDER"):
            session.resume()
        with pytest.raises(gradbus.JobError, match="there is no durable version of it"):
            session.resume(tmp_path)
        with pytest.raises(gradbus.OrderError, match="no batch is complete"):
            session.checkpoint(tmp_path)
        step(opt, model)
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(gradbus.OrderError, match="within batch 1"):
            session.checkpoint()
        opt.step()
        with pytest.raises(gradbus.FileError, match="is in use"):
            session.checkpoint(tmp_path / "other")
        assert session.checkpoint(tmp_path) == session.checkpoint() == 2
        step(opt, model)
        assert session.batch == 3
    _, url = start.ps()
    with gradbus.join(url, "there") as session:
        opt, model = made(session)
        step(opt, model)
        with pytest.raises(gradbus.ConfigError, match="give --checkpoint-dir to ps"):
            session.checkpoint(tmp_path)
        with pytest.raises(gradbus.JobError, match="start it with --checkpoint-dir"):
            session.checkpoint()
        step(opt, model)
    with gradbus.local("means", manifest={"apply": "mean"}) as session:
        opt, model = made(session)
        step(opt, model)
        with pytest.raises(gradbus.ConfigError, match="want apply update"):
            session.checkpoint(tmp_path)
