#!/usr/bin/env python3
"""Compare psbench's four reference systems with the same loops in PyTorch, side by side.

Runs ./bin/psbench and bench/pytorch_systems.py in turn, several turns in one session, since figures of one machine drift by a
factor of two within an hour. Of PyTorch there are two sides: its RPC by shared memory, which it takes on one host, and by TCP, which
psbench takes too. A line says the medians of both, the ratio of the medians, the least and the most ratio of one turn, and what is
to be reached. Every process has one thread of arithmetic, and they are all on this host.

    bench/compare_pytorch.py                     everything, three turns; about ten minutes on two quiet cores
    bench/compare_pytorch.py --only A,C --turns 5
    bench/compare_pytorch.py --only B1 --json
    bench/compare_pytorch.py --quick             short runs: shows that it works, its figures mean little

The status is 0 where every run worked, whether the ratios are reached or not.
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TORCH = ROOT / "bench" / "pytorch_systems.py"

# Case: a line of the table. ours and theirs are commands with {n} for how much to do; full and quick are that n for either side. field is
# the figure in the JSON of both, or two names of it. more tells whether more is better; want is the ratio to reach.
# rpc tells whether PyTorch's side has RPC.
Case = collections.namedtuple("Case", "key name ours theirs full quick field unit more want rpc", defaults=[True])

# The transports of PyTorch's RPC by the names of the table, as bench/pytorch_systems.py has them.
TRANSPORTS = {"shared memory": "auto", "TCP": "tcp"}
NO_RPC = "none"

UPDATE = "--in {i} --out {o} --trainer-batch {b} --batches {{n}}"
SMALL, WIDE, LARGE = (UPDATE.format(i=i, o=o, b=b) for i, o, b in ((100, 30, 20), (1024, 1024, 32), (4096, 1600, 32)))
AVERAGE = "average --trainers 2 {more}--hook {hook} --epochs {{n}}"
HYBRID = "hybrid --trainers {t} --servers 8 --embeddings 300 --dim 64 --lr 0.05 --warmup 5 --epochs {{n}}"
CASES = [
    Case("A1", "A  update, 3 trainers, Linear(100, 30)", f"update --trainers 3 {SMALL}", f"update --trainers 3 {SMALL}",
         (4000, 1000), (200, 50), "rounds_per_second", "rounds/s", True, 10),
    Case("A2", "A  update, 4 trainers, Linear(1024, 1024)", f"update --trainers 4 {WIDE}", f"update --trainers 4 {WIDE}",
         (400, 150), (20, 10), "rounds_per_second", "rounds/s", True, 3),
    Case("A3", "A  update, 4 trainers, Linear(4096, 1600)", f"update --trainers 4 {LARGE}", f"update --trainers 4 {LARGE}",
         (60, 20), (4, 2), "rounds_per_second", "rounds/s", True, 3),
    Case("B1", "B  average, rpc, sparse, 2 trainers", AVERAGE.format(more="--servers 1 --server-kind average --sparse ", hook="rpc"),
         AVERAGE.format(more="", hook="rpc"), (2, 1), (1, 1), "batch_all_ms", "ms", False, 3),
    Case("B2", "B  average, sparse-rpc, 2 trainers", AVERAGE.format(more="--servers 1 --server-kind average --sparse ", hook="sparse-rpc"),
         AVERAGE.format(more="", hook="sparse-rpc"), (2, 1), (1, 1), "batch_all_ms", "ms", False, 3),
    Case("C1", "C  hybrid, 8 trainers, 8 servers", HYBRID.format(t=8) + " --mode async", HYBRID.format(t=8),
         (100, 20), (3, 1), "p50_seconds_per_epoch", "s/epoch", False, 10),
    Case("C2", "C  hybrid, 2 trainers, 8 servers", HYBRID.format(t=2) + " --mode async", HYBRID.format(t=2),
         (100, 50), (3, 1), "p50_seconds_per_epoch", "s/epoch", False, 10),
    Case("D1", "D  hosted, 2 trainers remote : 1 trainer", "hosted --trainers 2 --mode remote --input synthetic --batches {n}", "hosted --batches {n}",
         (150, 150), (30, 20), "images_per_second", "images/s", True, 1.6),
    Case("D2", "D  hosted, 2 trainers pull : 1 trainer", "hosted --trainers 2 --mode pull --input synthetic --batches {n}", "hosted --batches {n}",
         (150, 150), (30, 20), "images_per_second", "images/s", True, 1.8),
    Case("D3", "D  one training step of the model, 1 thread", "hosted --local-step --input synthetic --batches {n}", "local --batches {n}",
         (60, 60), (3, 3), ("local_step_ms", "step_ms"), "ms", False, 1, False),
]


# ATTEMPTS is how often a run is tried: PyTorch's processes meet at a port that was free a moment ago, which another program may take.
ATTEMPTS = 3


def run(command, field, env, verbose):
    """The figure of one run, from the one line of JSON on its standard output."""
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        if verbose:
            print("$", " ".join(map(str, command)), "->", done.stdout.strip(), file=sys.stderr)
        if done.returncode == 0:
            break
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        failure = f"compare_pytorch.py: {' '.join(map(str, command))}: status {done.returncode}: {said[-1]}"
        if attempt == ATTEMPTS or TORCH not in command:
            sys.exit(failure)
        print(failure + "; once more", file=sys.stderr)
    try:
        return float(json.loads(done.stdout)[field])
    except (ValueError, KeyError, TypeError) as e:
        sys.exit(f"compare_pytorch.py: {' '.join(map(str, command))}: no {field} in {done.stdout.strip()[:200]!r}: {e!r}")


def find_python(given):
    """A python that has torch, and its version; without one, gradbus is measured alone."""
    if given == "none":
        return None, None
    for python in [given] if given else ["python3", "/usr/bin/python3"]:
        path = shutil.which(python)
        if path and subprocess.run([path, "-c", "import torch.distributed.rpc"], capture_output=True).returncode == 0:
            version = subprocess.run([path, ROOT / "scripts" / "torch_blas.py"], capture_output=True, text=True).stdout.strip()
            if version.endswith(" reference"):
                print("compare_pytorch.py: warning: this torch has the reference BLAS, so the comparison is not fair to it: "
                      "scripts/deps.sh torch installs OpenBLAS", file=sys.stderr)
            return path, version
    if given:
        sys.exit(f"compare_pytorch.py: python {given!r}: has no torch.distributed.rpc")
    print("compare_pytorch.py: no python has torch, so gradbus is measured alone (scripts/deps.sh torch, or --python PROGRAM)", file=sys.stderr)
    return None, None


def measure(case, options, python, env):
    """The results of a case: one for each transport of PyTorch's. Whoever comes first changes from turn to turn."""
    n_ours, n_theirs = case.quick if options.quick else case.full
    field_ours, field_theirs = case.field if isinstance(case.field, tuple) else (case.field, case.field)
    ours, theirs = [], {}
    sides = [(ours, [ROOT / options.psbench, *case.ours.format(n=n_ours).split(), "--json"], field_ours)]
    if python:
        command = [python, TORCH, *case.theirs.format(n=n_theirs).split()]
        if case.rpc:
            for name, flag in TRANSPORTS.items():
                theirs[name] = []
                sides.append((theirs[name], [*command, "--transport", flag], field_theirs))
        else:
            theirs[NO_RPC] = []
            sides.append((theirs[NO_RPC], command, field_theirs))
    for turn in range(options.turns):
        at = turn % len(sides)
        for figures, command, field in sides[at:] + sides[:at]:
            figures.append(run(command, field, env, options.verbose))

    def ratio(a, b):
        return a / b if case.more else b / a

    common = {"key": case.key, "name": case.name, "unit": case.unit, "to_reach": case.want, "psbench": case.ours.format(n=n_ours),
              "gradbus": ours, "gradbus_median": statistics.median(ours)}
    if not theirs:
        return [common]
    results = []
    for transport, figures in theirs.items():
        median = statistics.median(figures)
        turns = [ratio(a, b) for a, b in zip(ours, figures)]
        results.append({**common, "transport": transport, "pytorch": figures, "pytorch_median": median,
                        "ratio": ratio(common["gradbus_median"], median), "ratio_least": min(turns), "ratio_most": max(turns)})
    return results


