"""Jobs that recover: trainers and servers are killed, others come, and the weights are those of a quiet run."""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch
from programs import last, until

import gradbus

BATCHES = 90

# Trains a model by a LaneLoader and prints the digest. A hold t1:7 has trainer t1 print a line before its first lane of
# batch 7 and wait there until it is killed or a file says to go on: so a test kills in the middle of a batch. leave-t1:9
# has t1 hand its lanes over before batch 9. "slow" has trainers take their time until a version is durable: a coordinator names one by how fast
# batches are. slow:FILE has them do so until that is there.
PROGRAM = """
import logging, os, pathlib, sys, time, torch, gradbus
server, folder, trainers, form = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
holds = dict(part.partition(":")[::2] for part in sys.argv[5:])
torch.set_num_threads(1)
torch.manual_seed(5)
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=open(1, "w", closefd=False))

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
    session = gradbus.join(server, "recovers", trainers=trainers, lanes=4, reconnect_timeout=60.0,
                           id=os.environ.get("ID"))
model = Model()
opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-2))
sampler = gradbus.LaneSampler(120, session, 20)

def held(batch, lane):
    hold = holds.get(session.member)
    if "slow" in holds and not list(folder.glob(holds["slow"] or "checkpoints/recovers/*/complete.json")):
        time.sleep(0.05)
    if hold is None or batch != int(hold) or lane != session.lanes[0]:
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

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        lane = gradbus.lane_info().lane
        for batch in range(90):
            for i in sampler[batch, lane].tolist():
                if holds.get("dies") == f"{batch},{lane}" and not list(folder.glob("dead")):
                    (folder / "dead").touch()
                    os.kill(os.getpid(), 9)
                yield ids[i], labels[i]

with session:
    if form == "indexed":
        loader = gradbus.LaneLoader(Indexed(), session, batches=90, prefetch=0)
    elif form == "stream":
        loader = gradbus.LaneLoader(Stream(), session, batches=90, batch_size=20, num_workers=3)
    else:
        data = torch.utils.data.TensorDataset(ids, labels)
        loader = gradbus.LaneLoader(data, sampler, epochs=15, num_workers=2 * (form == "workers"))
    for epoch in range(15):
        for words, wanted in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(words), wanted)
            opt.zero_grad()
            loss.backward()
            opt.step()
            rows = session.lookup("words", words)  # while further lanes of the batch may be wanted
            assert rows.shape == (len(words), 3, 8) and rows.isfinite().all()
            if session.batch % 20 == 0:
                session.digest()
            if session.batch == int(holds.get(f"leave-{session.member}", -1)):
                session.hand_over()
                print("gone", flush=True)
                sys.exit()
    print("at", session.batch, session.digest(), [float(p.double().sum()) for p in model.parameters()], flush=True)
"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory, nursery):
    """What a run prints in which nothing happens, in one process without a server."""
    from programs import Starter

    starter = Starter(tmp_path_factory.mktemp("quiet"), nursery)
    one = starter.python(PROGRAM, "local", "-", 1, "indexed")
    assert one.end() == 0, one.said()
    line = one.out.read_text().splitlines()[-1]
    assert line.startswith(f"at {BATCHES} "), one.said()
    return line


def trainers(start, url, *holds, n=2):
    """Trainers t0, t1, ... of a job."""
    programs = []
    for i in range(n):
        programs.append(start.python(PROGRAM, url, start.folder, n, "indexed", *holds, ID=f"t{i}"))
    return programs


def held(program):
    program.wait_for("holds t")


def go(start, *members):
    for member in members:
        (start.folder / f"go-{member}").touch()


def test_forms(start, quiet):
    """All forms of data, and several trainers, have the same bits."""
    _, url = start.ps()
    for form in "indexed", "sampler", "workers", "stream":
        programs = [start.python(PROGRAM, url, "-", 2, form) for _ in range(2)]
        for program in programs:
            assert last(program) == quiet
            assert "policy recover" in program.out.read_text()


def test_a_killed_trainer(start, quiet):
    """One of two is killed in the middle of a batch; the other computes its lanes of that batch and of all later ones."""
    _, url = start.ps()
    other, killed = trainers(start, url, "t1:7")
    held(killed)
    killed.kill()
    assert last(other) == quiet
    assert "computes lanes 2 to 3 of batch 7, too" in other.out.read_text(), other.said()


def test_a_killed_trainer_and_the_one_that_has_taken_its_place(start, quiet):
    """Of three trainers two are killed, each in the middle of a batch; the last one computes all lanes."""
    _, url = start.ps()
    programs = trainers(start, url, "t1:7", "t2:30", n=3)
    for program in programs[1:]:
        held(program)
        program.kill()
    assert last(programs[0]) == quiet


def test_a_new_trainer_takes_a_place_that_another_computes(start, quiet):
    ps, url = start.ps()
    first, killed = trainers(start, url, "t1:7", "t0:20")
    held(killed)
    killed.kill()
    held(first)
    newcomer = start.python(PROGRAM, url, start.folder, 2, "workers", ID="t1")
    until(lambda: "trainer t1 joined from" in ps.err.read_text().partition("computed by t0")[2], "the newcomer")
    go(start, "t0")
    assert last(first) == quiet
    assert last(newcomer) == quiet


@pytest.mark.parametrize("waits", [False, True])
def test_ctrl_c_hands_the_lanes_over(start, quiet, waits):
    """Ctrl-C in the program's own code, or while it waits for another trainer."""
    ps, url = start.ps()
    first, second = trainers(start, url, "t1:7")
    held(second)
    leaving, staying = (first, second) if waits else (second, first)
    leaving.signal(signal.SIGINT)
    assert leaving.end() != 0, leaving.said()
    go(start, "t1")
    assert last(staying) == quiet
    assert "has left at batch" in ps.err.read_text() + ps.out.read_text(), ps.said()


