"""Talks to a running SGLang server over HTTP: the requests that rollout and publication need."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ABORT_SECONDS = 10.0
_IDLE_SECONDS = 60.0


class ServerGone(ConnectionError):
    """Nothing answers any more."""


class Refused(RuntimeError):
    """The server answered that it does not do what it was asked."""


class SGLangClient:
    """One server.

    Args:
        url: Such as `http://127.0.0.1:30000`.
        api_key: What the server was started with, if anything.
        timeout_seconds: How long an answer may take.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.is_local = urlsplit(url).hostname in _LOOPBACK
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_seconds = timeout_seconds
        # A proxy of the environment knows no loopback address.
        self._opener = build_opener(ProxyHandler({})) if self.is_local else build_opener()

    def server_info(self) -> dict[str, Any]:
        """The server's arguments and state."""
        return self._request("/server_info", None)

    def memory_usage(self) -> dict[str, Any]:
        """GiB of `weight` and `kvcache`, and of each kind of `graph`, of the first rank."""
        return self.server_info()["internal_states"][0]["memory_usage"]

    def is_ready(self) -> bool:
        """Whether the server answers."""
        try:
            self._request("/model_info", None, timeout_seconds=5.0)
        except (ServerGone, TimeoutError):
            return False
        return True

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """One answer a prompt, in order, with the log-prob of each token.

        Raises:
            TimeoutError: No answer in time; all requests of the server are aborted, so that it is idle again.
        """
        body = {
            "input_ids": list(map(list, prompts)),
            "sampling_params": list(sampling),
            "return_logprob": True,
        }
        try:
            return self._request("/generate", body)
        except TimeoutError:
            self._request("/abort_request", {"abort_all": True}, timeout_seconds=_ABORT_SECONDS)
            raise

    @contextmanager
    def update_session(self) -> Iterator[None]:
        """Around all buckets of a publication: SGLang 0.5.21 and later ask for it, older ones do not know it."""
        self._wait_until_idle()
        has_sessions = True
        try:
            self._succeed("/begin_weight_update", {})
        except FileNotFoundError:
            has_sessions = False
        try:
            yield
        finally:
            if has_sessions:
                self._succeed("/end_weight_update", {})

    def update_weights(self, payloads: list[bytes], version: str, *, is_last: bool) -> None:
        """Load one bucket; after the last one the prefix cache of the old weights is dropped."""
        body = {
            "serialized_named_tensors": [b64encode(payload).decode() for payload in payloads],
            "load_format": "flattened_bucket",
            "weight_version": version,
            "flush_cache": is_last,
        }
        self._succeed("/update_weights_from_tensor", body)

    def release(self, tags: Sequence[str]) -> None:
        """Free the memory of `weights`, `kv_cache` or `cuda_graph`; contents of weights are lost."""
        self._wait_until_idle()
        self._request("/release_memory_occupation", {"tags": list(tags)})

    def resume(self, tags: Sequence[str]) -> None:
        """Take the memory back."""
        self._request("/resume_memory_occupation", {"tags": list(tags)})

    def weight_checksums(self) -> list[dict[str, str]]:
        """A checksum of every tensor by the server's own name, one mapping a rank."""
        return [
            rank["checksums"] for rank in self._succeed("/weights_checker", {"action": "checksum"})["ranks"]
        ]

    def scramble_weights(self) -> None:
        """Fill every tensor with random numbers."""
        self._succeed("/weights_checker", {"action": "reset_tensors"})

    def _wait_until_idle(self) -> None:
        """The scheduler clears up after it has answered, and ends itself when it is asked for memory before that."""
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            try:
                self._request("/flush_cache", {})
            except Refused:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _succeed(self, path: str, body: dict[str, Any]) -> Any:
        """An answer that says no is an error, whatever its status."""
        answer = self._request(path, body)
        # The in-process engine answers with a pair, the server with an object.
        success, message = answer if isinstance(answer, list) else (answer["success"], answer["message"])
        if not success:
            raise Refused(f"SGLang refused {path}: {message}")
        return answer

    def _request(self, path: str, body: dict[str, Any] | None, timeout_seconds: float | None = None) -> Any:
        timeout_seconds = timeout_seconds or self._timeout_seconds
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, self._headers)
        try:
            with self._opener.open(request, timeout=timeout_seconds) as response:
                text = response.read()
                is_json = response.headers.get_content_type() == "application/json"
        except HTTPError as error:
            raise self._refusal(path, error) from error
        except TimeoutError as error:
            raise self._late(path, timeout_seconds) from error
        except (URLError, ConnectionError, HTTPException) as error:
            if isinstance(reason := getattr(error, "reason", error), TimeoutError):
                raise self._late(path, timeout_seconds) from error
            raise ServerGone(f"{self.url}{path}: {reason}") from error
        return json.loads(text) if is_json and text else None

    def _refusal(self, path: str, error: HTTPError) -> Exception:
        if error.code == 404:
            return FileNotFoundError(f"the server at {self.url} has no {path}")
        message = error.read().decode(errors="replace").strip()[:2000]
        return Refused(f"SGLang refused {path} ({error.code}): {message}")

    def _late(self, path: str, timeout_seconds: float) -> TimeoutError:
        return TimeoutError(
            f"SGLang gave no answer to {path} in {timeout_seconds:g} s; raise data.rollout.engine.init_args."
            "timeout_seconds, or lower data.rollout.sampling.max_new_tokens or data.rollout.batch_size"
        )
