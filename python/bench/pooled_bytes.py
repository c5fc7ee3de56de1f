"""Megabytes a batch between one trainer and one ps, by who pools: pooled_bytes.py, after `make python`.

Ids are of 1,000,000 rows by Zipf's law with exponent 1.05. The figures are those of session.stats over ten batches in
which nothing was asked for or sent twice, as happens on a busy machine; they do not depend on its speed.
"""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import time

import torch

import gradbus
import gradbus.ps

ROWS, BAGS, BATCHES, EXPONENT = 1_000_000, 2048, 10, 1.05
REPEATS = ("lookups_repeated", "pulls", "resent", "results_repeated")


def measure(url: str, pool: str, dim: int, ids_of_bag: int) -> str:
    generator = torch.Generator().manual_seed(1)
    weight = torch.arange(1, ROWS + 1, dtype=torch.float64) ** -EXPONENT
    below = (weight / weight.sum()).cumsum(0)
    sent = received = distinct = counted = 0
    with gradbus.join(url, f"bytes-{pool}-{dim}-{ids_of_bag}") as session:
        emb = gradbus.EmbeddingBag(ROWS, dim, mode="sum", name="t", pool=pool)
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.Adagrad(0.05))
        for batch in range(10 * BATCHES):
            before = session.stats
            uniform = torch.rand(BAGS, ids_of_bag, generator=generator, dtype=torch.float64)
            ids = torch.searchsorted(below, uniform).clamp_(max=ROWS - 1)
            emb(ids).sum().backward()
            opt.step()
            session.begin_reading()  # waits for the results
            after = session.stats
            if batch == 0 or any(after[name] != before[name] for name in REPEATS):
                continue
            sent += after["bytes_sent"] - before["bytes_sent"]
            received += after["bytes_received"] - before["bytes_received"]
            distinct, counted = distinct + ids.unique().numel(), counted + 1
            if counted == BATCHES:
                break
    each = 1e6 * max(1, counted)
    return f"{sent / each:.2f} sent, {received / each:.2f} received, {distinct // max(1, counted)} distinct ids"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        port = pathlib.Path(directory, "port")
        server = subprocess.Popen(
            [gradbus.ps.program(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
        )
        try:
            end = time.monotonic() + 60
            while not (port.exists() and port.read_text().strip()):
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit("ps did not begin")
                time.sleep(0.01)
            url = port.read_text().split()[0]
            for dim in (16, 64):
                for ids_of_bag in (2, 10, 50):
                    for pool in ("client", "servers"):
                        figures = measure(url, pool, dim, ids_of_bag)
                        print(f"dim {dim}, {ids_of_bag} ids a bag, {pool}: {figures}", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
