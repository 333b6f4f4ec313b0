//! The key and value cache. It appends, truncates in O(1) and keeps chosen rows; it knows nothing
//! of drafts.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::model::spec::ModelSpec;

/// Rows allocated at first; doubled when full.
const FIRST_CAPACITY: usize = 256;

/// Keys and values of all layers, `[n_kv_head, capacity, head_dim]` each.
pub struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
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
        2 * self.layers.len() * self.n_kv_head * self.capacity * self.head_dim * size_of::<f32>()
    }

    /// Keys and values of a layer in host memory.
    ///
    /// # Errors
    /// [`Error::Internal`] when they are on a device.
    pub fn host_layer(&self, layer: usize) -> Result<(&[f32], &[f32])> {
        match &self.layers[layer] {
            LayerCache::Host { k, v } => Ok((k, v)),
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

    /// Makes room for `rows` more rows.
    ///
    /// # Errors
    /// [`Error::ContextOverflow`] past the maximum, [`Error::OutOfMemory`] when the system has no
    /// room. The cache is then as it was.
    pub fn reserve(&mut self, rows: usize) -> Result<()> {
        let needed = self.len + rows;
        if needed > self.max_len {
            return Err(Error::ContextOverflow { prompt: needed, context: self.max_len });
        }
        if needed <= self.capacity {
            return Ok(());
        }
        let capacity = needed.max(2 * self.capacity).max(FIRST_CAPACITY).min(self.max_len);
        let grown = self.layers.iter().map(|layer| self.grow(layer, capacity)).collect::<Result<Vec<_>>>()?;
        self.layers = grown;
        self.capacity = capacity;
        Ok(())
    }

    fn grow(&self, layer: &LayerCache, capacity: usize) -> Result<LayerCache> {
        let width = capacity * self.head_dim;
        let Some(device) = &self.device else {
            let LayerCache::Host { k, v } = layer else {
                return Err(wrong_place());
            };
            return Ok(LayerCache::Host { k: self.grow_host(k, width)?, v: self.grow_host(v, width)? });
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

    fn grow_host(&self, old: &[f32], width: usize) -> Result<Vec<f32>> {
        let mut new = Vec::new();
        let size = self.n_kv_head * width;
        new.try_reserve_exact(size).map_err(|_| {
            Error::OutOfMemory(format!(
                "the cache needs {} MiB more",
                (2 * self.layers.len() * size * size_of::<f32>()) >> 20
            ))
        })?;
        new.resize(size, 0.0);
        let old_width = self.capacity * self.head_dim;
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
        let (heads, d, len, capacity) = (self.n_kv_head, self.head_dim, self.len, self.capacity);
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
                        for cache in [k, v] {
                            for head in cache.chunks_exact_mut(self.capacity * self.head_dim) {
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
