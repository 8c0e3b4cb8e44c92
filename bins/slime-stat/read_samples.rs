//! Reads a stream that has metric lines or samples with rewards, told apart by their content, and counts the samples.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use slime_cli::{Failure, exit};
use slime_metrics::evaluation::Answered;
use slime_metrics::rollout::repeats;
use slime_record::{Row, RowReader, Status};
use slime_verifier::voted_answer;

/// What a stream has.
#[derive(Debug)]
pub enum Stream {
    /// Samples, counted.
    Samples(Tally),
    /// Anything else in lines.
    Lines(String),
}

/// Numbers about samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// How many.
    pub num_samples: usize,
    /// Groups by step and number, each with its least and greatest reward; none where rows do not say their group.
    pub groups: BTreeMap<(u64, u64), (f64, f64)>,
    /// The sum of the rewards.
    pub reward_sum: f64,
    /// The sum of their squares.
    pub reward_squares: f64,
    /// Each part of the rewards in order of appearance: name, samples, sum, samples above 0.
    pub parts: Vec<(String, usize, f64, usize)>,
    /// Samples whose number of response tokens is known.
    pub num_lens: usize,
    /// The sum of those numbers.
    pub len_sum: u64,
    /// The largest of them.
    pub len_max: u64,
    /// Samples that say how they ended.
    pub num_ended: usize,
    /// Those of them that were cut at the length limit.
    pub num_truncated: usize,
    /// Every sample with its answer, where that is wanted.
    pub answered: Option<Vec<Answered>>,
}

/// What counts of one sample.
#[derive(Debug, Default)]
struct Scored {
    group: Option<(u64, u64)>,
    response: String,
    reward: f64,
    parts: Map<String, Value>,
    response_len: Option<u64>,
    is_truncated: Option<bool>,
}

/// A row as a tool or a user wrote it; what else it has does not count.
#[derive(Deserialize)]
struct JsonRow {
    response: Option<Value>,
    reward: Option<f64>,
    rewards: Option<Map<String, Value>>,
    #[serde(default)]
    step: u64,
    group: Option<u64>,
    tokens: Option<Vec<IgnoredAny>>,
    prompt_len: Option<u64>,
    loss_mask: Option<Vec<IgnoredAny>>,
    status: Option<String>,
    finish_reason: Option<String>,
}

/// Reads to the end: samples when it is Arrow, or when the first line has a response; `keeps_answers` is for evaluations.
///
/// # Errors
/// Broken rows, and samples without reward.
pub fn read_stream(input: impl Read + 'static, name: &str, keeps_answers: bool) -> Result<Stream, Failure> {
    let samples = Tally { answered: keeps_answers.then(Vec::new), ..Tally::default() };
    let mut input = BufReader::with_capacity(1 << 16, input);
    let head = input.fill_buf().map_err(|error| Failure::io(name, &error))?;
    if head.starts_with(b"ARROW1") || head.starts_with(&[0xff; 4]) {
        return arrow(input, name, samples).map(Stream::Samples);
    }
    let mut text = String::new();
    while text.trim().is_empty() {
        if read_line(&mut input, &mut text, name)? == 0 {
            return Ok(Stream::Lines(text));
        }
    }
    let first: Option<Value> = serde_json::from_str(&text).ok();
    let is_samples = first.is_some_and(|row| row.get("response").is_some());
    if is_samples {
        return json_lines(text, input, name, samples).map(Stream::Samples);
    }
    input.read_to_string(&mut text).map_err(|error| unreadable(name, &error))?;
    Ok(Stream::Lines(text))
}

fn read_line(input: &mut impl BufRead, text: &mut String, name: &str) -> Result<usize, Failure> {
    input.read_line(text).map_err(|error| unreadable(name, &error))
}

fn unreadable(name: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::InvalidData => Failure::data(format!("{name}: not UTF-8")),
        _ => Failure::io(name, error),
    }
}

