"""A small model of gradbus's and the same in plain PyTorch, for tests of what happens around a step."""

from __future__ import annotations

import torch
from torch import nn

import gradbus


class Model(nn.Module):
    def __init__(self, plain=False):
        super().__init__()
        torch.manual_seed(3)
        self.users = nn.EmbeddingBag(20, 4, mode="sum") if plain else gradbus.EmbeddingBag(20, 4, mode="sum")
        self.last = nn.Linear(4, 2)

    def forward(self, ids):
        return self.last(self.users(ids))


def made(name, dense=True, **more):
    """A session, its model and optimizer, and the same in plain PyTorch with the same values."""
    session = gradbus.local(name, **more)
    model, sgd = Model(), gradbus.SGD(0.5)
    opt = gradbus.Optimizer(model, session, embeddings=sgd, dense=sgd if dense else None)
    plain = Model(plain=True)
    with torch.no_grad():
        plain.users.weight.copy_(session.lookup("users", torch.arange(20)))
        plain.last.load_state_dict(model.last.state_dict())
    return session, model, opt, plain, torch.optim.SGD(plain.parameters(), lr=0.5)


def loss_of(model, i, rows=4):
    g = torch.Generator().manual_seed(i)
    ids, labels = torch.randint(0, 20, (rows, 3), generator=g), torch.randint(0, 2, (rows,), generator=g)
    return nn.functional.cross_entropy(model(ids), labels)


def equal(session, model, plain, atol=0.0):
    pairs = [(session.lookup("users", torch.arange(20)), plain.users.weight)]
    pairs += list(zip(model.last.parameters(), plain.last.parameters()))
    for a, b in pairs:
        assert torch.allclose(a, b, rtol=0, atol=atol), (a - b).abs().max()
