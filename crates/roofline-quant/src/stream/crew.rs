//! The threads at work on a wave: its tasks, and what becomes of each.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{Files, Progress};
use crate::{
    Error, ErrorStats, Result,
    coding::{Block, Part, Placing},
    data::Chosen,
    job::{Code, DAMAGED, Place, QuantizeJob, Work, part_bytes},
    number,
    rows::Spare,
};

/// Weights of a block of rows: with what they decode to and what they become, it stays in a core's second-level cache.
const BLOCK: usize = 128 << 10;
/// Bytes of a part that is stored transposed and held until all of it is there. Larger ones are written line by line, by
/// blocks of more weights.
const ROOM: usize = 24 << 20;
const LINES: usize = 1 << 20;
/// Bytes that all threads together may hold in blocks of rows: some codings need many long rows at once.
const HELD: usize = 512 << 20;
/// Bytes held for a weight of a block: as it is stored, as a number twice, decoded, and coded.
const HELD_PER_WEIGHT: usize = 18;
/// Bytes of a block that is copied.
const COPY: u64 = 1 << 20;

/// A piece of work that one thread does.
#[derive(Clone)]
pub(crate) enum Task {
    /// Bytes of a tensor that is copied.
    Bytes(usize, Range<u64>),
    /// Rows of a matrix that is coded.
    Rows(usize, Range<usize>),
}

/// What a thread keeps between tasks.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) spare: Spare,
    pub(crate) values: Vec<f32>,
    pub(crate) decoded: Vec<f32>,
    parts: Vec<Vec<u8>>,
}

/// The threads at work on a wave.
pub(crate) struct Crew<'a> {
    pub(crate) job: &'a QuantizeJob<'a>,
    pub(crate) files: &'a Files,
    pub(crate) threads: usize,
    pub(crate) watch: &'a dyn Progress,
}

