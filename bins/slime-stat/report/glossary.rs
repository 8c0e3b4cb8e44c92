//! The words of the page for those who do not know them.

use maud::{Markup, html};

const WORDS: [(&str, &str); 22] = [
    (
        "advantage",
        "The reward of an answer minus the mean of its group, over the group's standard deviation. It says in which direction, and how strongly, training moves the answer's probability.",
    ),
    (
        "clip fraction",
        "The share of tokens whose probability changed so much within a step that the update was cut off there.",
    ),
    ("entropy", "How undecided the policy is about the next token, in nats: 0 when it is certain."),
    (
        "evaluation",
        "Questions that are asked again and again at different versions, so that the answers can be compared. Their answers are never trained.",
    ),
    ("greedy", "Answered with the likeliest token each time, without chance."),
    ("group", "All answers to one question of a step. Rewards are compared within it."),
    ("held-out", "Questions that training never sees; only they show whether something general was learned."),
    ("KL divergence", "How different two policies' probabilities are; 0 when they agree."),
    (
        "log-prob",
        "The logarithm of the probability with which a token was chosen. −0.1 is near certainty, −5 is a surprise.",
    ),
    (
        "loss",
        "What the optimizer makes small. In this kind of training its value says little; the reward is the measure.",
    ),
    (
        "mismatch",
        "The difference between the log-probs that generation and training compute for the same tokens. It should be nearly 0.",
    ),
    ("policy", "The language model that is being trained."),
    ("replica", "One copy of the policy that generates answers."),
    ("reward", "The score of an answer, by a rule or a judge: often 1 for right, 0 for wrong."),
    ("rollout", "Generating the answers of a step."),
    ("sample", "One answer with its question, tokens and reward."),
    ("staleness", "How many versions older than the trained policy the one was that generated an answer."),
    ("step", "One round: ask questions, score the answers, change the policy, hand the new version over."),
    (
        "temperature",
        "How much chance there is in generation: 0 is greedy, 1 follows the policy's own probabilities.",
    ),
    ("token", "A piece of text, about three quarters of a word: what a language model reads and writes."),
    ("truncated", "Cut off at the length limit, before the answer was finished."),
    ("version", "The policy after so many training steps; version 0 is the model the run began with."),
];

/// The section of all words.
pub fn section() -> Markup {
    html! {
        section #glossary {
            h2 { "Words" }
            dl.glossary.card { @for (word, meaning) in WORDS { div { dt { (word) } dd { (meaning) } } } }
        }
    }
}
