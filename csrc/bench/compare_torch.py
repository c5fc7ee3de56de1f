#!/usr/bin/env python3
"""gradbus and PyTorch, the same operation on the same tensors, in turn.

    csrc/bench/compare_torch.py                          the CPU, one and two threads
    csrc/bench/compare_torch.py --device cuda --json f   a GPU, and the table as JSON in the file f

It loads build/libgradbus.so (made by cmake, see csrc/README.md), checks first that both give the same, bit for bit where both
add in one order and else within the bound of bounds.py, then times them alternately and prints the medians, their ratio
(PyTorch's time over ours: above one is faster than PyTorch) and, where there is one, the ratio to reach. On the CPU the
tensors lie on huge pages, for both. Status: 0, or 1 where results differ or a call failed; ratios do not change it.

Needs PyTorch 1.13 or newer. Times are of whole calls: ours with the outputs given, PyTorch's with the outputs it allocates;
on a GPU of queued calls until all have ended.
"""
import argparse
import json
import os
import platform
import sys

try:
    import torch
except ImportError:
    sys.exit("compare_torch.py: PyTorch is not installed for %s; on Debian: apt-get install python3-torch" % sys.executable)

import bounds
import cases
import gradbus
from device import Device, in_turn

HERE = os.path.dirname(os.path.abspath(__file__))


def ways(device):
    """The implementations of torch.optim.SGD on one dense tensor that this PyTorch has for the device."""
    found = ["default"]
    for way in ("foreach", "fused"):
        p = torch.nn.Parameter(torch.zeros(4, device=device))
        p.grad = torch.zeros(4, device=device)
        try:
            torch.optim.SGD([p], lr=0.1, momentum=0.9, **{way: True}).step()
            found.append(way)
        except (TypeError, RuntimeError, ValueError):
            pass
    return found


def planned(device, quick):
    """Classes and arguments of the cases."""
    million, n = 1000 * 1000, (4 if quick else 64) * 1000 * 1000
    yield cases.Copy, (16 if quick else 256) << 20
    for dim in (64,) if quick else (16, 64, 128, 256):
        for zipf in (False, True):
            yield cases.Bags, million, dim, 8192, 20, zipf
    if not quick:
        yield cases.Bags, million, 64, 65536, 1, False
        yield cases.Bags, 5 * million, 128, 2048, 150, False
    for zipf in (True, False):
        yield cases.Coalesce, million, 64, 8192 * 20, zipf
    for zipf, form in ((True, "index"), (False, "index"), (True, "plain"), (True, "optim")):
        yield cases.CoalesceApply, million, 64, million // (10 if quick else 1), zipf, form
    for way in ways(device.name):
        yield cases.Dense, n, way
    for way in ("mean", "add"):
        yield cases.Average, 8, (1 if quick else 25) * million // 4, way


def measure(device, case, seconds):
    row = dict(op=case.op, backend=device.name, isa=device.backend.isa, threads=device.backend.threads, bytes=case.bytes,
               torch=case.torch_form, **case.size)
    try:
        row["equality"] = case.check()
        ours, theirs, runs = in_turn(device, case.ours, case.theirs, seconds, 0 if device.stream else 0.05)
    except (bounds.Wrong, gradbus.Failed) as error:
        row["error"] = str(error)
        return row
    row.update(seconds=ours, torch_seconds=theirs, ratio=theirs / ours, gb_per_second=case.bytes / ours / 1e9, runs=runs)
    if device.name in case.target:
        row.update(target=case.target[device.name], reached=row["ratio"] >= case.target[device.name])
    return row


def show(row):
    size = " ".join("%s %s" % (k, "{:,}".format(row[k]) if isinstance(row[k], int) else row[k])
                    for k in ("rows", "dim", "bags", "length", "terms", "n", "ids") if k in row)
    if "error" in row:
        return "%-12s %-58s FAILED: %s" % (row["op"], size, row["error"])
    target = "" if "target" not in row else "%5.1f %s" % (row["target"], "reached" if row["reached"] else "MISSED")
    return "%-12s %-58s %9.3f ms %9.3f ms %7.2f  %-13s %6.1f GB/s  %s\n%16s%s" % (
        row["op"], size, row["seconds"] * 1e3, row["torch_seconds"] * 1e3, row["ratio"], target, row["gb_per_second"],
        row["equality"], "", row["torch"])


def run(library, name, threads, a):
    torch.set_num_threads(threads)
    device = Device(library, name, threads)
    what = torch.cuda.get_device_name() if name == "cuda" else "%d thread%s" % (threads, "s" * (threads > 1))
    print("\n%s (%s), %s, PyTorch %s\n%-12s %-58s %12s %12s %7s  %s" % (
        name, device.backend.isa, what, torch.__version__, "", "", "gradbus", "PyTorch", "ratio", "to reach"), flush=True)
    rows = []
    try:
        for kind, *arguments in planned(device, a.quick):
            if a.ops and kind.op not in a.ops.split(","):
                continue
            case = kind(device, *arguments)
            rows.append(measure(device, case, a.seconds))
            case.close()
            del case
            if name == "cuda":
                torch.cuda.empty_cache()
            print(show(rows[-1]), flush=True)
    finally:
        device.close()
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default=os.path.join(HERE, "..", "..", "build", "libgradbus.so"), help="the shared library")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--threads", default="1,2", help="of the CPU, a list; PyTorch gets as many")
    p.add_argument("--seconds", type=float, default=2.0, help="how long to time a pair; at least five times each")
    p.add_argument("--quick", action="store_true", help="fewer and smaller sizes: shows that it works, its figures mean little")
    p.add_argument("--ops", default="", help="only these, a list: copy, bag_forward, coalesce, coalesce+sgd, dense sgd, average")
    p.add_argument("--json", metavar="FILE", help="write an array of objects, one a row")
    a = p.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        sys.exit("compare_torch.py: PyTorch sees no CUDA device here")
    rows = []
    with torch.no_grad():
        try:
            library = gradbus.Library(a.library)
            for threads in [1] if a.device == "cuda" else [int(t) for t in a.threads.split(",")]:
                rows += run(library, a.device, threads, a)
        except (OSError, gradbus.Failed) as error:
            sys.exit("compare_torch.py: %s" % error)
    for row in rows:
        row.update(torch_version=torch.__version__, machine=platform.machine(),
                   device=torch.cuda.get_device_name() if a.device == "cuda" else platform.processor())
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(rows, f)
            f.write("\n")
    failed = [r for r in rows if "error" in r]
    missed = [r for r in rows if not r.get("reached", True)]
    print("\n%d comparisons, %d below their ratio to reach, %d failed" % (len(rows), len(missed), len(failed)))
    sys.exit(1 if failed or not rows else 0)


if __name__ == "__main__":
    main()
