// Parses Markdown into the parser's tree. Definitions are off, because they hide text and act across blocks, and so
// are the parser's guesses afterwards.

import type { Root } from 'mdast';
import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmAutolinkLiteralFromMarkdown } from 'mdast-util-gfm-autolink-literal';
import { gfmStrikethroughFromMarkdown } from 'mdast-util-gfm-strikethrough';
import { gfmTableFromMarkdown } from 'mdast-util-gfm-table';
import { gfmTaskListItemFromMarkdown } from 'mdast-util-gfm-task-list-item';
import { gfmAutolinkLiteral } from 'micromark-extension-gfm-autolink-literal';
import { gfmStrikethrough } from 'micromark-extension-gfm-strikethrough';
import { gfmTable } from 'micromark-extension-gfm-table';
import { gfmTaskListItem } from 'micromark-extension-gfm-task-list-item';
import { guarded } from './guard';
import { mathSyntax, mathTree } from './mathSyntax';

const extensions = [
  gfmAutolinkLiteral(),
  gfmStrikethrough({ singleTilde: false }),
  gfmTable(),
  gfmTaskListItem(),
  mathSyntax,
  { disable: { null: ['definition'] } },
];

const mdastExtensions = [
  // Its transform creates nodes without a position in the text.
  { ...gfmAutolinkLiteralFromMarkdown(), transforms: [] },
  gfmStrikethroughFromMarkdown(),
  gfmTableFromMarkdown(),
  gfmTaskListItemFromMarkdown(),
  mathTree,
];

/** Parses a text. Offsets in the tree are offsets in the text; a character may be a placeholder. */
export function parse(text: string): Root {
  return fromMarkdown(guarded(text), { extensions, mdastExtensions });
}
