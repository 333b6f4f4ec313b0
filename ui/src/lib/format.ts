// Numbers as text, the same everywhere. Nothing here computes a figure.

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const two = new Intl.NumberFormat('en-US', { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const percent = new Intl.NumberFormat('en-US', { style: 'percent', maximumFractionDigits: 0 });

/** A count: 1,234. */
export const formatCount = (value: number): string => whole.format(value);

/** A rate in tokens a second: 41.2 below a hundred, 412 above. */
export const formatRate = (value: number): string => (value < 99.95 ? one : whole).format(value);

/** A mean: 2.61. */
export const formatMean = (value: number): string => two.format(value);

/** A share: 71%. */
export const formatShare = (value: number): string => percent.format(value);

/** A time in milliseconds: 312 ms, 4.2 s, 3 min 5 s. */
export function formatDuration(milliseconds: number): string {
  if (milliseconds < 999.5) return `${whole.format(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return `${one.format(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  return `${whole.format(minutes)} min ${Math.round(seconds) % 60} s`;
}

/** A probability: .812, 1, <.001. */
export function formatProbability(value: number): string {
  if (value >= 0.9995) return '1';
  if (value > 0 && value < 0.0005) return '<.001';
  return value.toFixed(3).replace(/^0/, '');
}

/** A file's size: 91.7 MB, 1.1 GB. */
export function formatBytes(bytes: number): string {
  if (bytes >= 1e9) return `${one.format(bytes / 1e9)} GB`;
  if (bytes >= 1e6) return `${one.format(bytes / 1e6)} MB`;
  return `${whole.format(Math.ceil(bytes / 1e3))} kB`;
}

/** A number of weights: 135M, 1.5B. */
export function formatParameters(count: number): string {
  if (count >= 1e9) return `${one.format(count / 1e9).replace(/\.0$/, '')}B`;
  return `${whole.format(count / 1e6)}M`;
}

/** "1 round", "2 rounds". */
export const plural = (count: number, noun: string): string => `${whole.format(count)} ${noun}${count === 1 ? '' : 's'}`;

/** A token's text with its spaces and line ends made visible. */
export const visibleText = (text: string): string =>
  text.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/\r/g, '␍');
