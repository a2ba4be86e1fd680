//! What the program keeps: the user's devices (`devices/`), this machine's ceilings (`machines/`), calibrations
//! (`calibrations/`), runs (`runs/`) and compiled kernels (`kernels/`).

use std::{
    collections::HashMap,
    env, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use roofline_core::{Device, Registry, device::key_of};
use serde::{Serialize, de::DeserializeOwned};

use crate::{failure::Failure, report::style};

/// Longest file that is read: a device is a page of text, a `config.json` a few.
const MAX_LENGTH: u64 = 1 << 20;

/// `name` in `$ROOFLINE_CONFIG_DIR`, else in the platform's place for configuration, or for data where that differs.
fn folder(name: &str) -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(own) = from("ROOFLINE_CONFIG_DIR") {
        return Some(own.join(name));
    }
    let (variable, hidden) = match name {
        "runs" | "jobs" => ("XDG_DATA_HOME", ".local/share"),
        "kernels" => ("XDG_CACHE_HOME", ".cache"),
        _ => ("XDG_CONFIG_HOME", ".config"),
    };
    let base = if cfg!(windows) {
        from("APPDATA")
    } else if cfg!(target_os = "macos") {
        from("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        from(variable).or_else(|| from("HOME").map(|home| home.join(hidden)))
    };
    base.map(|base| base.join("roofline").join(name))
}

/// A folder for what can be made again.
pub(crate) fn cache(name: &str) -> Option<PathBuf> {
    folder(name)
}

/// The same, where nothing works without it.
pub(crate) fn required_folder(name: &str) -> Result<PathBuf, Failure> {
    folder(name).ok_or_else(|| {
        Failure::usage(format!("there is no folder to keep {name} in"), "set ROOFLINE_CONFIG_DIR to a folder")
    })
}

/// What is kept as JSON under `name` in `folder`; none where there is none. A file that is broken is said and left out.
pub(crate) fn load<T: DeserializeOwned>(folder_name: &str, name: &str) -> Option<T> {
    let path = folder(folder_name)?.join(format!("{name}.json"));
    if !path.exists() {
        return None;
    }
    let read = read_text(&path).map_err(|failure| failure.message());
    match read.and_then(|text| serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))) {
        Ok(value) => Some(value),
        Err(message) => {
            style::talk("warning", &format!("left out {message}"));
            None
        }
    }
}

/// Keeps `value` as JSON under `name` in `folder`.
pub(crate) fn keep<T: Serialize>(folder_name: &str, name: &str, value: &T) -> Result<PathBuf, Failure> {
    let path = required_folder(folder_name)?.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n";
    replace(&path, text.as_bytes())?;
    Ok(path)
}

/// Whether something can be kept in `folder`: for asking before it is worked out.
pub(crate) fn can_keep(folder_name: &str) -> Result<(), Failure> {
    let path = required_folder(folder_name)?.join("room.json");
    replace(&path, b"")?;
    fs::remove_file(&path).map_err(|error| Failure::File { path, error })
}

/// Forgets what is kept under `name`; false where there was nothing.
pub(crate) fn forget(folder_name: &str, name: &str) -> Result<bool, Failure> {
    let path = required_folder(folder_name)?.join(format!("{name}.json"));
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::File { path, error }),
    }
}

/// Written beside, synced and renamed: a reader sees the old file or the new one, never half of it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        let mut file = fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        Failure::File { path: path.to_owned(), error }
    })
}

/// The registered files, by name. A folder that is not there holds none; one that cannot be read is said.
fn files() -> Vec<PathBuf> {
    let Some(folder) = folder("devices") else { return Vec::new() };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                style::talk("warning", &format!("your devices are left out: {}: {error}", folder.display()));
            }
            return Vec::new();
        }
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths
}

/// Devices that exist as long as this process: a server's callers describe them.
static LENT: RwLock<Vec<Device>> = RwLock::new(Vec::new());
/// What was read, which folder as of when, and when that was looked at.
static READ: Mutex<Option<(Stamp, Instant, Arc<Registry>)>> = Mutex::new(None);
/// How long a look at the folder counts: thousands of questions a second need not look each time.
const FRESH: Duration = Duration::from_millis(100);
/// Devices that callers may describe.
const LENT_MOST: usize = 256;

/// Tells whether the registered devices changed: the folder, when it did, and how many are lent.
type Stamp = (Option<PathBuf>, Option<SystemTime>, usize);

/// The built-in devices and the registered ones, read again when they change: a command asks once, a server always.
pub(crate) fn registry() -> Arc<Registry> {
    let lent = LENT.read().unwrap_or_else(PoisonError::into_inner);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(((.., count), looked, registry)) = &*read
        && *count == lent.len()
        && looked.elapsed() < FRESH
    {
        return registry.clone();
    }
    let folder = folder("devices");
    let changed = folder.as_ref().and_then(|folder| fs::metadata(folder).ok()?.modified().ok());
    let stamp = (folder, changed, lent.len());
    let registry = match &*read {
        Some((known, _, registry)) if *known == stamp => registry.clone(),
        _ => Arc::new(read_registry().with(lent.iter().cloned())),
    };
    *read = Some((stamp, Instant::now(), registry.clone()));
    registry
}

