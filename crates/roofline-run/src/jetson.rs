//! A Jetson as its own files describe it: which board, which power mode, which clocks, how much power.
//!
//! NVIDIA's embedded boards say little through NVML and everything through files: the kernel's under `/sys` and `/proc`,
//! the power modes in `/etc/nvpmodel.conf`. All of it is read below a [`Root`], which is `/` on the board itself and any
//! folder elsewhere, so that a tree that was copied from a board can be looked at, and tested, on any machine.
//!
//! Each reading stands alone: what is missing or makes no sense is unknown and said so, and hides nothing else. Files are
//! taken for hostile: reads are bounded, nothing that is not a plain file is opened, no text makes anything panic.

mod backend;
mod board;
mod command;
mod nvpmodel;
mod power;
mod release;
mod root;
mod scaled;
mod status;

pub use backend::{OnBoard, Sensors};
pub use board::Board;
pub use command::{Answer, jetson_clocks, set_mode};
pub use nvpmodel::{Cap, Mode, Table, named};
pub use power::{Rail, total};
pub use release::Release;
pub use root::Root;
pub use scaled::{ModeDevice, circulating_factor};
pub use status::{EmcSource, Status};
