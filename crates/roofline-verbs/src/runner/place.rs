//! Where a run goes.
//!
//! Two commands that start in the same second would like the same name. Whether a name is free is therefore never asked
//! before it is taken: it is taken, which one of them cannot, and that one takes the next.

use std::{
    io,
    path::{Path, PathBuf},
};

use roofline_run::{Header, RunFile};

use super::now;
use crate::{
    Context, Error, Result,
    context::files::{folder_of, writable},
};

/// Most runs of one second.
const MOST: u32 = 1000;

/// The file of a run that is not there yet.
pub(crate) enum Place {
    /// The one that was named, which must be new.
    Named(PathBuf),
    /// One of today's, in a folder: `stem.jsonl`, where that is taken `stem-1.jsonl`, and so on.
    Dated { folder: PathBuf, stem: String },
}

impl Place {
    /// The file that was named, or one that says when `verb` was started.
    pub(crate) fn of(context: &Context, out: Option<&Path>, verb: &str) -> Result<Self> {
        match out {
            Some(out) if out.exists() => Err(taken(out)),
            Some(out) => Ok(Self::Named(out.to_owned())),
            None => {
                let stem = format!("{}-{verb}", now().replace(':', "-"));
                Ok(Self::Dated { folder: context.home().required_folder("runs")?, stem })
            }
        }
    }

    /// The name that comes first, whether or not somebody has it.
    pub(crate) fn first(&self) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Dated { folder, stem } => folder.join(format!("{stem}.jsonl")),
        }
    }

    /// Whether a file can be made here; leaves nothing behind.
    pub(crate) fn writable(&self) -> Result<()> {
        self.take(writable)
    }

    /// The run, made under a name that nobody has.
    pub(crate) fn create(&self, header: &Header) -> Result<RunFile> {
        self.take(|path| Ok(RunFile::create(path, header)?))
    }

    /// What `make` makes of the first name at which nothing is.
    fn take<T>(&self, make: impl Fn(&Path) -> Result<T>) -> Result<T> {
        // First, so that a file in the place of a folder is not taken for a run.
        folder_of(&self.first())?;
        let is_taken =
            |error: &Error| matches!(error, Error::File { error, .. } if error.kind() == io::ErrorKind::AlreadyExists);
        let (folder, stem) = match self {
            Self::Named(path) => {
                return make(path).map_err(|failure| if is_taken(&failure) { taken(path) } else { failure });
            }
            Self::Dated { folder, stem } => (folder, stem),
        };
        let names = (1..MOST).map(|again| folder.join(format!("{stem}-{again}.jsonl")));
        for path in [self.first()].into_iter().chain(names) {
            match make(&path) {
                Err(failure) if is_taken(&failure) => {}
                result => return result,
            }
        }
        Err(Error::request(
            format!("{}: {MOST} runs in a second", folder.display()),
            "wait a second, or name one by ⟨out⟩",
        ))
    }
}

fn taken(path: &Path) -> Error {
    Error::Taken { path: path.to_owned(), hint: "say `⟨resume⟩` to go on with it, or name another file" }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        sync::Barrier,
        thread::{scope, yield_now},
    };

    use super::*;

    fn header() -> Header {
        Header::new("2026-01-01T00:00:00Z".into(), "h200_sxm".into(), None, "null", serde_json::json!({}))
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("roofline-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn runs_of_one_second_have_names_of_their_own() {
        const RUNS: usize = 8;
        let folder = folder("dated");
        let start = Barrier::new(RUNS);
        let one = || {
            let place = Place::Dated { folder: folder.clone(), stem: "now-measure".to_owned() };
            start.wait();
            place.writable().map_err(|error| error.to_string()).unwrap();
            yield_now();
            place.create(&header()).map_err(|error| error.to_string()).unwrap().path().to_owned()
        };
        let paths: BTreeSet<PathBuf> = scope(|scope| {
            let runs: Vec<_> = (0..RUNS).map(|_| scope.spawn(one)).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        assert_eq!(paths.len(), RUNS, "{paths:?}");
        assert!(paths.iter().all(|path| roofline_run::Run::read(path).is_ok()), "nobody removed another's");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), RUNS, "nothing else is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_that_was_given_is_not_changed() {
        let folder = folder("named");
        let path = folder.join("run.jsonl");
        let place = Place::Named(path.clone());
        assert!(place.writable().is_ok() && !path.exists());
        assert_eq!(place.create(&header()).map_err(|error| error.to_string()).unwrap().path(), path);
        for failure in [place.writable(), place.create(&header()).map(|_| ())] {
            let error = failure.unwrap_err();
            assert!(error.to_string().ends_with("run.jsonl is there already"), "{error}");
            assert!(error.hint().unwrap().contains("⟨resume⟩"));
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
