// Addresses of links, in the form that is shown and opened. No DOM.

/** Protocols that can be opened. */
const openable = new Set(['http:', 'https:', 'mailto:']);

/** Returns an address that cannot imitate another one; null if it cannot be opened. The host is in ASCII (punycode),
 * and other non-ASCII characters are percent-encoded. User names are dropped, and so is the query of a mail address,
 * which could attach a file. */
export function plainAddress(href: string): string | null {
  if (!URL.canParse(href)) return null;
  const url = new URL(href);
  if (!openable.has(url.protocol)) return null;
  url.username = '';
  url.password = '';
  if (url.protocol === 'mailto:') {
    url.search = '';
    url.hash = '';
  }
  return url.href;
}
