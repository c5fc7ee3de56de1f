#!/usr/bin/env python3
"""Train the movielens model with plain PyTorch, for comparison.

The same ratings, split, model, initial scale, optimizer and epochs as `trainer movielens`: a rating is the mean plus the
biases of user and movie plus the product of their factors; ids are hashed into tables; the loss is the squared error with
a decay of the rows that a rating uses. It prints a line of JSON for each seed, and the mean and the spread of all.

    bin/trainer movielens --dump ratings.csv
    scripts/movielens_torch.py --data ratings.csv --seeds 1 2 3 4 5

--validate leaves the test ratings out and splits those of the training once more: settings are chosen by that.
"""
import argparse
import csv
import json
import statistics
import sys

POSITIVE = 4.0


def read(path):
    """Ratings of a file in the form of MovieLens: (time, user, movie, stars), by time."""
    with open(path, newline="", encoding="utf-8") as f:
        rows = csv.DictReader(f)
        return sorted((int(r["timestamp"]), int(r["userId"]), int(r["movieId"]), float(r["rating"])) for r in rows)


def split(ratings, by):
    """The first four fifths and the last fifth, of all ratings or of each user's."""
    if by == "time":
        cut = len(ratings) - len(ratings) // 5
        return ratings[:cut], ratings[cut:]
    total, seen = {}, {}
    for r in ratings:
        total[r[1]] = total.get(r[1], 0) + 1
    train, test = [], []
    for r in ratings:
        seen[r[1]] = seen.get(r[1], 0) + 1
        (train if seen[r[1]] <= total[r[1]] - total[r[1]] // 5 else test).append(r)
    return train, test


def hash_ids(ids, rows, salt):
    """docs/ids.md."""
    mask = 2**64 - 1

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    key = mix(salt + 0x9E3779B97F4A7C15 & mask)
    return [mix(i ^ key) * rows >> 64 for i in ids]


def auc(scores, positive):
    """The share of pairs of a positive and another that are in order; equal scores count half."""
    pairs = sorted(zip(scores, positive))
    above, positives, i = 0.0, sum(positive), 0
    others = 0
    while i < len(pairs):
        j = i
        while j < len(pairs) and pairs[j][0] == pairs[i][0]:
            j += 1
        p = sum(x[1] for x in pairs[i:j])
        above += p * (others + (j - i - p) / 2)
        others += j - i - p
        i = j
    return above / (positives * others)


def run(torch, a, train, test, seed):
    torch.manual_seed(seed)
    mean = sum(r[3] for r in train) / len(train)

    def tensors(ratings):
        return (torch.tensor(hash_ids((r[1] for r in ratings), a.rows, 0)),
                torch.tensor(hash_ids((r[2] for r in ratings), a.rows, 1)), torch.tensor([r[3] for r in ratings]))

    user, movie, stars = tensors(train)
    users = torch.nn.Embedding(a.rows, 1 + a.factors, sparse=True)
    movies = torch.nn.Embedding(a.rows, 1 + a.factors, sparse=True)
    for table in users, movies:
        torch.nn.init.normal_(table.weight, 0, a.scale)
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[a.optimizer]
    optimizer = kind([users.weight, movies.weight], lr=a.lr)

    def score(p, q):
        return mean + p[:, 0] + q[:, 0] + (p[:, 1:] * q[:, 1:]).sum(1)

    results = []
    for epoch in range(1, a.epochs + 1):
        order = torch.randperm(len(stars))
        for chosen in order.split(a.batch):
            p, q = users(user[chosen]), movies(movie[chosen])
            error = score(p, q) - stars[chosen]
            loss = (error * error + a.decay * ((p * p).sum(1) + (q * q).sum(1))).mean() / 2
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if a.every or epoch == a.epochs:
            with torch.no_grad():
                u, m, y = tensors(test)
                s = score(users(u), movies(m))
                rmse = ((s - y) ** 2).mean().sqrt().item()
                results.append({"seed": seed, "epoch": epoch, "rmse": round(rmse, 4),
                                "auc": round(auc(s.tolist(), (y >= POSITIVE).tolist()), 4)})
    return results


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="ratings as `trainer movielens --dump` writes them")
    p.add_argument("--split", choices=["user", "time"], default="user")
    p.add_argument("--validate", action="store_true", help="split the training ratings once more, and leave the test ratings out")
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--factors", type=int, default=16)
    p.add_argument("--rows", type=int, default=1 << 18, help="of each table")
    p.add_argument("--optimizer", choices=["sgd", "adagrad"], default="adagrad")
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--decay", type=float, default=0.15)
    p.add_argument("--scale", type=float, default=0.03, help="standard deviation of the tables' initial values")
    p.add_argument("--seeds", type=int, nargs="+", default=[1])
    p.add_argument("--every", action="store_true", help="print a line for every epoch")
    a = p.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("movielens_torch.py: PyTorch is not installed for this python (%s); on Debian: apt-get install python3-torch" % sys.executable)
    train, test = split(read(a.data), a.split)
    if a.validate:
        train, test = split(train, a.split)
    last = []
    for seed in a.seeds:
        results = run(torch, a, train, test, seed)
        for r in results:
            print(json.dumps(r), flush=True)
        last.append(results[-1])
    for name in "rmse", "auc":
        values = [r[name] for r in last]
        spread = statistics.stdev(values) if len(values) > 1 else 0
        print(f"{name}  mean {statistics.mean(values):.4f}, standard deviation {spread:.4f}")


if __name__ == "__main__":
    main()
