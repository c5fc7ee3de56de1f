"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal

from programs import nursery, start

# A PyTorch with CUDA says at its first backward that the machine's driver is too old for it. Tests that want nothing on
# standard error do not mean that.
os.environ["PYTHONWARNINGS"] = ",".join(
    part for part in (os.environ.get("PYTHONWARNINGS"), "ignore:CUDA initialization") if part
)

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["nursery", "start"]
