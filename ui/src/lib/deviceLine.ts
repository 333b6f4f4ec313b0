// The line about the device in the title bar. No DOM.

import { causeText } from './errors';
import { formatCount, plural } from './format';
import type { AppInfo, GpuCosts, LoadedModels } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** The device in words. */
interface DeviceLine {
  text: string;
  /** Details, from the engine. */
  title?: string;
  /** `true` if it says more than the name of the device. */
  notable: boolean;
}

/** Says where predicted times come from: published figures of the chip, or products that were timed on it. */
function metalLine(costs: GpuCosts | undefined, draftPlacement: string | undefined): DeviceLine {
  const words = language.strings.models;
  const placement = draftPlacement ? causeText(draftPlacement) : undefined;
  if (!costs) return { text: words.metal, title: placement, notable: false };
  const bandwidth = formatCount(costs.memory_gb_s);
  const figures =
    costs.source === 'chip' ? words.chipFigures(costs.name, bandwidth, formatCount(costs.cores)) : words.productFigures(bandwidth);
  const text = costs.source === 'chip' ? words.metalPredicted : words.metalMeasured;
  return { text, title: placement ? [figures, placement].join('\n') : figures, notable: false };
}

/** Describes the device: its self-test while that runs, else what replaces kernels that failed or are missing. */
export function deviceLine(info: AppInfo, loaded: LoadedModels | null): DeviceLine {
  const words = language.strings.models;
  if (info.gpu?.state === 'running') return { text: words.testingGpu, notable: true };
  if ((loaded?.device ?? info.device) !== 'metal') return { text: words.cpu(plural(info.threads, 'thread')), notable: false };
  if (loaded?.device_note) return { text: words.metalReplaced, title: causeText(loaded.device_note), notable: true };
  // With a model loaded, failures that it does not need are no news.
  const problems = loaded ? [] : (info.gpu?.problems ?? []);
  if (problems.length === 0) return metalLine(info.gpu?.costs, loaded?.draft_placement);
  return { text: words.gpuProblems(plural(problems.length, 'kernel')), title: causeText(problems.join('\n')), notable: true };
}
