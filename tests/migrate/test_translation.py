"""Flag by flag: which key, which value, and why there is none."""

import pytest

from relax_lightning.config.explain import explain
from relax_lightning.config.names import FOREIGN_NAMES, known_keys
from relax_lightning.config.yaml_text import parse_yaml
from relax_lightning.migrate.document import write_document
from relax_lightning.migrate.flag_words import Flag, read_flags
from relax_lightning.migrate.flags import TABLE
from relax_lightning.migrate.rules import CannotTranslate, Flags, Setting
from relax_lightning.migrate.shell_text import Variable

ALGORITHM, OPTIMIZER = "model.algorithm", "model.actor.optimizer"
ENGINE, SAMPLING = "data.rollout.engine.init_args", "data.rollout.sampling"


def settings(translation):
    return {setting.key: setting.value for setting in translation.settings}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--lambd 0.95", {f"{ALGORITHM}.lambd": 0.95}),
        ("--eps-clip-c 3", {f"{ALGORITHM}.eps_clip_c": 3}),
        ("--normalize-advantages", {f"{ALGORITHM}.normalize_advantages": True}),
        ("--use-rollout-logprobs", {f"{ALGORITHM}.old_log_probs": "rollout"}),
        ("--calculate-per-token-loss", {f"{ALGORITHM}.loss_aggregation": "token_mean"}),
        ("--kl-loss-type low_var_kl", {f"{ALGORITHM}.kl_loss_type": "k3"}),
        ("--use-tis", {f"{ALGORITHM}.importance_cap": 2.0}),
        ("--use-tis --tis-clip 5", {f"{ALGORITHM}.importance_cap": 5}),
        ("--adam-beta1 0.8 --adam-beta2 0.95", {f"{OPTIMIZER}.betas": [0.8, 0.95]}),
        ("--adam-beta2 0.98", {f"{OPTIMIZER}.betas": [0.9, 0.98]}),
        ("--adam-beta1 0.8", {f"{OPTIMIZER}.betas": [0.8, 0.999]}),
        ("--optimizer-cpu-offload", {f"{OPTIMIZER}.cpu_offload_fraction": 1.0}),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            {f"{OPTIMIZER}.cpu_offload_fraction": 0.5},
        ),
        (
            "--lr-decay-style cosine --min-lr 1e-7",
            {f"{OPTIMIZER}.decay": "cosine", f"{OPTIMIZER}.min_lr": 1e-7},
        ),
        ("--lr-warmup-iters 10", {"callbacks.lr_warmup.actor.num_iters": 10}),
        ("--lr ${LR:-2e-6}", {f"{OPTIMIZER}.lr": "${oc.env:LR,'2e-6'}"}),
        ("--micro-batch-size 2", {"model.micro_batch_size": 2}),
        ("--use-dynamic-batch-size --max-tokens-per-gpu 4096", {"model.max_tokens_per_microbatch": 4096}),
        (
            "--use-dynamic-batch-size --max-tokens-per-gpu 4096 --context-parallel-size 2",
            {"model.max_tokens_per_microbatch": 8192, "model.actor.parallel.context": 2},
        ),
        (
            "--num-steps-per-rollout 4 --rollout-batch-size 32 --n-samples-per-prompt 8",
            {"model.global_batch_size": 64},
        ),
        ("--global-batch-size 64 --n-samples-per-prompt 8", {"data.rollout.batch_size": 8}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel",
            {"model.actor.parallel.tensor": 2, "model.actor.parallel.sequence": True},
        ),
        ("--recompute-granularity full", {"model.actor.recompute": "full", "model.critic.recompute": "full"}),
        ("--recompute-activations", {"model.critic.recompute": "selective"}),
        (
            "--save $D/a/ --critic-save $D/c",
            {"trainer.default_root_dir": "${oc.env:D}", "model.critic.save": "${oc.env:D}/c"},
        ),
        ("--save $D/a --critic-save /c", {"trainer.default_root_dir": "${oc.env:D}/a"}),
        ("--save ${D:-/x/y}", {"trainer.default_root_dir": "${oc.env:D,/x/y}"}),
        (
            "--load /old --critic-load /old/c --save /new",
            {"model.actor.load": "/old", "model.critic.load": "/old/c"},
        ),
        (
            "--rollout-stop 'a b' 7 --rollout-stop-token-ids 1 2",
            {f"{SAMPLING}.stop": ["a b", "7"], f"{SAMPLING}.stop_token_ids": [1, 2]},
        ),
        ("--rollout-top-k -1 --rollout-top-p=0.9", {f"{SAMPLING}.top_k": -1, f"{SAMPLING}.top_p": 0.9}),
        ("--wandb-project 007 --tb-project-name mine", {"tracking.mlflow.experiment": "007"}),
        (
            "--rollout-num-gpus-per-engine 2 --sglang-enable-metrics --sglang-attention-backend fa3"
            " --sglang-cuda-graph-bs 1 2 $(seq 4 4 8) --sglang-disable-radix-cache true",
            {
                f"{ENGINE}.tensor_parallel_size": 2,
                f"{ENGINE}.server_args.enable_metrics": True,
                f"{ENGINE}.server_args.attention_backend": "fa3",
                f"{ENGINE}.server_args.cuda_graph_bs_decode": [1, 2, 4, 8],
                f"{ENGINE}.server_args.disable_radix_cache": True,
                "data.rollout.engine.class_path": "SGLangEngine",
            },
        ),
        (
            "--actor-num-nodes 2 --actor-num-gpus-per-node 4 --colocate",
            {
                "cluster.resources": {
                    "actor": [1, 8],
                    "critic": [1, 8],
                    "rollout": [1, 8],
                    "advantages": [1, 0],
                },
                "cluster.colocate": True,
            },
        ),
        (
            """--resource '{"actor": [1, 4]}'""",
            {"cluster.resources": {"actor": [1, 4]}, "cluster.colocate": False},
        ),
        ("--gamma 0.9 --gamma 0.99", {f"{ALGORITHM}.gamma": 0.99}),
    ],
)
def test_what_becomes_of_flags(translated, flags, expected):
    translation = translated(flags)
    assert settings(translation) | expected == settings(translation)
    assert translation.not_translated == []


