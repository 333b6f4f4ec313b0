//! KV cache: appends rows, truncates in O(1), and keeps selected rows.
//!
//! Drafts and acceptance do not belong here.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::spec::ModelSpec;
use hunch_error::{Error, Result};

/// Granularity of the capacity in rows, except at the maximum.
const CAPACITY_STEP: usize = 256;

/// Keys and values of all layers, `[n_kv_head, capacity, head_dim]` each.
///
/// On a GPU with our kernels they are `[capacity, n_kv_head, head_dim]`, as halves.
///
/// Layers grow one after another, so the old and new buffers coexist for only one layer. The peak is
/// little more than the size of the full cache.
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
    /// Capacity of every layer in rows. Some layers may have more after a failed growth.
    capacity: usize,
    max_len: usize,
    n_kv_head: usize,
    head_dim: usize,
    place: Place,
}

/// Memory of a cache.
enum Place {
    /// Host memory.
    Host,
    /// Tensors of candle.
    Device(Device),
    /// Buffers for our kernels.
    Gpu(Arc<Kernels>),
}

/// Cache of one layer.
enum LayerCache {
    /// f32 values in host memory, for the CPU kernels.
    Host {
        /// Keys.
        k: Vec<f32>,
        /// Values.
        v: Vec<f32>,
    },
    /// Tensors on the GPU.
    Device {
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
    },
    /// Keys, then values, of 16 bits each.
    Gpu(Buffer),
}

impl KvCache {
    /// Creates an empty cache in host memory for at most `max_len` rows.
    pub(crate) fn on_host(spec: &ModelSpec, max_len: usize) -> Self {
        Self::new(spec, max_len, Place::Host)
    }

    /// Creates an empty cache of tensors on `device` for at most `max_len` rows.
    pub(crate) fn on_device(spec: &ModelSpec, max_len: usize, device: &Device) -> Self {
        Self::new(spec, max_len, Place::Device(device.clone()))
    }

    /// Creates an empty cache for the Metal kernels for at most `max_len` rows.
    pub(crate) fn on_gpu(spec: &ModelSpec, max_len: usize, kernels: &Arc<Kernels>) -> Self {
        Self::new(spec, max_len, Place::Gpu(kernels.clone()))
    }

    fn new(spec: &ModelSpec, max_len: usize, place: Place) -> Self {
        // Memory is allocated for the first rows.
        let empty = || LayerCache::Host { k: Vec::new(), v: Vec::new() };
        Self {
            layers: (0..spec.n_layer).map(|_| empty()).collect(),
            len: 0,
            capacity: 0,
            max_len,
            n_kv_head: spec.n_kv_head,
            head_dim: spec.head_dim,
            place,
        }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the maximum number of rows.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rows: usize = (0..self.layers.len()).map(|layer| self.layer_capacity(layer)).sum();
        let value =
            if matches!(self.place, Place::Gpu(_)) { size_of::<half::f16>() } else { size_of::<f32>() };
        2 * rows * self.row_len() * value
    }

    /// Returns the number of values per row and layer, for keys or for values.
    fn row_len(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Returns the capacity of a layer in rows.
    fn layer_capacity(&self, layer: usize) -> usize {
        match &self.layers[layer] {
            LayerCache::Host { k, .. } => k.len() / self.row_len(),
            LayerCache::Device { k, .. } => k.elem_count() / self.row_len(),
            LayerCache::Gpu(memory) => memory.bytes() / (4 * self.row_len()),
        }
    }

    /// Returns keys, values and capacity in rows of a layer in host memory.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is on a device.
    pub(crate) fn host_layer(&self, layer: usize) -> Result<(&[f32], &[f32], usize)> {
        match &self.layers[layer] {
            LayerCache::Host { k, v } => Ok((k, v, self.layer_capacity(layer))),
            LayerCache::Device { .. } | LayerCache::Gpu(_) => Err(wrong_memory()),
        }
    }

    /// Returns the memory and the capacity in rows of a layer for the Metal kernels.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is elsewhere.
    pub(crate) fn gpu_layer(&self, layer: usize) -> Result<(&Buffer, usize)> {
        match &self.layers[layer] {
            LayerCache::Gpu(memory) => Ok((memory, self.layer_capacity(layer))),
            LayerCache::Host { .. } | LayerCache::Device { .. } => Err(wrong_memory()),
        }
    }

    /// Returns keys and values of a layer on a device.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is in host memory.
    pub(crate) fn device_layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        match &self.layers[layer] {
            LayerCache::Device { k, v } => Ok((k, v)),
            LayerCache::Host { .. } | LayerCache::Gpu(_) => Err(wrong_memory()),
        }
    }

