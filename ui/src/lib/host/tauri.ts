// The host of the app's window. The only file that imports Tauri.

import { Channel, invoke } from '@tauri-apps/api/core';
import { emit, listen } from '@tauri-apps/api/event';
import { getCurrentWebview } from '@tauri-apps/api/webview';
import { openUrl } from '@tauri-apps/plugin-opener';
import type { Host, WireArguments } from './types';

export const tauriHost: Host = {
  inWindow: true,
  invoke: (command: string, args: WireArguments) => invoke(command, args),
  openChannel<T>(receive: (message: T) => void): unknown {
    const channel = new Channel<T>();
    channel.onmessage = receive;
    return channel;
  },
  openLink: (href) => openUrl(href),
  onMenu(choose) {
    void listen<string>('menu', (event) => choose(event.payload));
  },
  labelMenu(words) {
    void emit('menu-words', words);
  },
  onFiles(onEvent) {
    // Only the first event of a drag names the files.
    let paths: readonly string[] = [];
    void getCurrentWebview().onDragDropEvent(({ payload }) => {
      if (payload.type === 'leave') {
        paths = [];
        onEvent({ kind: 'left' });
        return;
      }
      if (payload.type !== 'over') paths = payload.paths;
      // On macOS and GTK the position is in points, despite its name; the inner width changes with zoom.
      const across = payload.position.x / (window.outerWidth || window.innerWidth);
      onEvent({ kind: payload.type === 'drop' ? 'dropped' : 'over', paths, across });
    });
  },
};
