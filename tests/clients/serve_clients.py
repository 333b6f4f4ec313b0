"""Checks `hunch serve` with the packages `openai` and `anthropic`: URL. scripts/serve-clients starts both.

The server must use greedy sampling, so that streamed and whole answers are equal.
"""

import sys

import anthropic
import openai

QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
ORIGINS = {"accepted", "resampled", "bonus", "plain"}


def check(name: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"FAILED: {name}")
    print(f"ok: {name}")


def check_openai(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    check("openai: retrieve a model", client.models.retrieve(model).id == model)
    asked = {"model": model, "messages": QUESTION, "max_tokens": 48}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, extra_body={"hunch": True})
    text = whole.choices[0].message.content
    check("openai: text", bool(text) and whole.usage.completion_tokens <= 48)
    check("openai: origins", set(whole.hunch["origins"]) <= ORIGINS and "".join(whole.hunch["texts"]) == text)
    check("openai: log probabilities", len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("openai: stream equals whole", streamed == text)
    check("openai: usage of a stream", chunks[-1].usage.completion_tokens == whole.usage.completion_tokens)
    completion = client.completions.create(model=model, prompt="def add(a, b):", max_tokens=8)
    check("openai: completion", bool(completion.choices[0].text))
    try:
        client.chat.completions.create(**asked, n=2)
        check("openai: n is refused", False)
    except openai.BadRequestError as error:
        check("openai: n is refused", error.param == "n")
    try:
        client.chat.completions.create(model="other", messages=QUESTION)
        check("openai: another model is refused", False)
    except openai.NotFoundError as error:
        check("openai: another model is refused", error.code == "model_not_found")
    with client.chat.completions.create(model=model, messages=QUESTION, stream=True) as early:
        next(iter(early))
    check("openai: answers after a cancelled stream", bool(client.chat.completions.create(**asked).choices))
    return text


def check_anthropic(url: str, expected: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": QUESTION, "max_tokens": 48}
    whole = client.messages.create(**asked)
    check("anthropic: same text as openai", whole.content[0].text == expected)
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
        last = stream.get_final_message()
    check("anthropic: stream equals whole", streamed == expected and last.content[0].text == expected)
    check("anthropic: stop reason", last.stop_reason == whole.stop_reason)
    check("anthropic: usage", last.usage.output_tokens == whole.usage.output_tokens)
    counted = client.messages.count_tokens(model=model, messages=QUESTION)
    check("anthropic: count tokens", counted.input_tokens == whole.usage.input_tokens)
    stopped = client.messages.create(**asked, stop_sequences=["def"])
    check("anthropic: stop sequence", stopped.stop_sequence == "def" or "def" not in expected)
    try:
        client.messages.create(**asked, tools=[{"name": "x", "input_schema": {"type": "object"}}])
        check("anthropic: tools are refused", False)
    except anthropic.BadRequestError as error:
        check("anthropic: tools are refused", "tools" in str(error))


if __name__ == "__main__":
    address = sys.argv[1].rstrip("/")
    check_anthropic(address, check_openai(address))
