//! An EAGLE-3 head while it is trained (Li et al., arXiv 2503.01840). It is a decoder layer with an output head of its
//! own. Its inputs are three standardised states of the target and the embedding of the token after them.
//!
//! The loss sums over the tokens of a draft (training-time test). The first row of a draft reads the target's states,
//! each further row the layer's output at the row before it. A row of step s attends to the rows of the text before the
//! draft, and to the earlier rows of its own draft. The loss of step s has the weight 0.8^s.
//!
//! It starts as a ridge regression. fc carries the part of the states, and attention that of the embedding: constant
//! queries and keys let a row see mostly itself.

use candle_core::backprop::GradStore;
use candle_core::{D, Device, Result as CandleResult, Tensor, Var};
use hunch_core::token::TokenId;
use hunch_error::Result;

use super::features::Frozen;
use super::network::{DepthLogits, HeadInTraining, draft_gradients, draft_targets};
use super::ops::tensor;
use super::ops::{self, EPS, causal_mask, feed_forward, linear, log_softmax, rms_norm, rotate_halves};
use super::shards::{AnswerRow, CollectedAnswer};
use super::start::{self, INPUTS, StartData, feed_forward_width};

/// Names of the trained tensors, in the order of [`HeadInTraining::vars`].
pub const NAMES: [&str; 17] = [
    "fc",
    "fc_bias",
    "input_norm",
    "hidden_norm",
    "q",
    "q_bias",
    "k",
    "k_bias",
    "v",
    "o",
    "post_norm",
    "gate",
    "up",
    "down",
    "norm",
    "head",
    "head_bias",
];
/// States of the target that are read: the last three of the collected ones.
pub const STREAMS: usize = 3;
/// Base of the rotary frequencies.
pub const ROPE_BASE: f64 = 10_000.0;
/// Weight of a step's loss, relative to the step before it.
const DECAY: f64 = 0.8;
/// Score of a row with itself at the start, over the score of a row that is far away.
const SELF_SCORE: f64 = 32.0;
/// Deviation of the queries and keys at the start.
const SCORE_DEVIATION: f64 = 0.1;

/// Returns the width of an attention head for a target of width `n`.
pub fn head_dim(n: usize) -> usize {
    if n.is_multiple_of(64) { 64 } else { 32 }
}

/// Trained tensors, of the shapes in [`Eagle::start`].
pub struct Eagle {
    vars: Vec<Var>,
    /// Steps of a draft that are trained.
    depth: usize,
    head_dim: usize,
}

/// Rows of answers, one after the other.
struct RowBatch {
    /// Rows of each answer.
    lengths: Vec<usize>,
    /// States `[rows, 3 n]`.
    streams: Tensor,
    /// Normed embeddings of the tokens that each step reads, `[rows, n]`.
    embeddings: Vec<Tensor>,
}

/// Queries, keys and values of a step, `[rows, heads, head_dim]`.
struct Projected {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Eagle {
    /// Creates a network from its tensors.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(weights: &[Tensor], depth: usize, head_dim: usize) -> Result<Self> {
        Ok(Self { vars: ops::trained(weights)?, depth, head_dim })
    }

