//! Layers with a gated delta net on a GPU. Their projections are products like those of attention.

use std::sync::Arc;

use crate::cache::checkpoints::{DeltaPlan, GpuDeltaMemory};
use crate::metal::activations::ActivationOutput;
use crate::metal::delta_net::{DeltaSpace, DeltaSteps, DeltaVectors, GpuDeltaNet, GpuDeltaPlan};
use crate::metal::gpu::{Buffer, Gpu};
use crate::metal::kernels::Kernels;
use crate::spec::state::DELTA_INPUTS;
use crate::spec::{DeltaNet, ModelSpec};
use crate::tensor_names::DeltaNetWeights;
use crate::weights::MatrixRows;
use hunch_error::Result;

/// Plan of a pass, with the space of its layers.
pub(super) struct DeltaPassPlan {
    plan: GpuDeltaPlan,
    space: DeltaSpace,
    net: DeltaNet,
    /// Epsilon of the norms.
    eps: f32,
}

impl DeltaPassPlan {
    /// Writes the plan of a pass to the GPU. `None` for a model without gated delta nets. `old` is an earlier pass, whose
    /// space is used again.
    pub(super) fn new(
        gpu: &Arc<dyn Gpu>,
        spec: &ModelSpec,
        plan: Option<&DeltaPlan>,
        old: Option<Self>,
    ) -> Result<Option<Self>> {
        let Some((plan, net)) = plan.zip(spec.delta_net) else { return Ok(None) };
        let held: Vec<(usize, usize)> = plan.held_rows().collect();
        let seen = plan.seen_words(DELTA_INPUTS);
        let plan = GpuDeltaPlan::new(
            gpu,
            DeltaSteps {
                rows: plan.rows(),
                nodes: &plan.nodes,
                is_forked: plan.is_forked,
                seen: &seen,
                from: plan.from,
                saves: &plan.saves,
                held: &held,
                first_checkpoint: DELTA_INPUTS,
            },
        )?;
        let space = DeltaSpace::for_pass(gpu, old.map(|pass| pass.space), net.shape(), &plan)?;
        Ok(Some(Self { plan, space, net, eps: spec.rms_eps as f32 }))
    }

    /// Runs the rows of the pass over the projections `x` of a layer, as the activations of the output product.
    pub(super) fn run(
        &self,
        kernels: &Kernels,
        x: &Buffer,
        weights: &DeltaNetWeights<MatrixRows, Buffer>,
        memory: &GpuDeltaMemory,
        out: ActivationOutput<'_>,
    ) -> Result<()> {
        let DeltaNetWeights { convolution, rates, bias, norm, .. } = weights;
        let net = GpuDeltaNet {
            shape: self.net.shape(),
            x,
            weights: DeltaVectors { convolution, rates, bias, norm },
            eps: self.eps,
            states: &memory.states,
            held: &memory.held,
        };
        kernels.delta_net(net, &self.plan, &self.space, out)
    }
}
