"""How good predictions are, and what the process used."""

import resource

import numpy as np


def auc(scores, labels):
    """Area under the ROC curve: the share of (positive, negative) pairs in order, ties count half: [n], [n] -> float.

    Sums of ranks are integers, exact in float64 up to 2**53. nan where one of the classes is empty.
    """
    order = np.argsort(scores, kind="stable")
    sorted_scores = scores[order]
    first = np.concatenate([[True], sorted_scores[1:] != sorted_scores[:-1]])
    begins = np.flatnonzero(first)
    ends = np.append(begins[1:], len(scores))
    twice_rank = (begins + ends - 1)[np.cumsum(first) - 1]  # twice the mean rank of those that are equal, from 0
    positive = labels[order] > 0.5
    p = int(positive.sum())
    n = len(scores) - p
    if not p or not n:
        return float("nan")
    return (float(twice_rank[positive].sum()) / 2 - p * (p - 1) / 2) / (p * n)


def log_loss(logits, labels):
    """Mean binary cross entropy of logits: both [n] -> float."""
    x = logits.astype(np.float64)
    return float(np.mean(np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))))


def figure(value, digits):
    """A number for JSON, which has no NaN and no infinity: rounded, or None where it is not finite."""
    return round(value, digits) if np.isfinite(value) else None


def peak_mib():
    """The most memory that this process held so far, in MiB; mapped files that were read count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
