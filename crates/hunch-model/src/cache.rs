//! The key and value cache. It appends, truncates in O(1) and keeps chosen rows; it knows nothing
//! of drafts.

use candle_core::{DType, Device, Tensor};

use crate::spec::ModelSpec;
use hunch_error::{Error, Result};

/// Rows there is room for after a growth: a multiple of this, unless there may not be so many.
const STEP: usize = 256;

/// Keys and values of all layers, `[n_kv_head, capacity, head_dim]` each.
///
/// It grows layer by layer, so that what was and what comes are there at once for one layer only: at its peak
/// it holds little more than it does when it is full.
pub struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
    /// Rows that every layer has room for; one that has grown before another failed to has room for more.
    capacity: usize,
    max_len: usize,
    n_kv_head: usize,
    head_dim: usize,
    /// `None` = host memory.
    device: Option<Device>,
}

/// One layer's part of the cache.
enum LayerCache {
    /// f32 in host memory, for the CPU kernels.
    Host {
        /// Keys.
        k: Vec<f32>,
        /// Values.
        v: Vec<f32>,
    },
    /// On the GPU.
    Device {
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
    },
}

impl KvCache {
    /// An empty cache in host memory for at most `max_len` rows.
    pub fn on_host(spec: &ModelSpec, max_len: usize) -> Self {
        Self::new(spec, max_len, None)
    }

    /// An empty cache of tensors on `device` for at most `max_len` rows.
    pub fn on_device(spec: &ModelSpec, max_len: usize, device: &Device) -> Self {
        Self::new(spec, max_len, Some(device.clone()))
    }

    fn new(spec: &ModelSpec, max_len: usize, device: Option<Device>) -> Self {
        // Memory is taken when the first rows come.
        let empty = || LayerCache::Host { k: Vec::new(), v: Vec::new() };
        Self {
            layers: (0..spec.n_layer).map(|_| empty()).collect(),
            len: 0,
            capacity: 0,
            max_len,
            n_kv_head: spec.n_kv_head,
            head_dim: spec.head_dim,
            device,
        }
    }

    /// Rows held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no row is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rows there is room for before the next growth.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Most rows it may ever hold.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Bytes of memory taken.
    pub fn bytes(&self) -> usize {
        let rows: usize = (0..self.layers.len()).map(|layer| self.layer_capacity(layer)).sum();
        2 * rows * self.row() * size_of::<f32>()
    }

    /// Numbers in a row of a layer's keys.
    fn row(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Rows that a layer has room for.
    fn layer_capacity(&self, layer: usize) -> usize {
        match &self.layers[layer] {
            LayerCache::Host { k, .. } => k.len() / self.row(),
            LayerCache::Device { k, .. } => k.elem_count() / self.row(),
        }
    }

    /// Keys and values of a layer in host memory, and the rows it has room for.
    ///
    /// # Errors
    /// [`Error::Internal`] when they are on a device.
    pub fn host_layer(&self, layer: usize) -> Result<(&[f32], &[f32], usize)> {
        match &self.layers[layer] {
            LayerCache::Host { k, v } => Ok((k, v, self.layer_capacity(layer))),
            LayerCache::Device { .. } => Err(wrong_place()),
        }
    }

    /// Keys and values of a layer on a device.
    ///
    /// # Errors
    /// [`Error::Internal`] when they are in host memory.
    pub fn device_layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        match &self.layers[layer] {
            LayerCache::Device { k, v } => Ok((k, v)),
            LayerCache::Host { .. } => Err(wrong_place()),
        }
    }

    /// Rows there will be room for once `needed` do not fit into `capacity`: a quarter more than before, so that
    /// an answer does not grow it with every token; on a device twice as many, as its buffers come in powers of
    /// two. Never more than `max_len`.
    pub fn grown_capacity(needed: usize, capacity: usize, max_len: usize, on_device: bool) -> usize {
        let more = if on_device { 2 * capacity } else { capacity + capacity / 4 };
        needed.max(more).next_multiple_of(STEP).min(max_len)
    }

