#!/usr/bin/env python3
"""Runs ours of the cases of csrc/bench on PyTorch's tensors.

    ours.py NAME=LIBRARY...        times several kernel libraries in turn, and prints one line of JSON
    ours.py --profile N NAME=LIBRARY    one call of case N, between the start and the stop of CUDA's profiler: for ncu
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "csrc", "bench"))

import torch  # noqa: E402

import cases  # noqa: E402
import gradbus  # noqa: E402
from device import Device  # noqa: E402

MILLION = 1000 * 1000
PLANNED = ((cases.Bags, MILLION, 64, 8192, 20, False), (cases.Bags, MILLION, 64, 8192, 20, True), (cases.Bags, MILLION, 64, 65536, 1, False),
           (cases.Bags, MILLION, 256, 8192, 20, False), (cases.Coalesce, MILLION, 64, 8192 * 20, True), (cases.Coalesce, MILLION, 64, 8192 * 20, False),
           (cases.CoalesceApply, MILLION, 64, MILLION, True, "index"), (cases.CoalesceApply, MILLION, 64, MILLION, False, "index"))
TURNS, CALL_SECONDS = 3, 20e-3


def burst(device, call, calls):
    """Seconds of one of so many calls that are queued together."""
    device.wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    device.wait()
    return (time.perf_counter() - start) / calls


def timed(devices):
    """Rows of all cases and libraries, in turn."""
    rows = []
    for kind, *arguments in PLANNED:
        made = {name: kind(device, *arguments) for name, device in devices.items()}
        runs = {name: [] for name in made}
        for _, (name, case) in itertools.product(range(TURNS), made.items()):
            burst(devices[name], case.ours, 3)
            calls = max(8, math.ceil(CALL_SECONDS / burst(devices[name], case.ours, 3)))
            runs[name].append(statistics.median(burst(devices[name], case.ours, calls) for _ in range(3)))
        for name, case in made.items():
            rows.append({"name": name, "op": case.op, "runs": runs[name], **case.size})
            case.close()
        del made, case
        torch.cuda.empty_cache()
    return rows


def profiled(device, number):
    """The case, after one call of it was profiled."""
    kind, *arguments = PLANNED[number]
    case = kind(device, *arguments)
    burst(device, case.ours, 5)
    torch.cuda.profiler.start()
    burst(device, case.ours, 1)
    torch.cuda.profiler.stop()
    row = {"op": case.op, **case.size}
    case.close()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--profile", type=int, metavar="N")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a = parser.parse_args()
    devices = {name: Device(gradbus.Library(path), a.device, 1) for name, path in (x.rsplit("=", 1) for x in a.libraries)}
    with torch.no_grad():
        found = timed(devices) if a.profile is None else profiled(*devices.values(), a.profile)
    for device in devices.values():
        device.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
