//! The steps, one after the other: each is done, reused or said to be ahead.

mod dry;
mod evaluating;
mod measuring;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use roofline_core::{Dim, Plan};

use super::{
    Answer, Request,
    asked::{Asked, REPORT, target},
    predicting,
    recommending::{Chosen, choose},
    state::State,
    told::{Failed, Quantized, Recommended, Step, StepName, StepState, WeightLoss},
    verdict::verdict,
};
use crate::{
    Context, Error, Note, Result, calibrate, demo,
    machine::calibration,
    quantize::{self, quantize},
    request::Measuring,
    running::Opened,
    text::{number, size},
};

pub(super) fn run(context: &Context, request: &Request) -> Result<Answer> {
    let start = Instant::now();
    let asked = Asked::of(context, request)?;
    let inspected = start.elapsed().as_secs_f64();
    let mut notes = Vec::new();
    let earlier = match (&request.to, request.resume) {
        (Some(folder), true) => State::load(folder)?.and_then(|state| state.found.recommendation),
        _ => None,
    };
    let reused = earlier.is_some();
    let start = Instant::now();
    let mut chosen = if let Some(told) = earlier {
        Chosen { told, preview: None }
    } else {
        calibrated(context, &asked)?;
        choose(context, &asked, &mut notes)?
    };
    let folder = asked.folder(&chosen.told.precision);
    let mut state = State::open(&folder, &asked)?;
    if state.found.predicted.on.is_none() {
        let on = predicting::predict(context, &asked, &asked.on, &chosen.told.precision, &mut notes)?;
        if chosen.told.given {
            chosen.told.predicted_speedup = on.speedup;
            (chosen.told.tier, chosen.told.basis) = (Some(on.tier.clone()), Some(on.basis.clone()));
        }
        state.found.predicted.on = Some(on);
    }
    state.found.recommendation.get_or_insert(chosen.told.clone());
    let mut work = Work { context, asked, state, folder, notes, steps: Vec::new(), failed: None, here: None };
    work.say(StepName::Inspect, StepState::Done, Some(inspected), work.inspected());
    if request.dry_run {
        return work.planned(&chosen, start.elapsed().as_secs_f64());
    }
    fs::create_dir_all(&work.folder).map_err(Error::file(&work.folder))?;
    if request.force {
        work.state.clear()?;
    }
    work.recommended(reused, start.elapsed().as_secs_f64());
    work.go_through(&chosen.told);
    Ok(work.answer())
}

/// A plan for this machine is chosen by what it was measured to do: where nobody calibrated it, that comes first, unless
/// there is no time for it.
fn calibrated(context: &Context, asked: &Asked<'_>) -> Result<()> {
    let Request { quick, dry_run, threads, execution, .. } = asked.request;
    if !asked.is_here() || *quick || *dry_run || threads.is_some() {
        return Ok(());
    }
    let (device, name) = (asked.executor.device(context)?, asked.executor.name);
    if calibration(context, &device, name.stack()).is_none() {
        let run = Measuring { backend: Some(name), gpu: execution.gpu, ..Measuring::default() };
        calibrate::short(context, &run, &device)?;
    }
    Ok(())
}

/// Why nothing is evaluated.
const NO_TEXT: &str = "there is no text: `⟨text FILE⟩` says what both are evaluated on";

/// What is under way.
struct Work<'a, 'r> {
    context: &'a Context,
    asked: Asked<'r>,
    state: State,
    folder: PathBuf,
    notes: Vec<Note>,
    steps: Vec<Step>,
    failed: Option<Failed>,
    /// This machine, once something was measured.
    here: Option<(String, String)>,
}

impl Work<'_, '_> {
    fn say(&mut self, name: StepName, state: StepState, seconds: Option<f64>, words: String) {
        self.steps.push(Step { name, state, seconds, words });
    }

    fn inspected(&self) -> String {
        let Opened { checkpoint, model } = &self.asked.opened;
        let parameters = crate::text::billions(model.parameters() as f64);
        format!("{}: {parameters} parameters, {}", checkpoint.name(), size(checkpoint.bytes()))
    }

    /// Keeps the plan; a folder in which nothing can be kept is the first thing to fail.
    fn recommended(&mut self, reused: bool, seconds: f64) {
        let words = self.state.found.recommendation.as_ref().map(|told| told.precision.clone()).unwrap_or_default();
        if reused {
            let seconds = self.state.done(StepName::Recommend).map(|kept| kept.seconds);
            return self.say(StepName::Recommend, StepState::Reused, seconds, words);
        }
        let kept = self.state.keep(&self.asked, StepName::Recommend, seconds, &words);
        match kept {
            Ok(()) => self.say(StepName::Recommend, StepState::Done, Some(seconds), words),
            Err(error) => self.fail(StepName::Recommend, seconds, &error),
        }
    }

