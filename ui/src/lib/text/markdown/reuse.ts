// Reuses unchanged parts: a new tree takes over the equal parts of the old one.

/** Returns `fresh` with every part that equals its counterpart in `old` replaced by it. Changes `fresh`. */
export function reuse<T>(old: unknown, fresh: T): T {
  if (old === fresh || typeof fresh !== 'object' || fresh === null || typeof old !== 'object' || old === null) return fresh;
  if (Array.isArray(old) !== Array.isArray(fresh)) return fresh;
  const before = old as Record<string, unknown>;
  const after = fresh as Record<string, unknown>;
  const keys = Object.keys(after);
  let same = keys.length === Object.keys(before).length;
  for (const key of keys) {
    after[key] = reuse(before[key], after[key]);
    if (after[key] !== before[key]) same = false;
  }
  return same ? (old as T) : fresh;
}