    /// Returns the capacity in rows after growing from `capacity` to at least `needed`.
    ///
    /// Host memory grows by a quarter, so that an answer does not grow the cache with every token. A
    /// device doubles, because its buffers have sizes of powers of two. The result is at most `max_len`.
    fn grown_capacity(needed: usize, capacity: usize, max_len: usize, on_device: bool) -> usize {
        let grown = if on_device { 2 * capacity } else { capacity + capacity / 4 };
        needed.max(grown).next_multiple_of(CAPACITY_STEP).min(max_len)
    }

    /// Ensures capacity for `rows` more rows.
    ///
    /// # Errors
    /// [`Error::ContextOverflow`] past the maximum, [`Error::OutOfMemory`] if the system is out of
    /// memory. The contents stay unchanged.
    pub(crate) fn reserve(&mut self, rows: usize) -> Result<()> {
        let needed = self.len + rows;
        if needed > self.max_len {
            return Err(Error::ContextOverflow { prompt: needed, context: self.max_len });
        }
        if needed <= self.capacity {
            return Ok(());
        }
        let capacity =
            Self::grown_capacity(needed, self.capacity, self.max_len, !matches!(self.place, Place::Host));
        for layer in 0..self.layers.len() {
            if self.layer_capacity(layer) < capacity {
                self.layers[layer] = self.grow(&self.layers[layer], capacity)?;
                // The device frees the old buffers only after all queued work is done.
                match &self.place {
                    Place::Host => {}
                    Place::Device(device) => device.synchronize()?,
                    Place::Gpu(kernels) => kernels.gpu().wait()?,
                }
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    fn grow(&self, layer: &LayerCache, capacity: usize) -> Result<LayerCache> {
        let device = match &self.place {
            Place::Host => {
                let LayerCache::Host { k, v } = layer else {
                    return Err(wrong_memory());
                };
                let (k, v) = (self.grow_host(k, capacity)?, self.grow_host(v, capacity)?);
                return Ok(LayerCache::Host { k, v });
            }
            Place::Gpu(kernels) => return self.grow_gpu(layer, capacity, kernels),
            Place::Device(device) => device,
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

    fn grow_gpu(&self, layer: &LayerCache, capacity: usize, kernels: &Kernels) -> Result<LayerCache> {
        let row_bytes = self.row_len() * size_of::<half::f16>();
        let new = Buffer::new(kernels.gpu(), 2 * capacity * row_bytes)?;
        if let LayerCache::Gpu(old) = layer
            && self.len > 0
        {
            // Keys, then values.
            for side in 0..2 {
                let (from, to) = (side * (old.bytes() / 2), side * capacity * row_bytes);
                kernels.copy((old, from), (&new, to), self.len * row_bytes)?;
            }
        }
        Ok(LayerCache::Gpu(new))
    }

    fn grow_host(&self, old: &[f32], capacity: usize) -> Result<Vec<f32>> {
        let mut new = Vec::new();
        let (width, size) = (capacity * self.head_dim, capacity * self.row_len());
        new.try_reserve_exact(size).map_err(|_| {
            Error::OutOfMemory(format!(
                "the KV cache needs {} MiB for {capacity} tokens. Start a new conversation, or load the \
                 models with a smaller context",
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

    /// Writes rows after the current ones in host memory, `k` and `v` `[rows, n_kv_head * head_dim]`.
    ///
    /// Call [`KvCache::advance`] once all layers are written.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is on a device.
    pub(crate) fn write_rows(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<()> {
        let (heads, d, len, capacity) = (self.n_kv_head, self.head_dim, self.len, self.layer_capacity(layer));
        let LayerCache::Host { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_memory());
        };
        for (cache, rows) in [(keys, k), (values, v)] {
            for (index, part) in rows.chunks_exact(d).enumerate() {
                let to = (index % heads * capacity + len + index / heads) * d;
                cache[to..to + d].copy_from_slice(part);
            }
        }
        Ok(())
    }

    /// Writes rows after the current ones on a device, like [`KvCache::write_rows`].
    ///
    /// `k` is `[1, n_kv_head, rows, head_dim]`, `v` is `[rows, n_kv_head * head_dim]`. Both must be
    /// contiguous.
    ///
    /// # Errors
    /// If the device fails. [`Error::Internal`] if the cache is in host memory.
    pub(crate) fn write_tensors(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let (heads, d, len) = (self.n_kv_head, self.head_dim, self.len);
        let rows = v.dim(0)?;
        let LayerCache::Device { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_memory());
        };
        let v = v.reshape((rows, heads, d))?.transpose(0, 1)?.contiguous()?;
        keys.slice_set(&k.reshape((heads, rows, d))?, 1, len)?;
        Ok(values.slice_set(&v, 1, len)?)
    }

    /// Adds `rows` written rows to the length.
    pub(crate) fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(self.len <= self.capacity, "rows must be reserved before they are written");
    }

    /// Drops the rows from `len` on, in O(1).
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Keeps the first `base` rows and rows `base + rows[i]`, and drops all others.
    ///
    /// `rows` must be ascending.
    ///
    /// # Errors
    /// [`Error::Internal`] if a row does not exist or the order is wrong.
    pub(crate) fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        let held = rows.last().is_none_or(|last| base + last < self.len);
        if !ascending || !held || base > self.len {
            return Err(Error::Internal(format!(
                "cannot keep rows {rows:?} after row {base} of a cache with {} rows",
                self.len
            )));
        }
        let moved = rows.iter().enumerate().position(|(to, &from)| to != from);
        if let Some(first) = moved {
            self.move_gpu_rows(base, &rows[first..], first)?;
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
                    // Moved above.
                    LayerCache::Gpu(_) => {}
                }
            }
        }
        self.len = base + rows.len();
        Ok(())
    }

    /// Moves rows `base + rows[i]` to `base + first + i` in the memory of the Metal kernels.
    fn move_gpu_rows(&self, base: usize, rows: &[usize], first: usize) -> Result<()> {
        let Place::Gpu(kernels) = &self.place else { return Ok(()) };
        let pairs: Vec<u8> = rows
            .iter()
            .enumerate()
            .flat_map(|(to, from)| [base + from, base + first + to])
            .flat_map(|slot| (slot as u32).to_le_bytes())
            .collect();
        let pairs = Buffer::with_bytes(kernels.gpu(), &pairs)?;
        for layer in &self.layers {
            if let LayerCache::Gpu(memory) = layer {
                for side in [0, memory.bytes() / 2] {
                    kernels.copy_rows(memory, side, &pairs, (rows.len(), self.row_len()))?;
                }
            }
        }
        Ok(())
    }
}

fn wrong_memory() -> Error {
    Error::Internal("the KV cache is in the wrong memory for this executor".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{LayerRope, LayerSpec};

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
            norms: crate::spec::Norms::Before,
            head_norms: crate::spec::HeadNorms::IfPresent,
            gelu: false,
            joined_gate: false,
            rope_kind: crate::spec::RopeKind::Halves,
            rope_dim: 4,
            rope_base: 1e4,
            rope_scale: 1.0,
            rope_magnitude: 1.0,
            yarn: None,
            original_context: 4096,
            local_rope: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention_scale: 0.5,
            logit_scale: 1.0,
            attention_softcap: None,
            logit_softcap: None,
            query_temperature: None,
            layers: vec![LayerSpec { window: None, rope: LayerRope::Global }; n_layer],
        }
    }

    /// Appends rows whose values encode layer and position.
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
    fn growth_keeps_contents() {
        let mut cache = KvCache::on_host(&spec(3), 1000);
        for _ in 0..10 {
            append(&mut cache, 100);
            assert_holds(&cache, cache.len());
        }
        // A full cache has no spare capacity.
        assert_eq!((cache.capacity, cache.bytes()), (1000, 2 * 3 * 1000 * 8 * 4));
        assert!(matches!(cache.reserve(1), Err(Error::ContextOverflow { prompt: 1001, context: 1000 })));
        assert_holds(&cache, 1000);
    }

    #[test]
    fn works_after_growth_failed_halfway() {
        let mut cache = KvCache::on_host(&spec(3), 1000);
        append(&mut cache, 200);
        // The state after a growth that failed at the second layer.
        cache.layers[0] = cache.grow(&cache.layers[0], 512).unwrap();
        append(&mut cache, 20);
        assert_holds(&cache, 220);
        cache.keep_rows(210, &[0, 1, 2]).unwrap();
        cache.truncate(213);
        assert_holds(&cache, 213);
        append(&mut cache, 300);
        assert_holds(&cache, 513);
        assert_eq!(cache.capacity, 768);
    }

    #[test]
    fn growth_overshoots_by_at_most_a_quarter_up_to_maximum() {
        for max_len in [100, 256, 1000, 8192, 40_000] {
            let (mut capacity, mut grown) = (0, 0);
            for needed in 1..=max_len {
                if needed > capacity {
                    capacity = KvCache::grown_capacity(needed, capacity, max_len, false);
                    grown += 1;
                }
                assert!(capacity >= needed && capacity <= max_len);
                assert!(capacity <= needed + needed / 4 + CAPACITY_STEP, "{needed} {capacity}");
            }
            assert!(grown <= 24, "{max_len}: {grown} times");
        }
        assert_eq!(KvCache::grown_capacity(257, 256, 8192, true), 512);
        assert_eq!(KvCache::grown_capacity(4097, 4096, 6000, true), 6000);
    }
}
