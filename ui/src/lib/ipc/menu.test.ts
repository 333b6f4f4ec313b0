import { afterEach, describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import { de } from '../strings/de';
import { en } from '../strings/en';
import { setLanguage } from '../strings/index.svelte';
import { labelMenu } from './menu';

class MenuHost extends SilentHost {
  words: Readonly<Record<string, string>> = {};

  override labelMenu(words: Readonly<Record<string, string>>): void {
    this.words = words;
  }
}

afterEach(() => setLanguage('en'));

describe('the native menu', () => {
  it('uses Mac labels only on a Mac', () => {
    const host = new MenuHost();
    for (const platform of ['mac', 'other'] as const) {
      setLanguage('en');
      labelMenu(host, platform);
      expect(host.words).toEqual(en.menu);
    }
    setLanguage('de');
    labelMenu(host, 'mac');
    expect(host.words).toEqual(de.menu);
    labelMenu(host, 'other');
    expect(host.words).toEqual({ ...de.menu, 'menu-file': 'Datei', 'menu-view': 'Ansicht' });
  });
});
