//! A simulated GPU whose kernels are known to be right.

use std::sync::Arc;

use hunch_model::device::{Compute, SELF_TEST_FILE};
use hunch_model::metal::selftest::{Finding, KernelPart, MachineId, SelfTest, SelfTestRecord, Workload};

use hunch_testing::simulator::Simulator;

/// Opens a simulated GPU with a record of its self-test, which therefore does not run.
pub(crate) fn tested_gpu(simulator: &Arc<Simulator>) -> Compute {
    let compute = Compute::on_gpu(Arc::clone(simulator) as _, Workload::SIMULATED, Some(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let findings = KernelPart::all().map(|part| Finding::new(part, None)).collect();
    let machine = MachineId::with(simulator.as_ref());
    let record = SelfTestRecord { machine, test: SelfTest { findings, speed: None } };
    record.write(&folder.path().join(SELF_TEST_FILE)).unwrap();
    compute.keep_self_test_in(folder.path());
    // The record is read once, so the folder may go.
    assert!(compute.known_self_test().is_some());
    compute
}
