// Updates of the app in the settings.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import app from './fixtures/fixture-app.json';
import { calls, useWindow } from './harness';
import { violations } from './violations';

const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const hunch = useWindow();
const updates = { version: '0.2.0', bytes: 23_400_000, progress_ms: 150 };
const rejected = {
  code: 'update_rejected',
  message: 'The update to 0.2.0 is not signed as that release of Hunch: wrong key.',
  params: { version: '0.2.0', detail: 'wrong key' },
};
const apps = {
  // Each state of the progress outlasts the interval at which a test looks for it.
  updated: { ...app, updates: { ...updates, progress_ms: 1200 } },
  rejecting: {
    ...app,
    updates: { ...updates, errors: { download_update: rejected } },
  },
};

describe('updates', () => {
  it('come from elsewhere if this copy has no key', async () => {
    const page = await hunch.open();
    await page.getByTestId('open-settings').click();
    const section = page.getByTestId('updates');
    expect(await page.getByTestId('open-settings').getAttribute('aria-label')).toBe('Settings');
    expect(await section.innerText()).toContain('Get updates where you downloaded Hunch');
    expect(await page.getByTestId('version').innerText()).toBe('0.1.0');
    expect(await section.getByRole('button').count()).toBe(0);
    expect(await calls(page, 'check_for_update')).toEqual([]);
  });

  it('are downloaded with progress and installed by a restart', async () => {
    const page = await hunch.open({ app: 'updated', apps });
    await page.getByTestId('open-settings').click();
    expect(await page.getByTestId('automatic-updates-0').isChecked()).toBe(true);
    await page.getByTestId('update-check').click();
    await page.getByText('Version 0.2.0 is available').waitFor();
    const button = page.getByTestId('open-settings');
    expect(await button.getAttribute('aria-label')).toBe('Settings, update available');
    expect(await button.locator('.dot').count()).toBe(1);
    await page.getByTestId('update-download').click();
    await page.getByTestId('update-progress').getByText('11.7 MB of 23.4 MB').waitFor();
    await page.screenshot({ path: `${output}update-download.png` });
    await page.getByText('Version 0.2.0 is ready').waitFor();
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}update-ready.png` });
    await page.getByTestId('update-install').click();
    await expect.poll(() => calls(page, 'install_update')).toHaveLength(1);
  });

  it('are refused with a reason in German', async () => {
    const page = await hunch.open({
      app: 'rejecting',
      apps,
      preferences: { language: 'de' },
    });
    await page.getByTestId('open-settings').click();
    await page.getByTestId('update-check').click();
    await page.getByTestId('update-download').click();
    await page.getByTestId('update-error').getByText('nicht als diese Version von Hunch signiert').waitFor();
    expect(
      await page
        .getByTestId('settings-dialog')
        .locator('.body')
        .evaluate((body) => body.scrollWidth - body.clientWidth),
    ).toBe(0);
    await page.screenshot({ path: `${output}update-rejected-german.png` });
  });

  it('wait for the running answer', async () => {
    const page = await hunch.open({ app: 'updated', apps, speed: 0.05 });
    await page.getByTestId('open-settings').click();
    await page.getByTestId('update-check').click();
    await page.getByTestId('update-download').waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId('prompt').fill('A long answer, please.');
    await page.keyboard.press('Enter');
    await page.getByTestId('stop').waitFor();
    await page.getByTestId('open-settings').click();
    for (const button of ['update-download', 'update-check']) expect(await page.getByTestId(button).isDisabled()).toBe(true);
    await page.getByText('When the running work has finished').waitFor();
  });
});
