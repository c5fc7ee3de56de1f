"""How sessions end that their program has not closed."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import weakref
from typing import TYPE_CHECKING, Optional, Union

from . import _native
from .errors import Error, worker_died

if TYPE_CHECKING:
    from .session import Session

_WITHIN = 1.0  # seconds that the end of the interpreter waits for another thread's call

opened: weakref.WeakSet[Session] = weakref.WeakSet()


def forget(lib: _native.Native, handle: Union[int, ctypes.c_uint64], shards: int) -> None:
    """Leaves the job of a session that nobody refers to any more. There is nobody to tell of an error."""
    with contextlib.suppress(Error):
        lib.wait(0, lib.leave, handle, b"its program forgot the session, and did not close it")
    if shards:
        with contextlib.suppress(Error):
            lib.wait(0, lib.local_close, shards)


def end_by(session: Session, error: BaseException) -> None:
    """Leaves the job of a session for an exception that ends the program: others hear of it. Ctrl-C and the loss of a
    DataLoader's worker hand over, where that can be; else Ctrl-C stops the job, which has not failed then."""
    interrupted = isinstance(error, KeyboardInterrupt)
    if session.recovers and (interrupted or worker_died(error)):
        session.hand_over()
        return
    if interrupted and session._process == os.getpid():
        for handle in (session.handle, session._mean.handle if session._mean is not None else 0):
            if handle:
                session.native.cancel(handle, None)
    session.abort(f"{type(error).__name__}: {error}")


def _close() -> None:
    """At the end of the interpreter: closes what is open, by an error where the script ends by one, in the middle of a
    batch for which other trainers wait, or while another thread of it waits for the job."""
    last: Optional[BaseException] = getattr(sys, "last_value", None)
    for session in list(opened):
        try:
            if last is not None:
                end_by(session, last)
            elif session._process == os.getpid() and session._lock.acquire(timeout=_WITHIN):
                session._lock.release()
                if session.recovers:
                    session.close()
                elif session._batches.is_open() and session.lane_count < session.lanes_total:
                    session.abort("the interpreter ends in the middle of a batch")
                else:
                    session.close()
            else:
                session.abort("the interpreter ends while another of its threads waits for the job")
        except Error as error:
            print(f"gradbus: session {session.name!r}: {error}", file=sys.stderr)


atexit.register(_close)
