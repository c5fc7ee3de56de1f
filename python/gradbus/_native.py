"""The C library by ctypes: structures, prototypes, errors as exceptions, and waits that let Python look at its signals.

It knows capi/gradbus.h and nothing of PyTorch: memory is passed by address. ctypes releases the GIL in every call.

Every thread that waits does so at most :data:`PATIENCE_MS` at a time. Between two waits Python runs its signal
handlers. One that raises, such as Ctrl-C's, cancels the call, waits until the library no longer uses the call's memory,
and goes on upwards."""

from __future__ import annotations

import ctypes
import json
import pathlib
import threading
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from typing import Any, Callable, Dict, Optional, Tuple, Type, Union

from . import errors

PATIENCE_MS = 100

OK, AGAIN, ARGUMENT = 0, 1, 2

_EXCEPTIONS: Dict[int, Type[errors.Error]] = {
    2: errors.ArgumentError,
    3: errors.OrderError,
    4: errors.ConfigError,
    5: errors.ServerError,
    6: errors.JobError,
    7: errors.VersionError,
    8: errors.CanceledError,
    9: errors.ClosedError,
    10: errors.ForkedError,
    11: errors.FileError,
    12: errors.InternalError,
    13: errors.RewoundError,
}


class Batch(ctypes.Structure):
    """gradbus_batch."""

    _fields_ = [("number", c_uint64), ("first_lane", c_int32), ("lanes", c_int32)]


class Ask(ctypes.Structure):
    """gradbus_ask."""

    _fields_ = [
        ("table", c_int32),
        ("count", c_int64),
        ("keys", c_void_p),
        ("ids", c_void_p),
        ("unique", c_void_p),
        ("distinct", c_int64),
        ("rows", c_void_p),
        ("bags", c_int64),
        ("offsets", c_void_p),
    ]


class Rows(ctypes.Structure):
    """gradbus_rows."""

    _fields_ = [
        ("table", c_int32),
        ("count", c_int64),
        ("keys", c_void_p),
        ("grad", c_void_p),
        ("bags", c_int64),
        ("offsets", c_void_p),
    ]


class LaneStep(ctypes.Structure):
    """gradbus_lane_step."""

    _fields_ = [
        ("lane", c_int32),
        ("samples", c_int32),
        ("loss", c_double),
        ("rows", POINTER(Rows)),
        ("pieces", c_int32),
        ("dense", c_void_p),
    ]


class Tensor(ctypes.Structure):
    """gradbus_tensor."""

    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("shape", POINTER(c_int64)),
        ("dims", c_int32),
        ("values", c_void_p),
        ("bytes", c_int64),
    ]


_PROTOTYPES: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    "gradbus_error": (c_char_p, ()),
    "gradbus_version": (c_char_p, ()),
    "gradbus_patience": (None, (c_int32,)),
    "gradbus_resume": (c_int32, ()),
    "gradbus_cancel": (c_int32, (c_uint64, c_char_p)),
    "gradbus_local": (c_int32, (c_char_p, POINTER(c_uint64))),
    "gradbus_local_close": (c_int32, (c_uint64,)),
    "gradbus_join": (c_int32, (c_char_p, c_char_p, c_void_p, POINTER(c_uint64))),
    "gradbus_job": (c_int32, (c_uint64, POINTER(c_void_p))),
    "gradbus_free": (None, (c_void_p,)),
    "gradbus_begin": (c_int32, (c_uint64, POINTER(Batch))),
    "gradbus_dense": (c_int32, (c_uint64, c_void_p)),
    "gradbus_distinct": (c_int32, (c_uint64, c_void_p, c_int32)),
    "gradbus_lookup": (c_int32, (c_uint64, c_int64, c_void_p, c_int32)),
    "gradbus_bag_gradient": (
        c_int32,
        (c_void_p, c_int64, c_void_p, c_int64, c_int32, c_void_p, c_int64, c_void_p, c_int64),
    ),
    "gradbus_check_offsets": (c_int32, (c_void_p, c_int64, c_int64, c_int32)),
    "gradbus_coalesce": (c_int32, (c_uint64, c_void_p, c_int32, c_void_p, c_void_p, POINTER(c_int64))),
    "gradbus_commit": (c_int32, (c_uint64, c_void_p, c_int32)),
    "gradbus_settle": (c_int32, (c_uint64, POINTER(c_int32))),
    "gradbus_hand_over": (c_int32, (c_uint64,)),
    "gradbus_finish": (c_int32, (c_uint64,)),
    "gradbus_digest": (c_int32, (c_uint64, POINTER(c_uint8))),
    "gradbus_scale_lr": (c_int32, (c_uint64, c_uint64, c_float, POINTER(c_uint64))),
    "gradbus_checkpoint": (c_int32, (c_uint64, c_char_p, c_char_p, c_int64, POINTER(c_uint64))),
    "gradbus_program": (c_int32, (c_uint64, POINTER(c_void_p), POINTER(c_int64))),
    "gradbus_table": (c_int32, (c_uint64, c_int32, c_uint64, c_int64, c_void_p)),
    "gradbus_save": (c_int32, (c_uint64, c_char_p, c_void_p, c_int32, c_char_p)),
    "gradbus_stats": (c_int32, (c_uint64, POINTER(c_void_p))),
    "gradbus_leave": (c_int32, (c_uint64, c_char_p)),
    "gradbus_open": (c_int32, (c_char_p, POINTER(c_uint64))),
    "gradbus_model_job": (c_int32, (c_uint64, POINTER(c_void_p))),
    "gradbus_model_lookup": (c_int32, (c_uint64, c_void_p, c_int32)),
    "gradbus_model_param": (c_int32, (c_uint64, c_char_p, c_void_p)),
    "gradbus_model_close": (c_int32, (c_uint64,)),
}


