//! Makes run directories as the tools leave them, of any length: metrics, manifests, a few segments with their
//! columns, evaluations, traces.
#![allow(dead_code)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;
use slime_record::{
    Account, Column, ColumnRef, ColumnValues, GroupEntry, Manifest, Provenance, Sample, SampleEntry, Scores,
    SegmentRef, Stages, Status, VersionRun, encode_segment,
};

/// When the first step began, seconds since 1970.
const START: f64 = 1_700_000_000.0;

/// What a synthetic run has.
#[derive(Clone)]
pub struct Synthetic {
    /// Steps that were trained.
    pub num_steps: u64,
    /// Groups of each step.
    pub num_groups: u32,
    /// Samples of each group.
    pub num_samples: u32,
    /// Response tokens of each sample.
    pub num_tokens: u32,
    /// Steps whose segments and columns are there.
    pub segment_steps: Vec<u64>,
    /// States of each of two replicas.
    pub num_states: u64,
    /// What the first answer of every group says.
    pub answer: String,
    /// Whether training's log-probs were kept.
    pub has_log_probs: bool,
    /// Whether the tools left traces.
    pub has_traces: bool,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            num_steps: 12,
            num_groups: 4,
            num_samples: 4,
            num_tokens: 6,
            segment_steps: (0..12).collect(),
            num_states: 100,
            answer: "1 2 3 4 5 6".to_owned(),
            has_log_probs: true,
            has_traces: true,
        }
    }
}

impl Synthetic {
    /// Writes the run.
    pub fn write(&self, run: &Path) {
        for folder in ["metrics", "control", "trace", "rollout"] {
            fs::create_dir_all(run.join(folder)).expect("writable");
        }
        fs::write(run.join("run.toml"), self.config()).expect("writable");
        let provenance =
            json!({"tool_version": "0.1.0", "host": "n1", "config_hash": "abc", "slurm": {"job_id": "77"}});
        fs::write(run.join("run.json"), provenance.to_string()).expect("writable");
        fs::write(run.join("control/done"), "").expect("writable");
        self.write_metrics(run);
        self.write_steps(run);
        for (version, right) in [(0, false), (self.num_steps, true)] {
            self.evaluate(run, version, right);
        }
        if self.has_traces {
            self.write_traces(run);
        }
    }

    fn config(&self) -> String {
        format!(
            "[run]\nseed = 7\nnum_steps = {}\n\n[model]\npath = \"weights/none\"\n\n[data]\nenvironment = \"arithmetic\"\n\n\
             [rollout]\nrollout_batch_size = {}\nn_samples_per_prompt = {}\n\n[reward]\ntypes = [\"number\"]\n\n\
             [train]\nlr = 0.00002\n",
            self.num_steps, self.num_groups, self.num_samples
        )
    }

    /// The reward rises from 0.1 to 0.9.
    fn reward(&self, step: u64) -> f64 {
        0.1 + 0.8 * step as f64 / self.num_steps.max(1) as f64
    }

