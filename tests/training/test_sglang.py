"""Training with SGLang as the engine: by overrides alone, it is the training that the embedded engine gives."""

import torch


def test_two_iterations_with_a_running_server(fit, sglang_engine, tiny_model, tmp_path):
    client = sglang_engine._client
    key = client._headers["Authorization"].removeprefix("Bearer ")
    model = (
        "model.actor.architecture=null",
        f"model.actor.hf_checkpoint={tiny_model('qwen3')}",
        "model.actor.tokenizer=tests.rollout.letters.Letters",
        "strategy.verify_publish=true",
    )
    engine = (
        "data.rollout.engine.class_path=SGLangEngine",
        f"data.rollout.engine.init_args={{url: '{client.url}', api_key: '{key}', timeout_seconds: 300}}",
    )
    embedded = fit(tmp_path / "embedded", *model)
    run = fit(tmp_path / "sglang", *model, *engine)
    assert sorted(run.metrics) == [1, 2]
    for iteration in (1, 2):
        assert 0 < run.metrics[iteration]["mismatch/log_prob_abs_diff"] < 1e-4
    assert [r.weight_version for r in run.rollouts] == [1, 2]
    # Draws have the same names in both engines, so the weights take the same way.
    for ours, theirs in zip(run.rollouts, embedded.rollouts, strict=True):
        assert torch.equal(ours.response_tokens, theirs.response_tokens)
        assert torch.allclose(ours.rollout_log_probs, theirs.rollout_log_probs, atol=1e-4)
    for name in (n for n in embedded.states[2] if ".weights." in n):
        torch.testing.assert_close(run.states[2][name], embedded.states[2][name], atol=2e-4, rtol=1e-3)
