"""The endpoint: OpenAI's shape, bytes that follow from the seed, refusals that say why, and a clean end."""

import base64
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.policy.export import export
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.streams import Stream, answer_seeds, complete
from dormouse_pipeline.cli.main import cli
from dormouse_pipeline.serve.server import Server

POLICY = build_policy(resolve("tiny").policy, 3)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(POLICY, "tiny", "0" * 64, "127.0.0.1", 0, 16, 512)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.close()


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    said = response.read()
    connection.close()
    return response.status, said if response.headers["Content-Type"].startswith("text/event") else json.loads(said)


def test_a_completion_has_openais_shape_and_the_bytes_decode_gives_the_same_seed(server: Server) -> None:
    status, said = ask(server, "POST", "/v1/completions", {"prompt": "1+2=", "max_tokens": 9, "seed": 5, "n": 2, "model": "tiny"})
    assert status == 200 and said["object"] == "text_completion" and said["model"] == "tiny" and said["seed"] == 5
    expected = complete(POLICY, [Stream(b"1+2=", 9, 1.0, s) for s in answer_seeds(5, 2)])
    assert [base64.b64decode(c["bytes_base64"]) for c in said["choices"]] == [s.content for s in expected]
    assert [c["finish_reason"] for c in said["choices"]] == [str(s.finish) for s in expected]
    written = sum(len(s.raw) for s in expected)
    assert said["usage"] == {"prompt_tokens": 4, "completion_tokens": written, "total_tokens": 4 + written}


def test_a_stream_adds_up_to_the_whole_answer_and_ends_with_done(server: Server) -> None:
    request = {"prompt": [250, 49, 0], "max_tokens": 40, "seed": 11}
    _, whole = ask(server, "POST", "/v1/completions", request)
    status, said = ask(server, "POST", "/v1/completions", {**request, "stream": True})
    events = said.decode().split("\n\n")
    assert status == 200 and events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events[:-2]]
    assert len(chunks) > 3, "it arrived in one piece"
    assert "".join(c["text"] for c in chunks) == whole["choices"][0]["text"]
    assert [c["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_a_stop_text_ends_the_answer_before_it(server: Server) -> None:
    _, free = ask(server, "POST", "/v1/completions", {"prompt": "abc", "max_tokens": 30, "seed": 2})
    whole = base64.b64decode(free["choices"][0]["bytes_base64"])
    stop = next(bytes([b]) for b in whole[3:] if 97 <= b <= 122)
    _, cut = ask(server, "POST", "/v1/completions", {"prompt": "abc", "max_tokens": 30, "seed": 2, "stop": [stop.decode()]})
    assert base64.b64decode(cut["choices"][0]["bytes_base64"]) == whole[: whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("body", "status", "names"), [
    (b"{not json", 400, "not JSON"), (b"[1]", 400, "JSON object"), (b"\xff\xfe", 400, "not JSON"), ({}, 400, "`prompt`"),
    ({"prompt": 3}, 400, "`prompt`"), ({"prompt": [256]}, 400, "`prompt`"), ({"prompt": "a", "max_tokens": 0}, 400, "`max_tokens`"),
    ({"prompt": "a", "max_tokens": 513}, 400, "limit of 512"), ({"prompt": "a", "max_tokens": "9"}, 400, "`max_tokens`"),
    ({"prompt": "a", "temperature": -1}, 400, "`temperature`"), ({"prompt": "a", "top_p": 0.5}, 400, "`top_p` is not supported"),
    ({"prompt": "a", "tempreature": 1}, 400, "`tempreature` is not a field"), ({"prompt": "a", "model": "gpt"}, 404, "no model 'gpt'"),
    ({"prompt": "a", "stop": ["", "b"]}, 400, "`stop`"), ({"prompt": "\ud800"}, 400, "Unicode"), ({"prompt": "a", "n": 17}, 400, "`n`"),
])
def test_a_bad_request_is_refused_with_the_field_that_is_wrong(server: Server, body: Any, status: int, names: str) -> None:
    got, said = ask(server, "POST", "/v1/completions", body)
    assert got == status and names in said["error"]["message"], said


def test_values_that_change_nothing_are_accepted(server: Server) -> None:
    status, _ = ask(server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "top_p": 1, "echo": False, "logprobs": None})
    assert status == 200


def test_paths_methods_and_hosts_that_are_not_ours_are_refused(server: Server) -> None:
    assert ask(server, "GET", "/")[0] == 404
    assert ask(server, "GET", "/v1/completions")[0] == 405
    assert ask(server, "POST", "/healthz", {})[0] == 405
    assert ask(server, "GET", "/v1/models", headers={"Host": "evil.example:80"})[0] == 403
    assert ask(server, "GET", "/v1/models", headers={"Host": "localhost:1"})[0] == 200
    assert ask(server, "POST", "/v1/completions", b"{}", {"Content-Length": "99999999"})[0] == 413


def test_models_and_health_say_what_is_served(server: Server) -> None:
    assert ask(server, "GET", "/v1/models")[1]["data"][0]["id"] == "tiny"
    before = ask(server, "GET", "/healthz")[1]
    ask(server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})
    after = ask(server, "GET", "/healthz")[1]
    assert after["status"] == "ok" and after["served"] == before["served"] + 1


