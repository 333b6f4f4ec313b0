// Sizes of app.css that floating elements need as numbers.

/** Height of the title bar in pixels: `--titlebar`. Nothing floats over it. */
export const titlebarHeight = 52;

/** Least distance of floating elements to the edges of the window, in pixels. */
export const floatingMargin = 8;
