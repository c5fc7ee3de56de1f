"""Jobs that recover: trainers and servers are killed, others come, and the weights are those of a quiet run."""

from __future__ import annotations

import pytest
import torch
from programs import until

import gradbus

# Trains a model by a LaneLoader and prints the digest. HOLD lists, by trainer, the batches before whose first lane it
# prints a line and waits until it is killed or a file says to go on: so a test kills in the middle of a batch.
PROGRAM = """
import logging, os, pathlib, sys, time, torch, gradbus
server, folder, trainers, form = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
holds = dict(part.split(":") for part in sys.argv[5:])
torch.set_num_threads(1)
torch.manual_seed(5)
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=sys.stdout)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = gradbus.EmbeddingBag(2000, 8, mode="mean")
        self.tags = gradbus.Embedding(50, 8)
        self.top = torch.nn.Linear(16, 1)
    def forward(self, ids):
        return self.top(torch.cat([self.words(ids), self.tags(ids[:, 0] % 50)], 1)).squeeze(1)

generator = torch.Generator().manual_seed(3)
ids = torch.randint(0, 900, (120, 3), generator=generator)
labels = ids[:, 0].remainder(2).float()
if server == "local":
    session = gradbus.local("recovers", lanes=4)
else:
    session = gradbus.join(server, "recovers", trainers=trainers, lanes=4, back_within=60.0)
model = Model()
opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-2))
sampler = gradbus.LaneSampler(120, session, 20)

def held(batch, lane):
    hold = holds.get(session.member)
    if hold is None or batch != int(hold) or lane % 2:
        return
    print("holds", session.member, batch, lane, flush=True)
    end = time.monotonic() + 60
    while not (folder / f"go-{session.member}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)

class Indexed:
    def __getitem__(self, at):
        held(*at)
        chosen = sampler[at]
        return ids[chosen], labels[chosen]

with session:
    if form == "indexed":
        loader = gradbus.LaneLoader(Indexed(), session, batches=30)
    else:
        data = torch.utils.data.TensorDataset(ids, labels)
        loader = gradbus.LaneLoader(data, sampler, epochs=5, ahead=2)
    for epoch in range(5):
        for words, wanted in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(words), wanted)
            opt.zero_grad()
            loss.backward()
            opt.step()
    print("at", session.batch, session.digest(), [float(p.double().sum()) for p in model.parameters()], flush=True)
    while holds.get("end"):
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory, nursery):
    """What a run prints in which nothing happens, in one process without a server."""
    from programs import Starter

    starter = Starter(tmp_path_factory.mktemp("quiet"), nursery)
    one = starter.python(PROGRAM, "local", "-", 1, "indexed")
    assert one.end() == 0, one.said()
    line = one.out.read_text().splitlines()[-1]
    assert line.startswith("at 30 "), one.said()
    return line


def last(program):
    assert program.end() == 0, program.said()
    return program.out.read_text().splitlines()[-1]


def test_forms(start, quiet):
    """Both forms of data, and several trainers, have the same bits."""
    _, url = start.ps()
    for form in "indexed", "sampler":
        programs = [start.python(PROGRAM, url, "-", 2, form) for _ in range(2)]
        for program in programs:
            assert last(program) == quiet
            assert "policy recover" in program.out.read_text()


def test_a_killed_trainer(start, quiet):
    """One of two is killed in the middle of a batch; the other computes its lanes of that batch and of all later ones."""
    _, url = start.ps()
    programs = [start.python(PROGRAM, url, start.folder, 2, "indexed", "t1:7") for _ in range(2)]
    until(lambda: any("holds t1" in p.out.read_text() for p in programs), "a trainer in the middle of batch 7")
    killed, other = sorted(programs, key=lambda p: "holds t1" not in p.out.read_text())
    killed.kill()
    assert last(other) == quiet
    assert "computes lanes 2 to 3 of batch 7, too" in other.out.read_text(), other.said()
