#!/usr/bin/env python3
"""Writes golden.json beside this file: what PyTorch computes for golden_test.go.

    python3 cuda/testdata/golden.py          (made with PyTorch 1.13)

Everything is float64, from inputs and hyperparameters that float32 holds exactly, so that the values are
those of the formulas and the tests' tolerance is float32's rounding alone.
"""

import json
import pathlib

import torch

STEPS, ROWS, DIM = 5, 6, 4


def draw(*shape):
    """Multiples of 1/64 of a few units: exact in float32 and in float16."""
    return torch.randint(-256, 257, shape).double() / 64


def flat(x):
    return x.detach().flatten().tolist()


def dense(name, hyper, make):
    param = torch.nn.Parameter(draw(ROWS, DIM))
    optimizer = make([param])
    case = {"name": name, "hyper": hyper, "param": flat(param), "grads": [], "after": []}
    for _ in range(STEPS):
        param.grad = draw(ROWS, DIM)
        case["grads"].append(flat(param.grad))
        optimizer.step()
        case["after"].append(flat(param))
    return case


def sparse_adam():
    """Rows 0, 2, 4 at odd steps, 0 and 1 at even ones."""
    hyper = {"lr": 0.125, "beta1": 0.75, "beta2": 0.9375}
    param = torch.nn.Parameter(draw(ROWS, DIM))
    # SparseAdam adds eps before the correction of the second moment, Adam after; so small an eps shows neither.
    optimizer = torch.optim.SparseAdam([param], lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=1e-300)
    case = {"name": "sparse adam", "hyper": hyper, "param": flat(param), "index": [], "grads": [], "after": []}
    for step in range(STEPS):
        index = [0, 2, 4] if step % 2 == 0 else [0, 1]
        values = draw(len(index), DIM)
        values[values == 0] = 1
        param.grad = torch.sparse_coo_tensor(torch.tensor([index]), values, (ROWS, DIM))
        case["index"].append(index)
        case["grads"].append(flat(values))
        optimizer.step()
        case["after"].append(flat(param))
    return case


def rowwise_adagrad():
    """One accumulator a row, the mean of the squares, by its definition."""
    hyper = {"lr": 0.125, "eps": 0.0009765625, "decay": 0.0625}
    p, s = draw(ROWS, DIM), torch.zeros(ROWS, 1).double()
    case = {"name": "rowwise adagrad", "hyper": hyper, "param": flat(p), "grads": [], "after": []}
    for _ in range(STEPS):
        g = draw(ROWS, DIM)
        case["grads"].append(flat(g))
        d = g + hyper["decay"] * p
        s = s + (d * d).mean(dim=1, keepdim=True)
        p = p - hyper["lr"] * d / (s.sqrt() + hyper["eps"])
        case["after"].append(flat(p))
    return case


def optimizers():
    sgd = [
        {"lr": 0.125},
        {"lr": 0.125, "momentum": 0.75, "dampening": 0.25, "decay": 0.0625},
        {"lr": 0.125, "momentum": 0.875, "decay": 0.0625, "nesterov": True},
    ]
    for h in sgd:
        yield dense("sgd", h, lambda p: torch.optim.SGD(
            p, lr=h["lr"], momentum=h.get("momentum", 0), dampening=h.get("dampening", 0),
            weight_decay=h.get("decay", 0), nesterov=h.get("nesterov", False)))
    h = {"lr": 0.125, "eps": 0.0009765625, "decay": 0.0625}
    yield dense("adagrad", h, lambda p: torch.optim.Adagrad(p, lr=h["lr"], eps=h["eps"], weight_decay=h["decay"]))
    yield rowwise_adagrad()
    h = {"lr": 0.125, "beta1": 0.75, "beta2": 0.9375, "eps": 0.0009765625, "decay": 0.0625}
    yield dense("adam", h, lambda p: torch.optim.Adam(
        p, lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["eps"], weight_decay=h["decay"]))
    yield sparse_adam()


