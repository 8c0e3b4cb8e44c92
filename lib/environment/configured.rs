//! The prompt sources a configuration names: what a run trains on, and its evaluation sets.

use slime_config::{Data, DataSource, Eval, Kind, RunConfig};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Error, Keys, Mixture, PromptFile, PromptSource, Result, Split, environment};

/// The endless, shuffled prompts a run trains on.
///
/// # Errors
/// No source is named, or the named one cannot be opened.
pub fn train_source(config: &RunConfig) -> Result<Box<dyn PromptSource>> {
    let (data, seed) = (&config.data, config.run.seed);
    match (&data.environment, &data.prompts) {
        (Some(name), _) => environment(name, data.difficulty, Split::Train, seed),
        (None, Some(spec)) => Ok(Box::new(PromptFile::open(spec, keys(data), data.shuffle.then_some(seed))?)),
        (None, None) => mixture(data, seed, data.shuffle),
    }
}

/// The weighted files of `[[data.source]]`.
fn mixture(data: &Data, seed: u64, shuffle: bool) -> Result<Box<dyn PromptSource>> {
    let mut sources: Vec<(Box<dyn PromptSource>, f64)> = Vec::with_capacity(data.source.len());
    for source in &data.source {
        // By name, so that a source keeps its order when others come or go.
        let own_seed = shuffle.then(|| xxh3_64_with_seed(source.name().as_bytes(), seed));
        let file = PromptFile::open(&source.path, keys_of(source, data), own_seed)?.named(source.name());
        sources.push((Box::new(file), source.weight));
    }
    if sources.is_empty() { Err(Error::NoSource) } else { Ok(Box::new(Mixture::new(sources, seed))) }
}

fn keys_of(source: &DataSource, data: &Data) -> Keys {
    let all = keys(data);
    Keys {
        input: source.input_key.clone().unwrap_or(all.input),
        label: source.label_key.clone().unwrap_or(all.label),
        metadata: source.metadata_key.clone().unwrap_or(all.metadata),
        tools: source.tool_key.clone().unwrap_or(all.tools),
        messages: source.messages_key.clone().unwrap_or(all.messages),
        completion: source.completion_key.clone().unwrap_or(all.completion),
        chosen: source.chosen_key.clone().unwrap_or(all.chosen),
        rejected: source.rejected_key.clone().unwrap_or(all.rejected),
        ..all
    }
}

/// The prompts of an evaluation set, always in the same order; what the set does not name is that of `[data]`.
///
/// # Errors
/// As [`train_source`].
pub fn eval_source(config: &RunConfig, set: &Eval) -> Result<Box<dyn PromptSource>> {
    let data = &config.data;
    let named = set.environment.as_ref().or(data.environment.as_ref());
    match (&set.prompts, named, &data.prompts) {
        (None, Some(name), _) => {
            let split = match set.split {
                slime_config::Split::Train => Split::Train,
                slime_config::Split::HeldOut => Split::HeldOut,
            };
            environment(name, set.difficulty.unwrap_or(data.difficulty), split, config.run.seed)
        }
        (Some(spec), _, _) | (None, None, Some(spec)) => {
            // Whatever is trained on, an evaluation samples.
            let keys = Keys { kind: Kind::Prompts, ..keys(data) };
            Ok(Box::new(PromptFile::open(spec, keys, None)?))
        }
        (None, None, None) => mixture(data, config.run.seed, false),
    }
}

/// Training steps of a run: `run.num_steps`, else as many as `run.num_epoch` epochs of its prompts fill.
///
/// # Errors
/// The prompts cannot be opened, have no end, or are too few.
pub fn num_steps(config: &RunConfig) -> Result<u64> {
    let num_prompts = match config.run.num_steps {
        Some(_) => None,
        None => train_source(config)?.len(),
    };
    Ok(config.num_steps(num_prompts)?)
}

