//! How much one client may ask for.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::http::StatusCode;

use super::refusal::Refusal;

/// Bytes of a body.
pub(super) const BODY: usize = 1 << 20;
/// Results of one request.
pub(super) const RESULTS: usize = 10_000;
/// Decode steps that one request may sum one by one: about a fifth of a second.
pub(super) const STEPS: u64 = 200_000;
/// Clients that are remembered.
const CLIENTS: usize = 4096;

/// Requests since the server started.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Counts one.
pub(super) fn count() {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
}

/// How many there were.
pub(super) fn requests() -> u64 {
    REQUESTS.load(Ordering::Relaxed)
}

/// A bucket per client: it holds two seconds' worth of requests and fills at the rate. Clients on this machine have none:
/// they could as well run the program.
pub(super) struct Rates {
    per_second: f64,
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

struct Bucket {
    left: f64,
    seen: Instant,
}

impl Rates {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: per_second.into(), buckets: Mutex::default() }
    }

    pub(super) fn check(&self, client: IpAddr, now: Instant) -> Result<(), Refusal> {
        if client.to_canonical().is_loopback() {
            return Ok(());
        }
        let full = 2.0 * self.per_second;
        let mut buckets = self.buckets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if buckets.len() >= CLIENTS && !buckets.contains_key(&client) {
            // A bucket that had time to fill says no more than none at all.
            buckets.retain(|_, bucket| now.duration_since(bucket.seen).as_secs_f64() < 2.0);
            if buckets.len() >= CLIENTS {
                return Err(refused("too many clients at once"));
            }
        }
        let bucket = buckets.entry(client).or_insert(Bucket { left: full, seen: now });
        bucket.left = (bucket.left + now.duration_since(bucket.seen).as_secs_f64() * self.per_second).min(full);
        bucket.seen = now;
        if bucket.left < 1.0 {
            return Err(refused("too many requests"));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

fn refused(detail: &str) -> Refusal {
    Refusal::new(
        StatusCode::TOO_MANY_REQUESTS,
        detail,
        "wait a second; `roofline serve --rate` sets how many there may be",
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stranger_gets_a_burst_and_then_the_rate() {
        let (rates, start) = (Rates::new(10), Instant::now());
        let stranger: IpAddr = "192.0.2.1".parse().unwrap();
        let passed = |at: Duration| (0..100).filter(|_| rates.check(stranger, start + at).is_ok()).count();
        assert_eq!(passed(Duration::ZERO), 20);
        assert_eq!(passed(Duration::from_millis(500)), 5);
        assert_eq!(passed(Duration::from_secs(59)), 20);
        let here: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        assert!((0..1000).all(|_| rates.check(here, start).is_ok()));
    }

    #[test]
    fn the_memory_of_clients_is_bounded() {
        let (rates, start) = (Rates::new(10), Instant::now());
        let client = |number: u32| IpAddr::from(number.to_be_bytes());
        let passed = (0..5000).filter(|number| rates.check(client(0x0a00_0000 + number), start).is_ok()).count();
        assert_eq!(passed, CLIENTS);
        assert!(rates.check(client(1), start + Duration::from_secs(3)).is_ok());
    }
}
