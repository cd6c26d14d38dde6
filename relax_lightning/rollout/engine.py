"""What a rollout engine is: the protocol that the embedded engine and every other one fill."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from relax_lightning.config import SamplingConfig
from relax_lightning.distributed.peers import Peers


@dataclass(frozen=True)
class Generation:
    """One response as the engine gives it."""

    token_ids: tuple[int, ...]
    """The response, the token or string that ended it included."""
    log_probs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature, not renormalized for top_p and top_k."""
    finish_reason: str
    """`stop` or `length`."""

    def __reduce__(self) -> Any:
        """Travels between processes as two arrays, which take a fraction of the time of as many numbers."""
        return _unpacked, (array("q", self.token_ids), array("d", self.log_probs), self.finish_reason)


def _unpacked(token_ids: array[int], log_probs: array[float], finish_reason: str) -> Generation:
    return Generation(tuple(token_ids), tuple(log_probs), finish_reason)


@dataclass(frozen=True)
class Share:
    """The part of the samples that one engine generates, and what this process has to do with it.

    Args:
        index: Which of `count` parts.
        count: Engines, or replicas of the model, that generate at the same time.
        generates: Whether this process calls `generate`; false beside an engine that another process drives.
        reports: Whether the answer of this process is the one that counts.
        is_alone: Whether no other process works on this part; else an error here leaves them in the middle of it.
    """

    index: int = 0
    count: int = 1
    generates: bool = True
    reports: bool = True
    is_alone: bool = True

    def rows(self, num_samples: int) -> range:
        """The samples of this part: one run of neighbours, so that samples of a prompt stay together."""
        return range(self.index * num_samples // self.count, (self.index + 1) * num_samples // self.count)


class Decoder(Protocol):
    """Batched decoding with a KV cache: what the embedded engine asks of the actor."""

    @property
    def max_length(self) -> int:
        """Longest prompt and response together, in tokens."""
        ...

    def begin(self, prompts: Sequence[Sequence[int]], rows: Sequence[int], capacity: int) -> Tensor:
        """Read distinct prompts; `rows` names each row's prompt; [rows, vocabulary] logits of the first tokens."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """[rows] int64 new tokens in, [rows, vocabulary] logits of the next ones out."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep the given rows [kept] int64."""
        ...

    def end(self) -> None:
        """Free the cache."""
        ...


class WeightSource(Protocol):
    """The policy, as an engine sees it."""

    @property
    def peers(self) -> Peers:
        """All processes of the job."""
        ...

    @property
    def share(self) -> Share:
        """The part of the samples of an engine that generates with `decoder`."""
        ...

    def decoder(self) -> Decoder:
        """A decoder on the policy's own weights."""
        ...

    def hf_config(self) -> dict[str, Any]:
        """The policy's Hugging Face `config.json`, without special tokens."""
        ...

    def hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight as it is now: Hugging Face name and whole tensor, valid until the policy is next updated.

        All processes of the job take all of them, one after another.
        """
        ...


class Tokenizer(Protocol):
    """The part of a tokenizer that engines and data need; transformers' tokenizers have it."""

    eos_token_id: Any

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        """Tokens of a text."""
        ...

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        """Text of tokens."""
        ...


@runtime_checkable
class HoldsMemory(Protocol):
    """An engine with GPU memory of its own, which it can give up part by part while it does not generate."""

    @property
    def weights_lost(self) -> bool:
        """Whether it has given up its weights since the last publication."""
        ...

    def borrow_policy(
        self,
        borrow: Callable[[], AbstractContextManager[None]],
        vacated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """What a restart in the midst of a phase takes.

        Args:
            borrow: Within it the policy's weights are on the GPU, whatever the phase: to publish anew.
            vacated: Within it the roles are not: to take as much memory as at first.
        """
        ...

    def memory(self) -> dict[str, int]:
        """Bytes a GPU of `weights`, `kv_cache` and `cuda_graph`; waits until the engine has taken them."""
        ...

    def offload(self, tags: Collection[str]) -> None:
        """Free parts; the weights' contents are lost."""
        ...

    def onload(self, tags: Collection[str]) -> None:
        """Take parts back; the weights are undefined until the next publication."""
        ...


@runtime_checkable
class RolloutEngine(Protocol):
    """Generates responses with the weights that were last published to it.

    Every process of the job has one of these objects and calls `attach`, `publish`, `verify` and `close` at the same
    time; `generate` where `share` says so.
    """

    weight_version: int
    """Number of publications so far."""

    @property
    def share(self) -> Share:
        """The part of the samples that this process's engine generates; known once it is attached."""
        ...

    def attach(self, source: WeightSource, tokenizer: Tokenizer) -> None:
        """Bind the engine to the policy whose weights it serves. Called once, before the first `publish`."""
        ...

    def publish(self) -> int:
        """Take the policy's weights as they are now; returns the new weight version."""
        ...

    def verify(self) -> None:
        """Compare every tensor that the engine generates with, with the policy's; after a `publish`.

        Raises:
            RuntimeError: Names the tensors that differ.
        """
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sample_ids: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        num_response_tokens: Sequence[int] | None = None,
    ) -> list[Generation]:
        """One response for each prompt, or the rest of one, in order.

        Args:
            prompts: Token ids, one entry a sample; equal prompts may repeat.
            sample_ids: Global id of each sample: a draw depends only on (seed, sample id, position).
            sampling: How to draw.
            seed: Of this round of generation.
            num_response_tokens: How many tokens at the end of each prompt belong to the response already: positions
                are counted on from there, and they count towards `sampling.max_new_tokens`. None: none do.

        Raises:
            ValueError: A prompt is empty, its response is as long as it may be, or it leaves no room for a response in
                the model's context.
        """
        ...

    def close(self) -> None:
        """End the engine."""
        ...
