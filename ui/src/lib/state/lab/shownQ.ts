// Comparison of the lab's q with the distribution that a token of an answer was drafted from. No DOM.

import type { AnswerSettings, Method, OfferedMethod } from '../../ipc/schema.gen';
import type { TokenDetail } from '../answer.svelte';

/** Positions at the start of the text that a draft window always includes. As `DraftWindow::SINKS` of the engine. */
const firstPositions = 4;

/** Difference of the lab's q from that of the answer. */
type ShownQ =
  /** Not at all. */
  | { kind: 'as_drawn' }
  /** The answer's method uses no draft model, or none was loaded. */
  | { kind: 'other_method' }
  /** The answer's draft model is not loaded. */
  | { kind: 'other_draft'; draft: string }
  /** No draft was tested at the token. */
  | { kind: 'undrafted' }
  /** Another proposer drafted the token. */
  | { kind: 'drafted_by'; method: Method }
  /** The draft model chose its tokens by rank, without drawing from q. */
  | { kind: 'ranked' }
  /** The head drafted it after another token, from its own states. */
  | { kind: 'later' }
  /** The draft model read only the last tokens. */
  | { kind: 'window'; tokens: number }
  | { kind: 'other_temperature'; own: number };

/** A token of an answer, and the distributions shown for it. */
export interface ShownToken {
  /** Settings of the answer. */
  settings: AnswerSettings | null;
  token: TokenDetail;
  /** Number of tokens before it, the prompt included. */
  context: number;
  /** Name of the loaded draft model. */
  draft: string | null;
  /** `true` if a head computed q. */
  byHead?: boolean;
  /** Temperature of the shown distributions. */
  temperature: number;
  methods: readonly OfferedMethod[];
}

/** Compares the shown q with the one that the token was drafted from. The first difference counts. */
export function shownQ({ settings, token, context, draft, byHead = false, temperature, methods }: ShownToken): ShownQ {
  const uses = methods.some(({ name, uses_draft, uses_head }) => name === settings?.method && (byHead ? uses_head : uses_draft));
  if (!settings || !uses) return { kind: 'other_method' };
  if (!byHead) {
    if (settings.draft === null) return { kind: 'other_method' };
    if (settings.draft !== draft) return { kind: 'other_draft', draft: settings.draft };
  }
  const { origin, q } = token.token;
  if (origin !== 'accepted' && token.rejected.length === 0) return { kind: 'undrafted' };
  // Answers of older versions lack it. There the method itself may be the drafter.
  const method = token.draftedBy ?? settings.method;
  if (!methods.some(({ name, needs_draft, needs_head }) => name === method && (byHead ? needs_head : needs_draft)))
    return { kind: 'drafted_by', method };
  const tested = [...(origin === 'accepted' ? [q] : []), ...token.rejected.map((rejected) => rejected.q)];
  // At temperature 0, q has one token, whose test needs no q.
  if (settings.sampling.temperature > 0 && tested.every((q) => q === null)) return { kind: 'ranked' };
  if (byHead && token.token.position > 0) return { kind: 'later' };
  const window = byHead ? undefined : settings.options?.draft_window;
  if (window !== undefined && context > window + firstPositions) return { kind: 'window', tokens: window };
  const own = settings.sampling.temperature;
  return own === temperature ? { kind: 'as_drawn' } : { kind: 'other_temperature', own };
}
