"""A model of 40 rows with a tokenizer of 12 tokens, two of which end a response: what is drawn and learned."""

import json
import math

import pytest
import torch

from relax_lightning.config import ArchitectureConfig
from relax_lightning.config.architecture import complete
from relax_lightning.megatron.export import _config, _Tokenizer, export_checkpoint

ROWS, TOKENS, ENDS = 40, 12, (0, 5)
VALIDATION = (
    "trainer.val_check_interval=1",
    "data.rollout.validation={mine: {class_path: relax_lightning.data.digits.ReversedDigits, init_args: {size: 400}}}",
)


def two_turns(samples, engine):
    """A second turn after whatever ended the first one."""
    first = engine.generate(samples)
    return engine.generate([engine.append(sample, "=") for sample in first])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import transformers

    from relax_lightning.data.digits import digit_tokenizer

    folder = tmp_path_factory.mktemp("forty")
    config = transformers.Qwen3Config(
        vocab_size=ROWS, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(5)
    transformers.Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    digit_tokenizer().save_pretrained(folder)
    # 33 is a row, but no token.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [*ENDS, 33]}))
    return folder


def keys(model, *more):
    return (
        f"model.actor.hf_checkpoint={model}",
        "model.actor.tokenizer=null",
        "model.actor.architecture=null",
        *more,
    )


def assert_ends(rollouts, num_turns):
    """Every turn ends with the first end token in it, or is cut off."""
    found = set()
    for tokens, mask, length, reason in zip(
        rollouts.response_tokens.tolist(), rollouts.response_mask.tolist(), rollouts.response_lengths.tolist(),
        rollouts.finish_reasons, strict=True,
    ):  # fmt: skip
        assert all(token < TOKENS for token in tokens)
        ends = [place for place in range(length) if mask[place] and tokens[place] in ENDS]
        found |= {tokens[place] for place in ends}
        assert len(ends) <= num_turns
        assert all(place + 1 == length or not mask[place + 1] for place in ends)
        # Text that is added where there is no room for it cuts a response off, however its turn ended.
        assert num_turns > 1 or (reason == "stop") == (bool(ends) and ends[-1] + 1 == length)
    return found


@pytest.fixture(scope="module")
def run(fit, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    more = (*VALIDATION, "callbacks.checkpoint.save_last=true", "model.algorithm.old_log_probs=recompute")
    more += ("model.reference={}", "model.algorithm.kl_coef=0.1")
    with pytest.warns(
        UserWarning, match=r"eos_token_id: \[33\] are no tokens of its tokenizer; they are ignored"
    ):
        made = fit(folder, *keys(model, *more))
    made.folder = folder
    return made


def test_rows_without_a_token_are_neither_drawn_nor_learned_from(run):
    for rollouts, experience in zip(run.rollouts, run.experiences, strict=True):
        mask = rollouts.response_mask
        assert ((experience.old_log_probs - rollouts.rollout_log_probs) * mask).abs().max() < 1e-5
    first = run.experiences[0]
    away = (first.ref_log_probs - first.rollouts.rollout_log_probs) * first.rollouts.response_mask
    assert away.abs().max() < 1e-5
    # A fresh model draws nearly evenly: 12 ways, not 40.
    assert math.log(TOKENS) - 0.1 < run.metrics[1]["actor/entropy"] < math.log(TOKENS)
    assert run.metrics[1]["mismatch/log_prob_abs_diff"] < 1e-6
    weights = run.module.actor.model.output_layer.weight
    start = run.states[1]["actor.weights.output_layer.weight"]
    # The decay of weights is all that moves them; digits.yaml has Megatron's 0.1.
    moved, shrunk = weights.detach() - start, start * (weights[20, 0].item() / start[20, 0].item() - 1)
    torch.testing.assert_close(moved[TOKENS:], shrunk[TOKENS:], atol=1e-7, rtol=1e-4)
    assert (moved[:TOKENS] - shrunk[:TOKENS]).abs().max() > 1e-4


def test_every_end_of_the_model_ends_a_response(run, fit, model, tmp_path, capsys):
    found = set().union(*(assert_ends(rollouts, 1) for rollouts in run.rollouts))
    assert found == set(ENDS)
    turns = fit(
        tmp_path, *keys(model), "data.rollout.function.class_path=tests.training.test_tokens.two_turns"
    )
    assert "a response also ends with 5 ('3')." in capsys.readouterr().out
    assert set().union(*(assert_ends(rollouts, 2) for rollouts in turns.rollouts)) == set(ENDS)
    # In an evaluation too: two fifths of the responses are cut off at five tokens; with one end it were two thirds.
    assert run.validations[0]["val/mine/response_truncated_fraction"] == pytest.approx(
        (10 / 12) ** 5, abs=0.1
    )
    forever = fit(tmp_path / "forever", *keys(model), "data.rollout.sampling.ignore_eos=true")
    assert all(set(rollouts.finish_reasons) == {"length"} for rollouts in forever.rollouts)


def test_what_is_exported_says_the_same(run, model, tmp_path, process_group):
    export_checkpoint(run.folder / "checkpoints/iter_0000002", tmp_path / "exported")
    said = json.loads((tmp_path / "exported" / "generation_config.json").read_text())
    assert said["eos_token_id"] == [*ENDS, 33]


def test_a_model_with_too_few_rows_is_refused_at_the_start(fit, tmp_path):
    with pytest.raises(
        ValueError, match=r"^model.actor.tokenizer: wanted tokens below 11, .*, got 11 for '9'; raise"
    ):
        fit(tmp_path / "run", "model.actor.architecture.vocab_size=11")
    assert not (tmp_path / "run" / "config.yaml").exists()


def exported_config(tokenizer):
    architecture = complete(
        ArchitectureConfig(num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=ROWS)
    )
    model = {"tokenizer": str(tokenizer), "hf_checkpoint": None, "dtype": "float32"}
    return _config(model, architecture, _Tokenizer(model, trusted=False))


def test_so_does_what_is_exported_of_a_model_from_scratch(model):
    config = exported_config(model)
    assert config["eos_token_id"] == [*ENDS, 33] and config["vocab_size"] == ROWS
    plain = exported_config("relax_lightning.data.digits.digit_tokenizer")
    assert plain["eos_token_id"] == 0
