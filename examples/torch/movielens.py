#!/usr/bin/env python3
"""Learn which films people like, with gradbus and with plain PyTorch: one model, the same batches and first values.

A rating is the mean of all, plus the biases of user and film, plus the product of their factors; ids are hashed into
two tables; the loss is the squared error, with a decay of the rows that a rating uses. `trainer movielens` is the same
in Go (docs/movielens.md).

    examples/torch/movielens.py                                  # in one process, on the ratings that make data fetches
    examples/torch/movielens.py --input ml-latest/ratings.csv
    examples/torch/movielens.py --lanes 4
    examples/torch/movielens.py --lanes 4 --server nats://127.0.0.1:4222 --trainers 2      # two processes, equal weights
    examples/torch/movielens.py --seeds 5
    examples/torch/movielens.py --lanes 4 --parts 4              # plain PyTorch cuts batches as gradbus does by lanes

PyTorch begins with the rows that gradbus drew and gets the same batches. What remains between both is rounding: gradbus
adds up the gradients of lanes, PyTorch those of the whole batch. With --only torch it draws its own.
"""
import argparse
import math
import os
import statistics
import sys
import time
from typing import NamedTuple

import ratings
import torch
from torch import nn

import gradbus
from gradbus.lanes import permutation

OPTIMIZERS = {"adagrad": (gradbus.Adagrad, torch.optim.Adagrad), "sgd": (gradbus.SGD, torch.optim.SGD)}


class Set(NamedTuple):
    """Ratings as tensors of one length."""

    user: torch.Tensor  # int64, rows of the table
    film: torch.Tensor
    stars: torch.Tensor  # float32


class Factors(nn.Module):
    """Matrix factorisation with biases. `users`, `films`: nn.Embedding or gradbus.Embedding of [rows, 1 + factors]."""

    def __init__(self, mean, users, films):
        super().__init__()
        self.mean, self.users, self.films = mean, users, films

    def forward(self, user, film):
        """Ratings [n] that users give films, and the squares [n] of the rows that this takes."""
        p, q = self.users(user), self.films(film)
        stars = self.mean + p[:, 0] + q[:, 0] + (p[:, 1:] * q[:, 1:]).sum(1)
        return stars, (p * p).sum(1) + (q * q).sum(1)

    def loss(self, batch, decay):
        """Half the squared error with decay, summed over the ratings of a batch."""
        stars, squares = self(batch.user, batch.film)
        return ((stars - batch.stars) ** 2 + decay * squares).sum() / 2


def of(part, chosen):
    """The ratings of a Set at some indices."""
    return Set(*(column[chosen] for column in part))


def tensors(found, rows):
    """A Set of ratings; users and films are hashed into tables of so many rows."""
    # Ids above 2^63 are the negative numbers of the same 64 bits, as gradbus.hash_id has them.
    columns = [torch.tensor([r[i] - (r[i] >> 63 << 64) for r in found], dtype=torch.int64) for i in (1, 2)]
    stars = torch.tensor([r[3] for r in found])
    return Set(gradbus.hash_id(columns[0], rows, 0), gradbus.hash_id(columns[1], rows, 1), stars)


def scores(model, test):
    """RMSE in stars, and AUC: how probably a film that was liked is put above one that was not."""
    model.eval()
    with torch.no_grad():
        given = model(test.user, test.film)[0]
    error = ((given - test.stars) ** 2).mean().sqrt().item()
    if not math.isfinite(error):
        raise ValueError("the model has values that are not finite; a smaller --lr helps")
    return error, ratings.auc(given.tolist(), (test.stars >= ratings.POSITIVE).tolist())


def session_of(a, seed):
    """A session with the servers of --server, or in this process."""
    name = f"movielens-{seed}"
    if a.server is not None:
        return gradbus.join(a.server, name, a.trainers, lanes=a.lanes, token_file=a.token_file, seed=seed)
    return gradbus.local(name, lanes=a.lanes, seed=seed)


def train_gradbus(a, session, mean, train, used, seed):
    """The trained model, and what its rows `used` were before the first batch: [users, films]."""
    dim, init = 1 + a.factors, gradbus.Normal(a.scale)
    users = gradbus.Embedding(a.rows, dim, name="users", session=session, init=init)
    films = gradbus.Embedding(a.rows, dim, name="films", session=session, init=init)
    model = Factors(mean, users, films)
    optimizer = gradbus.Optimizer(model, session, embeddings=OPTIMIZERS[a.optimizer][0](a.lr), weight="samples")
    sampler = gradbus.LaneSampler(len(train.stars), session, a.batch, seed)
    loader = gradbus.LaneLoader(sampler, session, batches=a.epochs * sampler.batches)  # with which the job recovers
    start = [session.lookup(name, ids) for name, ids in zip(("users", "films"), used)]
    for chosen in loader:
        loss = model.loss(of(train, chosen), a.decay)
        loss.backward()
        optimizer.step(loss=loss)
        optimizer.zero_grad()
    return model, start


