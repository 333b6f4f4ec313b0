// Options of single methods, as text in fields. Pure.

import type { OptionName, MethodOptions } from './ipc/schema.gen';
import { ungrouped } from './typedNumber';

/** Upper limits of the loaded models and the engine. */
interface OptionLimits {
  /** Tokens of the context. */
  readonly context: number;
  /** Most tokens of a draft. */
  readonly draft: number;
}

/** Text of an option; empty for its default. */
export function optionText(options: MethodOptions, name: OptionName): string {
  const value = options[name];
  return Array.isArray(value) ? value.join(', ') : String(value ?? '');
}

/** Options with another text of one: its default for an empty text, null for a malformed one. */
export function withOption(options: MethodOptions, name: OptionName, text: string, limits: OptionLimits): MethodOptions | null {
  const others = { ...options };
  delete others[name];
  const written = text.trim().toLowerCase();
  if (written === '') return others;
  const value = read(name, written, limits);
  return value === null ? null : { ...others, ...value };
}

function read(name: OptionName, text: string, limits: OptionLimits): MethodOptions | null {
  switch (name) {
    case 'tree': {
      if (text === 'dynamic') return {};
      const levels: string[] = [];
      let nodes = 1;
      for (const level of text.split(/[x×*]/)) {
        const children = wholes(level, /,/, 0, limits.draft);
        if (!children?.some((count) => count > 0) || children.length > nodes) return null;
        nodes = children.length > 1 ? children.reduce((sum, count) => sum + count) : nodes * children[0]!;
        levels.push(children.join(','));
      }
      return { tree: levels.join('x') };
    }
    case 'exit_layer': {
      const layers = wholes(text, null, 1);
      return layers && { exit_layer: layers[0]! };
    }
    case 'skipped_layers': {
      const layers = wholes(text, /[,;\s]+/, 0);
      return layers && { skipped_layers: [...new Set(layers)].sort((a, b) => a - b) };
    }
    case 'draft_window': {
      const tokens = wholes(text, null, 1, limits.context);
      return tokens && { draft_window: tokens[0]! };
    }
  }
}

/** Whole numbers of a text; null if one is no number or out of range. Without a separator, the text is one number. */
function wholes(text: string, separator: RegExp | null, min: number, max = 0xffff_ffff): number[] | null {
  const parts = separator ? text.split(separator).map((part) => part.trim()) : [ungrouped(text)];
  const numbers = parts.map((part) => (/^\d+$/.test(part) ? Number(part) : NaN));
  return numbers.every((number) => number >= min && number <= max) ? numbers : null;
}
