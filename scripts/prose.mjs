// Lints the prose of the repository: Markdown, comments, docstrings, and the text of messages, interface strings and
// test names. `node scripts/prose.mjs [FILE...]`; without files, all tracked ones. Prints FILE:LINE: MESSAGE for each
// problem and then exits with 1.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
// The packages are installed with those of the user interface.
const require = createRequire(path.join(root, "ui/package.json"));
const { TextlintKernel } = require("@textlint/kernel");
const markdown = require("@textlint/textlint-plugin-markdown").default;
const { split } = require("sentence-splitter");
const typescript = require("typescript");

/** Openings that leave the reader without a subject, in any sentence that is no question. */
const openings = /^(What|Who|Those|Whoever|Whatever|How|Whether|Of)\b(?!.*\?)/;

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
  [/\bgo(?:es|ing)? on\b/i, "continue"],
  [/\bhas got\b|\bhave got\b/i, "has"],
  [/\ba twin\b|\btwins\b/i, "fork or copy"],
  [/\bby heart\b|\bdear\b/i, "a plain word"],
  [/\bbesides\b/i, "in addition to"],
  [/\b(?:give|gives|gave|giving|given) back\b/i, "return"],
  [/\banew\b/i, "again"],
  [/\bhears?\b|\bheard\b|\bhearing\b/i, "receive or observe"],
  [/\btells?\b|\btold\b|\btelling\b/i, "report, show, return or send"],
];

const countWords = (text) => text.split(/\s+/).filter((word) => /[\p{L}\d]/u.test(word)).length;

/**
 * The rules of CONTRIBUTING.md. A label of the interface may open with any word: "What the colours mean" is a good heading.
 */
const strict = { mostWords: 25, count: countWords, opening: (sentence) => openings.exec(sentence), terms };
const label = { ...strict, opening: () => null };
/** A comment or docstring does not open with "Where" either. */
const comment = { ...strict, opening: (sentence, first) => openings.exec(sentence) ?? (first ? /^(Where)\b(?!.*\?)/.exec(sentence) : null) };

/** The rules for the text and the comments of a file. */
function rulesOf(file) {
  return file.endsWith(".md") ? strict : comment;
}

/** Problems of a text without code, as offset and message. */
function* lint(text, rules) {
  let first = true;
  for (const sentence of split(text).filter((part) => part.type === "Sentence")) {
    const words = rules.count(sentence.raw);
    if (words > rules.mostWords) yield [sentence.range[0], `${words} words in a sentence; ${rules.mostWords} at most.`];
    const opening = rules.opening(sentence.raw, first);
    if (opening) yield [sentence.range[0], `Opens with "${opening[1]}". Begin with a noun or a verb.`];
    first = false;
    for (const [pattern, term] of rules.terms) {
      const found = pattern.exec(sentence.raw);
      if (found) yield [sentence.range[0] + found.index, `"${found[0]}": write ${term}.`];
    }
  }
}

/** Columns to which the prose of the pages below is wrapped. Their tables, code, headings and pictures may be wider. */
const columns = 100;
const wrapped = /^(docs\/[^/]+|crates\/[^/]+\/README|README|CONTRIBUTING|ARCHITECTURE)\.md$/;

/** Problems of a wrapped text, given with the indent and marker of its first line, as offset and message. */
function* lintWidth(text, before) {
  let offset = 0;
  for (const [i, line] of text.split("\n").entries()) {
    const width = (i === 0 ? before : 0) + line.length;
    // A link or a piece of code that is longer than a line stays whole.
    const breakable = withoutCode(line).trimStart().slice(0, columns).includes(" ");
    if (width > columns && breakable && !line.startsWith("![")) yield [offset, `${width} columns; wrap at ${columns}.`];
    offset += line.length + 1;
  }
}

const withoutCode = (text) => text.replace(/`[^`]*`/g, (code) => "x".repeat(code.length));

/** The checks as a textlint rule over paragraphs and list items. */
const sentences = (context, { rules, wrap }) => {
  const { Syntax, report, RuleError, getSource } = context;
  return {
    [Syntax.Paragraph](node) {
      const text = getSource(node);
      const problems = [...lint(withoutCode(text), rules), ...(wrap ? lintWidth(text, node.loc.start.column) : [])];
      for (const [offset, message] of problems)
        report(node, new RuleError(message, { padding: context.locator.at(offset) }));
    },
  };
};

const hashed = new Set([".sh", ".py", ".toml", ".yml"]);

/** Comments as Markdown: code becomes empty lines, so that line numbers stay. */
function comments(text, extension) {
  if (hashed.has(extension)) return hashComments(text, extension === ".py");
  let inBlock = false;
  return text
    .split("\n")
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

/** Comments after `#`, and docstrings of Python. */
function hashComments(text, python) {
  let inDocstring = false;
  return text
    .split("\n")
    .map((line) => {
      const trimmed = line.trim();
      const quotes = python ? trimmed.split('"""').length - 1 : 0;
      if (inDocstring || (quotes > 0 && trimmed.startsWith('"""'))) {
        if (quotes % 2 === 1) inDocstring = !inDocstring;
        return trimmed.replaceAll('"""', "");
      }
      // Indented lines are usage.
      const found = /^##? (?!\s|shellcheck|SPDX)(.*)$/.exec(trimmed);
      return found ? found[1] : "";
    })
    .join("\n");
}