def test_a_reader_that_goes_away_frees_its_row(server: Server) -> None:
    before = server.engine.served
    for _ in range(20):  # more than there are rows
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 512, "stream": True, "seed": 1}))
        connection.getresponse().read(10)
        connection.sock.close() if connection.sock else connection.close()
    assert ask(server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
    deadline = time.monotonic() + 60
    while server.engine._streams is not None and server.engine._streams.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.engine._streams is not None and not server.engine._streams.running and server.engine.served > before


def test_requests_at_the_same_time_get_what_they_get_alone(server: Server) -> None:
    requests = [{"prompt": f"{i}+{i}=", "max_tokens": 12, "seed": i} for i in range(8)]
    alone = [ask(server, "POST", "/v1/completions", r)[1]["choices"] for r in requests]
    together: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda i=i, r=r: together.update({i: ask(server, "POST", "/v1/completions", r)[1]["choices"]}))
               for i, r in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(8)] == alone


def test_a_policy_that_fails_is_reported_and_does_not_hang_its_readers() -> None:
    broken = build_policy(resolve("tiny").policy, 3)
    made = Server(broken, "tiny", "0" * 64, "127.0.0.1", 0, 16, 512)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        broken.decode = lambda *a: (_ for _ in ()).throw(RuntimeError("out of memory"))  # type: ignore[method-assign, assignment]
        for _ in range(2):
            status, said = ask(made, "POST", "/v1/completions", {"prompt": "a"})
            assert status == 500 and "out of memory" in said["error"]["message"]
        status, said = ask(made, "POST", "/v1/completions", {"prompt": "a", "stream": True})
        assert status == 500
        assert ask(made, "GET", "/healthz")[0] == 500
    finally:
        made.shutdown()
        thread.join()
        made.close()


def exported(tmp_path: Path, *sets: str) -> str:
    """An inference file of POLICY in bf16."""
    store, config = Store(tmp_path / "store"), resolve("tiny", sets=sets)
    held = store.put_checkpoint(Checkpoint(config, dict(POLICY.state_dict())), Provenance(
        kind=Kind.CHECKPOINT, stage="sft_checkpoint", config_sha256="c", code_version="v", seed=1))
    export(held, tmp_path / "p.safetensors", "bfloat16", store)
    return str(tmp_path / "p.safetensors")


def test_what_runs_in_place_of_native_calls_is_said_by_decode(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["decode", exported(tmp_path, "policy.compute=native"), "--prompt", "a", "--max-bytes", "2"])
    assert result.exit_code == 0 and "policy.compute = native cannot run" in result.stderr and "torch decodes" in result.stderr


def test_ctrl_c_ends_the_command_at_once_without_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dormouse_pipeline.cli.main", "serve", exported(tmp_path, "policy.compute=native"), "--port", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert child.stderr is not None
    try:
        first = child.stderr.readline()
        port = int(re.search(r"127\.0\.0\.1:(\d+)/v1/completions", first).group(1))  # type: ignore[union-attr]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4096, "stream": True}))
        connection.getresponse().read(20)
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=60)[1]
    finally:
        child.kill()
    assert child.returncode == 130 and "Traceback" not in rest and "stopped." in rest
    assert "policy.compute = native cannot run" in rest, "what runs in its place was not said"