impl Crew<'_> {
    /// Calls `body` for every task, from all threads; the first error ends it, and so does whoever watches. Results are in
    /// the order of the tasks.
    pub(crate) fn each<T: Send>(
        &self,
        tasks: &[Task],
        body: impl Fn(&Task, &mut Buffers) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new((0..tasks.len()).map(|_| None).collect::<Vec<Option<T>>>());
        let failure = Mutex::new(None);
        let work = || {
            let mut buffers = Buffers::default();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(at) else { return };
                let done = if self.watch.cancelled() { Err(Error::Cancelled) } else { body(task, &mut buffers) };
                match done {
                    Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result),
                    Err(error) => {
                        // Nobody needs what the others would still do.
                        next.store(tasks.len(), Ordering::Relaxed);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            }
        };
        let (threads, _) = self.hands(tasks);
        thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()),
        }
    }

    /// How many threads do these tasks, and how many bytes each of them holds at most.
    pub(super) fn hands(&self, tasks: &[Task]) -> (usize, usize) {
        let largest = tasks.iter().map(|task| self.held(task)).max().unwrap_or(0);
        (self.threads.min(tasks.len()).min((HELD / largest.max(1)).max(1)), largest)
    }

    /// Bytes a thread holds while it does a task.
    fn held(&self, task: &Task) -> usize {
        match task {
            Task::Bytes(..) => COPY as usize,
            Task::Rows(item, rows) => {
                self.code(*item).map_or(0, |code| rows.len() * code.matrix().columns * HELD_PER_WEIGHT)
            }
        }
    }

    pub(crate) fn code(&self, item: usize) -> Option<&Code<'_>> {
        match &self.job.items[item].work {
            Work::Code(code) => Some(code),
            _ => None,
        }
    }

    /// The largest magnitude of each fused family that needs it and has a member in the wave.
    pub(super) fn find_peaks(&self, wave: &[usize], peaks: &mut [Option<f32>]) -> Result<()> {
        let needs = |item: &&usize| self.code(**item).is_some_and(|code| code.coding.needs_peak());
        let mut tasks = Vec::new();
        let mut families = Vec::new();
        let mut seen = HashSet::new();
        for item in wave.iter().filter(needs) {
            let Some(code) = self.code(*item) else { continue };
            if peaks[*item].is_none() && seen.insert(code.fused.first()) {
                let from = tasks.len();
                code.fused.iter().for_each(|member| self.rows_of(*member, &mut tasks));
                families.push((&code.fused, from..tasks.len()));
            }
        }
        let found = self.each(&tasks, |task, buffers| {
            let Task::Rows(item, rows) = task else { return Ok(0.0) };
            let peak = self.read(*item, rows.clone(), buffers)?;
            Ok(self.code(*item).map_or(0.0, |code| code.coding.gather(&buffers.values, peak)))
        })?;
        for (family, own) in families {
            for member in family {
                peaks[*member] =
                    self.code(*member).map(|code| code.coding.conclude(code.matrix(), &found[own.clone()]));
            }
        }
        Ok(())
    }

    pub(crate) fn rows_of(&self, item: usize, tasks: &mut Vec<Task>) {
        let Some(code) = self.code(item) else { return };
        let matrix = code.matrix();
        let unit = code.unit();
        let line_by_line = |(part, _): &(Part, Place)| {
            matches!(part.placing, Placing::Columns { .. }) && part_bytes(part, matrix.rows) > ROOM
        };
        let block = if code.parts.iter().any(line_by_line) { LINES } else { BLOCK };
        let step = (block / matrix.columns.max(1) / unit).max(1) * unit;
        let alike = code.weighed_alike();
        for from in (0..matrix.rows).step_by(alike) {
            let end = (from + alike).min(matrix.rows);
            let starts = (from..end).step_by(step);
            tasks.extend(starts.map(|start| Task::Rows(item, start..(start + step).min(end))));
        }
    }

    /// Reads rows into `buffers.values`, refuses what is no number, and returns the largest magnitude.
    pub(crate) fn read(&self, item: usize, rows: Range<usize>, buffers: &mut Buffers) -> Result<f32> {
        let Some(code) = self.code(item) else { return Ok(0.0) };
        let columns = code.matrix().columns;
        buffers.values.resize(rows.len() * columns, 0.0);
        code.rows.read(rows.clone(), &mut buffers.spare, &mut buffers.values)?;
        let peak = number::peak(&buffers.values);
        if peak.is_finite() {
            return Ok(peak);
        }
        let at = buffers.values.iter().position(|value| !value.is_finite()).unwrap_or(0);
        Err(self.not_finite(item, &buffers.values[at].to_string(), rows.start * columns + at, columns))
    }

    /// That the number `at` of an item is none.
    fn not_finite(&self, item: usize, what: &str, at: usize, columns: usize) -> Error {
        let (row, column) = (at / columns.max(1), at % columns.max(1));
        Error::Weight {
            name: self.job.items[item].name.clone(),
            reason: format!("is {what} in row {row}, column {column}"),
            hint: Some(DAMAGED.to_owned()),
        }
    }

    /// The bytes of an item that is copied, one block after the other.
    pub(crate) fn bytes_of(&self, item: usize, tasks: &mut Vec<Task>) {
        let Work::Copy { entry, .. } = &self.job.items[item].work else { return };
        let starts = (0..entry.bytes()).step_by(COPY as usize);
        tasks.extend(starts.map(|at| Task::Bytes(item, at..(at + COPY).min(entry.bytes()))));
    }

    /// Copies and codes the wave's items; returns them with their errors.
    pub(super) fn work(&self, wave: &[usize], peaks: &[Option<f32>]) -> Result<Vec<(usize, Option<ErrorStats>)>> {
        let mut tasks = Vec::new();
        let mut own = Vec::new();
        for item in wave {
            let from = tasks.len();
            match &self.job.items[*item].work {
                Work::Copy { .. } => self.bytes_of(*item, &mut tasks),
                Work::Literal { bytes, to } => self.files.write(*to, 0, bytes)?,
                Work::Code(_) => self.rows_of(*item, &mut tasks),
            }
            own.push((*item, from..tasks.len()));
        }
        let transposed = self.transposed(wave);
        let stats = self.each(&tasks, |task, buffers| match task {
            Task::Bytes(item, range) => self.copy(*item, range.clone(), buffers).map(|()| None),
            Task::Rows(item, rows) => {
                let peak = peaks[*item].unwrap_or(0.0);
                self.code_rows(*item, rows.clone(), peak, &transposed, buffers).map(Some)
            }
        })?;
        for (item, part, bytes) in transposed {
            let bytes = bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(code) = self.code(item) {
                self.files.write(code.parts[part].1, 0, &bytes)?;
            }
        }
        let close = |(item, own): (usize, Range<usize>)| {
            self.close(item, peaks[item].unwrap_or(0.0)).map(|()| (item, stats[own].iter().copied().sum()))
        };
        own.into_iter().map(close).collect()
    }

    /// Room for the parts of the wave's items that are stored transposed, unless they are large: they are written whole.
    pub(crate) fn transposed(&self, wave: &[usize]) -> Vec<(usize, usize, Mutex<Vec<u8>>)> {
        let mut all = Vec::new();
        for item in wave {
            for (at, (part, _)) in self.code(*item).into_iter().flat_map(|code| code.parts.iter().enumerate()) {
                if let (Placing::Columns { .. }, Some(code)) = (part.placing, self.code(*item)) {
                    let bytes = part_bytes(part, code.matrix().rows);
                    if bytes <= ROOM {
                        all.push((*item, at, Mutex::new(vec![0; bytes])));
                    }
                }
            }
        }
        all
    }

    /// Copies bytes of a tensor, and refuses what is no number among them, as the guide says of every weight.
    pub(crate) fn copy(&self, item: usize, range: Range<u64>, buffers: &mut Buffers) -> Result<()> {
        let Work::Copy { shard, entry, to } = &self.job.items[item].work else { return Ok(()) };
        let bytes = &mut buffers.spare.bytes;
        bytes.resize((range.end - range.start) as usize, 0);
        shard.read(entry, range.start, bytes)?;
        if let Some((at, what)) = number::first_not_finite(entry.dtype, bytes) {
            let before = range.start as usize / entry.dtype.bytes();
            let columns = entry.shape.last().copied().unwrap_or(1);
            return Err(self.not_finite(item, what, before + at, columns));
        }
        self.files.write(*to, range.start, bytes)?;
        self.watch.advance(bytes.len() as u64);
        Ok(())
    }

    pub(crate) fn code_rows(
        &self,
        item: usize,
        rows: Range<usize>,
        peak: f32,
        transposed: &[(usize, usize, Mutex<Vec<u8>>)],
        buffers: &mut Buffers,
    ) -> Result<ErrorStats> {
        let Some(code) = self.code(item) else { return Ok(ErrorStats::default()) };
        self.read(item, rows.clone(), buffers)?;
        let Buffers { values, decoded, parts, .. } = buffers;
        decoded.resize(values.len(), 0.0);
        parts.resize_with(code.parts.len(), Vec::new);
        for (bytes, (part, _)) in parts.iter_mut().zip(&code.parts) {
            let once = matches!(part.placing, Placing::Once { .. });
            bytes.resize(if once { 0 } else { part_bytes(part, rows.len()) }, 0);
        }
        let mut out: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        let matrix = code.matrix();
        let kept = code.chosen.as_ref().map(|chosen| chosen.read(rows.clone())).transpose()?;
        let (chosen, weighed) = kept.unwrap_or_default();
        let taken = chosen.as_ref().map(Chosen::rows);
        let importance = weighed.as_deref().or_else(|| code.importance_of(rows.start));
        let block = Block { values, columns: matrix.columns, peak, importance, chosen: taken };
        let clipped = code.coding.encode(block, &mut out, decoded);
        for (at, ((part, to), bytes)) in code.parts.iter().zip(&*parts).enumerate() {
            match part.placing {
                Placing::Rows { rows: unit, bytes: size } => {
                    self.files.write(*to, (rows.start / unit * size) as u64, bytes)?;
                }
                Placing::Flat { columns, run, bytes: size } => {
                    self.files.write(*to, (rows.start * columns / run * size) as u64, bytes)?;
                }
                Placing::Columns { lines, rows: unit, bytes: size } => {
                    let room = transposed.iter().find(|(of, part, _)| (*of, *part) == (item, at));
                    let mut room = room.map(|(.., room)| room.lock().unwrap_or_else(PoisonError::into_inner));
                    let (run, all) = (rows.len().div_ceil(unit) * size, matrix.rows.div_ceil(unit));
                    for line in 0..lines {
                        let from = (line * all + rows.start / unit) * size;
                        let bytes = &bytes[line * run..(line + 1) * run];
                        match &mut room {
                            Some(room) => room[from..from + run].copy_from_slice(bytes),
                            None => self.files.write(*to, from as u64, bytes)?,
                        }
                    }
                }
                Placing::Once { .. } => {}
            }
        }
        let stored = code.rows.stored();
        self.watch.advance(stored * rows.len() as u64 / matrix.rows.max(1) as u64);
        let stats = ErrorStats::of(values, decoded, clipped);
        // What a method chose may clip what matters little.
        let out_of_reach = chosen.is_none() && stats.is_out_of_reach();
        if !stats.noise.is_finite() || out_of_reach || clipped > 0 && !code.lossy {
            return Err(Error::Weight {
                name: self.job.items[item].name.clone(),
                reason: format!("reaches {}, which {} cannot hold", number::peak(values), code.scheme),
                hint: Some("keep it with `⟨keep⟩`, or choose a scheme with a wider range".to_owned()),
            });
        }
        Ok(stats)
    }

    /// Writes what an item has once.
    fn close(&self, item: usize, peak: f32) -> Result<()> {
        let Some(code) = self.code(item) else { return Ok(()) };
        let once = code.parts.iter().filter(|(part, _)| matches!(part.placing, Placing::Once { .. }));
        for ((_, to), bytes) in once.zip(code.coding.constants(code.matrix(), peak)) {
            self.files.write(*to, 0, &bytes)?;
        }
        Ok(())
    }
}
