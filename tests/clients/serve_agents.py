"""Checks `hunch serve` with agents: the program `llm` and the package `openai-agents`: URL. scripts/serve-clients starts it.

The server must use greedy sampling. Tools are called if the model's chat template has them, otherwise they are refused.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request
from typing import Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

QUESTION = "Name three primary colours."
PLACE = "How is the weather in Rome? Use the tool."


def check(name: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"FAILED: {name}")
    print(f"ok: {name}", flush=True)


def first_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        return json.load(response)["data"][0]["id"]


def check_llm(url: str, model: str) -> None:
    """The program `llm`: streamed, whole, and a second turn."""
    with tempfile.TemporaryDirectory() as folder:
        entry = f"- model_id: hunch\n  model_name: {json.dumps(model)}\n  api_base: {url}/v1\n"
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(entry)
        variables = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        program = [str(pathlib.Path(sys.executable).with_name("llm")), "-m", "hunch"]

        def run(*arguments: str) -> str:
            command = [*program, *arguments, "-o", "max_tokens", "48", "-o", "temperature", "0"]
            done = subprocess.run(command, env=variables, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"FAILED: llm: {done.stderr}")
            return done.stdout.strip()

        streamed = run(QUESTION)
        check("llm: streamed answer", bool(streamed))
        check("llm: whole answer is the same", run(QUESTION, "--no-stream") == streamed)
        check("llm: second turn", bool(run("-c", "Name one more.")))


def check_agent(url: str, model: str, protocol: type) -> None:
    """An agent of `openai-agents` that has to use its tool before it answers, with one of its two protocols."""
    called = []

    @function_tool
    def weather(city: Literal["Rome", "Paris"]) -> str:
        """Returns the weather of a city."""
        called.append(city)
        return f"It is sunny in {city}."

    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    agent = Agent(
        name="forecaster",
        instructions="You report the weather.",
        model=protocol(model=model, openai_client=client),
        model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=100),
        tools=[weather],
    )
    try:
        result = Runner.run_sync(agent, PLACE, max_turns=4)
    except openai.BadRequestError as error:
        return check(f"{protocol.__name__}: tools are refused, with the reason", "chat template" in str(error))
    check(f"{protocol.__name__}: tool called", bool(called) and set(called) <= {"Rome", "Paris"})
    check(f"{protocol.__name__}: answer after the result", bool(str(result.final_output).strip()))


if __name__ == "__main__":
    address = sys.argv[1].rstrip("/")
    name = first_model(address)
    check_llm(address, name)
    for protocol in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        check_agent(address, name, protocol)
