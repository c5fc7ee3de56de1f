"""A trainer of the tests: lanes_program.py SERVER TRAINERS LANES. It trains a small model by lanes, and prints the
digest and a loss.

SERVER "local" is a job within this process. Data, model and arithmetic are deterministic on one thread.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradbus

SAMPLES, ROWS, BATCH = 200, 500, 40


class Model(nn.Module):
    def __init__(self, seed: int, pool: str) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.bottom, self.top = nn.Linear(2, 8), nn.Linear(24, 1)
        users = gradbus.EmbeddingBag(ROWS, 8, mode="mean", pool=pool)
        items = gradbus.EmbeddingBag(10**5, 8, mode="mean", hashed=True, init=gradbus.Uniform(0.1), pool=pool)
        self.users, self.items = users, items
        self.emb = gradbus.EmbeddingBagCollection({"users": users, "items": items}) if pool == "client" else None

    def forward(self, dense: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        if self.emb is not None:
            bags = self.emb({"users": users, "items": items}).values()
        else:
            bags = torch.cat([self.users(users), self.items(items)], 1)
        out: torch.Tensor = self.top(torch.cat([self.bottom(dense).tanh(), bags], 1))
        return out.squeeze(1)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(9)
    users = torch.randint(0, ROWS, (SAMPLES, 3), generator=generator)
    items = torch.randint(-(2**60), 2**60, (SAMPLES, 1), generator=generator)
    dense = torch.randn(SAMPLES, 2, generator=generator)
    return TensorDataset(dense, users, items, users[:, 0].remainder(2).float())


def main(server: str, trainers: int, lanes: int, shards: int, seed: int, pool: str) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if server == "local":
        session = gradbus.local("lanes", lanes=lanes, shards=shards)
    else:
        session = gradbus.join(server, "lanes", trainers=trainers, lanes=lanes)
    with session:
        model, samples = Model(seed, pool), data()
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-2))
        loader = DataLoader(samples, batch_sampler=gradbus.LaneSampler(samples, session, BATCH))
        for _ in range(2):
            for dense, users, items, labels in loader:
                loss = nn.functional.binary_cross_entropy_with_logits(model(dense, users, items), labels)
                opt.zero_grad()
                loss.backward()
                opt.step()
        model.eval()
        logits = model(*samples.tensors[:3])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, samples.tensors[3])
        print(session.digest(), session.batch, loss.item(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("trainers", type=int)
    parser.add_argument("lanes", type=int)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", default="client")
    main(**vars(parser.parse_args()))
