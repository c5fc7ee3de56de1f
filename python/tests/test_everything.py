"""Jobs whose trainers have everything: some are killed, or all, others come, and the weights are those of a quiet run."""

from __future__ import annotations

import re

import pytest
from programs import last, until

import gradbus

# Only dense parameters, which trainers add up among themselves: they have everything.
DENSE = """
import logging, pathlib, sys, time, torch, gradbus
server, folder, hold = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(5)
# A stream of its own: print writes a line in parts, between which other threads log.
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=open(1, "w", closefd=False))
inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))
manifest = {"reduce": "trainers", "apply": "mean"}
if server == "local":
    session = gradbus.local("everything", lanes=4)
else:
    session = gradbus.join(server, "everything", trainers=3, lanes=4, manifest=manifest, reconnect_timeout=60.0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = gradbus.Optimizer(model, session, dense=gradbus.Adam(1e-2))

class Data:
    def __getitem__(self, at):
        if at[0] in (7, 40) and hold == "yes" and at[1] == session.lanes[0]:
            print(f"holds at {at[0]}", flush=True)
            while not (pathlib.Path(folder) / f"go {at[0]}").exists():
                time.sleep(0.01)
        if at[0] > 40 and hold != "no" and not (pathlib.Path(folder) / "go 41").exists():
            time.sleep(0.2)  # so that a ps, or other trainers, come to a job that runs
        return inputs[(4 * at[0] + at[1]) % 40]

with session:
    for x in gradbus.LaneLoader(Data(), session, batches=60):
        model(x).square().sum().backward()
        opt.step()
        opt.zero_grad()
    print("at", session.batch, session.digest(), flush=True)
"""


def test_trainers_that_have_everything(start):
    """One of three is killed in the middle of a batch, then the ps, which keeps nothing; a new trainer comes."""
    quiet = last(start.python(DENSE, "local", "-", "no"))
    ps, url = start.ps()
    programs = [start.python(DENSE, url, start.folder, "yes") for _ in range(3)]
    for program in programs:
        program.wait_for("holds at 7")
    programs[0].kill()
    until(lambda: "the job goes on with 2 of 3 trainers" in ps.said(), "the loss")
    programs[0] = start.python(DENSE, url, start.folder, "yes")
    until(lambda: "has come, with version 0, 1 of 2" in ps.said(), "the newcomer, while the others are at work")
    assert "job goes on at" not in ps.said()
    (start.folder / "go 7").touch()
    for program in programs:
        program.wait_for("holds at 40")
    ps.kill()
    ps, _ = start.ps("--listen", url.split("//")[1])
    (start.folder / "go 40").touch()
    until(lambda: "of which 3 have all of it" in ps.said() or programs[0].process.poll() is not None, "all three again")
    (start.folder / "go 41").touch()
    for program in programs:
        assert last(program) == quiet
        assert "policy recover" in program.out.read_text()


# With a folder for versions, which all share; one may say that it resumes.
KEPT = DENSE.replace("server, folder, hold", "server, folder, hold, resume").replace(
    "reconnect_timeout=60.0)", 'reconnect_timeout=60.0, checkpoint_dir=folder + "/kept", checkpoint_every="1")'
).replace(
    "    for x in gradbus.LaneLoader(Data(), session, batches=60):\n",
    """    loader = gradbus.LaneLoader(Data(), session, batches=60)
    print("begins", session.resume() if resume == "yes" else 0, flush=True)
    for x in loader:
""",
)


@pytest.mark.parametrize("resume", ["no", "yes"])
def test_all_trainers_that_have_everything_are_killed(start, resume):
    """Of a job that runs, all trainers are killed, and the ps where it is to be resumed by hand."""
    quiet = last(start.python(DENSE, "local", "-", "no"))
    ps, url = start.ps()
    programs = [start.python(KEPT, url, start.folder, "yes", "no") for _ in range(3)]
    (start.folder / "go 7").touch()
    for program in programs:
        program.wait_for("holds at 40")
    until(lambda: [v for v in (start.folder / "kept").glob("*/*/complete.json") if int(v.parent.name[-12:]) > 1], "a version")
    for program in programs:
        program.kill()
    if resume == "yes":
        ps.kill()
        ps, url = start.ps()
    programs = [start.python(KEPT, url, start.folder, "late", resume) for _ in range(3)]
    if resume == "no":  # the first may go on alone, until the others come
        until(lambda: re.search(r"job goes on at batch \d+, trainers: 3", ps.said()), "all three again")
    (start.folder / "go 41").touch()
    for program in programs:
        assert last(program) == quiet
    if resume == "yes":
        for program in programs:
            assert 0 < int(program.out.read_text().split("begins ")[1].split()[0]) <= 40, program.said()
    else:
        assert "job goes on at batch" in ps.said()


def test_a_folder_of_a_trainer_for_what_servers_have(start):
    _, url = start.ps()
    with gradbus.join(url, "served", checkpoint_dir=start.folder) as session:
        model = gradbus.EmbeddingBag(10, 2)
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5))
        with pytest.raises(gradbus.ConfigError, match="checkpoint_dir .*shards have what is to be kept"):
            session.start()
    with pytest.raises(gradbus.ConfigError, match="checkpoint_keep"):
        gradbus.join(url, "served", checkpoint_dir=start.folder, checkpoint_keep=1)
    with gradbus.join(url, "served", checkpoint_dir=start.folder, checkpoint_every="often") as session:
        gradbus.Optimizer(gradbus.EmbeddingBag(10, 2), session, embeddings=gradbus.SGD(0.5))
        with pytest.raises(gradbus.ConfigError, match='checkpoint_every: "often": want a time'):
            session.start()
