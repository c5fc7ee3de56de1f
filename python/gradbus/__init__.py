"""Embeddings of any size in a PyTorch script.

    session = gradbus.local("movies")            # or gradbus.join("nats://host:4222", "movies", trainers=2)
    model = ...                                  # with gradbus.EmbeddingBag(2_000_000, 64, name="users") in it
    opt = gradbus.Optimizer(model, session, embeddings=gradbus.RowwiseAdagrad(0.05), dense=gradbus.Adam(1e-3))
    for batch, labels in loader:
        loss = criterion(model(batch), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()

docs/pytorch.md tells the rest.
"""

from __future__ import annotations

from ._native import native as _library
from .collection import EmbeddingBagCollection, KeyedTensor
from .ddp import hook
from .errors import (
    ArgumentError,
    CanceledError,
    ClosedError,
    ConfigError,
    Error,
    FileError,
    ForkedError,
    IdError,
    InternalError,
    JobError,
    OrderError,
    RewoundError,
    ServerError,
    VersionError,
)
from .ids import hash_id, hash_string
from .lane_loader import LaneInfo, LaneLoader, lane_info
from .lanes import LaneSampler
from .loader import PrefetchWarning, prefetch
from .modules import Embedding, EmbeddingBag
from .opening import join, local
from .optimizer import Optimizer
from .optimizers import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Normal,
    RowwiseAdagrad,
    StepSchedule,
    Uniform,
    Zeros,
)
from .plain import plain_state_dict
from .saving import SavedModel, open_model
from .session import Session

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "ArgumentError",
    "CanceledError",
    "Clip",
    "ClosedError",
    "ConfigError",
    "ConstantSchedule",
    "CosineSchedule",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Error",
    "FTRL",
    "FileError",
    "ForkedError",
    "IdError",
    "InternalError",
    "JobError",
    "KeyedTensor",
    "LaneInfo",
    "LaneLoader",
    "LaneSampler",
    "LinearSchedule",
    "Normal",
    "Optimizer",
    "OrderError",
    "PrefetchWarning",
    "RewoundError",
    "RowwiseAdagrad",
    "SGD",
    "SavedModel",
    "ServerError",
    "Session",
    "StepSchedule",
    "Uniform",
    "VersionError",
    "Zeros",
    "hash_id",
    "hash_string",
    "hook",
    "join",
    "lane_info",
    "local",
    "open_model",
    "plain_state_dict",
    "prefetch",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # of the library, which is opened for it
        return (_library().version() or b"").decode()
    raise AttributeError(f"module 'gradbus' has no attribute {name!r}")
