//! Random samples for property tests.

use crate::{Sample, Status, VersionRun};

/// `SplitMix64` (Steele, Lea, Flood 2014): small, seeded, the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn text(&mut self) -> String {
        const LETTERS: [&str; 10] = ["a", "7", " ", "\n", "\"", "\\", "é", "漢", "🙂", "\u{0}"];
        (0..self.below(12)).map(|_| LETTERS[self.below(10) as usize]).collect()
    }

    fn json(&mut self) -> String {
        serde_json::json!({"k": self.text(), "n": self.next(), "f": 0.1}).to_string()
    }
}

pub(crate) fn random_samples(seed: u64, len: usize) -> Vec<Sample> {
    let mut random = Random::new(seed);
    (0..len).map(|i| random_sample(&mut random, i as u32)).collect()
}

fn random_sample(random: &mut Random, index: u32) -> Sample {
    let (prompt_len, response_len) = (random.below(20) as usize, random.below(30) as usize);
    let kept_lens: Vec<u32> =
        (0..random.below(2) as usize * response_len).map(|_| random.below(4) as u32).collect();
    let num_routed = random.below(3) as usize * (prompt_len + response_len).saturating_sub(1);
    let split = random.below(response_len as u64 + 1) as u32;
    let statuses = [Status::Pending, Status::Completed, Status::Truncated, Status::Aborted, Status::Failed];
    Sample {
        step: random.next(),
        group: random.next() as u32,
        index,
        attempt: random.below(3) as u32,
        episode: random.next(),
        part: random.below(3) as u32,
        prompt_id: random.text(),
        source: random.text(),
        status: statuses[random.below(5) as usize],
        finish_reason: random.text(),
        prompt: serde_json::Value::String(random.text()).to_string(),
        tools: (random.below(2) == 0).then(|| random.json()),
        response: random.text(),
        tokens: (0..prompt_len + response_len).map(|_| random.next() as u32).collect(),
        prompt_len: prompt_len as u32,
        loss_mask: (0..response_len).map(|_| random.below(2) as u8).collect(),
        rollout_log_probs: (0..response_len).map(|_| -(random.below(1 << 20) as f32) / 65536.0).collect(),
        kept_token_ids: (0..kept_lens.iter().sum()).map(|_| random.next() as u32).collect(),
        kept_lens,
        routed_experts: (0..num_routed).map(|_| random.next() as u16).collect(),
        weight_versions: vec![
            VersionRun { version: random.next(), len: split },
            VersionRun { version: random.next(), len: response_len as u32 - split },
        ],
        label: (random.below(2) == 0).then(|| random.text()),
        metadata: (random.below(2) == 0).then(|| random.json()),
        weight: random.below(100) as f32 / 7.0,
    }
}
