/** Commits a number being typed in `within`. Fields report changes on blur, which a closing popover prevents. */
export function commitTyping(within: HTMLElement | null): void {
  const field = document.activeElement;
  if (field instanceof HTMLElement && within?.contains(field)) field.blur();
}
