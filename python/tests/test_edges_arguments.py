"""What a program gets that is given something that cannot be: one error of gradbus, at the place of the mistake."""

from __future__ import annotations

import io
import pickle
import re
import warnings

import pytest
import torch
from small import Model, loss_of, made
from torch import nn

import gradbus

INF = float("inf")


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
        (lambda: gradbus.SGD(1e300), r"SGD.lr: 1e.300: want a finite number, at least 0, that a float32 holds"),
        (lambda: gradbus.SGD(1e-60), r"SGD.lr: 1e-60: want .* that a float32 holds"),
        (lambda: gradbus.SGD(INF), r"SGD.lr: inf: want a finite number"),
        (lambda: gradbus.SGD(torch.tensor(0.1)), r"SGD.lr: tensor.*: want a finite number"),
        (lambda: gradbus.SGD(0.1, weight_decay=1e40), r"SGD.weight_decay: 1e.40: want"),
        (lambda: gradbus.SGD(0.1, nesterov=True), r"Nesterov momentum requires a momentum and zero dampening"),
        (lambda: gradbus.SGD(0.1, 0.9, 0.5, nesterov=True), r"Nesterov momentum requires"),
        (lambda: gradbus.SGD(0.1, 0.9, nesterov=1), r"SGD.nesterov 1: want True or False"),
        (lambda: gradbus.SGD(0.1, exact="x"), r"SGD.exact 'x': want True or False"),
        (lambda: gradbus.SGD(0.1, exact=True, schedule=gradbus.LinearSchedule(9)), r"SGD.exact: want a constant rate"),
        (lambda: gradbus.Adam(betas=(0.9, 0.99999999999)), r"betas\[1\]: .*: want .* below 1"),
        (lambda: gradbus.Clip("row", 0), r"Clip.max: 0: want a finite number, above 0"),
        (lambda: gradbus.ConstantSchedule(-1), r"ConstantSchedule.warmup -1: want an integer, at least 0"),
        (lambda: gradbus.ConstantSchedule(1.5), r"ConstantSchedule.warmup 1.5: want an integer"),
        (lambda: gradbus.ConstantSchedule(2**70), r"ConstantSchedule.warmup \d+: want an integer"),
        (lambda: gradbus.LinearSchedule(0), r"LinearSchedule.total 0: want an integer, at least 1"),
        (lambda: gradbus.CosineSchedule(5, warmup=5), r"CosineSchedule.total: 5: want a batch behind warmup, 5"),
        (lambda: gradbus.CosineSchedule(5, final=2), r"CosineSchedule.final: 2: want a share of lr, 0 to 1"),
        (lambda: gradbus.StepSchedule([]), r"StepSchedule.milestones: \[\]: want 1 to 64 batches, ascending"),
        (lambda: gradbus.StepSchedule([3, 3]), r"StepSchedule.milestones: \[3, 3\]: want 1 to 64 batches, ascending"),
        (lambda: gradbus.StepSchedule([0, 3]), r"StepSchedule.milestones: 0: want an integer, at least 1"),
        (lambda: gradbus.StepSchedule(3), r"StepSchedule.milestones: 3: want a list of batches"),
        (lambda: gradbus.StepSchedule("abc"), r"StepSchedule.milestones: 'abc': want a list of batches"),
        (lambda: gradbus.StepSchedule([3], gamma=0), r"StepSchedule.gamma: 0: want a finite number, above 0"),
        (lambda: gradbus.Normal(1e40), r"Normal.std: 1e.40: want"),
        (lambda: gradbus.Embedding(3, 3, padding_idx="1"), r"padding_idx '1': want an integer, at least -3"),
        (lambda: gradbus.Embedding(3, 3, padding_idx=1.0), r"padding_idx 1.0: want an integer"),
        (lambda: gradbus.Embedding(3, 3, hashed=True, salt="x"), r"salt 'x': want an integer"),
        (lambda: gradbus.Embedding(3, 3, hashed=True, salt=2**64), r"salt \d+: want an integer"),
        (lambda: gradbus.Embedding(3, 3, hashed="no"), r"hashed 'no': want True or False"),
        (lambda: gradbus.Embedding(3, 3, session=3), r"session 3: want one of gradbus.local or join"),
        (lambda: gradbus.Embedding(3, 3, name=""), r"name '': want 1 to 127 bytes of printable text"),
        (lambda: gradbus.Embedding(3, 3, name="a\tb"), r"name 'a.tb': want 1 to 127 bytes of printable"),
        (lambda: gradbus.EmbeddingBag(3, 3, include_last_offset="x"), r"include_last_offset 'x': want True or False"),
        (lambda: gradbus.local("a b"), r"job 'a b': want 1 to 63 of a-z, 0-9 and -"),
        (lambda: gradbus.local("x", lanes=4097), r"lanes 4097: want an integer, at least 1 and at most 4096"),
        *(
            (lambda key=key: gradbus.join("nats://127.0.0.1:1", "x", **{key: ""}), rf"{key} '': want text, or None")
            for key in ("token_file", "id", "tls_ca")
        ),
        (
            lambda: gradbus.join("nats://127.0.0.1:1", "x", checkpoint_dir="y"),
            r"checkpoint_dir: trainers write no checkpoints: give --checkpoint-dir to ps",
        ),
        (lambda: gradbus.local("x", manifest=[1]), r"manifest \[1\]: want a mapping of what JSON has"),
        (lambda: gradbus.local("x", manifest={"x": object()}), r"manifest .*: want a mapping of what JSON has"),
        (lambda: gradbus.local("x", manifest={"settings": {"a": INF}}), r"manifest .*: want a mapping of what JSON has"),
        (lambda: gradbus.Embedding(3, 3, max_norm=1.0), r"Embedding None has no max_norm: rows are not renormalized"),
        (lambda: gradbus.EmbeddingBag(3, 3, sparse=True), r"EmbeddingBag None has no sparse: .*always sparse"),
        (lambda: gradbus.Embedding(3, 3, _weight=torch.ones(3, 3)), r"has no _weight: want .*load_state_dict"),
        (lambda: gradbus.Embedding(3, 3, dtype=torch.float16), r"has no dtype: want module.to"),
        (lambda: gradbus.Embedding.from_pretrained(torch.ones(3, 3)), r"has no from_pretrained: want .*load_state_dict"),
        (lambda: gradbus.SGD(0.1, clip=1.0), r"SGD.clip: 1.0: want gradbus.Clip"),
        (lambda: gradbus.Normal(-1), r"Normal.std: -1: want"),
        (lambda: gradbus.Clip("norm", 1), r"Clip.kind: 'norm': want"),
        (lambda: gradbus.Embedding("a", 3), r"num_embeddings 'a': want an integer"),
        (lambda: gradbus.Embedding(3.5, 3), r"num_embeddings 3.5: want an integer"),
        (lambda: gradbus.Embedding(3, None), r"embedding_dim None: want an integer"),
        (lambda: gradbus.Embedding(2**40 + 1, 3), r"at most 1099511627776$"),
        (lambda: gradbus.Embedding(3, 65537), r"at most 65536$"),
        (lambda: gradbus.Embedding(3, 3, name=5), r"name 5: want 1 to 127 bytes of printable text"),
        (lambda: gradbus.Embedding(3, 3, init=nn.init.normal_), r"init .*normal_.*: want gradbus.Normal"),
        (lambda: gradbus.Embedding(3, 3, optimizer=torch.optim.SGD), r"optimizer .*SGD.*: want one of this package"),
        (lambda: gradbus.local(5), r"job 5: want 1 to 63 of a-z, 0-9 and -"),
        (lambda: gradbus.local(None), r"job None: want 1 to 63"),
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