    fn write_metrics(&self, run: &Path) {
        let (mut train, mut rollout) = (String::new(), String::new());
        for step in 0..self.num_steps {
            let (time, wave) = (START + 20.0 * (step + 1) as f64, (step as f64 * 0.7).sin());
            let reward = self.reward(step) + 0.05 * wave;
            let _ = writeln!(
                train,
                "{{\"step\":{step},\"tool\":\"train\",\"time\":{time},\"train/loss\":{:e},\"train/pg_loss\":{:e},\
                 \"train/entropy_loss\":{},\"train/pg_clipfrac\":{},\"train/ppo_kl\":{},\"train/kl_loss\":{},\
                 \"train/grad_norm\":{},\"train/lr-pg_0\":2e-05,\"train/train_rollout_logprob_abs_diff\":{:e},\
                 \"train/train_rollout_logprob_abs_diff_max\":{:e},\"train/staleness\":{},\"rollout/raw_reward\":{reward},\
                 \"rollout/rewards\":0.0,\"rollout/reward_std\":{},\"rollout/response_lengths\":{},\"rollout/truncated\":0.02,\
                 \"perf/step_time\":20.0,\"perf/train_wait_time\":{},\"perf/train_time\":9.5,\"perf/data_preprocess_time\":0.5,\
                 \"perf/log_probs_time\":1.5,\"perf/actor_train_time\":6.0,\"perf/update_weights_time\":1.0,\
                 \"perf/save_model_time\":0.5,\"perf/wait_time_ratio\":0.5,\"perf/actor_train_tflops\":1.2,\"perf/mfu\":0.31,\
                 \"perf/actor_train_tok_per_s\":{},\"perf/max_rss_gb\":1.9}}",
                1e-9 * wave,
                1e-9 * wave,
                2.4 / (1.0 + step as f64 * 0.4),
                0.01 + 0.01 * wave.abs(),
                1e-4 * wave.abs(),
                0.01 * step as f64 / self.num_steps as f64,
                0.6 + 0.2 * wave,
                4e-7 * (1.0 + wave.abs()),
                2.6e-5 * (1.0 + wave.abs()),
                step % 2,
                0.5 - 0.3 * self.reward(step),
                9.3 - 2.0 * self.reward(step),
                10.0 + wave,
                5000.0 + 200.0 * wave
            );
            let _ = writeln!(
                rollout,
                "{{\"step\":{step},\"tool\":\"rollout\",\"time\":{},\"rollout/response_len/mean\":{},\
                 \"rollout/response_len/median\":9,\"rollout/response_len/max\":{},\"rollout/response_len/min\":3,\
                 \"rollout/truncated_ratio\":0.02,\"rollout/repetition_frac\":0.0,\"rollout/zero_std/count_0\":{},\
                 \"rollout/zero_std/count_1\":{},\"rollout/dynamic_filter/drop_zero_std_0.0\":{},\
                 \"rollout/reward/number\":{reward},\"rollout/reward/format\":{},\"perf/rollout_time\":9.0,\
                 \"perf/tokens_per_gpu_per_sec\":{},\"passrate/pass@1\":{reward},\"passrate/pass@4\":{}}}",
                time - 10.0,
                9.3 - 2.0 * self.reward(step),
                14 + step % 5,
                (step + 1) % 3,
                step % 4,
                step % 2,
                (self.reward(step) + 0.1).min(1.0),
                2100.0 + 90.0 * wave,
                (self.reward(step) * 1.4).min(1.0)
            );
        }
        for version in (0..=self.num_steps).step_by((self.num_steps / 6).max(1) as usize) {
            for (set, offset) in [("greedy", 0.1), ("held_out", 0.0)] {
                let time = START + 20.0 * version as f64;
                let reward = (self.reward(version) + offset).min(1.0);
                let _ = writeln!(
                    rollout,
                    "{{\"version\":{version},\"set\":\"{set}\",\"tool\":\"rollout\",\"time\":{time},\"num_samples\":150,\
                     \"reward_mean\":{reward},\"response_len_mean\":8.5,\"truncated_ratio\":0.01}}"
                );
            }
        }
        let warning = json!({"step": self.num_steps / 2, "time": START, "kind": "truncation", "value": 0.12,
                             "threshold": 0.1, "message": "12 % of the answers are cut off at the length limit"});
        let metrics = run.join("metrics");
        fs::write(metrics.join("train.jsonl"), train).expect("writable");
        fs::write(metrics.join("rollout.jsonl"), rollout).expect("writable");
        fs::write(metrics.join("warnings.jsonl"), format!("{warning}\n")).expect("writable");
        for replica in 0..2 {
            let mut states = String::new();
            for at in 0..self.num_states {
                let wave = (at as f64 * 0.13 + f64::from(replica)).sin();
                let _ = writeln!(
                    states,
                    "{{\"time\":{},\"tool\":\"replica.{replica}\",\"num_running\":{},\"num_waiting\":{},\
                     \"tokens_per_s\":{},\"kv_used\":{},\"busy\":0.9,\"version\":{}}}",
                    START + 20.0 * self.num_steps as f64 * at as f64 / self.num_states as f64,
                    (24.0 + 8.0 * wave).round(),
                    (6.0 - 6.0 * wave).round(),
                    2000.0 + 300.0 * wave,
                    0.5 + 0.3 * wave,
                    at * self.num_steps / self.num_states
                );
            }
            fs::write(metrics.join(format!("engine-{replica}.jsonl")), states).expect("writable");
        }
    }

