//! What the ranks of a layout compute and send in one optimizer step, from the configuration alone, and about how long that
//! takes. Per rank and step: operations forward and backward (and computed again), bytes that it sends in each kind of
//! collective. Nothing overlaps with computation, as in `lib/model` and `lib/comm`.

use slime_config::{Cluster, HfConfig, Recompute};
use slime_model::Segment;
use slime_weights::{PlanLayout, Share, gib, kv_heads};

use crate::budget::Batch;
use crate::flops::forward_flops;
use crate::pipeline::bubble;
use crate::{MicroBatch, Settings};

/// Bytes of an activation in bf16, of a gradient sum in f32, of a new weight in bf16.
const ACTIVATION: f64 = 2.0;
const GRADIENT: f64 = 4.0;
const WEIGHT: f64 = 2.0;

/// The plan of an optimizer step whose samples are all as long as they may be.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// Samples of the step.
    pub num_samples: u64,
    /// Micro-batches of a data-parallel rank.
    pub num_batches: usize,
    /// Operations of a rank.
    pub flops: f64,
    /// Share of its time that a stage waits for another.
    pub bubble: f64,
    /// What a rank sends, in bytes.
    pub sent: Vec<Sent>,
}

/// What a rank sends along an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sent {
    /// What it is.
    pub what: &'static str,
    /// Bytes in a step.
    pub bytes: f64,
    /// Neighbouring ranks that it goes to: they are on one node as long as there are no more than its GPUs.
    pub span: usize,
}

impl StepPlan {
    /// That of a model; `elements` are the parameters of a rank, those of its experts alone apart.
    pub fn new(
        config: &HfConfig,
        settings: &Settings,
        layout: PlanLayout,
        (num_samples, batch): (u64, Batch),
        [dense, experts]: [u64; 2],
    ) -> Self {
        let PlanLayout { tp, cp, ep, etp, dp, pipeline } = layout;
        let len = batch.prompt_len + batch.response_len;
        let per_rank = num_samples.div_ceil(dp as u64);
        let of_batch = (batch.tokens / len.max(1)).max(1);
        let num_batches = per_rank.div_ceil(of_batch) as usize;
        let tokens = (of_batch * len) as f64;
        let micro_batch = micro_batch(of_batch as usize, batch);
        let recomputed = if settings.train.recompute == Recompute::Full { 1.0 } else { 0.0 };
        let sharing = (tp * cp * pipeline.num_stages) as f64;
        let passes = num_batches as f64 * (3.0 + recomputed);
        let flops = passes * forward_flops(config, &micro_batch) / sharing;
        let runs = pipeline.layers(config.num_hidden_layers);
        let bubble = bubble(pipeline, num_batches, |at| runs[at].len() as f64);
        // Of a rank: its layers, and its tokens of a micro-batch.
        let layers = config.num_hidden_layers as f64 / pipeline.num_stages as f64;
        let (own, hidden) = (tokens / cp as f64, config.hidden_size as f64);
        let batches = num_batches as f64;
        let away = |size: usize| (size - 1) as f64 / size as f64;
        // Each forward pass, each backward one, and each that is computed again.
        let both = 2.0 + recomputed;
        let keys = kv_heads(config, Share { rank: 0, size: tp }).len() * config.head_dim * 2;
        let sparse = config
            .moe
            .as_ref()
            .map_or(0.0, |moe| moe.layers.len() as f64 / pipeline.num_stages as f64 * moe.top_k as f64);
        let stage = layout.stage_size();
        let in_stages = |rank: usize| if pipeline.num_stages > 1 { rank } else { 0 };
        let copies = stage / (ep * etp);
        let of_gradients =
            (GRADIENT + WEIGHT) * (dense as f64 * away(cp * dp) + experts as f64 * away(copies));
        let sent = [
            // Gather and scatter around attention and around the MLP.
            ("activations over tp", both * batches * layers * 4.0 * own * hidden * ACTIVATION * away(tp), tp),
            (
                "keys and values over cp",
                both * batches * layers * own * keys as f64 * ACTIVATION * cp as f64 * away(cp),
                tp * cp,
            ),
            (
                "tokens to experts and back",
                both * batches * sparse * 2.0 * own / tp as f64 * hidden * ACTIVATION * away(ep * etp),
                ep * etp,
            ),
            (
                "between stages",
                in_stages(2) as f64 * batches * pipeline.chunks as f64 * own / tp as f64
                    * hidden
                    * ACTIVATION,
                stage + 1,
            ),
            ("gradients and new weights", of_gradients, stage),
        ];
        let sent = sent.into_iter().map(|(what, bytes, span)| Sent { what, bytes, span });
        let sent = sent.filter(|sent| sent.bytes > 0.0).collect();
        Self { num_samples, num_batches, flops, bubble, sent }
    }

    /// Seconds of computing, of sending and of both with the waiting of stages, on a machine like this.
    pub fn seconds(&self, cluster: &Cluster) -> [f64; 3] {
        let computing = self.flops / (cluster.tflops * 1e12);
        let rate = |span: usize| {
            if span > cluster.gpus_per_node as usize { cluster.node_gb_per_s } else { cluster.gpu_gb_per_s }
        };
        let sending = self.sent.iter().fold(0.0, |sum, sent| sum + sent.bytes / (rate(sent.span) * 1e9));
        [computing, sending, (computing + sending) / (1.0 - self.bubble)]
    }

