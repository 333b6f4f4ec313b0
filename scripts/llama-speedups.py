"""Times llama.cpp's speculative decoding on the prompts of `hunch bench`: TOOL TARGET [DRAFT] [--prompts N].

TOOL is llama.cpp's own example llama-speculative-simple. Prompts are in ChatML, the format of Qwen and SmolLM. The
methods take turns on each prompt. Plain decoding is the same loop with a lookup that never matches. A speedup is the
ratio of encoding and decoding time per token, as `hunch bench` has it. Prints a table of medians."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

SUITES = Path(__file__).parent.parent / "src/bench/suites"
CHATML = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("target")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--suites", default="code,prose,edit")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="as hunch has it: one per core")
    options = parser.parse_args()

    methods = {
        "plain": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "512"],
        "ngram": ["--spec-type", "ngram-simple"],
    }
    if options.draft:
        methods["draft-model"] = ["--spec-type", "draft-simple", "--model-draft", options.draft]

    def milliseconds(prompt: str, arguments: list[str]) -> float:
        """Milliseconds of a token: reading the prompt and decoding the answer, over the tokens of the answer."""
        command = [options.tool, "--model", options.target, "--prompt", prompt, "--temp", "0"]
        command += ["--threads", str(options.threads), "--ctx-size", "4096", "--batch-size", "4096"]
        command += ["--n-predict", str(options.max_tokens), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        told = re.findall(r"(?:encoded|decoded) +(\d+) tokens in +([\d.]+) seconds", done.stdout + done.stderr)
        if done.returncode != 0 or len(told) != 2:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return 1000 * sum(float(seconds) for _, seconds in told) / int(told[1][0])

    print("| suite | method | speedup | ms per token |\n| --- | --- | --- | --- |", flush=True)
    for suite in options.suites.split(","):
        lines = (SUITES / f"{suite}.jsonl").read_text().splitlines()[: options.prompts]
        times: dict[str, list[float]] = {name: [] for name in methods}
        for line in lines:
            prompt = json.loads(line)
            text = CHATML.format(system=prompt.get("system", ""), prompt=prompt["prompt"])
            for name, arguments in methods.items():
                times[name].append(milliseconds(text, arguments))
        for name in methods:
            speedup = statistics.median(plain / other for plain, other in zip(times["plain"], times[name]))
            print(f"| {suite} | {name} | {speedup:.2f}x | {statistics.median(times[name]):.1f} |", flush=True)


if __name__ == "__main__":
    main()
