"""What a program gets that is given something that cannot be: one error of gradbus, at the place of the mistake."""

from __future__ import annotations

import io
import pickle
import warnings

import pytest
import torch
from small import Model, loss_of, made
from torch import nn

import gradbus


@pytest.mark.parametrize(
    "ids, says",
    [
        ([1, 2], "ids are list: want a tensor of torch.int64"),
        (None, "ids are NoneType: want a tensor"),
        (5, "ids are int: want a tensor"),
        (torch.tensor([[1]]).to_sparse(), "ids are torch.sparse_coo: want"),
        (torch.tensor([[0.5]]), "ids are torch.float32: want torch.int64"),
        (torch.tensor([[True]]), "ids are torch.bool: want torch.int64"),
        (torch.tensor([[1]], device="meta"), "device meta"),
        (torch.tensor([[3, 20]]), "^table \"users\": id number 1 is 20: want 0 to 19$"),
        (torch.tensor([[-1, 3]]), "^table \"users\": id number 0 is -1: want 0 to 19$"),
    ],
)
def test_ids_that_are_none(ids, says):
    """Nothing has changed then: the next step is as if the mistake had not been."""
    session, model, opt, _, _ = made("ids")
    with session:
        for look_up in model.users, lambda ids: session.lookup("users", ids):
            with pytest.raises(gradbus.ArgumentError, match=says):
                look_up(ids)
        loss_of(model, 0).backward()
        opt.step()
        assert session.batch == 1


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: gradbus.SGD(-1), r"SGD.lr: -1: want a finite number"),
        (lambda: gradbus.SGD("a"), r"SGD.lr: 'a': want"),
        (lambda: gradbus.Adam(float("nan")), r"Adam.lr: nan: want"),
        (lambda: gradbus.Adam(1e-3, betas=0.9), r"Adam.betas: 0.9: want two numbers"),
        (lambda: gradbus.Adam(1e-3, betas=(1.0, 0.9)), r"betas\[0\]: 1.0: want"),
        (lambda: gradbus.Adagrad(0.1, eps="b"), r"Adagrad.eps: 'b': want"),
        (lambda: gradbus.SGD(0.1, schedule=0.5), r"SGD.schedule: 0.5: want one of this package"),
        (lambda: gradbus.SGD(0.1, clip=1.0), r"SGD.clip: 1.0: want gradbus.Clip"),
        (lambda: gradbus.Normal(-1), r"Normal.std: -1: want"),
        (lambda: gradbus.Clip("norm", 1), r"Clip.kind: 'norm': want"),
        (lambda: gradbus.Embedding("a", 3), r"num_embeddings 'a': want an integer"),
        (lambda: gradbus.Embedding(3.5, 3), r"num_embeddings 3.5: want an integer"),
        (lambda: gradbus.Embedding(3, None), r"embedding_dim None: want an integer"),
        (lambda: gradbus.Embedding(2**40 + 1, 3), r"at most 1099511627776$"),
        (lambda: gradbus.Embedding(3, 65537), r"at most 65536$"),
        (lambda: gradbus.Embedding(3, 3, name=5), r"name 5: want a text"),
        (lambda: gradbus.Embedding(3, 3, init=nn.init.normal_), r"init .*normal_.*: want gradbus.Normal"),
        (lambda: gradbus.Embedding(3, 3, optimizer=torch.optim.SGD), r"optimizer .*SGD.*: want one of this package"),
        (lambda: gradbus.local(5), r"job 5: want a text"),
        (lambda: gradbus.local(None), r"job None: want a text"),
        (lambda: gradbus.local("x", shards="2"), r"shards '2': want an integer, at least 1"),
        (lambda: gradbus.local("x", shards=0), r"shards 0: want an integer, at least 1"),
        (lambda: gradbus.local("x", lanes=0), r"lanes 0: want an integer, at least 1"),
        (lambda: gradbus.local("x", seed=-1), r"seed -1: want an integer, at least 0"),
        (lambda: gradbus.local("x", seed="a"), r"seed 'a': want an integer"),
        (lambda: gradbus.join("nats://127.0.0.1:1", "x", trainers=0), r"trainers 0: want an integer, at least 1"),
        (lambda: gradbus.join(None, "x"), r"server None: want an address such as nats://127.0.0.1:4222"),
        (lambda: gradbus.join("http://127.0.0.1:1", "x"), r"server 'http://127.0.0.1:1': want an address such as"),
        (lambda: gradbus.join("127.0.0.1:1", "x"), r"server '127.0.0.1:1': want an address such as"),
    ],
)
def test_what_is_made_of_values_that_are_none(make, says):
    """It fails where it is made, not when the job is joined."""
    with pytest.raises(gradbus.ConfigError, match=says):
        make()


# A notebook, and objects of Python.


def test_a_cell_that_runs_again():
    """A cell that makes the session as well runs as often as one likes; one without is told so."""
    for _ in range(3):
        session, model, opt, _, _ = made("cell")
        loss_of(model, 0).backward()
        opt.step()
    with pytest.raises(gradbus.OrderError, match="a cell of a notebook that runs again makes its session, too"):
        gradbus.Optimizer(Model(), session, embeddings=gradbus.SGD(0.1))
    session.close()


def test_models_are_saved_as_states():
    """A model cannot be pickled, its state can."""
    session, model, _, _, _ = made("copies")
    with session:
        model.eval()
        ids = torch.tensor([[1, 2, 3]])
        for save in pickle.dumps, lambda model: torch.save(model, io.BytesIO()):
            with pytest.raises(TypeError, match=r"want torch.save\(model.state_dict\(\)\) and session.save\(path\)"):
                save(model)
        assert list(pickle.loads(pickle.dumps(model.state_dict()))) == list(model.state_dict())


def test_graphs_of_a_model_are_refused():
    """A traced or scripted forward would have the rows of one call in it."""
    session, model, _, _, _ = made("graphs")
    with session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.eval()
        for make in torch.jit.script, lambda model: torch.jit.trace(model, torch.tensor([[1, 2, 3]])):
            with pytest.raises(gradbus.OrderError, match="saved.load_into"):
                make(model)
        with pytest.raises(gradbus.OrderError, match="DistributedDataParallel"):
            model.users._replicate_for_data_parallel()


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch 1 has no torch.compile")
def test_compiled_models_train():
    """What is compiled is what lies between tables: their forwards are the breaks of the graph, without a warning."""
    ends = []
    for compiled in False, True:
        session, model, opt, _, _ = made("compiled")
        with session, warnings.catch_warnings():
            warnings.filterwarnings("error", message="Dynamo")
            run = torch.compile(model, backend="eager") if compiled else model
            for i in range(3):
                loss_of(run, i).backward()
                opt.step()
                opt.zero_grad()
            ends.append(session.digest())
    assert ends[0] == ends[1]
