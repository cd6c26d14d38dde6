"""What the files of a model say of its tokens, as the plan sees it."""

import json
import re

import pytest

from relax_lightning.config import load, resolve
from relax_lightning.plan.tokens import end_tokens
from tests.config.checking import found, only


def ends(base, *more):
    return end_tokens(resolve(load([], [*base, *more])))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ('{"eos_token_id": [7, 9]}', [7, 9]),
        ('{"eos_token_id": 7, "bos_token_id": 1}', [7]),
        ('{"eos_token_id": []}', []),
        ('{"eos_token_id": null}', []),
        ("{}", []),
        (None, [3, 5]),
    ],
)
def test_generation_config_says_what_ends_a_response_else_config(base, tmp_path, said, wanted):
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama", "eos_token_id": [3, 5]}')
    if said is not None:
        (tmp_path / "model" / "generation_config.json").write_text(said)
    assert ends(base) == wanted
    assert found(base) == []
    # A tokenizer beside the model changes nothing; that of a model from scratch is what its ids are of.
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": [11]}')
    assert ends(base, "model.actor.tokenizer=tokenizer") == wanted
    scratch = (
        "model.actor.architecture={num_layers: 1, hidden_size: 8, num_attention_heads: 1, vocab_size: 12}"
    )
    scratch = [*base, "model.actor.hf_checkpoint=null", scratch]
    assert ends(scratch, "model.actor.tokenizer=tokenizer") == [11]
    assert ends(scratch, "model.actor.tokenizer=relax_lightning.data.digits.digit_tokenizer") == []


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ('{"eos_token_id": "</s>"}', "as eos_token_id, got '</s>'; correct"),
        ('{"eos_token_id": [2, null]}', "as eos_token_id, got [2, None]; correct"),
        ('{"eos_token_id": [[2]]}', "as eos_token_id, got [[2]]; correct"),
        ('{"eos_token_id": 2.0}', "as eos_token_id, got 2.0; correct"),
        ('{"eos_token_id": true}', "as eos_token_id, got true; correct"),
        ("[2]", "generation_config.json: wanted a JSON object, got list; fetch"),
        ('{"eos_token_id": 2', "generation_config.json: wanted a JSON object, got none: Expecting"),
        (b"\xff\xfe", "generation_config.json: wanted a JSON object, got none: 'utf-8' codec"),
    ],
)
def test_what_is_no_token_is_named(base, tmp_path, said, got):
    path = tmp_path / "model" / "generation_config.json"
    path.write_bytes(said if isinstance(said, bytes) else said.encode())
    line = only(base)
    assert line.startswith("model.actor.hf_checkpoint: model") and got in line and "\n" not in line


VOCABULARY = {"<eos>": 0, **{str(digit): digit + 1 for digit in range(10)}, "z": 40}


@pytest.mark.parametrize(
    ("model", "added", "rows", "got"),
    [
        ({"vocab": VOCABULARY}, [], 12, "below 12, .*, got 40 for 'z'"),
        ({"vocab": VOCABULARY}, [], 40, "below 40, .*, got 40 for 'z'"),
        ({"vocab": VOCABULARY}, [], 41, None),
        ({"vocab": VOCABULARY}, [{"id": 41, "content": "<pad>"}], 41, "below 41, .*, got 41 for '<pad>'"),
        ({"vocab": [["<eos>", 0.0], ["a", -1.0], ["b", -2.0]]}, [], 2, "below 2, .*, got 2 for 'b'"),
        ({"vocab": [["<eos>", 0.0], ["a", -1.0], ["b", -2.0]]}, [], 3, None),
        ({}, [], 2, None),
    ],
)
def test_a_tokenizer_with_more_tokens_than_the_model_has_rows(base, tmp_path, model, added, rows, got):
    folder = tmp_path / "model"
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": rows}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    if got is None:
        assert found(base) == []
    else:
        assert re.match(f"model.actor.tokenizer: wanted tokens {got}; raise vocab_size", only(base))


def test_a_stop_token_beyond_the_model(base, tmp_path):
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama", "vocab_size": 12}')
    key = "data.rollout.sampling.stop_token_ids"
    assert found(base, f"{key}=[11]") == []
    validation = "data.rollout.validation={mine: {path: x.jsonl}}"
    assert only(base, f"{key}=[3, 12, 99]", validation, "trainer.val_check_interval=1") == (
        f"{key}: wanted tokens below 12, the rows of the model's vocabulary, got [12, 99]; correct them"
    )
    own = "data.rollout.validation={mine: {path: x.jsonl, sampling: {stop_token_ids: [12]}}}"
    line = only(base, own, "trainer.val_check_interval=1")
    assert line.startswith("data.rollout.validation.mine.sampling.stop_token_ids: wanted tokens below 12")
