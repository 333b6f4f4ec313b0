// Who wrote an answer, in the window's words.

import type { AnswerSettings, Method } from '../ipc/schema.gen';
import type { Answer } from './answer.svelte';
import type { OfferedMethod } from '../strings/keys';
import { language } from '../strings/index.svelte';

/** Methods for which another model drafts. */
const drafting: readonly Method[] = ['draft-model', 'draft-tree', 'cascade'];

/** The target, method and draft of an answer: as the engine said when it began, else as it is kept that it was asked
 * with; null where neither is known. */
export function writerOf({ setup }: Answer, settings: AnswerSettings | null): string | null {
  const writer = setup ?? settings;
  if (!writer?.target) return null;
  const { methods, figures } = language.strings;
  // One that this window does not offer goes by its name on the wire.
  const method = Object.hasOwn(methods, writer.method) ? methods[writer.method as OfferedMethod].label : writer.method;
  // What is kept names the draft that was in memory, used or not.
  return figures.by(writer.target, method, drafting.includes(writer.method) ? writer.draft : null);
}
