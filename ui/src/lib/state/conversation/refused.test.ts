import { describe, expect, it } from 'vitest';
import type { ErrorInfo } from '../../ipc/schema.gen';
import { converse, ended, keptConversation, round, settled } from './testing';

describe('a refused question', () => {
  const busy: ErrorInfo = { code: 'busy', message: 'busy' };

  it('stays until repeated or dismissed, while a newer draft is in the composer', async () => {
    const { host, conversation, frame } = converse();
    const refusedAsk = async (text: string) => {
      host.refusal = busy;
      await conversation.ask(text);
      host.refusal = null;
    };
    conversation.draft = 'something else';
    await refusedAsk('lost');
    await refusedAsk('unwanted');
    await conversation.send();
    host.say(0, round('ONE'), ended);
    frame();
    const prompts = () => conversation.turns.map(({ prompt }) => prompt);
    expect(prompts()).toEqual(['lost', 'unwanted', 'something else']);
    // It is not part of the next request, and is still there when the reader returns.
    host.kept[7] = keptConversation(7);
    conversation.clear();
    expect(prompts()).toEqual([]);
    await conversation.open(7);
    expect(prompts()).toEqual(['lost', 'unwanted', 'a']);
    conversation.dismiss(conversation.turns[1]!);
    expect(prompts()).toEqual(['lost', 'a']);
    await conversation.retry(conversation.turns[0]!);
    expect(host.asked.at(-1)).toEqual({ kind: 'question', parent: 72, text: 'lost' });
    expect(prompts()).toEqual(['a', 'lost']);
  });

  it('disappears when sent from the composer, and stays when another text is sent', async () => {
    const { host, conversation, frame, send } = converse();
    const prompts = () => conversation.turns.map(({ prompt }) => prompt);
    host.refusal = busy;
    await send('long');
    await send('long');
    expect([prompts(), conversation.draft]).toEqual([['long'], 'long']);
    host.refusal = null;
    await send('short');
    expect(prompts()).toEqual(['long', 'short']);
    host.say(0, round('SHORT'), ended);
    frame();
    await send('long');
    expect([prompts(), host.asked.at(-1)]).toEqual([['short', 'long'], { kind: 'question', parent: 11, text: 'long' }]);
  });

  it('that was an edit keeps the edit open, and the old turn stays', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    host.kept[7] = keptConversation(7);
    const turn = () => conversation.turns[0]!;
    conversation.setEdit(turn(), 'uno');
    host.refusal = busy;
    await conversation.edit(turn(), 'uno');
    expect([conversation.editOf(turn()), conversation.error, turn().answer.text, conversation.turns.length]).toEqual([
      'uno',
      busy,
      'ONE',
      1,
    ]);
    host.refusal = null;
    await conversation.edit(turn(), 'uno');
    expect([conversation.turns.map(({ prompt }) => prompt), host.asked.at(-1)]).toEqual([
      ['uno'],
      { kind: 'question', parent: null, text: 'uno' },
    ]);
    host.say(0, ended);
    frame();
    await conversation.choose(10);
    expect([turn().prompt, conversation.editOf(turn())]).toEqual(['one', null]);
  });

  it('that was an edit keeps the edit open even after the reader has left', async () => {
    const { host, conversation, models, elsewhere } = converse(true);
    host.kept = { 3: keptConversation(3), 4: keptConversation(4) };
    await conversation.open(3);
    void conversation.edit(conversation.turns[0]!, 'in other words');
    await conversation.open(4);
    models[0]?.fail(busy);
    await settled();
    expect([elsewhere, conversation.error]).toEqual([['busy'], null]);
    await conversation.open(3);
    expect(conversation.editOf(conversation.turns[0]!)).toBe('in other words');
  });

  it('follows the last answer, even behind an unanswered question', async () => {
    const { host, conversation } = converse();
    const kept = keptConversation(3);
    const alone = {
      id: 33,
      parent: 32,
      role: 'user' as const,
      content: 'unanswered',
      state: 'complete' as const,
      created_ms: 0,
      settings: null,
    };
    host.kept[3] = { ...kept, messages: [...kept.messages, alone] };
    await conversation.open(3);
    await conversation.ask('next');
    expect(host.asked).toEqual([{ kind: 'question', parent: 32, text: 'next' }]);
  });
});
