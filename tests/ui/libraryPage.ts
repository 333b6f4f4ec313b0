// The library on the replay host, for its tests: how it is opened, and its parts on the page.

import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import type { Download, LoadRequest } from '../../ui/src/lib/ipc/schema.gen';
import { libraryApp, models } from './fixtures/library';
import { calls, useWindow, type Opening, type TestWindow } from './harness';
import type { RecordedApp } from './replay/host';
import type { RecordedLibrary } from './replay/library';

/** The recorded application that the library is added to. */
export const app = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8')) as RecordedApp;

type Model = (typeof models)[0];
const named = (part: string) => models.find(({ name }) => name.includes(part))!;
/** Models of the fixture, named by size or family. */
export const [seven, small, middle, huge, tiny] = ['7b', '0.5b', '1.5b', '30b', 'smollm2'].map(named) as [
  Model,
  Model,
  Model,
  Model,
  Model,
];

/** Opens a window with the models of the fixture, and changes to the application and its library. */
type OpenLibrary = (opening?: Opening, own?: Partial<RecordedApp>, extra?: Partial<RecordedLibrary>) => Promise<Page>;

/** The window of a test file, with the models of the fixture. */
interface LibraryWindow extends TestWindow {
  /** Opens the window at the chat. */
  openWith: OpenLibrary;
  /** Opens the window at the library. */
  openLibrary: OpenLibrary;
}

/** Connects a test file to the browser. */
export function useLibraryWindow(): LibraryWindow {
  const hunch = useWindow();
  const openWith: OpenLibrary = (opening = {}, own = {}, extra = {}) =>
    hunch.open({ app: 'library', apps: { library: libraryApp(app, own, extra) }, ...opening });
  const openLibrary: OpenLibrary = async (...changes) => {
    const page = await openWith(...changes);
    await page.keyboard.press('Control+4');
    await page.getByTestId('library').waitFor();
    return page;
  };
  return { ...hunch, openWith, openLibrary };
}

/** The row of a model. */
export const row = (page: Page, name: string) => page.locator(`[data-testid=model-row][data-name="${name}"]`);

/** Names of the listed models. */
export const rows = (page: Page) => page.getByTestId('model-row').evaluateAll((all) => all.map((one) => one.getAttribute('data-name')));

/** Name of the selected model. */
export const selected = (page: Page) => page.locator('[data-testid=model-row][aria-selected=true]').getAttribute('data-name');

/** The draft of this name, as offered for the selected model. */
export const offer = (page: Page, name: string) => page.locator(`[data-testid=offer][data-name="${name}"]`);

/** Changes a download, as the engine would. */
export const download = (page: Page, id: string, change: Partial<Download>) =>
  page.evaluate(([id, change]) => window.hunchReplay?.download(id, change), [id, change] as const);

/** Requests to load models so far. */
export const requests = async (page: Page) => (await calls(page, 'load_models')).map((args) => args['request'] as LoadRequest);

/** Waits until no models are loading. */
export const idle = (page: Page) => page.getByTestId('loading').waitFor({ state: 'detached' });

/** Selects a model and waits for its details. */
export async function look(page: Page, name: string): Promise<void> {
  await row(page, name).click();
  const title = models.find((model) => model.name === name)?.title ?? name;
  await page.getByTestId('model-details').getByRole('heading', { name: title, level: 1 }).waitFor();
}
