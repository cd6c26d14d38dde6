"""Responses of several turns: what a rollout function gets, what it gives back, and what is looked at in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from relax_lightning.config import SamplingConfig
from relax_lightning.distributed.peers import ALONE, BrokenExchange, Peers
from relax_lightning.rollout.engine import Generation, RolloutEngine, Tokenizer


@dataclass(frozen=True)
class Sample:
    """A prompt and its response so far: tokens that the policy generated, and others, such as a tool's output."""

    sample_id: int
    prompt_token_ids: tuple[int, ...]
    prompt: str
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    """Goes on to the reward; a rollout function may replace it to tell the reward what happened."""
    token_ids: tuple[int, ...] = ()
    """The response."""
    mask: tuple[bool, ...] = ()
    """True on tokens that the policy generated and may learn from, one a token of the response."""
    log_probs: tuple[float, ...] = ()
    """What the engine reported, one a token of the response; not looked at where the mask is False."""
    finish_reason: str = "stop"
    """`stop`, or `length` where the response was cut off."""

    def with_generation(self, generation: Generation) -> Sample:
        """The sample with what the policy generated next."""
        return replace(
            self,
            token_ids=self.token_ids + generation.token_ids,
            mask=self.mask + (True,) * len(generation.token_ids),
            log_probs=self.log_probs + generation.log_probs,
            finish_reason=generation.finish_reason,
        )

    def with_tokens(self, token_ids: Sequence[int]) -> Sample:
        """The sample with tokens that the policy did not generate."""
        count = len(token_ids)
        return replace(
            self,
            token_ids=self.token_ids + tuple(token_ids),
            mask=self.mask + (False,) * count,
            log_probs=self.log_probs + (0.0,) * count,
        )

    @property
    def last_turn(self) -> tuple[int, ...]:
        """The generated tokens at the end of the response; empty where it ends with others."""
        start = len(self.mask)
        while start > 0 and self.mask[start - 1]:
            start -= 1
        return self.token_ids[start:]


class RolloutFunction(Protocol):
    """Makes the responses of a round of generation, turn by turn. A function is one, so is an instance with `__call__`.

    Named by `data.rollout.function`; used for training and for evaluation.
    """

    def __call__(self, samples: Sequence[Sample], engine: TurnEngine, /) -> Sequence[Sample]:
        """The same samples in the same order, with their responses."""
        ...


@dataclass(frozen=True)
class _Turn:
    """What the engine was asked after, and what it answered."""

    before: tuple[int, ...]
    generation: Generation


