#!/usr/bin/env python3
"""Train the packages model with one PyTorch process, for comparison.

The same data, model and optimizer as `trainer packages`: embedding bag (mean), linear, cross-entropy, plain SGD. It
reads the examples as `trainer packages --dump FILE` writes them, so both train on the same keys: one line an example,
its name, class and keys, separated by tabs, the keys by spaces; a name whose CRC-32 is a multiple of ten belongs to the
test set. It prints one line of JSON; samples_per_second counts from the first to the last training batch, shuffling
included, without reading and evaluation.

    bin/trainer packages --dump tokens.tsv
    scripts/packages_torch.py --data tokens.tsv --epochs 4
"""
import argparse
import json
import sys
import time
import zlib

ROWS = 1 << 18


def read(path):
    """Examples of a dump: (classes, train, test), each set a list of (class index, keys)."""
    names, labels, keys = [], [], []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 3:
                sys.exit(f"packages_torch.py: {path}:{number}: {len(fields)} fields, want name, class and keys")
            names.append(fields[0])
            labels.append(fields[1])
            keys.append([int(k) for k in fields[2].split()])
    classes = sorted(set(labels))
    index = {c: i for i, c in enumerate(classes)}
    train, test = [], []
    for name, label, k in zip(names, labels, keys):
        (train if zlib.crc32(name.encode()) % 10 else test).append((index[label], k))
    return classes, train, test


def flatten(torch, examples):
    """Labels [n], keys [N] and where each example's keys begin [n+1]."""
    starts = [0]
    for _, k in examples:
        starts.append(starts[-1] + len(k))
    return (torch.tensor([y for y, _ in examples]), torch.tensor([key for _, k in examples for key in k]),
            torch.tensor(starts))


def shuffle(torch, labels, keys, starts):
    """The examples in a random order; one gather for the whole epoch, so that a batch is a slice."""
    order = torch.randperm(len(labels))
    lengths = (starts[1:] - starts[:-1])[order]
    moved = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    shift = torch.repeat_interleave(starts[:-1][order] - moved[:-1], lengths)
    return labels[order], keys[torch.arange(len(shift)) + shift], moved


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="examples as `trainer packages --dump` writes them")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=20.0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 leaves its default")
    a = p.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("packages_torch.py: PyTorch is not installed for this python (%s); on Debian: apt-get install python3-torch" % sys.executable)
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    try:
        classes, train, test = read(a.data)
    except OSError as error:
        sys.exit(f"packages_torch.py: {error}")
    labels, keys, starts = flatten(torch, train)
    bag = torch.nn.EmbeddingBag(ROWS, a.dim, mode="mean", sparse=True)
    torch.nn.init.normal_(bag.weight, 0, 0.05)
    linear = torch.nn.Linear(a.dim, len(classes))
    optimizer = torch.optim.SGD([bag.weight, *linear.parameters()], lr=a.lr)
    loss_of = torch.nn.CrossEntropyLoss()

    total = torch.zeros(())
    begin = time.perf_counter()
    for _ in range(a.epochs):
        y, k, at = shuffle(torch, labels, keys, starts)
        total.zero_()
        for lo in range(0, len(y), a.batch):
            hi = min(lo + a.batch, len(y))
            first = at[lo]
            loss = loss_of(linear(bag(k[first:at[hi]], at[lo:hi] - first)), y[lo:hi])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach() * (hi - lo)
    seconds = time.perf_counter() - begin

    with torch.no_grad():
        y, k, at = flatten(torch, test)
        accuracy = (linear(bag(k, at[:-1])).argmax(1) == y).float().mean().item()
    print(json.dumps({
        "samples_per_second": round(a.epochs * len(labels) / seconds, 1),
        "accuracy": round(accuracy, 4),
        "loss": round(total.item() / len(labels), 4),
        "seconds": round(seconds, 3),
        "epochs": a.epochs,
        "train": len(labels),
        "test": len(test),
        "classes": len(classes),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