def test_arguments_that_no_module_has():
    for kind in gradbus.Embedding, gradbus.EmbeddingBag:
        with pytest.raises(TypeError, match="unexpected keyword argument 'maxnorm'"):
            kind(3, 3, maxnorm=1)
        assert not hasattr(kind(3, 3), "weight") and not hasattr(kind(3, 3), "other")
        with pytest.raises(AttributeError, match=r"has no weight here: want session.lookup\(name, ids\)"):
            kind(3, 3).weight
        with pytest.raises(AttributeError, match="has no attribute 'other'"):
            kind(3, 3).other


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    spec = gradbus.SGD(numpy.float32(0.5), schedule=gradbus.ConstantSchedule(numpy.int64(3)))
    assert spec.manifest()["lr"] == 0.5 and spec.manifest()["schedule"] == {"kind": "constant", "warmup": 3}
    assert gradbus.Embedding(numpy.int64(3), 2, padding_idx=numpy.int32(-1)).padding_idx == 2


@pytest.mark.parametrize("rate", [INF, float("nan"), -1.0, 1e40, "fast"])
def test_rates_that_are_none(rate):
    session, model, opt, _, _ = made("rates")
    with session:
        loss_of(model, 0).backward()
        opt.step()
        for group in opt.param_groups:
            group["lr"] = rate
        with pytest.raises(gradbus.ConfigError, match=f"lr of param_groups 'embeddings': .*{re.escape(str(rate))}.*: want"):
            loss_of(model, 0)


def test_samples_that_are_none():
    session, model, opt, _, _ = made("samples")
    with session:
        loss_of(model, 0).backward()
        for samples in -1, 2.5, "3", 2**31:
            with pytest.raises(gradbus.ArgumentError, match="samples"):
                opt.step(samples=samples)
        opt.step(samples=2)


def test_a_file_without_a_name():
    session, model, opt, _, _ = made("files")
    with session:
        for path in "", 3, None:
            with pytest.raises(gradbus.ArgumentError, match="save: path .*: want the name of a file"):
                session.save(path)
        loss_of(model, 0).backward()
        opt.step()