def test_evaluation_sets_follow_the_rollouts_where_they_say_nothing(translated):
    flags = "--prompt-data p --label-key l --metadata-key m --apply-chat-template --rollout-top-p 0.9 --rollout-stop x"
    sets = "--eval-prompt-data aime.24 /a math /m"
    plain = settings(translated(f"{flags} {sets}"))
    assert {key: value for key, value in plain.items() if ".validation." in key} == {
        f"data.rollout.validation.{name}.{key}": value
        for name, path in {"aime_24": "/a", "math": "/m"}.items()
        for key, value in {
            "path": path,
            "input_key": "input",
            "label_key": "l",
            "metadata_key": "m",
            "apply_chat_template": True,
        }.items()
    }
    own = settings(
        translated(f"{flags} {sets} --eval-temperature 0 --eval-label-key e --n-samples-per-eval-prompt 4")
    )
    prefix = "data.rollout.validation.math"
    assert {
        key.removeprefix(f"{prefix}."): value for key, value in own.items() if key.startswith(prefix)
    } == {
        "path": "/m",
        "input_key": "input",
        "label_key": "e",
        "metadata_key": "m",
        "apply_chat_template": True,
        "sampling.temperature": 0,
        "sampling.top_p": 0.9,
        "sampling.stop": ["x"],
        "n_samples_per_prompt": 4,
    }
    assert settings(translated("--eval-prompt-data /a"))["data.rollout.validation.aime.path"] == "/a"
    assert "no evaluation set" in str(translated("--eval-top-p 0.5").left_out[0])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--sequence-parallel --tensor-model-parallel-size 1", "nothing to cut at tensor size 1"),
        ("--use-dynamic-batch-size --micro-batch-size 4", "packed by tokens"),
        ("--max-tokens-per-gpu 4096", "no effect there without --use-dynamic-batch-size"),
        ("--expert-model-parallel-size 1", "1 is all there is here"),
        ("--load ${D}/x/ --save $D/x", "the same as --save: start `fit` with --ckpt_path auto"),
        ("--hf-checkpoint /m --load /m", "both roles start from hf_checkpoint"),
        ("--use-kl-loss", "switched off in their PPO, as here without model.reference"),
        ("--kl-coef 0.1", "switched off in their PPO"),
        ("--num-layers 36", "read from the config.json of hf_checkpoint"),
        ("--wandb-key secret", "MLflow and the run folder keep the record"),
        ("--lr-decay-iters 50 --lr-decay-style constant", "no effect with --lr-decay-style constant"),
        (
            "--num-steps-per-rollout 2 --global-batch-size 64 --rollout-batch-size 16 --n-samples-per-prompt 8",
            "--global-batch-size says it",
        ),
        ("--num-steps-per-rollout 1", "model.global_batch_size: null"),
        ("--gamma 0.9 --gamma 0.99", "given again later"),
        ("--wandb-group a --tb-experiment-name b", "tracking.mlflow.run_name comes from --wandb-group a"),
        (
            "--rollout-max-context-len 100 --rollout-max-prompt-len 40 --rollout-max-response-len 60",
            "implied by",
        ),
        ("--attention-dropout 0.0", "always so here"),
    ],
)
def test_what_is_left_out_says_why(translated, flags, reason):
    translation = translated(flags)
    assert any(reason in str(remark) for remark in translation.left_out), translation.left_out
    assert translation.not_translated == []


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--frobnicate 1 2", "--frobnicate 1 2: an unknown flag; set it by hand if it matters"),
        ("--eps-clp 0.3", "--eps-clp 0.3: an unknown flag; did you mean --eps-clip?"),
        ("--clip-ratio 0.3", "--clip-ratio 0.3: an unknown flag; perhaps model.algorithm.eps_clip here"),
        (
            "--expert-model-parallel-size 8",
            "--expert-model-parallel-size 8: mixtures of experts are not supported",
        ),
        ("--moe-grouped-gemm", "--moe-grouped-gemm: mixtures of experts are not supported"),
        (
            "--rm-type math",
            "--rm-type math: no such reward here: write it as a class, data.rollout.reward.class_path",
        ),
        (
            "--lr-decay-style WSD",
            "--lr-decay-style WSD: wanted one of constant, linear, cosine, got WSD; choose and",
        ),
        (
            "--seed $(date +%s)",
            "--seed '$(date +%s)': its value is known to bash only: $(date +%s); set it by hand",
        ),
        ("--gamma", "--gamma: wanted one value, got none; set it by hand"),
        (
            "--lr-decay-iters 50 --lr-decay-style linear",
            "--lr-decay-iters 50: a decay runs over all optimizer steps of the run here",
        ),
        (
            "--num-steps-per-rollout 2 --global-batch-size 128 --rollout-batch-size 16 --n-samples-per-prompt 8",
            "--num-steps-per-rollout 2: --global-batch-size 128 of 128 samples says another number of steps;",
        ),
        ("--gamma 1 2", "--gamma 1 2: wanted one value, got 2 values; set it by hand"),
        ("--optimizer sgd", "--optimizer sgd: Adam is the only optimizer"),
        ("--hidden-dropout 0.1", "--hidden-dropout 0.1: models have no dropout here"),
        ("--resource $R", "--resource ${R}: wanted JSON, got ${oc.env:R}; set cluster.resources by hand"),
        (
            """--resource '{"actor": [1, 1], "genrm": [1, 1]}'""",
            "there is no role genrm here: only actor, critic,",
        ),
        ("--max-staleness 1", "--max-staleness 1: rollouts are always of the newest weights"),
        ("--eval-prompt-data $N /a", "--eval-prompt-data ${N} /a: wanted pairs of name and path; set"),
        ("--eval-prompt-data a b c", "--eval-prompt-data a b c: wanted pairs of name and path; set"),
        ("--fully-async", "--fully-async: synchronous colocate is what is supported"),
        (
            "--use-dynamic-batch-size --max-tokens-per-gpu $T --context-parallel-size 2",
            "--max-tokens-per-gpu ${T}: give model.max_tokens_per_microbatch: this number * the context-parallel size",
        ),
    ],
)
def test_what_is_not_translated_says_why(translated, flags, line):
    (remark,) = translated(flags).not_translated
    assert line in str(remark)


