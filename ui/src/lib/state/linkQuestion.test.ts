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
    const links = new LinkQuestion(host, { copy: () => {}, reportFailure: () => {} });
    links.ask('https://\u0430pple.com');
    expect(links.address).toBe('https://xn--pple-43d.com/');
    await links.open();
    links.ask('mailto:a@example.org?attach=/etc/passwd');
    await links.open();
    expect(host.opened).toEqual(['https://xn--pple-43d.com/', 'mailto:a@example.org']);
    links.ask('file:///etc/passwd');
    expect(links.address).toBeNull();
  });

  it('that cannot be opened is reported as a failure', async () => {
    const host = new LinkHost();
    host.openLink = () => Promise.reject(new Error('No browser.'));
    const failures: string[] = [];
    const links = new LinkQuestion(host, { copy: () => {}, reportFailure: (text) => failures.push(text) });
    links.ask('https://example.org');
    await links.open();
    expect(failures).toHaveLength(1);
    expect(failures[0]).toContain('No browser.');
  });
});
