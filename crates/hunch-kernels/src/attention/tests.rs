//! Tests of attention on the CPU against softmax in f64.

use super::*;

/// Returns numbers from -2 to 2, the same for a seed.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
}

fn run(
    shape: AttentionShape,
    q: &[f32],
    k: CacheValues<'_>,
    v: CacheValues<'_>,
    mask: &RowMask,
    (level, threads): (Level, usize),
) -> Vec<f32> {
    let mut out = vec![0.0; q.len()];
    let input = AttentionInput { q, k, v, sinks: None };
    let threads = Threads::new(threads).unwrap();
    let visible = VisibleSlots::new(mask);
    Attention::at_level(level).attend(&threads, shape, input, &visible, &mut out);
    out
}

#[test]
fn single_key_returns_its_value() {
    let shape = AttentionShape {
        n_head: 2,
        n_kv_head: 1,
        head_dim: 4,
        capacity: 3,
        scale: 0.5,
        softcap: None,
        window: None,
    };
    let (k, v) = (vec![0.3; 12], (0..12).map(|i| i as f32).collect::<Vec<_>>());
    let values = (CacheValues::F32(&k), CacheValues::F32(&v));
    let out = run(shape, &[1.0; 8], values.0, values.1, &RowMask::causal(0, 1), (Level::current(), 1));
    assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn sinks_take_their_share_of_the_weights() {
    let shape = AttentionShape {
        n_head: 3,
        n_kv_head: 1,
        head_dim: 4,
        capacity: 300,
        scale: 1.0,
        softcap: None,
        window: None,
    };
    // All scores are 0 and all values are 1, so a head returns the weight that is left for its keys.
    let (q, k, v) = (vec![0.0; 12], vec![0.0; 1200], vec![1.0; 1200]);
    let sinks = [0.0, 50.0, -50.0];
    for keys in [1, 200, 300] {
        let mut out = vec![0.0; 12];
        let (k, v) = (CacheValues::F32(&k), CacheValues::F32(&v));
        let input = AttentionInput { q: &q, k, v, sinks: Some(&sinks) };
        let visible = VisibleSlots::new(&RowMask::causal(keys - 1, 1));
        Attention::default().attend(&Threads::new(2).unwrap(), shape, input, &visible, &mut out);
        let share = keys as f32 / (keys as f32 + 1.0);
        for (head, expected) in [share, 0.0, 1.0].into_iter().enumerate() {
            assert!(out[4 * head..][..4].iter().all(|value| (value - expected).abs() < 1e-5), "{out:?}");
        }
    }
}

/// Contexts are shorter and longer than tiles and spans, and scores are far apart.
#[test]
fn matches_f64_softmax_and_is_row_invariant() {
    let (n_head, n_kv_head, d, rows) = (4, 2, 216 + 3, 3);
    let levels = Level::ALL.iter().copied().filter(|level| level.available());
    let bases = [0, 1, 62, 63, 64, 127, 128, 300];
    let limits = [
        (None, None),
        (Some(5.0), Some(LayerWindow::Last(40))),
        (None, Some(LayerWindow::Last(1))),
        (None, Some(LayerWindow::Last(200))),
        (None, Some(LayerWindow::Chunk(64))),
        (None, Some(LayerWindow::Chunk(150))),
    ];
    let cases = levels.flat_map(|level| bases.map(|base| (level, base)));
    for (level, base, (softcap, window)) in
        cases.flat_map(|(level, base)| limits.map(|limits| (level, base, limits)))
    {
        let capacity = base + rows + 2;
        let shape = AttentionShape { n_head, n_kv_head, head_dim: d, capacity, scale: 0.7, softcap, window };
        let q = noise(rows * n_head * d, 1);
        let (k, v) = (noise(n_kv_head * capacity * d, 2), noise(n_kv_head * capacity * d, 3));
        let (keys, values) = (CacheValues::F32(&k), CacheValues::F32(&v));
        let out = run(shape, &q, keys, values, &RowMask::causal(base, rows), (level, 2));
        for row in 0..rows {
            let alone = &q[row * n_head * d..(row + 1) * n_head * d];
            let alone = run(shape, alone, keys, values, &RowMask::causal(base + row, 1), (level, 1));
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&alone), bits(&out[row * n_head * d..(row + 1) * n_head * d]));
            for head in 0..n_head {
                let at = (row * n_head + head) * d;
                let first = head / 2 * capacity * d;
                let key = |slot: usize| &k[first + slot * d..][..d];
                let score = |slot: usize| {
                    let dot: f64 =
                        q[at..at + d].iter().zip(key(slot)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    softcap.map_or(dot * 0.7, |cap| f64::from(cap) * (dot * 0.7 / f64::from(cap)).tanh())
                };
                let end = base + row + 1;
                let start = match window {
                    None => 0,
                    Some(LayerWindow::Last(positions)) => end.saturating_sub(positions),
                    Some(LayerWindow::Chunk(positions)) => (end - 1) / positions * positions,
                };
                let scores: Vec<f64> = (start..end).map(score).collect();
                let max = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for i in 0..d {
                    let exact: f64 = scores
                        .iter()
                        .enumerate()
                        .map(|(nth, s)| (nth + start, s))
                        .map(|(slot, s)| (s - max).exp() * f64::from(v[first + slot * d + i]) / total)
                        .sum();
                    let error = (f64::from(out[at + i]) - exact).abs();
                    assert!(error < 2e-4, "{level:?}, base {base}: off by {error}");
                }
            }
        }
    }
}

