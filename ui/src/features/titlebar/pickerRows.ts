// Choices for a model slot, in display order. No DOM.

import { causeText } from '../../lib/errors';
import { formatBytes, parametersBeside } from '../../lib/format';
import type { DraftOffer, DraftOffers, FitVerdict, HeadOffer, LowBitOffer, ModelEntry } from '../../lib/ipc/schema.gen';
import { shortcut } from '../../lib/platform';
import { fileLines, type LibraryState } from '../../lib/state/library.svelte';
import { shortAddress } from '../../lib/state/servers.svelte';
import { language } from '../../lib/strings/index.svelte';
import { gainWords, headWords, verdictWords } from '../../lib/pairVerdict';
import type { TitleBarContext } from './context';

/** With more models than this, the list can be searched. */
export const searchFrom = 8;

/** A row that can be chosen. */
export interface PickerRow {
  id: string;
  name: string;
  aside: string;
  note: string;
  fit?: FitVerdict;
  chosen: boolean;
  disabled: boolean;
  /** Heading above the row, at the start of a group. */
  heading?: string;
  /** `true` if it leads to other models. */
  way: boolean;
  /** File and path, for its tooltip. */
  lines?: string;
  /** Further words that it is found by. */
  alias?: string;
  testid?: string;
  run: () => void;
}

/** The rows of a slot. */
export function pickerRows(role: 'target' | 'draft', context: TitleBarContext): PickerRow[] {
  return role === 'target' ? targetRows(context) : draftRows(context);
}

function targetRows(context: TitleBarContext): PickerRow[] {
  const { answerer, library, models, navigation, work } = context;
  const words = language.strings.library.picker;
  const recent = models.recent.filter(({ problem }) => problem === null);
  const rest = library.models.filter((model) => !recent.includes(model)).toSorted(byTitle);
  const row = (model: ModelEntry): PickerRow => ({
    ...modelRow(library, model),
    chosen: !answerer.server && model.path === models.loaded?.target.path,
    disabled: problemOf(model) || work.running,
    run: () => void answerer.useLoaded(model),
  });
  const unload = way('unload', words.unload, () => void models.unload(), work.running);
  return [
    ...headed(recent.map(row), words.recent),
    ...headed(rest.map(row), recent.length > 0 ? words.all : language.strings.models.target.heading),
    ...headed(serverRows(context), language.strings.library.parts.servers),
    ...(models.loaded ? [unload] : []),
    { ...way('open-target', language.strings.models.target.open, () => void answerer.openTarget(), work.running), aside: shortcut('O') },
    way('open-servers', words.openServers, () => navigation.showLibrary('servers')),
    way('open-library', words.openLibrary, () => navigation.showLibrary()),
  ];
}

/** The models of servers. */
function serverRows({ servers, work }: TitleBarContext): PickerRow[] {
  return servers.list.flatMap(({ address }) =>
    servers.modelsOf(address).map(({ id }): PickerRow => ({
      id: `${address} ${id}`,
      name: id,
      aside: '',
      note: shortAddress(address),
      chosen: servers.chosen?.address === address && servers.chosen.model === id,
      disabled: work.running,
      way: false,
      lines: address,
      testid: 'server-row',
      run: () => servers.choose({ address, model: id }),
    })),
  );
}

function draftRows(context: TitleBarContext): PickerRow[] {
  const { drafting, library, modelList, models, navigation, work } = context;
  const words = language.strings.library.picker;
  const target = models.loaded?.target.path;
  const offers = drafting.target?.path === target ? drafting.offers : null;
  // Until the offers are known, any model may be a draft.
  const rows = offers
    ? offeredRows(context, offers)
    : headed(
        library.models.filter(({ path }) => path !== target).map((model) => draftRow(context, model)),
        language.strings.models.draft.heading,
      );
  const without = way('without-draft-model', language.strings.models.withoutDraft, () => loadAlone(context), work.running);
  return [
    ...rows,
    ...(!offers?.own_head && (models.loaded?.draft || models.loaded?.head) ? [without] : []),
    way('open-draft', language.strings.models.draft.open, () => void models.openDraft(), work.running),
    way('open-library', words.openLibrary, () => {
      navigation.showLibrary();
      if (target) modelList.select(target);
    }),
  ];
}

/** Suitable drafts and heads first, then the others with the reason. */
function offeredRows(context: TitleBarContext, { own_head, low_bit }: DraftOffers): PickerRow[] {
  const { suited, suitedHeads, unsuited, unsuitedHeads } = context.drafting;
  const words = language.strings.library.picker;
  // An unwritten copy is offered only if it promises a speedup.
  const offersLowBit = low_bit && (low_bit.written || low_bit.predicted.depth > 0);
  return [
    ...headed([...draftOfferRows(context, suited, true), ...(offersLowBit ? [lowBitRow(context, low_bit)] : [])], words.suits),
    ...headed([...(own_head ? [ownHeadRow(context, own_head)] : []), ...suitedHeads.map((head) => headRow(context, head))], words.heads),
    ...headed([...draftOfferRows(context, unsuited, false), ...unsuitedHeads.map((head) => headRow(context, head))], words.others),
  ];
}

