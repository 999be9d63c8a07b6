//! The experiment: plan, steps, order, resume.
