//! Power modes as `nvpmodel` knows them: its table, its status file and what it prints.
//!
//! The table (`/etc/nvpmodel.conf`) is a list of sections:
//!
//! ```text
//! < POWER_MODEL ID=1 NAME=7W >
//! CPU_ONLINE CORE_4 0
//! TPC_POWER_GATING TPC_PG_MASK 252
//! GPU MAX_FREQ 408000000
//! EMC MAX_FREQ 2133000000
//! < PM_CONFIG DEFAULT=0 >
//! ```
//!
//! By the comment at the head of NVIDIA's own files, -1 stands for no limit; in those of JetPack 5 a memory clock of 0 does,
//! too. Clocks of GPU and memory are in Hz, those of the processor in kHz. Ids mean nothing by themselves: mode 1 is 7 W on
//! an Orin Nano and 25 W on the same board with the Super image.

use roofline_core::units::{Hertz, Watts};

use super::root::shown;

/// Most modes of a table; NVIDIA's have up to nine.
const MOST_MODES: usize = 64;
/// Longest name of a mode.
const LONGEST_NAME: usize = 64;
/// Most complaints that are kept of one table.
const MOST_PROBLEMS: usize = 16;
/// Below this a clock is not in Hz.
const LEAST: i64 = 10_000_000;
/// `-1` as the 32-bit number that `nvpmodel` makes of it.
const NO_LIMIT: i64 = 0x7fff_ffff;

/// How far a clock may go in a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Cap {
    /// The mode does not say.
    #[default]
    Unstated,
    /// As far as the chip goes.
    Unlimited,
    /// To here.
    At(Hertz),
}

impl Cap {
    /// The clock, given the chip's own limit.
    pub fn within(self, chip: Hertz) -> Hertz {
        match self {
            Self::At(clock) => clock.min(chip),
            Self::Unlimited | Self::Unstated => chip,
        }
    }
}

/// A power mode of a board's table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mode {
    /// What `nvpmodel -m` takes.
    pub id: u32,
    /// What to know it by.
    pub name: String,
    /// Highest GPU clock.
    pub gpu: Cap,
    /// Highest memory clock.
    pub emc: Cap,
    /// Highest clock of the first processor cluster.
    pub cpu: Cap,
    /// GPU parts that are off, one bit per TPC.
    pub tpc_mask: Option<u64>,
    /// Cores that run.
    pub cores: u32,
}

impl Mode {
    /// The power its name promises: 15 W of `15W`, `MODE_15W_6CORE`; none of `MAXN`.
    pub fn budget(&self) -> Option<Watts> {
        let watts = self.name.split('_').find_map(|part| part.strip_suffix(['W', 'w'])?.parse::<u16>().ok())?;
        (watts > 0).then(|| Watts::new(f64::from(watts)))
    }
}

/// Whether two names are of one mode: `MODE_15W` of the AGX boards' tables is what people and documents call `15W`.
pub fn named(one: &str, other: &str) -> bool {
    let plain = |name: &str| {
        let name = name.trim().to_ascii_uppercase().replace([' ', '-'], "_");
        name.strip_prefix("MODE_").map(str::to_owned).unwrap_or(name)
    };
    plain(one) == plain(other)
}

/// All modes of a board.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// In the order of the file.
    pub modes: Vec<Mode>,
    /// The id of the mode it starts in.
    pub default: Option<u32>,
    /// What made no sense.
    pub problems: Vec<String>,
}

impl Table {
    /// Reads the text of an `nvpmodel.conf`. What makes no sense is left out and named.
    pub fn parse(text: &str) -> Self {
        let mut table = Self::default();
        let mut inside = false;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(head) = line.strip_prefix('<') {
                inside = table.section(head, at + 1);
            } else if inside && let Some(mode) = table.modes.last_mut() {
                let problem = setting(mode, line);
                table.complain(at + 1, problem);
            }
        }
        if table.modes.is_empty() {
            table.complain(0, Some("no POWER_MODEL section".to_owned()));
        }
        table
    }

    /// The mode that people call `name`.
    pub fn find(&self, name: &str) -> Option<&Mode> {
        let exact = self.modes.iter().find(|mode| mode.name == name);
        exact.or_else(|| self.modes.iter().find(|mode| named(&mode.name, name)))
    }

    /// The mode with this id.
    pub fn with_id(&self, id: u32) -> Option<&Mode> {
        self.modes.iter().find(|mode| mode.id == id)
    }

    /// Opens a section; whether it is one of a mode.
    fn section(&mut self, head: &str, line: usize) -> bool {
        let head = head.trim_end_matches('>').trim();
        let mut words = head.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let attributes: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let attribute = |name: &str| attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let id = |name: &str| attribute(name).and_then(|value| value.parse::<u32>().ok());
        match kind {
            "POWER_MODEL" => {
                let name = attribute("NAME").map(|name| name.trim_matches('"')).filter(|name| sound(name));
                let problem = match (id("ID"), name) {
                    (Some(id), Some(_)) if self.with_id(id).is_some() => format!("mode {id} is there twice"),
                    (Some(_), Some(_)) if self.modes.len() == MOST_MODES => "too many modes".to_owned(),
                    (Some(id), Some(name)) => {
                        self.modes.push(Mode { id, name: name.to_owned(), ..Mode::default() });
                        return true;
                    }
                    _ => format!("`{}` has no ID and NAME", shown(head)),
                };
                self.complain(line, Some(problem));
            }
            "PM_CONFIG" => {
                self.default = id("DEFAULT");
                let problem = self.default.is_none().then(|| format!("`{}` has no DEFAULT", shown(head)));
                self.complain(line, problem);
            }
            _ => {}
        }
        false
    }

    fn complain(&mut self, line: usize, problem: Option<String>) {
        let Some(problem) = problem.filter(|_| self.problems.len() < MOST_PROBLEMS) else { return };
        self.problems.push(if line == 0 { problem } else { format!("line {line}: {problem}") });
    }
}

