"""The weight of the KL penalty in the rewards: fixed, or steered towards a target."""

from __future__ import annotations

_MAX_ERROR = 0.2


class KLController:
    """A weight that grows while the KL is above its target and shrinks below it (Ziegler et al. 2019, section 2.2).

    e = clip(kl / target - 1, -0.2, 0.2); weight <- weight * (1 + e * num_samples / horizon). With the horizon of their
    code, 10,000 samples, a KL that stays 20 % off moves the weight by 20 % in that many. Source: arXiv:1909.08593, and
    openai/lm-human-preferences, train_policy.py: AdaptiveKLController.

    Args:
        kl_coef: The weight to start with.
        target: KL of a whole response, in nats; None: the weight stays.
        horizon: Samples, above 0.
    """

    def __init__(self, kl_coef: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.kl_coef = kl_coef
        self._target = target
        self._horizon = horizon

    def update(self, kl: float, num_samples: int) -> None:
        """Steer by what an iteration showed; nothing without a target.

        Args:
            kl: Mean over the samples of the sum of each one's k1.
            num_samples: That the mean is over.
        """
        if self._target is None:
            return
        error = min(max(kl / self._target - 1, -_MAX_ERROR), _MAX_ERROR)
        self.kl_coef *= 1 + error * num_samples / self._horizon

    def state_dict(self) -> dict[str, float]:
        """The weight as it is now."""
        return {"kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with a weight that was steered before; a fixed one is the configuration's."""
        if self._target is not None:
            self.kl_coef = state["kl_coef"]