def bags():
    ids = torch.tensor([1, 3, 5, 5, 2, 0, 4, 3, 1, 1, 5])
    offsets = torch.tensor([0, 4, 4, 6, 7])  # without the last
    for mode, weighted, padding in [("sum", True, 3), ("sum", False, None), ("mean", False, 5), ("max", False, 5)]:
        bag = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding, dtype=torch.float64)
        table = draw(ROWS, DIM)
        bag.weight.data.copy_(table)
        weights = draw(len(ids)) if weighted else None
        out = bag(ids, offsets, per_sample_weights=weights)
        grad = draw(*out.shape)
        out.backward(grad)
        yield {"mode": mode, "padding": -1 if padding is None else padding, "ids": ids.tolist(), "offsets": offsets.tolist(),
               "weights": [] if weights is None else flat(weights), "table": flat(table), "out": flat(out), "grad": flat(grad),
               "grad_rows": flat(bag.weight.grad)}


def later(name, hyper, make, clip=None, by=0.0, halves=()):
    """As dense, with the gradient clipped, and the rate halved before the steps of halves."""
    param = torch.nn.Parameter(draw(ROWS, DIM))
    optimizer = make([param])
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(halves), gamma=0.5)
    case = {"name": name, "hyper": hyper, "clip": clip or "", "by": by, "param": flat(param), "rates": [], "grads": [], "after": []}
    for _ in range(STEPS):
        param.grad = draw(ROWS, DIM)
        case["grads"].append(flat(param.grad))
        case["rates"].append(optimizer.param_groups[0]["lr"])
        if clip == "value":
            torch.nn.utils.clip_grad_value_([param], by)
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_([param], by)
        optimizer.step()
        schedule.step()
        case["after"].append(flat(param))
    return case


def ftrl():
    """McMahan et al. 2013, algorithm 1, value by value, with the z of the paper."""
    h = {"lr": 0.125, "beta": 1.0, "l1": 0.75, "l2": 0.25}
    w, z, n = (torch.zeros(ROWS, DIM).double() for _ in range(3))
    case = {"name": "ftrl", "hyper": h, "param": flat(w), "grads": [], "after": []}
    for _ in range(STEPS):
        g = draw(ROWS, DIM)
        case["grads"].append(flat(g))
        sigma = ((n + g * g).sqrt() - n.sqrt()) / h["lr"]
        z, n = z + g - sigma * w, n + g * g
        moved = -(z - z.sign() * h["l1"]) / ((h["beta"] + n.sqrt()) / h["lr"] + h["l2"])
        w = torch.where(z.abs() <= h["l1"], torch.zeros_like(w), moved)
        case["after"].append(flat(w))
    return case


def more():
    adam = {"lr": 0.125, "beta1": 0.75, "beta2": 0.9375, "eps": 0.0009765625, "decay": 0.25}
    yield later("adamw", adam, lambda p: torch.optim.AdamW(
        p, lr=0.125, betas=(0.75, 0.9375), eps=adam["eps"], weight_decay=0.25), halves=[2, 4])
    adagrad = {"lr": 0.125, "eps": 0.0009765625, "initial": 0.5}
    yield later("elementwise adagrad", adagrad, lambda p: torch.optim.Adagrad(
        p, lr=0.125, eps=adagrad["eps"], initial_accumulator_value=0.5), halves=[3])
    sgd = {"lr": 0.125, "momentum": 0.75, "decay": 0.0625}
    for clip, by in [("value", 1.5), ("norm", 4.0), ("norm", 64.0)]:
        yield later("sgd", sgd, lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.75, weight_decay=0.0625), clip, by, halves=[1])
    yield ftrl()


torch.manual_seed(1)
made = {"steps": STEPS, "rows": ROWS, "dim": DIM, "optimizers": list(optimizers()), "bags": list(bags()), "more": list(more())}
path = pathlib.Path(__file__).with_name("golden.json")
path.write_text(json.dumps(made, separators=(",", ":")).replace('{"name"', '\n{"name"').replace('{"mode"', '\n{"mode"') + "\n")
