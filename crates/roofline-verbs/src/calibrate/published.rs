//! Files of speeds that people published: what runtimes reach of their devices is fitted to them, and scored on them.
//!
//! A row is a figure: source, device, devices, runtime, runtime_family, model, quant, batch, context, phase, generated,
//! tokens_per_s, note. Names are those of the registry, or what `data/published/aliases.toml` makes of them.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use csv::StringRecord;
use roofline_core::{
    Device,
    machine::{Basis, Stack},
    published::{Effects, Figure, Judged, Known, Phase, Scored, Speed, Term as PublishedTerm, judge, scores, validate},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Request, Term, timings::open};
use crate::{
    Context, Error, Note, Result,
    context::files::replace,
    machine::{OWN_TERMS, own_terms},
};

/// Most rows of a file.
const MOST_ROWS: usize = 100_000;

/// Errors on a file of speeds, as shares of what was published.
#[derive(Serialize, JsonSchema)]
pub struct SpeedsChecked {
    #[serde(flatten)]
    pub errors: SpeedErrors,
    /// By device, runtime, phase, and whether several sequences ran side by side.
    pub groups: Vec<SpeedGroup>,
    /// Rows that could not be forecast, by reason.
    pub skipped: Vec<SkippedSpeeds>,
    /// Figures that are above what the device's limits allow.
    pub above_floor: Vec<AboveFloor>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Errors of some figures.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct SpeedErrors {
    pub rows: usize,
    pub median: f64,
    pub mean: f64,
    pub p90: f64,
    /// The share of figures inside their 80 % intervals.
    pub coverage80: f64,
    /// The ideal roofline's mean error.
    pub ideal_mean: f64,
}

/// Errors of one group.
#[derive(Serialize, JsonSchema)]
pub struct SpeedGroup {
    pub device: String,
    pub runtime: String,
    pub phase: &'static str,
    pub batched: bool,
    /// What the forecasts stand on.
    pub basis: Basis,
    #[serde(flatten)]
    pub errors: SpeedErrors,
}

/// Rows that could not be used.
#[derive(Serialize, JsonSchema)]
pub struct SkippedSpeeds {
    pub reason: String,
    pub rows: usize,
}

/// A figure that beats the floor.
#[derive(Serialize, JsonSchema)]
pub struct AboveFloor {
    pub figure: String,
    /// Published over the most that the device's limits allow.
    pub times: f64,
    /// Why that can be.
    pub because: &'static str,
}

/// What a fit to published speeds gave.
#[derive(Serialize, JsonSchema)]
pub struct PublishedFit {
    /// How many figures, and how many numbers describe them.
    pub figures: usize,
    pub numbers: usize,
    /// Errors where the whole device was left out.
    pub unseen: Vec<PhaseErrors>,
    /// Errors where others of the device were seen.
    pub seen: Vec<PhaseErrors>,
    /// Errors where the whole runtime was left out.
    pub foreign: Vec<PhaseErrors>,
    /// What is known of each runtime on each class of devices.
    pub known: Vec<Known>,
    pub skipped: Vec<SkippedSpeeds>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// What a runtime reaches of a device.
#[derive(Serialize, JsonSchema)]
pub struct Reached {
    pub device: String,
    pub device_name: String,
    pub stack: Stack,
    pub provenance: String,
    /// What is known of the runtime on such devices; none where nobody published anything.
    pub known: Option<Known>,
    pub rows: Vec<Term>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Errors of a kind of figure.
#[derive(Serialize, JsonSchema)]
pub struct PhaseErrors {
    pub phase: &'static str,
    #[serde(flatten)]
    pub errors: SpeedErrors,
}

/// Whether a file is one of speeds, by its first line.
pub(super) fn is_speeds(header: &StringRecord) -> bool {
    header.iter().any(|column| column.trim() == "tokens_per_s")
}

fn unreadable(path: &Path, reason: &str) -> Error {
    let hint = "speeds are CSV: source, device, devices, runtime, runtime_family, model, quant, batch, context, phase (decode, \
                prefill or request), generated, tokens_per_s, note";
    Error::request(format!("{}: {reason}", path.display()), hint)
}

/// Rows of a file that can be forecast, and why others cannot.
struct Read {
    rows: Vec<(Speed, Figure)>,
    skipped: Vec<SkippedSpeeds>,
}

fn read(path: &Path) -> Result<Read> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(open(path)?);
    let (mut rows, mut skipped) = (Vec::new(), BTreeMap::<String, usize>::new());
    for (at, row) in reader.deserialize::<Speed>().enumerate() {
        let speed = row.map_err(|error| unreadable(path, &error.to_string()))?;
        if at >= MOST_ROWS {
            return Err(unreadable(path, &format!("more than {MOST_ROWS} rows")));
        }
        match Figure::of(&speed) {
            Ok(figure) => rows.push((speed, figure)),
            Err(error) => *skipped.entry(error.to_string()).or_default() += 1,
        }
    }
    let skipped = skipped.into_iter().map(|(reason, rows)| SkippedSpeeds { reason, rows }).collect();
    Ok(Read { rows, skipped })
}

/// Device, runtime, phase, and whether several sequences ran side by side.
type Group = (String, String, Phase, bool);

/// Scores the terms in use on a file.
pub(super) fn check(context: &Context, path: &Path) -> Result<SpeedsChecked> {
    let Read { rows, skipped } = read(path)?;
    let own = own_terms(context);
    let effects = own.as_ref().unwrap_or(Effects::builtin());
    let figures: Vec<&Figure> = rows.iter().map(|(_, figure)| figure).collect();
    let scored = scores(&figures, effects);
    let mut groups: BTreeMap<Group, Vec<(Basis, Scored)>> = BTreeMap::new();
    for ((speed, figure), scored) in rows.iter().zip(&scored) {
        let key = (speed.device.clone(), speed.runtime_family.clone(), speed.phase, speed.batch > 1);
        groups.entry(key).or_default().push((figure.basis(effects), *scored));
    }
    let group = |((device, runtime, phase, batched), own): (Group, Vec<(Basis, Scored)>)| {
        let basis = own.iter().map(|(basis, _)| *basis).max().unwrap_or(Basis::Prior);
        let errors = errors(&own.into_iter().map(|(_, scored)| scored).collect::<Vec<_>>());
        SpeedGroup { device, runtime, phase: phase.name(), batched, basis, errors }
    };
    let above = |((speed, figure), scored): (&(Speed, Figure), &Scored)| {
        (scored.ideal < 1.0 && scored.ideal.is_finite()).then(|| AboveFloor {
            figure: format!(
                "{} {} {} {} {}, {} x {} tokens",
                speed.device,
                speed.runtime,
                speed.model,
                speed.quant,
                speed.phase.name(),
                speed.batch,
                speed.context
            ),
            times: 1.0 / scored.ideal,
            because: figure.above_floor(),
        })
    };
    Ok(SpeedsChecked {
        errors: errors(&scored),
        groups: groups.into_iter().map(group).collect(),
        above_floor: rows.iter().zip(&scored).filter_map(above).collect(),
        skipped,
        notes: context.notes(),
    })
}

/// Fits to a file, and keeps or writes what came of it; `builtin` goes back to what ships.
pub(super) fn fit(context: &Context, request: &Request, path: &Path) -> Result<PublishedFit> {
    let Read { rows, skipped } = read(path)?;
    let (speeds, figures): (Vec<Speed>, Vec<Figure>) = rows.into_iter().unzip();
    if figures.len() < 20 {
        let message = format!("{}: {} figures that can be used", path.display(), figures.len());
        return Err(Error::request(message, "a fit to published speeds needs 20"));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let source = request.source.clone().unwrap_or(name);
    let licence = request.licence.as_ref().map_or_else(String::new, |licence| format!(" ({licence})"));
    let devices = figures.iter().map(Figure::device).collect::<std::collections::BTreeSet<_>>().len();
    let provenance = format!("{source}{licence}: {} speeds of whole models on {devices} devices", figures.len());
    let validation = validate(&figures, provenance, &|count, work| {
        let next = AtomicUsize::new(0);
        let go = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count || context.watcher().cancelled() {
                    return;
                }
                work(at);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(go))));
    });
    if context.watcher().cancelled() {
        return Err(Error::Cancelled);
    }
    let effects = &validation.effects;
    if let Some(folder) = &request.write {
        let path = folder.join("terms.toml");
        let text = toml::to_string(effects)
            .map_err(|error| Error::request(format!("{}: {error}", path.display()), "this is a defect of roofline"))?;
        replace(&path, text.as_bytes())?;
        context.note(format!("written: {}", path.display()));
    } else {
        let path = context.home().keep(OWN_TERMS.0, OWN_TERMS.1, effects)?;
        context.note(format!(
            "kept in {}, and used from now on; `⟨roofline calibrate --published builtin⟩` goes back to what ships",
            path.display()
        ));
    }
    let by_phase = |scored: &[Scored]| -> Vec<PhaseErrors> {
        let of = |phase: &'static str, which: &dyn Fn(&Speed) -> bool| {
            let own: Vec<Scored> =
                speeds.iter().zip(scored).filter(|(speed, _)| which(speed)).map(|(_, scored)| *scored).collect();
            (!own.is_empty()).then(|| PhaseErrors { phase, errors: errors(&own) })
        };
        let all = [
            of("decode, one sequence", &|speed| speed.phase == Phase::Decode && speed.batch == 1),
            of("decode, several sequences", &|speed| speed.phase == Phase::Decode && speed.batch > 1),
            of("prefill", &|speed| speed.phase == Phase::Prefill),
            of("request", &|speed| speed.phase == Phase::Request),
            of("all", &|_| true),
        ];
        all.into_iter().flatten().collect()
    };
    Ok(PublishedFit {
        figures: figures.len(),
        numbers: effects.effect.iter().map(|effect| effect.factors.len()).sum(),
        unseen: by_phase(&validation.unseen),
        seen: by_phase(&validation.seen),
        foreign: by_phase(&validation.foreign),
        known: effects.known.clone(),
        skipped,
        notes: context.notes(),
    })
}