/// Adds a device for as long as this process lives.
pub(crate) fn lend(name: &str, device: Device) -> Result<String, Failure> {
    let key = key(name)?;
    if registry().find(&key).is_ok() || registry().find(name).is_ok() {
        return Err(Failure::usage(format!("there is a device called `{key}` already"), "choose another name"));
    }
    let mut lent = LENT.write().unwrap_or_else(PoisonError::into_inner);
    if lent.len() >= LENT_MOST {
        return Err(Failure::usage(format!("{LENT_MOST} devices were described already"), "use those"));
    }
    lent.push(Device { key: key.clone(), ..device });
    Ok(key)
}

/// The built-in devices and the registered ones. A registered file that is broken is said and left out; a name that
/// hides another device is said whenever the registry is read.
fn read_registry() -> Registry {
    let mut own: Vec<Device> = Vec::new();
    let mut owners: HashMap<String, String> = HashMap::new();
    for path in files() {
        let device = match read_device(&path) {
            Ok(device) => device,
            Err(failure) => {
                style::talk("warning", &format!("left out {}", failure.message()));
                continue;
            }
        };
        if let Some(builtin) = Registry::shadowed(&device) {
            let message = format!("your device `{}` hides the built-in {} ({})", device.key, builtin.name, builtin.key);
            style::talk("warning", &message);
        }
        for name in device.names() {
            let other = owners.entry(name.clone()).or_insert_with(|| device.key.clone());
            if *other != device.key {
                style::talk(
                    "warning",
                    &format!("`{name}` names both `{other}` and `{}`: the first is used", device.key),
                );
            }
        }
        own.push(device);
    }
    Registry::builtin().with(own)
}

/// A device file.
pub(crate) fn read_device(path: &Path) -> Result<Device, Failure> {
    Ok(Device::from_toml(&read_text(path)?, &path.display().to_string())?)
}

/// The text of a device file or a `config.json`.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    read_short(path, "name a device file or a `config.json`")
}

/// The same of points that somebody measured.
pub(crate) fn read_points(path: &Path) -> Result<String, Failure> {
    read_short(path, "points are read from a file of 1 MiB at most; split one that is longer")
}

/// The text of a regular file of sensible length, without the mark that spreadsheets start it with; a pipe or a device
/// could go on for ever. `hint` says what is expected instead.
fn read_short(path: &Path, hint: &str) -> Result<String, Failure> {
    let failed = |error| Failure::File { path: path.to_owned(), error };
    let refuse = |reason: &str| Failure::usage(format!("{}: {reason}", path.display()), hint);
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(refuse("not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path).map_err(failed)?.take(MAX_LENGTH + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_LENGTH {
        return Err(refuse("longer than any such file"));
    }
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

/// Refuses names that commands could not find again.
fn key(name: &str) -> Result<String, Failure> {
    let key = key_of(name);
    let ascii = name.chars().all(|letter| letter.is_ascii_alphanumeric() || " -_.".contains(letter));
    let named = key.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && key.len() <= 64;
    let file = Path::new(&key).extension().is_some_and(|extension| extension == "toml");
    if ascii && named && !file && key != "this" {
        return Ok(key);
    }
    let hint = "up to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit; not `this`, no `.toml`";
    Err(Failure::usage(format!("a device cannot be called `{name}`"), hint))
}

/// Keeps `text`, which must be a valid device file, under `name`; written beside and renamed.
pub(crate) fn register(name: &str, text: &str, force: bool) -> Result<(String, PathBuf), Failure> {
    let key = key(name)?;
    let device = Device::from_toml(text, &key)?;
    if let Some(builtin) = Registry::shadowed(&device).filter(|_| !force) {
        let message = format!("`{key}` would answer to a name of the built-in {} ({})", builtin.name, builtin.key);
        let hint = "change its key, `name`, `aliases` or `reported_names`, or say `--force` to hide the built-in one";
        return Err(Failure::usage(message, hint));
    }
    let path = required_folder("devices")?.join(format!("{key}.toml"));
    if path.exists() && !force {
        let hint = "pick another name, or say `--force` to replace it";
        return Err(Failure::usage(format!("`{key}` is registered already"), hint));
    }
    replace(&path, text.as_bytes())?;
    Ok((key, path))
}

/// Forgets a registered device, broken or not.
pub(crate) fn remove(name: &str) -> Result<PathBuf, Failure> {
    let key = key_of(name);
    let stem = |path: &PathBuf| path.file_stem().map(|stem| key_of(&stem.to_string_lossy()));
    let path = files().into_iter().find(|path| stem(path).as_deref() == Some(&key)).ok_or_else(|| {
        let message = format!("no device of yours is called `{key}`");
        Failure::usage(message, "`roofline devices --mine` lists them")
    })?;
    fs::remove_file(&path).map_err(|error| Failure::File { path: path.clone(), error })?;
    Ok(path)
}
