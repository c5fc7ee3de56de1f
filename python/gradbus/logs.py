"""Warnings of the library, as records of Python's logging: lost servers, a trainer that a batch waits for, and the like.
The logger is "gradbus"."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator

_log = logging.getLogger("gradbus")
_HEAD = re.compile(r'time=\S+ level=\S+ msg=(?:"((?:[^"\\]|\\.)*)"|(\S+)) ?')


@contextlib.contextmanager
def relayed() -> Iterator[str]:
    """A path for the library's option ``log``. The library opens it within the block. What it writes there becomes
    warnings of the logger until it closes the file, which it does at the end of the session."""
    out, into = os.pipe()
    threading.Thread(target=_relay, args=(out,), name="gradbus logs", daemon=True).start()
    try:
        yield f"/proc/self/fd/{into}"
    finally:
        os.close(into)


def _relay(out: int) -> None:
    """Logs each line that comes from a pipe. A line of the library is ``time=... level=WARN msg="..." key=value ...``."""
    with open(out, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            head = _HEAD.match(line)
            if head is None:
                _log.warning("%s", line.rstrip())
            else:
                _log.warning("%s: %s", head[1] or head[2], line[head.end() :].rstrip())