    /// Makes room for `rows` more rows.
    ///
    /// # Errors
    /// [`Error::ContextOverflow`] past the maximum, [`Error::OutOfMemory`] when the system has no
    /// room. The cache then holds what it held.
    pub fn reserve(&mut self, rows: usize) -> Result<()> {
        let needed = self.len + rows;
        if needed > self.max_len {
            return Err(Error::ContextOverflow { prompt: needed, context: self.max_len });
        }
        if needed <= self.capacity {
            return Ok(());
        }
        let capacity = Self::grown_capacity(needed, self.capacity, self.max_len, self.device.is_some());
        for layer in 0..self.layers.len() {
            if self.layer_capacity(layer) < capacity {
                self.layers[layer] = self.grow(&self.layers[layer], capacity)?;
                // A device lets go of what was only when it has done all that was asked of it.
                if let Some(device) = &self.device {
                    device.synchronize()?;
                }
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    fn grow(&self, layer: &LayerCache, capacity: usize) -> Result<LayerCache> {
        let Some(device) = &self.device else {
            let LayerCache::Host { k, v } = layer else {
                return Err(wrong_place());
            };
            return Ok(LayerCache::Host { k: self.grow_host(k, capacity)?, v: self.grow_host(v, capacity)? });
        };
        let shape = (self.n_kv_head, capacity, self.head_dim);
        let k = Tensor::zeros(shape, DType::F32, device)?;
        let v = Tensor::zeros(shape, DType::F32, device)?;
        if let LayerCache::Device { k: old_k, v: old_v } = layer
            && self.len > 0
        {
            k.slice_set(&old_k.narrow(1, 0, self.len)?.force_contiguous()?, 1, 0)?;
            v.slice_set(&old_v.narrow(1, 0, self.len)?.force_contiguous()?, 1, 0)?;
        }
        Ok(LayerCache::Device { k, v })
    }

    fn grow_host(&self, old: &[f32], capacity: usize) -> Result<Vec<f32>> {
        let mut new = Vec::new();
        let (width, size) = (capacity * self.head_dim, capacity * self.row());
        new.try_reserve_exact(size).map_err(|_| {
            Error::OutOfMemory(format!(
                "the cache needs {} MiB for {capacity} tokens. Start a new conversation, or load the models \
                 with a smaller context",
                (2 * self.layers.len() * size * size_of::<f32>()) >> 20
            ))
        })?;
        new.resize(size, 0.0);
        let old_width = old.len() / self.n_kv_head;
        let used = self.len * self.head_dim;
        for head in 0..self.n_kv_head {
            new[head * width..head * width + used]
                .copy_from_slice(&old[head * old_width..head * old_width + used]);
        }
        Ok(new)
    }

    /// Writes rows after the held ones in host memory, k and v `[rows, n_kv_head * head_dim]`. They
    /// count only once [`KvCache::advance`] is called, after all layers have written.
    ///
    /// # Errors
    /// [`Error::Internal`] when the cache is on a device.
    pub fn write_rows(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<()> {
        let (heads, d, len, capacity) = (self.n_kv_head, self.head_dim, self.len, self.layer_capacity(layer));
        let LayerCache::Host { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_place());
        };
        for (cache, rows) in [(keys, k), (values, v)] {
            for (index, part) in rows.chunks_exact(d).enumerate() {
                let to = (index % heads * capacity + len + index / heads) * d;
                cache[to..to + d].copy_from_slice(part);
            }
        }
        Ok(())
    }

    /// As [`KvCache::write_rows`] on a device: k `[1, n_kv_head, rows, head_dim]`, v `[rows, n_kv_head
    /// * head_dim]`, both contiguous.
    ///
    /// # Errors
    /// When the device fails, and [`Error::Internal`] when the cache is in host memory.
    pub fn write_tensors(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let (heads, d, len) = (self.n_kv_head, self.head_dim, self.len);
        let rows = v.dim(0)?;
        let LayerCache::Device { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_place());
        };
        let v = v.reshape((rows, heads, d))?.transpose(0, 1)?.contiguous()?;
        keys.slice_set(&k.reshape((heads, rows, d))?, 1, len)?;
        Ok(values.slice_set(&v, 1, len)?)
    }

    /// Counts `rows` written rows as held.
    pub fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(self.len <= self.capacity, "rows were reserved before they were written");
    }

    /// Forgets the rows from `len` on. O(1).
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Keeps rows `base + rows[i]`, ascending, behind `base`; forgets the others from `base` on.
    ///
    /// # Errors
    /// [`Error::Internal`] when a row is not held or the order is wrong.
    pub fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        let held = rows.last().is_none_or(|last| base + last < self.len);
        if !ascending || !held || base > self.len {
            return Err(Error::Internal(format!(
                "rows {rows:?} after {base} cannot be kept of {} rows",
                self.len
            )));
        }
        let moved = rows.iter().enumerate().position(|(to, &from)| to != from);
        if let Some(first) = moved {
            for layer in &mut self.layers {
                match layer {
                    LayerCache::Host { k, v } => {
                        let width = k.len() / self.n_kv_head;
                        for cache in [k, v] {
                            for head in cache.chunks_exact_mut(width) {
                                for (to, &from) in rows.iter().enumerate().skip(first) {
                                    let from = (base + from) * self.head_dim;
                                    head.copy_within(from..from + self.head_dim, (base + to) * self.head_dim);
                                }
                            }
                        }
                    }
                    LayerCache::Device { k, v } => {
                        let index: Vec<u32> = rows.iter().map(|r| (base + r) as u32).collect();
                        let index = Tensor::new(index, k.device())?;
                        for cache in [k, v] {
                            let kept = cache.index_select(&index, 1)?;
                            cache.slice_set(&kept, 1, base)?;
                        }
                    }
                }
            }
        }
        self.len = base + rows.len();
        Ok(())
    }
}

