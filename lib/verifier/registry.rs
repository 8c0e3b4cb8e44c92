//! The table of reward types: what `--type list`, the help page, weights and hints are made from.

use crate::Verifier;
use crate::choice::Choice;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::format::{Format, pattern};
use crate::group::Group;
use crate::guard::Guard;
use crate::instructions::Instructions;
use crate::judge::Judge;
use crate::length::{Length, Overlong, Repetition};
use crate::nested::{Boxed, ByMetadata};
use crate::number::Number;
use crate::options::Options;
use crate::question::{ExactMatch, F1};
use crate::remote::{Remote, RewardModel};
use crate::schema::Schema;
use crate::tournament::Tournament;

/// One reward type.
pub struct RewardType {
    /// What it is called, such as `format:json`; longer names go before shorter ones that begin them.
    pub name: &'static str,
    /// What may follow the name.
    pub form: Form,
    /// Whether every row needs a label.
    pub needs_label: bool,
    /// The keys every row's metadata must have.
    pub metadata: &'static [&'static str],
    /// Whether it compares the samples of a group, so that whole groups must be scored together.
    pub compares_groups: bool,
    /// Whether it starts programs or talks to servers, so that data may not name it.
    pub reaches_outside: bool,
    /// What it rewards, in one line.
    pub about: &'static str,
    /// Makes it from what follows the name.
    pub(crate) make: fn(&mut Options) -> Result<Box<dyn Verifier>>,
}