    /// Returns the weights before the first step.
    ///
    /// # Errors
    /// As [`StartData::regression`].
    pub fn start(frozen: &Frozen<'_>, start: &StartData<'_>) -> Result<Vec<Tensor>> {
        let n = frozen.target.rows.n_embd;
        let (inputs, streams) = ((STREAMS + 1) * n, STREAMS * n);
        // For wide targets the last state and the embedding alone.
        let from = if inputs >= INPUTS { streams - n } else { 0 };
        let solved = start.regression(std::slice::from_ref(&(from..inputs)), 1, &|positions| {
            let tokens: Vec<TokenId> = positions.iter().map(|(answer, row)| answer.next[*row]).collect();
            let next = positions.iter().map(|&(answer, row)| (answer, row + 1));
            let x = Tensor::cat(&[&self::streams(frozen, positions)?, &frozen.embeddings(&tokens)?], 1)?;
            Ok((x, start::standard_states(frozen, next)?))
        })?;
        let (mean, deviation) = frozen.final_standard_tensors()?;
        let tensor = |values, shape: &[usize]| start::weight(frozen, values, shape);
        let of = |range: std::ops::Range<usize>| -> Vec<f32> {
            solved.weights.chunks_exact(inputs).flat_map(|row| row[range.clone()].iter().copied()).collect()
        };
        let mut random = start.random();
        let ff = feed_forward_width(start.recipe, n);
        let (small, wide) = (SCORE_DEVIATION / (2.0 * n as f64).sqrt(), (1.0 / n as f64).sqrt());
        let (q, k) = (random(2 * n * n, small), random(2 * n * n, small));
        let constant = self_attention(n, head_dim(n));
        // The first half of the input is the embedding.
        let v = (0..2 * n * n).map(|at| if at / (2 * n) == at % (2 * n) { 1.0 } else { 0.0 }).collect();
        let bias = frozen.head.matmul(&mean.reshape((n, 1))?)?.flatten_all()?;
        Ok(vec![
            tensor(of(0..streams), &[n, streams])?,
            tensor(solved.bias.clone(), &[n])?,
            tensor(vec![1.0; n], &[n])?,
            tensor(vec![1.0; n], &[n])?,
            tensor(q, &[n, 2 * n])?,
            tensor(constant.clone(), &[n])?,
            tensor(k, &[n, 2 * n])?,
            tensor(constant, &[n])?,
            tensor(v, &[n, 2 * n])?,
            tensor(of(streams..inputs), &[n, n])?,
            tensor(vec![1.0; n], &[n])?,
            tensor(random(ff * n, wide), &[ff, n])?,
            tensor(random(ff * n, wide), &[ff, n])?,
            tensor(vec![0.0; n * ff], &[n, ff])?,
            tensor(vec![solved.scale; n], &[n])?,
            frozen.head.broadcast_mul(&deviation)?,
            bias,
        ])
    }

    /// Returns the logits of the shortlist at every row for each step of a draft, `[rows, shortlist]`.
    fn predict(&self, batch: &RowBatch) -> CandleResult<Vec<Tensor>> {
        let [
            fc,
            fc_bias,
            input_norm,
            hidden_norm,
            q,
            q_bias,
            k,
            k_bias,
            v,
            o,
            post,
            gate,
            up,
            down,
            norm,
            head,
            head_bias,
        ] = &self.vars[..]
        else {
            candle_core::bail!("17 tensors")
        };
        let mut g = linear(&batch.streams, fc, Some(fc_bias))?;
        let mut steps: Vec<Projected> = Vec::new();
        let mut logits = Vec::new();
        for (s, embeddings) in batch.embeddings.iter().enumerate() {
            let y = [rms_norm(embeddings, input_norm, EPS)?, rms_norm(&g, hidden_norm, EPS)?];
            let y = Tensor::cat(&y, 1)?;
            let (cos, sin) = self.angles(&batch.lengths, s, y.device())?;
            let heads = |x: Tensor| {
                let (rows, width) = x.dims2()?;
                x.reshape((rows, width / self.head_dim, self.head_dim))
            };
            steps.push(Projected {
                q: rotate_halves(&heads(linear(&y, q, Some(q_bias))?)?, &cos, &sin)?,
                k: rotate_halves(&heads(linear(&y, k, Some(k_bias))?)?, &cos, &sin)?,
                v: heads(linear(&y, v, None)?)?,
            });
            let (mut parts, mut from) = (Vec::new(), 0);
            for &rows in &batch.lengths {
                parts.push(attend(&steps, from, rows)?);
                from += rows;
            }
            let attended = Tensor::cat(&parts, 0)?.flatten_from(1)?;
            let x = (&g + linear(&attended, o, None)?)?;
            g = feed_forward(&x, &rms_norm(&x, post, EPS)?, [gate, up, down])?;
            logits.push(linear(&rms_norm(&g, norm, EPS)?, head, Some(head_bias))?);
        }
        Ok(logits)
    }

