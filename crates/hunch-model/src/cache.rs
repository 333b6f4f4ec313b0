//! KV cache: appends rows, truncates in O(1), and keeps selected rows. Layers without attention have [`convolution_states`] or
//! [`checkpoints`].
//!
//! Drafts and acceptance do not belong here.

pub(crate) mod checkpoints;
pub(crate) mod convolution_states;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::f16;
use hunch_kernels::attention::CacheValues;

use crate::device::KvType;
use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::metal::rows::RowMoves;
use crate::spec::{KeyHeads, Mixer, ModelSpec};
use checkpoints::{Checkpoints, DeltaMemory, DeltaPlan, GpuDeltaMemory};
use convolution_states::{ConvolutionPlan, ConvolutionStates};
use hunch_error::{Error, Result, megabytes};
use hunch_kernels::RowMask;

/// Granularity of the capacity in rows, except at the maximum.
const CAPACITY_STEP: usize = 256;

/// Bytes of replaced buffers that may wait to be freed. Each wait takes time, so a GPU waits only for more.
const MAX_REPLACED_BYTES: usize = 128 << 20;

/// Keys and values of all layers, `[heads, capacity, width of a head]` each.
///
/// On a GPU with our kernels they are `[capacity, heads, width of a head]`, as halves. On the CPU the load options choose
/// halves or floats.
///
/// Layers grow one after another, so the old and new buffers coexist for only one layer, or on a GPU for
/// [`MAX_REPLACED_BYTES`]. The peak is little more than the size of the full cache.
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
    /// Capacity of every layer in rows. Some layers may have more after a failed growth.
    capacity: usize,
    max_len: usize,
    /// Key heads of each layer.
    heads: Vec<KeyHeads>,
    memory: CacheMemory,
    /// State of the layers with a short convolution, if there are any.
    convolution_states: Option<ConvolutionStates>,
    /// State of the layers with a gated delta net, if there are any.
    checkpoints: Option<Checkpoints>,
}

/// Memory of a cache.
enum CacheMemory {
    /// Host memory.
    Host(KvType),
    /// Tensors of candle.
    Candle(Device),
    /// Buffers for the Metal kernels.
    Metal(Arc<Kernels>),
}

/// Cache of one layer.
enum LayerCache {
    /// Host memory, for the CPU kernels.
    Host {
        /// Keys.
        k: HostValues,
        /// Values.
        v: HostValues,
    },
    /// Tensors of candle.
    Candle {
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
    },
    /// Buffer for the Metal kernels: keys, then values, of 16 bits each.
    Metal(Buffer),
    /// None, for a layer without attention, or one that attends to the keys of another.
    Absent,
}

/// Keys or values of a layer in host memory.
enum HostValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl HostValues {
    fn empty(kv: KvType) -> Self {
        match kv {
            KvType::F32 => Self::F32(Vec::new()),
            KvType::F16 => Self::F16(Vec::new()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    fn as_input(&self) -> CacheValues<'_> {
        match self {
            Self::F32(values) => CacheValues::F32(values),
            Self::F16(values) => CacheValues::F16(values),
        }
    }

    /// Writes `values` from index `at` on. Halves are rounded to nearest, and beyond their range to the largest one.
    fn write(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(own) => own[at..at + values.len()].copy_from_slice(values),
            Self::F16(own) => {
                let range = f16::MIN.to_f32()..=f16::MAX.to_f32();
                for (own, value) in own[at..at + values.len()].iter_mut().zip(values) {
                    *own = f16::from_f32(value.clamp(*range.start(), *range.end()));
                }
            }
        }
    }

    /// Copies `used` values of each of `heads` heads into new memory of `width` values a head. `None` without memory.
    fn grown(&self, heads: usize, width: usize, used: usize) -> Option<Self> {
        Some(match self {
            Self::F32(old) => Self::F32(grown(old, 0.0, heads, width, used)?),
            Self::F16(old) => Self::F16(grown(old, f16::ZERO, heads, width, used)?),
        })
    }

    /// Moves `count` values within one head from `from` to `to`.
    fn move_within(&mut self, from: usize, to: usize, count: usize) {
        match self {
            Self::F32(values) => values.copy_within(from..from + count, to),
            Self::F16(values) => values.copy_within(from..from + count, to),
        }
    }
}

fn grown<T: Copy>(old: &[T], zero: T, heads: usize, width: usize, used: usize) -> Option<Vec<T>> {
    let mut new = Vec::new();
    new.try_reserve_exact(heads * width).ok()?;
    new.resize(heads * width, zero);
    let old_width = old.len() / heads;
    for head in 0..heads {
        new[head * width..head * width + used].copy_from_slice(&old[head * old_width..][..used]);
    }
    Some(new)
}

impl KvCache {
    /// Creates an empty cache in host memory for at most `max_len` rows.
    pub(crate) fn on_host(spec: &ModelSpec, max_len: usize, kv: KvType) -> Self {
        Self::new(spec, max_len, CacheMemory::Host(kv))
    }

