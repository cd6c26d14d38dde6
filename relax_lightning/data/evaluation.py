"""One evaluation over all validation sets: what came out of each, and which of them failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_warn

from relax_lightning.algorithms.evaluation import majority_at_k, pass_at_k
from relax_lightning.config import PromptsConfig
from relax_lightning.data.rollout import Scores
from relax_lightning.distributed.peers import BrokenExchange


class Evaluation:
    """Collects the scores of every set batch by batch.

    Args:
        sets: What is configured of each set, by name.
        raises: Whether an error ends training; else the set is named and the others go on.
        where: Begins the warning of a set that failed, such as `iteration 20`.
    """

    def __init__(self, sets: Mapping[str, PromptsConfig], *, raises: bool, where: str) -> None:
        self._sets = sets
        self._raises = raises
        self._where = where
        self._scores: dict[str, list[Scores]] = {}
        self.failed: dict[str, str] = {}
        """Why a set has no scores, by name."""

    def add(self, name: str, scores: Scores) -> None:
        """One batch of a set."""
        self._scores.setdefault(name, []).append(scores)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Whatever an engine, a reward or a rollout function raises in the body becomes the failure of the set."""
        try:
            yield
        except (AssertionError, BrokenExchange):
            raise
        except Exception as error:  # a user's engine, reward or function can fail in any way
            if self._raises:
                error.add_note(f"{self._where}: this was the evaluation of {name}")
                raise
            self.failed[name] = f"{type(error).__name__}: {error}"
            rank_zero_warn(
                f"{self._where}: the evaluation of {name} failed, training goes on: {self.failed[name]} "
                "(data.rollout.on_validation_error: raise would end it)"
            )

    def metrics(self) -> dict[str, float]:
        """`val/<set>/...` over all samples of each set; of a set that failed, only that it did."""
        metrics = {f"val/{name}/failed": 1.0 for name in self.failed}
        for name, parts in self._scores.items():
            if name not in self.failed:
                of_set = _metrics_of_set(Scores.joined(parts), self._sets[name])
                metrics |= {f"val/{name}/{key.replace('/', '_')}": value for key, value in of_set.items()}
        return metrics


def _metrics_of_set(scores: Scores, config: PromptsConfig) -> dict[str, float]:
    of_prompts = sample_metrics(
        scores, num_samples=config.n_samples_per_prompt, correct_reward=config.correct_reward
    )
    return scores.metrics() | of_prompts


def sample_metrics(scores: Scores, *, num_samples: int, correct_reward: float) -> dict[str, float]:
    """mean@n, pass@k and maj@k, for k in 2, 4, 8, ... and n.

    Args:
        scores: Of all samples of a set, each prompt with all of its samples.
        num_samples: n, samples a prompt.
        correct_reward: Reward from which a response counts as right.
    """
    order = scores.sample_ids.sort(stable=True).indices
    shape = (-1, num_samples)
    correct = (scores.rewards >= correct_reward)[order].reshape(shape)
    answers = scores.answers.long()[order].reshape(shape)
    metrics = {f"mean_at_{num_samples}": float(correct.double().mean())}
    for k in _ks(num_samples):
        metrics[f"pass_at_{k}"] = float(pass_at_k(correct, k=k).mean())
        metrics[f"maj_at_{k}"] = float(majority_at_k(answers, correct, k=k).mean())
    return metrics


def _ks(num_samples: int) -> list[int]:
    powers = [2**n for n in range(1, num_samples.bit_length()) if 2**n < num_samples]
    return [*powers, num_samples] if num_samples > 1 else []
