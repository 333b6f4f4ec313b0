// Lints prose in Markdown files and in the comments of Rust, TypeScript and Svelte: sentence length, openings, and
// terms of this project. `node scripts/prose.mjs [FILE...]`; without files, all tracked ones. Prints
// FILE:LINE: MESSAGE for each problem and then exits with 1.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
// The packages are installed with those of the user interface.
const require = createRequire(path.join(root, "ui/package.json"));
const { TextlintKernel } = require("@textlint/kernel");
const markdown = require("@textlint/textlint-plugin-markdown").default;
const { split } = require("sentence-splitter");

const mostWords = 30;

/** Openings that leave the reader without a subject. */
const openings = /^(What|Who|Those|Whoever|Whatever|How)\b(?!.*\?)/;

/** Words that have an established term: pattern, and the term. */
const terms = [
  [/\blaws?\b/i, "distribution"],
  [/\bin vain\b/i, "without effect"],
  [/\bbeside\b/i, "next to, during or in addition to"],
  [/\bmended\b|\bmend\b/i, "fix"],
  [/\bput back\b/i, "restored"],
  [/\bso much\b/i, "a number or a share"],
  [/\bcalled off\b|\bcalls? off\b|\bcalling off\b/i, "cancel"],
  [/\bwhoever\b/i, "the caller, or another noun"],
  [/\bnone of them\b/i, "a noun"],
  [/\bbelieved?\b|\bbelieves\b|\bdoubts?\b/i, "estimate, assume or trust"],
  [/\bgoes? on\b/i, "continue"],
  [/\bhas got\b|\bhave got\b/i, "has"],
  [/\ba twin\b|\btwins\b/i, "fork or copy"],
  [/\bby heart\b|\bdear\b/i, "a plain word"],
];

/** A rule over the sentences of each paragraph and list item. */
const sentences = (context) => {
  const { Syntax, report, RuleError, getSource } = context;
  return {
    [Syntax.Paragraph](node) {
      const text = getSource(node).replace(/`[^`]*`/g, (code) => "x".repeat(code.length));
      const at = (offset, message) =>
        report(node, new RuleError(message, { padding: context.locator.at(offset) }));
      let first = true;
      for (const sentence of split(text).filter((part) => part.type === "Sentence")) {
        // The items of a list after a colon count alone.
        const parts = sentence.raw.split(/[:;](?=\s)/);
        const words = Math.max(...parts.map((part) => part.split(/\s+/).filter((word) => /[\p{L}\d]/u.test(word)).length));
        if (words > mostWords) at(sentence.range[0], `${words} words in a sentence; ${mostWords} at most.`);
        const opening = openings.exec(sentence.raw);
        if (first && opening) at(sentence.range[0], `Opens with "${opening[1]}". Begin with a noun or a verb.`);
        first = false;
        for (const [pattern, term] of terms) {
          const found = pattern.exec(sentence.raw);
          if (found) at(sentence.range[0] + found.index, `"${found[0]}": write ${term}.`);
        }
      }
    },
  };
};

/** Comments as Markdown: code becomes empty lines, so that line numbers stay. */
function comments(text, extension) {
  const lines = text.split("\n");
  let inBlock = false;
  return lines
    .map((line) => {
      const trimmed = line.trim();
      if (extension !== ".rs" && (inBlock || trimmed.startsWith("/*") || trimmed.startsWith("<!--"))) {
        inBlock = !/\*\/|-->/.test(trimmed);
        return trimmed.replace(/^(\/\*\*?|\*\/|\*(?!\*)|<!--)\s?/, "").replace(/\s*(\*\/|-->)$/, "");
      }
      const found = /^(?:\/\/[/!]?) ?(.*)$/.exec(trimmed);
      if (!found || /^(eslint|@ts-|prettier|SPDX)/.test(found[1])) return "";
      return found[1];
    })
    .join("\n");
}

const files =
  process.argv.length > 2
    ? process.argv.slice(2)
    : execFileSync("git", ["ls-files", "*.md", "*.rs", "*.ts", "*.svelte"], { cwd: root, encoding: "utf8" })
        .split("\n")
        .filter((file) => file && !/\.gen\.|CHANGELOG/.test(file));

const kernel = new TextlintKernel();
let problems = 0;
for (const file of files) {
  const text = readFileSync(path.join(root, file), "utf8");
  const extension = path.extname(file);
  const prose = extension === ".md" ? text : comments(text, extension);
  const { messages } = await kernel.lintText(prose, {
    ext: ".md",
    plugins: [{ pluginId: "markdown", plugin: markdown }],
    rules: [{ ruleId: "sentences", rule: sentences }],
  });
  for (const message of messages) console.log(`${file}:${message.loc.start.line}: ${message.message}`);
  problems += messages.length;
}
if (problems) {
  console.log(`${problems} sentences to rewrite.`);
  process.exit(1);
}
