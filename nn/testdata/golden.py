#!/usr/bin/env python3
"""Writes golden.json beside this file: the layers of package nn as PyTorch computes them, in float64 from float32 inputs.

    python3 nn/testdata/golden.py          (made with PyTorch 1.13)
"""
import json
import pathlib

import torch

torch.manual_seed(1)
ROWS, DIM, CLASSES = 7, 5, 4
IDS, OFFSETS, TARGETS = [3, 0, 3, 3, 6, 1, 0, 5, 5, 2, 6], [0, 2, 2, 5, 6, 10, 11], [1, 0, 3, 2, 1, 0]


def given(*shape):
    """Inputs are float32 numbers, so that both sides start from the same."""
    return torch.randn(*shape).double()


def run(mode):
    rows, weight, bias = given(ROWS, DIM), given(CLASSES, DIM), given(CLASSES)
    bag = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, include_last_offset=True, _weight=rows.clone())
    linear = torch.nn.Linear(DIM, CLASSES).double()
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    pooled = bag(torch.tensor(IDS), torch.tensor(OFFSETS))
    pooled.retain_grad()
    logits = linear(pooled)
    logits.retain_grad()
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS), reduction="sum")
    loss.backward()
    values = {
        "rows": rows, "weight": weight, "bias": bias, "pooled": pooled, "logits": logits,
        "probabilities": logits.softmax(1), "grad_logits": logits.grad, "grad_weight": linear.weight.grad,
        "grad_bias": linear.bias.grad, "grad_pooled": pooled.grad, "grad_rows": bag.weight.grad,
    }
    out = {"mode": mode, "loss": loss.item()}
    out.update({k: v.detach().flatten().tolist() for k, v in values.items()})
    return out


golden = {"dim": DIM, "classes": CLASSES, "ids": IDS, "offsets": OFFSETS, "targets": TARGETS,
          "cases": [run("sum"), run("mean")]}
path = pathlib.Path(__file__).with_name("golden.json")
path.write_text(json.dumps(golden, indent=1) + "\n")
