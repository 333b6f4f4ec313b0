// Tree of a formatted answer: blocks, inlines, and pieces of tokens in their leaves. Types only, without parser
// types. No DOM.

import type { Piece } from '../blocks';

export type { Piece };

/** Scopes of code that have a colour. */
export type Scope =
  'keyword' | 'string' | 'number' | 'comment' | 'title' | 'type' | 'name' | 'attribute' | 'variable' | 'meta' | 'added' | 'removed';

/** A piece of a token's text with one colour. */
export interface CodePart {
  text: string;
  scope: Scope | null;
}

/** A piece of code. Without parts it has no colours yet. */
export interface CodePiece extends Piece {
  parts: readonly CodePart[] | null;
}

/** Lines of code drawn together. Only the last run of a block grows. */
export interface CodeRun {
  readonly id: number;
  readonly pieces: readonly CodePiece[];
}

/** Tokens of a formula, drawn as one element for the first of them. */
interface Formula {
  tex: string;
  token: number;
  lastToken: number;
  /** `true` if its first token is first visible here. */
  first: boolean;
  /** As in a piece. */
  skipped?: number;
}

export type Inline =
  | { kind: 'text'; pieces: readonly Piece[] }
  | { kind: 'emphasis' | 'strong' | 'delete'; children: readonly Inline[] }
  | { kind: 'inlineCode'; pieces: readonly Piece[] }
  | { kind: 'link'; href: string; children: readonly Inline[] }
  /** Alternative text. The image itself is never loaded. */
  | { kind: 'image'; href: string | null; pieces: readonly Piece[] }
  | ({ kind: 'inlineMath'; display: boolean } & Formula)
  | { kind: 'break'; pieces: readonly Piece[] }
  /** HTML in the answer, as written. */
  | { kind: 'html'; pieces: readonly Piece[] };

export interface ListItem {
  /** Null if it is no task. */
  checked: boolean | null;
  children: readonly BlockNode[];
}

export interface CodeNode {
  kind: 'code';
  lang: string | null;
  runs: readonly CodeRun[];
  /** `true` if it is complete. */
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

/** A top-level block. Its id is its offset in the text, and is stable. */
export interface MarkdownBlock {
  readonly id: number;
  readonly node: BlockNode;
}
