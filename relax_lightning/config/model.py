"""Configuration of the actor, the critic, and the batches they learn from: `model`."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.algorithm import AlgorithmConfig
from relax_lightning.config.faults import Fault, above, at_least, fault, one_of, refuse
from relax_lightning.config.keys import key, required, section
from relax_lightning.config.optimizer import CriticOptimizerConfig, OptimizerConfig

RECOMPUTE = ("selective", "full")


@dataclass(frozen=True)
class ParallelConfig:
    """How one model is cut over ranks."""

    tensor: int = key(1, "ranks a layer is cut over")
    pipeline: int = key(1, "stages the layers are cut into")
    context: int = key(1, "ranks a sequence is cut over")
    sequence: bool = key(False, "cut activations between layers as well; needs tensor above 1")

    def __post_init__(self) -> None:
        refuse(at_least(self, 1, "tensor", "pipeline", "context"), self._sequence_alone())

    def _sequence_alone(self) -> list[Fault]:
        if not self.sequence or self.tensor != 1:
            return []
        message = fault("false with tensor: 1", True, "raise tensor or leave sequence out")
        return [Fault("sequence", message, ("tensor",))]


@dataclass(frozen=True)
class ArchitectureConfig:
    """A decoder-only transformer (RMSNorm, rotary, SwiGLU) that starts from random weights."""

    num_layers: int = required("number of layers")
    hidden_size: int = required("width of the residual stream")
    num_attention_heads: int = required("number of query heads")
    vocab_size: int = required("rows of the embedding; at least the tokenizer's size")
    ffn_hidden_size: int | None = key(None, "width of the feed-forward layer; null: 4 * hidden_size")
    num_query_groups: int | None = key(None, "number of key/value heads; null: num_attention_heads")
    kv_channels: int | None = key(None, "width of one head; null: hidden_size / num_attention_heads")
    max_position_embeddings: int = key(2048, "longest context in tokens")
    qk_layernorm: bool = key(False, "normalize queries and keys, as in Qwen3")
    tie_word_embeddings: bool = key(False, "one matrix for the embedding and the output layer")
    rope_theta: float = key(10000.0, "base of the rotary frequencies")
    rope_scaling_factor: float | None = key(
        None, "Llama 3's stretching of the rotary frequencies; null: none"
    )
    qkv_bias: bool = key(False, "bias on queries, keys and values, as in Qwen2")
    norm_epsilon: float = key(1.0e-6, "epsilon of the RMSNorms")

    def __post_init__(self) -> None:
        refuse(
            at_least(self, 1, "num_layers", "hidden_size", "num_attention_heads", "vocab_size"),
            at_least(
                self, 1, "ffn_hidden_size", "num_query_groups", "kv_channels", "max_position_embeddings"
            ),
            above(self, 0, "rope_theta", "rope_scaling_factor", "norm_epsilon"),
            self._heads_that_do_not_divide(),
            self._no_family(),
        )

    def _no_family(self) -> list[Fault]:
        """What no model of the Llama, Qwen2 or Qwen3 families is, so that it could not be exported."""
        faults, size = [], self.kv_channels
        if self.qkv_bias and self.qk_layernorm:
            change = "leave one of the two out"
            faults.append(Fault("qkv_bias", fault("false with qk_layernorm: true", True, change)))
        if size is not None and size % 2:
            faults.append(Fault("kv_channels", fault("an even number, for rotary pairs", size, "change it")))
        return faults

    def _heads_that_do_not_divide(self) -> list[Fault]:
        faults, heads, groups = [], self.num_attention_heads, self.num_query_groups
        if self.kv_channels is None and heads > 0 and self.hidden_size % heads:
            wanted = f"a multiple of num_attention_heads ({heads}) while kv_channels is null"
            message = fault(wanted, self.hidden_size, "change one, or give kv_channels")
            faults.append(Fault("hidden_size", message, ("num_attention_heads", "kv_channels")))
        if groups is not None and groups > 0 and heads % groups:
            wanted = f"a divisor of num_attention_heads ({heads})"
            message = fault(wanted, groups, "change one of the two")
            faults.append(Fault("num_query_groups", message, ("num_attention_heads",)))
        return faults


@dataclass(frozen=True)
class ActorConfig:
    """The policy."""

    hf_checkpoint: str | None = key(
        None,
        "Hugging Face directory that actor and critic start from; null: a model from `architecture`",
    )
    architecture: ArchitectureConfig | None = key(
        None, "a model from scratch instead of hf_checkpoint; null: none"
    )
    tokenizer: str | None = key(
        None, "a folder, or an import path for a model from scratch; null follows hf_checkpoint"
    )
    load: str | None = key(None, "checkpoint root that both roles resume from; null: a fresh start")
    warm_start: str | None = key(
        None,
        "checkpoint that a fresh start of both roles takes weights alone from; null: hf_checkpoint or random",
    )
    save: str | None = key(None, "checkpoint root to write; null: <default_root_dir>/checkpoints")
    parallel: ParallelConfig = section(ParallelConfig, "how the model is cut over ranks")
    recompute: str | None = key(None, "activations computed again in backward: selective | full; null: none")
    optimizer: OptimizerConfig = section(OptimizerConfig, "the actor's optimizer")

    def __post_init__(self) -> None:
        refuse(one_of(self, RECOMPUTE, "recompute"))


@dataclass(frozen=True)
class CriticConfig:
    """The value model: the actor's trunk with a one-output head."""

    load: str | None = key(None, "checkpoint root that the critic resumes from; null follows the actor's")
    save: str | None = key(None, "checkpoint root to write; null follows the actor's")
    warm_start: str | None = key(
        None,
        "checkpoint that a fresh critic takes weights alone from, else the actor's trunk; null follows the actor's",
    )
    head_init: str = key("zero", "start of the value head: zero | normal")
    parallel: ParallelConfig | None = key(None, "how the model is cut over ranks; null follows the actor's")
    recompute: str | None = key(None, "activations computed again in backward: selective | full; null: none")
    optimizer: CriticOptimizerConfig = section(CriticOptimizerConfig, "the critic's optimizer")

    def __post_init__(self) -> None:
        refuse(one_of(self, RECOMPUTE, "recompute"), one_of(self, ("zero", "normal"), "head_init"))