def short(x):
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.4f}" if x < 0.1 else f"{x:.3f}"


def line(r):
    if "ratio" not in r:
        return f"| {r['name']} | | {short(r['gradbus_median'])} | | {r['unit']} | | | {r['to_reach']} | |"
    reached = "yes" if r["ratio"] >= r["to_reach"] else "no"
    return (f"| {r['name']} | {r['transport']} | {short(r['gradbus_median'])} | {short(r['pytorch_median'])} | {r['unit']} | "
            f"{r['ratio']:.2f} | {r['ratio_least']:.2f} to {r['ratio_most']:.2f} | {r['to_reach']} | {reached} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="cases or systems, a comma-separated list of A, B, C, D, " + ", ".join(c.key for c in CASES))
    parser.add_argument("--turns", type=int, default=3, help="runs of each side (3)")
    parser.add_argument("--quick", action="store_true", help="short runs: shows that it works, its figures mean little")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and nothing else")
    parser.add_argument("--verbose", action="store_true", help="show every command and what it found, on standard error")
    parser.add_argument("--python", default="", help="python program that has torch; none leaves PyTorch out")
    parser.add_argument("--psbench", default="bin/psbench", help="program to compare (bin/psbench)")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"turns {options.turns}: want at least 1")
    only = [o for o in options.only.split(",") if o]
    for o in only:
        if not any(c.key.startswith(o) for c in CASES):
            parser.error(f"only {o!r}: want one of A, B, C, D, " + ", ".join(c.key for c in CASES))
    cases = [c for c in CASES if not only or any(c.key.startswith(o) for o in only)]
    python, version = find_python(options.python)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    results, begin = [], time.time()
    if not options.json:
        print(f"medians of {options.turns} turns; load at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, PyTorch {version or 'left out'}\n")
        print("| system | PyTorch's RPC by | gradbus | PyTorch | | ratio | of one turn | to reach | reached |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for case in cases:
        found = measure(case, options, python, env)
        results += found
        if not options.json:
            print("\n".join(map(line, found)), flush=True)
    if options.json:
        print(json.dumps({"pytorch_version": version, "turns": options.turns, "cores": os.cpu_count(), "results": results}))
    else:
        print(f"\n{time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
