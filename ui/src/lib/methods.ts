// Drafting methods as the engine reports them, in the window's words where it has any. No DOM.

import type { AppInfo, Method, OfferedMethod } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** The methods to choose from, most recommended first; none before the engine has reported them. */
export function offeredMethods(info: AppInfo | null): OfferedMethod[] {
  // The engine lists plain decoding first. In the window it is the last resort.
  const methods = info?.methods ?? [];
  return [...methods.filter(({ name }) => name !== 'plain'), ...methods.filter(({ name }) => name === 'plain')];
}

/** Name of a method. Without words of its own it keeps its API name. */
export function methodName(method: Method): string {
  return wordsOf(method)?.label ?? method;
}

/** The effect of a method, in one line. */
export function methodMeaning({ name, summary }: OfferedMethod): string {
  return wordsOf(name)?.meaning ?? summary;
}

function wordsOf(method: Method): { label: string; meaning: string } | undefined {
  const known: Readonly<Record<string, { label: string; meaning: string }>> = language.strings.methods;
  return Object.hasOwn(known, method) ? known[method] : undefined;
}