/// The keys of `[data]`.
pub fn keys(data: &Data) -> Keys {
    Keys {
        kind: data.kind,
        is_chat: data.apply_chat_template,
        input: data.input_key.clone(),
        label: data.label_key.clone(),
        metadata: data.metadata_key.clone(),
        tools: data.tool_key.clone(),
        messages: data.messages_key.clone(),
        completion: data.completion_key.clone(),
        chosen: data.chosen_key.clone(),
        rejected: data.rejected_key.clone(),
        margin: data.margin_key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_a_file_are_counted_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        std::fs::write(&path, "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n{\"prompt\":\"c\"}\n").unwrap();
        let config = |more: &str| {
            let text = format!(
                "[run]\nnum_epoch = 4\n[data]\n{more}\n[rollout]\nrollout_batch_size = 2\nn_samples_per_prompt = 2\n"
            );
            slime_config::parse(&text, "run.toml", &[]).unwrap()
        };
        let of_file = config(&format!("prompts = \"{}\"", path.display()));
        assert_eq!(num_steps(&of_file).unwrap(), 6);
        assert!(matches!(num_steps(&config("")), Err(Error::NoSource)));
        let endless = num_steps(&config("environment = \"arithmetic\"\ndifficulty = 1000000"));
        assert_eq!(endless.unwrap_err().exit_code(), 78);
    }

    #[test]
    fn weighted_sources_are_drawn_by_weight_and_named_in_every_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, key: &str, rows: usize| {
            let lines: Vec<String> = (0..rows).map(|i| format!("{{\"{key}\":\"{name}{i}\"}}\n")).collect();
            std::fs::write(dir.path().join(name), lines.concat()).unwrap();
        };
        write("a.jsonl", "prompt", 5);
        write("b.jsonl", "question", 40);
        let config = |more: &str| {
            let text = format!(
                "[[data.source]]\npath = \"{0}/a.jsonl\"\nweight = 3\n\
                 [[data.source]]\npath = \"{0}/b.jsonl@[10:20]\"\nweight = 1\nname = \"hard\"\n{more}",
                dir.path().display()
            );
            slime_config::parse(&text, "run.toml", &[]).unwrap()
        };
        let of = |config: &RunConfig| -> Vec<(String, String)> {
            let source = train_source(config).unwrap();
            assert_eq!(source.len(), Some(15));
            (0..400).map(|at| source.prompt(at).unwrap()).map(|p| (p.source, p.prompt)).collect()
        };
        let good = config("input_key = \"question\"\n");
        let drawn = of(&good);
        assert_eq!(drawn, of(&good));
        let easy: Vec<&String> = drawn.iter().filter(|(s, _)| s == "a.jsonl").map(|(_, p)| p).collect();
        let hard: Vec<&String> = drawn.iter().filter(|(s, _)| s == "hard").map(|(_, p)| p).collect();
        assert!(easy.len().abs_diff(300) <= 1 && hard.len() == 400 - easy.len(), "{}", easy.len());
        for (prompts, rows) in [(&easy, 5), (&hard, 10)] {
            let epoch = |n: usize| prompts[n * rows..(n + 1) * rows].to_vec();
            for n in 0..3 {
                let distinct: std::collections::BTreeSet<_> = epoch(n).into_iter().collect();
                assert_eq!(distinct.len(), rows, "every epoch has every row once");
            }
            assert!((1..9).any(|n| epoch(n) != epoch(0)), "in an order of its own");
        }
        let resumed = train_source(&good).unwrap();
        assert_eq!(
            resumed.prompt(399).unwrap().prompt,
            drawn[399].1,
            "a cursor is all there is to resume from"
        );
        let error = train_source(&config("")).err().unwrap();
        assert!(error.to_string().contains("b.jsonl: line 11: no key \"prompt\" (input_key)"), "{error}");
        std::fs::remove_file(dir.path().join("a.jsonl")).unwrap();
        assert_eq!(train_source(&good).err().unwrap().exit_code(), 66);
    }
}
