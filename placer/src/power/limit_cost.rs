//! What a power limit costs: by how much one more kilowatt would shorten the mean completion time.
//!
//! A policy with a price of power (`wattle`) states the price `mu` at which its plan fills the limit, in seconds of
//! completion time per joule: the multiplier of the limit in the sum of completion times
//! (`policies/wattle/README.md`). Over a span in which `n` jobs complete, one more kilowatt shortens that sum by the
//! integral of `1000 mu`, and the mean of these jobs by
//!
//! ```text
//! 1000 / n * integral of mu(t) dt        s per kW
//! ```
//!
//! Both the integral and the number fade with a time constant of [`FADES_IN_S`], so the figure is that of about
//! the last day. It is a derivative: it holds for a small change of the limit and the present mix of jobs.

use wattle_common::{Power, Timestamp};

/// The time constant of the sums, s: a day has one peak.
const FADES_IN_S: f64 = 86_400.0;
/// Completions from which the figure is stated: with ten, it is known to a third.
const COMPLETIONS_MIN: f64 = 10.0;

/// The price of a power limit, and its effect on completion times.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitCost {
    /// Until when the sums count.
    until: Timestamp,
    /// The price of power since then, s/J.
    price: f64,
    /// The fading integral of the price, s²/J.
    integral: f64,
    /// The fading number of completed jobs.
    completions: f64,
    /// The integral and the number without fading.
    total: (f64, f64),
}

impl LimitCost {
    fn advance_to(&mut self, now: Timestamp) {
        let span_s = now.since(self.until).as_secs_f64();
        let left = (-span_s / FADES_IN_S).exp();
        self.integral = self.integral * left + self.price * FADES_IN_S * (1.0 - left);
        self.completions *= left;
        self.total.0 += self.price * span_s;
        self.until = self.until.max(now);
    }

    /// From `now` on, plans fill the limit at this price of power, s/J; 0: the limit does not bind.
    pub fn price_changed(&mut self, now: Timestamp, price: f64) {
        self.advance_to(now);
        self.price = price;
    }

    /// A job completed.
    pub fn job_completed(&mut self, now: Timestamp) {
        self.advance_to(now);
        self.completions += 1.0;
        self.total.1 += 1.0;
    }

    /// The present price of power, seconds of completion time per kilowatt-hour.
    #[must_use]
    pub fn price_s_per_kwh(&self) -> f64 {
        self.price * 3.6e6
    }

    /// By how much this much more power would have shortened the mean completion time of the last day's jobs, s;
    /// `None` while fewer than ten have completed.
    #[must_use]
    pub fn saved_s(&self, now: Timestamp, more: Power) -> Option<f64> {
        let mut until_now = *self;
        until_now.advance_to(now);
        let completions = until_now.completions;
        let is_known = completions >= COMPLETIONS_MIN;
        is_known.then(|| more.as_w() * until_now.integral / completions)
    }

    /// The same for all jobs so far, without fading.
    #[must_use]
    pub fn saved_s_in_all(&self, more: Power) -> Option<f64> {
        let (integral, completions) = self.total;
        (completions > 0.0).then(|| more.as_w() * integral / completions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KW: Power = Power::from_w(1_000);

    #[test]
    fn a_kilowatt_saves_its_price_over_the_rate_of_completions() {
        let mut cost = LimitCost::default();
        // A job each 100 s at 0.02 s/J: 1,000 W save 20 s each second, 2,000 s of each job.
        cost.price_changed(Timestamp::from_s(0), 0.02);
        for at in 1..=1_000 {
            cost.job_completed(Timestamp::from_s(100 * at));
        }
        let now = Timestamp::from_s(100_000);
        assert!((cost.saved_s(now, KW).unwrap() / 2_000.0 - 1.0).abs() < 0.01);
        assert!((cost.saved_s_in_all(KW).unwrap() - 2_000.0).abs() < 1e-6);
        assert!((cost.price_s_per_kwh() - 72_000.0).abs() < 1e-9);
        // A week after the limit stopped to bind the last day's jobs would have saved little.
        cost.price_changed(now, 0.0);
        for day in 1..=7 {
            for hour in 0..24 {
                cost.job_completed(
                    now + std::time::Duration::from_secs(86_400 * day + 3_600 * hour),
                );
            }
        }
        let later = now + std::time::Duration::from_secs(8 * 86_400);
        assert!(cost.saved_s(later, KW).unwrap() < 20.0);
    }

    #[test]
    fn nothing_is_stated_of_a_few_jobs() {
        let mut cost = LimitCost::default();
        cost.price_changed(Timestamp::from_s(0), 0.01);
        (1..10).for_each(|at| cost.job_completed(Timestamp::from_s(at)));
        assert_eq!(cost.saved_s(Timestamp::from_s(10), KW), None);
    }
}
