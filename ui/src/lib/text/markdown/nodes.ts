// The tree a Markdown answer is drawn from: blocks, inlines, and the stretches of tokens in their
// leaves. Types only: no parser's types, no DOM.

import type { Piece } from '../blocks';

export type { Piece };

/** What a stretch of code is, as far as colour goes. */
export type Scope =
  | 'keyword'
  | 'string'
  | 'number'
  | 'comment'
  | 'title'
  | 'type'
  | 'name'
  | 'attribute'
  | 'variable'
  | 'meta'
  | 'added'
  | 'removed';

/** Part of a token's text with one colour. */
export interface CodePart {
  text: string;
  scope: Scope | null;
}

/** A piece of code; without parts it has no colours (yet). */
export interface CodePiece extends Piece {
  parts: readonly CodePart[] | null;
}

/** Lines of code drawn together. A run that is not its block's last never gets more pieces. */
export interface CodeRun {
  readonly id: number;
  readonly pieces: readonly CodePiece[];
}

/** The tokens a formula was written with; it is drawn as one element that stands for the first. */
interface Formula {
  tex: string;
  token: number;
  lastToken: number;
  /** Whether it is the first that is seen of its first token. */
  first: boolean;
  /** As in a piece. */
  skipped?: number;
}

export type Inline =
  | { kind: 'text'; pieces: readonly Piece[] }
  | { kind: 'emphasis' | 'strong' | 'delete'; children: readonly Inline[] }
  | { kind: 'inlineCode'; pieces: readonly Piece[] }
  | { kind: 'link'; href: string; children: readonly Inline[] }
  /** Its alternative text; the image itself is never loaded. */
  | { kind: 'image'; href: string | null; pieces: readonly Piece[] }
  | ({ kind: 'inlineMath'; display: boolean } & Formula)
  | { kind: 'break'; pieces: readonly Piece[] }
  /** Markup of the answer's own, as it was written. */
  | { kind: 'html'; pieces: readonly Piece[] };

export interface ListItem {
  /** Null when it is no task. */
  checked: boolean | null;
  children: readonly BlockNode[];
}

export interface CodeNode {
  kind: 'code';
  lang: string | null;
  runs: readonly CodeRun[];
  /** Whether all of it is here. */
  closed: boolean;
}

export interface TableNode {
  kind: 'table';
  align: readonly ('left' | 'right' | 'center' | null)[];
  head: readonly (readonly Inline[])[];
  rows: readonly (readonly (readonly Inline[])[])[];
}

export type BlockNode =
  | { kind: 'paragraph'; children: readonly Inline[] }
  | { kind: 'heading'; depth: number; children: readonly Inline[] }
  /** `continued`: a later part of a list that was too long for one block. */
  | { kind: 'list'; ordered: boolean; start: number; continued: boolean; items: readonly ListItem[] }
  | { kind: 'quote'; children: readonly BlockNode[] }
  | CodeNode
  | TableNode
  | { kind: 'rule' }
  | ({ kind: 'math' } & Formula)
  | { kind: 'html'; pieces: readonly Piece[] };

/** A top-level block. Its id is where it begins in the text, and stays. */
export interface MarkdownBlock {
  readonly id: number;
  readonly node: BlockNode;
}
