// The places of the window, in the order the title bar shows them.

export const places = ['chat', 'compare', 'lab', 'library'] as const;

/** What the window shows beside its sidebar. */
export type Place = (typeof places)[number];
