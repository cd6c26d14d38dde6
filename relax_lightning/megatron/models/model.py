"""The Megatron models: a policy that gives logits, and a critic that gives one value a token, on the same trunk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from relax_lightning.config import ArchitectureConfig, ParallelConfig
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.groups import ModelGroups
from relax_lightning.megatron.models.layers import block_spec
from relax_lightning.megatron.models.layout import DecodeLayout, SequenceLayout

Layout = SequenceLayout | DecodeLayout

NEVER = -1.0e9
"""Logit of a row that stands for no token: its probability is exactly 0, and so is its gradient."""


class PolicyModel(GPTModel):
    """A GPT whose forward takes packed tokens and stops before the output layer.

    The head is a step of its own (`logits`), so that only the positions a loss needs go through the vocabulary.

    Args:
        vocab_size: Of the architecture; Megatron's own gets rows until the tensor ranks divide it.
        groups: What the model is cut over.
        arguments: Megatron's own.
    """

    _rotary_tables: tuple[Tensor, ...] | None = None

    def __init__(self, *, vocab_size: int, groups: ModelGroups, **arguments: Any) -> None:
        rows = -(-vocab_size // groups.tensor_size) * groups.tensor_size
        super().__init__(vocab_size=rows, pg_collection=groups.collection, **arguments)
        self.num_rows = vocab_size
        """Rows of the architecture's vocabulary; Megatron's others are there to be divided."""
        self.groups = groups
        self.leave_out(())
        self.token_multiple = groups.tensor_size if self.config.sequence_parallel else 1
        """What the number of packed tokens has to be a multiple of."""
        if self.post_process:
            # The head's rows are picked from all tokens, so its input is whole also under sequence parallelism.
            output: Any = self.output_layer
            output.sequence_parallel, output.allreduce_dgrad = False, groups.tensor_size > 1

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Hidden states of packed tokens.

        Args:
            tokens: [tokens] int64.
            layout: Where each sequence begins, or where each cached row stands.

        Returns:
            [tokens, 1, hidden], with gradient; on an earlier pipeline stage what the next one takes in; with
            sequence parallelism this rank's share of the tokens.
        """
        with cuda_stand_in():
            decoder_input = self.embedding(tokens[None], layout.positions[None]) if self.pre_process else None
            # Our core attention turns queries and keys itself, by angles that are looked up once for all layers.
            layout.rotary = self._rotary(layout.positions)
            return self.decoder(hidden_states=decoder_input, attention_mask=None, packed_seq_params=layout)

    def gathered(self, hidden: Tensor) -> Tensor:
        """The hidden states of all tokens, [tokens, 1, hidden], of what `forward` gave on the last stage."""
        if self.token_multiple == 1:
            return hidden
        # Everything after it runs alike on all tensor ranks, so each has the whole gradient already.
        return gather_from_sequence_parallel_region(
            hidden, tensor_parallel_output_grad=False, group=self.groups.collection.tp
        )

    @contextmanager
    def whole_tokens(self) -> Iterator[None]:
        """No sequence parallelism inside the block, as decoding wants it; without gradient only."""
        names = ("sequence_parallel", "scatter_to_sequence_parallel", "reduce_scatter_embeddings")
        places = [self.config, *self.modules()] if self.token_multiple > 1 else []
        changed = [(place, name) for place in places for name in names if getattr(place, name, False)]
        for place, name in changed:
            setattr(place, name, False)
        try:
            yield
        finally:
            for place, name in changed:
                setattr(place, name, True)

    def leave_out(self, rows: Collection[int]) -> None:
        """Let rows of the vocabulary that stand for no token have no part in any distribution.

        Args:
            rows: Of the architecture's; those that are there to be divided have none anyway.
        """
        width = self.vocab_size // self.groups.tensor_size
        start = self.groups.tensor_rank * width
        absent = [*rows, *range(self.num_rows, self.vocab_size)]
        here = [row - start for row in absent if start <= row < start + width]
        self._left_out = torch.tensor(here, dtype=torch.int64, device="cpu")

    def whole_logits(self, hidden: Tensor) -> Tensor:
        """[tokens, 1, hidden] -> [tokens, rows of the architecture's vocabulary] on every tensor rank."""
        logits = self.logits(hidden)
        if self.groups.tensor_size > 1:
            logits = gather_from_tensor_model_parallel_region(logits, group=self.groups.collection.tp)
        return logits[:, : self.num_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states.

        Args:
            hidden: [tokens, 1, hidden].

        Returns:
            [tokens, vocabulary / tensor ranks] in the model's dtype, with gradient: this rank's rows, `NEVER` where
            one stands for no token.
        """
        weight = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        )
        out, _ = self.output_layer(hidden, weight=weight)
        logits = out.squeeze(1)
        if len(self._left_out):
            self._left_out = self._left_out.to(logits.device)
            # In place, and unseen by autograd: a copy would take as long as the softmax, and the gradient is 0 there.
            with torch.no_grad():
                logits.index_fill_(1, self._left_out, NEVER)
        return logits

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles at `positions` [tokens]: two [tokens, 1, head_size] in the model's dtype."""
        if self._rotary_tables is None:
            # Tokens that fill up a multiple may stand behind the longest sequence.
            angles = self.rotary_pos_emb(self.max_sequence_length + self.token_multiple - 1).flatten(1, 2)
            self._rotary_tables = tuple(
                t.to(positions.device, self.config.params_dtype) for t in (angles.cos(), angles.sin())
            )
        cos, sin = (table.index_select(0, positions) for table in self._rotary_tables)
        return cos, sin


class ValueHead(torch.nn.Linear):
    """One value a token, in the place of the vocabulary's output layer; computed in fp32 whatever its weights are.

    The weights have the trunk's dtype: Megatron's sharded optimizer state mixes up parameters of two dtypes.
    Every tensor rank computes all values from whole hidden states, so that the heads stay equal bit for bit.
    """

    def __init__(self, config: TransformerConfig, initialization: str, groups: ModelGroups) -> None:
        super().__init__(config.hidden_size, 1, bias=True, dtype=config.params_dtype)
        self._tensor_group = groups.collection.tp
        with torch.no_grad():
            self.bias.zero_()
            if initialization == "zero":
                self.weight.zero_()
            else:
                # Of the seed alone, on the CPU: what else was drawn before depends on how the models are cut.
                draw = torch.Generator("cpu").manual_seed(torch.initial_seed())
                drawn = torch.empty(self.weight.shape, dtype=self.weight.dtype, device="cpu")
                self.weight.copy_(drawn.normal_(0.0, config.init_method_std, generator=draw))

    def forward(self, hidden: Tensor, weight: Any = None, **_: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """[tokens, 1, hidden] -> ([tokens, 1, 1] fp32, None), as Megatron's output layers answer."""
        return F.linear(hidden.float(), self.weight.float(), self.bias.float()), None

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """The head as Megatron's distributed checkpoint wants it: whole on every tensor rank."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {},
            sharded_offsets,
            tp_group=self._tensor_group,
            dp_cp_group=metadata["dp_cp_group"],
        )


class CriticModel(PolicyModel):
    """The same trunk with a value head."""

    def __init__(self, *, head_init: str, **arguments: Any) -> None:
        super().__init__(**{**arguments, "share_embeddings_and_output_weights": False})
        if self.post_process:
            self.output_layer = ValueHead(self.config, head_init, self.groups)

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, 1, hidden] -> [tokens, 1] fp32 values, never divided by a temperature."""
        return self.output_layer(hidden)[0].squeeze(1)


def transformer_config(
    architecture: ArchitectureConfig, parallel: ParallelConfig, dtype: torch.dtype, recompute: str | None
) -> TransformerConfig:
    """Megatron's configuration of a dense Llama, Qwen2 or Qwen3 trunk."""
    a = architecture
    return TransformerConfig(
        num_layers=a.num_layers,
        hidden_size=a.hidden_size,
        ffn_hidden_size=a.ffn_hidden_size,
        num_attention_heads=a.num_attention_heads,
        num_query_groups=a.num_query_groups,
        kv_channels=a.kv_channels,
        normalization="RMSNorm",
        layernorm_epsilon=a.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=a.qkv_bias,
        qk_layernorm=a.qk_layernorm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        context_parallel_size=parallel.context,
        sequence_parallel=parallel.sequence,
        recompute_granularity=cast(Any, recompute),
        recompute_method="uniform" if recompute == "full" else None,
        recompute_num_layers=1 if recompute == "full" else None,
        # Our losses are already divided by the tokens of the whole optimizer step: Megatron must only add.
        calculate_per_token_loss=True,
        variable_seq_lengths=parallel.pipeline > 1,
        moe_token_dispatcher_type="alltoall",
        use_cpu_initialization=not torch.cuda.is_available(),
        perform_initialization=True,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=torch.cuda.is_available(),
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )


def build_model(
    architecture: ArchitectureConfig,
    config: TransformerConfig,
    groups: ModelGroups,
    device: torch.device,
    *,
    head_init: str | None = None,
) -> PolicyModel:
    """A policy, or with `head_init` (`zero` or `normal`) a critic, with fresh weights on `device`."""
    arguments: dict[str, Any] = {
        "config": config,
        "groups": groups,
        "transformer_layer_spec": block_spec(config, groups.stage),
        "vocab_size": architecture.vocab_size,
        "max_sequence_length": architecture.max_position_embeddings,
        "position_embedding_type": "rope",
        "rotary_base": architecture.rope_theta,
        "rope_scaling": architecture.rope_scaling_factor is not None,
        "rope_scaling_factor": architecture.rope_scaling_factor or 8.0,
        "share_embeddings_and_output_weights": architecture.tie_word_embeddings,
        "pre_process": groups.is_first_stage,
        "post_process": groups.is_last_stage,
    }
    with cuda_stand_in():
        if groups.collection.tp is not parallel_state.get_tensor_model_parallel_group():
            # Else ranks of a layer of the critic that are one rank of the actor's would draw the same weights.
            model_parallel_cuda_manual_seed(
                torch.initial_seed(), tp_rank=groups.tensor_rank, force_reset_rng=True
            )
        model = (
            PolicyModel(**arguments) if head_init is None else CriticModel(**arguments, head_init=head_init)
        )
    return model.to(device)
