//! The prompt sources a configuration names: what a run trains on, and its evaluation sets.

use slime_config::{Data, Eval, RunConfig};

use crate::{Error, JsonlPrompts, Keys, PromptSource, Result, Split, environment};

/// The endless, shuffled prompts a run trains on.
///
/// # Errors
/// No source is named, or the named one cannot be opened.
pub fn train_source(config: &RunConfig) -> Result<Box<dyn PromptSource>> {
    let (data, seed) = (&config.data, config.run.seed);
    match (&data.environment, &data.prompts) {
        (Some(name), _) => environment(name, data.difficulty, Split::Train, seed),
        (None, Some(spec)) => {
            Ok(Box::new(JsonlPrompts::open(spec, keys(data), data.shuffle.then_some(seed))?))
        }
        (None, None) => Err(Error::NoSource),
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
            Ok(Box::new(JsonlPrompts::open(spec, keys(data), None)?))
        }
        (None, None, None) => Err(Error::NoSource),
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
        input: data.input_key.clone(),
        label: data.label_key.clone(),
        metadata: data.metadata_key.clone(),
        tools: data.tool_key.clone(),
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
}
