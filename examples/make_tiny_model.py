"""Writes a tiny Hugging Face model with random weights: python make_tiny_model.py DIR."""

import sys

from transformers import Qwen3Config, Qwen3ForCausalLM

from relax_lightning.data.digits import digit_tokenizer

tokenizer = digit_tokenizer()
config = Qwen3Config(
    vocab_size=12,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=32,
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,
)
model = Qwen3ForCausalLM(config)
model.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
print(f"wrote {model.num_parameters():,} parameters to {sys.argv[1]}")