@pytest.mark.parametrize("values", ["", "x", "1 2", "$OUTSIDE", "$(date)", "${A:-1}", "''", "[1"])
def test_no_value_of_any_flag_breaks_a_translation(translated, values):
    for also in ("", "--use-dynamic-batch-size --prompt-data p --context-parallel-size $C --save $(date)"):
        translation = translated(
            " ".join(f"{name} {values}" for name in [*TABLE, "--sglang-any"]) + f" {also}"
        )
        assert len(translation.settings) > 7
        assert parse_yaml(write_document(translation, "run.sh"))["data"]


def test_steps_stand_in_for_a_batch_size_that_only_bash_knows(translated):
    translation = translated(
        "--global-batch-size $((16*4)) --num-steps-per-rollout 2 --rollout-batch-size 16 --n-samples-per-prompt 8"
    )
    assert settings(translation)["model.global_batch_size"] == 64
    assert translation.left_out == []
    (remark,) = translation.not_translated
    assert remark.flag == "--global-batch-size $((16*4))"


def test_flags_that_become_keys_without_a_value_swallow_no_variable():
    switches = set()
    for name, rule in TABLE.items():
        flag = Flag(name)
        try:
            if any(isinstance(outcome, Setting) for outcome in rule(flag, Flags([flag]))):
                switches.add(name)
        except CannotTranslate:
            continue
    switches -= {
        "--rollout-stop",
        "--rollout-stop-token-ids",
        "--actor-num-nodes",
        "--actor-num-gpus-per-node",
    }
    switches -= {"--adam-beta1", "--adam-beta2"}
    assert len(switches) > 10
    word = (Variable("MORE"),)
    assert {name for name in switches if read_flags([(name,), word]) != ([Flag(name)], [word])} == set()