    /// For people.
    pub fn lines(&self, layout: PlanLayout, cluster: &Cluster) -> Vec<String> {
        let [computing, sending, all] = self.seconds(cluster).map(rounded);
        let about = if all.starts_with("under") { "" } else { "about " };
        let parts: Vec<String> =
            self.sent.iter().map(|sent| format!("{} {}", sent.what, gib(sent.bytes as u64))).collect();
        let bubble = match layout.pp() {
            1 => String::new(),
            num => format!(", {num} stages wait {:.1} % of the time", 100.0 * self.bubble),
        };
        let mut lines = vec![format!(
            "an optimizer step of {} samples, all as long as they may be: {} micro-batches of a data-parallel rank{bubble}, \
             {:.2e} operations of a GPU",
            self.num_samples, self.num_batches, self.flops
        )];
        if !parts.is_empty() {
            lines.push(format!("  a GPU sends: {}", parts.join(", ")));
        }
        lines.push(format!(
            "  {about}{all} s: {computing} s of computing at {} TFLOP/s, {sending} s of sending at {} GB/s within a \
             node of {} GPUs and {} GB/s between them ([cluster])",
            cluster.tflops, cluster.gpu_gb_per_s, cluster.gpus_per_node, cluster.node_gb_per_s
        ));
        lines
    }
}

/// Seconds with the digits that an estimate deserves.
fn rounded(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        s if s < 0.01 => "under 0.01".to_owned(),
        s if s < 1.0 => format!("{s:.2}"),
        s if s < 10.0 => format!("{s:.1}"),
        s => format!("{s:.0}"),
    }
}

/// A micro-batch of that many samples, each with a prompt of its own.
fn micro_batch(num: usize, batch: Batch) -> MicroBatch {
    let (prompt, response) = (batch.prompt_len as usize, batch.response_len as usize);
    let len = prompt + response;
    let segments = (0..num).map(|at| Segment::alone(at * len, len)).collect();
    let rows = vec![0; num * response];
    MicroBatch { tokens: vec![0; num * len], segments, rows, ..MicroBatch::default() }
}

#[cfg(test)]
mod tests {
    use slime_config::Pipeline;

    use super::*;

    fn plan(layout: PlanLayout, num_samples: u64) -> StepPlan {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/glm4_moe");
        let config = HfConfig::load(dir).unwrap();
        let batch = Batch { tokens: 100, prompt_len: 10, response_len: 40 };
        StepPlan::new(&config, &Settings::default(), layout, (num_samples, batch), [1000, 400])
    }

    #[test]
    fn alone_a_rank_computes_all_and_sends_nothing() {
        let alone = plan(PlanLayout::SINGLE, 8);
        assert_eq!((alone.num_batches, alone.bubble, alone.sent.len()), (4, 0.0, 0));
        let cluster = Cluster { tflops: 1e-6, ..Cluster::default() };
        assert_eq!([0.0, 0.004, 0.123, 9.87, 98.7].map(rounded), ["0", "under 0.01", "0.12", "9.9", "99"]);
        assert_eq!(rounded(alone.seconds(&cluster)[1]), "0", "without a sign");
        let [computing, sending, all] = alone.seconds(&cluster);
        assert!(
            (computing - alone.flops / 1e6).abs() < 1e-9 * computing && sending == 0.0 && all <= computing
        );
        // Twice the ranks of data compute half of it each.
        let two = plan(PlanLayout { dp: 2, ..PlanLayout::SINGLE }, 8);
        assert!((2.0 * two.flops - alone.flops).abs() < 1e-9 * alone.flops);
        // Each sends its half of the f32 gradients and of the bf16 weights.
        assert_eq!(
            two.sent,
            [Sent { what: "gradients and new weights", bytes: 6.0 * 1400.0 / 2.0, span: 2 }]
        );
    }

    #[test]
    fn axes_send_what_they_share() {
        let layout = PlanLayout { tp: 2, cp: 2, ep: 4, pipeline: Pipeline::even(3), ..PlanLayout::SINGLE };
        let plan = plan(layout, 12);
        assert_eq!(plan.num_batches, 6);
        assert!((plan.bubble - 2.0 / 8.0).abs() < 1e-12, "{}", plan.bubble);
        let names: Vec<&str> = plan.sent.iter().map(|sent| sent.what).collect();
        assert_eq!(
            names,
            [
                "activations over tp",
                "keys and values over cp",
                "tokens to experts and back",
                "between stages",
                "gradients and new weights"
            ]
        );
        // A stage's ranks are 4, so a message to the next one goes further.
        assert_eq!(plan.sent[3].span, 5);
        let near = plan.seconds(&Cluster { gpus_per_node: 8, ..Cluster::default() });
        let far = plan.seconds(&Cluster { gpus_per_node: 2, ..Cluster::default() });
        assert!(far[1] > near[1] && far[0] <= near[0]);
    }
}
