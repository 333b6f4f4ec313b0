// Addresses of links, in the form in which they are shown and opened. No DOM.

/** Protocols of addresses that can be opened. */
const openable = new Set(['http:', 'https:', 'mailto:']);

/** An address with its host in ASCII (punycode) and every other character that is not ASCII percent-encoded, so that it
 * cannot pass for another one; null when it cannot be opened. A user name is dropped, and so is what a mail address brings
 * along: its query could attach a file. */
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
