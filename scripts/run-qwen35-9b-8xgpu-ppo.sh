#!/usr/bin/env bash
# PPO of Qwen3.5-9B on 8 GPUs, see configs/qwen35-9b-8xgpu-ppo.yaml. Started again, it goes on from its newest
# checkpoint. Flags are handed to fit: scripts/run-qwen35-9b-8xgpu-ppo.sh --trainer.max_steps 10
set -euo pipefail

: "${MODEL_DIR:?wanted the folder that holds Qwen3.5-9B, got nothing; export MODEL_DIR=...}"
: "${DATA_DIR:?wanted the folder that holds dapo-math-17k and aime-2024, got nothing; export DATA_DIR=...}"
: "${EXP_DIR:?wanted a folder to write to, got nothing; export EXP_DIR=...}"
export MODEL_DIR DATA_DIR EXP_DIR

config=$(dirname "${BASH_SOURCE[0]}")/../configs/qwen35-9b-8xgpu-ppo.yaml
exec relax-lightning fit --config "$config" --ckpt_path auto "$@"
