// A text file of the next question: its size, the name it is shown and sent under, and its stored form. No DOM.

import type { Attachment, ReadAttachment } from '../ipc/schema.gen';
import { partsOf } from '../paths';

/** A file of the next question. */
export interface AttachedFile extends ReadAttachment {
  /** Its path when it was read; null if unknown. */
  readonly path: string | null;
  /** File of the model that counted its tokens; null if none did. */
  readonly countedBy: string | null;
}

/** A stored file. Its tokens are counted again. */
export interface KeptFile {
  readonly name: string;
  readonly text: string;
  readonly path: string | null;
}

/** Size of a file's text, in bytes. */
export const bytesOf = ({ text }: Attachment): number => new TextEncoder().encode(text).length;

/** Folders and name of a file, as far as known. */
const placeOf = ({ path, attachment }: AttachedFile): string[] => (path === null ? [attachment.name] : partsOf(path));

/** Shortest name of a file that no other has: its own, else with as many folders as needed. */
export function shownName(file: AttachedFile, files: readonly AttachedFile[]): string {
  const { name } = file.attachment;
  const parts = placeOf(file);
  const rivals = files
    .filter((other) => other !== file && other.attachment.name === name)
    .map(placeOf)
    // The same file is no rival: no folder differs.
    .filter((other) => other.join('/') !== parts.join('/'));
  const end = (of: readonly string[], depth: number) => of.slice(-depth).join('/');
  for (let depth = 1; depth < parts.length; depth += 1)
    if (rivals.every((other) => end(other, depth) !== end(parts, depth))) return end(parts, depth);
  return end(parts, parts.length);
}

/** Names of sent files. Equal names are numbered. */
export function sentNames(files: readonly Attachment[]): string[] {
  return files.map(({ name }, at) => {
    const same = files.filter((other) => other.name === name).length;
    const before = files.slice(0, at).filter((other) => other.name === name).length;
    return same > 1 ? `${name} (${before + 1})` : name;
  });
}

/** The stored form of a file. */
export const toKept = ({ attachment: { name, text }, path }: AttachedFile): KeptFile => ({ name, text, path });

/** The file of a stored form. */
export const ofKept = ({ name, text, path }: KeptFile): AttachedFile => ({
  attachment: { name, text },
  tokens: null,
  path,
  countedBy: null,
});
