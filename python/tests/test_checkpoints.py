"""Sessions that make a version durable, and others that go on from it."""

from __future__ import annotations

import shutil

import pytest
import torch

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


# Trains by a LaneLoader, with dropout and statistics, and writes versions by itself. It ends at a batch, or waits there
# to be killed.
KILLED = """
import sys, time, torch, gradbus
folder, end, resume = sys.argv[1], *map(int, sys.argv[2:4])
torch.set_num_threads(1)
session = gradbus.local("killed", lanes=2, checkpoint_dir=folder, checkpoint_every=3)
words, norm = gradbus.EmbeddingBag(2000, 8, mode="mean"), torch.nn.BatchNorm1d(8)
torch.manual_seed(3)
model = torch.nn.Sequential(words, norm, torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
opt = gradbus.Optimizer(model, session, embeddings=gradbus.Adam(0.05), dense=gradbus.Adam(1e-2))
ids = torch.randint(0, 900, (120, 3), generator=torch.Generator().manual_seed(3))
loader = gradbus.LaneLoader(gradbus.LaneSampler(120, session, 20), session, batches=12)
first = session.resume() if resume else 0
for chosen in loader:
    opt.zero_grad()
    model(ids[chosen]).square().mean().backward()
    opt.step()
    if session.batch == end < 12:
        print("there", flush=True)
        time.sleep(60)
print(first, session.batch, session.digest(), norm.running_var.tolist(), flush=True)
session.close()
"""


def test_killed(start, tmp_path):
    """A process that is killed goes on from the version that it has written by itself, to the bits of one that is not."""
    whole = start.python(KILLED, tmp_path / "whole", 12, 0)
    killed = start.python(KILLED, tmp_path / "folder", 8, 0)
    killed.wait_for("there")
    killed.kill()
    again = start.python(KILLED, tmp_path / "folder", 12, 1)
    for program in whole, again:
        assert program.end() == 0, program.said()
    assert again.out.read_text() == "6" + whole.out.read_text()[1:]


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


class Model(torch.nn.Module):
    """With all that a next step depends on: rows, layers, statistics, and random numbers."""

    def __init__(self):
        super().__init__()
        self.users = gradbus.EmbeddingBag(20, 4, mode="sum")
        self.norm, self.drop, self.last = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)

    def forward(self, ids):
        return self.last(self.drop(self.norm(self.users(ids))))


@pytest.mark.parametrize("rows", OPTIMIZERS, ids=lambda spec: f"{type(spec).__name__}{spec.fields().get('exact', '')}")
def test_plain_loop(tmp_path, rows):
    """Ten steps, a checkpoint, another session and ten steps are twenty steps: with every optimizer, a scheduler, dropout,
    BatchNorm, and batches that the script draws."""

    def run(first, steps, resume=False, keep=False):
        torch.manual_seed(7 if first == 0 else 8)
        session = gradbus.local("twenty", checkpoint_dir=tmp_path)
        model, exact = Model(), getattr(rows, "exact", False)
        dense = gradbus.SGD(0.1, momentum=0.9) if exact else rows
        opt = gradbus.Optimizer(model, session, embeddings=rows, dense=dense)
        scheduler = None
        if not exact:  # rows of which go by one rate
            scheduler = torch.optim.lr_scheduler.MultiStepLR(opt, [3, 9, 10, 15], gamma=0.7)
            session.register(scheduler=scheduler)
        with session:
            if resume:
                assert session.resume() == first
            for _ in range(steps):
                opt.zero_grad()
                ids, labels = torch.randint(0, 20, (8, 3)), torch.randint(0, 2, (8,))
                torch.nn.functional.cross_entropy(model(ids), labels).backward()
                opt.step()
                if scheduler is not None:
                    scheduler.step()
            if keep:
                assert session.checkpoint() == first + steps
            return session.digest(), model.norm.running_var.tolist(), opt.param_groups[0]["lr"]

    whole = run(0, 20)
    run(0, 10, keep=True)
    assert run(10, 10, resume=True) == whole


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_lane_loader(tmp_path, stop):
    """A version after the first batch, in the middle of an epoch and at its end, made by a call or by itself, goes on in
    a process that has drawn other random numbers."""
    ids = torch.randint(0, 20, (60, 3), generator=torch.Generator().manual_seed(3))

    def run(folder, until, resume=False, **options):
        session = gradbus.local("lanes", lanes=3, **options)
        torch.manual_seed(3)
        model = Model()
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.Adagrad(0.1), dense=gradbus.Adam(0.01))
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1 / (1 + n // 4))
        sampler = gradbus.LaneSampler(60, session, batch_size=10)
        loader = gradbus.LaneLoader(sampler, session, batches=18)
        session.register(scheduler=scheduler)
        torch.rand(17)
        with session:
            if resume:
                assert session.resume(folder) == stop
            for chosen in loader:
                opt.zero_grad()
                rows = ids[chosen]
                torch.nn.functional.cross_entropy(model(rows), rows[:, 0] % 2).backward()
                opt.step()
                if session.lane == 0:  # the next one: this was the last of its batch
                    scheduler.step()
                    if session.batch == until:
                        if folder is not None:
                            session.checkpoint(folder)
                        break
            return session.digest(), model.norm.running_mean.tolist()

    whole = run(None, 18)
    called, itself = tmp_path / "called", tmp_path / "itself"
    run(called, stop)
    assert run(called, 18, resume=True) == whole
    run(None, stop + 1, checkpoint_dir=itself, checkpoint_every=stop)
    assert run(itself, 18, resume=True) == whole


def made(session):
    model = torch.nn.Sequential(gradbus.Embedding(10, 2, name="words"))
    return gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1)), model


