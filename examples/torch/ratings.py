"""Ratings of MovieLens for PyTorch: read, split as the Go workload splits them, and scored.

A rating is (time, user, film, stars). Package examples/movielens is the same in Go.
"""
import pathlib

import rdata

POSITIVE = 4.0  # from how many stars on a film was liked, as AUC counts it
STARS_MAX = 100
TEST_SHARE = 5  # the inverse of the test set's share

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Where ratings are looked for where no file is named: what make data fetches, and what Debian's r-cran-dslabs installs.
PLACES = (ROOT / "data/movielens/Rdata", pathlib.Path("/usr/lib/R/site-library/dslabs/data/Rdata"))


def load(path=None):
    """All ratings, sorted by time: of a ratings.csv, ratings.dat or u.data, or Debian's where no file is named.

    Ratings of one moment are in the order of user, film, stars, so that the order is not that of the input. Raises
    FileNotFoundError where there are none and ValueError, with the line, where a file holds something else.
    """
    return sorted(debian() if path is None else read(path))


def debian():
    """The 100,004 ratings in R's package dslabs."""
    for base in PLACES:
        if base.with_suffix(".rdb").exists():
            frame = rdata.load(base, "movielens")
            rows = zip(*(frame[name] for name in ("timestamp", "userId", "movieId", "rating")))
            return [(int(time), int(user), int(film), float(stars)) for time, user, film, stars in rows]
    raise FileNotFoundError(
        f"no ratings here ({PLACES[0]}.rdb): name a ratings.csv with --input, or get Debian's by make data")


def read(path):
    """The ratings of a file in a form of MovieLens: user, film, stars and time, with commas, :: or tabs between."""
    found = []
    with open(path, encoding="utf-8-sig") as f:
        for number, line in enumerate(f, 1):
            if number == 1 and line.startswith("userId,"):
                continue
            fields = line.strip().replace("::", ",").replace("\t", ",").split(",")
            try:
                user, film, stars, time = fields
                rating = int(time), int(user), int(film), float(stars)
            except ValueError:
                raise ValueError(f"{path}:{number}: {line.strip()[:40]!r}: want user, film, stars and time") from None
            if not (0 <= rating[1] < 1 << 64 and 0 <= rating[2] < 1 << 64 and -1 << 63 <= rating[0] < 1 << 63):
                raise ValueError(f"{path}:{number}: {line.strip()[:40]!r}: want ids and a time of 64 bits")
            if not 0 <= rating[3] <= STARS_MAX:
                raise ValueError(f"{path}:{number}: {line.strip()[:40]!r}: want 0 to {STARS_MAX} stars")
            found.append(rating)
    if not found:
        raise ValueError(f"{path}: no ratings in it")
    return found


def split(ratings, by):
    """Training and test ratings: the last fifth of each user's ("user") or of all ("time") is the test. Raises ValueError
    where there are too few for it."""
    if by == "time":
        cut = len(ratings) - len(ratings) // TEST_SHARE
        return _both(ratings[:cut], ratings[cut:], by)
    total, seen = {}, {}
    for r in ratings:
        total[r[1]] = total.get(r[1], 0) + 1
    train, test = [], []
    for r in ratings:
        seen[r[1]] = seen.get(r[1], 0) + 1
        (train if seen[r[1]] <= total[r[1]] - total[r[1]] // TEST_SHARE else test).append(r)
    return _both(train, test, by)


def _both(train, test, by):
    """Both. Raises ValueError where one has no rating."""
    if not train or not test:
        of = "of all" if by == "time" else "of each user's"
        raise ValueError(f"{len(train)} ratings to train with and {len(test)} to test with, the last fifth {of}: want more")
    return train, test


def auc(scores, positive):
    """The share of pairs of a positive and another that the scores put in order; equal scores count half.

    0.5 where there are no pairs.

    >>> auc([3, 1, 3], [True, False, False])
    0.75
    """
    pairs = sorted(zip(scores, positive))
    above, others, i = 0.0, 0, 0
    positives = sum(positive)
    while i < len(pairs):
        j = i
        while j < len(pairs) and pairs[j][0] == pairs[i][0]:
            j += 1
        here = sum(p for _, p in pairs[i:j])
        above += here * (others + (j - i - here) / 2)
        others += j - i - here
        i = j
    return above / (positives * others) if positives and others else 0.5
