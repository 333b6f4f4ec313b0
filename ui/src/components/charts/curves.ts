// What the curves of a comparison go by: the engine's own timelines, and where their labels stand.

/** Milliseconds and the tokens there were by then. */
export type TimePoint = readonly [number, number];

/** How many rounds a speed is taken over: one round alone gives one token or five. */
const over = 6;

/**
 * Tokens a second along a timeline, each over the last few rounds. No figure of its own: it is the slope of what
 * the engine measured, drawn as a curve.
 */
export function slopes(timeline: readonly TimePoint[]): TimePoint[] {
  return timeline.flatMap(([at, tokens], i): TimePoint[] => {
    const before = timeline[Math.max(0, i - over)];
    if (i < 2 || !before || at <= before[0]) return [];
    return [[at, (1000 * (tokens - before[1])) / (at - before[0])]];
  });
}

/** A label beside the end of a line, in pixels. */
export interface Label {
  x: number;
  y: number;
  text: string;
}

const lineHeight = 14;
/** About the width of a letter at 12 pixels. */
const letter = 6.8;
/** Room between two labels on one line. */
const gap = 8;

/** Moves labels down until none lies over another; none leaves the frame on the right. */
export function apart(labels: readonly Label[], width: number): Label[] {
  const placed: Label[] = [];
  for (const label of [...labels].sort((a, b) => a.y - b.y)) {
    const long = label.text.length * letter;
    const x = Math.min(label.x, width - long);
    let y = label.y;
    const over = (other: Label) =>
      Math.abs(other.y - y) < lineHeight && other.x < x + long + gap && x < other.x + other.text.length * letter + gap;
    for (let hit = placed.find(over); hit; hit = placed.find(over)) y = hit.y + lineHeight;
    placed.push({ ...label, x, y });
  }
  return placed;
}
