//! The rules on small cases, worked out by hand.

use serde_json::{Map, Value, json};
use slime_config::LossMask;

use super::golden_tests::tokenizer;
use super::{Chat, ChatEncoder, Encoded};
use crate::{Result, Tokenizer};

/// `ChatML` with a system prompt of its own before conversations that have none.
const CHATML: &str = "{% if messages[0].role != 'system' %}<|im_start|>system\nbe<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if loop.first and tools %}{{ tools | tojson }}{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The same without a system prompt, where the last message of the assistant has a thinking block and tool messages that
/// follow each other are one turn of the user.
const THINKING: &str = "{% for m in messages %}{% if m.role == 'tool' %}\
    {% if loop.previtem.role != 'tool' %}<|im_start|>user\n{% endif %}[{{ m.content }}]\
    {% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}\
    {% else %}<|im_start|>{{ m.role }}\n{% if loop.first and tools %}{{ tools | tojson }}{% endif %}\
    {% if m.role == 'assistant' and loop.last %}<think>\n</think>{% endif %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn says(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn encode(tokenizer: &Tokenizer, rule: LossMask, messages: &[Value], num_prompt: usize) -> Result<Encoded> {
    let tools = json!(["t"]);
    let encoder = ChatEncoder::new(tokenizer, rule, Map::new()).unwrap();
    encoder.encode(Chat { messages, num_prompt, tools: Some(&tools) })
}

/// The conversation as text, what is trained of it in brackets.
fn shown(tokenizer: &Tokenizer, encoded: &Encoded) -> String {
    let Encoded { tokens, loss_mask } = encoded;
    assert_eq!(tokens.len(), loss_mask.len());
    let mut text = String::new();
    let mut start = 0;
    while start < tokens.len() {
        let len = loss_mask[start..].iter().take_while(|mask| **mask == loss_mask[start]).count();
        let part = tokenizer.decode(&tokens[start..start + len], false).unwrap();
        let [open, close] = if loss_mask[start] == 1 { ["⟦", "⟧"] } else { ["", ""] };
        text.extend([open, &part, close]);
        start += len;
    }
    text
}

fn show(template: &str, rule: LossMask, messages: &[Value], num_prompt: usize) -> String {
    let tokenizer = tokenizer(template);
    match encode(&tokenizer, rule, messages, num_prompt) {
        Ok(encoded) => shown(&tokenizer, &encoded),
        Err(error) => error.to_string(),
    }
}