#[test]
fn halves_give_the_bits_of_the_same_numbers_as_floats() {
    let (n_head, n_kv_head, rows) = (6, 2, 3);
    let levels = Level::ALL.iter().copied().filter(|level| level.available());
    for (level, d) in levels.flat_map(|level| [64, 83, 128].map(|d| (level, d))) {
        let capacity = 200;
        let (softcap, window) = (Some(3.0), Some(LayerWindow::Last(150)));
        let shape = AttentionShape { n_head, n_kv_head, head_dim: d, capacity, scale: 0.2, softcap, window };
        let q = noise(rows * n_head * d, 1);
        let halves =
            |seed| noise(n_kv_head * capacity * d, seed).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let floats = |halves: &[f16]| halves.iter().map(|half| half.to_f32()).collect::<Vec<_>>();
        let (k, v) = (halves(2), halves(3));
        let (k_floats, v_floats) = (floats(&k), floats(&v));
        let mask = RowMask::causal(capacity - rows, rows);
        let (k, v) = (CacheValues::F16(&k), CacheValues::F16(&v));
        let short = run(shape, &q, k, v, &mask, (level, 2));
        let (k, v) = (CacheValues::F32(&k_floats), CacheValues::F32(&v_floats));
        let long = run(shape, &q, k, v, &mask, (level, 2));
        assert!(short.iter().zip(&long).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?}, head {d}");
    }
}

