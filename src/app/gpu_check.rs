//! The self-test of the GPU's kernels at the first start on a machine, in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::App;
use crate::api::{GpuCheck, GpuCosts};
use hunch_library::types::LibraryEvent;
use hunch_model::device::Compute;
use hunch_model::metal::costs::Basis;

impl App {
    /// Starts the self-test if this machine has a GPU and no record of it.
    pub(super) fn test_gpu(&self) {
        self.shared.testing_gpu.store(true, Ordering::Release);
        let shared = Arc::downgrade(&self.shared);
        let started = self.shared.compute.start_self_test(move || {
            let Some(shared) = shared.upgrade() else { return };
            shared.testing_gpu.store(false, Ordering::Release);
            App { shared }.announce(LibraryEvent::GpuTested);
        });
        if !started {
            self.shared.testing_gpu.store(false, Ordering::Release);
        }
    }

    /// Returns the state of the self-test. `None` on the CPU, and if the test could not run.
    pub(super) fn gpu_check(&self) -> Option<GpuCheck> {
        if self.shared.testing_gpu.load(Ordering::Acquire) {
            return Some(GpuCheck::Running);
        }
        let record = self.shared.compute.known_self_test()?;
        let problems = record.test.problems().map(str::to_owned).collect();
        Some(GpuCheck::Done { problems, costs: costs(&self.shared.compute) })
    }
}

/// Returns the source of predicted costs. `None` on the CPU and on unknown chips.
fn costs(compute: &Compute) -> Option<GpuCosts> {
    Some(match compute.cost_basis(None)? {
        Basis::Chip(chip) => {
            GpuCosts::Chip { name: chip.name.into_owned(), memory_gb_s: chip.memory_gb_s, cores: chip.cores }
        }
        Basis::Measured(times) => GpuCosts::Products { memory_gb_s: times.memory_gb_s },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::{App, AppConfig};
    use super::costs;
    use crate::api::{GpuCheck, GpuCosts};
    use hunch_library::types::LibraryEvent;
    use hunch_model::device::{Compute, DeviceChoice, SELF_TEST_FILE};
    use hunch_model::metal::selftest::GpuTimes;
    use hunch_testing::idle_gpu::IdleGpu;

    #[test]
    fn gpu_is_tested_in_the_background_at_the_first_start() {
        let folder = tempfile::tempdir().unwrap();
        let config = AppConfig {
            models_folder: Some(folder.path().join("models")),
            store: Some(folder.path().join("conversations.db")),
            device: DeviceChoice::Cpu,
            ..AppConfig::default()
        };
        let (open, compute) = IdleGpu::gated();
        let app = App::start_on(compute, config.clone()).unwrap();
        let (sender, receiver) = channel();
        app.set_library_listener(Box::new(move |event| {
            if event == LibraryEvent::GpuTested {
                sender.send(()).unwrap();
            }
        }));
        assert_eq!(app.info().gpu, Some(GpuCheck::Running));
        drop(open);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        let Some(GpuCheck::Done { problems, costs: None }) = app.info().gpu else {
            panic!("the test is over")
        };
        assert!(problems[0].starts_with("product F32 failed"), "{problems:?}");
        assert!(folder.path().join(SELF_TEST_FILE).is_file());

        // The next start reads the record. A test would wait for its first kernel.
        let (_open, compute) = IdleGpu::gated();
        let app = App::start_on(compute, config.clone()).unwrap();
        assert_eq!(app.info().gpu, Some(GpuCheck::Done { problems, costs: None }));
        let app = App::start(config).unwrap();
        assert_eq!(app.info().gpu, None, "the CPU has no such test");
    }

    #[test]
    fn timed_products_replace_published_figures() {
        let chip = GpuCosts::Chip { name: "Apple M4 Max".into(), memory_gb_s: 546.0, cores: 40 };
        assert_eq!(costs(&IdleGpu::tested("Apple M4 Max", None)), Some(chip));
        let times = GpuTimes { product_ms: vec![1.0; 16], product_bytes: 1, memory_gb_s: 431.0 };
        let timed = costs(&IdleGpu::tested("Apple M4 Max", Some(times)));
        assert_eq!(timed, Some(GpuCosts::Products { memory_gb_s: 431.0 }));
        assert_eq!(costs(&IdleGpu::tested("idle GPU", None)), None);
        assert_eq!(costs(&Compute::open(DeviceChoice::Cpu, Some(1)).unwrap()), None);
    }
}
