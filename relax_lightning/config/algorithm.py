"""Configuration of the PPO arithmetic: `model.algorithm`."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.faults import above, at_least, finite, one_of, refuse, within
from relax_lightning.config.keys import key


@dataclass(frozen=True)
class AlgorithmConfig:
    """Advantages, losses, and how often a batch is used."""

    advantage_estimator: str = key("ppo", "only `ppo`: GAE with a critic")
    gamma: float = key(1.0, "discount, in [0, 1]")
    lambd: float = key(1.0, "GAE lambda, in [0, 1]")
    lambd_critic: float | None = key(None, "lambda of the critic's returns; null follows lambd")
    lambd_length_alpha: float | None = key(
        None, "length-adaptive lambda = 1 - 1/(alpha * length), not below 0; null: off"
    )
    eps_clip: float = key(0.2, "lower margin of the probability ratio")
    eps_clip_high: float | None = key(None, "upper margin of the probability ratio; null follows eps_clip")
    eps_clip_c: float | None = key(
        None, "dual clip, above 1: for A < 0 the loss is capped at -c*A; null: off"
    )
    value_clip: float | None = key(0.2, "margin of the clipped value around the old one; null: no clipping")
    entropy_coef: float = key(0.0, "weight of the entropy bonus in the actor's loss")
    kl_coef: float = key(0.0, "weight of the KL to the reference in the rewards; needs model.reference")
    use_kl_loss: bool = key(False, "add the KL to the reference to the actor's loss; needs model.reference")
    kl_loss_coef: float = key(0.0, "weight of the KL in the actor's loss, with use_kl_loss")
    kl_loss_type: str = key("k1", "estimator of the KL: k1 | k2 | k3")
    kl_target: float | None = key(
        None, "KL of a response, in nats, that kl_coef is steered to; null: kl_coef stays as it is"
    )
    kl_horizon: int = key(10_000, "samples in which a KL that is 20 % off moves kl_coef by 20 %")
    normalize_advantages: bool = key(False, "whiten advantages over all trainable tokens of the rollout")
    old_log_probs: str = key(
        "rollout", "rollout: the engine's log-probs; recompute: one actor forward before the updates"
    )
    importance_cap: float | None = key(
        None, "largest importance weight between engine and trainer; null: no such weights"
    )
    importance_floor: float | None = key(None, "smallest importance weight; null: 0")
    importance_level: str = key("token", "probabilities that are compared: token | sequence")
    importance_mode: str = key(
        "truncate", "a weight outside floor and cap becomes: truncate (the bound) | mask (0)"
    )
    truncation: str = key("terminal", "what a cut response ends with: terminal | bootstrap | mask")
    loss_aggregation: str = key("token_mean", "mean of the loss over: token_mean | sequence_mean")
    positive_nll_coef: float = key(
        0.0, "weight of the negative log-likelihood of samples that did well, in the actor's loss"
    )
    positive_nll_threshold: float = key(0.0, "a sample did well when its reward is above this")
    num_ppo_epochs: int = key(1, "passes over the rollouts of an iteration by the actor")
    num_critic_epochs: int | None = key(
        None, "passes over the rollouts of an iteration by the critic; null follows num_ppo_epochs"
    )
    target_kl: float | None = key(
        None, "end the actor's passes of an iteration above this ppo_kl_k3; null: off"
    )

    def __post_init__(self) -> None:
        refuse(
            within(self, 0, 1, "gamma", "lambd", "lambd_critic"),
            above(self, 0, "lambd_length_alpha", "eps_clip", "eps_clip_high", "value_clip"),
            above(self, 0, "importance_cap", "target_kl", "kl_target"),
            above(self, 1, "eps_clip_c"),
            at_least(self, 0, "entropy_coef", "kl_coef", "kl_loss_coef", "positive_nll_coef"),
            at_least(self, 0, "importance_floor"),
            at_least(self, 1, "num_ppo_epochs", "num_critic_epochs", "kl_horizon"),
            finite(self, "positive_nll_threshold"),
            one_of(self, ("k1", "k2", "k3"), "kl_loss_type"),
            one_of(self, ("rollout", "recompute"), "old_log_probs"),
            one_of(self, ("token", "sequence"), "importance_level"),
            one_of(self, ("truncate", "mask"), "importance_mode"),
            one_of(self, ("terminal", "bootstrap", "mask"), "truncation"),
            one_of(self, ("token_mean", "sequence_mean"), "loss_aggregation"),
        )
