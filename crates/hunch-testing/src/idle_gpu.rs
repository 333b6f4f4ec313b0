//! A GPU that keeps no data and refuses all kernels, for code that looks at a GPU without computing on it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use hunch_error::{Error, Result};
use hunch_model::device::{Compute, SELF_TEST_FILE};
use hunch_model::metal::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};
use hunch_model::metal::selftest::{
    Finding, GpuTimes, KernelPart, MachineId, SelfTest, SelfTestRecord, Workload,
};

/// GPU that accepts buffers and refuses kernels.
pub struct IdleGpu {
    name: &'static str,
    /// Each kernel is refused after a message, or once the sender is gone.
    gate: Mutex<Receiver<()>>,
}

impl IdleGpu {
    /// Opens a GPU whose kernels wait for the sender.
    pub fn gated() -> (Sender<()>, Compute) {
        let (open, gate) = channel();
        (open, on(Self { name: "idle GPU", gate: Mutex::new(gate) }))
    }

    /// Opens a GPU of this name.
    pub fn named(name: &'static str) -> Compute {
        let (_, gate) = channel();
        on(Self { name, gate: Mutex::new(gate) })
    }

    /// Opens a GPU of this name with a record that all its kernels passed, and of its speed.
    pub fn tested(name: &'static str, speed: Option<GpuTimes>) -> Compute {
        Self::failing(name, speed, &[])
    }

    /// Opens a GPU as [`IdleGpu::tested`] does, of which some parts failed.
    pub fn failing(name: &'static str, speed: Option<GpuTimes>, parts: &[KernelPart]) -> Compute {
        let compute = Self::named(name);
        let folder = tempfile::tempdir().unwrap();
        let problem =
            |part: &KernelPart| parts.contains(part).then(|| format!("{part} differs from the CPU"));
        let finding = |part: KernelPart| Finding::new(part, problem(&part));
        let findings = KernelPart::all().map(finding).collect();
        let machine = MachineId::with(compute.kernels().unwrap().gpu().as_ref());
        let record = SelfTestRecord { machine, test: SelfTest { findings, speed } };
        record.write(&folder.path().join(SELF_TEST_FILE)).unwrap();
        compute.keep_self_test_in(folder.path());
        assert_eq!(compute.known_self_test().as_deref(), Some(&record));
        // The record is read once, so the folder may go.
        compute
    }
}

fn on(gpu: IdleGpu) -> Compute {
    Compute::on_gpu(Arc::new(gpu), Workload::SIMULATED, Some(1)).unwrap()
}

fn refused<T>() -> Result<T> {
    Err(Error::Device { device: "metal", reason: "refused".into() })
}

impl Gpu for IdleGpu {
    fn name(&self) -> String {
        self.name.into()
    }
    fn compile(&self, _: &KernelSource) -> Result<KernelId> {
        // An error says that the sender is gone.
        let _ = self.gate.lock().unwrap().recv();
        refused()
    }
    fn allocate(&self, _: usize) -> Result<BufferId> {
        Ok(BufferId(0))
    }
    fn release(&self, _: BufferId) {}
    fn write(&self, _: BufferId, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: BufferId, _: usize, _: &mut [u8]) -> Result<()> {
        refused()
    }
    fn dispatch(&self, _: KernelId, _: &[Argument<'_>], _: Grid) -> Result<()> {
        refused()
    }
    fn wait(&self) -> Result<()> {
        refused()
    }
}