def test_a_worker_that_dies(start, quiet):
    """It ends its trainer with PyTorch's error, and the other one computes its lanes, of which it reads the streams."""
    ps, url = start.ps()
    more = "stream", "dies:30,2"
    programs = [start.python(PROGRAM, url, start.folder, 2, *more, ID=f"t{i}") for i in range(2)]
    ended = [program for program in programs if program.end() != 0]
    assert len(ended) == 1 and "RuntimeError: DataLoader worker (pid" in ended[0].err.read_text(), ended[0].said()
    (staying,) = [program for program in programs if program is not ended[0]]
    assert last(staying) == quiet
    assert "has left at batch" in ps.err.read_text() + ps.out.read_text(), ps.said()


def test_hand_over(start, quiet):
    """A trainer leaves between two batches, by a call."""
    _, url = start.ps()
    staying, leaving = trainers(start, url, "leave-t1:9")
    assert leaving.end() == 0 and leaving.out.read_text().endswith("gone\n"), leaving.said()
    assert last(staying) == quiet


def test_a_stopped_trainer_comes_back(start, quiet):
    """One that did not run for longer than the deadline finds its place taken, and joins anew by itself."""
    ps, url = start.ps("--deadline", "4s")
    first, stopped = trainers(start, url, "t1:7", "t0:60")
    held(stopped)
    stopped.signal(signal.SIGSTOP)
    held(first)
    stopped.signal(signal.SIGCONT)
    go(start, "t1")
    stopped.wait_for("is back at version")
    go(start, "t0")
    assert last(first) == quiet
    assert last(stopped) == quiet


