"""Stop strings of every script, spelled in whole tokens, in parts of characters, and by tokenizers of single bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.stopping import StopCondition

STOPS = (
    "END", "</answer>", "\n\n", " stop", "答案结束", "🧬🧬🧬", "👨‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301nd", "نهاية",
    "हिन्दी", "각", "ﷺ",
)  # fmt: skip
BEFORE, AFTER = ("", "x", "abc ", "答案", "🧬", "中文字符" * 3, "é", "xx\u200d"), ("", "y", "🧬", "结")


def bytes_in_pairs() -> Any:
    """Byte-level BPE: merges of two bytes in the midst of characters, so that tokens begin and end anywhere."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    shown = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(shown.pre_tokenize_str("".join(STOPS) + "中文字符结答案🧬é")[0][0])
    pairs = sorted({(text[i], text[i + 1]) for i in range(0, len(text) - 1, 3)})
    vocabulary = {piece: token for token, piece in enumerate([*letters, *map("".join, pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer, tokenizer.decoder = shown, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def bytes_as_a_last_resort() -> Any:
    """As SentencePiece's byte fallback: a character that is no token is its bytes, `<0xE7>` and so on."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    ]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {"pairs": bytes_in_pairs, "fallback": bytes_as_a_last_resort}


def assert_found(tokenizer: Any, stop: str, tokens: list[int]) -> int | None:
    """The first token after which the whole text holds the string, for the engine's and for the server's way."""
    counts = range(1, len(tokens) + 1)
    wanted = next((n for n in counts if stop in tokenizer.decode(tokens[:n])), None)
    condition = StopCondition(tokenizer, SamplingConfig(stop=["never at all", stop]))
    assert next((n for n in counts if condition(tokens[:n])), None) == wanted, (stop, tokens)
    assert condition.length(tokens) == wanted, (stop, tokens)
    return wanted


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(kind: str) -> None:
    tokenizer, draw = TOKENIZERS[kind](), random.Random(4)
    for stop in STOPS:
        for before in BEFORE:
            for after in AFTER:
                text = f"{before}{stop}{after}中zz"
                found = assert_found(tokenizer, stop, tokenizer.encode(text))
                assert found is not None
        for _ in range(20):
            noise = [draw.randrange(len(tokenizer)) for _ in range(25)]
            assert_found(tokenizer, stop, [*noise[:20], *tokenizer.encode(stop), *noise[20:]])


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    eos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.num_decoded = 0

    def decode(self, token_ids: list[int]) -> str:
        self.num_decoded += len(token_ids)
        return self.tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_cost_of_a_token_does_not_grow_with_the_response(kind: str) -> None:
    tokenizer = Counting(TOKENIZERS[kind]())
    condition = StopCondition(tokenizer, SamplingConfig(stop=["🧬🧬🧬"]))
    # One byte that is no character, again and again.
    lone = next(t for t in range(200) if tokenizer.decode([t]) == "\N{REPLACEMENT CHARACTER}")
    costs = []
    for length in (100, 4000):
        tokenizer.num_decoded = 0
        assert not condition([lone] * length)
        costs.append(tokenizer.num_decoded)
    assert costs[0] == costs[1] < 150
    tokenizer.num_decoded = 0
    assert condition.length([lone] * 4000) is None
    assert tokenizer.num_decoded < 4000 * 151
