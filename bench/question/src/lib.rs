//! From a question about storage to the study that answers it. Pure: answers in, the text of a study out. Nothing is read, written or
//! measured here.
//!
//! | module | idea |
//! | --- | --- |
//! | [`question`] | the four questions |
//! | [`field`] | what is asked: the name of each answer |
//! | [`form`] | the description of all fields, which a dialogue and a page render |
//! | [`answers`] | the answers, as texts |
//! | [`fault`] | what is wrong with an answer |
//! | `resolved` | the answers, checked |
//! | `storage`, `machine`, `within`, `effort` | one answer each: where the storage is, the load, the latency limit, how long |
//! | [`target`] | the text of `--target` as answers |
//! | `sheet` | writes TOML with comments |
//! | `compose` | the study of each question |
//! | [`mod@draft`] | answers into a study that is read, validated and planned; its duration and its space |

pub mod answers;
mod compose;
pub mod draft;
mod effort;
pub mod fault;
pub mod field;
pub mod form;
mod machine;
pub mod question;
mod resolved;
mod sheet;
mod storage;
pub mod target;
mod within;

pub use answers::Answers;
pub use draft::{Draft, draft, faults};
pub use fault::Fault;
pub use field::Field;
pub use form::{Form, questions};
pub use question::Question;
