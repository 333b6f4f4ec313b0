// The format of the window and its tests. `npm run format` applies it, `npm run lint` checks it.
import { fileURLToPath } from 'node:url';

export default {
  printWidth: 140,
  singleQuote: true,
  trailingComma: 'all',
  plugins: [fileURLToPath(import.meta.resolve('prettier-plugin-svelte'))],
  overrides: [{ files: '*.svelte', options: { parser: 'svelte' } }],
};
