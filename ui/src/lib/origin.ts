// The table of token origins: label, colour variable, underline pattern, order. The legend, the card, the style sheet
// of tokens and the tests read it. Labels and meanings are in the window's language.

import type { Named } from './strings/en';
import { language } from './strings/index.svelte';
import type { AnswerOrigin } from './strings/keys';

/** Style of an origin. */
interface Mark {
  origin: AnswerOrigin;
  /** CSS variable of its colour; null for no colour. */
  colour: `--origin-${string}` | null;
  underline: 'solid' | 'wavy' | 'double' | 'dashed' | 'none';
}

/** Style and texts of an origin. */
type OriginStyle = Readonly<Mark & Named>;

const marks: readonly Mark[] = [
  { origin: 'accepted', colour: '--origin-accepted', underline: 'solid' },
  { origin: 'resampled', colour: '--origin-resampled', underline: 'wavy' },
  { origin: 'bonus', colour: '--origin-bonus', underline: 'double' },
  { origin: 'plain', colour: null, underline: 'none' },
  { origin: 'chosen', colour: '--origin-chosen', underline: 'dashed' },
];

/** All origins in display order. */
export const origins: readonly OriginStyle[] = marks.map((mark) => ({
  ...mark,
  get label() {
    return originWords(mark.origin).label;
  },
  get meaning() {
    return originWords(mark.origin).meaning;
  },
}));

/** Texts of an origin in the window's language. */
export function originWords(origin: AnswerOrigin): Named {
  return language.strings.origins[origin];
}

/** The row of an origin. */
export function originStyle(origin: AnswerOrigin): OriginStyle {
  const found = origins.find((row) => row.origin === origin);
  if (!found) throw new RangeError(`no style for origin ${origin}`);
  return found;
}

/** CSS rules of the table: colours and underlines of tokens, and the legend's filter. */
export function originRules(): string {
  return origins
    .map(({ origin, colour, underline }) => {
      // WebKit's wavy line is low: a thick one would fill it.
      const thin = underline === 'wavy' ? 'text-decoration-thickness:1px;' : '';
      const mark = colour
        ? `[data-origin='${origin}']{--mark:var(${colour});text-decoration-line:underline;text-decoration-style:${underline};${thin}}`
        : `[data-origin='${origin}']{--mark:transparent;text-decoration-line:none;}`;
      return `${mark}[data-only='${origin}'] .token:not([data-origin='${origin}']){opacity:var(--dimmed);}`;
    })
    .join('\n');
}
