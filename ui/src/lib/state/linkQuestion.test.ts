import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import { LinkQuestion } from './linkQuestion.svelte';

class LinkHost extends SilentHost {
  opened: string[] = [];

  override async openLink(href: string): Promise<void> {
    this.opened.push(href);
  }
}

describe('a link', () => {
  it('is shown and opened in its plain form', async () => {
    const host = new LinkHost();
    const links = new LinkQuestion(host, { copy: () => {}, notify: () => {} });
    links.ask('https://\u0430pple.com');
    expect(links.address).toBe('https://xn--pple-43d.com/');
    await links.open();
    links.ask('mailto:a@example.org?attach=/etc/passwd');
    await links.open();
    expect(host.opened).toEqual(['https://xn--pple-43d.com/', 'mailto:a@example.org']);
    links.ask('file:///etc/passwd');
    expect(links.address).toBeNull();
  });
});
