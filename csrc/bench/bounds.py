"""How far two float32 results of one sum may be apart, and whether they are.

With u = 2^-24, a sum of n terms whose magnitudes add up to S is off by at most depth*u*S, to first order in u, where depth is
the largest number of roundings that one term goes through: n for terms added one by one; for the canonical order
min(n, 64) + min(ceil(n/64), 64) + ceil(n/4096), and 2 more for a product or a division. What is of second order is covered
by SLACK.
"""
import torch

U = 2.0 ** -24
SLACK = 1 + 2.0 ** -10


def depth(n):
    """Roundings of a term of canonical sums of n terms each; n is a tensor of float64."""
    blocks = torch.ceil(n / 64)
    return torch.clamp(n, max=64) + torch.clamp(blocks, max=64) + torch.ceil(n / 4096) + 2


class Wrong(RuntimeError):
    """The two results differ by more than they may."""


def same_bits(what, ours, theirs):
    """Of finite float32 tensors; zeros of either sign are equal."""
    if not torch.equal(ours, theirs):
        at = int((ours != theirs).view(-1).nonzero()[0])
        raise Wrong("%s: element %d is %r, PyTorch has %r" % (what, at, ours.view(-1)[at].item(), theirs.view(-1)[at].item()))
    return "bits equal"


def within(what, got, want, bound):
    """got is float32, want and bound float64."""
    over = (got.double() - want).abs() > bound * SLACK + 2.0 ** -149
    if bool(over.any()):
        at = int(over.view(-1).nonzero()[0])
        raise Wrong("%s: element %d is %r, want %r within %r" % (
            what, at, got.view(-1)[at].item(), want.view(-1)[at].item(), bound.view(-1)[at].item()))


def share_equal(a, b):
    """How many elements have equal values, for people."""
    return "within bounds, %.2f %% of values equal" % (100.0 * (a == b).double().mean().item())


def parts(n, step=1 << 22):
    """Slices of [0, n): float64 copies of everything at once would take too much memory."""
    return (slice(at, min(at + step, n)) for at in range(0, n, step))
