//! One ladder for all errors.

use serde::Serialize;

/// How good a prediction is, by its mean error: excellent below 10 %, good below 25 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Below 10 %.
    Excellent,
    /// Below 25 %.
    Good,
    /// Something is not understood.
    Investigate,
}

impl Verdict {
    /// The verdict on a relative error.
    pub fn of(error: f64) -> Self {
        match error {
            error if error < 0.10 => Self::Excellent,
            error if error < 0.25 => Self::Good,
            _ => Self::Investigate,
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Excellent => "EXCELLENT",
            Self::Good => "GOOD",
            Self::Investigate => "INVESTIGATE",
        })
    }
}

/// One line's mark: OK below 20 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Below 20 %.
    Ok,
    /// The rest.
    High,
}

impl Status {
    /// The mark of a relative error.
    pub fn of(error: f64) -> Self {
        if error < 0.20 { Self::Ok } else { Self::High }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ok => "OK",
            Self::High => "HIGH",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs() {
        assert_eq!([0.0, 0.0999].map(Verdict::of), [Verdict::Excellent; 2]);
        assert_eq!([0.10, 0.2499].map(Verdict::of), [Verdict::Good; 2]);
        assert_eq!([0.25, 9.0, f64::NAN].map(Verdict::of), [Verdict::Investigate; 3]);
        assert_eq!([0.1999, 0.20].map(Status::of), [Status::Ok, Status::High]);
    }
}
