"""Checks `hunch serve` with the packages `openai` and `anthropic`: URL. scripts/serve-clients starts both.

The server must use greedy sampling, so that streamed and whole answers are equal. Tools are called if the model's chat
template has them, otherwise they have to be refused.
"""

import json
import sys

import anthropic
import openai

QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FLAT_FUNCTION = {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
PLACE = {"role": "user", "content": "How is the weather in Rome?"}
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
    completion = client.completions.create(model=model, prompt="def add(a, b):", max_tokens=8, logprobs=2)
    check("openai: completion", bool(completion.choices[0].text))
    check("openai: log probabilities of a completion", len(completion.choices[0].logprobs.token_logprobs) == 8)
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


def check_responses(url: str, expected: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = {"model": model, "input": QUESTION, "max_output_tokens": 48}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.responses.create(**asked, **logprobs, extra_body={"hunch": True})
    check("responses: same text as chat", whole.output_text == expected)
    check("responses: origins", set(whole.hunch["origins"]) <= ORIGINS and "".join(whole.hunch["texts"]) == expected)
    check("responses: log probabilities", len(whole.output[0].content[0].logprobs) == whole.usage.output_tokens)
    cut = whole.usage.output_tokens == 48
    check("responses: status", whole.status == ("incomplete" if cut else "completed"))
    events = list(client.responses.create(**asked, stream=True))
    check("responses: numbers of events", [event.sequence_number for event in events] == list(range(len(events))))
    streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check("responses: stream equals whole", streamed == expected)
    last = events[-1].response
    check("responses: last event", last.output_text == expected and last.usage.output_tokens == whole.usage.output_tokens)
    text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
    with client.responses.stream(model=model, input=[PLACE], text=text, max_output_tokens=100) as stream:
        placed = json.loads(stream.get_final_response().output_text)
    check("responses: format", placed["city"] in ("Rome", "Paris"))
    try:
        client.responses.create(**asked, previous_response_id=whole.id)
        check("responses: a stored response is refused", False)
    except openai.BadRequestError as error:
        check("responses: a stored response is refused", error.param == "previous_response_id")


def check_responses_tools(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = {"model": model, "tools": [FLAT_FUNCTION], "max_output_tokens": 100}
    named = {"type": "function", "name": "weather"}
    try:
        answer = client.responses.create(**asked, input=[PLACE], tool_choice=named)
    except openai.BadRequestError as error:
        return check("responses: tools are refused, with the reason", "chat template" in str(error))
    call = answer.output[0]
    check("responses: call", call.name == "weather" and "city" in json.loads(call.arguments))
    with client.responses.stream(**asked, input=[PLACE], tool_choice=named) as stream:
        streamed = stream.get_final_response().output[0]
    check("responses: streamed call", streamed.arguments == call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = client.responses.create(**asked, input=[PLACE, *answer.output, result], tool_choice="none")
    check("responses: answer to a result", bool(after.output_text))


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


def check_openai_tools(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    named = {"type": "function", "function": {"name": "weather"}}
    asked = {"model": model, "messages": [PLACE], "tools": [FUNCTION], "max_tokens": 100}
    try:
        answer = client.chat.completions.create(**asked, tool_choice=named).choices[0]
    except openai.BadRequestError as error:
        return check("openai: tools are refused, with the reason", "chat template" in str(error))
    check("openai: finish reason of a call", answer.finish_reason == "tool_calls")
    call = answer.message.tool_calls[0]
    check("openai: call", call.function.name == "weather" and "city" in json.loads(call.function.arguments))
    with client.chat.completions.stream(**asked, tool_choice=named) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    check("openai: streamed call", streamed.function.arguments == call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [PLACE, answer.message, result]
    after = client.chat.completions.create(**{**asked, "messages": messages}, tool_choice="none")
    check("openai: answer to a result", bool(after.choices[0].message.content))


def check_anthropic_tools(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": [PLACE], "tools": [TOOL], "max_tokens": 100}
    named = {"type": "tool", "name": "weather"}
    try:
        answer = client.messages.create(**asked, tool_choice=named)
    except anthropic.BadRequestError as error:
        return check("anthropic: tools are refused, with the reason", "chat template" in str(error))
    call = answer.content[0]
    check("anthropic: call", answer.stop_reason == "tool_use" and call.name == "weather" and "city" in call.input)
    with client.messages.stream(**asked, tool_choice=named) as stream:
        streamed = stream.get_final_message()
    check("anthropic: streamed call", streamed.content[0].input == call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [PLACE, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**asked, "messages": messages}, tool_choice={"type": "none"})
    check("anthropic: answer to a result", after.content[0].type == "text")


if __name__ == "__main__":
    address = sys.argv[1].rstrip("/")
    answer = check_openai(address)
    check_responses(address, answer)
    check_anthropic(address, answer)
    check_openai_tools(address)
    check_responses_tools(address)
    check_anthropic_tools(address)
