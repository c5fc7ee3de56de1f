"""How sessions are made: in this process, or of a job at a server."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Dict, NoReturn, Optional, Union

from .checks import folder_named, whole
from .errors import ConfigError
from .saving import open_start
from .session import Every, Session

# The new names of arguments by the old ones, which are refused until 1.0.
_RENAMED = {"back_within": "reconnect_timeout"}


def local(
    name: str,
    shards: int = 1,
    lanes: Optional[int] = None,
    seed: int = 1,
    manifest: Optional[Mapping[str, Any]] = None,
    start: Union[None, str, os.PathLike[str]] = None,
    memory_mib: Optional[int] = None,
    checkpoint_dir: Union[None, str, os.PathLike[str]] = None,
    checkpoint_every: Union[None, str, int] = None,
    checkpoint_keep: int = 2,
) -> Session:
    """A session of a job within this process, without a server.

    ``shards``: parts of the servers' side; the weights do not depend on it. ``lanes``: see :class:`Session`, 1 by
    default. ``seed`` draws the rows of tables. ``manifest``: further fields of the job's manifest. ``start``: a file of
    :meth:`Session.save`, or a safetensors file of a plain model's ``state_dict()``, with whose values tables, parameters
    and buffers begin; optimizers begin anew. ``memory_mib``: MiB that the job may hold, beside the model; three quarters
    of the machine's memory by default. ``checkpoint_dir``: the folder of :meth:`Session.checkpoint` and
    :meth:`Session.resume`; ``checkpoint_every``: "30s", "10m", "2h" or a number of batches, after which a version is
    written between two batches, without a call; ``checkpoint_keep``: how many stay. Errors: ConfigError; FileError."""
    shards = whole(f"session {name!r}: shards", shards, 1)
    session = Session(name, {}, 1, lanes, seed, manifest, open_start(start))
    session._folder = None if checkpoint_dir is None else folder_named(checkpoint_dir)
    lib = session.native
    handle = ctypes.c_uint64()
    options: Dict[str, Any] = {"shards": shards}
    if memory_mib is not None:
        options["memory_mib"] = whole(f"session {name!r}: memory_mib", memory_mib, 1, 2**30)
    if checkpoint_dir is not None:
        options["checkpoint_dir"] = session._folder
        options["checkpoint_keep"] = whole(f"session {name!r}: checkpoint_keep", checkpoint_keep, 2, 1000)
        if checkpoint_every is not None:
            session._every = _every(f"session {name!r}: checkpoint_every", checkpoint_every)
    elif checkpoint_every is not None:
        raise ConfigError(f"session {name!r}: checkpoint_every {checkpoint_every!r}: want checkpoint_dir with it")
    lib.wait(0, lib.local, json.dumps(options).encode(), ctypes.byref(handle))
    session._config["local"] = session._shards = handle.value
    return session


_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _every(what: str, value: Union[str, int]) -> Every:
    """Of a time or a number of batches. Errors: ConfigError."""
    if not isinstance(value, str):
        return Every(whole(what, value, 1), 0)
    time = re.fullmatch(r"([1-9][0-9]{0,5})([smh])", value)
    if time is None:
        raise ConfigError(f'{what} {value!r}: want a time, as "10m", or a number of batches, as 500')
    return Every(0, int(time[1]) * _SECONDS[time[2]])


def join(
    server: str,
    name: str,
    trainers: int = 1,
    lanes: Optional[int] = None,
    token_file: Optional[str] = None,
    id: Optional[str] = None,
    tls_ca: Optional[str] = None,
    seed: int = 1,
    manifest: Optional[Mapping[str, Any]] = None,
    start: Union[None, str, os.PathLike[str]] = None,
    reconnect_timeout: Optional[float] = None,
    **unknown: NoReturn,
) -> Session:
    """A session of a job at a ``ps``: "nats://host:4222". It is joined when it is first needed, see :class:`Session`.

    ``trainers``: how many processes train the job, each of which runs the same script. ``lanes``: see :class:`Session`,
    as many as trainers by default. ``token_file``: the file with the server's token. ``id``: which trainer this is,
    "t0", "t1", ..., and with that which lanes it has; the next free one by default. ``tls_ca``: the certificate of who
    signed the server's. ``seed``, ``manifest``, ``start``: as of :func:`local`, equal in all trainers.
    ``reconnect_timeout``: seconds that a lost server may take to come back, 30 by default; then the session ends with a
    ServerError."""
    for word in unknown:
        if word in _RENAMED:
            raise ConfigError(f"session {name!r}: {word} is called {_RENAMED[word]} now")
        if word in ("checkpoint_dir", "checkpoint_every", "checkpoint_keep"):
            flag = "--" + word.replace("_", "-")
            raise ConfigError(f"session {name!r}: {word}: trainers write no checkpoints: give {flag} to ps")
        raise TypeError(f"join() got an unexpected keyword argument {word!r}")
    if not isinstance(server, str) or not re.match(r"(nats|tls)://.", server):
        raise ConfigError(f"session {name!r}: server {server!r}: want an address such as nats://127.0.0.1:4222")
    begins = open_start(start)
    config: Dict[str, Any] = {"server": server}
    if reconnect_timeout is not None:
        config["reconnect_timeout"] = float(reconnect_timeout)
    for key, value in (
        ("token_file", token_file),
        ("id", id),
        ("tls_ca", tls_ca),
    ):
        if value is not None:
            config[key] = os.fspath(value)
            if not config[key]:
                raise ConfigError(f"session {name!r}: {key} {value!r}: want text, or None for the default")
    return Session(name, config, trainers, lanes, seed, manifest, begins)
