#!/usr/bin/env python3
"""Writes schedules.json beside this file: learning rates of PyTorch's schedulers for schedule_test.go.

    python3 schema/testdata/schedules.py          (made with PyTorch 1.13)

All are stepped once a batch. A warm-up is LambdaLR's, and what follows it begins at its end, by SequentialLR.
"""

import json
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler

warnings.simplefilter("ignore")
BASE, BATCHES = 0.4, 60


def rates(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    schedule = make(optimizer)
    all_rates = []
    for _ in range(BATCHES):
        all_rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return all_rates


def warm(batches, after):
    def make(optimizer):
        warmup = lr_scheduler.LambdaLR(optimizer, lambda v: (v + 1) / batches)
        return lr_scheduler.SequentialLR(optimizer, [warmup, after(optimizer)], [batches])
    return make


def cosine(o, batches):
    return lr_scheduler.CosineAnnealingLR(o, T_max=batches, eta_min=0.1 * BASE)


def linear(o, batches):
    return lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=batches)


cases = [
    ({"kind": "linear", "total": 70, "final": 0.25}, lambda o: linear(o, 70)),
    ({"kind": "linear", "total": 40, "final": 0.25}, lambda o: linear(o, 40)),
    ({"kind": "cosine", "total": 60, "final": 0.1}, lambda o: cosine(o, 60)),
    ({"kind": "cosine", "warmup": 12, "total": 72, "final": 0.1}, warm(12, lambda o: cosine(o, 60))),
    ({"kind": "steps", "steps": [10, 25, 26], "gamma": 0.5}, lambda o: lr_scheduler.MultiStepLR(o, [10, 25, 26], gamma=0.5)),
    ({"kind": "constant", "warmup": 9}, lambda o: lr_scheduler.LambdaLR(o, lambda v: min(1, (v + 1) / 9))),
]
made = {"base": BASE, "cases": [{"schedule": s, "rates": rates(make)} for s, make in cases]}
path = pathlib.Path(__file__).with_name("schedules.json")
path.write_text(json.dumps(made, separators=(",", ":")).replace('{"schedule"', '\n{"schedule"') + "\n")
