// Layers of the window. A file may import from its own layer and from those below it, and no file may import itself
// through others. `npm run layers` checks it. Svelte files are checked as compiled.

const src = '^(ui/)?src/';

/** Layers from the bottom up, as patterns of paths. Helpers are all other files of src/lib. */
const floors = [
  { name: 'wire', path: `${src}lib/ipc/schema\\.gen\\.ts$` },
  { name: 'strings', path: `${src}lib/strings/` },
  { name: 'helpers', path: `${src}lib/(text/|(?!commands)[^/]+$)` },
  { name: 'host', path: `${src}lib/host/` },
  { name: 'ipc', path: `${src}lib/ipc/(?!schema\\.gen)` },
  { name: 'state', path: `${src}lib/state/` },
  { name: 'commands', path: `${src}lib/commands\\.` },
  { name: 'components', path: `${src}components/` },
  { name: 'features', path: `${src}features/` },
  { name: 'window', path: `${src}[^/]+$` },
];

const upward = floors.slice(0, -1).map(({ name, path }, i) => ({
  name: `${name}-imports-upward`,
  comment: `${name} may use only what stands below it: ${floors.slice(0, i).map((floor) => floor.name).join(', ') || 'nothing'}.`,
  severity: 'error',
  // Tests may import anything.
  from: { path, pathNot: '\\.test\\.ts$' },
  to: { path: floors.slice(i + 1).map((floor) => floor.path) },
}));

module.exports = {
  forbidden: [
    ...upward,
    {
      name: 'no-circle',
      comment: 'A circle cannot be read, tested or moved in parts. Types count too. A component may draw itself again.',
      severity: 'error',
      from: { path: '(.+)' },
      to: { circular: true, pathNot: '^$1$' },
    },
    {
      name: 'one-file-knows-tauri',
      comment: 'Everything else talks to the Host interface, so that tests and other hosts can take its place.',
      severity: 'error',
      from: { pathNot: `${src}lib/host/tauri\\.ts$` },
      to: { path: '@tauri-apps/' },
    },
    {
      name: 'product-without-tests',
      comment: 'What only tests need is not built in. The replay host is one such file.',
      severity: 'error',
      from: { path: src, pathNot: '(\\.test|/testing)\\.ts$' },
      to: { path: '^\\.\\./tests/|(\\.test|/testing)\\.ts$' },
    },
    {
      name: 'everything-resolves',
      comment: 'An import that is not found is not checked either.',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true, path: '^\\.' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules|^\\.\\./tests/' },
    exclude: { path: '\\.json$' },
    // Type imports too, which the compiler removes.
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { extensions: ['.ts', '.js', '.svelte', '.svelte.ts'], exportsFields: ['exports'], conditionNames: ['svelte', 'browser', 'import', 'default'] },
  },
};
