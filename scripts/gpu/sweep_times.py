#!/usr/bin/env python3
"""Times several kernel libraries on the same operations, in turn: arguments are NAME=LIBRARY. Prints one line of JSON."""

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


def main():
    devices = {name: Device(gradbus.Library(path), "cuda", 1) for name, path in (a.rsplit("=", 1) for a in sys.argv[1:])}
    rows = []
    with torch.no_grad():
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
    for device in devices.values():
        device.close()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
