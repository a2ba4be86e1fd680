//! A run on disk: one JSON value per line, the header first, then each measurement as soon as it is finished.
//!
//! A line is written whole and synced before the next measurement starts, so that whatever ends the program loses none.
//! A last line without its end is what a crash leaves; it is left out and cut off when the run is resumed.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use roofline_core::{
    Op,
    measurement::{Measurement, Phase},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Room that must be there before anything is measured: more than the largest run so far.
const RESERVE: usize = 8 << 20;
/// A line longer than this is no measurement of ours, and not the room that a crash left reserved either.
const LONGEST: u64 = 2 * RESERVE as u64;
/// The version of the layout.
const VERSION: u32 = 1;

/// What a run starts with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RunHeader")]
pub struct Header {
    /// The layout's version.
    pub roofline_run: u32,
    /// When it was started: RFC 3339, UTC.
    pub started: String,
    /// The device's key.
    pub device: String,
    /// The device as a file of the registry would describe it, so that another machine can analyse the run.
    pub device_toml: Option<String>,
    /// Who ran it.
    pub backend: String,
    /// The machine and the program.
    pub environment: serde_json::Value,
    /// The words after the program's name, where somebody typed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
}

impl Header {
    /// Of a run that starts now.
    pub fn new(
        started: String,
        device: String,
        device_toml: Option<String>,
        backend: &str,
        environment: serde_json::Value,
    ) -> Self {
        let backend = backend.to_owned();
        Self { roofline_run: VERSION, started, device, device_toml, backend, environment, command: None }
    }
}

/// A subject that was not measured, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// Where the kernel belongs.
    pub site: String,
    /// The pass that it is a part of, where it is one of a model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The precision's name.
    pub precision: String,
    /// What was to be computed.
    pub op: Op,
    /// Why not.
    pub reason: String,
    /// What to do about it, where it is this machine's fault rather than the subject's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One line of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RunLine")]
pub enum Line {
    /// The first line.
    Header(Header),
    /// A finished measurement. One of a kernel that has one already takes its place: it was measured again.
    Measured(Box<Measurement>),
    /// Something that could not be measured.
    Skipped(Skipped),
    /// How many kernels the run is to hold, measured and skipped, when it is done.
    Planned(u64),
}

/// A run that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// How it started.
    pub header: Header,
    /// Finished measurements.
    pub measurements: Vec<Measurement>,
    /// What could not be measured.
    pub skipped: Vec<Skipped>,
    /// Kernels that were planned, where that is written.
    pub planned: Option<u64>,
    /// Whether the last line was cut short.
    pub truncated: bool,
    /// Bytes of whole lines.
    whole: u64,
}

impl Run {
    /// Reads a run, treating it as anybody's file.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::File { path: path.to_owned(), error };
        let refuse = |reason: String| Error::NotARun { path: path.to_owned(), reason };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(refuse("not a regular file".to_owned()));
        }
        Self::parse(BufReader::new(File::open(path).map_err(failed)?), path)
    }

    /// Kernels that were planned and are not there: the run was interrupted.
    pub fn unfinished(&self) -> u64 {
        let there = (self.measurements.len() + self.skipped.len()) as u64;
        self.planned.map_or(0, |planned| planned.saturating_sub(there))
    }

    /// Reads a run from anywhere; `path` is what errors name.
    pub fn parse(mut reader: impl BufRead, path: &Path) -> Result<Self> {
        let failed = |error| Error::File { path: path.to_owned(), error };
        let refuse = |reason: String| Error::NotARun { path: path.to_owned(), reason };
        let (mut header, mut measurements, mut skipped) = (None, Vec::new(), Vec::new());
        let mut places = HashMap::new();
        let (mut whole, mut number, mut truncated, mut planned) = (0, 0, false, None);
        loop {
            let mut line = Vec::new();
            io::Read::take(&mut reader, LONGEST).read_until(b'\n', &mut line).map_err(failed)?;
            number += 1;
            if line.is_empty() {
                break;
            }
            if line.last() != Some(&b'\n') {
                if line.len() as u64 == LONGEST {
                    return Err(refuse(format!("line {number} is longer than any measurement")));
                }
                truncated = true;
                break;
            }
            whole += line.len() as u64;
            let parsed = serde_json::from_slice(&line).map_err(|error| refuse(format!("line {number}: {error}")))?;
            match parsed {
                Line::Header(first) if header.is_none() && first.roofline_run == VERSION => header = Some(first),
                Line::Header(first) if header.is_none() => {
                    return Err(refuse(format!("its layout is version {}, not {VERSION}", first.roofline_run)));
                }
                Line::Header(_) => return Err(refuse(format!("line {number}: a second header"))),
                _ if header.is_none() => return Err(refuse("it does not start with a header".to_owned())),
                Line::Measured(measured) => {
                    let kernel = format!("{:?} {:?} {}", measured.subject(), measured.residency, measured.backend);
                    match places.entry(kernel) {
                        Entry::Occupied(place) => measurements[*place.get()] = *measured,
                        Entry::Vacant(place) => {
                            place.insert(measurements.len());
                            measurements.push(*measured);
                        }
                    }
                }
                Line::Skipped(reason) => skipped.push(reason),
                Line::Planned(count) => planned = Some(count),
            }
        }
        let header = header.ok_or_else(|| refuse("it has no header".to_owned()))?;
        Ok(Self { header, measurements, skipped, planned, truncated, whole })
    }
}