fn arrow(input: impl BufRead + 'static, name: &str, mut samples: Tally) -> Result<Tally, Failure> {
    let broken = |error: &slime_record::Error| {
        let failure = Failure::from_error(error.exit_code(), error);
        Failure { message: format!("{name}: {}", failure.message), ..failure }
    };
    for row in RowReader::new(input).map_err(|error| broken(&error))? {
        let row = row.map_err(|error| broken(&error))?;
        let number = samples.num_samples + 1;
        let scored = of_row(&row).ok_or_else(|| no_reward(&format!("{name}: row {number}")))?;
        samples.add(&scored);
    }
    if samples.num_samples == 0 {
        return Err(Failure::data(format!("{name}: no rows")));
    }
    Ok(samples)
}

fn of_row(row: &Row) -> Option<Scored> {
    let sample = &row.sample;
    let parts = row.extra.get("rewards").and_then(Value::as_object).cloned().unwrap_or_default();
    Some(Scored {
        group: Some((sample.step, u64::from(sample.group))),
        response: sample.response.clone(),
        reward: row.reward.map(f64::from).filter(|reward| reward.is_finite())?,
        parts,
        response_len: Some(sample.loss_mask.len() as u64),
        is_truncated: Some(sample.status == Status::Truncated),
    })
}

fn json_lines(
    first: String,
    mut input: impl BufRead,
    name: &str,
    mut samples: Tally,
) -> Result<Tally, Failure> {
    // Empty lines before the first one count too.
    let mut number = first.lines().count();
    let mut line = first;
    loop {
        if !line.trim().is_empty() {
            let at = format!("{name}: line {number}");
            samples.add(&of_line(line.trim(), &at)?);
        }
        line.clear();
        number += 1;
        if read_line(&mut input, &mut line, name)? == 0 {
            return Ok(samples);
        }
    }
}

fn of_line(line: &str, at: &str) -> Result<Scored, Failure> {
    let row: JsonRow = serde_json::from_str(line).map_err(|error| {
        let reason = error.to_string();
        Failure::data(format!("{at}: {}", reason.split(" at line ").next().unwrap_or_default()))
    })?;
    let Some(response) = row.response else {
        return Err(Failure::data(format!("{at}: no response, but the rows before have one")));
    };
    let num_tokens = row.tokens.map(|tokens| tokens.len() as u64);
    let of_tokens = num_tokens.zip(row.prompt_len).map(|(all, prompt)| all.saturating_sub(prompt));
    let is_cut = row.status.as_deref() == Some("truncated") || row.finish_reason.as_deref() == Some("length");
    Ok(Scored {
        group: row.group.map(|group| (row.step, group)),
        response: response.as_str().map_or_else(|| response.to_string(), str::to_owned),
        reward: row.reward.ok_or_else(|| no_reward(at))?,
        parts: row.rewards.unwrap_or_default(),
        response_len: row.loss_mask.map(|mask| mask.len() as u64).or(of_tokens),
        is_truncated: (row.status.is_some() || row.finish_reason.is_some()).then_some(is_cut),
    })
}

fn no_reward(at: &str) -> Failure {
    Failure::new(exit::DATA, format!("{at}: a sample without reward"))
        .with_hint("slime-reward adds it: slime-rollout ... | slime-reward --type number | slime-stat -")
}

