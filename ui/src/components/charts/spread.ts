// Places labels that would overlap: as close to their points as possible, in order.

/** Places for labels at least `apart` from each other, between `from` and `to`. */
export function spread(wanted: readonly number[], apart: number, from: number, to: number): number[] {
  const order = wanted.map((_, i) => i).sort((a, b) => (wanted[a] ?? 0) - (wanted[b] ?? 0));
  const places = [...wanted];
  let next = from;
  for (const i of order) {
    places[i] = Math.max(next, wanted[i] ?? 0);
    next = (places[i] ?? 0) + apart;
  }
  // Labels pushed past the end move back, and push the ones before them.
  let most = to;
  for (const i of order.toReversed()) {
    places[i] = Math.min(most, places[i] ?? 0);
    most = (places[i] ?? 0) - apart;
  }
  return places;
}

/** A label at the end of a line, in pixels. */
export interface Label {
  x: number;
  y: number;
  text: string;
}

const lineHeight = 14;
/** Approximate width of a letter at 12 pixels. */
const letter = 6.8;
/** Space between two labels on one line. */
const gap = 8;

/** Overlap in pixels that is none. Labels one line apart can differ from a line by rounding. */
const tolerance = 0.01;

/** Moves labels down until none overlap, or up at the end of the frame. None leaves the frame. */
export function besideEnds(labels: readonly Label[], frame: { width: number; height: number }): Label[] {
  const [top, bottom] = [lineHeight - 4, frame.height - 4];
  const placed: Label[] = [];
  for (const label of [...labels].sort((a, b) => a.y - b.y)) {
    const long = label.text.length * letter;
    const x = Math.min(label.x, frame.width - long);
    const wanted = Math.min(bottom, Math.max(top, label.y));
    const free = (step: number): number => {
      let y = wanted;
      const over = (other: Label) =>
        Math.abs(other.y - y) < lineHeight - tolerance && other.x < x + long + gap && x < other.x + other.text.length * letter + gap;
      for (let hit = placed.find(over); hit; hit = placed.find(over)) y = hit.y + step;
      return y;
    };
    const below = free(lineHeight);
    placed.push({ x, y: below <= bottom ? below : free(-lineHeight), text: label.text });
  }
  return placed;
}