def test_secrets_stay_in_the_script(translated):
    translation = translated("--wandb-key abc123 --hf-token=abc123 --notify-urls 'slack://abc123'")
    remarks = [str(remark) for remark in (*translation.left_out, *translation.not_translated)]
    assert len(remarks) == 3
    assert "--wandb-key ***: MLflow and the run folder keep the record" in remarks
    assert "abc123" not in "".join(remarks)


def test_defaults_that_differ_are_written_out(translated):
    assert {key: value for key, value in settings(translated("--gamma 1")).items() if "gamma" not in key} == {
        f"{ALGORITHM}.advantage_estimator": "grpo",
        f"{ALGORITHM}.old_log_probs": "recompute",
        f"{ALGORITHM}.loss_aggregation": "sequence_mean",
        f"{OPTIMIZER}.betas": [0.9, 0.999],
        f"{OPTIMIZER}.weight_decay": 0.01,
        f"{OPTIMIZER}.decay": "linear",
        "data.rollout.shuffle": False,
        "data.rollout.engine.class_path": "SGLangEngine",
    }


def test_differences_are_said_where_they_matter(translated):
    def said(flags, words):
        return any(words in difference for difference in translated(flags).differences)

    sound = (
        "--advantage-estimator ppo --attention-dropout 0.0 --hidden-dropout 0 --rollout-max-response-len 8"
    )
    assert len(translated(f"{sound} --calculate-per-token-loss").differences) == 2
    assert said(sound, "the value loss has no factor 0.5 there")
    assert said(sound, "the advantages service computes it once")
    for flags, words in {
        "": "the mean over samples of each sample's mean there",
        "--critic-lr-warmup-iters 5": "the first step of a warm-up has learning rate 0 there",
        "--use-kl-loss": "the KL terms have no effect there",
        "--kl-coef 0.01": "the KL terms have no effect there",
        "--eval-interval 5": "an evaluation before training",
        "--save-interval 5": "all checkpoints are kept there",
        "--save x": "the critic is not saved there",
    }.items():
        assert said(f"{sound} {flags}", words)
        assert not said(f"{sound} --calculate-per-token-loss --kl-coef 0.0 --critic-lr-warmup-iters 0", words)
    assert said("--advantage-estimator grpo", "the script does not ask for PPO")
    assert said("--advantage-estimator ppo --hidden-dropout 0.1", "a dropout of 0.1")


def test_the_table_knows_our_keys_and_agrees_with_the_names_of_other_systems():
    for name, rule in TABLE.items():
        flag = Flag(name, (("1",),))
        try:
            keys = [o.key for o in rule(flag, Flags([flag])) if isinstance(o, Setting)]
        except CannotTranslate:
            continue
        own = [key for key in keys if not key.startswith((ENGINE, "data.rollout.validation."))]
        assert set(own) <= set(known_keys()), name
        meant = FOREIGN_NAMES.get(name.removeprefix("--").replace("-", "_"))
        assert not keys or meant is None or any(key.startswith(meant) for key in keys), (name, keys, meant)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("--weight-decay", f"{OPTIMIZER}.weight_decay"),
        ("--clip-grad", f"{OPTIMIZER}.clip_grad"),
        ("--min-lr", f"{OPTIMIZER}.min_lr"),
        ("--use-distributed-optimizer", f"{OPTIMIZER}.distributed"),
        ("--input-key", "data.rollout.train.input_key"),
        ("--rollout-shuffle", "data.rollout.shuffle"),
        ("--rollout-top-p", f"{SAMPLING}.top_p"),
        ("--sequence-parallel", "model.actor.parallel.sequence"),
        ("--recompute-granularity", "model.actor.recompute"),
        ("--rollout-num-gpus-per-engine", f"{ENGINE}.tensor_parallel_size"),
        ("--calculate-per-token-loss", f"{ALGORITHM}.loss_aggregation"),
    ],
)
def test_the_flags_of_the_table_are_explained_as_they_are_translated(name, key):
    size = Flag("--tensor-model-parallel-size", (("2",),))
    flag = Flag(name, (("1",),))
    outcomes = TABLE[name](flag, Flags([flag, size]))
    assert key in [outcome.key for outcome in outcomes if isinstance(outcome, Setting)]
    assert explain(name).startswith(f"{name} is {key} here.")


def test_a_flag_of_evaluation_is_explained_with_the_place_of_a_set():
    assert explain("--eval-top-p").startswith(
        "--eval-top-p is data.rollout.validation.<name>.sampling.top_p here."
    )
