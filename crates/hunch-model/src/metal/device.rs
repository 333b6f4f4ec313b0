//! The GPU of a Mac, through candle's Metal device. Kernels and models do not belong here.
//!
//! Dispatches are encoded into candle's command buffers, which candle commits every 50 encodings. Its
//! encoder runs dispatches concurrently. It puts a barrier where one reads or writes what an earlier one
//! wrote, so outputs have to be bound as outputs.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::MetalDevice;
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder, ComputePipeline};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLAllocation, MTLCompileOptions, MTLDevice, MTLLanguageVersion, MTLMathFloatingPointFunctions,
    MTLMathMode, MTLResidencySet, MTLResidencySetDescriptor, MTLResourceOptions, MTLSize,
};

use super::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};
use super::waiting::{Waited, wait_for_all};
use hunch_error::{Error, Result, megabytes};

/// GPU of a Mac.
pub struct MetalGpu {
    device: MetalDevice,
    /// `None` if the system has no residency sets.
    residency: Option<Arc<Residency>>,
    state: Mutex<DeviceState>,
}

#[derive(Default)]
struct DeviceState {
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
        let residency = Residency::new(&device).map(Arc::new);
        Self { device, residency, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all queued work, then frees what it may have used.
    fn finish(&self, state: &mut DeviceState) -> Result<()> {
        if state.used.is_empty() {
            return Ok(());
        }
        let flush = || self.device.flush_and_wait_current();
        let wait = || self.device.wait_until_completed();
        let Waited { is_idle, outcome } = autoreleasepool(|_| wait_for_all(flush, wait));
        if is_idle {
            state.used.clear();
            self.forget(&std::mem::take(&mut state.retired));
        }
        Ok(outcome?)
    }

    /// Ends the residency of buffers.
    fn forget(&self, buffers: &[Buffer]) {
        autoreleasepool(|_| {
            self.device.unregister_buffers(buffers);
            if let Some(residency) = &self.residency {
                residency.change(buffers, |set, buffer| set.removeAllocation(buffer));
            }
        });
    }
}

/// Keeps the memory of all buffers wired while the GPU is in use.
///
/// The system unwires memory about a second after the last work, and the next pass would wait until it is wired again.
/// candle's own set asks once, when it is empty.
struct Residency {
    /// Lock for the set, which one thread at a time may use.
    set: Mutex<Retained<ProtocolObject<dyn MTLResidencySet>>>,
    last_use: Mutex<Instant>,
    /// `true` while a thread repeats the request.
    kept: AtomicBool,
}

// SAFETY: the set has no tie to a thread, and the mutex lets one thread at a time use it.
unsafe impl Send for Residency {}
// SAFETY: as above.
unsafe impl Sync for Residency {}

impl Residency {
    /// Time after the last work for which memory stays wired.
    const KEPT_FOR: Duration = Duration::from_secs(180);
    /// Time between two requests. The system unwires after about a second.
    const INTERVAL: Duration = Duration::from_millis(500);

    /// Creates an empty set. `None` if the system has none.
    fn new(device: &MetalDevice) -> Option<Self> {
        let descriptor = MTLResidencySetDescriptor::new();
        let set = device.device().as_ref().newResidencySetWithDescriptor_error(&descriptor).ok()?;
        Some(Self {
            set: Mutex::new(set),
            last_use: Mutex::new(Instant::now()),
            kept: AtomicBool::new(false),
        })
    }

    fn set(&self) -> MutexGuard<'_, Retained<ProtocolObject<dyn MTLResidencySet>>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or removes buffers. The next request makes new ones resident.
    fn change<'a>(
        &self,
        buffers: impl IntoIterator<Item = &'a Buffer>,
        change: impl Fn(&ProtocolObject<dyn MTLResidencySet>, &ProtocolObject<dyn MTLAllocation>),
    ) {
        let set = self.set();
        buffers.into_iter().for_each(|buffer| change(&set, ProtocolObject::from_ref(buffer.as_ref())));
        set.commit();
    }

    /// Notes that the GPU is used, and starts the thread that keeps its memory wired.
    fn keep(this: &Arc<Self>) {
        *this.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if this.kept.swap(true, Ordering::Relaxed) {
            return;
        }
        let residency = Arc::downgrade(this);
        let repeat = move || {
            while let Some(residency) = residency.upgrade() {
                let unused = residency.last_use.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
                if unused > Self::KEPT_FOR {
                    residency.kept.store(false, Ordering::Relaxed);
                    return;
                }
                autoreleasepool(|_| residency.set().requestResidency());
                drop(residency);
                std::thread::sleep(Self::INTERVAL);
            }
        };
        // Without the thread, the first pass after a pause is slower.
        if std::thread::Builder::new().name("hunch-residency".into()).spawn(repeat).is_err() {
            this.kept.store(false, Ordering::Relaxed);
        }
    }
}

impl DeviceState {
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
fn compile_options() -> Retained<MTLCompileOptions> {
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
        let pipeline = autoreleasepool(|_| {
            let library = device
                .new_library_with_source(&source.text, Some(&compile_options()))
                .map_err(|e| failed(name, &e))?;
            let function = library.get_function(&source.function, None).map_err(|e| failed(name, &e))?;
            device.new_compute_pipeline_state_with_function(&function).map_err(|e| failed(name, &e))
        })?;
        let mut state = self.state();
        state.pipelines.push((name.clone(), pipeline));
        Ok(KernelId(state.pipelines.len() as u32 - 1))
    }

    fn allocate(&self, bytes: usize) -> Result<BufferId> {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // Not from candle's pool, whose buffers have sizes of powers of two.
        let buffer = autoreleasepool(|_| self.device.device().new_buffer(bytes, options)).map_err(|_| {
            Error::OutOfMemory(format!("the GPU has no room for a buffer of {}", megabytes(bytes as u64)))
        })?;
        // candle's residency set has no lock of its own.
        let mut state = self.state();
        autoreleasepool(|_| {
            self.device.register_buffers([&buffer]);
            if let Some(residency) = &self.residency {
                residency.change([&buffer], |set, buffer| set.addAllocation(buffer));
            }
        });
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
            self.forget(&[freed]);
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
        // Metal's own objects are freed here, not at the end of the thread, which lives as long as the program.
        autoreleasepool(|_| self.encode(kernel, arguments, grid))
    }

    fn wait(&self) -> Result<()> {
        let mut state = self.state();
        self.finish(&mut state)
    }
}

impl MetalGpu {
    fn encode(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        if let Some(residency) = &self.residency {
            Residency::keep(residency);
        }
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
}
