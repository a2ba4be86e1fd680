//! One portion of a model in one format: what it takes, and what its weights become.

use std::{collections::BTreeSet, result::Result as Either, sync::Arc};

use roofline_core::{Plan, Role};

use super::{Portion, compose};
use crate::{
    Checkpoint, Error, Imatrix, Layout, QuantizeJob, Request, Result,
    coding::Matrix,
    data::share::shared,
    gguf::model::Names,
    imatrix,
    job::{DAMAGED, Item, Work},
    layout::Together,
    observed::Replaced,
    plan::Asked,
    quantize::prepare,
    roundtrip::roundtrip,
    rows::{InMemory, Rows, Spare},
    site::Site,
    stored::StoredTensor,
};

/// Rows of a matrix that formats are compared on before any of them is tried.
const LOOKED_AT: usize = 64;

/// What stays as it is.
pub(super) const KEPT: &str = "keep";

/// A format for a portion, and the bytes of its tensors then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The word of a plan.
    pub format: &'static str,
    /// What is written.
    pub bytes: u64,
}

/// A model that formats are tried on.
pub struct Trial<'a> {
    checkpoint: &'a Checkpoint,
    /// What is asked for. Rules of its plan stand whatever is chosen; the rest of it is what is tried.
    request: Request,
    tensors: Vec<Tensor<'a>>,
    portions: Vec<Portion>,
    /// What has to be stored alike.
    together: Together,
    ways: Vec<Way<'a>>,
    names: Option<Names>,
    /// Numbers that are written, whatever is chosen.
    weights: u64,
}

/// Hears of a matrix: its name, what it was, how much its inputs matter, and what it is after it was coded.
type Told<'t> = dyn FnMut(&str, &InMemory, Option<&[f32]>, Vec<f32>) + 't;

/// A tensor of the model.
struct Tensor<'a> {
    name: String,
    site: Site,
    /// Whether a rule that stands says what becomes of it.
    settled: bool,
    rows: Box<dyn Rows + 'a>,
}

/// A format, and what writing each portion in it takes; nothing of those that the layout cannot have so.
///
/// A job reads all that a folder says of a model, which takes a while: it is made once for all portions where the format suits all.
struct Way<'a> {
    format: &'static str,
    jobs: Vec<Option<Arc<QuantizeJob<'a>>>>,
}

impl<'a> Trial<'a> {
    /// Refuses what nothing can be tried on, before a text runs through the model: what no format of the layout suits.
    pub fn admits(checkpoint: &'a Checkpoint, request: &Request) -> Result<()> {
        let trial = Self::unsized_of(checkpoint, request.clone())?;
        let mut refusals = Vec::new();
        for format in trial.formats() {
            let (way, refusal) = trial.way(format)?;
            if way.jobs.iter().any(Option::is_some) {
                return Ok(());
            }
            refusals.extend(refusal);
        }
        refusals.into_iter().next().map_or(Ok(()), Err)
    }

    /// Of what `request` asks for. What rules of its plan speak of is no matter of choice.
    pub fn new(checkpoint: &'a Checkpoint, request: Request) -> Result<Self> {
        let mut trial = Self::unsized_of(checkpoint, request)?;
        let mut refusals = Vec::new();
        for format in trial.formats() {
            let (way, refusal) = trial.way(format)?;
            trial.ways.push(way);
            refusals.extend(refusal);
        }
        if trial.ways.iter().all(|way| way.jobs.iter().all(Option::is_none))
            && let Some(refusal) = refusals.into_iter().next()
        {
            return Err(refusal);
        }
        let kept = trial.kept()?;
        trial.ways.push(kept);
        // What is left out of the files, a tower or a copy of the embedding, takes no bits of them.
        let job = trial.ways.iter().flat_map(|way| &way.jobs).flatten().next();
        trial.weights = job.map_or(0, |job| job.items.iter().map(Item::weights).sum());
        Ok(trial)
    }

