// Runs axe-core on a page.

import { readFileSync } from 'node:fs';
import type { AxeResults, ImpactValue } from 'axe-core';
import type { Page } from 'playwright-core';
import { expect } from 'vitest';

const source = readFileSync(new URL('../../ui/node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const worst: ImpactValue[] = ['serious', 'critical'];

/** Serious and critical violations, one line per element. axe runs in an isolated world with the same
 * elements and styles. The page's content security policy and its frozen Object.prototype do not apply there. */
export async function violations(page: Page): Promise<string[]> {
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send('Page.getFrameTree');
  const { executionContextId: contextId } = await session.send('Page.createIsolatedWorld', {
    frameId: frameTree.frame.id,
    worldName: 'axe',
  });
  const run = async (expression: string) => {
    const { result, exceptionDetails } = await session.send('Runtime.evaluate', {
      contextId,
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value as unknown;
  };
  await run(`${source}; undefined`);
  const found = (await run(`axe.run(document, { resultTypes: ['violations'] })`)) as AxeResults;
  expect(found.passes.length, 'rules that were tried').toBeGreaterThan(5);
  await session.detach();
  return found.violations
    .filter(({ impact }) => worst.includes(impact ?? null))
    .flatMap(({ id, impact, nodes }) =>
      nodes.map((node) => `${id} (${impact}): ${node.html.slice(0, 200)} ${node.failureSummary?.slice(0, 300)}`),
    );
}