/// What may follow a name; the text is shown behind it in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing but a weight.
    Bare,
    /// Words `key=value`, up to the next comma outside quotes.
    Options(&'static str),
    /// All of the rest, commas too.
    Rest(&'static str),
}

/// The types of one field, under its title.
pub struct Family {
    /// The title.
    pub title: &'static str,
    /// Its types.
    pub types: &'static [RewardType],
}

/// What most types are; a row of a table names the rest.
pub(crate) const PLAIN: RewardType = RewardType {
    name: "",
    form: Form::Bare,
    needs_label: false,
    metadata: &[],
    compares_groups: false,
    reaches_outside: false,
    about: "",
    make: |_| Err(Error::UnknownType { name: String::new(), hint: String::new() }),
};

const TEXT: &[RewardType] = &[
    RewardType {
        name: "exact",
        needs_label: true,
        about: "the answer is the label, apart from surrounding blanks",
        make: |_| Ok(Box::new(Exact)),
        ..PLAIN
    },
    RewardType {
        name: "exact_match",
        needs_label: true,
        about: "the words of the answer are those of the label (SQuAD)",
        make: |_| Ok(Box::new(ExactMatch)),
        ..PLAIN
    },
    RewardType {
        name: "f1",
        needs_label: true,
        about: "F1 of the words of answer and label (SQuAD)",
        make: |_| Ok(Box::new(F1)),
        ..PLAIN
    },
    RewardType {
        name: "gpqa",
        needs_label: true,
        about: "the letter or text of a multiple-choice answer is the right one's",
        make: |_| Ok(Box::new(Choice)),
        ..PLAIN
    },
    RewardType {
        name: "number",
        needs_label: true,
        about: "the number of the last \\boxed{}, else the last one, is the label's",
        make: |_| Ok(Box::new(Number)),
        ..PLAIN
    },
    RewardType {
        name: "format:think_answer",
        about: "<think>..</think><answer>..</answer> and nothing else (also `format`)",
        make: |_| Ok(Box::new(Format::ThinkAnswer)),
        ..PLAIN
    },
    RewardType {
        name: "format:json",
        about: "one JSON value, bare or in a code fence",
        make: |_| Ok(Box::new(Format::Json)),
        ..PLAIN
    },
    RewardType {
        name: "format:xml",
        about: "one well-formed XML element, bare or in a code fence",
        make: |_| Ok(Box::new(Format::Xml)),
        ..PLAIN
    },
    RewardType {
        name: "format:regex",
        form: Form::Rest("=PATTERN"),
        about: "the pattern matches somewhere; takes the rest of the argument",
        make: |options| Ok(Box::new(Format::Regex(pattern(options)?))),
        ..PLAIN
    },
    RewardType {
        name: "json_schema",
        form: Form::Options("[:FILE]"),
        about: "one JSON value that the schema of FILE or metadata.json_schema accepts",
        make: |options| Ok(Box::new(Schema::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "ifeval",
        form: Form::Options("[:loose share]"),
        metadata: &["instruction_id_list"],
        about: "all of IFEval's instructions are followed; share: a part for each",
        make: |options| Ok(Box::new(Instructions::new("ifeval", options)?)),
        ..PLAIN
    },
    RewardType {
        name: "ifbench",
        form: Form::Options("[:loose share]"),
        metadata: &["instruction_id_list"],
        about: "the same for IFBench's instructions; both know the kinds of both",
        make: |options| Ok(Box::new(Instructions::new("ifbench", options)?)),
        ..PLAIN
    },
    RewardType {
        name: "length",
        form: Form::Options(":min=N max=N [slack=N] [unit=words]"),
        about: "1 in the range, falling to 0 within slack",
        make: |options| Ok(Box::new(Length::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "overlong",
        form: Form::Options(":max=N cache=N"),
        about: "DAPO's soft penalty: 0, falling to -1 over the last `cache` tokens before max",
        make: |options| Ok(Box::new(Overlong::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "repetition",
        form: Form::Options("[:n=4]"),
        about: "minus the share of runs of n words that repeat",
        make: |options| Ok(Box::new(Repetition::new(options)?)),
        ..PLAIN
    },
];

const AROUND: &[RewardType] = &[
    RewardType {
        name: "boxed",
        form: Form::Options(":TYPE"),
        about: "the type sees what the last box holds (also boxed_TYPE)",
        make: |options| Ok(Box::new(Boxed::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "guard",
        form: Form::Options(":TYPE [KEY=VALUE...]"),
        about: "the type, but hedged, echoed and empty answers earn `value`",
        make: |options| Ok(Box::new(Guard::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "by_metadata",
        form: Form::Options("[:key=rm_type] [default=TYPE]"),
        about: "each row's metadata names its type",
        make: |options| Ok(Box::new(ByMetadata::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "group_norm",
        form: Form::Options(":TYPE [std=off]"),
        compares_groups: true,
        about: "the type's reward less the group's mean, divided by its std",
        make: |options| Ok(Box::new(Group::norm(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "group_rank",
        form: Form::Options(":TYPE"),
        compares_groups: true,
        about: "the share of the group's others that the type finds worse",
        make: |options| Ok(Box::new(Group::rank(options)?)),
        ..PLAIN
    },
];

const OUTSIDE: &[RewardType] = &[
    RewardType {
        name: "command",
        form: Form::Rest(":[KEY=VALUE...] PROGRAM [ARG...]"),
        reaches_outside: true,
        about: "your program, JSON lines in and out; takes the rest of the argument",
        make: |options| Ok(Box::new(Command::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "remote",
        form: Form::Options(":URL [KEY=VALUE...]"),
        reaches_outside: true,
        about: "your server: prompt, response and label in, a number or an object out",
        make: |options| Ok(Box::new(Remote::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "judge",
        form: Form::Options(":URL model=NAME [KEY=VALUE...]"),
        reaches_outside: true,
        about: "a language model behind an OpenAI-compatible server grades, from 0 to 1",
        make: |options| Ok(Box::new(Judge::new(options, false)?)),
        ..PLAIN
    },
    RewardType {
        name: "tournament",
        form: Form::Options(":URL model=NAME [mode=elimination] [KEY=VALUE...]"),
        reaches_outside: true,
        compares_groups: true,
        about: "such a judge compares the responses of a group in pairs",
        make: |options| Ok(Box::new(Tournament::new(options)?)),
        ..PLAIN
    },
    RewardType {
        name: "reward_model",
        form: Form::Options(":URL [api=vllm] [model=NAME] [KEY=VALUE...]"),
        reaches_outside: true,
        about: "the score of a reward model served by vLLM or SGLang",
        make: |options| Ok(Box::new(RewardModel::new(options)?)),
        ..PLAIN
    },
];

/// Every reward type, by field.
pub const FAMILIES: &[Family] = &[
    Family { title: "Text", types: TEXT },
    Family { title: "Around other types", types: AROUND },
    Family { title: "Models and programs", types: OUTSIDE },
];

/// Other names of types.
const ALIASES: &[(&str, &str)] = &[("format", "format:think_answer")];

/// Every reward type.
pub fn types() -> impl Iterator<Item = &'static RewardType> {
    FAMILIES.iter().flat_map(|family| family.types)
}

impl RewardType {
    /// The name with what may follow it.
    pub fn usage(&self) -> String {
        match self.form {
            Form::Bare => self.name.to_owned(),
            Form::Options(text) | Form::Rest(text) => format!("{}{text}", self.name),
        }
    }

    /// What a row needs for it, in words; empty where the response is enough.
    pub fn needs(&self) -> String {
        let label = self.needs_label.then(|| "label".to_owned());
        let keys = self.metadata.iter().map(|key| format!("metadata.{key}"));
        let group = self.compares_groups.then(|| "group".to_owned());
        label.into_iter().chain(keys).chain(group).collect::<Vec<_>>().join(", ")
    }

    /// What follows the name in `text`, or `None` when `text` is of another type.
    pub(crate) fn argument<'t>(&self, text: &'t str) -> Option<&'t str> {
        let rest = text.strip_prefix(self.name)?;
        match self.form {
            _ if rest.is_empty() => Some(""),
            Form::Bare => None,
            Form::Options(_) => rest.strip_prefix(':'),
            Form::Rest(shown) => rest.strip_prefix(shown.chars().next()?),
        }
    }
}

/// The type that `text` names, without its weight, and what follows the name.
pub(crate) fn find(text: &str) -> Option<(&'static RewardType, &str)> {
    if let Some(inner) = text.strip_prefix("boxed_") {
        return types().find(|kind| kind.name == "boxed").map(|kind| (kind, inner));
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == text).map_or(text, |(_, name)| name);
    types().filter_map(|kind| Some((kind, kind.argument(name)?))).max_by_key(|(kind, _)| kind.name.len())
}

/// The error about a name that no type has.
pub(crate) fn unknown(name: &str) -> Error {
    let written = name.split(['=', ' ']).next().unwrap_or(name);
    let nearest = types()
        .map(|kind| (strsim::jaro_winkler(written, kind.name), kind.name))
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    let hint = if let Some((_, known)) = nearest {
        format!("\nhint: did you mean {known}?")
    } else {
        let known: Vec<String> = types().map(RewardType::usage).collect();
        format!("\nhint: reward types are {}", known.join(", "))
    };
    Error::UnknownType { name: name.to_owned(), hint }
}

/// The list of a help page: titles, and a line for each type.
pub fn help() -> String {
    const WIDTH: usize = 25;
    let mut text = String::new();
    for family in FAMILIES {
        text.push_str(family.title);
        text.push_str(":\n");
        for kind in family.types {
            let usage = kind.usage();
            let gap = if usage.len() > WIDTH { format!("\n  {:WIDTH$}", "") } else { String::new() };
            let line = format!("  {usage:WIDTH$}{gap} {}\n", kind.about);
            text.push_str(&line);
        }
    }
    text
}

/// The table of `--type list`: name, what a row needs, what is rewarded; fields are separated by tabs.
pub fn list() -> String {
    let line = |kind: &RewardType| format!("{}\t{}\t{}\n", kind.usage(), kind.needs(), kind.about);
    std::iter::once("type\tneeds\tabout\n".to_owned()).chain(types().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
    #[test]
    fn table_of_the_readme_is_the_registry() {
        let mut table = "| type | needs | what it rewards |\n|---|---|---|\n".to_owned();
        for kind in types() {
            let escaped = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
            let cells =
                [format!("`{}`", kind.usage().replace('|', "\\|")), kind.needs(), escaped(kind.about)];
            table.push_str(&cells.map(|cell| format!("| {cell} ")).concat());
            table.push_str("|\n");
        }
        crate::readme::compare("rewards", &table);
    }

    #[test]
    fn every_type_is_found_by_its_own_name_and_says_what_it_does() {
        let mut names = std::collections::BTreeSet::new();
        for kind in types() {
            assert!(names.insert(kind.name), "{} stands twice", kind.name);
            assert_eq!(find(kind.name).unwrap().0.name, kind.name);
            assert!(!kind.about.is_empty() && kind.about.len() < 80, "{}", kind.name);
            assert!(help().contains(&kind.usage()) && list().contains(&kind.usage()));
        }
        for (alias, name) in ALIASES {
            assert_eq!(find(alias).unwrap().0.name, *name);
        }
        assert_eq!(find("format:regex=a").unwrap().1, "a");
        assert!(find("format:regexp").is_none() && find("exactly").is_none());
    }
}
