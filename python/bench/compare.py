#!/usr/bin/python3
"""Trains one DLRM in several ways on the same cores, in turn, and compares samples a second.

    python/bench/compare.py --data data/debfiles           # plain, ddp, rpc, gradbus, local, each in 5 rounds
    python/bench/compare.py --ways ddp,gradbus --batch 512 --rounds 3 --json
    python/bench/compare.py --ways rpc,rpc-each,gradbus    # further forms of rpc
    python/bench/compare.py --torchrec                     # TorchRec too; needs torchrec and fbgemm-gpu-cpu
    python/bench/compare.py --ways dataloader,laneloader --workers 2

plain       one process, nn.EmbeddingBag with sparse gradients
ddp         processes of DistributedDataParallel over gloo, nn.EmbeddingBag with sparse gradients in each
rpc         a server process with the tables as a remote module, trainer processes by distributed autograd
rpc-each    the same with a remote module for each table, one asked after the other, as PyTorch's tutorial has it
rpc-async   the same, all of them asked at once
torchrec    processes with an EmbeddingBagCollection on the CPU, sharded over them
gradbus     a ps process and trainer processes
local       one process with shards and trainer
dataloader  loading alone, 4 lanes a batch, by a DataLoader with gradbus's LaneSampler
laneloader  the same by a LaneLoader
dense       processes with the layers alone, each by itself, where embeddings are constants: no way can be faster

Every process computes with one thread, and all ways have the same batches. Each round runs each way once, from nothing.
A ratio is taken within a round. In rpc each trainer's gradient is a step of its own, elsewhere their mean is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOG_minloglevel": "3"}
WAYS = ["plain", "ddp", "rpc", "gradbus", "local"]
LOADERS = ("dataloader", "laneloader")
ALONE = ("plain", "local", *LOADERS)  # ways of one process


def flags() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--ways", default=",".join(WAYS), help="which, separated by commas; ratios are to ddp, or to the first"
    )
    p.add_argument("--torchrec", action="store_true", help="TorchRec's EmbeddingBagCollection too")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--processes", type=int, default=2, help="processes that train, in the ways that have several")
    p.add_argument("--batch", type=int, default=2048, help="samples of each process")
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--optimizer", choices=["sgd", "adagrad"], default="adagrad")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument(
        "--device", default="cpu", help="device of the layers, and of the tables of plain; for plain, local, gradbus"
    )
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--distinct", type=int, default=120, help="batches drawn before; they repeat")
    p.add_argument(
        "--data", default="", help="a folder that examples/torch/debfiles.py prepared; else ids of its shape are drawn"
    )
    p.add_argument("--smaller", type=int, default=1, help="times that drawn tables are smaller than those of debfiles")
    p.add_argument("--workers", type=int, default=0, help="processes that load, in the ways of loaders")
    p.add_argument("--shards", type=int, default=2, help="shards of gradbus")
    p.add_argument("--ps", default=os.path.join(HERE, "..", "..", "bin", "ps"), help="the ps program")
    p.add_argument("--json", action="store_true", help="one line of JSON")
    for hidden, kind, default in (
        ("--way", str, ""),
        ("--rank", int, 0),
        ("--port", int, 0),
        ("--port2", int, 0),
        ("--server", str, ""),
    ):
        p.add_argument(hidden, type=kind, default=default, help=argparse.SUPPRESS)
    return p


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def work(o: argparse.Namespace) -> None:
    """What a child does."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    if o.way.startswith("rpc"):
        import ways_rpc

        found: Any = ways_rpc.run(o, o.rank)
    elif o.way in ("gradbus", "local"):
        import ways_gradbus

        found = ways_gradbus.run(o, o.rank)
    elif o.way in LOADERS:
        import ways_loaders

        found = ways_loaders.run(o, o.rank)
    elif o.way == "torchrec":
        import ways_torchrec

        found = ways_torchrec.run(o, o.rank)
    else:
        import ways

        found = {"plain": ways.plain, "ddp": ways.ddp, "dense": ways.dense}[o.way](o, o.rank)
    print(json.dumps(found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # gloo and tensorpipe threads are left as they are


class Meter:
    """CPU seconds and resident bytes of processes, read every 50 ms."""

    def __init__(self) -> None:
        self.tick = os.sysconf("SC_CLK_TCK")
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.processes: List[subprocess.Popen[str]] = []
        self.read: Dict[int, List[Tuple[float, float]]] = {}
        self.most: Dict[int, int] = {}

    def look(self) -> None:
        for p in self.processes:
            try:
                with open(f"/proc/{p.pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] == "Z":
                continue
            self.read.setdefault(p.pid, []).append((time.time(), (int(fields[11]) + int(fields[12])) / self.tick))
            self.most[p.pid] = max(self.most.get(p.pid, 0), int(fields[21]) * self.page)

    def cpu(self, begin: float, end: float) -> float:
        """CPU seconds of all of them between two times of the host's clock."""
        return sum(self.at(r, end) - self.at(r, begin) for r in self.read.values())

    @staticmethod
    def at(read: List[Tuple[float, float]], when: float) -> float:
        before = [r for r in read if r[0] <= when]
        after = [r for r in read if r[0] > when]
        if not before or not after:
            return (before or after)[-1 if before else 0][1]
        (t0, c0), (t1, c1) = before[-1], after[0]
        return c0 + (c1 - c0) * (when - t0) / (t1 - t0)


def run(o: argparse.Namespace, way: str) -> Dict[str, float]:
    """Runs one way once: its processes, and its server where it has one."""
    processes = 1 if way in ALONE else o.processes
    meter = Meter()
    base = [
        sys.executable,
        os.path.abspath(__file__),
        "--way",
        way,
        "--port",
        str(free_port()),
        "--port2",
        str(free_port()),
    ]
    for name in (
        "processes",
        "batch",
        "dim",
        "optimizer",
        "lr",
        "device",
        "warmup",
        "steps",
        "distinct",
        "ps",
        "shards",
        "data",
        "smaller",
        "workers",
    ):
        base += ["--" + name, str(getattr(o, name))]
    environment = dict(os.environ, **THREADS)
    ps = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            if way == "gradbus":
                ps, address = start_ps(o, folder, environment)
                meter.processes.append(ps)
                base += ["--server", address]
            ranks = range(processes + way.startswith("rpc"))
            workers = [
                subprocess.Popen(base + ["--rank", str(r)], stdout=subprocess.PIPE, text=True, env=environment)
                for r in ranks
            ]
            meter.processes += workers
            found = gather(way, workers, meter)
        finally:
            for p in meter.processes:
                if p.poll() is None:
                    p.terminate()
                    p.wait()
    begin, end = min(f["begin"] for f in found), max(f["end"] for f in found)
    samples = o.batch * processes * o.steps
    return {
        "samples_per_second": samples / (end - begin),
        "cpu_us_per_sample": meter.cpu(begin, end) / samples * 1e6,
        "step_ms": (end - begin) / o.steps * 1e3,
        "rss_bytes": float(sum(meter.most.values())),
        "loss": statistics.mean(f["loss"] for f in found),
    }


def gather(way: str, workers: List[subprocess.Popen[str]], meter: Meter) -> List[Dict[str, float]]:
    lines: Dict[int, str] = {}

    def read(i: int) -> None:
        out = workers[i].stdout
        assert out is not None
        for line in out:
            lines[i] = line

    readers = [threading.Thread(target=read, args=(i,)) for i in range(len(workers))]
    for r in readers:
        r.start()
    while any(w.poll() is None for w in workers):
        meter.look()
        time.sleep(0.05)
        if any(w.poll() not in (None, 0) for w in workers):
            sys.exit(f"compare.py: {way}: a process failed: {[w.returncode for w in workers]}")
    for r in readers:
        r.join()
    return [f for f in (json.loads(x) for x in lines.values()) if f]


def start_ps(o: argparse.Namespace, folder: str, environment: Dict[str, str]) -> Tuple[subprocess.Popen[str], str]:
    """Starts a ps on a free port of loopback."""
    file = os.path.join(folder, "port")
    p = subprocess.Popen(
        [o.ps, "--shards", str(o.shards), "--listen", "127.0.0.1:0", "--port-file", file, "--http", "127.0.0.1:0"],
        text=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.time() + 30
    while not os.path.exists(file) or not open(file).read().strip():
        if p.poll() is not None or time.time() > deadline:
            sys.exit(f"compare.py: {o.ps} did not start")
        time.sleep(0.02)
    return p, open(file).read().strip()


def spread(values: List[float], form: str) -> str:
    return f"{form % statistics.median(values)} ({form % min(values)} to {form % max(values)})"


def table(o: argparse.Namespace, names: List[str], rounds: List[Dict[str, Dict[str, float]]]) -> None:
    import torch

    base = "ddp" if "ddp" in names else names[0]
    print(
        f"torch {torch.__version__}, {o.data or 'drawn ids'}, batch {o.batch} a process, dim {o.dim}, {o.optimizer}, "
        f"{o.steps} steps, {len(rounds)} rounds"
    )
    print(f"{'way':11} {'samples/s':30} {'ratio to ' + base:22} {'CPU us/sample':24} {'ms/step':>8} {'GB':>6}  loss")
    for w in names:
        s = [r[w]["samples_per_second"] for r in rounds]
        ratio = [r[w]["samples_per_second"] / r[base]["samples_per_second"] for r in rounds]
        cpu = [r[w]["cpu_us_per_sample"] for r in rounds]
        one = rounds[-1][w]
        print(
            f"{w:11} {spread(s, '%.0f'):30} {spread(ratio, '%.2f'):22} {spread(cpu, '%.1f'):24} "
            f"{one['step_ms']:8.1f} {one['rss_bytes'] / 1e9:6.2f}  {one['loss']:.4f}"
        )


def main() -> None:
    o = flags().parse_args()
    if o.way:
        work(o)
    names = o.ways.split(",")
    if o.device != "cpu" and set(names) - {"plain", "local", "gradbus"}:
        sys.exit(f"compare.py: --device {o.device} is for the ways plain, local and gradbus alone")
    if o.torchrec and "torchrec" not in names:
        names.append("torchrec")
    rounds: List[Dict[str, Dict[str, float]]] = []
    for n in range(o.rounds):
        rounds.append({})
        for w in names:
            rounds[-1][w] = run(o, w)
            print(
                f"round {n + 1}: {w}: {rounds[-1][w]['samples_per_second']:.0f} samples/s", file=sys.stderr, flush=True
            )
    if o.json:
        print(json.dumps({"options": vars(o), "rounds": rounds}))
    else:
        table(o, names, rounds)


if __name__ == "__main__":
    main()
