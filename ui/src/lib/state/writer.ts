// The models of an answer, in the window's words.

import type { AnswerSettings, OfferedMethod } from '../ipc/schema.gen';
import { methodName } from '../methods';
import type { Answer } from './answer.svelte';
import { shortAddress } from './servers.svelte';
import { language } from '../strings/index.svelte';

/** Target, method and draft of an answer: from its first event, else from its saved settings; null if neither is
 * known. */
export function writerOf({ setup }: Answer, settings: AnswerSettings | null, methods: readonly OfferedMethod[]): string | null {
  if (settings?.server) return language.strings.serverFigures.by(settings.target, shortAddress(settings.server));
  const writer = setup ?? settings;
  if (!writer?.target) return null;
  // Saved settings name the loaded draft, used or not.
  const drafted = methods.some(({ name, needs_draft }) => name === writer.method && needs_draft);
  return language.strings.figures.by(writer.target, methodName(writer.method), drafted ? writer.draft : null);
}
