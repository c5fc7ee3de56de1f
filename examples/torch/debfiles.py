#!/usr/bin/env python3
"""Which package owns a file path? Debian's Contents index as training data for dlrm.py.

    examples/torch/debfiles.py data/debfiles        # fetches 46 MB with apt-get, then prepares columns there
    examples/torch/dlrm.py data/debfiles

A positive row is a line of the index: a path and a package that owns it. Three negatives go with it, packages of the
same section, drawn as often as they have lines, so that a package's size tells nothing. Features of the query: file
name, folders, extension, depth. Features of the item: package, section, maintainer, tags, words of its name and
description.

Components that contain the name of the package, or of its source, are left out: with them it would be string matching.
A tenth of the sources is the test set, with all their packages: no package is in both. As all packages of the test are
new, half of the training rows lack the package itself, so that a model learns to do without.

Nothing of apt's own state is changed: lists are fetched into the folder. The columns are the same for the same lists.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import time

import numpy as np

import columns
import ids
from batches import Feature, collated

HELPER = "/usr/lib/apt/apt-helper"
NEGATIVES = 3
SPLIT_SEED, NEGATIVE_SEED, COLD_SEED = 1, 2, 3
TESTS = 10  # one source of so many is for the test
QUERY = ("name", "folders", "extension")
ITEM = ("package", "section", "maintainer", "tags", "words")
DENSE = 5  # depth, letters of the file name, words, tags, size


def options(lists):
    """apt's options that make it fetch Contents beside Packages, into the folder `lists`."""
    target = "Acquire::IndexTargets::deb::Contents-deb::"
    pairs = {
        "Dir::State::lists": f"{lists}/lists",
        "Dir::Cache": f"{lists}/cache",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        target + "MetaKey": "$(COMPONENT)/Contents-$(ARCHITECTURE)",
        target + "ShortDescription": "Contents",
        target + "Description": "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents",
        target + "KeepCompressed": "true",
    }
    return [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]


