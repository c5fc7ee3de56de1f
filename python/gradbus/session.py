"""A session: the place of this process in a job. It joins, begins batches, gathers what lanes give, commits, and reads
what was trained."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Dict, Optional, Type, Union

import torch
from torch import Tensor

from . import _native, ending, logs, plain
from .batches import Batches
from .checks import folder_named, named, tensor_named, whole
from .errors import ArgumentError, ClosedError, ConfigError, Error, ForkedError, JobError, OrderError
from .joining import say_policy, waiting
from .lane import Lane
from .optimizers import Init, Normal, Spec
from .program import Program
from .saving import Start
from .table import Table

if TYPE_CHECKING:
    from .ddp import Mean
    from .modules import TableModule
    from .optimizer import Optimizer

_LANES_MAX = 4096

_log = logging.getLogger("gradbus")


class Every:
    """How often a local session writes versions: each so many batches, or seconds."""

    def __init__(self, batches: int, seconds: float) -> None:
        self._batches, self._seconds = batches, seconds
        self._version, self._at = 0, time.monotonic()  # of the last one
        self.moved: Optional[Dict[str, Any]] = None  # of a version that is due: Program.moves_on

    def due(self, version: int) -> bool:
        if self._batches:
            return version >= self._version + self._batches
        return time.monotonic() >= self._at + self._seconds

    def wrote(self, version: int) -> None:
        self._version, self._at, self.moved = version, time.monotonic(), None


class Session:
    """The place of this process in a job; made by :func:`local` or :func:`join`.

    Modules register their tables with it, and an :class:`~gradbus.Optimizer` what moves them. It joins the job at the
    first need: a forward, ``lanes``, ``digest()``, or ``start()``. Then tables and optimizers are fixed. Batches begin
    by themselves: a batch is the lanes of all trainers, a lane is a forward, a backward and a ``step`` of the
    optimizer, and the last lane of this trainer commits the batch. With ``lanes`` left out each trainer has one lane,
    so a batch is one step of each, which is plain data parallelism.

    As a context manager it closes at the end, and tells the other trainers where that is by an exception. A session
    that nobody has closed is closed when the interpreter ends. Training forwards and steps belong to one thread at a
    time; ``lookup`` and forwards in ``eval()`` may come from any."""

    def __init__(
        self,
        name: str,
        config: Dict[str, Any],
        trainers: int,
        lanes: Optional[int],
        seed: int,
        manifest: Optional[Mapping[str, Any]],
        start: Optional[Start],
    ) -> None:
        self._closed = True  # until it is whole
        what = f"session {name!r}:"
        self.name = named("job", name, "[a-z0-9-]{1,63}", "1 to 63 of a-z, 0-9 and -")
        if "--" in name:
            raise ConfigError(f"job {name!r}: names with -- are those that gradbus derives from others: want another one")
        trainers = whole(f"{what} trainers", trainers, 1, _LANES_MAX)
        lanes = trainers if lanes is None else whole(f"{what} lanes", lanes, 1, _LANES_MAX)
        seed = whole(f"{what} seed", seed, 0)
        try:
            own = json.loads(json.dumps(dict(manifest or {}), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what} manifest {manifest!r:.80}: want a mapping of what JSON has: {error}") from None
        self.native = _native.native()
        self.handle = 0  # of the library, 0 before it has joined
        self._config, self._shards, self._closed = config, 0, False
        self._manifest: Dict[str, Any] = {"name": name, "trainers": trainers, "lanes": lanes, "seed": seed}
        self._manifest.update(own)
        self._tables: Dict[str, Table] = {}
        self._rows: Dict[str, Tensor] = {}  # of tables, to begin with
        self._rows_file: Optional[IO[bytes]] = None  # the same, when it has joined
        self._optimizer: Optional[Optimizer] = None
        self._job: Dict[str, Any] = {}
        self._lock = threading.RLock()
        self._batches = Batches(self)
        self._start = start
        self._folder: Optional[str] = None  # of a local session's checkpoints
        self._program = Program(self)
        self._every: Optional[Every] = None  # a local session's versions that are written without a call
        self._joining: Union[int, ctypes.c_uint64] = 0  # the handle, from the beginning of the join on
        self._mean: Optional[Mean] = None  # of gradbus.hook
        self._process = os.getpid()
        ending.opened.add(self)

    # Before it has joined.

    def table(
        self,
        name: str,
        rows: int,
        dim: int,
        init: Optional[Init] = None,
        optimizer: Optional[Spec] = None,
        pooling: Optional[str] = None,
        padding: Optional[int] = None,
    ) -> Table:
        """Registers a table; of a name that is there already it gives that one. ``pooling``: "sum" or "mean" where
        servers pool its bags. ``padding``: a row of zeros. Errors: ConfigError where the two differ; OrderError where
        the session has joined."""
        tensor_named("table", name)
        table = Table(name, rows, dim, init if init is not None else Normal(), optimizer, pooling, padding)
        with self._lock:
            known = self._tables.get(name)
            if known is not None:
                if table.manifest() != known.manifest():
                    raise ConfigError(
                        f"table {name!r}: {table.manifest()}: the session has it as {known.manifest()}; want the "
                        "same, or another name"
                    )
                return known
            if self.handle:
                raise OrderError(
                    f"table {name!r}: session {self.name!r} has joined its job: want all modules to be made before "
                    "the first forward"
                )
            table.index = len(self._tables)
            self._tables[name] = table
        return table

    def begin_with(self, table: Table, weight: Any) -> None:
        """For modules: the rows with which a table begins, in place of those that init draws; a copy is kept until the
        session has joined. Errors: ConfigError where it has joined, or begins with a file."""
        if self.handle or self._start is not None:
            why = "has joined its job" if self.handle else "begins with the rows of its start"
            raise ConfigError(
                f"table {table.name!r}: the state brings rows, and session {self.name!r} {why}: want load_state_dict "
                "before the first forward, of a session without start"
            )
        self._rows[table.name] = plain.rows_of(table.name, table.rows, table.dim, weight)

    def start(self) -> Session:
        """Joins the job, where that has not happened: with the tables and the optimizer that are known now.

        It waits until all trainers are there. Errors: OrderError without an optimizer; ConfigError; ServerError;
        JobError where another trainer's manifest or first dense values differ."""
        if not self.handle:
            with self._lock:
                if not self.handle:
                    self._join()
        return self

    def resume(self, folder: Union[None, str, os.PathLike[str]] = None) -> int:
        """Joins the job as :meth:`start` does, at its newest durable version in place of the first one, and gives how many
        batches that has had. All trainers of the job resume, or none. ``folder``: of a local session, where that version
        is; of :func:`join` it is the folder of the ``ps``. It does not matter which of both has written it.

        Rows, dense parameters that servers train and what optimizers keep are those of the version; parameters have
        their values when it returns, and groups of the optimizer their rates. :attr:`next_batch` and a
        :class:`~gradbus.LaneSampler` go on from there. Trainers and shards may be others than before. Tables,
        optimizers with their first rates, lanes and seed are those of before; the values that the model was made with
        may be others, equal in all trainers. What the script trains by itself (``dense=None``) it loads by itself.

        Errors: OrderError where the session has joined; ConfigError; FileError where the folder cannot be used; JobError
        where there is no durable version, naming the folder, or it is of another job, naming the field: the session may
        then :meth:`start`."""
        with self._lock:
            self._check_open()
            if self.handle:
                raise OrderError(
                    f"session {self.name!r} has joined its job: want resume() before the first forward, and before lanes "
                    "and start()"
                )
            path, config = self._folder_of("resume", folder), self._config
            self._config = {**config, "resume": True}
            if path is not None:
                self._config["checkpoint_dir"] = path
            try:
                self._join()
                done = self._go_on()
            finally:
                self._config = config
            if self._every is not None:
                self._every.wrote(done)
            self._program.take(self.native.program_of(self.handle) if "server" not in config else None)
            return done

    def checkpoint(self, folder: Union[None, str, os.PathLike[str]] = None) -> int:
        """Makes the version of now durable, and gives how many batches it has had: :meth:`resume` goes on there, with
        rows, dense parameters that servers train and what optimizers keep; of a local session also with buffers, what was
        registered, the groups' rates and the generators of random numbers. It is called between batches, and waits until
        the files are on the disk. A version that is durable stays as it is. Of several trainers one may call it, or all
        at the same batch. 0: it was not written, as lanes of a lost trainer come first, which the log says.

        ``folder``: where a local session writes, which has one folder: that of its first checkpoint or resume, or
        ``checkpoint_dir``. It keeps two versions, or ``checkpoint_keep``. A session of :func:`join` names none: the
        ``ps`` writes to its own.

        Errors: OrderError within a batch and before the first; ConfigError; FileError where the folder cannot be used;
        JobError where the version cannot be written, with the reason: the session continues."""
        path = self._folder_of("checkpoint", folder)
        self.start()
        with self._lock:
            self._batches.settle_for_reading()
            if self._batches.is_incomplete():
                text = "job %r: no checkpoint of batch %d, of which lanes of a lost trainer are computed first"
                _log.warning(text, self.name, self._batches.number)
                return 0
            if self._batches.is_open():
                raise OrderError(
                    f"checkpoint of session {self.name!r} within batch {self._batches.number}: want it between batches, "
                    "behind the opt.step() of the last lane"
                )
            return self._write(path, self._program.part() if "server" not in self._config else None)

    def _write(self, path: Optional[str], part: Optional[bytes]) -> int:
        """Makes a version durable, with a part of the program."""
        version = ctypes.c_uint64()
        arguments = None if path is None else os.fsencode(path), part, len(part or b""), ctypes.byref(version)
        self._batches.read(self.native.checkpoint, self.handle, *arguments)
        if self._every is not None:
            self._every.wrote(version.value)
        return version.value

    def note_due(self) -> None:
        """For batches: one was committed. Where a version is due, what the loading of the next batch changes is kept."""
        if self._every is not None and self._every.due(self._batches.number):
            self._every.moved = self._program.moves_on()

    def write_due(self) -> None:
        """For batches: before one begins, writes the version that is due. Training goes on where that fails."""
        if self._every is None or self._every.moved is None:
            return
        try:
            self._write(None, self._program.part(self._every.moved))
        except JobError as error:
            self._every.wrote(self._batches.number)
            _log.warning("job %r: version %d is not written: %s", self.name, self._batches.number, error)

    def register(self, **objects: Any) -> None:
        """Adds objects with ``state_dict`` and ``load_state_dict`` to the checkpoints of a local session, by names:
        ``register(scheduler=scheduler)``. :meth:`resume` gives them their states, or this call does behind it. Their
        states are numbers, text, tensors, lists and mappings; together with buffers they have at most 64 MiB.

        Errors: ConfigError."""
        self._program.register(objects)
        if "server" in self._config:
            text = "job %r: the checkpoints of a ps have nothing of the script, so not of %s: want it saved by the script"
            _log.warning(text, self.name, sorted(objects))

    def _folder_of(self, call: str, folder: Union[None, str, os.PathLike[str]]) -> Optional[str]:
        """The folder that a call names; None: the one that is in use, or the server's. Errors: ConfigError."""
        if "server" not in self._config:
            self._folder = self._folder if folder is None else folder_named(folder)
            if self._folder is None:
                raise ConfigError(f"session {self.name!r} has no folder of checkpoints: want {call}(FOLDER)")
            return self._folder
        if folder is not None:
            raise ConfigError(
                f"{call}({folder!r}) of session {self.name!r}: trainers write no checkpoints: give --checkpoint-dir to "
                f"ps, and want {call}()"
            )
        return None

    def _join(self) -> None:
        self._check_open()
        if self._optimizer is None:
            raise OrderError(
                f"session {self.name!r} has no optimizer: want gradbus.Optimizer(model, session, ...) before the "
                "first forward"
            )
        manifest = dict(self._manifest)
        manifest.update(self._optimizer.manifest(list(self._tables.values())))
        from . import modelstate

        path = modelstate.file_to_begin_with(self, self._start)
        if path is not None or not self._rows:
            self._join_as(manifest, None if path else self._optimizer.start_values(), path)
            return
        self._optimizer.start_values()  # which notes that parameters are as they are
        file = self._rows_file = plain.write(self, manifest, self._optimizer.dense_values(), self._rows)
        try:
            self._join_as(manifest, None, f"/proc/self/fd/{file.fileno()}")
        finally:
            if not self.recovers:  # and may begin anew
                file.close()
        self._rows.clear()

    def _join_as(self, manifest: Dict[str, Any], dense: Any = None, start: Optional[str] = None) -> None:
        """Joins with a manifest, first dense values, and in place of these with a file."""
        config = self._config if start is None else {**self._config, "from": start}
        if "server" in config and not self._leaves_parameters():
            config = {**config, "elastic": True if self._batches.driven else "registered"}
        handle = self._joining = ctypes.c_uint64()
        lib = self.native
        with waiting(self.name, config.get("server", "local"), manifest["trainers"]), logs.relayed() as path:
            texts = json.dumps({**config, "log": path}).encode(), json.dumps(manifest).encode()
            lib.wait(handle, lib.join, *texts, dense, ctypes.byref(handle))
        self.handle = handle.value
        self._job = lib.text(lib.job, self.handle)
        if "server" in config:
            say_policy(self.name, self._job, "policy" in self._manifest, self._unrecovered())
        joined = int(self._job["version"])
        if self._job["elastic"] and joined and not config.get("resume"):  # the slot of another trainer, which was lost
            self._go_on()

    def _go_on(self) -> int:
        """Goes on from the version at which the session has joined, and gives how many batches that has had."""
        self._batches.resumed()
        return self._batches.number

    def _unrecovered(self) -> Optional[str]:
        """What the script has to change for a job that recovers; None for nothing."""
        wants = []
        if not self._batches.driven:
            wants.append("data that are indexed by (batch, lane), gradbus.LaneLoader(...)")
        if self._leaves_parameters():
            wants.append("dense parameters that servers train, gradbus.Optimizer(..., dense=gradbus.Adam(1e-3))")
        return ", and ".join(wants) or None

    def _leaves_parameters(self) -> bool:
        """Whether the script trains dense parameters by itself."""
        return self._optimizer is not None and self._optimizer.leaves_parameters()

    def drive(self) -> None:
        """For a LaneLoader: batches are what that says. Errors: OrderError where a batch has begun without."""
        if self._batches.driven:
            return
        if self._batches.is_open() or self._batches.number > int(self._job.get("version", 0)):
            raise OrderError(f"session {self.name!r} has begun its batches: want LaneLoader(...) before the first forward")
        self._batches.driven = True
        if self.handle and "server" in self._config and not self._job["elastic"]:
            _log.warning(
                "job %r: joined before its LaneLoader was made, so a lost trainer or ps ends it; to recover it wants "
                "LaneLoader(...) before resume(), lanes and start()",
                self.name,
            )

    # What it is.

    @property
    def job(self) -> Dict[str, Any]:
        """The manifest, with all defaults. Joins."""
        self.start()
        manifest: Dict[str, Any] = self._job["job"]
        return manifest

    @property
    def member(self) -> str:
        """What this trainer is called in the job: "t0", "t1", ... Joins."""
        self.start()
        return str(self._job["member"])

    @property
    def lanes(self) -> range:
        """The lanes that this trainer hosts. Joins."""
        self.start()
        first = int(self._job["first_lane"])
        return range(first, first + int(self._job["lanes"]))

    @property
    def lane_count(self) -> int:
        """How many lanes this trainer hosts. Joins only where trainers have some of several each."""
        trainers, total = int(self._manifest["trainers"]), self.lanes_total
        return total // trainers if trainers in (1, total) else len(self.lanes)

    @property
    def lanes_total(self) -> int:
        """The lanes of a batch, over all trainers."""
        return int(self._manifest["lanes"])

    @property
    def lane(self) -> int:
        """The lane that the next ``step`` ends. Joins."""
        return self._batches.lane()

    @property
    def batch(self) -> int:
        """The number of the batch under way, or of the next one, from 0."""
        return self._batches.number

    @property
    def next_batch(self) -> int:
        """The first batch of which no lane has ended."""
        return self._batches.untouched()

    @property
    def stats(self) -> Dict[str, Any]:
        """Counters and times of the session, as the library keeps them. Joins."""
        self.start()
        out: Dict[str, Any] = self.native.text(self.native.stats, self.handle)
        return out

    # Between lanes.

    def begin_forward(self) -> Lane:
        """For modules: the lane to which a training forward belongs; joins and begins a batch where there is none."""
        return self._batches.begin_forward()

    def begin_reading(self) -> None:
        """For modules: before a lookup that trains nothing. Between batches, what was committed is complete afterwards;
        within one, the lookup itself waits for what it reads."""
        if not self.handle:
            self.start()
        self._batches.settle_for_reading()

    def look_up(self, lane: Optional[Lane], function: Any, *arguments: Any) -> bool:
        """For modules: makes a lookup of a lane's forward, or of one that trains nothing. False: nothing was written, and
        the lane counts for nothing."""
        return self._batches.look_up(lane, function, *arguments)

    def skip(self) -> None:
        """Ends the lane without a contribution, as if it had no samples: the batch is divided by the others."""
        self._batches.end(0, 0.0, None)

    def lookup(self, table: Union[str, Table, TableModule], ids: Tensor) -> Tensor:
        """Rows of ids at the newest version; of the batch under way, where one is. float32 ``[*ids.shape, dim]``; trains
        nothing. Ids are those that the table's module takes, which hashes them or not; where modules differ, want the
        module as ``table``. Errors: ArgumentError; IdError that names table, place and id."""
        from .lookups import rows_of_ids

        return rows_of_ids(self, table, ids)

    def _registered(self, table: Union[str, Table]) -> Table:
        """Its table of a name, or of a module. Errors: ArgumentError, also of a table that another session has."""
        if isinstance(table, str):
            found, wrong = self._tables.get(table), f"no table {table!r}"
        elif isinstance(table, Table):
            found, wrong = self._tables.get(table.name), f"{table!r} is not of {self!r}"
            found = found if found is table else None  # the numbers of tables are a session's own
        else:
            found, wrong = None, f"{type(table).__name__} is no table"
        if found is None:
            raise ArgumentError(f"{wrong}: want one of {sorted(self._tables)}")
        return found

    def read_table(self, table: Union[str, Table]) -> Tensor:
        """All rows of a table at the newest version: float32 ``[rows, dim]``. Errors: ArgumentError."""
        found = self._registered(table)
        self.begin_reading()
        rows = torch.empty(found.rows, found.dim, dtype=torch.float32, device="cpu")
        with self._lock:
            lib, handle = self.native, self.handle
            self._batches.read(lib.table, handle, found.index, 0, found.rows, rows.data_ptr())
        return rows

    def scale_lr(self, scale: float, from_batch: int = 0) -> int:
        """Multiplies all rates of the manifest by ``scale``, from a batch on that all trainers agree on, and gives that
        batch.

        ``from_batch`` 0 asks for one soon. ``scale`` is absolute: asked for again, or by another trainer, it changes
        nothing more. Errors: JobError where a trainer has begun ``from_batch``."""
        self.start()
        decided = ctypes.c_uint64()
        with self._lock:
            lib, handle = self.native, self.handle
            lib.wait(handle, lib.scale_lr, handle, from_batch, scale, ctypes.byref(decided))
        return decided.value

    def digest(self) -> str:
        """The SHA-256 over all weights at the newest version, 64 hexadecimal digits: equal for any number of trainers
        and shards."""
        self.begin_reading()
        digest = (ctypes.c_uint8 * 32)()
        with self._lock:
            self._batches.read(self.native.digest, self.handle, digest)
        return bytes(digest).hex()

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the model to a safetensors file, streamed: all weights, with manifest, version and digest, and the
        buffers and parameters that servers do not train, as they are in this process. Errors: FileError;
        ArgumentError."""
        if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsencode(path):
            raise ArgumentError(f"save: path {path!r}: want the name of a file")
        from . import modelstate

        self.begin_reading()
        modelstate.save(self, os.fsencode(path))

    # The end.

    def close(self) -> None:
        """Waits until what was committed is complete, and leaves the job. Closing again does nothing."""
        self._leave(None)

    def abort(self, reason: str) -> None:
        """Leaves the job by an error, which the other trainers are told. What another thread waits for in this session
        ends with a CanceledError. Closing again does nothing."""
        if self._closed or os.getpid() != self._process:
            return
        reason, pause = reason or "aborted", 0.0
        while not self._lock.acquire(timeout=pause):
            # Once more each time: that thread may not have got to its wait yet.
            self.native.cancel(self._joining, reason.encode())
            pause = 0.05
        try:
            self._leave(reason)
        finally:
            self._lock.release()

    def hand_over(self) -> None:
        """Leaves the job in the middle of the training: the other trainers compute the lanes of this one from now on, or a
        new one that joins. It is what Ctrl-C does. Closing afterwards does nothing.

        Errors: OrderError where the job does not recover, see :class:`~gradbus.LaneLoader`."""
        if self._closed or os.getpid() != self._process:
            return
        if not self.recovers:
            want = self._unrecovered() or "close()"
            raise OrderError(
                f"session {self.name!r} cannot hand its lanes over, since its job does not recover: want {want}"
            )
        self._leave(None, hand_over=True)

    @property
    def recovers(self) -> bool:
        """Whether the job goes on when a trainer or a ``ps`` is lost. False before it has joined."""
        return bool(self.handle) and "server" in self._config and self._job["job"]["policy"] != "fail"

    def _leave(self, reason: Optional[str], hand_over: bool = False) -> None:
        if self._closed or os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            lib, handle = self.native, self._joining  # which a signal handler may have left joined without its handle
            try:
                if self.handle and reason is None and not hand_over and not self._batches.failed:
                    hand_over = self._batches.leave()
            finally:
                self._closed = True
                ending.opened.discard(self)
                try:
                    if self._rows_file is not None:
                        self._rows_file.close()
                    if self._mean is not None:
                        self._mean.leave(reason)
                    if handle and hand_over:
                        lib.wait(0, lib.hand_over, handle)
                    elif handle:
                        lib.wait(0, lib.leave, handle, None if reason is None else reason.encode())
                except ClosedError:
                    pass  # it had ended by an error, which was raised then, or has never joined
                finally:
                    if self._shards:
                        lib.check(lib.local_close(self._shards))

    def _check_open(self) -> None:
        """Errors: ClosedError; ForkedError, before a lock is taken that a thread of the parent may have held."""
        if os.getpid() != self._process:
            raise ForkedError(
                f"session {self.name!r} is of the process that this one was forked from: want a spawned process with a "
                "session of its own, or ids alone in workers of a DataLoader"
            )
        if self._closed:
            raise ClosedError(f"session {self.name!r} is closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        try:
            ending.end_by(self, error)
        except Error:
            pass  # the first error is the one to see

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._process or not (self._shards or self._joining):
            return
        warnings.warn(f"session {self.name!r} was never closed: want session.close()", ResourceWarning, source=self)
        arguments = (self.native, self._joining, self._shards)
        threading.Thread(target=ending.forget, args=arguments, name="gradbus.forget", daemon=True).start()

    def __deepcopy__(self, memo: Any) -> Any:
        raise OrderError(
            f"session {self.name!r} cannot be copied, nor can a model of it: rows have one place, the session's servers; "
            "want session.save(path) and gradbus.open_model(path).load_into(plain_model) for a copy of the values, and "
            "plain tables for an average over time (AveragedModel)"
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            f"session {self.name!r} cannot be pickled, nor can a model of it: another process makes its own; to keep a "
            "model, want torch.save(model.state_dict()) and session.save(path)"
        )

    def __repr__(self) -> str:
        return f"gradbus session {self.name!r}"
