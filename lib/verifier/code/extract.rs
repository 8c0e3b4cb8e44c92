//! The code of a response: its last fenced block of the language.

use super::language::Language;

/// A fenced block: the word behind its opening fence, and what stands in it.
struct Block<'a> {
    word: &'a str,
    text: String,
}

/// The last block of `language`; else the last block that names no language; a response without any fence is code itself.
///
/// What stands before `</think>` is thought, not answer. None when all blocks are of other languages.
pub(super) fn extract(response: &str, language: Language) -> Option<String> {
    let answer = response.rfind("</think>").map_or(response, |at| &response[at + "</think>".len()..]);
    let mut blocks = blocks(answer);
    if blocks.is_empty() {
        return (!answer.trim().is_empty()).then(|| answer.to_owned());
    }
    let at = blocks
        .iter()
        .rposition(|block| language.is_marked(block.word))
        .or_else(|| blocks.iter().rposition(|block| block.word.is_empty()))?;
    Some(blocks.swap_remove(at).text).filter(|text| !text.trim().is_empty())
}

/// The fenced blocks, as Markdown has them: three or more backticks or tildes open one, at least as many of the same close
/// it; a block that is not closed goes to the end.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open: Option<(char, usize, usize)> = None;
    for line in text.lines() {
        let bare = line.trim_start();
        let fence = bare.chars().next().filter(|letter| matches!(letter, '`' | '~'));
        let len = fence.map_or(0, |fence| bare.chars().take_while(|letter| *letter == fence).count());
        let rest = bare.get(len..).unwrap_or_default().trim();
        match (open, fence) {
            (Some((with, at_least, _)), Some(fence))
                if with == fence && len >= at_least && rest.is_empty() =>
            {
                open = None;
            }
            (None, Some(fence)) if len >= 3 && !rest.contains('`') => {
                // Also `{.python}`, `python {.line}` and `python:main.py`.
                let word = rest.trim_start_matches(['{', '.', ' ']);
                let word = word.split([' ', '{', '}', ',', ':']).next().unwrap_or_default();
                open = Some((fence, len, line.len() - bare.len()));
                blocks.push(Block { word, text: String::new() });
            }
            (Some((_, _, indent)), _) => {
                // A block in a list is indented as a whole.
                let blanks = line.len() - bare.len();
                let kept = line.get(indent.min(blanks)..).unwrap_or_default();
                if let Some(block) = blocks.last_mut() {
                    block.text.push_str(kept);
                    block.text.push('\n');
                }
            }
            _ => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(response: &str) -> Option<String> {
        extract(response, Language::Python)
    }

    #[test]
    fn last_block_of_the_language_counts() {
        let response =
            "First:\n```python\na = 1\n```\nbetter:\n```Py\na = 2\n```\nrun it:\n```bash\npython a.py\n```\n";
        assert_eq!(python(response).as_deref(), Some("a = 2\n"));
        assert_eq!(extract(response, Language::Bash).as_deref(), Some("python a.py\n"));
        assert_eq!(extract(response, Language::C), None);
    }

    #[test]
    fn block_without_a_word_or_a_response_without_a_fence_is_code() {
        assert_eq!(python("```\na = 1\n```\n```text\n1\n```").as_deref(), Some("a = 1\n"));
        assert_eq!(python("    return 1\n").as_deref(), Some("    return 1\n"));
        assert_eq!(
            python("<think>```python\na\n```</think>\n    return 2\n").as_deref(),
            Some("\n    return 2\n")
        );
        for nothing in ["", " \n", "```python\n```", "```python\n \n```"] {
            assert_eq!(python(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn fences_close_with_their_own_kind_and_open_ones_go_to_the_end() {
        assert_eq!(python("~~~python\ns = '''\n```\n'''\n~~~").as_deref(), Some("s = '''\n```\n'''\n"));
        assert_eq!(python("````python\n```\n````").as_deref(), Some("```\n"));
        assert_eq!(
            python("1. so:\n   ```python\n   if a:\n       b\n   ```").as_deref(),
            Some("if a:\n    b\n")
        );
        assert_eq!(python("```python title=x\na = 1").as_deref(), Some("a = 1\n"));
        assert_eq!(python("```{.python}\na").as_deref(), Some("a\n"));
        assert_eq!(python("```python:main.py\na").as_deref(), Some("a\n"));
        assert_eq!(python("```{.rust}\na"), None);
        assert_eq!(python("a ```python b``` c").as_deref(), Some("a ```python b``` c"));
    }
}
