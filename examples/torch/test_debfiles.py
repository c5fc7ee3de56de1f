"""debfiles.py over small indices written here: what becomes of lines, no package in both parts, who is drawn."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import debfiles

FOLDER = pathlib.Path(debfiles.__file__).resolve().parent
PACKAGES = """Package: foo
Maintainer: A <a@example.org>
Section: libs
Installed-Size: 12
Tag: role::program, use::viewing,
 x11::application
Description: Views foo and bars
 a long text

Package: libfoo-dev
Source: foo (1.2)
Maintainer: B <b@example.org>
Section: contrib/libs
Description: the foo

Package: other
Maintainer: A <a@example.org>
Section: doc
Tag: role::program
"""
CONTENTS = """bin/foo                                                 libs/foo
usr/share/a file/Foo-2.x/read.me                        libs/foo,contrib/libs/libfoo-dev
usr/include/bar.h                                       contrib/libs/libfoo-dev
usr/share/doc/unknown.gz                                doc/unknown
top                                                     doc/other
"""


def written(folder, packages, contents):
    (folder / "Packages").write_text(packages)
    (folder / "Contents").write_text(contents)
    return debfiles.prepare(folder / "columns", [str(folder / "Packages")], [str(folder / "Contents")])


def test_packages_are_read(tmp_path):
    (tmp_path / "Packages").write_text(PACKAGES)
    packages = debfiles.Packages([str(tmp_path / "Packages")])
    assert packages.names == ["other", "foo", "libfoo-dev"]  # by section, then name
    assert packages.sources == ["other", "foo", "foo"]
    assert packages.sections.tolist() == [0, 1, 1] and packages.maintainers.tolist() == [0, 0, 1]
    assert np.diff(packages.tags.starts).tolist() == [1, 3, 0]
    assert np.diff(packages.words.starts).tolist() == [1, 7, 4]  # other; a and bars foo long text views
    assert packages.size.tolist() == [0, 12, 0]


def test_lines_are_read_and_names_of_packages_left_out(tmp_path):
    (tmp_path / "Packages").write_text(PACKAGES)
    packages = debfiles.Packages([str(tmp_path / "Packages")])
    queries = debfiles.Queries(packages)
    package, folders, names, extensions, depths = queries.read(CONTENTS.encode().splitlines())
    assert [packages.names[p] for p in package] == ["foo", "foo", "libfoo-dev", "libfoo-dev", "other"]
    assert folders == [b"bin", b"usr/share/a file", b"usr/share/a file", b"usr/include", b""]
    assert names == [b"", b"read.me", b"read.me", b"bar.h", b"top"]
    assert extensions == [b"", b"me", b"me", b"h", b""]
    assert depths == [1, 4, 4, 2, 0]
    assert (queries.lines, queries.unknown, queries.shortened) == (5, 1, 3)


def test_hashed_counts_components():
    hashes, counts = debfiles.hashed([b"usr/share", b"", b"/usr//lib/", b"bin"])
    assert counts.tolist() == [2, 0, 2, 1]
    assert hashes[0] == hashes[2] and len(set(hashes.tolist())) == 4


def test_pieces_cut_between_lines(tmp_path):
    file = tmp_path / "Contents"
    file.write_text(CONTENTS[:-1])
    for size in (1, 7, 100, 1 << 20):
        lines = [line for some in debfiles.lines_of(str(file), size) for line in some]
        assert lines == CONTENTS.encode().splitlines()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """60 sources of two packages in three sections; the files of a package have names of its own."""
    packages, contents = [], []
    for n in range(120):
        section = ("admin", "libs", "net")[n // 2 % 3]
        packages.append(
            f"Package: p{n}x\nSource: s{n // 2}x\nSection: {section}\nTag: a::b\nDescription: words of {n // 10}\n"
        )
        contents += [f"usr/share/d{n % 7}/f{n}-{m}.txt   {section}/p{n}x\n" for m in range(1 + n % 5)]
    folder = tmp_path_factory.mktemp("many")
    notes = written(folder, "\n".join(packages), "".join(contents))
    return folder, notes, debfiles.Debfiles(folder / "columns")


def test_no_source_is_in_both_parts(many):
    folder, notes, data = many
    packages = debfiles.Packages([str(folder / "Packages")])
    sources = [{packages.sources[p] for p in part.package} for part in (data.train, data.test)]
    assert sources[0] and sources[1] and not sources[0] & sources[1]
    assert notes["train"] + notes["test"] == notes["lines"] == 360


def test_negatives_are_of_the_section_and_part_and_never_the_owner(many):
    data = many[2]
    for part in (data.train, data.test):
        index = np.arange(part.rows)
        batch = part.batch(index)
        item = np.repeat(part.package.astype(np.int64), 4)
        item[index % 4 != 0] = part.negatives(index[index % 4 != 0] // 4, index[index % 4 != 0] % 4)
        owner = np.repeat(part.package, 4)
        assert batch.labels.tolist() == [1, 0, 0, 0] * len(part.package)
        values, offsets = (t.numpy() for t in batch.sparse["package"])
        named = np.diff(offsets, append=len(values)) == 1
        assert (values == item[named]).all()
        assert named.all() if part is data.test else 0.4 < named.mean() < 0.6
        false = index % 4 != 0
        assert (item[false] != owner[false]).all()
        assert (part.sections[item] == part.sections[owner]).all()
        assert set(item.tolist()) == set(part.package.tolist())


def test_negatives_are_as_frequent_as_their_lines(many):
    """Each other package of the owner's section, as often as it has lines: within 5 standard deviations."""
    part = many[2].train
    line, k = np.zeros(20000, np.int64), np.arange(1, 20001)
    drawn = np.bincount(part.negatives(line, k), minlength=len(part.sections))
    lines = np.bincount(part.package, minlength=len(part.sections)).astype(float)
    owner = part.package[0]
    lines[part.sections != part.sections[owner]] = 0
    lines[owner] = 0
    share = lines / lines.sum()
    assert (np.abs(drawn - 20000 * share) <= 5 * np.sqrt(20000 * share * (1 - share))).all()