/// Attention of a row in f64 over the slots that it sees.
fn in_f64(shape: AttentionShape, q: &[f32], (k, v): (&[f32], &[f32]), slots: &[usize]) -> Vec<f64> {
    let AttentionShape { n_head, n_kv_head, head_dim: d, capacity, scale, .. } = shape;
    let of_head = |head: usize| {
        let first = head / (n_head / n_kv_head) * capacity * d;
        let score = |&slot: &usize| {
            let pairs = q[head * d..][..d].iter().zip(&k[first + slot * d..]);
            f64::from(scale) * pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        let scores: Vec<f64> = slots.iter().map(score).collect();
        let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        (0..d)
            .map(move |i| {
                let value = |slot: usize| f64::from(v[first + slot * d + i]);
                slots.iter().zip(&scores).map(|(&slot, s)| (s - top).exp() * value(slot)).sum::<f64>() / total
            })
            .collect::<Vec<f64>>()
    };
    (0..n_head).flat_map(of_head).collect()
}

/// Windows with first positions, for chains and trees of 1 to 16 rows. They end within a tile, at the end of a tile and
/// of a span, and before the context begins. Positions that no row sees are not read: they hold no numbers.
#[test]
fn first_and_last_positions_match_f64_for_every_number_of_rows() {
    let (n_head, n_kv_head, d) = (4, 2, 24);
    let windows = [(4, 1), (4, 20), (4, 32), (0, 100), (4, 128), (40, 150), (130, 60), (4, 1000)];
    let levels = Level::ALL.iter().copied().filter(|level| level.available());
    let cases = levels.flat_map(|level| [0, 3, 31, 126, 300].map(|base| (level, base)));
    for ((level, base), rows) in cases.flat_map(|case| (1..=16).map(move |rows| (case, rows))) {
        let capacity = base + rows + 2;
        let shape = AttentionShape {
            n_head,
            n_kv_head,
            head_dim: d,
            capacity,
            scale: 0.4,
            softcap: None,
            window: None,
        };
        let q = noise(rows * n_head * d, 1);
        let (k, v) = (noise(n_kv_head * capacity * d, 2), noise(n_kv_head * capacity * d, 3));
        let parents: Vec<Option<usize>> = (0..rows).map(|row| row.checked_sub(1).map(|r| r / 2)).collect();
        for (leading, recent) in windows {
            let window = Some(Window { leading, recent });
            for mask in [RowMask::causal(base, rows), RowMask::tree(base, &parents).unwrap()] {
                let mask = mask.with_window(window);
                let seen: Vec<Vec<usize>> = (0..rows)
                    .map(|row| {
                        let slots: Vec<usize> = mask.visible(row).collect();
                        let from = slots.len().saturating_sub(recent);
                        let see = |at: &usize| *at < leading || *at >= from;
                        (0..slots.len()).filter(see).map(|at| slots[at]).collect()
                    })
                    .collect();
                let (mut k, mut v) = (k.clone(), v.clone());
                for slot in (0..capacity).filter(|slot| !seen.iter().any(|seen| seen.contains(slot))) {
                    for at in (0..n_kv_head)
                        .flat_map(|head| (head * capacity + slot) * d..(head * capacity + slot + 1) * d)
                    {
                        (k[at], v[at]) = (f32::NAN, f32::NAN);
                    }
                }
                let (keys, values) = (CacheValues::F32(&k), CacheValues::F32(&v));
                let out = run(shape, &q, keys, values, &mask, (level, 2));
                let width = n_head * d;
                for (row, seen) in seen.iter().enumerate() {
                    let (q, out) = (&q[row * width..][..width], &out[row * width..][..width]);
                    let exact = in_f64(shape, q, (&k, &v), seen);
                    let what = format!("{level:?}, base {base}, row {row} of {rows}, {window:?}");
                    let near = out.iter().zip(&exact).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4);
                    assert!(near, "{what}: {out:?} is not {exact:?}");
                    // The row alone, after the slots of the others.
                    let depth = mask.positions().nth(row).unwrap() - base;
                    let bits = mask.visible_tail(row).fold(0, |bits, slot| bits | 1 << (slot - base));
                    let alone =
                        RowMask::custom(base + row, base, &[depth], &[bits]).unwrap().with_window(window);
                    let alone = run(shape, q, keys, values, &alone, (level, 1));
                    assert!(alone.iter().zip(out).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: alone");
                }
            }
        }
    }
}

/// Rows of a block see later ones, and a window ends at their own. Slots that no row sees hold no numbers. A row has the
/// same bits in a block that is cut off after the last row that it sees.
#[test]
fn windows_of_a_block_match_f64() {
    let (n_head, n_kv_head, d, rows) = (4, 2, 24, 16);
    let levels = Level::ALL.iter().copied().filter(|level| level.available());
    let cases = levels.flat_map(|level| [0, 5, 31, 126, 300].map(|base| (level, base)));
    for ((level, base), window) in
        cases.flat_map(|case| [1, 6, 16, 40, 150, 1000].map(|window| (case, window)))
    {
        let capacity = base + rows + 2;
        let shape = AttentionShape {
            n_head,
            n_kv_head,
            head_dim: d,
            capacity,
            scale: 0.4,
            softcap: None,
            window: Some(LayerWindow::Last(window)),
        };
        let (q, width) = (noise(rows * n_head * d, 1), n_head * d);
        for ahead in [0, 2, window - 1, usize::MAX] {
            let (mut k, mut v) = (noise(n_kv_head * capacity * d, 2), noise(n_kv_head * capacity * d, 3));
            let seen = |row: usize| -> Vec<usize> {
                let own = base + row;
                let last = (base + rows - 1).min(own.saturating_add(ahead));
                ((own + 1).saturating_sub(window)..=last).collect()
            };
            for slot in (0..capacity).filter(|slot| !(0..rows).any(|row| seen(row).contains(slot))) {
                for at in (0..n_kv_head)
                    .flat_map(|head| (head * capacity + slot) * d..(head * capacity + slot + 1) * d)
                {
                    (k[at], v[at]) = (f32::NAN, f32::NAN);
                }
            }
            let (keys, values) = (CacheValues::F32(&k), CacheValues::F32(&v));
            let block = |rows| RowMask::block(base, rows, ahead).unwrap();
            let out = run(shape, &q, keys, values, &block(rows), (level, 2));
            for row in 0..rows {
                let seen = seen(row);
                let exact = in_f64(shape, &q[row * width..][..width], (&k, &v), &seen);
                let what = format!("{level:?}, base {base}, row {row}, window {window}, {ahead} ahead");
                let own = &out[row * width..][..width];
                let near = own.iter().zip(&exact).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4);
                assert!(near, "{what}: {own:?} is not {exact:?}");
                let shorter = seen.last().unwrap() + 1 - base;
                let cut = run(shape, &q[..shorter * width], keys, values, &block(shorter), (level, 1));
                let same =
                    cut[row * width..][..width].iter().zip(own).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{what}: in a block of {shorter} rows");
            }
        }
    }
}