    fn samples(&self, step: u64) -> Vec<Sample> {
        let of_group = |group: u32| (0..self.num_samples).map(move |index| (group, index));
        let sample = |(group, index): (u32, u32)| {
            let tokens: Vec<u32> = (0..self.num_tokens + 3).map(|at| (at * 7 + group + index) % 96).collect();
            Sample {
                step,
                group,
                index,
                prompt_id: format!("p{group}"),
                prompt: format!(
                    "[{{\"role\":\"user\",\"content\":\"Compute {group} + {step}. Reply with only the number.\"}}]"
                ),
                label: Some((u64::from(group) + step).to_string()),
                response: if index == 0 { self.answer.clone() } else { format!("it is {index}") },
                prompt_len: 3,
                loss_mask: vec![1; self.num_tokens as usize],
                rollout_log_probs: (0..self.num_tokens).map(|at| -0.05 - 0.6 * (at % 5) as f32).collect(),
                weight_versions: vec![VersionRun { version: step, len: self.num_tokens }],
                status: if index == 3 { Status::Truncated } else { Status::Completed },
                finish_reason: "stop".to_owned(),
                tokens,
                ..Sample::default()
            }
        };
        (0..self.num_groups).flat_map(of_group).map(sample).collect()
    }

    fn write_steps(&self, run: &Path) {
        let template = self.manifest(1_234_567, 0, 0).replace("1234567", "@STEP@");
        for step in 0..self.num_steps {
            let folder = run.join(format!("rollout/{step:06}"));
            fs::create_dir_all(&folder).expect("writable");
            let manifest = if self.segment_steps.contains(&step) {
                let [segment, reward] = self.write_segment(run, step);
                self.manifest(step, segment, reward)
            } else {
                template.replace("/@STEP@/", &format!("/{step:06}/")).replace("@STEP@", &step.to_string())
            };
            fs::write(folder.join("MANIFEST.json"), manifest).expect("writable");
        }
    }

    /// Writes samples and columns of a step; the bytes of the segment and the reward column.
    fn write_segment(&self, run: &Path, step: u64) -> [u64; 2] {
        let (samples, provenance) = (self.samples(step), Provenance::default());
        let segment = encode_segment(&samples, &provenance).expect("samples are whole");
        let rewards = samples.iter().map(|sample| f32::from(u8::from(sample.index == 0))).collect();
        let mut reward = Column::new("reward", &samples, ColumnValues::F32(rewards));
        reward.details = samples.iter().map(|_| Some("{\"number\":1.0,\"format\":0.5}".to_owned())).collect();
        let reward = reward.encode(&provenance).expect("columns are whole");
        let put = |name: String, bytes: &[u8]| {
            let path = run.join(name);
            fs::create_dir_all(path.parent().expect("it has a folder")).expect("writable");
            fs::write(path, bytes).expect("writable");
        };
        put(format!("rollout/{step:06}/replica-0.000001.000000.arrow"), &segment);
        put(format!("column/reward/{step:06}/0.000001.000000.arrow"), &reward);
        if self.has_log_probs {
            let trained = |sample: &Sample| {
                let off = |(at, value): (usize, &f32)| value + 10f32.powi(-7 + (at % 7) as i32);
                sample.rollout_log_probs.iter().enumerate().map(off).collect::<Vec<f32>>()
            };
            let values = ColumnValues::F32List(samples.iter().map(trained).collect());
            let column =
                Column::new("log_probs", &samples, values).encode(&provenance).expect("columns are whole");
            put(format!("column/log_probs/{step:06}/0.000001.000000.arrow"), &column);
        }
        [segment.len() as u64, reward.len() as u64]
    }