    /// Creates an empty cache of tensors on `device` for at most `max_len` rows.
    pub(crate) fn on_device(spec: &ModelSpec, max_len: usize, device: &Device) -> Self {
        Self::new(spec, max_len, CacheMemory::Candle(device.clone()))
    }

    /// Creates an empty cache for the Metal kernels for at most `max_len` rows.
    pub(crate) fn on_gpu(spec: &ModelSpec, max_len: usize, kernels: &Arc<Kernels>) -> Self {
        Self::new(spec, max_len, CacheMemory::Metal(kernels.clone()))
    }

    fn new(spec: &ModelSpec, max_len: usize, memory: CacheMemory) -> Self {
        // Memory is allocated for the first rows.
        let kv = if let CacheMemory::Host(kv) = memory { kv } else { KvType::F32 };
        let has_state = |layer: usize| spec.layers[layer].mixer != Mixer::Attention;
        let empty = |layer: usize| {
            if !spec.has_keys(layer) {
                return LayerCache::Absent;
            }
            LayerCache::Host { k: HostValues::empty(kv), v: HostValues::empty(kv) }
        };
        let of_layers = |positions: usize| {
            ConvolutionStates::new(positions - 1, spec.n_embd, (0..spec.n_layer).map(has_state))
        };
        Self {
            layers: (0..spec.n_layer).map(empty).collect(),
            convolution_states: spec.convolution.map(of_layers),
            checkpoints: spec
                .delta_net
                .map(|net| Checkpoints::new(net.shape(), (0..spec.n_layer).map(has_state))),
            len: 0,
            capacity: 0,
            max_len,
            heads: (0..spec.n_layer).map(|layer| spec.heads(layer)).collect(),
            memory,
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
        let of_layer = |layer| self.layer_capacity(layer) * self.row_len(layer);
        let values: usize = (0..self.layers.len()).map(of_layer).sum();
        let states = self.convolution_states.as_ref().map_or(0, ConvolutionStates::bytes);
        let checkpoints = self.checkpoints.as_ref().map_or(0, Checkpoints::bytes);
        2 * values * self.kv_type().bytes() + states + checkpoints
    }

    /// Returns the type of keys and values.
    pub(crate) fn kv_type(&self) -> KvType {
        match &self.memory {
            CacheMemory::Host(kv) => *kv,
            CacheMemory::Candle(_) => KvType::F32,
            CacheMemory::Metal(_) => KvType::F16,
        }
    }

    /// Returns the number of values per row of a layer, for keys or for values.
    fn row_len(&self, layer: usize) -> usize {
        self.heads[layer].values()
    }

    /// Returns the number of values per row of all layers, for keys or for values.
    fn all_row_lens(&self) -> usize {
        let held = |layer: &usize| !matches!(self.layers[*layer], LayerCache::Absent);
        (0..self.layers.len()).filter(held).map(|layer| self.row_len(layer)).sum()
    }

    /// Returns the kernels that own the memory on a GPU.
    fn kernels(&self) -> Option<&Arc<Kernels>> {
        if let CacheMemory::Metal(kernels) = &self.memory { Some(kernels) } else { None }
    }

    /// Returns the capacity of a layer in rows, 0 without attention.
    fn layer_capacity(&self, layer: usize) -> usize {
        match &self.layers[layer] {
            LayerCache::Host { k, .. } => k.len() / self.row_len(layer),
            LayerCache::Candle { k, .. } => k.elem_count() / self.row_len(layer),
            LayerCache::Metal(memory) => memory.bytes() / (4 * self.row_len(layer)),
            LayerCache::Absent => 0,
        }
    }

    /// Returns keys, values and capacity in rows of a layer in host memory.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is on a device.
    pub(crate) fn host_layer(&self, layer: usize) -> Result<(CacheValues<'_>, CacheValues<'_>, usize)> {
        match &self.layers[layer] {
            LayerCache::Host { k, v } => Ok((k.as_input(), v.as_input(), self.layer_capacity(layer))),
            LayerCache::Candle { .. } | LayerCache::Metal(_) | LayerCache::Absent => Err(wrong_memory()),
        }
    }

    /// Returns the memory and the capacity in rows of a layer for the Metal kernels.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is elsewhere.
    pub(crate) fn gpu_layer(&self, layer: usize) -> Result<(&Buffer, usize)> {
        match &self.layers[layer] {
            LayerCache::Metal(memory) => Ok((memory, self.layer_capacity(layer))),
            LayerCache::Host { .. } | LayerCache::Candle { .. } | LayerCache::Absent => Err(wrong_memory()),
        }
    }

    /// Returns keys and values of a layer on a device.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is in host memory.
    pub(crate) fn device_layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        match &self.layers[layer] {
            LayerCache::Candle { k, v } => Ok((k, v)),
            LayerCache::Host { .. } | LayerCache::Metal(_) | LayerCache::Absent => Err(wrong_memory()),
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
        let capacity = Self::grown_capacity(
            needed,
            self.capacity,
            self.max_len,
            !matches!(self.memory, CacheMemory::Host(_)),
        );
        let mut replaced = 0;
        for layer in 0..self.layers.len() {
            if self.layer_capacity(layer) < capacity && !matches!(self.layers[layer], LayerCache::Absent) {
                let bytes = 2 * self.layer_capacity(layer) * self.row_len(layer) * self.kv_type().bytes();
                self.layers[layer] = self.grow(layer, capacity)?;
                // The device frees the old buffers only after all queued work is done.
                match &self.memory {
                    CacheMemory::Host(_) => {}
                    CacheMemory::Candle(device) => device.synchronize()?,
                    CacheMemory::Metal(kernels) => {
                        replaced += bytes;
                        if replaced > MAX_REPLACED_BYTES {
                            kernels.gpu().wait()?;
                            replaced = 0;
                        }
                    }
                }
            }
        }
        let kernels = self.kernels().cloned();
        if let Some(states) = &mut self.convolution_states {
            states.reserve(capacity, kernels.as_ref())?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.reserve(kernels.as_ref())?;
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Plans which rows of state a pass reads and writes. `None` if no layer has a short convolution.
    ///
    /// # Errors
    /// [`Error::Internal`] if a row that it reads is not held. A length that is [restorable](Self::restorable) has them.
    pub(crate) fn convolution_plan(&mut self, mask: &RowMask) -> Result<Option<ConvolutionPlan>> {
        self.convolution_states.as_mut().map(|states| states.plan(mask)).transpose()
    }

    /// Plans which states of gated delta nets a pass reads and keeps. `None` if no layer has one.
    ///
    /// # Errors
    /// [`Error::Internal`] if no state is held that it can continue from. A length that is
    /// [restorable](Self::restorable) has one.
    pub(crate) fn delta_plan(&mut self, mask: &RowMask) -> Result<Option<DeltaPlan>> {
        self.checkpoints.as_mut().map(|checkpoints| checkpoints.plan(mask)).transpose()
    }

    /// Returns the states of a layer with a gated delta net on the host, for a pass that was
    /// [planned](Self::delta_plan).
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(crate) fn delta_memory(&mut self, layer: usize) -> Result<&mut DeltaMemory> {
        self.checkpoints.as_mut().ok_or_else(wrong_memory)?.host(layer)
    }

    /// Returns the states of a layer with a gated delta net on the GPU, for a pass that was
    /// [planned](Self::delta_plan).
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(crate) fn gpu_delta_memory(&mut self, layer: usize) -> Result<&GpuDeltaMemory> {
        self.checkpoints.as_mut().ok_or_else(wrong_memory)?.gpu(layer)
    }

    /// Returns the state of a layer in host memory, `[places, n_embd]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(crate) fn host_convolution_state(&mut self, layer: usize) -> Result<&mut [f32]> {
        self.convolution_states.as_mut().ok_or_else(wrong_memory)?.host(layer)
    }

    /// Returns the state of a layer on the GPU, `[places, n_embd]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(crate) fn gpu_convolution_state(&self, layer: usize) -> Result<&Buffer> {
        self.convolution_states.as_ref().ok_or_else(wrong_memory)?.gpu(layer)
    }

    /// Returns the greatest length up to `len` that the cache can be [truncated](Self::truncate) to and continue. It is
    /// `len` itself if all layers have attention.
    pub(crate) fn restorable(&self, len: usize) -> usize {
        let len = len.min(self.len);
        let len = self.convolution_states.as_ref().map_or(len, |states| states.restorable(len));
        self.checkpoints.as_ref().map_or(len, |checkpoints| checkpoints.restorable(len))
    }

    fn grow(&self, index: usize, capacity: usize) -> Result<LayerCache> {
        let (layer, heads) = (&self.layers[index], self.heads[index]);
        let device = match &self.memory {
            CacheMemory::Host(kv) => {
                let LayerCache::Host { k, v } = layer else {
                    return Err(wrong_memory());
                };
                let (k, v) =
                    (self.grow_host(k, heads, (capacity, *kv))?, self.grow_host(v, heads, (capacity, *kv))?);
                return Ok(LayerCache::Host { k, v });
            }
            CacheMemory::Metal(kernels) => return self.grow_gpu(index, capacity, kernels),
            CacheMemory::Candle(device) => device,
        };
        let shape = (heads.count, capacity, heads.width);
        let k = Tensor::zeros(shape, DType::F32, device)?;
        let v = Tensor::zeros(shape, DType::F32, device)?;
        if let LayerCache::Candle { k: old_k, v: old_v } = layer
            && self.len > 0
        {
            k.slice_set(&old_k.narrow(1, 0, self.len)?.force_contiguous()?, 1, 0)?;
            v.slice_set(&old_v.narrow(1, 0, self.len)?.force_contiguous()?, 1, 0)?;
        }
        Ok(LayerCache::Candle { k, v })
    }

    fn grow_gpu(&self, layer: usize, capacity: usize, kernels: &Kernels) -> Result<LayerCache> {
        let row_bytes = self.row_len(layer) * size_of::<half::f16>();
        let new = Buffer::new(kernels.gpu(), 2 * capacity * row_bytes)?;
        if let LayerCache::Metal(old) = &self.layers[layer]
            && self.len > 0
        {
            // Keys, then values.
            for side in 0..2 {
                let (from, to) = (side * (old.bytes() / 2), side * capacity * row_bytes);
                kernels.copy(old.at_byte(from), new.at_byte(to), self.len * row_bytes)?;
            }
        }
        Ok(LayerCache::Metal(new))
    }

    fn grow_host(
        &self,
        old: &HostValues,
        heads: KeyHeads,
        (capacity, kv): (usize, KvType),
    ) -> Result<HostValues> {
        let (width, used) = (capacity * heads.width, self.len * heads.width);
        old.grown(heads.count, width, used).ok_or_else(|| {
            Error::OutOfMemory(format!(
                "the KV cache needs {} for {capacity} tokens. Start a new conversation, or load the \
                 models with a smaller context",
                megabytes((2 * self.all_row_lens() * capacity * kv.bytes()) as u64)
            ))
        })
    }

    /// Writes rows after the current ones in host memory, `k` and `v` `[rows, n_kv_head * head_dim]`.
    ///
    /// Call [`KvCache::advance`] once all layers are written.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cache is on a device.
    pub(crate) fn write_rows(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<()> {
        let KeyHeads { count: heads, width: d } = self.heads[layer];
        let (len, capacity) = (self.len, self.layer_capacity(layer));
        let LayerCache::Host { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_memory());
        };
        for (cache, rows) in [(keys, k), (values, v)] {
            for (index, part) in rows.chunks_exact(d).enumerate() {
                cache.write((index % heads * capacity + len + index / heads) * d, part);
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
        let (KeyHeads { count: heads, width: d }, len) = (self.heads[layer], self.len);
        let rows = v.dim(0)?;
        let LayerCache::Candle { k: keys, v: values } = &mut self.layers[layer] else {
            return Err(wrong_memory());
        };
        let v = v.reshape((rows, heads, d))?.transpose(0, 1)?.contiguous()?;
        keys.slice_set(&k.reshape((heads, rows, d))?, 1, len)?;
        Ok(values.slice_set(&v, 1, len)?)
    }

    /// Adds `rows` written rows to the length.
    pub(crate) fn advance(&mut self, rows: usize) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.advance(self.len, rows);
        }
        self.len += rows;
        assert!(self.len <= self.capacity, "rows must be reserved before they are written");
    }

    /// Drops the rows from `len` on after passes that were counted and then failed on the device.
    pub(crate) fn drop_unfinished(&mut self, len: usize) {
        self.truncate(len);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.forget_unfinished(len);
        }
    }

