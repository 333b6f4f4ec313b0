// The language of the window. Whoever reads a word through `language` is drawn again when it changes.

import { de } from './de';
import { en, type Strings } from './en';

/** A language that the window speaks. */
export type LanguageCode = 'en' | 'de';

const catalogues: Record<LanguageCode, Strings> = { en, de };

/** The languages, each by its own name. */
export const languages: readonly { code: LanguageCode; name: string }[] = [
  { code: 'en', name: 'English' },
  { code: 'de', name: 'Deutsch' },
];

/** The language in use. English until another is set: nothing here looks at the machine. */
class Language {
  current = $state<LanguageCode>('en');

  /** The words of the window. */
  get strings(): Strings {
    return catalogues[this.current];
  }
}

export const language = new Language();

/** Changes the words of the window, and tells the document, which screen readers go by. */
export function setLanguage(code: LanguageCode): void {
  language.current = code;
  if (typeof document !== 'undefined') document.documentElement.lang = code;
}

/** The first of a person's languages (`de-AT`, `en`) that the window speaks; English when it speaks none. */
export function preferredLanguage(wanted: readonly string[]): LanguageCode {
  for (const tag of wanted) {
    const known = languages.find(({ code }) => code === tag.toLowerCase().split('-')[0]);
    if (known) return known.code;
  }
  return 'en';
}