def train_torch(a, mean, train, used, seed, start):
    """The same with PyTorch alone. `start`: what its rows `used` begin with; None draws them."""
    torch.manual_seed(seed)
    tables = []
    for i, ids in enumerate(used):
        table = nn.Embedding(a.rows, 1 + a.factors, sparse=True)
        nn.init.normal_(table.weight, 0, a.scale)
        if start:
            table.weight.data[ids] = start[i]
        tables.append(table)
    model = Factors(mean, *tables)
    optimizer = OPTIMIZERS[a.optimizer][1](model.parameters(), lr=a.lr)
    n = len(train.stars)
    batches = -(-n // a.batch)
    for epoch in range(a.epochs):
        order = permutation(seed, epoch, n)
        for at in range(batches):
            chosen = order[at * n // batches:(at + 1) * n // batches]
            optimizer.zero_grad(set_to_none=True)
            for part in chosen.tensor_split(a.parts):
                loss = model.loss(of(train, part), a.decay) / len(chosen)
                loss.backward()
            optimizer.step()
    return model


def run(a, first):
    """Both, for each seed. The first process of a machine prints, and runs plain PyTorch."""

    def say(text):
        if first:
            print(text, flush=True)

    found, test = ratings.split(ratings.load(a.input), a.split)
    if a.validate:
        found, test = ratings.split(found, a.split)
    mean = sum(r[3] for r in found) / len(found)
    train, test = tensors(found, a.rows), tensors(test, a.rows)
    used = [torch.cat(ids).unique() for ids in ((train.user, test.user), (train.film, test.film))]
    say(f"{len(train.stars):,} ratings to train with, {len(test.stars):,} to test with; {a.epochs} epochs")
    say(f"a batch is {a.lanes} forwards and backwards with gradbus, {a.parts} with plain PyTorch: --lanes, --parts")
    say(f"{'':10}{'seed':>6}{'RMSE':>9}{'AUC':>9}{'seconds':>9}")
    reached = {}

    def report(who, seed, model, began):
        seconds = time.perf_counter() - began
        reached.setdefault(who, []).append(scores(model, test))
        say(f"{who:10}{seed:6}" + "".join(f"{x:9.4f}" for x in reached[who][-1]) + f"{seconds:9.1f}")

    for seed in range(1, a.seeds + 1):
        start = None
        if a.only != "torch":
            began = time.perf_counter()
            with session_of(a, seed) as session:
                model, start = train_gradbus(a, session, mean, train, used, seed)
                report("gradbus", seed, model, began)
                say(f"weights   sha256 {session.digest()}")
        if a.only != "gradbus" and first:
            began = time.perf_counter()
            report("PyTorch", seed, train_torch(a, mean, train, used, seed, start), began)
    if a.seeds > 1:
        for who, each in reached.items():
            columns = [f"{statistics.mean(x):.4f} ± {statistics.stdev(x):.4f}" for x in zip(*each)]
            say(f"{who}: RMSE {columns[0]}, AUC {columns[1]}: mean and standard deviation of {a.seeds} seeds")


def process(index, a):
    """One of several processes of this machine."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // a.processes))
    guarded(a, index == 0)


def guarded(a, first):
    try:
        run(a, first)
    except (OSError, ValueError, gradbus.Error) as error:
        sys.exit(f"movielens.py: {error}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--input", help="a ratings.csv, ratings.dat or u.data of MovieLens; else what make data fetches")
    p.add_argument("--server", help="a ps, such as nats://127.0.0.1:4222; without it the job is in this process")
    p.add_argument("--token-file", help="the file with the server's token")
    p.add_argument("--trainers", type=int, default=1, help="of the job")
    p.add_argument("--processes", type=int, help="of the trainers, how many to start here: all by default")
    p.add_argument("--lanes", type=int, help="slices of a batch; as many as trainers by default")
    p.add_argument("--parts", type=int, default=1,
                   help="forwards and backwards that plain PyTorch makes of a batch, as gradbus makes one a lane")
    p.add_argument("--seeds", type=int, default=1, help="run seeds 1 to so many")
    p.add_argument("--only", choices=["gradbus", "torch"], help="run one of both")
    p.add_argument("--split", choices=["user", "time"], default="user",
                   help="test with the last fifth of each user's ratings, or of all")
    p.add_argument("--validate", action="store_true", help="leave the test ratings out: split the others again")
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--factors", type=int, default=16)
    p.add_argument("--rows", type=int, default=1 << 18, help="of each table")
    p.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adagrad")
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--decay", type=float, default=0.15)
    p.add_argument("--scale", type=float, default=0.03, help="standard deviation of the tables' first values")
    a = p.parse_args()
    a.processes, a.lanes = a.processes or a.trainers, a.lanes or a.trainers
    if a.parts < 1:
        p.error(f"--parts {a.parts}: want at least 1")
    if a.trainers > 1 and a.server is None:
        p.error("--trainers: several processes need a --server; gradbus-ps is one")
    if a.processes == 1:
        guarded(a, True)
        return
    try:
        torch.multiprocessing.spawn(process, (a,), a.processes)
    except torch.multiprocessing.ProcessExitedException as error:
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
