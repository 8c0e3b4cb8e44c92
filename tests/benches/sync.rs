//! The ways of the weights against plain copies of the same bytes, and versions in changes against whole ones where the link
//! is slow, after steps of `AdamW` at the learning rate of reinforcement learning.
//!
//! `cargo bench -p slime-transport --bench sync`; `SYNC_PARAMS` (million) and `SYNC_REPEATS` set the size. Run
//! directories lie in /dev/shm, so that no disk hides what the ways themselves cost, or in `SYNC_DIR`; a link is added as bytes
//! over its rate.
#![allow(clippy::print_stdout, missing_docs)]

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::{Sync, SyncTransport};
use slime_transport::measure::{Timed, measure, plain_copies, plain_write_and_read};
use slime_weights::{Dtype, TensorSpec};

/// Elements of a tensor: a projection of a model of a few billion parameters.
const TENSOR_LEN: usize = 8 << 20;
/// The spread of initial weights, about that of trained projections.
const WEIGHT_STD: f32 = 0.02;
/// `AdamW`'s settings, as `[train]` has them by default.
const LR: f32 = 1e-6;
const BETA1: f32 = 0.9;
const BETA2: f32 = 0.98;
const EPS: f32 = 1e-8;
/// Steps before the first version, so that the moments are those of a run under way.
const WARM_STEPS: u32 = 8;
/// Rates of links, bytes per second.
const LINKS: [f64; 4] = [10e9, 1e9, 0.5e9, 0.1e9];

fn main() {
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (num_params, repeats) = (number("SYNC_PARAMS", 64) << 20, number("SYNC_REPEATS", 5) as u64);
    let mut trainer = Trainer::new(num_params);
    (0..WARM_STEPS).for_each(|_| trainer.step());
    let weights = trainer.weights();
    let spec = |(index, bytes): (usize, &Vec<u8>)| TensorSpec {
        name: format!("tensor.{index}"),
        dtype: Dtype::BF16,
        shape: vec![bytes.len() / 2],
    };
    let specs: Vec<TensorSpec> = weights.iter().enumerate().map(spec).collect();
    let num_bytes: usize = weights.iter().map(Vec::len).sum();
    println!("{} million parameters in bf16, {:.1} MB, lr {LR:e}", num_params >> 20, num_bytes as f64 / 1e6);

    let mut held = weights.clone();
    let place = std::env::var("SYNC_DIR").unwrap_or_else(|_| "/dev/shm".to_owned());
    let root = tempfile::tempdir_in(&place).expect("a folder");
    let (mut copy, mut fresh, mut write) = (Vec::new(), Vec::new(), Vec::new());
    let mut ceilings = || {
        let (into_held, into_new) = plain_copies(&weights, &mut held);
        copy.push(into_held);
        fresh.push(into_new);
        write.push(plain_write_and_read(root.path(), &weights).expect("room").0);
    };
    let mut timed = Vec::new();
    for transport in SyncTransport::ALL {
        ceilings();
        let root = tempfile::tempdir_in(&place).expect("a folder");
        let config = Sync { transport, full_interval: u64::MAX, ..Sync::default() };
        let mut versions = weights.clone();
        let mut num_changed = 0;
        let mut update = |weights: &mut [Vec<u8>]| {
            trainer.step();
            num_changed += trainer.write(weights);
        };
        let found = measure(&root.path().join("run"), &config, &specs, &mut versions, repeats, &mut update);
        timed.push(median(&found.expect("versions arrive")));
        if transport == SyncTransport::Delta {
            let share = num_changed as f64 / (repeats as f64 * num_params as f64);
            println!("{:.3} % of the values change in a step", 100.0 * share);
        }
        ceilings();
    }
    let [copy, fresh, write] = [copy, fresh, write].map(middle);
    let rate = |time: Duration| num_bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "memcpy {:.2} GB/s, into new memory {:.2}, plain write {:.2}",
        rate(copy),
        rate(fresh),
        rate(write)
    );
    for (transport, timed) in SyncTransport::ALL.into_iter().zip(&timed) {
        let part = |time: Duration| copy.as_secs_f64() / time.as_secs_f64();
        println!(
            "{:5}: send {:.3} s ({:.2} of memcpy, {:.2} of plain write), receive {:.3} s ({:.2} of memcpy), load {:.3} s ({:.2}); {:.3} % of the bytes",
            transport.as_str(),
            timed.send.as_secs_f64(),
            part(timed.send),
            write.as_secs_f64() / timed.send.as_secs_f64(),
            timed.receive.as_secs_f64(),
            part(timed.receive),
            timed.load.as_secs_f64(),
            part(timed.load),
            100.0 * timed.num_bytes as f64 / num_bytes as f64,
        );
    }
    let [disk, delta, _] = timed[..] else { return };
    for link in LINKS {
        let over = |timed: &Timed| timed.total().as_secs_f64() + timed.num_bytes as f64 / link;
        let (whole, changes) = (over(&disk), over(&delta));
        println!(
            "over {:4.1} GB/s: whole {whole:.3} s, in changes {changes:.3} s: {:.2} x",
            link / 1e9,
            whole / changes
        );
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The version that took the middle time.
fn median(timed: &[Timed]) -> Timed {
    let mut sorted = timed.to_vec();
    sorted.sort_by_key(Timed::total);
    sorted[sorted.len() / 2]
}

/// Masters and moments of `AdamW`, and gradients that are noise around a direction of their own, as those of policy gradients are.
struct Trainer {
    masters: Vec<f32>,
    moments: Vec<(f32, f32)>,
    num_steps: i32,
    rng: ChaCha8Rng,
}

impl Trainer {
    fn new(num_params: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let masters = (0..num_params).map(|_| WEIGHT_STD * normal(&mut rng)).collect();
        Self { masters, moments: vec![(0.0, 0.0); num_params], num_steps: 0, rng }
    }

    fn step(&mut self) {
        self.num_steps += 1;
        let (one, two) = (1.0 - BETA1.powi(self.num_steps), 1.0 - BETA2.powi(self.num_steps));
        for (index, (master, (m, v))) in self.masters.iter_mut().zip(&mut self.moments).enumerate() {
            // A direction that stays, as large as a third of the noise.
            let direction = if (index * 2_654_435_761) & 64 == 0 { 0.3 } else { -0.3 };
            let gradient = 1e-4 * (direction + normal(&mut self.rng));
            *m = BETA1 * *m + (1.0 - BETA1) * gradient;
            *v = BETA2 * *v + (1.0 - BETA2) * gradient * gradient;
            *master -= LR * (*m / one) / ((*v / two).sqrt() + EPS);
        }
    }

    /// The masters in bf16, rounded to the nearest, tensor by tensor.
    fn weights(&self) -> Vec<Vec<u8>> {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| bf16(*value).to_le_bytes()).collect();
        self.masters.chunks(TENSOR_LEN).map(bytes).collect()
    }

    /// The same over older ones; how many values are others.
    fn write(&self, weights: &mut [Vec<u8>]) -> usize {
        let mut num_changed = 0;
        for (values, bytes) in self.masters.chunks(TENSOR_LEN).zip(weights) {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                let new = bf16(*value).to_le_bytes();
                num_changed += usize::from(*bytes != new);
                *bytes = new;
            }
        }
        num_changed
    }
}

/// Nearest even.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A number of about a standard normal distribution: the sum of four uniform ones.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let bits = rng.random::<u64>();
    let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xffff).sum();
    (sum as f32 / 65_536.0 - 2.0) * 3.0_f32.sqrt()
}
