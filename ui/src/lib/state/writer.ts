// The models of an answer, in the window's words.

import type { AnswerSettings, Method } from '../ipc/schema.gen';
import type { Answer } from './answer.svelte';
import type { OfferedMethod } from '../strings/keys';
import { language } from '../strings/index.svelte';

/** Methods that draft with another model. */
const drafting: readonly Method[] = ['draft-model', 'draft-tree', 'cascade'];

/** Target, method and draft of an answer: from its first event, else from its saved settings; null if neither is
 * known. */
export function writerOf({ setup }: Answer, settings: AnswerSettings | null): string | null {
  const writer = setup ?? settings;
  if (!writer?.target) return null;
  const { methods, figures } = language.strings;
  // Unknown methods keep their API name.
  const method = Object.hasOwn(methods, writer.method) ? methods[writer.method as OfferedMethod].label : writer.method;
  // Saved settings name the loaded draft, used or not.
  return figures.by(writer.target, method, drafting.includes(writer.method) ? writer.draft : null);
}
