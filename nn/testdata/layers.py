#!/usr/bin/env python3
"""Writes layers.json beside this file: modules of package nn as PyTorch computes them, in float64 from float32 inputs, each
with its configuration, its parameters, x, y, a gradient of y, and all gradients that follow. Dropout is in evaluation: what
it drops in training comes from numbers that PyTorch does not have.

    python3 nn/testdata/layers.py          (made with PyTorch 1.13)
"""
import json
import pathlib

import torch
from torch import nn

torch.manual_seed(1)


def values(tensor):
    return [round(v, 9) for v in tensor.detach().flatten().tolist()]


def given(*shape):
    """Inputs are float32 numbers with few digits, so that both sides start from the same and the file stays small."""
    return (torch.randint(-63, 64, shape).double() / 64)


def case(name, config, module, *shape, n=2):
    module = module.double().eval()
    params = dict(module.named_parameters())
    with torch.no_grad():
        for p in params.values():
            p.copy_(given(*p.shape))
    x = given(n, *shape)
    x.requires_grad_()
    y = module(x)
    grad_y = given(*y.shape)
    y.backward(grad_y)
    return {"name": name, "config": config, "in": list(shape), "x": values(x), "y": values(y), "grad_y": values(grad_y),
            "grad_x": values(x.grad), "names": list(params), "params": [values(p) for p in params.values()],
            "grads": [values(p.grad) for p in params.values()], "bounds": [bound(module, k) for k in params]}


def bound(module, name):
    """The bound of PyTorch's initial values, as the largest of thousands of values that it draws."""
    layer, kind = module.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[1]
    largest = 0.0
    for _ in range(2000):
        layer.reset_parameters()
        largest = max(largest, getattr(layer, kind).abs().max().item())
    return largest


def seq(*modules):
    return nn.Sequential(*modules)


cases = [
    case("linear", [{"linear": {"in": 3, "out": 4}}], seq(nn.Linear(3, 4)), 3),
    case("linear without bias", [{"linear": {"in": 3, "out": 2, "no_bias": True}}], seq(nn.Linear(3, 2, bias=False)), 3),
    case("conv2d", [{"conv2d": {"in": 2, "out": 3, "kernel": 3}}], seq(nn.Conv2d(2, 3, 3)), 2, 5, 4),
    case("conv2d with stride and padding", [{"conv2d": {"in": 3, "out": 2, "kernel": 3, "stride": 2, "padding": 1}}],
         seq(nn.Conv2d(3, 2, 3, stride=2, padding=1)), 3, 5, 6),
    case("max_pool2d", [{"max_pool2d": {"kernel": 2}}], seq(nn.MaxPool2d(2)), 2, 5, 4),
    case("max_pool2d that overlaps", [{"max_pool2d": {"kernel": 3, "stride": 1, "padding": 1}}],
         seq(nn.MaxPool2d(3, stride=1, padding=1)), 2, 4, 4),
    case("relu", [{"relu": {}}], seq(nn.ReLU()), 2, 3),
    case("softmax", [{"softmax": {}}], seq(nn.Softmax(1)), 5),
    case("log_softmax", [{"log_softmax": {}}], seq(nn.LogSoftmax(1)), 5),
    case("image model", [
        {"conv2d": {"in": 1, "out": 3, "kernel": 3}}, {"relu": {}}, {"conv2d": {"in": 3, "out": 4, "kernel": 3}},
        {"max_pool2d": {"kernel": 2}}, {"dropout2d": {"p": 0.25}}, {"flatten": {}}, {"linear": {"in": 16, "out": 6}},
        {"relu": {}}, {"dropout": {"p": 0.5}}, {"linear": {"in": 6, "out": 4}}, {"log_softmax": {}}],
         seq(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(),
             nn.Linear(16, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 4), nn.LogSoftmax(1)), 1, 8, 8),
]


def losses():
    """Each loss with reduction "sum", and its gradient."""
    y, target, classes = given(3, 4), given(3, 4), torch.tensor([1, 0, 3])
    out = {"y": values(y), "target": values(target), "classes": classes.tolist()}
    for name, loss in {"l1": nn.L1Loss(reduction="sum"), "mse": nn.MSELoss(reduction="sum"),
                       "cross_entropy": nn.CrossEntropyLoss(reduction="sum"), "nll": nn.NLLLoss(reduction="sum")}.items():
        at = y.clone().requires_grad_()
        value = loss(at, target if name in ("l1", "mse") else classes)
        value.backward()
        out[name] = {"loss": value.item(), "grad": values(at.grad)}
    return out


path = pathlib.Path(__file__).with_name("layers.json")
with path.open("w") as f:
    f.write('{"losses": ' + json.dumps(losses()) + ',\n"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
