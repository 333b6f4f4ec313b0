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
  // The engine names a draft that the method uses. Saved settings name the loaded one, used or not.
  const uses = writer === setup || methods.some(({ name, uses_draft }) => name === writer.method && uses_draft);
  return language.strings.figures.by(writer.target, methodName(writer.method), uses ? writer.draft : null);
}