/// A run being written.
pub struct RunFile {
    path: PathBuf,
    file: File,
}

impl RunFile {
    /// A new run at `path`, which must not exist. What would fail later fails here: the folder is made, the header is
    /// written, and the disk is asked for room.
    pub fn create(path: &Path, header: &Header) -> Result<Self> {
        let failed = |error| Error::File { path: path.to_owned(), error };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(failed)?;
        let mut run = Self { path: path.to_owned(), file };
        run.lock()?;
        run.reserve().and_then(|()| run.write(&Line::Header(header.clone()))).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })?;
        Ok(run)
    }

    /// Goes on with a run: the file, and what is in it. A line that was cut short is cut off.
    pub fn resume(path: &Path) -> Result<(Self, Run)> {
        let failed = |error| Error::File { path: path.to_owned(), error };
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        let mut resumed = Self { path: path.to_owned(), file };
        resumed.lock()?;
        let run = Run::read(path)?;
        resumed.file.set_len(run.whole).map_err(failed)?;
        resumed.reserve()?;
        Ok((resumed, run))
    }

    /// One writer at a time; the lock goes with the file.
    fn lock(&self) -> Result<()> {
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(Error::NotARun { path: self.path.clone(), reason: "another process is writing to it".to_owned() })
            }
            // A file system without locks locks nobody out.
            _ => Ok(()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a line for good.
    pub fn write(&mut self, line: &Line) -> Result<()> {
        let failed = |error| Error::File { path: self.path.clone(), error };
        let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).and_then(|()| self.file.sync_data()).map_err(failed)
    }

    /// Fails now where the disk is full: writes as much as a run may need, and takes it back.
    fn reserve(&mut self) -> Result<()> {
        let failed = |error| Error::File { path: self.path.clone(), error };
        let end = self.file.seek(SeekFrom::End(0)).map_err(failed)?;
        let room = self.file.write_all(&vec![b' '; RESERVE]).and_then(|()| self.file.sync_data());
        room.and(self.file.set_len(end)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::{
        Graph, Registry,
        measurement::{Residency, Subject},
        precision::PrecisionSpec,
    };

    use super::*;
    use crate::{Null, Protocol, measure};

    fn subject(n: u64) -> Subject {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let formats = "w4a16".parse::<PrecisionSpec>().unwrap().on(&h200).unwrap();
        let node = Graph::gemv(n, 4096).unwrap().nodes[0];
        Subject::new(&node, "w4a16", formats)
    }

    fn measured(n: u64) -> Measurement {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        measure(&mut Null::new(h200), &subject(n), &Protocol::default()).unwrap()
    }

    fn header() -> Header {
        Header::new("2026-01-01T00:00:00Z".into(), "h200_sxm".into(), None, "null", serde_json::json!({"cores": 2}))
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("roofline-run-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = folder("written");
        let path = folder.join("new/run.jsonl");
        let mut file = RunFile::create(&path, &header()).unwrap();
        file.write(&Line::Planned(3)).unwrap();
        file.write(&Line::Measured(Box::new(measured(1024)))).unwrap();
        // On disk already, whatever happens next.
        let run = Run::read(&path).unwrap();
        assert_eq!((run.header.clone(), run.measurements.len(), run.truncated), (header(), 1, false));
        assert_eq!((run.planned, run.unfinished()), (Some(3), 2));
        let again = &run.measurements[0];
        assert!((again.time() / measured(1024).time() - 1.0).abs() < 1e-3, "samples are kept to the nanosecond");
        assert_eq!((&again.op, &again.kernel), (&measured(1024).op, &measured(1024).kernel));
        assert!(again.repeats(&subject(1024), Residency::Cold, "null"));
        assert!(!again.repeats(&subject(2048), Residency::Cold, "null"));
        assert!(!again.repeats(&subject(1024), Residency::Warm, "null"));
        assert!(RunFile::create(&path, &header()).is_err(), "never overwritten");
        assert!(RunFile::resume(&path).err().unwrap().to_string().contains("another process"), "one writer at a time");
        drop(file);
        assert!(RunFile::resume(&path).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_measured_again_takes_its_place() {
        let folder = folder("again");
        let path = folder.join("run.jsonl");
        let mut file = RunFile::create(&path, &header()).unwrap();
        let first = measured(1024);
        let samples = vec![first.time() * 0.5; 11];
        let Measurement { residency, backend, kernel, check, .. } = first.clone();
        let second = Measurement::new(first.subject(), residency, backend, kernel, check, samples).unwrap();
        for measured in [first, measured(2048), second.clone()] {
            file.write(&Line::Measured(Box::new(measured))).unwrap();
        }
        let run = Run::read(&path).unwrap();
        let [again, other] = &run.measurements[..] else { panic!("{}", run.measurements.len()) };
        assert!((again.time() / second.time() - 1.0).abs() < 1e-3);
        assert_eq!(other.op, measured(2048).op);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_cut_short_is_dropped_and_the_rest_goes_on() {
        let folder = folder("cut");
        let path = folder.join("run.jsonl");
        let mut file = RunFile::create(&path, &header()).unwrap();
        file.write(&Line::Measured(Box::new(measured(1024)))).unwrap();
        let whole = fs::metadata(&path).unwrap().len();
        file.write(&Line::Measured(Box::new(measured(2048)))).unwrap();
        drop(file);
        for keep in [whole + 1, whole + 100] {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(keep).unwrap();
            let (mut file, run) = RunFile::resume(&path).unwrap();
            assert_eq!((run.measurements.len(), run.truncated), (1, true));
            file.write(&Line::Measured(Box::new(measured(4096)))).unwrap();
            assert_eq!(Run::read(&path).unwrap().measurements.len(), 2);
        }
        // Killed while the disk was asked for room.
        let whole = fs::metadata(&path).unwrap().len();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&vec![b' '; RESERVE]).unwrap();
        let (_, run) = RunFile::resume(&path).unwrap();
        assert_eq!((run.measurements.len(), run.truncated), (2, true));
        assert_eq!(fs::metadata(&path).unwrap().len(), whole);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_files_are_refused() {
        let folder = folder("other");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run.jsonl");
        let line = |line: &Line| serde_json::to_string(line).unwrap() + "\n";
        let skipped = Line::Skipped(Skipped {
            site: "x".into(),
            phase: None,
            precision: "y".into(),
            op: subject(8).op,
            reason: String::new(),
            hint: None,
        });
        let head = line(&Line::Header(header()));
        let mut measurement = serde_json::to_value(Line::Measured(Box::new(measured(8)))).unwrap();
        measurement["measured"]["samples_us"] = serde_json::json!([-1.0]);
        for (text, reason) in [
            (String::new(), "no header"),
            ("{}\n".to_owned(), "line 1"),
            (line(&skipped), "does not start with a header"),
            (head.clone() + &head, "a second header"),
            (head.replace("\"roofline_run\":1", "\"roofline_run\":9"), "version 9"),
            (head.clone() + &measurement.to_string() + "\n", "without positive samples"),
            (head.clone() + "nonsense\n", "line 2"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Run::read(&path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error} should say {reason}");
        }
        assert!(Run::read(&folder).unwrap_err().to_string().contains("not a regular file"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_place_that_cannot_be_written_fails_at_once() {
        assert!(RunFile::create(Path::new("/proc/roofline/run.jsonl"), &header()).is_err());
        if Path::new("/dev/full").exists() {
            // A full disk: every write fails.
            let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let mut run = RunFile { path: "/dev/full".into(), file };
            assert!(run.reserve().is_err());
        }
    }
}
