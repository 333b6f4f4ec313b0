// Prints prompts with long contexts, as JSON Lines for `hunch bench --suite FILE`: sources of the core, then a question.
//
//   node scripts/long-prompts.mjs CHARACTERS [COUNT] > long.jsonl
//
// A token of Qwen is about 3.7 characters of Rust. Each prompt begins with another file.
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";

const QUESTIONS = [
  ["explain", "Explain to a new contributor how these files work together."],
  ["test", "Write three further unit tests for the last file."],
  ["far", "List the public types and functions of the first file, with a sentence on each."],
  ["change", "Suggest an improvement of the last file, and show the changed code."],
];

const [characters, count] = [Number(process.argv[2]), Number(process.argv[3] ?? QUESTIONS.length)];
if (!(characters > 0 && count > 0)) {
  console.error("Usage: node scripts/long-prompts.mjs CHARACTERS [COUNT] > long.jsonl");
  process.exit(2);
}

const folder = path.join(import.meta.dirname, "..", "crates", "hunch-core", "src");
const files = readdirSync(folder, { recursive: true })
  .filter((name) => name.endsWith(".rs"))
  .sort();
const text = (at) => `// ${files[at]}\n${readFileSync(path.join(folder, files[at]), "utf8")}`;

for (const [number, [id, question]] of QUESTIONS.slice(0, count).entries()) {
  let context = "";
  for (let at = number * 5; context.length < characters; at++) context += text(at % files.length) + "\n";
  console.log(JSON.stringify({ id, prompt: `${context.slice(0, characters)}\n\n${question}` }));
}
