//! The samples of some steps, as many as fit into a budget of bytes; the page's script draws the chosen step.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::script_json;
use crate::read_run::Run;
use crate::read_steps::{Shown, ShownGroup, committed_steps, first_kept_step, read_step, tokenizer};

/// Bytes of all samples of the page.
const BUDGET: usize = 2 << 20;
/// Steps to choose from.
const MAX_STEPS: usize = 16;
/// Groups of each of them.
const MAX_GROUPS: usize = 6;
/// Answers of each group.
const MAX_ANSWERS: usize = 16;
/// Bytes of one text, and tokens of one answer; the rest is counted.
const MAX_TEXT: usize = 12_000;
const MAX_TOKENS: usize = 3_000;

/// The section of the samples.
pub fn section(run: &Run) -> Markup {
    let first_kept = first_kept_step(&run.dir);
    let (pruned, steps): (Vec<u64>, Vec<u64>) =
        committed_steps(&run.dir).into_iter().partition(|step| *step < first_kept);
    let tokenizer = tokenizer(&run.dir, run.config.as_ref().map(|config| config.model.path.as_str()));
    let mut missing = Vec::new();
    let mut shown: Vec<Value> = Vec::new();
    let (mut left, mut has_rewards) = (BUDGET, false);
    let chosen = chosen(&steps);
    for (at, step) in chosen.iter().enumerate() {
        // What one step leaves of its share goes to the others.
        let share = left / (chosen.len() - at);
        match read_step(&run.dir, *step, MAX_GROUPS, tokenizer.as_ref()) {
            Ok(groups) => {
                has_rewards |=
                    groups.iter().flat_map(|group| &group.answers).any(|answer| answer.reward.is_some());
                let (value, used) = fitting(*step, &groups, share);
                left = left.saturating_sub(used);
                shown.push(value);
            }
            Err(problem) => missing.push(format!("step {step}: {problem}")),
        }
    }
    html! {
        section #samples {
            h2 { "Samples" }
            p.explain {
                "What the model was asked, what it answered, and what it got for it. The advantage is the reward among the "
                "answers to the same question: above 0 an answer becomes likelier, below 0 less likely. "
                @if steps.len() > chosen.len() { "Shown are " (shown.len()) " of " (steps.len()) " steps, evenly chosen. " }
                @if let (Some(first), Some(last)) = (pruned.first(), pruned.last()) { (pruned_words(*first, *last)) }
            }
            @if shown.is_empty() { p.note { "No committed samples could be read." } }
            @else {
                @if !has_rewards { p.note { "The rewards of these samples could not be read." } }
                @if tokenizer.is_none() { p.note { "There is no tokenizer in the run's weights, so answers are shown whole, not token by token." } }
                div #browser.browser { noscript { p { "Choosing a step needs JavaScript." } } }
                (script_json("samples-data", &json!(shown)))
            }
            @for problem in missing.iter().take(5) { p.note { (problem) } }
        }
    }
}

/// Which steps have no samples any more, and why.
fn pruned_words(first: u64, last: u64) -> String {
    if first == last {
        return format!("Step {last} was pruned with its checkpoint. ");
    }
    format!("Steps {first} to {last} were pruned with their checkpoints. ")
}

/// Evenly spaced steps with the first and the last.
fn chosen(steps: &[u64]) -> Vec<u64> {
    let num = steps.len().min(MAX_STEPS);
    (0..num).map(|at| steps[at * (steps.len() - 1) / (num - 1).max(1)]).collect()
}

/// The groups of a step that fit into `share` bytes, at least one, and the bytes they take.
fn fitting(step: u64, groups: &[ShownGroup], share: usize) -> (Value, usize) {
    let (mut used, mut values) = (0, Vec::new());
    for group in groups {
        let mut value = group_value(group, MAX_TEXT, MAX_TOKENS);
        let mut size = value.to_string().len();
        if used + size > share && !values.is_empty() {
            break;
        } else if size > share {
            value = group_value(group, share / 40, share / 400);
            size = value.to_string().len();
        }
        used += size;
        values.push(value);
    }
    (json!({"step": step, "groups": values}), used)
}

fn group_value(group: &ShownGroup, max_text: usize, max_tokens: usize) -> Value {
    let prompt: Vec<Value> =
        group.prompt.iter().map(|(role, text)| json!([role, cut(text, max_text)])).collect();
    let answers: Vec<Value> = group
        .answers
        .iter()
        .take(MAX_ANSWERS)
        .map(|answer| answer_value(answer, max_text, max_tokens))
        .collect();
    let label = group.label.as_ref().map(|label| cut(label, 500));
    json!({"group": group.group, "prompt": prompt, "label": label, "answers": answers, "all": group.answers.len()})
}

fn answer_value(answer: &Shown, max_text: usize, max_tokens: usize) -> Value {
    let rounded = |value: f64| (value * 1e4).round() / 1e4;
    let num = answer.tokens.len().min(max_tokens);
    let generated: Vec<f64> =
        answer.rollout_log_probs.iter().take(num).map(|value| rounded(f64::from(*value))).collect();
    // Differences of f32 arithmetic are far below a fourth decimal.
    let difference =
        |(a, b): (&f32, &f32)| format!("{:.1e}", f64::from(*a) - f64::from(*b)).parse().unwrap_or(0.0);
    let differences: Vec<f64> =
        answer.log_probs.iter().zip(&answer.rollout_log_probs).take(num).map(difference).collect();
    let mut value = json!({
        "reward": answer.reward.map(|reward| rounded(f64::from(reward))),
        "advantage": answer.advantage.map(rounded),
        "status": answer.status,
        "len": answer.num_tokens,
    });
    let parts: Option<Value> = answer.parts.as_ref().and_then(|parts| serde_json::from_str(parts).ok());
    let mut add =
        |key: &str, more: Value| value.as_object_mut().map(|fields| fields.insert(key.to_owned(), more));
    if let Some(parts) = parts.filter(|parts| parts.to_string().len() < 1000) {
        add("parts", parts);
    }
    if num > 0 {
        add("tokens", json!(answer.tokens[..num]));
        add("generated", json!(generated));
        add("cut", json!(answer.tokens.len() - num));
        if !differences.is_empty() {
            add("differences", json!(differences));
        }
    } else {
        add("text", json!(cut(&answer.response, max_text)));
    }
    value
}

/// The beginning of a long text and how much is left out.
pub(super) fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{} … ({} more bytes)", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fit_into_their_share() {
        let answer = || Shown { response: "é".repeat(4000), num_tokens: 9, ..Shown::default() };
        let group = || ShownGroup { answers: vec![answer(), answer()], ..ShownGroup::default() };
        let groups = [group(), group(), group()];
        let (all, used) = fitting(3, &groups, 1 << 20);
        assert!(all["groups"].as_array().unwrap().len() == 3 && used > 40_000);
        let (some, used) = fitting(3, &groups, 40_000);
        assert!(some["groups"].as_array().unwrap().len() == 2 && used <= 40_000, "{used}");
        let (least, used) = fitting(3, &groups, 4_000);
        assert!(!least["groups"].as_array().unwrap().is_empty() && used <= 4_000, "{used}");
        assert_eq!(cut("aéb", 2), "a … (3 more bytes)");
    }

    #[test]
    fn steps_are_chosen_evenly_with_both_ends() {
        let steps: Vec<u64> = (0..1000).collect();
        let some = chosen(&steps);
        assert_eq!((some.len(), some[0], some[15]), (16, 0, 999));
        assert_eq!((chosen(&[4]), chosen(&[])), (vec![4], vec![]));
    }
}
