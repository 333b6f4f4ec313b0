//! Several sequences in one pass on the CPU: products run over all rows, attention over the cache of each sequence.
//!
//! Every row is computed as in a pass of its own, bit for bit.

use super::CpuExecutor;
use super::layers::{CpuPass, Workspace};
use crate::cache::KvCache;
use crate::executor::{Executor, LAYER, LayerStep, SequenceExecutor};
use hunch_core::model::{LogitRows, PassOutput, Rows};
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_kernels::RowMask;
use hunch_kernels::attention::{Attention, AttentionInput, VisibleSlots};

/// Sequences over the same weights, each with a cache of its own.
pub(super) struct CpuSequences {
    /// Shared weights and working memory. Its own cache stays empty.
    lead: CpuExecutor,
    caches: Vec<KvCache>,
    attention: Attention,
}

impl CpuSequences {
    /// Creates `count` empty sequences over the weights of `executor`.
    pub(super) fn new(executor: &CpuExecutor, count: usize) -> Self {
        let lead = executor.fork_cpu();
        let (max_len, kv) = (lead.layers.cache.max_len(), lead.layers.cache.kv_type());
        let caches = (0..count).map(|_| KvCache::on_host(&lead.layers.spec, max_len, kv)).collect();
        Self { lead, caches, attention: Attention::default() }
    }

    /// Writes the keys and values of each row to its sequence, and attends there.
    fn attend(&mut self, layer: usize, rows: &[(usize, TokenId)], visible: &[VisibleSlots]) -> Result<()> {
        let threads = self.lead.layers.compute.threads();
        let sinks = self.lead.layers.weights[layer].mixer.attention()?.sinks.as_deref();
        let mut shape = self.lead.layers.attention_shape(layer, 0);
        let spec = &self.lead.layers.spec;
        let (has_keys, key_layer) = (spec.has_keys(layer), spec.key_layer(layer));
        let Workspace { h, q, k, v, .. } = &mut self.lead.layers.workspace;
        h.resize(q.len(), 0.0);
        let (query, key) = (q.len() / rows.len(), k.len() / rows.len());
        let parts = q.chunks_exact(query).zip(h.chunks_exact_mut(query));
        for (row, ((q, out), (&(sequence, _), visible))) in parts.zip(rows.iter().zip(visible)).enumerate() {
            if has_keys {
                let of_row = row * key..(row + 1) * key;
                self.caches[sequence].write_rows(layer, &k[of_row.clone()], &v[of_row])?;
            }
            let (keys, values, capacity) = self.caches[sequence].host_layer(key_layer)?;
            shape.capacity = capacity;
            let input = AttentionInput { q, k: keys, v: values, sinks };
            self.attention.attend(threads, shape, input, visible, out);
        }
        Ok(())
    }
}

impl SequenceExecutor for CpuSequences {
    fn count(&self) -> usize {
        self.caches.len()
    }

    fn cache_mut(&mut self, sequence: usize) -> &mut KvCache {
        &mut self.caches[sequence]
    }

    fn prefill(&mut self, sequence: usize, tokens: &[TokenId]) -> Result<()> {
        std::mem::swap(&mut self.lead.layers.cache, &mut self.caches[sequence]);
        let lead = &mut self.lead;
        let mask = RowMask::causal(lead.layers.cache.len(), tokens.len());
        let ran = lead.begin(tokens, &mask).and_then(|()| {
            (0..lead.layers.spec.n_layer)
                .try_for_each(|layer| LAYER.iter().try_for_each(|&part| lead.step(layer, part)))
        });
        if ran.is_ok() {
            lead.layers.cache.advance(tokens.len());
        }
        std::mem::swap(&mut self.lead.layers.cache, &mut self.caches[sequence]);
        ran
    }

    fn step(&mut self, rows: &[(usize, TokenId)], taps: &[usize]) -> Result<PassOutput> {
        rows.iter().try_for_each(|&(sequence, _)| self.caches[sequence].reserve(1))?;
        let tokens: Vec<TokenId> = rows.iter().map(|&(_, token)| token).collect();
        let positions = rows.iter().map(|&(sequence, _)| self.caches[sequence].len());
        let visible: Vec<VisibleSlots> =
            positions.clone().map(|len| VisibleSlots::new(&RowMask::causal(len, 1))).collect();
        let lead = &mut self.lead;
        lead.layers.workspace.x = lead.embed(&tokens)?;
        lead.layers.pass =
            CpuPass { angles: lead.layers.rope.angles(positions), rows: rows.len(), ..CpuPass::empty() };
        let mut tapped = vec![Rows::default(); taps.len()];
        for layer in 0..self.lead.layers.spec.n_layer {
            self.lead.layers.project(layer)?;
            self.attend(layer, rows, &visible)?;
            let rest = LAYER.into_iter().skip_while(|&part| part != LayerStep::MixerOutput);
            for part in rest {
                self.lead.step(layer, part)?;
            }
            for (out, _) in tapped.iter_mut().zip(taps).filter(|(_, tap)| **tap == layer) {
                *out = self.lead.layers.residual();
            }
        }
        let logits = self.lead.logits(LogitRows::All, None)?;
        rows.iter().for_each(|&(sequence, _)| self.caches[sequence].advance(1));
        Ok(PassOutput { logits, taps: tapped })
    }
}
