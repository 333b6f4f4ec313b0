//! Requests to servers that speak OpenAI's protocol, and what they answer, as data. No connection, address or key.
//!
//! `request` writes a request, `chunk` reads the events of a streamed answer and `answer` gathers them. `sampling` names
//! sampling parameters. `speculation` reads the figures that a server reports of its own speculation: no figure of a
//! server is presented as one of ours. [`crate::remote`] sends and receives.

mod answer;
mod chunk;
mod request;
mod sampling;
mod speculation;

pub(crate) use answer::PartialAnswer;
pub use answer::{RemoteAnswer, TextPiece, Usage};
pub(crate) use chunk::{Chunk, error_message};
pub(crate) use request::model_of_entry;
pub use request::{RemoteModel, RemoteRequest, ServerKind, exact};
pub use sampling::sampling_fields;
pub(crate) use speculation::VllmCounters;
pub use speculation::{Speculation, SpeculationSource};
