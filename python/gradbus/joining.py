"""What the log says of a join: whom it waits for, and what becomes of the job when a trainer or a ps is lost. The logger
is "gradbus", of the module logging."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Optional

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


def say_policy(name: str, joined: Mapping[str, Any], chosen: bool, missing: Optional[str]) -> None:
    """Says what becomes of a job in sync when somebody is lost: a warning where that is its end and nobody has ``chosen``
    so, by the trainer that has lane 0. ``missing``: what the script has to change."""
    job = joined["job"]
    if job["consistency"] != "sync":
        return
    if job["policy"] != "fail":
        when = "and a new one comes" if job["policy"] == "wait" else "at once"
        back = ", from its newest durable version" if joined["goes_back"] else ""
        text = "job %r: policy %s: it goes on when a trainer is lost %s%s, or a ps that keeps checkpoints or has a replica"
        _log.info(text, name, job["policy"], when, back)
    elif not chosen and joined["first_lane"] == 0:
        text = 'job %r: policy fail: a lost trainer or ps ends the job; to recover it wants %s (manifest={"policy": "fail"}: as is)'
        _log.warning(text, name, missing or "a manifest that docs/recovery.md does not list among those that do not recover")