class TurnEngine:
    """The rollout engine as a rollout function sees it: it asks for turns, and puts other text between them.

    A response may have `sampling.max_new_tokens` tokens, those between the turns included. The draw of a token depends
    on (seed, sample id, position in the response) alone, however the turns are cut and whatever else is generated.

    Args:
        engine: What generates.
        tokenizer: The policy's.
        sampling: How to draw.
        seed: Of this round of generation.
        peers: All processes of the job; each has an engine, or a part of one, that generates its share.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        sampling: SamplingConfig,
        seed: int,
        peers: Peers = ALONE,
    ) -> None:
        self.sampling = sampling
        self._engine = engine
        self._tokenizer = tokenizer
        self._seed = seed
        self._peers = peers
        self._leads = False
        """Whether this process runs a rollout function whose turns the others wait for."""
        self._turns: dict[int, list[_Turn]] = defaultdict(list)

    def generate(
        self, samples: Sequence[Sample], *, stop: Sequence[str] = (), stop_token_ids: Sequence[int] = ()
    ) -> list[Sample]:
        """The samples with one more turn each; one without room for a token comes back as it is, cut off.

        Args:
            samples: Any number of them, in any order.
            stop: Strings that end this turn, besides those of the sampling.
            stop_token_ids: Tokens that end it, besides those of the sampling and the end of the sequence.

        Raises:
            ValueError: `stop` is not a sequence of strings that are not empty.
        """
        # A string is a sequence of strings too: of its letters.
        if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
            raise ValueError(
                f"stop: wanted strings that are not empty, in a list, got {stop!r}; give stop=[...]"
            )
        sampling = replace(
            self.sampling,
            stop=[*self.sampling.stop, *stop],
            stop_token_ids=[*self.sampling.stop_token_ids, *stop_token_ids],
        )
        asked = [sample for sample in samples if self.room(sample) > 0]
        generations = iter(self._generate(asked, sampling))
        return [
            sample.with_generation(next(generations))
            if self.room(sample) > 0
            else replace(sample, finish_reason="length")
            for sample in samples
        ]

    def led_by_first(self, action: Callable[[], list[Sample]]) -> list[Sample]:
        """What `action` gives on the first process; the others generate their share of its turns meanwhile.

        Raises:
            PeerError: Another process failed; its own error is raised there.
        """
        if self._peers.size == 1:
            return action()

        def part() -> list[Sample]:
            if not self._peers.is_first:
                self._serve()
                return []
            self._leads = True
            try:
                return action()
            finally:
                self._release()

        return self._peers.collect(part)[0]

    def _serve(self) -> None:
        nothing: Any = None
        while (request := self._peers.gather(nothing)[0]) is not None:
            self._answer(*request)

    def _release(self) -> None:
        if self._leads:
            self._leads = False
            self._peers.gather(None)

    def _generate(self, samples: Sequence[Sample], sampling: SamplingConfig) -> list[Generation]:
        if not samples:
            return []
        if self._leads:
            self._peers.gather((samples, sampling))
        try:
            generations = self._answer(samples, sampling)
        except Exception:
            # Every process has learnt of it, and none waits for another turn.
            self._leads = False
            raise
        for sample, generation in zip(samples, generations, strict=True):
            self._turns[sample.sample_id].append(_Turn(sample.token_ids, generation))
        return generations

    def _answer(self, samples: Sequence[Sample], sampling: SamplingConfig) -> list[Generation]:
        """A turn for each sample: every engine generates its share, and all processes learn all of them."""
        share = self._engine.share
        rows = share.rows(len(samples))

        def generate() -> tuple[int, list[Generation]] | None:
            if not share.generates or not rows:
                return None
            answers = self._ask_engine([samples[row] for row in rows], sampling)
            return (share.index, answers) if share.reports else None

        parts = dict(part for part in self._peers.collect(generate) if part is not None)
        return [generation for _, answers in sorted(parts.items()) for generation in answers]

    def _ask_engine(self, samples: Sequence[Sample], sampling: SamplingConfig) -> list[Generation]:
        try:
            return self._engine.generate(
                [sample.prompt_token_ids + sample.token_ids for sample in samples],
                [sample.sample_id for sample in samples],
                sampling,
                self._seed,
                [len(sample.token_ids) for sample in samples],
            )
        except Exception as error:
            if self._engine.share.is_alone:
                raise
            raise BrokenExchange(f"{type(error).__name__}: {error}") from error

    def room(self, sample: Sample) -> int:
        """How many tokens the response may still have."""
        return max(0, self.sampling.max_new_tokens - len(sample.token_ids))

    def append(self, sample: Sample, text: str) -> Sample:
        """The sample with text that the policy did not generate; cut off where there is no room for all of it."""
        return self.append_tokens(sample, self._tokenizer.encode(text, add_special_tokens=False))

    def append_tokens(self, sample: Sample, token_ids: Sequence[int]) -> Sample:
        """The sample with tokens that the policy did not generate; cut off where there is no room for all of them."""
        room = self.room(sample)
        longer = sample.with_tokens(token_ids[:room])
        return longer if len(token_ids) <= room else replace(longer, finish_reason="length")

    def text(self, token_ids: Sequence[int]) -> str:
        """Tokens as text, without special ones."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def was_generated(self, sample: Sample, start: int, end: int) -> bool:
        """Whether the engine generated tokens `start` to `end` of the response, after what stands before them now."""
        while start < end:
            reached = max(
                (self._matches(turn, sample, start) for turn in self._turns[sample.sample_id]), default=0
            )
            if reached <= start:
                return False
            start = reached
        return True

    def _matches(self, turn: _Turn, sample: Sample, start: int) -> int:
        """The place in the response up to which it is, from `start` on, what the turn gave; 0: it is not."""
        first = len(turn.before)
        offset, tokens, log_probs = start - first, turn.generation.token_ids, turn.generation.log_probs
        if not 0 <= offset < len(tokens) or sample.token_ids[:start] != turn.before + tokens[:offset]:
            return 0
        end = start
        while (
            end - first < len(tokens)
            and end < len(sample.mask)
            and sample.mask[end]
            and (sample.token_ids[end], sample.log_probs[end])
            == (tokens[end - first], log_probs[end - first])
        ):
            end += 1
        return end
