//! One portion of a model in one format: what it takes, and what its weights become.

use std::{path::PathBuf, sync::Arc};

use roofline_core::Plan;

use super::{Portion, compose};
use crate::{
    Checkpoint, Error, Imatrix, Layout, Method, Request, Result, Runtime,
    coding::{Block, Coding, Matrix},
    gguf::model::Names,
    imatrix,
    job::{Item, Work, part_bytes},
    observed::Replaced,
    quantize::prepare,
    rows::{InMemory, Rows as _},
    site::Site,
    stored::StoredTensor,
};

/// What stays as it is.
pub(super) const KEPT: &str = "keep";

/// A model that formats are tried on.
pub struct Trial<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// How it will be written.
    pub layout: Layout,
    /// How codes are chosen.
    pub method: Method,
    /// Who alone shall load it.
    pub runtime: Option<Runtime>,
    /// How much the inputs of its matrices matter, where that is known.
    pub imatrix: Option<Imatrix>,
    /// Where it will go.
    pub target: PathBuf,
}

impl Trial<'_> {
    /// The portions that have a format of their own.
    pub fn portions(&self) -> Result<Vec<Portion>> {
        let all = StoredTensor::all(self.checkpoint)?;
        let sites: Vec<Site> = all.iter().map(|stored| Site::of(&stored.name, stored.shape.len())).collect();
        if let Some(stack) = sites.iter().find(|site| site.is_stack()) {
            return Err(Error::unsupported(
                format!(
                    "`{}` holds experts in a stack, and formats are tried on matrices that lie apart",
                    stack.module
                ),
                "say what it becomes with `⟨plan⟩`",
            ));
        }
        Ok(Portion::all(&sites))
    }

    /// The formats that the layout stores weights in, and that they stay as they are. Recipes are no formats, and what has activations
    /// in it is no matter of size.
    pub fn formats(&self) -> Vec<&'static str> {
        let narrow = self.layout.schemes().iter().filter(|scheme| {
            scheme.activations.is_none() && scheme.weights.nominal_bits() < 16 && scheme.name != "nvfp4a16"
        });
        narrow.map(|scheme| scheme.name).chain([KEPT]).collect()
    }

    fn request(&self, plan: Plan) -> Request {
        Request {
            method: self.method,
            runtime: self.runtime,
            imatrix: self.imatrix.clone(),
            ..Request::new(plan, self.layout, self.target.clone())
        }
    }

    /// Bytes of all files that a plan makes, and how many of them are the tensors'.
    pub fn bytes(&self, plan: &Plan) -> Result<(u64, u64)> {
        let job = prepare(self.checkpoint, &self.request(plan.clone()))?;
        Ok((job.bytes(), job.items.iter().map(stored).sum()))
    }

    /// How many weights the model has.
    pub fn weights(&self) -> Result<u64> {
        Ok(StoredTensor::all(self.checkpoint)?.iter().map(StoredTensor::elements).sum())
    }

    /// Bytes of a portion's tensors in a format; nothing where the layout cannot have it so.
    pub fn portion_bytes(&self, portion: &Portion, format: &str) -> Result<Option<u64>> {
        // A plan that keeps all is none: something else is narrow instead.
        let others = self.portions()?.into_iter().find(|other| other != portion);
        let plan = match (format, &others) {
            (KEPT, Some(other)) => self.narrowest(other)?,
            _ => compose::plan(&[(portion, format)])?,
        };
        match prepare(self.checkpoint, &self.request(plan)) {
            Ok(job) => Ok(Some(job.items.iter().filter(|item| portion.has(&item.site)).map(stored).sum())),
            Err(error) if error.is_input() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A plan that changes nothing but this portion.
    fn narrowest(&self, portion: &Portion) -> Result<Plan> {
        for format in self.formats() {
            let plan = compose::plan(&[(portion, format)])?;
            if prepare(self.checkpoint, &self.request(plan.clone())).is_ok() {
                return Ok(plan);
            }
        }
        Err(Error::unsupported(format!("{} stores `{portion}` in nothing", self.layout), "choose another layout"))
    }

    /// The formats of a portion that are worth a try, each with its bytes: none takes as much as another and is further from the
    /// weights, each error counted as much as its input matters.
    pub fn offers(&self, portion: &Portion) -> Result<Vec<(&'static str, u64)>> {
        let mut known: Vec<(&'static str, u64, f64)> = Vec::new();
        for format in self.formats() {
            if let Some(bytes) = self.portion_bytes(portion, format)? {
                known.push((format, bytes, self.error(portion, format)?));
            }
        }
        let beaten = |one: &(&str, u64, f64)| {
            known.iter().any(|other| {
                let no_worse = other.1 <= one.1 && other.2 <= one.2;
                no_worse && (other.1 < one.1 || other.2 < one.2 || other.0 < one.0)
            })
        };
        let mut offers: Vec<(&str, u64)> = known.iter().filter(|one| !beaten(one)).map(|one| (one.0, one.1)).collect();
        offers.sort_by_key(|(_, bytes)| *bytes);
        Ok(offers)
    }

    /// The weighted squared error of a portion in a format.
    fn error(&self, portion: &Portion, format: &str) -> Result<f64> {
        let replaced = self.replaced(portion, format)?;
        let names = self.imatrix.as_ref().map(|_| Names::new(&self.checkpoint.config, true)).transpose()?;
        let mut sum = 0.0;
        for stored in StoredTensor::all(self.checkpoint)? {
            let name = stored.name.clone();
            let Some(new) = replaced.get(&name) else { continue };
            let old = InMemory::of(&*stored.into_rows()?)?;
            let importance = self.importance(names.as_ref(), &name, old.matrix())?;
            let columns = old.matrix().columns;
            for (at, (old, new)) in old.numbers().iter().zip(new.numbers()).enumerate() {
                let counts = importance.as_ref().map_or(1.0, |importance| f64::from(importance[at % columns]));
                sum += counts * f64::from(old - new).powi(2);
            }
        }
        Ok(sum)
    }

    fn importance(&self, names: Option<&Names>, name: &str, matrix: Matrix) -> Result<Option<Vec<f32>>> {
        match (&self.imatrix, names) {
            (Some(imatrix), Some(names)) => imatrix::importance_of(imatrix, names, name, matrix),
            _ => Ok(None),
        }
    }

    /// The weights of a portion as they are after they were stored in a format.
    pub fn replaced(&self, portion: &Portion, format: &str) -> Result<Replaced> {
        let mut replaced = Replaced::new();
        if format == KEPT {
            return Ok(replaced);
        }
        let job = prepare(self.checkpoint, &self.request(compose::plan(&[(portion, format)])?))?;
        let names = self.imatrix.as_ref().map(|_| Names::new(&self.checkpoint.config, true)).transpose()?;
        for stored in StoredTensor::all(self.checkpoint)? {
            let site = Site::of(&stored.name, stored.shape.len());
            // A layout may write several in one, in another order of rows: how it codes is the same for all of a role.
            let item = job.items.iter().find(|item| (item.site.role, item.site.layer) == (site.role, site.layer));
            let Some(Item { work: Work::Code(code), .. }) = item.filter(|_| portion.has(&site)) else { continue };
            let name = stored.name.clone();
            let original = InMemory::of(&*stored.into_rows()?)?;
            let importance = self.importance(names.as_ref(), &name, original.matrix())?;
            let numbers = coded(&*code.coding, original.matrix(), original.numbers(), importance.as_deref())
                .map_err(|reason| Error::Weight { name: name.clone(), reason, hint: None })?;
            replaced.insert(name, Arc::new(InMemory::new(original.matrix(), numbers)));
        }
        Ok(replaced)
    }
}

/// Bytes that are written for a tensor.
fn stored(item: &Item<'_>) -> u64 {
    item.spans().iter().map(|(_, bytes)| bytes).sum()
}

/// What a matrix is after it was coded.
fn coded(coding: &dyn Coding, matrix: Matrix, numbers: &[f32], importance: Option<&[f32]>) -> Result<Vec<f32>, String> {
    let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let peak = if coding.needs_peak() { coding.conclude(matrix, &[coding.gather(numbers, largest)]) } else { 0.0 };
    let mut parts: Vec<Vec<u8>> =
        coding.parts(matrix)?.iter().map(|part| vec![0; part_bytes(part, matrix.rows)]).collect();
    let mut out: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
    let mut decoded = vec![0.0; numbers.len()];
    let block = Block { values: numbers, columns: matrix.columns, peak, importance, chosen: None };
    coding.encode(block, &mut out, &mut decoded);
    Ok(decoded)
}
