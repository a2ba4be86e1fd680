//! Samples that threads run in turns: every thread has samples of its own, rather than a share of each product.
//!
//! Nobody waits for anybody within a sample, so cores that somebody else needs are not held by waiting. What a sample gives does
//! not depend on who ran it, and is heard in the order of the samples: the number of threads changes nothing.

use std::{sync::mpsc::sync_channel, thread};

use crate::Result;

/// Runs every sample by one of `runners` threads. `runner` makes what a thread runs samples with; `each` hears what they gave,
/// sample after sample.
pub(crate) fn in_turns<S, G, R>(
    samples: Vec<S>,
    runners: usize,
    runner: impl Fn() -> Result<R> + Sync,
    each: &mut dyn FnMut(usize, G) -> Result<()>,
) -> Result<()>
where
    S: Send,
    G: Send,
    R: FnMut(S) -> Result<G>,
{
    let count = samples.len();
    let runners = runners.min(count).max(1);
    let mut lists: Vec<Vec<S>> = (0..runners).map(|_| Vec::new()).collect();
    samples.into_iter().enumerate().for_each(|(at, sample)| lists[at % runners].push(sample));
    let runner = &runner;
    thread::scope(|scope| {
        let start = |list: Vec<S>| {
            // One is looked at while the next runs.
            let (sender, receiver) = sync_channel(1);
            let thread = scope.spawn(move || -> Result<()> {
                let mut run = runner()?;
                for sample in list {
                    // Nobody hears any more where another sample has failed.
                    if sender.send(run(sample)?).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            (receiver, thread)
        };
        let (receivers, threads): (Vec<_>, Vec<_>) = lists.into_iter().map(start).unzip();
        let mut heard = Ok(());
        for (at, receiver) in (0..count).zip(receivers.iter().cycle()) {
            // A thread that fails sends no more, and says why when it has ended.
            let Ok(given) = receiver.recv() else { break };
            heard = each(at, given);
            if heard.is_err() {
                break;
            }
        }
        drop(receivers);
        for thread in threads {
            let ran = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            heard = heard.and(ran);
        }
        heard
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn squares(count: usize, runners: usize, fails: Option<usize>) -> (Vec<(usize, usize)>, Result<()>) {
        let mut heard = Vec::new();
        let square = |sample: usize| if Some(sample) == fails { Err(Error::Stopped) } else { Ok(sample * sample) };
        let ran = in_turns((0..count).collect(), runners, || Ok(square), &mut |at, square| {
            heard.push((at, square));
            Ok(())
        });
        (heard, ran)
    }

    #[test]
    fn samples_are_heard_in_their_order() {
        let all: Vec<(usize, usize)> = (0..10).map(|at| (at, at * at)).collect();
        for runners in [0, 1, 2, 3, 16] {
            let (heard, ran) = squares(10, runners, None);
            assert!(ran.is_ok() && heard == all, "{runners}: {heard:?}");
        }
        assert!(squares(0, 2, None).0.is_empty());
    }

    #[test]
    fn what_fails_ends_all_of_it() {
        for runners in [1, 3] {
            let (heard, ran) = squares(100, runners, Some(5));
            assert!(matches!(ran, Err(Error::Stopped)) && heard.len() == 5, "{heard:?}");
        }
        // So does whoever hears, and a thread that cannot start.
        let mut heard = 0;
        let ran = in_turns((0..100).collect(), 2, || Ok(Ok::<usize, Error>), &mut |_, _| {
            heard += 1;
            if heard == 3 { Err(Error::Stopped) } else { Ok(()) }
        });
        assert!(ran.is_err() && heard == 3);
        let none = || -> Result<fn(usize) -> Result<usize>> { Err(Error::Stopped) };
        assert!(in_turns(vec![1, 2], 2, none, &mut |_, _| Ok(())).is_err());
    }
}
