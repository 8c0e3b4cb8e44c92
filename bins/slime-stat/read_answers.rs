//! Reads what the evaluations of a set answered: the same questions at its first and its newest version.

use std::collections::HashMap;
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
    /// The first response and its reward at the first and the newest version.
    pub responses: [(String, f32); 2],
    /// How many answers of each version have a reward above 0, and how many there are.
    pub num_right: [(usize, usize); 2],
}

/// The answers of one set.
#[derive(Debug)]
pub struct Answers {
    /// Name of the set.
    pub set: String,
    /// The versions compared.
    pub versions: [u64; 2],
    /// Every question that both have.
    pub rows: Vec<Answer>,
}

impl Answers {
    /// Such as `27 of 30 answers, 15 of 15 questions at least once`, of the first (0) or the newest (1) version.
    pub fn count(&self, which: usize) -> String {
        let (mut right, mut all, mut solved) = (0, 0, 0);
        for (num, of) in self.rows.iter().map(|row| row.num_right[which]) {
            right += num;
            all += of;
            solved += usize::from(num > 0);
        }
        let num = self.rows.len();
        if all == num {
            return format!("{right} of {all} answers");
        }
        format!("{right} of {all} answers, {solved} of {num} questions at least once")
    }
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
    let (before, after) = (by_question(&before), by_question(&after));
    let mut rows = Vec::new();
    for (id, old) in &before {
        let Some((_, new)) = after.iter().find(|(other, _)| other == id) else { continue };
        let right =
            |all: &[&(Sample, f32)]| (all.iter().filter(|(_, reward)| *reward > 0.0).count(), all.len());
        let first = |all: &[&(Sample, f32)]| (all[0].0.response.clone(), all[0].1);
        rows.push(Answer {
            question: question(&old[0].0.prompt),
            label: old[0].0.label.clone().unwrap_or_default(),
            responses: [first(old), first(new)],
            num_right: [right(old), right(new)],
        });
    }
    Ok(Answers { set: set.to_owned(), versions: [first.version, last.version], rows })
}

/// A question's id and all its answers, at least one.
type Question<'a> = (&'a str, Vec<&'a (Sample, f32)>);

/// The answers by their question, in the order of the first ones.
fn by_question(samples: &[(Sample, f32)]) -> Vec<Question<'_>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut questions: Vec<Question<'_>> = Vec::new();
    for answer in samples {
        let id = answer.0.prompt_id.as_str();
        let place = *places.entry(id).or_insert(questions.len());
        match questions.get_mut(place) {
            Some((_, answers)) => answers.push(answer),
            None => questions.push((id, vec![answer])),
        }
    }
    for (_, answers) in &mut questions {
        answers.sort_by_key(|(sample, _)| sample.index);
    }
    questions
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
