//! What of a device's memory a model can have.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Device, Kind};
use crate::units::Bytes;

/// What a runtime keeps for itself: vLLM leaves a tenth of the memory unless it is told otherwise
/// (`gpu_memory_utilization` is 0.9).
pub const RESERVE: f64 = 0.1;
/// What macOS lets a GPU have of a chip's memory: three quarters (`recommendedMaxWorkingSetSize` of Metal, from 36 GB on).
const APPLE: f64 = 0.75;
/// What a Linux without a desktop takes on a board whose GPU shares the processor's memory (JetPack 6: 1.0 to 1.5 GB).
const BOARD: Bytes = Bytes::new(1.5e9);
/// What a desktop takes on a computer that people work at.
const DESKTOP: Bytes = Bytes::new(4e9);

/// A device's memory, and who has which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "DeviceRoom")]
pub struct Room {
    /// All there is, or all that may be used.
    pub capacity: Bytes,
    /// What the system takes, where it shares the memory.
    pub system: Bytes,
    /// What is kept free: a tenth.
    pub reserve: Bytes,
}

impl Room {
    /// What is left for weights, cache and tensors in flight.
    pub fn for_models(&self) -> Bytes {
        let rest = self.capacity - self.system - self.reserve;
        if rest > Bytes::ZERO { rest } else { Bytes::ZERO }
    }
}

impl Device {
    /// Who has which part of its memory; none where nobody said how much there is.
    pub fn room(&self) -> Option<Room> {
        self.room_within(None)
    }

    /// The same where no more than `limit` may be used. What is beyond the limit is the system's first.
    pub fn room_within(&self, limit: Option<Bytes>) -> Option<Room> {
        let there = self.memory.usable();
        let capacity = match (limit, there) {
            (Some(limit), Some(there)) => Some(if limit < there { limit } else { there }),
            (limit, there) => limit.or(there),
        }?;
        let all = there.unwrap_or(capacity);
        let system = self.memory.system.unwrap_or_else(|| match self.kind {
            Kind::Soc if self.vendor == "Apple" => all * (1.0 - APPLE),
            Kind::Soc if self.key.starts_with("jetson") => BOARD,
            Kind::Soc | Kind::Cpu => DESKTOP,
            Kind::Gpu | Kind::Npu | Kind::Tpu | Kind::Custom => Bytes::ZERO,
        });
        let beyond = all - capacity;
        let system = if system > beyond { system - beyond } else { Bytes::ZERO };
        Some(Room { capacity, system, reserve: capacity * RESERVE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn memory_that_is_not_the_models() {
        let room = |key: &str| Registry::builtin().find(key).unwrap().room().unwrap();
        // A card has its memory to itself, but for a tenth.
        let h100 = room("h100_sxm");
        assert_eq!((h100.system, h100.for_models()), (Bytes::ZERO, h100.capacity * 0.9));
        // A quarter of an Apple chip's is the system's.
        let apple = room("apple_m3_max");
        assert_eq!(apple.for_models(), apple.capacity * (0.75 - 0.1));
        let jetson = room("jetson_orin_nano_8gb");
        assert_eq!(jetson.for_models(), jetson.capacity * 0.9 - BOARD);
    }

    #[test]
    fn a_limit_leaves_the_rest_to_the_system() {
        let jetson = Registry::builtin().find("jetson_orin_nano_8gb").unwrap().into_owned();
        let room = jetson.room_within(Some(Bytes::new(4e9))).unwrap();
        assert_eq!((room.capacity, room.system, room.reserve), (Bytes::new(4e9), Bytes::ZERO, Bytes::new(4e8)));
    }
}
