// The list of models of this machine: search, filters, order, and the selected model. No DOM.

import { formatParameters } from '../format';
import type { ModelEntry, ModelSource } from '../ipc/schema.gen';
import { has } from '../match';
import { language } from '../strings/index.svelte';
import type { LibraryState } from './library.svelte';
import { facets, type Facet, type Sort } from '../strings/keys';

/** A value of a facet, and the number of its models. */
interface FacetValue {
  value: string;
  label: string;
  count: number;
}

const orders: Record<Sort, (a: ModelEntry, b: ModelEntry) => number> = {
  name: (a, b) => a.title.localeCompare(b.title) || a.name.localeCompare(b.name),
  size: (a, b) => b.size_bytes - a.size_bytes,
  parameters: (a, b) => b.parameters - a.parameters,
  speed: (a, b) => (b.tokens_per_second ?? 0) - (a.tokens_per_second ?? 0),
};

/** The filtered and sorted list of models. */
export class ModelList {
  query = $state('');
  sort = $state<Sort>('name');
  /** `true` if models that do not fit are hidden. */
  fitting = $state(false);
  /** The filter of each facet; null for all values. */
  chosen = $state.raw<Readonly<Record<Facet, string | null>>>({ source: null, architecture: null, quantisation: null });
  #selected = $state<string | null>(null);

  readonly #library: LibraryState;
  readonly #loaded: () => string | null;

  /** Matching models in order. Unusable ones come last. */
  found = $derived.by((): readonly ModelEntry[] => {
    const order = orders[this.sort];
    return this.#library.models
      .filter((model) => this.#shown(model, null) && has(this.query, wordsOf(model)))
      .toSorted((a, b) => Number(a.problem !== null) - Number(b.problem !== null) || order(a, b) || orders.name(a, b));
  });

  /** The selected model; until one is chosen, the first one that was searched for, the loaded target, or the first one. */
  current = $derived.by((): ModelEntry | null => {
    const at = (wanted: string | null) => this.found.find(({ path }) => path === wanted);
    return at(this.#selected) ?? (this.query === '' ? at(this.#loaded()) : undefined) ?? this.found[0] ?? null;
  });

  /** `true` if a filter is active. */
  filtered = $derived(this.fitting || facets.some((facet) => this.chosen[facet] !== null));

  /** `loaded` returns the path of the loaded target. */
  constructor(library: LibraryState, loaded: () => string | null) {
    this.#library = library;
    this.#loaded = loaded;
  }

  /** Values of a facet, most frequent first, counted with all other filters. */
  values(facet: Facet): FacetValue[] {
    const counts: Record<string, number> = {};
    for (const model of this.#library.models) {
      const value = model[facet];
      // Unreadable models have no family.
      if (model.problem !== null && facet !== 'source') continue;
      if (value !== '') counts[value] = (counts[value] ?? 0) + (this.#shown(model, facet) ? 1 : 0);
    }
    return Object.entries(counts)
      .map(([value, count]) => ({
        value,
        label: facet === 'source' ? language.strings.library.sources[value as ModelSource] : value,
        count,
      }))
      .sort((a, b) => b.count - a.count || a.label.localeCompare(b.label));
  }

  /** Filters by a value. Called again with the same value, removes the filter. */
  toggle(facet: Facet, value: string): void {
    this.chosen = { ...this.chosen, [facet]: this.chosen[facet] === value ? null : value };
  }

  /** Removes all filters. */
  clear(): void {
    this.query = '';
    this.fitting = false;
    this.chosen = { source: null, architecture: null, quantisation: null };
  }

  /** Selects a model. */
  select(path: string): void {
    this.#selected = path;
  }

  /** Selects a model, and removes filters that hide it. */
  show(path: string): void {
    this.select(path);
    if (this.current?.path !== path) this.clear();
  }

  /** Returns `true` if a model passes the filters, ignoring one facet. */
  #shown(model: ModelEntry, aside: Facet | null): boolean {
    if (this.fitting && (model.problem !== null || this.#library.fits[model.path] === 'too_large')) return false;
    return facets.every((facet) => facet === aside || this.chosen[facet] === null || this.chosen[facet] === model[facet]);
  }
}

/** Search text of a model. */
function wordsOf({ title, name, architecture, quantisation, source, parameters, tokenizer }: ModelEntry): string {
  return [title, name, architecture, quantisation, language.strings.library.sources[source], formatParameters(parameters), tokenizer].join(
    ' ',
  );
}
