"""The GGUF conversion against a tiny Llama written the way llama.cpp does, and the real model it is for."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scripts.get_smollm2 import LAYER_NAMES, TOP_NAMES, convert, main, unpermute

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
NUM_LAYERS, NUM_HEADS, NUM_GROUPS, HIDDEN = 2, 4, 2, 32


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    rows, hidden = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, hidden)
    return halves.swapaxes(1, 2).reshape(rows, hidden)


def tokens() -> tuple[list[str], list[str]]:
    """Control tokens, the printable ASCII bytes and one merge; byte-level BPE writes a space as Ġ."""
    characters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "12", "Ġ1", "he"], [
        "1 2",
        "Ġ 1",
        "h e",
    ]


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens()[0]),
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_GROUPS,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    # Norms away from one; all through bfloat16, which the conversion stores: what is left to differ is a mistake.
    for parameter in model.parameters():
        noise = 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0.0
        parameter.data = (parameter.data + noise).to(torch.bfloat16).float()
    return model


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(model.config.vocab_size)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_block_count(NUM_LAYERS)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    names, merges = tokens()
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(names) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    for ours, theirs in TOP_NAMES.items():
        writer.add_tensor(ours, state[theirs])
    for layer in range(NUM_LAYERS):
        for ours, theirs in LAYER_NAMES.items():
            weight = state[f"model.layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": NUM_HEADS, "attn_k": NUM_GROUPS}.get(ours)
            writer.add_tensor(f"blk.{layer}.{ours}.weight", permute(weight, heads) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_unpermute_puts_first_halves_before_second_halves() -> None:
    # Two heads of four rows; llama.cpp stores rows 0 1 2 3 of a head as 0 2 1 3.
    stored = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], dtype=np.float32)
    assert unpermute(stored, 2).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_converted_directory_is_the_model_that_was_written(tmp_path: Path) -> None:
    source = tiny_llama()
    write_gguf(source, tmp_path / "tiny.gguf")
    output = tmp_path / "converted"
    convert(tmp_path / "tiny.gguf", output)
    model = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)

    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, source(ids).logits)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == 2

    tokenizer = AutoTokenizer.from_pretrained(output)
    text = "he 12\n"
    # Digits stand alone: the merges "12" and " 1" are never used.
    assert tokenizer.tokenize(text) == ["he", "Ġ", "1", "2", "Ċ"]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "7"}], return_dict=True)["input_ids"]
    assert chat == [1, tokenizer.convert_tokens_to_ids("7"), 2]
    assert list(tmp_path.glob(".*")) == []


def test_second_call_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code = (
        "import sys; from scripts.get_smollm2 import main\n"
        f"main(['--output', {str(tmp_path)!r}])\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == f"{tmp_path}: already there\nFalse False\n"


def test_folder_without_a_model_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path)])
    assert "holds no config.json; remove it or choose another --output" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.skipif(not MODEL.is_dir(), reason="needs scripts/get_smollm2.py to have run (make test does)")
def test_real_model_answers_through_its_chat_template_and_stops() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for question, answer in {
        "What is 3 + 4?": "3 + 4 = 7",
        "What is the capital of France?": "Paris",
    }.items():
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, max_new_tokens=64, do_sample=False)[
            0, inputs["input_ids"].shape[1] :
        ]
        assert answer in tokenizer.decode(output)
        assert output[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
