# The shape of Qwen3.5-9B, as Megatron wants it said.
MODEL_ARGS=(
   --num-layers 32
   --hidden-size 4096
   --ffn-hidden-size 12288
   --num-attention-heads 16
   --group-query-attention
   --num-query-groups 4
   --kv-channels 256
   --qk-layernorm
   --attention-output-gate
   --swiglu
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --disable-bias-linear
   --position-embedding-type rope
   --rotary-base "${ROTARY_BASE:-10000000}"
   --rotary-percent 0.25
   --untie-embeddings-and-output-weights
   --vocab-size 248320
)
