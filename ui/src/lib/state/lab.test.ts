import { describe, expect, it, vi } from 'vitest';
import type { Host } from '../host';
import { sampling as lawful } from '../host/testing';
import type {
  AppInfo,
  CostCurve,
  ErrorInfo,
  GenerationEvent,
  LabPosition,
  LabRounds,
  LabRoundsRequest,
  LoadedModels,
  MeasurementMessage,
  TokenEvent,
} from '../ipc/schema.gen';
import { Lab } from './lab.svelte';
import { Answer as Answered } from './answer.svelte';
import { temperatures, type Answers } from './lab/selection.svelte';
import { Settings } from './settings.svelte';
import { modelsOn } from './testing';

type Answer = (args: Record<string, unknown>) => unknown;

const sampling = { ...lawful, temperature: 0.7 };
const position = { id: 4, tokens: [], source: { kind: 'toy' } } as unknown as LabPosition;
const curve = { device: 'cpu' } as CostCurve;

type Source = LabPosition['source'];

/** An answer whose tokens have these origins. */
function answeredWith(answerId: number, ...origins: TokenEvent['origin'][]): Answers['answered'][number] {
  const answer = new Answered();
  const tokens = origins.map(
    (origin, position) => ({ id: position, text: ' a', origin, position, round: 0, confidence: 1, entropy: null }) as unknown as TokenEvent,
  );
  if (tokens.length > 0)
    answer.apply([{ type: 'finished', stop: 'end_of_text', tokens, stats: { plain: 0, rounds: 1 } } as unknown as GenerationEvent]);
  return { answer, answerId, settings: null };
}

/** Responds to requests for a position, and refuses one kind. */
const refusing =
  (code: ErrorInfo['code'], kinds: readonly Source['kind'][]): Answer =>
  ({ request }) => {
    const { source } = request as { source: Source };
    if (kinds.includes(source.kind)) throw { code, message: 'Refused.' };
    return { ...position, source };
  };

/** A lab with a host and frames controlled by a test. */
function openLab(
  answers: Record<string, Answer> = {},
  { draft = true, answered = [] }: { draft?: boolean; answered?: Answers['answered'] } = {},
) {
  const calls: { command: string; args: Record<string, unknown> }[] = [];
  const frames: (() => void)[] = [];
  let channel: (message: unknown) => void = () => {};
  const tally = { rounds: 0 };
  const known: Record<string, Answer> = {
    lab_position: ({ request }) => ({ ...position, source: (request as { source: unknown }).source }),
    lab_rules: ({ temperatures: asked }) => (asked as number[]).map((temperature) => ({ temperature })),
    lab_rounds: ({ request }) => {
      const { rounds, restart, rule } = request as LabRoundsRequest;
      tally.rounds = (restart ? 0 : tally.rounds) + rounds;
      return { position: 4, rule, rounds: tally.rounds } as LabRounds;
    },
    landscape: ({ machine }) => ({ measured_rows: (machine as { kind: string }).kind === 'measured' ? 16 : null }),
    lab_serving: () => ({ loads: [] }),
    lab_sessions: () => [],
    cost_curve: () => null,
    measure_costs: () => 9,
    stop_measurement: () => null,
    what_if: () => ({ known: 3 }),
    answer_events: () => [{ type: 'started' }, ...[0, 1, 2].map((round) => ({ type: 'round', round, tokens: [] })), { type: 'finished' }],
    ...answers,
  };
  const host = {
    inWindow: false,
    invoke: async (command: string, args: Record<string, unknown>) => {
      calls.push({ command, args });
      return known[command]?.(args);
    },
    openChannel: (receive: (message: unknown) => void) => ((channel = receive), 0),
  } as unknown as Host;
  const settings = new Settings();
  settings.adopt({ ranges: [], default_sampling: sampling } as unknown as AppInfo);
  const models = modelsOn(host, settings);
  models.loaded = { target: { path: 'a' }, draft: draft ? { path: 'b' } : null, methods: [] as readonly string[] } as LoadedModels;
  const lab = new Lab(
    host,
    models,
    settings,
    { answered },
    { clock: { after: () => () => {} }, nextFrame: (then) => void frames.push(then) },
  );
  const asked = (command: string) => calls.filter((call) => call.command === command).map(({ args }) => args);
  const frame = async () => {
    frames.shift()?.();
    for (let i = 0; i < 60; i++) await Promise.resolve();
  };
  return { lab, models, asked, frame, say: (message: MeasurementMessage<unknown>) => channel(message) };
}