@pytest.mark.parametrize("again", [False, True])
def test_a_ps_that_is_killed_and_started_again(start, quiet, again):
    """Trainers come back to the newest durable version; the place of one that was killed, too, is a new one's. ``again``:
    the ps is killed once more while the first trainer waits for the second one, which then comes first."""
    flags = "--checkpoint-dir", start.folder / "checkpoints", "--checkpoint-every", 10
    ps, url = start.ps(*flags)
    first, killed = trainers(start, url, "slow", "t0:85", "t1:85")
    held(first)
    held(killed)
    assert list(start.folder.glob("checkpoints/recovers/*/complete.json"))
    ps.kill()
    killed.kill()
    ps, _ = start.ps(*flags, "--listen", url.split("//")[1])
    if again:
        go(start, "t0")
        until(lambda: "trainer t0 joined from" in ps.said(), "the first trainer")
        first.signal(signal.SIGSTOP)
        ps.kill()
        ps, _ = start.ps(*flags, "--listen", url.split("//")[1])
    newcomer = start.python(PROGRAM, url, start.folder, 2, "sampler", ID="t1")
    if again:
        until(lambda: "trainer t1 joined from" in ps.said(), "the second trainer")
        first.signal(signal.SIGCONT)
    go(start, "t0", "t1")
    assert last(first) == quiet
    assert last(newcomer) == quiet
    back = [line for line in first.out.read_text().splitlines() if "is back at version" in line]
    assert len(back) == 1 and 0 < int(back[0].split("version ")[1].split(",")[0]) < 85, first.said()


def test_a_ps_that_another_one_stands_by_for(start, quiet):
    ps, url = start.ps()
    other, at = start.ps("--replicas", "1", "--peer", url)
    programs = trainers(start, url, "slow:stood-by", "t0:80", "t1:80")
    until(lambda: "job replicated" in other.said(), "one that holds the replica with the job")
    (start.folder / "stood-by").touch()  # a batch that has begun is told of when it is over, and held ones never are
    for program in programs:
        held(program)
    ps.kill()
    go(start, "t0", "t1")
    for program in programs:
        assert last(program) == quiet
        assert "is back at version" in program.out.read_text(), program.said()


PLAIN = """
import logging, sys, torch, gradbus
server, way = sys.argv[1:]
logging.basicConfig(format="%(levelname)s %(message)s", stream=open(1, "w", closefd=False))
manifest = {"policy": "fail"} if way == "chosen" else None
session = gradbus.join(server, "plain", trainers=2, manifest=manifest)
top = torch.nn.Linear(2, 1)
model = torch.nn.Sequential(gradbus.EmbeddingBag(10, 2, name="t"), top)
dense = None if way == "own" else gradbus.SGD(0.5)
opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), dense=dense)
ids = torch.tensor([[1, 2]])
batches = [ids] * 10**6
if way == "own":
    class Data:
        def __getitem__(self, at):
            return ids
    batches = gradbus.LaneLoader(Data(), session, batches=10**6)
try:
    for one in batches:
        model(one).sum().backward()
        opt.step()
        opt.zero_grad()
        print("steps", session.job["policy"], flush=True)
except gradbus.JobError as error:
    print("error:", error, flush=True)
"""


@pytest.mark.parametrize(
    "way, wants",
    [("plain", "gradbus.LaneLoader"), ("own", "gradbus.Optimizer(..., dense="), ("chosen", None)],
)
def test_a_job_that_does_not_recover_says_so(start, way, wants):
    """One with a plain iterator, or with parameters that the script trains itself; unless that was asked for."""
    torch.manual_seed(1)
    _, url = start.ps()
    programs = [start.python("import torch\ntorch.manual_seed(1)\n" + PLAIN, url, way) for _ in range(2)]
    for program in programs:
        program.wait_for("steps fail")
    said = "".join(program.out.read_text() for program in programs)
    assert said.count("WARNING job 'plain': policy fail: a lost trainer or ps ends the job") == (wants is not None)
    assert wants is None or wants in said
    programs[0].kill()
    assert programs[1].end() == 0 and "error: " in programs[1].out.read_text(), programs[1].said()


def small(session):
    model = torch.nn.Sequential(gradbus.Embedding(10, 2, name="t"), torch.nn.Linear(2, 1))
    return model, gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1))


