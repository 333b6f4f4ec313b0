// The line about the device in the title bar.

import { afterEach, describe, expect, it } from 'vitest';
import { deviceLine } from './deviceLine';
import { appInfo } from './host/testing';
import type { AppInfo, GpuCosts, LoadedModels } from './ipc/schema.gen';
import { setLanguage } from './strings/index.svelte';

const onMetal: AppInfo = { ...appInfo, device: 'metal', gpu: { state: 'done', problems: [] } };
const problems = ['product Q5_K differs from the CPU', 'attention 64 failed: refused'];
const failed: AppInfo = { ...onMetal, gpu: { state: 'done', problems } };
const loaded = { device: 'metal' } as LoadedModels;

afterEach(() => setLanguage('en'));

describe('the device line', () => {
  it('names the device', () => {
    expect(deviceLine({ ...appInfo, threads: 4 }, null)).toEqual({ text: 'CPU, 4 threads', notable: false });
    expect(deviceLine(onMetal, loaded)).toEqual({ text: 'Metal', notable: false });
  });

  it('has the device of the draft model in its title', () => {
    const draft_placement = 'The draft model runs on the CPU: 1.20 ms a token, 3.40 on the GPU.';
    expect(deviceLine(onMetal, { ...loaded, draft_placement })).toEqual({ text: 'Metal', title: draft_placement, notable: false });
  });

  it('says whether pass times come from the chip or from products that were measured', () => {
    const of = (costs: GpuCosts) => deviceLine({ ...onMetal, gpu: { state: 'done', problems: [], costs } }, loaded);
    const chip = { source: 'chip', name: 'Apple M4 Max', memory_gb_s: 546, cores: 40 } as const;
    const products = { source: 'products', memory_gb_s: 431.4 } as const;
    expect(of(chip)).toEqual({
      text: 'Metal, times predicted',
      title: 'Pass times are predicted from published figures of Apple M4 Max: 546 GB/s, 40 GPU cores. Its kernels were not timed.',
      notable: false,
    });
    expect(of(products).text).toBe('Metal, GPU timed');
    expect(of(products).title).toContain('431 GB/s');
    const draft_placement = 'The draft model runs on the GPU.';
    const info: AppInfo = { ...onMetal, gpu: { state: 'done', problems: [], costs: products } };
    expect(deviceLine(info, { ...loaded, draft_placement }).title).toMatch(/431 GB\/s\.\nThe draft model/);
    setLanguage('de');
    expect([of(chip).text, of(products).text]).toEqual(['Metal, Zeiten vorhergesagt', 'Metal, GPU vermessen']);
    expect(of(chip).title).toContain('40 GPU-Kerne');
  });

  it('shows that the self-test runs, also while models load', () => {
    const running: AppInfo = { ...onMetal, gpu: { state: 'running' } };
    expect(deviceLine(running, null)).toEqual({ text: 'Testing Metal kernels…', notable: true });
    setLanguage('de');
    expect(deviceLine(running, loaded).text).toBe('Metal-Kernel werden geprüft…');
  });

  it('shows failures until a model says which of them it needs', () => {
    expect(deviceLine(failed, null)).toEqual({ text: 'Metal: 2 kernels failed', title: problems.join('\n'), notable: true });
    expect(deviceLine(failed, loaded)).toEqual({ text: 'Metal', notable: false });
    const device_note = 'Metal: product Q5_K differs from the CPU; the Q5_K weights of m are converted to F32, which is slower.';
    expect(deviceLine(failed, { ...loaded, device_note })).toEqual({
      text: 'Metal, some kernels replaced',
      title: device_note,
      notable: true,
    });
    setLanguage('de');
    expect(deviceLine({ ...failed, gpu: { state: 'done', problems: [problems[0]!] } }, null).text).toBe('Metal: 1 Kernel fehlerhaft');
    expect(deviceLine(failed, { ...loaded, device_note }).text).toBe('Metal, teils ersetzt');
  });
});