/** Offered drafts that are listed models. */
function draftOfferRows(context: TitleBarContext, offers: readonly DraftOffer[], suitable: boolean): PickerRow[] {
  return offers.flatMap((offer): PickerRow[] => {
    const model = context.library.at(offer.path);
    if (!model) return [];
    return [
      {
        ...draftRow(context, model),
        note: suitable ? draftGain(offer) : verdictWords(offer.verdict),
        fit: suitable ? offer.fit : undefined,
        disabled: !suitable || offer.fit === 'too_large' || context.work.running,
      },
    ];
  });
}

function draftRow({ library, models, work }: TitleBarContext, model: ModelEntry): PickerRow {
  return {
    ...modelRow(library, model),
    chosen: model.path === models.loaded?.draft?.path,
    disabled: problemOf(model) || work.running,
    run: () => void models.useDraft(model.path, library.titleOf(model)),
  };
}

function lowBitRow({ models, work }: TitleBarContext, copy: LowBitOffer): PickerRow {
  const { title } = language.strings.library.offers.lowBit;
  return {
    id: copy.path,
    name: title,
    aside: formatBytes(copy.size_bytes),
    note: gainWords(copy.measured, copy.predicted),
    fit: copy.fit,
    chosen: copy.path === models.loaded?.draft?.path,
    disabled: copy.fit === 'too_large' || work.running,
    way: false,
    testid: 'low-bit-offer',
    run: () => void models.useDraft(copy.path, title),
  };
}

function headRow({ models, work }: TitleBarContext, head: HeadOffer): PickerRow {
  const suitable = head.problem === null;
  return {
    id: head.path,
    name: head.name,
    aside: formatBytes(head.size_bytes),
    note:
      head.problem === null
        ? [headWords(head.kind, head.trained_for), gainWords(null, head.predicted)].filter(Boolean).join(', ')
        : causeText(head.problem),
    fit: suitable ? head.fit : undefined,
    chosen: head.path === models.loaded?.head?.path,
    disabled: !suitable || head.fit === 'too_large' || work.running,
    way: false,
    lines: fileLines(head),
    alias: head.kind,
    testid: 'head-offer',
    run: () => void models.useHead(head.path, head.name),
  };
}

/** The layer in the target's own file, which drafts without a draft model and a head. */
function ownHeadRow(context: TitleBarContext, head: HeadOffer): PickerRow {
  const { loaded } = context.models;
  return {
    ...headRow(context, head),
    name: language.strings.models.ownDrafter,
    note: [head.kind, gainWords(null, head.predicted)].filter(Boolean).join(', '),
    chosen: loaded !== null && loaded.draft === null && !loaded.head,
    testid: 'own-head-offer',
    run: () => loadAlone(context),
  };
}

/** Loads the target again, without a draft model or head. */
function loadAlone({ library, models }: TitleBarContext): void {
  void models.useDraft(null, models.loaded ? library.titleOf(models.loaded.target) : '');
}

/** A group of rows with its heading. */
const headed = (rows: readonly PickerRow[], heading: string): PickerRow[] => rows.map((row, i) => (i === 0 ? { ...row, heading } : row));

function draftGain({ measured, predicted, recommended, verdict }: DraftOffer): string {
  const words = language.strings.library.offers;
  const gain = [gainWords(measured, predicted), ...(recommended ? [words.recommended] : [])].filter(Boolean).join(', ');
  // Nothing is predicted of a draft with another tokeniser.
  return gain || verdictWords(verdict);
}

function modelRow(library: LibraryState, model: ModelEntry): PickerRow {
  const { path, size_bytes, problem, architecture, parameters, quantisation } = model;
  const name = library.titleOf(model);
  const facts = [...parametersBeside(name, parameters), quantisation, architecture];
  return {
    id: path,
    name,
    aside: formatBytes(size_bytes),
    note: problem === null ? facts.join(', ') : causeText(problem),
    fit: problem === null ? library.fits[path] : undefined,
    chosen: false,
    disabled: false,
    way: false,
    lines: fileLines(model),
    alias: model.name,
    run: () => {},
  };
}

const byTitle = (a: ModelEntry, b: ModelEntry): number => Number(problemOf(a)) - Number(problemOf(b)) || a.title.localeCompare(b.title);

const problemOf = ({ problem }: ModelEntry): boolean => problem !== null;

const way = (id: string, name: string, run: () => void, disabled = false): PickerRow => ({
  id,
  name,
  aside: '',
  note: '',
  chosen: false,
  disabled,
  way: true,
  testid: id,
  run,
});
