#!/bin/bash
# A launch script as the reference system has them, put together from its documentation of PPO: the parameters and the
# resources are the document's, the rest is what such a script sets for a 9B model on 8 GPUs.
#
#   MODEL_DIR=/path/to/models DATA_DIR=/path/to/data EXP_DIR=/path/to/experiments bash run-qwen35-9b-8xgpu-ppo.sh

set -ex -o pipefail
export PYTHONUNBUFFERED=1

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/qwen35-9b.sh"

NAME=qwen35-9b-8xgpu-ppo
RUN_DIR="${EXP_DIR}/${NAME}"
NUM_GPUS=${NUM_GPUS:-8}
NUM_ROLLOUT="${NUM_ROLLOUT:=1000}"

CKPT_ARGS=(
   --hf-checkpoint ${MODEL_DIR}/Qwen3.5-9B
   --megatron-to-hf-mode bridge
   --load ${RUN_DIR}/actor/
   --save ${RUN_DIR}/actor/
   --save-interval 20
   --max-actor-ckpt-to-keep 2
   # The two roles would overwrite each other in one folder.
   --critic-load ${RUN_DIR}/critic/
   --critic-save ${RUN_DIR}/critic/
)

PROMPT_SET=${DATA_DIR}/dapo-math-17k/dapo-math-17k.jsonl

ROLLOUT_ARGS=(
   --prompt-data ${PROMPT_SET}
   --input-key prompt
   --label-key label
   --apply-chat-template
   --rollout-shuffle
   --rm-type dapo
   --reward-key score
   --num-rollout ${NUM_ROLLOUT}
   --rollout-batch-size ${ROLLOUT_BATCH_SIZE:-32}
   --n-samples-per-prompt 4
   --rollout-max-prompt-len 2048
   --rollout-max-response-len 8192
   --rollout-temperature 1
   --global-batch-size 128   # one optimizer step
   --balance-data
)

EVAL_ARGS=(
   --skip-eval-before-train
   --eval-interval 20
   --eval-prompt-data aime "$DATA_DIR"/aime-2024/aime-2024.jsonl
   --n-samples-per-eval-prompt 8
   --eval-max-response-len 8192
   --eval-top-p 0.7
)

PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 1
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # --micro-batch-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 10240
)

PPO_ARGS=(
   --advantage-estimator ppo
   --gamma 1.0
   --lambd 0.95
   --eps-clip 0.2
   --eps-clip-high 0.2
   --entropy-coef 0.0
   --use-rollout-logprobs
   --kl-coef 0.0
   --value-clip 0.5
   --critic-lr 1e-5
   --num-critic-only-steps 5
   --critic-lr-warmup-iters 5
)

OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)
OPTIMIZER_ARGS+=(--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer)

SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-mem-fraction-static 0.6
)

WANDB_ARGS=(
   --use-wandb
   --wandb-project dapo-math-ppo
   --wandb-group $NAME
)

MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)

ray start --head --num-gpus ${NUM_GPUS} --disable-usage-stats

ray job submit ${RAY_NO_WAIT:+--no-wait} --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}' \
   -- python3 -m relax.entrypoints.train \
   --resource '{"actor": [1, 8], "critic": [1, 8], "rollout": [1, 8], "advantages": [1, 0]}' \
   --colocate \
   --max-staleness 0 \
   "${MODEL_ARGS[@]}" \
   "${CKPT_ARGS[@]}" \
   "${ROLLOUT_ARGS[@]}" \
   "${OPTIMIZER_ARGS[@]}" \
   "${PPO_ARGS[@]}" \
   "${WANDB_ARGS[@]}" \
   "${PERF_ARGS[@]}" \
   "${EVAL_ARGS[@]}" \
   "${SGLANG_ARGS[@]}" \
   "${MISC_ARGS[@]}" 2>&1 | tee "${RUN_DIR}/log.txt"
