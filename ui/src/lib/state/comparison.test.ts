import { describe, expect, it } from 'vitest';
import { recordComparison } from '../../../../tests/ui/fixtures/comparison';
import { comparisons, suiteComparison } from '../../../../tests/ui/fixtures/plans';
import { SilentHost } from '../host/testing';
import type { CompareEvent, CompareRequest, ErrorInfo, MeasurementMessage } from '../ipc/schema.gen';
import { Comparison } from './comparison.svelte';
import { Race } from './race.svelte';

type Message = MeasurementMessage<CompareEvent>;

const planned = comparisons['fixture-comparison'];
if (!planned) throw new Error('the plan is there');
const messages = recordComparison(planned);
const events = messages.flatMap((message) => message.events);
const ending = events.at(-1);
if (ending?.type !== 'finished' || !ending.report) throw new Error('it ends');
const { report } = ending;
const request = {} as CompareRequest;

/** An engine whose channel is driven by a test. */
class SpokenHost extends SilentHost {
  calls: [string, Record<string, unknown>][] = [];
  #receive: (message: Message) => void = () => {};
  #frames: (() => void)[] = [];
  readonly pace = { clock: { after: () => () => {} }, nextFrame: (then: () => void) => void this.#frames.push(then) };
  refusal: ErrorInfo | null = null;
  /** Overrides the response to `compare`. */
  begun: Promise<number> = Promise.resolve(1);
  /** Overrides the response to `measure_pair`. */
  numbered: Promise<number> = Promise.resolve(1);

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push([command, args]);
    if (this.refusal) throw this.refusal;
    if (command === 'compare') return this.begun;
    if (command === 'measure_pair') return this.numbered;
    if (command === 'compare_snapshot') return { id: 1, seq: 0, events };
    if (command === 'open_comparison') return report;
    return null;
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.#receive = receive as (message: unknown) => void;
    return 0;
  }

  /** Sends events, and draws the next frame. */
  say(message: Message): void {
    this.#receive(message);
    this.draw();
  }

