//! Devices by name: the built-in ones, the user's own, those that callers of a server described, files, this machine.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use roofline_core::{Device, Registry, device::key_of};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Context, Home,
    files::{read_text, replace},
};
use crate::{Error, Result};

/// How long a look at the folder counts: thousands of questions a second need not look each time.
const FRESH: Duration = Duration::from_millis(100);
/// Devices that callers may describe.
const LENT_MOST: usize = 256;

/// The registry as it was read.
pub(super) struct Read {
    stamp: Stamp,
    looked: Instant,
    registry: Arc<Registry>,
    /// What is wrong with the user's files.
    faults: Vec<String>,
}

/// Tells whether the registered devices changed.
#[derive(PartialEq)]
struct Stamp {
    folder: Option<PathBuf>,
    changed: Option<SystemTime>,
    lent: usize,
}

/// A device that was registered.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RegisteredDevice")]
pub struct Registered {
    /// What it is called.
    pub key: String,
    /// Its file.
    pub path: PathBuf,
}

impl Context {
    /// The built-in devices and the registered ones, read again when they change: a command asks once, a server always.
    pub fn registry(&self) -> Arc<Registry> {
        let lent = self.home.lent.read().unwrap_or_else(PoisonError::into_inner);
        let mut read = self.home.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = &*read
            && read.stamp.lent == lent.len()
            && read.looked.elapsed() < FRESH
        {
            return read.registry.clone();
        }
        let folder = self.home.folder("devices");
        let changed = folder.as_ref().and_then(|folder| fs::metadata(folder).ok()?.modified().ok());
        let stamp = Stamp { folder, changed, lent: lent.len() };
        let known = read.take().filter(|read| read.stamp == stamp);
        let (registry, faults) = known.map_or_else(
            || {
                let (own, faults) = self.home.own_devices();
                (Arc::new(Registry::builtin().with(own).with(lent.iter().cloned())), faults)
            },
            |read| (read.registry, read.faults),
        );
        for fault in &faults {
            self.warn_owner(fault.clone());
        }
        *read = Some(Read { stamp, looked: Instant::now(), registry: registry.clone(), faults });
        registry
    }

    /// A device by name, or a file; `@MODE` for a power mode of either; `this` for this machine.
    pub fn device(&self, name: &str) -> Result<Device> {
        if name == "this" {
            return self.this_device();
        }
        let (file, mode) = name.split_once('@').map_or((name, None), |(file, mode)| (file, Some(mode)));
        let end = Path::new(file).extension();
        let is_path = end.is_some_and(|end| end.eq_ignore_ascii_case("toml") || end.eq_ignore_ascii_case("json"));
        if !self.is_local() && (is_path || name.contains(['/', '\\'])) {
            return Err(Error::Path { what: "device", name: name.chars().take(80).collect() });
        }
        if end.is_none_or(|end| end != "toml") {
            return Ok(self.registry().find(name)?.into_owned());
        }
        let device = read_device(Path::new(file))?;
        Ok(match mode {
            Some(mode) => device.in_mode(mode)?,
            None => device,
        })
    }

    #[cfg(feature = "hardware")]
    fn this_device(&self) -> Result<Device> {
        crate::this_machine::device(self)
    }

    #[cfg(not(feature = "hardware"))]
    fn this_device(&self) -> Result<Device> {
        Err(Error::Unmeasured)
    }

    /// Adds a device for as long as this process lives.
    pub fn lend(&self, name: &str, device: Device) -> Result<String> {
        let key = key(name)?;
        let registry = self.registry();
        if registry.find(&key).is_ok() || registry.find(name).is_ok() {
            return Err(Error::request(format!("there is a device called `{key}` already"), "choose another name"));
        }
        let mut lent = self.home.lent.write().unwrap_or_else(PoisonError::into_inner);
        if lent.len() >= LENT_MOST {
            return Err(Error::request(format!("{LENT_MOST} devices were described already"), "use those"));
        }
        lent.push(Device { key: key.clone(), ..device });
        Ok(key)
    }
}