    fn manifest(&self, step: u64, segment_bytes: u64, reward_bytes: u64) -> String {
        let entry = |group: u32| GroupEntry {
            step,
            group,
            attempt: 0,
            cursor: u64::from(group),
            chosen: None,
            prompt_id: format!("p{group}"),
            segment: SegmentRef {
                path: format!("rollout/{step:06}/replica-0.000001.000000.arrow"),
                num_bytes: segment_bytes,
                checksum: 1,
                epoch: 1,
            },
            first_row: group * self.num_samples,
            columns: vec![ColumnRef {
                name: "reward".to_owned(),
                path: format!("column/reward/{step:06}/0.000001.000000.arrow"),
                num_bytes: reward_bytes,
                checksum: 1,
            }],
            samples: (0..self.num_samples)
                .map(|index| SampleEntry {
                    index,
                    part: 0,
                    tokens_hash: 0x1234_5678_9abc_def0 + u64::from(index),
                    response_len: self.num_tokens,
                    num_trained: self.num_tokens,
                    num_masked: 0,
                    oldest_version: step,
                    versions: vec![VersionRun { version: step, len: self.num_tokens }],
                })
                .collect(),
            priority: 0.0,
            stratum: String::new(),
            spare: None,
            num_uses: 0,
            scores: Scores::default(),
        };
        let manifest = Manifest {
            step,
            builder: 1,
            epoch: 1,
            min_version: 0,
            groups: (0..self.num_groups).map(entry).collect(),
            refused: Vec::new(),
            dropped: Vec::new(),
            carried: Vec::new(),
            outstanding: Vec::new(),
            returned: Vec::new(),
            next_group: std::collections::BTreeMap::new(),
            cursor: 0,
            account: Account::default(),
            stages: Stages::default(),
        };
        serde_json::to_string(&manifest).expect("a manifest is JSON")
    }

    fn evaluate(&self, run: &Path, version: u64, right: bool) {
        for (set, num_answers) in [("greedy", 1), ("held_out", 2)] {
            let samples: Vec<Sample> =
                self.samples(version).into_iter().filter(|sample| sample.index < num_answers).collect();
            let folder = run.join(format!("eval/{version:06}.e001/{set}"));
            fs::create_dir_all(&folder).expect("writable");
            let provenance = Provenance::default();
            // One first answer is wrong also in the end.
            let is_right = |s: &Sample| s.group == 0 || right && (s.group, s.index, num_answers) != (1, 0, 2);
            let rewards = samples.iter().map(|s| f32::from(u8::from(is_right(s)))).collect();
            let column = Column::new("reward", &samples, ColumnValues::F32(rewards));
            fs::write(folder.join("samples.arrow"), encode_segment(&samples, &provenance).expect("whole"))
                .expect("writable");
            fs::write(folder.join("reward.arrow"), column.encode(&provenance).expect("whole"))
                .expect("writable");
        }
    }

    /// Traces as running tools leave them: without the end of the array.
    fn write_traces(&self, run: &Path) {
        let head = |role: &str| {
            let name = |kind: &str, name: &str| json!({"ph": "M", "name": kind, "pid": 4, "tid": 1, "args": {"name": name}});
            format!("[\n{},\n{},\n", name("process_name", role), name("thread_name", "main"))
        };
        let (mut trainer, mut replica) = (head("trainer.0"), head("replica.0"));
        for step in 0..self.num_steps {
            let start = (START + 20.0 * step as f64) * 1e6;
            let span = |text: &mut String, name: &str, from: f64, seconds: f64| {
                let (ts, dur) = (start + from * 1e6, seconds * 1e6);
                let event = json!({"ph": "X", "name": name, "cat": "slime", "ts": ts, "dur": dur, "pid": 4, "tid": 1,
                                   "args": {"step": step}});
                let _ = writeln!(text, "{event},");
            };
            span(&mut replica, "generate", 0.0, 9.0);
            span(&mut replica, "load_weights", 19.0, 1.0);
            span(&mut trainer, "train_wait", 0.0, 10.0);
            span(&mut trainer, "log_probs", 10.5, 1.5);
            span(&mut trainer, "actor_train", 12.0, 6.0);
            span(&mut trainer, "update_weights", 18.0, 1.0);
        }
        trainer += "{\"ph\":\"X\",\"name\":\"torn";
        fs::write(run.join("trace/trainer.0.000001.json"), trainer).expect("writable");
        fs::write(run.join("trace/replica.0.000001.json"), replica).expect("writable");
    }
}
