//! Prompts become tokens on a thread of their own, ahead of their groups' turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use slime_cli::Failure;
use slime_config::Data;
use slime_environment::Prompt;
use slime_record::PromptContent;
use slime_tokenizer::Tokenizer;

use crate::failure;
use crate::read_prompts;
use crate::sampler::GroupId;

/// Prompts that wait for their turn as tokens, or to become them.
const MAX_AHEAD: usize = 256;

/// A prompt with its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenised {
    pub prompt: Prompt,
    pub tokens: Vec<u32>,
}

type Tokens = Result<Vec<u32>, Failure>;

/// The thread, and what it has done.
pub struct TokensAhead {
    tokenizer: Arc<Tokenizer>,
    data: Data,
    /// Without a thread where the system has none to give: prompts then become tokens at their turn.
    queue: Option<Sender<(GroupId, Prompt)>>,
    done: Receiver<(GroupId, Tokens)>,
    /// Asked for and not taken.
    ahead: BTreeSet<GroupId>,
    ready: BTreeMap<GroupId, Tokens>,
}

impl TokensAhead {
    /// For prompts as `[data]` has them.
    pub fn start(tokenizer: Arc<Tokenizer>, data: &Data) -> Self {
        let (queue, prompts) = channel::<(GroupId, Prompt)>();
        let (sender, done) = channel();
        let (of_thread, data_of_thread) = (tokenizer.clone(), data.clone());
        let work = move || {
            for (id, prompt) in prompts {
                let tokens = tokenise(&of_thread, &data_of_thread, &prompt);
                if sender.send((id, tokens)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tokens".to_owned()).spawn(work);
        let queue = thread.is_ok().then_some(queue);
        let (ahead, ready) = (BTreeSet::new(), BTreeMap::new());
        Self { tokenizer, data: data.clone(), queue, done, ahead, ready }
    }

    /// Whether another prompt may be asked for.
    pub fn has_room(&self) -> bool {
        self.queue.is_some() && self.ahead.len() < MAX_AHEAD
    }

    /// Has the prompt of a group become tokens, where there is room.
    pub fn ask(&mut self, id: GroupId, prompt: &Prompt) {
        if !self.has_room() || self.ahead.contains(&id) {
            return;
        }
        if let Some(queue) = &self.queue
            && queue.send((id, prompt.clone())).is_ok()
        {
            self.ahead.insert(id);
        }
    }

    /// The prompt with its tokens, once the thread has them; at once where it was not asked.
    ///
    /// # Errors
    /// A prompt that has no tokens or none that a template can make.
    pub fn take(&mut self, id: GroupId, prompt: Prompt) -> Result<Tokenised, Failure> {
        if self.ahead.remove(&id) {
            loop {
                if let Some(tokens) = self.ready.remove(&id) {
                    return Ok(Tokenised { prompt, tokens: tokens? });
                }
                let Ok((done, tokens)) = self.done.recv() else { break };
                // Others that were given up meanwhile are forgotten.
                if done == id || self.ahead.contains(&done) {
                    self.ready.insert(done, tokens);
                }
            }
        }
        let tokens = tokenise(&self.tokenizer, &self.data, &prompt)?;
        Ok(Tokenised { prompt, tokens })
    }

    /// The group is given up.
    pub fn forget(&mut self, id: GroupId) {
        self.ahead.remove(&id);
        self.ready.remove(&id);
    }
}

/// The prompts that groups still wait for, of which the first become tokens ahead of their turn.
pub struct Upcoming<I> {
    prompts: I,
    ahead: TokensAhead,
    /// A row that cannot be read is told when its turn comes.
    waiting: VecDeque<Result<(GroupId, Prompt), Failure>>,
}

impl<I: Iterator<Item = Result<(GroupId, Prompt), Failure>>> Upcoming<I> {
    /// Reads of `prompts` no more than are ahead.
    pub fn new(prompts: I, ahead: TokensAhead) -> Self {
        Self { prompts, ahead, waiting: VecDeque::new() }
    }

    /// The next group; none at the end.
    ///
    /// # Errors
    /// A row that cannot be read, or a prompt that cannot become tokens.
    pub fn next(&mut self) -> Result<Option<(GroupId, Tokenised)>, Failure> {
        while self.waiting.is_empty() || self.ahead.has_room() {
            let Some(next) = self.prompts.next() else { break };
            if let Ok((id, prompt)) = &next {
                self.ahead.ask(*id, prompt);
            }
            let is_broken = next.is_err();
            self.waiting.push_back(next);
            if is_broken {
                break;
            }
        }
        let Some(next) = self.waiting.pop_front() else { return Ok(None) };
        let (id, prompt) = next?;
        Ok(Some((id, self.ahead.take(id, prompt)?)))
    }

    /// Whether a group has not had its turn, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The prompt's tokens: through the chat template where that is asked for.
fn tokenise(tokenizer: &Tokenizer, data: &Data, prompt: &Prompt) -> Tokens {
    let named = |failure: Failure| Failure {
        message: format!("prompt {}: {}", prompt.prompt_id, failure.message),
        ..failure
    };
    let content = PromptContent::parse(&prompt.prompt).map_err(failure!()).map_err(named)?;
    let tokens = read_prompts::tokens(tokenizer, content, prompt, data).map_err(named)?;
    if tokens.is_empty() {
        let message = format!("prompt {} of {} has no tokens", prompt.prompt_id, prompt.source);
        return Err(Failure::data(message).with_hint("fill or drop this prompt"));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chats");

    fn ahead() -> TokensAhead {
        let tokenizer = Tokenizer::from_dir(MODEL).unwrap();
        let data = Data { apply_chat_template: false, ..Data::default() };
        TokensAhead::start(Arc::new(tokenizer), &data)
    }

    fn prompt(text: &str) -> Prompt {
        Prompt {
            prompt_id: text.to_owned(),
            source: "here".to_owned(),
            prompt: serde_json::json!(text).to_string(),
            label: None,
            metadata: None,
            tools: None,
            responses: Vec::new(),
        }
    }

    fn id(group: u32) -> GroupId {
        GroupId { step: 0, group, attempt: 0 }
    }

    #[test]
    fn tokens_are_those_of_the_prompt_whether_they_were_asked_for_or_not() {
        let (mut asked, mut not_asked) = (ahead(), ahead());
        for group in 0..40 {
            asked.ask(id(group), &prompt(&format!("{group} + 1 =")));
        }
        asked.forget(id(3));
        for group in (0..40).rev() {
            let prompt = prompt(&format!("{group} + 1 ="));
            let tokens = asked.take(id(group), prompt.clone()).unwrap();
            assert_eq!(tokens, not_asked.take(id(group), prompt).unwrap());
        }
        assert!(asked.ahead.is_empty() && asked.ready.is_empty(), "what was forgotten is not kept");
        let failure = asked.take(id(0), prompt("")).unwrap_err();
        assert!(failure.message.ends_with("of here has no tokens"), "{}", failure.message);
    }

    #[test]
    fn no_more_prompts_are_read_than_there_is_room_for_and_a_broken_row_has_its_turn() {
        let num_read = std::cell::Cell::new(0);
        let rows = (0..10_000).map(|group| {
            num_read.set(num_read.get() + 1);
            if group == 700 { Err(Failure::data("row 701")) } else { Ok((id(group), prompt("1"))) }
        });
        let mut upcoming = Upcoming::new(rows, ahead());
        for group in 0..700 {
            let (next, _) = upcoming.next().unwrap().unwrap();
            assert_eq!(next, id(group));
            assert!(num_read.get() <= MAX_AHEAD + group as usize + 1, "{}", num_read.get());
        }
        assert_eq!(upcoming.next().unwrap_err().message, "row 701");
    }
}