/// A name that may stand in a command and on a terminal.
fn sound(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// One line of a mode; what is wrong with it. Parts that nobody asks about are passed over.
fn setting(mode: &mut Mode, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [part, argument, value] = words[..] else {
        return Some(format!("`{}` is not PART ARGUMENT VALUE", shown(line)));
    };
    match (part, argument) {
        ("CPU_ONLINE", core) if core.starts_with("CORE_") => match value {
            "1" => mode.cores = mode.cores.saturating_add(1),
            "0" => {}
            _ => return Some(format!("{core} is neither on (1) nor off (0)")),
        },
        ("TPC_POWER_GATING", "TPC_PG_MASK") => match value.parse() {
            Ok(mask) => mode.tpc_mask = Some(mask),
            Err(_) => return Some(format!("`{}` is no mask", shown(value))),
        },
        ("GPU", "MAX_FREQ") => return capped(&mut mode.gpu, value, 1, false),
        ("EMC", "MAX_FREQ") => return capped(&mut mode.emc, value, 1, true),
        (cluster, "MAX_FREQ") if cluster.starts_with("CPU_") && mode.cpu == Cap::Unstated => {
            return capped(&mut mode.cpu, value, 1000, false);
        }
        _ => {}
    }
    None
}

fn capped(cap: &mut Cap, value: &str, unit: i64, zero_is_free: bool) -> Option<String> {
    let number: Option<i64> = value.parse().ok();
    let clock = number.and_then(|number| number.checked_mul(unit)).filter(|clock| *clock >= LEAST);
    *cap = match (number, clock) {
        (Some(-1 | NO_LIMIT), _) => Cap::Unlimited,
        (Some(0), _) if zero_is_free => Cap::Unlimited,
        (_, Some(clock)) => Cap::At(Hertz::new(clock as f64)),
        _ => return Some(format!("`{}` is no clock", shown(value))),
    };
    None
}

/// The mode a board is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Current {
    pub(super) id: Option<u32>,
    pub(super) name: Option<String>,
}

