// Formulas as Markdown syntax: $$ $$ and \[ \] as blocks and inline, \( \) and a careful $ $ inline. A micromark
// extension with its mdast side. Nothing here draws or evaluates a formula.

import type { Extension as TreeExtension } from 'mdast-util-from-markdown';
import { asciiAlphanumeric, markdownLineEnding, markdownLineEndingOrSpace, markdownSpace } from 'micromark-util-character';
import type { Code, Construct, Extension, State, TokenizeContext, Tokenizer, TokenType } from 'micromark-util-types';

/** A formula in the parser's tree. Its value includes the delimiters. */
export interface MathNode {
  type: 'displayMath' | 'inlineMath';
  value: string;
}

/** Longest formula. An unclosed delimiter is searched no further. */
const longest = 4000;
const longestSingle = 400;

const dollar = 36;
const backslash = 92;
const bracket = { open: 91, close: 93 };
const parenthesis = { open: 40, close: 41 };
const backtick = 96;
const tilde = 126;

const tokenType = (name: string) => name as TokenType;
const block = tokenType('displayMath');
const inText = tokenType('inlineMath');
const content = tokenType('mathContent');

/** Characters that make `5 $ …` a formula and not a price: `$5 and 6$` has none. */
const formulaSigns = new Set([...'\\^_=+*/<>{}|'].map((sign) => sign.charCodeAt(0)));
const digits = { first: 48, last: 57 };

const nextLine: Construct = {
  partial: true,
  tokenize(this: TokenizeContext, effects, ok, nok) {
    return (code) => {
      if (!markdownLineEnding(code)) return nok(code);
      effects.enter('lineEnding');
      effects.consume(code);
      effects.exit('lineEnding');
      return (next) => (this.parser.lazy[this.now().line] ? nok(next) : ok(next));
    };
  },
};

/** A block from a line that starts with `$$` or `\[` to one that ends with its counterpart, without blank lines. */
const tokenizeBlock: Tokenizer = function (this: TokenizeContext, effects, ok, nok) {
  const interrupting = this.interrupt;
  let dollars = false;
  let size = 0;
  let blank = false;
  let tildes = 0;
  let seen = false;

  const start: State = (code) => {
    dollars = code === dollar;
    effects.enter(block);
    effects.enter(content);
    effects.consume(code);
    return open;
  };
  const open: State = (code) => {
    if (code !== (dollars ? dollar : bracket.open)) return nok(code);
    effects.consume(code);
    return afterOpen;
  };
  const afterOpen: State = (code) => (dollars && code === dollar ? nok(code) : data(code));
  const data: State = (code) => {
    if (code === null || code === backtick || ++size > longest) return nok(code);
    if (markdownLineEnding(code)) {
      if (blank) return nok(code);
      // Only later lines show if it is closed. It may still interrupt a paragraph.
      if (interrupting) return done(code);
      effects.exit(content);
      return effects.attempt(nextLine, lineStart, nok)(code);
    }
    tildes = code === tilde ? tildes + 1 : 0;
    if (tildes === 3) return nok(code);
    if (!markdownSpace(code)) blank = false;
    const last = code;
    effects.consume(code);
    if (last === (dollars ? dollar : backslash)) return maybeClose;
    if (dollars && last === backslash) return escaped;
    if (!markdownSpace(last)) seen = true;
    return data;
  };
  const escaped: State = (code) => {
    if (code === null || markdownLineEnding(code)) return data(code);
    effects.consume(code);
    seen = true;
    return data;
  };
  const lineStart: State = (code) => {
    effects.enter(content);
    blank = true;
    return data(code);
  };
  const maybeClose: State = (code) => {
    if (code === (dollars ? dollar : bracket.close)) {
      if (!seen) return nok(code);
      effects.consume(code);
      return after;
    }
    return dollars ? data(code) : escaped(code);
  };
  const after: State = (code) => {
    if (markdownSpace(code)) {
      effects.consume(code);
      return after;
    }
    return code === null || markdownLineEnding(code) ? done(code) : nok(code);
  };
  const done: State = (code) => {
    effects.exit(content);
    effects.exit(block);
    return ok(code);
  };
  return start;
};

