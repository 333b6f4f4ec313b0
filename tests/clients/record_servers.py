"""Records answers of other servers for tests/it/recorded_servers.rs: NAME BIN MODELS OUT. scripts/record-servers starts it.

BIN is the folder of the server's programs. MODELS holds the folders `smollm2` and `smollm2-24`, a target and its first
24 layers, and `smollm2.gguf`. OUT gets a folder of recordings for each way of starting the server.
"""

import http.client
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

QUESTION = 'Copy this text exactly: "🙂 日本語, Grüße 🙂 日本語, Grüße 🙂 日本語"'
TOKENS = 24
# Continued without a chat template, up to a stop string.
PROMPT, STOP = "Grüße 🙂 日本語\n" * 3, "！！！"
# Key of the servers that need one.
KEY = "sk-right"
NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
# Lines of metrics that are kept: vLLM and SGLang send hundreds.
KEPT_METRICS = re.compile(r"(# \w+ )?(\w+:(spec_|num_requests_running|generation_tokens_total)|llamacpp:)")

VLLM = ["vllm", "serve", "smollm2", "--port", "PORT", "--max-model-len", "512", "--enforce-eager"]
SGLANG_SPEC = str(pathlib.Path(__file__).resolve().with_name("sglang_server.py"))
SGLANG = ["--model-path", "smollm2", "--served-model-name", "smollm2", "--port", "PORT", "--device", "cpu"]
SGLANG += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
SGLANG += ["--mem-fraction-static", "0.1", "--max-total-tokens", "4096", "--context-length", "512"]
LLAMA = ["llama-server", "-m", "smollm2.gguf", "--alias", "smollm2", "--port", "PORT", "-c", "512", "--metrics"]
LLAMA_NGRAM = [*LLAMA, "--spec-type", "ngram-simple"]
LLAMA_NGRAM += ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "4"]
MLX_VLM = ["mlx_vlm.server", "--port", "PORT"]
MLX = ["mlx_lm.server", "--model", "smollm2", "--port", "PORT"]


def fill_cache() -> None:
    """Puts the model into the Hub's cache of the server. `transformers serve` lists no others, mlx-vlm lists them too."""
    revision, repo = "0" * 40, pathlib.Path(os.environ["HF_HOME"], "hub/models--example--smollm2")
    (repo / "refs").mkdir(parents=True, exist_ok=True)
    (repo / "refs/main").write_text(revision)
    shutil.copytree("smollm2", repo / "snapshots" / revision, dirs_exist_ok=True)


# For each server, the folders of recordings, the commands, and the requests after models, metrics and a chat.
SERVERS = {
    "vllm": [
        ("vllm", VLLM, ["completion"]),
        ("vllm-ngram", [*VLLM, "--speculative-config", NGRAM], ["too-long", "broken"]),
        (
            "vllm-metrics",
            [*VLLM, "--speculative-config", NGRAM, "--per-request-spec-decode-metrics", "summary"]
            + ["--enable-per-request-metrics", "--reasoning-parser", "qwen3", "--api-key", KEY],
            ["unknown-model", "wrong-key"],
        ),
    ],
    "sglang": [
        (
            "sglang",
            ["python", "-m", "sglang.launch_server", *SGLANG, "--api-key", KEY, "--enable-metrics"],
            ["completion", "too-long", "wrong-key"],
        ),
        ("sglang-spec", ["python", SGLANG_SPEC, *SGLANG, "--reasoning-parser", "deepseek-r1"], []),
    ],
    "mlx-lm": [
        ("mlx-lm", MLX, ["completion", "unknown-model"]),
        ("mlx-lm-draft", [*MLX, "--draft-model", "smollm2-24"], []),
    ],
    "mlx-vlm": [
        ("mlx-vlm", [*MLX_VLM, "--model", "smollm2"], ["completion", "unknown-model"]),
        ("mlx-vlm-draft", [*MLX_VLM, "--model", "qwen-tiny", "--draft-model", "qwen-tiny-mtp"], []),
    ],
    "transformers": [
        ("transformers", ["transformers", "serve", "--port", "PORT", "--device", "cpu"], ["unknown-model"]),
    ],
    "llama-server": [
        ("llama-server", LLAMA, ["completion"]),
        ("llama-server-draft", [*LLAMA, "-md", "smollm2.gguf", "--spec-type", "draft-simple"], ["too-long"]),
        ("llama-server-ngram", [*LLAMA_NGRAM, "--api-key", KEY], ["wrong-key"]),
    ],
}