describe('the position', () => {
  it('is the toy without a pair of models, at the chat’s temperature, with the rules at every temperature', async () => {
    const { lab, asked } = openLab({}, { draft: false });
    await lab.selection.open();
    await lab.selection.open();
    expect(asked('lab_position')).toEqual([
      { request: { source: { kind: 'toy' }, sampling: expect.objectContaining({ temperature: 0.7 }) } },
    ]);
    expect(asked('lab_rules')).toEqual([{ position: 4, temperatures }]);
    expect(temperatures[0]).toBe(0);
    expect(temperatures.at(-1)).toBe(2);
  });

  it('is a token shown from the chat, also at another temperature', async () => {
    const { lab, asked } = openLab();
    lab.widget = 'costs';
    await lab.show(12, 3);
    expect(lab.widget).toBe('resampling');
    await lab.selection.open();
    await lab.selection.warm(1.2);
    const sources = asked('lab_position').map(({ request }) => request);
    expect(sources).toMatchObject([
      { source: { kind: 'answer', message: 12, token: 3 } },
      { source: { kind: 'answer' }, sampling: { temperature: 1.2 } },
    ]);
  });

  it('of an answer has its own sampling, and its temperature until another is chosen', async () => {
    const own = { ...lawful, temperature: 0.4, top_k: 7 };
    const turn = { ...answeredWith(5, 'resampled'), settings: { sampling: own } } as Answers['answered'][number];
    const other = answeredWith(6, 'resampled');
    const { lab, asked } = openLab({}, { answered: [turn, other] });
    await lab.selection.lookAt(5, 0);
    await lab.selection.warm(1.1);
    await lab.selection.lookAt(5, 0);
    await lab.selection.lookAt(6, 0);
    const sampled = asked('lab_position').map(({ request }) => (request as { sampling: typeof own }).sampling);
    expect(sampled.map(({ temperature }) => temperature)).toEqual([0.4, 1.1, 1.1, 1.1]);
    expect(sampled.map(({ top_k }) => top_k)).toEqual([7, 7, 7, lawful.top_k]);
    expect(lab.selection.own).toBeNull();
  });

  it('of a text or the toy has the chat’s temperature after an answer, and its own after that', async () => {
    const turn = {
      ...answeredWith(5, 'resampled'),
      settings: { sampling: { ...lawful, temperature: 0.4 } },
    } as Answers['answered'][number];
    const { lab, asked } = openLab({}, { answered: [turn] });
    await lab.selection.lookAt(5, 0);
    await lab.selection.choose('text');
    expect(lab.selection.temperature).toBe(0.7);
    await lab.selection.choose('answer');
    lab.selection.text = 'a';
    await lab.selection.choose('text');
    await lab.selection.choose('answer');
    await lab.selection.choose('toy');
    const sampled = asked('lab_position').map(({ request }) => (request as { sampling: { temperature: number } }).sampling.temperature);
    expect(sampled).toEqual([0.4, 0.4, 0.7, 0.4, 0.7]);
  });

  it('is requested one at a time, then the latest wanted one', async () => {
    const answers: (() => void)[] = [];
    const { lab, asked, frame } = openLab({
      lab_position: ({ request }) =>
        new Promise((resolve) =>
          answers.push(() => resolve({ ...position, id: answers.length, source: (request as { source: unknown }).source })),
        ),
    });
    const first = lab.selection.lookAt(1, 0);
    for (const token of [1, 2, 3]) await lab.selection.lookAt(1, token);
    await lab.selection.warm(1.4);
    expect(asked('lab_position')).toHaveLength(1);
    answers[0]?.();
    await frame();
    expect(lab.selection.position).toBeNull();
    expect(lab.selection.looking).toBe(true);
    answers[1]?.();
    await first;
    const wanted = { source: { kind: 'answer', message: 1, token: 3 }, sampling: { temperature: 1.4 } };
    expect(asked('lab_position')).toMatchObject([{ request: { source: { token: 0 } } }, { request: wanted }]);
    expect(asked('lab_rules')).toHaveLength(1);
    expect(lab.selection.position?.source).toEqual(wanted.source);
    expect(lab.selection.looking).toBe(false);
  });

  it('is dropped with its models, except for the toy', async () => {
    const { lab, models, asked, frame } = openLab();
    const load = async (path: string) => {
      models.loaded = { target: { path }, draft: { path: 'b' }, methods: [] as readonly string[] } as LoadedModels;
      lab.follow();
      await frame();
    };
    lab.follow();
    await lab.selection.choose('toy');
    await load('c');
    expect(lab.selection.position?.id).toBe(4);
    await lab.selection.lookAt(1, 1);
    lab.follow();
    expect(lab.selection.position?.id).toBe(4);
    await load('d');
    expect([lab.selection.position, lab.selection.rules, lab.selection.chosen]).toEqual([null, [], null]);
    expect(asked('cost_curve')).toHaveLength(2);
    expect(asked('landscape')).toHaveLength(0);
    await lab.landscape.open(null);
    await load('e');
    expect(asked('landscape')).toHaveLength(2);
  });

  it('is cleared when another one fails, with the reason', async () => {
    const { lab } = openLab({
      lab_position: ({ request }) => {
        if ((request as { source: { kind: string } }).source.kind === 'text') throw { code: 'no_model', message: 'no draft' };
        return position;
      },
    });
    await lab.selection.open();
    lab.selection.text = 'Once';
    await lab.selection.read();
    expect(lab.selection.error?.code).toBe('no_model');
    expect([lab.selection.position, lab.selection.rules]).toEqual([null, []]);
    await lab.selection.choose('toy');
    expect(lab.selection.error).toBeNull();
    expect(lab.selection.position?.id).toBe(4);
  });
});

