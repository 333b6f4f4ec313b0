//! The GPU of a Mac, through candle's Metal device. Kernels and models do not belong here.
//!
//! Dispatches are encoded into candle's command buffers, which candle commits every 50 encodings. Its
//! encoder runs dispatches concurrently. It puts a barrier where one reads or writes what an earlier one
//! wrote, so outputs have to be bound as outputs.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::MetalDevice;
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder, ComputePipeline};
use objc2_metal::{
    MTLCompileOptions, MTLDevice, MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode,
};
use objc2_metal::{MTLResourceOptions, MTLSize};

use super::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};
use hunch_error::{Error, Result, megabytes};

/// GPU of a Mac.
pub struct MetalGpu {
    device: MetalDevice,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buffers: HashMap<u32, Buffer>,
    next_buffer: u32,
    pipelines: Vec<(String, ComputePipeline)>,
    /// Buffers that queued work uses.
    used: HashSet<u32>,
    /// Freed buffers that queued work may still use.
    retired: Vec<Buffer>,
}

impl MetalGpu {
    /// Wraps candle's device.
    pub fn new(device: MetalDevice) -> Self {
        Self { device, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all queued work, then frees what it may have used.
    fn finish(&self, state: &mut State) -> Result<()> {
        self.device.flush_and_wait_current()?;
        state.used.clear();
        self.device.unregister_buffers(&state.retired);
        state.retired.clear();
        Ok(())
    }
}

impl State {
    fn buffer(&self, id: BufferId) -> Result<&Buffer> {
        self.buffers.get(&id.0).ok_or_else(|| Error::Internal(format!("there is no GPU buffer {}", id.0)))
    }

    /// Returns the start of a range of a buffer in shared memory.
    fn range(&self, id: BufferId, offset: usize, len: usize) -> Result<*mut u8> {
        let buffer = self.buffer(id)?;
        if offset.checked_add(len).is_none_or(|end| end > buffer.length()) {
            return Err(Error::Internal(format!(
                "{len} bytes at {offset} are outside of GPU buffer {}",
                id.0
            )));
        }
        Ok(buffer.contents().wrapping_add(offset))
    }
}

/// Returns the compiler's settings: no reordering of floating-point arithmetic, precise functions.
fn compile_options() -> objc2::rc::Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_1);
    // Both need macOS 15, as candle's device does.
    options.setMathMode(MTLMathMode::Safe);
    options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    options
}

fn failed(name: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Device { device: "metal", reason: format!("the kernel {name} is refused: {error}") }
}

impl Gpu for MetalGpu {
    fn name(&self) -> String {
        self.device.device().as_ref().name().to_string()
    }

    fn compile(&self, source: &KernelSource) -> Result<KernelId> {
        let (name, device) = (&source.name, self.device.device());
        let library = device
            .new_library_with_source(&source.text, Some(&compile_options()))
            .map_err(|e| failed(name, &e))?;
        let function = library.get_function(&source.function, None).map_err(|e| failed(name, &e))?;
        let pipeline =
            device.new_compute_pipeline_state_with_function(&function).map_err(|e| failed(name, &e))?;
        let mut state = self.state();
        state.pipelines.push((name.clone(), pipeline));
        Ok(KernelId(state.pipelines.len() as u32 - 1))
    }

    fn allocate(&self, bytes: usize) -> Result<BufferId> {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // Not from candle's pool, whose buffers have sizes of powers of two.
        let buffer = self.device.device().new_buffer(bytes, options).map_err(|_| {
            Error::OutOfMemory(format!("the GPU has no room for a buffer of {}", megabytes(bytes as u64)))
        })?;
        self.device.register_buffers([&buffer]);
        let mut state = self.state();
        let id = state.next_buffer;
        state.next_buffer += 1;
        state.buffers.insert(id, buffer);
        Ok(BufferId(id))
    }

    fn release(&self, buffer: BufferId) {
        let mut state = self.state();
        let Some(freed) = state.buffers.remove(&buffer.0) else { return };
        if state.used.remove(&buffer.0) {
            state.retired.push(freed);
        } else {
            self.device.unregister_buffers([&freed]);
        }
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        if state.used.contains(&buffer.0) {
            self.finish(&mut state)?;
        }
        let to = state.range(buffer, offset, bytes.len())?;
        // SAFETY: the range is inside the buffer, whose memory is shared with the CPU. No queued work uses
        // the buffer, and the lock keeps other writers away.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut state = self.state();
        self.finish(&mut state)?;
        let from = state.range(buffer, offset, out.len())?;
        // SAFETY: the range is inside the buffer, whose memory is shared with the CPU. All work is done,
        // and the lock keeps writers away.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn dispatch(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        let mut state = self.state();
        let Some((name, pipeline)) = state.pipelines.get(kernel.0 as usize) else {
            return Err(Error::Internal(format!("there is no kernel {}", kernel.0)));
        };
        let most = pipeline.max_total_threads_per_threadgroup();
        if grid.threads as usize > most {
            return Err(failed(name, &format!("it needs {} threads, this GPU runs {most}", grid.threads)));
        }
        let guard = self.device.command_encoder()?;
        let encoder: &ComputeCommandEncoder = guard.as_ref();
        encoder.set_compute_pipeline_state(pipeline);
        for (index, argument) in arguments.iter().enumerate() {
            match *argument {
                Argument::Input(id, offset) => {
                    encoder.set_input_buffer(index, Some(state.buffer(id)?), offset)
                }
                Argument::Output(id, offset) => {
                    encoder.set_output_buffer(index, Some(state.buffer(id)?), offset)
                }
                Argument::Constants(words) => {
                    encoder.set_bytes_directly(index, size_of_val(words), words.as_ptr().cast());
                }
            }
        }
        if grid.scratch > 0 {
            encoder.set_threadgroup_memory_length(0, grid.scratch);
        }
        let [width, height, depth] = grid.groups.map(|n| n as usize);
        let threads = MTLSize { width: grid.threads as usize, height: 1, depth: 1 };
        encoder.dispatch_thread_groups(MTLSize { width, height, depth }, threads);
        drop(guard);
        state.used.extend(arguments.iter().filter_map(|argument| match argument {
            Argument::Input(id, _) | Argument::Output(id, _) => Some(id.0),
            Argument::Constants(_) => None,
        }));
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let mut state = self.state();
        self.finish(&mut state)
    }
}
