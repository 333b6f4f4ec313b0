// The one table of token origins: label, colour variable, underline pattern, order. The legend, the
// card, the tokens' style sheet and the tests all read it. Labels and meanings come in the window's language.


import type { Named } from './strings/en';
import { language } from './strings/index.svelte';
import type { AnswerOrigin } from './strings/keys';

/** How an origin is drawn. */
interface Mark {
  origin: AnswerOrigin;
  /** CSS variable of its colour; null for no colour. */
  colour: `--origin-${string}` | null;
  underline: 'solid' | 'wavy' | 'double' | 'dashed' | 'none';
}

/** How an origin is named and drawn. */
export type OriginStyle = Readonly<Mark & Named>;

const marks: readonly Mark[] = [
  { origin: 'accepted', colour: '--origin-accepted', underline: 'solid' },
  { origin: 'resampled', colour: '--origin-resampled', underline: 'wavy' },
  { origin: 'bonus', colour: '--origin-bonus', underline: 'double' },
  { origin: 'plain', colour: null, underline: 'none' },
  { origin: 'chosen', colour: '--origin-chosen', underline: 'dashed' },
];

/** Every origin in the order it is shown. */
export const origins: readonly OriginStyle[] = marks.map((mark) => ({
  ...mark,
  get label() {
    return originWords(mark.origin).label;
  },
  get meaning() {
    return originWords(mark.origin).meaning;
  },
}));

/** How an origin is named in the window's language. */
export function originWords(origin: AnswerOrigin): Named {
  return language.strings.origins[origin];
}

/** The row of an origin. */
export function originStyle(origin: AnswerOrigin): OriginStyle {
  const found = origins.find((row) => row.origin === origin);
  if (!found) throw new RangeError(`no style for origin ${origin}`);
  return found;
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
