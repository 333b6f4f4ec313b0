// Starts the window: host, state and screen.

import { mount } from 'svelte';
import './app.css';
import Root from './Root.svelte';
import BrokenWindow from './components/BrokenWindow.svelte';
import { performMenuItem } from './lib/commands';
import { connectHost } from './lib/host';
import { markRules } from './lib/marks';
import { platform } from './lib/platform';
import { reportProblem, watchProblems } from './lib/ipc/problems';
import { createWindow } from './window';

const sheet = new CSSStyleSheet();
sheet.replaceSync(markRules());
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
document.documentElement.dataset['platform'] = platform;

const target = document.getElementById('app');
if (!target) throw new Error('index.html has an element with the id "app"');

const host = await connectHost();
watchProblems(host, window);
try {
  const app = createWindow(host);
  host.onMenu((item) => performMenuItem(app, item));
  host.onFiles((event) => app.drop.onEvent(event));
  document.addEventListener('visibilitychange', () => app.events.hide(document.hidden));
  // Before drawing, to avoid a flash of the wrong colours.
  await app.preferences.load();
  mount(Root, { target, props: { app, inWindow: host.inWindow } });
  void app.start();
} catch (thrown) {
  reportProblem(host, 'start', thrown);
  target.replaceChildren();
  mount(BrokenWindow, { target, props: { reload: () => location.reload(), showLog: () => void host.invoke('show_log', {}) } });
}