fn wrong_place() -> Error {
    Error::Internal("the cache is not where the pass runs".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(n_layer: usize) -> ModelSpec {
        ModelSpec {
            architecture: "llama".into(),
            name: "tiny".into(),
            n_layer,
            n_embd: 16,
            n_ff: 16,
            n_head: 4,
            n_kv_head: 2,
            head_dim: 4,
            n_vocab: 8,
            context_length: 4096,
            rms_eps: 1e-5,
            rope_kind: crate::spec::RopeKind::Halves,
            rope_dim: 4,
            rope_base: 1e4,
            rope_scale: 1.0,
            no_rope_step: 0,
        }
    }

    /// Appends rows whose numbers tell layer and position.
    fn append(cache: &mut KvCache, rows: usize) {
        cache.reserve(rows).unwrap();
        for layer in 0..3 {
            let values: Vec<f32> = (0..rows * 8)
                .map(|i| (layer * 1_000_000 + (cache.len() + i / 8) * 10 + i % 8) as f32)
                .collect();
            cache.write_rows(layer, &values, &values).unwrap();
        }
        cache.advance(rows);
    }

    fn assert_holds(cache: &KvCache, rows: usize) {
        for layer in 0..3 {
            let (k, v, capacity) = cache.host_layer(layer).unwrap();
            assert_eq!(k, v);
            for (row, head, i) in (0..rows).flat_map(|row| (0..8).map(move |i| (row, i / 4, i))) {
                let at = (head * capacity + row) * 4 + i % 4;
                assert_eq!(k[at], (layer * 1_000_000 + row * 10 + i) as f32, "{layer} {row} {i}");
            }
        }
    }

    #[test]
    fn what_it_holds_stays_while_it_grows() {
        let mut cache = KvCache::on_host(&spec(3), 1000);
        for _ in 0..10 {
            append(&mut cache, 100);
            assert_holds(&cache, cache.len());
        }
        // Full, it takes what its rows take and nothing besides.
        assert_eq!((cache.capacity(), cache.bytes()), (1000, 2 * 3 * 1000 * 8 * 4));
        assert!(matches!(cache.reserve(1), Err(Error::ContextOverflow { prompt: 1001, context: 1000 })));
        assert_holds(&cache, 1000);
    }

    #[test]
    fn a_layer_that_has_grown_alone_does_no_harm() {
        let mut cache = KvCache::on_host(&spec(3), 1000);
        append(&mut cache, 200);
        // As after a growth that failed at the second layer.
        cache.layers[0] = cache.grow(&cache.layers[0], 512).unwrap();
        append(&mut cache, 20);
        assert_holds(&cache, 220);
        cache.keep_rows(210, &[0, 1, 2]).unwrap();
        cache.truncate(213);
        assert_holds(&cache, 213);
        append(&mut cache, 300);
        assert_holds(&cache, 513);
        assert_eq!(cache.capacity(), 768);
    }

    #[test]
    fn growth_overshoots_by_a_quarter_at_most_and_never_the_maximum() {
        for max_len in [100, 256, 1000, 8192, 40_000] {
            let (mut capacity, mut grown) = (0, 0);
            for needed in 1..=max_len {
                if needed > capacity {
                    capacity = KvCache::grown_capacity(needed, capacity, max_len, false);
                    grown += 1;
                }
                assert!(capacity >= needed && capacity <= max_len);
                assert!(capacity <= needed + needed / 4 + STEP, "{needed} {capacity}");
            }
            assert!(grown <= 24, "{max_len}: {grown} times");
        }
        assert_eq!(KvCache::grown_capacity(257, 256, 8192, true), 512);
        assert_eq!(KvCache::grown_capacity(4097, 4096, 6000, true), 6000);
    }
}
