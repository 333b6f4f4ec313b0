import { describe, expect, it } from 'vitest';
import { createWindow } from '../../window';
import type { Preset } from './preferences.svelte';
import { KeepingHost } from './testing';

async function make() {
  const host = new KeepingHost();
  const window = createWindow(host);
  await window.models.start();
  await window.conversations.refresh();
  const preset = (name: string, system: string): Preset => ({ name, system, settings: window.settings.chosen() });
  return { ...window, host, preset };
}

describe('a preset that replaces other instructions', () => {
  it('can give them back, in their conversation', async () => {
    const { chat, conversation, host, preset, presets } = await make();
    await chat.open(1);
    await conversation.instruct('Be kind.');
    presets.use(preset('Short', 'Be short.'));
    expect([conversation.system, presets.replaced.preset]).toEqual(['Be short.', 'Short']);
    presets.replaced.restore();
    expect([conversation.system, presets.replaced.preset]).toEqual(['Be kind.', null]);
    await expect.poll(() => host.named('set_system_prompt').map(({ system }) => system)).toEqual(['Be kind.', 'Be short.', 'Be kind.']);
  });

  it('can give them back in a new conversation too', async () => {
    const { conversation, preset, presets } = await make();
    await conversation.instruct('Be kind.');
    presets.use(preset('Short', 'Be short.'));
    presets.use(preset('Plain', ''));
    expect([conversation.system, presets.replaced.preset]).toEqual(['', 'Plain']);
    presets.replaced.restore();
    expect(conversation.system).toBe('Be kind.');
  });

  it('no longer offers that once they are changed, a question is asked or another conversation is shown', async () => {
    const { chat, conversation, preset, presets } = await make();
    const use = async (system: string) => {
      await conversation.instruct(system);
      presets.use(preset('Short', 'Be short.'));
      expect(presets.replaced.preset).not.toBeNull();
    };
    await use('one');
    await conversation.instruct('two');
    expect(presets.replaced.preset).toBeNull();
    await use('three');
    await chat.open(2);
    expect(presets.replaced.preset).toBeNull();
    await use('four');
    await conversation.ask('Why?');
    expect(presets.replaced.preset).toBeNull();
  });

  it('offers nothing where no instructions were lost', async () => {
    const { conversation, preset, presets } = await make();
    presets.use(preset('Short', 'Be short.'));
    expect([conversation.system, presets.replaced.preset]).toEqual(['Be short.', null]);
    presets.use(preset('Other', 'Be short.'));
    expect(presets.replaced.preset).toBeNull();
  });
});
