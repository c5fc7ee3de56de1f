"""Exceptions. Every one says what happened, where, and what would be right.

All derive from :class:`Error`. Several also derive from the built-in exception that PyTorch raises in the same place,
so that code which catches ``IndexError`` for an id out of range goes on to work."""

from __future__ import annotations


class Error(Exception):
    """Base of all exceptions of this package."""


class ArgumentError(Error, ValueError):
    """A shape, type, name or option is not possible. Nothing has changed."""


class IdError(ArgumentError, IndexError):
    """An id is negative, or not below the rows of its table. Nothing has changed."""


class OrderError(Error, RuntimeError):
    """A call came at the wrong time: a step without a forward, a second call while one is under way. Nothing has
    changed."""


class ConfigError(Error, ValueError):
    """The job's manifest or the session's options are not possible."""


class ServerError(Error, ConnectionError):
    """No server is there, or it was lost. The session has ended."""


class JobError(Error, RuntimeError):
    """The job refused this trainer, or failed: the text says who and why. The session has ended, but a local one whose
    values were not finite can still be read and saved."""


class RewoundError(Error, RuntimeError):
    """The session has come back to its job at another version than it was at, since servers were lost. It goes on: the
    text says the version, and a :class:`~gradbus.LaneLoader` goes on from there. Its own loop never sees this error."""


class VersionError(Error, RuntimeError):
    """Values of that version are gone. The session goes on."""


class CanceledError(Error, RuntimeError):
    """The call was given up, by Ctrl-C or from another thread. The session has ended."""


class ClosedError(Error, RuntimeError):
    """The session has been closed, or has ended by an error before."""


class ForkedError(Error, RuntimeError):
    """This process was forked from the one that uses gradbus. Spawned processes can use it, forked ones cannot."""


class FileError(Error, OSError):
    """A file cannot be read or written."""


class InternalError(Error, RuntimeError):
    """A fault of the library."""


def worker_died(error: BaseException) -> bool:
    """Whether it is what PyTorch raises, in whatever the main thread does, where a worker of a DataLoader is killed."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
