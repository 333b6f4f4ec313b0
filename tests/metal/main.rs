//! Every drafting method and the checks of `hunch verify` on the simulated GPU. The kernels themselves are tested in
//! `crates/hunch-model/tests/metal`, where the simulator lives.
//!
//! Runs with `make metal-test`.

mod distributions;
mod methods;
mod placement;
#[allow(dead_code, reason = "the tests of the kernels use more of it")]
#[path = "../../crates/hunch-model/tests/metal/simulator.rs"]
mod simulator;
mod support;
#[allow(dead_code, reason = "the tests of the kernels use more of it")]
#[path = "../../crates/hunch-model/tests/metal/translate.rs"]
mod translate;

/// Folder of the simulator's headers.
const SIMULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/hunch-model/tests/metal");
