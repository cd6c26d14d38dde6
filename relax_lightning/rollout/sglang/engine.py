"""SGLang as the rollout engine: a server of our own, or one that runs already."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.engine import Generation, Share, Tokenizer, WeightSource
from relax_lightning.rollout.sampling import sample_streams
from relax_lightning.rollout.sglang.arguments import (
    NUM_RESPONSE_TOKENS,
    check_server_args,
    server_arguments,
    server_environment,
)
from relax_lightning.rollout.sglang.client import ServerGone, SGLangClient
from relax_lightning.rollout.sglang.server import SGLangServer
from relax_lightning.rollout.stopping import StopCondition, response_limits
from relax_lightning.rollout.vocabulary import absent_tokens
from relax_lightning.rollout.weight_sync import ByValue, Publication, SharedMemory, publish_weights

RESIDENT_TAGS = ("weights", "kv_cache", "cuda_graph")
"""What can leave the GPU, and come back, by itself."""

_T = TypeVar("_T")


class SGLangEngine:
    """Generates in SGLang's processes, on a copy of the weights that `publish` renews.

    Args:
        tensor_parallel_size: GPUs that the weights are cut over.
        mem_fraction_static: Share of GPU memory for weights and KV cache; null: SGLang's own.
        url: Of a server that runs already; null: start one.
        api_key: Of the server at `url`.
        max_running_requests: Samples that decode at a time; null: SGLang's own.
        timeout_seconds: How long one round of generation, or any other answer, may take.
        startup_timeout_seconds: How long the start of a server may take.
        bucket_mib: Weights travel in buckets of this size.
        seeded: A draw depends on seed, sample id and position alone; false: on SGLang's own random state.
        server_args: Further arguments of SGLang's, by its names.

    Raises:
        ValueError: SGLang is not installed, an argument is not for it, or no server answers at `url`.
    """

    def __init__(
        self,
        tensor_parallel_size: int = 1,
        mem_fraction_static: float | None = None,
        url: str | None = None,
        api_key: str | None = None,
        max_running_requests: int | None = None,
        timeout_seconds: float = 1800.0,
        startup_timeout_seconds: float = 900.0,
        bucket_mib: int = 512,
        seeded: bool = True,
        server_args: dict[str, Any] | None = None,
    ) -> None:
        self.weight_version = 0
        self._tensor_parallel_size = tensor_parallel_size
        self._chosen = dict(server_args or {})
        check_server_args(self._chosen)
        limits = {"mem_fraction_static": mem_fraction_static, "max_running_requests": max_running_requests}
        self._limits = {name: value for name, value in limits.items() if value is not None}
        self._timeout_seconds = timeout_seconds
        self._startup_timeout_seconds = startup_timeout_seconds
        self._bucket_bytes = bucket_mib * 2**20
        self._seeded = seeded
        self._server: SGLangServer | None = None
        self._remote: SGLangClient | None = None
        self._published: Publication | None = None
        self._released: set[str] = set()
        self.weights_lost = False
        """Whether the server has given up its weights since the last publication."""
        self._borrow: Callable[[], AbstractContextManager[None]] = nullcontext
        self._vacated: Callable[[], AbstractContextManager[None]] = nullcontext
        if url is not None:
            self._connect(url, api_key)
        elif importlib.util.find_spec("sglang") is None:
            raise ValueError(
                "data.rollout.engine.class_path: SGLangEngine needs the package sglang, which is not installed; "
                "install relax-lightning[sglang], or give the url of a running server"
            )

    def _connect(self, url: str, api_key: str | None) -> None:
        if self._chosen or self._limits or self._tensor_parallel_size != 1:
            raise ValueError(
                "data.rollout.engine.init_args.url: wanted no arguments of a server beside it, got "
                f"{', '.join([*self._limits, *self._chosen]) or 'tensor_parallel_size'}; give them to the server"
            )
        client = SGLangClient(url, api_key=api_key, timeout_seconds=self._timeout_seconds)
        try:
            info = client.server_info()
        except (ConnectionError, FileNotFoundError, TimeoutError, ValueError) as error:
            raise ValueError(
                f"data.rollout.engine.init_args.url: no SGLang server answers at {url} ({error}); start it, or "
                "correct the url"
            ) from error
        self._remote = client
        self._tensor_parallel_size = info["tp_size"]
        self._has_tokenizer = not info["skip_tokenizer_init"]

    # --- set-up and end ---------------------------------------------------------------------------------------

    @property
    def share(self) -> Share:
        """One engine for every `tensor_parallel_size` ranks, which the first of them drives; one at `url` for all."""
        peers = self._source.peers
        span = peers.size if self._remote is not None else self._tensor_parallel_size
        drives = peers.rank % span == 0
        # A process alone may drive an engine over several GPUs.
        return Share(peers.rank // span, max(1, peers.size // span), generates=drives, reports=drives)

    def attach(self, source: WeightSource, tokenizer: Tokenizer) -> None:
        """Bind to the policy, and begin to start the server, where this process drives one."""
        self._source = source
        self._tokenizer = tokenizer
        self._model = source.hf_config()
        if self._remote is None and self.share.generates:
            self._has_tokenizer = hasattr(tokenizer, "save_pretrained")
            self._server = self._start()

    def _start(self) -> SGLangServer:
        on_gpu, size = torch.cuda.is_available(), self._tensor_parallel_size
        defaults = server_arguments(
            self._model, on_gpu=on_gpu, tensor_parallel_size=size, has_tokenizer=self._has_tokenizer
        )
        if on_gpu:
            first, seen = torch.cuda.current_device(), torch.cuda.device_count()
            if first + size > seen:
                raise RuntimeError(
                    f"data.rollout.engine.init_args.tensor_parallel_size: wanted {size} GPUs from number {first} on, "
                    f"this process sees {seen}; let every rank see all GPUs of its machine, or lower it"
                )
            defaults["base_gpu_id"] = first
        return SGLangServer(
            self._model,
            self._tokenizer if self._has_tokenizer else None,
            defaults=defaults | self._limits,
            chosen=self._chosen,
            environment=server_environment(on_gpu=on_gpu, tensor_parallel_size=size),
            on_gpu=on_gpu,
            seeded=self._seeded,
            timeout_seconds=self._timeout_seconds,
            startup_timeout_seconds=self._startup_timeout_seconds,
            absent=absent_tokens(self._tokenizer, self._model["vocab_size"]),
        )

    @property
    def _client(self) -> SGLangClient:
        if self._remote is not None:
            return self._remote
        assert self._server is not None, "attach comes first"
        self._server.wait_until_ready()
        return self._server.client

    def close(self) -> None:
        """End the server that was started; one at `url` goes on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # --- weights ----------------------------------------------------------------------------------------------

    def publish(self) -> int:
        """Copy the policy's weights to the engine.

        Raises:
            RuntimeError: The engine refused them, or died twice.
        """
        assert "weights" not in self._released, "onload the weights' memory before a publication"
        version = self.weight_version + 1
        # Until all have arrived; a server that is started again has none to be given before.
        self.weights_lost = True
        self._published = self._surviving("the publication", lambda: self._push(version))
        self.weight_version = version
        self.weights_lost = False
        return version

    def _push(self, version: int) -> Publication | None:
        """Publish, all ranks together: the weights are gathered over them. None where another rank sends them."""
        weights = self._source.hf_weights()
        if self._model["tie_word_embeddings"]:
            weights = ((name, tensor) for name, tensor in weights if name != "lm_head.weight")
        client = self._client if self.share.generates else None
        span = self._tensor_parallel_size
        how: dict[str, Any]
        if self._remote is None:
            # Each rank hands the engine's rank on its GPU a copy that lies there: SGLang's memory saver maps memory
            # that no other GPU may write to.
            number = max(1, span // self._source.peers.size)
            transport = SharedMemory() if number == 1 else ByValue()
            how = {"transport": transport, "num_payloads": number, "exchange": self._exchange}
        elif client is None:
            for _ in weights:
                pass
            return None
        else:
            # For the same reason another one's server gets the bytes, unless all is in the memory of this machine.
            is_shared = client.is_local and not torch.cuda.is_available()
            how = {"transport": SharedMemory() if is_shared else ByValue(), "num_payloads": span}
        return publish_weights(weights, client, version, bucket_bytes=self._bucket_bytes, **how)

    def _exchange(self, payloads: Callable[[], list[bytes]]) -> list[bytes]:
        """Those of this engine's ranks."""
        peers, span = self._source.peers, self._tensor_parallel_size
        first = peers.rank // span * span
        return [payload for given in peers.collect(payloads)[first : first + span] for payload in given]

    def verify(self) -> None:
        """Compare every tensor of the engine with the policy's.

        The engine's tensors are summed up, filled with random numbers, published anew and summed up again: what was
        wrong, or is in no publication, differs.

        Raises:
            RuntimeError: Names the tensors that differ.
        """
        if not self.share.generates:
            self._push(self.weight_version)
            return
        before = self._client.weight_checksums()
        self._client.scramble_weights()
        self._push(self.weight_version)
        after = self._client.weight_checksums()
        wrong = sorted(
            {n for old, new in zip(before, after, strict=True) for n in new if old.get(n) != new[n]}
        )
        if wrong:
            raise RuntimeError(
                f"publication {self.weight_version} left {len(wrong)} tensors of the engine different from the "
                f"policy's: {', '.join(wrong[:10])}"
            )

    def borrow_policy(
        self,
        borrow: Callable[[], AbstractContextManager[None]],
        vacated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """See `HoldsMemory.borrow_policy`."""
        self._borrow, self._vacated = borrow, vacated

    # --- memory -----------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, int]:
        """Bytes a GPU of each resident tag, once the server is up; empty for a server that runs elsewhere."""
        if self._remote is not None:
            return {}
        share = self.share
        # An engine holds as much on the GPUs of the ranks that do not drive it.
        told = self._source.peers.collect(
            lambda: (share.index, self._own_memory() if share.generates else None)
        )
        return next(found for index, found in told if found and index == share.index)

    def _own_memory(self) -> dict[str, int]:
        usage = self._client.memory_usage()
        sizes = (usage["weight"], usage["kvcache"], sum(usage["graph"].values()))
        return {tag: round(size * 2**30) for tag, size in zip(RESIDENT_TAGS, sizes, strict=True)}

    def offload(self, tags: Collection[str]) -> None:
        """Free the GPU memory of `weights`, `kv_cache`, `cuda_graph`; only when nothing is being generated."""
        leaving = [tag for tag in RESIDENT_TAGS if tag in tags and tag not in self._released]
        if leaving and self.share.generates:
            self._surviving("offloading", lambda: self._client.release(leaving))
        self._released.update(leaving)
        self.weights_lost |= "weights" in leaving

    def onload(self, tags: Collection[str]) -> None:
        """Take the memory back; `weights` are undefined until the next publication."""
        coming = [tag for tag in RESIDENT_TAGS if tag in tags and tag in self._released]
        if coming and self.share.generates:
            self._surviving("onloading", lambda: self._client.resume(coming))
        self._released.difference_update(coming)

    # --- generation -------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sample_ids: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        num_response_tokens: Sequence[int] | None = None,
    ) -> list[Generation]:
        """See `RolloutEngine.generate`.

        Raises:
            TimeoutError: No answer within `timeout_seconds`.
            RuntimeError: The engine aborted a sample, generated with other weights, or died twice.
        """
        assert not self._released, f"onload {', '.join(sorted(self._released))} before a generation"
        assert not self.weights_lost, "publish before a generation: the weights have left the GPU"
        begun = num_response_tokens or [0] * len(prompts)
        longest = self._model["max_position_embeddings"]
        limits = response_limits(prompts, begun, sampling.max_new_tokens, longest)
        stop = StopCondition(self._tokenizer, sampling)
        shared = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "ignore_eos": sampling.ignore_eos,
            "stop_token_ids": sorted(stop.token_ids),
            "stop": sampling.stop if self._has_tokenizer else [],
        }
        streams = sample_streams(seed, sample_ids).tolist()
        requests = [
            {
                **shared,
                "max_new_tokens": limit,
                "sampling_seed": stream,
                **({"custom_params": {NUM_RESPONSE_TOKENS: num_begun}} if num_begun else {}),
            }
            for limit, stream, num_begun in zip(limits, streams, begun, strict=True)
        ]
        answers = self._surviving("generation", lambda: self._client.generate(prompts, requests))
        return [
            self._generation(answer, stop, sample_id)
            for answer, sample_id in zip(answers, sample_ids, strict=True)
        ]

    def _generation(self, answer: dict[str, Any], stop: StopCondition, sample_id: int) -> Generation:
        about = answer["meta_info"]
        reason = about["finish_reason"]
        if reason["type"] not in ("stop", "length"):
            raise RuntimeError(
                f"SGLang ended sample {sample_id} with {reason['type']}: {reason.get('message')}"
            )
        if about["weight_version"] != str(self.weight_version):
            raise RuntimeError(
                f"SGLang generated with weights {about['weight_version']}, published are {self.weight_version}; does "
                "another run publish to the same server?"
            )
        log_probs, tokens = zip(*(triple[:2] for triple in about["output_token_logprobs"]), strict=True)
        if not all(isinstance(p, float) and math.isfinite(p) for p in log_probs):
            raise RuntimeError(f"SGLang gave sample {sample_id} a log-prob that is not finite: {log_probs}")
        # SGLang misses stop strings, all of them without a tokenizer, and stop tokens together with ignore_eos.
        length = stop.length(tokens)
        return Generation(tokens[:length], log_probs[:length], reason["type"] if length is None else "stop")

    # --- death and restart ------------------------------------------------------------------------------------

    def _surviving(self, what: str, action: Callable[[], _T]) -> _T:
        """Do it, and once more with a new server when the one we started dies of it.

        Among several ranks there is no second time: the others would not gather the weights anew.
        """
        try:
            return action()
        except ServerGone as error:
            if self._server is not None and self._source.peers.size > 1:
                message = (
                    f"SGLang died during {what} ({self._server.exit_reason()}); {self._server.log_end()}"
                )
                self._server.close(keep_log=True)
                raise RuntimeError(message) from error
            if self._server is None:
                raise RuntimeError(
                    f"the SGLang server is gone ({error}); look at its log, start it again, and resume"
                ) from error
        try:
            self._restart(what)
            return action()
        except ServerGone as error:
            message = (
                f"SGLang died again during {what} ({self._server.exit_reason()}); {self._server.log_end()}"
            )
            self._server.close(keep_log=True)
            raise RuntimeError(message) from error

    def _restart(self, what: str) -> None:
        dead = self._server
        assert dead is not None
        warnings.warn(
            f"SGLang died during {what} ({dead.exit_reason()}; its log is {dead.log}); it is started again",
            stacklevel=2,
        )
        dead.close(keep_log=True)
        with self._vacated():
            self._server = self._start()
            self._server.wait_until_ready()
            if self._released:
                self._client.release(sorted(self._released))
        if self._published is not None and not self.weights_lost:
            with self._borrow():
                self._push_again(self._published)

    def _push_again(self, published: Publication) -> None:
        if self._push(published.version) != published:
            raise RuntimeError(
                f"SGLang died, and the policy has changed since publication {published.version}; publish first"
            )
