//! The languages: what each needs, what its code blocks are called, how it is compiled and run.

use std::path::Path;

use slime_sandbox::Toolchain;

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Language {
    Python,
    C,
    Cpp,
    Rust,
    JavaScript,
    Bash,
}

/// Name in metadata, the words code blocks are marked with (in lower case), programs.
const LANGUAGES: [(Language, &str, &[&str], &[&str]); 6] = [
    (Language::Python, "python", &["python", "py", "python3", "py3"], &["python3"]),
    (Language::C, "c", &["c"], &["gcc"]),
    (Language::Cpp, "cpp", &["cpp", "c++", "cxx", "cc"], &["g++"]),
    (Language::Rust, "rust", &["rust", "rs"], &["rustc", "cc"]),
    (Language::JavaScript, "javascript", &["javascript", "js", "node"], &["node"]),
    (Language::Bash, "bash", &["bash", "sh", "shell"], &["bash"]),
];

impl Language {
    /// The language with this name, or with one of the words of its code blocks.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        LANGUAGES
            .iter()
            .find(|(_, _, words, _)| words.contains(&name.as_str()))
            .map(|(language, ..)| *language)
    }

    /// All names.
    pub(super) fn names() -> String {
        LANGUAGES.map(|(_, name, ..)| name).join(", ")
    }

    fn row(self) -> &'static (Self, &'static str, &'static [&'static str], &'static [&'static str]) {
        LANGUAGES.iter().find(|(language, ..)| *language == self).unwrap_or(&LANGUAGES[0])
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        self.row().1
    }

    /// Whether a code block marked with `word` is of this language.
    pub(super) fn is_marked(self, word: &str) -> bool {
        self.row().2.contains(&word.to_ascii_lowercase().as_str())
    }

    /// Its programs on this machine.
    pub(super) fn toolchain(self) -> slime_sandbox::Result<Toolchain> {
        Toolchain::find(self.name(), self.row().3)
    }

    /// The file of the source and, for a compiled language, the compiler with its arguments; both below `build`.
    pub(super) fn compile(self, toolchain: &Toolchain, build: &Path) -> (String, Vec<String>) {
        let at = |name: &str| build.join(name).display().to_string();
        let program = |index: usize| {
            toolchain
                .programs
                .get(index)
                .map_or_else(String::new, |program| program.path.display().to_string())
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Self::C => (
                at("main.c"),
                words(&[&program(0), "-O2", "-std=gnu17", "-o", &at("main"), &at("main.c"), "-lm"]),
            ),
            Self::Cpp => (
                at("main.cpp"),
                words(&[&program(0), "-O2", "-std=gnu++17", "-o", &at("main"), &at("main.cpp")]),
            ),
            Self::Rust => {
                let linker = format!("linker={}", program(1));
                let flags = ["--edition=2021", "-O", "-C", &linker, "-o", &at("main"), &at("main.rs")];
                (at("main.rs"), std::iter::once(program(0)).chain(words(&flags)).collect())
            }
            Self::JavaScript => (at("main.js"), Vec::new()),
            Self::Bash => (at("main.sh"), Vec::new()),
            Self::Python => (at("main.py"), Vec::new()),
        }
    }

    /// What runs the program.
    pub(super) fn run(self, toolchain: &Toolchain, build: &Path, memory_bytes: u64) -> Vec<String> {
        let (source, compiler) = self.compile(toolchain, build);
        if !compiler.is_empty() {
            return vec![build.join("main").display().to_string()];
        }
        let interpreter = toolchain.programs.first().map(|program| program.path.display().to_string());
        let mut argv: Vec<String> = interpreter.into_iter().collect();
        if self == Self::JavaScript {
            // V8 counts its own heap, in MiB.
            argv.push(format!("--max-old-space-size={}", memory_bytes >> 20));
        }
        argv.push(source);
        argv
    }

    /// Whether its tests can run in a process of their own, apart from the code.
    pub(super) fn can_be_called(self) -> bool {
        matches!(self, Self::Python | Self::JavaScript)
    }

    /// What runs one of the two processes of tests; none for a language whose zygote is the interpreter itself.
    pub(super) fn run_role(self, toolchain: &Toolchain, memory_bytes: u64, role: &str) -> Vec<String> {
        let harness = match self {
            Self::JavaScript => include_str!("javascript_tests.js"),
            _ => return Vec::new(),
        };
        let mut argv = self.run(toolchain, Path::new(""), memory_bytes);
        argv.pop();
        argv.extend(["-e", harness, role].map(str::to_owned));
        argv
    }

    /// Address space its runtime reserves without using it, bytes.
    pub(super) fn reserve_bytes(self) -> u64 {
        if self == Self::JavaScript { 1 << 40 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_found_by_name_and_by_the_words_of_blocks() {
        for (language, name, words, programs) in LANGUAGES {
            assert_eq!(Language::named(name), Some(language));
            assert!(words.iter().all(|word| language.is_marked(&word.to_uppercase())));
            assert!(!programs.is_empty());
        }
        assert_eq!(Language::named("C++"), Some(Language::Cpp));
        assert_eq!(Language::named("cobol"), None);
        assert!(!Language::C.is_marked("cpp"));
    }
}
