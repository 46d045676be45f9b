"""A small HTTP endpoint over one policy: OpenAI-style completions of bytes, streamed as they are drawn.

One thread steps the policy for all requests; a thread a connection reads a request and writes what it is told. On loopback only
requests that name loopback are answered, so that a web page in a browser on this machine cannot reach it under another name.
No authentication, no TLS: put a proxy in front of it for anything but this machine.
"""

import base64
import codecs
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dormouse_core import seeding
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.streams import Finish, Stream, Streams, answer_seeds
from dormouse_pipeline.serve.request import MAX_BODY, BadRequest, CompletionRequest, parse

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
PATHS = ("/healthz", "/v1/models", "/v1/completions")
WAITING = 256
"""Completions that may wait for a row before requests are turned away."""
IDLE_SECONDS = 30.0
"""A connection that sends nothing for this long is closed."""


@dataclass
class Engine:
    """The thread that steps the policy, and the door to it."""

    policy: Policy
    rows: int
    served: int = 0
    """Completions that ended, cancelled ones included."""
    written: int = 0
    failure: BaseException | None = None
    _owed: "queue.SimpleQueue[Stream | None]" = field(default_factory=queue.SimpleQueue)
    _streams: Streams | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._streams = Streams(self.policy, self.rows)
        self._thread = threading.Thread(target=self._run, name="dormouse-serve", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; running completions are cut off."""
        self._owed.put(None)
        if self._thread is not None:
            self._thread.join(30)

    def submit(self, stream: Stream) -> None:
        if self.failure is not None:
            raise BadRequest(f"the policy failed: {self.failure}; restart the server", status=500)
        if self._streams is not None and self._owed.qsize() + len(self._streams.waiting) >= WAITING:
            raise BadRequest(f"{WAITING} completions are waiting already; try again later", status=503)
        self._owed.put(stream)

    def _run(self) -> None:
        assert self._streams is not None
        try:
            while True:
                busy = bool(self._streams.running or self._streams.waiting)
                if not self._take(wait=not busy):
                    return
                self._streams.step()
        except Exception as error:  # noqa: BLE001 - whatever it was, readers must not wait for ever; it is told to each of them
            self.failure = error
            for stream in [*self._streams.running, *self._streams.waiting]:
                stream.end(Finish.CANCELLED)

    def _take(self, wait: bool) -> bool:
        """Move what was submitted to the streams. False when the server stops."""
        assert self._streams is not None
        while wait or not self._owed.empty():
            stream = self._owed.get()
            if stream is None:
                return False
            self._streams.submit(stream)
            wait = False
        return True


class Server(ThreadingHTTPServer):
    """The endpoint. `name` is what /v1/models calls the policy, `identity` the file's."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, policy: Policy, name: str, identity: str, host: str, port: int, rows: int, max_tokens: int) -> None:
        self.engine, self.name, self.identity, self.max_tokens = Engine(policy, rows), name, identity, max_tokens
        self.loopback, self.started = host in LOOPBACK, int(time.time())
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise DormouseError(f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port.") from error
        self.engine.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no error; anything else is shown, as the base class does."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def close(self) -> None:
        self.server_close()
        self.engine.stop()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "dormouse"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        self._answer({"/healthz": self._health, "/v1/models": self._models})

    def do_POST(self) -> None:
        self._answer({"/v1/completions": self._complete})

    def _answer(self, ways: "dict[str, Any]") -> None:
        try:
            self._check_host()
            path = self.path.partition("?")[0]
            if path not in ways:
                known = path in PATHS
                raise BadRequest(f"{self.command} {path}: there is {'no such method' if known else 'nothing'} here; this server has "
                                 "GET /healthz, GET /v1/models and POST /v1/completions", status=405 if known else 404)
            ways[path]()
        except BadRequest as error:
            self.close_connection = True  # a body may be left unread
            self._send(error.status, error.body())
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _check_host(self) -> None:
        named = self.headers.get("Host", "")
        if self.server.loopback and named.rpartition(":")[0] not in LOOPBACK and named not in LOOPBACK:
            raise BadRequest(f"this server answers on loopback only, not as {named!r}", status=403)

    def _health(self) -> None:
        engine = self.server.engine
        ok = engine.failure is None
        self._send(200 if ok else 500, {"status": "ok" if ok else str(engine.failure), "model": self.server.name,
                                        "served": engine.served, "bytes": engine.written})

    def _models(self) -> None:
        self._send(200, {"object": "list", "data": [{
            "id": self.server.name, "object": "model", "created": self.server.started, "owned_by": "dormouse",
            "identity": self.server.identity}]})

    def _complete(self) -> None:
        request = parse(self._body(), self.server.max_tokens)
        if request.model not in (None, self.server.name):
            raise BadRequest(f"there is no model {request.model!r} here, only {self.server.name!r}", status=404, field="model")
        run = Completion(request, self.server)
        if request.stream:
            self._stream(run)
        else:
            self._send(200, run.whole())

    def _body(self) -> bytes:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError as error:
            raise BadRequest("a request needs a Content-Length", status=411) from error
        if not 0 <= length <= MAX_BODY:
            raise BadRequest(f"the body may hold {MAX_BODY:,} bytes", status=413)
        body = self.rfile.read(length)
        if len(body) < length:
            raise BadRequest(f"the body ended after {len(body)} of {length} bytes")
        return body

    def _stream(self, run: "Completion") -> None:
        """Server-sent events, one a piece of text, then [DONE]. A reader that goes away frees its rows."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            try:
                for event in run.events():
                    self._chunk(f"data: {json.dumps(event)}\n\n")
                self._chunk("data: [DONE]\n\n")
            except BadRequest as error:  # the answer has begun: its status is sent
                self._chunk(f"data: {json.dumps(error.body())}\n\n")
                self.close_connection = True
            self.wfile.write(b"0\r\n\r\n")
        finally:
            run.cancel()

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode() + b"\n"
        self.send_response(status, HTTPStatus(status).phrase)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged; /healthz counts them."""


class Completion:
    """One request's streams, and what its reader is sent."""

    def __init__(self, request: CompletionRequest, server: Server) -> None:
        self.request, self.server = request, server
        self.seed = request.seed if request.seed is not None else int.from_bytes(os.urandom(4), "little")
        self.created = int(time.time())
        self.id = f"cmpl-{seeding.key('id', self.seed, time.time_ns()):016x}"
        self.told: queue.SimpleQueue[tuple[Stream, bytes]] = queue.SimpleQueue()
        self.streams = [Stream(request.prompt_bytes(), request.max_tokens, request.temperature, seeds, request.stops(),
                               tell=lambda stream, content: self.told.put((stream, content)))
                        for seeds in answer_seeds(self.seed, request.n)]
        for stream in self.streams:
            server.engine.submit(stream)

    def cancel(self) -> None:
        for stream in self.streams:
            stream.cancelled = True

    def pieces(self) -> Iterator[tuple[int, bytes, Finish | None]]:
        """(choice, content, why it ended) as they come, until all have ended."""
        open_now = len(self.streams)
        while open_now:
            stream, content = self.told.get()
            ended = not content
            if ended:
                open_now -= 1
                self.server.engine.served += 1
                self.server.engine.written += len(stream.raw)
            yield self.streams.index(stream), content, stream.finish if ended else None
            failure = self.server.engine.failure
            if failure is not None:
                raise BadRequest(f"the policy failed: {failure}; restart the server", status=500)

    def events(self) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer. A letter of several bytes arrives whole."""
        decoders = [codecs.getincrementaldecoder("utf-8")("backslashreplace") for _ in self.streams]
        for index, content, finish in self.pieces():
            text = decoders[index].decode(content, final=finish is not None)
            if text or finish is not None:
                yield self._head() | {"choices": [{"index": index, "text": text, "logprobs": None,
                                                   "finish_reason": finish.value if finish else None}]}

    def whole(self) -> dict[str, Any]:
        for _ in self.pieces():
            pass
        written = sum(len(s.raw) for s in self.streams)
        choices = [{"index": i, "text": s.content.decode("utf-8", "backslashreplace"), "logprobs": None, "finish_reason": s.finish,
                    "bytes_base64": base64.b64encode(s.content).decode(), "log_prob": s.log_prob} for i, s in enumerate(self.streams)]
        prompt = len(self.request.prompt_bytes())
        return self._head() | {"choices": choices, "usage": {"prompt_tokens": prompt, "completion_tokens": written,
                                                             "total_tokens": prompt + written}}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.server.name, "seed": self.seed}
