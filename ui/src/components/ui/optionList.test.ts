import { describe, expect, it, vi } from 'vitest';
import { fieldAttributes, onListKey, type OptionList } from './optionList';

const press = (key: string, list: OptionList, inField = false, modifiers: Partial<KeyboardEvent> = {}) => {
  const event = { key, preventDefault: vi.fn(), ...modifiers } as unknown as KeyboardEvent;
  const used = onListKey(event, list, inField);
  expect(event.preventDefault).toHaveBeenCalledTimes(used ? 1 : 0);
  return used;
};

/** Index that a key selects; null when the key is not used. */
function moved(key: string, list: Partial<OptionList>, inField = false): number | null {
  let to = list.at ?? 0;
  const used = press(key, { id: 'list', count: 20, at: 0, select: (at) => (to = at), ...list }, inField);
  return used ? to : null;
}

describe('the keys of a list', () => {
  it('move by one, by a page, and to the ends', () => {
    expect(moved('ArrowDown', { at: 3 })).toBe(4);
    expect(moved('ArrowUp', { at: 3 })).toBe(2);
    expect(moved('PageDown', { at: 3 })).toBe(11);
    expect(moved('End', { at: 3 })).toBe(19);
    expect(moved('Home', { at: 3 })).toBe(0);
  });

  it('stop at the ends of a list and wrap around in a menu', () => {
    expect(moved('ArrowDown', { at: 19 })).toBe(19);
    expect(moved('ArrowDown', { at: 19, menu: true })).toBe(0);
    expect(moved('ArrowUp', { at: 0, menu: true })).toBe(19);
    expect(moved('PageDown', { at: 15, menu: true })).toBe(19);
  });

  it('select the first option when none is selected', () => {
    expect(moved('ArrowDown', { at: -1 })).toBe(0);
    expect(moved('ArrowUp', { at: -1 })).toBe(0);
  });

  it('select nothing in an empty list', () => {
    expect(moved('ArrowDown', { count: 0, at: -1 })).toBe(-1);
  });

  it('leave left and right alone unless options stand side by side', () => {
    expect(moved('ArrowRight', {})).toBeNull();
    expect(moved('ArrowRight', { horizontal: true })).toBe(1);
  });

  it('leave the caret and the text to a field', () => {
    for (const key of ['Home', 'End', 'Delete', 'Backspace', ' ']) {
      expect(moved(key, { menu: true, choose: () => {}, remove: () => {} }, true)).toBeNull();
    }
  });

  it('choose with Return, and with Space in a menu', () => {
    const choose = vi.fn();
    const list = { id: 'list', count: 2, at: 1, select: () => {}, choose };
    expect(press('Enter', list)).toBe(true);
    expect(press(' ', list)).toBe(false);
    expect(press(' ', { ...list, menu: true })).toBe(true);
    expect(choose.mock.calls).toEqual([[1], [1]]);
  });

  it('are left alone with a modifier or while text is composed', () => {
    const list = { id: 'list', count: 2, at: 0, select: () => {} };
    for (const modifier of ['metaKey', 'ctrlKey', 'altKey', 'isComposing']) {
      expect(press('ArrowDown', list, false, { [modifier]: true })).toBe(false);
    }
    // WebKit marks the Return that confirms a composition only by this code.
    expect(press('Enter', { ...list, choose: () => {} }, true, { keyCode: 229 })).toBe(false);
  });
});

describe('a field that searches a list', () => {
  it('names the selected option while the list is shown', () => {
    const list = { id: 'list', count: 2, at: 1, select: () => {} };
    expect(fieldAttributes(list)).toMatchObject({ 'aria-controls': 'list', 'aria-activedescendant': 'list-1' });
    expect(fieldAttributes(list, false)).toMatchObject({ 'aria-expanded': false, 'aria-activedescendant': undefined });
    expect(fieldAttributes({ ...list, count: 0 })['aria-activedescendant']).toBeUndefined();
  });
});
