// The language of the window. Text read through `language` updates when it changes.

import { de } from './de';
import { en, type Strings } from './en';

/** A supported language. */
export type LanguageCode = 'en' | 'de';

const catalogues: Record<LanguageCode, Strings> = { en, de };

/** Supported languages, each under its own name. */
export const languages: readonly { code: LanguageCode; name: string }[] = [
  { code: 'en', name: 'English' },
  { code: 'de', name: 'Deutsch' },
];

/** The current language. English until another is set; system preferences are not read here. */
class Language {
  current = $state<LanguageCode>('en');

  /** All text in the current language. */
  get strings(): Strings {
    return catalogues[this.current];
  }
}

export const language = new Language();

/** Sets the language, also on the document for screen readers. */
export function setLanguage(code: LanguageCode): void {
  language.current = code;
  if (typeof document !== 'undefined') document.documentElement.lang = code;
}

/** Returns the first supported language of `wanted` (`de-AT`, `en`), or English. */
export function preferredLanguage(wanted: readonly string[]): LanguageCode {
  for (const tag of wanted) {
    const known = languages.find(({ code }) => code === tag.toLowerCase().split('-')[0]);
    if (known) return known.code;
  }
  return 'en';
}
