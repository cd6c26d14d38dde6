"""Answers like an SGLang server, without SGLang: for what a real one does rarely, or only in other versions.

In this process: `FakeServer`. As a program, with the request of a real host on standard input, it serves until the
first generation, which kills it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INFO = {"tp_size": 1, "skip_tokenizer_init": True}
SUCCESS = {"success": True, "message": ""}
IDLE = {"/server_info": INFO, "/flush_cache": {}, "/update_weights_from_tensor": SUCCESS}
"""Answers of a server that takes all weights."""


class FakeServer:
    """Serves `answers` by path, and keeps what it was asked.

    Args:
        answers: An answer, or a function of the request's body, by path; a pair is a status and an answer.
        port: 0: any.
    """

    def __init__(self, answers: dict[str, Any], port: int = 0) -> None:
        self.requests: list[tuple[str, Any]] = []
        asked = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                asked.append((self.path, body))
                answer = answers.get(self.path, (404, {"detail": "Not Found"}))
                answer = answer(body) if callable(answer) else answer
                status, answer = answer if isinstance(answer, tuple) else (200, answer)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


def main() -> None:
    from relax_lightning.rollout.sglang.host import end_with

    request = json.load(sys.stdin)
    end_with(request["parent"])

    def die(body: Any) -> None:
        print("the last words of a server", flush=True)
        os._exit(7)

    FakeServer({**IDLE, "/model_info": {}, "/generate": die}, request["defaults"]["port"]).serve()


if __name__ == "__main__":
    main()