def fetch(folder):
    """Fetches the lists that apt's sources name, and returns (files of Packages, files of Contents)."""
    lists = pathlib.Path(folder).resolve() / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (lists / name).mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "-q", *options(lists), "update"], check=True, stdout=sys.stderr)
    found = subprocess.run(
        ["apt-get", *options(lists), "indextargets", "--format", "$(CREATED_BY) $(FILENAME)"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split("\n")
    files = [
        sorted(
            line.split(" ", 1)[1]
            for line in found
            if line.startswith(kind + " ") and pathlib.Path(line.split(" ", 1)[1]).exists()
        )
        for kind in ("Packages", "Contents-deb")
    ]
    if not files[1]:
        sys.exit("debfiles.py: none of apt's sources has a Contents index (Debian's have)")
    return files


def lines_of(file, piece=4 << 20):
    """Lists of lines (bytes) of a file, some megabytes at a time; apt-helper unpacks what apt has compressed."""
    plain = not file.endswith((".lz4", ".gz", ".xz", ".zst", ".bz2"))
    with subprocess.Popen(["cat", file] if plain else [HELPER, "cat-file", file], stdout=subprocess.PIPE) as process:
        rest = b""
        while True:
            block = process.stdout.read(piece)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if not block:
                lines = [rest] if rest else []
            if lines:
                yield lines
            if not block:
                break
    if process.returncode:
        sys.exit(f"debfiles.py: {file} cannot be read: status {process.returncode}")


class Packages:
    """What the Packages indices say, package by package; ids go by section, then name.

    names, sources: lists of n; index: name (bytes) -> id; sections, maintainers int32 [n]; tags, words: Bags; size
    float32 [n], in KiB installed; rows: sizes of the dictionaries, by feature.
    """

    def __init__(self, files):
        found = {}
        for file in files:
            for paragraph in paragraphs(file):
                found.setdefault(paragraph["Package"], paragraph)
        entries = sorted(found.values(), key=lambda p: (section_of(p), p["Package"]))
        self.names = [p["Package"] for p in entries]
        self.sources = [p.get("Source", p["Package"]).split(" ")[0] for p in entries]
        self.index = {name.encode(): n for n, name in enumerate(self.names)}
        self.rows = {"package": len(entries)}
        self.sections = self._single("section", [section_of(p) for p in entries])
        self.maintainers = self._single("maintainer", [p.get("Maintainer", "") for p in entries])
        self.tags = self._bags(
            "tags", [sorted(set(re.split(r",\s*", p["Tag"]))) if "Tag" in p else [] for p in entries]
        )
        self.words = self._bags("words", [words_of(p) for p in entries])
        self.size = np.array([float(p.get("Installed-Size", 0)) for p in entries], np.float32)

    def _single(self, feature, values):
        index = {value: n for n, value in enumerate(sorted(set(values)))}
        self.rows[feature] = len(index)
        return np.array([index[value] for value in values], np.int32)

    def _bags(self, feature, lists):
        index = {value: n for n, value in enumerate(sorted({value for each in lists for value in each}))}
        self.rows[feature] = max(1, len(index))
        return columns.Bags(
            np.array([index[value] for each in lists for value in each], np.int32),
            columns.starts_of([len(each) for each in lists]),
        )


def paragraphs(file):
    """Each package of an index: a dict of its fields, lines of one field joined."""
    fields, last = {}, ""
    for lines in lines_of(file):
        for line in lines:
            text = line.decode("utf-8", "replace")
            if not text:
                if "Package" in fields:
                    yield fields
                fields, last = {}, ""
            elif text[0] == " ":
                fields[last] += text
            else:
                last, _, value = text.partition(":")
                fields[last] = value.strip()
    if "Package" in fields:
        yield fields


def section_of(paragraph):
    return paragraph.get("Section", "unknown").rpartition("/")[2]


def words_of(paragraph):
    """The distinct words of a package's name and short description."""
    return sorted(
        set(re.findall(r"[a-z0-9]+", (paragraph["Package"] + " " + paragraph.get("Description", "")).lower()))
    )


class Queries:
    """Reads lines of Contents, and leaves components out that contain the package's name or its source's."""

    def __init__(self, packages):
        self.packages = packages
        self.avoid = [
            (name.encode().lower(), source.encode().lower()) for name, source in zip(packages.names, packages.sources)
        ]
        self.lines = self.unknown = self.shortened = 0

    def read(self, lines):
        """Parallel lists of a piece of the index: package ids, folders joined by /, file names, extensions, depths."""
        out = ([], [], [], [], [])
        for line in lines:
            path, _, owners = line.rpartition(b" ")
            path = path.rstrip()
            self.lines += 1
            for owner in owners.split(b","):
                package = self.packages.index.get(owner.rpartition(b"/")[2])
                if package is None:
                    self.unknown += 1
                    continue
                self._add(out, package, path)
        return out

    def _add(self, out, package, path):
        folders, _, name = path.rpartition(b"/")
        stem, dot, extension = name.rpartition(b".")
        extension = extension if dot and stem and len(extension) <= 8 else b""
        out[4].append(folders.count(b"/") + 1 if folders else 0)
        own, source = self.avoid[package]
        low = path.lower()
        if own in low or source in low:
            self.shortened += 1
            folders = b"/".join([c for c in folders.split(b"/") if not contains(c, own, source)])
            name = b"" if contains(name, own, source) else name
            extension = b"" if contains(extension, own, source) else extension
        out[0].append(package)
        out[1].append(folders)
        out[2].append(name)
        out[3].append(extension)


def contains(component, own, source):
    low = component.lower()
    return own in low or source in low


def hashed(texts):
    """The components of each text, which / separates: (hashes uint64 [N], how many each text has int64 [n])."""
    text = np.frombuffer(b"\n".join(texts) + b"\n", np.uint8)
    ends = np.flatnonzero((text == 47) | (text == 10))
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    full = ends > begins
    line = np.cumsum(text[ends] == 10) - (text[ends] == 10)
    return ids.hash_tokens(text, begins[full], ends[full]), np.bincount(line[full], minlength=len(texts))


class Dictionary:
    """The distinct hashes of one feature. add() every piece, then rows_of() gives each hash its row."""

    def __init__(self):
        self.known = np.empty(0, np.uint64)
        self._fresh, self._held = [], 0

    def add(self, hashes):
        self._fresh.append(np.unique(hashes))
        self._held += len(self._fresh[-1])
        if self._held > max(1 << 20, len(self.known) // 2):
            self.merge()

    def merge(self):
        self.known = np.unique(np.concatenate([self.known, *self._fresh]))
        self._fresh, self._held = [], 0

    def rows_of(self, hashes):
        return np.searchsorted(self.known, hashes).astype(np.int32)


def prepare(folder, packages_files, contents_files):
    """Writes the columns of a data set into `folder` and returns what it noted."""
    begin = time.monotonic()
    packages = Packages(packages_files)
    queries = Queries(packages)
    raw = columns.Writer(pathlib.Path(folder) / "raw")
    dictionaries = {feature: Dictionary() for feature in QUERY}
    for file in contents_files:
        for lines in lines_of(file):
            package, folders, names, extensions, depths = queries.read(lines)
            if not package:
                continue
            raw.append("package", np.array(package, np.int32))
            raw.append("depth", np.array(depths, np.uint8))
            raw.append("letters", np.array([len(name) for name in names], np.uint8))
            for feature, texts in zip(QUERY, (names, folders, extensions)):
                hashes, counts = hashed(texts)
                dictionaries[feature].add(hashes)
                raw.append(feature, hashes)
                raw.append(feature + ".count", counts.astype(np.uint8))
    raw.close()
    for dictionary in dictionaries.values():
        dictionary.merge()
    raw = columns.Columns(pathlib.Path(folder) / "raw")
    out = columns.Writer(folder)
    write_packages(out, packages)
    pairs = write_queries(out, packages, raw, dictionaries)
    rows = {**{feature: len(dictionaries[feature].known) for feature in QUERY}, **packages.rows}
    notes = {
        "rows": rows,
        "lines": queries.lines,
        "unknown": queries.unknown,
        "shortened": queries.shortened,
        "train": pairs[0],
        "test": pairs[1],
        "seconds": round(time.monotonic() - begin, 1),
    }
    out.close(**notes)
    for file in raw.folder.iterdir():
        file.unlink()
    raw.folder.rmdir()
    return notes


def write_packages(out, packages):
    out.append("section", packages.sections)
    out.append("maintainer", packages.maintainers)
    out.append("size", packages.size)
    for feature, bags in (("tags", packages.tags), ("words", packages.words)):
        out.append(feature, bags.values)
        out.append(feature + ".starts", bags.starts)


def write_queries(out, packages, raw, dictionaries, piece=1 << 19):
    """Rows in place of hashes, the training and the test lines apart; returns how many lines each has."""
    tested = ids.draw(SPLIT_SEED, ids.hash_strings(packages.sources)) % np.uint64(TESTS) == 0
    owner = raw["package"]
    counts = {feature: raw[feature + ".count"] for feature in QUERY}
    at = dict.fromkeys(QUERY, 0)
    pairs = [0, 0]
    total = {part: dict.fromkeys(QUERY, 0) for part in ("train", "test")}
    for lo in range(0, len(owner), piece):
        package = owner[lo : lo + piece]
        of_test = tested[package]
        for n, part in enumerate(("train", "test")):
            mine = of_test == bool(n)
            pairs[n] += int(mine.sum())
            for name in ("package", "depth", "letters"):
                out.append(f"{part}.{name}", np.array(raw[name][lo : lo + piece][mine]))
        for feature in QUERY:
            count = counts[feature][lo : lo + piece].astype(np.int64)
            rows = dictionaries[feature].rows_of(raw[feature][at[feature] : at[feature] + count.sum()])
            at[feature] += count.sum()
            for n, part in enumerate(("train", "test")):
                mine = of_test == bool(n)
                out.append(f"{part}.{feature}", rows[np.repeat(mine, count)])
                ends = total[part][feature] + np.cumsum(count[mine])
                out.append(f"{part}.{feature}.ends", ends.astype(np.uint32))
                total[part][feature] = int(ends[-1]) if len(ends) else total[part][feature]
    return pairs


class Part:
    """The training or the test rows: 4 for each line. batch() gives any of them, a pure function of the columns."""

    def __init__(self, data, part, features):
        self.features = features
        self.package = data[f"{part}.package"]
        self.depth, self.letters = data[f"{part}.depth"], data[f"{part}.letters"]
        self.query = [
            columns.Bags(data[f"{part}.{feature}"], Starts(data[f"{part}.{feature}.ends"])) for feature in QUERY
        ]
        self.sections, self.maintainers = data.loaded("section"), data.loaded("maintainer")
        self.size = np.log1p(data.loaded("size")) / 10
        self.bags = [columns.Bags(data.loaded(f), data.loaded(f + ".starts")) for f in ("tags", "words")]
        # Rows of one line stay in one batch: a name is in few lines, and one row of a line would tell about the others.
        self.group = 1 + NEGATIVES
        self.cold = np.uint64(part == "train")
        self.rows = self.group * len(self.package)
        # Packages are numbered section by section: before[p] lines of this part belong to packages before p.
        packages = len(self.sections)
        self.before = columns.starts_of(np.bincount(self.package, minlength=packages))
        if np.count_nonzero(np.diff(self.before)) < 2:
            raise ValueError(f"{data.folder}: the {part} part: want files of at least two packages")
        self.first = np.searchsorted(self.sections, self.sections)
        self.end = np.searchsorted(self.sections, self.sections, side="right")

    def negatives(self, line, k):
        """Packages of the owner's section, never the owner, each as likely as it has lines: int64 [n]. k is 1 to
        NEGATIVES. Where the section has no other in this part, all packages of the part are drawn from. Another
        owner of the same path may be drawn: one line of 170 has several.
        """
        owner = self.package[line]
        lo, hi = self.before[self.first[owner]], self.before[self.end[owner]]
        mine = self.before[owner + 1] - self.before[owner]
        alone = hi - lo == mine
        lo, hi = np.where(alone, 0, lo), np.where(alone, self.before[-1], hi)
        place = lo + ids.scale(ids.draw(NEGATIVE_SEED, line, k), hi - lo - mine)
        place += np.where(place >= self.before[owner], mine, 0)
        return np.searchsorted(self.before, place, side="right") - 1

    def batch(self, index):
        """The rows `index`, int64 [n] below `rows`: a Batch with the features QUERY and ITEM."""
        line, k = index // (1 + NEGATIVES), index % (1 + NEGATIVES)
        item = self.package[line].astype(np.int64)
        false = np.flatnonzero(k)
        item[false] = self.negatives(line[false], k[false])
        each = np.arange(len(index))
        known = ids.draw(COLD_SEED, line, k) & self.cold == 0
        ends = np.cumsum(known)
        sparse = [bags.take(line) for bags in self.query]
        sparse += [(item[known], ends - known)]
        sparse += [(values.astype(np.int64), each) for values in (self.sections[item], self.maintainers[item])]
        sparse += [bags.take(item) for bags in self.bags]
        counts = [np.diff(offsets, append=len(values)) for values, offsets in sparse[-2:]]
        dense = np.stack(
            [self.depth[line] / 10, self.letters[line] / 40, counts[1] / 10, counts[0] / 10, self.size[item]], 1
        )
        return collated(dense.astype(np.float32), self.features, sparse, (k == 0).astype(np.float32))


class Starts:
    """Ends of lists, read as starts: [n] is the end of list n-1, and 0 for the first. The array stays mapped."""

    def __init__(self, ends):
        self.ends = ends

    def __getitem__(self, index):
        return np.where(index > 0, self.ends[index - 1], 0).astype(np.int64)


class Debfiles:
    """A prepared folder: features, dense (how many dense values a row has), train and test."""

    def __init__(self, folder):
        data = columns.Columns(folder)
        self.notes = data.notes
        self.features = [Feature(name, data.notes["rows"][name]) for name in QUERY + ITEM]
        self.dense = DENSE
        self.train, self.test = Part(data, "train", self.features), Part(data, "test", self.features)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", help="where the columns go; the lists go into apt/ below it")
    p.add_argument("--packages", nargs="+", metavar="FILE", help="Packages indices to read rather than to fetch")
    p.add_argument("--contents", nargs="+", metavar="FILE", help="Contents indices to read rather than to fetch")
    a = p.parse_args()
    if bool(a.packages) != bool(a.contents):
        p.error("--packages and --contents go together")
    files = (a.packages, a.contents) if a.packages else fetch(a.folder)
    notes = prepare(a.folder, *files)
    print(
        f"{a.folder}: {notes['lines']} lines, {notes['unknown']} owners unknown, {notes['shortened']} paths shortened, "
        f"{notes['train']} lines to train on, {notes['test']} to test, {notes['seconds']} s"
    )
    for name, rows in notes["rows"].items():
        print(f"  {name:<12} {rows:>9} rows")


if __name__ == "__main__":
    main()
