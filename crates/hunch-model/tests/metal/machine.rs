//! The GPU that the kernels are tested on: simulated, or that of a Mac with `HUNCH_METAL_DEVICE=1`.

use std::sync::Arc;

use hunch_model::metal::gpu::Gpu;

use hunch_testing::simulator::{Schedule, Simulator};

/// GPU under test.
pub(crate) struct Machine {
    pub(crate) gpu: Arc<dyn Gpu>,
    simulator: Option<Arc<Simulator>>,
}

impl Machine {
    /// Starts a simulator, or opens the Mac's GPU if that is asked for.
    pub(crate) fn start() -> Self {
        if std::env::var_os("HUNCH_METAL_DEVICE").is_some() {
            return Self { gpu: device(), simulator: None };
        }
        let simulator = Simulator::start();
        Self { gpu: simulator.clone(), simulator: Some(simulator) }
    }

    /// Sets the schedule of the next dispatches. A Mac has its own.
    pub(crate) fn set_schedule(&self, schedule: Schedule) {
        if let Some(simulator) = &self.simulator {
            simulator.set_schedule(schedule);
        }
    }
}

#[cfg(target_os = "macos")]
fn device() -> Arc<dyn Gpu> {
    match candle_core::Device::new_metal(0).expect("this Mac has no Metal GPU") {
        candle_core::Device::Metal(device) => Arc::new(hunch_model::metal::device::MetalGpu::new(device)),
        _ => unreachable!("a Metal device is on Metal"),
    }
}

#[cfg(not(target_os = "macos"))]
fn device() -> Arc<dyn Gpu> {
    panic!("HUNCH_METAL_DEVICE is set, but only a Mac has a Metal GPU");
}
