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
  comment: `${name} may import only from below: ${
    floors
      .slice(0, i)
      .map((floor) => floor.name)
      .join(', ') || 'nothing'
  }.`,
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
      comment: 'Files in a circle cannot be read, tested or moved alone. Types count too. A component may contain itself.',
      severity: 'error',
      from: { path: '(.+)' },
      to: { circular: true, pathNot: '^$1$' },
    },
    {
      name: 'features-stay-apart',
      comment: 'A feature reads the state of its own context. Shared components live in components.',
      severity: 'error',
      from: { path: `${src}features/([^/]+)/` },
      to: { path: `${src}features/`, pathNot: `${src}features/$1/` },
    },
    {
      name: 'one-file-knows-tauri',
      comment: 'Everything else uses the Host interface, which tests implement too.',
      severity: 'error',
      from: { pathNot: `${src}lib/host/tauri\\.ts$` },
      to: { path: '@tauri-apps/' },
    },
    {
      name: 'product-without-tests',
      comment: 'The built window contains no test code, such as the replay host.',
      severity: 'error',
      from: { path: src, pathNot: '(\\.test|/testing)\\.ts$' },
      to: { path: '^\\.\\./tests/|(\\.test|/testing)\\.ts$' },
    },
    {
      name: 'everything-resolves',
      comment: 'Imports that do not resolve are not checked.',
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
    enhancedResolveOptions: {
      extensions: ['.ts', '.js', '.svelte', '.svelte.ts'],
      exportsFields: ['exports'],
      conditionNames: ['svelte', 'browser', 'import', 'default'],
    },
  },
};