impl Current {
    /// What `nvpmodel -q` prints: `NV Power Mode: 15W`, and the id on the line after it. Lines about the fan may precede.
    pub(super) fn printed(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("NV Power Mode"));
        let name = lines.next().and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        let name = name.filter(|name| sound(name)).map(str::to_owned);
        let id = lines.find(|line| !line.is_empty()).and_then(|line| line.parse().ok());
        if name.is_none() && id.is_none() {
            return Err(format!("`nvpmodel -q` names no mode: `{}`", shown(text)));
        }
        Ok(Self { id, name })
    }

    /// What `nvpmodel` keeps in `/var/lib/nvpmodel/status`: `pmode:0002`.
    pub(super) fn kept(text: &str) -> Result<Self, String> {
        let id = text.lines().find_map(|line| line.trim().strip_prefix("pmode:")?.trim().parse().ok());
        let id = id.ok_or_else(|| format!("`{}` is no mode", shown(text)))?;
        Ok(Self { id: Some(id), name: None })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NANO: &str = "\
# a comment
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /sys/devices/17000000.ga10b/devfreq/17000000.ga10b/max_freq
<PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap

< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 1
TPC_POWER_GATING TPC_PG_MASK 240
GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on
CPU_A78_0 MAX_FREQ -1
GPU MIN_FREQ 0
GPU MAX_FREQ -1
EMC MAX_FREQ 0

< POWER_MODEL NAME=7W ID=1 >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
TPC_POWER_GATING TPC_PG_MASK 252
CPU_A78_0 MAX_FREQ 960000
GPU MAX_FREQ 408000000
EMC MAX_FREQ 2133000000

< PM_CONFIG DEFAULT=0 >
";

    #[test]
    fn a_table() {
        let table = Table::parse(NANO);
        assert_eq!((table.default, table.problems.len(), table.modes.len()), (Some(0), 0, 2));
        let full = &table.modes[0];
        assert_eq!((full.id, full.name.as_str(), full.cores, full.tpc_mask), (0, "15W", 2, Some(240)));
        assert_eq!((full.gpu, full.emc, full.cpu), (Cap::Unlimited, Cap::Unlimited, Cap::Unlimited));
        let low = &table.modes[1];
        let (gpu, emc, cpu) = (Hertz::new(408e6), Hertz::new(2133e6), Hertz::new(960e6));
        assert_eq!((low.gpu, low.emc, low.cpu), (Cap::At(gpu), Cap::At(emc), Cap::At(cpu)));
        assert_eq!((low.id, low.cores, low.tpc_mask), (1, 1, Some(252)));
    }

    #[test]
    fn names_and_budgets() {
        let mode = |name: &str| Mode { name: name.to_owned(), ..Mode::default() };
        for (name, watts) in [("15W", Some(15.0)), ("MODE_15W_6CORE", Some(15.0)), ("7W_AI", Some(7.0)), ("MAXN", None)]
        {
            assert_eq!(mode(name).budget(), watts.map(Watts::new), "{name}");
        }
        assert_eq!(mode("0W").budget(), None);
        assert!(named("MODE_30W", "30w") && named("maxn-super", "MAXN_SUPER") && !named("15W", "MAXN"));
        let table = Table::parse("< POWER_MODEL ID=2 NAME=MODE_30W >\n");
        assert_eq!(table.find("30W").unwrap().id, 2);
        assert!(table.find("2").is_none(), "an id is not a name");
    }

    #[test]
    fn what_makes_no_sense_is_named_and_left_out() {
        let table = Table::parse(
            "< POWER_MODEL ID=x NAME=15W >\nGPU MAX_FREQ 1\n< POWER_MODEL ID=0 NAME=a\u{1b}[31m >\n< POWER_MODEL ID=0 NAME=ok >\n\
             GPU MAX_FREQ 625000\nEMC MAX_FREQ fast\nCPU_ONLINE CORE_0 maybe\nTPC_POWER_GATING TPC_PG_MASK -5\nodd\n\
             < POWER_MODEL ID=0 NAME=again >\n< PM_CONFIG >\n",
        );
        assert_eq!(table.modes.len(), 1);
        assert_eq!((table.modes[0].gpu, table.modes[0].emc, table.default), (Cap::Unstated, Cap::Unstated, None));
        let problems = table.problems.join("\n");
        for part in
            ["line 1: ", "line 5: `625000` is no clock", "`fast`", "neither on", "`-5`", "`odd`", "twice", "DEFAULT"]
        {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert!(!problems.contains('\u{1b}'));
        assert_eq!(Table::parse("").problems, ["no POWER_MODEL section"]);
    }

    #[test]
    fn a_table_that_never_ends_is_cut() {
        let many: Vec<String> = (0..1000).map(|id| format!("< POWER_MODEL ID={id} NAME=m{id} >")).collect();
        let table = Table::parse(&many.join("\n"));
        assert_eq!((table.modes.len(), table.problems.len()), (MOST_MODES, MOST_PROBLEMS));
    }

    #[test]
    fn the_mode_now() {
        let now = |id, name: Option<&str>| Ok(Current { id, name: name.map(str::to_owned) });
        assert_eq!(Current::printed("NV Power Mode: 15W\n0\n"), now(Some(0), Some("15W")));
        let warned = "NVPM WARN: fan mode is not set!\nNV Power Mode: MAXN_SUPER\n2";
        assert_eq!(Current::printed(warned), now(Some(2), Some("MAXN_SUPER")));
        assert_eq!(Current::printed("NV Power Mode: 15W"), now(None, Some("15W")));
        assert!(Current::printed("permission denied").unwrap_err().contains("permission denied"));
        assert_eq!(Current::kept("pmode:0002"), now(Some(2), None));
        assert_eq!(Current::kept("fmode:cool\npmode:0000\n"), now(Some(0), None));
        assert!(Current::kept("pmode:x").is_err() && Current::kept("").is_err());
    }

    proptest! {
        #[test]
        fn no_table_panics(text in "(< ?POWER_MODEL (ID=[-0-9x]{0,12})? (NAME=.{0,8})? ?>\n|(GPU|EMC|CPU_A) MAX_FREQ .{0,24}\n|.{0,40}\n){0,40}") {
            let table = Table::parse(&text);
            prop_assert!(table.modes.len() <= MOST_MODES && table.problems.len() <= MOST_PROBLEMS);
        }

        #[test]
        fn no_words_panic(text in "(?s).{0,200}") {
            let (_, _, _) = (Table::parse(&text), Current::printed(&text), Current::kept(&text));
        }
    }
}