/** Number of words from which a string counts as prose. */
const leastWords = 3;

/** Texts of string literals: messages, interface strings, test names. A hole of a template becomes `x`. */
function* strings(text, extension) {
  if (extension === ".sh" || extension === ".py") {
    const pattern = extension === ".sh" ? /\b(?:say|die) "([^"]*)"/g : /(?:print|exit|Error|help=|description=)\(?f?"([^"]*)"/g;
    for (const found of text.matchAll(pattern)) yield [lineOf(text, found.index), found[1]];
    return;
  }
  if (extension === ".rs") {
    // Comments are linted as such. A string may continue after a backslash at the end of a line.
    const code = text.replace(/^[^\S\n]*\/\/.*$/gm, "");
    for (const found of code.matchAll(/"((?:[^"\\]|\\[\s\S])*)"/g)) {
      const value = found[1].replace(/\\\n\s*/g, "").replace(/\{[^}]*\}/g, "x");
      yield [lineOf(code, found.index), value];
    }
    return;
  }
  for (const [offset, script] of scripts(text, extension)) {
    const source = typescript.createSourceFile("file.ts", script, typescript.ScriptTarget.Latest, true);
    const found = [];
    const visit = (node) => {
      if (typescript.isImportDeclaration(node)) return;
      if (typescript.isStringLiteralLike(node)) found.push([node.getStart(), node.text]);
      if (typescript.isTemplateExpression(node))
        found.push([node.getStart(), node.head.text + node.templateSpans.map(({ literal }) => `x${literal.text}`).join("")]);
      typescript.forEachChild(node, visit);
    };
    visit(source);
    for (const [at, value] of found) yield [lineOf(text, offset + at), value];
  }
}

/** Names of Rust tests as sentences, with their lines. */
function* rustTests(text) {
  for (const found of text.matchAll(/#\[(?:\w+::)*test\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)/g)) {
    const words = found[1].replaceAll("_", " ");
    yield [lineOf(text, found.index + found[0].length), words[0].toUpperCase() + words.slice(1)];
  }
}

/** The scripts of a file, with their offsets. */
function scripts(text, extension) {
  if (extension !== ".svelte") return [[0, text]];
  return [...text.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)].map((found) => [found.index + found[0].indexOf(">") + 1, found[1]]);
}

const lineOf = (text, offset) => text.slice(0, offset).split("\n").length;

/** Looks like a sentence or a name made of words, not like markup, a selector or a path. */
const isProse = (value) => value.split(/\s+/).length >= leastWords && /^[\p{L}“"'\d ,.;:!?()’”…–—+%/=<>*×·-]+$/u.test(value);

const withStrings = new Set([".rs", ".ts", ".mjs", ".js", ".svelte", ".sh", ".py"]);

/** German strings and the sample texts of fixtures are not English prose of ours. */
const foreign = /De\.ts$|\/de\.ts$|De\.json$|tests\/ui\/fixtures\//;

const kinds = new Set([".md", ".rs", ".ts", ".svelte", ".mjs", ".js", ".cjs", ".css", ".metal", ".sh", ".py", ".toml"]);

/** The extension that a file's content has; scripts in Bash have none in their names. */
function kindOf(file, text) {
  return path.extname(file) || (text.startsWith("#!/usr/bin/env bash") ? ".sh" : "");
}

const files =
  process.argv.length > 2
    ? process.argv.slice(2)
    : execFileSync("git", ["ls-files"], { cwd: root, encoding: "utf8" })
        .split("\n")
        // A file that was deleted is listed until the deletion is staged.
        .filter((file) => file && existsSync(path.join(root, file)))
        .filter((file) => !/\.gen\.|^LICENSE|NOTICES/.test(file) && (path.extname(file) === "" || kinds.has(path.extname(file))));

const kernel = new TextlintKernel();
let problems = 0;
for (const file of files) {
  const text = readFileSync(path.join(root, file), "utf8");
  const extension = kindOf(file, text);
  if (!kinds.has(extension)) continue;
  const { messages } = await kernel.lintText(extension === ".md" ? text : comments(text, extension), {
    ext: ".md",
    plugins: [{ pluginId: "markdown", plugin: markdown }],
    rules: [{ ruleId: "sentences", rule: sentences, options: { rules: rulesOf(file), wrap: wrapped.test(file) } }],
  });
  const found = messages.map(({ loc, message }) => [loc.start.line, message]);
  if (withStrings.has(extension) && !foreign.test(file))
    for (const [line, value] of strings(text, extension))
      if (isProse(withoutCode(value)))
        for (const [, message] of lint(withoutCode(value), /lib\/strings\//.test(file) ? label : rulesOf(file)))
          found.push([line, `"${value}": ${message}`]);
  if (extension === ".rs")
    for (const [line, name] of rustTests(text)) for (const [, message] of lint(name, rulesOf(file))) found.push([line, `test "${name}": ${message}`]);
  for (const [line, message] of found.sort(([a], [b]) => a - b)) console.log(`${file}:${line}: ${message}`);
  problems += found.length;
}
if (problems) {
  console.log(`${problems} ${problems === 1 ? "problem" : "problems"} to fix.`);
  process.exit(1);
}
