//! Parameters of mixtures of experts.

use serde::{Deserialize, Serialize};

use super::reader::SpecReader;
use hunch_error::Result;
use hunch_kernels::activation::Activation;

/// Experts of feed-forward networks, of which a router chooses some for each row (Shazeer et al., arXiv 1701.06538).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts of a row.
    pub used: usize,
    /// Groups that a row chooses its experts from. `None` if it chooses from all.
    pub groups: Option<ExpertGroups>,
    /// Width of an expert.
    pub n_ff: usize,
    /// Width of the expert that all rows use, if there is one.
    pub shared: Option<usize>,
    /// Weights of the chosen experts.
    pub weighting: Weighting,
    /// `true` if the weights of a row are divided by their sum.
    pub normalised: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// `true` if gates and ups are bounded: [`clamped_silu`](hunch_kernels::activation::clamped_silu) instead of SiLU.
    pub clamped: bool,
    /// `true` if the weight of an expert multiplies its input instead of its output (Llama 4).
    pub scales_input: bool,
    /// Number of layers without experts, from the first on.
    pub dense_layers: usize,
    /// Number of layers to the next one with experts, 1 for all. The last layer of each such group has experts.
    pub step: usize,
    /// Width of these layers.
    pub dense_ff: usize,
    /// Width of the dense network next to the experts, whose output is added after norms of both (Gemma 4). `None` for
    /// most models.
    pub parallel: Option<usize>,
    /// `true` if the gate's activation is GELU, otherwise SiLU or its clamped form.
    pub gelu: bool,
    /// Factor of the router's scores.
    pub router_scale: f32,
}

/// Groups of experts that follow each other, of which a row uses the best ones (DeepSeek-V3, arXiv 2412.19437).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups of a row.
    pub used: usize,
}

/// Ends of the names of scales that belong to the experts of Gemma 4: of the router's input, and of each expert's
/// output.
pub(super) const SCALES: [&str; 2] = [".ffn_gate_inp.scale", ".ffn_down_exps.scale"];

/// Weights of experts, from the scores of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weighting {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen experts.
    SoftmaxOfChosen,
    /// Sigmoid of each score.
    Sigmoid,
}

/// Constants of an architecture's experts that its files may not contain.
#[derive(Clone, Copy)]
pub(super) struct ExpertKind {
    /// Weights of the chosen experts.
    pub(super) weighting: Weighting,
    /// Default of [`Experts::normalised`].
    pub(super) normalised: bool,
    /// `true` if all models of the architecture have experts.
    pub(super) always: bool,
    /// See [`Experts::clamped`].
    pub(super) clamped: bool,
    /// `true` if files say which layers have experts: every n-th.
    pub(super) interleaved: bool,
    /// See [`Experts::scales_input`].
    pub(super) scales_input: bool,
    /// `true` if a dense network is next to the experts. See [`Experts::parallel`].
    pub(super) parallel: bool,
}

/// Smallest sum that weights are divided by, as in llama.cpp: the smallest normal half.
const LEAST_SUM: f32 = 6.103_515_6e-5;

impl Experts {
    /// Returns `true` if a layer has experts.
    pub fn are_in(&self, layer: usize) -> bool {
        layer >= self.dense_layers && (layer + 1).is_multiple_of(self.step)
    }

    /// Returns the width of the layers without experts. `None` if all layers may have them.
    pub(crate) fn dense_width(&self) -> Option<usize> {
        (self.dense_layers > 0 || self.step > 1).then_some(self.dense_ff)
    }

    /// Returns the activation of the gates of the chosen experts.
    pub(crate) fn activation(&self) -> Activation {
        match (self.clamped, self.gelu) {
            (true, _) => Activation::Clamped,
            (false, true) => Activation::Gelu,
            (false, false) => Activation::Silu,
        }
    }