    fn go_through(&mut self, plan: &Recommended) {
        if self.state.found.quantized.as_ref().is_some_and(|told| !told.checkpoint.exists()) {
            self.context.note("the checkpoint that was written is gone: it is written again");
            self.state.forget_from(StepName::Quantize);
        }
        let both = !plan.keeps_original;
        let stays = "the original stays as it is";
        self.step(StepName::Quantize, (!both).then_some(stays), Self::quantize);
        self.step(StepName::MeasureBefore, None, |work| work.measure(false));
        self.step(StepName::MeasureAfter, (!both).then_some(stays), |work| work.measure(true));
        let textless = self.asked.text.is_none().then_some(NO_TEXT);
        self.step(StepName::Evaluate, (!both).then_some(stays).or(textless), Self::evaluate);
        self.step(StepName::Compare, None, |work| Ok(work.compare()));
    }

    /// One step: skipped where there is a reason, reused where an earlier run did it, ahead where one before failed.
    fn step(&mut self, name: StepName, skipped: Option<&str>, run: impl FnOnce(&mut Self) -> Result<String>) {
        if let Some(reason) = skipped {
            return self.say(name, StepState::Skipped, None, reason.to_owned());
        }
        if self.failed.is_some() {
            return self.say(name, StepState::Planned, None, String::new());
        }
        // What was compared is told anew: it takes no time.
        if let Some(kept) = self.state.done(name).filter(|_| name != StepName::Compare) {
            let (seconds, words) = (kept.seconds, kept.words.clone());
            return self.say(name, StepState::Reused, Some(seconds), words);
        }
        let start = Instant::now();
        let done = if self.context.watcher().cancelled() { Err(Error::Cancelled) } else { run(self) };
        let seconds = start.elapsed().as_secs_f64();
        let kept = done.and_then(|words| self.state.keep(&self.asked, name, seconds, &words).map(|()| words));
        match kept {
            Ok(words) => self.say(name, StepState::Done, Some(seconds), words),
            Err(error) => self.fail(name, seconds, &error),
        }
    }

    fn fail(&mut self, step: StepName, seconds: f64, error: &Error) {
        self.context.watcher().ends();
        self.say(step, StepState::Failed, Some(seconds), error.to_string());
        self.failed = Some(Failed {
            step,
            kind: error.kind().to_owned(),
            message: error.to_string(),
            hint: error.hint(),
            go_on: self.go_on(),
            is_input: error.is_input(),
            is_cancelled: matches!(error, Error::Cancelled),
        });
    }

