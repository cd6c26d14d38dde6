"""Which tokens exist, and which of them end a response."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from relax_lightning.config import SamplingConfig
from relax_lightning.data.digits import digit_tokenizer
from relax_lightning.rollout.turns import Sample
from relax_lightning.rollout.vocabulary import Vocabulary
from tests.rollout.letters import ABSENT, Letters


class Nameless:
    """A tokenizer that does not say which tokens it has."""

    eos_token_id: Any = 7


class Counted(Nameless):
    """One that says how many."""

    def __len__(self) -> int:
        return 5


def with_holes() -> Any:
    """12 tokens, of which the largest is 40."""
    vocabulary = {"<eos>": 0, **{str(digit): 2 * digit + 2 for digit in range(10)}, "z": 40}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<eos>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def test_rows_without_a_name_are_absent() -> None:
    assert Vocabulary(digit_tokenizer(), 12).absent == frozenset()
    assert Vocabulary(digit_tokenizer(), 40).absent == set(range(12, 40))
    holes = with_holes()
    assert len(holes) == 12
    named = {0, *range(2, 21, 2), 40}
    assert Vocabulary(holes, 41).absent == set(range(41)) - named
    assert Vocabulary(holes, 64).absent == set(range(64)) - named
    # An added token has the next free id after the largest; special or not makes no difference.
    holes.add_tokens([AddedToken("<tool>", special=True), AddedToken("word")])
    assert set(holes.get_vocab().values()) - named == set(range(64)) - named - Vocabulary(holes, 64).absent
    assert Vocabulary(Letters(), 97).absent == {*ABSENT, 96}
    # Its end is a token whatever the number says; of one that says nothing every row may be drawn.
    assert Vocabulary(Counted(), 9).absent == {5, 6, 8}
    assert Vocabulary(Nameless(), 9).absent == frozenset()


@pytest.mark.parametrize(
    ("tokenizer", "rows", "got"),
    [
        (digit_tokenizer(), 11, "got 11 for '9'"),
        (with_holes(), 12, "got 40 for 'z'"),
        (with_holes(), 40, "got 40 for 'z'"),
        (Letters(), 93, "got 93 for '}'"),
        (Counted(), 4, "got 7 for 'eos_token_id'"),
        (Nameless(), 7, "got 7 for 'eos_token_id'"),
    ],
)
def test_a_token_without_a_row_is_refused(tokenizer: Any, rows: int, got: str) -> None:
    wanted = f"model.actor.tokenizer: wanted tokens below {rows}, the rows of the model's vocabulary, {got}"
    with pytest.raises(ValueError, match="raise vocab_size or give") as error:
        Vocabulary(tokenizer, rows)
    assert str(error.value).startswith(wanted)


def test_added_and_special_tokens_need_rows_too() -> None:
    padded = digit_tokenizer()
    padded.add_special_tokens({"pad_token": "<pad>"})
    with pytest.raises(ValueError, match="got 12 for '<pad>'"):
        Vocabulary(padded, 12)
    assert Vocabulary(padded, 13).absent == frozenset()
    own = Vocabulary(Nameless(), 9)
    own.check_prompts("train", [[1, 8], [3]])
    with pytest.raises(ValueError, match=r"below 9, .*, got 9 for 'prompts train'"):
        own.check_prompts("train", [[1, 8], [9, 3]])


def test_ends_of_the_model_are_added_to_the_tokenizers() -> None:
    vocabulary = Vocabulary(with_holes(), 64, [4, 0, 40, 40, 3, 99, -1])
    assert vocabulary.ends == [4, 40]
    assert vocabulary.unknown_ends == [3, 99, -1]
    sampling = SamplingConfig(stop_token_ids=[6])
    assert vocabulary.ending(sampling).stop_token_ids == [6, 4, 40]
    forever = SamplingConfig(stop_token_ids=[6], ignore_eos=True)
    assert vocabulary.ending(forever) == forever
    several = Nameless()
    several.eos_token_id = [1, 2]
    assert Vocabulary(several, 9, [2, 3]).ends == [3]


def test_an_engine_that_draws_a_row_without_a_token_is_named() -> None:
    vocabulary = Vocabulary(digit_tokenizer(), 40)
    fine = Sample(3, (1,), "", None, token_ids=(4, 30, 11), mask=(True, False, True), log_probs=(0.0,) * 3)
    vocabulary.refuse_absent([fine])
    wrong = Sample(4, (1,), "", None, token_ids=(4, 30, 11), mask=(True,) * 3, log_probs=(0.0,) * 3)
    with pytest.raises(RuntimeError, match=r"sample 4: the engine drew \[30\], for which the model has rows"):
        vocabulary.refuse_absent([fine, wrong])
