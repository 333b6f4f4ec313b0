// Starts the window: the origins' style sheet, the host, the state, the screen.

import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { connectHost } from './lib/host';
import { originRules } from './lib/origin';
import { platform } from './lib/platform';
import { WindowState } from './lib/state/window.svelte';

const sheet = new CSSStyleSheet();
sheet.replaceSync(originRules());
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
document.documentElement.dataset['platform'] = platform;

const target = document.getElementById('app');
if (!target) throw new Error('index.html has an element with the id "app"');

const host = await connectHost();
const state = new WindowState(host);
host.onMenu((item) => state.choose(item));
mount(App, { target, props: { state, inWindow: host.kind === 'tauri' } });
void state.models.start();
void state.conversations.refresh();