describe('the first position of the lab', () => {
  const sources = (asked: (command: string) => Record<string, unknown>[]) =>
    asked('lab_position').map(({ request }) => (request as { source: Source }).source);
  const text = { kind: 'text', text: 'Once upon a time there was a' };
  const answer = (message: number, token: number) => ({ kind: 'answer', message, token });

  it('is the first resampled token of the last answer with tokens', async () => {
    const answered = [answeredWith(3, 'resampled'), answeredWith(5, 'accepted', 'bonus', 'resampled', 'resampled'), answeredWith(7)];
    const { lab, asked } = openLab({}, { answered });
    await lab.selection.open();
    expect(sources(asked)).toEqual([answer(5, 2)]);
    expect([lab.selection.kind, lab.selection.chosen]).toEqual(['answer', { message: 5, token: 2 }]);
    expect(lab.selection.position?.source).toEqual(answer(5, 2));
  });

  it('is in the middle of an answer without resampled tokens', async () => {
    const { lab, asked } = openLab({}, { answered: [answeredWith(5, 'plain', 'plain', 'plain', 'plain', 'plain')] });
    await lab.selection.open();
    expect(sources(asked)).toEqual([answer(5, 2)]);
  });

  it('is the end of an editable text where nothing was answered', async () => {
    const { lab, asked } = openLab();
    await lab.selection.open();
    expect(sources(asked)).toEqual([text]);
    expect([lab.selection.kind, lab.selection.text]).toEqual(['text', text.text]);
  });

  it('falls back when refused, to the toy at last, without an error', async () => {
    const answered = [answeredWith(5, 'resampled')];
    const ofOthers = openLab({ lab_position: refusing('invalid_request', ['answer']) }, { answered });
    await ofOthers.lab.selection.open();
    expect([ofOthers.lab.selection.kind, ofOthers.lab.selection.position?.source, ofOthers.lab.selection.error]).toEqual([
      'text',
      text,
      null,
    ]);
    const { lab, asked } = openLab({ lab_position: refusing('invalid_request', ['answer', 'text']) }, { answered });
    await lab.selection.open();
    await lab.selection.open();
    expect(sources(asked)).toEqual([answer(5, 0), text, { kind: 'toy' }]);
    expect([lab.selection.kind, lab.selection.position?.source, lab.selection.error]).toEqual(['toy', { kind: 'toy' }, null]);
  });

  it('is looked for again after the engine was busy', async () => {
    let busy = true;
    const { lab } = openLab({ lab_position: (args) => refusing('busy', busy ? ['text'] : [])(args) });
    await lab.selection.open();
    expect(lab.selection.kind).toBe('toy');
    busy = false;
    await lab.selection.open();
    expect([lab.selection.kind, lab.selection.position?.source]).toEqual(['text', text]);
  });

  it('is a real one of a head, without a draft model', async () => {
    const { lab, models, asked } = openLab({}, { draft: false });
    models.loaded = { target: { path: 'a' }, draft: null, methods: ['plain', 'head'] as readonly string[] } as LoadedModels;
    lab.follow();
    await lab.selection.open();
    expect([lab.selection.paired, sources(asked)]).toEqual([true, [text]]);
  });

  it('is a real one the next time, once a pair is loaded', async () => {
    const { lab, models, asked } = openLab({}, { draft: false });
    lab.follow();
    await lab.selection.open();
    models.loaded = { target: { path: 'a' }, draft: { path: 'b' }, methods: [] as readonly string[] } as LoadedModels;
    lab.follow();
    expect(lab.selection.position?.source).toEqual({ kind: 'toy' });
    await lab.selection.open();
    expect(sources(asked)).toEqual([{ kind: 'toy' }, text]);
    models.loaded = { target: { path: 'a' }, draft: { path: 'c' }, methods: [] as readonly string[] } as LoadedModels;
    lab.follow();
    expect(lab.selection.position).toBeNull();
    await lab.selection.open();
    await lab.selection.open();
    expect(sources(asked)).toEqual([{ kind: 'toy' }, text, text]);
  });

  it('stays the chosen one', async () => {
    const { lab, models, asked } = openLab({}, { draft: false });
    await lab.selection.open();
    await lab.selection.choose('toy');
    models.loaded = { target: { path: 'a' }, draft: { path: 'b' }, methods: [] as readonly string[] } as LoadedModels;
    await lab.selection.open();
    expect(lab.selection.kind).toBe('toy');
    expect(sources(asked).every(({ kind }) => kind === 'toy')).toBe(true);
  });

  it('yields to a choice made meanwhile, and is not replaced later', async () => {
    let refuse: (error: unknown) => void = () => {};
    const early = openLab({
      lab_position: ({ request }) => {
        const { source } = request as { source: Source };
        return source.kind === 'text' ? new Promise((_, reject) => (refuse = reject)) : { ...position, source };
      },
    });
    const opened = early.lab.selection.open();
    await early.lab.selection.lookAt(1, 1);
    refuse({ code: 'invalid_request', message: 'Refused.' });
    await opened;
    expect([early.lab.selection.kind, early.lab.selection.position?.source]).toEqual(['answer', answer(1, 1)]);
    let busy = false;
    const { lab } = openLab({ lab_position: (args) => refusing('busy', busy ? ['text'] : [])(args) });
    await lab.selection.open();
    busy = true;
    await lab.selection.warm(1.2);
    expect([lab.selection.kind, lab.selection.error?.code]).toEqual(['text', 'busy']);
  });
});

