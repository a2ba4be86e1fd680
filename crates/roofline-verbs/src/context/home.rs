//! What the program keeps: the user's devices (`devices/`), this machine's ceilings (`machines/`), calibrations
//! (`calibrations/`), what evaluations found (`quality/`), runs (`runs/`), jobs of a server (`jobs/`) and compiled kernels
//! (`kernels/`).

use std::{
    env, fs, io,
    path::PathBuf,
    sync::{Mutex, RwLock},
};

use etcetera::BaseStrategy;
use roofline_core::Device;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Context,
    devices::Read,
    files::{read_text, replace},
};
use crate::{Error, Result};

/// Folders, and what was read from them. Questions share it.
#[derive(Default)]
pub struct Home {
    kept: bool,
    /// The folder of all folders, where it is not the user's.
    place: Option<PathBuf>,
    /// Devices that exist as long as this process: a server's callers describe them.
    pub(super) lent: RwLock<Vec<Device>>,
    pub(super) read: Mutex<Option<Read>>,
}

impl Home {
    /// That of whoever runs this process: `$ROOFLINE_CONFIG_DIR`, else the platform's folders for configuration, data and
    /// caches.
    pub fn of_user() -> Self {
        Self { kept: true, ..Self::default() }
    }

    /// One in that folder.
    pub fn at(place: impl Into<PathBuf>) -> Self {
        Self { kept: true, place: Some(place.into()), ..Self::default() }
    }

    /// None: nothing is kept, and nothing is read.
    pub fn none() -> Self {
        Self::default()
    }

    /// The folder for one kind of thing, where there is a place for it.
    pub fn folder(&self, name: &str) -> Option<PathBuf> {
        if !self.kept {
            return None;
        }
        if let Some(place) = &self.place {
            return Some(place.join(name));
        }
        if let Some(own) = env::var_os("ROOFLINE_CONFIG_DIR").filter(|value| !value.is_empty()) {
            return Some(PathBuf::from(own).join(name));
        }
        let places = etcetera::base_strategy::choose_native_strategy().ok()?;
        let base = match name {
            "runs" | "jobs" => places.data_dir(),
            "kernels" => places.cache_dir(),
            _ => places.config_dir(),
        };
        Some(base.join("roofline").join(name))
    }

    /// The same, where nothing works without it.
    pub fn required_folder(&self, name: &str) -> Result<PathBuf> {
        self.folder(name).ok_or_else(|| {
            Error::request(format!("there is no folder to keep {name} in"), "set ROOFLINE_CONFIG_DIR to a folder")
        })
    }

    /// Keeps `value` as JSON under `name` in `folder`.
    pub fn keep<T: Serialize>(&self, folder: &str, name: &str, value: &T) -> Result<PathBuf> {
        let path = self.required_folder(folder)?.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from).map_err(Error::file(&path))? + "\n";
        replace(&path, text.as_bytes())?;
        Ok(path)
    }

    /// Whether something can be kept in `folder`: for asking before it is worked out.
    pub fn can_keep(&self, folder: &str) -> Result<()> {
        let path = self.required_folder(folder)?.join("room.json");
        replace(&path, b"")?;
        fs::remove_file(&path).map_err(Error::file(path))
    }

    /// Forgets what is kept under `name`; false where there was nothing.
    pub fn forget(&self, folder: &str, name: &str) -> Result<bool> {
        let path = self.required_folder(folder)?.join(format!("{name}.json"));
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::File { path, error }),
        }
    }
}

impl Context {
    /// What is kept as JSON under `name` in `folder`; none where there is none. A file that is broken is said and left out.
    pub fn kept<T: DeserializeOwned>(&self, folder: &str, name: &str) -> Option<T> {
        let path = self.home.folder(folder)?.join(format!("{name}.json"));
        if !path.exists() {
            return None;
        }
        let read = read_text(&path).map_err(|error| error.to_string());
        match read.and_then(|text| serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display())))
        {
            Ok(value) => Some(value),
            Err(message) => {
                self.warn_owner(format!("left out {message}"));
                None
            }
        }
    }

    /// Says what only whoever owns this machine should read: it names files.
    pub(super) fn warn_owner(&self, text: String) {
        if self.is_local() {
            self.warn(text);
        }
    }
}
