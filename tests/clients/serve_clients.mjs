// Checks `hunch serve` with the npm packages `openai`, `ai` and `@anthropic-ai/sdk`: FOLDER URL. scripts/serve-clients
// starts it, with the folder that the packages are installed in.
//
// The server must use greedy sampling, so that streamed and whole answers are equal.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, address] = process.argv.slice(2);
const url = address.replace(/\/$/, "");
const require = createRequire(path.join(folder, "package.json"));
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);

const { default: OpenAI } = await load("openai");
const { default: Anthropic } = await load("@anthropic-ai/sdk");
const { generateText, streamText, jsonSchema, tool, Output } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const QUESTION = [
  { role: "user", content: "Write a Python function that adds two numbers." },
];
const TOKENS = 48;

function check(name, holds) {
  if (!holds) {
    console.error(`FAILED: ${name}`);
    process.exit(1);
  }
  console.log(`ok: ${name}`);
}

async function checkOpenai() {
  const client = new OpenAI({
    baseURL: `${url}/v1`,
    apiKey: "none",
    maxRetries: 0,
  });
  const model = (await client.models.list()).data[0].id;
  const asked = { model, messages: QUESTION, max_tokens: TOKENS };
  const whole = await client.chat.completions.create({ ...asked, hunch: true });
  const text = whole.choices[0].message.content;
  check(
    "openai (npm): text with origins",
    text.length > 0 && whole.hunch.texts.join("") === text,
  );
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({
    ...asked,
    stream: true,
  })) {
    streamed += chunk.choices[0]?.delta.content ?? "";
  }
  check("openai (npm): stream equals whole", streamed === text);
  const early = await client.chat.completions.create({
    ...asked,
    stream: true,
  });
  for await (const _ of early) break;
  check(
    "openai (npm): answers after a cancelled stream",
    (await client.chat.completions.create(asked)).choices.length === 1,
  );
  const refused = await client.chat.completions
    .create({ ...asked, n: 2 })
    .catch((error) => error);
  check(
    "openai (npm): n is refused",
    refused instanceof OpenAI.BadRequestError && refused.param === "n",
  );
  return { model, text };
}

async function checkResponses({ model, text }) {
  const client = new OpenAI({
    baseURL: `${url}/v1`,
    apiKey: "none",
    maxRetries: 0,
  });
  const asked = { model, input: QUESTION, max_output_tokens: TOKENS };
  const whole = await client.responses.create(asked);
  check("openai (npm): same text as a response", whole.output_text === text);
  let streamed = "";
  for await (const event of await client.responses.create({
    ...asked,
    stream: true,
  })) {
    if (event.type === "response.output_text.delta") streamed += event.delta;
  }
  check("openai (npm): stream of a response equals whole", streamed === text);
}

async function checkAnthropic({ model, text }) {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const asked = { model, messages: QUESTION, max_tokens: TOKENS };
  check(
    "@anthropic-ai/sdk: same text",
    (await client.messages.create(asked)).content[0].text === text,
  );
  const last = await client.messages.stream(asked).finalMessage();
  check(
    "@anthropic-ai/sdk: stream equals whole",
    last.content[0].text === text,
  );
}

async function checkAi({ model, text }) {
  const provider = createOpenAICompatible({
    name: "hunch",
    baseURL: `${url}/v1`,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const asked = {
    model: provider(model),
    messages: QUESTION,
    maxOutputTokens: TOKENS,
    maxRetries: 0,
  };
  const whole = await generateText(asked);
  check(
    "ai: text and usage",
    whole.text === text && whole.usage.outputTokens > 0,
  );
  const stream = streamText(asked);
  let streamed = "";
  for await (const part of stream.textStream) streamed += part;
  check("ai: stream equals whole", streamed === text);
  const schema = jsonSchema({
    type: "object",
    properties: { colour: { type: "string", enum: ["red", "green"] } },
    required: ["colour"],
    additionalProperties: false,
  });
  const { output } = await generateText({
    ...asked,
    output: Output.object({ schema }),
  });
  check("ai: object by a schema", ["red", "green"].includes(output.colour));
}

// Tools are called if the chat template of the model has them. Otherwise they have to be refused.
async function checkTools({ model }) {
  const schema = {
    type: "object",
    properties: { city: { type: "string", enum: ["Rome", "Paris"] } },
    required: ["city"],
    additionalProperties: false,
  };
  const provider = createOpenAICompatible({
    name: "hunch",
    baseURL: `${url}/v1`,
  });
  const asked = {
    model: provider(model),
    prompt: "How is the weather in Rome?",
    tools: { weather: tool({ inputSchema: jsonSchema(schema) }) },
    toolChoice: { type: "tool", toolName: "weather" },
    maxOutputTokens: 100,
    maxRetries: 0,
  };
  const whole = await generateText(asked).catch((error) => error);
  if (whole instanceof Error) {
    check(
      "ai: tools are refused, with the reason",
      whole.message.includes("chat template"),
    );
    return;
  }
  const [call] = whole.toolCalls;
  check(
    "ai: call",
    call.toolName === "weather" && ["Rome", "Paris"].includes(call.input.city),
  );
  const streamed = await streamText(asked).toolCalls;
  check("ai: streamed call", streamed[0].input.city === call.input.city);
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const stream = client.messages.stream({
    model,
    messages: [{ role: "user", content: asked.prompt }],
    tools: [{ name: "weather", input_schema: schema }],
    tool_choice: { type: "tool", name: "weather" },
    max_tokens: 100,
  });
  const last = await stream.finalMessage();
  check(
    "@anthropic-ai/sdk: streamed call",
    last.stop_reason === "tool_use" && last.content[0].input.city.length > 0,
  );
}

const answer = await checkOpenai();
await checkResponses(answer);
await checkAnthropic(answer);
await checkAi(answer);
await checkTools(answer);