describe('rounds', () => {
  it('run a thousand in chunks, one per frame', async () => {
    const { lab, asked, frame } = openLab();
    await lab.selection.open();
    const run = lab.selection.ruleTests.run();
    await frame();
    expect(lab.selection.ruleTests.running).toMatchObject({ total: 1000 });
    for (let i = 0; i < 12; i++) await frame();
    await run;
    expect(asked('lab_rounds')).toHaveLength(10);
    expect(lab.selection.ruleTests.results.lossless?.rounds).toBe(1000);
    expect(lab.selection.ruleTests.running).toBeNull();
  });

  it('of a check start over under every rule, and stop at once', async () => {
    const { lab, asked, frame } = openLab();
    await lab.selection.open();
    const check = lab.selection.ruleTests.check(10_000);
    await frame();
    lab.selection.ruleTests.stop();
    const before = asked('lab_rounds').length;
    expect(lab.selection.ruleTests.running).toBeNull();
    for (let i = 0; i < 3; i++) await frame();
    await check;
    expect(asked('lab_rounds').length).toBe(before);
    const first = asked('lab_rounds')
      .slice(0, 5)
      .map(({ request }) => request as LabRoundsRequest);
    expect(first.map(({ rule }) => rule.name)).toEqual(['lossless', 'match', 'coupled', 'lossy-typical', 'lossy-lenience']);
    expect(first.every(({ restart, rounds }) => restart && rounds === 100)).toBe(true);
  });

  it('of a check come in growing chunks while they are fast', async () => {
    const clock = vi.spyOn(performance, 'now');
    const sizes = async (ms: number) => {
      let now = 0;
      clock.mockImplementation(() => (now += ms));
      const { lab, asked, frame } = openLab();
      await lab.selection.open();
      const check = lab.selection.ruleTests.check(10_000);
      for (let i = 0; i < 300 && (lab.selection.ruleTests.running !== null || i === 0); i++) await frame();
      await check;
      return asked('lab_rounds')
        .filter((_, i) => i % 5 === 0)
        .map(({ request }) => (request as LabRoundsRequest).rounds);
    };
    expect((await sizes(5)).slice(0, 5)).toEqual([100, 200, 400, 500, 500]);
    expect(new Set(await sizes(60))).toEqual(new Set([100]));
    clock.mockRestore();
  });

  it('are requested one after another, and dropped after a reset', async () => {
    const answers: (() => void)[] = [];
    const { lab, asked, frame } = openLab({
      lab_rounds: ({ request }) =>
        new Promise((resolve) => answers.push(() => resolve({ position: 4, rounds: (request as LabRoundsRequest).rounds }))),
    });
    await lab.selection.open();
    const { ruleTests } = lab.selection;
    const all = [ruleTests.run()];
    await frame();
    all.push(ruleTests.startOver(), ruleTests.one());
    await frame();
    expect(asked('lab_rounds')).toHaveLength(1);
    answers[0]?.();
    await frame();
    expect(ruleTests.results).toEqual({});
    expect(asked('lab_rounds').map(({ request }) => (request as LabRoundsRequest).restart)).toEqual([false, true]);
    answers[1]?.();
    await frame();
    answers[2]?.();
    await Promise.all(all);
    expect(asked('lab_rounds').map(({ request }) => (request as LabRoundsRequest).rounds)).toEqual([100, 1, 1]);
    expect(ruleTests.running).toBeNull();
  });

  it('of another position are not shown', async () => {
    const { lab } = openLab();
    await lab.selection.open();
    await lab.selection.ruleTests.one();
    expect(lab.selection.ruleTests.results.lossless?.rounds).toBe(1);
    await lab.selection.lookAt(1, 1);
    expect(lab.selection.ruleTests.results).toEqual({});
  });
});

