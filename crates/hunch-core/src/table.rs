//! A toy model whose distributions are known exactly, for tests and the lab.
//!
//! The logits are a seeded hash of the last few tokens, so the output of the round loop can be compared
//! with the exact distribution. There are no weights.
//!
//! The cache behaves like a real one. Each row stores its token and position, and a row's logits depend
//! only on the rows it may see and on their distances. A wrong position, mask or kept row therefore
//! changes the logits, as in a transformer.

use crate::error::{Error, Result};
use crate::model::{
    LanguageModel, LayerPlan, LogitRows, ModelInfo, ModelMemory, PassInput, PassOutput, RowLayout, Rows,
};
use crate::token::TokenId;

/// Parameters of a [`TableModel`].
#[derive(Clone, Debug, PartialEq)]
pub struct TableConfig {
    /// Seed of the logits. Models with equal seeds have equal distributions.
    pub seed: u64,
    /// Vocabulary size, at least 1.
    pub n_vocab: usize,
    /// Number of last tokens the distribution depends on.
    pub order: usize,
    /// Maximum sequence length, in tokens.
    pub context_length: usize,
    /// Number of layers. Each adds its part to the logits.
    pub n_layer: usize,
    /// Standard deviation of the logits: 0 is uniform, 4 nearly deterministic.
    pub sharpness: f32,
    /// Standard deviation of noise added to the logits, to make a worse draft of the same distribution.
    pub noise: f32,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self { seed: 0, n_vocab: 16, order: 2, context_length: 512, n_layer: 4, sharpness: 1.5, noise: 0.0 }
    }
}

/// A cache row, as visible to later rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheRow {
    token: TokenId,
    position: usize,
}

/// A language model with exactly known distributions.
///
/// Its residual stream is the logits themselves (`n_embd == n_vocab`) and each layer adds its part. An
/// early exit or a skipped layer thus gives a nearby distribution, and a tap the partial sum.
#[derive(Clone, Debug)]
pub struct TableModel {
    config: TableConfig,
    info: ModelInfo,
    cache: Vec<CacheRow>,
}

impl TableModel {
    /// Creates a model with an empty cache.
    ///
    /// # Panics
    /// If the vocabulary, context or layer count is 0.
    pub fn new(config: TableConfig) -> Self {
        let TableConfig { n_vocab, context_length, n_layer, .. } = config;
        assert!(
            n_vocab > 0 && context_length > 0 && n_layer > 0,
            "the vocabulary, context and layer count must be positive"
        );
        let info = ModelInfo {
            name: format!("table-{}", config.seed),
            architecture: "table".into(),
            n_layer,
            n_embd: n_vocab,
            n_vocab,
            context_length,
        };
        Self { config, info, cache: Vec::new() }
    }

    /// Returns the exact logits of all layers after `context`, independent of the cache.
    pub fn logits_after(&self, context: &[TokenId]) -> Vec<f32> {
        let rows: Vec<CacheRow> =
            context.iter().enumerate().map(|(position, &token)| CacheRow { token, position }).collect();
        self.streams(&rows, LayerPlan::All).pop().expect("a model has a layer")
    }

    /// Returns the residual stream after each layer for the last row of `seen`.
    ///
    /// `seen` holds the rows visible to it by position, itself last.
    fn streams(&self, seen: &[CacheRow], plan: LayerPlan<'_>) -> Vec<Vec<f32>> {
        let own = seen.last().map_or(0, |row| row.position);
        let recent = &seen[seen.len().saturating_sub(self.config.order)..];
        let state = recent.iter().fold(mix(self.config.seed), |state, row| {
            mix(state ^ mix((u64::from(row.token) << 32) | (own - row.position) as u64))
        });
        // The variances of independent layers add up to sharpness squared.
        let scale = self.config.sharpness / (self.config.n_layer as f32).sqrt();
        let mut stream = vec![0.0; self.config.n_vocab];
        let mut streams = Vec::with_capacity(self.config.n_layer);
        for layer in 0..self.config.n_layer {
            let runs = match plan {
                LayerPlan::All => true,
                LayerPlan::Exit(n) => layer < n,
                LayerPlan::Skip(skipped) => !skipped.contains(&layer),
            };
            if runs {
                for (token, value) in stream.iter_mut().enumerate() {
                    *value += scale * gaussian(state, layer as u64, token as u64);
                }
            }
            if runs && layer == 0 && self.config.noise > 0.0 {
                for (token, value) in stream.iter_mut().enumerate() {
                    *value += self.config.noise * gaussian(state, u64::MAX, token as u64);
                }
            }
            streams.push(stream.clone());
        }
        streams
    }

