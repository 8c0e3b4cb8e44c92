//! The table of reward types: a row for each, by field. Lists, help, weights and hints come from it.

use crate::choice::Choice;
use crate::code::{Code, Scoring};
use crate::command::Command;
use crate::exact::Exact;
use crate::format::{Format, pattern};
use crate::group::Group;
use crate::guard::Guard;
use crate::instructions::Instructions;
use crate::judge::Judge;
use crate::length::{Length, Overlong, Repetition};
use crate::math::{DECIMALS, Dapo, Deepscaler, Gsm8k, Math, Mathd, SlimeMath};
use crate::nested::{Boxed, ByMetadata};
use crate::number::Number;
use crate::question::{ExactMatch, F1};
use crate::registry::{Family, Form, PLAIN, RewardType};
use crate::remote::{Remote, RewardModel};
use crate::schema::Schema;
use crate::tournament::Tournament;

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
        about: "DAPO's soft penalty, from 0 to -1 over the last `cache` tokens",
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

const MATHEMATICS: &[RewardType] = &[
    RewardType {
        name: "math",
        form: Form::Options("[:decimals=N]"),
        needs_label: true,
        about: "the answer means the label: formulas, sets, matrices, units, words",
        make: |options| {
            let decimals = options.value("decimals", "a whole number")?.unwrap_or(DECIMALS);
            Ok(Box::new(Math::with_decimals(decimals)))
        },
        ..PLAIN
    },
    RewardType {
        name: "slime_math",
        needs_label: true,
        about: "what slime calls math: the last box, by its two graders",
        make: |_| Ok(Box::new(SlimeMath)),
        ..PLAIN
    },
    RewardType {
        name: "deepscaler",
        needs_label: true,
        about: "the same behind the last </think> or ###Response",
        make: |_| Ok(Box::new(Deepscaler)),
        ..PLAIN
    },
    RewardType {
        name: "dapo",
        needs_label: true,
        about: "the last `Answer:` near the end is the label's whole number; 1 or -1",
        make: |_| Ok(Box::new(Dapo { is_strict: false })),
        ..PLAIN
    },
    RewardType {
        name: "dapo:strict_box",
        needs_label: true,
        about: "the last box near the end is the label's text; 1 or -1",
        make: |_| Ok(Box::new(Dapo { is_strict: true })),
        ..PLAIN
    },
    RewardType {
        name: "mathd",
        needs_label: true,
        about: "the last box is the label in the normal form of the MATH data set",
        make: |_| Ok(Box::new(Mathd)),
        ..PLAIN
    },
    RewardType {
        name: "gsm8k",
        needs_label: true,
        about: "the number behind ####, else in the last box, else the last one",
        make: |_| Ok(Box::new(Gsm8k)),
        ..PLAIN
    },
];

const CODE: &[RewardType] = &[
    RewardType {
        name: "code",
        reaches_outside: true,
        about: "the response's code, run in a sandbox, passes all tests of its metadata",
        make: |_| Ok(Box::new(Code::new(Scoring::All))),
        ..PLAIN
    },
    RewardType {
        name: "code:rate",
        reaches_outside: true,
        about: "the share of the tests that its code passes",
        make: |_| Ok(Box::new(Code::new(Scoring::Rate))),
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
    Family { title: "Mathematics", types: MATHEMATICS },
    Family { title: "Code", types: CODE },
    Family { title: "Around other types", types: AROUND },
    Family { title: "Models and programs", types: OUTSIDE },
];

/// Other names of types.
pub(crate) const ALIASES: &[(&str, &str)] = &[("format", "format:think_answer")];