    /// What was typed, or would be, to go on from here.
    fn go_on(&self) -> String {
        let flags = ["--resume", "--force", "--dry-run"];
        let asked = self.asked.request;
        let mut words: Vec<String> = match self.context.command() {
            Some(typed) => typed.iter().filter(|word| !flags.contains(&word.as_str())).cloned().collect(),
            None if self.asked.demo => vec!["pipeline".to_owned(), "--demo".to_owned()],
            None => vec!["pipeline".to_owned(), self.asked.path.display().to_string()],
        };
        if asked.to.is_none() || self.context.command().is_none() {
            words.extend(["--to".to_owned(), self.folder.display().to_string()]);
        }
        words.push("--resume".to_owned());
        format!("roofline {}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
    }

    /// Writes the checkpoint. What an interrupted run wrote is gone on with.
    fn quantize(&mut self) -> Result<String> {
        let told = self.state.found.recommendation.clone();
        let Recommended { precision, method, .. } = told.ok_or(Error::Cancelled)?;
        let again = self.asked.request.force || self.asked.request.resume;
        let request = quantize::Request {
            model: Some(self.asked.path.clone()),
            to: Some(target(&self.folder, &precision.parse::<Plan>()?)),
            plan: Some(precision),
            method,
            // A checkpoint here that no state speaks of was finished just before the run ended.
            force: again,
            resume: again,
            threads: self.asked.request.threads,
            ..quantize::Request::default()
        };
        let quantize::Answer::Written(report) = quantize(self.context, &request)? else {
            return Err(Error::request("nothing was written", ""));
        };
        let words = format!(
            "{} as {}: {} instead of {}, {} bits per quantized weight",
            report.plan,
            report.layout,
            size(report.bytes_after),
            size(report.bytes_before),
            number(report.bits_per_weight)
        );
        let weight = |line: roofline_quant::quantize::Line| WeightLoss {
            name: line.name,
            role: line.role.to_owned(),
            layer: line.layer,
            scheme: line.scheme,
            snr_db: line.snr_db,
        };
        self.state.found.quantized = Some(Quantized {
            checkpoint: report.target,
            plan: report.plan.to_string(),
            layout: report.layout,
            method: report.method,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            bits_per_weight: report.bits_per_weight,
            relative_error: report.relative_squared_error.sqrt(),
            weights: report.weights.into_iter().map(weight).collect(),
            notes: report.notes,
        });
        Ok(words)
    }

    /// What theory says of what ran.
    fn compare(&mut self) -> String {
        let found = &self.state.found;
        let here = self.here.as_ref().or(found.measured_on.as_ref());
        if let (Some(before), Some(after), Some((device, name))) = (&found.before, &found.after, here) {
            let phase = self.asked.request.phase;
            let told = predicting::of_passes((device, name), &before.speed, &after.speed, phase);
            self.state.found.predicted.here = told;
        }
        let verdict = verdict(&self.state.found, self.asked.request);
        verdict.map_or_else(String::new, |verdict| verdict.word)
    }

    fn answer(self) -> Answer {
        let Opened { checkpoint, model } = &self.asked.opened;
        let request = self.asked.request;
        let on = self.state.found.predicted.on.as_ref();
        let (device, device_name) = on.map(|on| (on.device.clone(), on.device_name.clone())).unwrap_or_default();
        let (here, here_name) = self.here.or_else(|| self.state.found.measured_on.clone()).unzip();
        let done = self.failed.is_none() && !request.dry_run;
        let mut notes = self.notes;
        notes.extend(self.context.notes());
        Answer {
            model: checkpoint.name(),
            checkpoint: self.asked.path.clone(),
            parameters: model.parameters() as u64,
            dry_run: request.dry_run,
            elsewhere: here.as_ref().map_or(!self.asked.is_here(), |here| *here != device),
            backend: self.asked.executor.name,
            device,
            device_name,
            here,
            here_name,
            phase: request.phase,
            prompt: self.asked.prompt,
            generate: self.asked.generate,
            verdict: if done { verdict(&self.state.found, request) } else { None },
            commands: commands(&self.asked, &self.state, &self.folder),
            found: self.state.found.clone(),
            steps: self.steps,
            error: self.failed,
            state: self.state.path().to_owned(),
            report: done.then(|| self.folder.join(REPORT)),
            folder: self.folder,
            notes,
        }
    }
}

/// What to type to do each step alone.
fn commands(asked: &Asked<'_>, state: &State, folder: &Path) -> Vec<String> {
    let Some(told) = &state.found.recommendation else { return Vec::new() };
    let model = if asked.demo { demo::NAME.to_owned() } else { quoted(&asked.path.display().to_string()) };
    let request = asked.request;
    let tokens = asked.prompt + asked.generate;
    let mut lines = Vec::new();
    if !told.given {
        let limit = request.memory_limit.map(|bytes| format!(" --memory-limit {}B", bytes.value())).unwrap_or_default();
        lines.push(format!(
            "roofline recommend model {model} --on {} --phase {} --context {tokens}{limit}",
            asked.on, request.phase
        ));
    }
    if let Some(made) = &state.found.quantized {
        let target = quoted(&made.checkpoint.display().to_string());
        lines.push(format!("roofline quantize {model} --plan '{}' --method {} --to {target}", made.plan, made.method));
        let lengths = format!("--prompt {} --generate {}", asked.prompt, asked.generate);
        // The plan's cache is said to whoever runs the checkpoint.
        let kv = made.plan.parse::<Plan>().ok().and_then(|plan| plan.kv()).map(|kv| kv.to_string());
        let kv = kv.map(|kv| format!(" --kv {}", kv.split('-').next().unwrap_or(&kv)));
        let backend = request.execution.words();
        match &kv {
            None => lines.push(format!("roofline measure model {model} --beside {target} {lengths}{backend}")),
            Some(kv) => lines.extend([
                format!("roofline measure model {model} {lengths}{backend}"),
                format!("roofline measure model {target} {lengths}{kv}{backend}"),
            ]),
        }
        if let Some(text) = &asked.text {
            let text = quoted(&text.path(folder).display().to_string());
            let few = (request.quick || asked.demo).then_some(evaluating::FEW);
            let tokens = request.tokens.map(Dim::get).or(few);
            let tokens = tokens.map(|tokens| format!(" --tokens {tokens}")).unwrap_or_default();
            let kv = kv.unwrap_or_default();
            lines.push(format!("roofline evaluate {target} --against {model} --text {text}{tokens}{kv}{backend}"));
        }
    }
    lines
}

/// As a shell reads it as one word.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=%,:@+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