    /// Chooses the experts of a row from the router's scores, `[count]`. Appends `used` experts and their weights,
    /// highest first. Ties go to the lower expert.
    ///
    /// `bias` is added to the weights for the choice alone, `[count]`. `factors` multiply the weights at the end,
    /// `[count]`.
    pub(crate) fn choose(
        &self,
        scores: &[f32],
        (bias, factors): (Option<&[f32]>, Option<&[f32]>),
        chosen: &mut Vec<usize>,
        weights: &mut Vec<f32>,
    ) {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = match self.weighting {
            Weighting::Softmax => scores.iter().map(|score| (score - max).exp()).sum(),
            Weighting::SoftmaxOfChosen | Weighting::Sigmoid => 1.0,
        };
        let weight = |expert: usize| match self.weighting {
            Weighting::Softmax | Weighting::SoftmaxOfChosen => (scores[expert] - max).exp() / total,
            Weighting::Sigmoid => 1.0 / (1.0 + (-scores[expert]).exp()),
        };
        // Ranks are compared often, and each weight takes an exponential.
        let ranks: Option<Vec<f32>> = match bias {
            Some(bias) => Some((0..scores.len()).map(|expert| weight(expert) + bias[expert]).collect()),
            None => self.groups.map(|_| (0..scores.len()).map(weight).collect()),
        };
        let ranks = ranks.as_deref().unwrap_or(scores);
        let rank = |expert: usize| ranks[expert];
        let mut order: Vec<usize> = match self.groups {
            None => (0..scores.len()).collect(),
            Some(groups) => groups.best(self.count, rank),
        };
        let descending = |a: &usize, b: &usize| rank(*b).total_cmp(&rank(*a)).then(a.cmp(b));
        if self.used < order.len() {
            order.select_nth_unstable_by(self.used, descending);
            order.truncate(self.used);
        }
        order.sort_by(descending);
        let from = weights.len();
        weights.extend(order.iter().map(|&expert| weight(expert)));
        let weights = &mut weights[from..];
        if self.normalised || self.weighting == Weighting::SoftmaxOfChosen {
            let sum = weights.iter().sum::<f32>().max(LEAST_SUM);
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        if self.scale != 1.0 {
            weights.iter_mut().for_each(|weight| *weight *= self.scale);
        }
        if let Some(factors) = factors {
            weights.iter_mut().zip(&order).for_each(|(weight, &expert)| *weight *= factors[expert]);
        }
        chosen.extend(order);
    }

    /// Returns the largest width of a feed-forward layer: that of all experts of a row, or of a dense layer.
    pub(super) fn widest(&self) -> usize {
        let experts = self.used * self.n_ff + self.shared.unwrap_or(0);
        experts.max(self.parallel.unwrap_or(0)).max(self.dense_width().unwrap_or(0))
    }

    /// Returns the share of the experts that one row uses.
    pub fn share(&self) -> f64 {
        self.used as f64 / self.count as f64
    }

    /// Returns the expected number of different experts of a pass of `rows` rows, whose choices are independent and
    /// equally likely. Rows of a text use fewer.
    pub fn expected_distinct(&self, rows: usize) -> f64 {
        self.count as f64 * (1.0 - (1.0 - self.share()).powi(rows.min(1 << 20) as i32))
    }

    /// Returns the expected bytes that a pass of `rows` rows reads, relative to a pass of one row.
    ///
    /// `of_row` are the bytes that a pass of one row reads, `of_experts` those of all experts.
    pub fn growth(&self, of_row: u64, of_experts: u64, rows: usize) -> f64 {
        let of_experts = of_experts as f64 / self.count as f64;
        let more = of_experts * (self.expected_distinct(rows) - self.used as f64);
        1.0 + more / of_row.max(1) as f64
    }
}

impl ExpertGroups {
    /// Returns the experts of the best groups in ascending order, of `experts` in all. A group counts by the sum of its
    /// two highest ranks. Ties go to the lower group.
    fn best(self, experts: usize, rank: impl Fn(usize) -> f32) -> Vec<usize> {
        let size = experts / self.count;
        let value = |group: usize| {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for rank in (group * size..(group + 1) * size).map(&rank) {
                if rank > first {
                    (first, second) = (rank, first);
                } else if rank > second {
                    second = rank;
                }
            }
            first + second
        };
        let mut groups: Vec<(f32, usize)> = (0..self.count).map(|group| (value(group), group)).collect();
        groups.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut groups: Vec<usize> = groups[..self.used].iter().map(|(_, group)| *group).collect();
        groups.sort_unstable();
        groups.into_iter().flat_map(|group| group * size..(group + 1) * size).collect()
    }
}

impl SpecReader<'_> {
    /// Reads the groups of `count` experts, of which a row uses `used`.
    fn expert_groups(&self, count: usize, used: usize) -> Result<Option<ExpertGroups>> {
        let groups = self.gguf.u32(&self.key("expert_group_count")).unwrap_or(0) as usize;
        if groups <= 1 {
            return Ok(None);
        }
        let groups_used = self.size("expert_group_used_count", groups - 1)?;
        let size = count / groups;
        if !count.is_multiple_of(groups) || size < 2 || used > groups_used * size {
            return Err(self.invalid(format!(
                "{used} of {count} experts cannot be in {groups_used} of {groups} groups"
            )));
        }
        Ok(Some(ExpertGroups { count: groups, used: groups_used }))
    }

