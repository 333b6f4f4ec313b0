// Escapes in single-line fields for texts with line breaks and tabs.

const meanings: Readonly<Record<string, string>> = { n: '\n', t: '\t', '\\': '\\' };

/** Replaces \n, \t and \\ by the characters they stand for. Other backslashes stay. */
export const unescaped = (typed: string): string => typed.replace(/\\([nt\\])/g, (_, letter: string) => meanings[letter] ?? letter);
