"""Estimators of the KL divergence from a reference policy, one number a token."""

from __future__ import annotations

from torch import Tensor

from relax_lightning.algorithms.aggregation import clean
from relax_lightning.algorithms.shapes import check_shapes

KL_ESTIMATORS = ("k1", "k2", "k3")


def estimate_kl(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, *, estimator: str) -> Tensor:
    """KL(policy, reference) of each token from its two log-probs (Schulman 2020, "Approximating KL Divergence").

    With r = log_probs - ref_log_probs: k1 = r, k2 = r^2 / 2, k3 = exp(-r) - 1 + r.

    Args:
        log_probs: [batch, response], with gradient.
        ref_log_probs: [batch, response], of the reference policy.
        mask: [batch, response] bool.
        estimator: `k1`, `k2` or `k3`.

    Returns:
        [batch, response] with gradient, 0 where masked.

    Raises:
        ValueError: Another estimator.
    """
    check_shapes(mask, log_probs=log_probs, ref_log_probs=ref_log_probs)
    log_ratio = clean(log_probs, mask) - clean(ref_log_probs.detach(), mask)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        # exp(-r) overflows float32 for a token the policy has all but given up.
        return (-log_ratio).clamp(max=20.0).expm1() + log_ratio
    raise ValueError(f"the KL estimator must be one of {', '.join(KL_ESTIMATORS)}, got {estimator!r}")
