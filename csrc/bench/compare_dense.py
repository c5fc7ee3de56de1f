#!/usr/bin/env python3
"""Products, convolutions and a training step of the model of digits: oneDNN, OpenBLAS, own kernels, and PyTorch, in turn.

    csrc/bench/compare_dense.py [--rounds N] [--only PATTERN]

Runs Go's benchmarks of the layers (cuda/dense_bench_test.go, built with the native library) and the same operations in this
process's PyTorch, round after round, one thread each, and prints the best time of each in microseconds: on a machine that
does other things too the best says most. Needs PyTorch 1.13 or newer and a built library.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit("compare_dense.py: PyTorch is not installed for %s; on Debian: apt-get install python3-torch" % sys.executable)
from torch import nn

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LINEAR = ((20, 100, 30), (7, 512, 256), (32, 1024, 1024), (20, 4096, 1600), (32, 9216, 128), (32, 128, 10))
CONV = ((1, 28, 32), (32, 26, 64))


def linear(n, inputs, outputs):
    """The three products of a layer; weights are [out, in]."""
    x, w, y, b = (torch.rand(*s) for s in ((n, inputs), (outputs, inputs), (n, outputs), (outputs,)))
    name = "%dx%dx%d/" % (n, inputs, outputs)
    return {name + "forward": lambda: torch.nn.functional.linear(x, w, b),
            name + "grad-input": lambda: y @ w,
            name + "grad-weight": lambda: y.t() @ x}


def conv(channels, side, outputs, last):
    """The passes of a convolution by a kernel of 3 x 3, 32 images."""
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.rand(32, channels, side, side).to(memory_format=form)
    w, b = torch.rand(outputs, channels, 3, 3).to(memory_format=form), torch.rand(outputs)
    y = torch.rand(32, outputs, side - 2, side - 2).to(memory_format=form)
    name = "%d-%d/%s/" % (channels, outputs, "NHWC" if last else "NCHW")

    def back(*mask):
        return torch.ops.aten.convolution_backward(y, x, w, [outputs], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    return {name + "forward": lambda: torch.nn.functional.conv2d(x, w, b),
            name + "grad-input": lambda: back(True, False, False),
            name + "grad-params": lambda: back(False, True, True)}


def step():
    """A training step of the model of digits at a batch of 32."""
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(),
                          nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.03)
    x, target = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))

    def run():
        sgd.zero_grad()
        nn.functional.nll_loss(model(x), target).backward()
        sgd.step()
    return {"TrainingStep": run}


def timed(run, seconds=0.1):
    """The best time of a call in microseconds, of calls for that long."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def gradbus(binary, pattern):
    """{(benchmark, library): microseconds} of one run of Go's benchmarks."""
    out = subprocess.run([binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", "100ms"], check=True,
                         capture_output=True, text=True).stdout
    times = {}
    for name, us in re.findall(r"^Benchmark(\S+?)(?:-\d+)?\s+\d+\s.*?(\S+) best-us", out, re.M):
        name = re.sub(r"^(Linear|Conv2d)/", "", name)
        case, _, library = name.rpartition("/")
        times[case, library.split("_")[0]] = float(us)
    return times


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--only", default="Linear|Conv2d|TrainingStep", help="benchmarks, a pattern of go test -bench")
    args = args.parse_args()
    torch.set_num_threads(1)
    cases = {}
    for s in LINEAR:
        cases.update(linear(*s))
    for s in CONV:
        for last in (False, True):
            cases.update(conv(*s, last))
    cases.update(step())
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        binary = os.path.join(folder, "cuda.test")
        subprocess.run(["go", "test", "-c", "-tags", "native", "-o", binary, "./cuda"], cwd=ROOT, check=True)
        for _ in range(args.rounds):
            for key, t in gradbus(binary, args.only).items():
                best[key] = min(t, best.get(key, t))
            for case in {case for case, _ in best}:
                t = timed(cases[case], 1.0 if case == "TrainingStep" else 0.1)
                best[case, "torch"] = min(t, best.get((case, "torch"), t))
    print("PyTorch %s; best of %d rounds, us" % (torch.__version__, args.rounds))
    print("| | oneDNN | OpenBLAS | own | PyTorch |\n|---|---|---|---|---|")
    for case in [c for c in cases if (c, "torch") in best]:
        row = ["%.3g" % best[case, l] if (case, l) in best else "" for l in ("onednn", "openblas", "own", "torch")]
        print("| %s | %s |" % (case, " | ".join(row)))


if __name__ == "__main__":
    main()
