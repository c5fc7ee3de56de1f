#!/usr/bin/python3
"""A table that is larger than what a process may have: gradbus trains it, plain PyTorch cannot.

    python/bench/memory_limit.py                         # 8 million rows of 64, 2 GiB; processes may have 1 GiB of data
    python/bench/memory_limit.py --rows 40000000 --limit-mib 2048

Processes that train run under RLIMIT_DATA. The ps, which has no limit, has the table. The status is 0 where plain
PyTorch failed for want of memory, and the trainer learned.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from compare import THREADS, start_ps  # noqa: E402


def flags() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", type=int, default=8_000_000)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--limit-mib", type=int, default=1024, help="RLIMIT_DATA of a process that trains")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--shards", type=int, default=2)
    p.add_argument("--ps", default=os.path.join(HERE, "..", "..", "bin", "ps"), help="the ps program")
    p.add_argument("--as", dest="role", choices=["plain", "gradbus"], help=argparse.SUPPRESS)
    p.add_argument("--server", help=argparse.SUPPRESS)
    return p


def train(o: argparse.Namespace) -> None:
    """Learns the sign of a bag's first id."""
    resource.setrlimit(resource.RLIMIT_DATA, (o.limit_mib << 20, o.limit_mib << 20))
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dense = nn.Linear(o.dim, 1)
    if o.role == "plain":
        bags: nn.Module = nn.EmbeddingBag(o.rows, o.dim, sparse=True)
        optimizer: torch.optim.Optimizer = torch.optim.Adagrad([*bags.parameters(), *dense.parameters()], lr=0.1)
    else:
        sys.path.append(os.path.join(HERE, ".."))
        import gradbus

        session = gradbus.join(o.server, "memory")
        bags = gradbus.EmbeddingBag(o.rows, o.dim, name="bags")
        optimizer = gradbus.Optimizer(
            [bags, dense], session, embeddings=gradbus.Adagrad(0.1), dense=gradbus.Adagrad(0.1)
        )
    first = last = 0.0
    ids = torch.randint(0, o.rows, (1024, 5))
    labels = (ids[:, 0] % 2).float()
    for step in range(o.steps):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(dense(bags(ids)).squeeze(1), labels)
        loss.backward()
        optimizer.step()
        last = float(loss)
        first = first or last
    used = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")][0]
    print(
        f"{o.role}: trained {o.steps} steps, loss {first:.4f} -> {last:.4f}, "
        f"data of the process {int(used) / 1024:.0f} MiB"
    )
    if o.role == "gradbus":
        session.close()
    sys.exit(0 if last < first else "the loss did not fall")


def main() -> None:
    o = flags().parse_args()
    if o.role:
        train(o)
    print(
        f"table {o.rows} x {o.dim}: {o.rows * o.dim * 4 / 2**20:.0f} MiB, and as much for Adagrad; "
        f"limit {o.limit_mib} MiB a process",
        flush=True,
    )
    environment = dict(os.environ, **THREADS)
    again = [sys.executable, os.path.abspath(__file__)]
    for name in ("rows", "dim", "limit_mib", "steps"):
        again += ["--" + name.replace("_", "-"), str(getattr(o, name))]
    plain = subprocess.run(again + ["--as", "plain"], env=environment, stderr=subprocess.PIPE, text=True)
    why = (plain.stderr.strip().splitlines() or ["no error"])[-1]
    print(f"plain: status {plain.returncode}: {why}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ps, server = start_ps(o, folder, environment)
        try:
            status = subprocess.run(again + ["--as", "gradbus", "--server", server], env=environment).returncode
        finally:
            ps.terminate()
            ps.wait()
    failed = plain.returncode == 0 or "memory" not in why
    sys.exit("memory_limit.py: plain PyTorch was to fail for want of memory" if failed else status)


if __name__ == "__main__":
    main()
