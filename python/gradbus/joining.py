"""What the log says of a join that takes long: whom it waits for. The logger is "gradbus", of the module logging."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

LONG = 10.0  # seconds

_log = logging.getLogger("gradbus")


@contextlib.contextmanager
def waiting(job: str, server: str, trainers: int) -> Iterator[None]:
    """Around a join of a job of several trainers: a warning after :data:`LONG`."""
    text = "job %r: waiting for %d trainers at %s, of which this is one; start the others with the same model"
    timer = threading.Timer(LONG, _log.warning, (text, job, trainers, server))
    timer.daemon = True
    if trainers > 1:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
