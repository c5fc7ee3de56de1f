#!/usr/bin/env python3
"""Criteo's display-advertising TSV as training data for dlrm.py: a label, 13 integers, 26 hexadecimal categories.

    examples/torch/criteo.py train.txt data/criteo               # columns, for a file that is larger than memory
    examples/torch/criteo.py --generate 1000 examples/torch/testdata/criteo.tsv

dlrm.py reads a small file as it is. Any field but the label may be empty: an integer is 0 then, and a category an
empty bag. The last seventh of the lines, which is the last of the set's seven days, is the test set.

The lines in testdata are generated, by generate() below: they have Criteo's form, and nothing else in common with it.
"""

import argparse
import pathlib
import sys

import numpy as np

import columns
import ids
from batches import Feature, collated

INTEGERS, CATEGORIES = 13, 26
FIELDS = 1 + INTEGERS + CATEGORIES
TESTS = 7  # the inverse of the test set's share
TAB, NEWLINE, MINUS = 9, 10, 45
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[[*b"0123456789", *b"abcdef", *b"ABCDEF"]] = [*range(16), *range(10, 16)]


def parse(text, line=1):
    """Whole lines (bytes), the first of them number `line` of its file, as (labels uint8 [n], integers float32 [n, 13],
    categories uint32 [n, 26], present uint32 [n], whose bit f says that category f is not empty).

    ValueError names the line and the field that is not of this form.
    """
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((data == TAB) | (data == NEWLINE))
    newline = data[ends] == NEWLINE
    per_line = np.diff(np.flatnonzero(newline), prepend=-1)
    wrong = np.flatnonzero(per_line != FIELDS)
    if len(wrong):
        raise ValueError(f"line {line + wrong[0]} has {per_line[wrong[0]]} fields, want {FIELDS}")
    ends = ends.reshape(-1, FIELDS)
    begins = np.concatenate([np.zeros(1, np.int64), ends.ravel()[:-1] + 1]).reshape(-1, FIELDS)
    label = numbers(data, begins[:, :1], ends[:, :1], 10, line, 1)[:, 0]
    bad = np.flatnonzero((label > 1) | (ends[:, 0] == begins[:, 0]))
    if len(bad):
        raise ValueError(f"line {line + bad[0]}, field 1: the label is not 0 or 1")
    middle, last = slice(1, 1 + INTEGERS), slice(1 + INTEGERS, FIELDS)
    negative = (data[begins[:, middle]] == MINUS) & (ends[:, middle] > begins[:, middle])
    integers = numbers(data, begins[:, middle] + negative, ends[:, middle], 10, line, 2)
    categories = numbers(data, begins[:, last], ends[:, last], 16, line, 2 + INTEGERS)
    present = (ends[:, last] > begins[:, last]).astype(np.uint32) << np.arange(CATEGORIES, dtype=np.uint32)
    dense = np.where(negative, 0, np.log1p(integers)).astype(np.float32)
    return label.astype(np.uint8), dense, categories.astype(np.uint32), present.sum(1, dtype=np.uint32)


def numbers(data, begins, ends, base, line, field):
    """The number in each field data[begin:end], 0 where it is empty: int64 like begins. It goes digit by digit over all
    fields at once."""
    lengths = ends - begins
    value = np.zeros(begins.shape, np.int64)
    most = 15 if base == 10 else 8
    bad = lengths > most
    for p in range(min(most, int(lengths.max(initial=0)))):
        under = lengths > p
        digit = _DIGITS[data[np.where(under, begins + p, 0)]]
        bad |= under & (digit >= base)
        value = np.where(under, value * base + digit, value)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        text = bytes(data[begins[row, column] : ends[row, column]])
        raise ValueError(
            f"line {line + row}, field {field + column}: {text!r} is not a number of base {base}, "
            f"of at most {most} digits"
        )
    return value


def pieces(path, size=8 << 20):
    """What parse() gives of a file, some megabytes at a time."""
    line = 1
    with open(path, "rb") as file:
        rest = b""
        while True:
            block = file.read(size)
            end = block.rfind(b"\n") + 1
            text, rest = (rest + block[:end], block[end:]) if end else (b"", rest + block)
            if not block and rest:
                text, rest = rest + b"\n", b""
            if text:
                try:
                    parsed = parse(text, line)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None
                line += len(parsed[0])
                yield parsed
            if not block:
                return


NAMES = ("labels", "integers", "categories", "present")


