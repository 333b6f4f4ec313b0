"""Checks `hunch run --server` with a real llama-server: LLAMA_SERVER HUNCH TARGET DRAFT.

scripts/llama-server starts it.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

QUESTION = "Write a Python function that adds two numbers."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def check(name: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"FAILED: {name}")
    print(f"ok: {name}", flush=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(url: str, server: subprocess.Popen) -> None:
    while True:
        if server.poll() is not None:
            sys.exit("FAILED: llama-server ended")
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)


def ask(hunch: str, url: str, *arguments: str) -> dict:
    command = [hunch, "run", QUESTION, "--server", url, "--json", "--max-tokens", "64", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def text_of(answer: dict) -> str:
    return "".join(piece["text"] for piece in answer["pieces"] if not piece["thinking"])


def check_answers(hunch: str, url: str) -> None:
    answer = ask(hunch, url, "--temperature", "0")
    speculation = answer["answer"]["speculation"]
    check("text", bool(text_of(answer)))
    check("figures are those of llama.cpp", speculation["source"] == "llama_cpp_timings")
    check("accepted drafts", 0 < speculation["accepted"] <= speculation["drafted"])
    check("speed that the server reports", answer["answer"]["reported_tok_s"] > 0)
    check("tokens are counted", answer["answer"]["usage"]["generated"] <= 64)
    check("ends as the server says", answer["answer"]["finish_reason"] in ("stop", "length"))
    check("same answer again", text_of(ask(hunch, url, "--temperature", "0")) == text_of(answer))
    check("raw prompt", bool(text_of(ask(hunch, url, "--raw", "--temperature", "0"))))
    stopped = text_of(ask(hunch, url, "--temperature", "0", "--stop", "def"))
    check("stop string", "def" not in stopped)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(SCHEMA, file)
        file.flush()
        city = json.loads(text_of(ask(hunch, url, "--schema", file.name)))["city"]
    check("schema", city in ("Rome", "Paris"))


if __name__ == "__main__":
    program, hunch, target, draft = sys.argv[1:]
    address = f"http://127.0.0.1:{(port := free_port())}"
    options = ["-m", target, "-md", draft, "--spec-type", "draft-simple", "--alias", "target"]
    options += ["--port", str(port), "-c", "4096", "-ngl", "0"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(address, server)
        check_answers(hunch, address)
    finally:
        server.terminate()
        server.wait()
