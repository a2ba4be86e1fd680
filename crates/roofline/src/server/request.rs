//! From the JSON of a request to the arguments of a command.
//!
//! The fields of a body are the long flags of the command in snake case, and they are parsed by the command's own
//! definition: a name, a default or a limit that the command line has is written once. Values travel as `--flag=value`,
//! so that none can be taken for a flag. What names a file on the server is refused.

use std::{any::TypeId, cell::RefCell, collections::HashMap, path::PathBuf, sync::LazyLock};

use axum::http::StatusCode;
use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};
use serde_json::{Map, Value};

use super::refusal::Refusal;
use crate::commands::question::{Question, VERBS, Verb};

/// A field of a request.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Whether it may be a list.
    pub(super) many: bool,
    pub(super) required: bool,
    pub(super) default: Option<String>,
    pub(super) help: String,
    /// The flag it becomes; none for what has a place instead.
    long: Option<String>,
}

#[derive(Clone, PartialEq)]
pub(super) enum Kind {
    /// A whole number, and the least of them.
    Whole(u64),
    Number,
    Flag,
    Text,
    OneOf(Vec<String>),
    /// Names and values, such as rates of units.
    Pairs,
}

/// The fields of a verb, and of each of its subjects.
pub(super) struct Form {
    pub(super) own: Vec<Field>,
    pub(super) subjects: Vec<(String, String, Vec<Field>)>,
    pub(super) needs_subject: bool,
}

/// Longest list of a request.
const LONGEST_LIST: usize = 256;

/// What only makes sense where the files are.
const ELSEWHERE: &[&str] = &["help", "version", "resume", "force", "scale", "unfolded"];

static FORMS: LazyLock<HashMap<&'static str, Form>> =
    LazyLock::new(|| VERBS.iter().map(|verb| (verb.name, Form::of(&verb.command()))).collect());

thread_local! {
    /// Definitions as clap builds them once they were used: building takes far longer than parsing.
    static COMMANDS: RefCell<HashMap<&'static str, Command>> = RefCell::default();
}

pub(super) fn form(verb: &Verb) -> Result<&'static Form, Refusal> {
    FORMS.get(verb.name).ok_or_else(|| Refusal::body(format!("unknown verb `{}`", verb.name), "see /docs"))
}

impl Form {
    fn of(command: &Command) -> Self {
        let fields = |command: &Command| command.get_arguments().filter_map(Field::of).collect();
        let subject = |subject: &Command| {
            let about = subject.get_about().map(ToString::to_string).unwrap_or_default();
            (subject.get_name().to_owned(), about, fields(subject))
        };
        Self {
            own: fields(command),
            subjects: command.get_subcommands().map(subject).collect(),
            needs_subject: command.is_subcommand_required_set(),
        }
    }

    fn subject(&self, name: &str) -> Option<&[Field]> {
        self.subjects.iter().find(|(known, ..)| known == name).map(|(.., fields)| fields.as_slice())
    }
}

impl Field {
    fn of(arg: &Arg) -> Option<Self> {
        let name = arg.get_id().as_str().to_owned();
        let holds = arg.get_value_parser().type_id();
        if ELSEWHERE.contains(&name.as_str()) || holds == TypeId::of::<PathBuf>() {
            return None;
        }
        let values: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let kind = match arg.get_action() {
            ArgAction::SetTrue => Kind::Flag,
            _ if name == "peak" => Kind::Pairs,
            _ if holds == TypeId::of::<u64>() => Kind::Whole(1),
            _ if holds == TypeId::of::<u32>() || holds == TypeId::of::<usize>() => Kind::Whole(0),
            _ if holds == TypeId::of::<f64>() && !matches!(name.as_str(), "max_quality_loss") => Kind::Number,
            _ if values.is_empty() => Kind::Text,
            _ => Kind::OneOf(values),
        };
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        Some(Self {
            many: matches!(arg.get_action(), ArgAction::Append),
            required: arg.is_required_set(),
            default: default.filter(|_| kind != Kind::Flag),
            help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            long: arg.get_long().map(str::to_owned),
            kind,
            name,
        })
    }

    /// One value as it would be typed.
    fn typed(&self, value: &Value) -> Result<String, Refusal> {
        let fits = match (&self.kind, value) {
            (Kind::Whole(_), Value::Number(number)) if number.is_u64() => number.to_string(),
            (Kind::Number, Value::Number(number)) => number.to_string(),
            (Kind::Text | Kind::OneOf(_) | Kind::Pairs, Value::String(text)) => text.clone(),
            _ => return Err(self.refuse(value)),
        };
        Ok(fits)
    }

    fn refuse(&self, value: &Value) -> Refusal {
        let expected = match &self.kind {
            Kind::Whole(least) => format!("a whole number from {least} on"),
            Kind::Number => "a number".to_owned(),
            Kind::Flag => "true or false".to_owned(),
            Kind::Text => "a string".to_owned(),
            Kind::OneOf(values) => format!("one of {}", values.join(", ")),
            Kind::Pairs => "an object of units and rates, such as {\"bf16\": \"300TFLOP/s\"}".to_owned(),
        };
        let list = if self.many { ", or a list of such" } else { "" };
        let shown: String = value.to_string().chars().take(80).collect();
        Refusal::body(format!("`{}` is {shown}", self.name), format!("it is {expected}{list}"))
    }

    /// All values as they would be typed.
    fn values(&self, value: &Value) -> Result<Vec<String>, Refusal> {
        match value {
            Value::Array(list) if self.many && list.len() <= LONGEST_LIST => {
                list.iter().map(|value| self.typed(value)).collect()
            }
            Value::Array(list) if self.many => {
                let detail = format!("`{}` has {} entries", self.name, list.len());
                Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail, format!("{LONGEST_LIST} at most")))
            }
            Value::Object(pairs) if self.kind == Kind::Pairs => pairs
                .iter()
                .map(|(unit, rate)| {
                    rate.as_str().map(|rate| format!("{unit}={rate}")).ok_or_else(|| self.refuse(value))
                })
                .collect(),
            value => Ok(vec![self.typed(value)?]),
        }
    }
}