  draw(): void {
    for (const then of this.#frames.splice(0)) then();
  }
}

async function begin() {
  const host = new SpokenHost();
  let changes = 0;
  const comparison = new Comparison(host, () => (changes += 1), host.pace);
  await comparison.start(request);
  return { host, comparison, changes: () => changes };
}

const settle = () => new Promise((resolve) => setTimeout(resolve));

describe('a comparison', () => {
  it('shows the text of each lane, the current turn, and the report', async () => {
    const { host, comparison, changes } = await begin();
    const turns: (number | null)[] = [];
    for (const message of messages) {
      host.say(message);
      if (comparison.active !== turns.at(-1)) turns.push(comparison.active);
    }
    expect(turns.slice(0, 5)).toEqual([null, 0, 1, 0, 1]);
    expect(comparison.running).toBe(false);
    expect(comparison.report).toEqual(report);
    expect(comparison.kept).toBe(1);
    expect(changes()).toBe(1);
    expect(comparison.lanes.map((lane) => lane.answer.text)).toEqual(report.answers.slice(-2).map(({ text }) => text));
    expect(comparison.lanes[1]?.answer.stats).toEqual(report.answers.at(-1)?.stats);
  });

  it('clears the lanes at every turn and shows the progress', async () => {
    const { host, comparison } = await begin();
    const second = messages.findIndex((message) => message.events.some((event) => event.type === 'turn' && event.run === 1));
    host.say({ id: 1, seq: 0, events: events.slice(0, 4) });
    expect([comparison.costs, comparison.turn]).toEqual([{ done: 3, total: 3 }, null]);
    for (const message of messages.slice(2, second + 1)) host.say(message);
    expect(comparison.costs).toBeNull();
    expect(comparison.turn).toMatchObject({ prompt: 0, run: 1, done: 1, total: 2 });
    expect(comparison.turn?.left_ms).toBeGreaterThan(0);
    expect(comparison.lanes.every((lane) => lane.answer.tokens.length < 5)).toBe(true);
  });

  it('shows the progress of the current step only, also in a later batch', async () => {
    const { host, comparison } = await begin();
    const shown = () => {
      const { loading, restoring, costs, turn, server } = comparison;
      return Object.entries({ loading, restoring, costs, turn, server }).flatMap(([step, progress]) => (progress ? [step] : []));
    };
    const progress = { name: 'larger', done_bytes: 1, total_bytes: 4 };
    const turn: CompareEvent & { type: 'turn' } = { type: 'turn', prompt: 0, run: 0, done: 0, total: 2, lanes: [0], left_ms: null };
    const steps: CompareEvent[] = [
      turn,
      { type: 'loading', progress },
      { type: 'costs', done: 1, total: 3 },
      { ...turn, done: 1, lanes: [1] },
      { type: 'restoring', progress },
      { type: 'server', done: 0, total: 2 },
    ];
    const all = [...events.slice(0, 1), ...steps];
    const seen = all.map((event, seq) => {
      host.say({ id: 1, seq, events: [event] });
      return shown();
    });
    expect(seen.slice(1)).toEqual([['turn'], ['loading'], ['costs'], ['turn'], ['restoring'], ['server']]);
  });

  it('shows why the models that were loaded before are not loaded again, until the next comparison', async () => {
    const { host, comparison } = await begin();
    const error: ErrorInfo = { code: 'io', message: 'gone' };
    const all: CompareEvent[] = [...events.slice(0, 1), { type: 'not_restored', error }, ending];
    host.say({ id: 1, seq: 0, events: all });
    expect([comparison.notRestored, comparison.trouble, comparison.report]).toEqual([error, null, report]);
    await comparison.start(request);
    expect(comparison.notRestored).toBeNull();
  });

  it('shows no empty lanes after a stop before the first answer', async () => {
    const { host, comparison } = await begin();
    const stopped: CompareEvent = { type: 'finished', report: null, kept: null, trouble: null, stopped: true };
    host.say({ id: 1, seq: 0, events: [...events.slice(0, 3), stopped] });
    expect([comparison.stopped, comparison.lanes]).toEqual([true, []]);
  });

  it('races lanes only if their last answers are of one turn', async () => {
    const host = new SpokenHost();
    const comparison = new Comparison(host, () => {}, host.pace);
    await comparison.open(1);
    expect(comparison.race?.fair).toBe(true);
    // The second lane ran later, and was stopped in its second run.
    const answers = report.answers.filter(({ lane, run }) => lane === 0 || run === 0);
    await comparison.start(request);
    host.say({ id: 1, seq: 0, events: [...events.slice(0, 1), { ...ending, report: { ...report, answers } }] });
    expect(comparison.race?.fair).toBe(false);
    expect(comparison.lanes.every(({ answer }) => answer.text !== '')).toBe(true);
  });

  it('fetches lost events', async () => {
    const { host, comparison } = await begin();
    for (const [i, message] of messages.entries()) if (i !== 4) host.say(message);
    await settle();
    host.draw();
    expect(host.calls.map(([command]) => command)).toContain('compare_snapshot');
    expect(comparison.report).toEqual(report);
  });

  it('stops before it has a number, and keeps nothing', async () => {
    const host = new SpokenHost();
    let number: (id: number) => void = () => {};
    host.begun = new Promise((resolve) => (number = resolve));
    const comparison = new Comparison(host, () => {}, host.pace);
    const started = comparison.start(request);
    comparison.stop();
    expect(comparison.stopping).toBe(true);
    number(1);
    await started;
    expect(host.calls.at(-1)).toEqual(['stop_measurement', { id: 1 }]);
    host.say({ id: 1, seq: 0, events: [{ type: 'finished', report: null, kept: null, trouble: null, stopped: true }] });
    expect([comparison.running, comparison.stopping, comparison.stopped, comparison.report]).toEqual([false, false, true, null]);
  });

  it('reports why it could not start, or failed', async () => {
    const busy: ErrorInfo = { code: 'busy', message: 'An answer is being written.' };
    const host = new SpokenHost();
    host.refusal = busy;
    const comparison = new Comparison(host, () => {});
    await comparison.start(request);
    expect([comparison.running, comparison.error]).toEqual([false, busy]);
    const other = await begin();
    other.host.say({ id: 1, seq: 0, events: [{ type: 'failed', error: busy }] });
    expect([other.comparison.running, other.comparison.error]).toEqual([false, busy]);
  });

  it('keeps the shown result until the next comparison has begun', async () => {
    const { host, comparison } = await begin();
    for (const message of messages) host.say(message);
    const busy: ErrorInfo = { code: 'busy', message: 'An answer is being written.' };
    host.refusal = busy;
    await comparison.start(request);
    expect([comparison.running, comparison.report, comparison.kept, comparison.error]).toEqual([false, report, 1, busy]);
    host.refusal = null;
    await comparison.start(request);
    expect([comparison.report, comparison.error]).toEqual([report, null]);
    host.say({ id: 1, seq: 0, events: events.slice(0, 1) });
    expect([comparison.running, comparison.report, comparison.lanes.length]).toEqual([true, null, 2]);
  });

  it('reports problems on the way, and a result that could not be saved', async () => {
    const trouble: ErrorInfo = { code: 'out_of_memory', message: 'No memory is left.' };
    const { host, comparison } = await begin();
    host.say({ id: 1, seq: 0, events: [...events.slice(0, -1), { ...ending, kept: null, trouble }] });
    expect([comparison.report, comparison.kept, comparison.trouble, comparison.error]).toEqual([report, null, trouble, null]);
    await comparison.open(4);
    expect([comparison.kept, comparison.trouble]).toEqual([4, null]);
    const other = await begin();
    other.host.say({ id: 1, seq: 0, events: [{ type: 'finished', report: null, kept: null, trouble, stopped: false }] });
    expect([other.comparison.report, other.comparison.error]).toEqual([null, trouble]);
  });

  it('stops following when the engine refuses to stop it', async () => {
    const { host, comparison } = await begin();
    const gone: ErrorInfo = { code: 'internal', message: 'Gone.' };
    host.refusal = gone;
    comparison.stop();
    await settle();
    host.say({ id: 1, seq: 0, events });
    expect([comparison.running, comparison.error, comparison.report]).toEqual([false, gone, null]);
  });

  it('shows the latest request, whatever response comes last', async () => {
    const { host, comparison } = await begin();
    for (const message of messages) host.say(message);
    const slow = comparison.open(4);
    comparison.clear();
    await slow;
    expect(comparison.report).toBeNull();
    const first = comparison.open(4);
    await Promise.all([comparison.open(5), first]);
    expect(comparison.kept).toBe(5);
  });

  it('opens one of the history, but not while one runs', async () => {
    const { host, comparison } = await begin();
    await comparison.open(4);
    expect(comparison.report).toBeNull();
    for (const message of messages) host.say(message);
    await comparison.open(4);
    expect(comparison.kept).toBe(4);
    comparison.clear();
    expect([comparison.report, comparison.lanes.length]).toEqual([null, 0]);
  });
});

describe('a race', () => {
  it('shows the text of each lane at any time', () => {
    const race = new Race(report.setting.lanes, report.recordings);
    const last = report.answers.slice(-2);
    expect(race.at).toBe(race.length);
    for (const at of [race.length / 2, race.length / 3, 0, race.length * 0.9]) {
      race.seek(at);
      race.lanes.forEach((lane, i) => {
        const by = last[i]?.timeline.findLast(([ms]) => ms <= at)?.[1] ?? 0;
        expect(lane.answer.tokens.length).toBe(by);
      });
    }
  });

  it('plays to the end by the viewer’s clock, at its speed', () => {
    const race = new Race(report.setting.lanes, report.recordings);
    race.advance(100);
    expect(race.at).toBe(race.length);
    race.play();
    race.speed = 2;
    race.advance(100);
    expect(race.at).toBe(200);
    race.pause();
    race.advance(100);
    expect(race.at).toBe(200);
    race.play();
    race.advance(1e6);
    expect([race.at, race.playing]).toEqual([race.length, false]);
  });

  it('has a lane for each participant', () => {
    const suite = recordComparison(suiteComparison)
      .flatMap((message) => message.events)
      .at(-1);
    if (suite?.type !== 'finished' || !suite.report) throw new Error('it ends');
    expect(new Race(suite.report.setting.lanes, suite.report.recordings).lanes).toHaveLength(3);
  });
});

describe('measuring a pair', () => {
  const pair = { target: '/a.gguf', draft: '/b.gguf', context: null };
  const named = (host: SpokenHost, name: string) => host.calls.filter(([command]) => command === name).length;

  it('has its own result, whatever the names of the models', async () => {
    const host = new SpokenHost();
    host.numbered = Promise.resolve(1);
    const comparison = new Comparison(host, () => {}, host.pace);
    await comparison.measurePair(pair);
    expect([comparison.ofPair, comparison.pairEnd]).toEqual([true, null]);
    for (const message of messages) host.say(message);
    expect(comparison.pairEnd).toEqual({ report, stopped: false, error: null });
    await comparison.start(request);
    expect([comparison.ofPair, comparison.pairEnd]).toEqual([false, null]);
  });

  it('cancels loading before it has a number, which is no failure', async () => {
    const host = new SpokenHost();
    let refuse: (error: ErrorInfo) => void = () => {};
    host.numbered = new Promise((_, reject) => (refuse = reject));
    let changes = 0;
    const comparison = new Comparison(host, () => (changes += 1), host.pace);
    const measuring = comparison.measurePair(pair);
    comparison.stop();
    // The engine had nothing to cancel yet.
    comparison.onLoading();
    expect([named(host, 'cancel_loading'), named(host, 'stop_measurement')]).toEqual([2, 0]);
    refuse({ code: 'stopped', message: 'Called off.' });
    await measuring;
    expect([comparison.running, comparison.error, comparison.pairEnd, changes]).toEqual([
      false,
      null,
      { report: null, stopped: true, error: null },
      1,
    ]);
    comparison.onLoading();
    expect(named(host, 'cancel_loading')).toBe(2);
  });

  it('reports why it failed', async () => {
    const host = new SpokenHost();
    host.refusal = { code: 'out_of_memory', message: 'Too little memory.' };
    let changes = 0;
    const comparison = new Comparison(host, () => (changes += 1), host.pace);
    await comparison.measurePair(pair);
    expect([comparison.pairEnd?.error, changes]).toEqual([host.refusal, 1]);
  });
});