describe('the landscape', () => {
  const model = { method: 'draft-model', trees: true };
  const head = { method: 'head', trees: true };
  /** As earlier versions measured it. */
  const headOfChains = { method: 'head', trees: false };

  it('is of a made-up machine until costs are measured', async () => {
    const { lab, asked } = openLab();
    await lab.landscape.open(null);
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'made_up' } });
    await lab.landscape.open([model]);
    expect(asked('landscape').at(-1)).toEqual({ machine: { kind: 'measured', drafter: null }, batch: 1, draft: { kind: 'chain' } });
    await lab.landscape.choose('measured');
    await lab.landscape.make({ rowCost: 0.2 });
    await lab.landscape.open([model]);
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'made_up', row_cost: 0.2 } });
    await lab.landscape.share(8);
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'made_up' }, batch: 8 });
  });

  it('is of trees or lookups too, with the answers of that kind and their siblings', async () => {
    const sessions = [
      { message: 1, draft: 'chain', siblings: null },
      { message: 2, draft: 'tree', siblings: 0.31 },
      { message: 3, draft: 'tree', siblings: 0.72 },
      { message: 4, draft: 'lookup', siblings: null },
    ];
    const { lab, asked } = openLab({ lab_sessions: () => sessions });
    await lab.landscape.open(null);
    const shown = () => lab.landscape.points.map(({ message }) => message);
    expect([shown(), lab.landscape.siblings]).toEqual([[1], expect.closeTo(0.5)]);
    await lab.landscape.draftAs('tree');
    expect(asked('landscape').at(-1)).toMatchObject({ draft: { kind: 'tree', siblings: expect.closeTo(0.5) } });
    expect(shown()).toEqual([2, 3]);
    await lab.landscape.draftAs('tree', 0.9);
    await lab.landscape.open(null);
    expect(lab.landscape.siblings).toBe(0.9);
    await lab.landscape.draftAs('lookup');
    expect(asked('landscape').at(-1)).toMatchObject({ draft: { kind: 'lookup' } });
    expect(shown()).toEqual([4]);
  });

  it('shows only answers of the drafter whose costs were measured', async () => {
    const sessions = [
      { message: 1, draft: 'chain', drafter: 'draft-model', siblings: null },
      { message: 2, draft: 'chain', drafter: 'head', siblings: null },
      { message: 3, draft: 'mixed', drafter: null, siblings: null },
    ];
    const landscape = ({ machine }: Record<string, unknown>) => {
      const { kind, drafter } = machine as { kind: string; drafter: string | null };
      return { drafter: kind === 'measured' ? (drafter ?? 'draft-model') : null };
    };
    const { lab, asked } = openLab({ lab_sessions: () => sessions, landscape });
    const shown = () => lab.landscape.points.map(({ message }) => message);
    await lab.landscape.open([model, headOfChains]);
    expect(shown()).toEqual([1]);
    await lab.landscape.draftBy('head');
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'measured', drafter: 'head' } });
    expect(shown()).toEqual([2]);
    // The trees of this head were not measured.
    await lab.landscape.draftAs('tree');
    expect(lab.landscape.drafters).toEqual(['draft-model']);
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'measured', drafter: null } });
    await lab.landscape.draftAs('chain');
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'measured', drafter: 'head' } });
    await lab.landscape.choose('made_up');
    expect(shown()).toEqual([1, 2]);
    // Another model without a head.
    await lab.landscape.open([model]);
    expect(lab.landscape.drafter).toBeNull();
  });

  it('is of lookups where nothing else was measured', async () => {
    const { lab, asked } = openLab();
    await lab.landscape.open([]);
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'measured' }, draft: { kind: 'lookup' } });
  });

  it('offers the kinds of drafts whose costs are known', async () => {
    const { lab, asked } = openLab();
    await lab.landscape.open([headOfChains]);
    expect(lab.landscape.kinds).toEqual(['chain', 'lookup']);
    await lab.landscape.choose('made_up');
    expect(lab.landscape.kinds).toEqual(['chain', 'tree', 'lookup']);
    await lab.landscape.draftAs('tree');
    await lab.landscape.choose('measured');
    expect(asked('landscape').at(-1)).toMatchObject({ machine: { kind: 'measured' }, draft: { kind: 'chain' } });
    await lab.landscape.open([head]);
    expect(lab.landscape.kinds).toEqual(['chain', 'tree', 'lookup']);
    await lab.landscape.open([]);
    expect(lab.landscape.kinds).toEqual(['lookup']);
  });

  it('keeps the numbers of a simulated server, and is busy until its reply', async () => {
    const replies: ((failed: boolean) => void)[] = [];
    const lab_serving = () =>
      new Promise((resolve, reject) =>
        replies.push((failed) => (failed ? reject({ code: 'internal', message: 'Failed.' } as unknown as Error) : resolve({ loads: [] }))),
      );
    const { lab } = openLab({ lab_serving });
    const first = lab.landscape.serve(0.7, 8);
    expect([lab.landscape.serving, lab.landscape.simulating]).toEqual([null, true]);
    replies[0]?.(false);
    await first;
    const shown = { loads: [], alpha: 0.7, batch: 8, draft: 'chain' };
    expect([lab.landscape.serving, lab.landscape.simulating]).toEqual([shown, false]);
    const second = lab.landscape.serve(0.3, 32);
    expect(lab.landscape.serving).toEqual(shown);
    replies[1]?.(true);
    await second;
    expect([lab.landscape.serving, lab.landscape.simulating]).toEqual([shown, false]);
    expect(lab.landscape.error?.message).toBe('Failed.');
  });

  it('drops the simulated server when costs change', async () => {
    const { lab, asked } = openLab();
    await lab.landscape.open(null);
    await lab.landscape.serve(0.7, 8);
    expect(asked('lab_serving')).toEqual([
      { request: { machine: expect.objectContaining({ kind: 'made_up' }), draft: { kind: 'chain' }, alpha: 0.7, max_batch: 8 } },
    ]);
    expect(lab.landscape.serving).toMatchObject({ loads: [] });
    await lab.landscape.share(2);
    expect(lab.landscape.serving).toBeNull();
  });

  it('is not requested for this machine before its costs are measured', async () => {
    const { lab, asked } = openLab();
    await lab.landscape.open(null);
    await lab.landscape.choose('measured');
    expect(asked('landscape')).toHaveLength(1);
    expect(lab.landscape.grid).toBeNull();
    await lab.landscape.choose('made_up');
    expect(lab.landscape.grid).not.toBeNull();
  });
});

