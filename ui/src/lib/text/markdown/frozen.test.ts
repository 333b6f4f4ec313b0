// The window freezes Object.prototype before anything is loaded. Libraries must work with that.

import { expect, it } from 'vitest';

it('parses and highlights everything with a frozen Object.prototype', async () => {
  Object.freeze(Object.prototype);
  const { documentOf, sample, shape } = await import('./testing');
  const { common } = await import('lowlight');
  const { highlight } = await import('./highlight');
  expect(documentOf([...sample], 7).blocks.map(shape).length).toBeGreaterThan(15);
  for (const lang of Object.keys(common)) {
    const code = 'class constructor { toString() { return "x" } } // valueOf\n<a href="b">c</a>\n.hasOwnProperty { color: red }\n';
    expect(highlight(lang, code).at(-1)?.end, lang).toBe(code.length);
  }
  const { default: katex } = await import('katex');
  expect(
    katex.renderToString('\\frac{\\constructor}{\\toString} \\begin{matrix}a & b\\end{matrix}', { throwOnError: false, strict: 'ignore' }),
  ).toContain('katex');
});
