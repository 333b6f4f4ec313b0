// Paths of files and folders, of any system.

/** Folders of a path, then its name. */
export const partsOf = (path: string): string[] => path.split(/[\\/]/).filter((part) => part !== '');

/** Name of a file or folder, without the folders that it is in. */
export const nameOf = (path: string): string => partsOf(path).at(-1) ?? path;