impl Tally {
    fn add(&mut self, sample: &Scored) {
        if let Some(answered) = &mut self.answered {
            // A row that does not say its group is one of its own.
            let group = sample.group.unwrap_or((u64::MAX, answered.len() as u64));
            answered.push(Answered {
                group,
                answer: voted_answer(&sample.response),
                reward: sample.reward as f32,
                response_len: sample.response_len,
                is_truncated: sample.is_truncated,
                repeats: repeats(&sample.response),
            });
        }
        self.num_samples += 1;
        self.reward_sum += sample.reward;
        self.reward_squares += sample.reward * sample.reward;
        if let Some(group) = sample.group {
            let (least, greatest) = self.groups.entry(group).or_insert((sample.reward, sample.reward));
            *least = least.min(sample.reward);
            *greatest = greatest.max(sample.reward);
        }
        for (name, value) in &sample.parts {
            let Some(value) = value.as_f64() else { continue };
            let at = self.parts.iter().position(|(known, ..)| known == name).unwrap_or_else(|| {
                self.parts.push((name.clone(), 0, 0.0, 0));
                self.parts.len() - 1
            });
            let (_, num, sum, num_positive) = &mut self.parts[at];
            *num += 1;
            *sum += value;
            *num_positive += usize::from(value > 0.0);
        }
        if let Some(len) = sample.response_len {
            self.num_lens += 1;
            self.len_sum += len;
            self.len_max = self.len_max.max(len);
        }
        if let Some(is_truncated) = sample.is_truncated {
            self.num_ended += 1;
            self.num_truncated += usize::from(is_truncated);
        }
    }

    /// Mean of the rewards.
    pub fn reward_mean(&self) -> f64 {
        self.reward_sum / self.num_samples.max(1) as f64
    }

    /// Standard deviation of the rewards over all samples.
    pub fn reward_std(&self) -> f64 {
        let mean = self.reward_mean();
        (self.reward_squares / self.num_samples.max(1) as f64 - mean * mean).max(0.0).sqrt()
    }

    /// Groups whose samples all have the same reward: a group-relative advantage learns nothing from them.
    pub fn num_flat_groups(&self) -> usize {
        self.groups.values().filter(|(least, greatest)| least >= greatest).count()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn samples(text: &'static str) -> Result<Tally, Failure> {
        match read_stream(Cursor::new(text), "stdin", false)? {
            Stream::Samples(samples) => Ok(samples),
            Stream::Lines(text) => panic!("taken for other lines: {text}"),
        }
    }

    #[test]
    fn rows_of_users_count_with_what_they_have() {
        let got = samples(
            "\n{\"response\":\"a\",\"reward\":1,\"rewards\":{\"x\":1,\"y\":0}}\n\
             {\"response\":\"b\",\"reward\":-0.5,\"group\":3,\"tokens\":[1,2,3],\"prompt_len\":1,\"status\":\"truncated\"}\n\
             {\"response\":\"\",\"reward\":1,\"group\":3,\"finish_reason\":\"stop\",\"loss_mask\":[1]}",
        )
        .unwrap();
        assert_eq!((got.num_samples, got.reward_mean()), (3, 0.5));
        assert!((got.reward_std() - 0.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!((got.groups.len(), got.num_flat_groups()), (1, 0));
        assert_eq!((got.num_lens, got.len_sum, got.len_max), (2, 3, 2));
        assert_eq!((got.num_ended, got.num_truncated), (2, 1));
        assert_eq!(got.parts, [("x".to_owned(), 1, 1.0, 1), ("y".to_owned(), 1, 0.0, 0)]);
    }

    #[test]
    fn broken_rows_are_named_by_line() {
        let message = |text| samples(text).unwrap_err().message;
        assert_eq!(message("\n{\"response\":\"a\"}\n"), "stdin: line 2: a sample without reward");
        let second = "{\"response\":\"a\",\"reward\":1}\n{\"response\":\"a\",\"reward\":\"1\"}\n";
        assert!(message(second).starts_with("stdin: line 2: invalid type: string"), "{}", message(second));
        let mixed = "{\"response\":\"a\",\"reward\":1}\n{\"step\":0}\n";
        assert!(message(mixed).starts_with("stdin: line 2: no response"));
    }

    #[test]
    fn other_lines_are_handed_on_whole() {
        for text in ["", "\n\n", "\n{\"step\":0}\n{\"response\":1}\n", "no json\n"] {
            match read_stream(Cursor::new(text), "stdin", false).unwrap() {
                Stream::Lines(lines) => assert_eq!(lines, text),
                Stream::Samples(samples) => panic!("taken for samples: {samples:?}"),
            }
        }
    }
}