class Counted:
    """Data that are indexed by (batch, lane): ids int64 [2]."""

    def __init__(self):
        self.asked = []

    def __getitem__(self, at):
        self.asked.append(at)
        return torch.tensor([at[0] % 10, at[1]])


def test_what_a_loader_delivers():
    for prefetch in 0, 3:
        with gradbus.local("delivers", lanes=2) as session:
            model, opt = small(session)
            data, seen = Counted(), []
            loader = gradbus.LaneLoader(data, session, batches=3, prefetch=prefetch)
            for ids in loader:
                seen.append(tuple(ids.tolist()))
                assert (session.batch, session.lane) == seen[-1]
                if session.batch == 1:
                    session.skip()
                    continue
                model(ids).sum().backward()
                opt.step()
                opt.zero_grad()
            assert seen == data.asked == [(b, lane) for b in range(3) for lane in range(2)]
            assert session.batch == 3 and list(loader) == []


class Letters(torch.utils.data.IterableDataset):
    """Of each lane so many samples: the lane, and the number of the sample."""

    def __init__(self, samples=100):
        self.samples = samples

    def __iter__(self):
        info = gradbus.lane_info()
        assert info.lanes == 4
        for i in range(self.samples):
            yield info.lane, i


class Squares:
    """Samples by an index, or by a list of them."""

    def __len__(self):
        return 120

    def __getitems__(self, chosen):
        return [i * i for i in chosen]

    def __getitem__(self, i):
        raise AssertionError("one by one")


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("form", ["indexed", "sampler", "stream"])
def test_what_comes_after_a_loss(form, workers):
    """Lanes that are taken over and given back, batches that come again and others that are left out: what is asked for is
    delivered, and not what was read ahead."""
    asked = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)]  # lost one
    wanted = []
    asked += [(4, 0), (4, 1), (5, 0), (5, 0), (5, 1), (2, 0), (2, 1), (3, 0), (9, 2), (9, 3), (8, 0), (8, 1), (9, 0)]
    with gradbus.local("loses", lanes=4) as session:
        model, opt = small(session)
        sampler = gradbus.LaneSampler(120, session, 10, shuffle=False)
        if form == "indexed":
            loader = gradbus.LaneLoader(Letter(), session, batches=10, num_workers=workers)
            wanted = [(torch.tensor(at), "it") for at in asked]
        elif form == "sampler":
            loader = gradbus.LaneLoader(Squares(), sampler, epochs=1, num_workers=workers)
            wanted = [sampler[at] ** 2 for at in asked]
        else:
            loader = gradbus.LaneLoader(Letters(), session, batches=10, batch_size=10, num_workers=workers)
            for batch, lane in asked:
                n = (2, 3, 2, 3)[lane]
                wanted.append((torch.full((n,), lane), torch.arange(batch * n, (batch + 1) * n)))
        for at, one in zip(asked, wanted):
            found = loader._take(at)
            for a, b in zip(found, one) if isinstance(one, tuple) else [(found, one)]:
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, at
        loader._stop()


class Letter:
    def __getitem__(self, at):
        return torch.tensor(at), "it"