class Server:
    """A running server."""

    def __init__(self, command: list[str], programs: str, out: pathlib.Path):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        command = [str(self.port) if word == "PORT" else word for word in command]
        self.out = out
        self.log = open("server.log", "wb")
        path = f"{programs}:{os.environ['PATH']}"
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment = {**os.environ, **offline, "PATH": path, "VLLM_CPU_KVCACHE_SPACE": "1"}
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=self.log, start_new_session=True
        )
        while not self.is_ready():
            if self.process.poll() is not None:
                sys.exit(f"{command[0]} ended. {os.getcwd()}/server.log says why.")
            time.sleep(1)

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/v1/models")[0] == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body=None, key: str = KEY, begun=None) -> tuple[int, str, bytes]:
        """Returns status, content type and body. Calls `begun` after the first events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body).encode() if body else None, headers)
        response = connection.getresponse()
        received = b""
        try:
            if begun:
                while received.count(b"data: ") < 8:
                    received += response.read1()
                begun()
            while read := response.read1():
                received += read
        except (http.client.HTTPException, OSError):
            pass
        connection.close()
        return response.status, response.headers.get("Content-Type", ""), received

    def record(self, name: str, method: str, path: str, body=None, **options) -> None:
        status, kind, received = self.ask(method, path, body, **options)
        if path == "/metrics":
            lines = received.decode().splitlines(keepends=True)
            received = "".join(line for line in lines if KEPT_METRICS.match(line)).encode()
            if status != 200 or not received:
                return
        received = received.replace(os.getcwd().encode(), b"/models").replace(platform.platform().encode(), b"PLATFORM")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / f"{name}.http").write_bytes(f"{status} {kind}\n\n".encode() + received)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)

    def kill_engine(self) -> None:
        """Ends the process that computes, where it is another one than the server."""
        processes = subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True).stdout
        for line in processes.splitlines()[1:]:
            pid, group, args = line.split(maxsplit=2)
            if int(group) == self.process.pid and args.startswith("VLLM::EngineCore"):
                os.kill(int(pid), signal.SIGKILL)
                return
        self.process.kill()


def record(folder: str, command: list[str], cases: list[str], programs: str, out: pathlib.Path) -> None:
    print(f"{folder}: {' '.join(command[:2])} ...", flush=True)
    server = Server(command, programs, out / folder)
    try:
        server.record("models", "GET", "/v1/models")
        models = json.loads(server.ask("GET", "/v1/models")[2])["data"]
        model = next((model for model in models if model.get("loaded")), models[0])
        # The fields that Hunch sends.
        common = {"model": model["id"], "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        if model.get("owned_by") == "sglang":
            common["return_spec_tokens_details"] = True
        common["max_tokens"] = TOKENS
        chat = {**common, "messages": [{"role": "user", "content": QUESTION}]}
        path = "/v1/chat/completions"
        # The first answer may contain compilation. It would repeat in no later one.
        server.ask("POST", path, chat)
        server.record("metrics-before", "GET", "/metrics")
        server.record("chat", "POST", path, chat)
        time.sleep(1)
        server.record("metrics-after", "GET", "/metrics")
        if "completion" in cases:
            server.record("completion", "POST", "/v1/completions", {**common, "prompt": PROMPT, "stop": [STOP]})
        if "unknown-model" in cases:
            server.record("unknown-model", "POST", path, {**chat, "model": "absent"})
        if "too-long" in cases:
            long = [{"role": "user", "content": QUESTION * 20}]
            server.record("too-long", "POST", path, {**chat, "messages": long})
        if "wrong-key" in cases:
            server.record("wrong-key", "POST", path, chat, key="sk-wrong")
        if "broken" in cases:
            server.record("broken", "POST", path, {**chat, "max_tokens": 400}, begun=server.kill_engine)
    finally:
        if server.process.poll() is None:
            server.process.terminate()
            try:
                server.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        try:
            server.kill()
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    name, programs, models, out = sys.argv[1:]
    out, programs = pathlib.Path(out).resolve(), str(pathlib.Path(programs).resolve())
    os.chdir(models)
    # The Hub's cache of this server. mlx-lm lists no models without it.
    os.environ["HF_HOME"] = f"{os.getcwd()}/cache/{name}"
    os.makedirs(f"cache/{name}/hub", exist_ok=True)
    if name in ("transformers", "mlx-vlm"):
        fill_cache()
    for folder, command, cases in SERVERS[name]:
        record(folder, command, cases, programs, out)
