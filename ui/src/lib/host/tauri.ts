// The real window. The only file that imports Tauri.

import { Channel, invoke } from '@tauri-apps/api/core';
import { listen } from '@tauri-apps/api/event';
import { open, save } from '@tauri-apps/plugin-dialog';
import type { Host, WireArguments } from './types';

export const tauriHost: Host = {
  kind: 'tauri',
  invoke: (command: string, args: WireArguments) => invoke(command, args),
  openChannel<T>(receive: (message: T) => void): unknown {
    const channel = new Channel<T>();
    channel.onmessage = receive;
    return channel;
  },
  pickModelFile: (title) =>
    open({ title, multiple: false, directory: false, filters: [{ name: 'GGUF model', extensions: ['gguf'] }] }),
  pickConversationFile: (title) =>
    open({ title, multiple: false, directory: false, filters: [{ name: 'Conversation', extensions: ['json'] }] }),
  pickWhereToSave: (name) => save({ defaultPath: name }),
  onMenu(choose) {
    void listen<string>('menu', (event) => choose(event.payload));
  },
};
