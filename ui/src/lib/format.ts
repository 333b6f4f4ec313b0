// Formats numbers in the window's language. Computes nothing.

import { language, type LanguageCode } from './strings/index.svelte';
import type { Strings } from './strings/en';

/** Number formats of a language. */
interface Formats {
  whole: Intl.NumberFormat;
  one: Intl.NumberFormat;
  /** One decimal place, none for 0. */
  upToOne: Intl.NumberFormat;
  two: Intl.NumberFormat;
  /** At most two decimal places, without trailing zeros. */
  upToTwo: Intl.NumberFormat;
  three: Intl.NumberFormat;
  /** At most three significant digits. */
  significant: Intl.NumberFormat;
  percent: Intl.NumberFormat;
  plural: Intl.PluralRules;
}

function formatsOf(locale: string): Formats {
  const digits = (least: number, most: number) =>
    new Intl.NumberFormat(locale, { minimumFractionDigits: least, maximumFractionDigits: most });
  return {
    whole: digits(0, 0),
    one: digits(1, 1),
    upToOne: digits(0, 1),
    two: digits(2, 2),
    upToTwo: digits(0, 2),
    three: digits(3, 3),
    significant: new Intl.NumberFormat(locale, { maximumSignificantDigits: 3 }),
    percent: new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: 0 }),
    plural: new Intl.PluralRules(locale),
  };
}

const formats: Record<LanguageCode, Formats> = { en: formatsOf('en-US'), de: formatsOf('de-DE') };
const now = (): Formats => formats[language.current];

/** A count: 1,234. */
export const formatCount = (value: number): string => now().whole.format(value);

/** A rate in tokens per second: 41.2 below a hundred, 412 above. */
export const formatRate = (value: number): string => (value < 99.95 ? now().one : now().whole).format(value);

/** A mean: 2.61. */
export const formatMean = (value: number): string => now().two.format(value);

/** A chosen number: 0.7, 1, 0.25. */
export const formatChosen = (value: number): string => now().upToTwo.format(value);

/** A share: 71%. */
export const formatShare = (value: number): string => now().percent.format(value);

/** A time in milliseconds: 0.4 ms, 312 ms, 4.2 s, 3 min 5 s, 42 min, 1 h 7 min. */
export function formatDuration(milliseconds: number): string {
  const { whole, one } = now();
  if (milliseconds > 0 && milliseconds < 9.95) return `${one.format(milliseconds)} ms`;
  if (milliseconds < 999.5) return `${whole.format(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return `${one.format(seconds)} s`;
  if (seconds < 599.5) return `${Math.floor(Math.round(seconds) / 60)} min ${Math.round(seconds) % 60} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${whole.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

/** A probability: 0.812, 1, <0.001. */
export function formatProbability(value: number): string {
  const { three } = now();
  if (value >= 0.9995) return '1';
  return value > 0 && value < 0.0005 ? `<${three.format(0.001)}` : three.format(value);
}

/** A probability with three significant digits, for equations: 0.812, 3.2e-5, 0, 1. */
export function formatSignificant(value: number): string {
  const { significant } = now();
  if (value > 0 && value < 0.001) {
    const [mantissa, exponent] = value.toExponential(2).split('e');
    return `${significant.format(Number(mantissa))}e${exponent}`;
  }
  return significant.format(value);
}

/** A range named by the engine: 0.5–1. */
export const formatRange = (range: string): string =>
  range.replace(/\d+(\.\d+)?/g, (number) => now().upToTwo.format(Number(number))).replace('-', '–');

/** A date and time: Nov 22, 2:43 PM. */
export const formatTime = (milliseconds: number): string =>
  new Intl.DateTimeFormat(language.current, { month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit' }).format(milliseconds);

/** One decimal place below a hundred, none above. */
const amount = (value: number): string => (value < 99.95 ? now().one : now().whole).format(value);

/** A file size in decimal units: 91.7 MB, 491 MB, 1.1 GB. */
export function formatBytes(bytes: number): string {
  if (bytes >= 999.5e6) return `${amount(bytes / 1e9)} GB`;
  if (bytes >= 1e6) return `${amount(bytes / 1e6)} MB`;
  return `${now().whole.format(Math.ceil(bytes / 1e3))} kB`;
}

/** A file size, rounded up: 12.1 MB for 12,000,001 bytes. */
export function formatBytesUp(bytes: number): string {
  if (bytes < 1e6) return formatBytes(bytes);
  const unit = bytes > 999e6 ? 1e9 : 1e6;
  const step = bytes > 99.9 * unit ? unit : unit / 10;
  return formatBytes(step * Math.ceil(bytes / step));
}

const mebibyte = 2 ** 20;
const gibibyte = 2 ** 30;

/** A size in memory, in binary units under the decimal names, as systems show it: 148 MB, 16 GB. */
export function formatMemory(bytes: number): string {
  const { upToOne, whole } = now();
  return bytes >= 999.5 * mebibyte ? `${upToOne.format(bytes / gibibyte)} GB` : `${whole.format(bytes / mebibyte)} MB`;
}

/** A size in memory, rounded up. */
export function formatMemoryUp(bytes: number): string {
  const step = bytes > 999 * mebibyte ? gibibyte / 10 : mebibyte;
  return formatMemory(step * Math.ceil(bytes / step));
}

/** A number of weights: 135M, 1.5B. */
export function formatParameters(count: number): string {
  const { whole, upToOne } = now();
  return count >= 1e9 ? `${upToOne.format(count / 1e9)}B` : `${whole.format(count / 1e6)}M`;
}

/** A number of weights next to a name; empty if the name states a size itself, as "Qwen3 0.6B" does. */
export const parametersBeside = (name: string, count: number): string[] =>
  /(^|[\s-])\d+(\.\d+)?[BM]\b/i.test(name) ? [] : [formatParameters(count)];

/** A number in a field: fixed decimal places, no thousands separators. */
export const formatField = (value: number, digits: number): string =>
  new Intl.NumberFormat(language.current, {
    useGrouping: false,
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  }).format(value);

/** The form of a noun after a number: "round", "rounds". */
export function nounAfter(count: number, noun: keyof Strings['nouns']): string {
  const forms = language.strings.nouns[noun];
  return forms[now().plural.select(count)] ?? forms.other;
}

/** "1 round", "2 rounds". */
export const plural = (count: number, noun: keyof Strings['nouns']): string => `${formatCount(count)} ${nounAfter(count, noun)}`;

/** A month of the form 2026-11 in words. Other text is returned as it is. */
export function formatMonth(month: string): string {
  const [, year, number] = /^(\d{4})-(\d\d)/.exec(month) ?? [];
  if (year === undefined) return month;
  return new Intl.DateTimeFormat(language.current, { month: 'long', year: 'numeric', timeZone: 'UTC' }).format(
    Date.UTC(Number(year), Number(number) - 1),
  );
}

/** A day of the form 2026-10-31: Oct 31, 2026. Other text is returned as it is. */
export function formatDay(day: string): string {
  const time = /^\d{4}-\d\d-\d\d$/.test(day) ? Date.parse(day) : NaN;
  return Number.isNaN(time) ? day : new Intl.DateTimeFormat(language.current, { dateStyle: 'medium', timeZone: 'UTC' }).format(time);
}

/** A token's text with visible spaces and line breaks. */
export const visibleText = (text: string): string => text.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/\r/g, '␍');
