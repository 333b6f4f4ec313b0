/** Commits a number being typed in `within`. Fields report changes on blur, and closing a popover removes them before that. */
export function commitTyping(within: HTMLElement | null): void {
  const field = document.activeElement;
  if (field instanceof HTMLElement && within?.contains(field)) field.blur();
}
