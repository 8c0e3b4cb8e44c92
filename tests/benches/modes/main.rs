//! What each mode of building steps makes of a generator and a trainer that work beside each other: the step builder,
//! replica and trainer of the product on a simulated clock, with stated speeds and a long-tailed law of lengths.
//!
//! `cargo bench -p slime-exchange --bench modes` prints the table of the README.
#![allow(clippy::print_stdout, missing_docs)]

mod engine;
mod memory;
mod run;

use engine::{Engine, MAX_LEN, MEDIAN_LEN, NUM_SAMPLES, NUM_SLOTS, SPREAD, SWAP_MS, TOKEN_MS, response_len};
use run::{Outcome, run};
use slime_exchange::{BufferOrder, Order};

/// Groups of a step, and steps of a run.
pub const NUM_GROUPS: usize = 16;
pub const NUM_STEPS: u64 = 60;

/// A mode.
#[derive(Clone, Copy)]
pub struct Mode {
    pub name: &'static str,
    pub max_staleness: u64,
    pub order: Order,
    pub over_sampling: usize,
    pub continues: bool,
    pub early_abort: bool,
    pub masks_old: bool,
    pub buffer_order: BufferOrder,
    pub max_reuse: u32,
}

impl Mode {
    /// Groups under way, as `slime-rollout` has them: a group keeps its place until its last sample has ended.
    pub fn in_flight(&self) -> usize {
        let batches = if self.order == Order::Arrival { 6 } else { 2 };
        batches * NUM_SLOTS / NUM_SAMPLES as usize
    }
}

const SYNCHRONOUS: Mode = Mode {
    name: "synchronous",
    max_staleness: 0,
    order: Order::Fixed,
    over_sampling: NUM_GROUPS,
    continues: false,
    early_abort: false,
    masks_old: false,
    buffer_order: BufferOrder::Fifo,
    max_reuse: 1,
};
const ARRIVAL: Mode = Mode { order: Order::Arrival, continues: true, max_staleness: 4, ..SYNCHRONOUS };

const MODES: [Mode; 10] = [
    SYNCHRONOUS,
    Mode { name: "one step off", max_staleness: 1, ..SYNCHRONOUS },
    Mode { name: "partial rollouts, 1", max_staleness: 1, over_sampling: NUM_GROUPS * 5 / 4, ..ARRIVAL },
    Mode {
        name: "partial rollouts, 1, early abort",
        max_staleness: 1,
        over_sampling: NUM_GROUPS * 5 / 4,
        early_abort: true,
        ..ARRIVAL
    },
    Mode { name: "partial rollouts, 2", max_staleness: 2, over_sampling: NUM_GROUPS * 5 / 4, ..ARRIVAL },
    Mode {
        name: "partial rollouts, 2, old part masked",
        max_staleness: 2,
        over_sampling: NUM_GROUPS * 5 / 4,
        masks_old: true,
        ..ARRIVAL
    },
    Mode { name: "asynchronous, 4", ..ARRIVAL },
    Mode { name: "asynchronous, 4, without continuing", continues: false, ..ARRIVAL },
    Mode { name: "asynchronous, 4, newest first", buffer_order: BufferOrder::Newest, ..ARRIVAL },
    Mode { name: "asynchronous, 4, each group twice", max_reuse: 2, ..ARRIVAL },
];

fn main() {
    let rates = Rates::measure();
    rates.print();
    let synchronous = run(&SYNCHRONOUS, &rates);
    println!(
        "| mode | trained tokens/s | of synchronous | generator busy | trainer busy | staleness: mean, most | sampled: \
         trained, masked, dropped, left at the end | step building |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for mode in &MODES {
        row(mode, &run(mode, &rates), &synchronous);
    }
}

/// Mean numbers of a step, from the law of lengths alone.
pub struct Rates {
    /// The engine's time for a step's tokens with all slots in use.
    work_ms: f64,
    /// The engine's time for a step that ends with its longest sample.
    synchronous_ms: f64,
    /// What the trainer takes for a response token, so that a step trains as long as `work_ms`.
    pub train_us_per_token: f64,
}

impl Rates {
    fn measure() -> Self {
        let (mut num_tokens, mut synchronous_ms) = (0.0, 0.0);
        for step in 0..NUM_STEPS {
            let mut engine = Engine::new(false);
            for group in 0..NUM_GROUPS as u32 {
                engine.submit((step, group, 0), "");
                num_tokens += (0..NUM_SAMPLES).map(|i| f64::from(response_len(step, group, i))).sum::<f64>();
            }
            let mut now_ms = 0;
            engine.finished(now_ms);
            while let Some(next_ms) = engine.next_ms() {
                now_ms = next_ms;
                engine.finished(now_ms);
            }
            synchronous_ms += now_ms as f64;
        }
        let steps = NUM_STEPS as f64;
        let work_ms = num_tokens / steps * TOKEN_MS as f64 / NUM_SLOTS as f64;
        let train_us_per_token = 1000.0 * work_ms / (num_tokens / steps);
        Self { work_ms, synchronous_ms: synchronous_ms / steps, train_us_per_token }
    }

    fn print(&self) {
        let Self { work_ms, synchronous_ms, train_us_per_token } = self;
        println!(
            "{NUM_STEPS} steps of {NUM_GROUPS} groups of {NUM_SAMPLES}; lengths log-normal, median {MEDIAN_LEN}, sigma \
             {SPREAD}, at most {MAX_LEN}; {NUM_SLOTS} sequences at once, a token each in {TOKEN_MS} ms, new weights in \
             {SWAP_MS} ms; training {train_us_per_token:.0} us a token"
        );
        let (overlap, tail) = (2.0, synchronous_ms / work_ms);
        // Beside each other, both busy all the time, against generation to the longest sample and training behind it.
        let both = (synchronous_ms + work_ms) / work_ms;
        println!(
            "ceilings: overlap {overlap:.1}, tail {tail:.2} (of generation alone), both together {both:.2} x synchronous\n"
        );
    }
}

fn row(mode: &Mode, outcome: &Outcome, synchronous: &Outcome) {
    let per_s = |outcome: &Outcome| outcome.account.trained as f64 / (outcome.run_ms as f64 / 1e3);
    let generator = outcome.num_sampled as f64 * TOKEN_MS as f64 / (NUM_SLOTS as f64 * outcome.run_ms as f64);
    let samples: u64 = outcome.staleness.values().sum();
    let sum: u64 = outcome.staleness.iter().map(|(staleness, count)| staleness * count).sum();
    let account = &outcome.account;
    let share = |tokens: u64| 100.0 * tokens as f64 / outcome.num_sampled as f64;
    let dropped = account.refused + account.expired + account.surplus + account.replaced;
    let used = account.response - account.reused;
    let first_trained = share(used) * account.trained as f64 / account.response as f64;
    let first_masked = share(used) - first_trained;
    println!(
        "| {} | {:.0} | {:.2} x | {:.0} % | {:.0} % | {:.2}, {} | {first_trained:.1}, {first_masked:.1}, {:.1}, {:.1} % | \
         {:.4} % |",
        mode.name,
        per_s(outcome),
        per_s(outcome) / per_s(synchronous),
        100.0 * generator,
        100.0 * outcome.trained_ms as f64 / outcome.run_ms as f64,
        sum as f64 / samples as f64,
        outcome.staleness.keys().last().copied().unwrap_or(0),
        share(dropped),
        (100.0 - share(used) - share(dropped)).max(0.0),
        100.0 * outcome.building.as_secs_f64() / (outcome.run_ms as f64 / 1e3),
    );
}
