// Markdown text to the parser's tree: which syntax counts, and which does not. Definitions do not (they
// would make text vanish and reach across blocks), nor what the parser would guess after the fact.

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
  // Its transform makes nodes that have no place in the text.
  { ...gfmAutolinkLiteralFromMarkdown(), transforms: [] },
  gfmStrikethroughFromMarkdown(),
  gfmTableFromMarkdown(),
  gfmTaskListItemFromMarkdown(),
  mathTree,
];

/** The tree of a text. Places in it are places in the text; a character may be a placeholder. */
export function parse(text: string): Root {
  return fromMarkdown(guarded(text), { extensions, mdastExtensions });
}
