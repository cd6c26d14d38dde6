"""What runs inside SGLang's scheduler processes: no token but the tokenizer's, and draws by name.

SGLang honours a request's `sampling_seed` only in its deterministic mode, which slows every layer down and which a CPU
does not have. The draw alone needs no such mode: the two places below hand each request's stream and prompt length to
the sampler, and draw by inversion as the embedded engine does. Only the server that we start is changed so.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

gc.disable()  # as in host.py

import torch  # noqa: E402
from sglang.srt.managers.scheduler import run_scheduler_process  # noqa: E402
from torch import Tensor  # noqa: E402

from relax_lightning.rollout.sampling import draw_tokens, draws_at, likeliest  # noqa: E402
from relax_lightning.rollout.sglang.arguments import NUM_RESPONSE_TOKENS  # noqa: E402
from relax_lightning.run.rendezvous import store_at  # noqa: E402

gc.freeze()
gc.enable()


def run_scheduler(*args: Any, absent: Sequence[int], seeded: bool, **kwargs: Any) -> None:
    """SGLang's scheduler.

    Args:
        absent: Rows of the vocabulary that stand for no token.
        seeded: Draws depend on seed, sample id and position alone; else on SGLang's own random state.
    """
    _answer_cuda_calls()
    _listen_on_its_host()
    if absent:
        _leave_out(absent)
    if seeded:
        _draw_by_name()
    run_scheduler_process(*args, **kwargs)


def _prompt_length(request: Any) -> int:
    """Tokens before the response; in a later turn, earlier ones of the response stand among the request's tokens."""
    begun = (request.sampling_params.custom_params or {}).get(NUM_RESPONSE_TOKENS, 0)
    return len(request.origin_input_ids) - begun


def _answer_cuda_calls() -> None:
    """Its weight checker synchronizes CUDA, also where there is none."""
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None


def _leave_out(absent: Sequence[int]) -> None:
    """Let some rows have no part in draws and log-probs, as in `PolicyModel.leave_out`."""
    from sglang.srt.layers.sampler import Sampler

    rows = torch.tensor(absent)
    own_forward = Sampler.forward

    def forward(self: Any, logits_output: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal rows
        logits = logits_output.next_token_logits
        rows = rows.to(logits.device)
        logits.index_fill_(-1, rows, -torch.inf)
        return own_forward(self, logits_output, *args, **kwargs)

    Sampler.forward = forward  # pyright: ignore[reportAttributeAccessIssue]


def _listen_on_its_host() -> None:
    """The store where its processes meet listens on the address that SGLang gives it, torch's own on all of them."""

    def create(host: str, port: int, rank: int, size: int, timeout: timedelta, *options: Any) -> Any:
        return store_at(host, port, is_server=rank == 0, timeout=timeout)

    # Not `import ... as`, which gives the function of that name.
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    assert hasattr(module, "_create_c10d_store")
    module._create_c10d_store = create


def _draw_by_name() -> None:
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    if not (hasattr(SamplingBatchInfo, "from_schedule_batch") and hasattr(Sampler, "_sample_from_probs")):
        raise RuntimeError(
            "this version of SGLang draws its tokens elsewhere; install the one that relax-lightning[sglang] names, or "
            "set data.rollout.engine.init_args.seeded: false"
        )
    own_batch = SamplingBatchInfo.from_schedule_batch.__func__
    own_sample = Sampler._sample_from_probs

    def from_schedule_batch(cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        info = own_batch(cls, batch, *args, **kwargs)
        if info.sampling_seed is None:
            # Two columns, stream and prompt length: SGLang cuts and joins this tensor along its rows.
            rows = [[r.sampling_params.sampling_seed or 0, _prompt_length(r)] for r in batch.reqs]
            info.sampling_seed = torch.tensor(rows, dtype=torch.int64).to(batch.device)
        return info

    def sample(self: Any, probs: Tensor, info: Any, positions: Tensor, is_plain: bool) -> Tensor:
        if info.sampling_seed.dim() == 1:
            return own_sample(self, probs, info, positions, is_plain)
        streams, prompt_lengths = info.sampling_seed.unbind(1)
        # SGLang counts the position of the token before the drawn one, from the beginning of the prompt.
        draws = draws_at(streams, positions - prompt_lengths + 1)
        kept = probs if is_plain else likeliest(probs, info.top_ks, info.top_ps)
        return draw_tokens(kept, draws).to(torch.int32)

    SamplingBatchInfo.from_schedule_batch = classmethod(from_schedule_batch)  # pyright: ignore[reportAttributeAccessIssue]
    Sampler._sample_from_probs = sample  # pyright: ignore[reportAttributeAccessIssue]
