//! The matrices of a layer that codes are chosen for: tensors of their own, or one expert each of a tensor that holds them all.
//!
//! Whoever observes a model speaks of the source's modules and experts. What is written may have their rows in another order, or
//! as parts of another tensor: each [`Piece`] knows both.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    QuantizeJob,
    job::{Code, Item, Work},
    origin::Origin,
    rows::{Band, Rows},
};

/// A matrix that codes are chosen for.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    item: usize,
    pub(super) origin: Origin,
    /// What is made of it is kept under this name.
    pub(super) key: String,
}

impl Piece {
    /// The item that it is a part of.
    pub(super) fn item<'j>(&self, job: &'j QuantizeJob<'j>) -> &'j Item<'j> {
        &job.items[self.item]
    }

    /// How that is coded, if it is.
    pub(super) fn code<'j>(&self, job: &'j QuantizeJob<'_>) -> Option<&'j Code<'j>> {
        match &job.items.get(self.item)?.work {
            Work::Code(code) => Some(code),
            _ => None,
        }
    }

    /// Its rows, in the order in which they are written.
    pub(super) fn rows<'j>(&self, code: &'j Code<'_>) -> Band<&'j (dyn Rows + 'j)> {
        Band::new(&*code.rows, self.origin.rows.start, self.origin.rows.len())
    }

    /// What it is called in words.
    pub(super) fn name(&self) -> String {
        match self.origin.expert {
            Some(expert) => format!("expert {expert} of `{}`", self.origin.module()),
            None => format!("`{}`", self.origin.module()),
        }
    }
}

/// Under which names the matrices of an item are kept: its own where it is one, as most are.
pub(super) fn keys(item: &Item<'_>) -> Vec<String> {
    let origins = item.origins();
    match &origins[..] {
        [_] => vec![item.name.clone()],
        // Gates and ways up of one stack are two items of the same name.
        _ => (0..origins.len()).map(|at| format!("{} {} {at}", item.name, item.site.module)).collect(),
    }
}

/// Products of a layer.
pub(super) struct Products {
    pieces: Vec<Piece>,
    by_module: HashMap<(String, Option<usize>), Vec<usize>>,
}

impl Products {
    /// Those that are quantized.
    pub(super) fn of_layer(job: &QuantizeJob<'_>, layer: usize) -> Self {
        Self::among(job, layer, |work| matches!(work, Work::Code(code) if code.lossy))
    }

    /// The same with those that keep their numbers: all that the source's tensors hold.
    pub(super) fn with_kept(job: &QuantizeJob<'_>, layer: usize) -> Self {
        Self::among(job, layer, |_| true)
    }

    fn among(job: &QuantizeJob<'_>, layer: usize, taken: impl Fn(&Work<'_>) -> bool) -> Self {
        let (mut pieces, mut by_module) = (Vec::new(), HashMap::<_, Vec<usize>>::new());
        for (at, item) in job.items.iter().enumerate() {
            if item.site.layer != Some(layer as u64) || !taken(&item.work) {
                continue;
            }
            for (origin, key) in item.origins().into_iter().zip(keys(item)) {
                by_module.entry((origin.module().to_owned(), origin.expert)).or_default().push(pieces.len());
                pieces.push(Piece { item: at, origin, key });
            }
        }
        Self { pieces, by_module }
    }

    /// What a module holds, or one expert of it. Where experts lie apart, each has a module of its own.
    pub(super) fn of(&self, module: &str, expert: Option<usize>) -> impl Iterator<Item = &Piece> {
        let named = |expert| self.by_module.get(&(module.to_owned(), expert));
        let found = named(expert).or_else(|| named(None)).map_or(&[][..], Vec::as_slice);
        found.iter().map(|at| &self.pieces[*at])
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn has(&self, module: &str, expert: Option<usize>) -> bool {
        self.of(module, expert).next().is_some()
    }

    /// The matrices of each tensor of the source.
    pub(super) fn tensors(&self) -> BTreeMap<&str, Vec<&Piece>> {
        let mut tensors: BTreeMap<&str, Vec<&Piece>> = BTreeMap::new();
        for piece in &self.pieces {
            tensors.entry(&piece.origin.tensor).or_default().push(piece);
        }
        tensors
    }

    /// The names of those that are not among modules, or experts of them, that were seen.
    pub(super) fn unseen(&self, seen: &HashSet<(&str, Option<usize>)>) -> Vec<String> {
        // An expert with a module of its own is seen with its number.
        let modules: HashSet<&str> = seen.iter().map(|(module, _)| *module).collect();
        let reached = |piece: &&Piece| match piece.origin.expert {
            Some(_) => seen.contains(&(piece.origin.module(), piece.origin.expert)),
            None => modules.contains(piece.origin.module()),
        };
        let mut unseen: Vec<String> = self.pieces.iter().filter(|piece| !reached(piece)).map(Piece::name).collect();
        unseen.sort_unstable();
        unseen.dedup();
        unseen
    }
}
