//! A simulated server: requests arrive at random, and all that are being answered share every pass. It shows when
//! speculation pays under load, and when it should be off.
//!
//! It reproduces the qualitative result of SmartSpec (Liu et al., arXiv 2406.14066). A fixed draft length is faster
//! while the server is idle and slower while it is busy. A length chosen by the batch is never much slower than
//! plain decoding. Costs are passed in. Prefill and the memory of caches are left out.

use super::landscape::{MAX_BATCH, MachineCosts};
use super::report::{DraftLength, ServedLoad, SimulatedAnswers};
use hunch_core::theory;
use hunch_error::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Requests of a simulation.
const REQUESTS: usize = 2000;
/// Arrivals as shares of what the server can answer without drafting.
const LOADS: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.9];

/// The draft lengths that are simulated, plain decoding first.
pub const DRAFT_LENGTHS: [DraftLength; 5] = [
    DraftLength::Fixed(0),
    DraftLength::Fixed(1),
    DraftLength::Fixed(3),
    DraftLength::Fixed(5),
    DraftLength::Best,
];

/// Requests to a server.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Probability that a drafted token is accepted, 0 to 1.
    pub alpha: f64,
    /// Most requests that share a pass, 1 to [`MAX_BATCH`]. Others wait.
    pub max_batch: u32,
    /// Tokens of an answer, 1 or more.
    pub tokens: u32,
}

impl Traffic {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when one is out of range.
    pub fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.alpha) {
            return Err(Error::invalid(format!("alpha is {}; choose a number from 0 to 1.", self.alpha)));
        }
        if !(1..=MAX_BATCH).contains(&self.max_batch) || self.tokens == 0 {
            return Err(Error::invalid(format!(
                "A pass takes 1 to {MAX_BATCH} requests, and an answer has at least one token."
            )));
        }
        Ok(())
    }
}

/// A server and its requests.
#[derive(Clone, Debug)]
pub struct SimulatedServer {
    /// Costs of passes.
    pub costs: MachineCosts,
    /// The requests.
    pub traffic: Traffic,
}

impl SimulatedServer {
    /// Simulates every draft length at several loads. The same requests arrive in all of them.
    ///
    /// # Errors
    /// As [`Traffic::check`].
    pub fn simulate(&self, seed: u64) -> Result<Vec<ServedLoad>> {
        self.traffic.check()?;
        Ok(LOADS.into_iter().map(|load| self.at_load(load, seed)).collect())
    }

    fn at_load(&self, load: f64, seed: u64) -> ServedLoad {
        let max_batch = f64::from(self.traffic.max_batch);
        let plain_pass = self.costs.chain_round(0, self.traffic.max_batch as usize);
        let capacity = max_batch / plain_pass / f64::from(self.traffic.tokens);
        let mut served: Vec<SimulatedAnswers> =
            DRAFT_LENGTHS.into_iter().map(|length| self.serve(length, load * capacity, seed)).collect();
        let plain = served[0].latency;
        served.iter_mut().for_each(|served| served.speedup = plain / served.latency);
        ServedLoad { load, served }
    }

    /// Answers [`REQUESTS`] that arrive at a mean `rate` per target pass of one row.
    fn serve(&self, draft_length: DraftLength, rate: f64, seed: u64) -> SimulatedAnswers {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut moment = 0.0;
        // Times between arrivals follow an exponential distribution.
        let arrivals: Vec<f64> = (0..REQUESTS)
            .map(|_| {
                moment -= (1.0 - random.random::<f64>()).ln() / rate;
                moment
            })
            .collect();
        let best: Vec<usize> = (0..=self.traffic.max_batch as usize)
            .map(|batch| self.costs.best(self.traffic.alpha, batch.max(1)))
            .collect();
        let (mut next, mut now, mut latency) = (0, 0.0, 0.0);
        let (mut passes, mut rows, mut drafted, mut widest) = (0.0, 0.0, 0.0, 0);
        // Arrival and tokens left of each request in the batch.
        let mut batch: Vec<(f64, u32)> = Vec::new();
        while next < REQUESTS || !batch.is_empty() {
            if batch.is_empty() {
                now = f64::max(now, arrivals[next]);
            }
            while next < REQUESTS && arrivals[next] <= now && batch.len() < self.traffic.max_batch as usize {
                batch.push((arrivals[next], self.traffic.tokens));
                next += 1;
            }
            let depth = match draft_length {
                DraftLength::Fixed(depth) => (depth as usize).min(self.costs.max_depth()),
                DraftLength::Best => best[batch.len()],
            };
            now += self.costs.chain_round(depth, batch.len());
            passes += 1.0;
            rows += batch.len() as f64;
            drafted += (depth * batch.len()) as f64;
            widest = widest.max((depth + 1) * batch.len());
            for (_, left) in &mut batch {
                let accepted = (0..depth).take_while(|_| random.random::<f64>() < self.traffic.alpha).count();
                *left = left.saturating_sub(1 + accepted as u32);
            }
            batch.retain(|&(arrival, left)| {
                latency += if left == 0 { now - arrival } else { 0.0 };
                left > 0
            });
        }
        let latency = latency / REQUESTS as f64;
        let (batch, depth) = (rows / passes, drafted / rows);
        SimulatedAnswers { draft_length, latency, speedup: 1.0, batch, depth, widest: widest as u32 }
    }
}

