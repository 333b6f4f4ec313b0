// Keys of an input method.

/** Key code of a key that the input method handles. */
const byInputMethod = 229;

/**
 * `true` if a key belongs to text being composed, such as the Return that confirms it. WebKit ends the composition
 * before that key, so only its code shows it (WebKit bug 165004).
 */
export const isComposing = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === byInputMethod;
