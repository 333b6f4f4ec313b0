// The line about the device in the title bar. No DOM.

import { causeText } from './errors';
import { plural } from './format';
import type { AppInfo, LoadedModels } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** The device in words. */
export interface DeviceLine {
  text: string;
  /** Details, from the engine. */
  title?: string;
  /** `true` if it says more than the name of the device. */
  notable: boolean;
}

/** Describes the device: its self-test while that runs, else what replaces kernels that failed or are missing. */
export function deviceLine(info: AppInfo, loaded: LoadedModels | null): DeviceLine {
  const words = language.strings.models;
  if (info.gpu?.state === 'running') return { text: words.testingGpu, notable: true };
  if ((loaded?.device ?? info.device) !== 'metal') return { text: words.cpu(plural(info.threads, 'thread')), notable: false };
  if (loaded?.device_note) return { text: words.metalReplaced, title: causeText(loaded.device_note), notable: true };
  // With a model loaded, failures that it does not need are no news.
  const problems = loaded ? [] : (info.gpu?.problems ?? []);
  const placement = loaded?.draft_placement;
  if (problems.length === 0) return { text: words.metal, ...(placement && { title: causeText(placement) }), notable: false };
  return { text: words.gpuProblems(plural(problems.length, 'kernel')), title: causeText(problems.join('\n')), notable: true };
}
