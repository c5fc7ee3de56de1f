"""Readers of ratings, their split, and AUC."""

import gzip
import struct
import zlib

import pytest
import rdata
import ratings

PLAIN = [(10, 1, 7, 4.5), (10, 2, 7, 3.0), (20, 1, 8, 5.0)]


@pytest.mark.parametrize("text", [
    "userId,movieId,rating,timestamp\n1,8,5.0,20\n2,7,3.0,10\n1,7,4.5,10\n",
    "\ufeffuserId,movieId,rating,timestamp\r\n1,8,5,20\r\n2,7,3,10\r\n1,7,4.5,10\r\n",
    "1::8::5::20\n2::7::3::10\n1::7::4.5::10\n",
    "1\t8\t5\t20\n2\t7\t3\t10\n1\t7\t4.5\t10\n",
])
def test_forms(tmp_path, text):
    path = tmp_path / "ratings"
    path.write_text(text, encoding="utf-8")
    assert ratings.load(path) == PLAIN


@pytest.mark.parametrize("text, want", [
    ("", "no ratings"),
    ("userId,movieId,rating,timestamp\n", "no ratings"),
    ("1,8,5.0,20\n1,8,5.0\n", ":2: '1,8,5.0': want user, film, stars and time"),
    ("1,8,good,20\n", ":1: .*want user"),
    ("1,8,5.0,20\n1,8,nan,20\n", ":2: .*want 0 to 100 stars"),
    ("1,8,inf,20\n", ":1: .*want 0 to 100 stars"),
    ("1,8,-3,20\n", ":1: .*want 0 to 100 stars"),
    (f"{1 << 64},8,5.0,20\n", ":1: .*want ids and a time of 64 bits"),
    ("1,-8,5.0,20\n", ":1: .*want ids and a time of 64 bits"),
])
def test_other_files(tmp_path, text, want):
    path = tmp_path / "ratings.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=want):
        ratings.load(path)


def test_no_ratings(monkeypatch, tmp_path):
    monkeypatch.setattr(ratings, "PLACES", (tmp_path / "Rdata",))
    with pytest.raises(FileNotFoundError, match="make data"):
        ratings.load()


def test_split():
    by_time = [(t, t % 2, 0, 1.0) for t in range(10)]
    train, test = ratings.split(by_time, "time")
    assert [r[0] for r in train] == list(range(8)) and [r[0] for r in test] == [8, 9]
    train, test = ratings.split(by_time, "user")
    assert [r[0] for r in train] == list(range(8)) and [r[0] for r in test] == [8, 9]
    train, test = ratings.split([(t, t // 5, 0, 1.0) for t in range(10)], "user")
    assert [r[0] for r in test] == [4, 9]


def test_auc():
    assert ratings.auc([3, 1, 3], [True, False, False]) == 0.75
    assert ratings.auc([1, 2, 3, 4], [False, False, True, True]) == 1
    assert ratings.auc([4, 3], [False, True]) == 0
    assert ratings.auc([1, 2], [True, True]) == 0.5


class Writer:
    """R's serialized form, as far as a data frame needs it."""

    def __init__(self):
        self.symbols = {}

    def symbol(self, name):
        if name in self.symbols:
            return struct.pack(">i", self.symbols[name] << 8 | 255)
        self.symbols[name] = len(self.symbols) + 1
        return struct.pack(">i", 1) + self.chars(name)

    def chars(self, text):
        return struct.pack(">ii", 9, len(text)) + text.encode()

    def vector(self, kind, items, **attributes):
        out = struct.pack(">ii", kind | (1 << 9 if attributes else 0), len(items))
        out += b"".join(x if isinstance(x, bytes) else struct.pack(">i" if kind == 13 else ">d", x) for x in items)
        if attributes:
            for name, value in attributes.items():
                out += struct.pack(">i", 2 | 1 << 10) + self.symbol(name) + value
            out += struct.pack(">i", 254)
        return out

    def named(self, columns):
        names = self.vector(16, [self.chars(name) for name in columns])
        return self.vector(19, list(columns.values()), names=names)

    def whole(self, body):
        return b"X\n" + struct.pack(">iii", 2, 0, 0) + body


def database(folder, columns):
    """A database of R with one data frame, movielens."""
    w = Writer()
    frame = w.whole(w.named({name: w.vector(*vector) for name, vector in columns.items()}))
    packed = struct.pack(">I", len(frame)) + zlib.compress(frame)
    (folder / "Rdata.rdb").write_bytes(b"before" + packed)
    w = Writer()
    place = w.vector(13, [len(b"before"), len(packed)])
    index = w.whole(w.named({"variables": w.named({"movielens": place})}))
    (folder / "Rdata.rdx").write_bytes(gzip.compress(index))
    return folder / "Rdata"


def test_of_r(monkeypatch, tmp_path):
    base = database(tmp_path, {"movieId": (13, [8, 7, 7]), "title": (16, []), "userId": (13, [1, 2, 1]),
                               "rating": (14, [5.0, 3.0, 4.5]), "timestamp": (13, [20, 10, 10])})
    monkeypatch.setattr(ratings, "PLACES", (tmp_path / "none", base))
    assert ratings.load() == PLAIN
    with pytest.raises(ValueError, match="no object films; there are movielens"):
        rdata.load(base, "films")


def test_cut(tmp_path):
    base = database(tmp_path, {"movieId": (13, [8, 7, 7])})
    index = gzip.decompress((tmp_path / "Rdata.rdx").read_bytes())
    (tmp_path / "Rdata.rdx").write_bytes(zlib.compress(index[:-8]))
    with pytest.raises(ValueError, match="cut at byte"):
        rdata.load(base, "movielens")


def test_debian():
    if not any(base.with_suffix(".rdb").exists() for base in ratings.PLACES):
        pytest.skip("no ratings here: make data fetches them")
    assert len(ratings.load()) == 100_004


@pytest.mark.parametrize("by", ["user", "time"])
def test_too_few_to_split(by):
    with pytest.raises(ValueError, match="1 ratings to train with and 0 to test with, the last fifth .*: want more"):
        ratings.split([(1, 2, 3, 4.0)], by)


def test_ids_of_64_bits():
    movielens = pytest.importorskip("movielens")
    import gradbus

    large, top = (1 << 64) - 1, 1 << 63
    found = movielens.tensors([(1, large, 3, 4.0), (2, top, top - 1, 5.0)], 1000)
    ids = movielens.torch.tensor([-1, -top])
    assert found.user.tolist() == gradbus.hash_id(ids, 1000, 0).tolist() and found.stars.tolist() == [4.0, 5.0]
