import { describe, expect, it } from 'vitest';
import {
  formatBytes,
  formatBytesUp,
  formatDuration,
  formatParameters,
  formatProbability,
  formatRate,
  formatShare,
  plural,
  visibleText,
} from './format';

describe('format', () => {
  it.each([
    [formatRate(41.23), '41.2'],
    [formatRate(99.96), '100'],
    [formatShare(0.714), '71%'],
    [formatDuration(0.42), '0.4 ms'],
    [formatDuration(312.4), '312 ms'],
    [formatDuration(999.6), '1.0 s'],
    [formatDuration(59_960), '1 min 0 s'],
    [formatDuration(185_400), '3 min 5 s'],
    [formatProbability(1), '1'],
    [formatProbability(0.8124), '.812'],
    [formatProbability(0.0002), '<.001'],
    [formatProbability(0), '.000'],
    [formatBytes(91_700_000), '91.7 MB'],
    [formatBytes(1_117_000_000), '1.1 GB'],
    [formatBytesUp(12_000_000), '12.0 MB'],
    [formatBytesUp(12_000_001), '12.1 MB'],
    [formatBytesUp(999_960_000), '1.0 GB'],
    [formatBytesUp(1_000_000_001), '1.1 GB'],
    [formatBytesUp(1), '1 kB'],
    [formatParameters(134_515_008), '135M'],
    [formatParameters(1_543_714_304), '1.5B'],
    [formatParameters(8_000_000_000), '8B'],
    [plural(1, 'token'), '1 token'],
    [plural(2000, 'token'), '2,000 tokens'],
    [visibleText(' a\n\t'), '·a↵⇥'],
  ])('%s', (given, wanted) => expect(given).toBe(wanted));
});
