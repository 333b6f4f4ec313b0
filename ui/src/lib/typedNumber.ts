// Numbers as people type them into fields. Pure.

/** A whole number in groups of three digits, with one separator: 2,048; 2.048; 2 048. */
const grouped = /^\d{1,3}([.,\s’'])\d{3}(\1\d{3})*$/;

/** A whole number without separators of groups. Other text is returned as it is. */
export const ungrouped = (text: string): string => (grouped.test(text) ? text.replace(/\D/g, '') : text);

/** The number in a text, with a decimal comma or point; NaN for none. Without decimals, `1.000` is a thousand. */
export const typedNumber = (text: string, digits: number): number =>
  text === '' ? NaN : Number((digits === 0 ? ungrouped(text) : text).replace(',', '.'));