describe('the inspector', () => {
  it('steps within the rounds of an answer, and keeps its place when reopened', async () => {
    const { lab, asked } = openLab();
    await lab.inspector.open(8);
    expect(lab.inspector.rounds).toHaveLength(3);
    lab.inspector.go(7);
    expect(lab.inspector.at).toBe(2);
    await lab.inspector.open(8);
    expect(lab.inspector.at).toBe(2);
    await lab.inspector.suppose({ temperature: 0.2 });
    expect(asked('what_if').at(-1)).toEqual({ request: { message: 8, max_draft: 6, temperature: 0.2 } });
    await lab.inspector.open(null);
    expect(lab.inspector.round).toBeNull();
  });
});

describe('costs', () => {
  it('are measured with progress, and shown', async () => {
    const { lab, say } = openLab();
    await lab.costs.measure();
    say({ id: 9, seq: 0, events: [{ type: 'progress', done: 1, total: 4 }] });
    expect(lab.costs.progress).toEqual({ done: 1, total: 4 });
    say({ id: 9, seq: 1, events: [{ type: 'finished', curve }] });
    expect(lab.costs.curve).toBe(curve);
    expect(lab.costs.progress).toBeNull();
  });

  it('are stopping until the engine has ended', async () => {
    const { lab, asked, say } = openLab();
    await lab.costs.measure();
    lab.costs.stop();
    lab.costs.stop();
    expect([lab.costs.stopping, lab.costs.stopped]).toEqual([true, false]);
    say({ id: 9, seq: 0, events: [{ type: 'progress', done: 1, total: 4 }] });
    expect(lab.costs.progress).not.toBeNull();
    say({ id: 9, seq: 1, events: [{ type: 'finished', curve: null }] });
    expect([lab.costs.stopping, lab.costs.stopped, lab.costs.progress]).toEqual([false, true, null]);
    expect(asked('stop_measurement')).toEqual([{ id: 9 }]);
  });
});