@dataclass(frozen=True)
class ReferenceConfig:
    """The frozen policy that the KL terms compare with."""

    hf_checkpoint: str | None = key(None, "Hugging Face directory; null follows the actor's")
    load: str | None = key(
        None, "checkpoint whose actor is the reference, instead of hf_checkpoint; null: none"
    )

    def __post_init__(self) -> None:
        if self.hf_checkpoint is not None and self.load is not None:
            message = fault("one of hf_checkpoint and load", self.load, "remove one")
            refuse([Fault("load", message, ("hf_checkpoint",))])


@dataclass(frozen=True)
class ModelConfig:
    """Actor, critic, algorithm and batch sizes."""

    bridge: str = key("auto", "reader of Hugging Face weights: auto | builtin | megatron_bridge")
    dtype: str = key("auto", "auto: bfloat16 on GPU, float32 on CPU; or bfloat16 | float32")
    global_batch_size: int | None = key(
        None, "samples an optimizer step; null: all samples of the iteration (one step)"
    )
    micro_batch_size: int | None = key(None, "a fixed number of samples a forward; null: packed by tokens")
    max_tokens_per_microbatch: int | None = key(
        None, "tokens packed in a forward; null: the longest sample rounded up to 4,096 on CPU, 8,192 on GPU"
    )
    max_consecutive_nan: int = key(3, "updates in a row that may be skipped for NaN before training stops")
    algorithm: AlgorithmConfig = section(AlgorithmConfig, "the PPO arithmetic")
    actor: ActorConfig = section(ActorConfig, "the policy")
    critic: CriticConfig = section(CriticConfig, "the value model")
    reference: ReferenceConfig | None = key(None, "the frozen policy of the KL terms; null: none")

    def __post_init__(self) -> None:
        refuse(
            one_of(self, ("auto", "builtin", "megatron_bridge"), "bridge"),
            one_of(self, ("auto", "bfloat16", "float32"), "dtype"),
            at_least(self, 1, "global_batch_size", "micro_batch_size", "max_tokens_per_microbatch"),
            at_least(self, 1, "max_consecutive_nan"),
        )
