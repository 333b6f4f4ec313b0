// A text that is too long for its place, cut with a sign that it goes on.

/** At most so many characters of a text, from its beginning. */
export function shortened(text: string, most: number): string {
  const characters = [...text];
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join('')}…`;
}

/** At most so many characters of a text, from its end. */
export function ending(text: string, most: number): string {
  const characters = [...text];
  return characters.length <= most ? text : `…${characters.slice(1 - most).join('')}`;
}