    /// Returns cosines and sines of the rows of step `s`, `[rows, 1, head_dim / 2]`. Row i of an answer stands at i + s.
    fn angles(&self, lengths: &[usize], s: usize, device: &Device) -> CandleResult<(Tensor, Tensor)> {
        let half = self.head_dim / 2;
        let frequency = |i: usize| ROPE_BASE.powf(-(i as f64) / half as f64);
        let positions = lengths.iter().flat_map(|&rows| s..s + rows);
        let angles: Vec<f64> =
            positions.flat_map(|at| (0..half).map(move |i| at as f64 * frequency(i))).collect();
        let shape = [angles.len() / half, 1, half];
        let values =
            |of: fn(f64) -> f64| tensor(angles.iter().map(|a| of(*a) as f32).collect(), &shape, device);
        Ok((values(f64::cos)?, values(f64::sin)?))
    }

    /// Reads the rows of whole answers.
    fn batch(&self, frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<RowBatch> {
        let lengths: Vec<usize> =
            positions.chunk_by(|(a, _), (b, _)| a.job == b.job).map(<[AnswerRow<'_>]>::len).collect();
        let embeddings = |s: usize| {
            // Tokens after the end of an answer are read by rows without weight.
            let token = |(answer, row): &AnswerRow<'_>| answer.next[(row + s).min(answer.next.len() - 1)];
            frozen.embeddings(&positions.iter().map(token).collect::<Vec<_>>())
        };
        Ok(RowBatch {
            lengths,
            streams: streams(frozen, positions)?,
            embeddings: (0..self.depth).map(embeddings).collect::<Result<_>>()?,
        })
    }
}

impl HeadInTraining for Eagle {
    fn vars(&self) -> &[Var] {
        &self.vars
    }

    fn gradients(&self, frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<(f64, GradStore)> {
        let targets = draft_targets(frozen, positions, self.depth, DECAY)?;
        Ok(draft_gradients(&self.predict(&self.batch(frozen, positions)?)?, &targets)?)
    }

    fn logits(&self, frozen: &Frozen<'_>, answer: &CollectedAnswer) -> Result<DepthLogits> {
        let positions: Vec<_> = (0..answer.positions()).map(|row| (answer, row)).collect();
        let logits = self.predict(&self.batch(frozen, &positions)?)?;
        Ok(logits.iter().map(Tensor::to_vec2::<f32>).collect::<CandleResult<_>>()?)
    }
}

/// Returns the standardised states that the head reads, `[rows, 3 n]`.
fn streams(frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<Tensor> {
    frozen.standardised(positions, frozen.target.taps.len() - STREAMS)
}

/// Returns constant queries or keys `[n]` whose rotated product is highest for a row with itself. Only the faster
/// frequencies take part, which distinguish neighbours.
fn self_attention(n: usize, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let fast = (half / 4).max(1);
    let value = (SELF_SCORE * (head_dim as f64).sqrt() / fast as f64).sqrt() as f32;
    (0..n).map(|at| if at % head_dim < fast { value } else { 0.0 }).collect()
}

/// Computes attention of the last step for the rows of one answer, `[rows, heads, head_dim]`.
///
/// Row i of every step belongs to the draft after row i of the text. It sees the rows of the first step up to i, and
/// row i of the steps between.
fn attend(steps: &[Projected], from: usize, rows: usize) -> CandleResult<Tensor> {
    // [heads, rows, head_dim]
    let of = |x: &Tensor| x.narrow(0, from, rows)?.transpose(0, 1)?.contiguous();
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { candle_core::bail!("no step") };
    let q = of(&last.q)?;
    let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
    let mask = causal_mask(rows, 0, q.device())?;
    let mut scores = vec![q.matmul(&of(&first.k)?.t()?)?.broadcast_add(&mask)?];
    for step in &steps[1..] {
        scores.push((&q * of(&step.k)?)?.sum_keepdim(D::Minus1)?);
    }
    let p = log_softmax(&(Tensor::cat(&scores, D::Minus1)? * scale)?)?.exp()?;
    let mut out = p.narrow(D::Minus1, 0, rows)?.contiguous()?.matmul(&of(&first.v)?)?;
    for (at, step) in steps[1..].iter().enumerate() {
        out = (out + p.narrow(D::Minus1, rows + at, 1)?.broadcast_mul(&of(&step.v)?)?)?;
    }
    out.transpose(0, 1)?.contiguous()
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::ops::check;
    use super::*;

    const WIDTH: usize = 8;
    const STEPS: usize = 3;

    /// A network of width 8 with two heads of 4, and a batch of two answers with 4 and 2 rows.
    fn small() -> (Eagle, RowBatch) {
        let (n, mut random) = (WIDTH, check::random(9));
        let shapes: [&[usize]; 17] = [
            &[n, 3 * n],
            &[n],
            &[n],
            &[n],
            &[n, 2 * n],
            &[n],
            &[n, 2 * n],
            &[n],
            &[n, 2 * n],
            &[n, n],
            &[n],
            &[12, n],
            &[12, n],
            &[n, 12],
            &[n],
            &[20, n],
            &[20],
        ];
        let weights = shapes.map(|shape| random(shape, 1.2));
        let network = Eagle::new(&weights, STEPS, 4).unwrap();
        let embeddings = (0..STEPS).map(|_| random(&[6, n], 2.0)).collect();
        (network, RowBatch { lengths: vec![4, 2], streams: random(&[6, 3 * n], 2.0), embeddings })
    }

    #[test]
    fn gradients_match_finite_differences() {
        let (network, batch) = small();
        let mut random = check::random(10);
        let targets: Vec<_> = (0..STEPS)
            .map(|s| {
                let weights = (0..6).map(|row| if row % 4 + s < 4 { 0.1 } else { 0.0 }).collect();
                (random(&[6, 20], 3.0), tensor(weights, &[6, 1], &Device::Cpu).unwrap())
            })
            .collect();
        let gradients = || draft_gradients(&network.predict(&batch).unwrap(), &targets).unwrap();
        let (_, grads) = gradients();
        let loss = || gradients().0;
        check::assert_gradients(network.vars(), &NAMES.map(str::to_owned), &grads, &loss);
    }

    /// Answers do not see each other, and rows do not see later ones.
    #[test]
    fn rows_depend_on_earlier_rows_of_their_answer_alone() {
        let (network, batch) = small();
        let logits = |batch: &RowBatch| -> Vec<Vec<Vec<f32>>> {
            network.predict(batch).unwrap().iter().map(|step| step.to_vec2().unwrap()).collect()
        };
        let whole = logits(&batch);
        let rows = |from: usize, count: usize| RowBatch {
            lengths: vec![count],
            streams: batch.streams.narrow(0, from, count).unwrap(),
            embeddings: batch.embeddings.iter().map(|e| e.narrow(0, from, count).unwrap()).collect(),
        };
        for (from, count) in [(0, 4), (0, 2), (4, 2), (4, 1)] {
            for (own, all) in logits(&rows(from, count)).iter().zip(&whole) {
                for (row, logits) in own.iter().enumerate() {
                    let off =
                        logits.iter().zip(&all[from + row]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off < 1e-5, "row {row} of {count} from {from}: {off}");
                }
            }
        }
    }

    #[test]
    fn rows_see_mostly_themselves_at_the_start() {
        for (n, width) in [(576, head_dim(576)), (96, head_dim(96))] {
            let constant = self_attention(n, width);
            let rows = 40;
            let x = tensor(constant.repeat(rows), &[rows, n / width, width], &Device::Cpu).unwrap();
            let network = Eagle { vars: Vec::new(), depth: 1, head_dim: width };
            let (cos, sin) = network.angles(&[rows], 0, &Device::Cpu).unwrap();
            let q = rotate_halves(&x, &cos, &sin).unwrap();
            let v = Tensor::eye(rows, DType::F32, &Device::Cpu).unwrap();
            let v = v.reshape((rows, 1, rows)).unwrap().broadcast_as((rows, n / width, rows)).unwrap();
            let seen = attend(&[Projected { k: q.clone(), q, v }], 0, rows).unwrap();
            for row in 0..rows {
                let own = seen.get(row).unwrap().get(0).unwrap().to_vec1::<f32>().unwrap()[row];
                assert!(own > 0.9, "row {row} of width {width}: {own}");
            }
        }
    }
}