/// The terms of a runtime on a device, as they are told.
pub(super) fn reached(context: &Context, device: &Device, stack: Stack) -> Reached {
    let own = own_terms(context);
    let effects = own.as_ref().unwrap_or(Effects::builtin());
    let reach = effects.reach(device, stack, None);
    let row = |term: &PublishedTerm| Term {
        name: term.name().to_owned(),
        value: reach.value(*term),
        unit: term.unit(),
        meaning: term.about(),
    };
    Reached {
        device: device.label(),
        device_name: device.name.clone(),
        stack,
        provenance: effects.provenance.clone(),
        known: effects.known(device, stack).cloned(),
        rows: PublishedTerm::ALL.iter().map(row).collect(),
        notes: context.notes(),
    }
}

/// Goes back to the terms that ship.
pub(super) fn forget(context: &Context) -> Result<bool> {
    context.home().forget(OWN_TERMS.0, OWN_TERMS.1)
}

fn errors(scored: &[Scored]) -> SpeedErrors {
    let Judged { rows, median, mean, p90, coverage80 } = judge(scored);
    let ideal: f64 = scored.iter().map(|one| (one.ideal - 1.0).abs()).sum();
    SpeedErrors { rows, median, mean, p90, coverage80, ideal_mean: ideal / rows.max(1) as f64 }
}
