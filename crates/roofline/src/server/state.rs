//! What all requests share.

use std::{sync::Arc, time::Duration};

use roofline_verbs::{Context, context::Home};
use tokio::sync::{Semaphore, watch};

use super::{guard::Guard, jobs::Jobs, limits::Rates, refusal::Refusal, trace};
use crate::{cli::ServeArgs, failure::Failure};

pub(super) type Shared = Arc<State>;

pub(super) struct State {
    home: Arc<Home>,
    pub(super) allow_measure: bool,
    pub(super) guard: Guard,
    pub(super) jobs: Jobs,
    pub(super) rates: Rates,
    pub(super) header_timeout: Duration,
    pub(super) request_timeout: Duration,
    /// Connections that may be open.
    pub(super) connections: Arc<Semaphore>,
    /// Answers that take longer than a moment: as many at a time as there are cores, the others wait their turn.
    slow: Arc<Semaphore>,
    /// Traces that may be held at once.
    pub(super) uploads: Semaphore,
    /// Told when the server stops.
    pub(super) stopping: watch::Sender<bool>,
}

impl State {
    pub(super) fn new(args: &ServeArgs) -> Result<Shared, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let home = Arc::new(Home::of_user());
        Ok(Arc::new(Self {
            allow_measure: args.allow_measure,
            guard: Guard::new(args.host, &args.allow_host, args.token.clone()),
            jobs: Jobs::open(home.clone(), args.state.as_deref(), args.allow_measure)?,
            home,
            rates: Rates::new(args.rate),
            header_timeout: args.header_timeout,
            request_timeout: args.request_timeout,
            connections: Arc::new(Semaphore::new(args.connections as usize)),
            slow: Arc::new(Semaphore::new(cores)),
            uploads: Semaphore::new(trace::AT_ONCE),
            stopping: watch::Sender::new(false),
        }))
    }

    /// The surroundings of one question.
    pub(super) fn context(&self) -> Context {
        Context::remote(self.home.clone())
    }

    /// Ends what would go on for ever.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Does `work` where it does not keep other requests waiting.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let broken = || Refusal::broken(&"it ended unexpectedly");
        let permit = self.slow.clone().acquire_owned().await.map_err(|_| broken())?;
        let result = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        result.await.map_err(|_| broken())?
    }
}
