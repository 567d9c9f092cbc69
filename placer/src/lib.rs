//! Decides who runs where: Problem to Plan, policies, buddy allocator, plan checker.