#[test]
fn qwen_renders_every_message_alone_and_drops_the_default_system_prompt_of_later_ones() {
    let turns = [says("user", "a"), says("assistant", "b"), says("system", "s"), says("assistant", "c")];
    assert_eq!(
        show(CHATML, LossMask::Qwen, &turns, 0),
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n[\"t\"]a<|im_end|>\n\
         <|im_start|>assistant\n⟦b<|im_end|>\n⟧<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n⟦c<|im_end|>\n⟧"
    );
    let system = [says("system", "s"), says("user", "a"), says("assistant", "b")];
    assert_eq!(
        show(CHATML, LossMask::Qwen, &system, 0),
        "<|im_start|>system\n[\"t\"]s<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>\n⟧"
    );
}

#[test]
fn qwen3_renders_beside_a_user_message_and_tool_messages_together() {
    let turns = [
        says("user", "a"),
        says("assistant", "b"),
        says("tool", "1"),
        says("tool", "2"),
        says("assistant", "c"),
    ];
    assert_eq!(
        show(THINKING, LossMask::Qwen3, &turns, 0),
        "<|im_start|>user\n[\"t\"]a<|im_end|>\n<|im_start|>assistant\n⟦<think>\n</think>b<|im_end|>\n⟧\
         <|im_start|>user\n[1][2]<|im_end|>\n<|im_start|>assistant\n⟦<think>\n</think>c<|im_end|>\n⟧"
    );
    let turns = [says("user", "a"), says("assistant", "b")];
    assert_eq!(
        show(CHATML, LossMask::Qwen3, &turns, 0),
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n[\"t\"]a<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>\n⟧",
        "a default system prompt stays before the first message only"
    );
    let first = [says("assistant", "b"), says("user", "a")];
    assert_eq!(
        show(THINKING, LossMask::Qwen3, &first, 0),
        "<|im_start|>assistant\n⟦[\"t\"]b<|im_end|>\n⟧<|im_start|>user\na<|im_end|>\n",
        "the first message stands before the other"
    );
}

#[test]
fn qwen3_5_finds_turns_in_the_text_and_begins_behind_an_opened_thinking_block() {
    let template =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\n{% endfor %}";
    let turns = [says("user", "a"), says("assistant", "<think>\nx</think>b"), says("assistant", "<think>c")];
    assert_eq!(
        show(template, LossMask::Qwen35, &turns, 0),
        "<|im_start|>user\na<|im_end|>\n\n<|im_start|>assistant\n<think>\n⟦x</think>b<|im_end|>\n⟧\n\
         <|im_start|>assistant\n⟦<think>c<|im_end|>\n⟧\n"
    );
    let open = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}";
    assert_eq!(
        show(open, LossMask::Qwen35, &[says("assistant", "b")], 0),
        "<|im_start|>assistant\n⟦b⟧",
        "a turn without its end reaches to the end"
    );
}

#[test]
fn distill_qwen_is_a_question_for_generation_and_the_text_of_its_answer() {
    let turns = [says("user", "a"), says("assistant", "b")];
    assert_eq!(
        show(THINKING, LossMask::DistillQwen, &turns, 0),
        "<|im_start|>user\n[\"t\"]a<|im_end|>\n<|im_start|>assistant\n⟦b⟧"
    );
    for turns in [vec![says("user", "a")], vec![says("user", "a"), says("assistant", "b"), says("user", "c")]]
    {
        let error = show(THINKING, LossMask::DistillQwen, &turns, 0);
        let expected = format!(
            "data.loss_mask = \"distill_qwen\": expected a message and the assistant's answer to it, in text, got {} messages",
            turns.len()
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn step_loss_mask_and_the_prompt_take_messages_out_under_every_rule() {
    let marked = CHATML.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}");
    let marked =
        marked.replace("{% for m in messages %}", "{% for m in messages if m.role == 'assistant' %}");
    let mut turns =
        vec![says("user", "a"), says("assistant", "b"), says("user", "c"), says("assistant", "d")];
    let rules = [LossMask::Generation, LossMask::Prefix, LossMask::Qwen, LossMask::Qwen3, LossMask::Qwen35];
    for rule in rules {
        let template = if rule == LossMask::Generation { marked.as_str() } else { CHATML };
        let whole = show(template, rule, &turns, 0);
        assert_eq!((whole.matches("⟦b").count(), whole.matches("⟦d").count()), (1, 1), "{rule:?}: {whole}");
        let after = show(template, rule, &turns, 3);
        assert_eq!((after.matches('⟦').count(), after.matches("⟦d").count()), (1, 1), "{rule:?}: {after}");
    }
    turns[3]["step_loss_mask"] = json!(0);
    for rule in rules {
        let template = if rule == LossMask::Generation { marked.as_str() } else { CHATML };
        let whole = show(template, rule, &turns, 0);
        assert_eq!((whole.matches('⟦').count(), whole.matches("⟦b").count()), (1, 1), "{rule:?}: {whole}");
    }
    turns[3]["step_loss_mask"] = json!(1);
    assert!(show(CHATML, LossMask::Prefix, &turns, 0).contains("⟦d"));
    let answer = json!({"role": "assistant", "content": "b", "step_loss_mask": 0});
    assert!(!show(CHATML, LossMask::DistillQwen, &[says("user", "a"), answer], 0).contains('⟦'));
}

#[test]
fn blocks_that_are_not_one_for_each_message_cannot_be_told_apart() {
    let template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let turns = [says("user", "a"), says("assistant", "b")];
    assert_eq!(show(template, LossMask::Auto, &turns, 0), "⟦ab⟧", "all that is marked is trained");
    let turns = [says("assistant", "a"), says("user", "b"), says("assistant", "c")];
    let error = show(template, LossMask::Auto, &turns, 1);
    assert!(error.starts_with("expected 2 turns of the assistant in what the template renders"), "{error}");
}

#[test]
fn a_token_is_trained_when_any_of_its_characters_is() {
    let template =
        "{% for m in messages %}x{% generation %} {{ m.content }}{% endgeneration %} .{% endfor %}";
    // The last character is several tokens, and spaces belong to the word behind them.
    assert_eq!(show(template, LossMask::Auto, &[says("assistant", "a🤖")], 0), "x⟦ a🤖⟧ .");
}

#[test]
fn renderings_that_are_not_each_others_beginnings_name_the_message() {
    let turns = [says("user", "a"), says("assistant", "b"), says("user", "c"), says("assistant", "d")];
    let error = show(THINKING, LossMask::Prefix, &turns, 0);
    assert!(
        error
            .starts_with("message 2 (assistant): expected the conversation to begin with the messages up to")
    );
    assert!(
        !show(THINKING, LossMask::Prefix, &turns, 3).contains("expected"),
        "only what is trained matters"
    );
    let other = THINKING.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>a: {% endif %}");
    let error = show(&other, LossMask::Prefix, &turns, 3);
    assert!(
        error.starts_with("message 4 (assistant): expected the conversation to begin with the prompt"),
        "{error}"
    );
}

#[test]
fn rules_that_a_template_does_not_serve_are_refused() {
    let refused = |template: &str, rule| {
        ChatEncoder::new(&tokenizer(template), rule, Map::new()).err().map(|error| error.to_string())
    };
    let error = refused(CHATML, LossMask::Generation).unwrap();
    assert!(error.contains("no {% generation %} block") && error.contains("\nhint: "), "{error}");
    let numbered = "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}";
    let error = refused(numbered, LossMask::Qwen).unwrap();
    assert!(error.contains("renders messages one by one"), "{error}");
    assert_eq!(refused(CHATML, LossMask::Auto), None);
}
