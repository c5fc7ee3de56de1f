"""A folder of arrays on disk, written in pieces and read by mapping it: what a prepared data set is.

Each array is a raw little-endian file NAME.bin; columns.json has their types, lengths and whatever else the writer
noted. The JSON is written last, so a folder without it is not a data set.
"""

import json
import os
import pathlib

import numpy as np

INDEX = "columns.json"


class Writer:
    """Appends to named arrays of a folder. close() makes the folder readable."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / INDEX).unlink(missing_ok=True)
        self._files, self._types, self._lengths = {}, {}, {}

    def append(self, name, values):
        """Adds values [n] to the array `name`; its type is that of the first piece."""
        if name not in self._files:
            self._files[name] = open(self.folder / f"{name}.bin", "wb")
            self._types[name], self._lengths[name] = values.dtype, 0
        if values.dtype != self._types[name]:
            raise TypeError(f"{name} is {self._types[name]}, and a piece of it is {values.dtype}")
        np.ascontiguousarray(values).tofile(self._files[name])
        self._lengths[name] += len(values)

    def close(self, **notes):
        for file in self._files.values():
            file.close()
        arrays = {name: [kind.str, self._lengths[name]] for name, kind in self._types.items()}
        unfinished = self.folder / (INDEX + ".new")
        unfinished.write_text(json.dumps({"arrays": arrays, "notes": notes}, indent=1) + "\n")
        os.replace(unfinished, self.folder / INDEX)


class Columns:
    """A folder that a Writer closed: arrays by name, mapped, and its notes. Else it is an OSError, or a ValueError that
    names the file."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        try:
            index = json.loads((self.folder / INDEX).read_text())
            self.arrays, self.notes = dict(index["arrays"]), dict(index["notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.folder / INDEX}: not the index of a prepared data set: {error!r}") from None

    def __getitem__(self, name):
        file = self.folder / f"{name}.bin"
        try:
            kind, length = self.arrays[name]
            if not length:
                return np.empty(0, kind)
            return np.memmap(file, kind, "r", shape=(length,))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file}: not the array {name} of a prepared data set: {error!r}") from None

    def loaded(self, name):
        """The same in memory: for small arrays, which are read at random."""
        return np.array(self[name])


class Bags:
    """Lists of ids of different lengths: values [N] one after the other, starts [n+1]."""

    def __init__(self, values, starts):
        self.values, self.starts = values, starts

    def take(self, index):
        """The lists `index` int64 [m]: (values int64 [M], offsets int64 [m]), as torch.nn.EmbeddingBag takes them."""
        begins = self.starts[index].astype(np.int64)
        lengths = self.starts[index + 1].astype(np.int64) - begins
        ends = np.cumsum(lengths)
        offsets = ends - lengths
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - offsets, lengths)
        return self.values[places].astype(np.int64), offsets


def starts_of(lengths):
    """Where each of lists of these lengths begins, and the end of the last: [n] -> int64 [n+1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