def prepare(path, folder):
    """Writes the columns of a TSV file and returns how many lines it has."""
    out = columns.Writer(folder)
    lines = 0
    for parsed in pieces(path):
        lines += len(parsed[0])
        for name, values in zip(NAMES, parsed):
            out.append(name, values.ravel())
    out.close(lines=lines, criteo=True)
    return lines


class Part:
    """Some lines of the set, one row each."""

    def __init__(self, arrays, lo, hi, features):
        self.labels, self.integers, self.categories, self.present = (a[lo:hi] for a in arrays)
        self.rows, self.features, self.group = hi - lo, features, 1

    def batch(self, index):
        """The rows `index`, int64 [n] below `rows`, as a Batch."""
        categories, present = self.categories[index], self.present[index]
        sparse = []
        for f, feature in enumerate(self.features):
            there = (present >> np.uint32(f) & np.uint32(1)).astype(bool)
            ends = np.cumsum(there)
            sparse.append((ids.hash_id(categories[there, f], feature.rows, f), ends - there))
        return collated(np.array(self.integers[index]), self.features, sparse, self.labels[index].astype(np.float32))


class Criteo:
    """A TSV file, read into memory, or a folder that prepare() wrote: features, dense, train and test.

    Categories are hashed into tables of table_rows rows each, with the feature's number for a salt.
    """

    def __init__(self, path, table_rows):
        if pathlib.Path(path).is_dir():
            data = columns.Columns(path)
            labels, integers, categories, present = (data[name] for name in NAMES)
            arrays = labels, integers.reshape(-1, INTEGERS), categories.reshape(-1, CATEGORIES), present
        else:
            arrays = tuple(np.concatenate(all_of) for all_of in zip(*pieces(path))) or (np.empty(0),)
        if len(arrays[0]) < TESTS:
            raise ValueError(f"{path}: {len(arrays[0])} lines: want {TESTS} or more, of which one in {TESTS} is to test")
        self.features = [Feature(f"c{f + 1}", table_rows) for f in range(CATEGORIES)]
        self.dense = INTEGERS
        lines = len(arrays[0])
        cut = lines - lines // TESTS
        self.train, self.test = Part(arrays, 0, cut, self.features), Part(arrays, cut, lines, self.features)


def generate(lines, seed=1):
    """Lines of Criteo's form (str): categories of 4 to 100,000 values, the common ones often; labels that follow them.

    A pure function of (line, seed).
    """
    line = np.arange(lines)
    unit = lambda *counters: ids.draw(seed, *counters).astype(np.float64) / 2.0**64  # noqa: E731
    logit, fields = np.full(lines, -1.2), []
    for n in range(INTEGERS):
        value = np.floor(np.exp(unit(line, n) * (1 + n / 2)) - 1.5 * (n == 1)).astype(np.int64)
        logit += 0.1 * np.log1p(np.maximum(value, 0)) * (-1) ** n
        empty = unit(line, 100 + n) < 0.02 * n
        fields.append(["" if e else str(v) for v, e in zip(value, empty)])
    for f in range(CATEGORIES):
        count = int(4 * 10 ** (f % 9 * 0.55))
        value = np.floor(count ** unit(line, 200 + f)).astype(np.int64)
        logit += 1.2 * (unit(300 + f, value) - 0.5)
        empty = unit(line, 400 + f) < 0.01 * (f % 7)
        text = ids.draw(seed, 500 + f, value) & np.uint64(0xFFFFFFFF)
        fields.append(["" if e else f"{t:08x}" for t, e in zip(text.tolist(), empty)])
    label = unit(line, 600) < 1 / (1 + np.exp(-logit))
    return "".join("\t".join(row) + "\n" for row in zip(map(str, label.astype(int).tolist()), *fields))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "paths", nargs="+", metavar="PATH", help="the TSV file and the folder for its columns; with --generate the file"
    )
    p.add_argument("--generate", type=int, metavar="LINES", help="write so many generated lines rather than read")
    a = p.parse_args()
    if len(a.paths) != (1 if a.generate else 2):
        p.error("want FILE FOLDER, or --generate LINES FILE")
    if a.generate:
        pathlib.Path(a.paths[0]).write_text(generate(a.generate))
        return
    try:
        print(f"{a.paths[1]}: {prepare(*a.paths)} lines")
    except (OSError, ValueError) as error:
        sys.exit(f"criteo.py: {error}")


if __name__ == "__main__":
    main()