def step(opt, model):
    model(torch.tensor([1, 2])).sum().backward()
    opt.step()
    opt.zero_grad()


def test_written_by_itself(tmp_path, caplog):
    """With checkpoint_every a local session writes versions while it trains, and trains on where one cannot be."""
    with gradbus.local("often", checkpoint_dir=tmp_path, checkpoint_every=3, checkpoint_keep=3) as session:
        opt, model = made(session)
        for n in range(8):
            step(opt, model)
            if n == 5:
                (tmp_path / "often" / "unreadable").touch()
        assert len(list(tmp_path.glob("often/*/complete.json"))) == 2
        for path in tmp_path.glob("often/*/complete.json"):
            path.unlink()
        shutil.rmtree(tmp_path / "often")
        (tmp_path / "often").touch()
        for _ in range(3):
            step(opt, model)
        assert "version 9 is not written" in caplog.text and session.batch == 11


def test_program_refused(tmp_path):
    """Buffers and objects of another kind than those of the version, and states that no file has, are refused by name."""

    def begin(name="part", buffer=True):
        session, model = gradbus.local(name), torch.nn.Module()
        model.words = gradbus.Embedding(10, 2)
        if buffer:
            model.register_buffer("seen", torch.zeros(3))
        return session, gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1)), model

    class Counts:
        def __init__(self, state):
            self.state = state

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    session, opt, model = begin()
    with session:
        step(opt, model.words)
        with pytest.raises(gradbus.ConfigError, match="want an object with state_dict"):
            session.register(count=3)
        counts = Counts({"done": {1, 2}})
        session.register(counts=counts)
        with pytest.raises(gradbus.ConfigError, match="the state of what is registered has set"):
            session.checkpoint(tmp_path)
        with pytest.raises(gradbus.ConfigError, match="another object has that name"):
            session.register(counts=Counts({}))
        counts.state = {"many": torch.zeros(17 * 2**20)}
        with pytest.raises(gradbus.ConfigError, match="want at most 67108864"):
            session.checkpoint(tmp_path)
        counts.state = {"done": [1, (2, "x")]}
        model.seen.fill_(5)
        assert session.checkpoint(tmp_path) == 1
    session, _, model = begin()
    with session:
        session.resume(tmp_path)
        assert model.seen.tolist() == [5, 5, 5]
        late = Counts({})
        session.register(counts=late)
        assert late.state == {"done": [1, (2, "x")]}
    session, _, _ = begin(buffer=False)
    with session, pytest.raises(gradbus.ConfigError, match=r"buffers \['seen'\] are not those of the version"):
        session.resume(tmp_path)
    session, _, _ = begin()
    session.register(other=Counts({}))
    with session, pytest.raises(gradbus.ConfigError, match=r"has nothing of \['other'\]"):
        session.resume(tmp_path)
    (part,) = tmp_path.glob("part/*/program")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    session, _, _ = begin()
    with session, pytest.raises(gradbus.JobError, match="damaged"):
        session.resume(tmp_path)


def test_refused(start, tmp_path, caplog):
    """What cannot be written or resumed says why, and the session continues."""
    for arguments, says in (
        ({"checkpoint_every": 5}, "want checkpoint_dir with it"),
        ({"checkpoint_dir": tmp_path, "checkpoint_every": "often"}, "want a time, as .10m., or a number of batches"),
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
        session.register(scheduler=torch.optim.lr_scheduler.StepLR(opt, 5))
        assert "so not of ['scheduler']" in caplog.text
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
