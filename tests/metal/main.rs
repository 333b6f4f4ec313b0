//! Every drafting method and the checks of `hunch verify` on the simulated GPU. The kernels themselves are tested in
//! `crates/hunch-model/tests/metal`.
//!
//! Runs with `make metal-test`.

mod distributions;
mod methods;
mod placement;
mod support;