impl Home {
    /// The user's devices, and what is wrong with those that are left out, or that hide another.
    fn own_devices(&self) -> (Vec<Device>, Vec<String>) {
        let (paths, mut faults) = self.device_files();
        let mut own: Vec<Device> = Vec::new();
        let mut owners: HashMap<String, String> = HashMap::new();
        for path in paths {
            let device = match read_device(&path) {
                Ok(device) => device,
                Err(error) => {
                    faults.push(format!("left out {error}"));
                    continue;
                }
            };
            if let Some(builtin) = Registry::shadowed(&device) {
                faults.push(format!(
                    "your device `{}` hides the built-in {} ({})",
                    device.key, builtin.name, builtin.key
                ));
            }
            for name in device.names() {
                let other = owners.entry(name.clone()).or_insert_with(|| device.key.clone());
                if *other != device.key {
                    faults.push(format!("`{name}` names both `{other}` and `{}`: the first is used", device.key));
                }
            }
            own.push(device);
        }
        (own, faults)
    }

    /// The registered files, by name. A folder that is not there holds none; one that cannot be read is said.
    fn device_files(&self) -> (Vec<PathBuf>, Vec<String>) {
        let Some(folder) = self.folder("devices") else { return (Vec::new(), Vec::new()) };
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (Vec::new(), Vec::new()),
            Err(error) => {
                return (Vec::new(), vec![format!("your devices are left out: {}: {error}", folder.display())]);
            }
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        paths.sort();
        (paths, Vec::new())
    }

    /// Keeps `text`, which must be a valid device file, under `name`.
    pub fn register(&self, name: &str, text: &str, force: bool) -> Result<Registered> {
        let key = key(name)?;
        let device = Device::from_toml(text, &key)?;
        if let Some(builtin) = Registry::shadowed(&device).filter(|_| !force) {
            let message = format!("`{key}` would answer to a name of the built-in {} ({})", builtin.name, builtin.key);
            let hint =
                "change its key, `name`, `aliases` or `reported_names`, or say `⟨force⟩` to hide the built-in one";
            return Err(Error::request(message, hint));
        }
        let path = self.required_folder("devices")?.join(format!("{key}.toml"));
        if path.exists() && !force {
            let hint = "pick another name, or say `⟨force⟩` to replace it";
            return Err(Error::request(format!("`{key}` is registered already"), hint));
        }
        replace(&path, text.as_bytes())?;
        Ok(Registered { key, path })
    }

    /// Forgets a registered device, broken or not.
    pub fn remove(&self, name: &str) -> Result<PathBuf> {
        let key = key_of(name);
        let stem = |path: &PathBuf| path.file_stem().map(|stem| key_of(&stem.to_string_lossy()));
        let path = self.device_files().0.into_iter().find(|path| stem(path).as_deref() == Some(&key));
        let path = path.ok_or_else(|| {
            let message = format!("no device of yours is called `{key}`");
            Error::request(message, "`⟨roofline devices --mine⟩` lists them")
        })?;
        fs::remove_file(&path).map_err(Error::file(&path))?;
        Ok(path)
    }
}

/// A device file.
pub(crate) fn read_device(path: &Path) -> Result<Device> {
    Ok(Device::from_toml(&read_text(path)?, &path.display().to_string())?)
}

/// Refuses names that commands could not find again.
fn key(name: &str) -> Result<String> {
    let key = key_of(name);
    let ascii = name.chars().all(|letter| letter.is_ascii_alphanumeric() || " -_.".contains(letter));
    let named = key.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && key.len() <= 64;
    let file = Path::new(&key).extension().is_some_and(|extension| extension == "toml");
    if ascii && named && !file && key != "this" {
        return Ok(key);
    }
    let hint = "up to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit; not `this`, no `.toml`";
    Err(Error::request(format!("a device cannot be called `{name}`"), hint))
}