    /// Returns the rows that row `i` of a step sees by position, itself last.
    fn seen(&self, step: &PassInput<'_>, fresh: &[CacheRow], i: usize) -> Vec<CacheRow> {
        // The cache is sorted by position except for provisional rows, so the result is sorted below.
        let settled = match step.layout {
            RowLayout::Custom { since, .. } => since,
            _ => self.cache.len(),
        };
        let mut seen = self.cache[..settled].to_vec();
        match step.layout {
            RowLayout::Chain => seen.extend_from_slice(&fresh[..=i]),
            RowLayout::Tree { parents } => {
                let path = std::iter::successors(Some(i), |&row| parents[row]);
                seen.extend(path.map(|row| fresh[row]));
            }
            RowLayout::Custom { visible, .. } => {
                let slots = self.cache[settled..].iter().chain(fresh).enumerate();
                let rows = slots.filter(|(j, _)| visible[i] >> j & 1 == 1);
                seen.extend(rows.map(|(_, row)| *row));
            }
        }
        seen.sort_by_key(|row| row.position);
        if let Some(window) = step.window {
            seen.drain(window.hidden(seen.len()));
        }
        seen
    }

    /// Validates a step and returns the position of each row.
    fn positions(&self, step: &PassInput<'_>) -> Result<Vec<usize>> {
        let rows = step.tokens.len();
        let base = self.cache.len();
        if rows == 0 {
            return Err(Error::Internal("a pass needs at least one row".into()));
        }
        if let Some(token) = step.tokens.iter().find(|&&t| t as usize >= self.config.n_vocab) {
            return Err(Error::invalid(format!(
                "Token {token} is outside this model's vocabulary of {} tokens.",
                self.config.n_vocab
            )));
        }
        if base + rows > self.config.context_length {
            return Err(Error::ContextOverflow { prompt: base + rows, context: self.config.context_length });
        }
        let wrong = || Error::Internal("the row layout of a pass does not match its rows".into());
        match step.layout {
            RowLayout::Chain => Ok((base..base + rows).collect()),
            RowLayout::Tree { parents } => {
                let mut positions: Vec<usize> = Vec::with_capacity(rows);
                for (i, parent) in parents.iter().enumerate() {
                    match *parent {
                        None => positions.push(base),
                        Some(p) if p < i => positions.push(positions[p] + 1),
                        Some(_) => return Err(wrong()),
                    }
                }
                if positions.len() == rows { Ok(positions) } else { Err(wrong()) }
            }
            RowLayout::Custom { since, depths, visible } => {
                let unsettled = base.checked_sub(since).ok_or_else(wrong)?;
                let fits = unsettled + rows <= 64 && depths.len() == rows && visible.len() == rows;
                if !fits || visible.iter().enumerate().any(|(i, bits)| bits >> (unsettled + i) != 1) {
                    return Err(wrong());
                }
                Ok(depths.iter().map(|d| since + d).collect())
            }
        }
    }
}

impl LanguageModel for TableModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn cache_len(&self) -> usize {
        self.cache.len()
    }

    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(Self::new(self.config.clone()))
    }

    fn memory(&self) -> ModelMemory {
        let cache_per_token = size_of::<CacheRow>();
        ModelMemory { cache: self.cache.len() * cache_per_token, cache_per_token, ..ModelMemory::default() }
    }

    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        let positions = self.positions(&step)?;
        if step.taps.iter().any(|&layer| layer >= self.config.n_layer) {
            return Err(Error::Internal("a tap names a layer that does not exist".into()));
        }
        let rows = step.tokens.iter().zip(&positions);
        let fresh: Vec<CacheRow> = rows.map(|(&token, &position)| CacheRow { token, position }).collect();
        let mut logits = Vec::new();
        let mut taps = vec![Vec::new(); step.taps.len()];
        for i in 0..fresh.len() {
            let wanted = match step.logits {
                LogitRows::All => true,
                LogitRows::Last => i + 1 == fresh.len(),
                LogitRows::None => false,
            };
            if !wanted && step.taps.is_empty() {
                continue;
            }
            let streams = self.streams(&self.seen(&step, &fresh, i), step.layers);
            for (tap, &layer) in taps.iter_mut().zip(step.taps) {
                tap.extend_from_slice(&streams[layer]);
            }
            if wanted {
                logits.extend_from_slice(&streams[self.config.n_layer - 1]);
            }
        }
        self.cache.extend(fresh);
        let width = self.config.n_vocab;
        Ok(PassOutput {
            logits: Rows::new(width, logits),
            taps: taps.into_iter().map(|tap| Rows::new(width, tap)).collect(),
        })
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.cache.truncate(len);
        Ok(())
    }

    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        let exist = base <= self.cache.len() && rows.last().is_none_or(|&row| base + row < self.cache.len());
        if !ascending || !exist {
            return Err(Error::Internal("the rows to keep do not exist or are not ascending".into()));
        }
        for (i, &row) in rows.iter().enumerate() {
            self.cache[base + i] = self.cache[base + row];
        }
        self.cache.truncate(base + rows.len());
        Ok(())
    }
}