class Readers(torch.utils.data.IterableDataset):
    """The lane, and which process reads it for the how manieth time."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        begun = self.begun
        while True:
            yield gradbus.lane_info().lane, os.getpid(), begun


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_has_one_reader(workers):
    """The stream of a lane is begun once, in one process, however many lanes and workers there are."""
    with gradbus.local("streams", lanes=3) as session:
        model, opt = small(session)
        seen = set()
        for one in gradbus.LaneLoader(Readers(), session, batches=4, batch_size=3, num_workers=workers):
            seen.update(zip(*(column.tolist() for column in one)))
            session.skip()
        assert sorted(lane for lane, _, _ in seen) == [0, 1, 2]
        assert len({pid for _, pid, _ in seen}) == max(1, workers)


def test_a_stream_that_ends():
    with gradbus.local("ends", lanes=4) as session:
        model, opt = small(session)
        loader = gradbus.LaneLoader(Letters(7), session, batches=3, batch_size=12)
        with pytest.raises(gradbus.ArgumentError, match="stream of lane 0 ended in batch 2: want 3 samples"):
            for lanes, samples in loader:
                session.skip()
        assert session.batch == 2 and gradbus.lane_info() is None


def test_a_delivery_seeds():
    """Random numbers of the model follow from seed, batch and lane, whatever was drawn and loaded before."""
    drawn = []
    for seed, prefetch in (1, 0), (1, 2), (2, 2):
        with gradbus.local("draws", lanes=4, seed=seed) as session:
            model, opt = small(session)
            torch.rand(seed + prefetch)
            sampler = gradbus.LaneSampler(120, session, 10)
            numbers = []
            for _ in gradbus.LaneLoader(Squares(), sampler, epochs=1, prefetch=prefetch):
                numbers.append((torch.rand(1).item(), random.random()))
                session.skip()
            assert len(set(numbers)) == 48
            drawn.append(numbers)
    assert drawn[0] == drawn[1] != drawn[2]


def test_an_iteration_is_an_epoch():
    with gradbus.local("epochs", lanes=2) as session:
        model, opt = small(session)
        sampler = gradbus.LaneSampler(10, session, 5)
        loader = gradbus.LaneLoader(list(range(10)), sampler, epochs=2, collate_fn=torch.tensor)
        for epoch in range(3):
            seen = []
            for ids in loader:
                seen += ids.tolist()
                model(ids).sum().backward()
                opt.step()
            assert sorted(seen) == (list(range(10)) if epoch < 2 else [])


def test_a_loader_that_is_left_goes_on_with_the_lane_that_has_no_step():
    with gradbus.local("left", lanes=2) as session:
        model, opt = small(session)
        loader = gradbus.LaneLoader(Counted(), session, batches=2)
        for ids in loader:
            break
        assert ids.tolist() == [0, 0]
        for ids in loader:
            model(ids).sum().backward()
            opt.step()
            if ids.tolist() == [0, 1]:
                break
        assert session.batch == 1


def test_refusals():
    with gradbus.local("refuses", lanes=2) as session:
        model, opt = small(session)
        sampler = gradbus.LaneSampler(10, session, 5)
        for data, place, named, says in (
            (iter([]), session, {"batches": 1}, "no index.*a plain iterator cannot give a batch again"),
            ([], session, {}, "want batches, and no epochs"),
            ([], session, {"batches": 0}, "batches 0: want an integer, at least 1"),
            ([], session, {"batches": 1, "epochs": 1}, "want batches, and no epochs"),
            ([0] * 10, sampler, {}, "with a LaneSampler: want epochs"),
            ([0] * 9, sampler, {"epochs": 1}, "of 9 samples, with a LaneSampler of 10"),
            ([0] * 10, sampler, {"epochs": 1, "prefetch": -1}, "prefetch -1: want an integer, at least 0"),
            ([0] * 10, session, {"batches": 1, "batch_size": 4}, "want batch_size with an IterableDataset, and only there"),
            (Letters(), session, {"batches": 1}, "want batch_size with an IterableDataset"),
            (Letters(), sampler, {"batches": 1, "batch_size": 4}, "with LaneSampler: want a session"),
            ([0] * 10, 7, {"epochs": 1}, "with int: want a LaneSampler or a session"),
        ):
            with pytest.raises((gradbus.ArgumentError, gradbus.ConfigError), match=says):
                gradbus.LaneLoader(data, place, **named)
        loader = gradbus.LaneLoader(Counted(), session, batches=2)
        with pytest.raises(TypeError, match="prefetch=2"):
            gradbus.prefetch(loader)
        with pytest.raises(gradbus.OrderError, match="a forward in training mode.*outside of the loop"):
            model(torch.tensor([1]))
        with pytest.raises(gradbus.OrderError, match="lane 0 of batch 0 was delivered and had no step"):
            for ids in loader:
                model(ids)
        with pytest.raises(gradbus.OrderError, match="does not recover: want close"):
            session.hand_over()


def test_a_loader_after_the_join(start, caplog):
    """A session that joins before its loader is made is not refused for that: the job does not recover, and says so."""
    _, url = start.ps()
    with gradbus.join(url, "late") as session:
        model, opt = small(session)
        session.start()
        for ids in gradbus.LaneLoader(Counted(), session, batches=2):
            model(ids).sum().backward()
            opt.step()
            opt.zero_grad()
        assert session.job["policy"] == "fail" and session.batch == 2
        assert "joined before its LaneLoader was made" in caplog.text
        with pytest.raises(gradbus.OrderError, match="does not recover"):
            session.hand_over()


# Trains a job of two trainers by a LaneLoader, which is made before the session joins or after.
LATE = """
import sys
import torch, gradbus

