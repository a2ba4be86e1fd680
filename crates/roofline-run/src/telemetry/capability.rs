//! What a compute capability says of a GPU.

use std::str::FromStr;

/// CUDA compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// The generation.
    pub major: u32,
    /// The chip within it.
    pub minor: u32,
}

impl Capability {
    /// Blackwell or later: 10.0 in data centres, 11.0 on Thor, 12.x elsewhere.
    pub fn is_blackwell(self) -> bool {
        self.major >= 10
    }

    /// Hopper: H100, H200 and their kin.
    pub fn is_hopper(self) -> bool {
        self.major == 9
    }

    /// Whether its tensor cores multiply FP8: from Ada on.
    pub fn has_fp8(self) -> bool {
        self >= Self { major: 8, minor: 9 }
    }

    /// FP32 cores of a multiprocessor, for generations that are known: the table of `_ConvertSMVer2Cores` in NVIDIA's
    /// cuda-samples, `Common/helper_cuda.h`.
    pub fn cores_per_multiprocessor(self) -> Option<u32> {
        match (self.major, self.minor) {
            (6 | 8, 0) | (7, _) => Some(64),
            (5 | 9..=12, _) | (6, 1 | 2) | (8, 6 | 7 | 9) => Some(128),
            _ => None,
        }
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts
            .map(|(major, minor)| Self { major, minor })
            .ok_or_else(|| format!("`{text}` is no compute capability such as 9.0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations() {
        let told = |text: &str| {
            let capability: Capability = text.parse().unwrap();
            (capability.is_blackwell(), capability.is_hopper(), capability.has_fp8())
        };
        for (text, expected) in [
            ("7.5", (false, false, false)),
            // An A100 and a Jetson Orin have no FP8, an L4 has.
            ("8.0", (false, false, false)),
            ("8.7", (false, false, false)),
            ("8.9", (false, false, true)),
            ("9.0", (false, true, true)),
            ("10.0", (true, false, true)),
            ("12.1", (true, false, true)),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
        assert!("nine".parse::<Capability>().unwrap_err().contains("nine"));
    }

    #[test]
    fn cores() {
        let cores = |text: &str| text.parse::<Capability>().unwrap().cores_per_multiprocessor();
        // 16896 cores on the 132 multiprocessors of an H200, 6912 on the 108 of an A100.
        assert_eq!((cores("9.0"), cores("8.0")), (Some(16_896 / 132), Some(6912 / 108)));
        assert_eq!(cores("13.0"), None);
    }
}
