//! Reads what the evaluations of a set answered: the same questions at its first and its newest version.

use std::fs;
use std::path::Path;

use slime_cli::Failure;
use slime_config::RunDir;
use slime_config::paths::{self, Physical};
use slime_record::{Column, ColumnValues, PromptContent, Sample, decode_segment};

/// One question and the answers of both versions.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text of the prompt, or of its last message.
    pub question: String,
    /// The expected answer, where there is one.
    pub label: String,
    /// Response and reward at the first and the newest version.
    pub responses: [(String, f32); 2],
}

/// The answers of one set.
#[derive(Debug)]
pub struct Answers {
    /// Name of the set.
    pub set: String,
    /// The versions compared.
    pub versions: [u64; 2],
    /// The first sample of every question both have.
    pub rows: Vec<Answer>,
}

/// Compares the first with the newest evaluation of `set`.
///
/// # Errors
/// The set was not evaluated, or its files are broken.
pub fn read_answers(run: &str, set: &str) -> Result<Answers, Failure> {
    let folder = Path::new(run).join("eval");
    let entries = fs::read_dir(&folder).map_err(|error| Failure::open(folder.display(), &error))?;
    let run_dir = RunDir::new(run);
    let mut places: Vec<Physical> = entries
        .filter_map(|entry| paths::parse_physical(entry.ok()?.file_name().to_str()?))
        .filter(|&place| run_dir.join(paths::evaluation_file(place, set, "reward")).exists())
        .collect();
    places.sort_unstable();
    let (Some(&first), Some(&last)) = (places.first(), places.last()) else {
        let message = format!("{}: no evaluation of set {set} yet", folder.display());
        return Err(Failure::new(slime_cli::exit::NO_INPUT, message)
            .with_hint("the sets are [eval.<set>] of run.toml"));
    };
    let (before, after) = (samples(&run_dir, first, set)?, samples(&run_dir, last, set)?);
    let mut rows = Vec::new();
    for (sample, reward) in before.iter().filter(|(sample, _)| sample.index == 0) {
        let same = |other: &&(Sample, f32)| other.0.index == 0 && other.0.prompt_id == sample.prompt_id;
        let Some((newest, newest_reward)) = after.iter().find(same) else { continue };
        rows.push(Answer {
            question: question(&sample.prompt),
            label: sample.label.clone().unwrap_or_default(),
            responses: [(sample.response.clone(), *reward), (newest.response.clone(), *newest_reward)],
        });
    }
    Ok(Answers { set: set.to_owned(), versions: [first.version, last.version], rows })
}

fn samples(run_dir: &RunDir, place: Physical, set: &str) -> Result<Vec<(Sample, f32)>, Failure> {
    let read = |name: String| {
        let path = run_dir.join(name);
        let bytes = fs::read(&path).map_err(|error| Failure::open(path.display(), &error))?;
        Ok::<_, Failure>((path.display().to_string(), bytes))
    };
    let broken = |path: &str, error: &slime_record::Error| Failure::data(format!("{path}: {error}"));
    let (path, bytes) = read(paths::evaluation_file(place, set, "samples"))?;
    let samples = decode_segment(bytes).and_then(|segment| segment.samples());
    let samples = samples.map_err(|error| broken(&path, &error))?;
    let (path, bytes) = read(paths::evaluation_file(place, set, "reward"))?;
    let (column, _) = Column::decode(bytes).map_err(|error| broken(&path, &error))?;
    let places = column.rows_of(&samples).map_err(|error| broken(&path, &error))?;
    let ColumnValues::F32(rewards) = column.values else {
        return Err(Failure::data(format!("{path}: expected one number for each sample")));
    };
    Ok(samples.into_iter().zip(places).map(|(sample, row)| (sample, rewards[row])).collect())
}

/// The text a person would call the question.
fn question(prompt: &str) -> String {
    let content = |message: &serde_json::Value| message["content"].as_str().map(str::to_owned);
    match PromptContent::parse(prompt) {
        Ok(prompt) => prompt.into_messages().last().and_then(content).unwrap_or_default(),
        Err(_) => prompt.to_owned(),
    }
}
