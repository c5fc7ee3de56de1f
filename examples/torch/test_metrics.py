"""AUC and log loss against their definitions."""

import numpy as np
import pytest
import torch

import metrics


def test_auc_counts_pairs():
    draw = np.random.default_rng(1)
    for _ in range(20):
        scores, labels = draw.integers(0, 8, 60).astype(np.float32), draw.integers(0, 2, 60).astype(np.float32)
        positive, negative = scores[labels == 1][:, None], scores[labels == 0][None]
        want = ((positive > negative) + 0.5 * (positive == negative)).mean()
        assert metrics.auc(scores, labels) == pytest.approx(want, abs=1e-12)
    assert np.isnan(metrics.auc(scores, np.ones(60)))


def test_log_loss_is_pytorchs():
    x, y = torch.randn(100) * 20, (torch.rand(100) < 0.3).float()
    want = torch.nn.functional.binary_cross_entropy_with_logits(x.double(), y.double()).item()
    assert metrics.log_loss(x.numpy(), y.numpy()) == pytest.approx(want, rel=1e-12)
