"""The reader of Criteo's TSV, against a reader that takes it field by field."""

import math
import pathlib

import numpy as np
import pytest

import criteo
import ids

SAMPLE = pathlib.Path(__file__).resolve().parent / "testdata" / "criteo.tsv"


def naive(text):
    for line in text.splitlines():
        label, *fields = line.split("\t")
        yield (
            int(label),
            [math.log1p(max(0, int(v or 0))) for v in fields[:13]],
            [int(v or "0", 16) for v in fields[13:]],
            sum(bool(v) << f for f, v in enumerate(fields[13:])),
        )


def test_the_sample_is_what_the_generator_writes():
    assert SAMPLE.read_text() == criteo.generate(1000)


def test_parse_is_the_naive_reading():
    text = SAMPLE.read_text()
    labels, integers, categories, present = criteo.parse(text.encode())
    want = list(naive(text))
    assert labels.tolist() == [w[0] for w in want]
    np.testing.assert_allclose(
        integers, np.array([w[1] for w in want], np.float32), rtol=1e-6
    )  # libm and numpy: an ulp
    assert categories.tolist() == [w[2] for w in want]
    assert present.tolist() == [w[3] for w in want]
    assert 0 < (present == 2**26 - 1).sum() < 1000  # some lines lack a category, and some do not


@pytest.mark.parametrize("ending", ["\n", ""])
def test_pieces_cut_between_lines(tmp_path, ending):
    text = "".join(SAMPLE.read_text().splitlines(True)[:50])
    file = tmp_path / "some.tsv"
    file.write_text(text[:-1] + ending)
    whole = criteo.parse(text.encode())
    for size in (1, 200, 1000, 1 << 20):
        for got, want in zip(zip(*criteo.pieces(file, size)), whole):
            np.testing.assert_array_equal(np.concatenate(got), want)


def line(**fields):
    out = ["1"] + ["7"] * 13 + ["0a"] * 26
    for at, value in fields.items():
        out[int(at[1:])] = value
    return "\t".join(out) + "\n"


@pytest.mark.parametrize(
    "bad, message",
    [
        ("1\t2\n", "line 2 has 2 fields, want 40"),
        (line().rstrip("\n") + "\t1\n", "line 2 has 41 fields"),
        (line(f0="2"), "line 2, field 1"),
        (line(f0=""), "line 2, field 1"),
        (line(f3="1.5"), "line 2, field 4: b'1.5' is not a number of base 10"),
        (line(f13="ff"), "line 2, field 14"),
        (line(f14="0g"), "line 2, field 15: b'0g' is not a number of base 16"),
        (line(f39="123456789"), "line 2, field 40"),
        (line(f5="9" * 16), "line 2, field 6"),
    ],
)
def test_what_is_not_of_this_form_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        criteo.parse((line() + bad + line()).encode())


def test_a_batch_has_hashed_ids_and_empty_bags(tmp_path):
    file = tmp_path / "some.tsv"
    file.write_text(line(f14="ffffffff", f1="-1", f2="") + line(f14="") + line(f0="0") * 5)
    data = criteo.Criteo(file, 1000)
    assert (data.train.rows, data.test.rows) == (6, 1)
    batch = data.train.batch(np.array([1, 0]))
    assert batch.labels.tolist() == [1, 1]
    values, offsets = batch.sparse["c1"]
    assert values.tolist() == ids.hash_id([0xFFFFFFFF], 1000, 0).tolist() and offsets.tolist() == [0, 0]
    values, offsets = batch.sparse["c26"]
    assert values.tolist() == ids.hash_id([10, 10], 1000, 25).tolist() and offsets.tolist() == [0, 1]
    assert batch.dense[1, :3].tolist() == pytest.approx([0, 0, math.log1p(7)])


def test_columns_are_the_same_as_the_file(tmp_path):
    criteo.prepare(SAMPLE, tmp_path / "columns")
    index = np.arange(0, 140, 3)
    for part in ("train", "test"):
        one, other = (getattr(criteo.Criteo(path, 500), part).batch(index) for path in (SAMPLE, tmp_path / "columns"))
        assert one.dense.equal(other.dense) and one.labels.equal(other.labels)
        assert all(a.equal(b) for name in one.sparse for a, b in zip(one.sparse[name], other.sparse[name]))
