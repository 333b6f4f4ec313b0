// Contrast of text on screen, computed as WCAG 2 defines it.

import type { Page } from 'playwright-core';

/** Visible text below the contrast that WCAG AA requires, without disabled controls. */
export async function faintText(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    if (!context) return ['no canvas'];
    const luminance = ([r, g, b]: number[]) =>
      [r, g, b]
        .map((channel = 0) => channel / 255)
        .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4))
        .reduce((sum, channel, index) => sum + channel * [0.2126, 0.7152, 0.0722][index]!, 0);
    const paint = (colours: string[]) => {
      context.fillStyle = 'white';
      context.fillRect(0, 0, 1, 1);
      for (const colour of colours) {
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
      }
      return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const faint: string[] = [];
    for (const element of document.querySelectorAll<HTMLElement>('body *')) {
      const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.textContent?.trim());
      if (own.length === 0 || element.closest(':disabled, [data-disabled], .screen-reader-only, s')) continue;
      if (!element.checkVisibility({ opacityProperty: true })) continue;
      const chain: Element[] = [];
      for (let at: Element | null = element; at; at = at.parentElement) chain.unshift(at);
      const behind = chain.map((at) => getComputedStyle(at).backgroundColor);
      const back = luminance(paint(behind));
      const front = luminance(paint([...behind, getComputedStyle(element).color]));
      const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
      if (ratio < 4.5) faint.push(`${own[0]?.textContent?.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return faint;
  });
}