/// A layer's own window and that of a pass.
#[test]
fn window_of_a_pass_narrows_that_of_a_layer() {
    let (d, capacity) = (8, 200);
    let mut shape = AttentionShape {
        n_head: 1,
        n_kv_head: 1,
        head_dim: d,
        capacity,
        scale: 0.0,
        softcap: None,
        window: None,
    };
    // All scores are equal, and the value of a position is its number, so the result is the mean of what is seen.
    let (q, k) = (vec![1.0; d], vec![0.0; capacity * d]);
    let v: Vec<f32> = (0..capacity * d).map(|i| (i / d) as f32).collect();
    let mut assert_mean = |own: Option<LayerWindow>, window: Option<Window>, expected: f32| {
        shape.window = own;
        let mask = RowMask::causal(199, 1).with_window(window);
        let (k, v) = (CacheValues::F32(&k), CacheValues::F32(&v));
        let mean = run(shape, &q, k, v, &mask, (Level::current(), 1))[0];
        assert!((mean - expected).abs() < 1e-3, "{own:?}, {window:?}: {mean}");
    };
    let window = |recent| Some(Window { leading: 4, recent });
    assert_mean(Some(LayerWindow::Last(50)), None, 174.5);
    assert_mean(Some(LayerWindow::Last(50)), window(10), 194.5);
    assert_mean(Some(LayerWindow::Last(50)), window(100), 174.5);
    // The chunk begins at 190. A row in the first chunk sees first positions.
    assert_mean(Some(LayerWindow::Chunk(95)), window(100), 194.5);
    assert_mean(Some(LayerWindow::Chunk(200)), window(4), 99.5);
    // 0 to 3, and 196 to 199.
    assert_mean(None, window(4), 99.5);
}
