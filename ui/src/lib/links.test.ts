import { describe, expect, it } from 'vitest';
import { plainAddress } from './links';

describe('plainAddress', () => {
  it('keeps an address that is plain already', () => {
    const address = 'https://example.org/manual?a=1&b=2#top';
    expect(plainAddress(address)).toBe(address);
  });

  it('writes a host of look-alike letters in punycode', () => {
    expect(plainAddress('https://\u0430pple.com/login')).toBe('https://xn--pple-43d.com/login');
  });

  it('leaves no character that changes the text direction', () => {
    const hidden = [
      'https://example.org/\u202Egpj.exe',
      'https://example.org/?q=\u2066x\u2069',
      'https://example.org/#\u200F',
      'mailto:a\u202E@example.org',
    ];
    for (const href of hidden) expect(plainAddress(href)).toMatch(/^[\x21-\x7e]+$/);
  });

  it('drops a user name that looks like a host', () => {
    expect(plainAddress('https://example.org:pay@evil.test/x')).toBe('https://evil.test/x');
  });

  it('drops the headers of a mail address', () => {
    expect(plainAddress('mailto:a@example.org?attach=/etc/passwd&subject=x#y')).toBe('mailto:a@example.org');
  });

  it('refuses other protocols and invalid addresses', () => {
    for (const href of ['javascript:alert(1)', 'data:text/html,x', 'file:///x', 'x.md', '//a.b']) expect(plainAddress(href)).toBeNull();
  });
});