def library_path() -> pathlib.Path:
    """Where libgradbus.so is: beside this package as installed, else in the build of a checkout.

    Errors: FileError naming both places.
    """
    here = pathlib.Path(__file__).resolve().parent
    places = [here / "libgradbus.so", here.parent.parent / "build" / "capi" / "libgradbus.so"]
    for place in places:
        if place.exists():
            return place
    raise errors.FileError(
        f"libgradbus.so is neither at {places[0]} nor at {places[1]}: install the wheel (make python), or build it "
        "(make capi)"
    )


def failure(error: BaseException) -> Optional[bytes]:
    """The reason that a job fails for where an exception ends a trainer's program; None where the program was told to
    end, or lost a process that loads its data: then the job has not failed."""
    if isinstance(error, KeyboardInterrupt) or errors.worker_died(error) or isinstance(error, SystemExit) and not error.code:
        return None
    return f"{type(error).__name__}: {error}".encode("utf-8", "replace")


class Native:
    """The library, opened. All calls but :meth:`wait` and :meth:`check` are the C functions themselves, by
    attribute."""

    def __init__(self, path: pathlib.Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise errors.FileError(f"{path} cannot be loaded: {error}") from None
        for name, (result, arguments) in _PROTOTYPES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise errors.FileError(f"{path} has no {name}: want the library of this package's version") from None
            function.restype, function.argtypes = result, list(arguments)
            setattr(self, name[len("gradbus_") :], function)
        self._threads = _Patient(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:  # for type checkers: __init__ sets those of _PROTOTYPES
        raise AttributeError(name)

    def raise_error(self, code: int) -> None:
        """Raises the exception of a code, with the text of this thread's last call."""
        text = self.error() or b""
        raise _EXCEPTIONS.get(code, errors.InternalError)(text.decode("utf-8", "replace") or f"code {code}")

    def check(self, code: int) -> None:
        """Raises what a call that does not wait has given, unless it is OK."""
        if code:
            self.raise_error(code)

    def wait(self, handle: Union[int, c_uint64], function: Callable[..., int], *arguments: Any) -> None:
        """Makes a call that may wait, and returns when it is over. Raises what it gives in the end, unless that is OK.

        ``handle``: what to cancel where a signal handler raises, 0 for a call that cannot be canceled; that of a join is
        written by the join itself. However the handler comes in, no call is left under way."""
        self._threads.known  # noqa: B018  the first access of a thread runs _Patient.__init__
        try:
            code = function(*arguments)
            while code == AGAIN:
                code = self.resume()
        except ctypes.ArgumentError:
            raise
        except BaseException as error:
            self._end(handle, failure(error))
            raise
        if code:
            self.raise_error(code)

    def _end(self, handle: Union[int, c_uint64], reason: Optional[bytes]) -> None:
        """Cancels this thread's call, and returns when it is over. What signal handlers raise meanwhile waits for that.

        It makes no difference where no call is left."""
        later: Optional[BaseException] = None
        over = False
        while not over:
            try:
                if handle:
                    self.cancel(handle, reason)
                while self.resume() == AGAIN:  # an error where no call was left
                    pass
                over = True
            except BaseException as error:
                later = error
        if later is not None:
            raise later

    def text(self, function: Callable[..., int], handle: int) -> Any:
        """The JSON that a call gives in memory of the library."""
        out = c_void_p()
        self.check(function(handle, ctypes.byref(out)))
        try:
            return json.loads(ctypes.string_at(out.value or 0).decode())
        finally:
            self.free(out)

    def program_of(self, handle: int) -> Optional[bytes]:
        """The program's part of the version at which a session was resumed; None: there is none."""
        out, size = c_void_p(), c_int64()
        self.check(self.program(handle, ctypes.byref(out), ctypes.byref(size)))
        if not out.value:
            return None
        try:
            return ctypes.string_at(out.value, size.value)
        finally:
            self.free(out)


class _Patient(threading.local):
    """Has one state a thread, made at the thread's first access."""

    def __init__(self, native: Native) -> None:
        native.patience(PATIENCE_MS)
        self.known = True


_lock = threading.Lock()
_native: Optional[Native] = None


def native() -> Native:
    """The library, opened at the first use.

    Errors: FileError where it is not there.
    """
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                _native = Native(library_path())
    return _native
