//! The GPU as the Metal executor sees it: buffers, kernels, dispatches and a wait.
//!
//! A Mac offers it through candle's Metal device, the tests through a simulator. The executor sees no
//! difference. Kernels and models do not belong here.

use std::fmt;
use std::sync::Arc;

use hunch_error::{Error, Result};

/// Number of a buffer on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(pub u32);

/// Number of a compiled kernel on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId(pub u32);

/// Text of one kernel in the Metal shading language.
///
/// Each kernel is a library of its own, so a text that a system refuses costs one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Name for messages, unique among all kernels: file, function and settings.
    pub name: String,
    /// Complete text of the library.
    pub text: String,
    /// Name of the kernel function.
    pub function: String,
}

/// Argument of a kernel. Arguments are bound in order, from buffer index 0.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Buffer the kernel reads, from a byte offset.
    Input(BufferId, usize),
    /// Buffer the kernel writes, from a byte offset.
    Output(BufferId, usize),
    /// Constants, at most 4096 bytes.
    Constants(&'a [u32]),
}

/// Place in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferAt<'a> {
    /// Buffer.
    pub buffer: &'a Buffer,
    /// Bytes before the place.
    pub bytes: usize,
}

impl BufferAt<'_> {
    /// Returns what begins here as an argument that is read.
    pub fn input(self) -> Argument<'static> {
        Argument::Input(self.buffer.id, self.bytes)
    }

    /// Returns what begins here as an argument that is written.
    pub fn output(self) -> Argument<'static> {
        Argument::Output(self.buffer.id, self.bytes)
    }

    /// Waits for all queued work and reads from the first of `n` values of a row to the last of them in row `rows`. Rows
    /// begin here and have `stride` values, and what lies between is read too.
    ///
    /// # Errors
    /// See [`Buffer::read_floats`].
    pub(super) fn read_rows(self, rows: usize, stride: usize, n: usize) -> Result<Vec<u8>> {
        let values = (rows - 1) * stride + n;
        self.buffer.read(self.bytes, values * size_of::<f32>())
    }
}

/// Number of threads of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Threadgroups in each direction.
    pub groups: [u32; 3],
    /// Threads per threadgroup, a multiple of 32.
    pub threads: u32,
    /// Threadgroup memory in bytes, at index 0. A multiple of 16, or 0.
    pub scratch: usize,
}

impl Grid {
    /// Returns a grid without threadgroup memory.
    pub fn new(groups: [usize; 3], threads: u32) -> Self {
        Self { groups: groups.map(|n| n as u32), threads, scratch: 0 }
    }

    /// Returns the same grid with bytes of threadgroup memory.
    #[must_use]
    pub fn with_scratch(self, scratch: usize) -> Self {
        Self { scratch, ..self }
    }
}

/// GPU that runs dispatches in the order of their encoding.
///
/// A dispatch sees everything that earlier dispatches and writes wrote.
pub trait Gpu: Send + Sync {
    /// Returns the name of the chip, such as "Apple M4 Max".
    fn name(&self) -> String;
    /// Compiles a kernel.
    ///
    /// # Errors
    /// If the text is refused. The message names the kernel.
    fn compile(&self, source: &KernelSource) -> Result<KernelId>;
    /// Allocates a buffer with any contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory.
    fn allocate(&self, bytes: usize) -> Result<BufferId>;
    /// Frees a buffer once all queued work that uses it is done.
    fn release(&self, buffer: BufferId);
    /// Writes bytes to a buffer, after all queued work that uses it.
    ///
    /// # Errors
    /// If the device fails.
    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<()>;
    /// Waits for all queued work, then reads bytes of a buffer.
    ///
    /// # Errors
    /// If the device or queued work failed.
    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<()>;
    /// Queues a kernel.
    ///
    /// # Errors
    /// If the device fails.
    fn dispatch(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()>;
    /// Waits for all queued work.
    ///
    /// # Errors
    /// If queued work failed.
    fn wait(&self) -> Result<()>;
}

/// Memory on a GPU. Freed when dropped.
pub struct Buffer {
    gpu: Arc<dyn Gpu>,
    id: BufferId,
    bytes: usize,
}

impl Buffer {
    /// Allocates a buffer with any contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory.
    pub fn new(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<Self> {
        // Metal has no empty buffers.
        Ok(Self { id: gpu.allocate(bytes.max(16))?, gpu: gpu.clone(), bytes })
    }

    /// Allocates a buffer with these contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory, or if the device fails.
    pub fn with_bytes(gpu: &Arc<dyn Gpu>, bytes: &[u8]) -> Result<Self> {
        let buffer = Self::new(gpu, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Allocates a buffer of f32 values.
    ///
    /// # Errors
    /// See [`Buffer::with_bytes`].
    pub fn with_floats(gpu: &Arc<dyn Gpu>, values: &[f32]) -> Result<Self> {
        Self::with_bytes(gpu, &float_bytes(values))
    }

    /// Allocates a buffer of u32 values.
    ///
    /// # Errors
    /// See [`Buffer::with_bytes`].
    pub fn with_words(gpu: &Arc<dyn Gpu>, words: &[u32]) -> Result<Self> {
        Self::with_bytes(gpu, &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Returns the number of the buffer.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the place after some bytes.
    pub fn at_byte(&self, bytes: usize) -> BufferAt<'_> {
        BufferAt { buffer: self, bytes }
    }

    /// Returns the place after some values of 4 bytes.
    pub fn at_value(&self, values: usize) -> BufferAt<'_> {
        self.at_byte(4 * values)
    }

    /// Returns the buffer as an argument that is read.
    pub fn input(&self) -> Argument<'static> {
        Argument::Input(self.id, 0)
    }

    /// Returns the buffer as an argument that is written.
    pub fn output(&self) -> Argument<'static> {
        Argument::Output(self.id, 0)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// [`Error::Internal`] if the range is outside of the buffer, or if the device fails.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.gpu.write(self.id, offset, bytes)
    }

    /// Writes f32 values at an offset in bytes.
    ///
    /// # Errors
    /// See [`Buffer::write`].
    pub fn write_floats(&self, offset: usize, values: &[f32]) -> Result<()> {
        self.write(offset, &float_bytes(values))
    }

    /// Waits for all queued work and reads `count` f32 values from an offset in bytes.
    ///
    /// # Errors
    /// [`Error::Internal`] if the range is outside of the buffer, or if the device fails.
    pub fn read_floats(&self, offset: usize, count: usize) -> Result<Vec<f32>> {
        let bytes = self.read(offset, count * size_of::<f32>())?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Waits for all queued work and reads `len` bytes from an offset.
    ///
    /// # Errors
    /// See [`Buffer::read_floats`].
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        self.check(offset, len)?;
        let mut bytes = vec![0; len];
        self.gpu.read(self.id, offset, &mut bytes)?;
        Ok(bytes)
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "{len} bytes at {offset} are outside of a GPU buffer of {} bytes",
            self.bytes
        )))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.gpu.release(self.id);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes)", self.id.0, self.bytes)
    }
}

/// Returns the bytes of f32 values in memory order.
fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
