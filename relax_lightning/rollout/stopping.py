"""Where a response ends, and whether a prompt leaves room for one: the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.engine import Tokenizer
from relax_lightning.rollout.vocabulary import end_tokens

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What stands for bytes that are no character, or not all of one."""


class StopCondition:
    """Whether a response has ended of itself.

    Attributes:
        token_ids: Tokens that end a response.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingConfig) -> None:
        self._tokenizer = tokenizer
        self._strings = sampling.stop
        # A token may be one byte of a character. Twice as many, for some leave no text behind, and blanks may be
        # taken back; and a few, since the first token's text may begin otherwise than in the midst of others.
        self._window = 2 * max((len(s.encode()) for s in sampling.stop), default=0) + 4
        own = set() if sampling.ignore_eos else end_tokens(tokenizer)
        self.token_ids = {*own, *sampling.stop_token_ids}

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Whether the last token ends the response."""
        return tokens[-1] in self.token_ids or (
            bool(self._strings) and self._completes_string(tokens, len(tokens))
        )

    def length(self, tokens: Sequence[int]) -> int | None:
        """Tokens up to the first one that ends the response, that one included; None: it goes on."""
        first = next((n for n, token in enumerate(tokens, 1) if token in self.token_ids), None)
        tokens = tokens[:first]
        text = self._tokenizer.decode(tokens) if self._strings else ""
        # What follows a string may spoil it: a tokenizer of single bytes gives up all bytes around a wrong one.
        if _BROKEN in text or self._is_in(text):
            return next((n for n in range(1, len(tokens) + 1) if self._completes_string(tokens, n)), first)
        return first

    def _completes_string(self, tokens: Sequence[int], end: int) -> bool:
        """Whether a stop string stands in the text of the last tokens before `end`."""
        start = max(0, end - self._window)
        text = self._tokenizer.decode(tokens[start:end])
        # It may begin in the midst of a character, of three more bytes at most, and spoil the bytes after it as well.
        for earlier in range(start - 1, max(-1, start - 4), -1):
            if not text.startswith(_BROKEN):
                break
            text = self._tokenizer.decode(tokens[earlier:end])
        return self._is_in(text)

    def _is_in(self, text: str) -> bool:
        return any(s in text for s in self._strings)


def response_limits(
    prompts: Sequence[Sequence[int]], begun: Sequence[int], max_new_tokens: int, max_length: int
) -> list[int]:
    """How many tokens may follow each prompt.

    Args:
        prompts: Token ids of each sample, with what there is of its response.
        begun: How many of them belong to the response already.
        max_new_tokens: Longest response.
        max_length: The model's context, in tokens.

    Raises:
        ValueError: A prompt is empty, leaves no room in the context, or its response is as long as it may be.
    """
    for index, (prompt, num_begun) in enumerate(zip(prompts, begun, strict=True)):
        if not prompt:
            raise ValueError(f"prompt {index} is empty; a response needs at least one token to follow")
        if len(prompt) >= max_length:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, which leaves no room for a response in the model's context "
                f"of {max_length}; set max_prompt_tokens"
            )
        if not 0 <= num_begun < min(len(prompt), max_new_tokens):
            raise ValueError(
                f"prompt {index}: wanted fewer than the {len(prompt)} tokens of the prompt and than max_new_tokens = "
                f"{max_new_tokens} to belong to its response already, got {num_begun}; end such a sample"
            )
    return [
        min(max_new_tokens - num_begun, max_length - len(prompt))
        for prompt, num_begun in zip(prompts, begun, strict=True)
    ]
