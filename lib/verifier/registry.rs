//! What a reward type is, and what is made from their table: `--type list`, the help page, weights and hints.

use crate::Verifier;
use crate::catalogue::{ALIASES, FAMILIES};
use crate::error::{Error, Result};
use crate::options::Options;

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
        let known: Vec<&str> = types().map(|kind| kind.name).collect();
        format!("\nhint: reward types are {} (see --type list)", known.join(", "))
    };
    Error::UnknownType { name: name.to_owned(), hint }
}

/// The list of a help page: titles, and a line for each type.
pub fn help() -> String {
    const WIDTH: usize = 25;
    let mut text = String::new();
    for family in FAMILIES {
        if !text.is_empty() {
            text.push('\n');
        }
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
            assert!(!kind.about.is_empty() && kind.about.len() <= 72, "{}", kind.name);
            assert!(help().contains(&kind.usage()) && list().contains(&kind.usage()));
        }
        for (alias, name) in ALIASES {
            assert_eq!(find(alias).unwrap().0.name, *name);
        }
        assert_eq!(find("format:regex=a").unwrap().1, "a");
        assert!(find("format:regexp").is_none() && find("exactly").is_none());
    }
}
