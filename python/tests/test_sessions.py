"""Sessions beside each other, models in one, threads, what a session says of itself, and how it ends."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any, List

import pytest
import torch
from torch import nn

import gradbus

IDS = torch.tensor([1, 2, 2])


def table(session: gradbus.Session, name: str = "t", n: int = 4) -> torch.Tensor:
    return session.lookup(name, torch.arange(n))


def test_two_sessions() -> None:
    """Two jobs in one process, step by step in turn, have what each has alone."""

    def train(session: gradbus.Session, emb: gradbus.Embedding, opt: gradbus.Optimizer) -> None:
        emb(IDS).square().sum().backward()
        opt.step()

    def make(name: str) -> Any:
        session, emb = gradbus.local(name), gradbus.Embedding(4, 2, name="t")
        return session, emb, gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(0.1))

    alone = make("one")
    for _ in range(4):
        train(*alone)
    digest = alone[0].digest()
    alone[0].close()
    one, two = make("one"), make("two")
    for _ in range(4):
        train(*one)
        train(*two)
    assert one[0].digest() == two[0].digest() == digest
    with pytest.raises(
        gradbus.ConfigError, match="table 't' is of gradbus session 'one': want modules of gradbus session 'three'"
    ):
        gradbus.Optimizer(one[1], gradbus.local("three"), embeddings=gradbus.SGD(0.1))
    for session in (one[0], two[0]):
        session.close()


def test_two_models_in_one_session() -> None:
    """Both by one optimizer, with names apart."""
    a = nn.Sequential(gradbus.Embedding(4, 2, init=gradbus.Zeros()), nn.Linear(2, 1))
    b = nn.Sequential(gradbus.Embedding(5, 2, init=gradbus.Zeros()), nn.Linear(2, 1))
    with gradbus.local("models") as session:
        opt = gradbus.Optimizer({"a": a, "b": b}, session, embeddings=gradbus.SGD(1.0), dense=gradbus.SGD(0.5))
        assert [t["name"] for t in session.job["tables"]] == ["a.0", "b.0"]
        assert [p["name"] for p in session.job["parameters"]] == ["a.1.weight", "a.1.bias", "b.1.weight", "b.1.bias"]
        (a(IDS).sum() + b(IDS + 2).sum()).backward()
        opt.step()
        assert table(session, "a.0")[1].any() and not table(session, "a.0")[3].any()
        assert table(session, "b.0", 5)[4].any() and not table(session, "b.0", 5)[1].any()
    with (
        gradbus.local("clash") as session,
        pytest.raises(gradbus.ConfigError, match="table 't'.*want the same, or another name"),
    ):
        gradbus.Optimizer(
            [gradbus.Embedding(4, 2, name="t"), gradbus.Embedding(5, 2, name="t")], session, gradbus.SGD(1.0)
        )


def test_a_second_thread() -> None:
    """Evaluation in other threads, while one trains, and training that moves on from one thread to another."""
    emb = gradbus.Embedding(100, 4, name="t", init=gradbus.Zeros())
    errors: List[BaseException] = []
    with gradbus.local("threads") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        session.start()
        done = threading.Event()

        def evaluate() -> None:
            try:
                while not done.is_set():
                    rows = session.lookup("t", torch.arange(100))
                    assert torch.equal(
                        rows, rows[:1].expand_as(rows)
                    )  # of one version: every batch moves all rows alike
            except BaseException as error:
                errors.append(error)

        def train() -> None:
            try:
                for _ in range(20):
                    emb(torch.arange(100)).sum().backward()
                    opt.step()
            except BaseException as error:
                errors.append(error)

        others = [threading.Thread(target=evaluate) for _ in range(2)]
        for other in others:
            other.start()
        for _ in range(2):
            trainer = threading.Thread(target=train)
            trainer.start()
            trainer.join()
        train()
        done.set()
        for other in others:
            other.join()
        assert not errors and session.batch == 60
        assert torch.equal(table(session, n=100), torch.full((100, 4), -60.0))


def test_a_table_of_another_session_is_refused() -> None:
    """Tables are numbered by session: that of another one would give rows of whatever has its number here."""
    there = gradbus.EmbeddingBag(100, 4, name="t")
    here = gradbus.EmbeddingBagCollection({"t": gradbus.EmbeddingBag(100, 4)})
    with gradbus.local("here") as session, gradbus.local("there", seed=7) as other:
        gradbus.Optimizer(here, session, embeddings=gradbus.SGD(1.0))
        gradbus.Optimizer(there, other, embeddings=gradbus.SGD(1.0))
        for call in (
            lambda: session.lookup(there, IDS),
            lambda: session.lookup(there.table, IDS),
            lambda: session.read_table(there.table),
        ):
            with pytest.raises(gradbus.ArgumentError, match=r"'t' \[100, 4\] is not of gradbus session 'here': want"):
                call()
        with pytest.raises(gradbus.ArgumentError, match=r"EmbeddingBagCollection is no table: want one of \['t'\]"):
            session.lookup(here, IDS)  # type: ignore[arg-type]
        own = here.bags[0]
        assert isinstance(own, gradbus.EmbeddingBag)
        assert torch.equal(session.lookup(own, IDS), session.read_table("t")[IDS])


def test_what_a_session_says() -> None:
    emb = gradbus.EmbeddingBag(100, 4, name="t")
    with gradbus.local("says", lanes=2, seed=7) as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.Adam(0.1))
        assert session.batch == 0 and not session.handle  # it has not joined
        assert session.lanes == range(2) and session.lane == 0 and session.lanes_total == 2
        assert session.member == "t0" and session.job["seed"] == 7 and session.job["tables"][0]["rows"] == 100
        for lane in (0, 1):
            assert session.lane == lane and session.batch == 0
            emb(IDS.view(1, 3)).sum().backward()
            opt.step(loss=1.5)
        assert session.batch == 1 and session.lane == 0
        assert session.digest() == session.digest() and len(session.digest()) == 64
        assert session.stats["batches"] == 1
        assert session.lookup("t", torch.zeros(2, 3).long()).shape == (2, 3, 4)
        with pytest.raises(gradbus.ArgumentError, match=r"no table 'u': want one of \['t'\]"):
            session.lookup("u", IDS)
        with pytest.raises(gradbus.OrderError, match="want all modules to be made before the first forward"):
            gradbus.Embedding(4, 4, name="late", session=session)
    assert repr(session) == "gradbus session 'says'"


def test_the_seed_draws_rows() -> None:
    """Rows follow from (seed, table, row), on any number of shards; Normal has PyTorch's deviation."""
    digests = []
    for seed, shards in ((1, 1), (1, 3), (2, 1)):
        with gradbus.local("seeds", seed=seed, shards=shards) as session:
            gradbus.Optimizer(gradbus.Embedding(4000, 8, name="t", session=session), session, gradbus.SGD(1.0))
            digests.append(session.digest())
            deviation = table(session, n=4000).std().item()
            assert abs(deviation - 1) < 0.02  # 32000 values: 5 times 1/sqrt(2*32000)
    assert digests[0] == digests[1] != digests[2]