def test_a_row_is_the_same_in_any_batch(many):
    part = many[2].train
    whole = part.batch(np.arange(part.rows))
    for row in (0, 5, 101, part.rows - 1):
        one = part.batch(np.array([row]))
        assert one.dense.equal(whole.dense[row : row + 1])
        for name, (values, offsets) in whole.sparse.items():
            end = offsets[row + 1] if row + 1 < part.rows else len(values)
            assert one.sparse[name][0].equal(values[offsets[row] : end])


def test_rows_of_tables_are_dense(many):
    notes, data = many[1:]
    assert notes["rows"]["name"] == 360 and notes["rows"]["folders"] == 2 + 7 and notes["rows"]["extension"] == 1
    for feature in data.features:
        values = np.concatenate(
            [part.batch(np.arange(part.rows)).sparse[feature.name][0] for part in (data.train, data.test)]
        )
        assert 0 <= values.min() and values.max() < feature.rows


def test_an_owner_alone_in_its_section_has_negatives_of_others(tmp_path):
    packages = [f"Package: p{n}x\nSection: {'libs' if n else 'doc'}\n" for n in range(60)]
    written(tmp_path, "\n".join(packages), "".join(f"d/f{n}  libs/p{n}x\n" for n in range(60)))
    data = debfiles.Debfiles(tmp_path / "columns")
    part, line = next((part, line) for part in (data.train, data.test) for line in np.flatnonzero(part.package == 0))
    drawn = part.negatives(np.full(50, line), np.arange(50))
    assert len(set(drawn.tolist())) > 3 and 0 not in drawn


def test_a_part_with_one_package_is_refused(tmp_path):
    written(tmp_path, "Package: pxx\nSection: libs\n", "d/f  libs/pxx\n")
    with pytest.raises(ValueError, match="want files of at least two packages"):
        debfiles.Debfiles(tmp_path / "columns")


def test_the_program_prepares_and_says_what(tmp_path):
    (tmp_path / "P").write_text(PACKAGES)
    (tmp_path / "C").write_text(CONTENTS)
    said = subprocess.run(
        [
            sys.executable,
            FOLDER / "debfiles.py",
            tmp_path / "out",
            "--packages",
            tmp_path / "P",
            "--contents",
            tmp_path / "C",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "5 lines, 1 owners unknown, 3 paths shortened" in said
    assert (tmp_path / "out" / "columns.json").exists() and not (tmp_path / "out" / "raw").exists()