url, way = sys.argv[1:]
torch.manual_seed(1)


class Data:
    def __getitem__(self, at):
        return torch.tensor([[at[0], at[1]]])


with gradbus.join(url, "late", trainers=2, lanes=2) as session:
    model = torch.nn.Sequential(gradbus.Embedding(10, 2, name="t"), torch.nn.Linear(2, 1))
    opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1))
    loader = gradbus.LaneLoader(Data(), session, batches=3) if way == "before" else None
    session.start()
    for ids in loader or gradbus.LaneLoader(Data(), session, batches=3):
        model(ids).sum().backward()
        opt.step()
        opt.zero_grad()
    print("trained", session.batch, session.job["policy"], session.recovers, flush=True)
"""


def test_a_loader_after_the_join_of_a_job_that_recovers(start):
    """Where others have registered the job as one that recovers, a session that joins before its loader is made takes
    part in it."""
    ps, url = start.ps()
    before = start.python(LATE, url, "before")
    until(lambda: "job registered" in ps.said(), "the job")
    after = start.python(LATE, url, "after")
    for program in before, after:
        assert program.end() == 0, program.said()
        assert "trained 3 recover True" in program.out.read_text()


def test_a_loader_before_the_join_of_a_job_that_does_not_recover(start):
    """Where a session that has no loader yet has registered the job, one that has joins it all the same."""
    ps, url = start.ps()
    after = start.python(LATE, url, "after")
    until(lambda: "job registered" in ps.said(), "the job")
    before = start.python(LATE, url, "before")
    for program in after, before:
        assert program.end() == 0, program.said()
        assert "trained 3 fail False" in program.out.read_text()


def test_reads_where_a_ps_was_lost(start):
    """In the loop they go on at the version come back to. Behind it they say that batches are missing, and another loop
    computes these."""
    flags = "--checkpoint-dir", start.folder / "checkpoints", "--checkpoint-every", "1h"
    ps, url = start.ps(*flags)
    with gradbus.join(url, "reads", reconnect_timeout=60.0) as session:
        model, opt = small(session)
        model.load_state_dict({**model.state_dict(), "0.weight": torch.ones(10, 2)}, strict=False)  # a file has them
        loader = gradbus.LaneLoader(Counted(), session, batches=6)
        lost, seen, rows = [], [], []

        def restart():
            nonlocal ps
            ps.kill()
            ps, _ = start.ps(*flags, "--listen", url.split("//")[1])
            lost.append(ps)

        for ids in loader:
            seen.append(session.batch)
            if session.batch == 3 and not lost:
                restart()
                rows.append(session.lookup("t", torch.tensor([5])))
            model(ids).sum().backward()
            opt.step()
            opt.zero_grad()
        assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5] and len(rows) == 1
        digest = session.digest()
        restart()
        with pytest.raises(gradbus.RewoundError, match="is at version 0 again.*want another loop"):
            session.digest()
        for ids in loader:
            model(ids).sum().backward()
            opt.step()
            opt.zero_grad()
        assert session.digest() == digest