impl MachineCosts {
    /// Returns the draft length with the largest predicted speedup.
    fn best(&self, alpha: f64, batch: usize) -> usize {
        let speedup = |depth: usize| {
            theory::expected_tokens(alpha, depth) * self.target().at(batch) / self.chain_round(depth, batch)
        };
        theory::best_of(self.max_depth(), speedup).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{PLAIN_MS, curve, point};
    use crate::lab::report::LabDraft;

    const TRAFFIC: Traffic = Traffic { alpha: 0.7, max_batch: 16, tokens: 64 };

    fn server(row_cost: f64) -> SimulatedServer {
        let costs = MachineCosts::assumed(0.1, row_cost).unwrap();
        SimulatedServer { costs, traffic: TRAFFIC }
    }

    #[test]
    fn drafts_pay_while_idle_and_cost_while_busy() {
        let loads = server(0.1).simulate(1).unwrap();
        let (idle, busy) = (&loads[0].served, &loads[4].served);
        // Fixed draft lengths of 3 and 5.
        assert!(idle[2].speedup > 1.3 && busy[2].speedup < 0.9, "{idle:?} {busy:?}");
        assert!(busy[3].speedup < busy[2].speedup, "longer drafts cost more");
        assert!(busy[0].batch > 4.0 * idle[0].batch);
        for ServedLoad { load, served } in &loads {
            let best = served[4];
            assert!(served.iter().all(|other| best.speedup > 0.97 * other.speedup), "{load}: {served:?}");
        }
        assert!(busy[4].depth < 0.5 * idle[4].depth, "the best length falls with the load");
        assert_eq!((busy[0].widest, busy[2].widest), (16, 64), "a full batch of one or of four rows each");
    }

    #[test]
    fn free_rows_make_drafts_pay_at_every_load() {
        for ServedLoad { load, served } in server(0.0).simulate(2).unwrap() {
            assert!(served[2].speedup > 1.5, "{load}: {served:?}");
        }
    }

    #[test]
    fn an_idle_server_matches_the_formula() {
        let server = SimulatedServer { traffic: Traffic { tokens: 4000, ..TRAFFIC }, ..server(0.1) };
        let rate = 1e-9;
        let of = |depth| server.serve(DraftLength::Fixed(depth), rate, 3).latency;
        let predicted = theory::speedup(0.7, 3, 0.1, server.costs.target());
        assert!((of(0) / of(3) / predicted - 1.0).abs() < 0.01);
    }

    /// Measured costs of 1 to 16 rows of SmolLM2 135M on two cores. The first curve is from an idle machine, the others
    /// from a busy one. In each the last pass was faster than the one before.
    #[test]
    fn faster_last_pass_does_not_make_drafts_pay_on_a_busy_server() {
        let measured = [
            [1.0, 1.42, 1.45, 1.48, 1.82, 1.75, 1.8, 1.67, 1.97, 2.21, 2.31, 2.5, 2.28, 2.67, 3.0, 2.96],
            [1.0, 1.06, 1.13, 1.17, 1.33, 1.33, 1.47, 1.34, 1.73, 1.66, 2.17, 2.0, 2.17, 2.33, 2.67, 2.34],
            [1.0, 1.32, 1.59, 1.47, 1.49, 1.8, 1.89, 1.59, 1.96, 2.37, 2.23, 2.16, 2.74, 2.6, 2.93, 2.85],
        ];
        for times in measured {
            let points = (1..).zip(times).map(|(rows, relative)| point(rows, PLAIN_MS * relative));
            let curve = curve(points.collect(), Vec::new());
            let costs = MachineCosts::measured(&curve, None, LabDraft::Lookup).unwrap();
            let loads =
                SimulatedServer { costs, traffic: Traffic { tokens: 128, ..TRAFFIC } }.simulate(1).unwrap();
            let (half, busy) = (&loads[2].served, &loads[4].served);
            assert!((1.0..1.25).contains(&busy[4].speedup), "best K: {}", busy[4].speedup);
            assert!(busy[1].speedup < 1.25 && half[4].speedup < 2.0, "{half:?} {busy:?}");
            assert!(busy[3].speedup < 0.1, "K = 5 takes more than the server has: {busy:?}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for wrong in [
            Traffic { alpha: f64::NAN, ..TRAFFIC },
            Traffic { max_batch: 0, ..TRAFFIC },
            Traffic { max_batch: 65, ..TRAFFIC },
            Traffic { tokens: 0, ..TRAFFIC },
        ] {
            let server = SimulatedServer { traffic: wrong, ..server(0.1) };
            assert!(matches!(server.simulate(1), Err(Error::InvalidRequest(_))));
        }
    }
}