/// The SplitMix64 step: increment and finaliser with full avalanche (Steele, Lea and Flood, OOPSLA
/// 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns an approximately standard normal number, a function of the three inputs.
///
/// It is the sum of twelve uniform numbers less six. Without transcendental functions, the result has
/// the same bits on every machine.
fn gaussian(state: u64, layer: u64, token: u64) -> f32 {
    let mut word = mix(state ^ mix(layer.wrapping_mul(0x1_0000_0001) ^ (token << 17)));
    let mut total = 0u64;
    for _ in 0..4 {
        word = mix(word);
        total += (word & 0x1f_ffff) + (word >> 21 & 0x1f_ffff) + (word >> 42 & 0x1f_ffff);
    }
    (total as f64 / f64::from(1 << 21) - 6.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DraftWindow;

    fn model() -> TableModel {
        TableModel::new(TableConfig { order: 3, ..TableConfig::default() })
    }

    fn step<'a>(tokens: &'a [TokenId], layout: RowLayout<'a>) -> PassInput<'a> {
        PassInput { layout, ..PassInput::chain(tokens, LogitRows::All) }
    }

    #[test]
    fn gaussian_has_mean_0_and_variance_1() {
        let values: Vec<f64> = (0..20_000).map(|i| f64::from(gaussian(1, i, i * 7))).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn chain_rows_match_exact_logits_in_one_pass_or_many() {
        let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
        let mut together = model();
        let all = together.forward(PassInput::chain(&tokens, LogitRows::All)).unwrap();
        let mut alone = model();
        for (i, token) in tokens.iter().enumerate() {
            let one = alone.forward(PassInput::chain(std::slice::from_ref(token), LogitRows::Last)).unwrap();
            assert_eq!(one.logits.row(0), all.logits.row(i));
            assert_eq!(one.logits.row(0), model().logits_after(&tokens[..=i]));
        }
        assert_eq!(together.cache, alone.cache);
    }

    #[test]
    fn tree_rows_match_their_paths_as_chains() {
        let mut model = model();
        model.forward(PassInput::chain(&[7, 8], LogitRows::None)).unwrap();
        let parents = [None, Some(0), Some(0), Some(1), Some(2)];
        let out = model.forward(step(&[1, 2, 3, 4, 5], RowLayout::Tree { parents: &parents })).unwrap();
        let paths: [&[TokenId]; 5] =
            [&[7, 8, 1], &[7, 8, 1, 2], &[7, 8, 1, 3], &[7, 8, 1, 2, 4], &[7, 8, 1, 3, 5]];
        for (i, path) in paths.iter().enumerate() {
            assert_eq!(out.logits.row(i), model.logits_after(path), "row {i}");
        }
        model.keep_rows(2, &[0, 2, 4]).unwrap();
        assert_eq!(model.cache_len(), 5);
        let next = model.forward(PassInput::chain(&[6], LogitRows::Last)).unwrap();
        assert_eq!(next.logits.row(0), model.logits_after(&[7, 8, 1, 3, 5, 6]));
    }

    #[test]
    fn custom_layout_matches_tree_layout() {
        let parents = [None, Some(0), Some(0), Some(2)];
        let mut tree = model();
        let by_tree = tree.forward(step(&[1, 2, 3, 4], RowLayout::Tree { parents: &parents })).unwrap();
        let layout =
            RowLayout::Custom { since: 0, depths: &[0, 1, 1, 2], visible: &[0b0001, 0b0011, 0b0101, 0b1101] };
        let mut custom = model();
        assert_eq!(custom.forward(step(&[1, 2, 3, 4], layout)).unwrap().logits, by_tree.logits);
        let blind = RowLayout::Custom { since: 0, depths: &[0, 1], visible: &[0b01, 0b10] };
        let out = model().forward(step(&[1, 2], blind)).unwrap();
        assert_ne!(out.logits.row(1), model().logits_after(&[1, 2]));
    }

    #[test]
    fn keeping_wrong_row_changes_logits() {
        let mut model = model();
        model.forward(PassInput::chain(&[1, 2, 3], LogitRows::None)).unwrap();
        model.keep_rows(0, &[0, 2]).unwrap();
        let out = model.forward(PassInput::chain(&[4], LogitRows::Last)).unwrap();
        assert_ne!(out.logits.row(0), model.logits_after(&[1, 3, 4]));
    }

    #[test]
    fn truncated_rows_do_not_affect_logits() {
        let mut model = model();
        model.forward(PassInput::chain(&[1, 2, 3, 4], LogitRows::None)).unwrap();
        model.truncate(9).unwrap();
        assert_eq!(model.cache_len(), 4);
        model.truncate(2).unwrap();
        let out = model.forward(PassInput::chain(&[5], LogitRows::Last)).unwrap();
        assert_eq!(out.logits.row(0), model.logits_after(&[1, 2, 5]));
    }

    #[test]
    fn layers_sum_to_logits_and_can_be_skipped() {
        let run = |layers: LayerPlan<'_>, taps: &[usize]| {
            let step = PassInput { layers, taps, ..PassInput::chain(&[1, 2], LogitRows::All) };
            model().forward(step).unwrap()
        };
        let all = run(LayerPlan::All, &[0, 3]);
        assert_eq!(all.taps[1], all.logits);
        assert_eq!(run(LayerPlan::Exit(1), &[]).logits, all.taps[0]);
        assert_eq!(run(LayerPlan::Skip(&[1, 2, 3]), &[]).logits, all.taps[0]);
        assert_ne!(all.taps[0], all.logits);
    }

    #[test]
    fn window_hides_the_middle_of_the_context() {
        let text: Vec<TokenId> = (0..12).collect();
        let all = |order, window: Option<usize>| {
            let mut model = TableModel::new(TableConfig { order, ..TableConfig::default() });
            let window = window.map(|tokens| DraftWindow::new(tokens).unwrap());
            model.forward(PassInput { window, ..PassInput::chain(&text, LogitRows::All) }).unwrap().logits
        };
        assert_eq!(all(3, None), all(3, Some(3)));
        let (narrow, wide) = (all(3, Some(2)), all(3, None));
        // The first positions stay visible.
        assert!((0..6).all(|row| narrow.row(row) == wide.row(row)));
        assert!((6..12).all(|row| narrow.row(row) != wide.row(row)));
    }

    #[test]
    fn noise_gives_nearby_distribution() {
        let exact = model().logits_after(&[1, 2]);
        let noisy = TableModel::new(TableConfig { noise: 0.5, order: 3, ..TableConfig::default() });
        let near = noisy.logits_after(&[1, 2]);
        let distance: f32 = exact.iter().zip(&near).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 16.0;
        assert!(distance > 0.02 && distance < 1.0, "{distance}");
    }

    #[test]
    fn rejects_invalid_steps_and_keeps_cache() {
        let mut model = TableModel::new(TableConfig { context_length: 3, ..TableConfig::default() });
        model.forward(PassInput::chain(&[1, 2], LogitRows::None)).unwrap();
        let unordered = RowLayout::Tree { parents: &[Some(0)] };
        let short = RowLayout::Custom { since: 0, depths: &[], visible: &[] };
        let bad = [
            step(&[], RowLayout::Chain),
            step(&[16], RowLayout::Chain),
            step(&[1, 2], RowLayout::Chain),
            step(&[1], unordered),
            step(&[1], short),
            PassInput { taps: &[4], ..step(&[1], RowLayout::Chain) },
        ];
        for step in bad {
            assert!(model.forward(step).is_err(), "{step:?}");
            assert_eq!(model.cache_len(), 2);
        }
        assert!(model.keep_rows(1, &[1]).is_err());
        assert!(model.keep_rows(0, &[1, 0]).is_err());
        assert!(model.keep_rows(3, &[]).is_err());
    }
}