    /// Reads the experts of a model. `None` for a dense one, and if all layers are dense.
    ///
    /// `kind` is `None` for architectures without experts.
    pub(super) fn experts(&self, kind: Option<ExpertKind>) -> Result<Option<Experts>> {
        let count = self.gguf.u32(&self.key("expert_count")).unwrap_or(0) as usize;
        let Some(ExpertKind { weighting, normalised, always, clamped, interleaved, scales_input, parallel }) =
            kind
        else {
            return match count {
                0 => Ok(None),
                _ => Err(self.unsupported(format!("it is a mixture of {count} experts"))),
            };
        };
        if count == 0 && !always {
            return Ok(None);
        }
        let count = self.size("expert_count", 1 << 12)?;
        let used = self.size("expert_used_count", count)?;
        let groups = self.expert_groups(count, used)?;
        if scales_input && groups.is_some() {
            return Err(self.unsupported("its experts are in groups".into()));
        }
        let weighting = match self.gguf.u32(&self.key("expert_gating_func")) {
            None | Some(0) => weighting,
            Some(1) => Weighting::Softmax,
            Some(2) => Weighting::Sigmoid,
            Some(3) => Weighting::SoftmaxOfChosen,
            Some(other) => return Err(self.unsupported(format!("its experts have weights of kind {other}"))),
        };
        let scale = match self.gguf.f32(&self.key("expert_weights_scale")) {
            None | Some(0.0) => 1.0,
            Some(_) => self.positive("expert_weights_scale", 1.0)?,
        };
        let dense_layers = self.gguf.u32(&self.key("leading_dense_block_count")).unwrap_or(0) as usize;
        let width = self.optional_size("expert_feed_forward_length", 1 << 20)?;
        let step = if interleaved { self.size("interleave_moe_layer_step", 1 << 10)? } else { 1 };
        let dense_ff = match (width, dense_layers, step) {
            (Some(width), 0, 1) => width,
            _ => self.size("feed_forward_length", 1 << 20)?,
        };
        let is_bias =
            |name: &String| name.ends_with("ffn_gate_exps.bias") || name.ends_with("ffn_up_exps.bias");
        if scales_input && self.gguf.tensors.keys().any(is_bias) {
            return Err(self.unsupported("its experts have biases".into()));
        }
        // The file has the width of the shared expert in several ways, which the tensor is not.
        let first = (dense_layers + 1).next_multiple_of(step) - 1;
        let shared = self.gguf.tensors.get(&format!("blk.{first}.ffn_up_shexp.weight"));
        Ok(Some(Experts {
            count,
            used,
            groups,
            n_ff: width.unwrap_or(dense_ff),
            shared: shared.map(|tensor| tensor.shape[0]),
            weighting,
            normalised: self.gguf.bool(&self.key("expert_weights_norm")).unwrap_or(normalised),
            scale,
            clamped,
            scales_input,
            dense_layers,
            step,
            dense_ff,
            parallel: parallel.then(|| self.size("feed_forward_length", 1 << 20)).transpose()?,
            gelu: false,
            router_scale: if parallel {
                1.0 / (self.size("embedding_length", 1 << 17)? as f32).sqrt()
            } else {
                1.0
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(experts: Experts, scores: &[f32]) -> (Vec<usize>, Vec<f32>) {
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        experts.choose(scores, (None, None), &mut chosen, &mut weights);
        (chosen, weights)
    }

    const TWO_OF_FOUR: Experts = Experts {
        count: 4,
        used: 2,
        groups: None,
        n_ff: 32,
        shared: None,
        weighting: Weighting::Softmax,
        normalised: true,
        scale: 1.0,
        clamped: false,
        scales_input: false,
        dense_layers: 0,
        step: 1,
        dense_ff: 32,
        parallel: None,
        gelu: false,
        router_scale: 1.0,
    };

    #[test]
    fn highest_scores_win_and_lower_expert_wins_ties() {
        let (chosen, weights) = choose(TWO_OF_FOUR, &[1.0, 3.0, 1.0, 0.5]);
        assert_eq!(chosen, [1, 0]);
        let share = 1.0 / (1.0 + (-2f32).exp());
        assert!((weights[0] - share).abs() < 1e-6 && (weights[0] + weights[1] - 1.0).abs() < 1e-6);
        assert_eq!(choose(Experts { used: 4, ..TWO_OF_FOUR }, &[0.0; 4]).0, [0, 1, 2, 3]);
    }

    #[test]
    fn weighting_decides_what_the_weights_add_up_to() {
        let scores = [1.0, 3.0, 1.0, 0.5];
        let of = |weighting, normalised| choose(Experts { weighting, normalised, ..TWO_OF_FOUR }, &scores).1;
        let all: f32 = scores.iter().map(|score| score.exp()).sum();
        let close = |a: &[f32], b: [f32; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let (e1, e3) = (1f32.exp(), 3f32.exp());
        assert!(close(&of(Weighting::Softmax, false), [e3 / all, e1 / all]));
        for weights in [of(Weighting::Softmax, true), of(Weighting::SoftmaxOfChosen, false)] {
            assert!(close(&weights, [e3 / (e1 + e3), e1 / (e1 + e3)]), "{weights:?}");
        }
        assert!(close(&of(Weighting::Sigmoid, false), [1.0 / (1.0 + 1.0 / e3), 1.0 / (1.0 + 1.0 / e1)]));
    }

    #[test]
    fn bias_changes_the_choice_and_no_weight() {
        let experts = Experts { weighting: Weighting::Sigmoid, normalised: false, ..TWO_OF_FOUR };
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        let bias = [0.0, 0.0, 2.0, 0.0];
        experts.choose(&[1.0, 3.0, 0.0, 0.5], (Some(&bias), None), &mut chosen, &mut weights);
        assert!(chosen == [2, 1] && weights[0] == 0.5, "{chosen:?} {weights:?}");
    }

    #[test]
    fn experts_of_other_groups_are_not_chosen() {
        let groups = Some(ExpertGroups { count: 3, used: 1 });
        let six = Experts { count: 6, groups, ..TWO_OF_FOUR };
        // The best expert is alone in its group, and two good ones are together.
        assert_eq!(choose(six, &[3.0, -4.0, 0.0, 0.0, 2.5, 2.4]).0, [4, 5]);
        let sigmoid = Experts { weighting: Weighting::Sigmoid, ..six };
        assert_eq!(choose(sigmoid, &[3.0, -4.0, 0.0, 0.0, 2.5, 2.4]).0, [4, 5]);
        // Groups are compared by weights: the sum of these scores is the other way round.
        assert_eq!(choose(sigmoid, &[9.0, -3.0, 1.0, 1.0, -9.0, -9.0]).0, [2, 3]);
        let two = Some(ExpertGroups { count: 3, used: 2 });
        assert_eq!(choose(Experts { groups: two, ..six }, &[3.0, -4.0, 0.0, 0.0, 2.5, 2.4]).0, [0, 4]);
        assert_eq!(choose(six, &[0.0; 6]).0, [0, 1]);
        // The bias counts for groups and experts, and not for the weights.
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        let bias = [0.0, 0.0, 0.9, 0.8, 0.0, 0.0];
        sigmoid.choose(&[3.0, -4.0, 0.0, 0.0, 2.5, 2.4], (Some(&bias), None), &mut chosen, &mut weights);
        assert_eq!((chosen, weights), (vec![2, 3], vec![0.5, 0.5]));
        assert_eq!(choose(six, &[f32::NAN; 6]).0.len(), 2);
    }

    #[test]
    fn factors_change_weights_and_not_the_choice() {
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        let factors = [1.0, 0.5, 1.0, 2.0];
        let experts = Experts { weighting: Weighting::Softmax, normalised: true, ..TWO_OF_FOUR };
        experts.choose(&[1.0, 3.0, 0.0, 3.0], (None, Some(&factors)), &mut chosen, &mut weights);
        assert_eq!((chosen, weights), (vec![1, 3], vec![0.25, 1.0]));
    }

    #[test]
    fn scores_that_are_no_numbers_choose_experts() {
        for scores in [[f32::NAN; 4], [f32::INFINITY; 4], [f32::NEG_INFINITY; 4]] {
            let (chosen, _) = choose(TWO_OF_FOUR, &scores);
            assert!(chosen.len() == 2 && chosen.iter().all(|&expert| expert < 4));
        }
    }

    #[test]
    fn more_rows_read_more_experts_up_to_all() {
        assert!((TWO_OF_FOUR.expected_distinct(1) - 2.0).abs() < 1e-9);
        assert!((TWO_OF_FOUR.expected_distinct(2) - 3.0).abs() < 1e-9);
        assert!((TWO_OF_FOUR.expected_distinct(1000) - 4.0).abs() < 1e-9);
        // 50 bytes outside of experts, and 100 for each.
        let growth = |rows| TWO_OF_FOUR.growth(250, 400, rows);
        assert!((growth(1) - 1.0).abs() < 1e-9 && (growth(2) - 350.0 / 250.0).abs() < 1e-9);
    }

    #[test]
    fn weights_are_scaled() {
        let (_, weights) = choose(Experts { scale: 2.5, ..TWO_OF_FOUR }, &[1.0, 3.0, 1.0, 0.5]);
        assert!((weights.iter().sum::<f32>() - 2.5).abs() < 1e-6);
    }
}