const tokenizeText: Tokenizer = function (this: TokenizeContext, effects, ok, nok) {
  let close: number = dollar;
  let dollars = 0;
  let size = 0;
  let last: Code = null;
  let startsWithDigit = false;
  let spaces = false;
  let signs = false;

  const start: State = (code) => {
    effects.enter(inText);
    effects.enter(content);
    effects.consume(code);
    if (code === dollar) {
      dollars = 1;
      return afterDollar;
    }
    return afterBackslash;
  };
  const afterBackslash: State = (code) => {
    if (code !== parenthesis.open && code !== bracket.open) return nok(code);
    close = code === parenthesis.open ? parenthesis.close : bracket.close;
    effects.consume(code);
    return data;
  };
  const afterDollar: State = (code) => {
    if (code === dollar) {
      if (dollars === 2) return nok(code);
      dollars += 1;
      effects.consume(code);
      return afterDollar;
    }
    if (dollars === 1 && (code === null || markdownLineEndingOrSpace(code))) return nok(code);
    startsWithDigit = code !== null && code >= digits.first && code <= digits.last;
    return data(code);
  };
  const data: State = (code) => {
    if (code === null || code === backtick || ++size > (dollars === 1 ? longestSingle : longest)) return nok(code);
    if (markdownLineEnding(code)) {
      if (dollars === 1) return nok(code);
      effects.exit(content);
      effects.enter('lineEnding');
      effects.consume(code);
      effects.exit('lineEnding');
      effects.enter(content);
      return data;
    }
    if (code === dollar && dollars > 0) {
      effects.consume(code);
      return dollars === 1 ? afterSingle : maybeClose;
    }
    if (code === backslash) {
      signs = true;
      effects.consume(code);
      last = code;
      return dollars > 0 ? escaped : maybeClose;
    }
    spaces ||= markdownSpace(code);
    signs ||= formulaSigns.has(code);
    last = code;
    effects.consume(code);
    return data;
  };
  const escaped: State = (code) => {
    if (code === null || markdownLineEnding(code)) return data(code);
    last = code;
    effects.consume(code);
    return data;
  };
  const maybeClose: State = (code) => {
    if (code !== close) return dollars > 0 ? data(code) : escaped(code);
    if (last === null) return nok(code);
    effects.consume(code);
    return done;
  };
  const afterSingle: State = (code) => {
    const wordGoesOn = code !== null && (asciiAlphanumeric(code) || code === dollar);
    const price = startsWithDigit && spaces && !signs;
    if (markdownLineEndingOrSpace(last) || wordGoesOn || price) return nok(code);
    return done(code);
  };
  const done: State = (code) => {
    effects.exit(content);
    effects.exit(inText);
    return ok(code);
  };
  return start;
};

const blockConstruct: Construct = { name: 'displayMath', tokenize: tokenizeBlock, concrete: true };
const textConstruct: Construct = { name: 'inlineMath', tokenize: tokenizeText, previous: (code) => code !== dollar };

/** The micromark extension. */
export const mathSyntax: Extension = {
  flow: { [dollar]: blockConstruct, [backslash]: blockConstruct },
  text: { [dollar]: textConstruct, [backslash]: textConstruct },
};

/** The mdast extension. */
export const mathTree: TreeExtension = {
  enter: Object.fromEntries(
    (['displayMath', 'inlineMath'] as const).map((type) => [
      type,
      function (token) {
        this.enter({ type, value: '' } satisfies MathNode as never, token);
      },
    ]),
  ) as TreeExtension['enter'],
  exit: Object.fromEntries(
    (['displayMath', 'inlineMath'] as const).map((type) => [
      type,
      function (token) {
        (this.stack.at(-1) as unknown as MathNode).value = this.sliceSerialize(token);
        this.exit(token);
      },
    ]),
  ) as TreeExtension['exit'],
};
