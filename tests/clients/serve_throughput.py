"""Measures one stream of `hunch serve` against `hunch run`: HUNCH PAIRS TOKENS METHODS [OPTIONS].

scripts/serve-throughput starts it. The two take turns, so that heat and load affect both alike.
"""

import http.client
import json
import math
import statistics
import subprocess
import sys
import time

PROMPT = "Write a Python function that reads a CSV file and returns the rows as a list of dictionaries. Explain it."


def run(hunch: str, tokens: int, arguments: list[str]) -> dict:
    command = [hunch, "run", PROMPT, "--json", "--max-tokens", str(tokens), *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])["stats"]


def ask(port: int, tokens: int) -> tuple[float, dict]:
    """Returns the tokens per second after the first ones, and the figures of the server."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": tokens,
        "stream": True,
        "hunch": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    received = []
    while data := response.read1(1 << 16):
        received.append((time.perf_counter(), data))
    connection.close()
    # Parsed afterwards, so that the client takes no time from the server.
    counts, stats, rest = [], None, b""
    for when, data in received:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            field = json.loads(line[6:]).get("hunch", {})
            if field.get("texts"):
                counts.append((when, len(field["texts"])))
            stats = field.get("stats", stats)
    later = sum(count for _, count in counts[1:])
    return later / (counts[-1][0] - counts[0][0]), stats


def measure(hunch: str, pairs: int, tokens: int, method: str, options: list[str]) -> None:
    arguments = ["--method", method, "--temperature", "0", *options]
    command = [hunch, "serve", "--port", "0", "--json", "--idle-minutes", "0", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = json.loads(server.stdout.readline())["port"]
        ask(port, tokens)
        local, streamed, reported = [], [], []
        for pair in range(pairs):
            # Each is first in half of the pairs.
            for is_stream in (False, True) if pair % 2 == 0 else (True, False):
                if is_stream:
                    rate, theirs = ask(port, tokens)
                    streamed.append(rate)
                    reported.append(theirs["decode_tok_s"])
                else:
                    ours = run(hunch, tokens, arguments)
                    local.append(ours["decode_tok_s"])
        passes = [ours["mean_acceptance_length"], theirs["mean_acceptance_length"]]
    finally:
        server.terminate()
        server.wait()
    logs = [math.log(theirs / ours) for theirs, ours in zip(streamed, local)]
    ratio, error = math.exp(statistics.mean(logs)), statistics.stdev(logs) / math.sqrt(pairs)
    medians = (statistics.median(figures) for figures in (local, streamed, reported))
    figures = [*(f"{median:.1f}" for median in medians), *(f"{length:.2f}" for length in passes), f"{ratio:.3f} ± {error:.3f}"]
    print(f"| {method} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    hunch, pairs, tokens, methods, *options = sys.argv[1:]
    print("| method | run, tok/s | stream, tok/s | server's own, tok/s | tokens per pass, run | stream | stream / run |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for method in methods.split():
        measure(hunch, int(pairs), int(tokens), method, options)
