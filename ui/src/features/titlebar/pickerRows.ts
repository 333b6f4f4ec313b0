// Choices for a model slot, in display order. No DOM.

import { causeText } from '../../lib/errors';
import { formatBytes, formatParameters } from '../../lib/format';
import type { DraftOffer, FitVerdict, HeadOffer, LowBitOffer, ModelEntry } from '../../lib/ipc/schema.gen';
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
  const rows = [...recent, ...rest].map((model, i): PickerRow => ({
    ...modelRow(library, model),
    chosen: !answerer.server && model.path === models.loaded?.target.path,
    disabled: problemOf(model) || work.running,
    heading:
      i === 0 && recent.length > 0
        ? words.recent
        : i === recent.length
          ? recent.length > 0
            ? words.all
            : language.strings.models.target.heading
          : undefined,
    run: () => void answerer.useLoaded(model),
  }));
  const unload = way('unload', words.unload, () => void models.unload(), work.running);
  return [
    ...rows,
    ...serverRows(context),
    ...(models.loaded ? [unload] : []),
    { ...way('open-target', language.strings.models.target.open, () => void answerer.openTarget(), work.running), aside: shortcut('O') },
    way('open-servers', words.openServers, () => navigation.showLibrary('servers')),
    way('open-library', words.openLibrary, () => navigation.showLibrary()),
  ];
}

/** The models of servers. */
function serverRows({ servers, work }: TitleBarContext): PickerRow[] {
  const heading = language.strings.library.parts.servers;
  const rows = servers.list.flatMap(({ address }) =>
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
  return rows.map((row, i) => (i === 0 ? { ...row, heading } : row));
}

/** Suitable drafts first, then the others with the reason. */
function draftRows(context: TitleBarContext): PickerRow[] {
  const { drafting: pairing, library, modelList, models, navigation, work } = context;
  const words = language.strings.library.picker;
  const target = models.loaded?.target.path;
  const offers = pairing.target?.path === target ? pairing.offers : null;
  const row = (model: ModelEntry): PickerRow => ({
    ...modelRow(library, model),
    chosen: model.path === models.loaded?.draft?.path,
    disabled: problemOf(model) || work.running,
    run: () => void models.useDraft(model.path, library.titleOf(model)),
  });
  const offered = (list: readonly DraftOffer[], suitable: boolean) =>
    list.flatMap((offer, i): PickerRow[] => {
      const model = library.at(offer.path);
      if (!model) return [];
      const note = suitable ? draftGain(offer) : verdictWords(offer.verdict);
      return [
        {
          ...row(model),
          note,
          fit: suitable ? offer.fit : undefined,
          disabled: !suitable || offer.fit === 'too_large' || work.running,
          heading: i === 0 ? (suitable ? words.suits : words.others) : undefined,
        },
      ];
    });
  const headRow = (head: HeadOffer, heading: string | undefined): PickerRow => ({
    id: head.path,
    name: head.name,
    aside: formatBytes(head.size_bytes),
    note: head.problem === null ? [headWords(head), gainWords(null, head.predicted)].filter(Boolean).join(', ') : causeText(head.problem),
    fit: head.problem === null ? head.fit : undefined,
    chosen: head.path === models.loaded?.head?.path,
    disabled: head.problem !== null || head.fit === 'too_large' || work.running,
    heading,
    way: false,
    lines: fileLines(head),
    alias: head.kind,
    testid: 'head-offer',
    run: () => void models.useHead(head.path, head.name),
  });
  const headed = (heads: readonly HeadOffer[], heading: string | undefined) =>
    heads.map((head, i) => headRow(head, i === 0 ? heading : undefined));
  const own = offers?.own_head;
  const loadsAlone = () => void models.useDraft(null, models.loaded ? library.titleOf(models.loaded.target) : '');
  /** The layer in the target's own file, which drafts without a draft model and a head. */
  const ownRows: PickerRow[] = own
    ? [
        {
          ...headRow(own, words.heads),
          name: language.strings.models.ownDrafter,
          note: [own.kind, gainWords(null, own.predicted)].filter(Boolean).join(', '),
          chosen: models.loaded !== null && models.loaded.draft === null && !models.loaded.head,
          testid: 'own-head-offer',
          run: loadsAlone,
        },
      ]
    : [];
  const suited = offers ? pairing.suited.filter(({ path }) => path !== null) : [];
  const lowBitRow = (copy: LowBitOffer): PickerRow => ({
    id: copy.path,
    name: language.strings.library.offers.lowBit.title,
    aside: formatBytes(copy.size_bytes),
    note: gainWords(copy.measured, copy.predicted),
    fit: copy.fit,
    chosen: copy.path === models.loaded?.draft?.path,
    disabled: copy.fit === 'too_large' || work.running,
    heading: suited.length === 0 ? words.suits : undefined,
    way: false,
    testid: 'low-bit-offer',
    run: () => void models.useDraft(copy.path, language.strings.library.offers.lowBit.title),
  });
  /** The low-bit copy, if it was written or promises a speedup. */
  const lowBit = offers?.low_bit;
  const lowBitRows = lowBit && (lowBit.written || lowBit.predicted.depth > 0) ? [lowBitRow(lowBit)] : [];
  const without = way('without-draft-model', language.strings.models.withoutDraft, loadsAlone, work.running);
  const unsuited = offers ? offered(pairing.unsuited, false) : [];
  // Until the offers are known, any model may be a draft.
  const rows = offers
    ? [
        ...offered(suited, true),
        ...lowBitRows,
        ...ownRows,
        ...headed(pairing.suitedHeads, own ? undefined : words.heads),
        ...unsuited,
        ...headed(pairing.unsuitedHeads, unsuited.length === 0 ? words.others : undefined),
      ]
    : library.models
        .filter(({ path }) => path !== target)
        .map((model, i) => ({ ...row(model), heading: i === 0 ? language.strings.models.draft.heading : undefined }));
  return [
    ...rows,
    ...(!own && (models.loaded?.draft || models.loaded?.head) ? [without] : []),
    way('open-draft', language.strings.models.draft.open, () => void models.openDraft(), work.running),
    way('open-library', words.openLibrary, () => {
      navigation.showLibrary();
      if (target) modelList.select(target);
    }),
  ];
}

function draftGain({ measured, predicted, recommended, verdict }: DraftOffer): string {
  const words = language.strings.library.offers;
  const gain = [gainWords(measured, predicted), ...(recommended ? [words.recommended] : [])].filter(Boolean).join(', ');
  // Nothing is predicted of a draft with another tokeniser.
  return gain || verdictWords(verdict);
}

function modelRow(library: LibraryState, model: ModelEntry): PickerRow {
  const { path, size_bytes, problem, architecture, parameters, quantisation } = model;
  return {
    id: path,
    name: library.titleOf(model),
    aside: formatBytes(size_bytes),
    note: problem === null ? `${architecture}, ${formatParameters(parameters)}, ${quantisation}` : causeText(problem),
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
