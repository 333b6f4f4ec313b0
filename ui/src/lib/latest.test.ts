import { describe, expect, it } from 'vitest';
import { Latest } from './latest';

describe('Latest', () => {
  it('drops an answer that comes after that of a later request', async () => {
    const latest = new Latest();
    const answers: ((text: string) => void)[] = [];
    let shown = '';
    const ask = async () => {
      const isLatest = latest.start();
      const text = await new Promise<string>((resolve) => answers.push(resolve));
      if (isLatest()) shown = text;
    };
    const asked = [ask(), ask()];
    answers[1]?.('second');
    answers[0]?.('first');
    await Promise.all(asked);
    expect(shown).toBe('second');
  });

  it('makes a request stale when another one starts', () => {
    const latest = new Latest();
    const first = latest.start();
    expect(first()).toBe(true);
    const second = latest.start();
    expect([first(), second()]).toEqual([false, true]);
  });

  it('makes every request stale when cancelled', () => {
    const latest = new Latest();
    const request = latest.start();
    latest.cancel();
    expect(request()).toBe(false);
  });

  it('watches without making requests stale', () => {
    const latest = new Latest();
    const request = latest.start();
    const watched = latest.watch();
    expect([request(), watched()]).toEqual([true, true]);
    latest.start();
    expect(watched()).toBe(false);
  });
});