    /// The same without a format.
    fn unsized_of(checkpoint: &'a Checkpoint, request: Request) -> Result<Self> {
        let all = StoredTensor::all(checkpoint)?;
        let sites: Vec<Site> = all.iter().map(|stored| Site::of(&stored.name, stored.shape.len())).collect();
        if let Some(stack) = sites.iter().find(|site| site.is_stack()) {
            let what = format!(
                "`{}` holds experts in a stack, and formats are tried on matrices that lie apart",
                stack.module
            );
            return Err(Error::unsupported(what, "say what it becomes with `⟨plan⟩`"));
        }
        let together = request.layout.together(checkpoint, &request.layout.wanted_by(request.runtime)?);
        let asked = Asked::new(&request.plan, &checkpoint.config, sites.iter());
        // A head that is the embedding is written as that, even where the checkpoint has a copy of it.
        let settled = |site: &Site| asked.rule(site).is_some() || asked.tied && site.role == Role::Head;
        let settled: Vec<bool> = sites.iter().map(settled).collect();
        let open = sites.iter().zip(&settled).filter(|(_, settled)| !**settled);
        let portions = Portion::all(&open.map(|(site, _)| site.clone()).collect::<Vec<_>>(), together);
        if portions.is_empty() {
            return Err(Error::unsupported(
                "every weight of this model is kept, so there is no size to choose",
                "leave `⟨keep⟩` out, or keep less",
            ));
        }
        let tensors = all.into_iter().zip(sites).zip(settled).map(|((stored, site), settled)| {
            let name = stored.name.clone();
            Ok(Tensor { name, site, settled, rows: stored.into_rows()? })
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let names = request.imatrix.as_ref().map(|_| Names::new(&checkpoint.config, true)).transpose()?;
        Ok(Self { checkpoint, request, tensors, portions, together, ways: Vec::new(), names, weights: 0 })
    }

    /// The portions that have a format of their own.
    pub fn portions(&self) -> &[Portion] {
        &self.portions
    }

    /// How it will be written.
    pub fn layout(&self) -> Layout {
        self.request.layout
    }

    /// What errors are weighed by, where that is known.
    pub fn imatrix(&self) -> Option<&Imatrix> {
        self.request.imatrix.as_ref()
    }

    /// How many numbers the result has.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Whether all that is not kept has one format.
    pub(super) fn has_one_format(&self) -> bool {
        self.together.one_scheme
    }

    /// How many weights have a format to be chosen.
    pub fn open(&self) -> u64 {
        self.elements(|tensor| (0..self.portions.len()).any(|portion| self.opens(portion, tensor)))
    }

    /// How many of those the largest portion has.
    pub fn largest(&self) -> u64 {
        let of = |portion| self.elements(|tensor| self.opens(portion, tensor));
        (0..self.portions.len()).map(of).max().unwrap_or(0)
    }

    fn elements(&self, of: impl Fn(&Tensor<'a>) -> bool) -> u64 {
        let elements = |tensor: &Tensor<'_>| tensor.rows.matrix().rows as u64 * tensor.rows.matrix().columns as u64;
        self.tensors.iter().filter(|tensor| of(tensor)).map(elements).sum()
    }

    /// The formats that the layout stores weights in. Recipes are no formats, and what has activations in it is no matter of size.
    fn formats(&self) -> Vec<&'static str> {
        let narrow = self.request.layout.schemes().iter().filter(|scheme| {
            scheme.activations.is_none() && scheme.weights.nominal_bits() < 16 && scheme.name != "nvfp4a16"
        });
        narrow.map(|scheme| scheme.name).collect()
    }

    /// The plan of what was chosen, and of the rules that stand.
    pub(super) fn plan(&self, chosen: &[(&Portion, &str)]) -> Result<Plan> {
        let stands = self.request.plan.rules().iter();
        Ok(stands.fold(compose::plan(chosen)?, |plan, rule| plan.with(rule.selector.clone(), rule.precision.clone())))
    }

    fn job(&self, plan: Plan) -> Result<QuantizeJob<'a>> {
        prepare(self.checkpoint, &Request { plan, ..self.request.clone() })
    }

    /// The job of a plan that gives some portions a format and keeps the others, or why the layout refuses it. A portion that a
    /// plan does not name is not kept by that: what is said of most layers is said of all.
    fn possible(&self, format: &str, has: impl Fn(usize) -> bool) -> Result<Either<Arc<QuantizeJob<'a>>, Error>> {
        let all = self.portions.iter().enumerate();
        let chosen: Vec<_> = all.map(|(at, portion)| (portion, if has(at) { format } else { KEPT })).collect();
        match self.job(self.plan(&chosen)?) {
            Ok(job) => Ok(Ok(Arc::new(job))),
            Err(error) if error.is_input() => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// A format for every portion that can have it, and why the layers cannot where they cannot.
    fn way(&self, format: &'static str) -> Result<(Way<'a>, Option<Error>)> {
        let count = self.portions.len();
        if let Ok(job) = self.possible(format, |_| true)? {
            return Ok((Way { format, jobs: vec![Some(job); count] }, None));
        }
        // What the ends of a model cannot have its layers may: some types ask how much inputs matter.
        let layers = self.possible(format, |at| self.portions[at].layers.is_some())?;
        let kinds: Vec<_> = (0..count).map(|at| (&self.portions[at].roles, self.shapes(at))).collect();
        let mut jobs: Vec<Option<Arc<QuantizeJob<'a>>>> = Vec::with_capacity(count);
        for (at, portion) in self.portions.iter().enumerate() {
            let job = match &layers {
                Ok(job) if portion.layers.is_some() => Some(Arc::clone(job)),
                // What a format does not suit it suits in no layer, where the matrices are alike.
                _ => match kinds[..at].iter().position(|kind| *kind == kinds[at]) {
                    Some(known) => jobs[known].clone(),
                    None => self.possible(format, |other| kinds[other] == kinds[at])?.ok(),
                },
            };
            jobs.push(job);
        }
        Ok((Way { format, jobs }, layers.err()))
    }

    /// The shapes of a portion's matrices.
    fn shapes(&self, portion: usize) -> BTreeSet<(usize, usize)> {
        let shape = |tensor: &Tensor<'a>| (tensor.rows.matrix().rows, tensor.rows.matrix().columns);
        self.tensors.iter().filter(|tensor| self.opens(portion, tensor)).map(shape).collect()
    }

    /// Whether a portion's format is that of a tensor.
    fn opens(&self, portion: usize, tensor: &Tensor<'_>) -> bool {
        !tensor.settled && self.portions[portion].has(&tensor.site)
    }

    /// That portions stay as they are. A plan that keeps all is none, so something else is narrow: one portion, and for that
    /// another.
    fn kept(&self) -> Result<Way<'a>> {
        let mut jobs = vec![None; self.portions.len()];
        for at in 0..self.portions.len() {
            let Some(way) = self.ways.iter().find(|way| way.jobs[at].is_some()) else { continue };
            let Ok(job) = self.possible(way.format, |other| other == at)? else { continue };
            let done = jobs.iter().any(Option::is_some);
            jobs.iter_mut().enumerate().filter(|(other, known)| *other != at && known.is_none()).for_each(
                |(_, known)| {
                    *known = Some(Arc::clone(&job));
                },
            );
            if done {
                break;
            }
        }
        Ok(Way { format: KEPT, jobs })
    }

    /// Bytes of all files that a plan makes, and how many of them are the tensors'.
    pub(super) fn bytes(&self, plan: &Plan) -> Result<(u64, u64)> {
        let job = self.job(plan.clone())?;
        Ok((job.bytes(), job.items.iter().map(stored).sum()))
    }

    /// Every format that a portion can have.
    pub(super) fn sizes(&self, portion: usize) -> Vec<(Offer, &QuantizeJob<'a>)> {
        let own = |way: &'_ Way<'a>| way.jobs[portion].is_some();
        let sized = |way: &'_ Way<'a>| {
            let items = way.jobs[portion].iter().flat_map(|job| &job.items);
            let bytes = items.filter(|item| self.portions[portion].has(&item.site)).map(stored).sum();
            Offer { format: way.format, bytes }
        };
        let jobs = self.ways.iter().filter_map(|way| way.jobs[portion].as_deref());
        self.ways.iter().filter(|way| own(way)).map(sized).zip(jobs).collect()
    }

    /// The formats of a portion that can hold its weights, and how far they leave them: on some rows of each matrix, each error
    /// counted as much as its input matters.
    pub fn rated(&self, portion: usize) -> Result<Vec<(Offer, f64)>> {
        let possible = self.sizes(portion);
        let errors = self.errors(portion, &possible)?;
        let known = possible.into_iter().map(|(offer, _)| offer).zip(errors);
        Ok(known.filter(|(_, error)| error.is_finite()).collect())
    }

    /// The weighted squared errors of a portion in some formats, several at a time.
    fn errors(&self, portion: usize, formats: &[(Offer, &QuantizeJob<'a>)]) -> Result<Vec<f64>> {
        let tasks = formats.iter().collect();
        shared(self.request.threads, tasks, |(offer, job)| self.error(portion, offer.format, job)).into_iter().collect()
    }

    /// Infinite where a format cannot hold the weights.
    fn error(&self, portion: usize, format: &str, job: &QuantizeJob<'a>) -> Result<f64> {
        let mut sum = 0.0;
        let coded = self.each_coded(portion, format, job, (Some(LOOKED_AT), 1), &mut |_, old, importance, new| {
            let columns = old.matrix().columns;
            for (at, (old, new)) in old.numbers().iter().zip(&new).enumerate() {
                let counts = importance.map_or(1.0, |importance| f64::from(importance[at % columns]));
                sum += counts * f64::from(old - new).powi(2);
            }
        });
        match coded {
            Ok(()) => Ok(sum),
            Err(Error::Weight { .. }) => Ok(f64::INFINITY),
            Err(error) => Err(error),
        }
    }

    /// The weights of a portion as they are after they were stored in a format that it was offered in.
    pub fn replaced(&self, portion: usize, format: &str) -> Result<Replaced> {
        let mut replaced = Replaced::new();
        let way = self.ways.iter().find(|way| way.format == format);
        let Some(job) = way.and_then(|way| way.jobs[portion].as_deref()) else {
            let what = format!("{} stores `{}` in no {format}", self.layout(), self.portions[portion]);
            return Err(Error::unsupported(what, "try what is offered"));
        };
        let manner = (None, self.request.threads);
        self.each_coded(portion, format, job, manner, &mut |name, old, _, new| {
            replaced.insert(name.to_owned(), Arc::new(InMemory::new(old.matrix(), new)));
        })?;
        Ok(replaced)
    }

    /// Codes every matrix of a portion, or so many of its rows, by so many threads.
    fn each_coded(
        &self,
        portion: usize,
        format: &str,
        job: &QuantizeJob<'a>,
        (most, threads): (Option<usize>, usize),
        tell: &mut Told<'_>,
    ) -> Result<()> {
        let own = |tensor: &&Tensor<'_>| self.opens(portion, tensor);
        for Tensor { name, site, rows, .. } in self.tensors.iter().filter(own).filter(|_| format != KEPT) {
            // A layout may write several in one, in another order of rows: how it codes is the same for all of a role.
            let same = job.items.iter().filter(|item| (item.site.role, item.site.layer) == (site.role, site.layer));
            let mut codes = same.filter_map(|item| if let Work::Code(code) = &item.work { Some(code) } else { None });
            let Some(code) = codes.next() else { continue };
            let original = match most {
                Some(most) => some_rows(&**rows, most, code.unit())?,
                None => InMemory::of(&**rows)?,
            };
            let importance = match (&self.request.imatrix, &self.names) {
                (Some(imatrix), Some(names)) => {
                    imatrix::importance_of(imatrix, names, name, rows.matrix().columns, None)?
                }
                _ => None,
            };
            let columns = rows.matrix().columns;
            if let Some(at) = original.numbers().iter().position(|number| !number.is_finite()) {
                // Whatever is chosen, it would be refused as it is written.
                let row = most.map_or_else(|| format!("row {}", at / columns), |_| "a row".to_owned());
                let what = format!("`{name}` is {} in {row}, column {}", original.numbers()[at], at % columns);
                return Err(Error::unsupported(what, DAMAGED));
            }
            let numbers = roundtrip(&*code.coding, columns, original.numbers(), importance.as_deref(), threads)
                .map_err(|reason| Error::Weight { name: name.clone(), reason, hint: None })?;
            tell(name, &original, importance.as_deref(), numbers);
        }
        Ok(())
    }
}

/// About `most` rows of a matrix, spread over it, in runs of as many as are coded together.
fn some_rows(rows: &dyn Rows, most: usize, unit: usize) -> Result<InMemory> {
    let Matrix { rows: count, columns } = rows.matrix();
    let runs = count.div_ceil(unit.max(1));
    let every = runs.div_ceil(most.div_ceil(unit.max(1)).max(1)).max(1);
    let (mut numbers, mut spare) = (Vec::new(), Spare::default());
    for first in (0..runs).step_by(every).map(|run| run * unit) {
        let run = first..(first + unit).min(count);
        let from = numbers.len();
        numbers.resize(from + run.len() * columns, 0.0);
        rows.read(run, &mut spare, &mut numbers[from..])?;
    }
    Ok(InMemory::new(Matrix { rows: numbers.len() / columns.max(1), columns }, numbers))
}

/// Bytes that are written for a tensor.
fn stored(item: &Item<'_>) -> u64 {
    item.spans().iter().map(|(_, bytes)| bytes).sum()
}