def test_scale_lr() -> None:
    emb = gradbus.Embedding(4, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("scale") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        emb(IDS).sum().backward()
        opt.step()
        begins = session.scale_lr(0.5)
        assert begins >= 1
        while session.batch < begins + 1:
            before = table(session)[1].item()
            emb(IDS).sum().backward()
            opt.step()
        assert table(session)[1].item() == before - 0.5


def test_an_end_by_an_exception() -> None:
    """What a with statement is left by is what the program sees; the session is closed then, and says so."""
    emb = gradbus.Embedding(4, 1, name="t")
    with pytest.raises(KeyError, match="mine"):
        with gradbus.local("ends") as session:
            opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
            emb(IDS).sum().backward()
            raise KeyError("mine")
    for call in (session.digest, lambda: session.lookup("t", IDS), lambda: emb(IDS), opt.step, session.skip):
        with pytest.raises((gradbus.ClosedError, gradbus.OrderError)):
            call()
    session.close()  # again: nothing


def test_a_batch_that_was_begun_may_be_left() -> None:
    with gradbus.local("left") as session:
        emb = gradbus.Embedding(4, 1, name="t")
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        emb(IDS).sum().backward()
        opt.step()
        emb(IDS).sum().backward()


def test_no_optimizer() -> None:
    with gradbus.local("none") as session:
        emb = gradbus.Embedding(4, 1, name="t", session=session)
        for call in (lambda: emb(IDS), session.start, session.digest, lambda: session.lanes):
            with pytest.raises(
                gradbus.OrderError, match="want gradbus.Optimizer\\(model, session, ...\\) before the first forward"
            ):
                call()


def test_pickles() -> None:
    """A session does not travel to another process."""
    model = nn.Sequential(gradbus.Embedding(4, 2, name="t"), nn.Linear(2, 1))
    with gradbus.local("copies") as session:
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        for thing in (session, opt):
            with pytest.raises(TypeError, match="another process"):
                pickle.dumps(thing)


def test_no_server() -> None:
    """Port 9 of this machine has nobody, so that joining is an error that names the address."""
    session = gradbus.join("nats://127.0.0.1:9", "nowhere")
    gradbus.Optimizer(gradbus.Embedding(4, 1, name="t", session=session), session, gradbus.SGD(1.0))
    with pytest.raises(gradbus.ServerError, match="127.0.0.1:9") as caught:
        session.start()
    assert isinstance(caught.value, ConnectionError)
    session.close()


def test_renamed_arguments() -> None:
    """Old names of arguments are refused with the new ones."""
    with pytest.raises(gradbus.ConfigError, match="back_within is called reconnect_timeout now"):
        gradbus.join("nats://127.0.0.1:9", "renamed", back_within=2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'back'"):
        gradbus.join("nats://127.0.0.1:9", "renamed", back=2.0)  # type: ignore[arg-type]


def test_forwards_that_nobody_uses_hold_no_memory() -> None:
    """A forward in training mode without a backward lets go of its rows when its output goes, without a step."""
    emb = gradbus.Embedding(4, 2, name="t")
    with gradbus.local("memory") as session:
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        emb(IDS)
        gc.collect()
        before = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
        for _ in range(20):
            emb(IDS).sum()
        gc.collect()
        assert sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()) == before


@pytest.mark.parametrize("status, reasons", [(0, []), (None, []), (3, ["SystemExit: 3"])])
def test_exit_within_a_session(monkeypatch: pytest.MonkeyPatch, status: Any, reasons: List[str]) -> None:
    """sys.exit that means success is a close; any other ends the job by a reason."""
    told: List[str] = []
    monkeypatch.setattr(gradbus.Session, "abort", lambda session, reason: told.append(reason))
    session = gradbus.local("exits")
    with pytest.raises(SystemExit):
        with session:
            raise SystemExit(status)
    assert told == reasons
    monkeypatch.undo()
    assert session._closed == (not reasons)
    session.close()