    /// Drops the rows from `len` on, in O(1). The next pass fails unless `len` is [restorable](Self::restorable).
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
            let kernels = self.kernels().cloned();
            if let Some(states) = &mut self.convolution_states {
                states.keep(base, rows, kernels.as_ref())?;
            }
            if let Some(checkpoints) = &mut self.checkpoints {
                checkpoints.keep(base, rows, kernels.as_ref())?;
            }
            self.move_gpu_rows(base, &rows[first..], first)?;
            for (layer, &KeyHeads { count, width: of_head }) in self.layers.iter_mut().zip(&self.heads) {
                match layer {
                    LayerCache::Host { k, v } => {
                        let width = k.len() / count;
                        for cache in [k, v] {
                            for head in (0..count).map(|head| head * width) {
                                for (to, &from) in rows.iter().enumerate().skip(first) {
                                    let at = |row: usize| head + (base + row) * of_head;
                                    cache.move_within(at(from), at(to), of_head);
                                }
                            }
                        }
                    }
                    LayerCache::Candle { k, v } => {
                        let index: Vec<u32> = rows.iter().map(|r| (base + r) as u32).collect();
                        let index = Tensor::new(index, k.device())?;
                        for cache in [k, v] {
                            let kept = cache.index_select(&index, 1)?;
                            cache.slice_set(&kept, 1, base)?;
                        }
                    }
                    // Moved above.
                    LayerCache::Metal(_) | LayerCache::Absent => {}
                }
            }
        }
        self.len = base + rows.len();
        Ok(())
    }

    /// Moves rows `base + rows[i]` to `base + first + i` in the memory of the Metal kernels.
    fn move_gpu_rows(&self, base: usize, rows: &[usize], first: usize) -> Result<()> {
        let CacheMemory::Metal(kernels) = &self.memory else { return Ok(()) };
        let moves: Vec<(usize, usize)> =
            rows.iter().enumerate().map(|(to, from)| (base + from, base + first + to)).collect();
        let moves = RowMoves::new(kernels.gpu(), &moves)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if let LayerCache::Metal(memory) = layer {
                for keys_or_values in [0, memory.bytes() / 2] {
                    kernels.move_rows(memory.at_byte(keys_or_values), &moves, self.row_len(index))?;
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
    use crate::spec::tests::tiny as spec;

    /// A value for each element, of at most 11 bits, so that halves hold it exactly.
    fn encoded(layer: usize, row: usize, i: usize) -> f32 {
        ((layer * 577 + row * 8 + i) % 2039) as f32
    }

    /// Appends rows whose values encode layer and position.
    fn append(cache: &mut KvCache, rows: usize) {
        cache.reserve(rows).unwrap();
        for layer in 0..3 {
            let values: Vec<f32> =
                (0..rows * 8).map(|i| encoded(layer, cache.len() + i / 8, i % 8)).collect();
            cache.write_rows(layer, &values, &values).unwrap();
        }
        cache.advance(rows);
    }

    fn assert_holds(cache: &KvCache, rows: usize) {
        for layer in 0..3 {
            let (k, v, capacity) = cache.host_layer(layer).unwrap();
            assert_eq!(k, v);
            let value = |at: usize| match k {
                CacheValues::F32(values) => values[at],
                CacheValues::F16(values) => values[at].to_f32(),
            };
            for (row, head, i) in (0..rows).flat_map(|row| (0..8).map(move |i| (row, i / 4, i))) {
                let at = (head * capacity + row) * 4 + i % 4;
                assert_eq!(value(at), encoded(layer, row, i), "{layer} {row} {i}");
            }
        }
    }

    #[test]
    fn growth_keeps_contents() {
        for kv in [KvType::F32, KvType::F16] {
            let mut cache = KvCache::on_host(&spec(3), 1000, kv);
            for _ in 0..10 {
                append(&mut cache, 100);
                assert_holds(&cache, cache.len());
            }
            // A full cache has no spare capacity.
            assert_eq!((cache.capacity, cache.bytes()), (1000, 2 * 3 * 1000 * 8 * kv.bytes()));
            let full = cache.reserve(1);
            assert!(matches!(full, Err(Error::ContextOverflow { prompt: 1001, context: 1000 })));
            assert_holds(&cache, 1000);
        }
    }

    #[test]
    fn halves_beyond_their_range_stay_finite() {
        let mut cache = KvCache::on_host(&spec(1), 4, KvType::F16);
        cache.reserve(1).unwrap();
        let row = [1e9, -1e9, 65504.0, 0.1, 0.0, -0.0, 1e-9, 2.0];
        cache.write_rows(0, &row, &row).unwrap();
        let (CacheValues::F16(k), ..) = cache.host_layer(0).unwrap() else { panic!("halves") };
        assert_eq!((k[0], k[1], k[2]), (f16::MAX, f16::MIN, f16::MAX));
        assert!((k[3].to_f32() - 0.1).abs() < 1e-4);
    }

    #[test]
    fn works_after_growth_failed_halfway() {
        let mut cache = KvCache::on_host(&spec(3), 1000, KvType::F16);
        append(&mut cache, 200);
        // The state after a growth that failed at the second layer.
        cache.layers[0] = cache.grow(0, 512).unwrap();
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
