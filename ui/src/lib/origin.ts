// The one table of token origins: label, colour variable, underline pattern, order. The legend, the
// card, the tokens' style sheet and the tests all read it.

import type { TokenOrigin } from './ipc/schema.gen';

/** Origins an answer's token can have. */
export type AnswerOrigin = Exclude<TokenOrigin, 'prompt'>;

/** How an origin is named and drawn. */
export interface OriginStyle {
  origin: AnswerOrigin;
  label: string;
  /** One sentence for a person who has not read a paper. */
  meaning: string;
  /** CSS variable of its colour; null for no colour. */
  colour: `--origin-${string}` | null;
  underline: 'solid' | 'wavy' | 'double' | 'none';
}

/** Every origin in the order it is shown. */
export const origins: readonly OriginStyle[] = [
  {
    origin: 'accepted',
    label: 'accepted',
    meaning: 'Drafted, and kept by the target.',
    colour: '--origin-accepted',
    underline: 'solid',
  },
  {
    origin: 'resampled',
    label: 'resampled',
    meaning: 'Drawn by the target in place of a rejected draft.',
    colour: '--origin-resampled',
    underline: 'wavy',
  },
  {
    origin: 'bonus',
    label: 'bonus',
    meaning: 'Drawn by the target after a whole draft was kept.',
    colour: '--origin-bonus',
    underline: 'double',
  },
  {
    origin: 'plain',
    label: 'plain',
    meaning: 'Drawn by the target with no draft.',
    colour: null,
    underline: 'none',
  },
];

/** The row of an origin. */
export function originStyle(origin: AnswerOrigin): OriginStyle {
  const found = origins.find((row) => row.origin === origin);
  if (!found) throw new RangeError(`no style for origin ${origin}`);
  return found;
}

/** Number of tokens of each origin. */
export type OriginCounts = Record<AnswerOrigin, number>;

/** No token of any origin. */
export function noTokens(): OriginCounts {
  return { accepted: 0, resampled: 0, bonus: 0, plain: 0 };
}

/** The CSS rules that follow from the table: a token's colour and underline, and the dimming filter. */
export function originRules(): string {
  return origins
    .map(({ origin, colour, underline }) => {
      // WebKit's wave is low: a line as thick as the others would fill it.
      const thin = underline === 'wavy' ? 'text-decoration-thickness:1px;' : '';
      const mark = colour
        ? `[data-origin='${origin}']{--mark:var(${colour});text-decoration-line:underline;text-decoration-style:${underline};${thin}}`
        : `[data-origin='${origin}']{--mark:transparent;text-decoration-line:none;}`;
      return `${mark}[data-only='${origin}'] .token:not([data-origin='${origin}']){opacity:var(--dimmed);}`;
    })
    .join('\n');
}