/// The question that a body asks of `verb`.
pub(super) fn question(verb: &Verb, body: &Map<String, Value>) -> Result<Question, Refusal> {
    let form = form(verb)?;
    let arguments = arguments(verb, form, body)?;
    let matches = COMMANDS.with_borrow_mut(|commands| {
        commands.entry(verb.name).or_insert_with(|| verb.command()).try_get_matches_from_mut(arguments)
    });
    let mut matches = matches.map_err(|error| refusal(&error))?;
    Ok(verb.question(&mut matches)?)
}

fn arguments(verb: &Verb, form: &'static Form, body: &Map<String, Value>) -> Result<Vec<String>, Refusal> {
    let subject = match body.get("subject") {
        Some(Value::String(name)) => Some((name, subject(verb, form, name)?)),
        None | Some(Value::Null) if !form.needs_subject => None,
        other => {
            let shown = other.map_or_else(|| "missing".to_owned(), ToString::to_string);
            return Err(Refusal::body(format!("`subject` is {shown}"), subjects(form)));
        }
    };
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    let mut places: Vec<(usize, Vec<String>)> = Vec::new();
    for (name, value) in body {
        let has_subject = name == "subject" && !form.subjects.is_empty();
        if has_subject || value.is_null() {
            continue;
        }
        let among =
            |fields: &'static [Field]| fields.iter().position(|field| field.name == *name).map(|at| (at, &fields[at]));
        let of_subject = subject.and_then(|(_, fields)| among(fields));
        let (at, field, flags) = match (of_subject, among(&form.own)) {
            (Some((at, field)), _) => (at, field, &mut theirs),
            (None, Some((at, field))) => (at, field, &mut own),
            (None, None) => return Err(unknown(name, form, subject.map(|(_, fields)| fields))),
        };
        if field.kind == Kind::Flag {
            match value {
                Value::Bool(true) => flags.push(format!("--{}", field.long.as_deref().unwrap_or(name))),
                Value::Bool(false) => {}
                _ => return Err(field.refuse(value)),
            }
            continue;
        }
        let values = field.values(value)?;
        match &field.long {
            Some(long) => flags.extend(values.into_iter().map(|value| format!("--{long}={value}"))),
            None => places.push((at, values)),
        }
    }
    places.sort_by_key(|(at, _)| *at);
    let places: Vec<String> = places.into_iter().flat_map(|(_, values)| values).collect();
    let mut arguments = own;
    arguments.extend(subject.map(|(name, _)| name.clone()));
    arguments.extend(theirs);
    if !places.is_empty() {
        arguments.push("--".to_owned());
        arguments.extend(places);
    }
    Ok(arguments)
}

fn subject(verb: &Verb, form: &'static Form, name: &str) -> Result<&'static [Field], Refusal> {
    let shown: String = name.chars().take(80).collect();
    form.subject(name).ok_or_else(|| Refusal::body(format!("`{}` has no subject `{shown}`", verb.name), subjects(form)))
}

fn subjects(form: &Form) -> String {
    let names: Vec<&str> = form.subjects.iter().map(|(name, ..)| name.as_str()).collect();
    if names.is_empty() { "it takes no subject".to_owned() } else { format!("one of {}", names.join(", ")) }
}

fn unknown(name: &str, form: &Form, subject: Option<&[Field]>) -> Refusal {
    let fields = || form.own.iter().chain(subject.unwrap_or_default()).map(|field| field.name.as_str());
    let shown: String = name.chars().take(80).collect();
    let error = roofline_core::Error::unknown("field", &shown, fields(), "");
    Refusal::body(error.to_string(), format!("fields: {}", fields().collect::<Vec<_>>().join(", ")))
}

/// What clap found wrong, in the words of a body.
fn refusal(error: &Error) -> Refusal {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let fields: Vec<String> = text(ContextKind::InvalidArg).iter().map(|arg| field(arg)).collect();
    let named = fields.join(", ");
    let value = text(ContextKind::InvalidValue).join(", ");
    let shown: String = value.chars().take(80).collect();
    let reason = std::error::Error::source(error).map(ToString::to_string);
    let valid = text(ContextKind::ValidValue);
    match error.kind() {
        ErrorKind::MissingRequiredArgument => Refusal::body(format!("{named}: missing"), "it has no default"),
        ErrorKind::ArgumentConflict if !text(ContextKind::PriorArg).is_empty() => {
            let prior: Vec<String> = text(ContextKind::PriorArg).iter().map(|arg| field(arg)).collect();
            Refusal::body(format!("{named} and {} contradict each other", prior.join(", ")), "leave one of them out")
        }
        ErrorKind::ArgumentConflict => Refusal::body(format!("{named}: given more than once"), "give one value"),
        _ if !valid.is_empty() => {
            Refusal::body(format!("{named} is `{shown}`"), format!("one of {}", valid.join(", ")))
        }
        _ => {
            let line = || error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Refusal::body(reason.map_or_else(line, |reason| format!("{named} is `{shown}`: {reason}")), "see /docs")
        }
    }
}

/// `--kv-heads <KV_HEADS>` as a body calls it.
fn field(argument: &str) -> String {
    let name = argument.split([' ', '=']).next().unwrap_or(argument);
    let name = name.trim_start_matches('-').trim_matches(['<', '>', '[', ']', '.']);
    format!("`{}`", name.replace('-', "_").to_lowercase())
}
